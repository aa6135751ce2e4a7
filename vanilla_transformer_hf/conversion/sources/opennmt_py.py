"""
OpenNMT-py 3.x (OpenNMT/OpenNMT-py): `*_step_N.pt` with weights, options and vocabularies. The weights may be beside it
instead, in `*_step_N.safetensors` or `*_step_N.*.safetensors`.

From onmt/opts.py, model_builder.py, models/model_saver.py (old names), encoders and decoders/transformer.py,
modules/{embeddings,multi_headed_attn,position_ffn}.py, inputters/text_utils.py and translate/ of 3.5.
"""

import glob
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..formats.safe_load import SafetensorsFiles, load_torch, plain
from ..key_table import Rule, not_expressed, unchanged, written_out, wrong_types
from ..source import ConversionError, both_stacks
from .opennmt_common import ATTENTION, POSITION_ENCODINGS, OpenNMT, repeated


# Options that our model supports with their defaults alone.
FIXED: dict[str, Any] = {
    "model_task": "seq2seq",
    "layer_norm": "standard",
    "max_relative_positions": 0,
    "relative_positions_buckets": 0,
    "sliding_window": 0,
    "parallel_residual": False,
    "num_experts": 0,
    "copy_attn": False,
    "n_src_feats": 0,
    "lora_layers": [],
    "lora_embedding": False,
    "quant_layers": [],
}

# opts.model_opts and the training options that a model keeps.
OPTIONS: dict[str, Any] = {
    "encoder_type": "rnn",
    "decoder_type": "rnn",
    "layers": -1,  # -1: enc_layers and dec_layers, and so on
    "enc_layers": 2,
    "dec_layers": 2,
    "hidden_size": -1,
    "enc_hid_size": 500,
    "dec_hid_size": 500,
    "word_vec_size": -1,
    "src_word_vec_size": 500,
    "tgt_word_vec_size": 500,
    "transformer_ff": 2048,
    "heads": 8,
    "pos_ffn_activation_fn": "relu",
    "norm_eps": 1e-6,
    "add_qkvbias": False,
    "add_ffnbias": False,
    "position_encoding": False,
    "position_encoding_type": "SinusoidalInterleaved",
    "share_embeddings": False,
    "share_decoder_embeddings": False,
    "dropout": [0.3],
    "attention_dropout": [0.1],
    "label_smoothing": 0.0,
    "self_attn_type": "scaled-dot-flash",
    "data": {},
    "transforms": [],
    "src_subword_model": None,
    "tgt_subword_model": None,
    "src_subword_vocab": "",
    "src_lang": "",
    "tgt_lang": "",
    **FIXED,
}

# Option -> its values that our model supports.
EXPRESSED: dict[str, tuple] = {
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "pos_ffn_activation_fn": ("relu", "gelu", "silu", "gated-gelu"),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat"),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    **{name: (value,) for name, value in FIXED.items()},
}


# position_ffn.PositionwiseFeedForward: kind of feed-forward and activation
FEED_FORWARDS: dict[str, tuple[Any, str]] = {
    "relu": ("dense", "relu"),
    "gelu": ("dense", "gelu"),
    "silu": ("gated", "silu"),
    "gated-gelu": ("gated", "gelu"),
}


