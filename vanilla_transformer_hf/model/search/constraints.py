"""
Constraints of the search under `generate()`: required prefixes, required phrases and shortlists.

Shapes: B sentences, A of them still in the batch, n beams, K candidates of each, V vocabulary, S shortlist.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .beam import NEVER, Candidates
from .plan import SearchPlan


def as_ids(ids: Any, name: str, vocab_size: int, ends: Sequence[int] = ()) -> list[int]:
    """A list or tensor of token ids of the vocabulary, none of which ends a sentence, as a list; or a `ValueError`."""
    ids = ids.tolist() if torch.is_tensor(ids) else ids
    if not isinstance(ids, (list, tuple)) or not all(type(one) is int for one in ids):
        raise ValueError(f"{name}: must be a list of token ids, not {str(ids)[:40]}")
    for one in ids:
        if not 0 <= one < vocab_size:
            raise ValueError(f"{name}: token id {one} lies outside the vocabulary of {vocab_size} tokens")
        if one in ends:
            raise ValueError(f"{name}: token id {one} ends a sentence and cannot be required")
    return list(ids)


def one_for_each(values: Any, name: str, batch: int) -> Any:
    """`values`, if they are a list with an entry for each of the `batch` sentences."""
    if not isinstance(values, (list, tuple)) or len(values) != batch:
        count = len(values) if isinstance(values, (list, tuple)) else str(values)[:40]
        raise ValueError(f"{name}: must be a list with an entry for each of the {batch} sentences, not {count}")
    return values


class Prefixes:
    """Tokens that the hypotheses of each of the B sentences begin with, after the decoder prompt; may be none."""

    def __init__(self, prefixes: Sequence[Sequence[int]], device: torch.device):
        self.lengths = torch.tensor([len(prefix) for prefix in prefixes], device=device)  # (B)
        self.longest = int(self.lengths.max())
        rows = [[*prefix, *[0] * (self.longest - len(prefix))] for prefix in prefixes]
        self.tokens = torch.tensor(rows, dtype=torch.long, device=device)  # (B, longest)

    def instead_of(self, tokens: torch.Tensor, rows: torch.Tensor, step: int) -> torch.Tensor:
        """The tokens (A) of sentences `rows` (A), replaced by those of prefixes that have one at this step, from 0."""
        if step >= self.longest:
            return tokens
        return torch.where(self.lengths[rows] > step, self.tokens[rows, step], tokens)

    def candidates(self, found: Candidates, scores: torch.Tensor, rows: torch.Tensor, step: int) -> Candidates:
        """The candidates (A, K) of hypotheses with these scores (A, n), at a step < `longest`."""
        # Where a prefix gives the token, it alone continues each hypothesis and, as part of the prompt, has
        # log-probability 0.
        forced = (self.lengths[rows] > step)[:, None]  # (A, 1)
        ordered, beams = scores.sort(dim=1, descending=True, stable=True)
        missing = found.scores.shape[1] - scores.shape[1]
        return Candidates(
            torch.where(forced, F.pad(ordered, (0, missing), value=-math.inf), found.scores),
            torch.where(forced, F.pad(beams, (0, missing)), found.parents),
            torch.where(forced, self.tokens[rows, step, None], found.tokens),
        )


class Shortlist:
    """The subset of the vocabulary of V tokens that translations may use: ids (S), each once."""

    def __init__(self, ids: torch.Tensor, vocab_size: int):
        self.ids, self.vocab_size = ids, vocab_size

    def spread(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores of the shortlist (R, S) as scores of the whole vocabulary (R, V), -∞ for those that are not in it."""
        whole = scores.new_full((len(scores), self.vocab_size), -math.inf)
        return whole.index_copy_(1, self.ids, scores)


class Candidate(NamedTuple):
    """A possible continuation: its score, the beam that it continues, and the token."""

    score: float
    beam: int
    token: int
    missing: int = 0  # tokens of phrases that it does not contain
    bank: int = 0  # tokens of phrases that it contains, those of a phrase under way included


