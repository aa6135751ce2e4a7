"""
The base of front ends. The front end of token ids is the encoder's `embed_tokens`, an `nn.Embedding`.

Shapes: B sources, S positions, D = encoder_d_model.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from ..config.stacks import encoder_sizes
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..modeling_vanilla_transformer import FRONT_END_CLASSES


class FrontEndBase(nn.Module):
    """What makes the input of the encoder's first layer of a source."""

    def __init_subclass__(cls, kind: str | None = None, **kwargs: object) -> None:
        """`class Frames(FrontEndBase, kind="frames")` is what a config calls "frames"."""
        super().__init_subclass__(**kwargs)
        if kind is not None:
            FRONT_END_CLASSES.add(kind, cls)

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()

    @abstractmethod
    def forward(self, source: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """The source, and 1 or 0 for padding of it or None, to embeddings (B, S, D), before they are scaled."""


def drawn_as_embeddings(last: Any, config: VanillaTransformerConfig) -> Any:
    """The last map of a front end, to be drawn so that what it makes is as small as embeddings."""
    # Where these are scaled by √D, positions of another size than the rest of the sum would be found late.
    last.init_gain = encoder_sizes(config).width ** -0.5 if config.scale_embedding else 1.0
    return last


def shape_error(name: str, expected: str, source: torch.Tensor) -> ValueError:
    """The error about a source of a wrong shape."""
    found = ", ".join(map(str, source.shape))
    return ValueError(f"{name}: expected {expected}, got a tensor of shape ({found})")
