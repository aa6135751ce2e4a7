"""
OpenNMT-py 3.x (OpenNMT/OpenNMT-py): `*_step_N.pt` with weights, options and vocabularies. The weights may be beside it
instead, in `*_step_N.safetensors` or `*_step_N.*.safetensors`.

From onmt/opts.py, model_builder.py, models/model_saver.py (old names), encoders and decoders/transformer.py,
modules/{embeddings,multi_headed_attn,position_ffn}.py, inputters/text_utils.py and translate/ of 3.5.
"""

import glob
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats.safe_load import SafetensorsFiles, load_torch, plain
from ..key_table import KeyTable, Rule, unchanged, wrong_types
from ..source import Checkpoint, ConversionError, Source
from . import opennmt_common as common


# opts.model_opts and the training options that a model keeps.
OPTIONS: dict[str, Any] = {
    "model_task": "seq2seq",
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
    "layer_norm": "standard",
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
    "data": {},
    "transforms": [],
    "src_subword_model": None,
    "tgt_subword_model": None,
    "src_subword_vocab": "",
    "src_lang": "",
    "tgt_lang": "",
}

# opts._add_decoding_opts: checkpoints do not contain them.
DECODING = {
    "beam_size": 5,
    "length_penalty": "avg",
    "alpha": 1.0,
    "min_length": 0,
    "max_length": 250,
    "max_length_ratio": 1.25,
    "block_ngram_repeat": 0,
}

