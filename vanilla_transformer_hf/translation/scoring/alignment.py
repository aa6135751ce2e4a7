"""Word alignments, read off the decoder's attention to the source."""

import copy
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common.white_space import EDGES
from ...model.config.attention_kinds import attends_to_pieces
from .scoring import forced_rows


@dataclass(frozen=True)
class Alignment:
    """
    A word alignment. `str()` gives the Pharaoh format, "0-0 1-2": indices of source and target words from 0.

    Attributes:
        source_words, target_words: The words, as white space separates them.
        weights: Attention of each target word to each source word (target words, source words), float32: summed over
            the tokens of the source word, averaged over those of the target word and over heads. If a row sums to less
            than 1, the rest is attention to the end-of-sentence token.

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import Alignment
    >>> alignment = Alignment(["a", "dog"], ["ein", "Hund"], torch.tensor([[0.9, 0.1], [0.2, 0.7]]))
    >>> str(alignment), alignment.links
    ('0-0 1-1', [(0, 0), (1, 1)])
    ```
    """

    source_words: list[str]
    target_words: list[str]
    weights: torch.Tensor

    @property
    def links(self) -> list[tuple[int, int]]:
        """For each target word the source word that it attends to most, as pairs (source, target), in source order."""
        if not self.weights.numel():
            return []
        best, places = self.weights.max(dim=1)
        return sorted((int(place), row) for row, place in enumerate(places) if best[row] > 0)

    def __str__(self) -> str:
        return " ".join(f"{source}-{target}" for source, target in self.links)


def words_of_pieces(text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """The index of each token's word, from the tokens' offsets; -1 for those without one, such as `</s>`."""
    starts = [found.start() for found in re.finditer(r"\S+", text)]
    words = []
    for start, end in offsets:
        while start < end and text[start].isspace():  # the space before a word belongs to its first token
            start += 1
        words.append(bisect_right(starts, start) - 1 if start < end else -1)
    return words


def align_words(
    texts: tuple[str, str], offsets: tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]], weights: torch.Tensor
) -> Alignment:
    """The alignment of source and target from their S and T tokens' offsets and attention (T, S)."""
    words = texts[0].split(), texts[1].split()
    source, target = (words_of_pieces(text, places) for text, places in zip(texts, offsets, strict=True))
    to_words = torch.zeros(len(words[0]) + 1, len(source))  # the last row is for tokens without a word
    to_words[torch.tensor(source), torch.arange(len(source))] = 1
    from_words = torch.zeros(len(words[1]) + 1, len(target))
    from_words[torch.tensor(target), torch.arange(len(target))] = 1
    from_words = from_words / from_words.sum(dim=1, keepdim=True).clamp(min=1)
    summed = from_words @ weights.float().cpu() @ to_words.t()
    return Alignment(*words, summed[:-1, :-1])


def join_alignments(
    texts: tuple[str, str],
    alignments: Sequence[Alignment],
    first_words: Sequence[tuple[int, int]],
    repeated: Sequence[range],
) -> Alignment:
    """The alignment of a text and its translation, with all their white space, from those of its parts, in order."""
    # `first_words`: for each part, the indices of its first source word and of its first target word in the texts;
    # words of invisible characters do not count. A target word that two parts share has the mean of both. `repeated`:
    # for each part, the indices of the words, such as a language tag, that stand before its own as well.
    words = texts[0].split(), texts[1].split()
    columns, rows = ([place for place, word in enumerate(side) if word.strip(EDGES)] for side in words)
    weights, counts = torch.zeros(len(words[1]), len(words[0])), torch.zeros(len(words[1]), 1)
    for alignment, (column, row), tags in zip(alignments, first_words, repeated, strict=True):
        height, width = alignment.weights.shape
        own = torch.tensor(rows[row : row + height], dtype=torch.long)
        read = [columns[place] for place in (*tags, *range(column, column + width - len(tags)))]
        weights[own[:, None], torch.tensor(read, dtype=torch.long)] += alignment.weights
        counts[own] += 1
    return Alignment(*words, weights / counts.clamp(min=1))


def default_layer(layers: int) -> int:
    """The index of the decoder layer to read alignments from: the third of six, the second of four."""
    # In the lower half of a decoder, attention goes to the source of the word that was read last; in the upper half,
    # to the source of the next word, which is not known there yet. The upper end of the lower half is best: Chen et
    # al. 2020, "Accurate Word Alignment Induction from Neural Machine Translation", arXiv 2004.14837.
    return max(0, layers // 2 - 1)


def align_pairs(
    model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]], layer: int | None = None, **options: Any
) -> list[Alignment]:
    """The word alignment of each pair; arguments of `forced_rows` and `attention_to_source`."""
    if not tokenizer.is_fast:
        raise ValueError(f"{type(tokenizer).__name__} does not return the offsets of its tokens")
    eager, results = with_eager_attention(model) if pairs else model, list[Any]([None] * len(pairs))

    def attention(inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        return attention_to_source(eager, **inputs, layer=layer)

    for place, sides, row in forced_rows(
        attention, model, tokenizer, pairs=pairs, return_offsets_mapping=True, **options
    ):
        source, target = (side["offset_mapping"] for side in sides)
        results[place] = align_words(pairs[place], (source, target), weights=row[: len(target), : len(source)])
    return results


@torch.no_grad()
def attention_to_source(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    decoder_input_ids: torch.Tensor,
    layer: int | None = None,
) -> torch.Tensor:
    """Cross-attention (B, T, S) of targets after the start token (B, T + 1), averaged over heads, in float32."""
    # In the lower half of the decoder it is the attention of the step that reads the target token (Chen et al. 2020),
    # in the upper half, and in a decoder of one layer, that of the previous step, which predicts it (Garg et al. 2019,
    # arXiv 1909.02074, who take the layer before the last: -2). The model's attention must be eager.
    outputs = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        decoder_input_ids=decoder_input_ids,
        output_attentions=True,
        use_cache=False,
    )
    layers = getattr(outputs, "cross_attentions", None)
    if not layers or layers[0] is None:
        raise ValueError(f"{type(model).__name__} does not return the attention of its decoder to the source")
    if not attends_to_pieces(model.config, "cross"):
        raise ValueError(
            f"{type(model).__name__} attends to {layers[0].shape[-1]} sums over the source, not to its tokens "
            "(cross_attention_type='linformer' or encoder_pooling): there is no alignment"
        )
    layer = default_layer(len(layers)) if layer is None else layer
    if not -len(layers) <= layer < len(layers):
        raise ValueError(f"layer={layer}: the decoder's layers are 0 to {len(layers) - 1}")
    weights: torch.Tensor = layers[layer].mean(dim=1, dtype=torch.float32)  # (B, T + 1, S)
    return weights[:, 1:] if layer % len(layers) < len(layers) // 2 else weights[:, :-1]


def with_eager_attention(model: Any) -> Any:
    """A model with the weights of this one, which may be in use, and eager attention, which returns its weights."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    twin.set_attn_implementation("eager")
    return twin
