"""
Synthetic pairs of a text of one language: a model translates it once, filters drop what is suspicious, and what is
left is written as two text files.

Back-translation (Sennrich et al. 2016, arXiv 1511.06709) translates text of the target language into sources,
forward translation (self-training) text of the source language into targets.
"""

import math
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

from sacrebleu.metrics import CHRF

from ...common.checksums import digest_of_all
from ...common.files import open_output
from ...common.lines import read_lines
from ...common.white_space import normalize_space
from ...translation.results import repeats
from ..data.cleaning import in_one_form, letters_of
from .translations import ModelSearch, begin, is_made_with, read_translated, translate_file, write_json


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
    held_out: frozenset[str] = frozenset()  # texts of the validation and the test corpus, their `letters_of`


def _is_uneven(pair: Candidate, facts: Facts) -> bool:
    least, most = sorted((len(pair.original) * facts.length_ratio, len(pair.translation)))
    return (ratio := facts.filter.max_length_ratio) is not None and most > ratio * least + SLACK


# Name of a rule -> what is said of the pairs that it drops, and whether it drops one.
RULES: dict[str, tuple[str, Callable[[Candidate, Facts], bool]]] = {
    "held_out": ("that stand in the validation or test text", lambda one, of: letters_of(one.original) in of.held_out),
    "empty": ("with an empty translation", lambda pair, facts: not pair.translation.strip()),
    "copied": ("that were only copied", lambda pair, _: letters_of(pair.translation) == letters_of(pair.original)),
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


# What replaces a word; a token of the tokenizer of the model that learns it.
BLANK = "<blank>"


@dataclass(frozen=True)
class Noise:
    """Words are dropped, replaced by `BLANK`, and moved; a text without spaces is one word."""

    drop: float = 0.1  # probability, as the next one
    replace: float = 0.1
    shuffle: int = 3  # places that a word may move
    seed: int = 1  # random numbers depend on it and on the line alone

    def __post_init__(self) -> None:
        for name in ("drop", "replace"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}_words={getattr(self, name)}: must be at least 0 and less than 1")
        if self.shuffle < 0:
            raise ValueError(f"shuffle_words={self.shuffle}: must be at least 0")

    def __call__(self, text: str, number: int) -> str:
        """The text of the line of this number with noise; never empty, unless the text is."""
        draw = random.Random(f"{self.seed} {number} {text}")
        words = text.split()
        kept = [word for word in words if draw.random() >= self.drop] or words[:1]
        replaced = [BLANK if draw.random() < self.replace else word for word in kept]
        # Sorted by their places, each moved by up to `shuffle`: a word passes no more than so many others.
        places = [place + draw.uniform(0, self.shuffle + 1 if self.shuffle else 0) for place in range(len(replaced))]
        return " ".join(replaced[place] for place in sorted(range(len(replaced)), key=places.__getitem__))


# Files of the folder. Its synthetic text has the languages of the sides as endings.
LINES, TRANSLATIONS, ROUND_TRIP = "lines.txt", "translations.jsonl", "round_trip.jsonl"
SYNTHETIC, RECORD, BEGUN = "synthetic", "synthetic.json", "translations.json"
Side = Literal["source", "target"]


@dataclass(frozen=True)
class SyntheticText:
    """How synthetic pairs are made."""

    search: ModelSearch  # the model that translates, and how it searches
    texts: tuple[str, ...]  # files of one language, a sentence on each line
    side: Side = "target"  # of the pairs that these texts are: sources are synthetic in back-translation
    languages: tuple[str, str] = ("source", "target")  # as endings of the files
    filter: PairFilter = field(default_factory=PairFilter)
    noise: Noise | None = None  # in the synthetic sources
    tag: str = ""  # what synthetic sources begin with (Caswell et al. 2019, arXiv 1906.06442)
    round_trip: ModelSearch | None = None  # the model that translates the translations back
    keep_duplicates: bool = False  # translate equal lines each time that they occur
    max_lines: int | None = None  # translate only the first so many

    def __post_init__(self) -> None:
        for path in self.texts:
            if not Path(path).is_file():
                raise FileNotFoundError(f"{path}: no such file; expected a text with a sentence on each line")
        if self.filter.min_round_trip is not None and self.round_trip is None:
            raise ValueError(
                f"min_round_trip={self.filter.min_round_trip}: name the model that translates back: round_trip"
            )
        if self.max_lines is not None and self.max_lines < 1:
            raise ValueError(f"max_lines={self.max_lines}: must be at least 1")
        if self.noise is not None and self.side == "source":
            raise ValueError("noise is for synthetic sources: text of the source language has none")


def make_synthetic_text(wanted: SyntheticText, folder: Path, held_out: Sequence[str] = ()) -> tuple[Path, Path]:
    """Write the synthetic pairs, none with a `held_out` text, as two files; what an earlier run has made is kept."""
    lines, translations = folder / LINES, folder / TRANSLATIONS
    settings = {
        **wanted.search.settings,
        "side": wanted.side,
        "text": [digest_of_all(Path(path)) for path in wanted.texts],
        "keep_duplicates": wanted.keep_duplicates,
        "max_lines": wanted.max_lines,
    }
    folder.mkdir(parents=True, exist_ok=True)
    begin(folder / BEGUN, settings, [translations], instead="choose another folder", inputs=[lines])
    selected = _select_lines(wanted, lines)
    print(f"{selected}; {wanted.search.model} translates it", flush=True)
    translate_file(wanted.search, lines, translations)
    if wanted.round_trip is not None:
        # The translations are lines of a file meanwhile.
        texts, back = folder / "round_trip.txt", folder / ROUND_TRIP
        record = folder / "round_trip.json"
        begin(record, wanted.round_trip.settings, [back], instead="choose another folder", inputs=[texts])
        if not texts.is_file():
            with open_output(texts) as file:
                for _, _, found in read_translated(lines, translations):
                    file.writelines(normalize_space(one["text"]).encode() + b"\n" for one in found)
        translate_file(wanted.round_trip, texts, back)
    files = folder / f"{SYNTHETIC}.{wanted.languages[0]}", folder / f"{SYNTHETIC}.{wanted.languages[1]}"
    made_with = {
        **settings,
        "filter": asdict(wanted.filter),
        "noise": None if wanted.noise is None else asdict(wanted.noise),
        "tag": wanted.tag,
        "round_trip": None if wanted.round_trip is None else wanted.round_trip.settings,
        "held_out": blake2b("\n".join(sorted(set(held_out))).encode(), digest_size=16).hexdigest(),
    }
    if not is_made_with(folder / RECORD, made_with, files):
        _write_pairs(wanted, folder, files, made_with, frozenset(map(letters_of, held_out)) - {""})
    return files


def _select_lines(wanted: SyntheticText, output: Path) -> str:
    """Write the lines to translate, each once unless duplicates are kept, unless there are some; numbers in words."""
    counts, seen = {"lines": 0, "empty": 0, "duplicate": 0}, set[bytes]()
    with ExitStack() as stack:
        # Only read when an earlier run has written them; its translations are those of these lines.
        file: BinaryIO | None = None if output.is_file() else stack.enter_context(open_output(output))
        for line in islice(chain.from_iterable(map(read_lines, wanted.texts)), wanted.max_lines):
            counts["lines"] += 1
            text = normalize_space(" ".join(line.split("\0")))
            key = blake2b(in_one_form(text).encode(), digest_size=8).digest()
            if not text:
                counts["empty"] += 1
            elif key in seen and not wanted.keep_duplicates:
                counts["duplicate"] += 1
            else:
                seen.add(key)
                if file is not None:
                    file.write(text.encode() + b"\n")
    left = counts["lines"] - counts["empty"] - counts["duplicate"]
    if left == 0:
        output.unlink(missing_ok=True)
        raise ValueError(f"{', '.join(wanted.texts)}: there is no text to translate")
    names = ", ".join(Path(path).name for path in wanted.texts)
    return (
        f"{names}: {counts['lines']:,} lines, {counts['empty']:,} empty and {counts['duplicate']:,} duplicate ones "
        f"left out, {left:,} to translate"
    )


def _candidates(wanted: SyntheticText, folder: Path) -> Iterator[Candidate]:
    """All pairs of lines and translations."""
    back: Iterator[Any] | None = None
    chrf = CHRF()  # chrF2 of sentences, from 0 to 100
    if wanted.round_trip is not None:
        back = read_translated(folder / "round_trip.txt", folder / ROUND_TRIP)
    for number, line, found in read_translated(folder / LINES, folder / TRANSLATIONS):
        for one in found:
            returned = None if back is None else in_one_form(next(back)[2][0]["text"])
            round_trip = None if returned is None else chrf.sentence_score(returned, [in_one_form(line)]).score
            yield Candidate(number, line, one["text"], one["finished"], one["score"], round_trip)


def _write_pairs(
    wanted: SyntheticText, folder: Path, files: tuple[Path, Path], settings: dict[str, Any], held_out: frozenset[str]
) -> None:
    """Write the pairs that no rule drops, and the record; report the numbers."""
    facts = facts_of(_candidates(wanted, folder), wanted.filter, held_out)
    dropped = Dropped()
    (folder / RECORD).unlink(missing_ok=True)  # it describes what both files have
    with open_output(files[0]) as sources, open_output(files[1]) as targets:
        for pair in kept_pairs(_candidates(wanted, folder), facts, dropped):
            source, target = pair.original, normalize_space(pair.translation)
            if wanted.side == "target":
                noisy = target if wanted.noise is None else wanted.noise(target, pair.line)
                source, target = " ".join(filter(None, (wanted.tag, noisy))), source
            sources.write(source.encode() + b"\n")
            targets.write(target.encode() + b"\n")
    for line in dropped.lines():
        print(line, flush=True)
    if not dropped.kept:
        for path in files:
            path.unlink(missing_ok=True)
        raise ValueError(f"{folder / TRANSLATIONS}: the filters have left none of {dropped.read:,} pairs")
    write_json(
        folder / RECORD,
        {
            "model": wanted.search.model,
            "search": {name: value for name, value in wanted.search.options.items() if value is not None},
            "seed": wanted.search.seed,
            "side": wanted.side,
            "texts": [Path(path).name for path in wanted.texts],
            "files": [path.name for path in files],
            "read": dropped.read,
            "kept": dropped.kept,
            "dropped": dict(dropped.counts),
            "examples": {rule: [asdict(pair) for pair in pairs] for rule, pairs in dropped.examples.items()},
            "settings": settings,
        },
    )
    print(f"written: {files[0]}, {files[1]}; how they were made: {folder / RECORD}", flush=True)
