"""
eole (eole-nlp/eole), OpenNMT-py's successor: a folder with `config.json`, `vocab.json` and `model.*.safetensors`.

From eole/config/{models,inference}.py, models/{model,model_saver}.py, encoders and decoders/transformer.py,
modules/{embeddings,multi_headed_attn,transformer_mlp}.py and predict/ of 0.6.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats.files import read_json
from ..formats.safe_load import SafetensorsFiles
from ..key_table import KeyTable, Rule, Transform, unchanged, wrong_types
from ..source import Checkpoint, ConversionError, Source
from . import opennmt_common as common


# config.json holds the options that were given: those of a stack under encoder or decoder, or for both at the top
# level. The defaults of the others are here (TransformerConfig, EncoderConfig, DecoderConfig).
STACK_OPTIONS: dict[str, Any] = {
    "layers": 2,
    "hidden_size": 512,
    "transformer_ff": 2048,
    "heads": 8,
    "heads_kv": None,
    "head_dim": None,
    "mlp_activation_fn": "relu",
    "layer_norm": "standard",
    "norm_eps": 1e-5,
    "add_qkvbias": False,
    "add_key_bias": None,  # None: as add_qkvbias
    "add_ffnbias": False,
    "encoder_layer_style": "standard",
    "final_encoder_layer_norm": True,
    "attn_scaling": None,
    "sliding_window": 0,
    "relative_positions_buckets": 0,
    "parallel_residual": False,
    "ffn_layernorm": False,
    "query_norm": False,
    "key_norm": False,
    "value_norm": False,
    "q_gating": False,
    "num_experts": 0,
    "layer_types": None,
    "num_mtp_heads": 0,
}

OPTIONS: dict[str, Any] = {
    "architecture": "custom",
    "encoder_type": "transformer",
    "decoder_type": "transformer",
    # EmbeddingsConfig
    "embedding_type": "standard",
    "position_encoding_type": "SinusoidalInterleaved",
    "n_positions": None,
    "position_shift": 0,
    "normalize": False,
    # BaseModelConfig
    "share_embeddings": False,
    "share_decoder_embeddings": False,
    "generator_bias": True,
    "add_estimator": False,
    # TrainingConfig
    "dropout": [0.3],
    "attention_dropout": [0.1],
    "label_smoothing": 0.0,
    "quant_layers": [],
    "lora_layers": [],
    "lora_embedding": False,
}

# DecodingConfig; a config may have a section `inference` with its own.
DECODING = {
    "beam_size": 5,
    "length_penalty": "avg",
    "alpha": 1.0,
    "min_length": 0,
    "max_length": 250,
    "max_length_ratio": 2,
    "block_ngram_repeat": 0,
}

# constants.ACTIVATION_FUNCTIONS; "gated-" before a name is another kind of feed-forward.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu-tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}

# Option -> its values that our model supports.
EXPRESSED: dict[str, tuple] = {
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "embedding_type": ("standard",),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat", "Learned", None),
    "add_estimator": (False,),
    "quant_layers": ([],),
    "lora_layers": ([],),
    "lora_embedding": (False,),
}
STACK_EXPRESSED: dict[str, tuple] = {
    "mlp_activation_fn": (*ACTIVATIONS, *(f"gated-{name}" for name in ("gelu", "gelu-tanh", "silu"))),
    "layer_norm": ("standard", "standardFP32"),
    "encoder_layer_style": ("standard", "postnorm", "roberta"),
    "attn_scaling": (None,),
    "sliding_window": (0,),
    "relative_positions_buckets": (0,),
    "parallel_residual": (False,),
    "ffn_layernorm": (False,),
    "query_norm": (False,),
    "key_norm": (False,),
    "value_norm": (False,),
    "q_gating": (False,),
    "num_experts": (0,),
    "layer_types": (None,),
    "num_mtp_heads": (0,),
}

POSITION_ENCODINGS: dict[Any, Any] = {**common.POSITION_ENCODINGS, "Learned": "learned", None: "none"}

_LAYERS = {
    "encoder": {
        "input_layernorm": "self_attn_layer_norm",
        "post_attention_layernorm": "final_layer_norm",
        # encoder_layer_style "postnorm"
        "attention_layer_norm": "self_attn_layer_norm",
        "output_layer_norm": "final_layer_norm",
    },
    "decoder": {
        "input_layernorm": "self_attn_layer_norm",
        "precontext_layernorm": "encoder_attn_layer_norm",
        "post_attention_layernorm": "final_layer_norm",
    },
}
_MLP = {"gate_up_proj": "fc1", "up_proj": "fc3", "down_proj": "fc2"}
_ATTENTIONS = {
    "encoder": {"self_attn": "self_attn"},
    "decoder": {"self_attn": "self_attn", "context_attn": "encoder_attn"},
}


def _all_heads(stack: str) -> Transform:
    def all_heads(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
        """Keys or values, which may have fewer heads than queries (`heads_kv`)."""
        heads = getattr(config, f"{stack}_attention_heads")
        return common.repeated(tensor, heads, config.d_k or config.d_model // heads)

    return all_heads


def _no_bias(transform: Transform) -> Transform:
    def no_bias(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
        """Zeros as the bias of a map without one, from its matrix (out, in), if other maps have a bias."""
        return tensor.new_zeros(len(transform(tensor, config)))

    return no_bias


def scaled_positions(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """Learned positions, which `normalize` multiplies by √d together with the embeddings."""
    return tensor * config.d_model**0.5


def keys(config: VanillaTransformerConfig, checkpoint: Checkpoint) -> KeyTable:
    """The table. Tied matrices are in the file once; the options determine which maps have a bias."""
    options = _options(checkpoint)
    embeddings = ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
    positions = scaled_positions if options["normalize"] else unchanged
    table: dict[str, Any] = {
        "src_emb.embeddings.weight": embeddings if options["share_embeddings"] else embeddings[:1],
        "tgt_emb.embeddings.weight": embeddings[1],
        "src_emb.pe.pe": None,  # the table of sinusoids, which our model computes
        "tgt_emb.pe.pe": None,
        "src_emb.pe.weight": Rule("model.encoder.embed_positions.weight", positions),
        "tgt_emb.pe.weight": Rule("model.decoder.embed_positions.weight", positions),
        "generator.weight": "lm_head.weight",
        "generator.bias": "lm_head.bias",
        "decoder.transformer_layers.{}.layer_scalar": None,  # a number that our layers do not use
    }
    for stack, norms in _LAYERS.items():
        theirs, ours = f"{stack}.transformer_layers.{{}}", f"model.{stack}.layers.{{}}"
        for kind in ("weight", "bias"):
            table[f"{stack}.layer_norm.{kind}"] = f"model.{stack}.layer_norm.{kind}"
            table |= {f"{theirs}.{name}.{kind}": f"{ours}.{target}.{kind}" for name, target in norms.items()}
        for name, target in _maps(stack).items():
            transform = _all_heads(stack) if target.endswith(("k_proj", "v_proj")) else unchanged
            weight, bias = Rule(f"{ours}.{target}.weight", transform), Rule(f"{ours}.{target}.bias", transform)
            table[f"{theirs}.{name}.weight"] = [weight]
            if _has_bias(checkpoint, stack, name):
                table[f"{theirs}.{name}.bias"] = bias
            elif config.feed_forward_bias if name.startswith("mlp") else config.attention_bias:
                table[f"{theirs}.{name}.weight"].append(Rule(bias.target, _no_bias(transform)))
    return table


def _maps(stack: str) -> dict[str, str]:
    """The linear maps of a layer: eole's name -> ours."""
    attentions = {
        f"{theirs}.{name}": f"{ours}.{target}"
        for theirs, ours in _ATTENTIONS[stack].items()
        for name, target in common.ATTENTION.items()
    }
    return attentions | {f"mlp.{name}": target for name, target in _MLP.items()}


