"""
Greedy and beam search: the answers of transformers' own loops, sooner.

- A sentence that cannot change any more leaves the batch.
- The best candidates are found in two exact stages, not by a search through whole rows.

Shapes: B sentences, A of them still in the batch, n beams, V vocabulary, K candidates.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers.generation import logits_process

from .constraints_vanilla_transformer import NEVER, Constraints
from .incremental_decoder_vanilla_transformer import Ensemble, IncrementalDecoder


# (length, α) -> what the log-probability of a hypothesis of that many tokens is divided by.
LENGTH_PENALTIES: dict[str, Callable[[Any, float], Any]] = {
    "power": lambda length, alpha: length**alpha,  # transformers
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,  # Wu et al. 2016, arXiv 1609.08144, equation 14
}

# From this many candidates a row, and in groups of so many, two stages are faster than one (measured on a processor).
STAGED_FROM, GROUP = 2**13, 16
# Sentences leave the batch as soon as those that have ended are this share of it; leaving copies what stays.
LEAVING_SHARE = 1 / 8
# One token of a required phrase that is missing outweighs all scores.
MISSING = 1.0e10


def best_candidates(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The `count` highest of each row of scores (R, V) and their places, both (R, count), as `torch.topk` finds them.

    The best are in those groups whose highest scores are the highest, one group for each.
    """
    rows, width = scores.shape[0], scores.shape[1] // GROUP
    if scores.device.type != "cpu" or scores.shape[1] < STAGED_FROM or count > width:
        return scores.topk(min(count, scores.shape[1]))
    groups, tail = scores[:, : GROUP * width].view(rows, GROUP, width), scores[:, GROUP * width :]
    chosen = groups.amax(dim=1).topk(count).indices  # (R, count), each a column of a group
    members = groups.gather(2, chosen.unsqueeze(1).expand(-1, GROUP, -1)).flatten(1)  # (R, GROUP count)
    values, places = torch.cat((members, tail), dim=1).topk(count)
    row, column = places // count, chosen.gather(1, places % count)
    return values, torch.where(row < GROUP, row * width + column, places + GROUP * (width - count))


def hide_short_ends(processor: Any, generated: int, least: int, scores: torch.Tensor) -> torch.Tensor:
    """As the processors of least lengths do, without a copy of all scores."""
    if generated < least:
        scores[:, processor.eos_token_id] = -math.inf
    return scores


# Processors whose own way of working would take longer than the step -> (processor, ids, scores) -> scores, in place.
SHORTCUTS: dict[type, Callable[..., torch.Tensor]] = {
    logits_process.MinLengthLogitsProcessor: lambda processor, ids, scores: hide_short_ends(
        processor, ids.shape[1], processor.min_length, scores
    ),
    logits_process.MinNewTokensLengthLogitsProcessor: lambda processor, ids, scores: hide_short_ends(
        processor, ids.shape[1] - processor.prompt_length_to_skip, processor.min_new_tokens, scores
    ),
}


