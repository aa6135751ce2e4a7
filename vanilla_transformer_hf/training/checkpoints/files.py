"""Complete checkpoints, and the callbacks that end a run with one: signals and early stopping."""

import json
import logging
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from ...common.checksums import SUMS_FILE, digest_of_all, format_checksums, read_checksums, write_checksums
from ...common.files import UNFINISHED, sync, sync_tree
from ...common.settings import LARGEST_LOG, read_object
from ...evaluation.scores import is_meaningful


logger = logging.getLogger(__name__)


def find_damage(checkpoint: Path) -> str | None:
    """The damage of a checkpoint that prevents continuing, by its checksums, in a few words; None if there is none."""
    try:
        state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{TRAINER_STATE_NAME} is missing"
    except (OSError, ValueError) as error:
        return f"{TRAINER_STATE_NAME} is damaged ({error})"
    step = state.get("global_step") if isinstance(state, dict) else None
    is_named = checkpoint.name.startswith(f"{PREFIX_CHECKPOINT_DIR}-")  # a renamed checkpoint may still be complete
    if step is None or (is_named and checkpoint.name != f"{PREFIX_CHECKPOINT_DIR}-{step}"):
        return f"{TRAINER_STATE_NAME} is of another step"
    if not (checkpoint / SUMS_FILE).is_file():
        return f"{SUMS_FILE} is missing"
    try:
        sums = read_checksums(checkpoint)
    except (OSError, ValueError) as error:
        return str(error).removesuffix(".")
    for name, value in sums.items():
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
        if digest_of_all(checkpoint / name) != value:
            return f"{name} differs from its checksum"
    return None


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder by their steps, in this order, complete or not."""
    names = {path: re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name) for path in folder.glob("*")}
    return dict(sorted((int(name[1]), path) for path, name in names.items() if name and path.is_dir()))


def step_of(checkpoint: str | Path) -> int:
    """The number of steps that a checkpoint's run had done."""
    return int(read_object(Path(checkpoint, TRAINER_STATE_NAME), {"global_step": int}, LARGEST_LOG)["global_step"])


def move_in(checkpoint: Path, folder: Path) -> None:
    """Write the checksums of a checkpoint and move it into `folder` atomically."""
    write_checksums(checkpoint)
    sync_tree(checkpoint)
    place = folder / checkpoint.name
    if place.exists():
        remove(place)
    checkpoint.rename(place)
    sync(folder)


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint: it is renamed first, so that an interruption leaves no partial checkpoint."""
    unnamed = checkpoint.parent / UNFINISHED / f"deleted-{checkpoint.name}"
    unnamed.parent.mkdir(exist_ok=True)
    shutil.rmtree(unnamed, ignore_errors=True)
    checkpoint.rename(unnamed)
    shutil.rmtree(unnamed, ignore_errors=True)


def is_planned(checkpoint: Path, args: TrainingArguments) -> bool:
    """Whether a checkpoint was saved because its step or epoch was due, not because of a signal."""
    state = read_object(checkpoint / TRAINER_STATE_NAME, {"global_step": int, "epoch": (float, int)}, LARGEST_LOG)
    if args.save_strategy == SaveStrategy.EPOCH:
        return float(state["epoch"]).is_integer()
    return args.save_strategy != SaveStrategy.STEPS or state["global_step"] % (state.get("save_steps") or 1) == 0


def remove_surplus(folder: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints beyond `limit`, never the newest or the best."""
    checkpoints = list(checkpoints_in(folder).values())
    if not limit or limit < 0 or len(checkpoints) <= limit:
        return
    others = [path for path in checkpoints[:-1] if path.resolve() != (best and Path(best).resolve())]
    for path in others[: len(checkpoints) - limit]:
        remove(path)


class TrainingInterrupted(KeyboardInterrupt):
    """Training was stopped by a signal at `step`, the last step that was done; `saved` describes what is saved."""

    def __init__(self, number: int, step: int, saved: str = "its checkpoint is saved."):
        self.signal, self.step = number, step
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}; {saved}")


class EvaluationStopped(BaseException):
    """An evaluation was stopped by a signal: no error, and nothing that handles errors may take it for one."""


