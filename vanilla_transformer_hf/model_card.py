"""Model cards and training curves, filled from measured values only; what nobody stated is listed as not stated."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
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
    pairs: int
    source_lang: str | None
    target_lang: str | None
    license: str | None
    example: str | None
    settings: dict[str, Any]
    device: str
    minutes: float | None
    log_history: list[dict[str, float]]
    scored: list[ScoredSet]


def plot_curves(log_history: list[dict[str, float]], path: str | os.PathLike):
    """Draw training and validation loss, and the validation scores, over the steps of a Trainer's log as PNG."""
    losses = {"training (labels smoothed)": "loss", "validation (not smoothed)": "eval_loss"}
    scores = {label: f"eval_{name}" for name, label in METRICS.items()}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2)
    for axis, curves, title in zip(axes, (losses, scores), ("loss (nats per token)", "scores (validation)")):
        for label, key in curves.items():
            points = [(entry["step"], entry[key]) for entry in log_history if key in entry]
            if points:
                axis.plot(*zip(*points), label=label, marker="." if len(points) < 50 else None)
        axis.set_xlabel("step")
        axis.set_title(title)
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()
    axes[1].set_ylim(0, 100)
    figure.savefig(path, format="png", dpi=120)


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
