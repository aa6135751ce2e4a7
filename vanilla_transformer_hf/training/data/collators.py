"""Batches of tokenized pairs, and BPE-dropout: another segmentation of the training text in each epoch."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from random import Random
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from ...common.column_names import SIDES
from ...model.search.generate import check_token_ids
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from .corpora import truncate
from .token_batches import OfEpochs


IGNORED_LABEL = -100  # of tokens that have none, as in transformers


def vocabulary_sizes(model_or_tokenizer: PreTrainedModel | PreTrainedTokenizerBase) -> tuple[int, int]:
    """Sizes of the source and of the target vocabulary."""
    is_tokenizer = isinstance(model_or_tokenizer, PreTrainedTokenizerBase)
    holder: Any = model_or_tokenizer if is_tokenizer else model_or_tokenizer.config
    target_size = len(holder) if is_tokenizer else holder.vocab_size
    return getattr(holder, "source_vocab_size", None) or target_size, target_size


@dataclass
class TranslationCollator(DataCollatorForSeq2Seq):
    """Pads a batch to its longest sentence; ids without an embedding in the model raise an error."""

    # `__call__` returns `input_ids`, `attention_mask` (B, S) and `labels` (B, T), padded with -100, and `line` (B,)
    # and `token_type_ids` (B, S) where the pairs have them; the model makes the decoder input by shifting the labels.

    source_vocab_size: int = 0
    target_vocab_size: int = 0

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, torch.Tensor]:
        names = [name for name in ("input_ids", "token_type_ids", "labels") if name in features[0]]
        pairs = [{name: feature[name] for name in names} for feature in features]
        batch: dict[str, torch.Tensor] = super().__call__(pairs, return_tensors)  # type: ignore[no-untyped-call]
        check_token_ids(batch["input_ids"], self.source_vocab_size, "input_ids")
        if (labels := batch["labels"]) is None:  # a text to be translated
            del batch["labels"]
        else:
            check_token_ids(labels[labels != IGNORED_LABEL], self.target_vocab_size, "labels")
        if "line" in features[0]:
            batch["line"] = torch.tensor([feature["line"] for feature in features])
        return batch


def decode_predictions(tokenizer: PreTrainedTokenizerBase, token_ids: np.ndarray) -> list[str]:
    """Texts of generated ids (N, T); transformers' filler -100 becomes padding."""
    token_ids = np.where(token_ids == IGNORED_LABEL, tokenizer.pad_token_id, token_ids)
    return tokenizer.batch_decode(token_ids, skip_special_tokens=True)


class BpeDropout:
    """Segments words by byte pairs; each merge is skipped with probability p (Provilkov et al. 2020)."""

    # arXiv 1910.13267, algorithm 1: before each step, each possible merge. `tokenizers` has the same option, but draws
    # from a generator that cannot be seeded: runs could neither be repeated nor continued exactly. Here the tokens
    # depend only on the text and on `key`.

    def __init__(self, tokenizer: Tokenizer, probability: float, listed: int | None = None):
        if not 0 <= probability <= 1:
            raise ValueError(f"bpe_dropout={probability}: a probability from 0 to 1 is expected.")
        whole = json.loads(tokenizer.to_str())
        model = whole["model"]
        if model["type"] != "BPE" or model["continuing_subword_prefix"] or model["ignore_merges"]:
            raise ValueError(
                f"bpe_dropout needs a tokenizer of plain byte pairs; this one's model is {model['type']}."
            )
        self._tokenizer, self._probability = tokenizer, probability
        self._suffix = model["end_of_word_suffix"] or ""
        # Words with a token that does not spell its text are not changed.
        self._opaque = {token["content"] for token in whole["added_tokens"]}
        self._opaque |= {unknown := model["unk_token"]}
        if model["byte_fallback"]:
            self._opaque |= {f"<0x{byte:02X}>" for byte in range(256)}
        # What stands behind the `listed` ones only joins to others, and is unknown by itself.
        end = tokenizer.get_vocab_size(with_added_tokens=False)
        self._unlisted, self._unknown = range(end if listed is None else listed, end), model["vocab"].get(unknown)
        self._vocabulary = {name: index for name, index in model["vocab"].items() if index not in self._unlisted}
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        # Text has few distinct words and a word few states, so nearly every step is cached.
        self._merges = lru_cache(maxsize=1 << 17)(self._find_merges)

    def __call__(self, texts: list[str], keys: list[str]) -> list[list[int]]:
        """Token ids of each text, special tokens included; `keys`, one for each text, seed its tokens."""
        sentences = []
        for encoding, key in zip(self._tokenizer.encode_batch(texts), keys):
            draw = Random(key).random
            ids: list[int] = []
            pieces = zip(encoding.word_ids, encoding.tokens, encoding.ids, encoding.special_tokens_mask)
            for (_, fixed), word in groupby(pieces, key=lambda piece: (piece[0], piece[3])):
                _, tokens, token_ids, _ = zip(*word)
                fixed = fixed or not self._opaque.isdisjoint(tokens)
                if fixed or (split := self._split("".join(tokens), draw)) is None:
                    split = [self._unknown if index in self._unlisted else index for index in token_ids]
                ids += split
            sentences.append(ids)
        return sentences

    def _split(self, word: str, draw: Callable[[], float]) -> list[int] | None:
        """Token ids of a word; None if a character of it is not in the vocabulary."""
        symbols = list(word.removesuffix(self._suffix))
        symbols[-1] += self._suffix
        state: tuple[str, ...] | None = tuple(symbols)
        while state is not None:
            final = state
            state = next((after for after in self._merges(state) if draw() >= self._probability), None)
        ids = [self._vocabulary.get(symbol) for symbol in final]
        return None if None in ids else ids  # type: ignore[return-value]

    def _find_merges(self, symbols: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The results of one merge in a word, the merge of the highest priority first."""
        places = sorted(
            (rank, place)
            for place, pair in enumerate(pairwise(symbols))
            if (rank := self._ranks.get(pair)) is not None
        )
        return [(*symbols[:place], symbols[place] + symbols[place + 1], *symbols[place + 2 :]) for _, place in places]


@dataclass
class BpeDropoutCollator(OfEpochs, TranslationCollator):
    """A `TranslationCollator` that segments the columns "source" and "target" differently in each epoch."""

    # A batch has about the number of tokens that it was filled to, slightly more with a high dropout probability.
    # `limits` are the maximum number of tokens of a source and of a target sentence.

    probability: float = 0.0
    limits: tuple[int, int] = (256, 256)
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        tokenizer: Any = self.tokenizer
        listed: tuple[int | None, int | None] = None, None
        backends = tokenizer.backend_tokenizer, tokenizer.backend_tokenizer
        if isinstance(tokenizer, VanillaTransformerTokenizer):
            of_source = tokenizer.source_listed_pieces if tokenizer.separate_vocabularies else tokenizer.listed_pieces
            backends, listed = tokenizer.reading_backends(), (of_source, tokenizer.listed_pieces)
        self._segment = {
            side: BpeDropout(part, self.probability, size) for side, part, size in zip(SIDES, backends, listed)
        }

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, torch.Tensor]:
        pairs = [{"line": feature["line"]} for feature in features]
        for side, column, limit in zip(SIDES, ("input_ids", "labels"), self.limits):
            keys = [f"{self.seed} {feature.get('epoch', self.epoch)} {side} {feature['line']}" for feature in features]
            sentences = self._segment[side]([feature[side] for feature in features], keys)
            for pair, ids in zip(pairs, sentences):
                pair[column] = truncate(ids, limit)
        return super().__call__(pairs, return_tensors)
