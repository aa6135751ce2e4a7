"""
The base of front ends, and their table. The front end of token ids is the encoder's `embed_tokens`, an `nn.Embedding`.

Shapes: B sources, S positions, D = encoder_d_model.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from ..config.front_ends import CLASSES_OF_INPUTS, FRONT_ENDS
from ..config.stacks import StackSizes, encoder_sizes
from ..configuration_vanilla_transformer import VanillaTransformerConfig


class FrontEndBase(nn.Module):
    """What makes the input of the encoder's first layer of a source."""

    def __init_subclass__(cls, kind: str | None = None, **kwargs: object) -> None:
        """`class Frames(FrontEndBase, kind="frames")` is what a config calls "frames"."""
        super().__init_subclass__(**kwargs)
        if kind is not None:
            add_front_end(kind, cls)

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()

    @abstractmethod
    def forward(self, source: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """
        A source to embeddings (B, S, D), before they are scaled and positions are added.

        Args:
            source: The model's argument for it.
            padding: 1 for a part of it, 0 for padding, which changes nothing; or None.

        Raises:
            ValueError: The shape is not that of the config.
        """


def drawn_as_embeddings(last: Any, config: VanillaTransformerConfig) -> Any:
    """
    The last map of a front end, to be drawn so that what it makes is as small as embeddings, where these are scaled by
    √D: positions of another size than the rest of the sum would be found late.
    """
    last.init_gain = encoder_sizes(config).width ** -0.5 if config.scale_embedding else 1.0
    return last


# `front_end` -> its class; each adds itself.
FRONT_END_CLASSES: dict[str, type[FrontEndBase]] = {}


def add_front_end(kind: str, front_end: type[FrontEndBase]) -> None:
    """
    Add a class to the table.

    Raises:
        ValueError: The config has no row for this kind.
    """
    if kind not in FRONT_ENDS:
        raise ValueError(
            f"{front_end.__name__}: kind={kind!r} is not a row of FRONT_ENDS; add it there first "
            "(config/front_ends.py), so that a config may name it"
        )
    FRONT_END_CLASSES[kind] = front_end


def take_sources(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the sources that are not of tokens out of a model's arguments: the encoder alone reads them."""
    return {name: arguments.pop(name) for name in CLASSES_OF_INPUTS if name != "input_ids" and name in arguments}


def add_embeddings(stack: Any, config: VanillaTransformerConfig, sizes: StackSizes) -> None:
    """Give a stack the embeddings of its tokens, or the front end of a source that has none."""
    if sizes.front_end == "tokens":
        stack.embed_tokens = nn.Embedding(sizes.vocab_size, sizes.width)
    else:
        stack.front_end = FRONT_END_CLASSES[sizes.front_end](config)


def shape_error(name: str, expected: str, source: torch.Tensor) -> ValueError:
    """The error about a source of a wrong shape."""
    found = ", ".join(map(str, source.shape))
    return ValueError(f"{name}: expected {expected}, got a tensor of shape ({found})")
