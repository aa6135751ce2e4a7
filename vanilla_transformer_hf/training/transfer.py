"""
Transfer from a model of another pair of languages (Zoph et al. 2016, arXiv 1604.02201; Kocmi and Bojar 2018, arXiv
1809.00357): the model gets a new vocabulary, whose pieces have the vectors of the old one where that has them
(Nguyen and Chiang 2017, arXiv 1708.09803; Aji et al. 2020).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..common.opening import open_config, open_tokenizer
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..recurrent.configuration import RecurrentSeq2SeqConfig
from .recipe import RunArguments


OWN_TYPES = (VanillaTransformerConfig.model_type, RecurrentSeq2SeqConfig.model_type)
ROLES = ("pad", "eos", "unk", "bos", "mask")
# Settings of a search that hold ids of tokens.
ID_FIELDS = ("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id")
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
BYTES_OF_CHARACTERS = {character: value for value, character in bytes_to_unicode().items()}


# Decoders of the library `tokenizers` that tell how pieces are written; where none does, the marks at the beginning
# (WordPiece) or end of pieces (subword-nmt in its two forms, and Tensor2Tensor).
DECODERS, MARKS = ("ByteLevel", "Metaspace"), ("##", "@@", "</w>", "_")
MARKED_SHARE = 0.03  # of the pieces; fewer are texts that look like one


def kind_of(pieces: Mapping[str, int], backend: Any) -> str:
    """The kind of a vocabulary: one of `DECODERS` or of `MARKS`; "" of whole words."""
    state = b"" if backend is None or backend.decoder is None else backend.decoder.__getstate__()
    for name in DECODERS:
        if f'"{name}"'.encode() in state:
            return name
    counts = {mark: sum(piece.startswith(mark) or piece.endswith(mark) for piece in pieces) for mark in MARKS}
    mark = max(counts, key=counts.__getitem__)
    return mark if counts[mark] > MARKED_SHARE * len(pieces) else ""


def spellings(kind: str, piece: str) -> list[bytes]:
    """The texts that a piece can stand for, in UTF-8, with a space before the beginning of a word."""
    # Where only the ends of words are marked, a piece has two.
    if kind == "ByteLevel":
        known = set(piece) <= BYTES_OF_CHARACTERS.keys()
        return [bytes(BYTES_OF_CHARACTERS[each] for each in piece)] if known else []
    if kind == "Metaspace":
        is_byte = BYTE_PIECE.fullmatch(piece)
        return [bytes.fromhex(piece[3:5]) if is_byte else piece.replace("▁", " ").encode()]
    if kind == "##":
        return [piece.removeprefix("##").encode() if piece.startswith("##") else f" {piece}".encode()]
    text = piece.removesuffix(kind)
    return [f" {text}".encode(), text.encode()] if kind else [f" {piece}".encode()]


@dataclass(frozen=True)
class Vocabulary:
    """One side of a tokenizer: pieces of texts, and special and added tokens, with their ids; the number of all."""

    pieces: dict[str, int]
    added: dict[str, int]
    size: int
    kind: str

    def by_spelling(self) -> dict[bytes, int]:
        """Spelling -> id of its piece."""
        # Where only the ends of words are marked, " un" is the word of that name if there is one, else a piece inside
        # a word, and "ing" likewise.
        found = dict[bytes, int]()
        mark = self.kind if self.kind in MARKS else ""
        goes_on = {piece: piece.endswith(mark) == (mark == "@@") for piece in self.pieces}
        for piece, index in sorted(self.pieces.items(), key=lambda item: (goes_on[item[0]], item[1])):
            for spelling in spellings(self.kind, piece):
                found.setdefault(spelling, index)
        return found


def vocabulary_of(tokenizer: Any, side: str) -> Vocabulary:
    """The source or the target vocabulary of a tokenizer; both may be one."""
    backend: Any = getattr(tokenizer, "source_backend_tokenizer" if side == "source" else "backend_tokenizer", None)
    is_own = side == "source" and getattr(tokenizer, "separate_vocabularies", False)
    known = backend.get_vocab() if is_own else tokenizer.get_vocab()
    listed = getattr(tokenizer, "source_listed_pieces" if is_own else "listed_pieces", None)
    added = {name: known[name] for name in {*tokenizer.added_tokens_encoder, *tokenizer.all_special_tokens} & {*known}}
    # What is not listed is a merge in between, without a vector.
    pieces = {
        piece: index for piece, index in known.items() if piece not in added and (listed is None or index < listed)
    }
    size = tokenizer.source_vocab_size if is_own else len(tokenizer)
    return Vocabulary(pieces, added, size, kind_of(pieces, backend))


def check_transfer(config: PreTrainedConfig, name: str) -> None:
    """Check that a model can get another vocabulary."""
    if config.model_type not in OWN_TYPES:
        raise ValueError(
            f"tokenizer=new: {name} is a model of type {config.model_type}, whose vocabulary cannot be exchanged; "
            "convert it first (vanilla-transformer convert)."
        )


def start_token(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The name of the token with which a model's decoder begins, if it is neither padding nor the end."""
    start = config.decoder_start_token_id
    is_other = start not in (config.pad_token_id, config.eos_token_id)
    return str(tokenizer.convert_ids_to_tokens(start)) if is_other else None


