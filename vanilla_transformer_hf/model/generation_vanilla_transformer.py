"""
`generate()` with the search of this package, and with options that transformers does not have.

`generate()` prepares the work and hands it to `_sample` or `_beam_search`. Here these two look whether the work is
plain search; if so they do it with an `IncrementalDecoder`, otherwise it goes to transformers' loop.
"""

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
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
    Constraints,
    PhraseSearch,
    Prefixes,
    Shortlist,
    as_ids,
    one_for_each,
)
from .incremental_decoder_vanilla_transformer import Ensemble, IncrementalDecoder
from .packed_weights_vanilla_transformer import StepWeights
from .search_vanilla_transformer import (
    LENGTH_PENALTIES,
    BeamSearch,
    GreedySearch,
    Search,
    run_together,
)


# ---------------------------------------------------------------------------------------------------------------------
# Options that transformers does not have
# ---------------------------------------------------------------------------------------------------------------------

# Name in generation_config.json and among the arguments of `generate()` -> value where it is not given or None.
SEARCH_OPTIONS: dict[str, Any] = {"length_penalty_type": "power", "coverage_penalty": 0.0, "max_extra_tokens": None}


# Arguments of `generate()` that belong to one call and its source.
REQUESTS = ("ensemble", "prefixes", "required_phrases", "shortlist")
# Arguments of `generate` that say something about its sentences; batches of a stream may differ in them alone.
OF_SENTENCES = (
    "inputs", "input_ids", "inputs_embeds", "attention_mask", "encoder_outputs", "decoder_input_ids",
    "decoder_attention_mask", "prefixes", "required_phrases",
)  # fmt: skip


