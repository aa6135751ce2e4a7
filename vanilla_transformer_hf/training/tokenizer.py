"""The tokenizer of a run: opened, or trained once, with what the training text shows of its translations."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase
from transformers.tokenization_utils_base import LARGE_INTEGER

from ..common.choices import MULTI_SENTENCE_SHARE
from ..common.files import new_folder
from ..common.opening import open_config, open_tokenizer
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..translation.text.splitting import sentences
from ..translation.text.texts import PART_MAX_LENGTH, TARGET_LANG_TAGS
from .checkpoints.resume import Start
from .data.collators import vocabulary_sizes
from .data.corpus import iterate_texts
from .data.parts import new_tags
from .model import planned_vocab_size
from .pretraining.denoising import DENOISING, add_noise_tokens, check_tokenizer, noise_tokens
from .pretraining.warm_start import find_origins, open_common_tokenizer
from .recipe import RunArguments
from .transfer import start_token


# Number of sentence pairs at the beginning of a stream that a new tokenizer is trained on.
STREAM_SAMPLE = 1_000_000
# Number of sources, evenly spread over the corpus, whose sentences are counted: a share is right to about 1 %.
SENTENCE_SAMPLE = 10_000
# The percentile of the training sentences' lengths that limits the parts into which translation cuts longer ones.
COMMON = 90


def get_tokenizer(run: RunArguments, corpus: Any, folder: Path, start: Start | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer that is named or that the run begins with; else a new one, trained once and kept in `folder`."""
    # First that of the checkpoint that the run continues from, unless another one is named; else the named one or that
    # of the model, or of the models; else, and with `tokenizer=new`, the new one.
    name, origins = run.model.tokenizer_from, find_origins(run.model)
    if start is not None and start.checkpoint is not None:
        names = {"tokenizer", "tokenizer_name_or_path", "model_name_or_path", "encoder_from", "decoder_from"}
        if not names & start.changes.settings.keys() and (start.checkpoint / "tokenizer_config.json").is_file():
            name, origins = str(start.checkpoint), []
    if name is not None:
        tokenizer = open_common_tokenizer(origins) if origins else open_tokenizer(name)
        if run.data.task == DENOISING:
            check_tokenizer(tokenizer)
        tokenizer = add_target_tags(tokenizer, new_tags(run.data))
        return add_noise_tokens(add_source_tags(tokenizer, run.data.source_tags), run.data)
    return _kept(folder, lambda: _train_tokenizer(run, corpus))


def _kept(folder: Path, train: Callable[[], PreTrainedTokenizerBase]) -> VanillaTransformerTokenizer:
    """The tokenizer in a folder, which is trained and saved there once."""
    if not folder.exists():
        tokenizer = train()
        with new_folder(folder) as unfinished:
            tokenizer.save_pretrained(unfinished)
    kept: VanillaTransformerTokenizer = VanillaTransformerTokenizer.from_pretrained(folder)
    return kept


def tokenizer_of_texts(
    run: RunArguments,
    texts: Iterable[str],
    folder: Path,
    prepare: Callable[[VanillaTransformerTokenizer], None] = lambda tokenizer: None,
    model_max_length: int | None = None,
) -> VanillaTransformerTokenizer:
    """The tokenizer of a run without pairs: the named one, else a new one, trained once and kept in `folder`."""
    if name := run.model.tokenizer_name_or_path:
        named: VanillaTransformerTokenizer = VanillaTransformerTokenizer.from_pretrained(name)
        prepare(named)
        return named

    def train() -> VanillaTransformerTokenizer:
        new = VanillaTransformerTokenizer.train(
            texts,
            vocab_size=run.config.get("vocab_size", VanillaTransformerConfig.vocab_size),
            model=run.model.tokenizer_model,
            unicode_normalization=run.model.normal_form,
            show_progress=False,
        )
        prepare(new)
        new.model_max_length = model_max_length or new.model_max_length
        return new

    return _kept(folder, train)


def _train_tokenizer(run: RunArguments, corpus: Any) -> PreTrainedTokenizerBase:
    if isinstance(corpus, datasets.IterableDataset):
        corpus = corpus.take(STREAM_SAMPLE)
    tags = {language: f"<2{language}>" for language in run.data.target_lang_tags or new_tags(run.data)}
    others = run.data.source_tags or []
    found = dict.fromkeys(tags.values(), 0)
    parent = open_config(str(run.model.model_name_or_path)) if run.model.tokenizer == "new" else None
    start = None if parent is None else start_token(parent, open_tokenizer(str(run.model.model_name_or_path)))
    tokenizer = VanillaTransformerTokenizer.train(
        _without_tags(iterate_texts(corpus, "source"), found, others),
        iterate_texts(corpus, "target"),
        vocab_size=planned_vocab_size(run) - len(tags) - len(others) - len(noise_tokens(run.data)) - bool(start),
        model=run.model.tokenizer_model,
        unicode_normalization=run.model.normal_form,
        normalize_white_space=True,
        separate_vocabularies=run.model.separate_vocabularies if parent is None else bool(parent.source_vocab_size),
        src_lang=run.data.source_lang,
        tgt_lang=run.data.target_lang,
        show_progress=sys.stderr.isatty(),
        length=None if isinstance(corpus, datasets.IterableDataset) else len(corpus),
    )
    if missing := [tag for tag, count in found.items() if count == 0 and run.data.target_lang_tags]:
        raise ValueError(
            f"target_lang_tags={' '.join(tags)}: no training source begins with {missing[0]}; put before each source "
            "the tag of the language that it is translated to."
        )
    if start is not None:
        tokenizer.add_special_tokens({"bos_token": start})
    add_target_tags(tokenizer, tags)
    return add_noise_tokens(add_source_tags(tokenizer, others), run.data)


