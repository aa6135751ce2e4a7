"""
The loss of training, section 5.4, in parts: from the last states, without all logits at once; other losses of rows.

Shapes: B sentences, T target positions, N = B T, D = d_model, V vocabulary; K passes over the same sentences (one, but
for R-Drop), R rows at a time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .base_model import count_of
from .parts import is_plain, is_unchanged


# Logits that are in memory at once in training: 16 MiB in bfloat16. Fewer are slower, more need more memory.
LOGITS_AT_ONCE = 2**23
# Logits whose loss and gradient are computed at once. The caches of a CPU hold them, which makes that three
# times as fast; an accelerator processes more, to launch fewer kernels.
VALUES_AT_ONCE = 2**19
VALUES_AT_ONCE_ELSEWHERE = 2**24


class LossRows(NamedTuple):
    """Some rows of the logits, and what a loss of them needs."""

    logits: torch.Tensor  # (K, R, V), in float32 or float64
    label: torch.Tensor  # of each, 0 where it does not count (K, R, 1)
    share: torch.Tensor  # what its loss is multiplied by, 0 where it does not count (R, 1)
    # Where the derivative by the logits is written (K, R, V), in memory that may be that of the logits, so that they
    # are read before; None if it is not needed.
    gradient: torch.Tensor | None
    places: slice  # which of all N they are


# What computes a loss: rows to the sum of their losses times their shares.
RowLoss = Callable[[LossRows], torch.Tensor]


def softmax_and_log_sum(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax (..., V) of logits (..., V), and log Σ exp of them (..., 1)."""
    # From the largest logit and the largest probability, which is at least 1 / V, so that exponentials are computed
    # once.
    probabilities = logits.softmax(dim=-1)
    largest = logits.amax(dim=-1, keepdim=True)
    return probabilities, largest - probabilities.amax(dim=-1, keepdim=True).log()


