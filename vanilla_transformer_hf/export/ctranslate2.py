"""
CTranslate2, an inference engine in C++: its converter for transformers' models is extended to read ours.

Importing this module adds our config to that converter's table, and `import vanilla_transformer_hf` imports this
module as soon as the converter is imported: `ctranslate2.converters.TransformersConverter(folder)` then supports our
models. `python -m vanilla_transformer_hf.export.ctranslate2` is its command, `ct2-transformers-converter`, with that
entry.

Its differences from our model: positions are a table, so that sinusoids have a longest sequence; queries, keys and
values of a head have one width, so that narrower ones are padded with zeros; all norms have one ε.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
import torch.nn.functional as F
from ctranslate2.converters import transformers as converter
from ctranslate2.converters import utils
from ctranslate2.specs import common_spec, model_spec, transformer_spec

from ..model.config.stacks import HEAD_FIELDS, StackSizes
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerStack,
)
from . import ExportError
from .comparison import Comparison
from .ctranslate2_options import search_options


# Activation functions of transformers -> those of CTranslate2.
ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    **dict.fromkeys(("gelu", "gelu_python"), common_spec.Activation.GELU),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), common_spec.Activation.GELUTanh),
    "quick_gelu": common_spec.Activation.GELUSigmoid,
    **dict.fromkeys(("silu", "swish"), common_spec.Activation.SWISH),
    "tanh": common_spec.Activation.Tanh,
    "sigmoid": common_spec.Activation.Sigmoid,
}

# Arguments of `translate_batch`, beside what it reads itself.
SEARCH_FILE = "translate_batch.json"

# Encodings with a table of vectors that is added to the embeddings.
TABLES = ("sinusoidal", "sinusoidal_halves", "sinusoidal_halves_inclusive", "learned", "none")
# Encodings that act in self-attention -> settings of the specification.
RELATIVE: dict[str, dict[str, bool]] = {
    "rotary": {"rotary_interleave": True},
    "rotary_halves": {"rotary_interleave": False},
    "shaw": {"relative_position": True},
    "t5_bias": {"relative_attention_bias": True},
    "alibi": {"alibi": True},
}
# Field -> the supported position encodings: ALiBi only for keys before a query.
POSITIONS = {
    "position_encoding": (*TABLES, *(name for name in RELATIVE if name != "alibi")),
    "decoder_position_encoding": (*TABLES, *RELATIVE),
}
NORMS = ("layer_norm", "rms_norm")
# Fields that must have a certain value, and that value.
FIXED: dict[str, Any] = {"encoder_residual_alpha": 1.0, "decoder_residual_alpha": 1.0, "type_vocab_size": 0}
FIXED |= dict.fromkeys(HEAD_FIELDS.values())
FIXED |= dict.fromkeys(("encoder_attention_type", "decoder_attention_type", "cross_attention_type"), "full")
FIXED |= {"encoder_pooling": None, "front_end": "tokens"}


def problems(config: VanillaTransformerConfig) -> list[str]:
    """A line for each field that cannot be expressed."""
    found = [
        f"{name}={getattr(config, name)!r}: must be {value!r}"
        for name, value in FIXED.items()
        if getattr(config, name) != value
    ]
    for name in ("activation_function", "decoder_activation_function"):
        if (value := getattr(config, name)) not in ACTIVATIONS:
            found.append(f"{name}={value!r}: must be one of {', '.join(ACTIVATIONS)}")
    for name, allowed in {**POSITIONS, "norm_type": NORMS}.items():
        if (value := getattr(config, name)) not in allowed:
            found.append(f"{name}={value!r}: must be one of {', '.join(allowed)}")
    if config.attention_score == "additive":
        found.append("attention_score='additive': must be 'scaled_dot' or 'dot'")
    if config.feed_forward_sharing == "encoder_only":  # its layers have feed-forwards
        found.append("feed_forward_sharing='encoder_only': must be 'none', 'stack' or 'all'")
    if not isinstance(config.eos_token_id, int):
        found.append(f"eos_token_id={config.eos_token_id!r}: must be one id")
    return found


def pieces(vocabulary: dict[str, int], size: int) -> list[str]:
    """The tokens of a vocabulary in the order of their ids; unused ids up to `size` get a name."""
    names = {index: piece for piece, index in vocabulary.items()}
    return [names.get(index, f"<unused {index}>") for index in range(size)]


@converter.register_loader("VanillaTransformerConfig")
class VanillaTransformerLoader(converter.ModelLoader):
    """Our model as a specification of CTranslate2."""

    architecture_name = "AutoModelForSeq2SeqLM"  # type: ignore[assignment]  # found by name in transformers

    def get_model_spec(self, model: VanillaTransformerForConditionalGeneration) -> transformer_spec.TransformerSpec:
        """The specification with all weights, or `ValueError`: fields that cannot be expressed."""
        if found := problems(model.config):
            utils.raise_unsupported(found)
        stacks = {}
        kinds = {
            "encoder": transformer_spec.TransformerEncoderSpec,
            "decoder": transformer_spec.TransformerDecoderSpec,
        }
        for side, kind in kinds.items():
            stacks[side] = self.spec_of_stack(
                model.config, StackSizes(model.config, side), kind, getattr(model.model, side)
            )
        self.set_linear(stacks["decoder"].projection, model.lm_head)
        return transformer_spec.TransformerSpec(stacks["encoder"], stacks["decoder"])

    def spec_of_stack(
        self, config: VanillaTransformerConfig, sizes: StackSizes, kind: type, stack: VanillaTransformerStack
    ) -> Any:
        """The specification of one stack, with its weights."""
        heads, scheme = sizes.heads, stack.embed_positions
        more: dict[str, Any] = {**RELATIVE.get(sizes.position_encoding, {})}
        if "rotary_interleave" in more:
            more |= {"rotary_dim": scheme.turned, "rotary_base": config.rotary_base}
        if sizes.is_causal:
            more["alignment_heads"] = heads  # whose mean is returned as attention
        spec = kind(
            len(sizes.layer_order),
            heads,
            # With this, the specification has a final norm, also after layers with their own.
            pre_norm=sizes.final_norm,
            activation=ACTIVATIONS[sizes.activation_function],
            layernorm_embedding=config.layernorm_embedding,
            ffn_glu=config.feed_forward_type == "gated",
            rms_norm=config.norm_type == "rms_norm",
            head_dim=max(config.d_k or sizes.width // heads, config.d_v or sizes.width // heads),
            **more,
        )
        spec.pre_norm = sizes.norm_position == "pre"
        self.set_embeddings(spec.embeddings if sizes.is_causal else spec.embeddings[0], stack.embed_tokens)
        spec.scale_embeddings = stack.embed_scale
        if sizes.position_encoding in TABLES:
            nothing, places = torch.zeros(1, sizes.longest, sizes.width), torch.arange(sizes.longest)[None]
            spec.position_encodings.encodings = scheme(nothing, places)[0]
        elif hasattr(spec, "position_encodings"):  # which it makes for an encoder with rotary encodings
            del spec.position_encodings
        if config.layernorm_embedding:
            self.set_layer_norm(spec.layernorm_embedding, stack.layernorm_embedding)
        if hasattr(spec, "layer_norm"):
            self.set_layer_norm(spec.layer_norm, stack.layer_norm)
        for number, (layer_spec, layer) in enumerate(zip(spec.layer, stack.layers_in_order)):
            self.fill_layer(layer_spec, layer)
            # The position scheme's trained tables of the layer.
            own = layer_spec.self_attention
            if hasattr(own, "relative_position_keys"):
                width, place = max(layer.self_attn.d_k, layer.self_attn.d_v), scheme.order[number]
                tables = scheme.keys[place], scheme.values[place]
                padded = [F.pad(table, (0, width - table.shape[-1])) for table in tables]
                own.relative_position_keys, own.relative_position_values = padded
            if hasattr(own, "relative_attention_bias"):
                own.relative_attention_bias = scheme.weight
                own.relative_attention_max_distance = np.dtype("int32").type(scheme.longest_distance)
        return spec

    def set_layer_norm(self, spec: Any, module: Any):
        spec.gamma = module.weight
        if hasattr(spec, "beta"):
            spec.beta = module.bias

    def fill_layer(self, spec: Any, layer: Any):
        """Attention and feed-forward of one layer, each with its norm."""
        self.fill_attention(spec.self_attention, layer.self_attn, parts=[3])
        self.set_layer_norm(spec.self_attention.layer_norm, layer.self_attn_layer_norm)
        if hasattr(spec, "attention"):
            self.fill_attention(spec.attention, layer.encoder_attn, parts=[1, 2])
            self.set_layer_norm(spec.attention.layer_norm, layer.encoder_attn_layer_norm)
        self.set_linear(spec.ffn.linear_0, layer.owner.fc1)
        if hasattr(spec.ffn, "linear_0_noact"):
            self.set_linear(spec.ffn.linear_0_noact, layer.owner.fc3)
        self.set_linear(spec.ffn.linear_1, layer.owner.fc2)
        self.set_layer_norm(spec.ffn.layer_norm, layer.final_layer_norm)

    def fill_attention(self, spec: Any, attention: VanillaTransformerAttention, parts: list[int]):
        """Projections of one attention; `parts` is how many of queries, keys and values stand in one matrix."""
        width = max(attention.d_k, attention.d_v)
        inputs = []
        for name, own_width in attention.roles:
            projection, missing = getattr(attention.owner, name), width - own_width
            linear = common_spec.LinearSpec()
            heads = projection.weight.unflatten(0, (-1, own_width))  # (H, d_k or d_v, D)
            linear.weight = F.pad(heads, (0, 0, 0, missing)).flatten(0, 1)  # (H width, D)
            if projection.bias is not None:
                linear.bias = F.pad(projection.bias.unflatten(0, (-1, own_width)), (0, missing)).flatten()
            inputs.append(linear)
        for linear, count in zip(spec.linear, parts):
            utils.fuse_linear(linear, inputs[:count])
            inputs = inputs[count:]
        output = spec.linear[-1]
        self.set_linear(output, attention.owner.out_proj)
        heads = attention.owner.out_proj.weight.unflatten(1, (-1, attention.d_v))  # (D, H, d_v)
        output.weight = F.pad(heads, (0, width - attention.d_v)).flatten(1)  # (D, H width)
        spec.queries_scale = attention.scaling

    def get_vocabulary(
        self, model: VanillaTransformerForConditionalGeneration, tokenizer: Any
    ) -> tuple[list[str], list[str]]:
        """Tokens of the source and of the target vocabulary."""
        config = model.config
        source = pieces(tokenizer.source_backend_tokenizer.get_vocab(), config.source_vocab_size or config.vocab_size)
        return source, pieces(tokenizer.get_vocab(), config.vocab_size)

    def set_vocabulary(self, spec: Any, tokens: tuple[list[str], list[str]]):
        """Both vocabularies; they are saved as one where they are the same."""
        source, target = tokens
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)

    def set_config(self, config: Any, model: Any, tokenizer: Any):
        """Special tokens: the tokenizer ends a source itself, and the decoder starts with a token of the config."""
        _, names = self.get_vocabulary(model, tokenizer)
        config.eos_token = names[model.config.eos_token_id]
        config.unk_token = tokenizer.unk_token or names[model.config.pad_token_id]
        config.bos_token = tokenizer.bos_token or config.eos_token
        config.decoder_start_token = names[model.config.decoder_start_token_id]
        config.layer_norm_epsilon = model.config.layer_norm_eps


def save(spec: transformer_spec.TransformerSpec, folder: Path, quantization: str | None = None):
    """Write a specification, which cannot be used afterwards."""
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def write(
    model: VanillaTransformerForConditionalGeneration,
    tokenizer: Any,
    folder: Path,
    comparison: Comparison,
    quantization: str | None = None,
    vmap: str | None = None,
    write_beside: Callable[[Any, Any, Path], None] | None = None,
) -> tuple[float, list[str]]:
    """Write the model into `folder`, and compare."""
    # `quantization` and `vmap` are those of CTranslate2's converters: a type of weights, and a file of the target
    # tokens that may follow from source tokens. `SEARCH_FILE` has the arguments for `translate_batch`.
    # `write_beside` writes more about the model and the tokenizer into the folder.
    if quantization not in (None, *model_spec.ACCEPTED_MODEL_TYPES):
        raise ExportError(
            f"quantization={quantization!r}: must be one of {', '.join(model_spec.ACCEPTED_MODEL_TYPES)}"
        )
    if tokenizer is None:
        raise ExportError(
            "the folder has no tokenizer: CTranslate2 needs one, because it takes and gives tokens as text, not ids"
        )
    if vmap is not None and not Path(vmap).is_file():
        raise ExportError(f"{vmap} is not a file: expected lines of source tokens, a tab, and target tokens")
    for name in ("eos_token_id", "decoder_start_token_id"):
        value, expected = getattr(model.generation_config, name), getattr(model.config, name)
        if value not in (None, expected, [expected]):
            raise ExportError(f"{name}={value!r} of the generation config: must be {expected!r}, as in the config")
    vocabularies = VanillaTransformerLoader().get_vocabulary(model, tokenizer)
    # Compared before quantization, which changes the logits.
    with tempfile.TemporaryDirectory(dir=folder) as exact:
        save(VanillaTransformerLoader()(model, tokenizer), Path(exact))
        difference = comparison.check(Forced(Path(exact), vocabularies))
    spec = VanillaTransformerLoader()(model, tokenizer)
    if vmap is not None:
        spec.register_vocabulary_mapping(vmap)
    save(spec, folder, quantization)
    if write_beside is not None:
        write_beside(model, tokenizer, folder)
    options, left = search_options(model.generation_config.to_diff_dict(), vocabularies[1])
    if vmap is not None:
        options["use_vmap"] = True
    longest = model.config.decoder_max_position_embeddings
    has_positions = model.config.decoder_position_encoding in TABLES[:-1]
    # It has vectors for this many positions, and fails after them.
    if has_positions and options["max_decoding_length"] > longest:
        if model.generation_config.max_new_tokens is not None:
            left.append(f"max_new_tokens={model.generation_config.max_new_tokens}, of {longest} positions")
        options["max_decoding_length"] = longest
    (folder / SEARCH_FILE).write_text(json.dumps(options, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    notes = (
        [f"{SEARCH_FILE} has the model's search, which CTranslate2 cannot do with {', '.join(left)}"] if left else []
    )
    if quantization not in (None, "float32"):
        rounding = comparison.rounding(Forced(folder, vocabularies))
        notes.append(f"weights in {quantization} change logits by {rounding}")
    return difference, notes


class Forced:
    """Logits of given targets, from a folder of CTranslate2 and its vocabularies."""

    def __init__(self, folder: Path, vocabularies: tuple[list[str], list[str]]):
        self.engine = ctranslate2.Translator(str(folder), device="cpu")
        self.source, self.target = vocabularies

    def __call__(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """A batch as `random_batches` makes it to logits (B, T, V)."""
        rows = zip(batch["input_ids"], batch["attention_mask"], batch["decoder_input_ids"])
        logits = []
        for ids, mask, target in rows:
            source = [self.source[index] for index in ids[mask.bool()]]
            prefix = [self.target[index] for index in target[1:]]
            (result,) = self.engine.translate_batch(
                [source],
                [prefix],
                beam_size=1,
                max_decoding_length=len(target),
                min_decoding_length=0,
                max_input_length=0,
                return_logits_vocab=True,
            )
            logits.append(torch.from_numpy(np.array(result.logits[0])).flatten(1))
        return torch.stack(logits)


if __name__ == "__main__":
    converter.main()