def process(processors: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """What the processors make of scores (R, V) behind the ids (R, L); the scores may be overwritten."""
    for processor in processors:
        scores = SHORTCUTS.get(type(processor), type(processor).__call__)(processor, ids, scores)
    return scores


def greedy_search(
    decoder: IncrementalDecoder | Ensemble,
    prompt: torch.Tensor,
    limits: torch.Tensor,
    processors: Any,
    eos: torch.Tensor | None,
    pad: torch.Tensor | None,
    constraints: Constraints,
) -> torch.Tensor:
    """
    The most likely token at each step, as in transformers' `_sample` without sampling.

    Args:
        decoder: For one beam.
        prompt: First tokens of each hypothesis (B, P).
        limits: Most tokens of each, prompt included (B).
        processors: What changes the logits; must not know one row from another.
        eos: Ids that end a hypothesis; None: nothing does, before its limit.
        pad: What follows the end.
        constraints: What it must begin with, and what it may be made of.

    Returns:
        Token ids (B, T).
    """
    rows = torch.arange(len(prompt), device=prompt.device)
    done = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    filler = 0 if pad is None else int(pad)
    found = [*prompt.unbind(1)]  # of all sentences, (B) each
    running = prompt  # of those in the batch (A, L)
    shortlist = constraints.shortlist
    for token in prompt[:, :-1].unbind(1):
        decoder.step(token[:, None])
    while True:
        logits = decoder.next_logits(running[:, -1:])[:, 0]  # (A, V)
        if processors:
            logits = process(processors, running, (logits if shortlist is None else shortlist.spread(logits)).float())
        tokens = best_candidates(logits.float(), 1)[1][:, 0]  # (A), sooner than argmax
        if shortlist is not None and not processors:
            tokens = shortlist.ids[tokens]
        if constraints.prefixes is not None:
            tokens = constraints.prefixes.instead_of(tokens, rows, running.shape[1] - prompt.shape[1])
        tokens = tokens.masked_fill(done, filler)
        running = torch.cat((running, tokens[:, None]), dim=1)
        found.append(torch.full_like(found[0], filler).scatter_(0, rows, tokens))
        done = done | (running.shape[1] >= limits[rows])
        if eos is not None:
            done = done | torch.isin(tokens, eos)
        ended = int(done.sum())
        if ended == len(done):
            return torch.stack(found, dim=1)
        if ended >= LEAVING_SHARE * len(done):
            stay = (~done).nonzero()[:, 0]
            rows, running, done = rows[stay], running[stay], done[stay]
            decoder.keep(stay)


class BeamSearch:
    """
    Beam search as in transformers' `_beam_search`, for sentences that may leave the batch.

    Hypotheses of a sentence are either running or finished. The best n unfinished continuations run on; finished ones
    are the best n that ended among the n best continuations of their step. A sentence is done when `early_stopping`
    is True and n have finished, when its best running hypothesis cannot win any more, or at its limit.

    Args:
        decoder: For n beams.
        prompt: First tokens of each sentence's hypotheses (B, P).
        limits: Most tokens of a hypothesis of each sentence, prompt included (B).
        config: generation config.
        processors: What changes the log-probabilities; must not know one row from another.
        constraints: What hypotheses must begin with or contain, and what they may be made of.
    """

    # Of the A sentences in the batch, all (A, ...).
    STATE: tuple[str, ...] = (
        "rows", "limits", "given", "written", "running", "running_scores", "running_parents", "coverage", "improvable",
        "finished", "finished_scores", "finished_lengths", "finished_parents", "is_finished",
    )  # fmt: skip

    def __init__(
        self,
        decoder: IncrementalDecoder | Ensemble,
        prompt: torch.Tensor,
        limits: torch.Tensor,
        config: Any,
        processors: Any,
        constraints: Constraints,
    ):
        self.decoder, self.processors, self.beams = decoder, processors, config.num_beams
        self.prefixes, self.phrases, self.shortlist = constraints.prefixes, constraints.phrases, constraints.shortlist
        self.early_stopping, self.alpha = config.early_stopping, config.length_penalty
        self.length_penalty = LENGTH_PENALTIES[config.length_penalty_type]
        self.coverage_penalty = config.coverage_penalty
        self.eos, pad = config._eos_token_tensor, config._pad_token_tensor
        # With n best candidates for each end-of-sentence token and n more, n are always left to run on.
        self.candidates = max(2, 1 + (0 if self.eos is None else len(self.eos))) * self.beams
        # As transformers has it: padding with id 0 counts as none.
        self.filler = int(pad or self.eos[0]) if self.eos is not None else -1
        (batch, self.prompt_length), device = prompt.shape, prompt.device
        longest, n = int(limits.max()), self.beams
        self.rows, self.limits = torch.arange(batch, device=device), limits
        # Tokens of each sentence that do not count as its own.
        self.given = torch.full((batch,), self.prompt_length, device=device)
        if self.prefixes is not None:
            self.given = self.given + self.prefixes.lengths
        self.written = torch.zeros(batch, dtype=torch.bool, device=device)
        self.running = prompt[:, None].expand(-1, n, -1)  # (A, n, L)
        self.running_scores = torch.zeros(batch, n, device=device)
        self.running_scores[:, 1:] = NEVER
        self.running_parents = prompt.new_empty(batch, n, 0)  # (A, n, L - P)
        self.improvable = torch.ones(batch, 1, dtype=torch.bool, device=device)
        self.finished = prompt.new_full((batch, n, longest), self.filler)
        self.finished[:, :, : self.prompt_length] = prompt[:, None]
        self.finished_scores = torch.full((batch, n), NEVER, device=device)
        self.finished_lengths = torch.zeros(batch, n, dtype=torch.long, device=device)
        self.finished_parents = prompt.new_full((batch, n, longest - self.prompt_length), -1)
        self.is_finished = torch.zeros(batch, n, dtype=torch.bool, device=device)
        self.coverage = torch.zeros(batch, n, 1, device=device)  # attention that each source token got (A, n, S)
        if self.phrases is not None:  # more than any phrase has, so that what is no hypothesis comes last
            self.STATE = (*self.STATE, "finished_missing")
            self.finished_missing = torch.full_like(self.finished_lengths, 2**20)
        self.results = {name: getattr(self, name).clone() for name in self.STATE if name.startswith("finished")}

    def run(self) -> dict[str, torch.Tensor]:
        """
        Search until each sentence is done.

        Returns:
            `finished` hypotheses (B, n, T), best first, their `finished_scores` (B, n), `finished_lengths` without the
            prompt (B, n), and `finished_parents` (B, n, T - P): the place b n + j of the beam that each token
            continues, -1 behind the end; with phrases, `finished_missing` tokens of them (B, n).
        """
        for position in range(self.prompt_length - 1):
            self.decoder.step(self.running[:, :, position])
        while len(self.rows):
            self.step()
        return self.results

    def step(self) -> None:
        """One more token for each running hypothesis."""
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
        self.running_scores, chosen = (scores + ends * NEVER).topk(self.beams)  # (A, n)
        self.running, self.running_parents = take(sequences, chosen), take(origins, chosen)
        chosen = parents.gather(1, chosen)
        self.decoder.follow(chosen)
        if self.phrases is not None:
            self.phrases.follow(self.rows, chosen, self.running[..., -1])
        if self.coverage_penalty:
            self.coverage = take(self.coverage, chosen)
        self._dismiss()

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
            flat = process(self.processors, self.running.flatten(0, 1), flat)
        values, ids = (found.unflatten(0, (-1, self.beams)) for found in best_candidates(flat, self.candidates))
        if shortlist is not None and not spread:
            ids = shortlist.ids[ids]
        if self.prefixes is not None:
            step = self.running.shape[-1] - self.prompt_length
            values, ids = self.prefixes.candidates(values, ids, self.rows, step)
        return flat.unflatten(0, (-1, self.beams)), values, ids

    def _penalties(self, lengths: torch.Tensor) -> torch.Tensor:
        """What the scores of hypotheses of so many tokens (A), those given included, are divided by: (A, 1)."""
        own = (lengths - self.given).clamp(min=1)
        return self.length_penalty(own.double(), self.alpha).float()[:, None]

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
        length = sequences.shape[-1] - self.prompt_length
        scores = scores / self._penalties(torch.full_like(self.limits, sequences.shape[-1]))
        if self.coverage_penalty:
            covered = take(self.coverage, parents).clamp(max=1).log()  # (A, K, S)
            source = 0 if self.decoder.source_mask is None else self.decoder.source_mask[:, 0]
            covered = covered.masked_fill(torch.as_tensor(source != 0, device=covered.device), 0)
            scores = scores + self.coverage_penalty * covered.sum(dim=-1)
        behind = self.finished.shape[-1] - sequences.shape[-1]
        new = {
            "finished": F.pad(sequences, (0, behind), value=self.filler),
            "finished_scores": scores + ~ending * NEVER,
            "finished_lengths": torch.full_like(parents, length),
            "finished_parents": F.pad(origins, (0, behind), value=-1),
            "is_finished": ending,
        }
        if missing is not None:
            new["finished_missing"] = missing.where(ending, 2**20)
        merged = {name: torch.cat((getattr(self, name), tensor), dim=1) for name, tensor in new.items()}
        ranks = merged["finished_scores"]
        if missing is not None:
            ranks = ranks.double() - MISSING * merged["finished_missing"]
        best = ranks.topk(self.beams).indices  # (A, n)
        for name, tensor in merged.items():
            setattr(self, name, take(tensor, best))

    def _dismiss(self) -> None:
        """Write down the results of sentences that are done, and let these leave the batch."""
        length = self.running.shape[-1]
        reachable = torch.full_like(self.limits, length)
        if self.early_stopping == "never" and self.alpha > 0:
            reachable = self.limits
        best = self.running_scores[:, :1] / self._penalties(reachable)  # (A, 1), coverage can only lower it
        worst = self.finished_scores.amin(dim=1, keepdim=True).where(self.is_finished, NEVER)  # (A, n)
        self.improvable = self.improvable & (best > worst).any(dim=1, keepdim=True)
        done = ~self.improvable[:, 0] | (length >= self.limits)
        if self.early_stopping is True:
            done = done | self.is_finished.all(dim=1)
        new = done & ~self.written
        if not new.any():
            return
        for name, result in self.results.items():
            result[self.rows[new]] = getattr(self, name)[new]
        self.written = self.written | new
        if self.written.sum() >= LEAVING_SHARE * len(self.rows):
            stay = (~self.written).nonzero()[:, 0]
            for name in self.STATE:
                setattr(self, name, getattr(self, name)[stay])
            if len(stay):
                self.decoder.keep(stay)


def take(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Of a tensor (A, n, …) the entries at places (A, K), as (A, K, …)."""
    return tensor[torch.arange(len(tensor), device=tensor.device)[:, None], places]
