"""
`generate()` with the search of this package, and with options that transformers does not have.

transformers' `generate()` prepares its inputs and calls `_sample` or `_beam_search`. Here these two check whether the
call is a plain greedy or beam search; if so they run it with an `IncrementalDecoder`, otherwise they call
transformers' loop.
"""

import copy
import inspect
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, QuantizedCache
from transformers.generation import (
    GenerateBeamEncoderDecoderOutput,
    GenerationConfig,
    GenerationMixin,
    StoppingCriteriaList,
)

from .beam_search_vanilla_transformer import BeamSearch, DiverseBeamSearch
from .generation_config_vanilla_transformer import (
    SEARCH_OPTIONS,
    SearchOptions,
    Settings,
    VanillaTransformerGenerationConfig,
)
from .greedy_search_vanilla_transformer import GreedySearch
from .incremental_decoder_vanilla_transformer import Ensemble, IncrementalDecoder
from .linformer_attention_vanilla_transformer import attends_to_pieces
from .packed_weights_vanilla_transformer import MAKERS, StepWeights
from .search_plan_vanilla_transformer import (
    REQUESTS,
    SearchPlan,
    SearchRequest,
    check_ensemble,
    check_request,
    find_obstacle,
    most_target_tokens,
)
from .search_vanilla_transformer import Search, run_together


