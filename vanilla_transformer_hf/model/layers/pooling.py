"""
An encoder whose sequence shortens, and the padding of its output: Funnel-Transformer, Dai et al. 2020, arXiv
2006.03236, section 2.2.

Shapes: B sources, S positions, S' positions after one pooling, T queries, D = encoder_d_model.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from transformers.masking_utils import create_bidirectional_mask

from ..config.front_ends import shortened_padding
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from .attention_hooks import check_padding_mask


def pairs(padding: torch.Tensor) -> tuple[torch.Tensor, int]:
    """
    The pair of neighbours that each position belongs to (B, S), and the number of pairs, S' = S // 2 + 1. Pairs are
    counted from the first token of a sequence, so that padding on the left does not part neighbours.

    Raises:
        ValueError: The mask is not one of padding, (B, S).
    """
    check_padding_mask(padding, "an encoder with pooling, self-", "")
    shift = padding.long().argmax(dim=1, keepdim=True) % 2
    return (torch.arange(padding.shape[1], device=padding.device) + shift) // 2, padding.shape[1] // 2 + 1


def pooled_padding(padding: torch.Tensor) -> torch.Tensor:
    """1 for a pair with a token, 0 for other pairs: padding (B, S) to (B, S')."""
    pair, count = pairs(padding)
    return padding.long().new_zeros(padding.shape[0], count).scatter_reduce(1, pair, padding.long(), "amax")


def pool(states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
    """The mean of each pair of neighbours, or of the one of them that is a token: states (B, S, D) to (B, S', D)."""
    if padding is None:
        return F.avg_pool1d(states.transpose(1, 2), 2, ceil_mode=True).transpose(1, 2)
    (pair, count), real = pairs(padding), padding.to(states.dtype)
    sums = states.new_zeros(states.shape[0], count, states.shape[2])
    sums = sums.scatter_add(1, pair[..., None].expand_as(states), states * real[..., None])
    tokens = real.new_zeros(real.shape[0], count).scatter_add(1, pair, real)
    return sums / tokens.clamp(min=1)[..., None]


def memory_padding(config: VanillaTransformerConfig, padding: torch.Tensor | None) -> torch.Tensor | None:
    """
    The padding of the encoder's output (B, S'), from that of the source (B, S) or of its frames: the same unless the
    front end or pooling shortens it.
    """
    padding = shortened_padding(config, padding)
    if padding is not None:
        for _ in config.encoder_pooling or []:
            padding = pooled_padding(padding)
    return padding


def pooling_layers(config: VanillaTransformerConfig) -> list[int]:
    """The numbers of the layers before which the sequence is pooled: 2 and 4 with `encoder_pooling=[2, 2]`."""
    return [*accumulate(config.encoder_pooling or [])]


class Shortening:
    """
    One pass through an encoder that pools: the mask of each layer follows the length.

    Args:
        own: The self-attention of the first layer.
        mask: Its mask at full length.
        padding: 1 for a token, 0 for padding (B, S), or None.
    """

    def __init__(self, own: Any, mask: Any, padding: torch.Tensor | None):
        self.own, self.mask, self.padding = own, mask, padding
        # Then attention reads the norms of the states.
        self.is_pre_norm = own.config.encoder_norm_position == "pre"

    def run(self, layer: Any, states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """A layer that keeps the length: states (B, S, D) to (B, S, D)."""
        return layer(states, self.mask, **kwargs)

    def pool_and_run(self, layer: Any, states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """A layer that halves it: states (B, S, D) to (B, S', D)."""
        short = pool(states, self.padding)
        config = self.own.config
        mask = create_bidirectional_mask(config, short, self.padding, encoder_hidden_states=states)
        self.padding = None if self.padding is None else pooled_padding(self.padding)
        self.mask = self.own.mask(short, self.padding, cache=None, is_needed=False)
        return layer(short, mask, layer.self_attn_layer_norm(states) if self.is_pre_norm else states, **kwargs)


def stages(layers: Sequence[Any], mask: Any, padding: torch.Tensor | None) -> list[Callable[..., torch.Tensor]]:
    """For each layer of an encoder the function (states, **kwargs) that runs it, behind those before it."""
    own = layers[0].self_attn
    one_pass, pooling = Shortening(own, mask, padding), pooling_layers(own.config)
    return [
        partial(one_pass.pool_and_run if number in pooling else one_pass.run, layer)
        for number, layer in enumerate(layers)
    ]
