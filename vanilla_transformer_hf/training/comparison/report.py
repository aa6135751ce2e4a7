"""The report of a comparison: a table in Markdown and CSV, a picture of the curves, scores by length of sources."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ...common.files import open_output, write_text
from ...evaluation.scores import read_predictions, score_translations
from ...evaluation.systems import compare_systems
from .comparison import MeasuredRun, PlannedRun
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


def read_translations(
    runs: Sequence[MeasuredRun],
) -> tuple[str, dict[PlannedRun, list[tuple[str, str, str]]], tuple[str | None, str | None]]:
    """The text that finished runs have translated, test or validation, its rows by run, and how BLEU reads it."""
    finished = [each.run for each in runs if each.result["status"] == FINISHED]
    for role in ("test", "validation"):
        files = {run: run.place / f"predictions.{role}.tsv" for run in finished}
        if found := {run: read_predictions(path) for run, path in files.items() if path.is_file()}:
            get = finished[0].settings.get
            return role, found, (get("source_lang" if get("reverse") else "target_lang"), get("bleu_tokenize"))
    return "", {}, (None, None)


def differences_table(runs: Sequence[MeasuredRun]) -> str:
    """Scores of the variants' translations, each with the first seed, and which differ from the first variant's."""
    role, found, how = read_translations(runs)
    one_seed = {run.variant: rows for run, rows in found.items() if run.seed == min(run.seed for run in found)}
    if len(one_seed) < 2:
        return ""
    references = [row[2] for row in next(iter(one_seed.values()))]
    systems = {variant: [row[1] for row in rows] for variant, rows in one_seed.items()}
    compared = compare_systems(systems, [references], *how)
    return f"The {role} text, one seed; the chance of seeds is in the deviations of table.md.\n\n{compared}"


def lengths_table(runs: Sequence[MeasuredRun]) -> str:
    """In Markdown, chrF and exact match of each finished variant by length of the source, means over the seeds."""
    role, found, how = read_translations(runs)
    if not found:
        return ""
    tables = {}
    for variant in dict.fromkeys(run.variant for run in found):
        own = [split_by_length(rows) for run, rows in found.items() if run.variant == variant]
        tables[variant] = {name: [parts[name] for parts in own] for name in own[0]}
    ranges = {name: len(parts[0]) for table in tables.values() for name, parts in table.items()}
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
    shown = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"The {role} text by the length of its sources.\n\n{shown}"


@dataclass(frozen=True)
class Column:
    """A column of the table: key of a result, heading, how numbers are written, and whether with their deviation."""

    key: str
    heading: str
    text: str
    deviates: bool = False


COLUMNS = [
    Column("parameters", "parameters", "{:,.0f}"),
    Column("steps", "steps", "{:,.0f}"),
    Column("steps_per_second", "steps/s", "{:.2f}"),
    Column("cpu_ms_per_step", "CPU ms/step", "{:,.1f}"),
    Column("peak_mib", "peak MiB", "{:,.0f}"),
    Column("validation_loss", "validation loss", "{:.3f}", True),
    Column("validation_bleu", "BLEU", "{:.2f}", True),
    Column("validation_chrf", "chrF", "{:.2f}", True),
    Column("validation_exact_match", "exact match, %", "{:.1f}", True),
    Column("test_loss", "test loss", "{:.3f}", True),
    Column("test_bleu", "test BLEU", "{:.2f}", True),
    Column("test_chrf", "test chrF", "{:.2f}", True),
    Column("test_exact_match", "test exact match, %", "{:.1f}", True),
    Column("generated_tokens_per_second", "generated tokens/s", "{:,.0f}"),
]
# Line styles beside ten colours, so that twenty variants can be told apart.
STYLES = ["-", "--", ":", "-."]


@dataclass(frozen=True)
class Row:
    """A variant in the table: values by key, and notes about runs that did not finish."""

    # Losses and scores are those of its finished runs; sizes and speeds those of all.

    variant: str
    values: dict[str, list[float]]
    seeds: list[int]
    note: str

    def mean(self, key: str) -> float | None:
        return statistics.fmean(self.values[key]) if self.values[key] else None

    def deviation(self, key: str) -> float | None:
        """The sample standard deviation over the seeds, of two or more."""
        return statistics.stdev(self.values[key]) if len(self.values[key]) > 1 else None


def make_rows(runs: Sequence[MeasuredRun]) -> list[Row]:
    """One row for each variant, in their order."""
    rows = []
    for name in dict.fromkeys(each.run.variant for each in runs):
        own = [each for each in runs if each.run.variant == name]
        good = [each for each in own if each.result["status"] == FINISHED]
        values = {
            column.key: [
                each.result[column.key]
                for each in (good if column.deviates else own)
                if each.result.get(column.key) is not None
            ]
            for column in COLUMNS
        }
        bad = [each for each in own if each not in good]
        said: dict[str, list[str]] = {}
        for each in bad:
            said.setdefault(f"{each.result['status']}: {each.result['error']}", []).append(str(each.run.seed))
        notes = [text if not good and len(said) == 1 else f"seed {', '.join(at)} {text}" for text, at in said.items()]
        rows.append(Row(name, values, [each.run.seed for each in good], "; ".join(notes)))
    return rows


def markdown_table(rows: Sequence[Row], about: str = "") -> str:
    """The table in Markdown: columns that have values, mean ± sample standard deviation over the seeds."""
    columns = [column for column in COLUMNS if any(row.values[column.key] for row in rows)]
    if len({value for row in rows for value in row.values["steps"]}) < 2:
        columns = [column for column in columns if column.key != "steps"]
    noted = any(row.note for row in rows)
    head = ["variant", *(column.heading for column in columns), *(["note"] if noted else [])]
    lines = [head, ["---", *("---:" for _ in columns), *(["---"] if noted else [])]]
    for row in rows:
        cells = [f"`{row.variant}`"]
        for column in columns:
            mean, deviation = row.mean(column.key), row.deviation(column.key)
            text = "–" if mean is None else column.text.format(mean)
            is_told = column.deviates and deviation is not None
            cells.append(f"{text} ± {column.text.format(deviation)}" if is_told else text)
        lines.append([*cells, *([" ".join(row.note.split()).replace("|", "\\|")] if noted else [])])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{about}\n\n{table}" if about else table


def csv_table(rows: Sequence[Row]) -> str:
    """The table as CSV, with all digits: for each variant the finished seeds, means and deviations of the scores."""
    head = ["variant", "seeds"]
    for column in COLUMNS:
        head += [column.key, *([f"{column.key}_deviation"] if column.deviates else [])]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*head, "note"])
    for row in rows:
        cells: list[Any] = [row.variant, " ".join(map(str, row.seeds))]
        for column in COLUMNS:
            cells += [row.mean(column.key), *([row.deviation(column.key)] if column.deviates else [])]
        writer.writerow([*cells, row.note])
    return file.getvalue()


def draw_comparison(runs: Sequence[MeasuredRun]) -> Figure:
    """The validation loss, without one the training loss, of every variant over steps and seconds of training."""
    # It is the mean over the seeds; failed runs have no curve. For runs on a CPU the seconds are CPU time, which other
    # work on the machine changes less than wall-clock time.
    with_curves = [each for each in runs if "curves" in each.result]
    is_validated = any(each.result["curves"]["validation_loss"] for each in with_curves)
    kind = "validation_loss" if is_validated else "training_loss"
    on_cpu = all(each.result["device"] == "cpu" for each in with_curves)
    names = list(dict.fromkeys(each.run.variant for each in runs))
    looks = dict(zip(names, cycle(product(STYLES, matplotlib.colormaps["tab10"].colors))))  # type: ignore[attr-defined]
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, max(4.2, 1.2 + 0.22 * len(names))), layout="constrained")
        FigureCanvasAgg(figure)
        by_step, by_time = figure.subplots(1, 2, sharey=True)
    lasts, seen = list[float](), list[float]()
    for name in names:
        own = [each.result for each in with_curves if each.run.variant == name and each.result["curves"][kind]]
        if not own:
            continue
        curves = [dict(map(tuple, result["curves"][kind])) for result in own]
        steps = [step for step in curves[0] if all(step in curve for curve in curves)]
        points = {step: statistics.fmean(curve[step] for curve in curves) for step in steps}
        paces = [1e-3 * result["cpu_ms_per_step"] if on_cpu else 1 / result["steps_per_second"] for result in own]
        diverged = "" if all(result["status"] == FINISHED for result in own) else " (diverged)"
        style, color = looks[name]
        look: dict[str, Any] = {"linestyle": style, "color": color, "linewidth": 1.4, "marker": "o", "markersize": 2.5}
        by_step.plot(list(points), list(points.values()), label=f"{name}{diverged}", **look)
        by_time.plot([step * statistics.fmean(paces) for step in points], list(points.values()), **look)
        lasts += list(points.values())[-1:]
        seen += points.values()
    by_step.set_ylabel(f"{kind.replace('_', ' ')}, nats per token")
    by_step.set_xlabel("step")
    by_time.set_xlabel(f"{'CPU ' if on_cpu else ''}seconds of training, without evaluations")
    if seen:
        # The first steps of untrained models would leave the rest a flat line.
        room = 0.05 * (max(lasts) - min(seen)) + 0.02
        by_step.set_ylim(min(seen) - room, max(max(lasts), sorted(seen)[int(0.85 * (len(seen) - 1))]) + room)
        figure.legend(*by_step.get_legend_handles_labels(), loc="outside right center", edgecolor="none", fontsize=8)
    for axis in (by_step, by_time):
        axis.grid(alpha=0.25)
        axis.set_xlim(left=0)
    return figure


def write_report(runs: Sequence[MeasuredRun], output: Path, about: str = "") -> str:
    """Write tables and curves and, if texts were translated, lengths.md and differences.md; return the table."""
    rows = make_rows(runs)
    texts = {"table.md": markdown_table(rows, about), "table.csv": csv_table(rows)}
    texts |= {"lengths.md": lengths_table(runs), "differences.md": differences_table(runs)}
    for name, text in texts.items():
        if text:
            write_text(output / name, text)
    with open_output(output / "curves.png") as file:
        draw_comparison(runs).savefig(file, format="png", dpi=110)
    return texts["table.md"]
