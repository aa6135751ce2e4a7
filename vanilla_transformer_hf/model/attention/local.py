"""
Kinds of self-attention in which a query attends to keys near it. One class a kind.

Each kind is exact: it gives the outputs of full attention under the equivalent mask. With
attn_implementation="eager" that is how it is computed, and weights are returned; otherwise in blocks, by torch's fused
kernel ("sdpa"), by flex attention, or by flash attention where that can do it, so that time and memory grow with the
length of a sequence and not with its square.

Shapes: B sequences, T positions, D = d_model, H heads, C blocks of b positions, k keys that a block sees.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..layers.parts import check_padding_mask, counted
from ..modeling_vanilla_transformer import VanillaTransformerAttention
from .kernel_checks import check_kernel, kernel_refusal
from .kernel_masks import FlashWindow, flex_mask, window_of_flash


# In sequences of up to so many times the keys that a block sees, one masked product is as fast as products of blocks.
DENSE = 1.4
# Positions of a block at least, so that products are large enough. torch's kernel for processors takes 32 queries at a
# time, and blocks of as many have the fewest keys that no query sees.
SMALLEST_BLOCK, SMALLEST_BLOCK_OF_PROCESSORS = 64, 32
# Positions of blocks that a CPU computes at once without gradients: then its caches hold what they see.
AT_ONCE = 2**11


@dataclass
class Blocks:
    """How the positions of a batch fall into blocks; made once for all layers of a stack."""

    seen: torch.Tensor  # whether a query sees a key (B C, 1, b, k), or what is added to its score (B C, 1 or H, b, k)
    batch: int  # B
    block: int  # b
    left: int  # keys that a block sees before its first position; k = left + b + right
    right: int  # and behind its last
    order: torch.Tensor | None  # for each row its positions with those of tokens first (B, T); None without padding
    places: torch.Tensor | None  # for each row where each of its positions is in that order (B, T)
    shared: torch.Tensor | None = None  # positions of keys that all blocks see (B, g), behind those of the block

    def __post_init__(self) -> None:
        self._added: dict[torch.dtype, torch.Tensor] = {}

    @property
    def count(self) -> int:
        """C, the blocks of a row; those of one row follow each other in `seen`."""
        return self.rows[1]

    def with_keys(self, places: torch.Tensor, shown: torch.Tensor, are_shared: torch.Tensor) -> "Blocks":
        """These blocks with additional keys that all of them see, at `places` (B, g)."""
        # `shown` is whether a query sees them (B, C or 1, b or 1, g), `are_shared` whether a position is one of them
        # (B, T): no key is seen twice.
        keys = near_blocks(self.count, self.block, self.left, self.right, places.device)  # (C, k)
        ordered = are_shared if self.order is None else are_shared.gather(1, self.order)
        twice = ordered[:, keys.clamp(0, are_shared.shape[1] - 1)]  # (B, C, k)
        own = self.seen.unflatten(0, self.rows)[:, :, 0] & ~twice[:, :, None]  # (B, C, b, k)
        seen = torch.cat((own, shown.expand(*own.shape[:3], -1)), dim=-1)
        # A query that sees nothing, such as that of padding, sees all: its output is not used, and must not be NaN.
        seen = seen | ~seen.any(dim=-1, keepdim=True)
        return replace(self, seen=seen.flatten(0, 1)[:, None], shared=places)

    @property
    def rows(self) -> tuple[int, int]:
        """B and C."""
        return self.batch, len(self.seen) // self.batch

    @property
    def size(self) -> int:
        """k, without keys that all blocks see."""
        return self.left + self.block + self.right

    def added(self, dtype: torch.dtype) -> torch.Tensor:
        """What is added to scores of this type; made once, because a kernel would make its own in each layer."""
        if self.seen.dtype != torch.bool:
            return self.seen
        if dtype not in self._added:
            zero, hidden = (torch.tensor(value, dtype=dtype, device=self.seen.device) for value in (0.0, -torch.inf))
            self._added[dtype] = torch.where(self.seen, zero, hidden)
        return self._added[dtype]

    def positions(self, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions (B or 1, T) to those of each block's queries (B C, b) and keys (B C, k)."""
        ordered = self._ordered(position_ids.expand(self.batch, -1)[:, None, :, None])[:, 0, :, 0]  # (B, T)
        whole = F.pad(ordered, (0, -ordered.shape[1] % self.block))
        keys = F.pad(whole, (self.left, self.right)).unfold(1, self.size, self.block)
        return whole.reshape(-1, self.block), keys.flatten(0, 1)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kernel: Callable[..., tuple[torch.Tensor, Any]],
        at_once: int | None = None,
    ) -> torch.Tensor:
        """Attention of queries to the keys that they see, from (B, H, T, d) to (B, T, H, d_v)."""
        # `kernel` makes of queries, keys and values of blocks (B C, H, b or k, d) and `seen` outputs (B C, b, H, d_v)
        # and weights; it gets so many blocks `at_once`, without gradients; None: all.
        length = query.shape[2]
        shared = [self._shared(states) for states in (key, value)]
        query, key, value = (
            self._ordered(states).transpose(1, 2) for states in (query, key[:, :, :length], value[:, :, :length])
        )  # (B, T, H, d)
        query = whole_blocks(query, self.block).unflatten(1, (-1, self.block)).flatten(0, 1)  # (B C, b, H, d)
        sizes = self.block, self.left, self.right
        if at_once is None:
            near = [NearStates.apply(states, *sizes) for states in (key, value)]
            output = self._of_blocks(query, near, shared, slice(None), kernel)
        else:
            output = value.new_empty(*query.shape[:3], value.shape[-1])
            flat = [whole_blocks(states, self.block).flatten(0, 1) for states in (key, value)]
            for first in range(0, len(query), at_once):
                part = slice(first, min(first + at_once, len(query)))
                near = [near_states(states, part, *sizes) for states in flat]
                output[part] = self._of_blocks(query[part], near, shared, part, kernel)
        output = output.unflatten(0, self.rows).flatten(1, 2)[:, :length]  # (B, T, H, d_v)
        if self.places is None:
            return output
        return output.gather(1, self.places[:, :, None, None].expand_as(output))

    def _of_blocks(
        self,
        query: torch.Tensor,
        near: list[torch.Tensor],
        shared: list[torch.Tensor],
        part: slice,
        kernel: Callable[..., tuple[torch.Tensor, Any]],
    ) -> torch.Tensor:
        """Outputs of some of the blocks, from their queries (…, b, H, d) and the keys and values near (…, k, H, d)."""
        key, value = (states.transpose(1, 2) for states in near)
        if self.shared is not None:
            key, value = (torch.cat((own, all_see[part]), dim=2) for own, all_see in zip((key, value), shared))
        return kernel(query.transpose(1, 2), key, value, self.added(query.dtype)[part])[0]

    def _shared(self, states: torch.Tensor) -> torch.Tensor:
        """For each block the keys or values that all of them see: of (B, H, T, d) those (B C, H, g, d)."""
        if self.shared is None:
            return states
        index = self.shared[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
        return states.gather(2, index).repeat_interleave(self.count, dim=0)

    def _ordered(self, states: torch.Tensor) -> torch.Tensor:
        """States (B, H, T, d) with those of tokens before those of padding."""
        if self.order is None:
            return states
        return states.gather(2, self.order[:, None, :, None].expand_as(states))


class NearStates(torch.autograd.Function):
    """For each block the states that it sees, as overlapping views: from (B, T, H, d) to (B C, k, H, d)."""

    # Nothing is copied for a block. The rows of a batch follow each other, so that a block at the end of one may reach
    # into the next: the mask hides what is not its own. Gradients are summed by slices of b positions that do not
    # overlap: torch's own gradient of `unfold` takes several times as long, and one copy of the states for each block
    # needs k / b times the memory.

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, block: int, left: int, right: int) -> torch.Tensor:
        batch, length, *rest = states.shape
        whole = length + -length % block
        size = left + batch * whole + right
        ctx.block, ctx.size, ctx.rows = block, size, (left, batch, length, whole)
        flat = states.new_empty(size, *rest)
        flat[:left], flat[size - right :] = 0, 0
        rows = flat[left : size - right].unflatten(0, (batch, whole))
        rows[:, length:] = 0
        rows[:, :length] = states
        return views_of_blocks(flat, block, left + block + right)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        size, (left, batch, length, whole) = gradient.shape[1], ctx.rows
        total = gradient.new_zeros(ctx.size, *gradient.shape[2:])
        views = views_of_blocks(total, ctx.block, size)
        for first in range(0, size, ctx.block):
            part = slice(first, first + ctx.block)
            views[:, part].add_(gradient[:, part])
        return total[left : left + batch * whole].unflatten(0, (batch, whole))[:, :length], None, None, None


