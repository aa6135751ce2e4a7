"""
Systems of translation beside each other: scores with confidence intervals, whether differences are more than chance by
sacreBLEU's tests, and a page of the sentences that differ most, by COMET where its scores are given, else by chrF.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Score, Signature
from sacrebleu.significance import PairedTest

from ..common.settings import read_json
from .evaluate_module import find_tokenizer
from .scores import warn_of_tokenized


# Sentences of each pair of systems on the page, and the words of a text in which differences are looked for, which
# takes the square of them.
SHOWN, LONGEST_MARKED = 20, 1000
# Below it, a p-value is called more than chance.
LEVEL = 0.05
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>The largest differences</title>
<style>:root {{ color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif }}
body {{ max-width: 60rem; margin: auto; padding: 1rem }} table {{ width: 100%; border-collapse: collapse }}
th, td {{ padding: .2rem .6rem; border: 1px solid #8888; text-align: start; vertical-align: top; font-weight: 400 }}
th {{ width: 12rem; overflow-wrap: anywhere }}</style></head>
<body><h1>The largest differences</h1>{}</body></html>
"""


@dataclass(frozen=True)
class SystemScore:
    """A score of one system; of the first one, and of scores that equal its, there are no p-values."""

    score: float
    # Of the score over resamples of the sentences, and half of the interval around it that has 95 % of them.
    mean: float
    interval: float
    # How probable it is that chance alone makes a difference from the first system as large as this, by paired
    # bootstrap (Koehn 2004, aclanthology.org/W04-3250) and approximate randomization (Riezler and Maxwell 2005,
    # aclanthology.org/W05-0908).
    p_bootstrap: float | None = None
    p_randomization: float | None = None

    def __str__(self) -> str:
        text = f"{self.score:.2f} ({self.mean:.2f} ± {self.interval:.2f})"
        if self.p_bootstrap is None or self.p_randomization is None:
            return text
        is_clear = max(self.p_bootstrap, self.p_randomization) < LEVEL
        return f"{text}, p {self.p_bootstrap:.4f}, {self.p_randomization:.4f}{' *' if is_clear else ''}"


@dataclass(frozen=True)
class ComparedSystems:
    """Scores by system and metric; the first system is what the others are compared with."""

    sentences: int
    systems: dict[str, dict[str, SystemScore]]
    signatures: dict[str, str]

    def __str__(self) -> str:
        """The table in Markdown, and what it says."""
        lines = [["system", *self.signatures], ["---", *("---:" for _ in self.signatures)]]
        lines += [[f"`{name}`", *map(str, scores.values())] for name, scores in self.systems.items()]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        first = next(iter(self.systems))
        signatures = "".join(f"{name} {signature}\n" for name, signature in self.signatures.items())
        return (
            f"{table}\n{self.sentences:,} sentences. In brackets: 95 % of the scores of resampled sentences. p: how "
            f"probable such a difference from `{first}` is by chance, by paired bootstrap and by approximate "
            f"randomization; *: both below {LEVEL}; none where scores are equal.\n{signatures}"
        )


class SentenceMean:
    """The mean of scores of sentences as a metric of `PairedTest`, whose hypotheses are these scores."""

    def _extract_corpus_statistics(self, hypotheses: Sequence[float], references: Any) -> list[list[float]]:
        return [[score, 1.0] for score in hypotheses]

    def _aggregate_and_compute(self, stats: Sequence[Sequence[float]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats)])

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        return Score("COMET", float(stats[0] / stats[1]))

    def get_signature(self) -> Signature:
        return Signature({"num_refs": None})


