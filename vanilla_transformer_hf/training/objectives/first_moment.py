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
                for weight in (each for each in group["params"] if each.grad is not None):
                    self.param_groups = [{**group, "params": [weight]}]
                    state = self.state[weight]  # empty before the first step
                    if state:
                        state["exp_avg"] = state["exp_avg"].to(weight.dtype)
                    super().step()
                    state["exp_avg"] = state["exp_avg"].bfloat16()
        finally:
            self.param_groups = groups
        return loss
