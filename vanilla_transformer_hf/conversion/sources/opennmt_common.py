"""The common parts of OpenNMT-py and its successor eole: special tokens, positions, tokenization and search."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..formats import vocabularies
from ..formats.files import named
from ..source import Source, search_settings


# constants.DefaultTokens
SPECIAL_TOKENS = {"unk": "<unk>", "pad": "<blank>", "bos": "<s>", "eos": "</s>"}

POSITION_ENCODINGS: dict[str, Any] = {
    "SinusoidalInterleaved": "sinusoidal",
    "SinusoidalConcat": "sinusoidal_halves_inclusive",
}

# Projections of an attention, with the names that both toolkits use.
ATTENTION = {"linear_query": "q_proj", "linear_keys": "k_proj", "linear_values": "v_proj", "final_linear": "out_proj"}

# Defaults of the search.
DECODING: dict[str, Any] = {
    "beam_size": 5,
    "length_penalty": "avg",
    "alpha": 1.0,
    "min_length": 0,
    "max_length": 250,
    "max_length_ratio": 1.25,
    "block_ngram_repeat": 0,
}

# Transforms that change training only.
OF_TRAINING = {"filtertoolong", "switchout", "tokendrop", "tokenmask", "clean", "bart", "filterfeats"}


def repeated(tensor: torch.Tensor, heads: int, d_k: int) -> torch.Tensor:
    """Keys or values with fewer heads than the queries, each head repeated for the queries that share it."""
    return tensor.unflatten(0, (-1, d_k)).repeat_interleave(heads * d_k // len(tensor), dim=0).flatten(0, 1)


def first(value: Any) -> Any:
    """The first value of an option that may have one for each part of the training."""
    return next(iter(value), 0.0) if isinstance(value, list) else value


class OpenNMT(Source):
    """A checkpoint of one of the two; its vocabulary has lists of tokens under "src" and "tgt"."""

    @property
    def decoding(self) -> Mapping[str, Any]:
        """The options of the search."""
        return DECODING

    @property
    def specials(self) -> Mapping[str, str]:
        """unk, pad, bos and eos -> token."""
        return SPECIAL_TOKENS

    @property
    def transforms(self) -> Sequence[str]:
        """The transforms of texts: of all corpora, or those of the first corpus that has its own."""
        data = self.options.get("data") or {}
        corpora = [corpus.get("transforms") for name, corpus in data.items() if name != "valid"]
        return next((names for names in (self.options.get("transforms"), *corpora) if names), [])

    @property
    def subwords(self) -> Mapping[str, Mapping[str, str]]:
        """For each side, transform -> file of its subword model; src's where tgt has none of its own."""
        raise NotImplementedError

    def common_fields(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a config that both toolkits have in the same options."""
        source, target = self.vocabulary["src"], self.vocabulary["tgt"]
        start = self.vocabulary.get("decoder_start_token", SPECIAL_TOKENS["bos"])
        sharing = "all" if options["share_embeddings"] else "decoder"  # which counts with the other alone
        return {
            "vocab_size": len(target),
            "source_vocab_size": None if source == target else len(source),
            "dropout": first(options["dropout"]),
            "attention_dropout": first(options["attention_dropout"]),
            "activation_dropout": first(options["dropout"]),
            "embedding_sharing": sharing if options["share_decoder_embeddings"] else "none",
            "label_smoothing": options["label_smoothing"],
            "pad_token_id": target.index(self.specials["pad"]),
            "bos_token_id": target.index(self.specials["bos"]) if self.specials["bos"] in target else None,
            "eos_token_id": target.index(self.specials["eos"]),
            "decoder_start_token_id": target.index(start),
        }

    def vocabulary_problems(self) -> list[str]:
        """A line for each reason why padding and end tokens cannot have the same ids on both sides."""
        sides = {side: self.vocabulary[side] for side in ("src", "tgt")}
        for side, tokens in sides.items():
            if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
                return [f"vocabulary: {side} is not a list of tokens"]
        problems = []
        for token in (self.specials["pad"], self.specials["eos"]):
            ids = [tokens.index(token) if token in tokens else None for tokens in sides.values()]
            if None in ids or ids[0] != ids[1]:
                problems.append(f"vocabulary: {token} is {ids[0]} in src and {ids[1]} in tgt (supported: one id)")
        start = self.vocabulary.get("decoder_start_token", SPECIAL_TOKENS["bos"])
        if start not in sides["tgt"]:
            problems.append(f"vocabulary: decoder_start_token {start!r} is not one of tgt's tokens")
        return problems

    def _backend(self, side: str) -> Tokenizer:
        """The backend of one side: texts are split by its subword model, otherwise at spaces."""
        tokens, unk = self.vocabulary[side], self.specials["unk"]
        for transform, file in self.subwords[side].items():
            path = named(self.folder, file)
            if path.is_file() and transform == "sentencepiece":
                return vocabularies.sentencepiece(self.uses(path), tokens, unk)
            if path.is_file() and transform == "bpe":
                merges = vocabularies.read_merges(self.uses(path))
                return vocabularies.byte_pairs(tokens, merges, unk, list(SPECIAL_TOKENS.values()))
        backend = vocabularies.words(tokens, unk)
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
        return backend

    def to_tokenizer(self, config: VanillaTransformerConfig) -> Any:
        """Tokenizer with the ids of the vocabularies, and the subword model where it lies beside the checkpoint."""
        # The end token is appended to targets, not to sources.
        source, target = (self._backend(side) for side in ("src", "tgt"))
        known = {name: token for name, token in self.specials.items() if token in self.vocabulary["tgt"]}
        names: dict[str, Any] = {f"{name}_token": token for name, token in known.items()}
        return vocabularies.joined(
            source,
            vocabularies.ends_with(target, self.specials["eos"]),
            is_separate=True,  # two pipelines, even if the vocabulary is shared
            **names,
            **{name: self.options.get(name) or None for name in ("src_lang", "tgt_lang")},
        )

    def to_generation_config(self, config: VanillaTransformerConfig) -> GenerationConfig:
        decoding, beams = self.decoding, dict[str, Any]()
        if decoding["beam_size"] > 1:
            exponent = 0.0 if decoding["length_penalty"] == "none" else float(decoding["alpha"])
            beams = {"length_penalty": exponent, "early_stopping": True}
        return search_settings(
            config,
            num_beams=decoding["beam_size"],
            **beams,
            min_new_tokens=decoding["min_length"] or None,
            max_new_tokens=decoding["max_length"],
            no_repeat_ngram_size=decoding["block_ngram_repeat"],
        )

    def decoding_notes(self) -> list[str]:
        notes = [
            f"the transform {name} is not part of the tokenizer; texts have to be prepared with it"
            for name in self.transforms
            if name not in OF_TRAINING | {"sentencepiece", "bpe"}
        ]
        files = dict.fromkeys(named(self.folder, file) for side in self.subwords.values() for file in side.values())
        notes += [
            f"{file.name} was not beside the checkpoint; texts have to be cut into pieces with it"
            for file in files
            if not file.is_file()
        ]
        decoding = self.decoding  # translate/beam_search.py
        if decoding["beam_size"] > 1:
            formula = {"none": None, "avg": "length + 1", "wu": "(6 + length) / 6"}[decoding["length_penalty"]]
            if formula:
                notes.append(
                    f"length_penalty {decoding['length_penalty']}: the toolkit divides a score by ({formula})^"
                    f"{decoding['alpha']}, the end counted in length, and generate() by length^{decoding['alpha']}; "
                    "since the toolkit stops so early, generate() comes closer with length_penalty=0"
                )
            notes.append(
                "the toolkit stops as soon as the best beam has ended, generate() when as many have as there are beams"
            )
        if (ratio := decoding["max_length_ratio"]) > 0:
            notes.append(
                f"max_length_ratio: the toolkit also stops at {ratio} times the longest source of a batch plus 5"
            )
        return notes
