"""
What surrounds the equations of attention: its projections, which may be shared or pruned, its mask and its caches.

Shapes: B sentences, S key positions, T query positions, D = d_model, H heads.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import is_flash_attention_requested

from ..config.attention_scores import SCALES
from ..config.sharing import PROJECTIONS
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..releases import named
from .attention_hooks import AttentionHooks, check_padding_mask
from .kernel_masks import FlashMemory
from .position_hooks import PositionBias, biased_attention_forward
from .projections import apply_projections


class AttentionProjections(AttentionHooks):
    """
    The projections W^Q, W^K, W^V and W^O of all heads, and the mask.

    Args:
        num_heads: Heads that share the width.
        shared_from: The attention whose projections this one uses instead of its own.
        kept_heads: How many of them there are; all if None.
    """

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear

    def __init__(
        self,
        config: VanillaTransformerConfig,
        width: int,
        key_value_width: int,
        num_heads: int,
        is_causal: bool = False,
        shared_from: "AttentionProjections | None" = None,
        kept_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.is_causal = is_causal
        self.d_k = config.d_k or width // num_heads
        self.d_v = config.d_v or width // num_heads
        self.scaling = SCALES[config.attention_score](self.d_k)
        # For queries, keys and values: the name of their projection, and the width of one head.
        self.roles = self._roles()
        self.share_projections_of(shared_from)
        if shared_from is None:
            self._add_projections(width, key_value_width, kept_heads or num_heads, config.attention_bias)

    def _roles(self) -> list[tuple[str, int]]:
        return list(zip(PROJECTIONS[self.config.projection_sharing], (self.d_k, self.d_k, self.d_v)))

    def _add_projections(self, width: int, key_value_width: int, num_heads: int, bias: bool) -> None:
        sizes: dict[str, tuple[int, int]] = {}
        for (name, head_width), states_width in zip(self.roles, (width, key_value_width, key_value_width)):
            sizes.setdefault(name, (states_width, num_heads * head_width))
        for name, size in sizes.items():
            projection = nn.Linear(*size, bias=bias)
            # As one matrix of three times the outputs, as in torch.nn.MultiheadAttention. Values √2 times as large,
            # averaged over the sentence and added to every position, would leave a fresh post-norm stack with
            # positions all alike.
            projection.init_gain = 2**-0.5  # type: ignore[assignment]
            self.add_module(name, projection)
        self.out_proj = nn.Linear(num_heads * self.d_v, width, bias=bias)

    @property
    def num_heads(self) -> int:
        """H, the heads that this attention has; pruning may have removed some."""
        return self.owner.out_proj.in_features // self.d_v

    @property
    def input_projections(self) -> list[nn.Linear]:
        """The linear layers of self-attention's input; a search computes them as one."""
        return [getattr(self.owner, name) for name in dict(self.roles)]

    def divider(self) -> Callable[[torch.Tensor], list[torch.Tensor]]:
        """
        A function that splits the concatenated outputs of `input_projections` (B, T, sum of widths) into queries and
        keys (B, H, T, d_k) and values (B, H, T, d_v).
        """
        widths, names = [projection.out_features for projection in self.input_projections], [*dict(self.roles)]
        places = [(names.index(name), width) for name, width in self.roles]

        def divide(projected: torch.Tensor) -> list[torch.Tensor]:
            parts = projected.split_with_sizes(widths, dim=-1)
            return [self.heads(parts[place], width) for place, width in places]

        return divide

    @staticmethod
    def heads(states: torch.Tensor, width: int) -> torch.Tensor:
        """States of all heads (B, T, H d) to those of each (B, H, T, d)."""
        return states.unflatten(-1, (-1, width)).transpose(1, 2)

    def outputs(self, names: tuple[str, ...], states: torch.Tensor) -> Sequence[torch.Tensor]:
        """The outputs (B, T, O) of its projections with these names for the same states (B, T, D)."""
        return apply_projections([getattr(self, name) for name in names], states)

    def project(self, states: torch.Tensor, roles: list[tuple[str, int]]) -> list[torch.Tensor]:
        """States (B, T, D) in each role (B, H, T, d); a projection that serves several is computed once."""
        names = tuple(dict(roles))
        made = dict(zip(names, self.owner.outputs(names, states)))
        return [self.heads(made[name], width) for name, width in roles]

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        """
        What this attention hides, once for all layers of a stack: transformers' mask, or what `attend` takes instead.

        Args:
            embeddings: Input of the stack (B, T, D).
            padding: 1 for a token, 0 for padding, of past and present (B, past + T), or a mask of transformers.
            cache: The cache with earlier keys, or None.
            is_needed: Make a mask also where the kernel would hide the future by itself.
        """
        if not self.is_causal:
            return create_bidirectional_mask(
                self.config, embeddings, padding, allow_is_bidirectional_skip=not is_needed
            )
        return create_causal_mask(self.config, embeddings, padding, **named(cache), allow_is_causal_skip=not is_needed)

    def kernel(self, eager: Callable[..., Any], position_bias: PositionBias | None) -> Callable[..., Any]:
        """What computes softmax(Q Kᵀ / √d_k) V: `eager` or the implementation in its place, with the bias if given."""
        if position_bias is not None:
            return partial(biased_attention_forward, position_bias)
        interface: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
        return interface

    def project_keys_values(self, states: torch.Tensor, padding: torch.Tensor | None = None) -> list[torch.Tensor]:
        """States (B, S, D) to keys (B, H, S, d_k) and values (B, H, S, d_v), of padding too."""
        return self.project(states, self.roles[1:])


class SourceAttention(AttentionProjections):
    """The mask, the kernel and the cached keys and values of attention to a source."""

    # Whether keys and values are sums over the source instead of those of its positions.
    attends_to_sums = False

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, memory: torch.Tensor | None) -> Any:  # type: ignore[override]
        """transformers' mask of the padding (B, S) in the encoder's output `memory` (B, S, D)."""
        mask: Any = create_bidirectional_mask(self.config, embeddings, padding, encoder_hidden_states=memory)
        if mask is not None and is_flash_attention_requested(self.config):
            check_padding_mask(padding, "flash", "; choose attn_implementation='sdpa' or 'eager'")
            return FlashMemory.of(mask)
        return mask

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        position_bias: PositionBias | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend to the source: (B, T, H d_v), and the weights (B, H, T, S) where the kernel has them."""
        if not isinstance(attention_mask, FlashMemory):
            return super().attend(query, key, value, attention_mask, position_bias, **kwargs)  # type: ignore[misc]  # of full attention
        batch = len(query)
        (query, key, value), places = attention_mask.flat(query, [key, value])
        output, weights = super().attend(query, key, value, None, position_bias, **places, **kwargs)  # type: ignore[misc]
        # (1, B T, D)
        return output.unflatten(1, (batch, -1))[0], weights

    def keys_values(
        self,
        states: torch.Tensor,
        cache: EncoderDecoderCache | None,
        layer_idx: int,
        attention_mask: torch.Tensor | None = None,
    ) -> list[torch.Tensor] | tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the encoder's output, projected once per sentence and cached apart from the target's."""
        if cache is None:
            return self.project_keys_values(states, attention_mask)
        if not cache.is_updated.get(layer_idx):
            cache.is_updated[layer_idx] = True
            key, value = self.project_keys_values(states, attention_mask)
            return cache.cross_attention_cache.update(key, value, layer_idx)
        layer: Any = cache.cross_attention_cache.layers[layer_idx]
        # Nothing is written after the first step, so an offloaded cache does not fetch the layer by itself.
        return layer.keys.to(states.device), layer.values.to(states.device)
