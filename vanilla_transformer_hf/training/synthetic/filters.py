"""Which synthetic pairs are learned: a table of rules, each with its count and examples: none is dropped silently."""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ...translation.results import repeats


# Pairs of each rule that are shown to the user.
SHOWN = 3
# A phrase that occurs so often in a row is a repetition, unless the original has one, too.
REPEATS = 4
# Characters that a translation may have more than its ratio allows: of short texts, ratios mean little.
SLACK = 20


@dataclass(frozen=True)
class Candidate:
    """A line of the text of one language, and one translation of it."""

    line: int  # from 1
    original: str
    translation: str
    finished: bool = True  # by the model, and not at the limit of tokens
    # Unless they were not computed: log-probability divided by a power of the length; chrF of the translation's
    # translation against the original.
    score: float | None = None
    round_trip: float | None = None


@dataclass(frozen=True)
class PairFilter:
    """The limits of the rules; None: there is none."""

    # How many times as many characters, or as few, for one of its original a translation may have as the whole text.
    max_length_ratio: float | None = 3.0
    min_score: float | None = None
    drop_worst: float = 0.0  # share of all pairs, those with the least scores
    min_round_trip: float | None = None
    keep: tuple[str, ...] = ()  # names of rules that drop nothing

    def __post_init__(self) -> None:
        for rule in self.keep:
            if rule not in RULES:
                raise ValueError(f"keep={rule!r}: expected one of {', '.join(RULES)}")
        if self.max_length_ratio is not None and not self.max_length_ratio >= 1:
            raise ValueError(f"max_ratio={self.max_length_ratio}: must be at least 1")
        if not 0 <= self.drop_worst < 1:
            raise ValueError(f"drop_worst={self.drop_worst}: must be at least 0 and less than 1")
        if self.min_round_trip is not None and not 0 <= self.min_round_trip <= 100:
            raise ValueError(f"min_round_trip={self.min_round_trip}: chrF is from 0 to 100")
        if self.min_score is not None and not self.min_score <= 0:
            raise ValueError(f"min_score={self.min_score}: log-probabilities are at most 0")

    @property
    def needs_scores(self) -> bool:
        return self.min_score is not None or self.drop_worst > 0


@dataclass
class Facts:
    """What the rules use of the whole text, beside what the user has chosen."""

    filter: PairFilter
    length_ratio: float = 1.0  # characters of all translations for one of the originals
    least_score: float = -math.inf  # that is kept
    held_out: frozenset[str] = frozenset()  # texts of the validation and the test corpus


def _is_uneven(pair: Candidate, facts: Facts) -> bool:
    if facts.filter.max_length_ratio is None:
        return False
    expected, found = len(pair.original) * facts.length_ratio, len(pair.translation)
    most, least = max(expected, found), min(expected, found)
    return most > facts.filter.max_length_ratio * least + SLACK


# Name of a rule -> what is said of the pairs that it drops, and whether it drops one.
RULES: dict[str, tuple[str, Callable[[Candidate, Facts], bool]]] = {
    "held_out": ("that stand in the validation or test text", lambda pair, facts: pair.original in facts.held_out),
    "empty": ("with an empty translation", lambda pair, facts: not pair.translation.strip()),
    "copied": ("that were copied, not translated", lambda pair, _: pair.translation.split() == pair.original.split()),
    "unfinished": ("cut off at the limit of tokens", lambda pair, facts: not pair.finished),
    "repetition": (
        f"that repeat a phrase {REPEATS} times",
        lambda pair, facts: repeats(pair.translation.split(), REPEATS) and not repeats(pair.original.split(), REPEATS),
    ),
    "length": ("far too long or too short", _is_uneven),
    "score": ("with a low score", lambda pair, facts: pair.score is not None and pair.score < facts.least_score),
    "round_trip": (
        "whose round trip differs",
        lambda pair, facts: pair.round_trip is not None and pair.round_trip < (facts.filter.min_round_trip or 0),
    ),
}


@dataclass
class Dropped:
    """The numbers of pairs that were read and kept, and of those that each rule has dropped, with examples."""

    read: int = 0
    kept: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Candidate]] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """The report for users: the numbers, and for each rule an example."""
        yield f"{self.kept:,} of {self.read:,} pairs kept"
        for rule, (what, _) in RULES.items():
            if count := self.counts[rule]:
                pair = self.examples[rule][0]
                yield (
                    f"  {count:,} {what} left out ({rule}), such as line {pair.line}: {_short(pair.original)} -> "
                    f"{_short(pair.translation)}"
                )


def _short(text: str, longest: int = 80) -> str:
    return repr(text if len(text) <= longest else f"{text[:longest]}…")


def facts_of(pairs: Iterable[Candidate], chosen: PairFilter, held_out: frozenset[str] = frozenset()) -> Facts:
    """What the rules use of the whole text, from one pass over its pairs."""
    characters, scores = [0, 0], array("d")
    for pair in pairs:
        if pair.finished:
            characters[0] += len(pair.original)
            characters[1] += len(pair.translation)
        if pair.score is not None:
            scores.append(pair.score)
    least = -math.inf if chosen.min_score is None else chosen.min_score
    if chosen.drop_worst and scores:
        least = max(least, sorted(scores)[int(chosen.drop_worst * len(scores))])
    ratio = characters[1] / characters[0] if all(characters) else 1.0
    return Facts(chosen, ratio, least, held_out)


def kept_pairs(pairs: Iterable[Candidate], facts: Facts, dropped: Dropped) -> Iterator[Candidate]:
    """The pairs that no rule drops; `dropped` counts all."""
    rules = {name: rule for name, rule in RULES.items() if name not in facts.filter.keep}
    for pair in pairs:
        dropped.read += 1
        rule = next((name for name, (_, drops) in rules.items() if drops(pair, facts)), None)
        if rule is None:
            dropped.kept += 1
            yield pair
            continue
        dropped.counts[rule] += 1
        if len(shown := dropped.examples.setdefault(rule, [])) < SHOWN:
            shown.append(pair)
