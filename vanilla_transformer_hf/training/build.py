"""The parts of a run: corpora, tokenizer, model with its search, callbacks."""

import copy
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from tokenizers import AddedToken
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from transformers.tokenization_utils_base import LARGE_INTEGER

from ..common.files import new_folder
from ..common.opening import check_fit, naming, open_tokenizer, open_weights
from ..common.split_sentences import MULTI_SENTENCE_SHARE
from ..model.config.generation import VanillaTransformerGenerationConfig
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..translation.scoring.text_model import TARGET_LANG_TAGS
from ..translation.text.splitting import sentences
from ..translation.text.texts import PART_MAX_LENGTH
from .checkpoints.averaging import AverageCheckpointsCallback
from .checkpoints.files import EarlyStopping
from .checkpoints.moving_average import MovingAverageCallback
from .checkpoints.resume import Start
from .data.bpe_dropout import BpeDropoutCollator
from .data.collators import TranslationCollator, vocabulary_sizes
from .data.column_names import SIDES
from .data.corpus import iterate_texts, load_parallel_text
from .data.tokenized_corpus import CorpusFilter, tokenize_corpus, tokenize_stream
from .recipe import CONFIGS, FIELDS_OF_OTHERS, DataArguments, RunArguments, TranslationTrainingArguments


# Number of sentence pairs at the beginning of a stream that a new tokenizer is trained on.
STREAM_SAMPLE = 1_000_000
# Number of sources, evenly spread over the corpus, whose sentences are counted: a share is right to about 1 %.
SENTENCE_SAMPLE = 10_000


def say(training: Seq2SeqTrainingArguments, text: str):
    """Print a line, once for all processes."""
    if training.process_index == 0:
        print(text, flush=True)


# The percentile of the training sentences' lengths that limits the parts into which translation cuts longer ones.
COMMON = 90


def paper_learning_rate(d_model: int, warmup_steps: float) -> float:
    """
    The highest learning rate of the paper's schedule d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), section 5.3,
    which is reached at the end of the warm-up.

    Raises:
        ValueError: The warm-up is not a number of steps.
    """
    if warmup_steps < 1:
        raise ValueError(
            f"warmup_steps={warmup_steps}: the paper's learning rate needs a number of steps; or set learning_rate."
        )
    return d_model**-0.5 * warmup_steps**-0.5


def load_corpora(arguments: DataArguments) -> dict[str, Any]:
    """The named corpora by role: train, validation, test."""
    corpora = {}
    for role in ("train", "validation", "test"):
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
        source = getattr(arguments, f"{role}_source")
        if isinstance(corpus, datasets.IterableDataset):
            data[role] = tokenize_stream(corpus, tokenizer, rules, keep_text=keep_text)
            say(run.training, f"{role}: streamed from {source}.")
            continue
        try:
            tokenized = tokenize_corpus(
                corpus, tokenizer, rules, keep_text=keep_text, num_proc=arguments.preprocessing_num_workers
            )
        except ValueError as error:
            raise ValueError(f"{role}_source={source}: {error}") from error
        say(run.training, f"{role}: {tokenized} (from {source}).")
        data[role] = tokenized.data
    return data


def new_config(run: RunArguments, **fields: Any) -> Any:
    """
    The config of a new model of the run's type, with these fields in the place of the recipe's.

    Raises:
        ValueError: The recipe has a field that models of this type do not have.
    """
    kind = run.model.model_type
    for name in FIELDS_OF_OTHERS[kind]:
        value = run.config.get(name, getattr(run.model, name, None))
        if value is not None:
            raise ValueError(f"{name}={value}: models of type {kind} do not have this field; remove it.")
    fields = {**run.config, **fields}
    if kind == VanillaTransformerConfig.model_type:
        return VanillaTransformerConfig.from_preset(run.model.preset or "base", **fields)
    return CONFIGS[kind](**fields)


def plan_config(run: RunArguments) -> Any:
    """The config of a new model before its tokenizer is trained: `vocab_size` is the requested one."""
    config = new_config(run)
    if run.model.separate_vocabularies:
        config.source_vocab_size = config.vocab_size
        config.validate_architecture()
    return config


def get_tokenizer(run: RunArguments, corpus: Any, folder: Path, start: Start | None = None) -> PreTrainedTokenizerBase:
    """
    The tokenizer of the checkpoint that the run continues from, unless another one is named; else the named one or
    that of the named model; else a new one, trained once and kept in `folder`.

    Raises:
        OSError: The tokenizer cannot be opened.
    """
    name = run.model.tokenizer_name_or_path or run.model.model_name_or_path
    if start is not None and start.checkpoint is not None:
        is_same = not {"tokenizer_name_or_path", "model_name_or_path"} & start.changed.keys()
        if is_same and (start.checkpoint / "tokenizer_config.json").is_file():
            name = str(start.checkpoint)
    if name is not None:
        return add_source_tags(open_tokenizer(name), run.data.source_tags)
    if not folder.exists():
        tokenizer = _train_tokenizer(run, corpus)
        with new_folder(folder) as unfinished:
            tokenizer.save_pretrained(unfinished)
    return VanillaTransformerTokenizer.from_pretrained(folder)


