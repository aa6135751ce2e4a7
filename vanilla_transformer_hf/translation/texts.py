"""Texts to token ids, also texts that are too long for a model, and to batches with a limit of tokens."""

import codecs
import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeGuard

import torch
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..common.too_long import TooLongToTranslate, check_too_long
from .splitting import split_text
from .tally import SENSIBLE_SOURCE, Tally


# Padded source tokens and sentences of a batch by default (measured on two cores).
BATCH_TOKENS, BATCH_SENTENCES = 2048, 128


# Key of a tokenizer's settings: the length that most training sources did not exceed, in tokens.
PART_MAX_LENGTH = "part_max_length"


# Key of a tokenizer's settings: target language -> the tag that sources begin with.
TARGET_LANG_TAGS = "target_lang_tags"
# How language tags of tokenizers look that do not say which of their tokens are.
LANGUAGE_TAG = re.compile(r">>[^\s<>]+<<|<2\w+>|<[a-z]{2}([_-]\w+)?>|__[a-z]{2,3}(_\w+)?__")


# What is done with a text without letters: it is its own translation, is translated and marked, or is translated.
WithoutLetters = Literal["copy", "mark", "translate"]


def text_tags(tokenizer: Any) -> set[str]:
    """
    The language tags that a tokenizer recognises in a text: its `target_lang_tags`, or the added tokens, and
    MarianMT's language codes, that look like some.
    """
    if registered := tokenizer.init_kwargs.get(TARGET_LANG_TAGS):
        return {tag.strip() for tag in registered.values()}
    names = {*tokenizer.added_tokens_encoder, *getattr(tokenizer, "supported_language_codes", ())}
    return {name for name in names - set(tokenizer.special_tokens_map.values()) if LANGUAGE_TAG.fullmatch(name)}


class ConstrainedText(str):
    """
    A text to translate (a `str`) with the required prefix and phrases of its translation.

    Attributes:
        prefix: How the translation begins.
        phrases: Phrases that it must contain, in any order; empty phrases are ignored.
    """

    prefix: str
    phrases: list[str]

    def __new__(cls, text: str, prefix: str = "", phrases: Sequence[str] = ()) -> "ConstrainedText":
        constrained = super().__new__(cls, text)
        phrases = [phrases] if isinstance(phrases, str) else phrases
        constrained.prefix, constrained.phrases = prefix.strip(), [each.strip() for each in phrases if each.strip()]
        return constrained


def has_letters(text: str) -> bool:
    """Whether a text has a letter of any script; "12:30", "***" and emoji have none."""
    return any(map(str.isalpha, text))


def is_constrained(text: str) -> TypeGuard[ConstrainedText]:
    """Whether a text has a prefix or phrases for its translation."""
    return isinstance(text, ConstrainedText) and bool(text.prefix or text.phrases)


class TextError(ValueError):
    """
    A text that is invalid.

    Attributes:
        place: Index of the text.
    """

    def __init__(self, place: int, reason: str):
        super().__init__(place, reason)
        self.place, self.reason = place, reason

    def __str__(self) -> str:
        return self.reason


@dataclass
class Part:
    """
    A part of a text that goes through the model at once: usually the whole text.

    Attributes:
        text: The characters.
        ids: Their token ids, special tokens included.
        first_word: Index, by white space, of the whole text's word in which the part begins.
        repeated_words: Number of words, such as a language tag, that were put before the part from the text's
            beginning.
        prefix, phrases: Target token ids of what its translation must begin with and contain.
    """

    text: str
    ids: list[int]
    first_word: int = 0
    repeated_words: int = 0
    prefix: list[int] = field(default_factory=list)
    phrases: list[list[int]] = field(default_factory=list)