def add_target_tags(tokenizer: PreTrainedTokenizerBase, languages: Iterable[str]) -> PreTrainedTokenizerBase:
    """The tokenizer, with a tag for each of these target languages that has none, registered with it."""
    known = tokenizer.init_kwargs.get(TARGET_LANG_TAGS) or {}
    tags = {language: f"<2{language}>" for language in languages if language not in known}
    if tags:
        # With rstrip, "<2de> one" and "<2de>one" are the same.
        added = [AddedToken(tag, special=True, normalized=False, rstrip=True) for tag in tags.values()]
        tokenizer.add_tokens(added, special_tokens=True)
        tokenizer.init_kwargs[TARGET_LANG_TAGS] = {**known, **tags}  # saved with the tokenizer
    return tokenizer


def add_source_tags(tokenizer: PreTrainedTokenizerBase, tags: Iterable[str] | None) -> PreTrainedTokenizerBase:
    """The tokenizer, with those of these tokens that it did not have."""
    known = tokenizer.get_vocab()
    # The space behind them is that of the next word, which has the same tokens as in other texts.
    added = [AddedToken(tag, special=True, normalized=False, lstrip=True) for tag in tags or () if tag not in known]
    tokenizer.add_tokens(added, special_tokens=True)
    return tokenizer


def _without_tags(texts: Iterator[str], found: dict[str, int], others: Iterable[str] = ()) -> Iterator[str]:
    """Texts without their language tags, which are counted, and other ones: as text, tags would be split."""
    for text in texts:
        tag = next((tag for tag in found if text.startswith(tag)), "")
        if tag:
            found[tag] += 1
        text = text.removeprefix(tag)
        for other in others:
            text = text.replace(other, "")
        yield text


def describe_tokenizer(tokenizer: PreTrainedTokenizerBase, run: RunArguments) -> str:
    """The sizes of its vocabularies, in one line, and whether a new one is smaller than requested."""
    sizes = vocabulary_sizes(tokenizer)
    text = f"vocabulary: {sizes[1]:,} tokens"
    if getattr(tokenizer, "source_vocab_size", None):
        text = f"vocabularies: {sizes[0]:,} source tokens and {sizes[1]:,} target tokens"
    if run.model.trains_tokenizer and min(sizes) < (wanted := planned_vocab_size(run)):
        text += f"; vocab_size is {wanted:,}, but the training text has too few different words for that many"
    return f"{text}."


def record_longest_source(tokenizer: PreTrainedTokenizerBase, run: RunArguments, train: Any) -> None:
    """Save the length of the training sentences as the tokenizer's `model_max_length`."""
    # Translation splits longer texts, because the model has never seen their length. It is `max_source_length`, or the
    # longest sentence of the tokenized `train` if that is shorter (`length` counts the longer side of a pair). The
    # length that nearly all sentences stay below is saved as `part_max_length`, to which longer sentences are split. A
    # model that is fine-tuned keeps larger values from its earlier training.
    is_further = run.model.model_name_or_path is not None
    longest = run.data.max_source_length
    if not run.data.streaming:
        lengths = train.with_format("numpy")["length"][:]
        longest = min(longest, int(np.max(lengths)))
        known_part = tokenizer.init_kwargs.get(PART_MAX_LENGTH, 0) if is_further else 0
        tokenizer.init_kwargs[PART_MAX_LENGTH] = max(
            known_part, min(longest, math.ceil(np.percentile(lengths, COMMON)))
        )
    known = tokenizer.model_max_length if is_further else 0
    known = known if known <= LARGE_INTEGER else 0  # transformers' mark for "not known"
    tokenizer.model_max_length = max(known, longest)


def record_sentences(tokenizer: PreTrainedTokenizerBase, run: RunArguments, corpus: Any) -> None:
    """Save the share of the training sources that have several sentences with the tokenizer, from a sample."""
    # Translation splits lines into sentences where a model has hardly seen two together. A model that is fine-tuned
    # keeps a larger share of its earlier training; nothing is recorded of a stream.
    if run.data.streaming:
        return
    rows = np.linspace(0, len(corpus) - 1, min(len(corpus), SENTENCE_SAMPLE)).astype(int)
    texts = list(iterate_texts(corpus.select(rows), "source"))
    share = sum(len(sentences(text, run.data.source_lang)) > 1 for text in texts) / len(texts)
    known = tokenizer.init_kwargs.get(MULTI_SENTENCE_SHARE, 0) if run.model.model_name_or_path is not None else 0
    tokenizer.init_kwargs[MULTI_SENTENCE_SHARE] = max(known, round(share, 4))
