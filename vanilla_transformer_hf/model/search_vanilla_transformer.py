"""
Greedy and beam search: the answers of transformers' own loops, sooner.

- A sentence that cannot change any more leaves the batch, and sentences of the next one may take its place.
- The best candidates are found in two exact stages, not by a search through whole rows.

Shapes: A rows in the batch, each a sentence or, in diverse beam search, a group of beams of one; n beams of a row,
V vocabulary, K candidates, L columns.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from transformers.generation import logits_process

from .candidates_vanilla_transformer import best_candidates, first_highest
from .constraints_vanilla_transformer import NEVER
from .generation_config_vanilla_transformer import LENGTH_PENALTIES
from .incremental_decoder_vanilla_transformer import resized
from .search_plan_vanilla_transformer import SearchPlan


# Sentences leave the batch as soon as those that have ended are this share of it; leaving copies what stays.
LEAVING_SHARE = 1 / 8
# Sentences join it as soon as there is room for this share of their own batch.
JOINING_SHARE = 1 / 8


def hide_short_ends(processor: Any, generated: int, least: int, scores: torch.Tensor) -> torch.Tensor:
    """As the processors of least lengths do, without a copy of all scores."""
    if generated < least:
        scores[:, processor.eos_token_id] = -math.inf
    return scores


def add_biases(processor: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """As the processors of biases do; those of single tokens without copies of all scores."""
    if not processor.prepared_bias_variables or any(len(tokens) > 1 for tokens in processor.sequence_bias):
        return type(processor).__call__(processor, ids, scores)
    tokens = [token for (token,) in processor.sequence_bias]
    scores[:, tokens] += scores.new_tensor(list(processor.sequence_bias.values()))
    return scores


# Processors whose own way of working would take longer than the step -> (processor, ids, scores) -> scores, in place.
SHORTCUTS: dict[type, Callable[..., torch.Tensor]] = {
    logits_process.MinLengthLogitsProcessor: lambda processor, ids, scores: hide_short_ends(
        processor, ids.shape[1], processor.min_length, scores
    ),
    logits_process.MinNewTokensLengthLogitsProcessor: lambda processor, ids, scores: hide_short_ends(
        processor, ids.shape[1] - processor.prompt_length_to_skip, processor.min_new_tokens, scores
    ),
    logits_process.NoBadWordsLogitsProcessor: add_biases,
    logits_process.SequenceBiasLogitsProcessor: add_biases,
}


def process(processors: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """What the processors make of scores (R, V) behind the ids (R, L); the scores may be overwritten."""
    for processor in processors:
        scores = SHORTCUTS.get(type(processor), type(processor).__call__)(processor, ids, scores)
    return scores


# ---------------------------------------------------------------------------------------------------------------------
# What a search knows of each row
# ---------------------------------------------------------------------------------------------------------------------


# Kinds of tensors (A, ...) that `Rows` has; those without a kind have a value or a vector for each row.
# Column numbers (A), which change when columns in front are dropped.
NUMBER = {"is_number": True}
# The last dimension are columns, with `filler` where no token stands; None: the padding.
COLUMNS: dict[str, Any] = {"is_columns": True, "filler": None}
PARENTS = {"is_columns": True, "filler": -1}
# What is written down when a row is done.
RESULT = {"is_result": True}


@dataclass
class Rows:
    """
    The tensors of the rows in the batch. Tokens that are chosen at the same step stand in the same column, whenever
    their sentences have begun.

    Attributes:
        padding: Id that stands where no token does.
        owners: Number of the search that a row belongs to (A).
        places: Which of the rows of this search it is (A).
        begins: Column of its first token (A).
        limits: Column behind the last token that it may have (A).
        written: Whether its results have been written down (A).
        running: Tokens of the hypotheses that run on (A, ..., L).
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
        """Name and tensor of what is written down when a row is done, and whether it has columns."""
        for name, tensor, kind in self.tensors():
            if kind.get("is_result"):
                yield name, tensor, kind.get("is_columns", False)

    def keep(self, rows: Any) -> "Rows":
        """These rows alone."""
        made: dict[str, Any] = {name: tensor[rows] for name, tensor, _ in self.tensors()}
        return replace(self, **made)

    def put(self, others: "Rows", places: torch.Tensor, unused: int, prompt_length: int) -> "Rows":
        """
        These rows with others, whose sentences have not begun, in place of those at `places`.

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
                old, new = resized(old, -1, longest, filler), resized(new, -1, longest, filler)
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
        given: Column behind the decoder prompt and the prefix, which are in no score (A).
        running_scores: Sums of log-probabilities of the hypotheses that run on (A, n).
        running_parents: The beam that each token of them continues (A, n, L - P).
        coverage: Attention that each source token got from them (A, n, S); (A, n, 1) where it is not needed.
        improvable: Whether a running hypothesis can still become better than a finished one (A, 1).
        is_finished: Whether there is a finished hypothesis at this place (A, n).
        finished: Finished hypotheses, best first (A, n, T).
        finished_scores: Their scores (A, n).
        finished_lengths: Their tokens behind the decoder prompt (A, n).
        finished_parents: For each token the beam that it continues, counted over all rows; -1 behind the end.
        finished_missing: Tokens of required phrases that they lack (A, n), None where there are no phrases.
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


# ---------------------------------------------------------------------------------------------------------------------
# Searches
# ---------------------------------------------------------------------------------------------------------------------


class Search(ABC):
    """
    What greedy and beam search share: sentences that leave the batch when they are done, and others that join it.

    Args:
        decoder: What has read the sources.
        plan: What to do.

    Attributes:
        results (`dict[str, torch.Tensor]`): What was found for the rows of this search, by the names in `Rows`.
        is_nan (`torch.Tensor`): Whether the model's scores of these rows were NaN at the end.
        unfinished (`int`): Rows that are not done.
        length (`int`): Tokens of those that are done when it took longest, prompt included.
        waits (`bool`): Whether others will take the places of sentences that are done.
    """

    rows: Any

    def __init__(self, decoder: Any, plan: SearchPlan):
        self.decoder, self.plan, self.constraints = decoder, plan, plan.constraints
        count, self.prompt_length = plan.prompt.shape
        # The searches that sentences belong to: this one, and those that have joined it.
        self.joined, self.searches = 0, {0: self}
        self.rows = self.first_rows()
        self.results = self.first_results()
        self.is_nan = torch.zeros_like(self.rows.written)
        self.unfinished, self.length, self.waits = count, self.prompt_length, False

    @abstractmethod
    def first_rows(self) -> Rows:
        """The rows before the first step."""

    @abstractmethod
    def first_results(self) -> dict[str, torch.Tensor]:
        """The results of rows that have found nothing, as long as they can become."""

    @abstractmethod
    def step(self) -> None:
        """One more token for each hypothesis."""

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
        for tokens in self.plan.prompt[:, :-1].unbind(1):
            self.decoder.step(tokens[:, None].expand(-1, self.plan.beams))
        while len(self.rows):
            self.step()
        return self.results

    def check_scores(self) -> None:
        """
        Raises:
            ValueError: The model's scores of a sentence were NaN, so that what was found means nothing.
        """
        if self.is_nan.any():
            row = int(self.is_nan.nonzero()[0]) // self.plan.groups
            raise ValueError(
                f"sentence {row} of the batch: the model's scores are NaN. Check its weights for NaN and infinity; if "
                "they have none, use a floating-point type with a wider range, such as bfloat16 or float32"
            )

    @property
    def can_join(self) -> bool:
        """Whether sentences may be at different steps."""
        constraints = self.constraints
        is_free = constraints.prefixes is None and constraints.phrases is None
        return self.prompt_length == 1 and is_free and self.plan.groups == 1

    def absorb(self, other: "Search", rows: slice) -> None:
        """
        Put these sentences of `other` in the place of some that are done. It must not have begun, and have the same
        settings.
        """
        others = other.rows.keep(rows)
        count, free = len(others), self.rows.written.nonzero()[:, 0]
        if len(free) < count or len(free) - count >= LEAVING_SHARE * len(self.rows):
            stay = (~self.rows.written).nonzero()[:, 0]
            self.keep(torch.cat((stay, stay.new_zeros(count))))
            free = torch.arange(len(stay), len(stay) + count, device=stay.device)
        free = free[self.rows.begins[free].argsort()[:count]]  # of those that have begun first
        if self.searches.get(self.joined) is not other:
            self.joined += 1
            self.searches[self.joined] = other
        self.decoder.absorb(other.decoder, rows, free)
        self.rows = self.rows.put(others, free, int(self.rows.begins.min()), self.prompt_length)
        self.rows.owners[free] = self.joined

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows alone."""
        self.rows = self.rows.keep(rows)
        if len(rows):
            self.decoder.keep(rows)

    def _alike(self, rows: torch.Tensor) -> Iterator[tuple["Search", int, torch.Tensor]]:
        """Of these rows (A) those that have one search and one first column: both, and which they are (A)."""
        owners, begins = self.rows.owners, self.rows.begins
        for owner, begin in sorted({*zip(owners[rows].tolist(), begins[rows].tolist())}):
            yield self.searches[owner], begin, rows & (owners == owner) & (begins == begin)

    def _process(self, scores: torch.Tensor) -> torch.Tensor:
        """What processors make of the scores of the next tokens (A n, V): those of its own search of each sentence."""
        running = self.rows.running
        if not self.joined:
            return process(self.plan.processors, running.flatten(0, -2), scores)
        scores = scores.unflatten(0, (-1, self.plan.beams))  # (A, n, V)
        for search, begin, its in self._alike(~self.rows.written):
            ids, processors = running[its][..., begin:].flatten(0, -2), search.plan.processors
            scores[its] = process(processors, ids, scores[its].flatten(0, 1)).unflatten(0, (-1, self.plan.beams))
        return scores.flatten(0, 1)

    def _dismiss(self, done: torch.Tensor) -> None:
        """Write down the results of rows that are done (A), and let these leave the batch."""
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
            if any_nan:
                search.is_nan[places] = is_nan[its]
            search.length = max(search.length, rows.running.shape[-1] - begin)
            search.unfinished -= int(its.sum())
        self.searches = {owner: search for owner, search in self.searches.items() if search.unfinished}
        rows.written = rows.written | new
        if not self.waits and rows.written.sum() >= LEAVING_SHARE * len(rows):
            self.keep((~rows.written).nonzero()[:, 0])


