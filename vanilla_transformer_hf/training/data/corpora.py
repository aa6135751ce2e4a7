"""The corpora of a run, as text and as token ids: loaded, joined, filtered, and the table or stream of their ids."""

import json
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import datasets
import numpy as np
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from ...common.choices import TooLongToTrain
from ...common.column_names import SIDES
from ...common.white_space import normalize_space
from ..arguments import DataArguments
from ..process import say
from ..recipe import ConfigArguments, RunArguments
from .cleaning import key_of_pair
from .corpus import load_parallel_text
from .parts import ROLES, Mixture, corpus_parts, rates_of


# Rows of a block of a tokenized table. Opening a table reads and keeps metadata of each block: with the library's
# blocks of 1000 rows, a corpus of ten million pairs would be in memory before training begins.
BLOCK_ROWS = 20_000

# Values of the column "verdict" of a pair. From EMPTY on, pairs are left out.
KEPT, TRUNCATED, EMPTY, TOO_LONG, UNEVEN, DUPLICATE = range(6)
VERDICTS = {
    TRUNCATED: "truncated to the longest allowed",
    EMPTY: "with an empty side left out",
    TOO_LONG: "too long and left out",
    UNEVEN: "of too different lengths left out",
    DUPLICATE: "that occurred before left out",
}


@dataclass
class CorpusFilter:
    """Which pairs of a corpus are used."""

    max_source_length: int  # in tokens, the end of sentence included
    max_target_length: int
    too_long: TooLongToTrain  # what happens to a pair with a longer one
    max_length_ratio: float | None = None  # most tokens of the longer side for one of the shorter
    drop_duplicates: bool = False  # keep the first of equal pairs only

    def judge(self, source: list[int], target: list[int]) -> int:
        """The verdict on a pair of token ids; both are empty lists if a side has no text."""
        if not source:
            return EMPTY
        is_long = len(source) > self.max_source_length or len(target) > self.max_target_length
        if is_long and self.too_long == "drop":
            return TOO_LONG
        lengths = sorted((len(source), len(target)))
        if self.max_length_ratio is not None and lengths[1] > self.max_length_ratio * lengths[0]:
            return UNEVEN
        return TRUNCATED if is_long else KEPT


@dataclass
class TokenizedCorpus:
    """Token ids of a corpus, and the numbers of pairs that were truncated or left out, by verdict."""

    # Columns of `data`: `input_ids` and `labels` (lists of int, end of sentence included), `length` (the longer of the
    # two), `line` (row number in the corpus, from 0), and the texts if requested.

    data: datasets.Dataset
    verdicts: dict[int, int]

    def __str__(self) -> str:
        return self.in_words("pairs")

    def in_words(self, unit: str) -> str:
        """The numbers of what is used and of what is not; `unit` is what is counted, such as "pairs"."""
        parts = [
            f"{self.verdicts[verdict]:,} {text}" for verdict, text in VERDICTS.items() if verdict in self.verdicts
        ]
        return "; ".join([f"{len(self.data):,} {unit}", *parts])


def truncate(ids: list[int], limit: int) -> list[int]:
    """At most `limit` token ids. The last is the end of sentence: it stays when the sentence is truncated."""
    return ids if len(ids) <= limit else ids[: limit - 1] + ids[-1:]


