"""
Greedy search and samples, and the base of beam search.

They return the results of transformers' own loops, but faster: a sentence that cannot change any more leaves the
batch, and sentences of the next batch may take its place.

Shapes: A rows in the batch, each a sentence or, in diverse beam search, a group of beams of one; n beams of a row,
V vocabulary, L columns.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

import torch

from ..packing.most_likely import first_highest
from .incremental_decoder import resized
from .plan import SearchPlan, process


# Sentences leave the batch as soon as those that have ended are this share of it; leaving copies what stays.
LEAVING_SHARE = 1 / 8


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
    """The tensors of the rows in the batch."""

    # Tokens that are chosen at the same step are in the same column, no matter when their sentences began.

    padding: int  # id in empty columns
    owners: torch.Tensor  # number of the search that a row belongs to (A)
    places: torch.Tensor  # index of the row within that search (A)
    begins: torch.Tensor = field(metadata=NUMBER)  # column of its first token (A)
    limits: torch.Tensor = field(metadata=NUMBER)  # column after the last token that it may have (A)
    written: torch.Tensor  # whether its results have been written (A)
    running: torch.Tensor = field(metadata=COLUMNS)  # tokens of the running hypotheses (A, ..., L)

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


@dataclass
class GreedyRows(Rows):
    """The rows of a greedy search; the tokens (A, L) are its results."""

    running: torch.Tensor = field(metadata=COLUMNS | RESULT)


def exponential(bits: torch.Tensor) -> torch.Tensor:
    """What torch's `exponential_` makes of 64 random bits, in float64."""
    return torch.log1p((bits & (2**53 - 1)).double().mul_(-(2.0**-53))).neg_()


@cache
def has_known_draws() -> bool:
    """Whether it does so in this build of torch; some have other generators."""
    first, second = (torch.Generator().manual_seed(0) for _ in range(2))
    bits = torch.empty(99, dtype=torch.long, device="cpu").random_(-(2**63), None, generator=first)
    expected = torch.empty(99, device="cpu").exponential_(generator=second)
    return torch.equal(exponential(bits).float(), expected) and torch.equal(first.get_state(), second.get_state())


class NaNScoresError(ValueError):
    """The scores of a model were NaN, so that it finds no translation."""


