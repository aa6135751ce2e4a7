"""
What a stack makes of its inputs before its layers run: embeddings of token ids, masks, and the position scheme's part.

Shapes: B sentences, T positions, D = d_model (encoder_d_model in the encoder).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.cache_utils import Cache

from ..config.front_ends import input_name_of, shortened_padding
from .base_model import StackEmbeddings
from .norms import note_tokens
from .position_hooks import ApplyRotary, PositionBias, PositionEncoding, look_up, positions


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
    front_end: nn.Module  # of a source without tokens, in the place of `embed_tokens`
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

    def read_source(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        others: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        A source to embeddings (B, S, D), unscaled, and their padding (B, S).

        Args:
            attention_mask: 1 for a token or frame, 0 for padding, or None.
            inputs_embeds: In the place of token ids.
            others: Sources that are not of tokens, as `take_sources` finds them.

        Raises:
            ValueError: Another one is given, or none.
        """
        name, model = input_name_of(self.config), type(self).__name__
        sources = {"input_ids": input_ids, **others}
        wrong = [other for other, given in sources.items() if given is not None and other != name]
        if inputs_embeds is not None and name != "input_ids":
            wrong.append("inputs_embeds")
        if wrong:
            raise ValueError(f"{model}: {wrong[0]} given; front_end={self.config.front_end!r} reads {name}")
        if name == "input_ids":
            return self.look_up_tokens(sources[name], inputs_embeds), attention_mask
        if (source := sources.get(name)) is None:
            raise ValueError(f"{model}: no {name} given, which front_end={self.config.front_end!r} reads")
        return self.front_end(source, attention_mask), shortened_padding(self.config, attention_mask)

    def positions_of(
        self,
        embeddings: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """The position of each embedding (B, T, D) behind those of the cache, as (B or 1, T), or those given."""
        if position_ids is not None:
            return position_ids
        return positions(embeddings, attention_mask, past_length=0 if cache is None else cache.get_seq_length())

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
        if self.training and self.config.norm_type == "batch_norm":
            note_tokens(self, padding, embeddings.shape[1])
        scheme, own = self.embed_positions, self.layers_in_order[0].self_attn
        mask = own.mask(embeddings, padding, cache=cache, is_needed=scheme.is_relative)
        if self.reads_source:
            mask = own.global_mask(mask, embeddings, padding, chosen=global_attention_mask)
        mask, layer_biases = scheme.prepare_attention(
            mask, position_ids, padding=padding, cache=cache, dtype=embeddings.dtype
        )
        return AttentionInputs(mask, scheme.rotary_at(position_ids), layer_biases)
