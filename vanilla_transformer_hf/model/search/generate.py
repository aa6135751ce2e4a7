"""
`generate()` with the search of this package, and with options that transformers does not have.

transformers' `generate()` prepares its inputs and then runs one of its loops, or a function in the place of the loop.
Here that is `run_search`, which computes with an `IncrementalDecoder`, for greedy search, beam search and samples of
models and calls without anything that only transformers' loops can do (`obstacles` in `plan.py`).
"""

import copy
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, QuantizedCache
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput, GenerationConfig

from ..config.attention_kinds import attends_to_pieces
from ..config.front_ends import reads_tokens, shortened_padding, source_length
from ..config.generation import VanillaTransformerGenerationConfig
from ..config.kinds import part
from ..config.search_settings import REQUESTS, SEARCH_OPTIONS, SearchOptions, Settings
from ..packing.int8_quantizer import Int8Config  # noqa: F401  (transformers must know it when a folder is opened)
from ..packing.packed import EXPECTED, MAKERS, StepWeights
from ..releases.models import CACHE
from .beam import BeamSearch
from .host_generation import HostGenerationMixin
from .incremental_decoder import IncrementalDecoder
from .plan import (
    KNOWN,
    SearchPlan,
    SearchRequest,
    given,
    loop_obstacles,
    most_target_tokens,
    needs_whole_rows,
    obstacles,
    plan_lengths,
    replaced_method,
)
from .search import GreedySearch, Search


@dataclass
class VanillaTransformerBeamOutput(GenerateBeamEncoderDecoderOutput):
    """transformers' output of a beam search, and whether each sequence contains all its `required_phrases`."""

    phrases_met: torch.Tensor | None = None


def check_token_ids(ids: torch.Tensor, vocab_size: int, name: str) -> None:
    """A `ValueError` that names an id of `ids` outside the vocabulary."""
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.numel():
        raise ValueError(f"{name}: token id {wrong[0].item()} lies outside the vocabulary of {vocab_size} tokens")