def _tokenize_batch(
    batch: dict[str, list[Any]], lines: list[int], tokenizer: Any, rules: CorpusFilter, keep_text: bool
) -> dict[str, list[Any]]:
    """Token ids of a batch of pairs, and the verdict on each; those left out have no ids."""
    texts = [[normalize_space(text or "") for text in batch[side]] for side in SIDES]
    # References in the form in which translations are written.
    if form := getattr(tokenizer, "init_kwargs", {}).get("unicode_normalization"):
        texts = [[unicodedata.normalize(form, text) for text in side] for side in texts]
    full = [row for row, (source, target) in enumerate(zip(*texts)) if source and target]
    columns: dict[str, list[Any]] = {name: [[] for _ in lines] for name in ("input_ids", "labels")}
    # Tokenizers raise an error for an empty list.
    if full:
        sources, targets = ([side[row] for row in full] for side in texts)
        # verbose=False: texts that are too long are counted here, and need no warning.
        encoded = (
            tokenizer(sources, verbose=False)["input_ids"],
            tokenizer(text_target=targets, verbose=False)["input_ids"],
        )
        for name, sentences in zip(columns, encoded):
            for row, ids in zip(full, sentences):
                columns[name][row] = ids
    verdicts = [rules.judge(source, target) for source, target in zip(columns["input_ids"], columns["labels"])]
    for name, limit in (("input_ids", rules.max_source_length), ("labels", rules.max_target_length)):
        columns[name] = [
            [] if verdict >= EMPTY else truncate(ids, limit) for verdict, ids in zip(verdicts, columns[name])
        ]
    columns |= {"line": lines, "verdict": verdicts}
    columns["length"] = [max(len(ids), len(out)) for ids, out in zip(columns["input_ids"], columns["labels"])]
    if rules.drop_duplicates:
        columns["hash"] = [key_of_pair(source, target) for source, target in zip(*texts)]
    return columns | (dict(zip(SIDES, texts)) if keep_text else {})