def compare_systems(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    target_lang: str | None = None,
    tokenize: str | None = None,
    comet: Mapping[str, Sequence[float]] | None = None,  # of every sentence, in percent
    resamples: int = 1000,
    trials: int = 10_000,
) -> ComparedSystems:
    """Score systems by texts of references, and test whether they differ from the first by more than chance."""
    # sacreBLEU's seed, 12345 or that of SACREBLEU_SEED in the environment, draws the same numbers in every run.
    tokenizer, note = find_tokenizer(target_lang, tokenize)
    if note:
        warnings.warn(note, stacklevel=2)
    for texts in systems.values():
        warn_of_tokenized(texts, tokenize)
    bleu = BLEU(tokenize=tokenizer, force=True, references=references)
    metrics = {"BLEU": bleu, "chrF": CHRF(references=references), "TER": TER(references=references)}
    groups: list[tuple[Any, Any]] = [(metrics, list(systems.items()))]
    if comet is not None:
        groups.append(({"COMET": SentenceMean()}, list(comet.items())))
    found: dict[str, dict[str, SystemScore]] = {name: {} for name in systems}
    signatures = {}
    for own, named in groups:
        tests: Any = [PairedTest(named, own, None, *test)() for test in (("bs", resamples), ("ar", trials))]
        (told, by_bootstrap), (_, by_randomization) = tests
        for title, (metric, signature) in zip(own, told.items(), strict=True):
            signature.update("ar", trials)
            signatures[title] = str(signature)
            for system, one, other in zip(systems, by_bootstrap[metric], by_randomization[metric], strict=True):
                # Of equal scores, sacreBLEU has p-values near 0: no resample differs by more than nothing.
                is_equal = one.score == by_bootstrap[metric][0].score
                p_values = (None, None) if is_equal else (one.p_value, other.p_value)
                found[system][title] = SystemScore(one.score, float(one.mean), float(one.ci), *p_values)
    return ComparedSystems(len(references[0]), found, signatures)


def read_comet(path: str, systems: Mapping[str, Sequence[str]]) -> dict[str, list[float]]:
    """The scores in percent of these translations, in a file that `comet-score --to_json` has written."""
    try:
        rows = read_json(path).values()
        scores = {tuple(one["mt"] for one in each): [100 * float(one["COMET"]) for one in each] for each in rows}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not what comet-score --to_json writes ({type(error).__name__}).") from error
    found = {}
    for name, texts in systems.items():
        own = scores.get(tuple(text.strip() for text in texts))  # COMET reads lines so
        if own is None or not all(map(math.isfinite, own)):
            raise ValueError(f"{path} has no scores of the translations in {name}: give comet-score this file, too.")
        found[name] = own
    return found


def page_of_differences(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None = None,
    comet: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """An HTML file that loads nothing: of each system beside the first, the sentences whose scores differ most."""
    metric, scores = "COMET", comet
    if scores is None:
        metric, chrf = "chrF", CHRF()
        scores = {
            name: [chrf.sentence_score(text, row).score for text, *row in zip(texts, *references, strict=True)]
            for name, texts in systems.items()
        }
    (first, own), *others = systems.items()
    body = ""
    for name, texts in others:
        gains = [new - old for old, new in zip(scores[first], scores[name], strict=True)]
        places = [place for place, (old, new) in enumerate(zip(own, texts, strict=True)) if old != new]
        body += (
            f"<h2>{escape(name)} beside {escape(first)}</h2><p>{len(places):,} of {len(texts):,} translations differ; "
            f"{metric}: {sum(gain > 0 for gain in gains):,} are better, {sum(gain < 0 for gain in gains):,} worse.</p>"
        )
        for place in sorted(places, key=lambda place: -abs(gains[place]))[:SHOWN]:
            rows = [] if sources is None else [("source", escape(sources[place]))]
            rows += [("reference", escape(reference[place])) for reference in references]
            for each, text in zip((first, name), _marked(own[place], texts[place]), strict=True):
                rows.append((f"{escape(each)}, {metric} {scores[each][place]:.1f}", text))
            cells = "".join(f'<tr><th scope="row">{key}</th><td dir="auto">{value}</td></tr>' for key, value in rows)
            body += f"<h3>Sentence {place + 1:,}: {gains[place]:+.1f}</h3><table>{cells}</table>"
    return PAGE.format(body)


def _marked(*texts: str) -> list[str]:
    """HTML of two texts, with marks around the words that differ; of those without spaces, around characters."""
    space = " " if any(" " in text for text in texts) else ""
    words = [text.split() if space else list(text) for text in texts]
    if max(map(len, words)) > LONGEST_MARKED:
        return [escape(text) for text in texts]
    parts: list[list[str]] = [[], []]
    for kind, *ends in SequenceMatcher(None, words[0], words[1]).get_opcodes():
        for side in (0, 1):
            if piece := escape(space.join(words[side][ends[2 * side] : ends[2 * side + 1]])):
                parts[side].append(piece if kind == "equal" else f"<mark>{piece}</mark>")
    return [space.join(part) for part in parts]
