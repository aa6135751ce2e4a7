"""
Resuming: what a run was is in a file beside its checkpoints (settings, checksums, earlier parts); `find_start` finds
where a run continues and what it has changed, and `prepare_folder` changes its folder.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import datasets
import yaml
from filelock import Timeout
from transformers import SchedulerType, TrainingArguments

from ...common.checksums import digest_of_all
from ...common.files import UNFINISHED, lock_path, write_text
from ...common.settings import read_yaml
from ...publishing.model_card import EMISSIONS_FILE
from ..arguments import FIELDS_OF_NEW_TOKENIZERS, DataArguments
from ..data.parts import ROLES, corpus_parts
from ..recipe import CHANGEABLE_FIELDS, ConfigArguments
from .files import checkpoints_in, find_damage, step_of


RECORD_FILE = "recipe.yaml"
# Keys of a run's record beside its settings: the resolved value of "auto"; the checksums of its data; and the settings
# of earlier parts of the run, each with its last step.
CHOSEN_MATMUL, DATA, EARLIER = "chosen_matmul", "data_sha256", "earlier_settings"
# Settings that do not affect the result: where to begin, and where the folder is by now, where to publish, the card's
# contents, and threads, which another machine has others of.
NO_MATTER = (
    *("resume_from_checkpoint", "output_dir", "push_to_hub", "hub_", "license", "card_example", "project_url"),
    *("corpus_name", "threads"),
)
# Settings that weights and vocabulary depend on: those of a checkpoint stay as they are.
OF_MODEL = {"model_type", "preset", *FIELDS_OF_NEW_TOKENIZERS, *ConfigArguments.__annotations__} - {*CHANGEABLE_FIELDS}
DATA_FIELDS = tuple(f"{role}_{side}" for role in ROLES for side in ("source", "target"))
TEXT_FIELDS = tuple(f"{role}_text" for role in ROLES)  # of several files each
LOCK_FILE = ".lock"
# Schedules of transformers whose rates depend on losses, not on the step.
RATES_BY_LOSSES = ("reduce_lr_on_plateau", "greedy")


@dataclass(frozen=True)
class Changes:
    """Settings that are not those of an earlier run, with their earlier values, and fields whose data are not its."""

    settings: dict[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.settings or self.data)

    def __str__(self) -> str:
        parts = {"settings": list(self.settings), "data": [f"{name} has other content" for name in self.data]}
        return " and ".join(f"{what} ({', '.join(names)})" for what, names in parts.items() if names)


@dataclass(frozen=True)
class RunRecord:
    """What is known of a run."""

    # `settings` are those that differ from the defaults, `matmul` is its library of matrix products, `data` are the
    # checksums of its texts, and `earlier` are its earlier parts: their last steps and different settings.

    settings: dict[str, Any] = field(default_factory=dict)
    matmul: str | None = None
    data: dict[str, str] = field(default_factory=dict)
    earlier: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """The record in a folder of checkpoints; an empty one if there is none."""
        path = folder / RECORD_FILE
        try:
            known = read_yaml(path) if path.is_file() else {}
            if not isinstance(known, dict):
                got = "nothing" if known is None else repr(known)[:40]
                raise ValueError(f"expected a mapping of settings, got {got}")
            matmul, data = known.pop(CHOSEN_MATMUL, None), known.pop(DATA, {})
            earlier = [(int(part["last_step"]), dict(part["settings"])) for part in known.pop(EARLIER, [])]
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged ({' '.join(str(error).split())}): delete it and continue with "
                "--resume_from_checkpoint last, or choose another output_dir."
            ) from error
        return cls(known, matmul, data, earlier)

    def write(self, folder: Path) -> None:
        """Write the record, without settings that do not affect the result of a run."""
        record = kept_settings(self.settings) | {CHOSEN_MATMUL: self.matmul, DATA: self.data}
        if self.earlier:
            record[EARLIER] = [{"last_step": step, "settings": values} for step, values in self.earlier]
        write_text(folder / RECORD_FILE, yaml.safe_dump(record, sort_keys=False, allow_unicode=True))

    def changes(self, settings: dict[str, Any], data: dict[str, str]) -> Changes:
        """What a run with these settings, and with data of these checksums, has changed."""
        before, now = self.settings, kept_settings(settings)
        changed = {name: before.get(name) for name in changed_names(before, now)}
        # Changed paths are already among the changed settings; what a run had not before, such as a teacher, too.
        names = (name for name in data if name not in changed and self.data.get(name, data[name]) != data[name])
        return Changes(changed, tuple(names))


def find_data_sums(arguments: DataArguments, corpora: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Field -> SHA-256 of the file or folder that it names, or of the loaded rows of a dataset of the Hub."""
    if arguments.corpora:
        sums = dict[str, str]()
        for name, part in corpus_parts(arguments).items():
            own = {role: corpus for role in ROLES if (corpus := (corpora or {}).get(f"{role}.{name}")) is not None}
            sums |= {f"{name}.{field}": value for field, value in find_data_sums(part, own).items()}
        return sums
    paths = {name: Path(value) for name in DATA_FIELDS if (value := getattr(arguments, name)) is not None}
    found = {name: digest_of_all(path) for name, path in paths.items() if path.exists()}
    for name in TEXT_FIELDS:
        if files := getattr(arguments, name):
            digests = [digest_of_all(Path(file)) for file in files if Path(file).exists()]
            found[name] = hashlib.sha256(" ".join(digests).encode()).hexdigest()
    for role, corpus in (corpora or {}).items():
        if f"{role}_source" in paths and f"{role}_source" not in found and isinstance(corpus, datasets.Dataset):
            # Of the texts: a dataset's fingerprint identifies the requested version, not the received texts.
            digest = hashlib.sha256()
            for batch in corpus.select_columns(["source", "target"]).iter(10_000):
                digest.update(json.dumps([batch["source"], batch["target"]]).encode())
            found[f"{role}_source"] = digest.hexdigest()
    return found


