"""Checkpoints that are complete or absent, and a run that saves one when it is told to stop."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy, sort_checkpoints


# Inside the folder of the checkpoints: what is being written or deleted. No checkpoint is looked for here.
UNFINISHED = ".unfinished"


def is_complete(checkpoint: Path) -> bool:
    """Whether a folder holds all of a checkpoint: its state, which is written last, is whole and of this step."""
    try:
        state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return f"{PREFIX_CHECKPOINT_DIR}-{state.get('global_step')}" == checkpoint.name


def find_last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint in a folder, if there is one."""
    found = sort_checkpoints(str(folder)) if folder.is_dir() else []
    return next((path for path in reversed(found) if is_complete(Path(path))), None)


def flush_to_disk(folder: Path):
    """Have the contents of a folder on the disk, and not only promised to it, before it gets its name."""
    for path in (*(path for path in folder.rglob("*") if path.is_file()), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def move_in(checkpoint: Path, folder: Path):
    """Give a written checkpoint its place in `folder`, in one step."""
    flush_to_disk(checkpoint)
    place = folder / checkpoint.name
    if place.exists():
        remove(place)
    checkpoint.rename(place)


def remove(checkpoint: Path):
    """Delete a checkpoint: gone first, then deleted, so that an interruption leaves none that is half there."""
    unnamed = checkpoint.parent / UNFINISHED / f"deleted-{checkpoint.name}"
    unnamed.parent.mkdir(exist_ok=True)
    shutil.rmtree(unnamed, ignore_errors=True)
    checkpoint.rename(unnamed)
    shutil.rmtree(unnamed, ignore_errors=True)


def is_planned(checkpoint: Path, args: TrainingArguments, save_steps: int) -> bool:
    """Whether a checkpoint was saved because its step or epoch was due, not because a signal came."""
    state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    if args.save_strategy == SaveStrategy.EPOCH:
        return float(state["epoch"]).is_integer()
    return args.save_strategy != SaveStrategy.STEPS or not save_steps or state["global_step"] % save_steps == 0


def set_aside_later(folder: Path, step: int) -> list[Path]:
    """
    Move the checkpoints of later steps out of the way of a run that goes on from `step`, into `folder`/set_aside.

    Left where they are, they would pass for the run's last ones: to continue from, to average, to keep.
    """
    moved = []
    for path in map(Path, sort_checkpoints(str(folder))):
        if int(path.name.rpartition("-")[2]) > step:
            names = chain([path.name], (f"{path.name}.{number}" for number in count(2)))
            place = next(place for name in names if not (place := folder / "set_aside" / name).exists())
            place.parent.mkdir(exist_ok=True)
            moved.append(path.rename(place))
    return moved


def remove_surplus(folder: Path, limit: int | None, best: str | None):
    """Delete the oldest checkpoints beyond `limit`, never the newest or the best."""
    checkpoints = sort_checkpoints(str(folder))
    if not limit or limit < 0 or len(checkpoints) <= limit:
        return
    spared = {checkpoints[-1], best} & set(checkpoints)
    surplus = [path for path in checkpoints if path not in spared]
    for path in surplus[: len(checkpoints) - max(limit, len(spared))]:
        remove(Path(path))


class TrainingInterrupted(KeyboardInterrupt):
    """
    Training was told to stop by a signal, and has saved a checkpoint.

    `signal` is the number of the signal, `step` the last step that was done.
    """

    def __init__(self, number: int, step: int):
        self.signal, self.step = number, step
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}; its checkpoint is saved.")


class StopOnSignal(TrainerCallback):
    """
    On SIGTERM or Ctrl-C, ends the step, or the evaluation, that is going on, saves a checkpoint and raises
    `TrainingInterrupted`. A second signal stops at once and saves nothing.

    Listens inside `with callback.listening():`, in the main thread. With several processes, a signal to one stops all.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self):
        self.received: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take over the signals while training runs. Python lets only the main thread do that."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.received = None
        before = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None):
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        print(
            f"\n{signal.Signals(number).name}: saving a checkpoint after this step; once more to stop without it.",
            flush=True,
        )

    def _received_by_any(self, args: TrainingArguments) -> int | None:
        """The signal that one of the processes got; each has to ask at the same places."""
        if args.world_size <= 1 or not distributed.is_initialized():
            return self.received
        # Processes that stopped at different steps would wait for each other for ever.
        signals = torch.tensor(self.received or 0, device=args.device)
        distributed.all_reduce(signals, distributed.ReduceOp.MAX)
        self.received = int(signals) or None
        return self.received

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        # At the end of an epoch, its evaluation comes before the checkpoint.
        if self._received_by_any(args) and not float(state.epoch or 0).is_integer():
            control.should_save = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if self._received_by_any(args):
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if received := self._received_by_any(args):
            raise TrainingInterrupted(received, state.global_step)


def resumable_files(checkpoint: Path, place: str) -> dict[str, Path | bytes]:
    """
    The files of a checkpoint that continuing from it needs, to be published in the folder `place`.

    It is the optimizer's state, in pickles of the host's. Not among them are the host's arguments, in which a token
    may stand; and its log names no folders of this machine.
    """
    files: dict[str, Path | bytes] = {}
    for path in sorted(checkpoint.iterdir()):
        if path.is_file() and path.name != "training_args.bin":
            files[f"{place}/{path.name}"] = path
    state = f"{place}/trainer_state.json"
    if state in files:
        text = (checkpoint / "trainer_state.json").read_text(encoding="utf-8")
        for folder in (str(checkpoint.parent), str(checkpoint.parent.resolve())):
            text = text.replace(f"{folder}/", "")
        files[state] = text.encode()
    return files
