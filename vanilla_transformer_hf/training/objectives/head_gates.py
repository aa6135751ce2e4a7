"""
Hard-concrete gates: trained factors of attention heads, many of which become exactly zero (Voita et al. 2019, arXiv
1905.09418, section 5.1). Equations and constants are those of Louizos et al. 2018, arXiv 1712.01312, section 2.2:

    u ~ U(0, 1),  s = σ((log u - log(1 - u) + log α) / β),  z = min(1, max(0, s (ζ - γ) + γ))    in training
    z = min(1, max(0, σ(log α) (ζ - γ) + γ))                                                     in evaluation
    P(z ≠ 0) = σ(log α - β log(-γ / ζ))                                                          in the penalty

A gate belongs to the output projection of an attention, whose input it multiplies by a hook: the model's own code has
no gates, and its weights keep their names.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from ..pruning import Pruned, attentions, prune


# β, γ and ζ: temperature, and the limits to which s is stretched.
TEMPERATURE, LOWEST, HIGHEST = 2 / 3, -0.1, 1.1
# log α at the start. From log 11 on a gate is 1 in evaluation, so that training begins at the given model.
START = 2.5


class HeadGates(nn.Module):
    """The gates of an attention's H heads; one sample is shared by all sentences of a batch."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((num_heads,), START))
        self.is_folded = False

    def sample(self) -> torch.Tensor:
        """Random gates z (H) of training."""
        noise = torch.rand_like(self.log_alpha).logit()
        return _stretch(((noise + self.log_alpha) / TEMPERATURE).sigmoid())

    def fixed(self) -> torch.Tensor:
        """The gates z (H) of evaluation."""
        return _stretch(self.log_alpha.sigmoid())

    def open_probability(self) -> torch.Tensor:
        """P(z ≠ 0) of each gate (H)."""
        return (self.log_alpha - TEMPERATURE * math.log(-LOWEST / HIGHEST)).sigmoid()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The outputs of all heads (..., H d_v), each multiplied by its gate."""
        if self.is_folded:
            return values
        gates = self.sample() if self.training else self.fixed()
        heads = values.reshape(*values.shape[:-1], len(gates), -1)  # (..., H, d_v)
        return (heads * gates.to(values.dtype)[:, None]).flatten(-2)


def _stretch(share: torch.Tensor) -> torch.Tensor:
    return (share * (HIGHEST - LOWEST) + LOWEST).clamp(0, 1)


def add_head_gates(model: Any) -> None:
    """Give each head of a translation model of this package an open gate, whose parameters are the model's."""
    for attention in attentions(model).values():
        projection = attention.out_proj
        gates = HeadGates(attention.num_heads).to(projection.weight.device)
        projection.gates = gates.train(projection.training)
        projection.hook_of_gates = projection.register_forward_pre_hook(
            lambda projection, arguments: (projection.gates(arguments[0]), *arguments[1:])
        )


def gated_projections(model: Any) -> dict[tuple[str, int], Any]:
    """The output projections with gates, by ("encoder", "decoder" or "cross", layer)."""
    found = {key: attention.out_proj for key, attention in attentions(model).items()}
    return {key: projection for key, projection in found.items() if hasattr(projection, "gates")}


def expected_open_heads(model: Any) -> torch.Tensor:
    """The sum of P(z ≠ 0) over all heads: the expected L0 norm of the gates, a number."""
    gates = [projection.gates for projection in gated_projections(model).values()]
    return torch.cat([each.open_probability() for each in gates]).sum()


@torch.no_grad()
def _fold(projection: Any) -> None:
    gates = projection.gates.fixed()
    projection.weight.mul_(gates.repeat_interleave(projection.in_features // len(gates)))


@contextmanager
def folded(model: Any) -> Iterator[None]:
    """In this context the gates of evaluation are in the weights: the search reads these and calls no hooks."""
    projections = gated_projections(model).values()
    before = [projection.weight.detach().clone() for projection in projections]
    try:
        for projection in projections:
            _fold(projection)
            projection.gates.is_folded = True
        yield
    finally:
        for projection, weight in zip(projections, before):
            projection.gates.is_folded = False
            with torch.no_grad():
                projection.weight.copy_(weight)


class HeadGatesCallback(TrainerCallback):
    """Gives the Trainer's model a gate on each head; `TranslationTrainer` calls it where there is no hook."""

    # The gates are in the checkpoints' model.safetensors. After `train`, the Trainer's model is an ordinary one
    # without the closed heads. The loss is that of the model plus `penalty` · Σ P(gate ≠ 0) over all heads;
    # `learning_rate` is the peak of the gates' own.

    def __init__(self, penalty: float, learning_rate: float):
        self.penalty, self.learning_rate = penalty, learning_rate
        self.model: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.model = model
        add_head_gates(model)

    def add_to(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the gates to a group of their own, with their learning rate and without weight decay."""
        gates = [projection.gates.log_alpha for projection in gated_projections(self.model).values()]
        theirs = {id(parameter) for parameter in gates}
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in theirs]
        optimizer.add_param_group({"params": gates, "lr": self.learning_rate, "weight_decay": 0.0})

    def loss(self, batches: int) -> torch.Tensor:
        """The penalty of one of `batches` accumulated batches, whose losses are summed."""
        return self.penalty / batches * expected_open_heads(self.model)

    def applied(self) -> AbstractContextManager[None]:
        """In this context the gates of evaluation are in the weights."""
        return folded(self.model)

    def remove(self) -> tuple[Any, str]:
        """The model without gates and closed heads, and how many were closed, in words."""
        pruned = remove_closed_heads(self.model)
        self.model = pruned.model
        none = pruned.heads[0] == pruned.heads[1]
        return pruned.model, f"none of {pruned.heads[0]} attention heads" if none else str(pruned)


def remove_closed_heads(model: Any) -> Pruned:
    """A smaller, ordinary model whose outputs are those of the gated one, which is used up, in evaluation."""
    # An attention whose gates are all closed keeps the head with the largest α, with zeros in its output projection.
    kept = {}
    for key, projection in gated_projections(model).items():
        gates = projection.gates
        kept[key] = gates.fixed().nonzero().flatten().tolist() or [int(gates.log_alpha.argmax())]
        _fold(projection)
        projection.hook_of_gates.remove()
        del projection.gates, projection.hook_of_gates
    return prune(model, kept)
