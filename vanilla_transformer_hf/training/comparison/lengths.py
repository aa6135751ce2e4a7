"""Scores of a comparison over the length of the sources: which variants lose long sentences."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from ...evaluation.scores import read_predictions, score_translations
from .comparison import MeasuredRun
from .run import FINISHED


# Ranges of lengths, each with as many sentences as the others as far as lengths allow.
RANGES = 5


def split_by_length(rows: Sequence[tuple[str, str, str]]) -> dict[str, list[tuple[str, str, str]]]:
    """Rows (source, translation, reference) by words of the source, in ranges such as "3–5" of about equal size."""
    lengths = sorted(len(source.split()) for source, *_ in rows)
    ends = sorted({lengths[-(-len(lengths) * part // RANGES) - 1] for part in range(1, RANGES + 1)})
    found, before = {}, -1
    for end in ends:
        start = next(length for length in lengths if length > before)
        name = f"{start}–{end}" if start < end else f"{end}"
        found[name] = [row for row in rows if start <= len(row[0].split()) <= end]
        before = end
    return found


def lengths_table(runs: Sequence[MeasuredRun]) -> str:
    """In Markdown, chrF and exact match of each finished variant by length of the source, means over the seeds."""
    finished = [each for each in runs if each.result["status"] == FINISHED]
    role = next((role for role in ("test", "validation") if _files(finished, role)), None)
    if role is None:
        return ""
    tables = {}
    for variant in dict.fromkeys(each.run.variant for each in finished):
        own = [split_by_length(read_predictions(path)) for path in _files(finished, role, variant)]
        tables[variant] = {name: [parts[name] for parts in own] for name in (own[0] if own else {})}
    ranges = {name: len(parts[0]) for table in tables.values() for name, parts in table.items()}
    how = (finished[0].run.settings.get("target_lang"), finished[0].run.settings.get("bleu_tokenize"))
    head = ["words of the source", *ranges]
    lines = [head, ["---", *("---:" for _ in ranges)], ["sentences", *(f"{count:,}" for count in ranges.values())]]
    for variant, table in tables.items():
        scores = [
            [score_translations([row[1] for row in part], [row[2] for row in part], *how) for part in table[name]]
            for name in ranges
        ]
        for label, values in (
            ("chrF", [statistics.fmean(each.chrf for each in part) for part in scores]),
            ("exact match, %", [statistics.fmean(each.exact_match for each in part) for part in scores]),
        ):
            lines.append([f"`{variant}`, {label}", *(f"{value:.1f}" for value in values)])
    return f"The {role} text by the length of its sources.\n\n" + "".join(
        f"| {' | '.join(line)} |\n" for line in lines
    )


def _files(runs: Sequence[MeasuredRun], role: str, variant: str | None = None) -> list[Path]:
    paths = [each.run.place / f"predictions.{role}.tsv" for each in runs if variant in (None, each.run.variant)]
    return [path for path in paths if path.is_file()]