class TextEncoder:
    """
    Texts to token ids of at most `limit` tokens, for one side of a model.

    Args:
        tokenizer: What encodes.
        limit: Maximum number of tokens of a text.
        too_long: Treatment of a longer text: "split", "truncate", "error" or "whole".
        is_target: Whether the texts are of the target language.
        prefix: Text put before each text, such as the tag of the target language.
        part_limit: Maximum number of tokens of a part of a sentence that is too long; the `limit`, if not given.
        is_guess: Whether the lengths of the training sentences are unknown, so that long texts are counted as
            doubtful.
        positions: Maximum number of tokens of a text that goes through the model whole.
        skips_without_letters: Whether a text without letters has no parts, as white space has none.

    Raises:
        ValueError: `too_long` has another value.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        limit: int,
        too_long: str,
        is_target: bool = False,
        is_guess: bool = False,
        prefix: str = "",
        part_limit: int | None = None,
        positions: float = math.inf,
        skips_without_letters: bool = False,
    ):
        self.positions, self._skips_without_letters = positions, skips_without_letters
        self.limit, self.too_long = limit, check_too_long(too_long, TooLongToTranslate)
        self.part_limit, self._is_guess = limit if part_limit is None else min(part_limit, limit), is_guess
        self._prefix = prefix
        self._tokenizer, self._argument = tokenizer, "text_target" if is_target else "text"

    @cached_property
    def _frame(self) -> list[int]:
        """The special tokens that the tokenizer adds to each text, before and behind it."""
        return self.ids([""])["input_ids"][0]

    @property
    def around(self) -> int:
        """Number of special tokens that the tokenizer adds to each text."""
        return len(self._frame)

    def kept(self, ids: Sequence[int]) -> list[int]:
        """
        The places of the tokens that truncation to `limit` leaves of a text's ids: its first, or last if that is the
        tokenizer's `truncation_side`, with the special tokens around them.

        The tokenizer is not asked to truncate: those of transformers keep that in a state that all threads share.
        """
        alike = (one == other for one, other in zip(reversed(ids), reversed(self._frame)))
        behind = sum(itertools.takewhile(bool, alike))
        first, last = self.limit - behind, behind
        if self._tokenizer.truncation_side == "left":
            first = self.around - behind
            last = self.limit - first
        return [*range(first), *range(len(ids) - last, len(ids))]

    def ids(self, texts: Sequence[str], **options: Any) -> Any:
        """The tokenizer's output for texts: `input_ids` and what the options request."""
        # verbose=False: the tokenizer would log the length of the first over-long text as an error.
        texts = [self._prefix + text for text in texts]
        encoded = self._tokenizer(**{self._argument: texts}, verbose=False, **options)
        if self._prefix and "offset_mapping" in encoded:  # the prefix gets (0, 0), as special tokens
            shift = len(self._prefix)
            encoded["offset_mapping"] = [
                [(max(0, start - shift), max(0, end - shift)) for start, end in places]
                for places in encoded["offset_mapping"]
            ]
        return encoded

    def tags_before(self, text: str) -> str:
        """The language tags with which a text begins, and the white space behind them: they hold for all its parts."""
        tags = self._tag_pattern.match(text)
        return tags[0] if tags else ""

    @cached_property
    def _tag_pattern(self) -> re.Pattern[str]:
        names = "|".join(map(re.escape, sorted(text_tags(self._tokenizer), key=len, reverse=True)))
        return re.compile(rf"(?:\s*(?:{names}))+\s*" if names else r"(?!)")

    def _skips(self, text: str, tally: Tally | None) -> bool:
        is_skipped = self._skips_without_letters and not is_constrained(text)
        is_skipped = is_skipped and not has_letters(text.removeprefix(self.tags_before(text)))
        if is_skipped and tally is not None:
            tally.add(without_letters=1)
        return is_skipped

    def refuse_unless(self, too_long: str, text: str, length: int, side: str = "") -> None:
        """
        Raises:
            ValueError: `self.too_long` is another choice; the message names the text and its length.
        """
        if self.too_long != too_long:
            raise ValueError(
                f"{side}{text[:40]!r}… has {length} tokens and at most {self.limit} go through the model at once; "
                f"too_long={too_long!r} would allow it"
            )

    def refuse_unless_fits(self, text: str, length: int, side: str = "") -> None:
        """
        Raises:
            ValueError: A text of so many tokens is longer than the model can take; the message names it.
        """
        if length > self.positions:
            raise ValueError(
                f"{side}{text[:40]!r}… has {length} tokens, and the model has {self.positions} positions: it cannot "
                "go through the model whole"
            )

    def __call__(self, texts: Sequence[str], tally: Tally | None = None) -> list[list[Part]]:
        """
        The parts of each text: an empty list for white space, and for what `skips_without_letters` leaves out;
        several parts for a text that had to be split.

        Raises:
            TypeError: A text is not a `str`.
            TextError: A text is too long, and `too_long` is "error"; or it is "whole", and the text has more tokens
                than the model has positions.
        """
        check_texts(texts)
        filled = [place for place, text in enumerate(texts) if text.strip() and not self._skips(text, tally)]
        parts: list[list[Part]] = [[] for _ in texts]
        encoded = self.ids([texts[place] for place in filled])["input_ids"] if filled else []
        for place, ids in zip(filled, encoded, strict=True):
            parts[place] = [Part(texts[place], ids)] if ids else []
            if len(ids) > self.limit:
                with placed(place):
                    parts[place] = PARTS_OF[self.too_long](self, parts[place][0])
                if tally is not None:
                    tally.add(too_long=1)
            elif self._is_guess and len(ids) > SENSIBLE_SOURCE and tally is not None:
                tally.add(doubtful=1)
        return parts


@contextmanager
def placed(place: int) -> Iterator[None]:
    """A context that turns a `ValueError` into a [`TextError`] of the text at this index."""
    try:
        yield
    except ValueError as error:
        raise TextError(place, str(error)) from error


def check_texts(texts: Sequence[Any]) -> None:
    """
    Raises:
        TypeError: A text is not a `str`.
    """
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"cannot translate {type(text).__name__} {str(text)[:40]!r}: each text must be a str")


