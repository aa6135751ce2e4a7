"""A picture of how the time and memory of a search grow with batch size, beams and length."""

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


SCALES = {"sentences_per_second": "sentences per second", "peak_mib": "peak memory, MiB"}


def draw_lines(axes: Axes, rows: list[dict[str, Any]], grows: str, value: str) -> None:
    """Draw a line for each engine and dtype."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(f"{row['name']} {row['dtype']}", []).append((row[grows], row[value]))
    for name, points in lines.items():
        axes.plot(
            *zip(*sorted(points)), marker="o", markersize=3, label=name, linestyle="-" if "ours" in name else "--"
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sorted({row[grows] for row in rows}))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid(alpha=0.25)


def draw_growth(found: list[dict[str, Any]], sections: dict[str, tuple[str, str]]) -> Figure:
    """Draw a column of two panels, speed and memory, for each measured model, section and search."""
    # `sections`: section -> the quantity that grows, its key in a measurement and its name.
    columns: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in found:
        if row["section"] in sections:
            search = "" if row["section"] == "beam" else ", greedy" if row["beams"] == 1 else f", beam {row['beams']}"
            columns.setdefault((row["model"], row["section"], search), []).append(row)
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(1 + 3.4 * len(columns), 6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, len(columns), sharex="col", squeeze=False)
    for column, ((model, section, search), rows) in enumerate(columns.items()):
        grows, name = sections[section]
        for line, value in enumerate(SCALES):
            draw_lines(axes[line, column], rows, grows, value)
        axes[0, column].set_title(f"{model}{search}")
        axes[1, column].set_xlabel(name)
    for line, label in enumerate(SCALES.values()):
        axes[line, 0].set_ylabel(label)
    axes[0, 0].legend(fontsize="small")
    return figure
