"""
Decoding in three steps, each a graph of its own: the encoder, the decoder's first step, and every step after it.

The names of the steps, their inputs and their outputs are those of optimum, which other tools look for. `trace` makes
`torch.export` programs of them, which `torch_export` saves and `onnx` translates; a `StepwiseModel` runs the three,
in whatever engine, under transformers' `generate()`.

Shapes: B sentences, S source positions, P target positions before this step, T target positions in it, D = d_model,
H heads, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..model.config.front_ends import reads_tokens
from ..model.config.stacks import heads_of_layers
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.layers.base_model import VanillaTransformerPreTrainedModel
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.releases.models import CACHE, given_cache, named


ENCODER, FIRST_STEP, NEXT_STEP = "encoder_model", "decoder_model", "decoder_with_past_model"

# The cache of a decoder layer: keys and values (B, H, P, d_k or d_v) of its self-attention, then those (B, H, S, d_k
# or d_v) of its attention over the encoder's output.
CACHED = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
Past = list[list[torch.Tensor]]


def problems(config: VanillaTransformerConfig) -> list[str]:
    """A line for each field that the three steps cannot express."""
    count, pooling = config.type_vocab_size, config.encoder_pooling
    if not reads_tokens(config):
        return [f"front_end={config.front_end!r}: must be 'tokens', because the steps take input_ids"]
    found = [f"type_vocab_size={count}: must be 0, because the steps take no token_type_ids"] if count else []
    if pooling is not None:
        found.append(f"encoder_pooling={pooling}: must be None, because the steps take one length of the source")
    if (kind := config.decoder_attention_type) == "recurrent":
        found.append(f"decoder_attention_type={kind!r}: must be another, because the steps carry keys, not states")
    return found


def cache_of(past: Past, layers: int) -> EncoderDecoderCache:
    """transformers' cache with these tensors in it; empty where there are none."""
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    cache.is_updated = dict.fromkeys(range(layers), False)
    for index, (key, value, source_key, source_value) in enumerate(past):
        cache.self_attention_cache.update(key, value, index)
        cache.cross_attention_cache.update(source_key, source_value, index)
        cache.is_updated[index] = True
    return cache


def tensors_of(cache: EncoderDecoderCache) -> Past:
    """The tensors of the cache, layer by layer."""
    pairs: Any = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers)
    return [[own.keys, own.values, source.keys, source.values] for own, source in pairs]


class EncoderStep(nn.Module):
    """Source ids and mask (B, S) to the encoder's output (B, S, D)."""

    def __init__(self, model: VanillaTransformerForConditionalGeneration):
        super().__init__()
        self.encoder = model.model.encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(input_ids, attention_mask).last_hidden_state


class DecoderStep(nn.Module):
    """The common base of the two decoder steps."""

    def __init__(self, model: VanillaTransformerForConditionalGeneration):
        super().__init__()
        self.decoder = model.model.decoder
        self.lm_head = model.lm_head

    def decode(
        self, input_ids: torch.Tensor, mask: torch.Tensor, encoder_hidden_states: torch.Tensor, past: Past
    ) -> tuple[torch.Tensor, Past]:
        cache = cache_of(past, len(self.decoder.layer_order))
        states = self.decoder(input_ids, None, encoder_hidden_states, mask, cache=cache)
        return self.lm_head(states.last_hidden_state), tensors_of(cache)


class FirstDecoderStep(DecoderStep):
    """Target ids (B, T), source mask (B, S) and encoder's output (B, S, D) to logits (B, T, V) and the cache."""

    def forward(
        self, input_ids: torch.Tensor, encoder_attention_mask: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, Past]:
        return self.decode(input_ids, encoder_attention_mask, encoder_hidden_states, [])


class NextDecoderStep(DecoderStep):
    """Target ids (B, T), source mask (B, S) and the cache to logits (B, T, V) and the grown part of the cache."""

    def forward(
        self, input_ids: torch.Tensor, encoder_attention_mask: torch.Tensor, past_key_values: Past
    ) -> tuple[torch.Tensor, Past]:
        # Once keys and values are cached, only length and type of the encoder's output are used.
        source_keys = past_key_values[0][CACHED.index("encoder.key")]
        logits, present = self.decode(input_ids, encoder_attention_mask, source_keys[:, 0], past_key_values)
        return logits, [layer[:2] for layer in present]


