"""
Greedy and beam search under `generate()`: the answers of transformers' own loops, sooner.

`generate()` prepares the work and hands it to `_sample` or `_beam_search`. Here these two look whether the work is
plain search; if so they do it with an `IncrementalDecoder`, otherwise it goes to transformers' loop. What is saved:

- Keys and values of the source are kept once per sentence; its beams ask them together, as if they were positions.
- Keys and values of the target are written once and never moved. A mask says which of them belong to a beam.
- A sentence that cannot change any more leaves the batch.
- The best candidates are found in two exact stages, not by a search through whole rows.
- On a processor, weights are packed once as oneDNN wants them; float32 stays float32.

Shapes: B sentences, n beams, S source positions, D = d_model, H heads, V vocabulary, N layers, K candidates.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, QuantizedCache
from transformers.generation import (
    EosTokenCriteria,
    GenerateBeamEncoderDecoderOutput,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    logits_process,
)
from transformers.generation.utils import GENERATION_MODES_MAPPING
from transformers.utils import output_capturing

from .constraints_vanilla_transformer import (
    NEVER,
    Constraints,
    PhraseSearch,
    Prefixes,
    Shortlist,
    as_ids,
    one_for_each,
)


# ---------------------------------------------------------------------------------------------------------------------
# Options that transformers does not have
# ---------------------------------------------------------------------------------------------------------------------

# (length, α) -> what the log-probability of a hypothesis of that many tokens is divided by.
LENGTH_PENALTIES: dict[str, Callable[[Any, float], Any]] = {
    "power": lambda length, alpha: length**alpha,  # transformers
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,  # Wu et al. 2016, arXiv 1609.08144, equation 14
}

# Name in generation_config.json and among the arguments of `generate()` -> value where it is not given or None.
SEARCH_OPTIONS: dict[str, Any] = {"length_penalty_type": "power", "coverage_penalty": 0.0, "max_extra_tokens": None}


# Arguments of `generate()` that belong to one call and its source.
REQUESTS = ("ensemble", "prefixes", "required_phrases", "shortlist")


def check_search_options(options: Any):
    """
    Raises:
        ValueError: An option of ours has a value that it cannot have.
    """
    given = {name: getattr(options, name, None) for name in SEARCH_OPTIONS}
    kind, coverage, extra = (SEARCH_OPTIONS[name] if value is None else value for name, value in given.items())
    if kind not in LENGTH_PENALTIES:
        raise ValueError(f"length_penalty_type={kind!r}: must be one of {', '.join(map(repr, LENGTH_PENALTIES))}")
    if not isinstance(coverage, (int, float)) or not 0 <= coverage < math.inf:
        raise ValueError(f"coverage_penalty={coverage!r}: must be a number of at least 0")
    if extra is not None and (not isinstance(extra, int) or isinstance(extra, bool) or extra < 1):
        raise ValueError(f"max_extra_tokens={extra!r}: must be an integer of at least 1, or None")


class VanillaTransformerGenerationConfig(GenerationConfig):
    """transformers' generation config, where the options of ours are fields that are checked; None: not given."""

    length_penalty_type: str | None = None
    coverage_penalty: float | None = None
    max_extra_tokens: int | None = None

    def __init__(self, **kwargs: Any):
        for name in SEARCH_OPTIONS.keys() & kwargs.keys():
            setattr(self, name, kwargs.pop(name))
        super().__init__(**kwargs)

    @classmethod
    def of(cls, config: GenerationConfig) -> "VanillaTransformerGenerationConfig":
        """The same settings in this class."""
        made = cls.__new__(cls)
        vars(made).update(vars(config))
        return made

    def validate(self, *args: Any, **kwargs: Any) -> None:
        check_search_options(self)
        super().validate(*args, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        settings = super().to_dict()
        # Of a file with this mark, transformers reads nothing but its own fields.
        if SEARCH_OPTIONS.keys() & settings.keys():
            settings.pop("_from_model_config", None)
        return settings


@dataclass
class VanillaTransformerBeamOutput(GenerateBeamEncoderDecoderOutput):
    """transformers' output of a beam search, and whether each sequence contains all its `required_phrases`."""

    phrases_met: torch.Tensor | None = None


class SourceLengthCriteria(StoppingCriteria):
    """Ends each hypothesis at a length of its own: that of its source plus what `max_extra_tokens` allows."""

    def __init__(self, limits: torch.Tensor):
        self.limits = limits  # (B), decoder prompt included

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        rows = input_ids.shape[0] // len(self.limits)
        return input_ids.shape[1] >= self.limits.to(input_ids.device).repeat_interleave(rows)


# ---------------------------------------------------------------------------------------------------------------------
# Linear maps of a few rows
# ---------------------------------------------------------------------------------------------------------------------


def is_plain(module: nn.Module) -> bool:
    """Whether the module is an `nn.Linear` that nothing has been put around or into."""
    return (
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
    )


def is_packable(weight: torch.Tensor) -> bool:
    """Whether oneDNN computes products with this matrix; it is float32 where the matrix is."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and not hasattr(weight, "device_mesh")
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and (weight.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """x W ᵀ + b, with W laid out once as the library reads it, where there is such a library."""
    if not is_packable(weight):
        return lambda states: F.linear(states, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    linear, dtype = torch.ops.mkldnn._linear_pointwise, weight.dtype
    return lambda states: linear(states.to(dtype), packed, bias, "none", [], "")


def side_by_side(*modules: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """The outputs of linear modules for one input, concatenated; plain ones become one matrix."""
    if not all(map(is_plain, modules)):
        if len(modules) == 1:
            return modules[0]
        return lambda states: torch.cat([module(states) for module in modules], dim=-1)
    weights: list[Any] = [module.weight for module in modules]
    biases: list[Any] = [module.bias for module in modules]
    weight = weights[0] if len(modules) == 1 else torch.cat(weights)
    return pack(weight, None if biases[0] is None else torch.cat(biases))


def rows_of(module: Any, rows: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Some of the outputs of a linear module; a plain one computes no others."""
    if not is_plain(module):
        return lambda states: module(states)[..., rows]
    return pack(module.weight[rows], None if module.bias is None else module.bias[rows])


class PackedProducts(TorchFunctionMode):
    """Inside `with PackedProducts(maps):`, linear maps of weights that `maps` knows by their id are packed ones."""

    def __init__(self, maps: dict[int, Callable[[torch.Tensor], torch.Tensor]]):
        super().__init__()
        self.maps = maps

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and len(args) > 1 and id(args[1]) in self.maps:
            return self.maps[id(args[1])](args[0])
        return func(*args, **(kwargs or {}))


class StepLayer(SimpleNamespace):
    """
    The maps of a decoder layer, as a step uses them: `qkv`, `out`, `cross_query`, `cross_out`, and what the layer's
    `feed_forward` reads: `fc1`, `fc2`, maybe `fc3`, `activation_fn`, `activation_dropout`, `training`.
    """

    def __init__(self, layer: Any):
        own, cross = layer.self_attn, layer.encoder_attn
        inner = {name: side_by_side(getattr(layer, name)) for name in ("fc1", "fc2", "fc3") if hasattr(layer, name)}
        super().__init__(
            **inner,
            qkv=side_by_side(own.q_proj, own.k_proj, own.v_proj),
            out=side_by_side(own.out_proj),
            cross_query=side_by_side(cross.q_proj),
            cross_out=side_by_side(cross.out_proj),
            activation_fn=layer.activation_fn,
            activation_dropout=0.0,
            training=False,
        )


class StepWeights:
    """
    A model's maps, packed where that helps; kept until its weights change or the model is gone.

    torch does not count changes made through `.data`, so these are not seen before `model.train()` or `forget`.
    """

    _kept: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def __init__(self, model: Any):
        self.model = weakref.proxy(model)

    @cached_property
    def layers(self) -> list[StepLayer]:
        """Of the decoder's layers."""
        return [StepLayer(layer) for layer in self.model.get_decoder().layers]

    @cached_property
    def head(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """To the vocabulary."""
        return side_by_side(self.model.lm_head)

    @cached_property
    def source(self) -> dict[int, Callable[[torch.Tensor], torch.Tensor]]:
        """Those of the encoder, and of keys and values for the decoder, by the ids of their weights."""
        cross = [layer.encoder_attn for layer in self.model.get_decoder().layers]
        modules = [*self.model.get_encoder().modules(), *(map for one in cross for map in (one.k_proj, one.v_proj))]
        plain: list[Any] = [module for module in modules if isinstance(module, nn.Linear) and is_plain(module)]
        return {id(module.weight): side_by_side(module) for module in plain if is_packable(module.weight)}

    @classmethod
    def of(cls, model: Any) -> "StepWeights":
        """Those of this model as it is now."""
        parameters = [parameter for module in model.modules() for parameter in module._parameters.values()]
        counted = [one for one in parameters if one is not None]
        state = [(id(one), one.data_ptr(), 0 if one.is_inference() else one._version) for one in counted]
        kept = cls._kept.get(model)
        if kept is None or kept[0] != state:
            cls._kept[model] = kept = (state, cls(model))
        return kept[1]

    @classmethod
    def forget(cls, model: Any) -> None:
        """Free the memory that this model's take, as much as its weights."""
        cls._kept.pop(model, None)


# ---------------------------------------------------------------------------------------------------------------------
# The decoder, one position at a time
# ---------------------------------------------------------------------------------------------------------------------

# Positions by which the room for keys and values grows. All of it takes part in attention, and is one piece of memory:
# libraries make code for each shape, and copy what has gaps.
ROOM = 8


def no_dropout(states: torch.Tensor) -> torch.Tensor:
    return states


class IncrementalDecoder:
    """
    A decoder that takes one token of each hypothesis at a time and remembers the rest.

    The n hypotheses of a sentence stand where positions usually stand: their queries meet the keys of their source,
    and the keys of all n, in one product. Slot t n + j holds what was computed at step t for place j; `mask` (B, n,
    slots) is 0 where the slot belongs to the past of the hypothesis that stands at a place now, else -∞.

    Args:
        model: The model; its dropouts must be off.
        memory: Output of the encoder (B, S, D).
        attention_mask: 1 for a source token, 0 for padding (B, S), or None.
        beams: n.
        record_attention: Keep the weights of the last layer's attention to the source.
        shortlist: Ids of the tokens that get logits (V), all if None.

    Attributes:
        attention: Those of the last step (B, n, S), the mean over heads.
    """

    def __init__(
        self,
        model: Any,
        memory: torch.Tensor,
        attention_mask: torch.Tensor | None,
        beams: int,
        record_attention: bool = False,
        shortlist: torch.Tensor | None = None,
    ):
        self.decoder, self.weights = model.get_decoder(), StepWeights.of(model)
        self.head = self.weights.head if shortlist is None else rows_of(model.lm_head, shortlist)
        self.beams, self.length, self.capacity = beams, 0, ROOM
        self.record_attention, self.attention = record_attention, memory.new_zeros(1, dtype=torch.float32)
        with PackedProducts(self.weights.source):
            projected = [layer.encoder_attn.project_keys_values(memory) for layer in self.decoder.layers]
        self.source_keys = torch.stack([keys for keys, _ in projected])  # (N, B, H, S, d_k)
        self.source_values = torch.stack([values for _, values in projected])  # (N, B, H, S, d_v)
        self.scores: torch.Tensor | None = None
        self.exact_logits: torch.Tensor | None = None
        self.source_mask = None
        if attention_mask is not None and not attention_mask.all():
            hidden = torch.zeros_like(attention_mask, dtype=memory.dtype)
            self.source_mask = hidden.masked_fill(attention_mask == 0, -math.inf)[:, None, None]  # (B, 1, 1, S)
        layers, batch, heads, _, d_k = self.source_keys.shape
        slots = self.capacity * beams
        self.keys = memory.new_zeros(layers, batch, heads, slots, d_k)
        self.values = memory.new_zeros(layers, batch, heads, slots, self.source_values.shape[-1])
        self.mask = memory.new_full((batch, beams, slots), -math.inf)
        self.apart = memory.new_full((beams, beams), -math.inf).fill_diagonal_(0)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """The next token of each hypothesis (B, n) to the states that predict the one after it (B, n, D)."""
        if self.length == self.capacity:
            self._grow()
        start, self.length = self.length * self.beams, self.length + 1
        self.mask[:, :, start : start + self.beams] = self.apart
        position = torch.full((1, 1), self.length - 1, device=tokens.device)
        states = self.decoder.embed(self.decoder.look_up_tokens(tokens, None), position)  # (B, n, D)
        for number in range(len(self.weights.layers)):
            states = self._layer(number, states, start)
        return self.decoder.layer_norm(states)

    def _layer(self, number: int, states: torch.Tensor, start: int) -> torch.Tensor:
        """States (B, n, D) through a layer, keys and values put into slots from `start` on."""
        layer, maps = self.decoder.layers[number], self.weights.layers[number]
        own, cross, heads, end = layer.self_attn, layer.encoder_attn, self.keys.shape[2], start + self.beams
        keys, values, mask = self.keys[number], self.values[number], self.mask[:, None]

        def attend_to_target(states: torch.Tensor) -> torch.Tensor:
            query, key, value = maps.qkv(states).split((heads * own.d_k, heads * own.d_k, heads * own.d_v), dim=-1)
            keys[:, :, start:end] = key.unflatten(-1, (heads, -1)).transpose(1, 2)
            values[:, :, start:end] = value.unflatten(-1, (heads, -1)).transpose(1, 2)
            return maps.out(attend(query, keys, values, mask, own.scaling)[0])

        def attend_to_source(states: torch.Tensor) -> torch.Tensor:
            source = self.source_keys[number], self.source_values[number], self.source_mask
            output, weights = attend(maps.cross_query(states), *source, cross.scaling)
            if self.record_attention:  # the last layer's stays
                self.attention = weights.mean(dim=1, dtype=torch.float32)  # (B, n, S)
            return maps.cross_out(output)

        for norm, sublayer in (
            (layer.self_attn_layer_norm, attend_to_target),
            (layer.encoder_attn_layer_norm, attend_to_source),
            (layer.final_layer_norm, lambda states: layer.feed_forward(maps, states)),
        ):
            states = layer.residual(states, sublayer, norm, no_dropout, layer.alpha)
        return states

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """States (B, n, D) to logits (B, n, V)."""
        return self.head(states)

    def next_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """The next token of each hypothesis (B, n) to logits of the one after it (B, n, V)."""
        return self.logits(self.step(tokens))

    def log_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """
        The next token of each hypothesis (B, n) to log-probabilities of the one after it (B, n, V), in float32, which
        are overwritten by the next call.
        """
        logits = self.next_logits(tokens)
        # The largest tensors of a step: written where the last ones were, as fresh memory costs more than the sums.
        if self.scores is None or self.scores.shape != logits.shape:
            self.scores = torch.empty_like(logits, dtype=torch.float32)
            self.exact_logits = None if logits.dtype == torch.float32 else torch.empty_like(self.scores)
        if self.exact_logits is not None:
            logits = self.exact_logits.copy_(logits)
        return torch.log_softmax(logits, dim=-1, out=self.scores)

    def follow(self, parents: torch.Tensor):
        """From now on, the hypothesis at a place continues the one at place `parents` (B, n) of its sentence."""
        if self.beams > 1:
            self.mask = self.mask.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.mask.shape[-1]))

    def keep(self, rows: torch.Tensor):
        """Go on with these sentences alone."""
        self.source_keys, self.source_values = self.source_keys[:, rows], self.source_values[:, rows]
        self.source_mask = None if self.source_mask is None else self.source_mask[rows]
        self.keys, self.values, self.mask = self.keys[:, rows], self.values[:, rows], self.mask[rows]

    def _grow(self):
        self.capacity += ROOM
        room = ROOM * self.beams
        self.keys, self.values = F.pad(self.keys, (0, 0, 0, room)), F.pad(self.values, (0, 0, 0, room))
        self.mask = F.pad(self.mask, (0, room), value=-math.inf)


