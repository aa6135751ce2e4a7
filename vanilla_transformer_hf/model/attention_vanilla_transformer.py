"""
Attention: transformers' attention interface chooses the kernel, transformers' mask functions make the masks.

Shapes: B sentences, S positions that answer, T positions that ask, D = d_model, H heads.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .dropout_vanilla_transformer import drop_out
from .positions_vanilla_transformer import Relation, Turn, keep


# Each is called once per forward pass, in the stacks.
ATTENTION_MASKS: dict[str, Callable] = {"full": create_bidirectional_mask, "causal": create_causal_mask}


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(Q Kᵀ / √d_k) V, section 3.2.1, in plain products."""
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling  # (B, H, T, S)
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = drop_out(weights.softmax(dim=-1), dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights  # (B, T, H, d_v)


def related_attention_forward(
    relation: Relation,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with scores and outputs of a position scheme, which no fused kernel has. It always has a mask."""
    mask: Any = attention_mask
    weights = relation.scores(query, key, mask, scaling) + mask  # (B, H, T, S)
    weights = drop_out(weights.softmax(dim=-1), dropout, module.training)
    return relation.outputs(weights, value).transpose(1, 2).contiguous(), weights  # (B, T, H, d_v)


class VanillaTransformerAttention(nn.Module):
    """Concat(head_1 … head_H) W^O with head_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √d_k) V W_i^V, section 3.2.2."""

    def __init__(
        self,
        config: VanillaTransformerConfig,
        width: int,
        key_value_width: int,
        num_heads: int,
        layer_idx: int,
        is_causal: bool = False,
    ):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.d_k = config.d_k or width // num_heads
        self.d_v = config.d_v or width // num_heads
        self.scaling = self.d_k**-0.5
        self.q_proj = nn.Linear(width, num_heads * self.d_k, bias=config.attention_bias)
        self.k_proj = nn.Linear(key_value_width, num_heads * self.d_k, bias=config.attention_bias)
        self.v_proj = nn.Linear(key_value_width, num_heads * self.d_v, bias=config.attention_bias)
        self.out_proj = nn.Linear(num_heads * self.d_v, width, bias=config.attention_bias)
        # As one matrix of three times the outputs, as in torch.nn.MultiheadAttention. Values √2 times as large,
        # averaged over the sentence and added to every position, would leave a fresh post-norm stack with positions
        # all alike.
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            projection.init_gain = 2**-0.5  # type: ignore[assignment]

    @property
    def projections(self) -> tuple[nn.Linear, ...]:
        """The maps of self-attention's input; a search computes them as one."""
        return self.q_proj, self.k_proj, self.v_proj

    def divide(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """
        What `projections` have made of states, side by side (B, T, H (2 d_k + d_v)), as queries, keys (B, H, T, d_k)
        and values (B, H, T, d_v).
        """
        widths = [projection.out_features for projection in self.projections]
        query, key, value = projected.split(widths, dim=-1)
        return self.heads(query, self.d_k), self.heads(key, self.d_k), self.heads(value, self.d_v)

    @staticmethod
    def heads(states: torch.Tensor, width: int) -> torch.Tensor:
        """States of all heads (B, T, H d) to those of each (B, H, T, d)."""
        return states.unflatten(-1, (-1, width)).transpose(1, 2)

    def project_keys_values(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """States (B, S, D) to keys (B, H, S, d_k) and values (B, H, S, d_v)."""
        return self.heads(self.k_proj(states), self.d_k), self.heads(self.v_proj(states), self.d_v)

    def keys_values(self, states: torch.Tensor, cache: Any, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the states, behind those of the past in a `Cache`."""
        key, value = self.project_keys_values(states)
        key = turn(key)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        return key, value

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        turn: Turn = keep,
        relation: Relation | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        States that ask (B, T, D) and states that answer (B, S, D) to (B, T, D) and weights (B, H, T, S).

        `turn` is what the position scheme does to queries and keys (B, H, T, d_k) at their positions, `relation` what
        it does in this layer's attention.
        """
        query = turn(self.heads(self.q_proj(hidden_states), self.d_k))  # (B, H, T, d_k)
        kept = turn if relation is None else lambda key: relation.kept_keys(turn(key), key_value_states)
        key, value = self.keys_values(key_value_states, past_key_values, kept)
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        if relation is not None:
            attend = partial(related_attention_forward, relation)
        output, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.out_proj(output.flatten(-2)), weights  # (B, T, D)


class VanillaTransformerCrossAttention(VanillaTransformerAttention):
    """Queries from the decoder; keys and values from the encoder, the same at every step."""

    def keys_values(self, states: torch.Tensor, cache: Any, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Keys and values of the encoder's output, projected once per sentence in an `EncoderDecoderCache`; they have no
        place in the target.
        """
        if cache is None:
            return self.project_keys_values(states)
        if not cache.is_updated.get(self.layer_idx):
            cache.is_updated[self.layer_idx] = True
            return cache.cross_attention_cache.update(*self.project_keys_values(states), self.layer_idx)
        layer: Any = cache.cross_attention_cache.layers[self.layer_idx]
        # Nothing is written after the first step, so an offloaded cache does not fetch the layer by itself.
        return layer.keys.to(states.device), layer.values.to(states.device)