def roles_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Role of a special token, such as "eos" -> its name."""
    return {role: str(name) for role in ROLES if (name := getattr(tokenizer, f"{role}_token", None)) is not None}


def match(
    parent: PreTrainedTokenizerBase, child: PreTrainedTokenizerBase, sides: Sequence[str], side: str
) -> torch.Tensor:
    """The id of the parent's token that each token of the child continues, or -1 (V,)."""
    # Pieces are matched by what they spell, special tokens by their role, other added tokens by name; a piece is
    # looked for in the first of the parent's `sides` first.
    ours, theirs = vocabulary_of(child, side), [vocabulary_of(parent, each) for each in sides]
    roles = roles_of(parent)
    names = {name: roles[role] for role, name in roles_of(child).items() if role in roles}
    rows = torch.full((ours.size,), -1)
    for each in reversed(theirs):
        spelled, named = each.by_spelling(), {**each.pieces, **each.added}
        spelt = [(index, each) for name, index in ours.pieces.items() for each in spellings(ours.kind, name)]
        found = {index: spelled.get(spelling) for index, spelling in spelt}
        found |= {index: named.get(names.get(name, name)) for name, index in ours.added.items()}
        for index, row in found.items():
            if row is not None:
                rows[index] = row
    return rows


def matches(config: PreTrainedConfig, parent: Any, child: Any) -> dict[str, torch.Tensor]:
    """Side -> the rows that `match` finds; only the target where a model of this config has one vocabulary."""
    if config.source_vocab_size is None:
        return {"target": match(parent, child, ("target", "source"), "target")}
    return {side: match(parent, child, (side,), side) for side in ("source", "target")}


def describe_transfer(run: RunArguments, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """A sentence about the vectors that a model gets from its parent, for a run whose model has another vocabulary."""
    if run.model.tokenizer != "new":
        return []
    name = str(run.model.model_name_or_path)
    found = matches(open_config(name), open_tokenizer(name), tokenizer)
    parts = [
        f"{int((rows >= 0).sum()):,} of {len(rows):,} {side + ' ' if len(found) == 2 else ''}pieces"
        for side, rows in found.items()
    ]
    return [f"{' and '.join(parts)} have the vectors of the parent model; those of the others were drawn."]


def transfer(model: Any, parent: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a model that `check_transfer` allows another vocabulary."""
    # Tokens that its tokenizer `parent` has, too, keep their rows of the embeddings, of the output and of its bias.
    # The rows of new ones are drawn from a normal distribution with the parent's mean and deviation of each dimension
    # (Hewitt 2021), so that the layers see vectors of the size that they know; new biases are the parent's mean.
    rows = matches(model.config, parent, tokenizer)
    target = rows["target"]
    source = rows.get("source", target)
    places = [
        (model.get_encoder().get_input_embeddings, "weight", source),
        (model.get_decoder().get_input_embeddings, "weight", target),
        (model.get_output_embeddings, "weight", target),
        (model.get_output_embeddings, "bias", target),
    ]
    before = [
        None if (old := getattr(find(), name, None)) is None else old.detach().clone() for find, name, _ in places
    ]
    _set_ids(model, target)
    model.resize_token_embeddings(len(target), mean_resizing=False)
    if "source" in rows:
        model.resize_source_token_embeddings(len(source), mean_resizing=False)
    filled = set[int]()
    for (find, name, ids), old in zip(places, before):
        if old is not None and (new := getattr(find(), name)).data_ptr() not in filled:  # tied ones are one matrix
            filled.add(new.data_ptr())
            _fill(new, old, ids)


@torch.no_grad()
def _fill(new: torch.Tensor, old: torch.Tensor, rows: torch.Tensor) -> None:
    """Rows of the old matrix or bias (V, …) where `rows` names one, else drawn, into the new one (V', …)."""
    is_kept = rows >= 0
    if new.dim() == 1:
        new[~is_kept] = old.mean()
    else:
        drawn = torch.randn(int((~is_kept).sum()), new.shape[1])
        new[~is_kept] = old.mean(0) + drawn * old.std(0)
    new[is_kept] = old[rows[is_kept]]


def _set_ids(model: PreTrainedModel, rows: torch.Tensor) -> None:
    """The ids of the special tokens in the configs of a model are those of its new vocabulary."""
    new_ids = {row: index for index, row in enumerate(rows.tolist()) if row >= 0}
    config, search = model.config, model.generation_config
    for name in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
        for holder in (config, search):
            setattr(holder, name, _translated(getattr(holder, name, None), new_ids))
    for name in ID_FIELDS:
        setattr(search, name, _translated(getattr(search, name, None), new_ids))
    words = search.bad_words_ids or ()
    search.bad_words_ids = [found for phrase in words if (found := _translated_phrase(phrase, new_ids))] or None
    biases: Any = search.sequence_bias or {}  # phrase -> bias, in a file a list of both
    pairs = biases.items() if isinstance(biases, dict) else biases
    search.sequence_bias = [
        [found, bias] for phrase, bias in pairs if (found := _translated_phrase(phrase, new_ids))
    ] or None


def _translated_phrase(phrase: Sequence[int], new_ids: Mapping[int, int]) -> list[int] | None:
    """The ids of a phrase in the new vocabulary; None if that has not all of them."""
    found = [new_ids[index] for index in phrase if index in new_ids]
    return found if len(found) == len(phrase) else None


def _translated(ids: Any, new_ids: Mapping[int, int]) -> Any:
    """An id or a list of ids in the new vocabulary; None for what it does not have."""
    if isinstance(ids, list):
        return [new_ids[index] for index in ids if index in new_ids] or None
    return new_ids.get(ids)