def _has_bias(checkpoint: Checkpoint, stack: str, name: str) -> bool:
    """
    Whether a map of a layer has a bias: multi_headed_attn.py, transformer_mlp.py.

    If add_qkvbias is given for the whole model, the output projections of the decoder have a bias and those of the
    encoder do not. The config does not record this; the names in the file show it.
    """
    options = _stack(checkpoint, stack)
    if name.startswith("mlp"):
        return options["add_ffnbias"]
    if name.endswith("linear_keys") and options["add_key_bias"] is not None:
        return options["add_key_bias"]
    if name.endswith("final_linear"):
        return f"{stack}.transformer_layers.0.{name}.bias" in checkpoint.tensors
    return options["add_qkvbias"]


def recognises(path: Path) -> bool:
    """Whether a folder, or a file's folder, looks like this source's, by its names."""
    folder = path if path.is_dir() else path.parent
    return (folder / "vocab.json").is_file() and bool(_weights(folder))


def _weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("model.*.safetensors"))


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: A file is missing, damaged, or not eole's.
    """
    folder = path if path.is_dir() else path.parent
    settings, vocabulary = folder / "config.json", folder / "vocab.json"
    weights = _weights(folder)
    for file in (settings, vocabulary):
        if not file.is_file():
            raise ConversionError(f"{file} is missing; eole leaves it beside the weights")
    if not weights:
        raise ConversionError(f"{folder} holds no model.*.safetensors")
    options, pieces = read_json(settings), read_json(vocabulary)
    if not isinstance(options.get("model"), dict) or not {"src", "tgt"} <= pieces.keys():
        raise ConversionError(
            f"{folder} is not a model of eole: `model` in config.json, or `src` and `tgt` in vocab.json"
        )
    return Checkpoint(options, SafetensorsFiles(weights), pieces, folder, [settings, vocabulary, *weights])


def _options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Options of the whole model and of training, with defaults."""
    model = checkpoint.options["model"]
    training = checkpoint.options.get("training") or {}
    embeddings = model.get("embeddings") or {}
    types = {f"{stack}_type": (model.get(stack) or {}).get(f"{stack}_type") for stack in ("encoder", "decoder")}
    given = {**training, **model, **embeddings, **{name: value for name, value in types.items() if value is not None}}
    return {name: given.get(name, default) for name, default in OPTIONS.items()}


