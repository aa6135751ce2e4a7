"""
fairseq (0.6 to 0.12): `checkpoint*.pt`, beside it `dict.<source>.txt` and `dict.<target>.txt`.

From fairseq/models/transformer (transformer_config.py, transformer_encoder.py, transformer_decoder.py,
transformer_legacy.py), fairseq/modules and fairseq/data/dictionary.py.
"""

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..text_files import read_lines
from ..tokenization_vanilla_transformer import VanillaTransformerTokenizer
from . import vocabularies
from .mapping import Checkpoint, ConversionError, KeyTable
from .safe_load import load_torch, plain


# Dictionary.__init__: these stand before what dict.txt lists.
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
PAD, EOS = 1, 2

# transformer_legacy.base_architecture and TransformerConfig. A None takes the encoder's value, or what is said beside.
OPTIONS: dict[str, Any] = {
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_layers": 6,
    "encoder_attention_heads": 8,
    "encoder_normalize_before": False,
    "encoder_learned_pos": False,
    "decoder_embed_dim": None,
    "decoder_ffn_embed_dim": None,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "decoder_normalize_before": False,
    "decoder_learned_pos": False,
    "no_decoder_final_norm": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "relu_dropout": 0.0,  # the name of activation_dropout before 0.8
    "activation_fn": "relu",
    "share_all_embeddings": False,
    "share_decoder_input_output_embed": False,
    "no_token_positional_embeddings": False,
    "no_scale_embedding": False,
    "layernorm_embedding": False,
    "max_source_positions": 1024,
    "max_target_positions": 1024,
    "label_smoothing": 0.0,
    "source_lang": None,
    "target_lang": None,
}

# utils.get_activation_fn
ACTIVATIONS = {
    "relu": "relu",
    "relu_squared": "relu2",
    "gelu": "gelu",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "tanh": "tanh",
    "linear": "linear",
    "swish": "silu",
}

_LAYER: dict[str, Any] = {
    **{
        f"{name}.{kind}": f"{name}.{kind}"
        for name in (
            *(f"self_attn.{projection}_proj" for projection in ("q", "k", "v", "out")),
            *(f"encoder_attn.{projection}_proj" for projection in ("q", "k", "v", "out")),
            *("self_attn_layer_norm", "encoder_attn_layer_norm", "fc1", "fc2", "final_layer_norm"),
        )
        for kind in ("weight", "bias")
    },
}

KEYS: KeyTable = {
    "encoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight": "model.decoder.embed_tokens.weight",
    "decoder.output_projection.weight": "lm_head.weight",
    **{
        f"{stack}.layers.{{}}.{name}": f"model.{stack}.layers.{{}}.{target}"
        for stack in ("encoder", "decoder")
        for name, target in _LAYER.items()
    },
    **{
        f"{stack}.{norm}.{kind}": f"model.{stack}.{norm}.{kind}"
        for stack in ("encoder", "decoder")
        for norm in ("layer_norm", "layernorm_embedding")
        for kind in ("weight", "bias")
    },
    **{
        f"{stack}.{name}": None  # a number of the format, and buffers of sinusoids
        for stack in ("encoder", "decoder")
        for name in ("version", "embed_positions._float_tensor", "embed_positions.weights")
    },
    **{
        f"encoder.layers.{{}}.{name}_{kind}": None  # copies for a fast path, stale since the first training step
        for name in ("in_proj", "out_proj", "fc1", "fc2")
        for kind in ("weight", "bias")
    },
}


def recognises(path: Path) -> bool:
    """Whether a file or folder looks like this source's, by its names."""
    folder = path if path.is_dir() else path.parent
    return bool(_checkpoints(path)) and any(folder.glob("dict.*.txt"))