def all_heads(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """Keys or values, which may have fewer heads than queries (`num_kv`)."""
    heads = config.encoder_attention_heads
    return repeated(tensor, heads, config.d_model // heads)


# a_2 and b_2 are the names in the norms of old releases.
_KINDS = "{weight,bias,a_2,b_2}", "{weight,bias,weight,bias}"
_ATTENTIONS = (("encoder", "self", "self"), ("decoder", "self", "self"), ("decoder", "context", "encoder"))
_LAYERS = {"encoder": "encoder.transformer.{}", "decoder": "decoder.transformer_layers.{}"}

KEYS = written_out(
    {
        **{
            f"{_LAYERS[stack]}.{theirs}_attn.{name}.{{weight,bias}}": Rule(
                f"model.{stack}.layers.{{}}.{ours}_attn.{target}.{{weight,bias}}",
                all_heads if target in ("k_proj", "v_proj") else unchanged,
            )
            for stack, theirs, ours in _ATTENTIONS
            for name, target in ATTENTION.items()
        },
        **{
            f"{_LAYERS[stack]}.{name}.{_KINDS[0]}": f"model.{stack}.layers.{{}}.{target}.{_KINDS[1]}"
            for stack, name, target in (
                ("encoder", "layer_norm", "self_attn_layer_norm"),
                ("decoder", "layer_norm_{1,2}", "{self,encoder}_attn_layer_norm"),
                *((stack, "feed_forward.w_{1,2,3}", "fc{1,2,3}") for stack in _LAYERS),
                *((stack, "feed_forward.layer_norm", "final_layer_norm") for stack in _LAYERS),
            )
        },
        f"{{encoder,decoder}}.layer_norm.{_KINDS[0]}": f"model.{{encoder,decoder}}.layer_norm.{_KINDS[1]}",
        "{encoder,decoder}.embeddings.make_embedding.emb_luts.0.weight": "model.{encoder,decoder}.embed_tokens.weight",
        "{encoder,decoder}.embeddings.make_embedding.pe.pe": None,  # sinusoids, which our model computes
        # "0." is from releases in which the generator was an nn.Sequential.
        "{generator,generator.0}.{weight,bias}": "{lm_head}.{weight,bias}",
    }
)


def _checkpoints(path: Path) -> list[Path]:
    """The file itself, or the checkpoints of a folder, the longest trained first."""
    if path.is_file():
        return [path.with_suffix(".pt")] if path.suffix in (".pt", ".safetensors") else []

    def step(file: Path) -> int:
        number = re.search(r"_step_(\d+)$", file.stem)
        return int(number[1]) if number else -1

    return sorted(path.glob("*.pt"), key=step, reverse=True)


class OpenNMTPy(OpenNMT):
    name = "opennmt_py"
    table = KEYS

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return any(re.search(r"_step_\d+$", file.stem) for file in _checkpoints(path))

    @classmethod
    def read(cls, path: Path, trust: bool = False) -> Self:
        found = _checkpoints(path)
        if not found or not found[0].is_file():
            raise ConversionError(f"{path} holds no *_step_*.pt of OpenNMT-py; options and vocabularies are in it")
        content = load_torch(found[0], trust)
        if not isinstance(content, dict) or "opt" not in content or not isinstance(content.get("vocab"), dict):
            raise ConversionError(
                f"{found[0]} is not a checkpoint of OpenNMT-py 3: it has no `opt` with a plain `vocab`"
            )
        files = [found[0]]
        if content.get("model") is not None:
            generator = content.get("generator") or {}
            tensors: Mapping[str, torch.Tensor] = {
                **content["model"],
                **{f"generator.{name}": tensor for name, tensor in generator.items()},
            }
        else:
            weights = sorted(found[0].parent.glob(f"{glob.escape(found[0].stem)}*.safetensors"))
            if not weights:
                raise ConversionError(
                    f"{found[0]} has no weights inside, and no {found[0].stem}.safetensors beside it"
                )
            tensors = SafetensorsFiles(weights)
            files += weights
        return cls(plain(content["opt"]), tensors, content["vocab"], found[0].parent, files)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The options with defaults, changed as by parse.update_model_opts and model_saver.load_checkpoint."""
        options = {**OPTIONS, **self.options}
        for name, others in (
            ("layers", ("enc_layers", "dec_layers")),
            ("hidden_size", ("enc_hid_size", "dec_hid_size")),
            ("word_vec_size", ("src_word_vec_size", "tgt_word_vec_size")),
        ):
            if options[name] > 0:
                options |= dict.fromkeys(others, options[name])
        if any(name.endswith("w_1.bias") for name in self.tensors):
            options["add_ffnbias"] = True
        return options

    def unsupported(self) -> list[str]:
        if problems := wrong_types(self.options, {**OPTIONS, "dropout": None, "attention_dropout": None}):
            return problems
        options = self.settings
        problems = not_expressed(options, EXPRESSED)
        sizes = [options[name] for name in ("enc_hid_size", "dec_hid_size", "src_word_vec_size", "tgt_word_vec_size")]
        if len(set(sizes)) > 1:
            problems.append(
                f"enc_hid_size, dec_hid_size, src_word_vec_size, tgt_word_vec_size: {sizes} (supported: equal)"
            )
        if self.vocabulary.get("src_feats"):
            problems.append("src_feats: a vocabulary of word features (supported: words alone)")
        return problems + self.vocabulary_problems()

    def to_config(self) -> VanillaTransformerConfig:
        options = self.settings
        positions = options["position_encoding"]
        feed_forward, activation = FEED_FORWARDS[options["pos_ffn_activation_fn"]]
        return VanillaTransformerConfig(
            **self.common_fields(options),
            d_model=options["dec_hid_size"],
            encoder_layers=options["enc_layers"],
            decoder_layers=options["dec_layers"],
            **both_stacks(attention_heads=options["heads"], ffn_dim=options["transformer_ff"], norm_position="pre"),
            feed_forward_type=feed_forward,
            activation_function=activation,
            scale_embedding=positions,  # scaling happens where positions are added: without positions there is none
            position_encoding=POSITION_ENCODINGS[options["position_encoding_type"]] if positions else "none",
            layer_norm_eps=options["norm_eps"],
            attention_bias=options["add_qkvbias"],
            feed_forward_bias=options["add_ffnbias"],
            output_bias=True,
        )

    @property
    def subwords(self) -> dict[str, dict[str, str]]:
        names = [name for name in self.transforms if name in ("sentencepiece", "bpe")]
        shared = self.settings["src_subword_model"]
        files = {side: self.settings[f"{side}_subword_model"] or shared for side in ("src", "tgt")}
        return {side: dict.fromkeys(names, file) if file else {} for side, file in files.items()}