def arguments_of_batch(place: int, batch: dict[str, Any]) -> dict[str, Any]:
    """
    Raises:
        ValueError: The batch has an argument that is none of its sentences'.
    """
    for name in batch:
        if name not in OF_SENTENCES:
            raise ValueError(f"batch {place}: {name} has to be the same for all batches; give it beside them")
    return batch


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
    penalty = getattr(options, "length_penalty", None)
    if penalty is not None and not math.isfinite(penalty):
        raise ValueError(f"length_penalty={penalty!r}: must be a finite number")
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
        # Of a file with this mark, transformers reads nothing but its own fields, and somebody may add one of ours.
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

    def expect_fixed_weights(self: Any) -> None:
        """
        Let `generate` begin sooner: it no longer reads all weights to see whether someone has changed them through
        `.data`, until `train()`. Other changes it sees as ever.
        """
        StepWeights.expect_fixed(self)

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

    @torch.no_grad()
    def generate_stream(self: Any, batches: Iterable[dict[str, Any]], **kwargs: Any) -> Iterator[Any]:
        """
        The same as `generate(**batch, **kwargs)` of each batch, in their order and sooner: as soon as sentences are
        done, those of the next batch take their places in the search, so that none waits for the longest translation
        of another batch (continuous batching). What greedy and beam search of this package cannot do, or only in step
        (`prefixes`, `required_phrases`, decoder prompts), is done batch by batch.

        Args:
            batches: For each batch the arguments of `generate` that belong to it, as `input_ids` and `attention_mask`.
                They are read one ahead, and should be of alike lengths.
            kwargs: Arguments of `generate` for all batches.

        Raises:
            ValueError: As `generate`; or a batch has an argument that has to be the same for all.
        """
        works = (
            self.generate(**arguments_of_batch(place, batch), **kwargs, place_in_stream=place)
            for place, batch in enumerate(batches)
        )
        for work in run_together(works):
            yield answer(work) if isinstance(work, Search) else work

    def adjust_generation_fn(self: Any, *args: Any, **kwargs: Any) -> None:
        super().adjust_generation_fn(*args, **kwargs)  # type: ignore[misc]
        self.generation_config = VanillaTransformerGenerationConfig.of(self.generation_config)

    def _prepare_generation_config(self: Any, generation_config: Any, **kwargs: Any) -> Any:
        own = {name: kwargs.pop(name) for name in SEARCH_OPTIONS if name in kwargs}
        requests = {name: kwargs.pop(name) for name in REQUESTS if name in kwargs}
        place_in_stream = kwargs.pop("place_in_stream", None)
        mask = kwargs.get("attention_mask")
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)  # type: ignore[misc]
        for name, default in SEARCH_OPTIONS.items():
            value = own.get(name, getattr(generation_config, name, None))
            setattr(generation_config, name, default if value is None else value)
        check_search_options(generation_config)
        generation_config._requests = {name: value for name, value in requests.items() if value is not None}
        generation_config._place_in_stream = place_in_stream
        generation_config._source_lengths = None if mask is None else mask.sum(dim=-1)
        return generation_config, model_kwargs

    def _prepare_generated_length(self: Any, generation_config: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        extra, source, prompt = generation_config.max_extra_tokens, kwargs["inputs_tensor"], kwargs["input_ids_length"]
        generation_config._limits_new_tokens = (
            generation_config.max_new_tokens is not None or kwargs["has_default_max_length"]
        )
        if extra is not None:
            lengths = generation_config._source_lengths
            if lengths is None:
                lengths = torch.full(source.shape[:1], source.shape[1], device=source.device)
            generation_config._limits = lengths + (prompt + extra)
            if kwargs["has_default_max_length"] and generation_config.max_new_tokens is None:
                generation_config.max_new_tokens = int(lengths.max()) + extra
        generation_config = super()._prepare_generated_length(generation_config, **kwargs)  # type: ignore[misc]
        # Learned positions end somewhere; the token behind the last one can still be predicted.
        longest = self.get_decoder().embed_positions.longest
        generation_config._most_tokens = sys.maxsize if longest is None else 1 + longest
        generation_config.max_length = min(generation_config.max_length, generation_config._most_tokens)
        return generation_config

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
        read = not getattr(generation_config, "_place_in_stream", None)  # once for a stream
        weights = [None if model.training else StepWeights.of(model, read) for model in (self, *members)]
        memories = [
            member._encode(its, inputs, dict(model_kwargs), input_name, generation_config)["encoder_outputs"][0]
            for member, its in zip(members, weights[1:])
        ]
        generation_config._weights, generation_config._members = weights, [*zip(members, memories)]
        return self._encode(weights[0], inputs, model_kwargs, input_name, generation_config)

    def _encode(self: Any, weights: StepWeights | None, *args: Any) -> Any:
        """What transformers does instead of `_maybe_prepare_encoder_kwargs_for_generation`, with packed weights."""
        plain = weights is None or torch.is_autocast_enabled("cpu")
        with nullcontext() if plain else weights.reading_the_source():  # type: ignore[union-attr]
            return super()._maybe_prepare_encoder_kwargs_for_generation(*args)  # type: ignore[misc]

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
        limits = self._limits(stopping_criteria, input_ids, config, logits_processor)
        decoder = self._decoder(kwargs, config, beams=1)
        return begin(GreedySearch(decoder, input_ids, limits, config, logits_processor, config._constraints))

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
        return begin(search)

    def _decoder(self: Any, kwargs: dict[str, Any], config: Any, beams: int) -> IncrementalDecoder | Ensemble:
        """What has read the source and takes the tokens of each sentence's beams."""
        # generate() has repeated them for each beam; here the beams of a sentence share them.
        memory, mask = kwargs["encoder_outputs"][0][::beams], kwargs.get("attention_mask")
        mask = mask if mask is None else mask[::beams]
        shortlist = config._constraints.shortlist
        ids = None if shortlist is None else shortlist.ids
        is_covering = beams > 1 and config.coverage_penalty > 0
        decoders = [
            IncrementalDecoder(model, weights, states, mask, beams, is_covering, ids)
            for (model, states), weights in zip([(self, memory), *config._members], config._weights)
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
        limits = limits.clamp(max=config._most_tokens)
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
        # One hypothesis alone is ranked by nothing; so a saved generation config does not keep anybody from sampling.
        for name in ("length_penalty_type", "coverage_penalty") if config.num_beams > 1 else ():
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


def begin(search: Search) -> Any:
    """The search itself if it is to join others and can, else what it finds."""
    if search.config._place_in_stream is not None and search.can_join:
        return search
    search.run()
    return answer(search)


def answer(search: Search) -> Any:
    """What `generate()` returns of a search that is over: token ids, or transformers' output of a beam search."""
    if isinstance(search, GreedySearch):
        return search.results["running"][:, : search.length]
    config, prompt_length = search.config, search.prompt_length
    found: dict[str, Any] = {
        name: tensor[:, : config.num_return_sequences].flatten(0, 1) for name, tensor in search.results.items()
    }
    longest = int(found["finished_lengths"].max())
    sequences = found["finished"][:, : prompt_length + longest]
    if not config.return_dict_in_generate:
        return sequences
    missing = found.get("finished_missing")
    return VanillaTransformerBeamOutput(
        sequences=sequences,
        sequences_scores=found["finished_scores"],
        beam_indices=found["finished_parents"][:, :longest],
        phrases_met=None if missing is None else missing == 0,
    )


def is_hooked(module: torch.nn.Module) -> bool:
    """
    Whether something has been put around the module's forward. What transformers leaves there to record outputs, and
    Accelerate to compute in another type, does not count.
    """
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    strange = any(getattr(hook, "__module__", "") != output_capturing.__name__ for hook in hooks)
    wrapped = "forward" in vars(module) and "_original_forward" not in vars(module)
    return strange or wrapped or hasattr(module, "_hf_hook")


__all__ = ["LENGTH_PENALTIES", "SEARCH_OPTIONS", "VanillaTransformerGenerationMixin", "check_token_ids"]
