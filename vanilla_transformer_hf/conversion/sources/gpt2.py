"""
GPT-2 and GPT-1: folders that transformers saved, with or without the language-model head, with their tokenizers.

After transformers/models/{gpt2,openai}/{configuration,modeling,tokenization}_*.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, GPT2Tokenizer, OpenAIGPTTokenizer

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..key_table import KeyTable, Rule, filled, third, transposed, transposed_third, wrong_types
from ..source import Checkpoint, Source
from .saved_model import (
    architecture,
    generation_config,
    is_saved_model,
    of_one_stack,
    read_saved_model,
    tokenizer_of,
    toolkit_model,
)


# OpenAIGPTConfig and GPT2Config
GPT1_OPTIONS: dict[str, Any] = {
    "vocab_size": 40478,
    "n_positions": 512,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "afn": "gelu",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": True,
}
OPTIONS: dict[str, Any] = {
    **{name: value for name, value in GPT1_OPTIONS.items() if name != "afn"},
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_inner": None,  # then 4 n_embd
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
DEFAULTS = {"gpt2": OPTIONS, "openai-gpt": GPT1_OPTIONS}
# Options that change the computation -> the value that our attention supports. Upcasting changes nothing in float32.
NEEDED = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
# Activations by GPT-1's names.
GPT1_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}

# Class of transformers -> ours
CLASSES = {
    "GPT2LMHeadModel": "VanillaTransformerForCausalLM",
    "GPT2Model": "VanillaTransformerDecoderModel",
    "OpenAIGPTLMHeadModel": "VanillaTransformerForCausalLM",
    "OpenAIGPTModel": "VanillaTransformerDecoderModel",
}

DECODER: dict[str, Any] = {
    "wte.weight": "embed_tokens.weight",
    "wpe.weight": "embed_positions.weight",
    "tokens_embed.weight": "embed_tokens.weight",
    "positions_embed.weight": "embed_positions.weight",
    "position_ids": None,  # a buffer of position numbers, not trained
    "h.{}.attn.bias": None,  # the causal mask, which is a buffer
    "h.{}.attn.masked_bias": None,
    "h.{}.attn.c_attn.weight": [
        Rule(f"layers.{{}}.self_attn.{name}_proj.weight", transposed_third(number))
        for number, name in enumerate("qkv")
    ],
    "h.{}.attn.c_attn.bias": [
        Rule(f"layers.{{}}.self_attn.{name}_proj.bias", third(number)) for number, name in enumerate("qkv")
    ],
    **{
        f"h.{{}}.{theirs}.{part}": Rule(f"layers.{{}}.{ours}.{part}", *([transposed] if part == "weight" else []))
        for theirs, ours in {"attn.c_proj": "self_attn.out_proj", "mlp.c_fc": "fc1", "mlp.c_proj": "fc2"}.items()
        for part in ("weight", "bias")
    },
    **{
        f"h.{{}}.{theirs}.{part}": f"layers.{{}}.{ours}.{part}"
        for theirs, ours in {"ln_1": "self_attn_layer_norm", "ln_2": "final_layer_norm"}.items()
        for part in ("weight", "bias")
    },
    **{f"ln_f.{part}": f"layer_norm.{part}" for part in ("weight", "bias")},
}


def _under(prefix: str, row: Any) -> Any:
    """A row of the table with a prefix before its targets."""
    if isinstance(row, list):
        return [_under(prefix, rule) for rule in row]
    if isinstance(row, Rule):
        return Rule(prefix + row.target, row.transform)
    return None if row is None else prefix + row


def keys(config: VanillaTransformerConfig, checkpoint: Checkpoint) -> KeyTable:
    """The table. Files of a language model may have the decoder's names with or without a prefix."""
    ours = "model.decoder." if "VanillaTransformerForCausalLM" in (config.architectures or []) else "decoder."
    table: dict[str, Any] = {}
    for name, row in DECODER.items():
        table[f"transformer.{name}"] = table[name] = _under(ours, row)
    return {**table, "lm_head.weight": "lm_head.weight"}


