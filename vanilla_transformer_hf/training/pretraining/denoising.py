"""
Denoising: which arguments it takes, the tokens that it needs, its text (pairs of a text, with the tag of its language
if there are tags, and itself), and batches whose noise depends on seed and epoch.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...common.column_names import SIDES
from ...common.corpus_files import holds_both_sides
from ...common.lines import read_lines
from ...common.opening import open_tokenizer
from ...translation.text.texts import TARGET_LANG_TAGS
from ..arguments import DataArguments
from ..data.collators import TranslationCollator, vocabulary_sizes
from ..data.corpus import from_rows, iterate_rows
from ..data.parts import ROLES
from ..data.token_batches import OfEpochs
from ..data.tokenized_corpus import truncate
from ..recipe import RunArguments
from .noise import NOISES, Noise, NoiseTokens, most_sentinels


DENOISING = "denoising"
MASK_TOKEN = "<mask>"
# As T5 names them.
SENTINEL = "<extra_id_{}>"
# Fields that only this task has, and fields that only pairs have.
NOISE_FIELDS = ("noise", "noise_rate", "span_length", "text_langs", "train_text", "validation_text", "test_text")
PAIR_FIELDS = (
    *(f"{role}_{side}" for role in ROLES for side in ("source", "target")),
    *("source_tags", "reverse", "dataset_config_name", "separate_vocabularies", "max_length_ratio", "bpe_dropout"),
    *("r_drop", "teacher", "distillation_weight", "distillation_temperature", "bleu_tokenize"),
    *("predict_with_generate", "generation_num_beams"),
)
# The noise of held-out text is that of this seed and epoch: the same in every evaluation of every run.
HELD_OUT_SEED, HELD_OUT_EPOCH = 0, 2**31
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "።", "؟")


@dataclass(frozen=True)
class NoisePlan:
    """The noise of a run, with the rate and the length of spans that it has in it."""

    noise: Noise
    rate: float
    span_length: float

    @classmethod
    def of(cls, data: DataArguments) -> "NoisePlan":
        """The noise that arguments ask for."""
        noise = NOISES[data.noise]
        rate = noise.rate if data.noise_rate is None else data.noise_rate
        length = (noise.span_length or 1.0) if data.span_length is None else data.span_length
        return cls(noise, rate, length)

    def __str__(self) -> str:
        spans = f" in spans of {self.span_length:g} on average" if self.noise.span_length else ""
        return f"{self.noise.about}: {100 * self.rate:g} % of the tokens{spans}"


def check_denoising(data: DataArguments) -> None:
    """Raise `ValueError` if there is no text, or the noise is impossible."""
    if not data.train_text:
        raise ValueError("train_text is not given: name the text to train on.")
    plan = NoisePlan.of(data)
    if not 0 < plan.rate <= 1:
        raise ValueError(f"noise_rate={plan.rate}: must be greater than 0 and at most 1.")
    if data.span_length is not None and plan.noise.span_length is None:
        raise ValueError(f"span_length={data.span_length} has no effect with noise={data.noise}: remove it.")
    if not 1 <= plan.span_length < float("inf"):
        raise ValueError(f"span_length={plan.span_length}: must be at least 1.")


def noise_tokens(data: DataArguments) -> list[str]:
    """The tokens that the noise needs, beside those of every tokenizer."""
    if data.task != DENOISING:
        return []
    plan = NoisePlan.of(data)
    count = 0
    if plan.noise.has_sentinels:
        count = most_sentinels(data.max_source_length, plan.rate, plan.span_length)
    return [MASK_TOKEN] * plan.noise.has_mask + [SENTINEL.format(number) for number in range(count)]


def add_noise_tokens(tokenizer: PreTrainedTokenizerBase, data: DataArguments) -> PreTrainedTokenizerBase:
    """The tokenizer, with those of the tokens that it did not have; it keeps a mask token of another name."""
    for token in noise_tokens(data):
        if token != MASK_TOKEN:
            tokenizer.add_tokens([AddedToken(token, special=True, normalized=False)], special_tokens=True)
        elif tokenizer.mask_token is None:
            tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})
    return tokenizer


def check_tokenizer(tokenizer: Any) -> None:
    """Raise `ValueError` if a text has other ids as source than as target, or other special tokens than the end."""
    told = "task=denoising needs a tokenizer with one vocabulary, whose texts are pieces and the end token"
    if getattr(tokenizer, "source_vocab_size", None):
        raise ValueError(f"{told}; this one has a vocabulary for each language.")
    ids, special = tokenizer("a")["input_ids"], set(tokenizer.all_special_ids)
    if ids[-1] != tokenizer.eos_token_id or special & set(ids[:-1]):
        raise ValueError(f"{told}; this one makes of 'a': {' '.join(tokenizer.convert_ids_to_tokens(ids))}.")


@dataclass(kw_only=True)
class DenoisingCollator(OfEpochs, TranslationCollator):
    """A `TranslationCollator` of texts (`labels`) that gets noise for the source, other noise in each epoch."""

    # The noise of a text depends only on seed, epoch and its line: a run that continues has the same. A tag of a
    # language, with which `input_ids` may begin, stays before the source. `limit` is the maximum number of tokens of a
    # source.

    plan: NoisePlan
    tokens: NoiseTokens
    tags: frozenset[int] = frozenset()
    limit: int = 256
    seed: int = HELD_OUT_SEED
    epoch: int = HELD_OUT_EPOCH

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, torch.Tensor]:
        texts = []
        for feature in features:
            rng = np.random.default_rng((self.seed, feature.get("epoch", self.epoch), feature["line"]))
            text, plan = list(feature["labels"][:-1]), self.plan
            noisy = plan.noise.corrupt(rng, text, self.tokens, plan.rate, plan.span_length)
            tag = [token for token in feature["input_ids"][:1] if token in self.tags]
            texts.append(noisy._replace(source=truncate([*tag, *noisy.source], self.limit)))
        pairs = [
            {"line": feature["line"], "input_ids": text.source, "labels": text.labels}
            for feature, text in zip(features, texts)
        ]
        batch = super().__call__(pairs, return_tensors)
        if texts[0].decoder_input is not None:
            width, start = batch["labels"].shape[1], texts[0].decoder_input[0]
            rows = [text.decoder_input or [] for text in texts]
            batch["decoder_input_ids"] = torch.tensor([row + [start] * (width - len(row)) for row in rows])
        return batch


def make_denoising_collators(
    run: RunArguments, model: PreTrainedModel, tokenizer: Any
) -> dict[str, TranslationCollator | None]:
    """The Trainer's collators: `data_collator` for held-out text, and `train_collator`."""
    plan = NoisePlan.of(run.data)
    source_size, target_size = vocabulary_sizes(model)
    tags: Any = tokenizer.convert_tokens_to_ids([*(tokenizer.init_kwargs.get(TARGET_LANG_TAGS) or {}).values()])
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    words = [number for number in range(len(tokenizer)) if number not in special]
    sentinels: list[int] = []
    if plan.noise.has_sentinels:
        vocabulary = tokenizer.get_vocab()
        while (number := vocabulary.get(SENTINEL.format(len(sentinels)))) is not None:
            sentinels.append(number)
    ends = frozenset[int]()
    if plan.noise is NOISES["infilling_permuted"]:
        ends = frozenset(each for each in words if str(tokenizer.decode([each])).endswith(SENTENCE_ENDS))
    tokens = NoiseTokens(
        end=tokenizer.eos_token_id,
        start=model.config.decoder_start_token_id,
        mask=tokenizer.mask_token_id if plan.noise.has_mask else -1,
        sentinels=sentinels,
        words=np.asarray(words),  # from which numpy draws at once
        sentence_ends=ends,
    )
    held_out = DenoisingCollator(
        tokenizer=tokenizer,
        source_vocab_size=source_size,
        target_vocab_size=target_size,
        plan=plan,
        tokens=tokens,
        tags=frozenset(tags),
        limit=run.data.max_source_length,
    )
    return {"data_collator": held_out, "train_collator": replace(held_out, seed=run.training.seed, epoch=0)}


