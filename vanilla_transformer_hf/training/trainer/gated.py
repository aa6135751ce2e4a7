"""The Trainer of models whose attention heads have gates, and the removal of the heads that it has closed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..build import say
from ..objectives.head_gates import add_head_gates, expected_open_heads, folded, gated_projections, remove_closed_heads
from .translation import TranslationTrainer


class GatedTrainer(TranslationTrainer):
    """
    A `TranslationTrainer` with a hard-concrete gate on each head (`head_gates.py`).

    The loss is that of `TranslationTrainer` plus λ · Σ P(gate ≠ 0) over all heads, λ = `args.head_gates`. The gates
    have their own learning rate, `args.head_gates_learning_rate`, and are in the checkpoints' model.safetensors. After
    `train`, `model` is an ordinary model without the closed heads.

    Raises:
        ValueError: The run is sharded (FSDP).
    """

    def __init__(self, *args: Any, model: Any, **kwargs: Any):
        add_head_gates(model)
        super().__init__(*args, model=model, **kwargs)
        if self.is_fsdp_enabled:
            raise ValueError(f"head_gates={self.args.head_gates}: sharded runs cannot have gates; train without fsdp.")

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is not None:
            return self.optimizer
        optimizer = super().create_optimizer(model)
        gates = [projection.gates.log_alpha for projection in gated_projections(self.model).values()]
        theirs = {id(parameter) for parameter in gates}
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in theirs]
        rate = self.args.head_gates_learning_rate
        optimizer.add_param_group({"params": gates, "lr": rate, "weight_decay": 0.0})
        return optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not model.training or return_outputs:
            return found
        # With num_items_in_batch the losses of accumulated batches are summed, without it transformers takes the mean.
        batches = 1 if num_items_in_batch is None else self.current_gradient_accumulation_steps
        return found + self.args.head_gates / batches * expected_open_heads(self.model)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        with super()._evaluating(), folded(self.model):
            yield

    def train(self, *args: Any, **kwargs: Any) -> Any:
        result = super().train(*args, **kwargs)
        pruned = remove_closed_heads(self.model)
        self.model = self.model_wrapped = self.callback_handler.model = pruned.model.to(self.args.device)
        told = f"none of {pruned.heads[0]} attention heads" if pruned.heads[0] == pruned.heads[1] else str(pruned)
        say(self.args, f"closed by gates and removed: {told}.")
        about = f"Pruned by trained gates (hard concrete, penalty {self.args.head_gates:g} per open head): {told}."
        self.facts = replace(self.facts, compression=[*self.facts.compression, about])
        return result
