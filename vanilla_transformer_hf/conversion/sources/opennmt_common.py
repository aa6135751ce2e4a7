"""The common parts of OpenNMT-py and its successor eole: special tokens, positions, tokenization and search."""

from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats import vocabularies
from ..formats.files import named
from ..source import Checkpoint


# constants.DefaultTokens
SPECIAL_TOKENS = {"unk": "<unk>", "pad": "<blank>", "bos": "<s>", "eos": "</s>"}

POSITION_ENCODINGS: dict[str, Any] = {
    "SinusoidalInterleaved": "sinusoidal",
    "SinusoidalConcat": "sinusoidal_halves_inclusive",
}

# Projections of an attention, with the names that both toolkits use.
ATTENTION = {"linear_query": "q_proj", "linear_keys": "k_proj", "linear_values": "v_proj", "final_linear": "out_proj"}

# Transforms that change training only.
OF_TRAINING = {"filtertoolong", "switchout", "tokendrop", "tokenmask", "clean", "bart", "filterfeats"}


def repeated(tensor: torch.Tensor, heads: int, d_k: int) -> torch.Tensor:
    """Keys or values with fewer heads than the queries, each head repeated for the queries that share it."""
    return tensor.unflatten(0, (-1, d_k)).repeat_interleave(heads * d_k // len(tensor), dim=0).flatten(0, 1)


def id_of(tokens: list[str], token: str) -> int | None:
    """A token's id in a vocabulary, or None."""
    return tokens.index(token) if token in tokens else None


def vocabulary_problems(vocabulary: dict[str, Any], specials: dict[str, str]) -> list[str]:
    """A line for each reason why padding and end tokens cannot have the same ids on both sides."""
    for side in ("src", "tgt"):
        tokens = vocabulary[side]
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            return [f"vocabulary: {side} is not a list of tokens"]
    problems = []
    for name in ("pad", "eos"):
        ids = [id_of(vocabulary[side], specials[name]) for side in ("src", "tgt")]
        if None in ids or ids[0] != ids[1]:
            problems.append(f"vocabulary: {specials[name]} is {ids[0]} in src and {ids[1]} in tgt (supported: one id)")
    start = vocabulary.get("decoder_start_token", SPECIAL_TOKENS["bos"])
    if start not in vocabulary["tgt"]:
        problems.append(f"vocabulary: decoder_start_token {start!r} is not one of tgt's tokens")
    return problems


def _backend(checkpoint: Checkpoint, side: str, unk: str, subwords: dict[str, str]) -> Tokenizer:
    """The backend of one side: texts are split by the model that `subwords` names ({transform: file}), otherwise at
    spaces."""
    tokens = checkpoint.vocabulary[side]
    for transform, file in subwords.items():
        path = named(checkpoint.folder, file)
        if path.is_file() and transform == "sentencepiece":
            return vocabularies.sentencepiece(checkpoint.uses(path), tokens, unk)
        if path.is_file() and transform == "bpe":
            merges = vocabularies.read_merges(checkpoint.uses(path))
            return vocabularies.byte_pairs(tokens, merges, unk, list(SPECIAL_TOKENS.values()))
    backend = vocabularies.words(tokens, unk)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return backend


def tokenizer(
    checkpoint: Checkpoint, specials: dict[str, str], subwords: dict[str, dict[str, str]], **languages: Any
) -> VanillaTransformerTokenizer:
    """Tokenizer with the ids of the vocabularies. The end token is appended to targets, not to sources."""
    source, target = (_backend(checkpoint, side, specials["unk"], subwords[side]) for side in ("src", "tgt"))
    known = {name: token for name, token in specials.items() if token in checkpoint.vocabulary["tgt"]}
    names: dict[str, Any] = {f"{name}_token": token for name, token in known.items()}
    return VanillaTransformerTokenizer(
        tokenizer_object=vocabularies.ends_with(target, specials["eos"]),
        source_tokenizer_object=source,
        separate_vocabularies=True,  # two pipelines, even if the vocabulary is shared
        split_special_tokens=True,
        **names,
        **languages,
    )


def tokenization_notes(
    checkpoint: Checkpoint, transforms: list[str], subwords: dict[str, dict[str, str]]
) -> list[str]:
    """The toolkit's transforms of texts that the tokenizer does not perform."""
    notes = [
        f"the transform {name} is not part of the tokenizer; texts have to be prepared with it"
        for name in transforms
        if name not in OF_TRAINING | {"sentencepiece", "bpe"}
    ]
    files = dict.fromkeys(named(checkpoint.folder, file) for side in subwords.values() for file in side.values())
    return notes + [
        f"{file.name} was not beside the checkpoint; texts have to be cut into pieces with it"
        for file in files
        if not file.is_file()
    ]


def generation_config(decoding: dict[str, Any], config: VanillaTransformerConfig) -> GenerationConfig:
    """The toolkit's settings of its search."""
    beams: dict[str, Any] = {}
    if decoding["beam_size"] > 1:
        exponent = 0.0 if decoding["length_penalty"] == "none" else float(decoding["alpha"])
        beams = {"length_penalty": exponent, "early_stopping": True}
    return GenerationConfig(
        num_beams=decoding["beam_size"],
        **beams,
        min_new_tokens=decoding["min_length"] or None,
        max_new_tokens=decoding["max_length"],
        no_repeat_ngram_size=decoding["block_ngram_repeat"],
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def decoding_notes(decoding: dict[str, Any]) -> list[str]:
    """Steps of translate/beam_search.py that `generate()` does not perform."""
    notes = []
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
    if decoding["max_length_ratio"] > 0:
        ratio = decoding["max_length_ratio"]
        notes.append(f"max_length_ratio: the toolkit also stops at {ratio} times the longest source of a batch plus 5")
    return notes
