"""
Greedy and beam search: the answers of transformers' own loops, sooner.

- A sentence that cannot change any more leaves the batch, and sentences of the next one may take its place.
- The best candidates are found in two exact stages, not by a search through whole rows.

Shapes: B sentences, A of them still in the batch, n beams, V vocabulary, K candidates.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from transformers.generation import logits_process

from .candidates_vanilla_transformer import best_candidates, first_highest
from .constraints_vanilla_transformer import NEVER, Constraints
from .incremental_decoder_vanilla_transformer import resized


# (length, α) -> what the log-probability of a hypothesis of that many tokens is divided by.
LENGTH_PENALTIES: dict[str, Callable[[Any, float], Any]] = {
    "power": lambda length, alpha: length**alpha,  # transformers
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,  # Wu et al. 2016, arXiv 1609.08144, equation 14
}

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


class Search(ABC):
    """
    What greedy and beam search share: sentences that leave the batch when they are done, and others that join it.

    Tokens that are chosen at the same step stand in the same column, whenever their sentences have begun.

    Args:
        decoder: What has read the sources.
        prompt: First tokens of each sentence's hypotheses (B, P).
        limits: Most tokens of a hypothesis of each sentence, prompt included (B).
        config: generation config.
        processors: What changes the scores of the next tokens; must not know one row from another.
        constraints: What hypotheses must begin with or contain, and what they may be made of.

    Attributes:
        results (`dict[str, torch.Tensor]`): What was found for the B sentences, one tensor for each of `RESULTS`.
        unfinished (`int`): Sentences of the B that are not done.
        length (`int`): Tokens of those that are done when it took longest, prompt included.
        waits (`bool`): Whether others will take the places of sentences that are done.
    """

    beams = 1
    # Of the A sentences in the batch, all (A, ...).
    STATE: tuple[str, ...] = ("owners", "rows", "begins", "limits", "written", "running")
    # Those of them that are written down when a sentence is done.
    RESULTS: tuple[str, ...] = ()
    # Those that are columns.
    PLACES: tuple[str, ...] = ("begins", "limits")
    # Those whose last dimension are columns -> what stands where no token does.
    COLUMNS: dict[str, int]
    running: torch.Tensor  # tokens of the hypotheses that run on (A, ..., L)

    def __init__(
        self,
        decoder: Any,
        prompt: torch.Tensor,
        limits: torch.Tensor,
        config: Any,
        processors: Any,
        constraints: Constraints,
    ):
        self.decoder, self.config, self.processors, self.constraints = decoder, config, processors, constraints
        self.eos = config._eos_token_tensor
        (batch, self.prompt_length), self.prompt = prompt.shape, prompt
        self.rows = torch.arange(batch, device=prompt.device)
        # The searches that sentences belong to: this one, and those that have joined it.
        self.owners, self.joined, self.searches = torch.zeros_like(self.rows), 0, {0: self}
        # The columns of the sentences' first tokens, and those behind the last that they may have.
        self.begins, self.limits = torch.zeros_like(self.rows), limits
        self.written = torch.zeros_like(self.rows, dtype=torch.bool)
        self.results: dict[str, torch.Tensor] = {}
        self.unfinished, self.length, self.waits = batch, self.prompt_length, False

    def run(self) -> dict[str, torch.Tensor]:
        """Search until each sentence is done; the results."""
        for tokens in self.prompt[:, :-1].unbind(1):
            self.decoder.step(tokens[:, None].expand(-1, self.beams))
        while len(self.rows):
            self.step()
        return self.results

    @abstractmethod
    def step(self) -> None:
        """One more token for each hypothesis."""

    @property
    def can_join(self) -> bool:
        """Whether sentences may be at different steps."""
        return self.prompt_length == 1 and self.constraints.prefixes is None and self.constraints.phrases is None

    def absorb(self, other: "Search", rows: slice) -> None:
        """
        Put these sentences of `other` in the place of some that are done. It must not have begun, and have the same
        settings.
        """
        count, free = len(other.rows[rows]), self.written.nonzero()[:, 0]
        if len(free) < count or len(free) - count >= LEAVING_SHARE * len(self.rows):
            stay = (~self.written).nonzero()[:, 0]
            self.keep(torch.cat((stay, stay.new_zeros(count))))
            free = torch.arange(len(stay), len(stay) + count, device=stay.device)
        free = free[self.begins[free].argsort()[:count]]  # of those that have begun first
        unused = int(self.begins.min())
        for name in self.COLUMNS:
            setattr(self, name, getattr(self, name)[..., unused:])
        for name in self.PLACES:
            setattr(self, name, getattr(self, name) - unused)
        if self.searches.get(self.joined) is not other:
            self.joined += 1
            self.searches[self.joined] = other
        ahead = self.running.shape[-1] - self.prompt_length
        self.decoder.absorb(other.decoder, rows, free)
        for name in self.STATE:
            old, new, filler = getattr(self, name), getattr(other, name)[rows], self.COLUMNS.get(name, 0)
            if name in self.COLUMNS:
                new = F.pad(new, (ahead, 0), value=filler)
            if name in self.PLACES:
                new = new + ahead
            if old.dim() > 1:
                longest = max(old.shape[-1], new.shape[-1])
                old, new = resized(old, -1, longest, filler), resized(new, -1, longest, filler)
            setattr(self, name, old.index_copy(0, free, new))
        self.owners[free] = self.joined

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these sentences alone."""
        for name in self.STATE:
            setattr(self, name, getattr(self, name)[rows])
        if len(rows):
            self.decoder.keep(rows)

    def _alike(self, rows: torch.Tensor) -> Iterator[tuple["Search", int, torch.Tensor]]:
        """Of these sentences (A) those that have one search and one first column: both, and which they are (A)."""
        for owner, begin in sorted({*zip(self.owners[rows].tolist(), self.begins[rows].tolist())}):
            yield self.searches[owner], begin, rows & (self.owners == owner) & (self.begins == begin)

    def _process(self, scores: torch.Tensor) -> torch.Tensor:
        """What processors make of the scores of the next tokens (A n, V): those of its own search of each sentence."""
        if not self.joined:
            return process(self.processors, self.running.flatten(0, -2), scores)
        scores = scores.unflatten(0, (-1, self.beams))  # (A, n, V)
        for search, begin, its in self._alike(~self.written):
            ids = self.running[its][..., begin:].flatten(0, -2)
            scores[its] = process(search.processors, ids, scores[its].flatten(0, 1)).unflatten(0, (-1, self.beams))
        return scores.flatten(0, 1)

    def _dismiss(self, done: torch.Tensor) -> None:
        """Write down the results of sentences that are done (A), and let these leave the batch."""
        new = done & ~self.written
        if not new.any():
            return
        for search, begin, its in self._alike(new):
            for name in self.RESULTS:
                found, result = getattr(self, name)[its], search.results[name]
                if name in self.COLUMNS:
                    found = found[..., begin : begin + result.shape[-1]]
                    result[self.rows[its], ..., : found.shape[-1]] = found
                else:
                    result[self.rows[its]] = found
            search.length = max(search.length, self.running.shape[-1] - begin)
            search.unfinished -= int(its.sum())
        self.searches = {owner: search for owner, search in self.searches.items() if search.unfinished}
        self.written = self.written | new
        if not self.waits and self.written.sum() >= LEAVING_SHARE * len(self.rows):
            self.keep((~self.written).nonzero()[:, 0])


