"""
The front end of images: patches, row by row.

Shapes: B images, C channels, H and W pixels, S patches, D = encoder_d_model.
"""

import torch
import torch.nn.functional as F
from torch import nn

from ..config.stacks import encoder_sizes
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from .base import FrontEndBase, drawn_as_embeddings, shape_error


class PatchFrontEnd(FrontEndBase, kind="image"):
    """One linear map of the pixels of each patch, Dosovitskiy et al. 2021, arXiv 2010.11929, equation 1."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.patch = config.patch_height, config.patch_width
        self.shape = config.num_channels, config.image_height, config.image_width
        pixels = config.num_channels * config.patch_height * config.patch_width
        self.projection = drawn_as_embeddings(nn.Linear(pixels, encoder_sizes(config).width), config)

    def forward(self, source: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """Pixels (B, C, H, W), and 1 or 0 for each patch (B, S) or None, to embeddings (B, S, D)."""
        if source.dim() != 4 or tuple(source.shape[1:]) != self.shape:
            sizes = ", ".join(map(str, self.shape))
            raise shape_error("pixel_values", f"(images, {sizes}), as num_channels, image_height, image_width", source)
        patches = F.unfold(source.to(self.projection.weight.dtype), self.patch, stride=self.patch)
        if padding is not None and padding.shape != (len(source), patches.shape[2]):
            raise shape_error("attention_mask", f"1 or 0 for each patch, ({len(source)}, {patches.shape[2]})", padding)
        embeddings: torch.Tensor = self.projection(patches.transpose(1, 2))
        return embeddings
