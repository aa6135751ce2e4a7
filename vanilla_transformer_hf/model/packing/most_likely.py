"""
The best next tokens, without looking at all logits.

Shapes: R rows, D = d_model, V vocabulary, K candidates.
"""

from functools import cached_property

import torch

from .int8_products import (
    LARGEST,
    MakeProduct,
    Product,
    fast_product,
    float64_product,
    has_rounding_product,
    rounding_product,
)


# From this number of scores of a sentence, two stages with groups of this size are used: of 5 beams, on one core, for
# 20 x 5,000 178 µs instead of 457, 1 x 10,000 38 and 50, 1 x 5,000 53 and 34. Of equal scores they may find others.
STAGED_FROM, GROUP = 2**13, 16
# Columns whose maximum is found in one operation, where only the first maximum of a row counts. Of fewer scores
# torch's `argmax` takes less time (10,000: 7 and 20 µs; four rows of them 23 and 23; 32 rows 175 and 55).
SCORES_AT_ONCE, MANY_SCORES = 256, 2**15
# Tokens whose own logits are computed: for each row, and where these cannot exclude the others. With a trained model
# one row in two thousand needs more than the first number.
CANDIDATES = (8, 64)
# Rows up to which FBGEMM's kernel selects them faster (one core, 37,000 x 512: 1.0 against 1.7 ms for one row, 2.3
# against 2.6 for 16, 4.2 against 4.0 for 32; 10,000 x 128: 0.27 against 0.35, 0.45 against 0.39).
FEW_CANDIDATES = 8
# Rows of a matrix that are rounded at once, so that temporary tensors are small.
ROWS_AT_ONCE = 2**10


