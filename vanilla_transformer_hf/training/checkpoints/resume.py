"""
Resuming: `find_start` finds where a run continues without changing anything, `prepare_folder` then prepares its
folder.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import yaml
from filelock import Timeout
from transformers import SchedulerType

from ...common.checksums import digest_of_all
from ...common.files import UNFINISHED, open_output
from ...common.locks import lock_path
from ...common.settings import read_yaml
from ...common.too_long import current_name
from ...publishing.model_card import EMISSIONS_FILE
from ..recipe import DataArguments
from .files import find_damage, list_checkpoints, set_aside_later, step_of


RECORD_FILE = "recipe.yaml"
LOCK_FILE = ".lock"
# Keys of a run's record beside its settings: the resolved value of "auto"; the checksums of its data; and the settings
# of earlier parts of the run, each with its last step.
CHOSEN_MATMUL, DATA, EARLIER = "chosen_matmul", "data_sha256", "earlier_settings"
# Settings that do not affect the result: where to begin, where to publish, and the card's contents.
NO_MATTER = ("resume_from_checkpoint", "push_to_hub", "hub_", "license", "card_example", "project_url", "corpus_name")
# Schedules of transformers whose rates depend on losses, not on the step.
RATES_BY_LOSSES = ("reduce_lr_on_plateau", "greedy")
DATA_FIELDS = tuple(f"{role}_{side}" for role in ("train", "validation", "test") for side in ("source", "target"))


@dataclass(frozen=True)
class Start:
    """
    Where a run begins: at `checkpoint`, or anew.

    `matmul` is the run's library of matrix products so far. `changed` are the changed settings with their earlier
    values, and `changed_data` the fields whose data have changed. `earlier` are the earlier parts of the run: their
    last steps and different settings. `damaged` are the skipped checkpoints with their damage.
    """

    checkpoint: Path | None = None
    is_new: bool = True
    matmul: str | None = None
    changed: dict[str, Any] = field(default_factory=dict)
    changed_data: tuple[str, ...] = ()
    earlier: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    damaged: dict[Path, str] = field(default_factory=dict)
    goes_back: bool = False

    @property
    def notes(self) -> list[str]:
        """Notes for the user, a sentence each."""
        notes = [f"{path} cannot be continued: {what}." for path, what in self.damaged.items()]
        if self.damaged:
            notes.append(f"The run continues from {self.checkpoint}, the newest complete checkpoint.")
        if self.checkpoint is not None and (self.changed or self.changed_data):
            what = _in_words(self.changed, self.changed_data)
            notes.append(f"From step {step_of(self.checkpoint) + 1} on, the run has other {what}.")
        return notes


def find_data_sums(arguments: DataArguments, corpora: Mapping[str, Any] | None = None) -> dict[str, str]:
    """
    Field -> SHA-256 of the file or folder that it names, or of the rows of a dataset of the Hub.

    Args:
        arguments: What names the data.
        corpora: Role ("train", …) -> its pairs as they were loaded; without them, and as a stream, a dataset of the
            Hub has no checksum.
    """
    paths = {name: Path(value) for name in DATA_FIELDS if (value := getattr(arguments, name)) is not None}
    found = {name: digest_of_all(path) for name, path in paths.items() if path.exists()}
    for role, corpus in (corpora or {}).items():
        if f"{role}_source" in paths and f"{role}_source" not in found and isinstance(corpus, datasets.Dataset):
            found[f"{role}_source"] = _digest_of_rows(corpus)
    return found


def _digest_of_rows(corpus: datasets.Dataset) -> str:
    """The SHA-256 of the texts: a dataset's fingerprint identifies the requested version, not the received texts."""
    digest = hashlib.sha256()
    for batch in corpus.select_columns(["source", "target"]).iter(10_000):
        digest.update(json.dumps([batch["source"], batch["target"]]).encode())
    return digest.hexdigest()