def changed_names(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The names whose values differ, in their order."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


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
        parts = [f"{value_in_words(values[name])} to step {step}" for step, values in earlier if name in values]
        told[name] = f"{', '.join(parts)}, then {value_in_words(settings.get(name))}"
    return told


def value_in_words(value: Any) -> str:
    """A setting's value; None stands for the default."""
    return "the default" if value is None else str(value)


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
        if self.scored_alike:
            notes.append(f"Scores up to step {self.scored_alike} are of another text, and choose no checkpoint.")
        return notes

    @property
    def scored_alike(self) -> int:
        """The step behind which all scores in training are of one validation text."""
        parts = [(step, " ".join([*values, *values.get(DATA, ())])) for step, values in self.earlier]
        return max((step for step, names in parts if re.search("validation|corpora|eval_sample", names)), default=0)


def find_start(folder: Path, wanted: str | None, settings: dict[str, Any], data: dict[str, str]) -> Start:
    """Where a run continues: at the `wanted` checkpoint, or for "last" and None the last one. Nothing is changed."""
    # With other settings or data it continues only if `wanted` requests it.
    record, newest, damaged = RunRecord.read(folder), None, dict[Path, str]()
    for path in reversed(checkpoints_in(folder).values()):
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
    before = {} if checkpoint is None else RunRecord.read(checkpoint.parent).settings
    if before and (fixed := OF_MODEL.intersection(changed_names(before, kept_settings(settings)))):
        told = ", ".join(f"{name} {value_in_words(before.get(name))}" for name in sorted(fixed))
        raise ValueError(
            f"{checkpoint} has another model or vocabulary ({told}), which a run that continues keeps: give it these "
            "values, or choose another output_dir."
        )
    if newest is None:  # there is no earlier run, or nothing is left of it
        return Start(checkpoint, damaged=damaged, goes_back=wanted is not None)
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
    return Start(checkpoint, False, record.matmul, changes, earlier, damaged, wanted is not None)


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
        for number, path in checkpoints_in(folder).items():
            if number > step:  # which would count as one of the last of the run
                names = chain([path.name], (f"{path.name}.{copy}" for copy in count(2)))
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
