"""
Denoising: noise that an encoder–decoder learns to undo, as functions of token ids with a table of them; which
arguments the task takes, the tokens that it needs, its text (pairs of a text, with the tag of its language if there
are tags, and itself), and batches whose noise depends on seed and epoch.

A text of the noise is its token ids without the end of sentence; a rate is the share of its tokens that are changed.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
from ..data.collators import IGNORED_LABEL, TranslationCollator, vocabulary_sizes
from ..data.corpora import truncate
from ..data.corpus import from_rows, iterate_rows
from ..data.parts import ROLES
from ..data.token_batches import OfEpochs
from ..recipe import RunArguments


# Of the tokens that MASS chooses, these shares are masked and replaced by any token; the others stay, as in BERT.
MASKED, REPLACED = 0.8, 0.1


@dataclass(frozen=True)
class NoiseTokens:
    """The token ids that noise puts into texts."""

    end: int  # of a sentence
    start: int  # what the decoder begins with
    mask: int = -1  # for noise that has none
    sentinels: Sequence[int] = ()  # the marks of spans, in order
    words: Sequence[int] | np.ndarray = ()  # all other ids, from which a random one is taken
    sentence_ends: frozenset[int] = frozenset()  # ids that end a sentence inside a text


class NoisyText(NamedTuple):
    """Ids of the encoder, labels, and the decoder's input where it is not the shifted labels; each with its end."""

    source: list[int]
    labels: list[int]
    decoder_input: list[int] | None = None


Rng = np.random.Generator
# (random numbers, text, tokens, rate, mean length of a span) -> the noisy text
Corrupt = Callable[[Rng, list[int], NoiseTokens, float, float], NoisyText]


