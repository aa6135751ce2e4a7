"""
Transformer-XL: attention to the segment before, and positions by distance.

Shapes: B sequences, T query positions, S key positions, D = d_model, H heads, K distances.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init

from ..layers.parts import counted
from ..modeling_vanilla_transformer import VanillaTransformerAttention
from ..positions.absolute import HalvesSinusoidalPositionEncoding
from .kernel_checks import check_inputs


class RecurrentAttention(VanillaTransformerAttention, kind="recurrent"):
    """score(i, j) = ((q_i + u)·k_j + (q_i + v)·W_R R_{i-j}) / √d_k: Dai et al. 2019, arXiv 1901.02860, section 3.3."""

    # With sinusoids R of the distance and trained u, v and W_R. A query sees itself and the `memory_length` positions
    # before it (`same_length` of the authors' code), those of the segment before through a memory: the inputs of the
    # layer there, of which keys and values are made anew, without their gradient. The memory is the cache:
    # `past_key_values` goes in and out of `forward` and `generate()`, and holds states (B, 1, S, D) in the place of
    # keys. A decoder alone keeps `memory_length` of them. So a text in segments of any lengths has the outputs of the
    # whole text. Padding is not counted as distance, and not seen in the memory.

    has_step = False
    divides_heads = False

    def _add_projections(self, width: int, key_value_width: int, num_heads: int, bias: bool) -> None:
        super()._add_projections(width, key_value_width, num_heads, bias)
        self.r_proj = nn.Linear(width, num_heads * self.d_k, bias=False)
        self.content_bias = nn.Parameter(torch.empty(num_heads, self.d_k))  # u
        self.distance_bias = nn.Parameter(torch.empty(num_heads, self.d_k))  # v

    def draw(self) -> None:
        """Draw u and v with deviation 0.02, as the authors do."""
        init.normal_(self.content_bias, std=0.02)
        init.normal_(self.distance_bias, std=0.02)

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        """Tokens between a query and a key (B or 1, T, S), from 0 to K - 1; where it does not see the key; and K."""
        check_inputs(self, padding, "recurrent")
        length = size = embeddings.shape[1]
        if cache is not None:
            if cache.is_compileable:
                raise ValueError(
                    "recurrent attention with a static cache: its memory is a DynamicCache; leave "
                    "cache_implementation out"
                )
            size = cache.get_mask_sizes(length, 0)[0]
        real = torch.ones(1, size, dtype=torch.bool, device=embeddings.device)
        if padding is not None:  # of all that has been read, or of this segment alone
            padding = padding[:, -size:].bool()
            real = F.pad(padding, (size - padding.shape[1], 0), value=True)
        places = counted(real)
        steps = places[:, -length:, None] - places[:, None]
        hidden = (steps < 0) | (steps > self.config.memory_length) | ~real[:, None]
        reach = min(size, self.config.memory_length + 1)
        return steps.clamp(0, reach - 1), hidden[:, None], reach

    def forward(  # type: ignore[override]  # its positions are its own
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        cache: Any = None,
        layer_idx: int = 0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """States (B, T, D) to (B, T, D) and weights (B, H, T, S), of the S positions of the memory and these."""
        states = hidden_states
        if cache is not None:
            kept = hidden_states.detach()[:, None]
            memory = cache.update(kept, kept[..., :0], layer_idx)[0][:, 0, : -hidden_states.shape[1]]
            states = torch.cat((memory, hidden_states), dim=1)
        (query,) = self.project(hidden_states, self.roles[:1])
        key, value = self.project_keys_values(states)
        return self.attend(query, key, value, attention_mask, **kwargs)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend to the segment and its memory: (B, T, H d_v), and the weights (B, H, T, S)."""
        steps, hidden, reach = attention_mask
        width = self.r_proj.in_features
        encoded = HalvesSinusoidalPositionEncoding.encode(torch.arange(reach, device=query.device), width)[:, :width]
        distances = self.r_proj(encoded.to(query.dtype)).unflatten(-1, (-1, self.d_k)).transpose(0, 1)  # (H, K, d_k)
        scores = torch.matmul(query + self.distance_bias[:, None], distances.transpose(1, 2)) * self.scaling
        index = steps[:, None].expand(*scores.shape[:3], steps.shape[-1])
        bias = scores.gather(-1, index).masked_fill(hidden, torch.finfo(scores.dtype).min)  # (B, H, T, S)
        return super().attend(query + self.content_bias[:, None], key, value, bias, **kwargs)
