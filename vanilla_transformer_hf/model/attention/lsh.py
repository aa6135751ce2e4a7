"""
Reformer: attention to the keys that fall into the same bucket as the query.

Shapes: B sequences, S key positions, T query positions, H heads, R rounds, c positions of a chunk, M slots.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import initialization as init

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..layers.parts import drop_out
from ..modeling_vanilla_transformer import VanillaTransformerAttention
from .kernel_checks import STATIC_CACHES, check_inputs


# Score of a token with itself, which it sees only if nothing else is there, and of what it does not see.
ITSELF, HIDDEN = -1e5, -1e9


class Chunks(NamedTuple):
    """Where the tokens of each bucket stand in one round, in the order of their positions."""

    # Every bucket begins a chunk of its own, so that the place of a token depends on no later one.

    ranks: torch.Tensor  # how many tokens of its bucket stand before each token (B, H, S)
    slots: torch.Tensor  # the place of each token among M slots, a multiple of c (B, H, S)

    @classmethod
    def of(cls, buckets: torch.Tensor, count: int, size: int) -> "Chunks":
        """Of tokens in these of `count` buckets (B, H, S), in chunks of `size`."""
        ordered, order = buckets.sort(dim=-1, stable=True)
        filled = torch.zeros(*buckets.shape[:-1], count, dtype=torch.long, device=buckets.device)
        filled = filled.scatter_add(-1, buckets, torch.ones_like(buckets))
        whole = -(-filled // size) * size
        ranks = torch.arange(buckets.shape[-1], device=buckets.device) - (filled.cumsum(-1) - filled).gather(
            -1, ordered
        )
        slots = (whole.cumsum(-1) - whole).gather(-1, ordered) + ranks
        return cls(*(torch.empty_like(each).scatter(-1, order, each) for each in (ranks, slots)))


class LshAttention(VanillaTransformerAttention, kind="lsh"):
    """Attention to the keys of a query's buckets: Kitaev et al. 2020, arXiv 2001.04451, section 2."""

    # As in the authors' code. Keys are the queries divided by their lengths, so that one projection makes both, and
    # scores are not divided by √d_k. The bucket of a token is argmax([xR; -xR]) with random rotations R, which
    # `lsh_seed` fixes and the weights hold. A query sees the keys of its bucket that stand in its chunk of `lsh_chunk`
    # tokens of that bucket or in the one before, in each of `lsh_rounds` rounds; a key that is seen in several counts
    # as often. A token sees itself only if it sees nothing else. Time and memory grow with n · c · rounds. Chunks
    # begin at buckets, and padding is in none: the future of a token changes nothing in the decoder, and padding
    # nothing at all. In eager attention all scores are computed, and the weights returned.

    has_step = False

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.scaling = 1.0
        shape = (config.lsh_rounds, self.d_k, (config.lsh_buckets + 1) // 2)
        self.register_buffer("rotations", torch.empty(shape))
        self.rotations: torch.Tensor
        self.draw()

    def _roles(self) -> list[tuple[str, int]]:
        return [("q_proj", self.d_k), ("q_proj", self.d_k), ("v_proj", self.d_v)]

    def draw(self) -> None:
        """Draw rotations: the same for all layers with the same `lsh_seed`."""
        if self.rotations.device.type != "meta":
            generator = torch.Generator("cpu").manual_seed(self.config.lsh_seed)
            drawn = torch.randn(self.rotations.shape, generator=generator, dtype=torch.float32, device="cpu")
            init.copy_(self.rotations, drawn)

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        """The padding of past and present (B, S), or None, and their length S."""
        check_inputs(self, padding, "LSH", STATIC_CACHES)
        past = 0 if cache is None else int(cache.get_seq_length())
        return padding, past + embeddings.shape[1]

    def buckets(self, keys: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """The buckets of keys (B, H, S, d_k) in each round (R, B, H, S); padding has one of its own, the last."""
        turned = torch.einsum("bhsd,rde->rbhse", keys.float(), self.rotations.float())
        found = torch.cat((turned, -turned), dim=-1)[..., : self.config.lsh_buckets].argmax(dim=-1)
        if padding is not None:
            found = found.masked_fill((padding == 0)[None, :, None], self.config.lsh_buckets)
        return found

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries, keys and values to outputs (B, T, D), and with eager attention weights (B, H, T, S)."""
        padding, length = attention_mask
        padding = None if padding is None else padding[:, :length]
        exact = torch.promote_types(query.dtype, torch.float32)
        query, key = query.to(exact), F.normalize(key[:, :, :length].to(exact), dim=-1)
        value, dtype = value[:, :, :length].to(exact), value.dtype
        buckets, weights = self.buckets(key, padding), None
        is_eager = self.config._attn_implementation == "eager"
        if is_eager or query.shape[2] < length or self._is_short(length):
            weights = self._weights(query, key, buckets)
            output = torch.matmul(weights, value)
            weights = weights if is_eager else None
        else:
            rounds = [self._in_chunks(query, key, value, each) for each in buckets]
            outputs, totals = (torch.stack(each) for each in zip(*rounds))
            output = (totals.softmax(dim=0)[..., None] * outputs).sum(dim=0)
        return self.owner.out_proj(output.to(dtype).transpose(1, 2).flatten(-2)), weights

    def _is_short(self, length: int) -> bool:
        """Whether chunks, of which each bucket leaves one in part empty, have more pairs than all tokens have."""
        size, rounds = self.config.lsh_chunk, self.config.lsh_rounds
        slots = (length // size + self.config.lsh_buckets + 1) * size
        return length * length <= rounds * slots * 2 * size

    def _weights(self, query: torch.Tensor, key: torch.Tensor, buckets: torch.Tensor) -> torch.Tensor:
        """Weights (B, H, T, S) of queries at the last T of S positions, in T · S."""
        count, whole = query.shape[2], key.shape[2]
        places = torch.arange(whole, device=key.device)
        seen = query.new_zeros(*query.shape[:3], whole)
        for each in buckets:
            chunks = Chunks.of(each, self.config.lsh_buckets + 1, self.config.lsh_chunk).ranks // self.config.lsh_chunk
            apart = chunks[:, :, -count:, None] - chunks[:, :, None]
            same = each[:, :, -count:, None] == each[:, :, None]
            seen += (same & (each != self.config.lsh_buckets)[:, :, None] & ((apart == 0) | (apart == 1))).to(seen)
        if self.is_causal:
            seen = seen * (places <= places[-count:, None])
        scores = torch.matmul(query, key.transpose(2, 3)).masked_fill(places == places[-count:, None], ITSELF)
        scores = (scores + seen.clamp(min=1).log()).masked_fill(seen == 0, HIDDEN)
        return drop_out(scores.softmax(dim=-1), self.config.attention_dropout, self.training)

    def _in_chunks(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, buckets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One round: outputs (B, H, S, d_v) and the logarithms of the sums of exponentials (B, H, S)."""
        length, size, count = query.shape[2], self.config.lsh_chunk, self.config.lsh_buckets + 1
        slots = Chunks.of(buckets, count, size).slots
        places = torch.arange(length, device=slots.device).expand_as(slots)
        # Each bucket leaves less than a chunk empty. An empty slot has the place of no token.
        tokens = slots.new_full((*slots.shape[:2], (length // size + count) * size), length).scatter(-1, slots, places)
        there = tokens.clamp(max=length - 1)

        def chunked(states: torch.Tensor) -> torch.Tensor:
            """States (B, H, S, d) to those of the chunks (B, H, M / c, c, d)."""
            index = there[..., None].expand(-1, -1, -1, states.shape[-1])
            return states.gather(2, index).unflatten(2, (-1, size))

        def with_previous(states: torch.Tensor) -> torch.Tensor:
            """Chunks (B, H, M / c, c, …) to those of each chunk and the one before (B, H, M / c, 2 c, …)."""
            return torch.cat((states.roll(1, dims=2), states), dim=3)

        own = tokens.unflatten(2, (-1, size))
        bucket = buckets.gather(2, there).unflatten(2, (-1, size))
        bucket = torch.where(own < length, bucket, count)  # empty slots are in no bucket
        others, of_others = with_previous(own)[..., None, :], with_previous(bucket)[..., None, :]
        hidden = (of_others != bucket[..., None]) | (of_others >= count - 1)
        hidden[:, :, 0, :, :size] = True  # the chunk before the first is the last one
        if self.is_causal:
            hidden |= others > own[..., None]
        scores = torch.matmul(chunked(query), with_previous(chunked(key)).transpose(-1, -2))
        scores = scores.masked_fill(others == own[..., None], ITSELF).masked_fill(hidden, HIDDEN)
        totals = scores.logsumexp(dim=-1, keepdim=True)
        weights = drop_out((scores - totals).exp(), self.config.attention_dropout, self.training)
        outputs = torch.matmul(weights, with_previous(chunked(value))).flatten(2, 3)
        index = slots[..., None].expand(-1, -1, -1, outputs.shape[-1])
        return outputs.gather(2, index), totals.flatten(2).gather(2, slots)