class GreedySearch(Search):
    """The most likely token at each step, as in transformers' `_sample` without sampling. `decoder` has one beam."""

    RESULTS = ("running",)

    def __init__(self, *args: Any):
        super().__init__(*args)
        pad = self.config._pad_token_tensor
        self.filler = 0 if pad is None else int(pad)
        self.COLUMNS = {"running": self.filler}
        self.running = self.prompt  # (A, L)
        longest = max(int(self.limits.max()), self.prompt_length + 1)
        self.results = {"running": resized(self.prompt, -1, longest, self.filler)}

    def step(self) -> None:
        shortlist, prefixes = self.constraints.shortlist, self.constraints.prefixes
        if self.processors:
            logits = self.decoder.next_logits(self.running[:, -1:])[:, 0]  # (A, V)
            logits = logits if shortlist is None else shortlist.spread(logits)
            tokens = first_highest(self._process(logits.float()))  # (A)
        else:
            tokens = self.decoder.next_tokens(self.running[:, -1:])  # (A)
            tokens = tokens if shortlist is None else shortlist.ids[tokens]
        if prefixes is not None:
            tokens = prefixes.instead_of(tokens, self.rows, self.running.shape[1] - self.prompt_length)
        tokens = tokens.masked_fill(self.written, self.filler)
        self.running = torch.cat((self.running, tokens[:, None]), dim=1)
        done = self.running.shape[1] >= self.limits
        self._dismiss(done if self.eos is None else done | torch.isin(tokens, self.eos))


