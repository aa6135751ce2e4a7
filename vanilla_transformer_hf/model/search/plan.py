"""
From a call of `generate()` to a search: the request of the call, the plan of the search, and the conditions under
which transformers' loops run instead.

Shapes: B sentences, n beams of each.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import (
    EosTokenCriteria,
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    logits_process,
)

from ..config.generation import SearchOptions
from ..packing.packed import StepWeights
from ..releases.models import CACHE, CAPTURING
from .constraints import Constraints
from .host_generation import HostGenerationMixin


PACKAGE = __package__.removesuffix(".search")  # of the model's classes; in a saved folder, all are in one
# Arguments of `generate()` that belong to one call and its source.
REQUESTS = ("ensemble", "prefixes", "quantization", "recorder", "required_phrases", "shortlist")
# Options that rank the hypotheses of a beam search, which the loops of transformers ignore.
RANKING = ("length_penalty_type", "coverage_penalty", "num_beam_groups")

# Processors that treat each row alone, so that rows may leave the batch.
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
# Processors that count tokens from the end of the decoder prompt, which prefixes would move for each row.
COUNTING_PROCESSORS = {
    logits_process.ExponentialDecayLengthPenalty,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
}
ATTENTIONS = {"eager", "sdpa"}
# Arguments of the encoder, which has run before a search, and of the loss, which no search computes: evaluation in
# transformers' Trainer passes whole batches on, with their labels.
OF_THE_SOURCE = {"encoder_outputs", "attention_mask", "global_attention_mask", "position_ids", "token_type_ids"}
OF_THE_LOSS = {"labels", "shift_labels", "num_items_in_batch", "return_logits", "row_loss"}
# Arguments that the search uses or that do not affect it.
KNOWN = {*OF_THE_SOURCE, *OF_THE_LOSS, CACHE, "use_cache", "logits_to_keep", "synced_gpus"}
# Settings for outputs that only transformers' loops return.
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


class StepHook(StoppingCriteria):
    """
    A function that is called after each step of a search that `generate()` runs to its end; it may wait, and ends the
    search by an exception. It does not decide which loop runs.
    """

    def __init__(self, function: Callable[[], None]):
        self.function = function

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.function()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@dataclass(frozen=True)
class LengthLimits:
    """
    How many tokens the hypotheses of a call may have.

    Attributes:
        of_sentences: Largest number of each sentence (B), decoder prompt included; None: no limit per sentence.
        counts_new_tokens: Whether the limits count from the end of the prompt, so that prefixes are not part of them.
        most_tokens: The model's number of positions plus one.
        host_arguments: The arguments by which transformers' `generate()` has the same limits.
    """

    of_sentences: torch.Tensor | None = None
    counts_new_tokens: bool = False
    most_tokens: int = sys.maxsize
    host_arguments: dict[str, int | None] = field(default_factory=dict)


def plan_lengths(
    stated: dict[str, int], prompt_length: int, source_lengths: torch.Tensor, most_tokens: int
) -> LengthLimits:
    """
    Find the limits of length of a call.

    Args:
        stated: `Settings.length_limits` of the call.
        prompt_length: Tokens of the decoder prompt.
        source_lengths: Tokens of each source (B).
        most_tokens: The model's number of positions plus one.

    Raises:
        ValueError: The limit leaves no room for a token behind the prompt.
    """
    whole, extra = stated.get("max_length"), stated.get("max_extra_tokens")
    if "max_new_tokens" in stated:
        new = stated["max_new_tokens"]
    else:
        new = whole - prompt_length if whole is not None else int(source_lengths.max()) + (extra or 0)
        if new < 1:
            raise ValueError(f"max_length={whole}: leaves no room behind a decoder prompt of {prompt_length} tokens")
    if new > most_tokens - prompt_length:
        new = most_tokens - prompt_length
        if new < 1:
            raise ValueError(
                f"decoder_input_ids: {prompt_length} tokens, and the model has {most_tokens - 1} positions"
            )
    # transformers warns of a call with both limits, so the user's own max_length stays where it is.
    is_both = "max_new_tokens" in stated and "max_length" in stated
    return LengthLimits(
        of_sentences=None if extra is None else source_lengths + (prompt_length + extra),
        counts_new_tokens="max_new_tokens" in stated or whole is None,
        most_tokens=most_tokens,
        host_arguments={"max_new_tokens": new} if is_both else {"max_new_tokens": new, "max_length": None},
    )


@dataclass(frozen=True)
class ReadSource:
    """
    What a call has computed of its source before transformers' `generate()` begins.

    Attributes:
        weights: Packed weights of the model and of the members of the ensemble; None where they are not used.
        memories: The encoder outputs of the ensemble's members.
        host_arguments: The arguments that keep `generate()` from encoding the source again; empty if it has to.
    """

    weights: Sequence[StepWeights | None] = ()
    memories: Sequence[torch.Tensor] = ()
    host_arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SearchRequest(StoppingCriteria):
    """
    The options of a call of `generate()` that transformers does not have, derived once from its arguments.

    It is a stopping criterion because `generate()` hands these, and nothing else of its caller's, unchanged to each of
    its loops. `_search` finds it among them. In transformers' own loops it ends each hypothesis at the limit of its
    sentence, and raises `ValueError` for what they cannot do.

    Attributes:
        options: Options of the search.
        requests: The given arguments among `REQUESTS`.
        limits: Of length.
        place_in_stream: Number of the batch in a stream, None outside of one.
        source: What has been computed of the source.
    """

    options: SearchOptions = field(default_factory=SearchOptions)
    requests: dict[str, Any] = field(default_factory=dict)
    limits: LengthLimits = field(default_factory=LengthLimits)
    place_in_stream: int | None = None
    source: ReadSource = field(default_factory=ReadSource)

    @classmethod
    def among(cls, criteria: StoppingCriteriaList) -> "SearchRequest":
        """The request among the criteria, or an empty one."""
        return next((one for one in criteria if isinstance(one, cls)), None) or cls()

    @property
    def quantization(self) -> str | None:
        """That of the linear maps; None: the model's own."""
        return self.requests.get("quantization")

    @property
    def ensemble(self) -> Sequence[Any]:
        """The other models of the ensemble."""
        members: Sequence[Any] = self.requests.get("ensemble", ())
        return members

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        for name in self.requests:
            raise ValueError(f"{name}: only greedy search and beam search support this")
        limits = self.limits.of_sentences
        if limits is None:
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        rows = input_ids.shape[0] // len(limits)
        return input_ids.shape[1] >= limits.to(input_ids.device).repeat_interleave(rows)


