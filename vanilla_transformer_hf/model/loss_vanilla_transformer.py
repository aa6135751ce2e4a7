"""
The loss of training, section 5.4: cross-entropy with label smoothing, from logits or in pieces from the last states.

Shapes: B sentences, T target positions, N = B T, D = d_model, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .packed_weights_vanilla_transformer import is_plain


# Logits that are in memory at once in training: 32 MiB in float32. Fewer are slower, more need more memory.
LOGITS_AT_ONCE = 2**23


def count_of(labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor | int:
    """The divisor of a loss summed over labels: the number of labels other than -100, or the given one; at least 1."""
    count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
    return count.clamp(min=1) if isinstance(count, torch.Tensor) else max(1, count)


def smoothed_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """
    Cross-entropy of logits (B, T, V) with (1 - ε) of the weight on the label (B, T) and ε spread over all V pieces,
    section 5.4 (Szegedy et al. 2016, arXiv 1512.00567), in nats per token. Labels of -100 are ignored.

    The sum is divided by `num_items_in_batch`, the labels of all accumulated batches, where it is given: then the
    gradient does not depend on how a batch is split.
    """
    loss = F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), reduction="sum", label_smoothing=label_smoothing
    )
    return loss / count_of(labels, num_items_in_batch)


def scaled(gradient: torch.Tensor | None, factor: torch.Tensor) -> torch.Tensor | None:
    """The gradient times a factor, which is usually 1: on a CPU the copy is then skipped."""
    if gradient is None or (factor.device.type == "cpu" and factor == 1):
        return gradient
    return gradient * factor


class ProjectedCrossEntropy(torch.autograd.Function):
    """
    `smoothed_cross_entropy` of the logits H Wᵀ + b, which are never in memory all at once.

    The loss and its gradients are computed a few rows at a time in forward; backward only scales the gradients.
    `torch.nn.functional.linear_cross_entropy` works like this too, but not with label smoothing.
    """

    @staticmethod
    def forward(ctx: Any, states, weight, bias, labels, label_smoothing, count, dtype) -> torch.Tensor:
        """States (N, D), weight (V, D), bias (V) or None, labels (N); products are computed in `dtype`."""
        exact = torch.promote_types(dtype, torch.float32)
        loss = states.new_zeros((), dtype=exact)
        needed = zip((states, weight, bias), ctx.needs_input_grad)
        gradients = [torch.zeros_like(tensor, dtype=exact) if need else None for tensor, need in needed]
        d_states, d_weight, d_bias = gradients
        low_weight, low_bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        rows = max(1, LOGITS_AT_ONCE // len(weight))
        for part in (slice(start, start + rows) for start in range(0, len(labels), rows)):
            low_states, label = states[part].to(dtype), labels[part, None]  # (R, D), (R, 1)
            share, label = (label != -100).to(exact) / count, label.clamp(min=0)  # (R, 1)
            scores = F.linear(low_states, low_weight, low_bias).to(exact).log_softmax(dim=-1)  # (R, V)
            found, mean = scores.gather(1, label), scores.mean(dim=-1, keepdim=True)  # (R, 1)
            loss -= (share * ((1 - label_smoothing) * found + label_smoothing * mean)).sum()
            if not any(ctx.needs_input_grad):
                continue
            # The derivative of the cross-entropy with respect to the logits: softmax minus the smoothed target.
            d_logits = scores.exp_().sub_(label_smoothing / len(weight))  # (R, V)
            d_logits.scatter_add_(1, label, torch.full_like(share, label_smoothing - 1))
            d_logits = d_logits.mul_(share).to(dtype)
            if d_states is not None:
                d_states[part] = d_logits @ low_weight
            if d_weight is not None and dtype == exact:
                d_weight.addmm_(d_logits.t(), low_states)
            elif d_weight is not None:  # in blocks, because adding a tensor of another type copies it first
                for block, d_block in zip(d_weight.split(2**10), d_logits.split(2**10, dim=1)):
                    block += d_block.t() @ low_states
            if d_bias is not None:
                d_bias += d_logits.sum(dim=0, dtype=exact)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *(scaled(gradient, factor) for gradient in ctx.saved_tensors), None, None, None, None


def projected_cross_entropy(
    states: torch.Tensor,
    projection: nn.Linear,
    labels: torch.Tensor,
    label_smoothing: float,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> torch.Tensor | None:
    """
    `smoothed_cross_entropy` of states (B, T, D) in pieces, or None where the logits have to be computed as a whole.

    They are computed as a whole if an adapter, quantizer, shard or hook wraps the projection; in float16, whose
    gradients must be scaled from the start; and under `torch.compile`, which splits them by itself.
    """
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    if not is_plain(projection) or dtype == torch.float16 or torch.compiler.is_compiling():
        return None
    count = count_of(labels, num_items_in_batch)
    states, labels = states.flatten(0, 1), labels.flatten()
    return ProjectedCrossEntropy.apply(
        states, projection.weight, projection.bias, labels, label_smoothing, count, dtype
    )
