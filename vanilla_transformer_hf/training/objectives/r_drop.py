"""R-Drop, Liang et al. 2021, arXiv 2106.14448: the outputs of each sentence under two dropout masks must agree."""

import torch

from ...model.layers.loss import LossRows, smoothed_likelihood, softmax_and_log_sum, subtract_target


def r_drop_rows(label_smoothing: float, weight: float, rows: LossRows) -> torch.Tensor:
    """Half of ½ α [KL(P₁‖P₂) + KL(P₂‖P₁)] - log P₁(y) - log P₂(y), equation 4, as a `RowLoss` of two passes."""
    # Labels are smoothed; α is `weight`, with 0 it is the mean of two losses.
    logits, half = rows.logits, weight / 2
    probabilities, log_sum = softmax_and_log_sum(logits)  # (2, R, V), (2, R, 1)
    likelihood = smoothed_likelihood(logits, rows.label, label_smoothing) - log_sum  # (2, R, 1)
    ratio = (logits[0] - logits[1]).sub_(log_sum[0] - log_sum[1])  # (R, V): log P₁/P₂
    divergence = (probabilities * ratio).sum(dim=-1, keepdim=True)  # (2, R, 1): KL(P₁‖P₂), -KL(P₂‖P₁)
    loss = (rows.share * (half * (divergence[0] - divergence[1]) - likelihood.sum(dim=0))).sum()
    if rows.gradient is not None:
        # By the logits of P₁: ½ α [P₁ (log P₁/P₂ - KL(P₁‖P₂)) + P₁ - P₂] + P₁ - smoothed target.
        for own, other, sign in ((0, 1, 1), (1, 0, -1)):
            d_logits = (ratio * (sign * half)).add_(1 + half - sign * half * divergence[own])
            d_logits.mul_(probabilities[own]).sub_(probabilities[other], alpha=half)
            subtract_target(d_logits, rows.label[own], label_smoothing)
            torch.mul(d_logits, rows.share, out=rows.gradient[own])
    return loss
