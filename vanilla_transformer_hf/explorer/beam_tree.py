"""The hypotheses of a beam search as a tree, including dropped ones."""

import math
from dataclasses import dataclass
from typing import Any

from ..model.config.generation import LENGTH_PENALTIES
from .pieces import MOST_PARTS
from .results import Node
from .subject import Subject


# Sums of log-probabilities below this mark empty places.
NOTHING = -1e8


@dataclass
class Found:
    """A hypothesis: its parent's number, its last token, the sum of its log-probabilities, and its state."""

    parent: int
    step: int
    token: int
    log_probability: float
    state: str


class BeamRecorder:
    """Records the steps of the beam search of one sentence; a `recorder` for `generate()`."""

    def __init__(self, start: int):
        self.found = [Found(-1, 0, start, 0.0, "running")]  # parents first; this is the decoder's start token
        self.running = {0: 0}  # beam -> number of its hypothesis
        self.length = 0

    def __call__(self, step: Any) -> None:
        found, chosen = step.candidates, step.chosen[0].tolist()
        rows = zip(
            found.scores[0].tolist(), found.parents[0].tolist(), found.tokens[0].tolist(), step.ends[0].tolist()
        )
        self.length += 1
        numbers = {}
        for place, (score, parent, token, is_end) in enumerate(rows):
            if score < NOTHING or parent not in self.running:
                continue
            runs_on = place in chosen and not is_end
            state = "running" if runs_on else "finished" if is_end and place < len(chosen) else "dead"
            numbers[place] = len(self.found)
            self.found.append(Found(self.running[parent], self.length, token, score, state))
        self.running = {beam: numbers[place] for beam, place in enumerate(chosen) if place in numbers}

    def before(self, number: int) -> list[int]:
        """The last tokens before that of a hypothesis, as many as a letter may be cut into."""
        tokens: list[int] = []
        while (number := self.found[number].parent) >= 0 and len(tokens) < MOST_PARTS:
            tokens.insert(0, self.found[number].token)
        return tokens

    def nodes(self, subject: Subject, settings: dict[str, Any], given: int) -> list[Node]:
        """The tree; tokens of the prefix, of which so many are `given`, are not scored."""
        has_child = {one.parent for one in self.found}
        went_on = {one.parent for one in self.found if one.state in ("running", "finished")}
        penalty = LENGTH_PENALTIES[settings["length_penalty_type"]]
        last, nodes = max(one.step for one in self.found), []
        for number, one in enumerate(self.found):
            state = one.state
            if state == "running" and number not in went_on:
                state = "open" if one.step == last and number not in has_child else "dead"
            own = max(1, one.step - given)
            score = one.log_probability / float(penalty(own, settings["length_penalty"]))
            is_known = math.isfinite(score) and not settings["coverage_penalty"]
            nodes.append(
                Node(
                    one.parent,
                    one.step,
                    subject.piece(self.before(number), one.token),
                    one.log_probability,
                    score if is_known else None,
                    state,
                )
            )
        return nodes
