"""A model in the explorer: its card, tokens as text, copies with parts switched off, and passes over a pair."""

import json
import os
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from huggingface_hub import hf_hub_download, metadata_load

from ..common.hub_waits import bounded_waits
from ..common.opening import DAMAGE, HUB_TIMEOUT, is_own
from ..common.settings import read_text
from ..common.white_space import normalize_space
from ..model.config.attention_kinds import attends_to_pieces
from ..publishing.model_card import CardFacts
from ..translation.scoring.alignment import with_eager_attention
from ..translation.scoring.scoring import shift_right
from ..translation.text.texts import TARGET_LANG_TAGS, token_reader
from .interventions import Copy, copy_without, hooked, parts_of
from .requests import PairRequest, Request, RequestError, shown
from .results import Piece


T = TypeVar("T")

# Tokens of the longest source or target.
MOST_PIECES = 512
# What decoding gives for bytes that are not a whole letter.
CUT = "\N{REPLACEMENT CHARACTER}"
# Tokens that a letter may be cut into, with those of its neighbours.
MOST_PARTS = 8
SIGNS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"}
# They join letters and pictures, and are seen by what they do.
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
CARD = "README.md"
# How the template of cards calls a model: the example is the first string, "..." where there was none.
CALL = re.compile(r'^(?:batch = tokenizer\(\[|print\(pipeline\(.*\)\()("(?:[^"\\]|\\.)*")', re.MULTILINE)


