"""
A decoder that takes one token of each hypothesis at a time and caches the keys and values of the earlier ones.

- Keys and values of the source are kept once per sentence; the queries of its beams meet them in one product, as if
the beams were positions.
- Keys and values of the target are written once, and stay where they are when hypotheses change places: a mask says
  which of them belong to a beam. Those that no hypothesis needs any more are dropped when the cache grows.

Shapes: B sentences, n beams, S source positions, D = d_model, H heads, V vocabulary, N layers.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ..config.stacks import heads_of_layers
from ..layers.parts import is_plain, is_unchanged
from ..packing.most_likely import best_candidates, most_likely
from ..packing.packed import StepProjections, StepWeights, lacks_bfloat16
from .layer_tensors import LayerTensors


# Steps for which room for keys and values is allocated at once. Attention covers all of it, in contiguous memory:
# libraries compile code for each shape, and copy tensors with gaps.
ROOM = 8
# Hypotheses whose logits are in memory at once where only the best of them count. Products of fewer rows take longer:
# one core, with the search for the best, at once and by 100: 640 rows of 10,000 x 128 30.7 and 31.5 ms; of 37,000 x
# 512, 300 rows 127 and 132 (by 25: 169), 640 rows 323 and 280.
ROWS_OF_LOGITS = 100


class IncrementalDecoder:
    """A decoder that takes one token of each hypothesis at a time and caches keys and values of the others."""

    # The n hypotheses of a sentence take the dimension of positions: one product compares their queries with the keys
    # of the source, and one with the keys of all n. A step fills n slots; `mask` (B, n, slots) is 0 where a slot
    # belongs to the past of the hypothesis that is at that place now, else -∞. Sentences may join at any step:
    # `begins` (B or 1, 1) is the step of a sentence's first token. Afterwards `states` is what the last step returned
    # (B, n, D), and with `record_attention` `attention` the last layer's weights of the source (B, n, S), the mean
    # over heads.

    # Whether sentences may join others at any step.
    can_absorb = True

    def __init__(
        self,
        model: Any,  # its dropouts must be off
        weights: StepWeights,
        memory: torch.Tensor,  # output of the encoder (B, S, D)
        attention_mask: torch.Tensor | None,  # 1 for a source token, 0 for padding (B, S)
        beams: int,
        record_attention: bool = False,
        shortlist: torch.Tensor | None = None,  # ids of the tokens that get logits (V), all if None
    ):
        self._begin(model, weights, memory, len(memory), beams, record_attention, shortlist)
        attention_mask = self.decoder.memory_padding(attention_mask)
        crosses = [layer.encoder_attn for layer in self.decoder.layers]
        # One entry for each set of weights, M ≤ N: layers with the same weights have the same keys and values.
        projected = (cross.project_keys_values(memory, attention_mask) for cross in weights.crosses)
        stored = ((self.turned(keys), values) for keys, values in projected)  # values (B, H, S, d_v)
        self.source_keys, self.source_values = LayerTensors.copies(stored, self.mask.dtype)
        if attention_mask is not None and not crosses[0].attends_to_sums and not attention_mask.all():
            # A row of padding only would have no mean.
            hidden = (attention_mask == 0) & attention_mask.any(dim=1, keepdim=True)
            mask = torch.zeros_like(attention_mask, dtype=self.mask.dtype).masked_fill(hidden, -math.inf)
            self.source_mask = mask[:, None, None]  # (B, 1, 1, S)
        # Of one sentence alone, until others join it.
        self.folded: list[FoldedSource] | None = None
        is_alone = len(memory) == 1 and memory.is_cpu and not record_attention
        is_exact = memory.dtype == torch.float32 and weights.quantization is None
        is_exact = is_exact and not torch.is_autocast_enabled("cpu")
        if is_alone and is_exact and all(FoldedSource.pays(cross, self.source_length) for cross in crosses):
            read = zip(crosses, self.source_keys.flat, self.source_values.flat)
            self.folded = [FoldedSource(*each, mask=self.source_mask) for each in read]

    def _begin(
        self,
        model: Any,
        weights: StepWeights,
        states: torch.Tensor,
        batch: int,
        beams: int,
        record_attention: bool,
        shortlist: torch.Tensor | None,
    ) -> None:
        """Set up what does not depend on a source, and keys and values of no steps yet."""
        # The sentences may join others, which have room for them. `states` give type and device.
        self.decoder, self.weights = model.get_decoder(), weights
        self.head, self.most_likely = weights.head, weights.most_likely
        self.vocabulary = self.decoder.config.vocab_size if shortlist is None else len(shortlist)
        if shortlist is not None:
            self.head = weights.head_of(shortlist)
            self.most_likely = most_likely(self.head)
        self.layers = [
            StepLayer(layer, projections, number=number, place=place)
            for number, (layer, projections, place) in enumerate(
                zip(self.decoder.layers_in_order, weights.layers, self.decoder.layer_order, strict=True)
            )
        ]
        self.beams, self.length, self.filled = beams, 0, 0
        self.record_attention, self.attention = record_attention, states.new_zeros(1, dtype=torch.float32)
        if states.dtype == torch.bfloat16 and states.device.type == "cpu" and lacks_bfloat16():
            # There torch's products of bfloat16 are a loop, and wake its threads for each head (attention of one core
            # with AVX2, 8 heads of 64, bfloat16 and float32, µs: 28 and 8 for one query and 32 positions, 281 and 33
            # for four and 160, 9,303 and 1,376 for 32 times these).
            states = states.new_empty(0, dtype=torch.float32)
        self.attend = attend if record_attention else kernel_for(states, beams)
        # The dimension of positions. Keys are stored transposed where that is faster: small float32 products of rows
        # with rows take two to five times as long as those of rows with columns.
        self.key_dim = -1 if states.dtype == torch.float32 else -2
        self.source_mask = None
        self.exact_logits = states.new_empty(0, dtype=torch.float32)
        own = self.decoder.layers[0].self_attn
        each = heads_of_layers(self.decoder.config, "decoder")
        heads = [each[place] for place in self.decoder.layer_order]
        scheme, slots = self.decoder.embed_positions, 0
        key_width, value_width = own.d_k + scheme.kept_features, own.d_v
        # Sums in place of keys and values, in float32 (B, H, n, state_size); zeros before the first token.
        self.sums: LayerTensors | None = None
        if own.state_size:
            key_width = value_width = 0
            self.sums = LayerTensors.zeros(states.float(), heads, batch, self.beams, own.state_size)
        key_sizes = (slots, key_width) if self.key_dim == -2 else (key_width, slots)
        self.keys = LayerTensors.zeros(states, heads, batch, *key_sizes)
        self.values = LayerTensors.zeros(states, heads, batch, slots, value_width)
        self.mask = states.new_full((batch, self.beams, slots), -math.inf)
        self.apart = states.new_full((self.beams, self.beams), -math.inf).fill_diagonal_(0)
        self.begins = torch.zeros(1, 1, dtype=torch.long, device=states.device)
        # The position of each slot's key (B or 1, slots), for schemes that depend on distances. There is one row while
        # all sentences have the same positions in the same slots.
        needs_positions = scheme.is_relative or own.is_local
        self.key_positions = self.begins.new_zeros(1, slots) if needs_positions else None

    def read(self, prompt: torch.Tensor) -> None:
        """Take these tokens of each sentence (B, P), which all of its hypotheses begin with."""
        for tokens in prompt.unbind(1):
            self.step(tokens[:, None].expand(-1, self.beams))

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """The next token of each hypothesis (B, n) to the states that predict the one after it (B, n, D)."""
        if self.is_full:
            self._make_room()
        start, self.filled, self.length = self.filled, self.filled + self.beams, self.length + 1
        self.mask[:, :, start : self.filled] = self.apart
        positions = self.length - 1 - self.begins  # (B or 1, 1)
        states = self.decoder.embed(self.decoder.look_up_tokens(tokens, None), positions)  # (B, n, D)
        scheme = self.decoder.embed_positions
        if self.key_positions is not None:
            self.key_positions[:, start : self.filled] = positions
            own = self.decoder.layers[0].self_attn
            if own.is_local:
                self.mask = own.evict(self.mask, positions, self.key_positions)
        mask = self.mask[:, None]  # (B, 1, n, slots)
        if scheme.is_relative:
            mask = mask + scheme.bias(positions, self.key_positions).to(mask.dtype)
        step = Step(slots=slice(start, self.filled), masks=Masks(mask), apply_rotary=scheme.rotary_at(positions))
        biases = scheme.layer_biases(positions, self.key_positions) if scheme.is_relative else repeat(None)
        for layer, position_bias in zip(self.layers, biases):
            states = self.decode_layer(layer, states, step=step, position_bias=position_bias)
        predicting: torch.Tensor = self.decoder.layer_norm(states)
        self.states = predicting
        return predicting

    def decode_layer(self, layer: "StepLayer", states: torch.Tensor, step: "Step", position_bias: Any) -> torch.Tensor:
        """States (B, n, D) through a layer, in a step what its `forward` is for whole sequences."""
        norm = layer.self_attn_layer_norm
        attended = self._attend_to_target(layer, step, position_bias, layer.before(states, norm))
        states = layer.after(states, attended, norm)
        if layer.encoder_attn is not None:
            norm = layer.encoder_attn_layer_norm
            states = layer.after(states, self._attend_to_source(layer, layer.before(states, norm)), norm)
        if layer.feed_forward is not None:
            norm = layer.final_layer_norm
            states = layer.after(states, layer.feed_forward(layer.before(states, norm)), norm)
        return states

    def _attend_to_target(
        self, layer: "StepLayer", step: "Step", position_bias: Any, states: torch.Tensor
    ) -> torch.Tensor:
        """Self-attention of states (B, n, D), whose keys and values are written into the slots of the step."""
        own, projections, number = layer.self_attn, layer.projections, layer.number
        projected = projections.qkv(states)
        if layer.width is not None:  # of all heads, so that one view makes those of all projections
            parts = own.heads(projected, layer.width).split_with_sizes(layer.heads, dim=1)
        else:
            parts = list(map(own.heads, projected.split_with_sizes(layer.outputs, dim=-1), layer.widths))
        query, key, value = [parts[place] for place in layer.roles]  # (B, H, n, d_k), the last one (B, H, n, d_v)
        if step.apply_rotary is not None:
            query, key = step.apply_rotary(query), step.apply_rotary(key)
        if self.sums is not None:
            output, after = own.step(query, key, value, self.sums[number])
            self.sums[number].copy_(after)
            return projections.out(output)
        self.turned(self.keys[number])[:, :, step.slots] = (
            key if position_bias is None else position_bias.kept_keys(key, states)
        )
        self.values[number][:, :, step.slots] = value
        keys, values = self._columns(self.keys.flat[number]), self.values.flat[number]
        mask = step.masks[query.shape[1]]
        if position_bias is None:
            output, _ = self.attend(query, keys, values, mask, own.scaling)
        else:
            keys, values, mask = by_heads(query, keys, values=values, mask=mask)
            output, _ = position_bias.attend(own, query.to(keys.dtype), keys, values, mask, scaling=own.scaling)
            output = output.flatten(2).to(query.dtype)
        return projections.out(output)

    def _attend_to_source(self, layer: "StepLayer", states: torch.Tensor) -> torch.Tensor:
        """Attention of states (B, n, D) to the source."""
        if self.folded is not None:
            return self.folded[layer.place](states)
        cross, projections = layer.encoder_attn, layer.projections
        query = cross.heads(projections.cross_query(states), cross.d_k)  # (B, H, n, d_k)
        keys, values = self._columns(self.source_keys.flat[layer.place]), self.source_values.flat[layer.place]
        output, weights = self.attend(query, keys, values, self.source_masks[query.shape[1]], cross.scaling)
        if self.record_attention:  # that of the last layer is kept
            self.attention = weights.unflatten(0, query.shape[:2]).mean(dim=1, dtype=torch.float32)  # (B, n, S)
        return projections.cross_out(output)

    def next_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """The next token of each hypothesis (B, n) to logits of the one after it (B, n, V)."""
        return self.head(self.step(tokens))

    def next_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """The next token of each sentence (B, 1), of one beam, to the most likely one after it (B)."""
        return self.most_likely(self.step(tokens)[:, 0])

    def log_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """The next token of each hypothesis (B, n) to log-probabilities of the one after it (B, n, V), in float32."""
        # They are overwritten by the next call.
        return self._log_softmax(self.next_logits(tokens))

    def best_continuations(
        self, tokens: torch.Tensor, scores: torch.Tensor, count: int, alone: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The next tokens (B, n) to the best continuations of hypotheses that have these scores (B, n)."""
        # Their scores, the hypotheses that they continue, and their tokens, all (B, K). Only a part of the logits is
        # in memory at a time; of sentences `alone` (B) only those of their first hypothesis are computed.
        states, found = self.step(tokens), []
        most = ROWS_OF_LOGITS if states.device.type == "cpu" else tokens.numel()
        groups, order = [(states, scores)], None
        if count <= self.vocabulary and alone.any():
            first, others = alone.nonzero()[:, 0], (~alone).nonzero()[:, 0]
            groups, order = [(states[first, :1], scores[first, :1])], torch.cat((first, others)).argsort()
            if len(others):
                groups.append((states[others], scores[others]))
        for its_states, its_scores in groups:
            size = max(1, most // its_scores.shape[1])
            for part, before in zip(its_states.split(size), its_scores.split(size)):
                log_probs = self._log_softmax(self.head(part))
                found.append(best_candidates(log_probs, count, before))
        values, places = found[0] if len(found) == 1 else map(torch.cat, zip(*found))
        if order is not None:
            values, places = values[order], places[order]
        return values, places // log_probs.shape[-1], places % log_probs.shape[-1]

    def _log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (b, n, V) to log-probabilities in float32, in the memory of the logits or of the last call."""
        # The largest tensors of a step: fresh memory costs more than the computation.
        if logits.dtype != torch.float32:
            if len(self.exact_logits) < logits.numel():
                self.exact_logits = self.exact_logits.new_empty(logits.numel())
            logits = self.exact_logits[: logits.numel()].view(logits.shape).copy_(logits)
        return torch.log_softmax(logits, dim=-1, out=logits if logits.device.type == "cpu" else None)

    def follow(self, parents: torch.Tensor) -> None:
        """Let the hypothesis at each place continue the one at place `parents` (B, n) of its sentence."""
        if self.beams > 1:
            self.mask = self.mask.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.mask.shape[-1]))
            if self.sums is not None:
                rows = torch.arange(len(parents), device=parents.device)[:, None]  # (B, 1)
                self.sums.rewrite(
                    2, self.beams, lambda old, new: new.copy_(old.transpose(1, 2)[rows, parents].transpose(1, 2))
                )

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Keep only these sentences."""
        for tensors in vars(self).values():
            if isinstance(tensors, LayerTensors):
                tensors.keep(rows)
        self.keep_masks(rows)

    def keep_masks(self, rows: torch.Tensor) -> None:
        self.mask = self.mask[rows]
        self.source_mask = None if self.source_mask is None else self.source_mask[rows]
        if self.key_positions is not None and len(self.key_positions) > 1:
            self.key_positions = self.key_positions[rows]
        if len(self.begins) > 1:
            self.begins = self.begins[rows]

    @property
    def source_mask(self) -> torch.Tensor | None:
        """0 for a source token, -∞ for padding (B, 1, 1, S); None without padding."""
        return self.source_masks.mask

    @source_mask.setter
    def source_mask(self, mask: torch.Tensor | None) -> None:
        self.source_masks = Masks(mask)

    @property
    def source_length(self) -> int:
        """S."""
        return self.source_values[0].shape[2]

    def _columns(self, keys: torch.Tensor) -> torch.Tensor:
        """Keys as they are stored, as columns (B H, d_k, T)."""
        return keys if self.key_dim == -1 else keys.transpose(1, 2)

    def turned(self, keys: torch.Tensor) -> torch.Tensor:
        """Keys (..., T, d_k) in the layout in which they are stored, and back."""
        return keys if self.key_dim == -2 else keys.transpose(-2, -1)

    def resize(self, keys: LayerTensors, values: LayerTensors, size: int) -> None:
        """Cut keys and values to so many positions, or pad them with zeros."""
        keys.resize(self.key_dim, size)
        values.resize(-2, size)

    @property
    def is_full(self) -> bool:
        """Whether the next step makes room for more keys and values."""
        return self.filled == self.mask.shape[-1]

    def used_slots(self) -> torch.Tensor:
        """Which slots some hypothesis of a sentence needs (B, slots)."""
        return (self.mask == 0).any(dim=1)

    def _make_room(self) -> None:
        """Allocate slots for more steps and drop those that no hypothesis needs any more."""
        used = self.used_slots()
        self.filled = int(used.sum(dim=1).max())
        slots = self.filled + ROOM * self.beams
        if used.all():
            self.mask = resized(self.mask, -1, size=slots, value=-math.inf)
            self.resize(self.keys, self.values, size=slots)
            self.key_positions = None if self.key_positions is None else resized(self.key_positions, -1, size=slots)
            return
        places = used.sort(dim=1, descending=True, stable=True).indices[:, : self.filled]  # (B, filled)
        mask = self.mask.gather(2, places[:, None].expand(-1, self.beams, -1))
        places = resized(places, -1, size=slots)
        self.mask = resized(mask, -1, size=slots, value=-math.inf)
        self.keys.rewrite(self.key_dim, slots, partial(pick, places, dim=self.key_dim))
        self.values.rewrite(-2, slots, partial(pick, places, dim=-2))
        if self.key_positions is not None:
            self.key_positions = self.key_positions.expand(len(places), -1).gather(1, places)


def resized(tensor: torch.Tensor, dim: int, size: int, value: float = 0.0) -> torch.Tensor:
    """The tensor with its dimension `dim` < 0 cut to `size`, or padded to it with `value`."""
    missing = size - tensor.shape[dim]
    if missing <= 0:
        return tensor.narrow(dim, 0, size).contiguous() if missing else tensor
    shape = [*tensor.shape]
    shape[dim] = missing
    return torch.cat((tensor, tensor.new_full(shape, value)), dim=dim)  # `F.pad` writes everything twice


def pick(places: torch.Tensor, old: torch.Tensor, new: torch.Tensor, dim: int) -> None:
    """For each sentence its slots at `places` (B, T') of (B, H, T, d) or (B, H, d, T), into others with T' of them."""
    if dim == -1:
        torch.gather(old, dim, places[:, None, None].expand(new.shape), out=new)
        return
    batch, heads, slots, _ = old.shape
    each = torch.arange(batch * heads, device=places.device).view(batch, heads, 1)
    rows = each * slots + places[:, None]  # (B, H, T'), by whole rows, which is faster
    torch.index_select(old.flatten(0, 2), 0, rows.flatten(), out=new.flatten(0, 2))


class Step(NamedTuple):
    """What the layers of one step share."""

    slots: slice  # where the keys and values of its tokens are written
    masks: "Masks"  # of self-attention
    apply_rotary: Callable[[torch.Tensor], torch.Tensor] | None


class StepLayer:
    """What a search's steps need of layer `number`, with the weights at `place`, packed; looked up once."""

    # To look something up in a module takes as long as a small operation.

    def __init__(self, layer: Any, projections: StepProjections, number: int, place: int):
        self.number, self.place, self.projections = number, place, projections
        self.is_pre_norm, self.alpha, self.dropout = layer.is_pre_norm, layer.alpha, projections.dropout
        kind = type(layer)
        # The equations of the layer, here without dropout.
        self.before, self.after = partial(kind.before, self), partial(kind.after, self)
        self.feed_forward = partial(kind.feed_forward, projections) if layer.has_feed_forward else None
        self.self_attn: Any = layer.self_attn
        self.encoder_attn: Any = getattr(layer, "encoder_attn", None)
        # Of each projection of self-attention the width of a head, that of all heads, and how many there are; for
        # queries, keys and values the place of their projection. `width` is None where it differs.
        names, self.widths = zip(*dict(self.self_attn.roles).items())
        self.outputs = [getattr(self.self_attn.owner, name).out_features for name in names]
        self.heads = [size // width for size, width in zip(self.outputs, self.widths)]
        self.width = self.widths[0] if len({*self.widths}) == 1 else None
        self.roles = [names.index(name) for name, _ in self.self_attn.roles]
        self.self_attn_layer_norm = norm_of(layer.self_attn_layer_norm)
        self.encoder_attn_layer_norm = norm_of(getattr(layer, "encoder_attn_layer_norm", None))
        self.final_layer_norm = norm_of(layer.final_layer_norm)


def norm_of(module: Any) -> Any:
    """The module, or torch's function for a LayerNorm without hooks."""
    # That takes half as long (one row of 128: 2.8 against 6.0 µs), and each layer has three in a step.
    if type(module) is not nn.LayerNorm or not is_unchanged(module):
        return module
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda states: torch.layer_norm(states, shape, weight, bias, eps)


class Masks(dict[int, torch.Tensor | None]):
    """A mask of attention (B, 1 or H, 1 or n, T) for each number of heads H, as (B H, 1 or n, T), made when needed."""

    # One operation adds it to the scores. None stays None.

    def __init__(self, mask: torch.Tensor | None):
        super().__init__()
        self.mask = mask

    def __missing__(self, heads: int) -> torch.Tensor | None:
        made = self.mask if self.mask is None else self.mask.expand(-1, heads, -1, -1).flatten(0, 1)
        self[heads] = made
        return made


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, Any]:
    """softmax(Q Kᵀ / √d_k) V, section 3.2.1, to outputs (B, n, H d_v) and weights (B H, n, T)."""
    # Of queries (B, H, n, d_k), keys (B H, d_k, T), values (B H, T, d_v) and a mask (B H, 1 or n, T). For a few
    # queries plain products are faster than the fused kernel. Products are in the type of the keys.
    rows = query.flatten(0, 1).to(keys.dtype)  # (B H, n, d_k)
    scaled = torch.bmm(rows * scaling, keys) if mask is None else torch.baddbmm(mask, rows, keys, alpha=scaling)
    weights = scaled.softmax(dim=-1)  # (B H, n, T)
    output = torch.bmm(weights, values).unflatten(0, query.shape[:2])  # (B, H, n, d_v)
    return output.transpose(1, 2).flatten(2).to(query.dtype), weights


class FoldedSource:
    """Attention of the hypotheses of one sentence to its source, with the projections as a part of keys and values."""

    # (x W_Q + b_Q) Kᵀ is x (W_Q Kᵀ) + b_Q Kᵀ, in which only x is new at each step; after the softmax A likewise
    # A (V W_O) + b_O. Of keys (H, d_k, S), values (H, S, d_v) and a mask (1, 1, 1, S).

    def __init__(self, cross: Any, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None):
        owner, scaled, self.shape = cross.owner, keys * cross.scaling, (-1, len(keys), keys.shape[2])
        by_head = owner.q_proj.weight.detach().unflatten(0, keys.shape[:2])  # (H, d_k, D)
        self.keys = (by_head.transpose(1, 2) @ scaled).transpose(0, 1).flatten(1)  # (D, H S)
        bias = keys.new_zeros(keys.shape[:2]) if owner.q_proj.bias is None else owner.q_proj.bias.detach()
        offset = bias.view(len(keys), 1, -1) @ scaled  # (H, 1, S)
        self.offset = (offset if mask is None else offset + mask[0]).flatten()  # (H S)
        by_head = owner.out_proj.weight.detach().unflatten(1, (len(keys), -1))  # (D, H, d_v)
        self.values = (values @ by_head.permute(1, 2, 0)).flatten(0, 1)  # (H S, D)
        bias = owner.out_proj.bias
        self.bias = self.values.new_zeros(1) if bias is None else bias.detach()

    @staticmethod
    def pays(cross: Any, length: int) -> bool:
        """Whether that takes fewer multiplications, and less memory to read, than the projections do."""
        are_plain = is_plain(cross.owner.q_proj) and is_plain(cross.owner.out_proj)
        return are_plain and 2 * length <= cross.d_k + cross.d_v

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """States (1, n, D) to (1, n, D)."""
        scores = torch.addmm(self.offset, states[0], self.keys)  # (n, H S)
        weights = scores.view(self.shape).softmax(dim=-1).flatten(1)
        return torch.addmm(self.bias, weights, self.values)[None]


def attend_fused(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, Any]:
    """What `attend` computes, by torch's kernel and without the weights."""
    keys, values, mask = by_heads(query, keys, values=values, mask=mask)
    output = F.scaled_dot_product_attention(query, keys, values, mask, scale=scaling)
    return output.transpose(1, 2).flatten(2), None


def by_heads(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> Any:
    """Of the arguments of `attend`: keys as rows (B, H, T, d_k), values (B, H, T, d_v), the mask (B, H, 1 or n, T)."""
    shape = query.shape[:2]
    mask = mask if mask is None else mask.unflatten(0, shape)
    return keys.transpose(1, 2).unflatten(0, shape), values.unflatten(0, shape), mask


def kernel_for(states: torch.Tensor, beams: int) -> Callable[..., tuple[torch.Tensor, Any]]:
    """The faster kernel."""
    # Where a processor has matrix units for bfloat16, oneDNN's products of a single row take twice as long as the
    # fused kernel (32 sentences, 8 heads of 64, 32 positions: 293 against 176 µs).
    single = beams == 1 and states.dtype == torch.bfloat16 and states.device.type == "cpu"
    return attend_fused if single and torch.cpu._is_amx_tile_supported() else attend