def check_rate(start: Start, training: Any) -> None:
    """
    Check that the schedule of a continued run supports its changed settings.

    Raises:
        ValueError: The learning rate was changed, but the schedule depends on earlier losses and keeps its own rate;
            or such a schedule would replace another one or be replaced.
    """
    kind, before = SchedulerType(training.lr_scheduler_type).value, start.changed.get("lr_scheduler_type")
    if "learning_rate" in start.changed and kind in RATES_BY_LOSSES:
        raise ValueError(
            f"learning_rate={training.learning_rate}: a run with lr_scheduler_type={kind} cannot be continued with "
            f"another learning rate than {_value(start.changed['learning_rate'])}: the schedule has set its own since "
            "then. Choose another output_dir and begin from the model (model_name_or_path)."
        )
    if "lr_scheduler_type" in start.changed and {kind, before} & set(RATES_BY_LOSSES):
        raise ValueError(
            f"lr_scheduler_type={kind}: a run with {_value(before)} cannot be continued with it: the checkpoint holds "
            "the state of the other schedule."
        )


def find_start(folder: Path, wanted: str | None, settings: dict[str, Any], data: dict[str, str]) -> Start:
    """
    Find where a run continues, without changing anything.

    The same settings and data continue where the last run stopped. With different ones a run continues only if
    `wanted` requests it.

    Args:
        folder: The folder of the run's checkpoints.
        wanted: A checkpoint, "last", or None: the last one if there is one.
        settings: The settings that differ from the defaults.
        data: Sums of the run's data, as `find_data_sums` gives them.

    Raises:
        ValueError: The checkpoints are those of a run with other settings or data; the wanted one does not exist or is
            damaged; or all are damaged.
    """
    record = _read_record(folder)
    found, damaged = _newest_whole(folder)
    checkpoint = _choose_checkpoint(folder, wanted, found, damaged)
    if wanted not in (None, "last"):
        damaged = {}
    changed, changed_data = dict[str, Any](), tuple[str, ...]()
    if found is not None:
        before, now = record.settings, kept_settings(settings)
        changed = {name: before.get(name) for name in {**before, **now} if before.get(name) != now.get(name)}
        # Changed paths are already among the changed settings, and runs of earlier versions have no checksums.
        changed_data = tuple(
            name for name in data if name not in changed and record.data.get(name, data[name]) != data[name]
        )
    if wanted is None and (changed or changed_data):
        raise ValueError(
            f"{found} belongs to a run with other {_in_words(changed, changed_data)}: continue it with "
            f"--resume_from_checkpoint last, or choose another output_dir, or delete {folder}."
        )
    earlier = record.earlier if found is not None else []
    if found is not None and checkpoint is not None:
        step = step_of(checkpoint)
        earlier = [(min(last, step), values) for last, values in earlier]
        values = changed | ({DATA: list(changed_data)} if changed_data else {})
        earlier += [(step, values)] if values else []
    return Start(
        checkpoint=checkpoint,
        is_new=found is None,
        matmul=record.matmul if found is not None else None,
        changed=changed,
        changed_data=changed_data,
        earlier=earlier,
        damaged=damaged,
        goes_back=wanted is not None,
    )