class Recent:
    """A cache of the last few results of a computation."""

    def __init__(self, size: int):
        self.size, self.kept = size, OrderedDict[Hashable, Any]()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result for `key`, computed if it is not cached."""
        if key not in self.kept:
            self.kept[key] = make()
        self.kept.move_to_end(key)
        while len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return self.kept[key]


# ------------------------------------------------------------------------ what a card says, which the page shows first


@dataclass(frozen=True)
class Card:
    """What a card says; empty where it says nothing."""

    example: str = ""
    languages: tuple[str, ...] = ()  # The source's and the target's, or those of text without pairs
    corpus: str = ""
    pairs: int | None = None


def card_of(name: str | os.PathLike) -> Card:
    """The card of a saved folder or a Hub repository; empty if it cannot be read: a model opens without it."""
    facts = CardFacts()
    with suppress(*DAMAGE), bounded_waits():
        folder = Path(name)
        facts = CardFacts.read(folder) if folder.is_dir() else facts
        example, pair = facts.example or "", (facts.source_lang, facts.target_lang)
        languages = [str(one) for one in (pair if all(pair) else facts.languages)]
        if not example:
            if not folder.is_dir():
                folder = Path(hf_hub_download(str(name), CARD, etag_timeout=HUB_TIMEOUT)).parent
            if (folder / CARD).is_file() and (call := CALL.search(read_text(folder / CARD))):
                example = "" if call[1] == '"..."' else str(json.loads(call[1]))
                found = (metadata_load(folder / CARD) or {}).get("language") or []
                languages = languages or [str(one) for one in ([found] if isinstance(found, str) else found)]
        "".join((example, *languages)).encode()  # half of a character, which no page can hold, is an error
        return Card(example, tuple(languages), facts.corpus or "", facts.pairs)
    return Card()


# ------------------------------------------------------------------------------------------------------ tokens as text


def visible(text: str) -> str:
    """A text in which every character can be seen: "⏎" for a line break, "U+200B" for one without width."""
    if not text.strip(" "):
        return SIGNS[" "] * max(1, len(text))
    inner = text.strip(" ")
    return inner if inner.isalnum() else "".join(sign(one, is_alone=len(inner) == 1) for one in inner)


def sign(character: str, is_alone: bool) -> str:
    """What is shown for a character."""
    if character in SIGNS:
        return SIGNS[character] if character != " " else " "
    is_seen = unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp", "Zs")
    is_seen = is_seen or (character in JOINERS and not is_alone)
    return character if is_seen else f"U+{ord(character):04X}"


class PieceReader:
    """Tokens of a tokenizer as pieces; `special` are ids of its special tokens."""

    def __init__(self, tokenizer: Any, special: set[int]):
        self.tokenizer, self.special = tokenizer, special
        self.read_raw = token_reader(tokenizer)
        self._pieces: dict[tuple[bool, int | None, int], Piece] = {}

    def piece(self, context: Sequence[int], index: int, is_source: bool = False) -> Piece:
        """The piece `index` behind the tokens `context`."""
        before = context[-1] if context else None
        key = (is_source, before, index)
        if key not in self._pieces:
            self._pieces[key] = self._read(before, index, self._decoder(is_source))
        found = self._pieces[key]
        return self._joined(found, context, is_source) if CUT in found.text and not found.special else found

    def pieces(self, ids: Sequence[int], is_source: bool = False, context: Sequence[int] = ()) -> list[Piece]:
        """The tokens of these ids behind `context`; all those that make a letter have its text."""
        whole = [*context, *ids]
        start = len(context)
        found = [self.piece(whole[:place], whole[place], is_source) for place in range(start, len(whole))]
        for place, last in enumerate(found):
            for part in range(1, last.parts):
                if (earlier := place - last.parts + part) >= 0:
                    found[earlier] = replace(found[earlier], text=last.text, part=part, parts=last.parts)
        return found

    def _decoder(self, is_source: bool) -> Callable[[list[int]], str]:
        tokenizer = self.tokenizer
        return getattr(tokenizer, "decode_source", tokenizer.decode) if is_source else tokenizer.decode

    def _read(self, before: int | None, index: int, decode: Callable[[list[int]], str]) -> Piece:
        """A piece by itself."""
        special, continues = index in self.special, False
        if not (special or before is None or before in self.special):
            start = decode([before])
            continues = not decode([before, index])[len(start) :][:1].isspace()
        text = decode([index])
        return Piece(index, text if special else visible(text), special, continues, 1, 1)

    def _joined(self, piece: Piece, context: Sequence[int], is_source: bool) -> Piece:
        """A piece of bytes as the letter that it ends, or, if it ends none, as its bytes."""
        decode = self._decoder(is_source)
        for count in range(1, min(MOST_PARTS, len(context) + 1)):
            before = [*context[len(context) - count :]]
            if self.special & {*before}:
                break
            if CUT not in (text := decode([*before, piece.id])):
                return replace(piece, text=visible(text), part=count + 1, parts=count + 1)
        if is_source:
            return piece
        (raw,) = self.read_raw([self.tokenizer.convert_ids_to_tokens(piece.id)])
        return replace(piece, text=visible(raw))


# ----------------------------------------------------------------------------------------------------------- the model


class Subject:
    """A model in evaluation mode and its tokenizer; copies use eager attention, which returns its weights."""

    kind = "translation"  # of one stack "causal", which continues a text, or "masked", which fills gaps
    reads = "text"  # or "speech" or "image" (`file_sources.py`)
    lens_stack = "decoder"  # the stack whose layers predict

    def __init__(self, name: str, model: Any, tokenizer: Any, card: Card | None = None):
        self.name, self.model, self.tokenizer = name, model.eval(), tokenizer
        self.card = card or Card()
        self.example = self.card.example
        self.is_ours = is_own(model.config)
        self.special = {*tokenizer.all_special_ids}
        reader = PieceReader(tokenizer, self.special)
        self.piece, self.pieces = reader.piece, reader.pieces
        self._copies, self._passes = Recent(4), Recent(3)

    # Text and tokens

    @property
    def target_langs(self) -> dict[str, str]:
        """Languages that a multilingual model translates to, and their tags."""
        return self.tokenizer.init_kwargs.get(TARGET_LANG_TAGS) or {}

    def read_source(self, request: Any) -> dict[str, torch.Tensor]:
        """The source of a request, as the encoder reads it: `input_ids` and `attention_mask` (1, S)."""
        text, language = self._as_read(request.text), getattr(request, "target_lang", "")
        if language and language not in self.target_langs:
            known = ", ".join(self.target_langs) or "none: the model has no target languages"
            raise RequestError("target_lang", f"{shown(language)!r} is not one of this model: expected {known}")
        if not text.strip():
            raise RequestError("text", "is empty: type a sentence")
        batch = self.tokenizer([self.target_langs.get(language, "") + text], return_tensors="pt")
        positions = getattr(self.model.config, "max_position_embeddings", None) or MOST_PIECES
        # Translations of texts that are longer than in training lose text.
        limit = min(MOST_PIECES, positions, self.tokenizer.model_max_length)
        if (count := batch["input_ids"].shape[1]) > limit:
            values = {"count": count, "most": limit}
            raise RequestError("text", f"has {count} tokens; expected at most {limit}: shorten it", "too_long", values)
        return {name: batch[name].to(self.model.device) for name in ("input_ids", "attention_mask")}

    def source_pieces(self, source: dict[str, torch.Tensor]) -> list[Piece]:
        """A piece for each position of the encoder."""
        return self.pieces(source["input_ids"][0].tolist(), is_source=True)

    def source_key(self, source: dict[str, torch.Tensor]) -> Hashable:
        """What tells this source from others."""
        return tuple(source["input_ids"][0].tolist())

    def read_target(self, text: str) -> list[int]:
        """Token ids of a target, its end included."""
        text = self._as_read(text)
        if not text.strip():
            raise RequestError("target", "is empty: type a translation")
        return self.check_target(self.tokenizer(text_target=[text])["input_ids"][0], "target")

    def _as_read(self, text: str) -> str:
        """A text as translation gives it to the model, in one line: a page shows one pass through the model."""
        return normalize_space(text) if self.kind == "translation" else text

    def check_target(self, ids: list[int], field: str) -> list[int]:
        positions = getattr(self.model.config, "decoder_max_position_embeddings", None)
        positions = positions or getattr(self.model.config, "max_position_embeddings", None) or MOST_PIECES
        if len(ids) > (limit := min(MOST_PIECES, positions)):
            raise RequestError(field, f"has {len(ids)} tokens; expected at most {limit}")
        if wrong := [index for index in ids if not 0 <= index < self.model.config.vocab_size]:
            raise RequestError(
                field, f"{shown(wrong[0])} is not a token id: expected 0 to {self.model.config.vocab_size - 1}"
            )
        return ids

    @property
    def start(self) -> int:
        """Token id that the decoder begins with."""
        return int(shift_right(self.model, torch.zeros(1, 1, dtype=torch.long))[0, 0])

    @property
    def ends(self) -> set[int]:
        """Token ids that end a sentence."""
        ends = self.model.generation_config.eos_token_id
        return set() if ends is None else {*ends} if isinstance(ends, list) else {ends}

    # Computations

    def copy(self, off: list[str]) -> Copy:
        """The model with eager attention and with parts switched off."""
        if off and not self.is_ours:
            raise RequestError("off", f"a {self.model.config.model_type} model cannot be changed here")
        return self._copies.get(frozenset(off), lambda: copy_without(with_eager_attention(self.model), off))

    @torch.no_grad()
    def forced(self, request: PairRequest, needs_ours: bool = False) -> "Pass":
        """The pass over a source and a given target; an error where it `needs_ours`, a model of this package."""
        if needs_ours:
            check_ours(self, request)
        source, ids = self.read_source(request), self.check_target(request.target_ids, "target_ids")
        key = (tuple(request.off), self.source_key(source), tuple(ids))
        return self._passes.get(key, lambda: self._run(self.copy(request.off), source, ids))

    def _run(self, copy: Copy, source: dict[str, torch.Tensor], ids: list[int]) -> "Pass":
        if not ids:
            raise RequestError("target_ids", "is empty: translate first, or give the ids of a target")
        read = torch.tensor([[self.start, *ids[:-1]]], device=self.model.device)
        inputs = {**source, "decoder_input_ids": read}
        predicted = self.pieces(ids, context=[self.start])
        read_pieces = [self.piece((), self.start), *predicted[:-1]]
        return Pass.of(copy, inputs, self.source_pieces(source), read_pieces, predicted)

    def before(self, source: dict[str, torch.Tensor]) -> int:
        """Token id before the first of a target."""
        return self.start

    def as_last_layer(self, copy: Copy, states: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, V) of the output of any layer (B, T, D), as if it were the last."""
        return copy.model.get_output_embeddings()(copy.model.get_decoder().layer_norm(states))

    def logits(self, copy: Copy, source: dict[str, torch.Tensor], rows: list[list[int]]) -> Iterator[torch.Tensor]:
        """For each row of ids the logits of each step (T, V) while the model predicts them."""
        memory, mask = copy.model.get_encoder()(**source, return_dict=True), source.get("attention_mask")
        for ids in rows:
            read = torch.tensor([[self.start, *ids[:-1]]], device=self.model.device)
            outputs = copy.model(encoder_outputs=memory, attention_mask=mask, decoder_input_ids=read, use_cache=False)
            yield outputs.logits[0].float()


