"""An exponential moving average of the weights over the steps of a run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ...common.files import new_file
from .averaging import assign, open_weights, save_weights


MOVING_AVERAGE_FILE = "moving_average.safetensors"


class MovingAverageCallback(TrainerCallback):
    """Keeps an exponential moving average of the trained weights, which become the model's at the end of training."""

    # After update t, average = d · average + (1 - d) · weights with d = min(decay, (1 + t) / (10 + t)), so that the
    # first, untrained weights are soon forgotten. It is kept in float32, saved in every checkpoint as
    # moving_average.safetensors and loaded when training continues. With `load_best_model_at_end` the model gets the
    # average of the best checkpoint. Evaluation uses it inside `applied()`.

    def __init__(self, decay: float, checkpoint: str | os.PathLike[str] | None = None):
        self.decay, self.checkpoint, self.updates = decay, checkpoint, 0
        self.parameters: dict[str, nn.Parameter] = {}
        self.averages: dict[str, torch.Tensor] = {}
        self._saved_at: int | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, model: Any = None, **_: Any) -> None:
        self.parameters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.averages = {
            name: weight.detach().to(torch.float32, copy=True) for name, weight in self.parameters.items()
        }
        self.updates, self._saved_at = 0, None
        if state.global_step > 0:
            self.load(self.checkpoint or Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        weights = [weight.detach().float() for weight in self.parameters.values()]
        get_ema_multi_avg_fn(decay)(list(self.averages.values()), weights, None)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        if self._saved_at != self.updates:
            folder = Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            self.save(folder, write=args.should_save)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self.load(state.best_model_checkpoint)
        self._assign_averages()
        self.averages = {}

    @torch.no_grad()
    def _assign_averages(self) -> None:
        for name, average in self.averages.items():
            self.parameters[name].copy_(average)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the model in training has the averaged weights, if there is a moving average."""
        trained = {name: self.parameters[name].detach().clone() for name in self.averages}
        try:
            self._assign_averages()
            yield
        finally:
            with torch.no_grad():
                for name, weight in trained.items():
                    self.parameters[name].copy_(weight)

    def save(self, folder: str | os.PathLike[str], write: bool = True) -> None:
        """Write the average to a checkpoint's folder, unless `write` is false."""
        # Sharded weights (FSDP2) are gathered, so every process must call this, and one writes. A Trainer that renames
        # complete checkpoints calls it before that; otherwise `on_save` does.
        tensors: dict[str, torch.Tensor] = {}
        for name, average in self.averages.items():
            whole = average.full_tensor() if isinstance(average, DTensor) else average
            tensors |= {name: whole.cpu()} if write else {}
        if write:
            with new_file(Path(folder, MOVING_AVERAGE_FILE)) as partial:
                save_weights(tensors, partial, {"updates": str(self.updates)})
        self._saved_at = self.updates

    @torch.no_grad()
    def load(self, folder: str | os.PathLike[str]) -> None:
        """Read the average of a checkpoint."""
        path = Path(folder, MOVING_AVERAGE_FILE)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; this checkpoint was saved without a moving average.")
        file = open_weights(path)
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        expected = {name: list(average.shape) for name, average in self.averages.items()}
        for name in sorted(shapes.keys() | expected.keys()):
            if shapes.get(name) != expected.get(name):
                raise ValueError(
                    f"{path}: {name} has shape {shapes.get(name)}, but {expected.get(name)} in the model."
                )
        for name, average in self.averages.items():
            assign(average, file.get_tensor(name))
        self.updates = int(file.metadata()["updates"])
