"""
Averages of weights: of the last or the best checkpoints of a run ("Attention Is All You Need", section 6.1), and an
exponential moving average over the steps. Over safetensors, in which shared matrices stand once.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import distributed, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy, SaveStrategy
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ..common.files import check_new, new_folder
from ..model.configuration_vanilla_transformer import VERSION_FIELD, VanillaTransformerConfig
from ..publishing.model_card import (
    FACTS_FILE,
    TRAINER_STATE_FILE,
    CardFacts,
    write_card,
)


MOVING_AVERAGE_FILE = "moving_average.safetensors"

# What a model's folder holds beside its weights. Optimizer states are not part of a model, nor is what was measured
# of one checkpoint true of an average.
CARRIED_ALONG = {".json", ".py", ".txt", ".model", ".spm", ".vocab", ".jinja"}
LEFT_BEHIND = {TRAINER_STATE_FILE, SAFE_WEIGHTS_INDEX_NAME, FACTS_FILE}

# Fields of a config that say nothing about the weights.
IGNORED_FIELDS = {"transformers_version", VERSION_FIELD, "_name_or_path"}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such file; is {path.parent} a checkpoint?") from error
    except ValueError as error:
        raise ValueError(f"{path}: damaged JSON ({error}).") from error


def _open_weights(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such file; only weights saved as safetensors are read.") from error
    except SafetensorError as error:
        raise ValueError(f"{path}: damaged or incomplete ({error}).") from error


def _save_weights(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]):
    try:
        save_file(tensors, path, metadata={"format": "pt", **metadata})
    except SafetensorError as error:
        raise OSError(f"{path}: cannot be written ({error}).") from error


class _Checkpoint:
    """
    The weights of a folder, in one file or several: `files`, their names, and `tensors`: the name of each with that
    of its file and its type and shape, such as "F32 [99, 32]".
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        self.config = _read_json(self.folder / CONFIG_NAME)
        self.files, index = [SAFE_WEIGHTS_NAME], self.folder / SAFE_WEIGHTS_INDEX_NAME
        if not (self.folder / SAFE_WEIGHTS_NAME).is_file() and index.is_file():
            self.files = sorted({Path(name).name for name in _read_json(index)["weight_map"].values()})
        self.tensors = {}
        for name in self.files:
            file = _open_weights(self.folder / name)
            for tensor in file.keys():  # noqa: SIM118
                stored = file.get_slice(tensor)
                self.tensors[tensor] = (name, f"{stored.get_dtype()} {stored.get_shape()}")

    def path(self, tensor: str) -> Path:
        return self.folder / self.tensors[tensor][0]

    def read(self, tensor: str) -> torch.Tensor:
        # Opened anew each time: what was read of an open file stays mapped into memory.
        return _open_weights(self.path(tensor)).get_tensor(tensor)


def _check_same_model(one: _Checkpoint, other: _Checkpoint):
    for field in sorted(one.config.keys() | other.config.keys()):
        ours, theirs = one.config.get(field), other.config.get(field)
        if ours != theirs and field not in IGNORED_FIELDS:
            raise ValueError(
                f"{other.folder / CONFIG_NAME}: {field} is {theirs!r}, but {ours!r} in {one.folder}; only checkpoints "
                "of one model have an average."
            )
    for tensor in sorted(one.tensors.keys() ^ other.tensors.keys()):
        having, lacking = (one, other) if tensor in one.tensors else (other, one)
        raise ValueError(f"{lacking.folder}: holds no tensor {tensor}, but {having.path(tensor)} does.")
    for tensor in one.tensors:
        ours, theirs = one.tensors[tensor][1], other.tensors[tensor][1]
        if ours != theirs:
            raise ValueError(f"{other.path(tensor)}: {tensor} is {theirs}, but {ours} in {one.path(tensor)}.")


def _open_checkpoints(folders: Sequence[str | os.PathLike]) -> list[_Checkpoint]:
    if not folders:
        raise ValueError("No checkpoints to average.")
    checkpoints = [_Checkpoint(folder) for folder in folders]
    for checkpoint in checkpoints[1:]:
        _check_same_model(checkpoints[0], checkpoint)
    return checkpoints


