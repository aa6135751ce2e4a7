"""Training curves: loss, learning rate and scores over the steps of a Trainer's log, as a picture."""

import os
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ...evaluation.scores import METRICS


# Colours that are distinguishable with every kind of colour vision (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#666666"


def _points(log_history: list[dict[str, float]], key: str) -> dict[int, float]:
    """Step -> value of what the Trainer logged as `key`."""
    return {int(entry["step"]): entry[key] for entry in log_history if key in entry}


def _draw(axis: Axes, points: dict[int, float], label: str, color: str) -> None:
    if points:
        marker = "o" if len(points) <= 40 else None
        axis.plot(list(points), list(points.values()), label=label, color=color, marker=marker, markersize=3)


def _mark_best(axis: Axes, points: dict[int, float], step: int | None, text: str, color: str) -> None:
    if step in points:
        label = f"best checkpoint: {text.format(points[step])}"
        axis.axvline(step, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        axis.plot(step, points[step], "*", markersize=14, color=color, markeredgecolor="white", label=label, zorder=3)


def draw_curves(
    log_history: list[dict[str, float]],
    best_step: int | None = None,
    published: float | None = None,
    epochs: float | None = None,
) -> Figure:
    """Loss, learning rate and validation scores over the steps of a Trainer's log."""
    # `best_step` is marked; if not given, that with the highest BLEU. `published` is BLEU of the finished model, drawn
    # as a line: it may be an average of checkpoints, decoded with more beams than during training.
    bleu = _points(log_history, "eval_bleu")
    if best_step is None and bleu:
        best_step = max(bleu, key=lambda step: (bleu[step], step))
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 5.4) if bleu else (5.4, 5.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, 2 if bleu else 1, sharex=True, squeeze=False, height_ratios=(2.4, 1))
    training, validation, axis = _points(log_history, "loss"), _points(log_history, "eval_loss"), axes[0, 0]
    _draw(axis, training, "training (labels smoothed)", GREY)
    _draw(axis, validation, "validation (not smoothed)", BLUE)
    _mark_best(axis, validation, best_step, "{:.3f}", BLUE)
    axis.set_title("Loss, nats per token", loc="left")
    if losses := [*training.values(), *validation.values()]:
        # The first steps of an untrained model would leave the rest a flat line.
        axis.set_ylim(min(losses) - 0.1, sorted(losses)[int(0.97 * (len(losses) - 1))] + 0.1)
        axis.legend(edgecolor="none", loc="upper right")
    rates = _points(log_history, "learning_rate")
    axes[1, 0].fill_between(list(rates), list(rates.values()), color=GREY, alpha=0.2, linewidth=0)
    axes[1, 0].plot(list(rates), list(rates.values()), color=GREY)
    axes[1, 0].set_ylim(bottom=0)
    axes[1, 0].set_title("Learning rate", loc="left")
    if bleu:
        axis, others = axes[:, 1]
        _draw(axis, bleu, "during training", ORANGE)
        _mark_best(axis, bleu, best_step, "{:.2f}", ORANGE)
        if published is not None:
            axis.axhline(published, color=ORANGE, linestyle="--", label=f"published model: {published:.2f}")
        axis.set_title("BLEU, validation", loc="left")
        axis.margins(y=0.08)
        if not any(bleu.values()):
            axis.set_ylim(0, 1)
        axis.legend(edgecolor="none", loc="lower right")
        for (name, label), color in zip(list(METRICS.items())[1:], (GREEN, PURPLE)):
            _draw(others, _points(log_history, f"eval_{name}"), label, color)
        others.set_title("chrF, and exact matches in %", loc="left")
        others.legend(edgecolor="none", loc="center right")
    if epochs is None and log_history:
        epochs = log_history[-1].get("epoch")
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_formatter("{x:,.0f}")
    for axis in axes[1]:
        axis.set_xlabel(f"step ({epochs:.1f} epochs)" if epochs else "step")
    return figure


def plot_curves(log_history: list[dict[str, float]], path: str | os.PathLike[str], **marks: Any) -> None:
    """Write the picture of `draw_curves` as PNG."""
    draw_curves(log_history, **marks).savefig(path, format="png", dpi=120)