def whole_blocks(states: torch.Tensor, block: int) -> torch.Tensor:
    """States (B, T, H, d) and zeros behind them, up to a whole number of blocks of b positions."""
    tail = -states.shape[1] % block
    return F.pad(states, (0, 0, 0, 0, 0, tail)) if tail else states


def near_states(flat: torch.Tensor, part: slice, block: int, left: int, right: int) -> torch.Tensor:
    """Some rows of `NearStates` (…, k, H, d), of the states of all whole blocks (B C b, H, d), as views of these."""
    start, stop = part.start * block - left, part.stop * block + right
    inside, missing = flat[max(start, 0) : stop], (max(-start, 0), max(stop - len(flat), 0))
    if any(missing):
        inside = F.pad(inside, (0, 0, 0, 0, *missing))
    return views_of_blocks(inside, block, left + block + right)


def views_of_blocks(flat: torch.Tensor, block: int, size: int) -> torch.Tensor:
    """Views of `size` states that begin at each multiple of b, of (…, H, d), as (C, size, H, d)."""
    return flat.unfold(0, size, block).permute(0, 3, 1, 2)


def near_blocks(count: int, block: int, left: int, right: int, device: torch.device) -> torch.Tensor:
    """The positions of each of `count` blocks of b, and `left` before and `right` behind it (C, left + b + right)."""
    starts = torch.arange(count, device=device)[:, None] * block  # (C, 1)
    return starts + torch.arange(-left, block + right, device=device)


def additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask that is added to scores of this type, from whether queries see keys."""
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


class LocalAttention(VanillaTransformerAttention, ABC):
    """Self-attention in which a query attends to keys near it."""

    # A kind defines which (`sees`), and in which blocks it is computed (`block`, `reach`). Positions are counted from
    # the first token: padding on the left changes nothing.

    is_local = True
    other_kernels: tuple[str, ...] = ("flex_attention",)

    @property
    @abstractmethod
    def block(self) -> int:
        """b."""

    @property
    @abstractmethod
    def reach(self) -> int:
        """How far before (and, where it is not causal, behind) its own block a block sees keys."""

    @abstractmethod
    def sees(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Whether queries at these positions see keys at those, of shapes that broadcast, in causal order or not."""
        # A query that sees a key must see those between it and the key, and these must see the key, too.

    def sees_in_block(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Whether queries see keys that each block is given: this must not change when both move by b positions."""
        return self.sees(query, key)

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        if self.config._attn_implementation == "flex_attention":
            check_padding_mask(padding, "flex", "; choose attn_implementation='sdpa' or 'eager'")
            return flex_mask(self.sees, embeddings, padding, cache)
        if "flash" in (self.config._attn_implementation or ""):
            return self._flash(embeddings, padding, cache)
        past = 0 if cache is None else cache.get_seq_length()
        length, is_2d = embeddings.shape[1], padding is None or padding.dim() == 2
        keys = self.block + (1 if self.is_causal else 2) * self.reach  # k
        is_dense = self.config._attn_implementation == "eager" or length <= DENSE * keys
        if is_dense or not is_2d or isinstance(past, torch.Tensor) or past:
            return self._masked(super().mask(embeddings, padding, cache, is_needed=True), padding, past, length)
        if self.config._attn_implementation != "sdpa":
            raise ValueError(kernel_refusal(self))
        return self._blocks(embeddings, padding)

    def _flash(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any) -> Any:
        """The mask of flash attention, which only some kinds have."""
        raise ValueError(kernel_refusal(self))

    def _masked(self, mask: Any, padding: torch.Tensor | None, past: int | torch.Tensor, length: int) -> torch.Tensor:
        """transformers' mask (B, 1, T, S), without the keys that are not seen."""
        if not isinstance(mask, torch.Tensor) or mask.dim() != 4:
            raise ValueError(kernel_refusal(self))
        own = torch.arange(length, device=mask.device) + past
        keys = torch.arange(mask.shape[-1], device=mask.device)[None]  # (B or 1, S)
        if padding is not None and padding.dim() == 2:
            keys = F.pad(counted(padding), (0, mask.shape[-1] - padding.shape[1]))
        seen = self.sees(keys[:, own, None], keys[:, None])[:, None]
        if mask.dtype == torch.bool:
            return mask & seen
        return mask.masked_fill(~seen, torch.finfo(mask.dtype).min)

    def _blocks(self, embeddings: torch.Tensor, padding: torch.Tensor | None) -> Blocks:
        length, block = embeddings.shape[1], self.block
        left, right = self.reach, 0 if self.is_causal else self.reach
        count = -(-length // block)
        queries = near_blocks(count, block, 0, 0, embeddings.device)  # (C, b)
        keys = near_blocks(count, block, left, right, embeddings.device)  # (C, k)
        near = self.sees_in_block(queries[-1, :, None], keys[-1])  # (b, k)
        real, order, places = queries.new_ones(1, length, dtype=torch.bool), None, None  # (B or 1, T)
        if padding is not None:
            order = padding.bool().logical_not().byte().argsort(dim=1, stable=True)
            places = order.argsort(dim=1)
            real = padding.bool().gather(1, order)
        # One false position stands for all that are before the first and behind the last.
        real, last = F.pad(real, (0, 1)), queries.new_tensor(length)
        real_queries, real_keys = (
            real[:, torch.where(each < 0, last, each).clamp(max=length)] for each in (queries, keys)
        )
        seen = near & real_keys[:, :, None]  # (B or 1, C, b, k)
        # A query that is padding sees all, and not nothing: its output is not used, and must not be NaN.
        some = slice(-1, None) if padding is None else slice(None)
        seen[:, some] |= ~real_queries[:, some, :, None]
        seen = seen.expand(len(embeddings), -1, -1, -1).flatten(0, 1)[:, None]  # (B C, 1, b, k)
        return Blocks(seen, len(embeddings), block, left, right, order, places)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        *,
        position_bias: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend to the keys nearby: (B, T, H d_v), and weights unless it is computed in blocks."""
        if isinstance(attention_mask, FlashWindow):
            padding, kwargs = attention_mask.padding, kwargs | {"sliding_window": attention_mask.sliding_window}
            return super().attend(query, key, value, padding, position_bias=position_bias, **kwargs)
        if not isinstance(attention_mask, Blocks):
            return super().attend(query, key, value, attention_mask, position_bias=position_bias, **kwargs)
        dropout = self.config.attention_dropout if self.training else 0.0
        kernel = fused if position_bias is None else partial(position_bias.attend, self)
        # The scores of a position scheme are those of all blocks; compilers would unroll the loop.
        splits = position_bias is None and query.device.type == "cpu"
        splits = splits and not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        at_once = max(1, AT_ONCE // attention_mask.block) if splits else None
        options: dict[str, Any] = {"scaling": self.scaling, "dropout": dropout}
        output = attention_mask.attend(query, key, value, partial(kernel, **options), at_once)
        return self.owner.out_proj(output.flatten(-2)), None

    def evict(self, mask: torch.Tensor, positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        seen = self.sees(positions[:, :, None], key_positions[:, None])  # (B, 1, slots)
        return mask.masked_fill(~seen, float("-inf"))


def fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float, dropout: float
) -> tuple[torch.Tensor, None]:
    """softmax(Q Kᵀ / √d_k) V by torch's kernel, to outputs (B C, b, H, d_v), without weights."""
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return output.transpose(1, 2), None


class WindowAttention(LocalAttention, kind="window"):
    """A query sees the keys at most w = `attention_window` positions away, in the decoder those before it."""

    # On both sides. Sliding window of Beltagy et al. 2020, arXiv 2004.05150, section 3.1, whose windows have 2 w in
    # total.

    other_kernels: tuple[str, ...] = ("flex_attention", "flash_attention_2", "flash_attention_3")
    # Whether the keys of each block are copied, so that small blocks cost more.
    copies_keys = False

    @property
    def block(self) -> int:
        # Smaller blocks have fewer keys that no query sees; larger ones have fewer gradients that overlap.
        width = self.config.attention_window
        if torch.is_grad_enabled():
            return max(width, SMALLEST_BLOCK)
        if next(self.owner.parameters()).device.type == "cpu" and not self.copies_keys:
            return SMALLEST_BLOCK_OF_PROCESSORS
        return max(width // 2, SMALLEST_BLOCK)

    @property
    def reach(self) -> int:
        return self.config.attention_window

    def sees(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        distance = query - key
        near = distance <= self.config.attention_window
        return near & (distance >= (0 if self.is_causal else -self.config.attention_window))

    def _flash(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any) -> FlashWindow:
        name, width = self.config._attn_implementation, self.config.attention_window
        check_padding_mask(padding, "flash", "; choose attn_implementation='sdpa' or 'eager'")
        if cache is not None and cache.is_compileable:
            raise ValueError(
                f"attn_implementation={name!r} with a static cache: a window would be counted from its unused room; "
                "choose a dynamic cache, or attn_implementation='sdpa'"
            )
        return window_of_flash(
            str(name), width, VanillaTransformerAttention.mask(self, embeddings, padding, cache, is_needed=False)
        )


class BlockAttention(LocalAttention, kind="blocks"):
    """A query sees its block of b = `attention_block` positions, the one before and, in the encoder, the next."""

    # Local attention of blocks: Parmar et al. 2018, arXiv 1802.05751, section 3.3.

    @property
    def block(self) -> int:
        return self.config.attention_block

    @property
    def reach(self) -> int:
        return self.config.attention_block

    def sees(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        distance = query.div(self.block, rounding_mode="floor") - key.div(self.block, rounding_mode="floor")
        if self.is_causal:
            return (distance <= 1) & (key <= query)
        return distance.abs() <= 1


@dataclass
class ChunksAndSummaries:
    """The mask of chunks with summaries of earlier ones; made once for all layers of a stack."""

    # What queries see of keys and, behind them, of summaries: (B, 1, T, S + M), or blocks.
    local: torch.Tensor | Blocks
    pool: torch.Tensor  # what summaries take of keys (B or 1, 1, M, S), for M chunks

    def extended(self, states: torch.Tensor) -> torch.Tensor:
        """Keys or values (B, H, S, d) and, behind them, their summaries (B, H, S + M, d)."""
        return torch.cat((states, torch.matmul(self.pool, states)), dim=2)


class ChunkAttention(BlockAttention, kind="chunk"):
    """A query sees its chunk of b = `attention_block` positions, in the decoder up to its own: arXiv 1911.02972."""

    # Qiu et al. 2020, with the blocks that attend to themselves. With `chunk_summary="mean"`, it also sees a key and a
    # value of each earlier chunk, which are the means of the keys and of the values of its tokens. Time and memory
    # then grow with n (b + n / b).

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.has_step = config.chunk_summary == "none"
        if config.chunk_summary != "none":
            self.other_kernels = ()

    @property
    def reach(self) -> int:
        return 0

    def sees(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        same = query.div(self.block, rounding_mode="floor") == key.div(self.block, rounding_mode="floor")
        return same & (key <= query) if self.is_causal else same

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        if self.config.chunk_summary == "none":
            return super().mask(embeddings, padding, cache, is_needed)
        check_kernel(self)
        mask = super().mask(embeddings, padding, cache, is_needed)
        check_padding_mask(padding, "chunk", "; summaries cannot hide single keys, nor use a static cache")
        length = embeddings.shape[1]
        size = length if isinstance(mask, Blocks) else mask.shape[-1]
        keys = torch.arange(size, device=embeddings.device)[None]  # (B or 1, S)
        real = torch.ones_like(keys, dtype=torch.bool)
        if padding is not None:
            room = (0, size - padding.shape[1])  # of a static cache
            keys, real = F.pad(counted(padding), room), F.pad(padding.bool(), room)
        chunks, numbers = keys // self.block, torch.arange(-(-size // self.block), device=keys.device)  # (M)
        members = ((chunks[:, None] == numbers[:, None]) & real[:, None]).to(embeddings.dtype)  # (B or 1, M, S)
        pool = (members / members.sum(dim=-1, keepdim=True).clamp(min=1))[:, None]
        if isinstance(mask, Blocks):
            batch, behind = len(embeddings), numbers + length
            earlier = (numbers < numbers[:, None])[:, None].expand(batch, -1, -1, -1)  # (B, C, 1, M)
            none_shared = real.new_zeros(batch, length)
            return ChunksAndSummaries(mask.with_keys(behind.expand(batch, -1), earlier, none_shared), pool)
        own = torch.arange(length, device=keys.device) + (0 if cache is None else cache.get_seq_length())
        seen = (numbers < chunks[:, own, None])[:, None].expand(len(mask), -1, -1, -1)  # (B, 1, T, M)
        if mask.dtype != torch.bool:
            seen = additive(seen, mask.dtype)
        return ChunksAndSummaries(torch.cat((mask, seen), dim=-1), pool)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend to the own block and to summaries; weights (B, H, T, S + M) of the keys, then of the summaries."""
        if isinstance(attention_mask, ChunksAndSummaries):
            key, value = attention_mask.extended(key), attention_mask.extended(value)
            attention_mask = attention_mask.local
        return super().attend(query, key, value, attention_mask, **kwargs)