def _mean(checkpoints: Sequence[_Checkpoint], tensor: str) -> torch.Tensor:
    """The mean, summed in float64, in the type in which the tensor is stored; whole numbers are the last one's."""
    last = checkpoints[-1].read(tensor)
    if not last.is_floating_point():
        return last
    total = torch.zeros(last.shape, dtype=torch.float64)
    for checkpoint in checkpoints:
        value = checkpoint.read(tensor)
        if value.isnan().any():
            raise ValueError(f"{checkpoint.path(tensor)}: {tensor} holds NaN.")
        total += value
    return total.div_(len(checkpoints)).to(last.dtype)


def average_checkpoints(folders: Sequence[str | os.PathLike], output: str | os.PathLike) -> Path:
    """
    Write a folder like those given whose weights are their mean.

    Config, generation config, tokenizer and code are those of the last folder; the card says what is known of the run
    and what was averaged. Weights are read tensor by tensor and
    written file by file, so that one of the first folder's files is the most that is held in memory. The folder takes
    its name when it is whole.

    Args:
        folders: Checkpoints of one model; the weights as safetensors, in one file or several.
        output: A new folder.

    Raises:
        FileNotFoundError: A folder is no checkpoint, or has no safetensors.
        ValueError: A file is damaged; the models differ in a field of their config or in a tensor's name, type or
            shape; a tensor holds NaN; there is something at `output` already, or another process is writing it.
        OSError: A file cannot be written.
    """
    output = Path(output)
    check_new(output)
    checkpoints = _open_checkpoints(folders)
    first, last = checkpoints[0], checkpoints[-1]
    origin = {"average_of": ", ".join(checkpoint.folder.name for checkpoint in checkpoints)}
    with new_folder(output) as folder:
        for file in first.files:
            names = [tensor for tensor, (place, _) in first.tensors.items() if place == file]
            _save_weights({tensor: _mean(checkpoints, tensor) for tensor in names}, folder / file, origin)
        for path in last.folder.iterdir():
            if path.is_file() and path.suffix in CARRIED_ALONG and path.name not in LEFT_BEHIND:
                shutil.copyfile(path, folder / path.name)
        if SAFE_WEIGHTS_NAME not in first.files:
            shutil.copyfile(first.folder / SAFE_WEIGHTS_INDEX_NAME, folder / SAFE_WEIGHTS_INDEX_NAME)
        if last.config.get("model_type") == VanillaTransformerConfig.model_type:
            names = [checkpoint.folder.name for checkpoint in checkpoints]
            run: dict[str, Any] = {"minutes": None, "co2": None, "scored": [], "conversion": None}
            write_card(replace(CardFacts.read(last.folder), name=output.name, average_of=names, **run), folder)
    return output


def _assign(target: torch.Tensor, value: torch.Tensor):
    """Copy the values of a whole tensor into one that may be sharded (FSDP2); then every process has to call this."""
    if isinstance(target, DTensor):
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    target.copy_(value)


@torch.no_grad()
def load_average(model: nn.Module, folders: Sequence[str | os.PathLike]):
    """
    Set a model's weights to the mean of those of its checkpoints, tensor by tensor; shared matrices stay shared.

    Raises:
        FileNotFoundError, ValueError: As `average_checkpoints`; or the model has no such tensor.
    """
    checkpoints = _open_checkpoints(folders)
    weights = model.state_dict()
    for tensor in checkpoints[0].tensors:
        if tensor not in weights:
            raise ValueError(f"{checkpoints[0].path(tensor)}: the model has no tensor {tensor}.")
        _assign(weights[tensor], _mean(checkpoints, tensor))


def _find_checkpoints(run_folder: str | os.PathLike) -> dict[int, Path]:
    """The checkpoints of a run by their steps, in `run_folder`/checkpoints or in `run_folder` itself."""
    folder = Path(run_folder)
    if (folder / "checkpoints").is_dir():
        folder /= "checkpoints"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder.")
    found = {}
    for path in folder.iterdir():
        name = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name)
        if name and path.is_dir():
            found[int(name[1])] = path
    if not found:
        raise FileNotFoundError(f"{folder}: no folders {PREFIX_CHECKPOINT_DIR}-<step> in it.")
    return found


