"""The corpora of a run, as text and as token ids, and the collators of their batches."""

from dataclasses import replace
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..arguments import DataArguments
from ..console import say
from ..recipe import RunArguments
from .bpe_dropout import BpeDropoutCollator
from .collators import TranslationCollator, vocabulary_sizes
from .column_names import SIDES
from .corpus import load_parallel_text
from .tokenized_corpus import CorpusFilter, tokenize_corpus, tokenize_stream


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


def named_text(arguments: DataArguments, role: str) -> str:
    """What the arguments name as the text of a role: train, validation or test."""
    return ", ".join(getattr(arguments, f"{role}_text") or [str(getattr(arguments, f"{role}_source"))])


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
            field = f"{role}_text" if getattr(arguments, f"{role}_text") else f"{role}_source"
            raise ValueError(f"{field}={source}: {error}") from error
        unit = "texts" if getattr(arguments, f"{role}_text") else "pairs"
        say(run.training, f"{role}: {tokenized.in_words(unit)} (from {source}).")
        data[role] = tokenized.data
    return data


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


def by_length(corpus: Any) -> Any:
    """A tokenized corpus in the order of its lengths: batches of sentences of equal length need little padding."""
    return corpus.select(np.argsort(corpus["length"], kind="stable"))