# transformers types self as a protocol that its own models do not meet either.
class VanillaTransformerGenerationMixin(HostGenerationMixin):
    """
    transformers' `generate()` with faster loops for greedy and beam search and for samples, which are those of
    transformers' loops for a seed, and with options of this package.

    Four are arguments of `generate()` and entries of generation_config.json:

    - `length_penalty_type`: "power" divides a hypothesis' log-probability by |Y|^α, "gnmt" by ((5 + |Y|) / 6)^α as the
      paper does (section 6.1); α is `length_penalty`, |Y| counts the tokens after the decoder prompt.
    - `coverage_penalty`: β ≥ 0 of Wu et al. 2016, arXiv 1609.08144, equation 14; adds β Σ_j log min(Σ_i p_ij, 1) to
      the score, with p_ij the mean attention over the heads of the last layer.
    - `max_extra_tokens`: a hypothesis has at most this many tokens more than its source ("input length + 50" in
      section 6.1).
    - `decoder_prompt_ids`: target ids behind the start token that every output begins with, as the language and the
      task of Whisper; a call with `decoder_input_ids` has those instead.

    The others can only be arguments:

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
      position. Norms, softmax and the products of attention stay in the type of the model. "int8_reduced" rounds
      inputs to seven bits: on CPUs with AVX2 alone, in half the time.
    - `recorder`: a function that is called with a `BeamStep` after each step of a beam search: its candidates, those
      that ended and those that run on.
    """

    generation_config_class: type[GenerationConfig] = VanillaTransformerGenerationConfig

    def train(self: Any, mode: bool = True) -> Any:
        """Put the model into training mode, which drops packed weights, or with False into evaluation mode."""
        if mode or self.training:  # not for eval() before each batch: packing takes longer than a short search
            StepWeights.evict(self)
        return super().train(mode)  # type: ignore[misc]

    def adjust_generation_fn(self: Any, *args: Any, **kwargs: Any) -> None:
        """Read the generation config (transformers' method), with the options that only this package has."""
        super().adjust_generation_fn(*args, **kwargs)  # type: ignore[misc]
        self.generation_config = VanillaTransformerGenerationConfig.of(self.generation_config)

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
        place_in_stream = kwargs.pop("place_in_stream", None)
        requests = {name: kwargs[name] for name in REQUESTS if kwargs.get(name) is not None}
        kwargs = {name: value for name, value in kwargs.items() if name not in REQUESTS}
        if kwargs.get("custom_generate") is None:
            kwargs.pop("custom_generate", None)
        if requests.get("quantization") not in MAKERS.rows:
            raise ValueError(f"quantization={requests['quantization']!r}: {EXPECTED}")
        if requests and "custom_generate" in kwargs:
            raise ValueError(f"{next(iter(requests))}: not possible together with custom_generate")
        source_size, target_size = self.config.source_vocab_size or self.config.vocab_size, self.config.vocab_size
        for ids in filter(torch.is_tensor, (inputs, kwargs.get("input_ids")) if reads_tokens(self.config) else ()):
            check_token_ids(ids, source_size, name="input_ids")
        kwargs = self._masking_padding(inputs, kwargs)
        if (prompt := kwargs.get("decoder_input_ids")) is not None:
            check_token_ids(prompt, target_size, name="decoder_input_ids")
            kwargs["decoder_input_ids"] = prompt.long()
        if isinstance(kwargs.get("custom_generate"), str):  # the name of a repository whose code replaces the loop
            return super().generate(inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs)
        settings = Settings(dict(kwargs), given=generation_config, saved=self.generation_config)
        options = SearchOptions.of(settings.get)
        if options.decoder_prompt_ids and kwargs.get("decoder_input_ids") is None:
            ids = torch.tensor([options.decoder_prompt_ids], device=self.device)
            check_token_ids(ids, self.config.vocab_size, name="decoder_prompt_ids")
            kwargs["decoder_input_ids"] = ids.repeat(len(self._lengths(inputs, kwargs, settings)[1]), 1)
        stated = settings.length_limits
        prompt_length, source_lengths = self._lengths(inputs, kwargs, settings)
        limits = plan_lengths(stated, prompt_length, source_lengths, most_tokens=most_target_tokens(self))
        changes: dict[str, Any] = {"max_new_tokens": limits.new_tokens}
        if not stated.keys() >= {"max_new_tokens", "max_length"}:  # of both, transformers warns, as the user wants
            changes["max_length"] = None
        if "custom_generate" not in kwargs and settings.get("num_beam_groups") is not None:
            changes["num_beam_groups"] = 1  # transformers would look for its own on the Hub
        kwargs = {name: value for name, value in kwargs.items() if name not in {*SEARCH_OPTIONS, *changes}}
        if generation_config is None:
            kwargs |= changes
        else:  # transformers warns of settings beside one
            generation_config = copy.deepcopy(generation_config)
            for name, value in changes.items():
                setattr(generation_config, name, value)
        request = SearchRequest(options, requests, limits, place_in_stream)
        kwargs |= self._read_source(inputs, kwargs, settings, request)
        beams = settings.get("num_beams") or 1
        if "recorder" in requests and beams < 2:
            raise ValueError(f"recorder: needs num_beams of at least 2, not {beams}")
        own_option = request.own_option(beams)
        obstacle = next(obstacles(self, settings, kwargs, by_position=len(args)), None)
        # Hooks that a step runs need transformers' loop less than the options that only this search has.
        if obstacle is None and (own_option is not None or not needs_whole_rows(self)):

            def search(*call: Any, **prepared: Any) -> Any:  # few names, because transformers reads its signature
                return run_search(request, *call, **prepared)

            found = super().generate(
                inputs, generation_config, logits_processor, stopping_criteria, *args, custom_generate=search, **kwargs
            )
            if not isinstance(found, str):
                return found
            obstacle = found
        if own_option is not None and "custom_generate" not in kwargs:  # whose loop may have it
            raise ValueError(f"{own_option}: not possible together with {obstacle}")
        if (most := limits.of_sentences) is not None:

            def have_most(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
                rows = input_ids.shape[0] // len(most)
                return input_ids.shape[1] >= most.to(input_ids.device).repeat_interleave(rows)

            stopping_criteria = [*(stopping_criteria or []), have_most]
        return super().generate(inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs)

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
        works = part("search.together", "generate_stream()").run_together(self, batches, kwargs)
        yield from (answer(work) if isinstance(work, Search) else work for work in works)

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
    ) -> dict[str, Any]:
        """Run the encoders with packed weights, if the source can be read before transformers encodes it."""
        # Returned are the arguments that keep its `generate()` from encoding it again.
        name = self.main_input_name
        ids, embeddings = kwargs.get(name) if inputs is None else inputs, kwargs.get("inputs_embeds")
        is_read = kwargs.get("encoder_outputs") is not None
        request.check_ensemble(self, has_source=ids is not None and not is_read)
        extras = settings.get("output_attentions") or settings.get("output_hidden_states")
        if is_read or (ids is None) == (embeddings is None) or extras or hasattr(self, "hf_device_map"):
            return {}
        # Of a subclass; and PEFT's prompt learning, for one, brings its own ways of reading a source.
        if "encoder_outputs" not in inspect.signature(self.forward).parameters or replaced_method(self) is not None:
            return {}
        names = ("attention_mask", "inputs_embeds", "position_ids", "token_type_ids", "global_attention_mask")
        source = {name: ids, **{other: kwargs[other] for other in names if kwargs.get(other) is not None}}
        found = []
        for model in (self, *request.models):
            weights = None if model.training else StepWeights.of(model, request.requests.get("quantization"))
            plain = weights is None or (weights.quantization is None and torch.is_autocast_enabled("cpu"))
            encoder = model.get_encoder() if plain else weights.encoder  # type: ignore[union-attr]
            found.append(encoder(**source, return_dict=True))
            request.weights.append(weights)
        request.memories = [outputs[0] for outputs in found[1:]]
        return {"encoder_outputs": found[0]}

    def _prepare_cache_for_generation(
        self: Any, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        kind, is_used = generation_config.cache_implementation, generation_config.use_cache is not False
        is_ours = self.config.is_encoder_decoder and is_used and CACHE not in model_kwargs
        if is_ours and kind == "quantized":
            # transformers quantizes no encoder-decoder's cache; ours can be where it grows, in self-attention.
            settings = {"backend": "quanto", "config": self.config, **(generation_config.cache_config or {})}
            model_kwargs[CACHE] = EncoderDecoderCache(QuantizedCache(**settings), DynamicCache(config=self.config))
        elif is_ours and kind in (None, "dynamic"):
            # transformers copies the config three times to find out that each layer has the ordinary cache.
            model_kwargs[CACHE] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        else:
            return super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]

    def _search_obstacle(self: Any, kwargs: dict[str, Any]) -> str | None:
        """What of the model's arguments, as transformers has prepared them, needs transformers' loop."""
        return next(given((name for name in kwargs if name not in KNOWN), kwargs), None)

    def _decoders(self: Any, plan: SearchPlan, kwargs: dict[str, Any], weights: list[StepWeights]) -> list[Any]:
        """The decoders of the search: that of the model, and of the members of an ensemble."""
        records_attention = plan.config.num_beams > 1 and plan.options.coverage_penalty > 0
        if records_attention and not attends_to_pieces(self.config, "cross"):
            raise ValueError(
                "coverage_penalty: not possible with cross_attention_type='linformer' or encoder_pooling, where the "
                "decoder attends to sums of the source's tokens"
            )
        if len(plan.request.memories) < len(plan.request.models):
            raise ValueError("ensemble: needs input_ids alone, and a model without a map of devices")
        # generate() has repeated the encoder's output for each beam; here the beams of a row share one copy.
        memory, mask = kwargs["encoder_outputs"][0][:: plan.beams], kwargs.get("attention_mask")
        others = (each.repeat_interleave(plan.groups, dim=0) for each in plan.request.memories)
        return [
            IncrementalDecoder(
                model,
                weights=packed,
                memory=states,
                attention_mask=None if mask is None else mask[:: plan.beams],
                beams=plan.beams,
                record_attention=records_attention,
                shortlist=None if plan.shortlist is None else plan.shortlist.ids,
            )
            for model, packed, states in zip((self, *plan.request.models), weights, (memory, *others), strict=True)
        ]