# Option -> its values that our model supports.
EXPRESSED: dict[str, tuple] = {
    "model_task": ("seq2seq",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "pos_ffn_activation_fn": ("relu", "gelu", "silu", "gated-gelu"),
    "layer_norm": ("standard",),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat"),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "max_relative_positions": (0,),
    "relative_positions_buckets": (0,),
    "sliding_window": (0,),
    "parallel_residual": (False,),
    "num_experts": (0,),
    "copy_attn": (False,),
    "n_src_feats": (0,),
    "lora_layers": ([],),
    "lora_embedding": (False,),
    "quant_layers": ([],),
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
    return common.repeated(tensor, heads, config.d_model // heads)


_FEED_FORWARD = {"w_1": "fc1", "w_2": "fc2", "w_3": "fc3", "layer_norm": "final_layer_norm"}
_LAYERS = {
    "encoder.transformer.{}": {
        **{f"self_attn.{name}": f"self_attn.{target}" for name, target in common.ATTENTION.items()},
        "layer_norm": "self_attn_layer_norm",
    },
    "decoder.transformer_layers.{}": {
        **{f"self_attn.{name}": f"self_attn.{target}" for name, target in common.ATTENTION.items()},
        **{f"context_attn.{name}": f"encoder_attn.{target}" for name, target in common.ATTENTION.items()},
        "layer_norm_1": "self_attn_layer_norm",
        "layer_norm_2": "encoder_attn_layer_norm",
    },
}
# a_2 and b_2 are the names in the norms of old releases.
_KINDS = {"weight": "weight", "bias": "bias", "a_2": "weight", "b_2": "bias"}

KEYS: KeyTable = {
    **{
        f"{theirs}.{name}.{kind}": Rule(
            f"model.{theirs.split('.')[0]}.layers.{{}}.{target}.{ours}",
            all_heads if name.endswith(("linear_keys", "linear_values")) else unchanged,
        )
        for theirs, names in _LAYERS.items()
        for name, target in (
            names | {f"feed_forward.{name}": target for name, target in _FEED_FORWARD.items()}
        ).items()
        for kind, ours in _KINDS.items()
    },
    **{
        f"{stack}.{name}": target
        for stack in ("encoder", "decoder")
        for name, target in {
            "embeddings.make_embedding.emb_luts.0.weight": f"model.{stack}.embed_tokens.weight",
            "embeddings.make_embedding.pe.pe": None,  # the table of sinusoids, which our model computes
            **{f"layer_norm.{kind}": f"model.{stack}.layer_norm.{ours}" for kind, ours in _KINDS.items()},
        }.items()
    },
    # "0." is from releases in which the generator was an nn.Sequential.
    **{f"generator.{place}{kind}": f"lm_head.{kind}" for place in ("", "0.") for kind in ("weight", "bias")},
}


def recognises(path: Path) -> bool:
    """Whether a file or folder looks like this source's, by its names."""
    return any(re.search(r"_step_\d+$", file.stem) for file in _checkpoints(path))


def _checkpoints(path: Path) -> list[Path]:
    """The file itself, or the checkpoints of a folder, the longest trained first."""
    if path.is_file():
        return [path.with_suffix(".pt")] if path.suffix in (".pt", ".safetensors") else []
    return sorted(path.glob("*.pt"), key=_step, reverse=True)


def _step(path: Path) -> int:
    number = re.search(r"_step_(\d+)$", path.stem)
    return int(number[1]) if number else -1


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: The checkpoint is missing, cannot be read safely, or is not one of OpenNMT-py 3's.
    """
    found = _checkpoints(path)
    if not found or not found[0].is_file():
        raise ConversionError(f"{path} holds no *_step_*.pt of OpenNMT-py; options and vocabularies are in it")
    content = load_torch(found[0], trust)
    if not isinstance(content, dict) or "opt" not in content or not isinstance(content.get("vocab"), dict):
        raise ConversionError(f"{found[0]} is not a checkpoint of OpenNMT-py 3: it has no `opt` with a plain `vocab`")
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
            raise ConversionError(f"{found[0]} has no weights inside, and no {found[0].stem}.safetensors beside it")
        tensors = SafetensorsFiles(weights)
        files += weights
    return Checkpoint(plain(content["opt"]), tensors, content["vocab"], found[0].parent, files)


def _options(checkpoint: Checkpoint) -> dict[str, Any]:
    """The options with defaults, changed as by parse.update_model_opts and model_saver.load_checkpoint."""
    options = {**OPTIONS, **checkpoint.options}
    for name, others in (
        ("layers", ("enc_layers", "dec_layers")),
        ("hidden_size", ("enc_hid_size", "dec_hid_size")),
        ("word_vec_size", ("src_word_vec_size", "tgt_word_vec_size")),
    ):
        if options[name] > 0:
            options |= dict.fromkeys(others, options[name])
    if any(name.endswith("w_1.bias") for name in checkpoint.tensors):
        options["add_ffnbias"] = True
    return options


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support."""
    if problems := wrong_types(checkpoint.options, {**OPTIONS, "dropout": None, "attention_dropout": None}):
        return problems
    options = _options(checkpoint)
    problems = [
        f"{name}: {options[name]!r} (supported: {', '.join(map(repr, expressed))})"
        for name, expressed in EXPRESSED.items()
        if options[name] not in expressed
    ]
    sizes = [options[name] for name in ("enc_hid_size", "dec_hid_size", "src_word_vec_size", "tgt_word_vec_size")]
    if len(set(sizes)) > 1:
        problems.append(
            f"enc_hid_size, dec_hid_size, src_word_vec_size, tgt_word_vec_size: {sizes} (supported: equal)"
        )
    if checkpoint.vocabulary.get("src_feats"):
        problems.append("src_feats: a vocabulary of word features (supported: words alone)")
    return problems + common.vocabulary_problems(checkpoint.vocabulary, common.SPECIAL_TOKENS)


def _first(value: Any) -> Any:
    """The first value of an option that may have one for each part of the training."""
    return next(iter(value), 0.0) if isinstance(value, list) else value


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options describe."""
    options, vocabulary = _options(checkpoint), checkpoint.vocabulary
    target = vocabulary["tgt"]
    sharing: Any = "decoder" if options["share_decoder_embeddings"] else "none"
    if sharing == "decoder" and options["share_embeddings"]:
        sharing = "all"
    positions = options["position_encoding"]
    feed_forward, activation = FEED_FORWARDS[options["pos_ffn_activation_fn"]]
    return VanillaTransformerConfig(
        vocab_size=len(target),
        source_vocab_size=None if vocabulary["src"] == target else len(vocabulary["src"]),
        d_model=options["dec_hid_size"],
        encoder_layers=options["enc_layers"],
        decoder_layers=options["dec_layers"],
        encoder_attention_heads=options["heads"],
        decoder_attention_heads=options["heads"],
        encoder_ffn_dim=options["transformer_ff"],
        decoder_ffn_dim=options["transformer_ff"],
        dropout=_first(options["dropout"]),
        attention_dropout=_first(options["attention_dropout"]),
        activation_dropout=_first(options["dropout"]),
        feed_forward_type=feed_forward,
        activation_function=activation,
        scale_embedding=positions,  # scaling happens where positions are added: without positions there is none
        embedding_sharing=sharing,
        position_encoding=common.POSITION_ENCODINGS[options["position_encoding_type"]] if positions else "none",
        encoder_norm_position="pre",
        decoder_norm_position="pre",
        layer_norm_eps=options["norm_eps"],
        attention_bias=options["add_qkvbias"],
        feed_forward_bias=options["add_ffnbias"],
        output_bias=True,
        label_smoothing=options["label_smoothing"],
        pad_token_id=target.index(common.SPECIAL_TOKENS["pad"]),
        bos_token_id=common.id_of(target, common.SPECIAL_TOKENS["bos"]),
        eos_token_id=target.index(common.SPECIAL_TOKENS["eos"]),
        decoder_start_token_id=target.index(vocabulary.get("decoder_start_token", common.SPECIAL_TOKENS["bos"])),
    )


def _transforms(options: dict[str, Any]) -> list[str]:
    """The transforms of texts: of all corpora, or those of the first corpus that has its own."""
    corpora = [corpus.get("transforms") for name, corpus in options["data"].items() if name != "valid"]
    return next((names for names in (options["transforms"], *corpora) if names), [])


def _subwords(checkpoint: Checkpoint) -> dict[str, dict[str, str]]:
    """For each side, transform -> file of its subword model; src's where tgt has none of its own."""
    options = _options(checkpoint)
    names = [name for name in _transforms(options) if name in ("sentencepiece", "bpe")]
    files = {side: options[f"{side}_subword_model"] or options["src_subword_model"] for side in ("src", "tgt")}
    return {side: dict.fromkeys(names, file) if file else {} for side, file in files.items()}


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer:
    """Tokenizer with the ids of the vocabularies, and the subword model where it lies beside the checkpoint."""
    options = _options(checkpoint)
    languages = {name: options[name] or None for name in ("src_lang", "tgt_lang")}
    return common.tokenizer(checkpoint, common.SPECIAL_TOKENS, _subwords(checkpoint), **languages)


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """The defaults of onmt_translate, because checkpoints do not contain search settings."""
    return common.generation_config(DECODING, config)


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """Steps of onmt_translate that `generate()` and the tokenizer do not perform."""
    transforms = _transforms(_options(checkpoint))
    return common.tokenization_notes(checkpoint, transforms, _subwords(checkpoint)) + common.decoding_notes(DECODING)


def target_pieces(checkpoint: Checkpoint) -> list[str]:
    """The target vocabulary, in whose pieces the toolkit records its outputs."""
    return checkpoint.vocabulary["tgt"]


SOURCE = Source(
    options=OPTIONS,
    recognises=recognises,
    read=read,
    unsupported=unsupported,
    to_config=to_config,
    keys=lambda config, checkpoint: KEYS,
    to_tokenizer=to_tokenizer,
    to_generation_config=to_generation_config,
    decoding_notes=decoding_notes,
    target_pieces=target_pieces,
)