def smoothed_likelihood(scores: torch.Tensor, label: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    """Of scores (..., V), (1 - ε) times that of the label (..., 1) plus ε times their mean: (..., 1)."""
    found, mean = scores.gather(-1, label), scores.mean(dim=-1, keepdim=True)
    return (1 - label_smoothing) * found + label_smoothing * mean


def subtract_target(
    d_logits: torch.Tensor, label: torch.Tensor, label_smoothing: float, weight: float = 1.0
) -> torch.Tensor:
    """Derivatives (..., V) minus the smoothed target of the label (..., 1) times a weight, in place."""
    d_logits.sub_(weight * label_smoothing / d_logits.shape[-1])
    return d_logits.scatter_add_(-1, label, d_logits.new_full(label.shape, weight * (label_smoothing - 1)))


def cross_entropy_rows(label_smoothing: float, rows: LossRows) -> torch.Tensor:
    """`smoothed_cross_entropy` as a `RowLoss`."""
    probabilities, log_sum = softmax_and_log_sum(rows.logits)
    loss = (rows.share * (log_sum - smoothed_likelihood(rows.logits, rows.label, label_smoothing))).sum()
    if rows.gradient is not None:  # softmax minus the smoothed target
        d_logits = subtract_target(probabilities, rows.label, label_smoothing)
        torch.mul(d_logits, rows.share, out=rows.gradient)
    return loss


def scaled(gradient: torch.Tensor | None, factor: torch.Tensor) -> torch.Tensor | None:
    """The gradient times a factor, which is usually 1: on a CPU the copy is then skipped."""
    if gradient is None or (factor.device.type == "cpu" and factor == 1):
        return gradient
    return gradient * factor


def add_rows(
    row_loss: RowLoss,
    logits: torch.Tensor,
    labels: torch.Tensor,
    count: torch.Tensor | int,
    gradient: torch.Tensor | None,
    exact: torch.dtype,
    start: int = 0,
) -> torch.Tensor:
    """The loss of logits (K, R, V) and labels (R), a few rows at a time; the gradient (K, R, V) is written."""
    # The divisor of a sum over labels and passes is K `count`, the type of the loss `exact`; `start` is the place of
    # the first of these rows among all N.
    passes, total, vocab_size = logits.shape
    at_once = VALUES_AT_ONCE if logits.device.type == "cpu" else VALUES_AT_ONCE_ELSEWHERE
    step = max(1, at_once // (passes * vocab_size))
    loss = logits.new_zeros((), dtype=exact)
    for first in range(0, total, step):
        part = slice(first, first + step)
        label = labels[part, None]  # (R, 1)
        rows = LossRows(
            logits=logits[:, part].to(exact),
            label=label.clamp(min=0).expand(passes, -1, -1),
            share=(label != -100).to(exact) / (passes * count),
            gradient=None if gradient is None else gradient[:, part],
            places=slice(start + first, start + min(first + step, total)),
        )
        loss += row_loss(rows)
    return loss


class LossByRows(torch.autograd.Function):
    """The loss of logits that are there as a whole: `forward` computes the gradient, `backward` only scales it."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, row_loss: RowLoss, count: Any) -> torch.Tensor:
        """Logits (K, N, V), labels (N)."""
        exact = torch.promote_types(logits.dtype, torch.float32)
        # float16 would underflow before backward scales it.
        stored = exact if logits.dtype == torch.float16 else logits.dtype
        gradient = torch.empty_like(logits, dtype=stored) if ctx.needs_input_grad[0] else None
        loss = add_rows(row_loss, logits, labels, count, gradient, exact)
        ctx.dtype = logits.dtype
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        gradient = scaled(gradient, factor)
        return None if gradient is None else gradient.to(ctx.dtype), None, None, None


def loss_by_rows(
    logits: torch.Tensor, labels: torch.Tensor, row_loss: RowLoss, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """The loss of logits (K B, T, V) and labels (B, T), divided by K times the number of labels."""
    logits = logits.reshape(-1, labels.numel(), logits.shape[-1])
    return LossByRows.apply(logits, labels.flatten(), row_loss, count_of(labels, num_items_in_batch))


class ProjectedLoss(torch.autograd.Function):
    """The loss of the logits H Wᵀ + b, which are never in memory all at once."""

    # The loss and its gradients are computed a few rows at a time in forward; backward only scales the gradients.
    # `torch.nn.functional.linear_cross_entropy` works like this too, but not with label smoothing.

    @staticmethod
    def forward(
        ctx: Any, states: Any, weight: Any, bias: Any, labels: Any, row_loss: RowLoss, count: Any, dtype: Any
    ) -> torch.Tensor:
        """States (K, N, D), weight (V, D), bias (V) or None, labels (N); products are computed in `dtype`."""
        exact = torch.promote_types(dtype, torch.float32)
        loss = states.new_zeros((), dtype=exact)
        needed = zip((states, weight, bias), ctx.needs_input_grad)
        gradients = [torch.zeros_like(tensor, dtype=exact) if need else None for tensor, need in needed]
        d_states, d_weight, d_bias = gradients
        low_weight, low_bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        rows = max(1, LOGITS_AT_ONCE // (len(states) * len(weight)))
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            # Of two dimensions, because products of three would copy the weight.
            low_states = states[:, part].to(dtype).flatten(0, 1)  # (K R, D)
            d_logits = F.linear(low_states, low_weight, low_bias)  # (K R, V), the logits until `add_rows`
            logits = d_logits.unflatten(0, (len(states), -1))
            gradient = logits if any(ctx.needs_input_grad) else None
            loss += add_rows(row_loss, logits, labels[part], count, gradient, exact, start)
            if gradient is None:
                continue
            if d_states is not None:
                d_states[:, part] = (d_logits @ low_weight).unflatten(0, (len(states), -1))
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


def projected_loss(
    states: torch.Tensor,
    projection: nn.Linear,
    labels: torch.Tensor,
    row_loss: RowLoss,
    num_items_in_batch: torch.Tensor | int | None = None,
    weight: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """The loss of states (K B, T, D) and labels (B, T) in parts, or None where logits are needed as a whole."""
    # That is if an adapter, quantizer, shard or hook wraps the projection; in float16, whose gradients must be
    # scaled from the start; and under `torch.compile`, which splits them by itself.
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    if not is_plain(projection) or dtype == torch.float16 or torch.compiler.is_compiling():
        return None
    count = count_of(labels, num_items_in_batch)
    states = states.reshape(-1, labels.numel(), states.shape[-1])
    weight = projection.weight if weight is None else weight
    return ProjectedLoss.apply(states, weight, projection.bias, labels.flatten(), row_loss, count, dtype)


def weight_of_loss(head: Any) -> torch.Tensor | None:
    """The weight of a plain output `head`, as autograd should have it in a step that computes no whole logits."""
    # Autograd comes back last to what was made first: the gradients of rows (`tied_rows`, called later) are joined
    # before they are added to that of the whole matrix, which torch copies for it once instead of twice.
    return head.weight.view_as(head.weight) if is_plain(head) else None


def tied_rows(
    head: Any, stack: Any, ids: torch.Tensor | None, embeddings: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Ids (B, T) or embeddings (B, T, D) as they are, or embeddings whose gradient joins the output's."""
    # It can be added to rows of the output's where both are one matrix, and the loss needs its product. torch
    # would make another matrix of that size for each look-up, almost all of it zeros.
    if ids is None:
        return ids, embeddings
    embedding: Any = getattr(stack, "embed_tokens", None)
    plain = type(embedding) is nn.Embedding and is_unchanged(embedding) and is_plain(head)
    if not (stack.training and plain and embedding.weight is head.weight):
        return ids, embeddings
    # Accelerators add sparse gradients in any order. Ids out of range are left to the message about them.
    if ids.device.type != "cpu" or torch.compiler.is_compiling() or ids.max() >= len(head.weight) or ids.min() < 0:
        return ids, embeddings
    return None, F.embedding(ids, embedding.weight, sparse=True)