def run_search(
    request: SearchRequest,
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **kwargs: Any,
) -> Any:
    """What transformers' `generate()` runs as its loop."""
    # It returns what `generate()` returns, a search that others may join, or, as a string, what of the call needs
    # transformers' own loop.
    reasons = loop_obstacles(request, stopping_criteria, generation_config)
    if reason := next(reasons, None) or model._search_obstacle(kwargs):
        return reason
    plan = SearchPlan(request, model, input_ids, logits_processor, stopping_criteria, generation_config)
    weights = [*filter(None, request.weights)] or [StepWeights.of(model, request.requests.get("quantization"))]
    plan.is_seen |= not all(each.runs_known_code for each in weights)
    decoders = model._decoders(plan, kwargs, weights)
    kind: Any = GreedySearch if generation_config.num_beams == 1 else BeamSearch
    if kind is BeamSearch and plan.groups > 1:
        kind = part("search.together", "num_beam_groups").DiverseBeamSearch
    together = part("search.together", "ensemble").Ensemble(decoders) if len(decoders) > 1 else decoders[0]
    search: Search = kind(together, plan)
    if request.place_in_stream is not None and part("search.together", "generate_stream()").can_join(search):
        return search
    search.run()
    return answer(search)


def answer(search: Any) -> Any:
    """The return value of `generate()` for a finished search: token ids, or transformers' outputs without a cache."""
    search.check_scores()
    plan = search.plan
    outputs: dict[str, Any] = {name: tuple(steps) for name, steps in search.outputs.items()}
    if isinstance(search, GreedySearch):
        sequences: Any = search.results["running"][:, : search.length]
        return GenerateEncoderDecoderOutput(sequences, **outputs) if plan.config.return_dict_in_generate else sequences
    found = search.best()
    longest = int(found["finished_lengths"].max())
    sequences = found["finished"][:, : plan.prompt.shape[1] + longest]
    if not plan.config.return_dict_in_generate:
        return sequences
    missing = found.get("finished_missing")
    return VanillaTransformerBeamOutput(
        sequences=sequences,
        sequences_scores=found["finished_scores"],
        beam_indices=found["finished_parents"][:, :longest],
        phrases_met=None if missing is None else missing == 0,
        **outputs,
    )