def truncate(encoder: TextEncoder, whole: Part) -> list[Part]:
    """The first tokens, and the special tokens after them."""
    return [Part(whole.text, [whole.ids[place] for place in encoder.kept(whole.ids)])]


def refuse(encoder: TextEncoder, whole: Part) -> list[Part]:
    """
    Raises:
        ValueError: Always; the message has the text and its length.
    """
    encoder.refuse_unless("split", whole.text, len(whole.ids))
    return [whole]


def keep_whole(encoder: TextEncoder, whole: Part) -> list[Part]:
    """
    The whole text.

    Raises:
        ValueError: It is longer than the model can take.
    """
    encoder.refuse_unless_fits(whole.text, len(whole.ids))
    return [whole]


def split(encoder: TextEncoder, whole: Part) -> list[Part]:
    """The parts of a text: its sentences, with sentences that are too long split further."""
    text = whole.text

    def count(texts: Sequence[str]) -> list[int]:
        return [len(ids) - encoder.around for ids in encoder.ids(texts)["input_ids"]]

    tags = encoder.tags_before(text)
    taken = encoder.around + (count([tags])[0] if tags else 0)
    limit, part_limit = (max(1, most - taken) for most in (encoder.limit, encoder.part_limit))
    spans = [
        (start + len(tags), end + len(tags)) for start, end in split_text(text[len(tags) :], limit, count, part_limit)
    ]
    starts = [found.start() for found in re.finditer(r"\S+", text)]
    texts = [tags + text[start:end] for start, end in spans]
    encoded = encoder.ids(texts)["input_ids"]
    repeated = len(f"{tags}.".split()) - 1  # a tag without a space behind it is no word of its own
    return [
        Part(part, ids, bisect_right(starts, start) - 1, repeated)
        for (start, _), part, ids in zip(spans, texts, encoded, strict=True)
    ]


# A value of `too_long` -> (encoder, whole text) -> its parts.
PARTS_OF: dict[str, Callable[[TextEncoder, Part], list[Part]]] = {
    "split": split,
    "truncate": truncate,
    "error": refuse,
    "whole": keep_whole,
}


def sorted_batches(
    lengths: Sequence[int], batch_size: int | None = None, batch_tokens: int | None = None
) -> Iterator[list[int]]:
    """
    Indices of `lengths` in batches of similar lengths.

    Longest first: a lack of memory shows at once, and the remaining time is not underestimated.

    Args:
        lengths: Tokens of each sentence.
        batch_size: Maximum number of sentences of a batch.
        batch_tokens: Maximum number of tokens of a batch, padding included; a longer sentence is its own batch. If
            only one of the two is given, the other is unlimited; if neither is, 2,048 tokens and 128 sentences.

    Raises:
        ValueError: A limit is below 1.
    """
    limits = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    for name, limit in limits.items():
        if limit is not None and limit < 1:
            raise ValueError(f"{name}={limit}: must be at least 1")
    if batch_size is None and batch_tokens is None:
        batch_size, batch_tokens = BATCH_SENTENCES, BATCH_TOKENS
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    while order:
        rows = len(order) if batch_size is None else batch_size
        if batch_tokens is not None:
            rows = min(rows, max(1, batch_tokens // max(1, lengths[order[0]])))
        yield order[:rows]
        order = order[rows:]


def pad_rows(rows: Sequence[Sequence[int]], value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids as a tensor (B, S), padded with `value`, and a mask (B, S) that is 1 for ids; S is at least 1."""
    width = max(1, *map(len, rows))
    ids = torch.full((len(rows), width), value)  # (B, S)
    mask = torch.zeros_like(ids)  # (B, S)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[place, : len(row)] = 1
    return ids, mask


def token_reader(tokenizer: Any) -> Callable[[Sequence[str]], list[str]]:
    """
    A function from pieces of the target vocabulary to readable text: pieces of byte-level vocabularies ("dreiÃŁig")
    are decoded one by one, with the bytes of incomplete characters as in SentencePiece, "<0xC3>"; others are
    unchanged.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.decoder is None or b'"ByteLevel"' not in backend.decoder.__getstate__():
        return list
    values = {character: value for value, character in bytes_to_unicode().items()}
    added = tokenizer.added_tokens_encoder

    def read(token: str) -> str:
        if token in added or not all(character in values for character in token):
            return token
        return bytes(values[character] for character in token).decode("utf-8", "byte_pieces")

    return lambda tokens: [read(token) for token in tokens]


def _as_byte_pieces(error: UnicodeError) -> tuple[str, int]:
    """An error handler of `bytes.decode`: each byte that cannot be decoded as "<0xC3>"."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(f"<0x{value:02X}>" for value in error.object[error.start : error.end]), error.end


codecs.register_error("byte_pieces", _as_byte_pieces)