def _stack(checkpoint: Checkpoint, stack: str) -> dict[str, Any]:
    """Options of the encoder or the decoder: its own, else the model's, else the defaults."""
    model = checkpoint.options["model"]
    own = model.get(stack) or {}
    # -1 means "not given" for the sizes of the whole model.
    shared = {name: value for name, value in model.items() if value != -1}
    return {name: own.get(name, shared.get(name, default)) for name, default in STACK_OPTIONS.items()}


def _specials(checkpoint: Checkpoint) -> dict[str, str]:
    given = checkpoint.vocabulary.get("specials") or {}
    return {name: given.get(f"{name}_token", token) for name, token in common.SPECIAL_TOKENS.items()}


def _is_gated(options: dict[str, Any]) -> bool:
    return options["mlp_activation_fn"].startswith("gated-")


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support."""
    stacks = [
        stack for stack in ("encoder", "decoder") if not isinstance(checkpoint.options["model"].get(stack), dict)
    ]
    if stacks:
        return [f"{stack}: not there (supported: an encoder with a decoder)" for stack in stacks]
    problems = wrong_types(_options(checkpoint), {**OPTIONS, "position_encoding_type": None})
    for stack in ("encoder", "decoder"):
        problems += wrong_types(_stack(checkpoint, stack), STACK_OPTIONS, f"{stack}.")
    if problems:
        return problems
    return _not_expressed(checkpoint) + common.vocabulary_problems(checkpoint.vocabulary, _specials(checkpoint))


def _not_expressed(checkpoint: Checkpoint) -> list[str]:
    options = _options(checkpoint)
    stacks = {stack: _stack(checkpoint, stack) for stack in ("encoder", "decoder")}
    problems = [
        f"{where}{name}: {values[name]!r} (supported: {', '.join(map(repr, expressed))})"
        for where, values, table in (
            ("", options, EXPRESSED),
            *((f"{stack}.", values, STACK_EXPRESSED) for stack, values in stacks.items()),
        )
        for name, expressed in table.items()
        if values[name] not in expressed
    ]
    for name in ("hidden_size", "norm_eps", "head_dim"):
        values = [options[name] for options in stacks.values()]
        if values[0] != values[1]:
            problems.append(
                f"{name}: {values[0]} in the encoder and {values[1]} in the decoder (supported: one value)"
            )
    if len({_is_gated(options) for options in stacks.values()}) > 1:
        problems.append("mlp_activation_fn: gated in one stack only (supported: in both or none)")
    return problems


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options describe."""
    options, vocabulary = _options(checkpoint), checkpoint.vocabulary
    encoder, decoder = _stack(checkpoint, "encoder"), _stack(checkpoint, "decoder")
    specials, target = _specials(checkpoint), vocabulary["tgt"]
    positions = options["position_encoding_type"]
    learned = positions == "Learned"
    sharing: Any = "decoder" if options["share_decoder_embeddings"] else "none"
    if sharing == "decoder" and options["share_embeddings"]:
        sharing = "all"
    biases = [_has_bias(checkpoint, stack, f"self_attn.{name}") for stack in _LAYERS for name in common.ATTENTION]
    return VanillaTransformerConfig(
        vocab_size=len(target),
        source_vocab_size=None if vocabulary["src"] == target else len(vocabulary["src"]),
        d_model=decoder["hidden_size"],
        encoder_layers=encoder["layers"],
        decoder_layers=decoder["layers"],
        encoder_attention_heads=encoder["heads"],
        decoder_attention_heads=decoder["heads"],
        encoder_ffn_dim=encoder["transformer_ff"],
        decoder_ffn_dim=decoder["transformer_ff"],
        d_k=decoder["head_dim"],
        d_v=decoder["head_dim"],
        dropout=next(iter(options["dropout"]), 0.0),
        attention_dropout=next(iter(options["attention_dropout"]), 0.0),
        activation_dropout=next(iter(options["dropout"]), 0.0),
        feed_forward_type="gated" if _is_gated(decoder) else "dense",
        activation_function=ACTIVATIONS[encoder["mlp_activation_fn"].removeprefix("gated-")],
        decoder_activation_function=ACTIVATIONS[decoder["mlp_activation_fn"].removeprefix("gated-")],
        # PositionalEncoding multiplies by √d where it adds sinusoids; elsewhere `normalize` does.
        scale_embedding=positions in common.POSITION_ENCODINGS or bool(options["normalize"]),
        embedding_sharing=sharing,
        position_encoding=POSITION_ENCODINGS[positions],
        position_offset=(options["position_shift"] or 0) if learned else 0,
        max_position_embeddings=options["n_positions"] - (options["position_shift"] or 0) if learned else 1024,
        encoder_norm_position="pre" if encoder["encoder_layer_style"] == "standard" else "post",
        decoder_norm_position="pre",
        encoder_final_norm=encoder["final_encoder_layer_norm"],
        layer_norm_eps=decoder["norm_eps"],
        attention_bias=any(biases),
        feed_forward_bias=encoder["add_ffnbias"] or decoder["add_ffnbias"],
        output_bias=options["generator_bias"],
        label_smoothing=options["label_smoothing"],
        pad_token_id=target.index(specials["pad"]),
        bos_token_id=common.id_of(target, specials["bos"]),
        eos_token_id=target.index(specials["eos"]),
        decoder_start_token_id=target.index(vocabulary.get("decoder_start_token", common.SPECIAL_TOKENS["bos"])),
    )