def _rank(checkpoints: dict[int, Path], metric: str | None) -> list[int]:
    """Steps of the checkpoints, best first by a metric (the newer of two equals); without a metric, newest first."""
    if metric is None:
        return sorted(checkpoints, reverse=True)
    scores: dict[int, float] = {}
    measured: set[str] = set()
    for step, folder in checkpoints.items():
        for entry in _read_json(folder / TRAINER_STATE_FILE)["log_history"]:
            if entry["step"] == step:
                measured |= {name for name in entry if name.startswith("eval_")}
                scores |= {step: entry[metric]} if metric in entry else {}
    if not scores:
        raise ValueError(
            f"{next(iter(checkpoints.values())).parent}: no checkpoint was evaluated with {metric}; "
            f"measured at their steps: {', '.join(sorted(measured)) or 'nothing'}."
        )
    sign = -1 if metric.endswith("loss") else 1
    return sorted(scores, key=lambda step: (sign * scores[step], step), reverse=True)


def select_checkpoints(
    run_folder: str | os.PathLike, *, last: int | None = None, best: int | None = None, metric: str = "eval_bleu"
) -> list[Path]:
    """
    The last or the best checkpoints of a run, oldest first.

    Args:
        run_folder: The `output_dir` of a run, or the folder that holds its checkpoint-<step> folders.
        last: How many of the newest.
        best: How many of those with the best `metric` in the evaluation at their step, as trainer_state.json has it.
        metric: Higher is better, unless its name ends in "loss".

    Raises:
        FileNotFoundError: There is no such folder, or it holds no checkpoints.
        ValueError: Not exactly one of `last` and `best` is given, or there are fewer checkpoints than that.
    """
    count = last or best
    if (last is None) == (best is None) or count is None or count < 1:
        raise ValueError(f"last={last}, best={best}: give one of the two, 1 or more.")
    found = _find_checkpoints(run_folder)
    ranked = _rank(found, metric if best else None)
    if len(ranked) < count:
        which = f"checkpoints were evaluated with {metric}" if best else "checkpoints"
        raise ValueError(f"{run_folder}: {len(ranked)} {which}, but {count} are to be averaged.")
    return [found[step] for step in sorted(ranked[:count])]


class AverageCheckpointsCallback(TrainerCallback):
    """
    At the end of training, gives the model the average of the last or of the best checkpoints of the run.

    The Trainer has to keep them: `save_total_limit` is checked before training. `folders` then are those that were
    averaged, all that there are if a run has fewer. Every process reads the checkpoints.

    Args:
        last, best, metric: As in `select_checkpoints`.

    Raises:
        ValueError: Not exactly one of `last` and `best` is given; or, when the Trainer is made or training begins,
            its arguments would not keep the checkpoints.
    """

    folders: list[Path]

    def __init__(self, last: int | None = None, best: int | None = None, metric: str = "eval_bleu"):
        self.count = last or best or 0
        if (last is None) == (best is None) or self.count < 1:
            raise ValueError(f"last={last}, best={best}: give one of the two, 1 or more.")
        self.metric = metric if best else None
        self.folders = []

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        limit = args.save_total_limit or 0
        # The host keeps the best checkpoint too, as one of the number.
        needed = self.count + (args.metric_for_best_model is not None)
        if args.save_strategy == SaveStrategy.NO:
            raise ValueError("save_strategy=no leaves no checkpoints to average.")
        if self.metric is not None and limit > 0:
            raise ValueError(f"save_total_limit={limit}: an average of the best checkpoints needs all of them kept.")
        if 0 < limit < needed:
            raise ValueError(f"save_total_limit={limit}: averaging {self.count} checkpoints needs {needed} or more.")
        if self.metric is not None and args.eval_strategy == IntervalStrategy.NO:
            raise ValueError("eval_strategy=no leaves no scores to tell the best checkpoints by.")

    on_train_begin = on_init_end

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ):
        if model is None:
            return
        if distributed.is_initialized():
            distributed.barrier()  # the main process may still be writing the last one
        # Later ones are left over from a run that was taken up again from an earlier step.
        found = {
            step: path for step, path in _find_checkpoints(str(args.output_dir)).items() if step <= state.global_step
        }
        self.folders = [found[step] for step in sorted(_rank(found, self.metric)[: self.count])]
        load_average(model, self.folders)


