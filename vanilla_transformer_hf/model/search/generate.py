"""
`generate()` with the search of this package, and with options that transformers does not have.

transformers' `generate()` prepares its inputs and calls `_sample` or `_beam_search`. Here these two check whether the
call is a plain greedy or beam search; if so they run it with an `IncrementalDecoder`, otherwise they call
transformers' loop.
"""

import copy
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, QuantizedCache
from transformers.generation import (
    GenerateBeamEncoderDecoderOutput,
    GenerationConfig,
    StoppingCriteriaList,
)

from ..config.attention_kinds import attends_to_pieces
from ..config.front_ends import reads_tokens, shortened_padding, source_length
from ..config.generation import SEARCH_OPTIONS, SearchOptions, Settings, VanillaTransformerGenerationConfig
from ..packing.int8_quantizer import Int8Config  # noqa: F401  (transformers must know it when a folder is opened)
from ..packing.packed import MAKERS, StepWeights
from ..releases.models import CACHE
from .beam import BeamSearch, DiverseBeamSearch
from .greedy import GreedySearch
from .host_generation import HostGenerationMixin
from .incremental_decoder import Ensemble, IncrementalDecoder
from .plan import (
    REQUESTS,
    LengthLimits,
    LoopCall,
    ReadSource,
    SearchPlan,
    SearchRequest,
    check_ensemble,
    check_request,
    find_obstacle,
    most_target_tokens,
    needs_whole_rows,
    own_option,
    plan_lengths,
    replaced_method,
)
from .search import Search, run_together


# Arguments of `generate` about its sentences; the batches of a stream may differ only in these.
OF_SENTENCES = (
    "inputs", "input_ids", "inputs_embeds", "attention_mask", "encoder_outputs", "decoder_input_ids",
    "decoder_attention_mask", "position_ids", "token_type_ids", "global_attention_mask", "labels", "prefixes",
    "required_phrases", "input_features", "pixel_values",
)  # fmt: skip


def arguments_of_batch(place: int, batch: dict[str, Any]) -> dict[str, Any]:
    """
    Raises:
        ValueError: The batch has an argument that must be the same for all batches.
    """
    for name in batch:
        if name not in OF_SENTENCES:
            raise ValueError(f"batch {place}: {name} has to be the same for all batches; give it beside them")
    return batch


@dataclass
class VanillaTransformerBeamOutput(GenerateBeamEncoderDecoderOutput):
    """transformers' output of a beam search, and whether each sequence contains all its `required_phrases`."""

    phrases_met: torch.Tensor | None = None


def check_token_ids(ids: torch.Tensor, vocab_size: int, name: str) -> None:
    """
    Raises:
        ValueError: An id of `ids` lies outside the vocabulary; the message names it.
    """
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.numel():
        raise ValueError(f"{name}: token id {wrong[0].item()} lies outside the vocabulary of {vocab_size} tokens")


def with_settings(
    changes: dict[str, Any], kwargs: dict[str, Any], given: GenerationConfig | None
) -> tuple[dict[str, Any], GenerationConfig | None]:
    """
    The arguments and the `generation_config` of a call with these settings in the place of its own. A config that is
    given has them, as transformers warns of settings beside one.
    """
    if given is None:
        return {**kwargs, **changes}, None
    config = copy.deepcopy(given)
    for name, value in changes.items():
        setattr(config, name, value)
    return {name: value for name, value in kwargs.items() if name not in changes}, config


