"""
MarianMT: folders that transformers saved for `MarianMTModel` (such as OPUS-MT's), and the `source.spm`, `target.spm`
and `vocab.json` of its tokenizer if they exist.

After transformers/models/marian/{configuration,modeling,tokenization}_marian.py.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import MarianConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..formats import vocabularies
from ..formats.files import read_json
from ..key_table import KeyTable, Rule, as_vector
from .saved_model import FIELDS, STACK_KEYS, SavedModel
from .state_dicts import position_encoding


POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


KEYS: KeyTable = {
    "final_logits_bias": Rule("lm_head.bias", as_vector),
    "lm_head.weight": "lm_head.weight",
    "model.shared.weight": "model.encoder.embed_tokens.weight",
    **STACK_KEYS,
}


def _backend(spm: Path, tokens: list[str], settings: dict[str, Any]) -> Tokenizer:
    backend = vocabularies.sentencepiece(spm, tokens, settings["unk_token"])
    codes = [token for token in tokens if token.startswith(">>") and token.endswith("<<")]
    backend.add_tokens([AddedToken(code, normalized=False, special=False) for code in codes])
    return vocabularies.ends_with(backend, settings["eos_token"])


class MarianMT(SavedModel):
    name = "marianmt"
    hosts = {"marian": MarianConfig}

    def keys(self, config: VanillaTransformerConfig) -> KeyTable:
        """The table. Sinusoids in the file are dropped, trained positions are kept; an untied `shared` is not used."""
        table = dict(KEYS)
        if config.tied_matrices != "all":
            table["model.shared.weight"] = None
        if config.position_encoding != "learned":
            table |= dict.fromkeys(POSITIONS)
        return table

    def unsupported(self) -> list[str]:
        if problems := super().unsupported():
            return problems
        pad, size = self.settings["pad_token_id"], self.settings["vocab_size"]
        return [f"pad_token_id={pad}: lies outside the source vocabulary of {size}"] if pad >= size else []

    def to_config(self) -> VanillaTransformerConfig:
        options = self.settings
        one_vocabulary = options["share_encoder_decoder_embeddings"]
        tied: Any = "all" if one_vocabulary else "decoder"
        # transformers no longer saves tables of positions.
        tables = [self.tensors[name] for name in POSITIONS if name in self.tensors]
        source_size = options["vocab_size"]
        return VanillaTransformerConfig(
            **{name: options[name] for name in FIELDS},
            vocab_size=source_size if one_vocabulary else options["decoder_vocab_size"] or source_size,
            source_vocab_size=None if one_vocabulary else source_size,
            embedding_sharing=tied if options["tie_word_embeddings"] else "none",
            position_encoding=position_encoding(tables) if tables else "sinusoidal_halves",
            attention_bias=True,
            output_bias=True,
        )

    def to_tokenizer(self, config: VanillaTransformerConfig) -> Any:
        folder = self.folder
        if not (folder / "vocab.json").is_file():
            return None
        settings: dict[str, Any] = {
            "unk_token": "<unk>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "separate_vocabs": False,
        }
        if (folder / "tokenizer_config.json").is_file():
            settings |= read_json(self.uses(folder / "tokenizer_config.json"))
        for name in ("unk_token", "eos_token", "pad_token"):
            if isinstance(settings[name], dict):
                settings[name] = settings[name]["content"]
        source = target = vocabularies.read_ids(self.uses(folder / "vocab.json"))
        if settings["separate_vocabs"]:
            target = vocabularies.read_ids(self.uses(folder / "target_vocab.json"))
        output = _backend(self.uses(folder / "target.spm"), target, settings)
        return vocabularies.joined(
            _backend(self.uses(folder / "source.spm"), source, settings),
            output,
            is_separate=True,  # the ids may be shared, but each language has its own SentencePiece model
            src_lang=settings.get("source_lang"),
            tgt_lang=settings.get("target_lang"),
            model_max_length=settings.get("model_max_length", 512),
            **{name: settings[name] for name in ("unk_token", "eos_token", "pad_token")},
        )

    def decoding_notes(self) -> list[str]:
        if not (self.folder / "vocab.json").is_file():
            return ["vocab.json or a SentencePiece model is missing beside the checkpoint: the model has no tokenizer"]
        return []
