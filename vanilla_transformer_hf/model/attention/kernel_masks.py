"""
Masks for kernels that skip what is not seen: torch's flex attention, which takes a rule of who sees whom, and flash
attention, which takes a window, and sequences without padding. transformers' attention interface runs them.

Shapes: B sequences, T query positions, S key positions, H heads, q and k blocks of queries and of keys.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask
from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

from ..layers.parts import counted


# Positions of a block of flex attention, torch's default: its kernels divide it among the tiles they compute.
FLEX_BLOCK = 128

# Whether queries at these positions see keys at those, of shapes that broadcast.
Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class FlashWindow:
    """What flash attention hides in a window; made once for all layers of a stack."""

    padding: torch.Tensor | None  # transformers' mask of padding (B, S)
    sliding_window: int  # transformers' argument: a query sees keys less than this many positions away


def window_of_flash(name: str, width: int, padding: torch.Tensor | None) -> FlashWindow:
    """The mask of flash attention for a window of `width` positions on each side of a query."""
    # transformers hands the kernel `sliding_window` - 1 on each side, both ends included, so that `sliding_window` is
    # one more than the width. In causal order the kernel itself hides the right side.
    # Of a kernel that takes no window, transformers would leave it out without a message.
    functions = [function for function in lazy_import_flash_attention(name)[0][:2] if function is not None]
    if any("window_size" not in inspect.signature(function).parameters for function in functions):
        raise ValueError(
            f"attn_implementation={name!r}: this kernel takes no window; choose 'sdpa' or 'flex_attention'"
        )
    return FlashWindow(padding, width + 1)


def flex_mask(sees: Rule, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any) -> BlockMask:
    """The mask of flex attention for a rule about positions, which are counted from the first token of a sequence."""
    # It is built from the ends of blocks, of which there are (T / 128) (S / 128): transformers' own functions compare
    # all T S pairs. A rule must say a band: who sees a key, sees all between it and itself, and so do those between;
    # it hides the future where it is causal. `padding` is of past and present (B, past + T).
    batch, length = embeddings.shape[:2]
    past, size = (0, length) if cache is None else (cache.get_seq_length(), cache.get_mask_sizes(length, 0)[0])
    real = embeddings.new_ones(batch, size, dtype=torch.bool)
    if padding is not None:  # unused room of a static cache lies in the future
        real = F.pad(padding.bool(), (0, size - padding.shape[1]), value=True)
    keys = counted(real)  # (B, S)
    queries = keys[:, torch.arange(length, device=keys.device) + past]  # (B, T)

    def shown(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return real[row, key] & sees(queries[row, query], keys[row, key])

    blocks = seen_blocks(sees, queries, keys)  # (B, q, k)
    order = blocks.byte().argsort(dim=-1, descending=True, stable=True)
    counts = blocks.sum(dim=-1)
    return BlockMask.from_kv_blocks(
        counts[:, None].int(), order[:, None].int(), None, None, FLEX_BLOCK, shown, (length, size)
    )


def seen_blocks(sees: Rule, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Whether a query of a block may see a key of a block (B, q, k), from positions (B, T) and (B, S) in order."""
    first, last = (end[:, :, None] for end in ends(queries))  # (B, q, 1)
    first_key, last_key = (end[:, None] for end in ends(keys))  # (B, 1, k)
    # The query of the block that is nearest to the block of keys, and the key nearest to that: if these do not see
    # each other, no others do.
    query = torch.minimum(torch.maximum(first_key, first), last)  # (B, q, k)
    key = torch.minimum(torch.maximum(query, first_key), last_key)
    return sees(query, key)


def ends(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the last position of each block (B, blocks), of positions in order (B, T)."""
    last = positions.shape[1] - 1
    starts = torch.arange(0, last + 1, FLEX_BLOCK, device=positions.device)
    return positions[:, starts], positions[:, (starts + FLEX_BLOCK - 1).clamp(max=last)]