class GreedySearch(Search):
    """The most likely token at each step, as in transformers' `_sample` without sampling. `decoder` has one beam."""

    def first_rows(self) -> GreedyRows:
        padding = 0 if self.plan.pad is None else self.plan.pad
        return GreedyRows(**self.common_fields(padding), running=self.plan.prompt)

    def first_results(self) -> dict[str, torch.Tensor]:
        longest = max(int(self.plan.limits.max()), self.prompt_length + 1)
        return {"running": resized(self.plan.prompt, -1, longest, self.rows.padding)}

    def has_nan(self) -> torch.Tensor:
        return self.decoder.states.flatten(1).isnan().any(dim=1)

    def step(self) -> None:
        shortlist, prefixes, rows = self.constraints.shortlist, self.constraints.prefixes, self.rows
        if self.plan.processors:
            logits = self.decoder.next_logits(rows.running[:, -1:])[:, 0]  # (A, V)
            logits = logits if shortlist is None else shortlist.spread(logits)
            tokens = first_highest(self._process(logits.float()))  # (A)
        else:
            tokens = self.decoder.next_tokens(rows.running[:, -1:])  # (A)
            tokens = tokens if shortlist is None else shortlist.ids[tokens]
        if prefixes is not None:
            tokens = prefixes.instead_of(tokens, rows.places, rows.running.shape[1] - self.prompt_length)
        tokens = tokens.masked_fill(rows.written, rows.padding)
        rows.running = torch.cat((rows.running, tokens[:, None]), dim=1)
        done = rows.running.shape[1] >= rows.limits
        self._dismiss(done if self.plan.eos is None else done | torch.isin(tokens, self.plan.eos))


