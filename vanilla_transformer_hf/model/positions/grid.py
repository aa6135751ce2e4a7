"""
Positions in two dimensions, of the patches of an image.

Shapes: B images, S patches row by row, D = encoder_d_model.
"""

import torch

from ..config.stacks import StackSizes
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..modeling_vanilla_transformer import SinusoidalPositionEncoding


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
