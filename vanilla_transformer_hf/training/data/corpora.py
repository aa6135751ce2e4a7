"""The corpora of a run, as text and as token ids, and the collators of their batches."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from ...common.column_names import SIDES
from ..arguments import DataArguments
from ..process import say
from ..recipe import ConfigArguments, RunArguments
from .corpus import load_parallel_text
from .parts import ROLES, Mixture, corpus_parts, rates_of
from .tokenized_corpus import CorpusFilter, tokenize_corpus, tokenize_stream


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
    sizes = _training_sizes(corpora)
    joined = _join(corpora)
    mixture = plan_mixture(run, sizes)
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


def named_text(arguments: DataArguments, role: str) -> str:
    """What the arguments name as the text of a role: train, validation or test, also "validation.law" of several."""
    parts = corpus_parts(arguments)
    kind, _, name = role.partition(".")
    if parts and not name:
        return ", ".join(name for name, part in parts.items() if getattr(part, f"{kind}_source"))
    data = parts.get(name, arguments)
    return ", ".join(getattr(data, f"{kind}_text") or [str(getattr(data, f"{kind}_source"))])


def tokenize(corpora: dict[str, Any], tokenizer: PreTrainedTokenizerBase, run: RunArguments) -> dict[str, Any]:
    """Token ids of the corpora by role; prints the numbers of dropped and truncated pairs."""
    data, arguments = {}, run.data
    held_out_rules = CorpusFilter(arguments.max_source_length, arguments.max_target_length, "truncate")
    train_rules = replace(
        held_out_rules,
        too_long=arguments.too_long,
        max_length_ratio=arguments.max_length_ratio,
        drop_duplicates=arguments.drop_duplicates,
    )
    for role, corpus in corpora.items():
        rules, keep_text = (train_rules, arguments.bpe_dropout > 0) if role == "train" else (held_out_rules, True)
        source = named_text(arguments, role)
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


def by_length(corpus: Any) -> Any:
    """A tokenized corpus in the order of its lengths: batches of sentences of equal length need little padding."""
    return corpus.select(np.argsort(corpus["length"], kind="stable"))


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
