"""
FSMT: folders that transformers saved for `FSMTForConditionalGeneration` (fairseq's WMT19 models), and the
`vocab-src.json`, `vocab-tgt.json` and `merges.txt` of its tokenizer if they exist.

After transformers/models/fsmt/{configuration,modeling,tokenization}_fsmt.py.
"""

from typing import Any

from transformers import FSMTConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats import vocabularies
from ..formats.files import read_json
from ..formats.moses import abbreviations_of, add_moses
from ..key_table import KeyTable
from .saved_model import FIELDS, STACK_KEYS, SavedModel


KEYS: KeyTable = {**STACK_KEYS, "model.decoder.output_projection.weight": "lm_head.weight"}


class FSMT(SavedModel):
    name = "fsmt"
    table = KEYS
    hosts = {"fsmt": FSMTConfig}

    def unsupported(self) -> list[str]:
        if problems := super().unsupported():
            return problems
        options = self.settings
        if len(options["langs"]) != 2:
            problems.append(f"langs={options['langs']}: must be a source and a target language")
        if options["tie_word_embeddings"] and options["src_vocab_size"] != options["tgt_vocab_size"]:
            problems.append(
                f"tie_word_embeddings=True: one matrix cannot serve src_vocab_size={options['src_vocab_size']} and "
                f"tgt_vocab_size={options['tgt_vocab_size']}"
            )
        return problems

    def to_config(self) -> VanillaTransformerConfig:
        """Config of the model. Stored positions are loaded as they are, because training may have changed them."""
        options = self.settings
        tables = {stack: self.tensors.get(f"model.{stack}.embed_positions.weight") for stack in ("encoder", "decoder")}
        # Without those before the first one; 0 if they are not stored (5.0 and before).
        lengths = {stack: 0 if table is None else len(table) - 2 for stack, table in tables.items()}
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

    def to_tokenizer(self, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
        folder = self.folder
        if not (folder / "vocab-src.json").is_file():
            return None
        settings = {}
        if (folder / "tokenizer_config.json").is_file():
            settings = read_json(self.uses(folder / "tokenizer_config.json"))
        source_lang, target_lang = settings.get("langs") or self.settings["langs"]
        merges = vocabularies.read_merges(self.uses(folder / "merges.txt"))
        backends = []
        for name, language in (("vocab-src.json", source_lang), ("vocab-tgt.json", target_lang)):
            tokens = vocabularies.read_ids(self.uses(folder / name))
            backend = vocabularies.byte_pairs(tokens, merges, "<unk>", joiner=None, where=name)
            add_moses(backend, language, lowercase=bool(settings.get("do_lower_case")))
            backends.append(vocabularies.ends_with(backend, "</s>"))
        return vocabularies.joined(
            *backends,
            src_lang=source_lang,
            tgt_lang=target_lang,
            bos_token="<s>",
            pad_token="<pad>",
            eos_token="</s>",
            unk_token="<unk>",
        )

    def decoding_notes(self) -> list[str]:
        if not (self.folder / "vocab-src.json").is_file():
            return [
                "vocab-src.json, vocab-tgt.json or merges.txt is missing beside the checkpoint: the model has no "
                "tokenizer"
            ]
        if abbreviations_of("en") is None:
            return [
                "texts are expected, and translations come out, as the Moses tokenizer cuts them: sacremoses was not "
                "installed when this model was converted"
            ]
        return ["translations come out with spaces between words and punctuation: they are not detokenized"]