def _train_tokenizer(run: RunArguments, corpus: Any) -> VanillaTransformerTokenizer:
    if isinstance(corpus, datasets.IterableDataset):
        corpus = corpus.take(STREAM_SAMPLE)
    tags = {language: f"<2{language}>" for language in run.data.target_lang_tags or ()}
    others = run.data.source_tags or []
    found = dict.fromkeys(tags.values(), 0)
    tokenizer = VanillaTransformerTokenizer.train(
        _without_tags(iterate_texts(corpus, "source"), found, others),
        iterate_texts(corpus, "target"),
        vocab_size=plan_config(run).vocab_size - len(tags) - len(others),
        model=run.model.tokenizer_model,
        separate_vocabularies=run.model.separate_vocabularies,
        src_lang=run.data.source_lang,
        tgt_lang=run.data.target_lang,
        show_progress=sys.stderr.isatty(),
        length=None if isinstance(corpus, datasets.IterableDataset) else len(corpus),
    )
    if missing := [tag for tag, count in found.items() if count == 0]:
        raise ValueError(
            f"target_lang_tags={' '.join(tags)}: no training source begins with {missing[0]}; put before each source "
            "the tag of the language that it is translated to."
        )
    if tags:
        # With rstrip, "<2de> one" and "<2de>one" are the same.
        added = [AddedToken(tag, special=True, normalized=False, rstrip=True) for tag in tags.values()]
        tokenizer.add_tokens(added, special_tokens=True)
        tokenizer.init_kwargs[TARGET_LANG_TAGS] = tags  # saved with the tokenizer
    return add_source_tags(tokenizer, others)


def add_source_tags(tokenizer: Any, tags: Iterable[str] | None) -> Any:
    """The tokenizer, with those of these tokens that it did not have."""
    known = tokenizer.get_vocab()
    # The space behind them is that of the next word, which has the same pieces as in other texts.
    added = [AddedToken(tag, special=True, normalized=False, lstrip=True) for tag in tags or () if tag not in known]
    tokenizer.add_tokens(added, special_tokens=True)
    return tokenizer


def _without_tags(texts: Iterator[str], found: dict[str, int], others: Iterable[str] = ()) -> Iterator[str]:
    """Texts without their language tags, which are counted, and other ones: as text, tags would be split into
    pieces."""
    for text in texts:
        tag = next((tag for tag in found if text.startswith(tag)), "")
        if tag:
            found[tag] += 1
        text = text.removeprefix(tag)
        for other in others:
            text = text.replace(other, "")
        yield text


def describe_tokenizer(tokenizer: PreTrainedTokenizerBase, run: RunArguments) -> str:
    """The sizes of its vocabularies, in one line, and whether a new one is smaller than it was asked to be."""
    sizes = vocabulary_sizes(tokenizer)
    text = f"vocabulary: {sizes[1]:,} pieces"
    if getattr(tokenizer, "source_vocab_size", None):
        text = f"vocabularies: {sizes[0]:,} source pieces and {sizes[1]:,} target pieces"
    is_new = not (run.model.tokenizer_name_or_path or run.model.model_name_or_path)
    if is_new and min(sizes) < (wanted := plan_config(run).vocab_size):
        text += f"; vocab_size is {wanted:,}, but the training text has too few different words for that many"
    return f"{text}."


def record_longest_source(tokenizer: PreTrainedTokenizerBase, run: RunArguments, train: Any) -> None:
    """
    Save the length of the training sentences as the tokenizer's `model_max_length`: translation splits longer texts,
    because the model has never seen their length. It is `max_source_length`, or the longest sentence of the tokenized
    `train` if that is shorter (`length` counts the longer side of a pair). The length that nearly all sentences stay
    below is saved as `part_max_length`, to which longer sentences are split. A model that is trained further keeps
    larger values from its earlier training.
    """
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
    """
    Save the share of the training sources that have several sentences with the tokenizer, from a sample: translation
    splits lines into sentences where a model has hardly seen two together. A model that is trained further keeps a
    larger share of its earlier training; nothing is recorded of a stream.
    """
    if run.data.streaming:
        return
    rows = np.linspace(0, len(corpus) - 1, min(len(corpus), SENTENCE_SAMPLE)).astype(int)
    texts = list(iterate_texts(corpus.select(rows), "source"))
    share = sum(len(sentences(text, run.data.source_lang)) > 1 for text in texts) / len(texts)
    known = tokenizer.init_kwargs.get(MULTI_SENTENCE_SHARE, 0) if run.model.model_name_or_path is not None else 0
    tokenizer.init_kwargs[MULTI_SENTENCE_SHARE] = max(known, round(share, 4))