class Search(ABC):
    """The base of greedy and beam search: sentences leave the batch when they are done, and others join it."""

    # `decoder` has read the sources.

    rows: Any

    def __init__(self, decoder: Any, plan: SearchPlan):
        self.decoder, self.plan = decoder, plan
        count, self.prompt_length = plan.prompt.shape
        # The searches that sentences belong to: this one, and those that have joined it.
        self.joined, self.searches = 0, {0: self}
        self.rows = self.first_rows()
        self.results = self.first_results()  # of this search's rows, by their names in `Rows`
        # Whether the results of these rows have been written, and whether the model's scores were NaN at the end.
        self.is_done, self.is_nan = (torch.zeros_like(self.rows.written) for _ in range(2))
        self.unfinished, self.length = count, self.prompt_length  # rows; most tokens of those that are done
        self.waits = False  # whether others will take the places of sentences that are done
        # Operations on torch's inference tensors take less time (one sentence, width 128: a step 13 %), but autograd
        # does not take them, so that others get ordinary ones: results, which exist already, and what `is_seen`.
        self.mode: Any = torch.no_grad if plan.is_seen else torch.inference_mode
        self.outputs: dict[str, list[torch.Tensor]] = {name: [] for name in plan.outputs}  # of each step (A n, V)

    @abstractmethod
    def first_rows(self) -> Rows:
        """The rows before the first step."""

    @abstractmethod
    def first_results(self) -> dict[str, torch.Tensor]:
        """Empty results, with room for the longest hypotheses."""

    def step(self) -> None:
        """One more token for each hypothesis."""
        with self.mode():
            self.choose()

    @abstractmethod
    def choose(self) -> None:
        """The model's scores of the next tokens, and what becomes of the hypotheses."""

    @abstractmethod
    def n_best(self, rows: torch.Tensor) -> torch.Tensor:
        """The sequences found for these rows (r), decoder prompt included, best first, with padding (r, n, T)."""

    @abstractmethod
    def has_nan(self) -> torch.Tensor:
        """Whether the model's last scores of the rows' hypotheses are NaN (A)."""

    def common_fields(self, padding: int) -> dict[str, Any]:
        """The fields of `Rows` before the first step, but for the tokens."""
        places = torch.arange(len(self.plan.prompt), device=self.plan.prompt.device)
        zeros = torch.zeros_like(places)
        return {
            "padding": padding,
            "owners": zeros,
            "places": places,
            "begins": zeros,
            "limits": self.plan.limits,
            "written": torch.zeros_like(zeros, dtype=torch.bool),
        }

    def run(self) -> dict[str, torch.Tensor]:
        """Search until each sentence is done; the results."""
        self.decoder.read(self.plan.prompt[:, :-1])
        while len(self.rows):
            self.step()
            for function in self.plan.after_step:
                function()
        return self.results

    def check_scores(self) -> None:
        """A `NaNScoresError` if the model's scores of a sentence were NaN, so that its translation is meaningless."""
        if self.is_nan.any():
            row = int(self.is_nan.nonzero()[0]) // self.plan.groups
            raise NaNScoresError(
                f"sentence {row} of the batch: the model's scores are NaN. Check its weights for NaN and infinity; if "
                "they have none, use a floating-point type with a wider range, such as bfloat16 or float32"
            )

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Keep only these rows."""
        self.rows = self.rows.select(rows)
        with self.mode():  # others call this between two steps
            if len(rows):
                self.decoder.keep_rows(rows)

    def drop_finished_searches(self) -> None:
        self.searches = {owner: search for owner, search in self.searches.items() if search.unfinished}

    def _alike(self, rows: torch.Tensor) -> Iterator[tuple["Search", int, torch.Tensor]]:
        """Group these rows (A) by their search and first column: both, and the rows of each group (A)."""
        owners, begins = self.rows.owners, self.rows.begins
        for owner, begin in sorted({*zip(owners[rows].tolist(), begins[rows].tolist())}):
            yield self.searches[owner], begin, rows & (owners == owner) & (begins == begin)

    def _process(self, scores: torch.Tensor) -> torch.Tensor:
        """Apply to the scores of the next tokens (A n, V) the processors of each sentence's own search."""
        running = self.rows.running
        if not self.joined:
            return process(self.plan.processors, running.flatten(0, -2), scores=scores)
        scores = scores.unflatten(0, (-1, self.plan.beams))  # (A, n, V)
        for search, begin, its in self._alike(~self.rows.written):
            ids, processors = running[its][..., begin:].flatten(0, -2), search.plan.processors
            scores[its] = process(processors, ids, scores=scores[its].flatten(0, 1)).unflatten(
                0, (-1, self.plan.beams)
            )
        return scores.flatten(0, 1)

    def _note(self, name: str, scores: torch.Tensor) -> None:
        """Keep the scores of a step (A n, V), if the call returns them."""
        if name in self.outputs:
            self.outputs[name].append(scores)

    def _stopped(self, ids: torch.Tensor) -> torch.Tensor:
        """Which sequences (R, L) the stopping criteria of the call end (R)."""
        scores: Any = tuple(self.outputs["scores"]) if "scores" in self.outputs else None
        stopped = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for criterion in self.plan.criteria:
            stopped = stopped | criterion(ids, scores)
        return stopped

    def _draw(self, scores: torch.Tensor, count: int) -> torch.Tensor:
        """So many columns of each row of scores (A, W), drawn without replacement by softmax(scores): (A, count)."""
        # The random numbers are those of transformers' loops, which draw for sentences that are done, too. As torch's
        # `multinomial` does it, the highest ratios of probabilities to exponentially distributed numbers are drawn; of
        # a probability of 0 the bits are enough, a fifth of the time (32 x 10,000 numbers: 0.9 and 4.6 ms).
        places, every = self.rows.places, scores.softmax(dim=-1)
        if (is_nan := every[:, 0].isnan()).any():  # a row is as a whole
            self.is_nan[places] = is_nan
            self.check_scores()
        size, is_whole = (len(self.is_done), every.shape[1]), len(places) == len(self.is_done)
        if every.device.type == "cpu" and has_known_draws():
            bits = torch.empty(size, dtype=torch.long, device="cpu").random_(-(2**63), None)
            bits, ratios = (bits if is_whole else bits[places]).view(-1), every.view(-1)
            likely = ratios.nonzero()[:, 0]
            ratios.index_copy_(0, likely, ratios[likely] / exponential(bits[likely]).to(ratios.dtype))
            return first_highest(every)[:, None] if count == 1 else every.topk(count).indices
        if is_whole:
            return every.multinomial(count)
        return every.new_ones(size).index_copy_(0, places, every).multinomial(count)[places]

    def _dismiss(self, done: torch.Tensor) -> None:
        """Write the results of rows that are done (A), and drop these rows from the batch."""
        rows = self.rows
        new = done & ~rows.written
        if not new.any():
            return
        is_nan, results = self.has_nan() & new, [*rows.results()]
        any_nan = bool(is_nan.any())
        for search, begin, its in self._alike(new):
            places = rows.places[its]
            for name, tensor, is_columns in results:
                found, result = tensor[its], search.results[name]
                if is_columns:
                    found = found[..., begin : begin + result.shape[-1]]
                    result[places, ..., : found.shape[-1]] = found
                else:
                    result[places] = found
            search.is_done[places] = True
            if any_nan:
                search.is_nan[places] = is_nan[its]
            search.length = max(search.length, rows.running.shape[-1] - begin)
            search.unfinished -= int(its.sum())
        self.drop_finished_searches()
        rows.written = rows.written | new
        share = 1 if self.plan.keeps_rows else LEAVING_SHARE
        if not self.waits and rows.written.sum() >= share * len(rows):
            self.keep_rows((~rows.written).nonzero()[:, 0])