def place_spans(rng: Rng, length: int, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Random places (start, stop) for spans of these lengths, with tokens between them; what has none is left out."""
    lengths = list(lengths)
    while len(lengths) > length - sum(lengths) + 1:  # places are before, between and behind the tokens that stay
        lengths.pop()
    rng.shuffle(lengths)
    places = np.sort(rng.choice(length - sum(lengths) + 1, size=len(lengths), replace=False)).tolist()
    spans, before = [], 0
    for place, size in zip(places, lengths):
        spans.append((place + before, place + before + size))
        before += size
    return spans


def changed_tokens(length: int, rate: float) -> int:
    """How many tokens of a text are changed: at least one, if it has any."""
    return min(length, max(1, round(rate * length))) if length else 0


def with_marks(text: Sequence[int], spans: Sequence[tuple[int, int]], marks: Sequence[int]) -> list[int]:
    """The text, in which each span is one mark."""
    found, before = [], 0
    for (start, stop), mark in zip(spans, marks):
        found += [*text[before:start], mark]
        before = stop
    return [*found, *text[before:]]


def spans_behind_marks(text: Sequence[int], spans: Sequence[tuple[int, int]], marks: Sequence[int]) -> list[int]:
    """The spans alone, a mark before each and one behind the last: what T5 predicts."""
    found = [token for (start, stop), mark in zip(spans, marks) for token in (mark, *text[start:stop])]
    return [*found, marks[len(spans)]]


def infill(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """Text infilling of BART (Lewis et al. 2020, arXiv 1910.13461); the whole text is predicted."""
    # Spans, whose lengths are from a Poisson distribution, are one mask each, also spans of no token.
    lengths, total = list[int](), changed_tokens(len(text), rate)
    while (missing := total - sum(lengths)) > 0:
        lengths.append(min(int(rng.poisson(mean)), missing))
    spans = place_spans(rng, len(text), lengths)
    noisy = with_marks(text, spans, [tokens.mask] * len(spans))
    return NoisyText([*noisy, tokens.end], [*text, tokens.end])


def permute(rng: Rng, text: list[int], tokens: NoiseTokens) -> list[int]:
    """The sentences of a text in a random order (BART); a text of one sentence stays as it is."""
    bounds = [place + 1 for place, token in enumerate(text[:-1]) if token in tokens.sentence_ends]
    sentences = [text[start:stop] for start, stop in zip([0, *bounds], [*bounds, len(text)])]
    return [token for number in rng.permutation(len(sentences)) for token in sentences[number]]


def infill_permuted(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """Sentences in a random order, then text infilling: what BART is trained with."""
    source = infill(rng, permute(rng, text, tokens), tokens, rate, mean).source
    return NoisyText(source, [*text, tokens.end])


def mask(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """Token masking of BART: single tokens are masked, and the whole text is predicted."""
    chosen = set(rng.choice(len(text), size=changed_tokens(len(text), rate), replace=False).tolist())
    noisy = [tokens.mask if place in chosen else token for place, token in enumerate(text)]
    return NoisyText([*noisy, tokens.end], [*text, tokens.end])


def delete(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """Token deletion of BART: single tokens are left out, and the whole text is predicted."""
    chosen = set(rng.choice(len(text), size=changed_tokens(len(text), rate), replace=False).tolist())
    noisy = [token for place, token in enumerate(text) if place not in chosen]
    return NoisyText([*noisy, tokens.end], [*text, tokens.end])


def predict_fragment(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """MASS (Song et al. 2019, arXiv 1905.02450): one fragment is masked, token by token, and predicted."""
    # The decoder sees of the text only the fragment's tokens before the one that it predicts, at their positions.
    size = changed_tokens(len(text), rate)
    first = int(rng.integers(len(text) - size + 1))
    draws, others = rng.random(size), rng.choice(tokens.words, size=size).tolist()
    source, labels = [*text, tokens.end], [IGNORED_LABEL] * (len(text) + 1)
    decoder_input = [tokens.start, *[tokens.mask] * len(text)]
    for number, place in enumerate(range(first, first + size)):
        labels[place] = text[place]
        if draws[number] < MASKED:
            source[place] = tokens.mask
        elif draws[number] < MASKED + REPLACED:
            source[place] = others[number]
        if number:
            decoder_input[place] = text[place - 1]
    return NoisyText(source, labels, decoder_input)


def predict_spans(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """Span corruption of T5 (Raffel et al. 2020, arXiv 1910.10683): spans are a sentinel each."""
    # Predicted are the spans, each behind its sentinel, and one more sentinel.
    # There are total / mean of them, of random lengths of at least 1.
    lengths, total = list[int](), changed_tokens(len(text), rate)
    if total:
        count = min(max(1, round(total / mean)), total)
        bounds = np.sort(rng.choice(total - 1, size=count - 1, replace=False) + 1).tolist()
        lengths = [stop - start for start, stop in zip([0, *bounds], [*bounds, total])][: len(tokens.sentinels) - 1]
    spans = place_spans(rng, len(text), lengths)
    noisy = with_marks(text, spans, tokens.sentinels)
    return NoisyText([*noisy, tokens.end], [*spans_behind_marks(text, spans, tokens.sentinels), tokens.end])


@dataclass(frozen=True)
class Noise:
    """A kind of noise: what it does to a text, and the tokens that it needs."""

    corrupt: Corrupt
    rate: float  # the share of tokens that is changed, as in its paper or as a run has it
    span_length: float | None  # the mean length of a span, likewise; None without spans of random lengths
    about: str  # for a model's card
    has_mask: bool = True
    has_sentinels: bool = False

    def __str__(self) -> str:
        spans = f" in spans of {self.span_length:g} on average" if self.span_length else ""
        return f"{self.about}: {100 * self.rate:g} % of the tokens{spans}"


# `noise` of a recipe -> what it is.
NOISES: dict[str, Noise] = {
    "infilling": Noise(infill, 0.3, 3.0, "text infilling as in BART"),
    "infilling_permuted": Noise(infill_permuted, 0.3, 3.0, "text infilling and permuted sentences as in BART"),
    "masking": Noise(mask, 0.15, None, "token masking as in BART"),
    "deletion": Noise(delete, 0.15, None, "token deletion as in BART", has_mask=False),
    "mass": Noise(predict_fragment, 0.5, None, "prediction of a fragment as in MASS"),
    "spans": Noise(predict_spans, 0.15, 3.0, "span corruption as in T5", has_mask=False, has_sentinels=True),
}


def most_sentinels(longest: int, rate: float, mean: float) -> int:
    """The sentinels that a text of `longest` tokens needs, the one behind the last span included."""
    return max(1, math.ceil(changed_tokens(longest, rate) / mean)) + 1


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


def noise_of(data: DataArguments) -> Noise:
    """The noise that arguments ask for, with the rate and the length of spans that it has in the run."""
    noise = NOISES[data.noise]
    rate = noise.rate if data.noise_rate is None else data.noise_rate
    return replace(noise, rate=rate, span_length=noise.span_length if data.span_length is None else data.span_length)


def check_denoising(data: DataArguments) -> None:
    """Raise `ValueError` if there is no text, or the noise is impossible."""
    if not data.train_text:
        raise ValueError("train_text is not given: name the text to train on.")
    noise = noise_of(data)
    if not 0 < noise.rate <= 1:
        raise ValueError(f"noise_rate={noise.rate}: must be greater than 0 and at most 1.")
    if noise.span_length is None:
        return
    if NOISES[data.noise].span_length is None:
        raise ValueError(f"span_length={data.span_length} has no effect with noise={data.noise}: remove it.")
    if not 1 <= noise.span_length < float("inf"):
        raise ValueError(f"span_length={noise.span_length}: must be at least 1.")


def noise_tokens(data: DataArguments) -> list[str]:
    """The tokens that the noise needs, beside those of every tokenizer."""
    if data.task != DENOISING:
        return []
    noise, count = noise_of(data), 0
    if noise.has_sentinels:
        count = most_sentinels(data.max_source_length, noise.rate, noise.span_length or 1.0)
    return [MASK_TOKEN] * noise.has_mask + [SENTINEL.format(number) for number in range(count)]


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

    noise: Noise
    tokens: NoiseTokens
    tags: frozenset[int] = frozenset()
    limit: int = 256
    seed: int = HELD_OUT_SEED
    epoch: int = HELD_OUT_EPOCH

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, torch.Tensor]:
        pairs, rows = list[dict[str, Any]](), list[list[int]]()
        for feature in features:
            rng = np.random.default_rng((self.seed, feature.get("epoch", self.epoch), feature["line"]))
            text, noise = list(feature["labels"][:-1]), self.noise
            noisy = noise.corrupt(rng, text, self.tokens, noise.rate, noise.span_length or 1.0)
            tag = [token for token in feature["input_ids"][:1] if token in self.tags]
            ids = truncate([*tag, *noisy.source], self.limit)
            pairs.append({"line": feature["line"], "input_ids": ids, "labels": noisy.labels})
            rows.append(noisy.decoder_input or [])
        batch = super().__call__(pairs, return_tensors)
        if rows[0]:
            width = batch["labels"].shape[1]
            batch["decoder_input_ids"] = torch.tensor([row + rows[0][:1] * (width - len(row)) for row in rows])
        return batch


def make_denoising_collators(
    run: RunArguments, model: PreTrainedModel, tokenizer: Any
) -> dict[str, TranslationCollator | None]:
    """The Trainer's collators: `data_collator` for held-out text, and `train_collator`."""
    noise = noise_of(run.data)
    source_size, target_size = vocabulary_sizes(model)
    tags: Any = tokenizer.convert_tokens_to_ids([*(tokenizer.init_kwargs.get(TARGET_LANG_TAGS) or {}).values()])
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    words = [number for number in range(len(tokenizer)) if number not in special]
    sentinels: list[int] = []
    if noise.has_sentinels:
        vocabulary = tokenizer.get_vocab()
        while (number := vocabulary.get(SENTINEL.format(len(sentinels)))) is not None:
            sentinels.append(number)
    asked = words if noise.corrupt is infill_permuted else []
    ends = frozenset(each for each in asked if str(tokenizer.decode([each])).endswith(SENTENCE_ENDS))
    tokens = NoiseTokens(
        end=tokenizer.eos_token_id,
        start=model.config.decoder_start_token_id,
        mask=tokenizer.mask_token_id if noise.has_mask else -1,
        sentinels=sentinels,
        words=np.asarray(words),  # from which numpy draws at once
        sentence_ends=ends,
    )
    held_out = DenoisingCollator(
        tokenizer=tokenizer,
        source_vocab_size=source_size,
        target_vocab_size=target_size,
        noise=noise,
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