@dataclass(frozen=True)
class LoopCall:
    """
    What transformers' `generate()` hands to one of its loops.

    Attributes:
        prompts: First tokens of the hypotheses, one row for each beam (B n, P).
        processors: The logits processors.
        criteria: The stopping criteria, the `SearchRequest` among them.
        config: The generation config.
        kwargs: Arguments of the model.
    """

    prompts: torch.Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: Any
    kwargs: dict[str, Any]

    @property
    def request(self) -> SearchRequest:
        """The other requests of the caller of `generate()`."""
        return SearchRequest.among(self.criteria)


@dataclass
class SearchPlan:
    """
    All settings of a search, derived once from the call.

    Attributes:
        prompt: First tokens of the hypotheses of each row (A, P). A row is a sentence, or a group of its beams.
        limits: Maximum number of tokens of a hypothesis of each row, prompt included (A).
        beams: Hypotheses of each row.
        eos: Ids that end a sentence, None if there are none.
        pad: Id that fills ended hypotheses, None if there is none.
        processors: The logits processors; they must treat each row alone.
        constraints: Required prefixes and phrases, and the shortlist.
        options: Options of the search that transformers does not have.
        early_stopping, length_penalty: As in transformers' generation config.
        n_best: Sequences to return of each sentence.
        returns_dict: Whether to return a dictionary of outputs.
        joins: Whether to share the search with other batches of a stream.
        groups: Groups of beams of each sentence; its rows follow each other.
        members: Other models of the ensemble.
        recorder: A function called with the `BeamStep` of each step of a beam search, or None.
        after_step: Functions called after each step of a search that runs to its end.
    """

    prompt: torch.Tensor
    limits: torch.Tensor
    beams: int
    eos: torch.Tensor | None
    pad: int | None
    processors: LogitsProcessorList
    constraints: Constraints
    options: SearchOptions
    early_stopping: bool | str | None
    length_penalty: float
    n_best: int
    returns_dict: bool
    joins: bool
    groups: int
    members: Sequence[Any]
    recorder: Callable[[Any], None] | None = None
    after_step: Sequence[Callable[[], None]] = ()

    @property
    def shortlist(self) -> torch.Tensor | None:
        """Ids of the tokens that get logits; None: all."""
        return None if self.constraints.shortlist is None else self.constraints.shortlist.ids

    def ends(self, tokens: torch.Tensor) -> torch.Tensor:
        """Which of these tokens end a sentence."""
        if self.eos is None:
            return torch.zeros_like(tokens, dtype=torch.bool)
        return tokens == self.eos if len(self.eos) == 1 else torch.isin(tokens, self.eos)

    @classmethod
    def of(cls, model: Any, call: LoopCall) -> "SearchPlan":
        """
        The plan for what `generate()` hands to a loop.

        Raises:
            ValueError: Constraints are malformed, a prefix leaves no room for another token, or a processor that
                counts tokens from the prompt is combined with prefixes.
        """
        request, config = call.request, call.config
        groups = request.options.num_beam_groups if config.num_beams > 1 else 1
        prompt = call.prompts[:: config.num_beams // groups]
        eos, pad = config._eos_token_tensor, config._pad_token_tensor
        constraints = Constraints.read(
            request.requests,
            batch=len(prompt) // groups,
            beams=config.num_beams,
            ends=[] if eos is None else eos.tolist(),
            vocab_size=model.config.vocab_size,
            device=model.device,
            groups=groups,
        )
        return cls(
            prompt=prompt,
            limits=row_limits(call, prompt, groups=groups, constraints=constraints),
            beams=config.num_beams // groups,
            eos=eos,
            pad=None if pad is None else int(pad),
            processors=call.processors,
            constraints=constraints,
            options=request.options,
            early_stopping=config.early_stopping,
            length_penalty=config.length_penalty,
            n_best=config.num_return_sequences,
            returns_dict=config.return_dict_in_generate,
            joins=request.place_in_stream is not None,
            groups=groups,
            members=request.ensemble,
            recorder=request.requests.get("recorder"),
            after_step=[one.function for one in call.criteria if isinstance(one, StepHook)],
        )


def row_limits(call: LoopCall, prompt: torch.Tensor, groups: int, constraints: Constraints) -> torch.Tensor:
    """
    Largest number of tokens of the hypotheses of each row (A), prompt (A, P) and prefixes included.

    Raises:
        ValueError: A prefix leaves no room for another token, or a processor that counts tokens from the prompt is
        combined with prefixes.
    """
    prefixes, asked = constraints.prefixes, call.request.limits
    limits = torch.full(prompt.shape[:1], int(call.criteria.max_length or 0), device=prompt.device)
    given = torch.zeros_like(limits) if prefixes is None else prefixes.lengths
    if asked.counts_new_tokens:
        limits = limits + given
    if asked.of_sentences is not None:
        limits = limits.minimum(asked.of_sentences.to(limits.device).repeat_interleave(groups) + given)
    limits = limits.clamp(max=asked.most_tokens)
    for one in call.processors:
        if prefixes is not None and type(one) in COUNTING_PROCESSORS:
            raise ValueError(f"prefixes: not possible together with {type(one).__name__}")
    full = (limits <= prompt.shape[1] + given).nonzero()
    if prefixes is not None and len(full):
        raise ValueError(f"prefixes[{int(full[0]) // groups}]: leaves no room for another token within max_length")
    return limits


def most_target_tokens(model: Any) -> int:
    """The decoder's number of positions plus one: the token after the last position can still be predicted."""
    longest = model.get_decoder().longest
    return sys.maxsize if longest is None else 1 + longest


# ---------------------------------------------------------------------------------------------------------------------
# Calls that need transformers' loops
# ---------------------------------------------------------------------------------------------------------------------


def find_obstacle(model: Any, call: LoopCall) -> str | None:
    """The option or property that needs transformers' loop; None if this package's search can run the call."""
    config, kwargs = call.config, call.kwargs
    cache = kwargs.get(CACHE)
    halves: tuple[Any, ...] = () if cache is None else (cache,)
    if isinstance(cache, EncoderDecoderCache):
        halves = cache.self_attention_cache, cache.cross_attention_cache
    reasons: Iterable[tuple[str, Any]] = (
        ("sampling", config.do_sample),
        ("assisted decoding", config.is_assistant),
        ("synced_gpus", kwargs.get("synced_gpus")),
        ("use_cache=False", cache is None or not kwargs.get("use_cache", True)),
        (
            "a cache of its own kind",
            any(type(half) is not DynamicCache for half in halves)
            or config.cache_implementation not in (None, "dynamic"),
        ),
        (CACHE, any(half.get_seq_length() for half in halves) or hasattr(cache, "_is_user_defined")),
        ("prefill_chunk_size", config.prefill_chunk_size is not None),
        ("low_memory", config.low_memory),
        *model_obstacles(model).items(),
        *((name, getattr(config, name)) for name in OUTPUTS),
        *((type(one).__name__, not treats_rows_alone(one)) for one in call.processors),
        *((type(one).__name__, type(one) not in CRITERIA) for one in call.criteria),
        *((name, each is not None and each is not False) for name, each in kwargs.items() if name not in KNOWN),
    )
    return next((reason for reason, found in reasons if found), None)


def treats_rows_alone(processor: Any) -> bool:
    """Whether a processor does: one of the known ones, or one that declares it."""
    return type(processor) in PROCESSORS or getattr(processor, "treats_rows_alone", False)


CRITERIA = {EosTokenCriteria, MaxLengthCriteria, SearchRequest, StepHook}


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
# class, wants it to be called.
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
    for name, own in LOOP_METHODS.items():
        found = getattr(model, name)
        if getattr(found, "__func__", found) is not own:
            return name
    return "_reorder_cache" if hasattr(model, "_reorder_cache") else None


def model_obstacles(model: Any) -> dict[str, bool]:
    """The properties of a model that a step would ignore, each with whether the model has it."""
    if (name := replaced_method(model)) is not None:  # get_decoder() may be one of them
        return {f"a {name} of the model's own": True}
    stack = model.get_decoder()
    # Modules that a step replaces without calling them, so that they must not have hooks or be replaced.
    layers = [part for layer in stack.layers for part in parts_of(layer)]
    attention = model.config._attn_implementation
    skipped = (model, model.model, stack, *layers)
    return {
        # One by one: Monte-Carlo dropout puts the dropouts of a model in evaluation mode into training mode.
        "training mode": any(module.training for module in (*skipped, stack.dropout)),
        f"{type(stack.embed_positions).__name__}, which has no step": not stack.embed_positions.has_step,
        f"{type(stack.layers[0].self_attn).__name__}, which has no step": not stack.layers[0].self_attn.has_step,
        f"attn_implementation={attention!r}": attention not in ATTENTIONS,
        "modules of another kind": not all(map(is_own, skipped)),
        "hooks": any(map(is_hooked, skipped)),
        "weights on several devices": any(
            hasattr(weight, "device_mesh") or weight.device != model.device for weight in model.lm_head.parameters()
        ),
    }


def parts_of(layer: Any) -> list[torch.nn.Module]:
    """What a step computes by itself of a decoder layer."""
    cross = [layer.encoder_attn] if layer.has_source else []
    return [layer, layer.self_attn, *cross, layer.owner, layer.dropout]


def is_own(module: torch.nn.Module) -> bool:
    """Whether a module's class is of this package, or a kind that was added to its tables; a subclass may differ."""
    kind = type(module)
    if isinstance(module, GenerationMixin):  # a model of a user's may have our `forward`
        kind = next(each for each in kind.__mro__ if "forward" in vars(each))
    return kind.__module__.startswith(f"{PACKAGE}.") or kind is torch.nn.Dropout or "is_added" in vars(kind)


def is_hooked(module: torch.nn.Module) -> bool:
    """
    Whether the module has hooks or a wrapped forward. Wrappers of transformers that record outputs, and of Accelerate
    that change the type, are ignored.
    """
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    strange = any(getattr(hook, "__module__", "") != CAPTURING.__name__ for hook in hooks)
    wrapped = "forward" in vars(module) and "_original_forward" not in vars(module)
    return strange or wrapped or hasattr(module, "_hf_hook")


# Modules whose output for a row depends on the other rows of the call: PEFT's Lily routes by a mean over all of them.
MIXING_MODULES = {"peft.tuners.lily.layer"}


def needs_whole_rows(model: Any) -> bool:
    """
    Whether modules that a step calls, or hooks on them, may need the rows of transformers' loops. A step runs hooks,
    but with a sentence's beams in the place of positions, and without the sentences that are done. PEFT's
    `adapter_names`, `task_ids` and others are given to each row by a hook that adds keyword arguments. Hooks on every
    module of the process would miss those that a step does not call.
    """
    if any(type(module).__module__ in MIXING_MODULES for module in model.modules()):
        return True
    everywhere = torch.nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    stack = model.get_decoder()
    shared = [layer.owner for layer in stack.layers if layer.shared_from is not None]  # maybe from the encoder
    return any(
        part._forward_pre_hooks_with_kwargs for root in (stack, model.lm_head, *shared) for part in root.modules()
    )


def own_option(request: SearchRequest, config: Any) -> str | None:
    """An option of the call that transformers' loops do not support; None: they support all."""
    # A single hypothesis is not ranked, so a saved option for ranking does not prevent sampling.
    default = SearchOptions()
    for name in RANKING if config.num_beams > 1 else ():
        if (value := getattr(request.options, name)) != getattr(default, name):
            return f"{name}={value!r}"
    return next(iter(request.requests), None)


def check_request(request: SearchRequest, config: Any, obstacle: str) -> None:
    """
    Raises:
        ValueError: The call has an option that transformers' loop does not support, but needs this loop.
    """
    if (option := own_option(request, config)) is not None:
        raise ValueError(f"{option}: not possible together with {obstacle}")


# ---------------------------------------------------------------------------------------------------------------------
# Ensembles
# ---------------------------------------------------------------------------------------------------------------------


def ids_of(config: Any) -> dict[str, int]:
    """The properties that the models of an ensemble must share."""
    return {
        "vocab_size": config.vocab_size,
        "source_vocab_size": config.source_vocab_size or config.vocab_size,
        "decoder_start_token_id": config.decoder_start_token_id,
        "front_end": config.front_end,
    }


def check_ensemble(model: Any, members: Any, has_source: bool) -> None:
    """
    Raises:
        ValueError: A member of the ensemble does not fit the model, or needs transformers' loop.
    """
    if not isinstance(members, (list, tuple)):
        raise ValueError(f"ensemble: must be a list of models, not {type(members).__name__}")
    if members and not has_source:
        raise ValueError(f"ensemble: needs {model.main_input_name}, so that each model reads the source itself")
    for number, member in enumerate(members):
        name = f"ensemble[{number}]"
        if not hasattr(member, "generate_stream"):
            raise ValueError(f"{name}: {type(member).__name__} is not a model of this package")
        found_ids, expected_ids = ids_of(member.config), ids_of(model.config)
        for key, found in found_ids.items():
            if found != (expected := expected_ids[key]):
                raise ValueError(f"{name}: its {key} is {found} and the model's is {expected}")
        if member.device != model.device:
            raise ValueError(f"{name}: it is on {member.device} and the model on {model.device}")
        for reason, found in model_obstacles(member).items():
            if found:
                raise ValueError(f"{name}: not possible together with {reason}")


__all__ = [
    "REQUESTS",
    "LengthLimits",
    "LoopCall",
    "ReadSource",
    "SearchPlan",
    "SearchRequest",
    "check_ensemble",
    "check_request",
    "find_obstacle",
    "most_target_tokens",
    "needs_whole_rows",
    "own_option",
    "plan_lengths",
    "replaced_method",
]
