"""
Which pairs of a corpus harm training: a table of rules, each of which counts what it leaves out.

A pair is left out by the first rule that it breaks. Texts are compared as training reads them, with single spaces.
OpusFilter has more rules of this kind, classifiers among them; it reads the plain text that is written here. It is not
used for these few, because it brings scikit-learn, SciPy and a dozen more packages for what is one line for each rule.
"""

import statistics
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import langcodes
import regex

from ...common.column_names import SIDES
from ...common.languages import lingua_languages
from ...common.unit_files import Row
from ...common.white_space import normalize_space


# Name of a rule -> what it leaves out, in the order in which they are applied.
RULES = {
    "empty": "a side has no text",
    "identical": "both sides are the same, but for case",
    "long": "a side has more characters than --max_length",
    "unequal": "a side is --max_length_ratio times as long as usual for the other",
    "script": "less than half of the letters of a side are of the script of its language",
    "held_out": "a side is a sentence of --held_out, but for case and punctuation",
    "duplicate": "the pair occurred before",
    "language": "a side is in another language (--check_language)",
}

USUAL = 10_000  # pairs at the beginning, whose median is the usual ratio of lengths
SHORT = 20  # characters: the ratio of shorter texts means little
BATCH = 1000  # pairs whose languages are found at once, by all CPU cores
# Probability of the expected language below which a text is in another one. On news in English, Yoruba, Zulu and
# Luganda, this finds the Portuguese, Welsh and untranslated sentences among them, and names that stand alone.
UNLIKELY = 0.01
# Scripts of ISO 15924 that are written with several of Unicode's.
SCRIPTS = {
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
    "Hans": ("Hani", "Bopo"),
    "Hant": ("Hani", "Bopo"),
}
EXAMPLES = 3  # pairs of each rule that are shown
_LETTER = regex.compile(r"\p{L}")


@dataclass(frozen=True)
class CleaningOptions:
    """Limits of the rules."""

    source_lang: str | None = None  # without it, scripts are not looked at
    target_lang: str | None = None
    max_length: int = 1000  # characters of a side
    # How many times longer a side may be than is usual for the other: the median of the first `USUAL` pairs.
    max_length_ratio: float = 3.0
    keep: tuple[str, ...] = ()  # rules that are not applied
    held_out: frozenset[str] = frozenset()  # what `held_out_sentences` makes of test and validation text
    check_language: bool = False  # which takes some milliseconds for each pair

    def __post_init__(self) -> None:
        if unknown := [name for name in self.keep if name not in RULES]:
            raise ValueError(f"keep={unknown[0]}: must be one of {', '.join(RULES)}.")
        if self.max_length < 1 or self.max_length_ratio < 1:
            raise ValueError("max_length and max_length_ratio must be at least 1.")
        if self.check_language and None in (self.source_lang, self.target_lang):
            raise ValueError("check_language needs source_lang and target_lang.")


@dataclass
class CleaningReport:
    """What was read, kept and left out; complete when all pairs have been read."""

    read: int = 0
    kept: int = 0
    left_out: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {name: [] for name in RULES})
    units: Counter[str] = field(default_factory=Counter)
    usual_ratio: float = 1.0
    notes: list[str] = field(default_factory=list)

    def add(self, rule: str, number: int, source: str, target: str) -> None:
        """Count a pair that a rule leaves out; the first ones are kept as examples."""
        self.left_out[rule] += 1
        if len(self.examples[rule]) < EXAMPLES:
            self.examples[rule].append({"pair": number, "source": source, "target": target})


Pair = tuple[int, str, str]  # its number in the corpus, from 1, and its texts


def clean_pairs(rows: Iterable[Row], options: CleaningOptions, report: CleaningReport) -> Iterator[tuple[str, str]]:
    """The pairs that break no rule, in order and with single spaces; no more than 10,000 pairs are in memory."""
    find_wrong = _find_wrong_languages(options, report) if options.check_language else None
    pairs = _numbered(rows, report)
    head = list(islice(pairs, USUAL))
    ratios = [len(target) / len(source) for _, source, target in head if source and target]
    report.usual_ratio = statistics.median(ratios) if ratios else 1.0
    rules = {name: rule for name, rule in _rules(options, report).items() if name not in options.keep}

    def passes(pair: Pair) -> bool:
        broken = next((name for name, breaks in rules.items() if breaks(*pair[1:])), None)
        if broken is not None:
            report.add(broken, *pair)
        return broken is None

    passed = filter(passes, chain(head, pairs))
    while batch := list(islice(passed, BATCH)):
        wrong = find_wrong(batch) if find_wrong is not None else set[int]()
        for number, source, target in batch:
            if number in wrong:
                report.add("language", number, source, target)
                continue
            report.kept += 1
            yield source, target