def _checkpoints(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".pt" else []
    return [
        path / name for name in ("checkpoint_best.pt", "checkpoint_last.pt", "model.pt") if (path / name).is_file()
    ]


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: There is no checkpoint, it cannot be read safely, or it is none of fairseq's.
    """
    found = _checkpoints(path)
    if not found:
        raise ConversionError(f"{path} holds no checkpoint_best.pt; name the file itself")
    content = load_torch(found[0], trust)
    if not isinstance(content, dict) or "model" not in content or not ({"cfg", "args"} & content.keys()):
        raise ConversionError(f"{found[0]} is no checkpoint of fairseq: it has no `model` beside `cfg` or `args`")
    settings = plain(content.get("cfg") or {"model": content["args"]})
    options = {**settings.get("criterion", {}), **settings.get("task", {}), **settings.get("model", {})}
    return Checkpoint(options, content["model"], None, found[0].parent, (found[0],))


def _options(checkpoint: Checkpoint) -> dict[str, Any]:
    given = {name: value for name, value in checkpoint.options.items() if value is not None}
    options = {**OPTIONS, **given}
    options["decoder_embed_dim"] = options["decoder_embed_dim"] or options["encoder_embed_dim"]
    options["decoder_ffn_embed_dim"] = options["decoder_ffn_embed_dim"] or options["encoder_ffn_embed_dim"]
    return options


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """The options that our model cannot express, a line each."""
    return []


def _dictionaries(checkpoint: Checkpoint) -> dict[str, list[str]]:
    options = _options(checkpoint)
    sides = {}
    for side, language in (("source", options["source_lang"]), ("target", options["target_lang"])):
        path = checkpoint.folder / f"dict.{language}.txt"
        if not path.is_file():
            raise ConversionError(f"{path} is missing: the {side} dictionary, copied from the preprocessed data")
        sides[side] = SPECIAL_TOKENS + [line.rsplit(" ", 1)[0] for line in read_lines(path)]
    return sides


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options describe."""
    options = _options(checkpoint)
    sharing: Any = "decoder" if options["share_decoder_input_output_embed"] else "none"
    if options["share_all_embeddings"]:
        sharing = "all"
    target_size = len(checkpoint.tensors["decoder.embed_tokens.weight"])
    source_size = len(checkpoint.tensors["encoder.embed_tokens.weight"])
    return VanillaTransformerConfig(
        vocab_size=target_size,
        source_vocab_size=None if sharing == "all" else source_size,
        d_model=options["decoder_embed_dim"],
        encoder_layers=options["encoder_layers"],
        decoder_layers=options["decoder_layers"],
        encoder_attention_heads=options["encoder_attention_heads"],
        decoder_attention_heads=options["decoder_attention_heads"],
        encoder_ffn_dim=options["encoder_ffn_embed_dim"],
        decoder_ffn_dim=options["decoder_ffn_embed_dim"],
        dropout=options["dropout"],
        attention_dropout=options["attention_dropout"],
        activation_dropout=options["activation_dropout"],
        activation_function=ACTIVATIONS[options["activation_fn"]],
        scale_embedding=not options["no_scale_embedding"],
        layernorm_embedding=options["layernorm_embedding"],
        embedding_sharing=sharing,
        position_encoding="sinusoidal_halves_inclusive",
        position_offset=PAD + 1,
        max_position_embeddings=options["max_target_positions"],
        encoder_norm_position="pre" if options["encoder_normalize_before"] else "post",
        decoder_norm_position="pre" if options["decoder_normalize_before"] else "post",
        attention_bias=True,
        label_smoothing=options["label_smoothing"],
        pad_token_id=PAD,
        bos_token_id=0,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
    )


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer:
    """Tokenizer with the ids of the dictionaries."""
    options = _options(checkpoint)
    sides = _dictionaries(checkpoint)
    backends = {
        side: vocabularies.ends_with(vocabularies.words(tokens, "<unk>"), "</s>") for side, tokens in sides.items()
    }
    separate = sides["source"] != sides["target"]
    return VanillaTransformerTokenizer(
        tokenizer_object=backends["target"],
        source_tokenizer_object=backends["source"] if separate else None,
        separate_vocabularies=separate,
        src_lang=options["source_lang"],
        tgt_lang=options["target_lang"],
        split_special_tokens=True,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """The defaults of fairseq-generate: GenerationConfig in fairseq/dataclass/configs.py, SequenceGenerator."""
    return GenerationConfig(
        num_beams=5,
        length_penalty=1.0,
        early_stopping=True,  # a sentence is done when `beam` hypotheses are
        min_new_tokens=2,  # min_len 1: one token before the end
        max_new_tokens=201,  # max_len_a 0, max_len_b 200, and the end
        forced_eos_token_id=EOS,
        suppress_tokens=[PAD],
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=0,
        decoder_start_token_id=EOS,
    )


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """What of fairseq-generate's decoding `generate()` does not do."""
    return []
