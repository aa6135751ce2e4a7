"""
From a call of `generate()` to a search: what the call requests, the plan of the search, and the conditions under which
transformers' loops run instead.

Shapes: B sentences, n beams of each, A rows: sentences, or groups of their beams.
"""

import inspect
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers.generation import GenerationMixin
from transformers.integrations import is_fsdp_managed_module
from transformers.modeling_utils import PreTrainedModel

from ..config.kinds import PACKAGE, part
from ..config.search_settings import SearchOptions, Settings
from ..layers.parts import is_hooked
from ..packing.packed import StepWeights
from ..releases.models import CACHE
from .host_generation import HostGenerationMixin


# Options that rank the hypotheses of a beam search, which the loops of transformers ignore.
RANKING = ("length_penalty_type", "coverage_penalty", "num_beam_groups")

# Arguments of `generate()` that say what the sentences of a call must have.
CONSTRAINTS = ("prefixes", "required_phrases", "shortlist")
# Arguments of the model that the search uses or that do not affect it, as those of the encoder, which has run before,
# and of the loss: evaluation in transformers' Trainer passes whole batches on, with their labels.
KNOWN = {
    *("encoder_outputs", "attention_mask", "global_attention_mask", "position_ids", "token_type_ids"),
    *("labels", "shift_labels", "num_items_in_batch", "return_logits", "row_loss"),
    *(CACHE, "use_cache", "logits_to_keep"),
}
# Arguments of `generate()` that only transformers' loops take.
FOR_HOST_LOOPS = ("custom_generate", "streamer", "assistant_model", "synced_gpus", "tokenizer", "assistant_tokenizer")
# Settings for ways in which only transformers' loops compute, or outputs that only they return.
HOST_SETTINGS = ("is_assistant", "prefill_chunk_size", "low_memory", "output_attentions", "output_hidden_states")
# Hooks on every module of the process.
GLOBAL_HOOKS = torch.nn.modules.module._global_forward_hooks, torch.nn.modules.module._global_forward_pre_hooks


