"""R-Drop, Liang et al. 2021, arXiv 2106.14448: the outputs of each sentence under two dropout masks must agree."""

from typing import Any

import torch

from ..model.loss_vanilla_transformer import count_of
from .loss_by_rows import LossByRows


class RDropLoss(LossByRows):
    """`r_drop_loss` over a few rows of the logits at a time."""

    @staticmethod
    def forward(ctx: Any, logits, labels, label_smoothing: float, weight: float, count) -> torch.Tensor:
        """Logits (2, N, V), labels (N)."""
        exact = torch.promote_types(logits.dtype, torch.float32)
        loss, vocab_size, half = logits.new_zeros((), dtype=exact), logits.shape[-1], weight / 2
        gradient = LossByRows.gradient_of(logits, exact) if ctx.needs_input_grad[0] else None
        ctx.dtype = logits.dtype
        for rows in LossByRows.rows_of(logits, len(labels)):
            label = labels[rows, None]  # (R, 1)
            share, label = (label != -100).to(exact) / (2 * count), label.clamp(min=0)
            scores = logits[:, rows].to(exact).log_softmax(dim=-1)  # (2, R, V)
            found = scores.gather(-1, label.expand(2, -1, -1)).sum(dim=0)  # (R, 1)
            likelihood = (1 - label_smoothing) * found + label_smoothing * scores.mean(dim=-1, keepdim=True).sum(dim=0)
            probabilities = scores.exp()
            ratio = scores[0].sub_(scores[1])  # (R, V): log P₁/P₂
            d_logits = probabilities * ratio  # (2, R, V)
            divergence = d_logits.sum(dim=-1, keepdim=True)  # (2, R, 1): KL(P₁‖P₂), -KL(P₂‖P₁)
            loss += (share * (half * (divergence[0] - divergence[1]) - likelihood)).sum()
            if gradient is None:
                continue
            # By the logits of P₁: ½ α [P₁ (log P₁/P₂ - KL(P₁‖P₂)) + P₁ - P₂] + P₁ - smoothed target.
            torch.add(1 + half - half * divergence[0], ratio, alpha=half, out=d_logits[0])
            torch.add(1 + half + half * divergence[1], ratio, alpha=-half, out=d_logits[1])
            d_logits.mul_(probabilities)
            d_logits[0].sub_(probabilities[1], alpha=half)
            d_logits[1].sub_(probabilities[0], alpha=half)
            d_logits.sub_(label_smoothing / vocab_size)
            d_logits.scatter_add_(
                -1, label.expand(2, -1, -1), d_logits.new_full((2, *label.shape), label_smoothing - 1)
            )
            torch.mul(d_logits, share, out=gradient[:, rows])
        ctx.save_for_backward(gradient)
        return loss


def r_drop_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float,
    weight: float,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """
    Half of ½ α [KL(P₁‖P₂) + KL(P₂‖P₁)] - log P₁(y) - log P₂(y), equation 4, with smoothed labels: with α = 0 the mean
    of two losses. In nats per token.

    Args:
        logits: (2B, T, V) of the same B sentences twice, under two dropout masks.
        labels: (B, T), -100 where they are ignored.
        weight: α.
        num_items_in_batch: Labels of all accumulated batches, each sentence counted once.
    """
    count = count_of(labels, num_items_in_batch)
    logits = logits.reshape(2, labels.numel(), -1)
    return RDropLoss.apply(logits, labels.flatten(), label_smoothing, weight, count)