class BeamSearch(Search):
    """
    Beam search as in transformers' `_beam_search`, for sentences that may leave the batch.

    Hypotheses of a sentence are either running or finished. The best n unfinished continuations run on; finished ones
    are the best n that ended among the n best continuations of their step. A sentence is done when `early_stopping`
    is True and n have finished, when its best running hypothesis cannot win any more, or at its limit.

    Its results: `finished` hypotheses (B, n, T), best first, their `finished_scores` (B, n), `finished_lengths`
    without the prompt (B, n), and `finished_parents` (B, n, T - P): the place b n + j of the beam that each token
    continues, -1 behind the end; with phrases, `finished_missing` tokens of them (B, n).
    """

    RESULTS: tuple[str, ...] = ("finished", "finished_scores", "finished_lengths", "finished_parents")
    PLACES = (*Search.PLACES, "given")
    STATE = (
        *Search.STATE, *RESULTS, "is_finished", "given", "running_scores", "running_parents", "coverage", "improvable"
    )  # fmt: skip

    def __init__(self, *args: Any):
        super().__init__(*args)
        config, batch, n, device = self.config, len(self.rows), self.config.num_beams, self.rows.device
        self.beams, constraints = n, self.constraints
        self.prefixes, self.phrases, self.shortlist = constraints.prefixes, constraints.phrases, constraints.shortlist
        self.early_stopping, self.alpha = config.early_stopping, config.length_penalty
        self.coverage_penalty = config.coverage_penalty
        # With n best candidates for each end-of-sentence token and n more, n are always left to run on.
        self.candidates = max(2, 1 + (0 if self.eos is None else len(self.eos))) * n
        # As transformers has it: padding with id 0 counts as none.
        filler = int(config._pad_token_tensor or self.eos[0]) if self.eos is not None else -1
        self.COLUMNS = {"running": filler, "running_parents": -1, "finished": filler, "finished_parents": -1}
        longest = int(self.limits.max())
        # What the score of a hypothesis of so many tokens is divided by; some devices have no float64.
        lengths = torch.arange(1, longest + 2, dtype=torch.float64, device="cpu")
        penalties = LENGTH_PENALTIES[config.length_penalty_type](lengths, self.alpha)
        self.penalties = penalties.float().to(device)  # (longest + 1), the first of one token
        # Tokens of each sentence that do not count as its own, and columns in front of them.
        self.given = torch.full((batch,), self.prompt_length, device=device)
        if self.prefixes is not None:
            self.given = self.given + self.prefixes.lengths
        self.running = self.prompt[:, None].expand(-1, n, -1)  # (A, n, L)
        self.running_scores = torch.zeros(batch, n, dtype=torch.float32, device=device)
        self.running_scores[:, 1:] = NEVER
        self.running_parents = self.prompt.new_empty(batch, n, 0)  # (A, n, L - P)
        self.improvable = torch.ones(batch, 1, dtype=torch.bool, device=device)
        self.finished = resized(self.running, -1, longest, filler)
        self.finished_scores = torch.full((batch, n), NEVER, dtype=torch.float32, device=device)
        self.finished_lengths = torch.zeros(batch, n, dtype=torch.long, device=device)
        self.finished_parents = self.prompt.new_full((batch, n, longest - self.prompt_length), -1)
        self.is_finished = torch.zeros(batch, n, dtype=torch.bool, device=device)
        self.coverage = torch.zeros(
            batch, n, 1, dtype=torch.float32, device=device
        )  # attention that each source token got (A, n, S)
        if self.phrases is not None:  # more than any phrase has, so that what is no hypothesis comes last
            self.STATE, self.RESULTS = (*self.STATE, "finished_missing"), (*self.RESULTS, "finished_missing")
            self.finished_missing = torch.full_like(self.finished_lengths, 2**20)
        self.results = {name: getattr(self, name).clone() for name in self.RESULTS}

    def absorb(self, other: Any, rows: slice) -> None:
        super().absorb(other, rows)
        self.penalties = max(self.penalties, other.penalties, key=len)
        if self.coverage_penalty:
            self.coverage = resized(self.coverage, -1, self.decoder.source_length)

    def step(self) -> None:
        log_probs, values, ids = self._continuations()
        scores, places = (values + self.running_scores[..., None]).flatten(1).topk(self.candidates)  # (A, K)
        parents, tokens = places // ids.shape[-1], ids.flatten(1).gather(1, places)  # (A, K)
        missing = None
        if self.phrases is not None:
            is_last = self.running.shape[-1] + 1 >= self.limits
            is_forced = self.running.shape[-1] < self.given
            plain = scores, parents, tokens
            scores, parents, tokens, missing = self.phrases.choose(
                self.rows, log_probs, (values, ids), self.running_scores, plain, is_last, is_forced
            )
        sequences = torch.cat((take(self.running, parents), tokens[..., None]), dim=-1)  # (A, K, L + 1)
        origins = (self.rows[:, None] * self.beams + parents)[..., None]
        origins = torch.cat((take(self.running_parents, parents), origins), dim=-1)  # (A, K, L + 1 - P)
        ends = (sequences.shape[-1] >= self.limits)[:, None].expand_as(tokens)
        if self.eos is not None:
            ends = ends | torch.isin(tokens, self.eos)
        if self.coverage_penalty:
            self.coverage = self.coverage + self.decoder.attention * (sequences.shape[-1] > self.given)[:, None, None]
        self._finish(sequences, origins, parents, scores, ends, missing)
        self.running_scores, chosen = (scores + ends.float() * NEVER).topk(self.beams)  # (A, n)
        self.running, self.running_parents = take(sequences, chosen), take(origins, chosen)
        chosen = parents.gather(1, chosen)
        self.decoder.follow(chosen)
        if self.phrases is not None:
            self.phrases.follow(self.rows, chosen, self.running[..., -1])
        if self.coverage_penalty:
            self.coverage = take(self.coverage, chosen)
        self._dismiss(self._done())

    def _continuations(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """
        Log-probabilities of the next tokens of each running hypothesis (A, n, V); of a shortlist alone (A, n, S) where
        nothing needs the others. Then those and the ids of the best K, both (A, n, K).
        """
        flat = self.decoder.log_probs(self.running[:, :, -1]).flatten(0, 1)  # (A n, V)
        shortlist, spread = self.shortlist, bool(self.processors) or self.phrases is not None
        if shortlist is not None and spread:
            flat = shortlist.spread(flat)
        if self.processors:
            flat = self._process(flat)
        values, ids = (found.unflatten(0, (-1, self.beams)) for found in best_candidates(flat, self.candidates))
        if shortlist is not None and not spread:
            ids = shortlist.ids[ids]
        if self.prefixes is not None:
            step = self.running.shape[-1] - self.prompt_length
            values, ids = self.prefixes.candidates(values, ids, self.rows, step)
        return flat.unflatten(0, (-1, self.beams)), values, ids

    def _penalties(self, lengths: torch.Tensor) -> torch.Tensor:
        """What the scores of hypotheses of so many tokens (A), those given included, are divided by: (A, 1)."""
        # Sentences that are done, and wait for others to join, have no limit.
        own = (lengths - self.given).clamp(min=1, max=len(self.penalties))
        return self.penalties[own - 1, None]

    def _finish(
        self,
        sequences: torch.Tensor,
        origins: torch.Tensor,
        parents: torch.Tensor,
        scores: torch.Tensor,
        ends: torch.Tensor,
        missing: torch.Tensor | None,
    ) -> None:
        """Of those that have finished before and those of the n best candidates that end now, the best n."""
        ending = ends & (torch.arange(self.candidates, device=ends.device) < self.beams)  # (A, K)
        if not ending.any():
            return
        lengths = sequences.shape[-1] - self.prompt_length - self.begins  # (A)
        scores = scores / self._penalties(torch.full_like(self.limits, sequences.shape[-1]))
        if self.coverage_penalty:
            covered = take(self.coverage, parents).clamp(max=1).log()  # (A, K, S)
            source = 0 if self.decoder.source_mask is None else self.decoder.source_mask[:, 0]
            covered = covered.masked_fill(torch.as_tensor(source != 0, device=covered.device), 0)
            scores = scores + self.coverage_penalty * covered.sum(dim=-1)
        behind = self.finished.shape[-1] - sequences.shape[-1]
        new = {
            "finished": F.pad(sequences, (0, behind), value=self.COLUMNS["finished"]),
            "finished_scores": scores + (~ending).float() * NEVER,
            "finished_lengths": lengths[:, None].expand_as(parents),
            "finished_parents": F.pad(origins, (0, behind), value=-1),
            "is_finished": ending,
        }
        if missing is not None:
            new["finished_missing"] = missing.where(ending, 2**20)
        merged = {name: torch.cat((getattr(self, name), tensor), dim=1) for name, tensor in new.items()}
        best = merged["finished_scores"].argsort(dim=1, descending=True, stable=True)
        if missing is not None:  # one token of a phrase that is missing outweighs all scores
            best = best.gather(1, merged["finished_missing"].gather(1, best).argsort(dim=1, stable=True))
        best = best[:, : self.beams]  # (A, n)
        for name, tensor in merged.items():
            setattr(self, name, take(tensor, best))

    def _done(self) -> torch.Tensor:
        """Sentences whose finished hypotheses stay as they are (A)."""
        length = self.running.shape[-1]
        reachable = torch.full_like(self.limits, length)
        if self.early_stopping == "never" and self.alpha > 0:
            reachable = self.limits
        best = self.running_scores[:, :1] / self._penalties(reachable)  # (A, 1), coverage can only lower it
        worst = self.finished_scores.amin(dim=1, keepdim=True).where(self.is_finished, NEVER)  # (A, n)
        self.improvable = self.improvable & (best > worst).any(dim=1, keepdim=True)
        done = ~self.improvable[:, 0] | (length >= self.limits)
        return done | self.is_finished.all(dim=1) if self.early_stopping is True else done


def take(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Of a tensor (A, n, …) the entries at places (A, K), as (A, K, …)."""
    return tensor[torch.arange(len(tensor), device=tensor.device)[:, None], places]


def run_together(searches: Iterable[Any]) -> Iterator[Any]:
    """
    Searches as they come to an end, in their order. Sentences of the next one take the places of those that are done
    (continuous batching, Yu et al. 2022, usenix.org/conference/osdi22/presentation/yu); together they are never more
    sentences or padded source tokens than one of the searches has had alone.

    Args:
        searches: Those that `can_join` and have the same settings, read one ahead; what is no search comes back as it
            is.
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
            running = int((~together.written).sum())
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
