"""Settings of an optimizer that come from the arguments, not from the checkpoint that a run continues from."""

from typing import Any

from torch.optim.lr_scheduler import LambdaLR


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