def _newest_whole(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest complete checkpoint, if there is one, and the damage of newer ones."""
    damaged = dict[Path, str]()
    for path in map(Path, reversed(list_checkpoints(folder))):
        if (damage := find_damage(path)) is None:
            return path, damaged
        damaged[path] = damage
    return None, damaged


def _choose_checkpoint(folder: Path, wanted: str | None, found: Path | None, damaged: dict[Path, str]) -> Path | None:
    """
    The checkpoint to continue from, None: the run starts over.

    Raises:
        ValueError: The wanted one does not exist or is damaged; or all are damaged.
    """
    checkpoint = found if wanted in (None, "last") else Path(str(wanted))
    if checkpoint is not None and wanted not in (None, "last"):
        damage = find_damage(checkpoint) if checkpoint.is_dir() else None
        if damage is not None:
            raise ValueError(f"resume_from_checkpoint={wanted} cannot be continued: {damage}.")
    elif damaged and found is None:
        what = "; ".join(f"{path.name}: {damage}" for path, damage in damaged.items())
        raise ValueError(
            f"{folder} has no complete checkpoint to continue from ({what}). To start over, delete it or choose "
            "another output_dir."
        )
    if wanted is not None and (checkpoint is None or not checkpoint.is_dir()):
        raise ValueError(f"resume_from_checkpoint={wanted} is not a checkpoint; the last one here is {found}.")
    return checkpoint


def prepare_folder(
    folder: Path, start: Start, settings: dict[str, Any], data: dict[str, str], matmul: str
) -> list[Path]:
    """
    Prepare the folder of the checkpoints for a run that begins at `start`, and record the run in it.

    Returns:
        The checkpoints that were set aside, at their new paths.
    """
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    moved = []
    if start.checkpoint is not None and (start.goes_back or start.damaged):
        moved = set_aside_later(folder, step_of(start.checkpoint))
    if start.is_new:
        shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        (folder / EMISSIONS_FILE).unlink(missing_ok=True)
    record = kept_settings(settings) | {CHOSEN_MATMUL: matmul, DATA: data}
    if start.earlier:
        record[EARLIER] = [{"last_step": step, "settings": values} for step, values in start.earlier]
    with open_output(folder / RECORD_FILE) as file:
        file.write(yaml.safe_dump(record, sort_keys=False, allow_unicode=True).encode())
    return moved


def kept_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that affect the result of a run."""
    return {name: value for name, value in settings.items() if not name.startswith(NO_MATTER)}


def settings_of_all_parts(settings: dict[str, Any], earlier: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """The settings of a run for its card; a changed one lists its values with their last steps."""
    told = dict(settings)
    for step, values in earlier:
        if names := values.get(DATA):
            told["data"] = f"{', '.join(names)}: other content after step {step}"
    for name in dict.fromkeys(name for _, values in earlier for name in values if name != DATA):
        parts = [f"{_value(values[name])} to step {step}" for step, values in earlier if name in values]
        told[name] = f"{', '.join(parts)}, then {_value(settings.get(name))}"
    return told


def lock_folder(folder: Path) -> AbstractContextManager:
    """
    Lock a folder against training by other processes until the returned context ends.

    Raises:
        OSError: Another process trains there, or the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return lock_path(folder / LOCK_FILE, take_over=True)
    except Timeout as error:
        raise OSError(f"{folder}: another process is training in this folder; choose another output_dir.") from error


@dataclass(frozen=True)
class _Record:
    settings: dict[str, Any]
    matmul: str | None
    data: dict[str, str]
    earlier: list[tuple[int, dict[str, Any]]]


def _read_record(folder: Path) -> _Record:
    path = folder / RECORD_FILE
    try:
        known = read_yaml(path) if path.is_file() else {}
        if not isinstance(known, dict):
            raise ValueError(f"expected a mapping of settings, got {'nothing' if known is None else repr(known)[:40]}")
        if "too_long" in known:
            known["too_long"] = current_name(known["too_long"])
        matmul, data = known.pop(CHOSEN_MATMUL, None), known.pop(DATA, {})
        earlier = [(int(part["last_step"]), dict(part["settings"])) for part in known.pop(EARLIER, [])]
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({' '.join(str(error).split())}): delete it and continue with "
            "--resume_from_checkpoint last, or choose another output_dir."
        ) from error
    return _Record(known, matmul, data, earlier)


def _in_words(changed: dict[str, Any], changed_data: tuple[str, ...]) -> str:
    parts = {"settings": list(changed), "data": [f"{name} has other content" for name in changed_data]}
    return " and ".join(f"{what} ({', '.join(names)})" for what, names in parts.items() if names)


def _value(value: Any) -> str:
    return "the default" if value is None else str(value)
