"""Publishing from the Trainer: model cards, curves of the training as a picture, and uploads."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import HubStrategy
from transformers.utils import logging

from ...evaluation.scores import METRICS
from ...publishing.hub import Published, one_line, publish_folder
from ...publishing.model_card import CURVES_FILE, CardFacts, write_card
from ..checkpoints.files import resumable_files


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


if TYPE_CHECKING:  # what it is mixed into
    Host = Seq2SeqTrainer
else:
    Host = object

logger = logging.get_logger(__name__)

# Names of facts in transformers' `push_to_hub` -> our names; None: taken from the tokenizer and the model.
HOST_FACTS = {
    **{"finetuned_from": "base_model", "dataset": "corpus", "dataset_tags": "datasets", "model_name": "name"},
    **dict.fromkeys(("tasks", "tags", "language", "dataset_args")),
}


def _stated_facts(arguments: dict[str, Any]) -> dict[str, Any]:
    """Facts for a card under our names; `datasets` becomes a list, because transformers accepts a single name."""
    named = {HOST_FACTS.get(name, name): value for name, value in arguments.items() if value is not None}
    stated = {name: value for name, value in named.items() if name is not None}
    if isinstance(stated.get("datasets"), str):
        stated["datasets"] = [stated["datasets"]]
    return stated


class PublishingMixin(Host):
    """Cards, curves and uploads of a Trainer; the cards contain its measurements and `facts`."""

    facts: CardFacts

    def current_facts(self) -> CardFacts:
        """The facts about the model at this step, for its card."""
        is_stream = isinstance(self.train_dataset, datasets.IterableDataset)  # transformers does not count its epochs
        epochs = 0.0 if is_stream else float(self.state.epoch or 0)
        return replace(self.facts, steps=self.state.global_step, epochs=epochs)

    def plot_curves(self, path: str | os.PathLike[str]) -> None:
        """Write the picture of this run's losses and scores, and of the model's score where it has been measured."""
        scores = [part.scores.bleu for part in self.facts.scored if part.role.partition(".")[0] == "validation"]
        bleu = sum(scores) / len(scores) if scores else None  # of several texts, the curve has their mean, too
        log = self.state.log_history
        epochs = self.current_facts().epochs
        plot_curves(log, path, best_step=self.state.best_global_step, published=bleu, epochs=epochs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write card and curves, with facts as in `push_to_hub`, beside what `save_model` has written."""
        if args:
            raise TypeError(f"create_model_card takes facts by their names, such as license, and not {args!r}")
        folder = Path(str(self.args.output_dir))
        if self.is_world_process_zero():
            self.plot_curves(folder / CURVES_FILE)
            write_card(replace(self.current_facts(), **_stated_facts(kwargs)), folder)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository, or find it; raises `PublishError` if neither can be done."""
        with one_line(str(self.args.hub_model_id), token or self.args.hub_token):
            super().init_hf_repo(token=token, private=private)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Publish the model as `hub.publish_folder` does, with card and curves; None in processes but the first."""
        # `kwargs` are facts for the card, as fields of `CardFacts` or as transformers calls them (`finetuned_from`).
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        stated = _stated_facts(kwargs)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        with tempfile.TemporaryDirectory() as folder:
            self.save_model(folder, _internal_call=True)
            if not self.is_world_process_zero():
                return None
            return self.upload(folder, commit_message, token=token, revision=revision, **stated)

    def upload(
        self, folder: str | os.PathLike[str], message: str | None, *, token: str | None = None, **options: Any
    ) -> Published:
        """Upload a folder of this Trainer, with the card of this step; `options` are those of `hub.publish_folder`."""
        with tempfile.TemporaryDirectory() as place:
            picture = Path(place, CURVES_FILE)
            self.plot_curves(picture)
            curves = picture.read_bytes() if picture.is_file() else b""
        return publish_folder(
            folder,
            str(self.hub_model_id),
            message=message or "Upload model",
            token=token or self.args.hub_token,
            revision=options.pop("revision", None) or self.args.hub_revision,
            facts=self.current_facts(),
            curves=curves,
            say=logger.info,
            **options,
        )

    def upload_checkpoint(self, folder: Path) -> None:
        """Publish a complete checkpoint and, depending on `hub_strategy`, the files needed to continue from it."""
        strategy = HubStrategy(self.args.hub_strategy)
        if strategy == HubStrategy.END or not self.is_world_process_zero():
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        places = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: folder.name}
        beside = resumable_files(folder, places[strategy]) if strategy in places else {}
        try:
            self.upload(folder, f"Training in progress, step {self.state.global_step}", beside=beside)
        except (OSError, ValueError) as error:
            logger.warning(f"{error} Training continues; the next checkpoint will be published again.")
