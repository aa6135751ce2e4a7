"""
The end of a run: its model is written first, and nothing that follows (scores, card, curves, upload) can cost it. What
has failed or was stopped is made by the same command later; scores that are there already are kept.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list

from ..common.checksums import OPENED, SUMS_FILE, digest, write_checksums
from ..common.files import new_file, new_files, open_output
from ..evaluation.scores import Scores, read_predictions, write_predictions
from ..model.layers.base_model import remove_older_weights
from ..publishing.model_card import CARD_FILE, CURVES_FILE, FACTS_FILE, CardFacts, is_edited, write_card
from .build import say
from .checkpoints.resume import RECORD_FILE
from .trainer.checkpointing import CheckpointingTrainer


# In the folder of the checkpoints: the scores of the written model, of those texts that are scored already.
SCORES_FILE = "final_scores.json"


class UnfinishedRunError(OSError):
    """The model of a run is trained and written, but something that follows has failed."""


class LaterParts:
    """
    The parts of a run after its model is written: one that fails does not keep the others from running.

    Args:
        folder: The folder of the model.
        processes: Processes of the run. With several, the first failure ends the run: the others would wait.
    """

    def __init__(self, folder: Path, processes: int):
        self.folder, self.processes = folder, processes
        self.failed: dict[str, Exception] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """
        Keep the error of what is done in this context; `name` is a participle, such as "published".

        Raises:
            UnfinishedRunError: With several processes, instead of the error.
        """
        try:
            yield
        except Exception as error:
            self.failed.setdefault(name, error)
            if self.processes > 1:
                self.tell()

    def tell(self) -> None:
        """
        Raises:
            UnfinishedRunError: A part has failed; the message names all of them with their errors.
        """
        if not self.failed:
            return
        told = "; nor ".join(f"{name}: {_in_words(error)}" for name, error in self.failed.items())
        raise UnfinishedRunError(
            f"{self.folder} is complete but was not {told.rstrip('.')}. Its weights, config and tokenizer are written "
            "and open; the same command continues with what is missing."
        ) from next(iter(self.failed.values()))


def _in_words(error: Exception) -> str:
    kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())


def write_model(
    folder: Path,
    trainer: CheckpointingTrainer,
    weights: dict[str, torch.Tensor] | None = None,
) -> None:
    """
    Write weights, configs, code and tokenizer of a trained model; files are renamed when all are complete. Predictions
    and curves of another model that was there are removed.

    Call it in the main process only. `weights` are the gathered weights of a sharded model.
    """
    before = sums_of_model(folder)
    with new_files(folder) as unfinished:
        # The Trainer switches the cache off in the config, where generation looks for it.
        trainer.model.config.use_cache = True
        trainer.model.save_pretrained(unfinished, state_dict=weights)
        trainer.processing_class.save_pretrained(unfinished)
        written = {path.name for path in unfinished.iterdir()}
    remove_older_weights(folder, written)
    write_checksums(folder)
    if before != sums_of_model(folder):
        for path in (folder / CURVES_FILE, *folder.glob("predictions.*.tsv")):
            path.unlink(missing_ok=True)


def write_final_card(folder: Path, trainer: CheckpointingTrainer, facts: CardFacts, is_last: bool = True) -> None:
    """
    Write the card of a model that is written already, and the checksums of all files; an edited card is kept.

    `is_last`: not to be written again, when more is known.
    """
    try:
        if not is_edited(folder):
            # A process that is killed here leaves no checksums rather than wrong ones.
            (folder / SUMS_FILE).unlink(missing_ok=True)
            write_card(facts, folder)
        elif is_last:
            say(trainer.args, f"{folder / CARD_FILE} is kept, because it was edited.")
    finally:
        write_checksums(folder)


def sums_of_model(folder: Path) -> dict[str, str]:
    """File -> SHA-256, of those files that a model and its tokenizer are opened from."""
    paths = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return {path.name: digest(path) for path in paths if path.name.endswith(OPENED) and path.name != FACTS_FILE}


class FinalScores:
    """
    The scores of a written model that an earlier, stopped call of the same run has measured.

    They are those of this model if its files, the settings and the data of the run are the same, byte by byte.

    Args:
        folder: The folder of the model.
        checkpoints: That of the run's checkpoints and its record.
        keep: Whether to keep earlier scores; otherwise everything is scored again.
    """

    def __init__(self, folder: Path, checkpoints: Path, keep: bool):
        self.folder, self.path = folder, checkpoints / SCORES_FILE
        self.model = {**sums_of_model(folder), RECORD_FILE: digest(checkpoints / RECORD_FILE)}
        self.scores: dict[str, Any] = self._read() if keep else {}

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self.path.read_bytes())
            return dict(known["scores"]) if known["model"] == self.model else {}
        except (OSError, ValueError, TypeError, KeyError):  # there are none, or they are damaged
            return {}

    def predictions(self, role: str) -> Path:
        """The file of the translations of a text."""
        return self.folder / f"predictions.{role}.tsv"

    def find(self, role: str) -> tuple[Scores, list[tuple[str, str, str]]] | None:
        """The scores and the (source, translation, reference) rows of a text, if both are there."""
        path = self.predictions(role)
        try:
            known = self.scores[role]
            if digest(path) != known["predictions_sha256"]:
                return None
            return Scores(**known["scores"]), read_predictions(path)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def add(self, role: str, scores: Scores, rows: list[tuple[str, str, str]]) -> None:
        """Write the translations and the scores of a text."""
        path = self.predictions(role)
        with new_file(path) as partial:
            write_predictions(partial, rows)
        self.scores[role] = {"scores": asdict(scores), "predictions_sha256": digest(path)}
        with open_output(self.path) as file:
            file.write(json.dumps({"model": self.model, "scores": self.scores}, indent=1).encode())


def of_main_process(value: Any) -> Any:
    """The main process's value in every process: others may not see its files."""
    values = [value]
    broadcast_object_list(values)
    return values[0]
