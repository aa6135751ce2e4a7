"""Model cards and training curves, filled from measured values only; what nobody stated is listed as not stated."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from transformers import PreTrainedModel

from .evaluation import Scores


TEMPLATE = Path(__file__).with_name("model_card_template.md")
CURVES_FILE = "training_curves.png"

# Where the data lay on the machine that trained says nothing to a reader of the card.
PRIVATE_SETTINGS = ("_source", "_target", "_dir", "_path")

HOST_FIELDS = ("tie_word_embeddings", "is_encoder_decoder", "use_cache")

METRICS = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact match"}


@dataclass
class ScoredSet:
    """A held-out text, its scores, and its (source, translation, reference) rows in the order of the text."""

    role: str
    scores: Scores
    rows: list[tuple[str, str, str]]


@dataclass
class TrainingFacts:
    """
    What a training run knows about itself.

    `settings` is what differs from the defaults, as a recipe says it; `minutes` of training on `device` are None for a
    run that was interrupted, since only its last part was timed.
    """

    name: str
    corpus: str
    pairs: int | None  # of a stream, nobody has counted them
    source_lang: str | None
    target_lang: str | None
    license: str | None
    example: str | None
    settings: dict[str, Any]
    device: str
    minutes: float | None
    log_history: list[dict[str, float]]
    scored: list[ScoredSet]


# Colours that stay apart for every kind of colour vision (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#666666"


def _points(log_history: list[dict[str, float]], key: str) -> dict[int, float]:
    """Step -> value of what the Trainer logged as `key`."""
    return {int(entry["step"]): entry[key] for entry in log_history if key in entry}


def _draw(axis: Axes, points: dict[int, float], label: str, color: str):
    if points:
        marker = "o" if len(points) <= 40 else None
        axis.plot(list(points), list(points.values()), label=label, color=color, marker=marker, markersize=3)


def _mark_best(axis: Axes, points: dict[int, float], step: int | None, text: str, color: str):
    if step in points:
        label = f"best checkpoint: {text.format(points[step])}"
        axis.axvline(step, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        axis.plot(step, points[step], "*", markersize=14, color=color, markeredgecolor="white", label=label, zorder=3)


def _draw_losses(axis: Axes, log_history: list[dict[str, float]], best_step: int | None):
    training, validation = _points(log_history, "loss"), _points(log_history, "eval_loss")
    _draw(axis, training, "training (labels smoothed)", GREY)
    _draw(axis, validation, "validation (not smoothed)", BLUE)
    _mark_best(axis, validation, best_step, "{:.3f}", BLUE)
    axis.set_title("Loss, nats per token", loc="left")
    if losses := [*training.values(), *validation.values()]:
        # The first steps of an untrained model would leave the rest a flat line.
        axis.set_ylim(min(losses) - 0.1, sorted(losses)[int(0.97 * (len(losses) - 1))] + 0.1)
        axis.legend(edgecolor="none", loc="upper right")


def _draw_learning_rate(axis: Axes, log_history: list[dict[str, float]]):
    rates = _points(log_history, "learning_rate")
    axis.fill_between(list(rates), list(rates.values()), color=GREY, alpha=0.2, linewidth=0)
    axis.plot(list(rates), list(rates.values()), color=GREY)
    axis.set_ylim(bottom=0)
    axis.set_title("Learning rate", loc="left")


def _draw_scores(
    bleu: Axes,
    others: Axes,
    log_history: list[dict[str, float]],
    best_step: int | None,
    published: float | None,
):
    points = _points(log_history, "eval_bleu")
    _draw(bleu, points, "during training", ORANGE)
    _mark_best(bleu, points, best_step, "{:.2f}", ORANGE)
    if published is not None:
        bleu.axhline(published, color=ORANGE, linestyle="--", label=f"published model: {published:.2f}")
    bleu.set_title("BLEU, validation", loc="left")
    bleu.margins(y=0.08)
    bleu.legend(edgecolor="none", loc="lower right")
    for (name, label), color in zip(list(METRICS.items())[1:], (GREEN, PURPLE)):
        _draw(others, _points(log_history, f"eval_{name}"), label, color)
    others.set_title("chrF, and exact matches in %", loc="left")
    others.legend(edgecolor="none", loc="center right")


def draw_curves(
    log_history: list[dict[str, float]], best_step: int | None = None, published: float | None = None
) -> Figure:
    """
    Loss, learning rate and validation scores over the steps of a Trainer's log.

    Args:
        best_step: Step of the best checkpoint, which is marked; if not given, that with the highest BLEU.
        published: BLEU of the finished model on the validation text, drawn as a line: it may be an average of
            checkpoints, and decoded with more beams than were used during training.
    """
    bleu = _points(log_history, "eval_bleu")
    if best_step is None and bleu:
        best_step = max(bleu, key=lambda step: (bleu[step], step))
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 5.4) if bleu else (5.4, 5.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, 2 if bleu else 1, sharex=True, squeeze=False, height_ratios=(2.4, 1))
    _draw_losses(axes[0, 0], log_history, best_step)
    _draw_learning_rate(axes[1, 0], log_history)
    if bleu:
        _draw_scores(axes[0, 1], axes[1, 1], log_history, best_step, published)
    epochs = log_history[-1].get("epoch") if log_history else None
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_formatter("{x:,.0f}")
    for axis in axes[1]:
        axis.set_xlabel(f"step ({epochs:.1f} epochs)" if epochs else "step")
    return figure


def plot_curves(log_history: list[dict[str, float]], path: str | os.PathLike, **marks: Any):
    """Write the picture of `draw_curves` as PNG."""
    draw_curves(log_history, **marks).savefig(path, format="png", dpi=120)


def _evaluation_results(facts: TrainingFacts) -> list[EvalResult]:
    pair = "-".join(filter(None, (facts.source_lang, facts.target_lang)))
    results = []
    for part in facts.scored:
        signatures = {"bleu": part.scores.bleu_signature, "chrf": part.scores.chrf_signature}
        for name, label in METRICS.items():
            results.append(
                EvalResult(
                    task_type="translation",
                    task_name=f"Translation {pair}".strip(),
                    dataset_type=facts.corpus,
                    dataset_name=facts.corpus,
                    dataset_split=part.role,
                    metric_type=name,
                    metric_name=label,
                    metric_value=round(getattr(part.scores, name), 2),
                    metric_args={"signature": signatures[name]} if name in signatures else None,
                )
            )
    return results


def make_card(facts: TrainingFacts, model: PreTrainedModel) -> ModelCard:
    """The model card of a model, from what its training run measured and was told."""
    config = model.config
    languages = [language for language in (facts.source_lang, facts.target_lang) if language]
    stated = {
        "Licence: whoever publishes this model has to choose one that its training data allows.": facts.license,
        "Languages: no language codes were given.": languages,
    }
    data = ModelCardData(
        language=languages or None,
        license=facts.license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=[config.model_type],
        metrics=list(METRICS) if facts.scored else None,
        model_name=facts.name,
        eval_results=_evaluation_results(facts) or None,
    )
    last = facts.log_history[-1] if facts.log_history else {}
    sizes = {name: getattr(config, name) for name in type(config).__annotations__ if not name.endswith("_id")}
    return ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        facts=facts,
        direction=" to ".join(languages) if len(languages) == 2 else "text",
        parameters=model.num_parameters(),
        generation=model.generation_config,
        example=json.dumps(facts.example or "...", ensure_ascii=False),
        architecture={name: value for name, value in sizes.items() if value is not None and name not in HOST_FIELDS},
        steps=last.get("step", 0),
        epochs=last.get("epoch", 0),
        settings={name: value for name, value in facts.settings.items() if not name.endswith(PRIVATE_SETTINGS)},
        curves=CURVES_FILE,
        missing=[text for text, value in stated.items() if not value],
    )
