"""How diagonal attention is: whether the steps of a decoder go through the source in its order."""

from dataclasses import dataclass

import torch


# Width of the band along the diagonal, as a share of the source: g of Tachibana et al. 2017, arXiv 1710.08969.
BAND = 0.2


@dataclass(frozen=True)
class Diagonality:
    """
    How diagonal attention is; each a tensor with the shape of the weights but for their last two dimensions.

    Attributes:
        order: Kendall's τ (Biometrika 30, 1938) of the steps and their expected positions, Σ weight · position: 1 if
            each step looks further on than the one before, 0 without any order, -1 if the source is read backwards.
            NaN of fewer than two steps.
        off_diagonal: The share of the weights that lies off the diagonal, 0 to 1: each counts
            1 - exp(-(t/T - s/S)² / 2g²), as in the guided attention loss of Tachibana et al. 2017, with g = 0.2; t and
            s are the middles of step and position.
    """

    order: torch.Tensor
    off_diagonal: torch.Tensor


def diagonality(weights: torch.Tensor) -> Diagonality:
    """How diagonal attention weights (…, T, S) of T steps to S positions are."""
    # Leave out steps and positions that have no place in the order: the end-of-sentence token, padding.
    if weights.dim() < 2 or 0 in weights.shape[-2:]:
        raise ValueError(f"weights: expected (…, steps, positions), each at least 1, got {tuple(weights.shape)}")
    steps, positions = weights.shape[-2:]
    weights = weights.double()
    at_step = (torch.arange(steps, dtype=torch.double, device=weights.device) + 0.5) / steps
    at_position = (torch.arange(positions, dtype=torch.double, device=weights.device) + 0.5) / positions
    expected = weights @ at_position  # (…, T)
    pairs = torch.triu_indices(steps, steps, offset=1, device=weights.device)
    order = (expected[..., pairs[1]] - expected[..., pairs[0]]).sign().mean(dim=-1)
    away = 1 - (-((at_step[:, None] - at_position) ** 2) / (2 * BAND**2)).exp()
    return Diagonality(order, (weights * away).sum(dim=-1).mean(dim=-1))
