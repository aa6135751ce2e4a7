"""
eole (eole-nlp/eole), OpenNMT-py's successor: a folder with `config.json`, `vocab.json` and `model.*.safetensors`.

From eole/config/{models,inference}.py, models/{model,model_saver}.py, encoders and decoders/transformer.py,
modules/{embeddings,multi_headed_attn,transformer_mlp}.py and predict/ of 0.6.
"""

from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import torch

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..formats.files import read_json
from ..formats.safe_load import SafetensorsFiles
from ..key_table import KeyTable, Rule, Transform, by_width, not_expressed, unchanged, written_out, wrong_types
from ..source import ConversionError, by_stack
from .opennmt_common import ATTENTION, DECODING, SPECIAL_TOKENS, OpenNMT, repeated
from .opennmt_common import POSITION_ENCODINGS as SINUSOIDS


# Options that our model supports with their defaults alone.
STACK_FIXED: dict[str, Any] = {
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
    **STACK_FIXED,
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
    **{name: (value,) for name, value in STACK_FIXED.items()},
}

POSITION_ENCODINGS: dict[Any, Any] = {**SINUSOIDS, "Learned": "learned", None: "none"}

STACKS = ("encoder", "decoder")

_MAPS = {
    **{f"self_attn.{name}": f"self_attn.{target}" for name, target in ATTENTION.items()},
    **{f"context_attn.{name}": f"encoder_attn.{target}" for name, target in ATTENTION.items()},
    **{"mlp.gate_up_proj": "fc1", "mlp.up_proj": "fc3", "mlp.down_proj": "fc2"},
}
KEYS = written_out(
    {
        "{encoder,decoder}.layer_norm.{weight,bias}": "model.{encoder,decoder}.layer_norm.{weight,bias}",
        # attention_layer_norm and output_layer_norm: encoder_layer_style "postnorm"
        "encoder.transformer_layers.{}.{input_layernorm,attention_layer_norm}.{weight,bias}": (
            "model.encoder.layers.{}.{self_attn_layer_norm}.{weight,bias}"
        ),
        "encoder.transformer_layers.{}.{post_attention_layernorm,output_layer_norm}.{weight,bias}": (
            "model.encoder.layers.{}.{final_layer_norm}.{weight,bias}"
        ),
        "decoder.transformer_layers.{}.{input,precontext,post_attention}_layernorm.{weight,bias}": (
            "model.decoder.layers.{}.{self_attn,encoder_attn,final}_layer_norm.{weight,bias}"
        ),
        "{src_emb,tgt_emb}.pe.pe": None,  # the table of sinusoids, which our model computes
        "generator.{weight,bias}": "lm_head.{weight,bias}",
        "decoder.transformer_layers.{}.layer_scalar": None,  # a number that our layers do not use
    }
)


def all_heads(tensor: torch.Tensor, config: VanillaTransformerConfig, stack: str) -> torch.Tensor:
    """Keys or values, which may have fewer heads than queries (`heads_kv`)."""
    heads = getattr(config, f"{stack}_attention_heads")
    return repeated(tensor, heads, config.d_k or config.d_model // heads)


def zeros_for(tensor: torch.Tensor, config: VanillaTransformerConfig, transform: Transform) -> torch.Tensor:
    """Zeros as the bias of a map without one, from its matrix (out, in), if other maps have a bias."""
    return tensor.new_zeros(len(transform(tensor, config)))


def _weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("model.*.safetensors"))


def _is_gated(options: dict[str, Any]) -> bool:
    return options["mlp_activation_fn"].startswith("gated-")


