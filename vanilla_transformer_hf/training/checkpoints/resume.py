"""Resuming: `find_start` finds where a run continues and what it has changed; `prepare_folder` changes its folder."""

import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from filelock import Timeout
from transformers import SchedulerType, TrainingArguments

from ...common.files import UNFINISHED, lock_path
from ...publishing.model_card import EMISSIONS_FILE
from .files import find_damage, list_checkpoints, step_of
from .record import DATA, Changes, RunRecord, value_in_words


LOCK_FILE = ".lock"
# Schedules of transformers whose rates depend on losses, not on the step.
RATES_BY_LOSSES = ("reduce_lr_on_plateau", "greedy")


@dataclass(frozen=True)
class Start:
    """Where a run begins: at `checkpoint`, or anew."""

    # `matmul` is the run's library of matrix products so far, `changes` what is not as it was, and `earlier` are the
    # earlier parts of the run: their last steps and different settings. `damaged` are the skipped checkpoints with
    # their damage. `goes_back`: checkpoints after `checkpoint` are not the run's any more.

    checkpoint: Path | None = None
    is_new: bool = True
    matmul: str | None = None
    changes: Changes = field(default_factory=Changes)
    earlier: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    damaged: dict[Path, str] = field(default_factory=dict)
    goes_back: bool = False

    @property
    def notes(self) -> list[str]:
        """Notes for the user, a sentence each."""
        notes = [f"{path} cannot be continued: {what}." for path, what in self.damaged.items()]
        if self.damaged:
            notes.append(f"The run continues from {self.checkpoint}, the newest complete checkpoint.")
        if self.checkpoint is not None and self.changes:
            notes.append(f"From step {step_of(self.checkpoint) + 1} on, the run has other {self.changes}.")
        return notes


def find_start(folder: Path, wanted: str | None, settings: dict[str, Any], data: dict[str, str]) -> Start:
    """Where a run continues: at the `wanted` checkpoint, or for "last" and None the last one. Nothing is changed."""
    # With other settings or data it continues only if `wanted` requests it.
    record, newest, damaged = RunRecord.read(folder), None, dict[Path, str]()
    for path in map(Path, reversed(list_checkpoints(folder))):
        if (damage := find_damage(path)) is None:
            newest = path
            break
        damaged[path] = damage
    checkpoint, is_named = newest, wanted not in (None, "last")
    if is_named:
        checkpoint, damaged = Path(str(wanted)), {}
        if checkpoint.is_dir() and (damage := find_damage(checkpoint)) is not None:
            raise ValueError(f"resume_from_checkpoint={wanted} cannot be continued: {damage}.")
    elif damaged and newest is None:
        what = "; ".join(f"{path.name}: {damage}" for path, damage in damaged.items())
        raise ValueError(
            f"{folder} has no complete checkpoint to continue from ({what}). To start over, delete it or choose "
            "another output_dir."
        )
    if wanted is not None and (checkpoint is None or not checkpoint.is_dir()):
        raise ValueError(f"resume_from_checkpoint={wanted} is not a checkpoint; the last one here is {newest}.")
    goes_back = wanted is not None
    if newest is None:  # there is no earlier run, or nothing is left of it
        return Start(checkpoint, damaged=damaged, goes_back=goes_back)
    changes = record.changes(settings, data)
    if wanted is None and changes:
        raise ValueError(
            f"{newest} belongs to a run with other {changes}: continue it with --resume_from_checkpoint last, "
            f"or choose another output_dir, or delete {folder}."
        )
    earlier = record.earlier
    if checkpoint is not None:
        step, values = step_of(checkpoint), changes.settings | ({DATA: list(changes.data)} if changes.data else {})
        earlier = [(min(last, step), before) for last, before in earlier] + ([(step, values)] if values else [])
    return Start(checkpoint, False, record.matmul, changes, earlier, damaged, goes_back)


def check_rate(start: Start, training: TrainingArguments) -> None:
    """Check that the schedule of a continued run supports its changed settings."""
    changed = start.changes.settings
    kind, before = SchedulerType(training.lr_scheduler_type).value, changed.get("lr_scheduler_type")
    if "learning_rate" in changed and kind in RATES_BY_LOSSES:
        raise ValueError(
            f"learning_rate={training.learning_rate}: a run with lr_scheduler_type={kind} cannot be continued with "
            f"another learning rate than {value_in_words(changed['learning_rate'])}: the schedule has set its own "
            "since then. Choose another output_dir and begin from the model (model_name_or_path)."
        )
    if "lr_scheduler_type" in changed and {kind, before} & set(RATES_BY_LOSSES):
        raise ValueError(
            f"lr_scheduler_type={kind}: a run with {value_in_words(before)} cannot be continued with it: the "
            "checkpoint holds the state of the other schedule."
        )


def prepare_folder(
    folder: Path, start: Start, settings: dict[str, Any], data: dict[str, str], matmul: str
) -> list[Path]:
    """Prepare the checkpoints' folder for a run that begins at `start`; returns those that were set aside."""
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    moved = []
    if start.checkpoint is not None and (start.goes_back or start.damaged):
        step = step_of(start.checkpoint)
        for path in map(Path, list_checkpoints(folder)):
            if int(path.name.rpartition("-")[2]) > step:  # which would count as one of the last of the run
                names = chain([path.name], (f"{path.name}.{number}" for number in count(2)))
                place = next(place for name in names if not (place := folder / "set_aside" / name).exists())
                place.parent.mkdir(exist_ok=True)
                moved.append(path.rename(place))
    if start.is_new:
        shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        (folder / EMISSIONS_FILE).unlink(missing_ok=True)
    RunRecord(settings, matmul, data, start.earlier).write(folder)
    return moved


def lock_folder(folder: Path) -> AbstractContextManager[Any]:
    """Lock a folder against training by other processes until the returned context ends."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return lock_path(folder / LOCK_FILE, take_over=True)
    except Timeout as error:
        raise OSError(f"{folder}: another process is training in this folder; choose another output_dir.") from error