# transformers' logits processors, some of which run here without a copy of all scores --------------------------------
# By their names, so that one that a release of transformers lacks breaks nothing.
# Processors that treat each row alone, so that rows may leave the batch.
PROCESSORS = {
    *("ExponentialDecayLengthPenalty", "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
    *("InfNanRemoveLogitsProcessor", "LogitNormalization", "MinLengthLogitsProcessor"),
    *("MinNewTokensLengthLogitsProcessor", "NoBadWordsLogitsProcessor", "NoRepeatNGramLogitsProcessor"),
    *("SequenceBiasLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor"),
    # Of sampling.
    *("EpsilonLogitsWarper", "EtaLogitsWarper", "MinPLogitsWarper", "TemperatureLogitsWarper", "TopKLogitsWarper"),
    *("TopPLogitsWarper", "TypicalLogitsWarper"),
}
# Processors that count tokens from the end of the decoder prompt, which prefixes would move for each row.
COUNTING_PROCESSORS = {
    *("ExponentialDecayLengthPenalty", "ForcedEOSTokenLogitsProcessor", "MinNewTokensLengthLogitsProcessor"),
    "SuppressTokensAtBeginLogitsProcessor",
}
# Processors that add biases, of which those of single tokens are added here.
BIASES = ("NoBadWordsLogitsProcessor", "SequenceBiasLogitsProcessor")


def host_name(one: Any) -> str:
    """The name of a processor or criterion that is transformers' own; empty for others, also those derived from it."""
    kind = type(one)
    return kind.__name__ if kind.__module__.startswith("transformers.generation.") else ""


def process(processors: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Apply the processors to scores (R, V) that follow the ids (R, L); the scores may be overwritten."""
    for one in processors:
        name = host_name(one)
        # In place, as these would take longer than the step itself.
        if name in ("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"):
            is_whole = name == "MinLengthLogitsProcessor"  # counts the decoder prompt, too
            least = one.min_length if is_whole else one.prompt_length_to_skip + one.min_new_tokens
            if ids.shape[1] < least:
                ends = one.eos_token_id
                scores[:, ends[(ends >= 0) & (ends < scores.shape[1])]] = -math.inf  # -1: no token ends a sentence
        elif name in BIASES and one.prepared_bias_variables and all(len(each) == 1 for each in one.sequence_bias):
            tokens = [token for (token,) in one.sequence_bias]
            scores[:, tokens] += scores.new_tensor(list(one.sequence_bias.values()))
        else:
            scores = one(ids, scores)
    return scores


# The call and its plan -----------------------------------------------------------------------------------------------
class LengthLimits(NamedTuple):
    """How many tokens the hypotheses of a call may have."""

    new_tokens: int  # of all of them, behind the decoder prompt
    of_sentences: torch.Tensor | None  # largest number of each sentence (B), decoder prompt included
    counts_new_tokens: bool  # whether they count from the end of the prompt: prefixes are not part of them


def plan_lengths(
    stated: dict[str, int], prompt_length: int, source_lengths: torch.Tensor, most_tokens: int
) -> LengthLimits:
    """The limits for `Settings.length_limits`, lengths of prompt and sources (B), and what the model has room for."""
    whole, extra = stated.get("max_length"), stated.get("max_extra_tokens")
    new = stated.get("max_new_tokens")
    if new is None:
        new = whole - prompt_length if whole is not None else int(source_lengths.max()) + (extra or 0)
        if new < 1:
            raise ValueError(f"max_length={whole}: leaves no room behind a decoder prompt of {prompt_length} tokens")
    if new > most_tokens - prompt_length:
        new = most_tokens - prompt_length
        if new < 1:
            raise ValueError(
                f"decoder_input_ids: {prompt_length} tokens, and the model has {most_tokens - 1} positions"
            )
    of_sentences = None if extra is None else source_lengths + (prompt_length + extra)
    return LengthLimits(new, of_sentences, "max_new_tokens" in stated or whole is None)


def most_target_tokens(model: Any) -> int:
    """The decoder's number of positions plus one: the token after the last position can still be predicted."""
    longest = model.get_decoder().longest
    return sys.maxsize if longest is None else 1 + longest


@dataclass
class SearchRequest:
    """What a call of `generate()` wants that transformers does not have, and what has been computed of its source."""

    options: SearchOptions
    requests: dict[str, Any]  # the given arguments among `REQUESTS`
    limits: LengthLimits
    place_in_stream: int | None = None  # number of the batch
    weights: list[StepWeights | None] = field(default_factory=list)  # packed, of the model and the other models
    memories: list[torch.Tensor] = field(default_factory=list)  # encoder outputs of the others

    @property
    def models(self) -> Sequence[Any]:
        """The other models of the ensemble."""
        members: Sequence[Any] = self.requests.get("ensemble", ())
        return members

    def check_ensemble(self, model: Any, has_source: bool) -> None:
        """A `ValueError` if a member of the ensemble does not fit the model, or needs transformers' loop."""
        if "ensemble" in self.requests:
            part("search.together", "ensemble").check_ensemble(model, self.models, has_source)

    def own_option(self, beams: int) -> str | None:
        """An option of the call that transformers' loops do not support; None: they support all."""
        # A single hypothesis is not ranked, so a saved option for ranking does not prevent sampling.
        default = SearchOptions()
        for name in RANKING if beams > 1 else ():
            if (value := getattr(self.options, name)) != getattr(default, name):
                return f"{name}={value!r}"
        return next(iter(self.requests), None)


class SearchPlan:
    """All that a search needs beside its decoder, made of what `generate()` hands to a loop."""

    # That are prompts (B n, P), logits processors, stopping criteria and transformers' generation config.

    def __init__(
        self, request: SearchRequest, model: Any, prompts: torch.Tensor, processors: Any, criteria: Any, config: Any
    ) -> None:
        self.request, self.options, self.config = request, request.options, config
        # Rows of each sentence, which follow each other (groups of beams, or samples), and hypotheses of each row.
        self.groups = self.options.num_beam_groups if config.num_beams > 1 else config.num_return_sequences
        self.beams: int = max(1, config.num_beams // self.groups)
        self.prompt = prompts[:: self.beams]  # first tokens of the hypotheses of each row (A, P)
        # Ids that end a sentence, and the one that fills ended hypotheses.
        self.eos: torch.Tensor | None = config._eos_token_tensor
        self.pad = None if config._pad_token_tensor is None else int(config._pad_token_tensor)
        # `Prefixes`, `PhraseSearch` and `Shortlist` of `constraints.py`; None for what the call does not ask.
        self.prefixes: Any = None
        self.phrases: Any = None
        self.shortlist: Any = None
        if constrained := next((name for name in CONSTRAINTS if name in request.requests), None):
            part("search.constraints", constrained).read_constraints(self, model)
        self.processors: Sequence[Any] = processors
        # Of stopping criteria those that are neither an end nor a length, and what is called after each step of a
        # search that runs to its end.
        self.criteria = [each for each in criteria if is_own_criterion(each)]
        self.after_step = [each.after_step for each in criteria if hasattr(each, "after_step")]
        returned = ("scores", "logits") if config.return_dict_in_generate else ()
        self.outputs = [name for name in returned if getattr(config, f"output_{name}")]  # of each step
        # Whether all rows stay to the end, as in transformers' loops, because something reads them together.
        self.keeps_rows = bool(self.criteria or self.outputs) or not all(map(treats_rows_alone, processors))
        # Whether somebody else's code sees tensors of the search; `run_search` adds what the model runs.
        self.is_seen = self.keeps_rows or "recorder" in request.requests or not all(map(host_name, processors))
        self.is_seen = self.is_seen or any(GLOBAL_HOOKS)
        # Largest number of tokens of a hypothesis of each row, prompt and prefix included (A).
        prefixes, asked = self.prefixes, request.limits
        limits = torch.full(self.prompt.shape[:1], int(criteria.max_length or 0), device=prompts.device)
        given = torch.zeros_like(limits) if prefixes is None else prefixes.lengths
        if asked.counts_new_tokens:
            limits = limits + given
        if asked.of_sentences is not None:
            limits = limits.minimum(asked.of_sentences.to(limits.device).repeat_interleave(self.groups) + given)
        self.limits = limits.clamp(max=min(map(most_target_tokens, (model, *request.models))))
        if prefixes is not None:
            for one in processors:
                if host_name(one) in COUNTING_PROCESSORS:
                    raise ValueError(f"prefixes: not possible together with {type(one).__name__}")
            if len(full := (self.limits <= self.prompt.shape[1] + given).nonzero()):
                row = int(full[0]) // self.groups
                raise ValueError(f"prefixes[{row}]: leaves no room for another token within max_length")

    def ends(self, tokens: torch.Tensor) -> torch.Tensor:
        """Which of these tokens end a sentence."""
        if self.eos is None:
            return torch.zeros_like(tokens, dtype=torch.bool)
        return tokens == self.eos if len(self.eos) == 1 else torch.isin(tokens, self.eos)


# Calls that need transformers' loops ---------------------------------------------------------------------------------
def given(names: Iterable[str], kwargs: dict[str, Any]) -> Iterator[str]:
    """Those of these arguments that are neither None nor False."""
    return (name for name in names if kwargs.get(name) is not None and kwargs[name] is not False)


def obstacles(model: Any, settings: Settings, kwargs: dict[str, Any], by_position: int) -> Iterator[str]:
    """What of a call only transformers' loops can do: arguments, settings and properties of the model."""
    get = settings.get
    if get("use_cache", True) is False:
        yield "use_cache=False"
    if get("cache_implementation", "dynamic") != "dynamic":
        yield "a cache of its own kind"
    yield from given((*FOR_HOST_LOOPS, "cache", "past_key_values"), kwargs)
    if by_position > 1:  # the first is `prefix_allowed_tokens_fn`, the next are some of those
        yield "arguments by position"
    yield from filter(get, HOST_SETTINGS)
    if get("return_dict_in_generate") and not model.config.is_encoder_decoder:
        yield "a dictionary of outputs"  # with the cache, from which a conversation continues
    if (reason := why_not(model)) is not None:
        yield reason


def loop_obstacles(request: SearchRequest, criteria: Any, config: Any) -> Iterator[str]:
    """What of that which transformers has made of a call only its loops can do."""
    if (mode := config.get_generation_mode()) not in ("greedy_search", "sample", "beam_search", "beam_sample"):
        yield mode.value.replace("_", " ")
    if mode == "beam_sample" and (
        request.options.num_beam_groups > 1 or {"prefixes", "required_phrases"} & {*request.requests}
    ):
        yield "sampling"
    # Without an id for ends, transformers' loops continue sentences that a criterion has ended, until all are.
    if config._eos_token_tensor is None and config.num_beams == 1:
        yield from (type(each).__name__ for each in criteria if is_own_criterion(each))


def treats_rows_alone(processor: Any) -> bool:
    """Whether a processor of logits treats each row alone, which a user's own may declare."""
    return host_name(processor) in PROCESSORS or getattr(processor, "treats_rows_alone", False)


def is_own_criterion(criterion: Any) -> bool:
    """Whether a criterion is to be asked whether sentences have ended."""
    is_known = host_name(criterion) in ("EosTokenCriteria", "MaxLengthCriteria")
    return not is_known and not hasattr(criterion, "after_step")


def called_methods(names: Sequence[str]) -> list[str]:
    """Those of these methods of transformers' generation that there are, and the methods that they call in turn."""
    found = [name for name in names if inspect.isfunction(getattr(GenerationMixin, name, None))]
    for name in found:  # which grows
        code = inspect.unwrap(getattr(GenerationMixin, name)).__code__
        called = (one for one in code.co_names if inspect.isfunction(getattr(GenerationMixin, one, None)))
        found += [one for one in called if one not in found]
    return found


# transformers' loops that the search stands in for, and what brings the source to each of their hypotheses.
LOOPS = ("_sample", "_beam_search")
BEFORE_LOOPS = ("_maybe_prepare_encoder_kwargs_for_generation", "_expand_inputs_for_generation")
# The methods that these loops rely on. Whoever replaces one, in an object (PEFT's prompt learning), a subclass or a
# class, wants it to be called; the loops themselves also are what a test or a library has made of transformers'.
LOOP_METHODS: dict[str, Any] = {
    "get_encoder": PreTrainedModel.get_encoder,
    "get_decoder": PreTrainedModel.get_decoder,
    **{
        name: getattr(HostGenerationMixin, name)
        for name in called_methods([*BEFORE_LOOPS, *LOOPS])
        if name not in LOOPS
    },
}


def replaced_method(model: Any) -> str | None:
    """The first of the methods that transformers' loops rely on that somebody has replaced; None if there is none."""
    for name, own in (LOOP_METHODS | {name: getattr(HostGenerationMixin, name) for name in LOOPS}).items():
        found = getattr(model, name)
        if getattr(found, "__func__", found) is not own:
            return name
    return "_reorder_cache" if hasattr(model, "_reorder_cache") else None


def why_not(model: Any) -> str | None:
    """The property of a model that a step of the search would ignore; None if there is none."""
    if (name := replaced_method(model)) is not None:  # get_decoder() may be one of them
        return f"a {name} of the model's own"
    stack = model.get_decoder()
    # Modules that a step replaces without calling them, so that they must not have hooks or be replaced.
    skipped = [model, model.model, stack]
    for layer in stack.layers:
        cross = [layer.encoder_attn] if layer.has_source else []
        skipped += [layer, layer.self_attn, *cross, layer.owner, layer.dropout]
    # One by one: Monte-Carlo dropout puts the dropouts of a model in evaluation mode into training mode.
    if any(module.training for module in (*skipped, stack.dropout)):
        return "training mode"
    for each in (stack.embed_positions, stack.layers[0].self_attn):
        if not each.has_step:
            return f"{type(each).__name__}, which has no step"
    if (attention := model.config._attn_implementation) not in ("eager", "sdpa"):
        return f"attn_implementation={attention!r}"
    if not all(map(is_own, skipped)):
        return "modules of another kind"
    if any(map(is_hooked, skipped)):
        return "hooks"
    weights = [*model.lm_head.parameters()]
    if any(hasattr(each, "device_mesh") or each.device != model.device for each in weights):
        return "weights on several devices"
    return "weights of FSDP" if is_fsdp_managed_module(model) else None


def is_own(module: torch.nn.Module) -> bool:
    """Whether a module's class is of this package, or a kind that was added to its tables; a subclass may differ."""
    kind = type(module)
    if isinstance(module, GenerationMixin):  # a model of a user's may have our `forward`
        kind = next(each for each in kind.__mro__ if "forward" in vars(each))
    return kind.__module__.startswith(f"{PACKAGE}.") or kind is torch.nn.Dropout or "is_added" in vars(kind)


def needs_whole_rows(model: Any) -> bool:
    """Whether modules that a step calls, or hooks on them, may need the rows of transformers' loops."""
    # A step runs hooks, but with a sentence's beams in the place of positions, and without the sentences that are
    # done. PEFT's `adapter_names`, `task_ids` and others are given to each row by a hook that adds keyword arguments.
    # Hooks on every module of the process would miss those that a step does not call.
    # PEFT's Lily routes by a mean over all rows of the call.
    lily = "peft.tuners.lily.layer"
    has_lily = lily in sys.modules and any(type(module).__module__ == lily for module in model.modules())
    stack = model.get_decoder()
    shared = [layer.owner for layer in stack.layers if layer.shared_from is not None]  # maybe from the encoder
    parts = (part for root in (stack, model.lm_head, *shared) for part in root.modules())
    return has_lily or any(GLOBAL_HOOKS) or any(part._forward_pre_hooks_with_kwargs for part in parts)