def _identity(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """The settings that determine the ids of a text; the object's hash would change with its last padding."""
    names = ("backend_tokenizer", "source_backend_tokenizer")
    backends = [getattr(tokenizer, name) for name in names if hasattr(tokenizer, name)]
    if not backends:  # a Python tokenizer, which has no further settings
        return [{"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab(), "settings": str(tokenizer)}]
    listed = {name: getattr(tokenizer, name, None) for name in ("listed_pieces", "source_listed_pieces")}
    return [listed, *(json.loads(each.to_str()) | {"padding": None, "truncation": None} for each in backends)]


def tokenize_corpus(
    corpus: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    rules: CorpusFilter,
    *,
    keep_text: bool = False,
    num_proc: int | None = None,
) -> TokenizedCorpus:
    """Tokenize a corpus in `num_proc` processes into a cached, memory-mapped table of the pairs that `rules` keep."""
    kinds = {"line": "int64", "verdict": "int8", "length": "int32"}
    kinds |= {"hash": "int64"} if rules.drop_duplicates else {}
    kinds |= dict.fromkeys(SIDES, "string") if keep_text else {}
    features = {name: datasets.List(datasets.Value("int32")) for name in ("input_ids", "labels")}
    features |= {name: datasets.Value(kind) for name, kind in kinds.items()}
    data = corpus.map(
        _tokenize_batch,
        with_indices=True,
        batched=True,
        fn_kwargs={"tokenizer": tokenizer, "rules": rules, "keep_text": keep_text},
        remove_columns=corpus.column_names,
        features=datasets.Features(features),
        writer_batch_size=BLOCK_ROWS,
        num_proc=num_proc,
        # Tables of versions that did not normalise white space have another fingerprint.
        new_fingerprint=Hasher.hash((corpus._fingerprint, _identity(tokenizer), rules, kinds, "normalized")),
        desc="Tokenizing",
    )
    verdicts = data.data.column("verdict").to_numpy().astype(np.int8)
    if rules.drop_duplicates:
        hashes = data.data.column("hash").to_numpy()
        again = np.ones(len(hashes), dtype=bool)
        again[np.unique(hashes, return_index=True)[1]] = False
        verdicts[again & (verdicts < EMPTY)] = DUPLICATE
    counts = {int(verdict): int(count) for verdict, count in zip(*np.unique(verdicts, return_counts=True))}
    kept = np.flatnonzero(verdicts < EMPTY)
    data = data.remove_columns({"verdict", "hash"} & set(data.column_names))
    result = TokenizedCorpus(data if len(kept) == len(data) else data.select(kept), counts)
    if len(kept) == 0:
        raise ValueError(f"no sentence pair is left of the {len(corpus):,} pairs of this corpus: {result}.")
    return result


def tokenize_stream(
    corpus: datasets.IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    rules: CorpusFilter,
    *,
    keep_text: bool = False,
) -> datasets.IterableDataset:
    """Tokenize a stream of pairs while it is read; the columns are those of `TokenizedCorpus`."""
    if rules.drop_duplicates:
        raise ValueError("drop_duplicates is not possible with streaming: remove one of them.")
    settings = {"tokenizer": tokenizer, "rules": rules, "keep_text": keep_text}
    stream = corpus.map(
        _tokenize_batch, with_indices=True, batched=True, fn_kwargs=settings, remove_columns=corpus.column_names
    )
    return stream.filter(_is_used, input_columns="verdict").remove_columns("verdict")


def _is_used(verdict: int) -> bool:
    return verdict < EMPTY


def load_corpora(arguments: DataArguments) -> dict[str, Any]:
    """The named corpora by role: train, validation, test; of several, by role and name: "train.law", "test.law"."""
    if arguments.corpora:
        return {
            f"{role}.{name}": corpus
            for name, part in corpus_parts(arguments).items()
            for role, corpus in load_corpora(part).items()
        }
    corpora = {}
    for role in ROLES:
        source = getattr(arguments, f"{role}_source")
        if not source:
            continue
        # Files are as the recipe names them, whose sides `exchange_sides` has exchanged.
        sides = zip(SIDES, SIDES[::-1] if arguments.reverse else SIDES)
        names = {
            f"{side}_{kind}": getattr(arguments, f"{ours}_{kind}")
            for side, ours in sides
            for kind in ("lang", "column")
        }
        corpus = load_parallel_text(
            source,
            getattr(arguments, f"{role}_target"),
            split=getattr(arguments, f"{role}_split"),
            config_name=arguments.dataset_config_name,
            **names,
            streaming=arguments.streaming and role == "train",
        )
        corpora[role] = corpus.rename_columns(dict(zip(SIDES, SIDES[::-1]))) if arguments.reverse else corpus
    return corpora


def size_by_pairs(
    run: RunArguments, corpora: dict[str, Any], kept: Mapping[str, Any] | None = None
) -> tuple[RunArguments, dict[str, Any]]:
    """The run with what its `by_pairs` has for its number of training pairs, and these fields; prints them."""
    # `kept` are the settings of a run that continues, whose sizes stay when its text has grown.
    table: Any = run.data.by_pairs
    if not table:
        return run, {}
    pairs = sum(len(corpus) for role, corpus in corpora.items() if role.partition(".")[0] == "train")
    known = nearest_size(table, pairs)
    fields, why = table[known], f"as the recipe has it for {known:,} pairs (by_pairs); options replace it"
    if kept is not None:
        fields, why = {name: kept[name] for name in fields if name in kept}, "as the run began"
    if fields:
        told = ", ".join(f"{name} {value}" for name, value in fields.items())
        say(run.training, f"{pairs:,} training pairs: {told}, {why}.")
    sizes = {name: value for name, value in fields.items() if name in ConfigArguments.__annotations__}
    others = {name: value for name, value in fields.items() if name not in sizes}
    return replace(run, config=run.config | sizes, data=replace(run.data, by_pairs=None, **others)), fields


def nearest_size(table: Mapping[int, Any], pairs: int) -> int:
    """The number of pairs in a table that is nearest as a ratio: to 3,000, 2,000 is nearer than 5,000."""
    return min(table, key=lambda known: abs(math.log(known / max(pairs, 1))))


def training_text(run: RunArguments, corpora: dict[str, Any]) -> Any:
    """The training text, for a new tokenizer: of several corpora what an epoch has of it."""
    if not run.data.corpora:
        return corpora["train"]
    joined, mixture = _join(corpora), plan_mixture(run, _training_sizes(corpora))
    return joined if mixture is None else joined.select(np.sort(mixture.rows(0)))


def plan_mixture(run: RunArguments, sizes: dict[str, int]) -> Mixture | None:
    """What an epoch has of training corpora of these sizes; None: each pair once."""
    seed = run.training.seed if run.training.data_seed is None else run.training.data_seed
    if run.data.corpus_temperature is not None:
        return Mixture.by_temperature(sizes, run.data.corpus_temperature, seed)
    rates = {name: rate for name, rate in rates_of(run.data).items() if rate is not None}
    return Mixture.by_rates(sizes, rates, seed) if rates else None


def _training_sizes(corpora: dict[str, Any]) -> dict[str, int]:
    return {key.partition(".")[2]: len(corpus) for key, corpus in corpora.items() if key.startswith("train.")}


def _join(corpora: dict[str, Any]) -> datasets.Dataset:
    return datasets.concatenate_datasets([corpus for key, corpus in corpora.items() if key.startswith("train.")])


def join_corpora(run: RunArguments, corpora: dict[str, Any], tags: dict[str, str]) -> dict[str, Any]:
    """Corpora with one training text, "train": of several, one after the other, tagged by target language."""
    if not run.data.corpora:
        return corpora
    parts = corpus_parts(run.data)
    tagged = {}
    for key, corpus in corpora.items():
        tag = tags.get(str(parts[key.partition(".")[2]].target_lang))
        tagged[key] = corpus if tag is None else corpus.map(_put_before, fn_kwargs={"tag": tag}, batched=True)
    return {"train": _join(tagged), **{key: corpus for key, corpus in tagged.items() if not key.startswith("train.")}}


def _put_before(batch: dict[str, list[str]], tag: str) -> dict[str, list[str]]:
    # A pair without a source stays one.
    return {"source": [f"{tag} {text}" if text and not text.isspace() else text for text in batch["source"]]}


def mix(run: RunArguments, corpora: dict[str, Any], train: Any) -> Mixture | None:
    """The mixture, also printed, of several training corpora, which stand in `train` in the order of `corpora`."""
    if not run.data.corpora:
        return None
    texts = _training_sizes(corpora)
    bounds = np.cumsum([0, *texts.values()])
    kept = np.diff(np.searchsorted(train.with_format("numpy")["line"][:], bounds))
    sizes = {name: int(count) for name, count in zip(texts, kept)}
    if lost := [name for name, size in sizes.items() if size == 0]:
        raise ValueError(f"no sentence pair is left of the {texts[lost[0]]:,} pairs of the corpus {lost[0]}.")
    mixture = plan_mixture(run, sizes)
    for sentence in (mixture or Mixture(tuple(sizes), tuple(sizes.values()), tuple(sizes.values()))).sentences():
        say(run.training, f"train, {sentence}")
    return mixture


def tokenize(corpora: dict[str, Any], tokenizer: PreTrainedTokenizerBase, run: RunArguments) -> dict[str, Any]:
    """Token ids of the corpora by role; prints the numbers of dropped and truncated pairs."""
    data, arguments, parts = {}, run.data, corpus_parts(run.data)
    held_out_rules = CorpusFilter(arguments.max_source_length, arguments.max_target_length, "truncate")
    train_rules = replace(
        held_out_rules,
        too_long=arguments.too_long,
        max_length_ratio=arguments.max_length_ratio,
        drop_duplicates=arguments.drop_duplicates,
    )
    for role, corpus in corpora.items():
        rules, keep_text = (train_rules, arguments.bpe_dropout > 0) if role == "train" else (held_out_rules, True)
        kind, _, name = role.partition(".")
        of_part = parts.get(name, arguments)
        names = getattr(of_part, f"{kind}_text") or [str(getattr(of_part, f"{kind}_source"))]
        if parts and not name:
            names = [name for name, part in parts.items() if getattr(part, f"{kind}_source")]
        source = ", ".join(names)
        if isinstance(corpus, datasets.IterableDataset):
            data[role] = tokenize_stream(corpus, tokenizer, rules, keep_text=keep_text)
            say(run.training, f"{role}: streamed from {source}.")
            continue
        try:
            tokenized = tokenize_corpus(
                corpus, tokenizer, rules, keep_text=keep_text, num_proc=arguments.preprocessing_num_workers
            )
        except ValueError as error:
            field = f"{role}_text" if arguments.train_text else f"{role}_source"
            raise ValueError(f"{field}={source}: {error}") from error
        unit = "texts" if arguments.train_text else "pairs"
        say(run.training, f"{role}: {tokenized.in_words(unit)} (from {source}).")
        data[role] = tokenized.data
    return data


def validation_of(run: RunArguments, held_out: dict[str, Any]) -> Any:
    """The validation text, or the sample of it that is scored during training; of several by name; None without."""
    texts, size = {}, run.training.eval_sample
    for role, text in held_out.items():
        kind, _, name = role.partition(".")
        if kind == "validation":
            if size is not None and size < len(text):
                rows = np.random.default_rng(run.training.seed).choice(len(text), size, replace=False)
                text = text.select(np.sort(rows))
            texts[name] = text
    return (texts or None) if run.data.corpora else texts.get("")