def best_candidates(
    scores: torch.Tensor, count: int, before: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` highest scores of each row (R, V) and their columns, both (R, count), as of `torch.topk`."""
    # Or those of n beams together: of scores (R, n, V), each after `before` (R, n), with columns of (R, n V). They
    # share the search, which takes a third of the time of one for each beam (20 x 5 x 10,000: 203 and 688 µs).
    size = scores.shape[-1]
    width, flat = size // GROUP, scores.flatten(1)
    if scores.device.type != "cpu" or flat.shape[1] < STAGED_FROM or count > width:
        values, places = scores.topk(min(count, size))
        if before is None:
            return values, places
        places = places + torch.arange(0, flat.shape[1], size, device=scores.device)[:, None]
        values, best = (values + before[..., None]).flatten(1).topk(count)
        return values, places.flatten(1).gather(1, best)
    # Each of them lies in one of the `count` groups of columns with the highest maxima.
    highest = scores[..., : GROUP * width].unflatten(-1, (GROUP, width)).amax(dim=-2)  # (R, V') or (R, n, V')
    highest = highest if before is None else highest + before[..., None]
    chosen = highest.flatten(1).topk(count, sorted=False).indices
    first = chosen // width * size + chosen % width  # the first column of each group
    places = (first[:, None] + torch.arange(0, GROUP * width, width, device="cpu")[:, None]).flatten(1)
    if size > GROUP * width:
        behind = torch.arange(flat.shape[1], device="cpu").view(-1, size)[:, GROUP * width :].flatten()
        places = torch.cat((places, behind.expand(len(places), -1)), dim=1)
    members = flat.gather(1, places)
    members = members if before is None else members + before.gather(1, places // size)
    values, best = members.topk(count)
    return values, places.gather(1, best)


def first_highest(scores: torch.Tensor) -> torch.Tensor:
    """`argmax` of each row of scores (R, V), the first of equal ones; of many on a CPU several times as fast."""
    whole = scores.shape[1] // SCORES_AT_ONCE
    if scores.device.type != "cpu" or whole < 2 or scores.numel() < MANY_SCORES:
        return scores.argmax(dim=1)
    highest = scores[:, : whole * SCORES_AT_ONCE].unflatten(1, (whole, SCORES_AT_ONCE)).amax(dim=2)
    if scores.shape[1] > whole * SCORES_AT_ONCE:
        highest = torch.cat((highest, scores[:, whole * SCORES_AT_ONCE :].amax(dim=1, keepdim=True)), dim=1)
    start = (highest.argmax(dim=1, keepdim=True) * SCORES_AT_ONCE).clamp_(max=scores.shape[1] - SCORES_AT_ONCE)
    members = scores.gather(1, start + torch.arange(SCORES_AT_ONCE, device="cpu"))
    found: torch.Tensor = start[:, 0] + members.argmax(dim=1)
    return found


def most_likely(head: Product) -> Product:
    """States (R, D) to the ids of their highest logits (R), by all logits."""
    return lambda states: first_highest(head(states).float())


def rounded(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (R, D) as whole numbers from -127 to 127, in float32, and the step of each row (R, 1)."""
    step = rows.abs().amax(dim=1, keepdim=True).float().clamp_(min=1e-30).div_(LARGEST)
    return (rows / step).round_(), step


class ScreenedMostLikely:
    """`most_likely` that reads less memory: int8 products select a few candidates, whose logits alone are computed."""

    # What int8 loses is bounded (Cauchy-Schwarz): |w·x - ŵ·x̂| ≤ ‖w‖ ‖x - x̂‖ + ‖w - ŵ‖ ‖x̂‖. Rows in which this bound
    # does not exclude every other token get all their logits, so the result equals the argmax of all logits in the
    # type of the weights: those of the output projection (V, D), without a bias, of which `head` returns all logits.

    def __init__(self, weight: torch.Tensor, head: Product):
        self.weight, self.by_all_logits = weight, most_likely(head)
        self.near: tuple[torch.Tensor, torch.Tensor] | None = self._round()  # until it is packed

    def _round(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The weight as int8 (V, D) and the step of each row (V); sets `norm` and `loss` of the bound."""
        weight = self.weight.detach()
        near, steps, norms, losses = torch.empty_like(weight, dtype=torch.int8), [], [], []
        for rows, place in zip(weight.split(ROWS_AT_ONCE), near.split(ROWS_AT_ONCE), strict=True):
            whole, step = rounded(rows)
            place.copy_(whole)
            steps.append(step[:, 0])
            norms.append(rows.float().norm(dim=1).max())
            losses.append((rows - whole * step).norm(dim=1).max())
        # One percent more than the bound, because these sums and norms are rounded, too.
        self.norm, self.loss = 1.01 * max(norms), 1.01 * max(losses)
        return near, torch.cat(steps)

    def _packed(self, make: MakeProduct) -> Product:
        near, self.near = self.near or self._round(), None
        return make(*near)

    @cached_property
    def _of_few(self) -> Product:
        return self._packed(rounding_product)

    @cached_property
    def _of_many(self) -> Product:
        return self._packed(fast_product() or float64_product)

    def rough_logits(self, whole: torch.Tensor) -> torch.Tensor:
        """Rounded states (R, D) to (R, V), each to be multiplied by the step of its row."""
        # A batch of which few are left keeps its kernel: a second packed copy would take more than it saves.
        if len(whole) <= FEW_CANDIDATES and "_of_many" not in vars(self) and has_rounding_product():
            return self._of_few(whole / LARGEST)
        return self._of_many(whole)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        whole, step = rounded(states)
        rough = self.rough_logits(whole)
        near = whole.mul_(step)
        loss = self.norm * (states - near).norm(dim=1) + self.loss * near.norm(dim=1)
        found, unsure = self._among(CANDIDATES[0], rough, step=step[:, 0], loss=loss, states=states)
        for count in CANDIDATES[1:]:
            if rows := unsure.nonzero()[:, 0].tolist():
                found[rows], unsure[rows] = self._among(
                    count, rough[rows], step=step[rows, 0], loss=loss[rows], states=states[rows]
                )
        if unsure.any():
            found[unsure] = self.by_all_logits(states[unsure])
        return found

    def _among(
        self, count: int, rough: torch.Tensor, step: torch.Tensor, loss: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The best of the `count` candidates with the highest rough logits, and whether another may be better: (R)."""
        values, tokens = best_candidates(rough, count + 1)
        tokens = tokens[:, :count].sort(dim=1).values  # of equal logits, the first counts
        # Summed in float32 and then rounded as the product of all logits is, under autocast too.
        logits = (self.weight.detach()[tokens].float() * states[:, None].float()).sum(dim=-1).to(self.weight.dtype)
        places = logits.argmax(dim=1, keepdim=True)  # of (R, K)
        highest = logits.gather(1, places)[:, 0]
        rounding = torch.finfo(logits.dtype).eps * highest.abs()
        # NaN counts as uncertain, too.
        return tokens.gather(1, places)[:, 0], ~(values[:, count] * step + loss < highest - rounding)
