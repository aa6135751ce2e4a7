"""
Adam whose first moment is in bfloat16 between steps, two bytes less for each weight.

A step changes the first moment by a tenth (1 - β₁ = 0.1), and rounding to bfloat16 by at most 2⁻⁹, so no step is lost.
The second moment, which a step changes by a fiftieth or less, stays in float32.
"""

from collections.abc import Callable
from typing import Any

import torch


# Values of `TrainingArguments.optim` that it can replace.
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")


class AdamWBfloat16Moment(torch.optim.AdamW):
    """`torch.optim.AdamW` that rounds first moments after each step, one weight at a time: one is in memory twice."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        groups = self.param_groups
        try:
            for group in groups:
                for weight in group["params"]:
                    self.param_groups = [{**group, "params": [weight]}]
                    self._step_of(weight)
        finally:
            self.param_groups = groups
        return loss

    def _step_of(self, weight: torch.Tensor) -> None:
        if weight.grad is None:
            return
        state = self.state[weight]  # empty before the first step
        if state:
            state["exp_avg"] = state["exp_avg"].to(weight.dtype)
        super().step()
        state["exp_avg"] = state["exp_avg"].bfloat16()