def text_rows(where: str, texts: list[tuple[str, list[str], dict[str, Any] | None]]) -> Iterator[dict[str, str]]:
    """Each text as both sides of a pair, its tag before the source; `where` names the text in messages."""
    # `texts` has for each file its path, the tags of its texts (two of pairs), and for pairs the arguments of
    # `iterate_rows`.
    for path, tags, pairs in texts:
        if pairs is None:
            for line in read_lines(path):
                yield {"source": tags[0] + line, "target": line}
            continue
        for row in iterate_rows(path, **pairs):
            if not isinstance(row, str):  # the reason why a unit is not a pair
                for tag, side in zip(tags, SIDES):
                    yield {"source": tag + row[side], "target": row[side]}


def tag_of(language: str | None, tags: dict[str, str], path: str) -> str:
    """The tag before the texts of a language; empty if there are no tags."""
    if not tags:
        return ""
    if language not in tags:
        raise ValueError(
            f"the language of {path} is {language or 'not given'}: expected one of {', '.join(tags)}, for which the "
            "tokenizer has tags; set text_langs, or for a file of pairs source_lang and target_lang."
        )
    return tags[language]


def load_texts(run: RunArguments) -> dict[str, Any]:
    """The named text of a run by role (train, validation, test), as `load_corpora` gives pairs."""
    arguments = run.data
    tags = {language: f"<2{language}>" for language in arguments.target_lang_tags or ()}
    if name := run.model.tokenizer_from:
        tags = open_tokenizer(name).init_kwargs.get(TARGET_LANG_TAGS) or {}
    found, given = {}, arguments.text_langs or []
    both = (arguments.source_lang, arguments.target_lang)
    pairs = {f"{side}_{kind}": getattr(arguments, f"{side}_{kind}") for side in SIDES for kind in ("lang", "column")}
    for role in ROLES:
        paths = getattr(arguments, f"{role}_text")
        if not paths:
            continue
        for path in paths:
            if not os.path.exists(path):
                raise FileNotFoundError(f"{path}: no such file.")
        plain = [path for path in paths if not (os.path.isdir(path) or holds_both_sides(path))]
        if given and len(given) != len(plain):
            raise ValueError(
                f"text_langs={' '.join(given)}: {len(given)} languages, but {role}_text names {len(plain)} plain-text "
                "files; name one for each, in their order."
            )
        languages, split = dict(zip(plain, given)), getattr(arguments, f"{role}_split")
        texts = [
            (path, [tag_of(languages.get(path), tags, path)], None)
            if path in plain
            else (path, [tag_of(each, tags, path) for each in both], {**pairs, "split": split})
            for path in paths
        ]
        streams = arguments.streaming and role == "train"
        found[role] = from_rows(text_rows, paths, streams, where=", ".join(paths), texts=texts)
    return found