class Recorded(NamedTuple):
    """Inputs and outputs of modules in one pass, without the batch."""

    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]


@dataclass
class Pass:
    """A forward pass over a source and a given target."""

    copy: Copy  # The model
    inputs: dict[str, torch.Tensor]  # What it reads
    outputs: Any  # transformers' outputs, with attentions
    # source_pieces, read, predicted: Tokens that the encoder reads (S), that the decoder reads (T), and that it
    # predicts (T)
    source_pieces: list[Piece]
    read: list[Piece]
    predicted: list[Piece]

    @classmethod
    def of(cls, copy: Copy, inputs: dict[str, torch.Tensor], *pieces: list[Piece]) -> "Pass":
        """The pass over these inputs."""
        made = cls(copy, inputs, None, *pieces)
        made.outputs = made.again()
        return made

    @torch.no_grad()
    def again(self) -> Any:
        """Run the same pass again, for hooks."""
        options = {"use_cache": False} if self.copy.model.config.is_encoder_decoder else {}
        return self.copy.model(**self.inputs, output_attentions=True, return_dict=True, **options)

    def record(self, modules: dict[str, Any]) -> Recorded:
        """The inputs and outputs of modules, by name, in the same pass."""
        seen = Recorded({}, {})

        def watch(name: str) -> Any:
            def keep(module: Any, arguments: tuple, options: dict, output: Any) -> None:
                states = arguments[0] if arguments else next(iter(options.values()))
                seen.inputs[name] = states[0].detach().float()
                seen.outputs[name] = (output[0] if isinstance(output, tuple) else output)[0].detach().float()

            return keep

        with hooked(*(one.register_forward_hook(watch(name), with_kwargs=True) for name, one in modules.items())):
            self.again()
        return seen

    def sides(self, part: str) -> tuple[list[Piece], list[Piece], list[Piece]]:
        """Rows, predicted tokens of the rows, and columns of a part of attention."""
        if part == "encoder":
            return self.source_pieces, [], self.source_pieces
        return self.read, self.predicted, self.read if part == "decoder" else self.source_pieces

    def attentions(self, part: str) -> tuple[torch.Tensor, ...]:
        """Weights (1, H, rows, columns) of each layer that is not switched off."""
        if part not in parts_of(self.copy.model):
            known = ", ".join(parts_of(self.copy.model))
            raise RequestError("part", f"{part!r} is not one of this model: expected {known}")
        name = "cross_attentions" if part == "cross" else f"{part}_attentions"
        name = name if self.copy.model.config.is_encoder_decoder else "attentions"
        if not attends_to_pieces(self.copy.model.config, part):
            raise RequestError(
                "part", f"the {part} part attends to sums of tokens (linformer or encoder_pooling), not to tokens"
            )
        found = getattr(self.outputs, name, None)
        if not found or any(layer is None for layer in found):
            raise RequestError("part", f"{type(self.copy.model).__name__} does not return weights of its {part} part")
        return found


def check_ours(subject: Subject, request: Request) -> None:
    if not subject.is_ours:
        what = f"{request.model or subject.name} is a {subject.model.config.model_type} model"
        raise RequestError("model", f"{what}: only its attention and attributions can be shown")