class StopOnSignal(TrainerCallback):
    """On SIGTERM or Ctrl-C, saves a checkpoint and raises `TrainingInterrupted`; a second signal saves nothing."""

    # It finishes the current step, or stops the current evaluation; the second one stops at once. Active inside `with
    # callback.listening():`, in the main thread. With several processes, a signal to one stops all.

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.received: int | None = None
        # The checkpoint of the last step, once all steps are done.
        self.last_checkpoint: Path | None = None
        self._at_once: Callable[[int], BaseException] | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals while training runs. In Python only the main thread can do that."""
        self.received, self.last_checkpoint, at_once = None, None, self._at_once
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._receive) for number in self.SIGNALS} if is_main else {}
        try:
            yield
        finally:
            self._at_once = at_once
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def at_once(self, stop: Callable[[int], BaseException]) -> Iterator[None]:
        """In this context a signal, also one that has come before, raises what `stop` makes of its number."""
        before, self._at_once = self._at_once, stop
        try:
            if self.received is not None:
                raise stop(self.received)
            yield
        finally:
            self._at_once = before

    @contextmanager
    def in_evaluation(self, args: TrainingArguments) -> Iterator[None]:
        """A context of one batch of an evaluation, in which a signal stops the evaluation at once."""
        # With several processes it stops before the next batch, because the others would wait for the rest of this
        # one.
        if args.world_size > 1:
            if self.received_by_any(args):
                raise EvaluationStopped
            yield
            return
        with self.at_once(lambda _: EvaluationStopped()):
            yield

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        if self._at_once is not None:
            raise self._at_once(number)
        print(
            f"\n{signal.Signals(number).name}: saving a checkpoint after this step; again to stop without one.",
            flush=True,
        )

    def received_by_any(self, args: TrainingArguments) -> int | None:
        """The signal that any process received; all processes must call this at the same points."""
        if args.world_size <= 1 or not distributed.is_initialized():
            return self.received
        # Processes that stopped at different steps would deadlock.
        signals = torch.tensor(self.received or 0, device=args.device)
        distributed.all_reduce(signals, distributed.ReduceOp.MAX)
        self.received = int(signals) or None
        return self.received

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # At the end of an epoch, its evaluation comes before the checkpoint.
        if self.received_by_any(args) and not float(state.epoch or 0).is_integer():
            control.should_save = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.received_by_any(args):
            control.should_save = True

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **_: Any) -> None:
        # The last log of a run: from here on its model is made of checkpoints that are written, which can be repeated.
        last = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        if "total_flos" not in (logs or {}) or not last.is_dir():
            return
        self.last_checkpoint = last
        self._at_once = partial(TrainingInterrupted, step=state.global_step)
        if self.received is not None:
            raise self._at_once(self.received)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if received := self.received_by_any(args):
            raise TrainingInterrupted(received, state.global_step)


class EarlyStopping(TrainerCallback):
    """Stops training, with a checkpoint, after `patience` evaluations without a better `metric_for_best_model`."""

    # The evaluations are counted in the Trainer's log, which checkpoints hold: unlike with transformers' callback, a
    # run that is continued stops where it would have stopped uninterrupted, and one that has stopped stays stopped.

    def __init__(self, patience: int, since: int = 0):
        self.patience, self.since = patience, since  # scores up to this step are of another text

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_training_stop = self._is_enough(args, state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._is_enough(args, state):
            control.should_training_stop = control.should_save = True

    def _is_enough(self, args: TrainingArguments, state: TrainerState) -> bool:
        metric = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
        told = [entry for entry in state.log_history if metric in entry and entry["step"] > self.since]
        values = [entry[metric] for entry in told if is_meaningful(entry, metric)]
        best = (max if args.greater_is_better else min)(values, default=None)
        if best is None or len(values) - 1 - values.index(best) < self.patience:
            return False
        if state.is_world_process_zero:
            logger.warning(
                "step %d of %d: %s has not improved in %d evaluations; training ends here (early_stopping_patience)",
                state.global_step, state.max_steps, args.metric_for_best_model, self.patience,
            )  # fmt: skip
        return True


def resumable_files(checkpoint: Path, place: str) -> dict[str, Path | bytes]:
    """The files that are needed to continue from a checkpoint, to be published in the folder `place`."""
    # The Trainer's pickled arguments are left out, because they may contain a token.
    files: dict[str, Path | bytes] = {}
    for path in sorted(checkpoint.iterdir()):
        is_hidden = path.name.startswith(".")
        if path.is_file() and not is_hidden and path.name not in ("training_args.bin", SUMS_FILE):
            files[f"{place}/{path.name}"] = path
    if (checkpoint / SUMS_FILE).is_file():
        sums = {name: value for name, value in read_checksums(checkpoint).items() if f"{place}/{name}" in files}
        files[f"{place}/{SUMS_FILE}"] = format_checksums(sums).encode()
    return files
