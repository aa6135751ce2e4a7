"""
Beam search.

The best candidates are found in two exact stages, not by a search through whole rows.

Shapes: A rows in the batch, each a sentence or, in diverse beam search, a group of beams of one; n beams of a row,
V vocabulary, K candidates, L columns.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from ..config.search_settings import LENGTH_PENALTIES
from ..packing.most_likely import best_candidates
from .incremental_decoder import resized
from .plan import SearchPlan
from .search import COLUMNS, NUMBER, PARENTS, RESULT, Rows, Search


# Score of an empty place in the beam.
NEVER = -1.0e9


@dataclass
class BeamRows(Rows):
    """The rows of a beam search, whose `running` is (A, n, L)."""

    given: torch.Tensor = field(metadata=NUMBER)  # column after decoder prompt and prefix, which are not scored (A)
    alone: torch.Tensor  # whether only the first hypothesis counts: at the first step, and when the row is done (A)
    running_scores: torch.Tensor  # sums of log-probabilities of the running hypotheses (A, n)
    # The beam that each of their tokens continues (A, n, L - P).
    running_parents: torch.Tensor = field(metadata=PARENTS)
    coverage: torch.Tensor  # sum of attention that source tokens received from them (A, n, S); (A, n, 1) if not needed
    improvable: torch.Tensor  # whether a running hypothesis can still become better than a finished one (A, 1)
    is_finished: torch.Tensor  # whether this place holds a finished hypothesis (A, n)
    finished: torch.Tensor = field(metadata=COLUMNS | RESULT)  # finished hypotheses, best first (A, n, T)
    finished_scores: torch.Tensor = field(metadata=RESULT)  # (A, n)
    finished_lengths: torch.Tensor = field(metadata=RESULT)  # tokens after the decoder prompt (A, n)
    # For each token the beam that it continues, counted over all rows; -1 after the end.
    finished_parents: torch.Tensor = field(metadata=PARENTS | RESULT)
    # Tokens of required phrases that are missing (A, n).
    finished_missing: torch.Tensor | None = field(metadata=RESULT)


@dataclass
class Candidates:
    """The best continuations of the hypotheses of each row, best first."""

    scores: torch.Tensor  # sums of log-probabilities (A, K)
    parents: torch.Tensor  # the beams that they continue (A, K)
    tokens: torch.Tensor  # that continue them (A, K)
    missing: torch.Tensor | None = None  # tokens of required phrases that are still missing (A, K)


@dataclass
class BeamStep:
    """The candidates of one step of a beam search, as its `recorder` receives them."""

    places: torch.Tensor  # which row of the search each row of the batch is (A)
    candidates: Candidates
    ends: torch.Tensor  # which of them end (A, K); of these, the n best of a row are finished hypotheses
    chosen: torch.Tensor  # the candidates that become the hypotheses of the next step, in their order (A, n)


class BeamSearch(Search):
    """Beam search as in transformers' `_beam_search`, for sentences that may leave the batch."""

    # Hypotheses of a row are either running or finished. The best n unfinished continuations keep running; a
    # continuation that ends is finished if it is among the n best of its step, and the n best finished ones are kept.
    # A row is done when `early_stopping` is True and n have finished, when its best running hypothesis cannot win any
    # more, or at its limit.

    rows: BeamRows

    def __init__(self, decoder: Any, plan: SearchPlan):
        # With n best candidates for each end-of-sentence token and n more, n are always left to run on.
        self.count = max(2, 1 + (0 if plan.eos is None else len(plan.eos))) * plan.beams
        longest = int(plan.limits.max())
        # The divisor of the score for each number of tokens; some devices do not support float64.
        lengths = torch.arange(1, longest + 2, dtype=torch.float64, device="cpu")
        penalties = LENGTH_PENALTIES[plan.options.length_penalty_type](lengths, plan.config.length_penalty)
        self.penalties = penalties.float().to(plan.prompt.device)  # (longest + 1), entry 0 is for one token
        self.coverage_penalty = plan.options.coverage_penalty
        self.has_finished = False  # whether any hypothesis has
        super().__init__(decoder, plan)

    def first_rows(self) -> BeamRows:
        plan, prompt = self.plan, self.plan.prompt
        shape, device = (len(prompt), plan.beams), prompt.device
        ends = () if plan.eos is None else plan.eos.tolist()
        padding = next((token for token in (plan.pad, *ends) if token is not None), -1)
        longest = int(plan.limits.max())
        given = torch.full(shape[:1], self.prompt_length, device=device)
        if plan.prefixes is not None:
            given = given + plan.prefixes.lengths
        running = prompt[:, None].expand(-1, plan.beams, -1)
        running_scores = torch.zeros(shape, dtype=torch.float32, device=device)
        running_scores[:, 1:] = NEVER
        lengths = torch.zeros(shape, dtype=torch.long, device=device)
        return BeamRows(
            **self.common_fields(padding),
            running=running,
            given=given,
            alone=torch.ones_like(plan.limits, dtype=torch.bool),
            running_scores=running_scores,
            running_parents=prompt.new_empty(*shape, 0),
            coverage=torch.zeros(*shape, 1, dtype=torch.float32, device=device),
            improvable=torch.ones(shape[0], 1, dtype=torch.bool, device=device),
            is_finished=torch.zeros(shape, dtype=torch.bool, device=device),
            finished=resized(running, -1, size=longest, value=padding),
            finished_scores=torch.full(shape, NEVER, dtype=torch.float32, device=device),
            finished_lengths=lengths,
            finished_parents=prompt.new_full((*shape, longest - self.prompt_length), -1),
            # More than any phrase has, so that empty places of the beam come last.
            finished_missing=None if plan.phrases is None else torch.full_like(lengths, 2**20),
        )

    def first_results(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor, _ in self.rows.results()}

    def best(self) -> dict[str, torch.Tensor]:
        """The n-best lists of all sentences, concatenated, by the names of the results."""
        n_best = self.plan.config.num_return_sequences
        return {name: tensor[:, :n_best].flatten(0, 1) for name, tensor in self.results.items()}

    def n_best(self, rows: torch.Tensor) -> torch.Tensor:
        return self.results["finished"][rows, : self.plan.config.num_return_sequences]

    def has_nan(self) -> torch.Tensor:
        return (self.rows.running_scores + self.rows.finished_scores).isnan().any(dim=1)

    def choose(self) -> None:
        rows, plan, phrases = self.rows, self.plan, self.plan.phrases
        # Options that need the scores of the whole vocabulary rather than those of the best tokens.
        reads_all = plan.processors or plan.keeps_rows or plan.config.do_sample
        if reads_all or phrases is not None or plan.groups > 1:
            found = self._candidates(self._log_probs())
        else:
            scores, parents, tokens = self.decoder.best_continuations(
                rows.running[:, :, -1], rows.running_scores, self.count, rows.alone
            )
            tokens = tokens if plan.shortlist is None else plan.shortlist.ids[tokens]
            found = self._permitted(Candidates(scores, parents, tokens), rows.running_scores, places=rows.places)
        length = rows.running.shape[-1] + 1
        ends = (length >= rows.limits)[:, None] | plan.ends(found.tokens)  # (A, K)
        if plan.criteria:
            continued, _ = self._continued(rows, found.parents, found.tokens)
            ends = ends | self._stopped(continued.flatten(0, 1)).view_as(ends)
        if self.coverage_penalty:
            rows.coverage = rows.coverage + self.decoder.attention * (length > rows.given)[:, None, None]
        if ends[:, : plan.beams].any():
            self.has_finished = True
            self._finish(found, ends & (torch.arange(self.count, device=ends.device) < plan.beams))
        rows.running_scores, chosen = going_on(found.scores, ends, beams=plan.beams)  # (A, n)
        if (recorder := plan.request.requests.get("recorder")) is not None:
            recorder(BeamStep(rows.places, found, ends=ends, chosen=chosen))
        parents = found.parents.gather(1, chosen)
        rows.running, rows.running_parents = self._continued(rows, parents, found.tokens.gather(1, chosen))
        self.decoder.follow(parents)
        if phrases is not None:
            phrases.follow(rows.places, parents, rows.running[..., -1])
        if self.coverage_penalty:
            rows.coverage = take(rows.coverage, parents)
        self._dismiss(self._done())
        self.rows.alone = self.rows.written

    def _continued(self, rows: BeamRows, parents: torch.Tensor, tokens: torch.Tensor) -> list[torch.Tensor]:
        """The hypotheses `parents` with one more of the tokens, both (A, K): (A, K, L + 1), and their parents."""
        origins = rows.places[:, None] * self.plan.beams + parents
        grown = (rows.running, tokens), (rows.running_parents, origins)
        return [torch.cat((take(old, parents), new[..., None]), dim=-1) for old, new in grown]

    def _log_probs(self) -> torch.Tensor:
        """Log-probabilities of the next tokens of each running hypothesis (A, n, V)."""
        tokens, shortlist = self.rows.running[:, :, -1], self.plan.shortlist
        if self.plan.keeps_rows:  # what reads the rows may keep them, so they are not in memory that is used again
            logits = self.decoder.next_logits(tokens).flatten(0, 1).float()
            logits = logits if shortlist is None else shortlist.spread(logits)
            self._note("logits", logits)
            flat = logits.log_softmax(dim=-1)
        else:
            flat = self.decoder.log_probs(tokens).flatten(0, 1)  # (A n, V)
            flat = flat if shortlist is None else shortlist.spread(flat)
        if self.plan.processors:
            flat = self._process(flat)
        self._note("scores", flat)
        log_probs: torch.Tensor = flat.unflatten(0, (-1, self.plan.beams))
        return log_probs

    def _candidates(self, log_probs: torch.Tensor) -> Candidates:
        """The best continuations, or some that are drawn, of log-probabilities (A, n, V)."""
        rows, phrases = self.rows, self.plan.phrases
        if self.plan.config.do_sample:
            scores = (log_probs + rows.running_scores[..., None]).flatten(1)  # (A, n V)
            places = self._draw(scores, self.count)  # (A, K)
            scores, order = scores.gather(1, places).sort(dim=1, descending=True)
            places = places.gather(1, order)
            return Candidates(scores, places // log_probs.shape[-1], tokens=places % log_probs.shape[-1])
        found = self._best(log_probs, rows.running_scores, places=rows.places)
        if phrases is not None:
            length = rows.running.shape[-1]
            is_last, is_forced = length + 1 >= rows.limits, length < rows.given
            plain = found.scores, found.parents, found.tokens
            values, ids = best_candidates(log_probs.flatten(0, 1), self.count)
            likely = values.view(*log_probs.shape[:2], -1), ids.view(*log_probs.shape[:2], -1)
            found = Candidates(
                *phrases.choose(rows.places, log_probs, likely, rows.running_scores, plain, is_last, is_forced)
            )
        return found

    def _best(self, log_probs: torch.Tensor, running_scores: torch.Tensor, places: torch.Tensor) -> Candidates:
        """The best continuations, of log-probabilities (A, n, V), of the hypotheses of the rows at `places` (A)."""
        scores, columns = best_candidates(log_probs, self.count, running_scores)
        found = Candidates(scores, columns // log_probs.shape[-1], tokens=columns % log_probs.shape[-1])
        return self._permitted(found, running_scores, places=places)

    def _permitted(self, found: Candidates, running_scores: torch.Tensor, places: torch.Tensor) -> Candidates:
        """The best continuations of the rows at `places` (A), or the only ones that their prefixes permit."""
        step = self.rows.running.shape[-1] - self.prompt_length
        if self.plan.prefixes is None or step >= self.plan.prefixes.longest:
            return found
        permitted: Candidates = self.plan.prefixes.candidates(found, running_scores, rows=places, step=step)
        return permitted

    def _penalties(self, rows: BeamRows, lengths: torch.Tensor | int) -> torch.Tensor:
        """The divisors (A, 1) of the scores of hypotheses with these numbers of tokens (A), including prefixes."""
        # Sentences that are done, and wait for others to join, have no limit.
        own = (lengths - rows.given).clamp(min=1, max=len(self.penalties))
        divisors: torch.Tensor = self.penalties[own - 1, None]
        return divisors

    def _finish(self, found: Candidates, ending: torch.Tensor) -> None:
        """Keep the best n of the finished hypotheses and of the candidates `ending` now (A, K)."""
        rows: Any = self.rows
        its = ending.any(dim=1).nonzero()[:, 0]  # rows with any
        if is_part := len(its) < len(rows):
            rows, ending = rows.select(its), ending[its]
            missing = None if found.missing is None else found.missing[its]
            found = Candidates(found.scores[its], found.parents[its], found.tokens[its], missing)
        n, (sequences, origins) = self.plan.beams, self._continued(rows, found.parents, found.tokens)
        lengths = sequences.shape[-1] - self.prompt_length - rows.begins  # (A)
        scores = found.scores / self._penalties(rows, sequences.shape[-1])
        if self.coverage_penalty:
            covered = take(rows.coverage, found.parents).clamp(max=1).log()  # (A, K, S)
            source = 0 if self.decoder.source_mask is None else self.decoder.source_mask[its, 0]
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
        if is_part:
            self.rows.is_finished[its] = rows.is_finished
            for name, tensor, _ in self.rows.results():
                tensor[its] = getattr(rows, name)

    def _done(self) -> torch.Tensor:
        """Rows whose finished hypotheses stay as they are (A)."""
        rows, plan = self.rows, self.plan
        length = rows.running.shape[-1]
        if not self.has_finished:  # only those without another token, or whose scores are NaN
            return (length >= rows.limits) | ~(rows.running_scores[:, 0] > NEVER)
        is_longer = plan.config.early_stopping == "never" and plan.config.length_penalty > 0
        divisors = self._penalties(rows, rows.limits if is_longer else length)
        best = rows.running_scores[:, :1] / divisors  # (A, 1), coverage can only lower it
        worst = rows.finished_scores.amin(dim=1, keepdim=True).where(rows.is_finished, NEVER)  # (A, n)
        rows.improvable = rows.improvable & (best > worst).any(dim=1, keepdim=True)
        done = ~rows.improvable[:, 0] | (length >= rows.limits)
        return done | rows.is_finished.all(dim=1) if plan.config.early_stopping is True else done


def going_on(scores: torch.Tensor, ends: torch.Tensor, beams: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of candidates (A, K) the best n that do not end: their scores and places, both (A, n)."""
    return (scores + ends.float() * NEVER).topk(beams)


def take(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Of a tensor (A, n) or (A, n, X) the entries at places (A, K)."""
    places = places if tensor.dim() == 2 else places[..., None].expand(-1, -1, tensor.shape[-1])
    return tensor.gather(1, places)
