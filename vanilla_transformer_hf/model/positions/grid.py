"""
Positions in two dimensions, of the patches of an image.

Shapes: B images, S patches row by row, D = encoder_d_model.
"""

import torch

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..modeling_vanilla_transformer import SinusoidalPositionEncoding


class GridPositionEncoding(SinusoidalPositionEncoding, scheme="sinusoidal_grid"):
    """
    Sinusoids of a patch's row in the first half of the features and of its column in the second, section 3.5 once for
    each; as in the appendix of Dosovitskiy et al. 2021, arXiv 2010.11929, D.4, with sinusoids.

    Args:
        columns: Patches in a row.
    """

    def __init__(self, offset: int, columns: int):
        super().__init__(offset=offset)
        self.columns = columns

    @classmethod
    def of(
        cls, config: VanillaTransformerConfig, width: int, heads: int, longest: int, is_causal: bool
    ) -> "GridPositionEncoding":
        return cls(config.position_offset, config.image_width // config.patch_width)

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        places = position_ids // self.columns, position_ids % self.columns
        halves = [self.encode(place + self.offset, embeddings.shape[-1] // 2) for place in places]
        return embeddings + torch.cat(halves, dim=-1).to(embeddings.dtype)