class MovingAverageCallback(TrainerCallback):
    """
    Keeps an exponential moving average of the trained weights; at the end of training it is what the model has.

    After update t, average = d · average + (1 - d) · weights with d = min(decay, (1 + t) / (10 + t)), so that the
    first, untrained weights are soon forgotten. It is held in float32, saved in every checkpoint as
    moving_average.safetensors and read back when training continues from one. With `load_best_model_at_end` the model
    gets the average of the best checkpoint. Evaluation uses it inside `applied()`.

    Args:
        decay: Weight of the past, from 0 to below 1.
        checkpoint: The folder that training continues from; if not given, checkpoint-<step> in `output_dir`.

    Raises:
        ValueError: `decay` is out of range; or the checkpoint that training continues from holds no moving average,
            or that of another model.
    """

    def __init__(self, decay: float, checkpoint: str | os.PathLike | None = None):
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: the decay of a moving average lies from 0 to below 1.")
        self.decay = decay
        self.checkpoint = checkpoint
        self.updates = 0
        self.parameters: dict[str, nn.Parameter] = {}
        self.averages: dict[str, torch.Tensor] = {}
        self._saved_at: int | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ):
        if model is None:
            return
        self.parameters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.averages = {
            name: weight.detach().to(torch.float32, copy=True) for name, weight in self.parameters.items()
        }
        self.updates, self._saved_at = 0, None
        if state.global_step > 0:
            self.load(self.checkpoint or Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        weights = [weight.detach().float() for weight in self.parameters.values()]
        get_ema_multi_avg_fn(decay)(list(self.averages.values()), weights, None)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if self._saved_at != self.updates:
            folder = Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            self.save(folder, write=args.should_save)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self.load(state.best_model_checkpoint)
        self._assign_averages()
        self.averages = {}

    @torch.no_grad()
    def _assign_averages(self):
        for name, average in self.averages.items():
            self.parameters[name].copy_(average)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this context lasts, the model that is being trained has the averaged weights; else nothing happens."""
        trained = {name: self.parameters[name].detach().clone() for name in self.averages}
        try:
            self._assign_averages()
            yield
        finally:
            with torch.no_grad():
                for name, weight in trained.items():
                    self.parameters[name].copy_(weight)

    def save(self, folder: str | os.PathLike, write: bool = True):
        """
        Write the average to a checkpoint's folder, beside and renamed, unless `write` is false.

        Sharded weights (FSDP2) are gathered, so every process has to call this, and one of them to write. A Trainer
        that gives a checkpoint its name when it is whole calls it before that; else `on_save` does.

        Raises:
            OSError: The file cannot be written.
        """
        tensors: dict[str, torch.Tensor] = {}
        for name, average in self.averages.items():
            whole = average.full_tensor() if isinstance(average, DTensor) else average
            tensors |= {name: whole.cpu()} if write else {}
        if write:
            path = Path(folder, MOVING_AVERAGE_FILE)
            partial = path.with_name(f"{path.name}.partial")
            try:
                _save_weights(tensors, partial, {"updates": str(self.updates)})
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        self._saved_at = self.updates

    @torch.no_grad()
    def load(self, folder: str | os.PathLike):
        """
        Read the average of a checkpoint.

        Raises:
            FileNotFoundError: The checkpoint holds none.
            ValueError: The file is damaged, or does not fit the model.
        """
        path = Path(folder, MOVING_AVERAGE_FILE)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; this checkpoint was saved without a moving average.")
        file = _open_weights(path)
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        expected = {name: list(average.shape) for name, average in self.averages.items()}
        for name in sorted(shapes.keys() | expected.keys()):
            if shapes.get(name) != expected.get(name):
                raise ValueError(
                    f"{path}: {name} has shape {shapes.get(name)}, but {expected.get(name)} in the model."
                )
        for name, average in self.averages.items():
            _assign(average, file.get_tensor(name))
        self.updates = int(file.metadata()["updates"])