class GreedySearch(Search):
    """The most likely token at each step, or one that is drawn, as in transformers' `_sample`, for one beam."""

    def first_rows(self) -> GreedyRows:
        padding = 0 if self.plan.pad is None else self.plan.pad
        return GreedyRows(**self.common_fields(padding), running=self.plan.prompt)

    def first_results(self) -> dict[str, torch.Tensor]:
        longest = max(int(self.plan.limits.max()), self.prompt_length + 1)
        return {"running": resized(self.plan.prompt, -1, size=longest, value=self.rows.padding)}

    def n_best(self, rows: torch.Tensor) -> torch.Tensor:
        return self.results["running"][rows, None]

    def has_nan(self) -> torch.Tensor:
        states: torch.Tensor = self.decoder.states
        return states.flatten(1).isnan().any(dim=1)

    def choose(self) -> None:
        shortlist, prefixes, rows = self.plan.shortlist, self.plan.prefixes, self.rows
        plan, draws = self.plan, self.plan.config.do_sample
        if draws or plan.processors or plan.outputs:
            logits = self.decoder.next_logits(rows.running[:, -1:])[:, 0].float()  # (A, V)
            logits = logits if shortlist is None else shortlist.spread(logits)
            self._note("logits", logits)
            scores = self._process(logits.clone() if "logits" in self.outputs else logits)
            self._note("scores", scores)
            tokens = self._draw(scores, 1)[:, 0] if draws else first_highest(scores)  # (A)
        else:
            tokens = self.decoder.next_tokens(rows.running[:, -1:])  # (A)
            tokens = tokens if shortlist is None else shortlist.ids[tokens]
        if prefixes is not None:
            tokens = prefixes.instead_of(tokens, rows.places, step=rows.running.shape[1] - self.prompt_length)
        tokens = tokens.masked_fill(rows.written, rows.padding)
        rows.running = torch.cat((rows.running, tokens[:, None]), dim=1)
        done = (rows.running.shape[1] >= rows.limits) | plan.ends(tokens)
        self._dismiss(done | self._stopped(rows.running) if plan.criteria else done)
