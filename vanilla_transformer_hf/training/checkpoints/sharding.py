"""
Sharding of a model over processes (FSDP2), and states of optimizers: for any number of processes, and with settings
from the arguments, not from the checkpoint that a run continues from.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel


def shard(model: PreTrainedModel, settings: Any) -> None:
    """Shard a model's weights over all processes by Accelerate's plugin: each layer is one group, the rest another."""
    # Accelerate does not change a model that is already sharded. By itself it would put input and output embeddings
    # into one group and then find their matrix in a second one, because encoder and decoder share it here.
    if isinstance(model, FSDPModule):
        return
    policies: dict[str, Any] = {
        # Weights that stayed gathered after an evaluation of their moving average would be used in the next step.
        "reshard_after_forward": True,
        "offload_policy": settings.cpu_offload,
        "mp_policy": settings.mixed_precision_policy or MixedPrecisionPolicy(),
    }
    plain = type(model)
    for module in list(model.modules()):
        if type(module).__name__ in (model._no_split_modules or ()):
            fully_shard(module, **policies)
    fully_shard(model, **policies)
    # The code that is saved with a model is found by the name and module of its class.
    type(model).__name__, type(model).__module__ = plain.__name__, plain.__module__


def gather_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The full weights of a sharded model, in main memory, tied ones once; every process must call this."""
    return {
        name: _whole(value) for name, value in model.state_dict().items() if name not in model.all_tied_weights_keys
    }


def gather_optimizer_state(optimizer: Any) -> dict[str, Any]:
    """The full state of an optimizer, sharded (FSDP2) tensors in main memory; every process must call this."""
    state = optimizer.state_dict()
    whole = {
        index: {name: _whole(value) for name, value in values.items()} for index, values in state["state"].items()
    }
    return {**state, "state": whole}


def _whole(value: Any) -> Any:
    # One tensor at a time: a model may be sharded because no device can store all of it.
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def load_optimizer_state(optimizer: Any, state: dict[str, Any]) -> None:
    """Load a full state into an optimizer; each process keeps the part for its own parameters."""
    parameters: list[nn.Parameter] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sharded: dict[int, dict[str, Any]] = {}
    for index, values in state["state"].items():
        sharded[index] = dict(values)
        parameter: Any = parameters[index]
        for name, value in values.items():
            if isinstance(parameter, DTensor) and value.shape == parameter.shape:
                value = value.to(parameter.device)
                sharded[index][name] = distribute_tensor(value, parameter.device_mesh, parameter.placements)
    optimizer.load_state_dict({**state, "state": sharded})


def optimizer_settings(optimizer: Any) -> list[dict[str, Any]]:
    """The settings of the optimizer from the arguments, such as its learning rate, by parameter group."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def set_optimizer_settings(optimizer: Any, scheduler: Any, settings: list[dict[str, Any]]) -> None:
    """Give an optimizer and its schedule, just loaded from a checkpoint, the settings of this run."""
    if not isinstance(getattr(scheduler, "scheduler", scheduler), LambdaLR):
        # Their rates depend on a state in the checkpoint, not only on the step; changes are errors (`check_rate`).
        for group, own in zip(optimizer.param_groups, settings):
            group.update({name: value for name, value in own.items() if name not in ("lr", "initial_lr")})
        return
    schedule = getattr(scheduler, "scheduler", scheduler)
    schedule.base_lrs = [group["initial_lr"] for group in settings]
    rates = [rate * factor(schedule.last_epoch) for rate, factor in zip(schedule.base_lrs, schedule.lr_lambdas)]
    for group, own, rate in zip(optimizer.param_groups, settings, rates):
        group.update(own | {"lr": rate})
    schedule._last_lr = rates


@contextmanager
def whole_model_generates(model: Any, device: torch.device) -> Iterator[None]:
    """In this context a sharded model generates with a whole copy of itself in each process; all must enter it."""
    # This package's search reads the weights, and each step of transformers' loop would gather all of them.
    whole: Any = AutoModelForSeq2SeqLM.from_config(model.config, trust_remote_code=False)
    whole.load_state_dict(gather_weights(model), strict=False)  # tied matrices are there once
    whole.to(device=device, dtype=model.dtype).eval()

    def generate(*args: Any, **kwargs: Any) -> Any:
        whole.generation_config = model.generation_config
        return whole.generate(*args, **kwargs)

    before = vars(model).get("generate")
    model.generate = generate
    try:
        yield
    finally:
        del model.generate
        if before is not None:
            model.generate = before
