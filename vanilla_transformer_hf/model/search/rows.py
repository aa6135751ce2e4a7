"""
The tensors of greedy and beam search with an entry for each row of the batch; rows leave and join all of them
together.

Shapes: A rows in the batch, each a sentence or, in diverse beam search, a group of beams of one; n beams of a row,
L columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
import torch.nn.functional as F

from .incremental_decoder import resized


# Kinds of tensors (A, ...) in `Rows`; fields without a kind have a value or a vector for each row. Column numbers (A),
# which change when columns in front are dropped.
NUMBER = {"is_number": True}
# The last dimension is columns, with `filler` in empty columns; None: the padding id.
COLUMNS: dict[str, Any] = {"is_columns": True, "filler": None}
PARENTS = {"is_columns": True, "filler": -1}
# Results, which are written when a row is done.
RESULT = {"is_result": True}


@dataclass
class Rows:
    """
    The tensors of the rows in the batch. Tokens that are chosen at the same step are in the same column, no matter
    when their sentences began.

    Attributes:
        padding: Id in empty columns.
        owners: Number of the search that a row belongs to (A).
        places: Index of the row within that search (A).
        begins: Column of its first token (A).
        limits: Column after the last token that it may have (A).
        written: Whether its results have been written (A).
        running: Tokens of the running hypotheses (A, ..., L).
    """

    padding: int
    owners: torch.Tensor
    places: torch.Tensor
    begins: torch.Tensor = field(metadata=NUMBER)
    limits: torch.Tensor = field(metadata=NUMBER)
    written: torch.Tensor
    running: torch.Tensor = field(metadata=COLUMNS)

    def __len__(self) -> int:
        return len(self.places)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor, Any]]:
        """Name, tensor and metadata of each field that has a tensor."""
        for one in fields(self):
            if torch.is_tensor(value := getattr(self, one.name)):
                yield one.name, value, one.metadata

    def results(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Name and tensor of each result, and whether it has columns."""
        for name, tensor, kind in self.tensors():
            if kind.get("is_result"):
                yield name, tensor, kind.get("is_columns", False)

    def select(self, rows: Any) -> "Rows":
        """These rows alone."""
        made: dict[str, Any] = {name: tensor[rows] for name, tensor, _ in self.tensors()}
        return replace(self, **made)

    def put(self, others: "Rows", places: torch.Tensor, unused: int, prompt_length: int) -> "Rows":
        """
        Replace the rows at `places` by others, whose sentences have not begun.

        Args:
            unused: Columns in front that no row needs any more; they are dropped.
            prompt_length: Columns of the others' tokens.
        """
        ahead = self.running.shape[-1] - unused - prompt_length
        made: dict[str, Any] = {}
        for name, old, kind in self.tensors():
            new = getattr(others, name)
            filler = 0
            if kind.get("is_columns"):
                filler = self.padding if kind["filler"] is None else kind["filler"]
                old, new = old[..., unused:], F.pad(new, (ahead, 0), value=filler)
            elif kind.get("is_number"):
                old, new = old - unused, new + ahead
            if old.dim() > 1:
                longest = max(old.shape[-1], new.shape[-1])
                old, new = resized(old, -1, size=longest, value=filler), resized(new, -1, size=longest, value=filler)
            made[name] = old.index_copy(0, places, new)
        return replace(self, **made)


@dataclass
class GreedyRows(Rows):
    """The rows of a greedy search; the tokens (A, L) are its results."""

    running: torch.Tensor = field(metadata=COLUMNS | RESULT)


@dataclass
class BeamRows(Rows):
    """
    The rows of a beam search, whose `running` is (A, n, L).

    Attributes:
        given: Column after the decoder prompt and the prefix, which are not scored (A).
        running_scores: Sums of log-probabilities of the running hypotheses (A, n).
        running_parents: The beam that each of their tokens continues (A, n, L - P).
        coverage: Sum of attention that each source token received from them (A, n, S); (A, n, 1) where it is not
            needed.
        improvable: Whether a running hypothesis can still become better than a finished one (A, 1).
        is_finished: Whether this place holds a finished hypothesis (A, n).
        finished: Finished hypotheses, best first (A, n, T).
        finished_scores: Their scores (A, n).
        finished_lengths: Their numbers of tokens after the decoder prompt (A, n).
        finished_parents: For each token the beam that it continues, counted over all rows; -1 after the end.
        finished_missing: Tokens of required phrases that are still missing (A, n); None without phrases.
    """

    given: torch.Tensor = field(metadata=NUMBER)
    running_scores: torch.Tensor
    running_parents: torch.Tensor = field(metadata=PARENTS)
    coverage: torch.Tensor
    improvable: torch.Tensor
    is_finished: torch.Tensor
    finished: torch.Tensor = field(metadata=COLUMNS | RESULT)
    finished_scores: torch.Tensor = field(metadata=RESULT)
    finished_lengths: torch.Tensor = field(metadata=RESULT)
    finished_parents: torch.Tensor = field(metadata=PARENTS | RESULT)
    finished_missing: torch.Tensor | None = field(metadata=RESULT)