def _transforms(checkpoint: Checkpoint) -> list[str]:
    """The transforms of texts: of all corpora, or those of the first corpus that has its own."""
    data = checkpoint.options.get("data") or {}
    corpora = [corpus.get("transforms") for name, corpus in data.items() if name != "valid"]
    return next((names for names in (checkpoint.options.get("transforms"), *corpora) if names), [])


def _subwords(checkpoint: Checkpoint) -> dict[str, dict[str, str]]:
    """For each side, transform -> file of its subword model; src's where tgt has none of its own."""
    settings = checkpoint.options.get("transforms_configs") or {}
    sides: dict[str, dict[str, str]] = {"src": {}, "tgt": {}}
    for name in _transforms(checkpoint):
        own = settings.get(name) or {}
        for side, files in sides.items():
            file = own.get(f"{side}_subword_model") or own.get("src_subword_model")
            if name in ("sentencepiece", "bpe") and file:
                files[name] = file
    return sides


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer:
    """Tokenizer with the ids of the vocabularies, and the subword model where it lies beside the weights."""
    return common.tokenizer(checkpoint, _specials(checkpoint), _subwords(checkpoint))


def _decoding(checkpoint: Checkpoint) -> dict[str, Any]:
    given = checkpoint.options.get("inference") or {}
    return {name: given.get(name, default) for name, default in DECODING.items()}


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """The defaults of eole predict, or the config's section `inference`."""
    return common.generation_config(_decoding(checkpoint), config)


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """Steps of eole predict that `generate()` and the tokenizer do not perform."""
    notes = common.tokenization_notes(checkpoint, _transforms(checkpoint), _subwords(checkpoint))
    return notes + common.decoding_notes(_decoding(checkpoint))


def target_pieces(checkpoint: Checkpoint) -> list[str]:
    """The target vocabulary, in whose pieces the toolkit records its outputs."""
    return checkpoint.vocabulary["tgt"]


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
    target_pieces=target_pieces,
)
