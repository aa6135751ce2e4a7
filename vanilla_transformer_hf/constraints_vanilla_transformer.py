"""
Constraints of the search under `generate()`: what a translation must begin with and which tokens it may be made of.

Shapes: B sentences, A of them still in the batch, n beams, K candidates of each, V vocabulary, S shortlist.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


def as_ids(ids: Any, name: str, vocab_size: int, ends: Sequence[int] = ()) -> list[int]:
    """
    A list or tensor of token ids as a list.

    Raises:
        ValueError: It is none, or an id lies outside the vocabulary or is among those that end a sentence; the message
            begins with `name`.
    """
    ids = ids.tolist() if torch.is_tensor(ids) else ids
    if not isinstance(ids, (list, tuple)) or not all(type(one) is int for one in ids):
        raise ValueError(f"{name}: must be a list of token ids, not {str(ids)[:40]}")
    for one in ids:
        if not 0 <= one < vocab_size:
            raise ValueError(f"{name}: token id {one} lies outside the vocabulary of {vocab_size} pieces")
        if one in ends:
            raise ValueError(f"{name}: token id {one} ends a sentence and cannot be asked for")
    return list(ids)


def one_for_each(values: Any, name: str, batch: int) -> Any:
    """
    Raises:
        ValueError: `values` is not a list with an entry for each of the `batch` sentences.
    """
    if not isinstance(values, (list, tuple)) or len(values) != batch:
        count = len(values) if isinstance(values, (list, tuple)) else str(values)[:40]
        raise ValueError(f"{name}: must be a list with an entry for each of the {batch} sentences, not {count}")
    return values


class Prefixes:
    """
    Tokens that the hypotheses of each sentence begin with, behind the decoder prompt.

    Args:
        prefixes: For each of the B sentences a list of token ids, which may be empty.
        device: Where the search runs.

    Attributes:
        lengths: Of each (B).
        longest: The largest of them.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]], device: torch.device):
        self.lengths = torch.tensor([len(prefix) for prefix in prefixes], device=device)
        self.longest = int(self.lengths.max())
        rows = [[*prefix, *[0] * (self.longest - len(prefix))] for prefix in prefixes]
        self.tokens = torch.tensor(rows, dtype=torch.long, device=device)  # (B, longest)

    def is_forced(self, rows: torch.Tensor, step: int) -> torch.Tensor:
        """Whether the prefixes of sentences `rows` (A) have a token at this step, counted from 0: (A)."""
        return self.lengths[rows] > step

    def instead_of(self, tokens: torch.Tensor, rows: torch.Tensor, step: int) -> torch.Tensor:
        """Tokens (A) that were found for sentences `rows` (A), those replaced that are given."""
        if step >= self.longest:
            return tokens
        return torch.where(self.is_forced(rows, step), self.tokens[rows, step], tokens)

    def candidates(
        self, values: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Log-probabilities and ids of candidates (A, n, K), where a token is given this one alone: as part of a longer
        prompt, which costs nothing.
        """
        if step >= self.longest:
            return values, ids
        forced = self.is_forced(rows, step)[:, None, None]  # (A, 1, 1)
        only = torch.full_like(values, -math.inf)
        only[..., 0] = 0
        return torch.where(forced, only, values), torch.where(forced, self.tokens[rows, step, None, None], ids)


class Shortlist:
    """
    The part of the vocabulary that translations are made of.

    Args:
        ids: Their ids (S), each once.
        vocab_size: V.
    """

    def __init__(self, ids: torch.Tensor, vocab_size: int):
        self.ids, self.vocab_size = ids, vocab_size

    def spread(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores of the shortlist (R, S) as scores of the whole vocabulary (R, V), -∞ for those that are not in it."""
        whole = scores.new_full((len(scores), self.vocab_size), -math.inf)
        return whole.index_copy_(1, self.ids, scores)


@dataclass
class Constraints:
    """Those of a call; None: there is no such one."""

    prefixes: Prefixes | None = None
    shortlist: Shortlist | None = None


__all__ = ["Constraints", "Prefixes", "Shortlist", "as_ids", "one_for_each"]
