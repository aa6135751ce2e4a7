"""Publishing from the Trainer: model cards, curves and uploads with the facts of the current step."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import HubStrategy
from transformers.utils import logging

from ...publishing.hub import Published, one_line, publish_folder
from ...publishing.model_card import CURVES_FILE, CardFacts, write_card
from ..checkpoints.files import resumable_files
from . import curves


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
        curves.plot_curves(log, path, best_step=self.state.best_global_step, published=bleu, epochs=epochs)

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
        """
        Publish the model as `hub.publish_folder` does, with its card and curves, and wait until it is there.

        Args:
            kwargs: Facts for the card, as fields of `CardFacts` or as transformers calls them (`finetuned_from`).

        Returns:
            Where it is (`hub.Published`); None on other processes than the first.

        Raises:
            PublishError: The upload failed.
            TypeError: A fact has an unknown name.
        """
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