class Ensemble:
    """
    Several decoders as one: the mean of their probabilities. They have read the same source, each with its encoder.

    Args:
        decoders: Of one vocabulary and for as many beams each.
    """

    def __init__(self, decoders: Sequence[IncrementalDecoder]):
        self.decoders = decoders

    @property
    def attention(self) -> torch.Tensor:
        """The mean of theirs (B, n, S)."""
        return torch.stack([decoder.attention for decoder in self.decoders]).mean(dim=0)

    @property
    def source_mask(self) -> torch.Tensor | None:
        """What all of them do not look at."""
        return self.decoders[0].source_mask

    def step(self, tokens: torch.Tensor):
        """The next tokens (B, n)."""
        for decoder in self.decoders:
            decoder.step(tokens)

    def log_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """The next tokens (B, n) to the logarithm of the mean of their probabilities (B, n, V), in float32."""
        total = reduce(torch.logaddexp, [decoder.log_probs(tokens) for decoder in self.decoders])
        return total - math.log(len(self.decoders))

    next_logits = log_probs

    def follow(self, parents: torch.Tensor):
        """As `IncrementalDecoder.follow`."""
        for decoder in self.decoders:
            decoder.follow(parents)

    def keep(self, rows: torch.Tensor):
        """Go on with these sentences alone."""
        for decoder in self.decoders:
            decoder.keep(rows)


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    softmax(Q Kᵀ / √d_k) V, section 3.2.1, of queries (B, n, H d_k), keys and values (B, H, T, d) to outputs (B, n,
    H d_v) and weights (B, H, n, T). For a few queries plain products are faster than the fused kernel.
    """
    query = (query * scaling).unflatten(-1, (keys.shape[1], -1)).transpose(1, 2)  # (B, H, n, d_k)
    weights = torch.matmul(query, keys.transpose(2, 3))  # (B, H, n, T)
    if mask is not None:
        weights = weights + mask
    weights = weights.softmax(dim=-1)
    return torch.matmul(weights, values).transpose(1, 2).flatten(2), weights


# ---------------------------------------------------------------------------------------------------------------------
# Search
# ---------------------------------------------------------------------------------------------------------------------

# From this many candidates a row, and in groups of so many, two stages are faster than one (measured on a processor).
STAGED_FROM, GROUP = 2**13, 16
# Sentences leave the batch as soon as those that have ended are this share of it; leaving copies what stays.
LEAVING_SHARE = 1 / 8
# One token of a required phrase that is missing outweighs all scores.
MISSING = 1.0e10


def best_candidates(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The `count` highest of each row of scores (R, V) and their places, both (R, count), as `torch.topk` finds them.

    The best are in those groups whose highest scores are the highest, one group for each.
    """
    rows, width = scores.shape[0], scores.shape[1] // GROUP
    if scores.device.type != "cpu" or scores.shape[1] < STAGED_FROM or count > width:
        return scores.topk(min(count, scores.shape[1]))
    groups, tail = scores[:, : GROUP * width].view(rows, GROUP, width), scores[:, GROUP * width :]
    chosen = groups.amax(dim=1).topk(count).indices  # (R, count), each a column of a group
    members = groups.gather(2, chosen.unsqueeze(1).expand(-1, GROUP, -1)).flatten(1)  # (R, GROUP count)
    values, places = torch.cat((members, tail), dim=1).topk(count)
    row, column = places // count, chosen.gather(1, places % count)
    return values, torch.where(row < GROUP, row * width + column, places + GROUP * (width - count))


