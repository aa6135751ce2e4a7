"""
FSMT: folders that transformers saved for `FSMTForConditionalGeneration` (fairseq's WMT19 models), and the
`vocab-src.json`, `vocab-tgt.json` and `merges.txt` of its tokenizer if they exist.

After transformers/models/fsmt/{configuration,modeling,tokenization}_fsmt.py.
"""

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats import vocabularies
from ..formats.files import read_json
from ..formats.moses import abbreviations_of, add_moses
from ..key_table import KeyTable, wrong_types
from ..source import Checkpoint, Source
from .saved_model import (
    FIELDS,
    STACK_KEYS,
    generation_config,
    is_saved_model,
    read_saved_model,
)


# FSMTConfig
OPTIONS: dict[str, Any] = {
    "langs": ["en", "de"],
    "src_vocab_size": 42024,
    "tgt_vocab_size": 42024,
    "activation_function": "relu",
    "d_model": 1024,
    "max_length": 200,
    "max_position_embeddings": 1024,
    "encoder_ffn_dim": 4096,
    "encoder_layers": 12,
    "encoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "decoder_layers": 12,
    "decoder_attention_heads": 16,
    "attention_dropout": 0.0,
    "dropout": 0.1,
    "activation_dropout": 0.0,
    "decoder_start_token_id": 2,
    "scale_embedding": True,
    "tie_word_embeddings": False,
    "num_beams": 5,
    "length_penalty": 1.0,
    "early_stopping": False,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
}

KEYS: KeyTable = {**STACK_KEYS, "model.decoder.output_projection.weight": "lm_head.weight"}


def recognises(path: Path) -> bool:
    """Whether config.json names this model type."""
    return is_saved_model(path, "fsmt")


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: A file is missing or damaged, or config.json is another model's.
    """
    return read_saved_model(path, "fsmt", trust)


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support."""
    # null is a value there: the token does not exist, or is not forced.
    if problems := wrong_types(checkpoint.options, {**OPTIONS, "bos_token_id": None, "forced_eos_token_id": None}):
        return problems
    options = {**OPTIONS, **checkpoint.options}
    if len(options["langs"]) != 2:
        problems.append(f"langs={options['langs']}: must be a source and a target language")
    if options["tie_word_embeddings"] and options["src_vocab_size"] != options["tgt_vocab_size"]:
        problems.append(
            f"tie_word_embeddings=True: one matrix cannot serve src_vocab_size={options['src_vocab_size']} and "
            f"tgt_vocab_size={options['tgt_vocab_size']}"
        )
    return problems


def _learned(checkpoint: Checkpoint, stack: str) -> int:
    """The number of stored positions without those before the first one; 0 if they are not stored (5.0 and before)."""
    table = checkpoint.tensors.get(f"model.{stack}.embed_positions.weight")
    return 0 if table is None else len(table) - 2


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model. Stored positions are loaded as they are, because training may have changed them."""
    options = {**OPTIONS, **checkpoint.options}
    lengths = {stack: _learned(checkpoint, stack) for stack in ("encoder", "decoder")}
    kinds: Any = {stack: "learned" if rows else "sinusoidal_halves_inclusive" for stack, rows in lengths.items()}
    one_vocabulary = options["src_vocab_size"] == options["tgt_vocab_size"]
    return VanillaTransformerConfig(
        **{name: options[name] for name in FIELDS if name != "max_position_embeddings"},
        vocab_size=options["tgt_vocab_size"],
        source_vocab_size=None if one_vocabulary else options["src_vocab_size"],
        embedding_sharing="all" if options["tie_word_embeddings"] else "none",
        position_encoding=kinds["encoder"],
        decoder_position_encoding=kinds["decoder"],
        position_offset=2,
        max_position_embeddings=lengths["encoder"] or options["max_position_embeddings"],
        decoder_max_position_embeddings=lengths["decoder"] or options["max_position_embeddings"],
        attention_bias=True,
    )


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
    """Tokenizer with FSMTTokenizer's ids; None where the folder has none."""
    folder = checkpoint.folder
    if not (folder / "vocab-src.json").is_file():
        return None
    settings = {}
    if (folder / "tokenizer_config.json").is_file():
        settings = read_json(checkpoint.uses(folder / "tokenizer_config.json"))
    source_lang, target_lang = settings.get("langs") or checkpoint.options.get("langs") or OPTIONS["langs"]
    merges = vocabularies.read_merges(checkpoint.uses(folder / "merges.txt"))
    backends = []
    for name, language in (("vocab-src.json", source_lang), ("vocab-tgt.json", target_lang)):
        tokens = vocabularies.read_ids(checkpoint.uses(folder / name))
        backend = vocabularies.byte_pairs(tokens, merges, "<unk>", joiner=None, where=name)
        add_moses(backend, language, lowercase=bool(settings.get("do_lower_case")))
        backends.append(vocabularies.ends_with(backend, "</s>"))
    source, target = backends
    separate = source.to_str() != target.to_str()
    return VanillaTransformerTokenizer(
        tokenizer_object=target,
        source_tokenizer_object=source if separate else None,
        separate_vocabularies=separate,
        src_lang=source_lang,
        tgt_lang=target_lang,
        split_special_tokens=True,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """generation_config.json, or config.json."""
    return generation_config(checkpoint, OPTIONS)


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """Steps of FSMT that `generate()` and the tokenizer do not perform; decoding is the same code."""
    if not (checkpoint.folder / "vocab-src.json").is_file():
        return [
            "vocab-src.json, vocab-tgt.json or merges.txt is missing beside the checkpoint: the model has no tokenizer"
        ]
    if abbreviations_of("en") is None:
        return [
            "texts are expected, and translations come out, as the Moses tokenizer cuts them: sacremoses was not "
            "installed when this model was converted"
        ]
    return ["translations come out with spaces between words and punctuation: they are not detokenized"]


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
)
