"""
Windows with global tokens: some tokens attend to all others, and all others to them.

Shapes: B sequences, T positions, D = d_model, H heads, C blocks of b positions, g global tokens of a sequence at most.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..layers.parts import check_padding_mask, counted
from ..modeling_vanilla_transformer import ApplyRotary, VanillaTransformerAttention
from .kernel_checks import check_kernel
from .local import Blocks, WindowAttention, additive, near_blocks


@dataclass
class GlobalTokens:
    """The mask of an encoder with global tokens; made once for all layers."""

    local: torch.Tensor | Blocks  # what queries see that are not global: a mask (B, 1, T, T), or blocks
    places: torch.Tensor  # positions of queries that are computed as global ones (B, g)
    are_global: torch.Tensor  # which of them are (B, g); sequences may have fewer than g
    mask: torch.Tensor  # transformers' mask of what they see (B or 1, 1, 1, T): all tokens

    def pick(self, states: torch.Tensor) -> torch.Tensor:
        """States (B, H, T, d) at the places (B, H, g, d)."""
        return states.gather(2, self.places[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3]))

    def spread(self, states: torch.Tensor, length: int) -> torch.Tensor:
        """States (B, H, g, d) at the places of T positions, with zeros elsewhere (B, H, T, d)."""
        index = self.places[:, None, :, None].expand_as(states)
        return states.new_zeros(*states.shape[:2], length, states.shape[3]).scatter(2, index, states)

    def put(self, states: torch.Tensor, its: torch.Tensor, dim: int) -> torch.Tensor:
        """States with T positions in this dimension, and those of the g global tokens, put in their places."""
        shape = [len(its), *[1] * (dim - 1), its.shape[dim], *[1] * (its.dim() - dim - 1)]
        length = states.shape[dim]
        # What is not global goes to one position more, which is cut off.
        places = self.places.masked_fill(~self.are_global, length).view(shape).expand_as(its)
        room = torch.cat((states, states.narrow(dim, 0, 1)), dim=dim)
        return room.scatter(dim, places, its.to(states.dtype)).narrow(dim, 0, length)


class GlobalWindowAttention(WindowAttention, kind="window_global"):
    """`WindowAttention`, and global tokens that attend to all, and all to them: arXiv 2004.05150, section 3.1."""

    # Beltagy et al. 2020. Time and memory grow with n (w + g). In the encoder they are those of
    # `global_attention_mask`, or the first `global_tokens` of a sequence. Their queries, and the keys and values that
    # they see, have projections of their own, unless `global_projections` is "shared". In the decoder they are the
    # first `global_tokens` of a sequence, which all later tokens see. They see those before them, as other tokens do,
    # with the same projections.

    other_kernels: tuple[str, ...] = ()
    has_global_tokens = True
    copies_keys = True  # to put those of global tokens behind them

    def _add_projections(self, width: int, key_value_width: int, num_heads: int, bias: bool) -> None:
        super()._add_projections(width, key_value_width, num_heads, bias)
        if not self.is_causal:
            for name in sorted(dict(self.global_roles).keys() - dict(self.roles).keys()):  # always drawn in one order
                own = getattr(self, name.removeprefix("global_"))
                projection = nn.Linear(own.in_features, own.out_features, bias=bias)
                projection.init_gain = own.init_gain
                self.add_module(name, projection)

    @property
    def global_roles(self) -> list[tuple[str, int]]:
        """For queries, keys and values of global tokens: the name of their projection, and the width of one head."""
        prefix = "global_" if self.config.global_projections == "separate" else ""
        return [(prefix + name, width) for name, width in self.roles]

    def sees(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        if not self.is_causal:
            return super().sees(query, key)
        return super().sees(query, key) | ((key < self.config.global_tokens) & (key <= query))

    def sees_in_block(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return super().sees(query, key)  # global tokens are added to each block

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        check_kernel(self)  # others have no sum of two attentions
        mask = super().mask(embeddings, padding, cache, is_needed)
        if not self.is_causal or not isinstance(mask, Blocks):
            return mask
        real = embeddings.new_ones(embeddings.shape[:2], dtype=torch.bool) if padding is None else padding.bool()
        first = torch.arange(min(self.config.global_tokens, real.shape[1]), device=real.device)  # (g)
        places = first.expand(len(real), -1) if mask.order is None else mask.order[:, : len(first)]
        queries = near_blocks(mask.count, mask.block, 0, 0, real.device)[:, :, None]  # (C, b, 1)
        shown = real.gather(1, places)[:, None, None] & (first <= queries)  # (B, C, b, g)
        return mask.with_keys(places, shown, real & (counted(real) < self.config.global_tokens))

    def global_mask(
        self, mask: Any, embeddings: torch.Tensor, padding: torch.Tensor | None, chosen: torch.Tensor | None
    ) -> GlobalTokens:
        """The mask of the encoder's layers; `chosen` is 1 for a global token (B, T)."""
        check_padding_mask(padding, "window_global", "; choose global ones by global_attention_mask")
        batch, length = embeddings.shape[:2]
        real = embeddings.new_ones(batch, length, dtype=torch.bool) if padding is None else padding.bool()
        count = min(self.config.global_tokens, length)
        if chosen is None:
            are_global = real & (counted(real) < self.config.global_tokens)
        elif chosen.shape != real.shape:
            raise ValueError(
                f"global_attention_mask of shape {tuple(chosen.shape)}: must be {tuple(real.shape)}, with 1 for each "
                "token that is global"
            )
        else:
            are_global = real & chosen.bool()  # (B, T)
            count = max(1, int(are_global.sum(dim=1).max()))
        seen = real[:, None, None]  # (B, 1, 1, T)
        if self.config._attn_implementation == "eager":  # with weights, all queries are computed as both kinds
            places = torch.arange(length, device=real.device).expand(batch, -1)
        else:
            places = are_global.byte().argsort(dim=1, descending=True, stable=True)[:, :count]
        shown = are_global.gather(1, places)
        if isinstance(mask, Blocks):
            mask = mask.with_keys(places, shown[:, None, None], are_global)
        else:
            pairs = (are_global[:, None, :, None] | are_global[:, None, None]) & seen  # (B, 1, T, T)
            mask = mask | pairs if mask.dtype == torch.bool else mask.masked_fill(pairs, 0.0)
        if self.config._attn_implementation == "eager":
            seen = additive(seen, embeddings.dtype)
        return GlobalTokens(mask, places, shown, seen)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        cache: Any = None,
        layer_idx: int = 0,
        apply_rotary: ApplyRotary | None = None,
        position_bias: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend to keys nearby and to global tokens; without weights where it is computed in blocks."""
        if not isinstance(attention_mask, GlobalTokens):  # in the decoder
            return super().forward(
                hidden_states, attention_mask, cache, layer_idx, apply_rotary, position_bias, **kwargs
            )
        query, key, value, global_key, global_value = self.project(
            hidden_states, [*self.roles, *self.global_roles[1:]]
        )
        rotate = apply_rotary or (lambda states: states)
        output, weights = self.attend(rotate(query), rotate(key), value, attention_mask.local, **kwargs)
        # Only the queries of global tokens are projected; `rotate` takes those of all positions.
        (global_query,) = self.project(attention_mask.pick(hidden_states[:, None])[:, 0], self.global_roles[:1])
        global_query = attention_mask.pick(rotate(attention_mask.spread(global_query, query.shape[2])))
        global_output, global_weights = VanillaTransformerAttention.attend(
            self, global_query, rotate(global_key), global_value, attention_mask.mask, **kwargs
        )
        if weights is None or global_weights is None:
            return attention_mask.put(output, global_output, 1), None
        # Outputs come from the weights that are returned: so these have gradients.
        weights = attention_mask.put(weights, global_weights, 2)
        are_global = attention_mask.are_global[:, None, :, None]
        output = torch.where(are_global, torch.matmul(weights, global_value), torch.matmul(weights, value))
        return self.owner.out_proj(output.transpose(1, 2).flatten(-2)), weights
