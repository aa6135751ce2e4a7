"""
MarianMT: folders that transformers saved for `MarianMTModel` (such as OPUS-MT's), and the `source.spm`, `target.spm`
and `vocab.json` of its tokenizer if they exist.

After transformers/models/marian/{configuration,modeling,tokenization}_marian.py.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats import vocabularies
from ..formats.files import read_json
from ..key_table import KeyTable, Rule, wrong_types
from ..source import Checkpoint, Source
from .saved_model import (
    FIELDS,
    STACK_KEYS,
    generation_config,
    is_saved_model,
    read_saved_model,
)
from .state_dicts import position_encoding


# MarianConfig
OPTIONS: dict[str, Any] = {
    "vocab_size": 58101,
    "decoder_vocab_size": None,  # then vocab_size
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "d_model": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "decoder_start_token_id": 58100,
    "scale_embedding": False,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    "bos_token_id": None,
    "forced_eos_token_id": 0,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}

POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def flat(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """A bias of shape (1, V) as (V,)."""
    return tensor.reshape(-1)


KEYS: KeyTable = {
    "final_logits_bias": Rule("lm_head.bias", flat),
    "lm_head.weight": "lm_head.weight",
    "model.shared.weight": "model.encoder.embed_tokens.weight",
    **STACK_KEYS,
}


def keys(config: VanillaTransformerConfig, checkpoint: Checkpoint) -> KeyTable:
    """The table. Sinusoids in the file are dropped, trained positions are kept, and an untied `shared` is not used."""
    table = dict(KEYS)
    if config.tied_matrices != "all":
        table["model.shared.weight"] = None
    if config.position_encoding != "learned":
        table |= dict.fromkeys(POSITIONS)
    return table


def recognises(path: Path) -> bool:
    """Whether config.json names this model type."""
    return is_saved_model(path, "marian")


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: A file is missing or damaged, or config.json is another model's.
    """
    return read_saved_model(path, "marian", trust)


def _options(checkpoint: Checkpoint) -> dict[str, Any]:
    options = {**OPTIONS, **checkpoint.options}
    options["decoder_vocab_size"] = options["decoder_vocab_size"] or options["vocab_size"]
    return options


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support."""
    # null is a value there: it means that no token is forced.
    if problems := wrong_types(checkpoint.options, {**OPTIONS, "forced_eos_token_id": None}):
        return problems
    options = _options(checkpoint)
    if options["pad_token_id"] >= options["vocab_size"]:
        problems.append(
            f"pad_token_id={options['pad_token_id']}: lies outside the source vocabulary of {options['vocab_size']}"
        )
    return problems


def _positions(checkpoint: Checkpoint) -> Any:
    """The kind of position tables in the file; transformers no longer saves any."""
    tables = [checkpoint.tensors[name] for name in POSITIONS if name in checkpoint.tensors]
    return position_encoding(tables) if tables else "sinusoidal_halves"


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options describe."""
    options = _options(checkpoint)
    one_vocabulary = options["share_encoder_decoder_embeddings"]
    tied: Any = "all" if one_vocabulary else "decoder"
    return VanillaTransformerConfig(
        **{name: options[name] for name in FIELDS},
        vocab_size=options["vocab_size"] if one_vocabulary else options["decoder_vocab_size"],
        source_vocab_size=None if one_vocabulary else options["vocab_size"],
        embedding_sharing=tied if options["tie_word_embeddings"] else "none",
        position_encoding=_positions(checkpoint),
        attention_bias=True,
        output_bias=True,
    )


def _backend(spm: Path, tokens: list[str], settings: dict[str, Any]) -> Tokenizer:
    backend = vocabularies.sentencepiece(spm, tokens, settings["unk_token"])
    codes = [token for token in tokens if token.startswith(">>") and token.endswith("<<")]
    backend.add_tokens([AddedToken(code, normalized=False, special=False) for code in codes])
    return vocabularies.ends_with(backend, settings["eos_token"])


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
    """Tokenizer with MarianTokenizer's ids; None where the folder has none."""
    folder = checkpoint.folder
    if not (folder / "vocab.json").is_file():
        return None
    settings: dict[str, Any] = {
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "separate_vocabs": False,
    }
    if (folder / "tokenizer_config.json").is_file():
        settings |= read_json(checkpoint.uses(folder / "tokenizer_config.json"))
    for name in ("unk_token", "eos_token", "pad_token"):
        if isinstance(settings[name], dict):
            settings[name] = settings[name]["content"]
    source = target = vocabularies.read_ids(checkpoint.uses(folder / "vocab.json"))
    if settings["separate_vocabs"]:
        target = vocabularies.read_ids(checkpoint.uses(folder / "target_vocab.json"))
    return VanillaTransformerTokenizer(
        tokenizer_object=_backend(checkpoint.uses(folder / "target.spm"), target, settings),
        source_tokenizer_object=_backend(checkpoint.uses(folder / "source.spm"), source, settings),
        separate_vocabularies=True,  # the ids may be shared, but each language has its own SentencePiece model
        src_lang=settings.get("source_lang"),
        tgt_lang=settings.get("target_lang"),
        split_special_tokens=True,
        model_max_length=settings.get("model_max_length", 512),
        **{name: settings[name] for name in ("unk_token", "eos_token", "pad_token")},
    )


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """generation_config.json, or config.json."""
    return generation_config(checkpoint, OPTIONS)


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """Steps of MarianMT that `generate()` and the tokenizer do not perform; decoding is the same code."""
    if not (checkpoint.folder / "vocab.json").is_file():
        return ["vocab.json or a SentencePiece model is missing beside the checkpoint: the model has no tokenizer"]
    return []


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
)