class Phrases:
    """The phrases that a translation must contain, in any order; they may overlap and contain each other."""

    # The state of a hypothesis is, for each phrase, how many of its first tokens the hypothesis ends with, and its
    # whole length as soon as it has been there. Phrases have at least one token; duplicates count once.

    def __init__(self, phrases: Sequence[Sequence[int]]):
        self.phrases = list(dict.fromkeys(map(tuple, phrases)))
        self.start = (0,) * len(self.phrases)
        # For the first i tokens of each phrase: their longest proper suffix that begins it (Knuth, Morris, Pratt 77).
        self.fallbacks = list[list[int]]()
        for number, phrase in enumerate(self.phrases):
            self.fallbacks.append(borders := [0, 0])
            for token in phrase[1:-1]:
                borders.append(self._advance(number, borders[-1], token))

    def advance(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        """The state after one more token."""
        return tuple(self._advance(number, done, token) for number, done in enumerate(state))

    def _advance(self, number: int, done: int, token: int) -> int:
        phrase, fallback = self.phrases[number], self.fallbacks[number]
        if done == len(phrase):
            return done
        while done and phrase[done] != token:
            done = fallback[done]
        return done + (phrase[done] == token)

    def wanted(self, state: tuple[int, ...]) -> set[int]:
        """The tokens that continue a phrase."""
        return {phrase[done] for phrase, done in zip(self.phrases, state) if done < len(phrase)}

    def missing(self, state: tuple[int, ...]) -> int:
        """The number of tokens of all phrases that are not complete."""
        return sum(len(phrase) for phrase, done in zip(self.phrases, state) if done < len(phrase))

    def bank(self, state: tuple[int, ...]) -> int:
        """The number of tokens of all complete phrases and of the longest partial one."""
        met = [len(phrase) == done for phrase, done in zip(self.phrases, state)]
        under_way = max((done for done, whole in zip(state, met) if not whole), default=0)
        return sum(done for done, whole in zip(state, met) if whole) + under_way


class PhraseSearch:
    """Choose the hypotheses under required phrases: dynamic beam allocation, Post and Vilar 2018, arXiv 1804.06609."""

    # The n most likely hypotheses would lack the phrases. So hypotheses compete in banks, one for each number of
    # phrase tokens that they contain, and the beam takes the best of each bank, then the second of each, and so on, of
    # the fullest bank first (Hu et al. 2019, aclanthology.org/N19-1090). Tokens that continue a phrase are candidates
    # even if they are improbable. A hypothesis ends when it has all phrases, or at its limit. A sentence without
    # phrases is searched without constraints.

    def __init__(self, phrases: Sequence[Sequence[Sequence[int]]], ends: Sequence[int], beams: int):
        self.sentences = {row: Phrases(each) for row, each in enumerate(phrases) if each}
        self.states = {row: [sentence.start] * beams for row, sentence in self.sentences.items()}
        self.ends, self.beams = set(ends), beams

    @property
    def tokens(self) -> set[int]:
        """All tokens of all phrases."""
        return {token for sentence in self.sentences.values() for phrase in sentence.phrases for token in phrase}

    def choose(
        self,
        rows: torch.Tensor,  # which sentences these are (A)
        log_probs: torch.Tensor,  # of all next tokens (A, n, V)
        likely: tuple[torch.Tensor, torch.Tensor],  # log-probabilities and ids of the best (A, n, K)
        running_scores: torch.Tensor,  # of the hypotheses so far (A, n)
        plain: tuple[torch.Tensor, torch.Tensor, torch.Tensor],  # scores, beams, tokens (A, L) that are best without
        is_last: torch.Tensor,  # whether sentences reach their limits with this token (A)
        is_forced: torch.Tensor,  # whether prefixes give this token (A)
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Candidates of all sentences: scores, beams, tokens, and how many tokens of phrases are missing (A, L)."""
        # Of those without phrases they are the plain ones.
        scores, beams, tokens = (tensor.clone() for tensor in plain)
        missing = torch.zeros_like(beams)
        totals, ids = likely[0] + running_scores[..., None], likely[1]
        last, forced = is_last.tolist(), is_forced.tolist()
        for place, row in enumerate(rows.tolist()):
            if row not in self.sentences:
                continue
            if forced[place]:
                found = [*zip(zip(beams[place].tolist(), tokens[place].tolist()), scores[place].tolist())]
            else:
                found = [
                    ((beam, token), score)
                    for beam, columns in enumerate(zip(ids[place].tolist(), totals[place].tolist()))
                    for token, score in zip(*columns)
                ]
                each = map(self.sentences[row].wanted, self.states[row])
                # Pairs of a beam and a token that continues one of the sentence's phrases.
                wanted = [(beam, token) for beam, words in enumerate(each) for token in sorted(words)]
                if wanted:
                    at, token_ids = torch.tensor(wanted, device=log_probs.device).unbind(1)
                    found += zip(wanted, (log_probs[place, at, token_ids] + running_scores[place, at]).tolist())
            picked = self._pick(row, {key: score for key, score in found if score > NEVER / 2}, is_last=last[place])
            # As low as the score of an empty place, but above that of an ended hypothesis, which must not continue.
            nothing = Candidate(0.75 * NEVER, 0, token=self.sentences[row].phrases[0][0], missing=1)
            picked += [nothing] * (scores.shape[1] - len(picked))
            columns = list(zip(*picked))
            for tensor, column in zip((scores, beams, tokens, missing), columns):
                tensor[place] = torch.tensor(column, device=tensor.device)
        return scores, beams, tokens, missing

    def _pick(self, row: int, found: dict[tuple[int, int], float], is_last: bool) -> list[Candidate]:
        """The candidates that end and at most n others; at the limit the n best, ordered by missing tokens first."""
        sentence, candidates = self.sentences[row], []
        for (beam, token), score in found.items():
            state = self.states[row][beam]
            if token not in self.ends or not sentence.missing(state):
                state = sentence.advance(state, token)
                candidates.append(
                    Candidate(score, beam, token=token, missing=sentence.missing(state), bank=sentence.bank(state))
                )
        candidates.sort(key=lambda one: -one.score)
        if is_last:
            return sorted(candidates, key=lambda one: one.missing)[: self.beams]
        whole = [one for one in candidates if not one.missing][: self.beams]
        before: Counter[int] = Counter()
        ranked = []
        for one in candidates:
            if one.token not in self.ends:
                ranked.append((before[one.bank], -one.bank, one))
                before[one.bank] += 1
        ranked.sort(key=lambda entry: entry[:2])
        return [one for one in whole if one.token in self.ends] + [one for *_, one in ranked[: self.beams]]

    def follow(self, rows: torch.Tensor, parents: torch.Tensor, tokens: torch.Tensor) -> None:
        """From now on the hypotheses of sentences `rows` (A) continue those at `parents` by `tokens`, both (A, n)."""
        for row, beams, added in zip(rows.tolist(), parents.tolist(), tokens.tolist()):
            if row in self.sentences:
                states, advance = self.states[row], self.sentences[row].advance
                self.states[row] = [advance(states[beam], token) for beam, token in zip(beams, added)]


def read_constraints(plan: SearchPlan, model: Any) -> None:
    """Read `prefixes`, `required_phrases` and `shortlist` of the call into its plan."""
    asked, beams, ends = plan.request.requests, plan.config.num_beams, [] if plan.eos is None else plan.eos.tolist()
    batch, vocab_size, device = len(plan.prompt) // plan.groups, model.config.vocab_size, model.device
    if "prefixes" in asked:
        prefixes = one_for_each(asked["prefixes"], "prefixes", batch=batch)
        prefixes = [
            as_ids(ids, f"prefixes[{row}]", vocab_size=vocab_size, ends=ends) for row, ids in enumerate(prefixes)
        ]
        plan.prefixes = Prefixes([ids for ids in prefixes for _ in range(plan.groups)], device)
    if "required_phrases" in asked:
        if beams < 2:
            raise ValueError(f"required_phrases: needs num_beams of at least 2, not {beams}")
        if plan.groups > 1:
            raise ValueError("required_phrases: not possible together with num_beam_groups")
        phrases = []
        for row, each in enumerate(one_for_each(asked["required_phrases"], "required_phrases", batch=batch)):
            name = f"required_phrases[{row}]"
            if not isinstance(each, (list, tuple)):
                raise ValueError(f"{name}: must be a list of phrases, not {str(each)[:40]}")
            named = [(f"{name}[{number}]", phrase) for number, phrase in enumerate(each)]
            phrases.append([as_ids(phrase, place, vocab_size=vocab_size, ends=ends) for place, phrase in named])
            if [] in phrases[-1]:
                raise ValueError(f"{name}: a phrase is empty")
        plan.phrases = PhraseSearch(phrases, ends, beams=beams)
    if "shortlist" in asked:
        shortlist = set(as_ids(asked["shortlist"], "shortlist", vocab_size=vocab_size))
        if not shortlist - {*ends}:
            raise ValueError("shortlist: must name a token that does not end a sentence")
        required = set() if plan.phrases is None else plan.phrases.tokens
        ids = torch.tensor(sorted(shortlist | required | {*ends}), device=device)
        plan.shortlist = Shortlist(ids, vocab_size)