def recognises(path: Path) -> bool:
    """Whether config.json names this model type."""
    return is_saved_model(path, *DEFAULTS)


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: A file is missing or damaged, or config.json is another model's.
    """
    return read_saved_model(path, tuple(DEFAULTS), trust)


def _options(checkpoint: Checkpoint) -> Mapping[str, Any]:
    return {**DEFAULTS[checkpoint.options["model_type"]], **checkpoint.options}


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support."""
    kind = checkpoint.options["model_type"]
    given = filled({}, checkpoint.options)
    if problems := wrong_types(given, DEFAULTS[kind]):
        return problems
    options, problems = _options(checkpoint), architecture(checkpoint, CLASSES)
    for name, needed in NEEDED.items():
        if options.get(name, needed) != needed:
            problems.append(f"{name}={options[name]!r}: must be {needed!r}")
    if kind == "openai-gpt" and options["afn"] not in GPT1_ACTIVATIONS:
        problems.append(f"afn={options['afn']!r}: must be one of {', '.join(GPT1_ACTIVATIONS)}")
    return problems


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options describe: GPT-1 is post-norm, GPT-2 pre-norm with a final norm."""
    options = _options(checkpoint)
    is_first = options["model_type"] == "openai-gpt"
    norm = "post" if is_first else "pre"
    sizes = {
        "layers": options["n_layer"],
        "attention_heads": options["n_head"],
        "ffn_dim": options.get("n_inner") or 4 * options["n_embd"],
        "norm_position": norm,
    }
    eos = options["eos_token_id"]
    # Our config needs a padding token: if there is none, the end token is used, as is usual with GPT-2.
    pad = next((one for one in (options["pad_token_id"], eos) if isinstance(one, int)), 0)
    return of_one_stack(
        checkpoint,
        sizes,
        is_decoder=True,
        architectures=[CLASSES[options["architectures"][0]]],
        vocab_size=options["vocab_size"],
        d_model=options["n_embd"],
        activation_function=GPT1_ACTIVATIONS[options["afn"]] if is_first else options["activation_function"],
        dropout=options["resid_pdrop"],
        attention_dropout=options["attn_pdrop"],
        max_position_embeddings=options["n_positions"],
        layer_norm_eps=options["layer_norm_epsilon"],
        embedding_sharing="all" if options["tie_word_embeddings"] else "none",
        pad_token_id=pad,
        eos_token_id=eos,
        bos_token_id=options["bos_token_id"],
    )


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
    """Byte-level BPE of GPT-2 or the BPE of GPT-1; None where the folder has none."""
    host = GPT2Tokenizer if checkpoint.options["model_type"] == "gpt2" else OpenAIGPTTokenizer
    return tokenizer_of(checkpoint, host, ("vocab.json", "merges.txt"))


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """generation_config.json, or config.json."""
    return generation_config(checkpoint, DEFAULTS[checkpoint.options["model_type"]])


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """Notes about differences in training, and about the padding token."""
    options, notes = _options(checkpoint), []
    if options["embd_pdrop"] != options["resid_pdrop"]:
        notes.append(f"embd_pdrop={options['embd_pdrop']}: in training, dropout is resid_pdrop everywhere")
    if options["pad_token_id"] is None:
        notes.append("there is no padding token: the config has the end of text in its place")
    return notes


SOURCE = Source(
    options=OPTIONS,
    recognises=recognises,
    read=read,
    unsupported=unsupported,
    to_config=to_config,
    keys=keys,
    to_tokenizer=to_tokenizer,
    to_generation_config=to_generation_config,
    decoding_notes=decoding_notes,
    toolkit_model=lambda checkpoint: toolkit_model(checkpoint, DEFAULTS[checkpoint.options["model_type"]]),
)
