"""
Position schemes: how the order of tokens enters a stack. One instance in each stack, one class a scheme.

This file has the schemes that add to the embeddings or rotate queries and keys.

Shapes: B sentences, T positions, D = d_model, H heads.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init

from ..config.stacks import StackSizes
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..layers.parts import check_rows, look_up
from ..modeling_vanilla_transformer import ApplyRotary, PositionEncoding, SinusoidalPositionEncoding


class HalvesSinusoidalPositionEncoding(SinusoidalPositionEncoding, scheme="sinusoidal_halves"):
    """Sinusoids with all sines first, then all cosines, as in Marian."""

    @staticmethod
    def arrange(angles: torch.Tensor) -> torch.Tensor:
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


class InclusiveHalvesSinusoidalPositionEncoding(
    HalvesSinusoidalPositionEncoding, scheme="sinusoidal_halves_inclusive"
):
    """Sines, then cosines, of pos / 10000^(i/(D/2 - 1)), as in tensor2tensor and fairseq."""

    @staticmethod
    def exponents(width: int, device: torch.device) -> torch.Tensor:
        half = width // 2
        return torch.arange(half, device=device, dtype=torch.float32) / (half - 1)


class LearnedPositionEncoding(PositionEncoding, scheme="learned"):
    """A trained vector per position, Table 3 row E."""

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__(config, stack)
        self.weight = nn.Parameter(torch.empty(stack.longest + self.offset, stack.width))

    def draw(self) -> None:
        init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    @property
    def longest(self) -> int | None:  # type: ignore[override]  # of its weights
        return len(self.weight) - self.offset

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return embeddings + look_up(self.weight, position_ids + self.offset, "position")


class HierarchicalPositionEncoding(LearnedPositionEncoding, scheme="hierarchical"):
    """n² positions from n trained vectors: that of n·i + j is α u_i + (1 - α) u_j; Su 2020, as in bert4keras."""

    # u_i = (p_i - α p_0) / (1 - α), which is p_j + α / (1 - α) (p_i - p_0); the first n are p_j themselves. α is
    # `hierarchical_alpha`.

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__(config, stack)
        self.alpha = config.hierarchical_alpha

    @property
    def longest(self) -> int | None:  # type: ignore[override]  # of its weights
        return len(self.weight) ** 2 - self.offset

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        rows, count = position_ids + self.offset, len(self.weight)
        check_rows(rows, count**2, "position")
        coarse = F.embedding(rows // count, self.weight) - self.weight[0]
        return embeddings + F.embedding(rows % count, self.weight) + self.alpha / (1 - self.alpha) * coarse


class RotaryPositionEncoding(PositionEncoding, scheme="rotary"):
    """(x_2i, x_2i+1) of queries and keys rotated by the angle pos · base^(-2i/r): arXiv 2104.09864, equation 34."""

    # Su et al. 2021. r = fraction · d_k features are rotated and the others stay. The base is `rotary_base`, 10,000 in
    # the paper; the fraction `rotary_fraction`, 1 in the paper.

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__(config, stack)
        self.head_width, self.base = config.d_k or stack.width // stack.heads, config.rotary_base
        self.turned = int(self.head_width * config.rotary_fraction) // 2 * 2

    def rotary_at(self, position_ids: torch.Tensor) -> ApplyRotary:
        steps = torch.arange(0, self.turned, 2, device=position_ids.device, dtype=torch.float32)  # 2i
        angles = position_ids.float()[:, None, :, None] * torch.pow(self.base, -steps / self.turned)
        cosines, sines = angles.cos(), angles.sin()  # (B or 1, 1, T, r/2)
        own, partners = self.arrange(cosines, cosines), self.arrange(-sines, sines)  # (B or 1, 1, T, r)

        def apply_rotary(states: torch.Tensor) -> torch.Tensor:
            exact = states.to(torch.promote_types(states.dtype, torch.float32))
            return torch.addcmul(exact * own, self.swap(exact), partners).to(states.dtype)

        def rotate_part(states: torch.Tensor) -> torch.Tensor:
            return torch.cat((apply_rotary(states[..., : self.turned]), states[..., self.turned :]), dim=-1)

        return apply_rotary if self.turned == self.head_width else rotate_part

    def arrange(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Interleave the values of the first and the second member of each pair, in the order of the features."""
        return torch.stack((first, second), dim=-1).flatten(-2)

    def swap(self, states: torch.Tensor) -> torch.Tensor:
        """Swap the two features of each pair."""
        return states.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


class HalvesRotaryPositionEncoding(RotaryPositionEncoding, scheme="rotary_halves"):
    """Rotary encodings of the pairs (x_i, x_i+r/2), as in GPT-NeoX and Llama."""

    def arrange(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.cat((first, second), dim=-1)

    def swap(self, states: torch.Tensor) -> torch.Tensor:
        return torch.cat(states.chunk(2, dim=-1)[::-1], dim=-1)


class GridPositionEncoding(SinusoidalPositionEncoding, scheme="sinusoidal_grid"):
    """Sinusoids of a patch's row in half of the features and of its column in the others, section 3.5."""

    # Once for each. As in the appendix of Dosovitskiy et al. 2021, arXiv 2010.11929, D.4, with sinusoids.

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__(config, stack)
        self.columns = config.image_width // config.patch_width  # patches in a row

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        places = position_ids // self.columns, position_ids % self.columns
        halves = [self.encode(place + self.offset, embeddings.shape[-1] // 2) for place in places]
        return embeddings + torch.cat(halves, dim=-1).to(embeddings.dtype)