@dataclass
class Candidates:
    """
    The best continuations of the hypotheses of each row, best first.

    Attributes:
        scores: Sums of log-probabilities (A, K).
        parents: The beams that they continue (A, K).
        tokens: By these tokens (A, K).
        missing: Tokens of required phrases that they lack (A, K), None where there are no phrases.
    """

    scores: torch.Tensor
    parents: torch.Tensor
    tokens: torch.Tensor
    missing: torch.Tensor | None = None


class BeamSearch(Search):
    """
    Beam search as in transformers' `_beam_search`, for sentences that may leave the batch.

    Hypotheses of a row are either running or finished. The best n unfinished continuations run on; finished ones are
    the best n that ended among the n best continuations of their step. A row is done when `early_stopping` is True and
    n have finished, when its best running hypothesis cannot win any more, or at its limit.
    """

    rows: BeamRows

    def __init__(self, decoder: Any, plan: SearchPlan):
        # With n best candidates for each end-of-sentence token and n more, n are always left to run on.
        self.count = max(2, 1 + (0 if plan.eos is None else len(plan.eos))) * plan.beams
        longest = int(plan.limits.max())
        # What the score of a hypothesis of so many tokens is divided by; some devices have no float64.
        lengths = torch.arange(1, longest + 2, dtype=torch.float64, device="cpu")
        penalties = LENGTH_PENALTIES[plan.options.length_penalty_type](lengths, plan.length_penalty)
        self.penalties = penalties.float().to(plan.prompt.device)  # (longest + 1), the first of one token
        self.coverage_penalty = plan.options.coverage_penalty
        super().__init__(decoder, plan)

    def first_rows(self) -> BeamRows:
        plan, prompt = self.plan, self.plan.prompt
        shape, device = (len(prompt), plan.beams), prompt.device
        # As in transformers, padding with id 0 is ignored.
        padding = int(plan.pad or plan.eos[0]) if plan.eos is not None else -1
        longest = int(plan.limits.max())
        given = torch.full(shape[:1], self.prompt_length, device=device)
        if plan.constraints.prefixes is not None:
            given = given + plan.constraints.prefixes.lengths
        running = prompt[:, None].expand(-1, plan.beams, -1)
        running_scores = torch.zeros(shape, dtype=torch.float32, device=device)
        running_scores[:, 1:] = NEVER
        lengths = torch.zeros(shape, dtype=torch.long, device=device)
        return BeamRows(
            **self.common_fields(padding),
            running=running,
            given=given,
            running_scores=running_scores,
            running_parents=prompt.new_empty(*shape, 0),
            coverage=torch.zeros(*shape, 1, dtype=torch.float32, device=device),
            improvable=torch.ones(shape[0], 1, dtype=torch.bool, device=device),
            is_finished=torch.zeros(shape, dtype=torch.bool, device=device),
            finished=resized(running, -1, longest, padding),
            finished_scores=torch.full(shape, NEVER, dtype=torch.float32, device=device),
            finished_lengths=lengths,
            finished_parents=prompt.new_full((*shape, longest - self.prompt_length), -1),
            # More than any phrase has, so that places without a hypothesis come last.
            finished_missing=None if plan.constraints.phrases is None else torch.full_like(lengths, 2**20),
        )

    def first_results(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor, _ in self.rows.results()}

    def best(self) -> dict[str, torch.Tensor]:
        """The n-best lists of all sentences, one below the other, by the names of the results."""
        n_best = self.plan.n_best
        return {name: tensor[:, :n_best].flatten(0, 1) for name, tensor in self.results.items()}

    def has_nan(self) -> torch.Tensor:
        return (self.rows.running_scores + self.rows.finished_scores).isnan().any(dim=1)

    def absorb(self, other: Any, rows: slice) -> None:
        super().absorb(other, rows)
        self.penalties = max(self.penalties, other.penalties, key=len)
        if self.coverage_penalty:
            self.rows.coverage = resized(self.rows.coverage, -1, self.decoder.source_length)

    def step(self) -> None:
        rows, plan, phrases = self.rows, self.plan, self.constraints.phrases
        found = self._candidates(self._log_probs())
        length = rows.running.shape[-1] + 1
        sequences = torch.cat((take(rows.running, found.parents), found.tokens[..., None]), dim=-1)  # (A, K, L + 1)
        origins = (rows.places[:, None] * plan.beams + found.parents)[..., None]
        origins = torch.cat((take(rows.running_parents, found.parents), origins), dim=-1)  # (A, K, L + 1 - P)
        ends = (length >= rows.limits)[:, None] | self._is_eos(found.tokens)  # (A, K)
        if self.coverage_penalty:
            rows.coverage = rows.coverage + self.decoder.attention * (length > rows.given)[:, None, None]
        self._finish(found, sequences, origins, ends)
        rows.running_scores, chosen = going_on(found.scores, ends, plan.beams)  # (A, n)
        rows.running, rows.running_parents = take(sequences, chosen), take(origins, chosen)
        parents = found.parents.gather(1, chosen)
        self.decoder.follow(parents)
        if phrases is not None:
            phrases.follow(rows.places, parents, rows.running[..., -1])
        if self.coverage_penalty:
            rows.coverage = take(rows.coverage, parents)
        self._dismiss(self._done())

    def _is_eos(self, tokens: torch.Tensor) -> torch.Tensor:
        """Which of these tokens end a sentence."""
        eos = self.plan.eos
        return torch.zeros_like(tokens, dtype=torch.bool) if eos is None else torch.isin(tokens, eos)

    @property
    def _has_whole_vocabulary(self) -> bool:
        """Whether something needs scores of the whole vocabulary, not of a shortlist alone."""
        return bool(self.plan.processors) or self.constraints.phrases is not None or self.plan.groups > 1

    def _log_probs(self) -> torch.Tensor:
        """Log-probabilities of the next tokens of each running hypothesis (A, n, V); of a shortlist (A, n, S)."""
        flat = self.decoder.log_probs(self.rows.running[:, :, -1]).flatten(0, 1)  # (A n, V)
        if self.constraints.shortlist is not None and self._has_whole_vocabulary:
            flat = self.constraints.shortlist.spread(flat)
        if self.plan.processors:
            flat = self._process(flat)
        return flat.unflatten(0, (-1, self.plan.beams))

    def _candidates(self, log_probs: torch.Tensor) -> Candidates:
        """The best continuations, of log-probabilities (A, n, V)."""
        rows, phrases = self.rows, self.constraints.phrases
        values, ids = self._likely(log_probs, rows.places)
        found = self._ranked(values, ids, rows.running_scores)
        if phrases is not None:
            length = rows.running.shape[-1]
            is_last, is_forced = length + 1 >= rows.limits, length < rows.given
            plain = found.scores, found.parents, found.tokens
            found = Candidates(
                *phrases.choose(rows.places, log_probs, (values, ids), rows.running_scores, plain, is_last, is_forced)
            )
        return found

    def _likely(self, log_probs: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of log-probabilities (A, n, V) of the rows at `places` (A) the best K and their ids, both (A, n, K)."""
        shortlist, prefixes = self.constraints.shortlist, self.constraints.prefixes
        found = best_candidates(log_probs.flatten(0, 1), self.count)
        values, ids = (tensor.unflatten(0, (-1, self.plan.beams)) for tensor in found)
        if shortlist is not None and not self._has_whole_vocabulary:
            ids = shortlist.ids[ids]
        if prefixes is not None:
            values, ids = prefixes.candidates(values, ids, places, self.rows.running.shape[-1] - self.prompt_length)
        return values, ids

    def _ranked(self, values: torch.Tensor, ids: torch.Tensor, running_scores: torch.Tensor) -> Candidates:
        """The best K of each row, of log-probabilities and ids (A, n, K) behind hypotheses of these scores (A, n)."""
        scores, places = (values + running_scores[..., None]).flatten(1).topk(self.count)  # (A, K)
        return Candidates(scores, places // ids.shape[-1], ids.flatten(1).gather(1, places))

    def _penalties(self, lengths: torch.Tensor) -> torch.Tensor:
        """What the scores of hypotheses of so many tokens (A), those given included, are divided by: (A, 1)."""
        # Sentences that are done, and wait for others to join, have no limit.
        own = (lengths - self.rows.given).clamp(min=1, max=len(self.penalties))
        return self.penalties[own - 1, None]

    def _finish(self, found: Candidates, sequences: torch.Tensor, origins: torch.Tensor, ends: torch.Tensor) -> None:
        """Of those that have finished before and those of the n best candidates that end now, the best n."""
        rows, n = self.rows, self.plan.beams
        ending = ends & (torch.arange(self.count, device=ends.device) < n)  # (A, K)
        if not ending.any():
            return
        lengths = sequences.shape[-1] - self.prompt_length - rows.begins  # (A)
        scores = found.scores / self._penalties(torch.full_like(rows.limits, sequences.shape[-1]))
        if self.coverage_penalty:
            covered = take(rows.coverage, found.parents).clamp(max=1).log()  # (A, K, S)
            source = 0 if self.decoder.source_mask is None else self.decoder.source_mask[:, 0]
            covered = covered.masked_fill(torch.as_tensor(source != 0, device=covered.device), 0)
            scores = scores + self.coverage_penalty * covered.sum(dim=-1)
        scores = torch.cat((rows.finished_scores, scores + (~ending).float() * NEVER), dim=1)  # (A, n + K)
        best = scores.argsort(dim=1, descending=True, stable=True)
        if rows.finished_missing is not None and found.missing is not None:
            missing = torch.cat((rows.finished_missing, found.missing.where(ending, 2**20)), dim=1)
            # One token of a phrase that is missing outweighs all scores.
            best = best.gather(1, missing.gather(1, best).argsort(dim=1, stable=True))
            rows.finished_missing = missing.gather(1, best[:, :n])
        best = best[:, :n]  # (A, n)

        def merged(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            return take(torch.cat((old, new), dim=1), best)

        behind = rows.finished.shape[-1] - sequences.shape[-1]
        rows.finished_scores = take(scores, best)
        rows.finished = merged(rows.finished, F.pad(sequences, (0, behind), value=rows.padding))
        rows.finished_parents = merged(rows.finished_parents, F.pad(origins, (0, behind), value=-1))
        rows.finished_lengths = merged(rows.finished_lengths, lengths[:, None].expand_as(found.parents))
        rows.is_finished = merged(rows.is_finished, ending)

    def _done(self) -> torch.Tensor:
        """Rows whose finished hypotheses stay as they are (A)."""
        rows, plan = self.rows, self.plan
        length = rows.running.shape[-1]
        reachable = torch.full_like(rows.limits, length)
        if plan.early_stopping == "never" and plan.length_penalty > 0:
            reachable = rows.limits
        best = rows.running_scores[:, :1] / self._penalties(reachable)  # (A, 1), coverage can only lower it
        worst = rows.finished_scores.amin(dim=1, keepdim=True).where(rows.is_finished, NEVER)  # (A, n)
        rows.improvable = rows.improvable & (best > worst).any(dim=1, keepdim=True)
        done = ~rows.improvable[:, 0] | (length >= rows.limits)
        return done | rows.is_finished.all(dim=1) if plan.early_stopping is True else done


class DiverseBeamSearch(BeamSearch):
    """
    Diverse beam search (Vijayakumar et al. 2016, arXiv 1610.02424, algorithm 1) with the Hamming diversity of its
    section 5.1: beams in groups, each a row with a beam search of its own. The groups of a sentence take turns at each
    step; a token loses `diversity_penalty` in score for each hypothesis of the groups before that goes on with it.

    Scores include the penalties, as those of transformers 4 and of the authors' code do. The rows of a sentence follow
    each other.
    """

    def best(self) -> dict[str, torch.Tensor]:
        groups, n_best = self.plan.groups, self.plan.n_best
        lists = {name: tensor.unflatten(0, (-1, groups)).flatten(1, 2) for name, tensor in self.results.items()}
        order = lists["finished_scores"].argsort(dim=1, descending=True, stable=True)[:, :n_best]  # (B, n_best)
        return {name: take(tensor, order).flatten(0, 1) for name, tensor in lists.items()}

    def _candidates(self, log_probs: torch.Tensor) -> Candidates:
        rows, plan = self.rows, self.plan
        sentences, groups = rows.places // plan.groups, rows.places % plan.groups
        found: Any = None
        # Tokens by which the hypotheses of the groups before go on (B, n of all groups), -1 where there is none.
        taken = rows.places.new_full((len(plan.prompt) // plan.groups, plan.groups * plan.beams), -1)
        for group in range(plan.groups):
            its = (groups == group).nonzero()[:, 0]  # (a)
            before = taken[sentences[its], None].expand(-1, plan.beams, -1)
            penalties = (before >= 0).to(log_probs.dtype) * -plan.options.diversity_penalty
            own = log_probs[its].scatter_add(2, before.clamp(min=0), penalties)  # (a, n, V)
            part = self._ranked(*self._likely(own, rows.places[its]), rows.running_scores[its])
            _, chosen = going_on(part.scores, self._is_eos(part.tokens), plan.beams)
            columns = slice(group * plan.beams, (group + 1) * plan.beams)
            # Groups that are done have no hypotheses any more.
            taken[sentences[its], columns] = part.tokens.gather(1, chosen).masked_fill(rows.written[its, None], -1)
            if found is None:
                shape = len(rows), self.count
                found = Candidates(
                    part.scores.new_empty(shape), part.parents.new_empty(shape), part.tokens.new_empty(shape)
                )
            found.scores[its], found.parents[its], found.tokens[its] = part.scores, part.parents, part.tokens
        return found


def going_on(scores: torch.Tensor, ends: torch.Tensor, beams: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of candidates (A, K) the best n that do not end: their scores and places, both (A, n)."""
    return (scores + ends.float() * NEVER).topk(beams)


def take(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Of a tensor (A, n, …) the entries at places (A, K), as (A, K, …)."""
    return tensor[torch.arange(len(tensor), device=tensor.device)[:, None], places]


def run_together(searches: Iterable[Any]) -> Iterator[Any]:
    """
    Searches as they come to an end, in their order. Sentences of the next one take the places of those that are done
    (continuous batching, Yu et al. 2022, usenix.org/conference/osdi22/presentation/yu); together they are never more
    sentences or padded source tokens than one of the searches has had alone.

    Args:
        searches: Those that `can_join` and have the same settings, read one ahead; what is not a search comes back
            as it is.
    """
    begun: deque[Any] = deque()
    together: Any = None
    most_rows = most_tokens = 0

    def those_done() -> Iterator[Any]:
        while begun and not (isinstance(begun[0], Search) and begun[0].unfinished):
            yield begun.popleft()

    def all_begun() -> Iterator[Any]:
        while begun:
            yield from those_done()
            if begun:
                together.step()

    for following in searches:
        begun.append(following)
        if not isinstance(following, Search):
            yield from all_begun()
            continue
        size, length, entered = len(following.rows), following.decoder.source_length, 0
        most_rows, most_tokens = max(most_rows, size), max(most_tokens, size * length)
        if together is None:
            together, entered = following, size
            together.waits = True
        while entered < size:
            longest, left = max(together.decoder.source_length, length), size - entered
            running = int((~together.rows.written).sum())
            room = min(left, min(most_rows, most_tokens // longest) - running) if running else left
            if room >= min(left, size * JOINING_SHARE):
                together.absorb(following, slice(entered, entered + room))
                entered += room
            else:
                together.step()
                yield from those_done()
        if following is not together:
            following.decoder = None  # copied, and its last sentence may take long
    if together is not None:
        together.waits = False
    yield from all_begun()