class Eole(OpenNMT):
    name = "eole"

    def keys(self, config: VanillaTransformerConfig) -> KeyTable:
        """The table. Tied matrices are in the file once; the options determine which maps have a bias."""
        options = self.settings
        embeddings = ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
        # `normalize` multiplies learned positions by √d, together with the embeddings.
        positions = by_width(0.5) if options["normalize"] else unchanged
        table = KEYS | {
            "src_emb.embeddings.weight": [
                Rule(name) for name in embeddings[: 2 if options["share_embeddings"] else 1]
            ],
            "tgt_emb.embeddings.weight": [Rule(embeddings[1])],
            "src_emb.pe.weight": [Rule("model.encoder.embed_positions.weight", positions)],
            "tgt_emb.pe.weight": [Rule("model.decoder.embed_positions.weight", positions)],
        }
        for stack in STACKS:
            for name, target in _MAPS.items():
                theirs, ours = f"{stack}.transformer_layers.{{}}.{name}", f"model.{stack}.layers.{{}}.{target}"
                is_shared = target.endswith(("k_proj", "v_proj"))
                transform = partial(all_heads, stack=stack) if is_shared else unchanged
                table[f"{theirs}.weight"] = [Rule(f"{ours}.weight", transform)]
                if self._has_bias(stack, name):
                    table[f"{theirs}.bias"] = [Rule(f"{ours}.bias", transform)]
                elif config.feed_forward_bias if name.startswith("mlp") else config.attention_bias:
                    table[f"{theirs}.weight"].append(Rule(f"{ours}.bias", partial(zeros_for, transform=transform)))
        return table

    def _has_bias(self, stack: str, name: str) -> bool:
        """Whether a map of a layer has a bias: multi_headed_attn.py, transformer_mlp.py."""
        # If add_qkvbias is given for the whole model, the output projections of the decoder have a bias and those of
        # the encoder do not. The config does not record this; the names in the file show it.
        options = self._stack(stack)
        if name.startswith("mlp"):
            return options["add_ffnbias"]
        if name.endswith("linear_keys") and options["add_key_bias"] is not None:
            return options["add_key_bias"]
        if name.endswith("final_linear"):
            return f"{stack}.transformer_layers.0.{name}.bias" in self.tensors
        return options["add_qkvbias"]

    @classmethod
    def recognises(cls, path: Path) -> bool:
        folder = path if path.is_dir() else path.parent
        return (folder / "vocab.json").is_file() and bool(_weights(folder))

    @classmethod
    def read(cls, path: Path, trust: bool = False) -> Self:
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
        return cls(options, SafetensorsFiles(weights), pieces, folder, [settings, vocabulary, *weights])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Options of the whole model and of training, with defaults."""
        model = self.options["model"]
        training = self.options.get("training") or {}
        embeddings = model.get("embeddings") or {}
        types = {f"{stack}_type": (model.get(stack) or {}).get(f"{stack}_type") for stack in ("encoder", "decoder")}
        given = {
            **training,
            **model,
            **embeddings,
            **{name: value for name, value in types.items() if value is not None},
        }
        return {name: given.get(name, default) for name, default in OPTIONS.items()}

    def _stack(self, stack: str) -> dict[str, Any]:
        """Options of the encoder or the decoder: its own, else the model's, else the defaults."""
        model = self.options["model"]
        own = model.get(stack) or {}
        # -1 means "not given" for the sizes of the whole model.
        shared = {name: value for name, value in model.items() if value != -1}
        return {name: own.get(name, shared.get(name, default)) for name, default in STACK_OPTIONS.items()}

    @cached_property
    def specials(self) -> dict[str, str]:
        given = self.vocabulary.get("specials") or {}
        return {name: given.get(f"{name}_token", token) for name, token in SPECIAL_TOKENS.items()}

    def unsupported(self) -> list[str]:
        stacks = [stack for stack in ("encoder", "decoder") if not isinstance(self.options["model"].get(stack), dict)]
        if stacks:
            return [f"{stack}: not there (supported: an encoder with a decoder)" for stack in stacks]
        problems = wrong_types(self.settings, {**OPTIONS, "position_encoding_type": None})
        for stack in ("encoder", "decoder"):
            problems += wrong_types(self._stack(stack), STACK_OPTIONS, f"{stack}.")
        if problems:
            return problems
        problems = not_expressed(self.settings, EXPRESSED)
        for stack in STACKS:
            problems += not_expressed(self._stack(stack), STACK_EXPRESSED, f"{stack}.")
        both = [self._stack(stack) for stack in STACKS]
        for name in ("hidden_size", "norm_eps", "head_dim"):
            values = [options[name] for options in both]
            if values[0] != values[1]:
                problems.append(
                    f"{name}: {values[0]} in the encoder and {values[1]} in the decoder (supported: one value)"
                )
        if len({_is_gated(options) for options in both}) > 1:
            problems.append("mlp_activation_fn: gated in one stack only (supported: in both or none)")
        return problems + self.vocabulary_problems()

    def to_config(self) -> VanillaTransformerConfig:
        options, encoder, decoder = self.settings, self._stack("encoder"), self._stack("decoder")
        positions = options["position_encoding_type"]
        learned = positions == "Learned"
        biases = [self._has_bias(stack, f"self_attn.{name}") for stack in STACKS for name in ATTENTION]
        return VanillaTransformerConfig(
            **self.common_fields(options),
            d_model=decoder["hidden_size"],
            **by_stack(encoder, decoder, layers="layers", attention_heads="heads", ffn_dim="transformer_ff"),
            d_k=decoder["head_dim"],
            d_v=decoder["head_dim"],
            feed_forward_type="gated" if _is_gated(decoder) else "dense",
            activation_function=ACTIVATIONS[encoder["mlp_activation_fn"].removeprefix("gated-")],
            decoder_activation_function=ACTIVATIONS[decoder["mlp_activation_fn"].removeprefix("gated-")],
            # PositionalEncoding multiplies by √d where it adds sinusoids; elsewhere `normalize` does.
            scale_embedding=positions in SINUSOIDS or bool(options["normalize"]),
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
        )

    @property
    def subwords(self) -> dict[str, dict[str, str]]:
        settings = self.options.get("transforms_configs") or {}
        sides: dict[str, dict[str, str]] = {"src": {}, "tgt": {}}
        for name in self.transforms:
            own = settings.get(name) or {}
            for side, files in sides.items():
                file = own.get(f"{side}_subword_model") or own.get("src_subword_model")
                if name in ("sentencepiece", "bpe") and file:
                    files[name] = file
        return sides

    @property
    def decoding(self) -> dict[str, Any]:
        """DecodingConfig; a config may have a section `inference` with its own."""
        given = self.options.get("inference") or {}
        return {name: given.get(name, default) for name, default in (DECODING | {"max_length_ratio": 2}).items()}
