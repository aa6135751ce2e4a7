"""
Averages of the weights of a run: of its checkpoints ("Attention Is All You Need", 6.1), tensor by tensor, where shared
ones occur once; and of all its steps, with weights that fall exponentially.
"""

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from filecmp import cmp
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import distributed, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ...common.files import check_new, new_file, new_folder
from ...common.opening import LARGEST_VOCABULARY, is_own
from ...common.settings import LARGEST_LOG, read_object
from ...evaluation.scores import is_meaningful
from ...model.configuration_vanilla_transformer import VERSION_FIELD
from ...model.tokenization_vanilla_transformer import TOKENIZER_FILES
from ...publishing.model_card import FACTS_FILE, TRAINER_STATE_FILE, CardFacts, write_card
from ...publishing.weight_files import weight_paths
from .files import checkpoints_in


logger = logging.getLogger(__name__)

# Fields of a config that do not affect the weights.
IGNORED_FIELDS = {"transformers_version", VERSION_FIELD, "_name_or_path"}


def open_weights(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path}: damaged or incomplete ({error}).") from error


def save_weights(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt", **metadata})
    except SafetensorError as error:
        raise OSError(f"{path}: cannot be written ({error}).") from error


class CheckpointWeights:
    """The weights of a folder; `tensors` maps each name to its file, type and shape, such as "F32 [99, 32]"."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        path = self.folder / CONFIG_NAME
        try:
            self.config = read_object(path, {})
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{path}: no such file; is {self.folder} a checkpoint?") from error
        except ValueError as error:
            raise ValueError(f"{path}: damaged JSON ({error}).") from error
        self.files = [path.name for path in weight_paths(self.folder)]
        self.tensors = {}
        for name in self.files:
            file = open_weights(self.folder / name)
            for tensor in file.keys():  # noqa: SIM118
                stored = file.get_slice(tensor)
                self.tensors[tensor] = (name, f"{stored.get_dtype()} {stored.get_shape()}")

    def path(self, tensor: str) -> Path:
        return self.folder / self.tensors[tensor][0]

    def read(self, tensor: str) -> torch.Tensor:
        # Opened each time: pages read from an open file stay mapped into memory.
        stored: torch.Tensor = open_weights(self.path(tensor)).get_tensor(tensor)
        return stored


def open_checkpoints(folders: Sequence[str | os.PathLike[str]]) -> list[CheckpointWeights]:
    if not folders:
        raise ValueError("No checkpoints to average.")
    one, *others = checkpoints = [CheckpointWeights(folder) for folder in folders]
    for other in others:  # they are of one model
        for field in sorted(one.config.keys() | other.config.keys()):
            ours, theirs = one.config.get(field), other.config.get(field)
            if ours != theirs and field not in IGNORED_FIELDS:
                raise ValueError(
                    f"{other.folder / CONFIG_NAME}: {field} is {theirs!r}, but {ours!r} in {one.folder}; only "
                    "checkpoints of one model have an average."
                )
        for tensor in sorted(one.tensors.keys() ^ other.tensors.keys()):
            having, lacking = (one, other) if tensor in one.tensors else (other, one)
            raise ValueError(f"{lacking.folder}: holds no tensor {tensor}, but {having.path(tensor)} does.")
        for tensor in one.tensors:
            ours, theirs = one.tensors[tensor][1], other.tensors[tensor][1]
            if ours != theirs:
                raise ValueError(f"{other.path(tensor)}: {tensor} is {theirs}, but {ours} in {one.path(tensor)}.")
        for name in TOKENIZER_FILES.values():  # with other tokens, rows of the same shape mean something else
            ours, theirs = one.folder / name, other.folder / name
            if not (ours.is_file() and theirs.is_file()) or cmp(ours, theirs, shallow=False):
                continue
            both = [read_object(path, {"model": dict}, LARGEST_VOCABULARY) for path in (ours, theirs)]
            tokens = [(each["model"].get("vocab"), each.get("added_tokens")) for each in both]
            if tokens[0] != tokens[1]:
                raise ValueError(
                    f"{theirs}: its tokens are not those of {ours}; only checkpoints of one model have an average."
                )
    return checkpoints


def mean_of(checkpoints: Sequence[CheckpointWeights], tensor: str) -> torch.Tensor:
    """The mean, summed in float64, in the stored type; integers and drawn features are the last checkpoint's."""
    last = checkpoints[-1].read(tensor)
    if not last.is_floating_point() or tensor.endswith(".random_features"):
        return last
    total = torch.zeros(last.shape, dtype=torch.float64)
    for checkpoint in checkpoints:
        value = checkpoint.read(tensor)
        if value.isnan().any():
            raise ValueError(f"{checkpoint.path(tensor)}: {tensor} holds NaN.")
        total += value
    return total.div_(len(checkpoints)).to(last.dtype)


def assign(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a full tensor into one that may be sharded (FSDP2); then every process must call this."""
    if isinstance(target, DTensor):
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    target.copy_(value)


# Files of a model's folder beside its weights. Optimizer states are not part of a model, and measurements of one
# checkpoint are not true of an average.
CARRIED_ALONG = {".json", ".py", ".txt", ".model", ".spm", ".vocab", ".jinja"}
LEFT_BEHIND = {TRAINER_STATE_FILE, SAFE_WEIGHTS_INDEX_NAME, FACTS_FILE}


def average_checkpoints(folders: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Path:
    """Write a model folder, complete or not at all, whose weights are the mean of those of the given folders."""
    # Config, generation config, tokenizer and code are copied from the last folder; the card describes the run and the
    # average. At most one file of the first folder is in memory.
    output = Path(output)
    check_new(output)
    checkpoints = open_checkpoints(folders)
    first, last = checkpoints[0], checkpoints[-1]
    if any(tensor.endswith(".gates.log_alpha") for tensor in first.tensors):
        raise ValueError(f"{first.folder} has gates of heads (head_gates), and is no model: train with average_last.")
    origin = {"average_of": ", ".join(checkpoint.folder.name for checkpoint in checkpoints)}
    with new_folder(output) as folder:
        for file in first.files:
            names = [tensor for tensor, (place, _) in first.tensors.items() if place == file]
            save_weights({tensor: mean_of(checkpoints, tensor) for tensor in names}, folder / file, origin)
        for path in last.folder.iterdir():
            if path.is_file() and path.suffix in CARRIED_ALONG and path.name not in LEFT_BEHIND:
                shutil.copyfile(path, folder / path.name)
        if SAFE_WEIGHTS_NAME not in first.files:
            shutil.copyfile(first.folder / SAFE_WEIGHTS_INDEX_NAME, folder / SAFE_WEIGHTS_INDEX_NAME)
        if is_own(last.config):
            names = [checkpoint.folder.name for checkpoint in checkpoints]
            run: dict[str, Any] = {"minutes": None, "co2": None, "scored": [], "conversion": None}
            known = CardFacts.read(last.folder).inherited()
            write_card(replace(known, name=output.name, average_of=names, **run), folder)
    return output


@torch.no_grad()
def load_average(model: nn.Module, folders: Sequence[str | os.PathLike[str]]) -> None:
    """Set a model's weights to the mean of those of its checkpoints, tensor by tensor; shared matrices stay shared."""
    checkpoints = open_checkpoints(folders)
    weights = model.state_dict()
    for tensor in checkpoints[0].tensors:
        if tensor not in weights:
            raise ValueError(f"{checkpoints[0].path(tensor)}: the model has no tensor {tensor}.")
        assign(weights[tensor], mean_of(checkpoints, tensor))


def _find_checkpoints(run_folder: str | os.PathLike[str]) -> dict[int, Path]:
    """The checkpoints of a run by their steps, in `run_folder`/checkpoints or in `run_folder` itself."""
    folder = Path(run_folder)
    if (folder / "checkpoints").is_dir():
        folder /= "checkpoints"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder.")
    if not (found := checkpoints_in(folder)):
        raise FileNotFoundError(f"{folder}: no folders {PREFIX_CHECKPOINT_DIR}-<step> in it.")
    return found


def _rank(checkpoints: dict[int, Path], metric: str | None) -> list[int]:
    """Steps of the checkpoints, best first by a metric (the newer of two equals); without a metric, newest first."""
    if metric is None:
        return sorted(checkpoints, reverse=True)
    sign = -1 if metric.endswith("loss") else 1
    scores: dict[int, tuple[bool, float]] = {}
    measured: set[str] = set()
    for step, folder in checkpoints.items():
        path = folder / TRAINER_STATE_FILE
        for entry in read_object(path, {"log_history": list}, LARGEST_LOG)["log_history"]:
            if not isinstance(entry, dict) or not isinstance(entry.get(metric, 0), (int, float)):
                raise ValueError(f"{path} is damaged: expected log_history to hold objects with numbers")
            if entry.get("step") == step:
                measured |= {name for name in entry if name.startswith("eval_")}
                scores |= {step: (is_meaningful(entry, metric), sign * entry[metric])} if metric in entry else {}
    if not scores:
        raise ValueError(
            f"{next(iter(checkpoints.values())).parent}: no checkpoint was evaluated with {metric}; "
            f"measured at their steps: {', '.join(sorted(measured)) or 'nothing'}."
        )
    return sorted(scores, key=lambda step: (scores[step], step), reverse=True)


def select_checkpoints(
    run_folder: str | os.PathLike[str], *, last: int | None = None, best: int | None = None, metric: str = "eval_bleu"
) -> list[Path]:
    """The last or the best checkpoints of a run, oldest first; of a `metric` higher is better, unless it is a loss."""
    count = last or best
    if (last is None) == (best is None) or count is None or count < 1:
        raise ValueError(f"last={last}, best={best}: give one of the two, 1 or more.")
    found = _find_checkpoints(run_folder)
    ranked = _rank(found, metric if best else None)
    if len(ranked) < count:
        which = f"checkpoints were evaluated with {metric}" if best else "checkpoints"
        raise ValueError(f"{run_folder}: {len(ranked)} {which}, but {count} are to be averaged.")
    first, *others = chosen = sorted(ranked[:count])
    path = found[chosen[-1]] / TRAINER_STATE_FILE
    if last and others and first == min(found) and path.is_file():  # which `save_total_limit` keeps, if it is the best
        state = read_object(path, {"log_history": list}, LARGEST_LOG)
        evaluated = [entry.get("step", 0) for entry in state["log_history"] if "eval_loss" in entry]
        if state.get("best_global_step") == first and any(first < step < others[0] for step in evaluated):
            told = "%s is kept as the best of the run, and may not be one of the last %d: later ones may be deleted."
            logger.warning(told, found[first], count)
    return [found[step] for step in chosen]


class AverageCheckpointsCallback(TrainerCallback):
    """At the end of training, sets the model to the average of `count` checkpoints, those in `folders`."""

    # The last of the run, or the best by `metric`. The Trainer must keep them: `check_callbacks` looks at
    # `save_total_limit`. Every process reads the checkpoints.

    def __init__(self, count: int, metric: str | None = None):
        self.count, self.metric = count, metric
        self.folders: list[Path] = []

    def on_train_end(self, args: Any, state: TrainerState, control: Any, model: Any = None, **_: Any) -> None:
        if distributed.is_initialized():
            distributed.barrier()  # the main process may still be writing the last one
        # Later ones are left over from a run that was continued from an earlier step.
        found = {step: path for step, path in _find_checkpoints(args.output_dir).items() if step <= state.global_step}
        self.folders = [found[step] for step in sorted(_rank(found, self.metric)[: self.count])]
        load_average(model, self.folders)


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