# transformers types self as a protocol that its own models do not meet either.
class VanillaTransformerGenerationMixin(HostGenerationMixin):
    """
    transformers' `generate()` with faster loops for greedy and beam search, and with options of this package.

    Four are arguments of `generate()` and entries of generation_config.json:

    - `length_penalty_type`: "power" divides a hypothesis' log-probability by |Y|^α, "gnmt" by ((5 + |Y|) / 6)^α as the
      paper does (section 6.1); α is `length_penalty`, |Y| counts the tokens after the decoder prompt.
    - `coverage_penalty`: β ≥ 0 of Wu et al. 2016, arXiv 1609.08144, equation 14; adds β Σ_j log min(Σ_i p_ij, 1) to
      the score, with p_ij the mean attention over the heads of the last layer.
    - `max_extra_tokens`: a hypothesis has at most this many tokens more than its source ("input length + 50" in
      section 6.1).
    - `decoder_prompt_ids`: target ids behind the start token that every output begins with, as the language and the
      task of Whisper; a call with `decoder_input_ids` has those instead.

    The others can only be arguments, for greedy and beam search:

    - `ensemble`: a list of other models with the same source and target ids; the search ranks by the logarithm of the
      mean of all their probabilities, the model's own included.
    - `prefixes`: for each sentence a list of target ids that its translation must begin with. They belong to the
      decoder prompt: scores, length penalty and `max_new_tokens` leave them out.
    - `required_phrases`: for each sentence a list of phrases, each a list of target ids that its translation must
      contain side by side. It needs at least two beams, and works best with more beams than the longest list of
      phrases has tokens. If the phrases do not fit within the length limit, the output's `phrases_met` is False and
      the translation contains as many as possible.
    - `shortlist`: the target ids that translations may use; other ids get no logits, and the probabilities of these
      sum to 1. Ids that end a sentence are always included.
    - `quantization`: "int8" rounds the weights of linear maps once, for each output, and their inputs for each
      position. Norms, softmax and the products of attention stay in the type of the model.
    - `recorder`: a function that is called with a `BeamStep` after each step of a beam search: its candidates, those
      that ended and those that run on.
    """

    generation_config_class: type[GenerationConfig] = VanillaTransformerGenerationConfig

    def train(self: Any, mode: bool = True) -> Any:
        """Put the model into training mode, which drops packed weights, or with False into evaluation mode."""
        if mode or self.training:  # not for eval() before each batch: packing takes longer than a short search
            StepWeights.evict(self)
        return super().train(mode)  # type: ignore[misc]

    def generate(
        self: Any,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """
        transformers' `generate`, after a check of the given token ids.

        Limits of length (`max_length`, `max_new_tokens`, `max_extra_tokens`) of the call replace those that were saved
        with the model. If neither has any, a translation has at most as many tokens as its source and 50.

        Raises:
            ValueError: A source or target id lies outside its vocabulary; an option of this package is out of range,
                or is not possible because the call needs transformers' own loop; or the model's scores are NaN.
        """
        if kwargs.get("labels") is not None and kwargs.get("decoder_input_ids") is None:
            kwargs.pop("decoder_attention_mask", None)  # it belongs to the labels, not to a decoder prompt
        requests = {name: kwargs[name] for name in REQUESTS if kwargs.get(name) is not None}
        place_in_stream = kwargs.pop("place_in_stream", None)
        kwargs = {name: value for name, value in kwargs.items() if name not in REQUESTS}
        self._check_arguments(inputs, kwargs, requests=requests)
        if isinstance(kwargs.get("custom_generate"), str):  # the name of a repository whose code replaces the loop
            return super().generate(inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs)
        settings = Settings(dict(kwargs), given=generation_config, saved=self.generation_config)
        options = SearchOptions.of(settings.get)
        if options.decoder_prompt_ids and kwargs.get("decoder_input_ids") is None:
            kwargs["decoder_input_ids"] = self._decoder_prompt(options, inputs, kwargs, settings=settings)
        request = SearchRequest(
            options=options,
            requests=requests,
            limits=self._plan_lengths(inputs, kwargs, settings=settings),
            place_in_stream=place_in_stream,
        )
        kwargs = {name: value for name, value in kwargs.items() if name not in SEARCH_OPTIONS}
        changes: dict[str, Any] = dict(request.limits.host_arguments)
        if kwargs.get("custom_generate") is None and settings.get("num_beam_groups") is not None:
            changes["num_beam_groups"] = 1  # transformers would look for its own on the Hub
        kwargs, generation_config = with_settings(changes, kwargs=kwargs, given=generation_config)
        request = replace(request, source=self._read_source(inputs, kwargs, settings=settings, request=request))
        kwargs |= request.source.host_arguments
        criteria = StoppingCriteriaList([*(stopping_criteria or []), request])
        return super().generate(inputs, generation_config, logits_processor, criteria, *args, **kwargs)

    def _check_arguments(
        self: Any, inputs: torch.Tensor | None, kwargs: dict[str, Any], requests: dict[str, Any]
    ) -> None:
        """
        Raises:
            ValueError: A token id lies outside its vocabulary, the quantization is unknown, or an option of this
                package is combined with another loop.
        """
        if requests.get("quantization") not in MAKERS:
            raise ValueError(f"quantization={requests['quantization']!r}: expected 'int8' or None")
        if requests and kwargs.get("custom_generate") is not None:
            raise ValueError(f"{next(iter(requests))}: not possible together with custom_generate")
        source_size, target_size = self.config.source_vocab_size or self.config.vocab_size, self.config.vocab_size
        for ids in filter(torch.is_tensor, (inputs, kwargs.get("input_ids")) if reads_tokens(self.config) else ()):
            check_token_ids(ids, source_size, name="input_ids")
        if (prompt := kwargs.get("decoder_input_ids")) is not None:
            check_token_ids(prompt, target_size, name="decoder_input_ids")

    def _decoder_prompt(
        self: Any, options: SearchOptions, inputs: torch.Tensor | None, kwargs: dict[str, Any], settings: Settings
    ) -> torch.Tensor:
        """
        `decoder_prompt_ids` for each sentence (B, P).

        Raises:
            ValueError: A token id lies outside the vocabulary.
        """
        ids = torch.tensor([options.decoder_prompt_ids], device=self.device)
        check_token_ids(ids, self.config.vocab_size, name="decoder_prompt_ids")
        sentences = len(self._lengths(inputs, kwargs, settings=settings)[1])
        return ids.repeat(sentences, 1)

    def _plan_lengths(
        self: Any, inputs: torch.Tensor | None, kwargs: dict[str, Any], settings: Settings
    ) -> LengthLimits:
        """
        The limits of length of a call.

        Raises:
            ValueError: There is no room for a token.
        """
        prompt_length, source_lengths = self._lengths(inputs, kwargs, settings=settings)
        return plan_lengths(
            settings.length_limits,
            prompt_length=prompt_length,
            source_lengths=source_lengths,
            most_tokens=most_target_tokens(self),
        )

    @torch.no_grad()
    def generate_stream(self: Any, batches: Iterable[dict[str, Any]], **kwargs: Any) -> Iterator[Any]:
        """
        Yield what `generate(**batch, **kwargs)` returns for each batch, in their order but sooner: as soon as
        sentences are done, those of the next batch take their places in the search (continuous batching). Calls that
        this package's search cannot run, or whose sentences must start together (`prefixes`, `required_phrases`,
        decoder prompts, groups of beams), run batch by batch.

        Args:
            batches: For each batch the arguments of `generate` that belong to it, as `input_ids` and `attention_mask`.
                They are read one ahead; batches of similar lengths are fastest.
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
        """Read the generation config (transformers' method), with the options that only this package has."""
        super().adjust_generation_fn(*args, **kwargs)  # type: ignore[misc]
        self.generation_config = VanillaTransformerGenerationConfig.of(self.generation_config)

    def _lengths(
        self: Any, inputs: torch.Tensor | None, kwargs: dict[str, Any], settings: Settings
    ) -> tuple[int, torch.Tensor]:
        """Tokens of the decoder prompt, and of each source (B)."""
        prompt, prompt_length = kwargs.get("decoder_input_ids"), 1
        if prompt is not None:
            start = settings.get("decoder_start_token_id", settings.get("bos_token_id"))
            # transformers puts it in front of prompts that do not begin with it.
            is_added = start is not None and (prompt[:, 0] != torch.as_tensor(start, device=prompt.device)).all()
            prompt_length = prompt.shape[1] + int(is_added)
        if (mask := shortened_padding(self.config, kwargs.get("attention_mask"))) is not None:
            return prompt_length, mask.sum(dim=-1)
        if (encoded := kwargs.get("encoder_outputs")) is not None:
            return prompt_length, torch.full(encoded[0].shape[:1], encoded[0].shape[1], device=encoded[0].device)
        given = (inputs, kwargs.get(self.main_input_name), kwargs.get("inputs_embeds"))
        source = next((tensor for tensor in given if tensor is not None), torch.zeros(1, 1, device=self.device))
        return prompt_length, torch.full(
            source.shape[:1], source_length(self.config, source.shape), device=source.device
        )

    @torch.no_grad()
    def _read_source(
        self: Any, inputs: torch.Tensor | None, kwargs: dict[str, Any], settings: Settings, request: SearchRequest
    ) -> ReadSource:
        """
        Run the encoders of the model and of its ensemble on the source with packed weights, if the source can be read
        before transformers' `generate()`.

        Raises:
            ValueError: The ensemble does not fit.
        """
        name = self.main_input_name
        given, embeddings = kwargs.get(name) if inputs is None else inputs, kwargs.get("inputs_embeds")
        is_read = kwargs.get("encoder_outputs") is not None
        check_ensemble(self, request.ensemble, has_source=given is not None and not is_read)
        extras = settings.get("output_attentions") or settings.get("output_hidden_states")
        if is_read or (given is None) == (embeddings is None) or extras or hasattr(self, "hf_device_map"):
            return ReadSource()
        # Of a subclass; and PEFT's prompt learning, for one, brings its own ways of reading a source.
        if "encoder_outputs" not in inspect.signature(self.forward).parameters or replaced_method(self) is not None:
            return ReadSource()
        names = ("attention_mask", "inputs_embeds", "position_ids", "token_type_ids", "global_attention_mask")
        source = {name: given, **{other: kwargs[other] for other in names if kwargs.get(other) is not None}}
        models = (self, *request.ensemble)
        weights = [
            None if model.training else StepWeights.of(model, quantization=request.quantization) for model in models
        ]
        own, *others = [encode(model, packed, source) for model, packed in zip(models, weights, strict=True)]
        memories = [outputs[0] for outputs in others]
        return ReadSource(weights=weights, memories=memories, host_arguments={"encoder_outputs": own})

    def _prepare_cache_for_generation(
        self: Any, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        is_ours = self.config.is_encoder_decoder and CACHE not in model_kwargs
        kind = generation_config.cache_implementation
        if is_ours and kind == "quantized":
            # transformers quantizes no encoder-decoder's cache; ours can be where it grows, in self-attention.
            settings = {"backend": "quanto", "config": self.config, **(generation_config.cache_config or {})}
            model_kwargs[CACHE] = EncoderDecoderCache(QuantizedCache(**settings), DynamicCache(config=self.config))
        elif is_ours and kind in (None, "dynamic") and generation_config.use_cache is not False:
            # transformers copies the config three times to find out that each layer has the ordinary cache.
            model_kwargs[CACHE] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        else:
            return super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]

    def _sample(  # type: ignore[override]
        self: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **kwargs: Any,
    ) -> Any:
        search = self._search(
            GreedySearch,
            LoopCall(
                prompts=input_ids,
                processors=logits_processor,
                criteria=stopping_criteria,
                config=generation_config,
                kwargs=kwargs,
            ),
        )
        if search is not None:
            return begin(search)
        return super()._sample(  # type: ignore[misc]
            input_ids, logits_processor, stopping_criteria, generation_config, **kwargs
        )

    def _beam_search(  # type: ignore[override]
        self: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **kwargs: Any,
    ) -> Any:
        search = self._search(
            BeamSearch,
            LoopCall(
                prompts=input_ids,
                processors=logits_processor,
                criteria=stopping_criteria,
                config=generation_config,
                kwargs=kwargs,
            ),
        )
        if search is not None:
            return begin(search)
        return super()._beam_search(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)

    def _search(self: Any, kind: type[Search], call: LoopCall) -> Search | None:
        """
        The search for what `generate()` has prepared; None if the call needs transformers' loop.

        Raises:
            ValueError: The call needs transformers' loop but has an option that this loop does not support; or
                constraints are malformed.
        """
        request, obstacle = call.request, self._obstacle(kind, call)
        if kind is GreedySearch and "recorder" in request.requests:
            raise ValueError("recorder: needs num_beams of at least 2, not 1")
        if obstacle is not None:
            check_request(request, call.config, obstacle=obstacle)
            return None
        # Hooks that a step runs need transformers' loop less than the options that only this search has.
        if own_option(request, call.config) is None and needs_whole_rows(self):
            return None
        plan = SearchPlan.of(self, call)
        records_attention = kind is BeamSearch and plan.options.coverage_penalty > 0
        decoders = self._decoders(plan, call, records_attention=records_attention)
        decoder = Ensemble(decoders) if len(decoders) > 1 else decoders[0]
        return (DiverseBeamSearch if plan.groups > 1 else kind)(decoder, plan)

    def _obstacle(self: Any, kind: type[Search], call: LoopCall) -> str | None:
        """The option or property that needs transformers' loop, or None."""
        obstacle = find_obstacle(self, call)
        if obstacle is None and kind is GreedySearch and call.config.return_dict_in_generate:
            return "a dictionary of outputs"
        return obstacle

    def _decoders(self: Any, plan: SearchPlan, call: LoopCall, records_attention: bool) -> list[Any]:
        """The decoders of the search: that of the model, and of the members of an ensemble."""
        if records_attention and not attends_to_pieces(self.config, "cross"):
            raise ValueError(
                "coverage_penalty: not possible with cross_attention_type='linformer' or encoder_pooling, where the "
                "decoder attends to sums of the source's tokens"
            )
        source = call.request.source
        # generate() has repeated the encoder's output for each beam; here the beams of a row share one copy.
        memory, mask = call.kwargs["encoder_outputs"][0][:: plan.beams], call.kwargs.get("attention_mask")
        memories = [memory, *(each.repeat_interleave(plan.groups, dim=0) for each in source.memories)]
        return [
            IncrementalDecoder(
                model,
                weights=weights,
                memory=states,
                attention_mask=None if mask is None else mask[:: plan.beams],
                beams=plan.beams,
                record_attention=records_attention,
                shortlist=plan.shortlist,
            )
            for model, weights, states in zip((self, *plan.members), self._packed_weights(call.request), memories)
        ]

    def _packed_weights(self: Any, request: SearchRequest) -> list[StepWeights]:
        """Those that have read the source, or the model's own."""
        packed = [weights for weights in request.source.weights if weights is not None]
        return packed or [StepWeights.of(self, quantization=request.quantization)]


def encode(model: Any, weights: StepWeights | None, source: dict[str, torch.Tensor]) -> Any:
    """The encoder's output for a source, computed with packed weights if the model has them."""
    plain = weights is None or (weights.quantization is None and torch.is_autocast_enabled("cpu"))
    encoder = model.get_encoder() if plain else weights.encoder  # type: ignore[union-attr]
    return encoder(**source, return_dict=True)


def begin(search: Search) -> Any:
    """The search itself if it can and should join others, else its result."""
    if search.plan.joins and search.can_join:
        return search
    search.run()
    return answer(search)


def answer(search: Any) -> Any:
    """
    The return value of `generate()` for a finished search: token ids, or transformers' output of a beam search.

    Raises:
        ValueError: The model's scores were NaN.
    """
    search.check_scores()
    if isinstance(search, GreedySearch):
        return search.results["running"][:, : search.length]
    plan, found = search.plan, search.best()
    longest = int(found["finished_lengths"].max())
    sequences = found["finished"][:, : plan.prompt.shape[1] + longest]
    if not plan.returns_dict:
        return sequences
    missing = found.get("finished_missing")
    return VanillaTransformerBeamOutput(
        sequences=sequences,
        sequences_scores=found["finished_scores"],
        beam_indices=found["finished_parents"][:, :longest],
        phrases_met=None if missing is None else missing == 0,
    )


__all__ = ["VanillaTransformerGenerationMixin", "check_token_ids"]