def examples(model: VanillaTransformerForConditionalGeneration) -> dict[str, tuple[nn.Module, dict, dict]]:
    """Each step: its module, inputs of it, and which of their dimensions may have any size."""
    config = model.config
    batch, source, target = Dim("batch_size"), Dim("encoder_sequence_length"), Dim("decoder_sequence_length")
    past = Dim("past_decoder_sequence_length")
    # Sizes of 1 would become constants.
    ids = torch.zeros(2, 3, dtype=torch.long)
    mask = torch.ones_like(ids)
    memory = torch.zeros(2, 3, int(config.encoder_d_model or config.d_model))
    layer = model.model.decoder.layers[0].self_attn
    own, cross = heads_of_layers(config, "decoder"), heads_of_layers(config, "cross")
    heads = [(own[place], own[place], cross[place], cross[place]) for place in model.model.decoder.layer_order]
    kept = model.model.decoder.embed_positions.kept_features
    widths: list[int] = [layer.d_k + kept, layer.d_v, layer.d_k, layer.d_v]  # type: ignore[list-item, operator]
    # One tensor used several times would become one input.
    cached = [[torch.zeros(2, count, 3, width) for count, width in zip(counts, widths)] for counts in heads]
    cached_dims = [{0: batch, 2: length} for length in (past, past, source, source)]
    ids_dims, mask_dims = {0: batch, 1: target}, {0: batch, 1: source}
    return {
        ENCODER: (
            EncoderStep(model),
            {"input_ids": ids, "attention_mask": mask},
            {"input_ids": mask_dims, "attention_mask": mask_dims},
        ),
        FIRST_STEP: (
            FirstDecoderStep(model),
            {"input_ids": ids, "encoder_attention_mask": mask, "encoder_hidden_states": memory},
            {"input_ids": ids_dims, "encoder_attention_mask": mask_dims, "encoder_hidden_states": mask_dims},
        ),
        NEXT_STEP: (
            NextDecoderStep(model),
            {"input_ids": ids, "encoder_attention_mask": mask, "past_key_values": cached},
            {
                "input_ids": ids_dims,
                "encoder_attention_mask": mask_dims,
                "past_key_values": [cached_dims] * config.decoder_layers,
            },
        ),
    }


def trace(model: VanillaTransformerForConditionalGeneration) -> dict[str, tuple[ExportedProgram, dict]]:
    """Each step as a program of `torch.export`, for every batch and length, and its dimensions' names."""
    chosen = model.config._attn_implementation
    # With eager attention a graph is smaller, and faster on CPUs, than with torch's decomposed fused attention.
    model.set_attn_implementation("eager")
    try:
        programs = {}
        for name, (step, inputs, dimensions) in examples(model).items():
            program = torch.export.export(step, (), inputs, dynamic_shapes=dimensions)
            for node in program.graph.nodes:
                node.meta.pop("stack_trace", None)  # contains folders of this machine
            programs[name] = program, dimensions
        return programs
    finally:
        model.set_attn_implementation(chosen)


class StepwiseEncoder(nn.Module):
    """The encoder that `generate()` calls."""

    main_input_name = "input_ids"

    def __init__(self, run: Callable[..., torch.Tensor]):
        super().__init__()
        self.run = run

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutput:
        """Source ids and mask (B, S) to the encoder's output (B, S, D); without a mask, all are read."""
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return BaseModelOutput(last_hidden_state=self.run(input_ids=input_ids, attention_mask=attention_mask))


class StepwiseModel(VanillaTransformerPreTrainedModel, GenerationMixin):
    """transformers' `generate()` around three functions, computed by any engine; it has no weights of its own."""

    # They take and give the tensors of `EncoderStep`, `FirstDecoderStep` and `NextDecoderStep`.

    def __init__(
        self,
        config: VanillaTransformerConfig,
        generation_config: GenerationConfig,
        encode: Callable[..., torch.Tensor],
        first_step: Callable[..., tuple[torch.Tensor, Past]],
        next_step: Callable[..., tuple[torch.Tensor, Past]],
    ):
        super().__init__(config)
        self.generation_config = generation_config
        self.encoder = StepwiseEncoder(encode)
        self.first_step, self.next_step = first_step, next_step

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.encoder

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Target ids (B, T) behind what is in the cache to their logits (B, T, V), and the cache."""
        # The source is ids (B, S), or the encoder's output.
        cache = given_cache(self, cache, past_key_values, kwargs)
        if encoder_outputs is None:
            if attention_mask is None:
                attention_mask = torch.ones_like(input_ids)  # type: ignore[arg-type]
            encoder_outputs = self.encoder(input_ids, attention_mask)
        memory = encoder_outputs[0]
        if attention_mask is None:
            attention_mask = torch.ones(memory.shape[:2], dtype=torch.long)
        inputs = {"input_ids": decoder_input_ids, "encoder_attention_mask": attention_mask}
        if cache is None or cache.get_seq_length() == 0:
            logits, present = self.first_step(**inputs, encoder_hidden_states=memory)
        else:
            past = tensors_of(cache)
            logits, grown = self.next_step(**inputs, past_key_values=past)
            present = [[*new, *old[2:]] for new, old in zip(grown, past)]
        grown_cache = cache_of(present, len(present))
        return Seq2SeqLMOutput(logits=logits, encoder_last_hidden_state=memory, **named(grown_cache))


@torch.no_grad()
def logits_by_steps(model: StepwiseModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits (B, T, V) of a batch, with two target ids in the first step and one in each step after it."""
    source, mask, target = batch["input_ids"], batch["attention_mask"], batch["decoder_input_ids"]
    outputs = model(source, mask, target[:, :2])
    memory = (outputs.encoder_last_hidden_state,)
    logits = [outputs.logits]
    for ids in target[:, 2:].unbind(dim=1):
        outputs = model(None, mask, ids[:, None], encoder_outputs=memory, cache=getattr(outputs, CACHE))
        logits.append(outputs.logits)
    return torch.cat(logits, dim=1)
