"""
Losses beside the plain one, as `RowLoss`es: R-Drop (Liang et al. 2021, arXiv 2106.14448), by which the outputs of each
sentence under two dropout masks must agree; and word-level distillation (Hinton et al. 2015, arXiv 1503.02531; Kim and
Rush 2016, arXiv 1606.07947, 3.1), with its teacher.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...common.checksums import digest_of_all
from ...common.opening import open_model, vocabularies
from ...model.layers.loss import LossRows, smoothed_likelihood, softmax_and_log_sum, subtract_target
from ...publishing.weight_files import weight_paths
from ..checkpoints.averaging import CARRIED_ALONG, LEFT_BEHIND


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


def distillation_rows(
    label_smoothing: float, weight: float, temperature: float, wanted: torch.Tensor, rows: LossRows
) -> torch.Tensor:
    """(1 - w) · smoothed cross-entropy + w τ² · KL(teacher ‖ student), as a `RowLoss`."""
    # Both distributions of the divergence are softmax(logits / τ). The factor τ² keeps its gradients as large as those
    # of the cross-entropy. w is `weight`, τ `temperature`, and `wanted` are the teacher's logits (N, V).
    scores = rows.logits.log_softmax(dim=-1)  # (1, R, V)
    soft = scores if temperature == 1 else (rows.logits / temperature).log_softmax(dim=-1)
    target = (wanted[rows.places].to(rows.logits.dtype) / temperature).log_softmax(dim=-1)  # (R, V)
    likelihood = smoothed_likelihood(scores, rows.label, label_smoothing)  # (1, R, 1)
    probabilities = target.exp()
    divergence = (probabilities * target.sub(soft)).sum(dim=-1, keepdim=True)
    loss = (rows.share * (weight * temperature**2 * divergence - (1 - weight) * likelihood)).sum()
    if rows.gradient is not None:
        # By the logits: (1 - w) (softmax - smoothed target) + w τ (softmax of logits / τ - the teacher's).
        d_logits = soft.exp().mul_(weight * temperature).sub_(probabilities, alpha=weight * temperature)
        d_logits.add_(scores.exp(), alpha=1 - weight)
        subtract_target(d_logits, rows.label, label_smoothing, 1 - weight)
        torch.mul(d_logits, rows.share, out=rows.gradient)
    return loss


def open_teacher(
    name: str, student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> PreTrainedModel:
    """The model that a student learns from, which is not trained."""
    model: PreTrainedModel
    model, its = open_model(name, device, torch.float32)
    if vocabularies(its) != vocabularies(tokenizer):
        raise ValueError(
            f"teacher={name}: its vocabulary is not the student's, so that their distributions cannot be compared; "
            f"set tokenizer_name_or_path={name}, or distil its translations (vanilla-transformer distill)."
        )
    if model.config.vocab_size != student.config.vocab_size:
        raise ValueError(
            f"teacher={name}: it has logits of {model.config.vocab_size} tokens and the student of "
            f"{student.config.vocab_size}; set vocab_size={model.config.vocab_size}."
        )
    model.eval().requires_grad_(False)
    return model


def digest_of_teacher(folder: Path) -> str:
    """The SHA-256 of all that a teacher's outputs depend on: weights, tokenizer and settings, also of its search."""
    files = {path for path in folder.iterdir() if path.suffix in CARRIED_ALONG and path.name not in LEFT_BEHIND}
    sums = [f"{path.name} {digest_of_all(path)}" for path in sorted(files.union(weight_paths(folder)))]
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


@torch.no_grad()
def logits_of(teacher: Any, inputs: dict[str, torch.Tensor], decoder_input_ids: torch.Tensor) -> torch.Tensor:
    """The teacher's logits (B, T, V) for a batch of the student, whose labels do not matter."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    batch = {name: inputs[name] for name in names if name in inputs}
    logits: torch.Tensor = teacher(**batch, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    return logits