def hide_short_ends(processor: Any, generated: int, least: int, scores: torch.Tensor) -> torch.Tensor:
    """As the processors of least lengths do, without a copy of all scores."""
    if generated < least:
        scores[:, processor.eos_token_id] = -math.inf
    return scores


# Processors whose own way of working would take longer than the step -> (processor, ids, scores) -> scores, in place.
SHORTCUTS: dict[type, Callable[..., torch.Tensor]] = {
    logits_process.MinLengthLogitsProcessor: lambda processor, ids, scores: hide_short_ends(
        processor, ids.shape[1], processor.min_length, scores
    ),
    logits_process.MinNewTokensLengthLogitsProcessor: lambda processor, ids, scores: hide_short_ends(
        processor, ids.shape[1] - processor.prompt_length_to_skip, processor.min_new_tokens, scores
    ),
}


def process(processors: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """What the processors make of scores (R, V) behind the ids (R, L); the scores may be overwritten."""
    for processor in processors:
        scores = SHORTCUTS.get(type(processor), type(processor).__call__)(processor, ids, scores)
    return scores


def greedy_search(
    decoder: IncrementalDecoder | Ensemble,
    prompt: torch.Tensor,
    limits: torch.Tensor,
    processors: Any,
    eos: torch.Tensor | None,
    pad: torch.Tensor | None,
    constraints: Constraints,
) -> torch.Tensor:
    """
    The most likely token at each step, as in transformers' `_sample` without sampling.

    Args:
        decoder: For one beam.
        prompt: First tokens of each hypothesis (B, P).
        limits: Most tokens of each, prompt included (B).
        processors: What changes the logits; must not know one row from another.
        eos: Ids that end a hypothesis; None: nothing does, before its limit.
        pad: What follows the end.
        constraints: What it must begin with, and what it may be made of.

    Returns:
        Token ids (B, T).
    """
    rows = torch.arange(len(prompt), device=prompt.device)
    done = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    filler = 0 if pad is None else int(pad)
    found = [*prompt.unbind(1)]  # of all sentences, (B) each
    running = prompt  # of those in the batch (A, L)
    shortlist = constraints.shortlist
    for token in prompt[:, :-1].unbind(1):
        decoder.step(token[:, None])
    while True:
        logits = decoder.next_logits(running[:, -1:])[:, 0]  # (A, V)
        if processors:
            logits = process(processors, running, (logits if shortlist is None else shortlist.spread(logits)).float())
        tokens = best_candidates(logits.float(), 1)[1][:, 0]  # (A), sooner than argmax
        if shortlist is not None and not processors:
            tokens = shortlist.ids[tokens]
        if constraints.prefixes is not None:
            tokens = constraints.prefixes.instead_of(tokens, rows, running.shape[1] - prompt.shape[1])
        tokens = tokens.masked_fill(done, filler)
        running = torch.cat((running, tokens[:, None]), dim=1)
        found.append(torch.full_like(found[0], filler).scatter_(0, rows, tokens))
        done = done | (running.shape[1] >= limits[rows])
        if eos is not None:
            done = done | torch.isin(tokens, eos)
        ended = int(done.sum())
        if ended == len(done):
            return torch.stack(found, dim=1)
        if ended >= LEAVING_SHARE * len(done):
            stay = (~done).nonzero()[:, 0]
            rows, running, done = rows[stay], running[stay], done[stay]
            decoder.keep(stay)


class BeamSearch:
    """
    Beam search as in transformers' `_beam_search`, for sentences that may leave the batch.

    Hypotheses of a sentence are either running or finished. The best n unfinished continuations run on; finished ones
    are the best n that ended among the n best continuations of their step. A sentence is done when `early_stopping`
    is True and n have finished, when its best running hypothesis cannot win any more, or at its limit.

    Args:
        decoder: For n beams.
        prompt: First tokens of each sentence's hypotheses (B, P).
        limits: Most tokens of a hypothesis of each sentence, prompt included (B).
        config: generation config.
        processors: What changes the log-probabilities; must not know one row from another.
        constraints: What hypotheses must begin with or contain, and what they may be made of.
    """

    # Of the A sentences in the batch, all (A, ...).
    STATE: tuple[str, ...] = (
        "rows", "limits", "given", "written", "running", "running_scores", "running_parents", "coverage", "improvable",
        "finished", "finished_scores", "finished_lengths", "finished_parents", "is_finished",
    )  # fmt: skip

    def __init__(
        self,
        decoder: IncrementalDecoder | Ensemble,
        prompt: torch.Tensor,
        limits: torch.Tensor,
        config: Any,
        processors: Any,
        constraints: Constraints,
    ):
        self.decoder, self.processors, self.beams = decoder, processors, config.num_beams
        self.prefixes, self.phrases, self.shortlist = constraints.prefixes, constraints.phrases, constraints.shortlist
        self.early_stopping, self.alpha = config.early_stopping, config.length_penalty
        self.length_penalty = LENGTH_PENALTIES[config.length_penalty_type]
        self.coverage_penalty = config.coverage_penalty
        self.eos, pad = config._eos_token_tensor, config._pad_token_tensor
        # With n best candidates for each end-of-sentence token and n more, n are always left to run on.
        self.candidates = max(2, 1 + (0 if self.eos is None else len(self.eos))) * self.beams
        # As transformers has it: padding with id 0 counts as none.
        self.filler = int(pad or self.eos[0]) if self.eos is not None else -1
        (batch, self.prompt_length), device = prompt.shape, prompt.device
        longest, n = int(limits.max()), self.beams
        self.rows, self.limits = torch.arange(batch, device=device), limits
        # Tokens of each sentence that do not count as its own.
        self.given = torch.full((batch,), self.prompt_length, device=device)
        if self.prefixes is not None:
            self.given = self.given + self.prefixes.lengths
        self.written = torch.zeros(batch, dtype=torch.bool, device=device)
        self.running = prompt[:, None].expand(-1, n, -1)  # (A, n, L)
        self.running_scores = torch.zeros(batch, n, device=device)
        self.running_scores[:, 1:] = NEVER
        self.running_parents = prompt.new_empty(batch, n, 0)  # (A, n, L - P)
        self.improvable = torch.ones(batch, 1, dtype=torch.bool, device=device)
        self.finished = prompt.new_full((batch, n, longest), self.filler)
        self.finished[:, :, : self.prompt_length] = prompt[:, None]
        self.finished_scores = torch.full((batch, n), NEVER, device=device)
        self.finished_lengths = torch.zeros(batch, n, dtype=torch.long, device=device)
        self.finished_parents = prompt.new_full((batch, n, longest - self.prompt_length), -1)
        self.is_finished = torch.zeros(batch, n, dtype=torch.bool, device=device)
        self.coverage = torch.zeros(batch, n, 1, device=device)  # attention that each source token got (A, n, S)
        if self.phrases is not None:  # more than any phrase has, so that what is no hypothesis comes last
            self.STATE = (*self.STATE, "finished_missing")
            self.finished_missing = torch.full_like(self.finished_lengths, 2**20)
        self.results = {name: getattr(self, name).clone() for name in self.STATE if name.startswith("finished")}

    def run(self) -> dict[str, torch.Tensor]:
        """
        Search until each sentence is done.

        Returns:
            `finished` hypotheses (B, n, T), best first, their `finished_scores` (B, n), `finished_lengths` without the
            prompt (B, n), and `finished_parents` (B, n, T - P): the place b n + j of the beam that each token
            continues, -1 behind the end; with phrases, `finished_missing` tokens of them (B, n).
        """
        for position in range(self.prompt_length - 1):
            self.decoder.step(self.running[:, :, position])
        while len(self.rows):
            self.step()
        return self.results

    def step(self) -> None:
        """One more token for each running hypothesis."""
        log_probs, values, ids = self._continuations()
        scores, places = (values + self.running_scores[..., None]).flatten(1).topk(self.candidates)  # (A, K)
        parents, tokens = places // ids.shape[-1], ids.flatten(1).gather(1, places)  # (A, K)
        missing = None
        if self.phrases is not None:
            is_last = self.running.shape[-1] + 1 >= self.limits
            is_forced = self.running.shape[-1] < self.given
            plain = scores, parents, tokens
            scores, parents, tokens, missing = self.phrases.choose(
                self.rows, log_probs, (values, ids), self.running_scores, plain, is_last, is_forced
            )
        sequences = torch.cat((take(self.running, parents), tokens[..., None]), dim=-1)  # (A, K, L + 1)
        origins = (self.rows[:, None] * self.beams + parents)[..., None]
        origins = torch.cat((take(self.running_parents, parents), origins), dim=-1)  # (A, K, L + 1 - P)
        ends = (sequences.shape[-1] >= self.limits)[:, None].expand_as(tokens)
        if self.eos is not None:
            ends = ends | torch.isin(tokens, self.eos)
        if self.coverage_penalty:
            self.coverage = self.coverage + self.decoder.attention * (sequences.shape[-1] > self.given)[:, None, None]
        self._finish(sequences, origins, parents, scores, ends, missing)
        self.running_scores, chosen = (scores + ends * NEVER).topk(self.beams)  # (A, n)
        self.running, self.running_parents = take(sequences, chosen), take(origins, chosen)
        chosen = parents.gather(1, chosen)
        self.decoder.follow(chosen)
        if self.phrases is not None:
            self.phrases.follow(self.rows, chosen, self.running[..., -1])
        if self.coverage_penalty:
            self.coverage = take(self.coverage, chosen)
        self._dismiss()

    def _continuations(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """
        Log-probabilities of the next tokens of each running hypothesis (A, n, V); of a shortlist alone (A, n, S) where
        nothing needs the others. Then those and the ids of the best K, both (A, n, K).
        """
        flat = self.decoder.log_probs(self.running[:, :, -1]).flatten(0, 1)  # (A n, V)
        shortlist, spread = self.shortlist, bool(self.processors) or self.phrases is not None
        if shortlist is not None and spread:
            flat = shortlist.spread(flat)
        if self.processors:
            flat = process(self.processors, self.running.flatten(0, 1), flat)
        values, ids = (found.unflatten(0, (-1, self.beams)) for found in best_candidates(flat, self.candidates))
        if shortlist is not None and not spread:
            ids = shortlist.ids[ids]
        if self.prefixes is not None:
            step = self.running.shape[-1] - self.prompt_length
            values, ids = self.prefixes.candidates(values, ids, self.rows, step)
        return flat.unflatten(0, (-1, self.beams)), values, ids

    def _penalties(self, lengths: torch.Tensor) -> torch.Tensor:
        """What the scores of hypotheses of so many tokens (A), those given included, are divided by: (A, 1)."""
        own = (lengths - self.given).clamp(min=1)
        return self.length_penalty(own.double(), self.alpha).float()[:, None]

    def _finish(
        self,
        sequences: torch.Tensor,
        origins: torch.Tensor,
        parents: torch.Tensor,
        scores: torch.Tensor,
        ends: torch.Tensor,
        missing: torch.Tensor | None,
    ) -> None:
        """Of those that have finished before and those of the n best candidates that end now, the best n."""
        ending = ends & (torch.arange(self.candidates, device=ends.device) < self.beams)  # (A, K)
        if not ending.any():
            return
        length = sequences.shape[-1] - self.prompt_length
        scores = scores / self._penalties(torch.full_like(self.limits, sequences.shape[-1]))
        if self.coverage_penalty:
            covered = take(self.coverage, parents).clamp(max=1).log()  # (A, K, S)
            source = 0 if self.decoder.source_mask is None else self.decoder.source_mask[:, 0]
            covered = covered.masked_fill(torch.as_tensor(source != 0, device=covered.device), 0)
            scores = scores + self.coverage_penalty * covered.sum(dim=-1)
        behind = self.finished.shape[-1] - sequences.shape[-1]
        new = {
            "finished": F.pad(sequences, (0, behind), value=self.filler),
            "finished_scores": scores + ~ending * NEVER,
            "finished_lengths": torch.full_like(parents, length),
            "finished_parents": F.pad(origins, (0, behind), value=-1),
            "is_finished": ending,
        }
        if missing is not None:
            new["finished_missing"] = missing.where(ending, 2**20)
        merged = {name: torch.cat((getattr(self, name), tensor), dim=1) for name, tensor in new.items()}
        ranks = merged["finished_scores"]
        if missing is not None:
            ranks = ranks.double() - MISSING * merged["finished_missing"]
        best = ranks.topk(self.beams).indices  # (A, n)
        for name, tensor in merged.items():
            setattr(self, name, take(tensor, best))

    def _dismiss(self) -> None:
        """Write down the results of sentences that are done, and let these leave the batch."""
        length = self.running.shape[-1]
        reachable = torch.full_like(self.limits, length)
        if self.early_stopping == "never" and self.alpha > 0:
            reachable = self.limits
        best = self.running_scores[:, :1] / self._penalties(reachable)  # (A, 1), coverage can only lower it
        worst = self.finished_scores.amin(dim=1, keepdim=True).where(self.is_finished, NEVER)  # (A, n)
        self.improvable = self.improvable & (best > worst).any(dim=1, keepdim=True)
        done = ~self.improvable[:, 0] | (length >= self.limits)
        if self.early_stopping is True:
            done = done | self.is_finished.all(dim=1)
        new = done & ~self.written
        if not new.any():
            return
        for name, result in self.results.items():
            result[self.rows[new]] = getattr(self, name)[new]
        self.written = self.written | new
        if self.written.sum() >= LEAVING_SHARE * len(self.rows):
            stay = (~self.written).nonzero()[:, 0]
            for name in self.STATE:
                setattr(self, name, getattr(self, name)[stay])
            if len(stay):
                self.decoder.keep(stay)


def take(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Of a tensor (A, n, …) the entries at places (A, K), as (A, K, …)."""
    return tensor[torch.arange(len(tensor), device=tensor.device)[:, None], places]


# ---------------------------------------------------------------------------------------------------------------------
# What generate() calls
# ---------------------------------------------------------------------------------------------------------------------

# They look at each row alone, so rows may leave.
PROCESSORS = {
    logits_process.ExponentialDecayLengthPenalty,
    logits_process.ForcedBOSTokenLogitsProcessor,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.LogitNormalization,
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.NoBadWordsLogitsProcessor,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.SequenceBiasLogitsProcessor,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
    logits_process.SuppressTokensLogitsProcessor,
}
CRITERIA = {EosTokenCriteria, MaxLengthCriteria, SourceLengthCriteria}
# These count tokens from the end of the decoder prompt, which prefixes would have to move for each row.
COUNTING_PROCESSORS = {
    logits_process.ExponentialDecayLengthPenalty,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
}
ATTENTIONS = {"eager", "sdpa"}
# Arguments that the search uses or that cannot matter to it.
KNOWN = {"encoder_outputs", "attention_mask", "past_key_values", "use_cache", "logits_to_keep", "synced_gpus"}
# Settings with which the host's loop returns what these do not.
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def check_token_ids(ids: torch.Tensor, vocab_size: int, name: str):
    """
    Raises:
        ValueError: An id of `ids` lies outside the vocabulary; the message names it.
    """
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.numel():
        raise ValueError(f"{name}: token id {wrong[0].item()} lies outside the vocabulary of {vocab_size} pieces")


def ids_of(config: Any) -> dict[str, int]:
    """What models must share that take and give the same token ids."""
    return {
        "vocab_size": config.vocab_size,
        "source_vocab_size": config.source_vocab_size or config.vocab_size,
        "decoder_start_token_id": config.decoder_start_token_id,
    }


# transformers types self as a protocol that its own models do not meet either.
class VanillaTransformerGenerationMixin(GenerationMixin):
    """
    transformers' `generate()` with its loops replaced where the work is plain search, and with options of ours.

    Three are arguments of `generate()` and entries of generation_config.json:

    - `length_penalty_type`: "power" divides a hypothesis' log-probability by |Y|^α, "gnmt" by ((5 + |Y|) / 6)^α as the
      paper does (section 6.1); α is `length_penalty`, |Y| counts the tokens behind the decoder prompt.
    - `coverage_penalty`: β ≥ 0 of Wu et al. 2016, arXiv 1609.08144, equation 14; adds β Σ_j log min(Σ_i p_ij, 1) to
      the score, with p_ij the mean attention over the heads of the last layer.
    - `max_extra_tokens`: a hypothesis has at most as many tokens as its source and these ("input length + 50" in
      section 6.1).

    The others are arguments alone, of greedy and beam search:

    - `ensemble`: a list of other models with the same source and target ids; the search ranks by the logarithm of the
      mean of all their probabilities, the model's own included.
    - `prefixes`: for each sentence a list of target ids that its translation must begin with. They count as part of
      the decoder prompt: in no score, length penalty or `max_new_tokens`.
    - `required_phrases`: for each sentence a list of phrases, each a list of target ids that its translation must
      contain side by side. It needs two beams, better some more than the longest list of phrases has tokens. What
      cannot be met within the limit (`phrases_met` of the output tells) stays as good as it can be.
    - `shortlist`: the target ids that translations may be made of; others get no logits, and the probabilities of
      these sum to 1. Ids that end a sentence always belong to it.
    """

    generation_config_class: type[GenerationConfig] = VanillaTransformerGenerationConfig

    def train(self: Any, mode: bool = True) -> Any:
        if mode:
            StepWeights.forget(self)
        return super().train(mode)  # type: ignore[misc]

    def generate(self: Any, inputs: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """
        transformers' `generate`, after a check of the token ids it is given.

        Raises:
            ValueError: A source or target id lies outside its vocabulary; or an option of ours is out of range, or
                has to be honoured where only transformers' own loop can do the work.
        """
        sizes = {
            "input_ids": self.config.source_vocab_size or self.config.vocab_size,
            "decoder_input_ids": self.config.vocab_size,
        }
        requested = [name for name in REQUESTS if kwargs.get(name) is not None]
        if requested and kwargs.get("custom_generate") is not None:
            raise ValueError(f"{requested[0]}: not possible together with custom_generate")
        for name, ids in {"input_ids": inputs, **kwargs}.items():
            if name in sizes and ids is not None:
                check_token_ids(ids, sizes[name], name)
        return super().generate(inputs, *args, **kwargs)  # type: ignore[misc]

    def adjust_generation_fn(self: Any, *args: Any, **kwargs: Any) -> None:
        super().adjust_generation_fn(*args, **kwargs)  # type: ignore[misc]
        self.generation_config = VanillaTransformerGenerationConfig.of(self.generation_config)

    def _prepare_generation_config(self: Any, generation_config: Any, **kwargs: Any) -> Any:
        own = {name: kwargs.pop(name) for name in SEARCH_OPTIONS if name in kwargs}
        requests = {name: kwargs.pop(name) for name in REQUESTS if name in kwargs}
        mask = kwargs.get("attention_mask")
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)  # type: ignore[misc]
        for name, default in SEARCH_OPTIONS.items():
            value = own.get(name, getattr(generation_config, name, None))
            setattr(generation_config, name, default if value is None else value)
        check_search_options(generation_config)
        generation_config._requests = {name: value for name, value in requests.items() if value is not None}
        generation_config._source_lengths = None if mask is None else mask.sum(dim=-1)
        return generation_config, model_kwargs

    def _prepare_generated_length(self: Any, generation_config: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        extra, source, prompt = generation_config.max_extra_tokens, kwargs["inputs_tensor"], kwargs["input_ids_length"]
        generation_config._limits_new_tokens = (
            generation_config.max_new_tokens is not None or kwargs["has_default_max_length"]
        )
        if extra is None:
            return super()._prepare_generated_length(generation_config, **kwargs)  # type: ignore[misc]
        lengths = generation_config._source_lengths
        if lengths is None:
            lengths = torch.full(source.shape[:1], source.shape[1], device=source.device)
        generation_config._limits = lengths + (prompt + extra)
        if kwargs["has_default_max_length"] and generation_config.max_new_tokens is None:
            generation_config.max_new_tokens = int(lengths.max()) + extra
        return super()._prepare_generated_length(generation_config, **kwargs)  # type: ignore[misc]

    def _get_stopping_criteria(self: Any, generation_config: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        criteria = super()._get_stopping_criteria(generation_config, **kwargs)  # type: ignore[misc]
        if generation_config.max_extra_tokens is not None:
            criteria.append(SourceLengthCriteria(generation_config._limits))
        return criteria

    def _validate_generation_mode(self: Any, generation_mode: Any, generation_config: Any, *args: Any) -> None:
        for name in generation_config._requests:
            if GENERATION_MODES_MAPPING[generation_mode] not in ("_sample", "_beam_search"):
                raise ValueError(f"{name}: not possible together with {generation_mode.value}")
        super()._validate_generation_mode(generation_mode, generation_config, *args)  # type: ignore[misc]

    def _maybe_prepare_encoder_kwargs_for_generation(  # type: ignore[override]
        self: Any, inputs: torch.Tensor, model_kwargs: dict, input_name: str, generation_config: Any
    ) -> Any:
        # Here is all that requests depend on, and nothing has been computed yet.
        requests = getattr(generation_config, "_requests", {})  # that of an assistant was not prepared by us
        generation_config._constraints = self._read_constraints(requests, len(inputs), generation_config)
        members = requests.get("ensemble", ())
        self._check_ensemble(members, input_name, model_kwargs)
        generation_config._members = [
            (member, member._encode(inputs, dict(model_kwargs), input_name, generation_config)["encoder_outputs"][0])
            for member in members
        ]
        return self._encode(inputs, model_kwargs, input_name, generation_config)

    def _encode(self: Any, *args: Any) -> Any:
        """What transformers does instead of `_maybe_prepare_encoder_kwargs_for_generation`, with packed weights."""
        prepare = super()._maybe_prepare_encoder_kwargs_for_generation  # type: ignore[misc]
        if self.training or self.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return prepare(*args)
        with PackedProducts(StepWeights.of(self).source):
            return prepare(*args)

    def _check_ensemble(self: Any, members: Any, input_name: str, model_kwargs: dict[str, Any]):
        """
        Raises:
            ValueError: A member of the ensemble does not fit the model, or cannot search as it does.
        """
        if not isinstance(members, (list, tuple)):
            raise ValueError(f"ensemble: must be a list of models, not {type(members).__name__}")
        if members and (input_name != "input_ids" or model_kwargs.get("encoder_outputs") is not None):
            raise ValueError("ensemble: needs input_ids, so that each model reads the source itself")
        for number, member in enumerate(members):
            name = f"ensemble[{number}]"
            if not hasattr(member, "_model_obstacles"):
                raise ValueError(f"{name}: {type(member).__name__} is no model of this kind")
            found_ids, expected_ids = ids_of(member.config), ids_of(self.config)
            for field, found in found_ids.items():
                if found != (expected := expected_ids[field]):
                    raise ValueError(f"{name}: its {field} is {found} and the model's is {expected}")
            if member.device != self.device:
                raise ValueError(f"{name}: it is on {member.device} and the model on {self.device}")
            for reason, found in member._model_obstacles().items():
                if found:
                    raise ValueError(f"{name}: not possible together with {reason}")

    def _read_constraints(self: Any, requests: dict[str, Any], batch: int, config: Any) -> Constraints:
        """
        Raises:
            ValueError: Constraints are no token ids of the vocabulary, or not as many as sentences.
        """
        size, device, constraints = self.config.vocab_size, self.device, Constraints()
        if not requests:
            return constraints
        eos = [] if config._eos_token_tensor is None else config._eos_token_tensor.tolist()
        if "prefixes" in requests:
            prefixes = one_for_each(requests["prefixes"], "prefixes", batch)
            prefixes = [as_ids(ids, f"prefixes[{row}]", size, eos) for row, ids in enumerate(prefixes)]
            constraints.prefixes = Prefixes(prefixes, device)
        if "required_phrases" in requests:
            if config.num_beams < 2:
                raise ValueError(f"required_phrases: needs num_beams of at least 2, not {config.num_beams}")
            phrases = self._read_phrases(requests["required_phrases"], batch, eos)
            constraints.phrases = PhraseSearch(phrases, eos, config.num_beams)
        if "shortlist" in requests:
            shortlist = set(as_ids(requests["shortlist"], "shortlist", size))
            if not shortlist - {*eos}:
                raise ValueError("shortlist: must name a token that does not end a sentence")
            required = set() if constraints.phrases is None else constraints.phrases.tokens
            ids = torch.tensor(sorted(shortlist | required | {*eos}), device=device)
            constraints.shortlist = Shortlist(ids, size)
        return constraints

    def _read_phrases(self: Any, required: Any, batch: int, eos: list[int]) -> list[list[list[int]]]:
        """
        Raises:
            ValueError: They are not lists of non-empty lists of token ids, or not as many as sentences.
        """
        phrases = []
        for row, each in enumerate(one_for_each(required, "required_phrases", batch)):
            name = f"required_phrases[{row}]"
            if not isinstance(each, (list, tuple)):
                raise ValueError(f"{name}: must be a list of phrases, not {str(each)[:40]}")
            named = [(f"{name}[{number}]", phrase) for number, phrase in enumerate(each)]
            phrases.append([as_ids(phrase, name, self.config.vocab_size, eos) for name, phrase in named])
            if [] in phrases[-1]:
                raise ValueError(f"{name}: a phrase is empty")
        return phrases

    def _prepare_cache_for_generation(
        self: Any, generation_config: Any, model_kwargs: dict, *args: Any, **kwargs: Any
    ) -> Any:
        # transformers quantizes no encoder-decoder's cache; ours can be where it grows, in self-attention.
        if generation_config.cache_implementation == "quantized" and "past_key_values" not in model_kwargs:
            settings = {"backend": "quanto", "config": self.config, **(generation_config.cache_config or {})}
            model_kwargs["past_key_values"] = EncoderDecoderCache(
                QuantizedCache(**settings), DynamicCache(config=self.config)
            )
        else:
            return super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):  # type: ignore
        config = generation_config
        obstacle = self._obstacle(logits_processor, stopping_criteria, config, kwargs) or (
            "a dictionary of outputs" if config.return_dict_in_generate else None
        )
        if obstacle is not None:
            self._check_own_options(config, obstacle)
            return super()._sample(input_ids, logits_processor, stopping_criteria, config, **kwargs)
        return greedy_search(
            self._decoder(kwargs, config, beams=1),
            input_ids,
            self._limits(stopping_criteria, input_ids, config, logits_processor),
            logits_processor,
            config._eos_token_tensor,
            config._pad_token_tensor,
            config._constraints,
        )

    def _beam_search(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):  # type: ignore
        config, beams = generation_config, generation_config.num_beams
        obstacle = self._obstacle(logits_processor, stopping_criteria, config, kwargs)
        if obstacle is not None:
            self._check_own_options(config, obstacle)
            return super()._beam_search(input_ids, logits_processor, stopping_criteria, config, **kwargs)
        prompt = input_ids[::beams]
        decoder = self._decoder(kwargs, config, beams)
        limits = self._limits(stopping_criteria, prompt, config, logits_processor)
        search = BeamSearch(decoder, prompt, limits, config, logits_processor, config._constraints)
        found = {name: tensor[:, : config.num_return_sequences].flatten(0, 1) for name, tensor in search.run().items()}
        longest = int(found["finished_lengths"].max())
        sequences = found["finished"][:, : prompt.shape[1] + longest]
        if not config.return_dict_in_generate:
            return sequences
        missing = found.get("finished_missing")
        return VanillaTransformerBeamOutput(
            sequences=sequences,
            sequences_scores=found["finished_scores"],
            beam_indices=found["finished_parents"][:, :longest],
            phrases_met=None if missing is None else missing == 0,
        )

    def _decoder(self: Any, kwargs: dict[str, Any], config: Any, beams: int) -> IncrementalDecoder | Ensemble:
        """What has read the source and takes the tokens of each sentence's beams."""
        # generate() has repeated them for each beam; here the beams of a sentence share them.
        memory, mask = kwargs["encoder_outputs"][0][::beams], kwargs.get("attention_mask")
        mask = mask if mask is None else mask[::beams]
        shortlist = config._constraints.shortlist
        ids = None if shortlist is None else shortlist.ids
        decoders = [
            IncrementalDecoder(model, states, mask, beams, config.coverage_penalty > 0, ids)
            for model, states in [(self, memory), *config._members]
        ]
        return Ensemble(decoders) if len(decoders) > 1 else decoders[0]

    @staticmethod
    def _limits(
        criteria: StoppingCriteriaList, prompt: torch.Tensor, config: Any, processors: LogitsProcessorList
    ) -> torch.Tensor:
        """
        Most tokens of each of the B sentences' hypotheses (B), prompt and prefixes included.

        Raises:
            ValueError: A prefix leaves no room, or something counts from the prompt and prefixes alike.
        """
        limits = torch.full(prompt.shape[:1], int(criteria.max_length or 0), device=prompt.device)
        prefixes = config._constraints.prefixes
        given = torch.zeros_like(limits) if prefixes is None else prefixes.lengths
        if config._limits_new_tokens:
            limits = limits + given
        for criterion in criteria:
            if isinstance(criterion, SourceLengthCriteria):
                limits = limits.minimum(criterion.limits.to(limits.device) + given)
        for one in processors:
            if prefixes is not None and type(one) in COUNTING_PROCESSORS:
                raise ValueError(f"prefixes: not possible together with {type(one).__name__}")
        full = (limits <= prompt.shape[1] + given).nonzero()
        if prefixes is not None and len(full):
            raise ValueError(f"prefixes[{int(full[0])}]: leaves no room for another token within max_length")
        return limits

    @staticmethod
    def _check_own_options(config: Any, obstacle: str):
        """
        Raises:
            ValueError: An option of ours has to be honoured, and something stands in the way.
        """
        for name in ("length_penalty_type", "coverage_penalty"):
            if getattr(config, name) != SEARCH_OPTIONS[name]:
                raise ValueError(f"{name}={getattr(config, name)!r}: not possible together with {obstacle}")
        for name in config._requests:
            raise ValueError(f"{name}: not possible together with {obstacle}")

    def _obstacle(
        self: Any, processors: LogitsProcessorList, criteria: StoppingCriteriaList, config: Any, kwargs: dict[str, Any]
    ) -> str | None:
        """What transformers' own loop is needed for, None if for nothing."""
        cache = kwargs.get("past_key_values")
        halves = () if cache is None else (cache.self_attention_cache, cache.cross_attention_cache)
        reasons = {
            "sampling": config.do_sample,
            "assisted decoding": config.is_assistant,
            "synced_gpus": kwargs.get("synced_gpus"),
            "use_cache=False": cache is None or not kwargs.get("use_cache", True),
            "a cache of its own kind": any(type(half) is not DynamicCache for half in halves)
            or config.cache_implementation not in (None, "dynamic"),
            "past_key_values": any(half.get_seq_length() for half in halves) or hasattr(cache, "_is_user_defined"),
            "prefill_chunk_size": config.prefill_chunk_size is not None,
            "low_memory": config.low_memory,
            **self._model_obstacles(),
            **{name: getattr(config, name) for name in OUTPUTS},
            **{type(one).__name__: type(one) not in PROCESSORS for one in processors},
            **{type(one).__name__: type(one) not in CRITERIA for one in criteria},
            **{name: value is not None and value is not False for name, value in kwargs.items() if name not in KNOWN},
        }
        return next((reason for reason, found in reasons.items() if found), None)

    def _model_obstacles(self: Any) -> dict[str, bool]:
        """What of a model a step would not respect, and whether it is so."""
        stack = self.get_decoder()
        # What a step does without calling the module, so that nothing may be put around or in place of it.
        layers = [module for layer in stack.layers for module in (layer, layer.self_attn, layer.encoder_attn)]
        head = self.lm_head.weight() if callable(self.lm_head.weight) else self.lm_head.weight
        attention = self.config._attn_implementation
        return {
            "training mode": self.training,
            f"attn_implementation={attention!r}": attention not in ATTENTIONS,
            "a subclass of the model": type(self).forward is not type(self)._step_forward,
            "modules of another kind": any(type(module) not in self._step_types for module in (stack, *layers)),
            "hooks": any(map(is_hooked, (self, self.model, stack, *layers))),
            "weights on several devices": hasattr(head, "device_mesh") or head.device != self.device,
        }


def is_hooked(module: nn.Module) -> bool:
    """
    Whether something has been put around the module's forward. What transformers leaves there to record outputs, and
    Accelerate to compute in another type, does not count.
    """
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    strange = any(getattr(hook, "__module__", "") != output_capturing.__name__ for hook in hooks)
    wrapped = "forward" in vars(module) and "_original_forward" not in vars(module)
    return strange or wrapped or hasattr(module, "_hf_hook")


__all__ = ["LENGTH_PENALTIES", "SEARCH_OPTIONS", "VanillaTransformerGenerationMixin", "check_token_ids"]