# Arguments of `generate` about its sentences; the batches of a stream may differ only in these.
OF_SENTENCES = (
    "inputs", "input_ids", "inputs_embeds", "attention_mask", "encoder_outputs", "decoder_input_ids",
    "decoder_attention_mask", "prefixes", "required_phrases",
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


def check_token_ids(ids: torch.Tensor, vocab_size: int, name: str):
    """
    Raises:
        ValueError: An id of `ids` lies outside the vocabulary; the message names it.
    """
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.numel():
        raise ValueError(f"{name}: token id {wrong[0].item()} lies outside the vocabulary of {vocab_size} pieces")


# transformers types self as a protocol that its own models do not meet either.
class VanillaTransformerGenerationMixin(GenerationMixin):
    """
    transformers' `generate()` with faster loops for greedy and beam search, and with options of this package.

    Three are arguments of `generate()` and entries of generation_config.json:

    - `length_penalty_type`: "power" divides a hypothesis' log-probability by |Y|^α, "gnmt" by ((5 + |Y|) / 6)^α as the
      paper does (section 6.1); α is `length_penalty`, |Y| counts the tokens after the decoder prompt.
    - `coverage_penalty`: β ≥ 0 of Wu et al. 2016, arXiv 1609.08144, equation 14; adds β Σ_j log min(Σ_i p_ij, 1) to
      the score, with p_ij the mean attention over the heads of the last layer.
    - `max_extra_tokens`: a hypothesis has at most this many tokens more than its source ("input length + 50" in
      section 6.1).

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
        if mode:
            StepWeights.forget(self)
        return super().train(mode)  # type: ignore[misc]

    def expect_fixed_weights(self: Any) -> None:
        """
        Until `train()` is called, `generate` does not detect changes made through `.data`, only all others. It then
        starts sooner where the weights share their memory with others, such as NumPy arrays, which it would read.
        """
        StepWeights.expect_fixed(self)

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
        place_in_stream = kwargs.pop("place_in_stream", None)
        requests = {name: kwargs.pop(name) for name in REQUESTS if name in kwargs}
        requests = {name: value for name, value in requests.items() if value is not None}
        if requests.get("quantization") not in MAKERS:
            raise ValueError(f"quantization={requests['quantization']!r}: expected 'int8' or None")
        custom = kwargs.get("custom_generate")
        if requests and custom is not None:
            raise ValueError(f"{next(iter(requests))}: not possible together with custom_generate")
        sizes = {
            "input_ids": self.config.source_vocab_size or self.config.vocab_size,
            "decoder_input_ids": self.config.vocab_size,
        }
        for name, ids in {"input_ids": inputs, **kwargs}.items():
            if name in sizes and ids is not None:
                check_token_ids(ids, sizes[name], name)
        if isinstance(custom, str):  # the name of a repository whose code replaces the loop
            arguments = (inputs, generation_config, logits_processor, stopping_criteria, *args)
            return super().generate(*arguments, **kwargs)  # type: ignore[misc]
        settings = Settings(dict(kwargs), generation_config, self.generation_config)
        options, most = SearchOptions.of(settings.get), most_target_tokens(self)
        request = SearchRequest(options, requests, most_tokens=most, place_in_stream=place_in_stream)
        host = request.limit(settings, *self._lengths(inputs, kwargs, settings))
        if custom is None and settings.get("num_beam_groups") is not None:
            host["num_beam_groups"] = 1  # transformers would look for its own on the Hub
        kwargs = {name: value for name, value in kwargs.items() if name not in SEARCH_OPTIONS}
        if generation_config is None:
            kwargs |= host
        else:
            generation_config = copy.deepcopy(generation_config)
            for name, value in host.items():
                kwargs.pop(name, None)
                setattr(generation_config, name, value)
        kwargs |= self._read_source(request, inputs, kwargs, settings)
        criteria = StoppingCriteriaList([*(stopping_criteria or []), request])
        return super().generate(inputs, generation_config, logits_processor, criteria, *args, **kwargs)  # type: ignore[misc]

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
        if (mask := kwargs.get("attention_mask")) is not None:
            return prompt_length, mask.sum(dim=-1)
        encoded = kwargs.get("encoder_outputs")
        given = (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds"), None if encoded is None else encoded[0])
        source = next((tensor for tensor in given if tensor is not None), torch.zeros(1, 1, device=self.device))
        return prompt_length, torch.full(source.shape[:1], source.shape[1], device=source.device)

    @torch.no_grad()
    def _read_source(
        self: Any, request: SearchRequest, inputs: torch.Tensor | None, kwargs: dict[str, Any], settings: Settings
    ) -> dict[str, Any]:
        """
        Run the encoders of the model and of its ensemble on the source with packed weights.

        Returns:
            The arguments that keep `generate()` from encoding the source again; empty if it has to encode the source
            itself.

        Raises:
            ValueError: The ensemble does not fit.
        """
        ids, embeddings = kwargs.get("input_ids") if inputs is None else inputs, kwargs.get("inputs_embeds")
        is_read = kwargs.get("encoder_outputs") is not None
        members = request.requests.get("ensemble", ())
        check_ensemble(self, members, ids is not None and not is_read)
        extras = settings.get("output_attentions") or settings.get("output_hidden_states")
        if is_read or (ids is None) == (embeddings is None) or extras or hasattr(self, "hf_device_map"):
            return {}
        if "encoder_outputs" not in inspect.signature(self.forward).parameters:  # of a subclass
            return {}
        names = ("attention_mask", "inputs_embeds", "position_ids", "token_type_ids", "global_attention_mask")
        source = {"input_ids": ids, **{name: kwargs[name] for name in names if kwargs.get(name) is not None}}
        models = (self, *members)
        read = not request.place_in_stream  # once for a stream
        request.weights = [
            None if model.training else StepWeights.of(model, read, request.quantization) for model in models
        ]
        found = [encode(model, weights, source) for model, weights in zip(models, request.weights)]
        request.memories = [outputs[0] for outputs in found[1:]]
        return {"encoder_outputs": found[0]}

    def _prepare_cache_for_generation(
        self: Any, generation_config: Any, model_kwargs: dict, *args: Any, **kwargs: Any
    ) -> Any:
        is_ours = self.config.is_encoder_decoder and "past_key_values" not in model_kwargs
        kind = generation_config.cache_implementation
        if is_ours and kind == "quantized":
            # transformers quantizes no encoder-decoder's cache; ours can be where it grows, in self-attention.
            settings = {"backend": "quanto", "config": self.config, **(generation_config.cache_config or {})}
            model_kwargs["past_key_values"] = EncoderDecoderCache(
                QuantizedCache(**settings), DynamicCache(config=self.config)
            )
        elif is_ours and kind in (None, "dynamic") and generation_config.use_cache is not False:
            # transformers copies the config three times to find out that each layer has the ordinary cache.
            model_kwargs["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        else:
            return super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):  # type: ignore
        arguments = (input_ids, logits_processor, stopping_criteria, generation_config)
        search = self._search(GreedySearch, *arguments, kwargs)
        return super()._sample(*arguments, **kwargs) if search is None else begin(search)

    def _beam_search(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):  # type: ignore
        arguments = (input_ids, logits_processor, stopping_criteria, generation_config)
        search = self._search(BeamSearch, *arguments, kwargs)
        return super()._beam_search(*arguments, **kwargs) if search is None else begin(search)

    def _search(
        self: Any,
        kind: type[Search],
        input_ids: torch.Tensor,
        processors: Any,
        criteria: Any,
        config: Any,
        kwargs: dict,
    ) -> Search | None:
        """
        The search for the inputs that `generate()` has prepared; None if the call needs transformers' loop.

        Raises:
            ValueError: The call needs transformers' loop but has an option that this loop does not support; or
                constraints are malformed.
        """
        request = SearchRequest.among(criteria)
        obstacle = self._obstacle(kind, processors, criteria, config, kwargs)
        if kind is GreedySearch and "recorder" in request.requests:
            raise ValueError("recorder: needs num_beams of at least 2, not 1")
        if obstacle is not None:
            check_request(request, config, obstacle)
            return None
        plan = SearchPlan.of(request, self, input_ids, processors, criteria, config)
        shortlist = None if plan.constraints.shortlist is None else plan.constraints.shortlist.ids
        records_attention = kind is BeamSearch and plan.options.coverage_penalty > 0
        decoders = self._decoders(request, plan, kwargs, records_attention, shortlist)
        decoder = Ensemble(decoders) if len(decoders) > 1 else decoders[0]
        return (DiverseBeamSearch if plan.groups > 1 else kind)(decoder, plan)

    def _obstacle(
        self: Any, kind: type[Search], processors: Any, criteria: Any, config: Any, kwargs: dict[str, Any]
    ) -> str | None:
        """The option or property that needs transformers' loop, or None."""
        obstacle = find_obstacle(self, processors, criteria, config, kwargs)
        if obstacle is None and kind is GreedySearch and config.return_dict_in_generate:
            return "a dictionary of outputs"
        return obstacle

    def _decoders(
        self: Any,
        request: SearchRequest,
        plan: SearchPlan,
        kwargs: dict[str, Any],
        records_attention: bool,
        shortlist: torch.Tensor | None,
    ) -> list[Any]:
        """The decoder of the search: that of the model, or an `Ensemble`."""
        # generate() has repeated the encoder's output for each beam; here the beams of a row share one copy.
        if records_attention and not attends_to_pieces(self.config, "cross"):
            raise ValueError(
                "coverage_penalty: not possible with cross_attention_type='linformer' or encoder_pooling, where the "
                "decoder attends to sums of the source's pieces"
            )
        memory, mask = kwargs["encoder_outputs"][0][:: plan.beams], kwargs.get("attention_mask")
        mask = mask if mask is None else mask[:: plan.beams]
        models, own = [self, *plan.members], partial(StepWeights.of, self, quantization=request.quantization)
        packed = [*filter(None, request.weights)] or [own()]
        memories = [memory, *(each.repeat_interleave(plan.groups, dim=0) for each in request.memories)]
        return [
            IncrementalDecoder(model, weights, states, mask, plan.beams, records_attention, shortlist)
            for model, weights, states in zip(models, packed, memories)
        ]


def encode(model: Any, weights: StepWeights | None, source: dict[str, torch.Tensor]) -> Any:
    """The encoder's output for a source, computed with packed weights if the model has them."""
    plain = weights is None or (weights.quantization is None and torch.is_autocast_enabled("cpu"))
    with nullcontext() if plain else weights.reading_the_source():  # type: ignore[union-attr]
        return model.get_encoder()(**source, return_dict=True)


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
