"""The rows of `python -m benchmarks claims` as pictures and as a table."""

from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from .results import write_picture


Row = dict[str, Any]
# Variant -> what is drawn beside it in a panel of training losses.
PANELS = {
    "no residual connections": ("base", "no_residual"),
    "norms": ("base", "pre_norm", "batch_norm"),
    "without warm-up": ("base", "no_warmup", "pre_norm_no_warmup"),
    "embeddings without √d": ("base", "unscaled_embeddings"),
    "no positions": ("base", "no_positions"),
    "scores": ("base", "dot", "additive"),
}


def mean_of(values: Iterable[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for a single value."""
    found = list(values)
    return fmean(found), stdev(found) if len(found) > 1 else 0.0


def draw_lines(axes: Any, rows: list[Row], x: str, y: str, by: str, is_log: bool = True) -> None:
    """Means over the seeds with their deviations, a line for each value of `by`."""
    for style, name in zip(cycle(("o-", "s--", "^:", "v-.", "d-")), dict.fromkeys(row[by] for row in rows)):
        own = [row for row in rows if row[by] == name]
        places = sorted({row[x] for row in own})
        points = [mean_of(row[y] for row in own if row[x] == place) for place in places]
        means, deviations = zip(*points)
        axes.errorbar(places, means, deviations, fmt=style, capsize=2, markersize=4, label=str(name).replace("_", " "))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({row[x] for row in rows}), [str(place) for place in sorted({row[x] for row in rows})])
    axes.xaxis.set_minor_locator(NullLocator())
    if is_log:
        axes.set_yscale("log")
    axes.grid(alpha=0.25)


def panels(count: int, titles: Iterable[str], width: float = 3.9, height: float = 3.2) -> tuple[Figure, list[Any]]:
    """A figure with panels side by side, in rows of up to four, or of three if there are more."""
    columns = count if count <= 4 else 3
    rows = -(-count // columns)
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        found = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, title in zip(found, titles):
        axes.set_title(title)
    for axes in found[count:]:
        axes.set_axis_off()
    return figure, found[:count]


def draw_scores(rows: list[Row]) -> Figure:
    """Spread, entropy and derivative over d_k."""
    titles = ("deviation of the scores", "entropy of the weights, part of ln n", "norm of the softmax's derivative")
    figure, axes = panels(3, titles)
    for each, key in zip(axes, ("spread", "entropy", "derivative")):
        draw_lines(each, rows, "d_k", key, "score", is_log=key != "entropy")
        each.set_xlabel("d_k")
    axes[0].legend(frameon=False)
    return figure


def draw_cost(rows: list[Row]) -> Figure:
    """Operations and seconds over n and over d."""
    titles = ("operations, d = 512", "CPU seconds, d = 512", "operations, n = 512", "CPU seconds, n = 512")
    figure, axes = panels(4, titles, width=3.4)
    for each, (over, key) in zip(axes, [(over, key) for over in ("n", "d") for key in ("operations", "seconds")]):
        draw_lines(each, [row for row in rows if row["over"] == over], over, key, "part")
        each.set_xlabel(over)
    axes[0].legend(frameon=False)
    return figure


def draw_speed(rows: list[Row]) -> Figure:
    """Times as parts of the time of the first call."""
    groups = {
        "scores": ("scores",),
        "heads": ("heads",),
        "positions": ("Transformer", "LSTM"),
        "norms": ("norm", "layer with it"),
    }
    figure, axes = panels(4, [f"{name}: time" for name in groups], width=3.4)
    for each, names in zip(axes, groups.values()):
        named = [{**row, "call": f"{row['what']}, {row['call']}" if len(names) > 1 else row["call"]} for row in rows]
        draw_lines(each, [row for row in named if row["what"] in names], "size", "ratio", "call")
        each.set_xlabel("d" if "norm" in names else "n")
        each.legend(frameon=False, fontsize=7)
    return figure


def draw_chain(rows: list[Row]) -> Figure:
    """The longest chain over n."""
    figure, axes = panels(1, ["operations one after the other, in a training step"], width=4.6)
    draw_lines(axes[0], rows, "n", "chain", "model")
    axes[0].set_xlabel("tokens of source and of target")
    axes[0].legend(frameon=False)
    return figure


def draw_distance(rows: list[Row]) -> Figure:
    """Gradients over the distance."""
    figure, axes = panels(1, ["gradient by an earlier token, in parts of the nearest"], width=4.6)
    draw_lines(axes[0], rows, "distance", "gradient", "network")
    axes[0].set_xlabel("distance, tokens")
    axes[0].legend(frameon=False)
    return figure


def draw_statistics(rows: list[Row]) -> Figure:
    """How far statistics of batches are from the averages, and the loss with either."""
    sizes = [row for row in rows if row["batch"]]
    figure, axes = panels(2, ("distance from the averages of training", "loss, nats a token"))
    distances = [{**row, "of": f"{key}s", "distance": row[key]} for key in ("mean", "variance") for row in sizes]
    draw_lines(axes[0], distances, "batch", "distance", "of")
    draw_lines(axes[1], [{**row, "of": "statistics of the batch"} for row in sizes], "batch", "loss", "of")
    mean, _ = mean_of(row["loss"] for row in rows if not row["batch"])
    axes[1].axhline(mean, color="gray", linestyle=":", label="averages of training")
    for each in axes:
        each.set_xlabel("sequences of a batch")
        each.legend(frameon=False)
    return figure


def draw_training(rows: list[Row]) -> Figure:
    """Training losses, in a small panel for each claim."""
    known = {row["variant"] for row in rows}
    found = {title: [name for name in names if name in known] for title, names in PANELS.items()}
    drawn = {title: names for title, names in found.items() if len(names) > 1}
    figure, axes = panels(max(1, len(drawn)), drawn, width=3.2, height=2.6)
    for each, names in zip(axes, drawn.values()):
        for style, name in zip(("-", "--", ":"), names):
            curves = [row["training_loss"] for row in rows if row["variant"] == name]
            means = [fmean(step) for step in zip(*curves)]
            # Ten steps together: a single batch says little.
            smooth = [fmean(means[max(0, step - 9) : step + 1]) for step in range(len(means))]
            each.plot(range(1, len(smooth) + 1), smooth, style, label=name.replace("_", " "), linewidth=1.4)
        each.set_ylim(0.4, 3.2)
        each.set_xlabel("step")
        each.grid(alpha=0.25)
        each.legend(frameon=False, fontsize=8)
    figure.supylabel("training loss, nats a token", fontsize=9)
    return figure


DRAWINGS: dict[str, Callable[[list[Row]], Figure]] = {
    "training": draw_training,
    "scores": draw_scores,
    "cost": draw_cost,
    "speed": draw_speed,
    "chain": draw_chain,
    "distance": draw_distance,
    "statistics": draw_statistics,
}


def write_pictures(found: dict[str, list[Row]], folder: str) -> None:
    """A picture for each claim: `claims_NAME.png`."""
    for name, rows in found.items():
        write_picture(Path(folder) / f"claims_{name}.png", DRAWINGS[name](rows), dpi=110)


def table_of_training(rows: list[Row]) -> str:
    """Markdown: mean ± deviation of each variant."""
    columns: dict[str, tuple[str, Callable[[Row], float]]] = {
        "no error, %": ("{:.1f}", lambda row: 100 * row["exact"]),
        "loss": ("{:.3f}", lambda row: row["loss"]),
        "BLEU": ("{:.1f}", lambda row: row["bleu"]),
        "longer: no error, %": ("{:.1f}", lambda row: 100 * row["longer"]["exact"]),
        "longer: BLEU": ("{:.1f}", lambda row: row["longer"]["bleu"]),
    }
    lines = [["variant", "seeds", "parameters", *columns], ["---", *["---:"] * (len(columns) + 2)]]
    for name in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == name]
        cells = [
            " ± ".join(form.format(value) for value in mean_of(map(read, own))) for form, read in columns.values()
        ]
        lines.append([f"`{name}`", str(len(own)), f"{own[0]['parameters']:,}", *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