def get_model(run: RunArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """
    The named model, or a new one of the named size for this tokenizer, with a complete generation config.

    Raises:
        OSError: The model cannot be opened.
        ValueError: The tokenizer does not fit the model.
    """
    if run.model.model_name_or_path:
        # A published model may have weights in half precision, which is too coarse for updates.
        with naming("config", run.model.model_name_or_path):
            config = AutoConfig.from_pretrained(run.model.model_name_or_path, **run.config)
        backend = choose_attention(run, config)
        model = open_weights(run.model.model_name_or_path, config=config, dtype=torch.float32, **backend)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(
                f"{run.model.model_name_or_path} is an adapter, whose base model is frozen; merge the two first "
                "(merge_and_unload of peft)."
            )
    else:
        # A newly trained vocabulary may be smaller than requested.
        wanted = run.config.get("vocab_size") if run.model.tokenizer_name_or_path else None
        config = new_config(
            run,
            vocab_size=wanted or len(tokenizer),
            source_vocab_size=getattr(tokenizer, "source_vocab_size", None),
            **{name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")},
        )
        model = AutoModelForSeq2SeqLM.from_config(config, **choose_attention(run, config))
    if run.data.source_tags and model.config.vocab_size < len(tokenizer):
        model.resize_token_embeddings(len(tokenizer))
    check_fit(model, tokenizer)
    return model


def choose_attention(run: RunArguments, config: Any) -> dict[str, str]:
    """The argument `attn_implementation` of a model to be trained; empty for transformers' default."""
    # At the lengths of sentences, the CPU's fused kernel is slower, above all in the backward pass. Local attention
    # is computed in blocks with the fused kernel only.
    is_plain = run.training.device.type == "cpu" and not getattr(config, "has_local_attention", False)
    chosen = run.model.attn_implementation or ("eager" if is_plain else None)
    return {"attn_implementation": chosen} if chosen else {}


def make_generation_config(
    run: RunArguments, config: PreTrainedConfig, base: GenerationConfig | None
) -> GenerationConfig:
    """
    The search of the recipe, otherwise that of the model that is trained further (`base`), with a limit of length:
    transformers' default would cut every translation at 20 tokens.

    Raises:
        ValueError: The model does not support these settings of the search.
    """
    is_ours = config.model_type == VanillaTransformerConfig.model_type
    generation_config = (VanillaTransformerGenerationConfig if is_ours else GenerationConfig)(num_beams=4)
    if base is not None:
        generation_config = copy.deepcopy(base)
        generation_config._from_model_config = False  # otherwise only transformers' own fields are read
    for name in ("num_beams", "length_penalty", "length_penalty_type", "max_extra_tokens"):
        if (value := getattr(run.model, name)) is not None:
            if not hasattr(generation_config, name):
                raise ValueError(f"{name}={value!r}: models of type {config.model_type} do not have this option.")
            setattr(generation_config, name, value)
    if generation_config.num_beams is not None and generation_config.num_beams < 1:
        raise ValueError(f"num_beams={generation_config.num_beams}: must be at least 1.")
    limit = None if getattr(generation_config, "max_extra_tokens", None) else run.data.max_target_length
    generation_config.update(
        max_length=None,
        max_new_tokens=run.training.generation_max_length or limit,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )
    if generation_config.num_beams == 1:  # transformers refuses settings of a beam search where there is none
        generation_config.length_penalty = generation_config.early_stopping = None
    generation_config.validate(strict=True)
    return generation_config


def make_collators(
    run: RunArguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> dict[str, TranslationCollator | None]:
    """The Trainer's collators: `data_collator`, and with BPE-dropout `train_collator`."""
    source_size, target_size = vocabulary_sizes(model)
    common: dict[str, Any] = {
        "tokenizer": tokenizer,
        "source_vocab_size": source_size,
        "target_vocab_size": target_size,
    }
    train_collator = None
    if run.data.bpe_dropout:
        limits = (run.data.max_source_length, run.data.max_target_length)
        train_collator = BpeDropoutCollator(
            **common, probability=run.data.bpe_dropout, limits=limits, seed=run.training.seed
        )
    return {"data_collator": TranslationCollator(**common), "train_collator": train_collator}


def make_callbacks(training: TranslationTrainingArguments, checkpoint: Path | None) -> list[TrainerCallback]:
    """Callbacks for early stopping and averages, as the arguments request."""
    callbacks: list[TrainerCallback] = []
    if training.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(training.early_stopping_patience))
    if training.moving_average is not None:
        callbacks.append(MovingAverageCallback(training.moving_average, checkpoint))
    if training.average_last is not None or training.average_best is not None:
        metric = f"eval_{(training.metric_for_best_model or 'bleu').removeprefix('eval_')}"
        callbacks.append(AverageCheckpointsCallback(training.average_last, training.average_best, metric))
    return callbacks