def _numbered(rows: Iterable[Row], report: CleaningReport) -> Iterator[Pair]:
    for row in rows:
        if isinstance(row, str):
            report.units[row] += 1
            continue
        report.read += 1
        source, target = (normalize_space(row[side]) for side in SIDES)
        yield report.read, source, target


Rule = Callable[[str, str], bool]


def key_of_pair(source: str, target: str) -> int:
    """A number of 64 bits that equal pairs have in common, in any of Unicode's forms."""
    source, target = in_one_form(source), in_one_form(target)
    text = f"{len(source)} {source}{target}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True)


def _rules(options: CleaningOptions, report: CleaningReport) -> dict[str, Rule]:
    """The rules of single pairs, in the order of `RULES`."""
    usual, seen, held_out = report.usual_ratio, set[int](), options.held_out
    others = [_letters_of_other_scripts(language) for language in (options.source_lang, options.target_lang)]

    def is_unequal(source: str, target: str) -> bool:
        lengths = len(source) * usual, len(target)
        return max(lengths) >= SHORT and max(lengths) > options.max_length_ratio * min(lengths)

    def is_repeated(source: str, target: str) -> bool:
        known = len(seen)
        seen.add(key_of_pair(source, target))
        return len(seen) == known

    rules: dict[str, Rule] = {
        "empty": lambda source, target: not (source and target),
        "identical": lambda source, target: in_one_form(source).casefold() == in_one_form(target).casefold(),
        "long": lambda source, target: max(len(source), len(target)) > options.max_length,
        "unequal": is_unequal,
    }
    if any(others):
        rules["script"] = lambda *texts: any(  # more than half of a text's letters are of other scripts
            other is not None and other.search(text) and 2 * len(other.findall(text)) > len(_LETTER.findall(text))
            for other, text in zip(others, texts)
        )
    if missing := [side for side, other in zip(SIDES, others) if other is None]:
        report.notes.append(f"script: not looked at in the {' and the '.join(missing)} text; name its language.")
    if held_out:
        rules["held_out"] = lambda *texts: any(letters_of(text) in held_out for text in texts)
    return rules | {"duplicate": is_repeated}


def in_one_form(text: str) -> str:
    """A text to compare with others, whose letters with accents may be in another of Unicode's forms."""
    return unicodedata.normalize("NFC", text)


def letters_of(text: str) -> str:
    """The letters, their marks and the digits of a text, without differences of case and of Unicode's forms."""
    return str(regex.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).casefold()))


def held_out_sentences(rows: Iterable[Row]) -> frozenset[str]:
    """What `CleaningOptions.held_out` compares: the letters of both sides of held-out pairs."""
    texts = chain.from_iterable(row.values() for row in rows if not isinstance(row, str))
    return frozenset(map(letters_of, texts)) - {""}


def _letters_of_other_scripts(language: str | None) -> Any:
    """The pattern of a letter that is not of a language's script; marks and signs of all scripts are none."""
    if language is None:
        return None
    tag = langcodes.Language.get(langcodes.standardize_tag(language, macro=True)).maximize()
    if tag.script is None:
        return None
    scripts = SCRIPTS.get(tag.script, (tag.script,))
    excluded = "".join(rf"--\p{{sc={each}}}" for each in (*scripts, "Zyyy", "Zinh"))
    return regex.compile(rf"(?V1)[\p{{L}}{excluded}]")


def _find_wrong_languages(options: CleaningOptions, report: CleaningReport) -> Callable[[list[Pair]], set[int]]:
    """A function that finds the numbers of pairs of which a side is in another language."""
    try:
        known = lingua_languages()
    except ImportError as error:
        raise ValueError(
            f"check_language: {error.name} is not installed: pip install 'vanilla_transformer_hf[clean]'"
        ) from error
    given = options.source_lang, options.target_lang
    codes = (langcodes.Language.get(langcodes.standardize_tag(str(language))).to_alpha3() for language in given)
    expected = [known.get(code) for code in codes]
    unknown = [str(language) for language, found in zip(given, expected) if found is None]
    if len(unknown) == 2:
        raise ValueError(f"check_language: {' and '.join(unknown)} are not among the languages that lingua supports.")
    report.notes.extend(f"language: {each} is not supported by lingua; its side is not checked." for each in unknown)
    from lingua import LanguageDetectorBuilder

    detector = LanguageDetectorBuilder.from_all_languages().build()

    def find_wrong(pairs: list[Pair]) -> set[int]:
        wrong = set[int]()
        for place, language in enumerate(expected, start=1):
            if language is None:
                continue
            found = detector.compute_language_confidence_values_in_parallel([str(pair[place]) for pair in pairs])
            for pair, values in zip(pairs, found):
                likely = next((each.value for each in values if each.language == language), 0)
                # A text without letters is in no language at all.
                if likely < UNLIKELY and any(each.value for each in values):
                    wrong.add(pair[0])
        return wrong

    return find_wrong
