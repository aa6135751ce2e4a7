"""
What a stack makes of its inputs before its layers run: embeddings of token ids, masks, and the position scheme's part.

Shapes: B sentences, T positions, D = d_model (encoder_d_model in the encoder).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.cache_utils import Cache

from .base_model import StackEmbeddings
from .position_hooks import ApplyRotary, PositionBias, PositionEncoding, look_up


class AttentionInputs(NamedTuple):
    """
    What the self-attention of all layers is given.

    Attributes:
        mask: Transformers' mask plus the position scheme's bias, or what the kind of attention takes instead.
        apply_rotary: What rotates queries and keys by their positions.
        layer_biases: For each layer, what else the position scheme does in it.
    """

    mask: Any
    apply_rotary: ApplyRotary
    layer_biases: Iterable[PositionBias | None]


class StackInputs(StackEmbeddings):
    """A stack whose layers and position scheme are given the same inputs."""

    embed_tokens: nn.Embedding
    embed_positions: PositionEncoding
    layers: nn.ModuleList
    layer_order: list[int]

    @property
    def longest(self) -> int | None:
        """
        The largest number of positions, of the position scheme, of self-attention, and in an encoder of the decoder's
        attention to it; None without a limit.
        """
        limits: list[int | None] = [self.embed_positions.longest, self.layers_in_order[0].self_attn.longest]
        config = self.config
        if self.reads_source and config.is_encoder_decoder and config.cross_attention_type != "full":
            limits.append(config.max_position_embeddings)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def layers_in_order(self) -> list[Any]:
        """The N layers in order; a layer that occurs several times runs several times."""
        return [self.layers[number] for number in self.layer_order]

    def look_up_tokens(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Token ids (B, T) to embeddings (B, T, D), unscaled, unless these are given."""
        if input_ids is None and inputs_embeds is not None:
            return inputs_embeds
        if input_ids is None or inputs_embeds is not None:
            raise ValueError(f"{type(self).__name__}: give either token ids or embeddings, exactly one of them")
        # The embedding is called as a module, so that hooks of adapters, quantizers and offloading run.
        try:
            return self.embed_tokens(input_ids)
        except IndexError:
            return look_up(self.embed_tokens.weight, input_ids, what="token id")

    def prepare_attention(
        self,
        embeddings: torch.Tensor,
        padding: torch.Tensor | None,
        position_ids: torch.Tensor,
        cache: Cache | None = None,
        global_attention_mask: torch.Tensor | None = None,
    ) -> AttentionInputs:
        """
        What the layers' self-attention is given, once for all layers.

        Args:
            embeddings: (B, T, D), for their shape, type and device.
            padding: 1 for a token, 0 for padding, of past and present (B, past + T); a mask of transformers; or None.
            position_ids: (B or 1, T).
            cache: The cache with earlier keys, or None.
            global_attention_mask: 1 for a global token of an encoder that has some (B, T), or None.
        """
        scheme, own = self.embed_positions, self.layers_in_order[0].self_attn
        mask = own.mask(embeddings, padding, cache=cache, is_needed=scheme.is_relative)
        if self.reads_source:
            mask = own.global_mask(mask, embeddings, padding, chosen=global_attention_mask)
        mask, layer_biases = scheme.prepare_attention(
            mask, position_ids, padding=padding, cache=cache, dtype=embeddings.dtype
        )
        return AttentionInputs(mask, scheme.rotary_at(position_ids), layer_biases)
