"""
Texts to token ids, also texts that are too long for a model, and to batches with a limit of tokens.

Nothing heavy is imported: a command translates with neither torch nor transformers (`kept_copy.py`).
"""

import codecs
import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from ...common.choices import TooLongToTranslate, check_choice
from ...common.white_space import as_text, word_starts
from ...model.tokenizer.failures import failing_in_one_line
from .splitting import Part, split_parts, split_text
from .tally import SENSIBLE_SOURCE, Tally


if TYPE_CHECKING:
    import torch


# Padded source tokens and sentences of a batch by default (measured on two cores).
BATCH_TOKENS, BATCH_SENTENCES = 2048, 128


# Key of a tokenizer's settings: the length that most training sources did not exceed, in tokens.
PART_MAX_LENGTH = "part_max_length"


# Key of a tokenizer's settings: target language -> the tag that sources begin with.
TARGET_LANG_TAGS = "target_lang_tags"
# The forms of language tags, for tokenizers that do not record which of their tokens are.
LANGUAGE_TAG = re.compile(r">>[^\s<>]+<<|<2\w+>|<[a-z]{2}([_-]\w+)?>|__[a-z]{2,3}(_\w+)?__")


# What is done with a text without letters: it is its own translation, is translated and marked, or is translated.
WithoutLetters = Literal["copy", "mark", "translate"]


def text_tags(tokenizer: Any) -> set[str]:
    """A tokenizer's language tags in texts: its `target_lang_tags`, or tokens and codes that look like one."""
    if registered := tokenizer.init_kwargs.get(TARGET_LANG_TAGS):
        return {tag.strip() for tag in registered.values() if tag.strip()}
    names = {*tokenizer.added_tokens_encoder, *getattr(tokenizer, "supported_language_codes", ())}
    return {name for name in names - set(tokenizer.special_tokens_map.values()) if LANGUAGE_TAG.fullmatch(name)}


class LanguageTags:
    """The language tags that a tokenizer recognises (`text_tags`), found where a text begins."""

    def __init__(self, tokenizer: Any):
        names = "|".join(map(re.escape, sorted(text_tags(tokenizer), key=len, reverse=True)))
        self._pattern = re.compile(rf"(?:\s*(?:{names})){{1,9}}\s*" if names else r"(?!)")

    def before(self, text: str) -> str:
        """The tags with which a text begins, and the white space behind them: they hold for all its parts."""
        tags = self._pattern.match(text)
        return tags[0] if tags else ""


class ConstrainedText(str):
    """
    A text to translate (a `str`) with the required prefix and phrases of its translation.

    Attributes:
        prefix: How the translation begins.
        phrases: Phrases that it must contain, in any order; empty phrases are ignored.

    Example:

    ```python
    >>> from vanilla_transformer_hf import ConstrainedText, Translator
    >>> translator = Translator.from_pretrained("model_cards/multi30k_raw_en_de")
    >>> translator.translate(ConstrainedText("Two dogs are playing.", prefix="Die beiden"))
    'Die beiden Hunde spielen.'
    ```
    """

    prefix: str
    phrases: list[str]

    def __new__(cls, text: str, prefix: str = "", phrases: Sequence[str] = ()) -> "ConstrainedText":
        constrained = super().__new__(cls, text)
        phrases = [phrases] if isinstance(phrases, str) else phrases
        constrained.prefix, constrained.phrases = prefix.strip(), [each.strip() for each in phrases if each.strip()]
        return constrained


def count_words(tags: str) -> int:
    """The number of words in the language tags before a text; one without a space behind it belongs to the next."""
    return len(f"{tags}.".split()) - 1


def has_letters(text: str) -> bool:
    """Whether a text has a letter of any script; "12:30", "***" and emoji have none."""
    return any(map(str.isalpha, text))


def is_constrained(text: str) -> TypeGuard[ConstrainedText]:
    """Whether a text has a prefix or phrases for its translation."""
    return isinstance(text, ConstrainedText) and bool(text.prefix or text.phrases)


class TextError(ValueError):
    """A text that is invalid; `place` is its index."""

    def __init__(self, place: int, reason: str):
        super().__init__(place, reason)
        self.place, self.reason = place, reason

    def __str__(self) -> str:
        return self.reason


@dataclass
class TextEncoder:
    """Texts to token ids of at most `limit` tokens, for one side of a model."""

    tokenizer: Any
    limit: int
    too_long: str  # Treatment of a longer text: "split", "truncate", "error" or "whole"
    is_target: bool = False
    is_guess: bool = False  # Whether the lengths of the training sentences are unknown: long texts are doubtful
    prefix: str = ""  # Text put before each text, such as the tag of the target language
    part_limit: int | None = None  # Most tokens of a part of a sentence that is too long; None: the `limit`
    positions: float = math.inf  # Most tokens of a text that goes through the model whole
    language: str | None = None
    in_sentences: bool = False  # Whether the sentences of a line are parts of their own, also where the line is short
    copies_without_letters: bool = False
    known: Callable[[str], str | None] | None = None  # A memory: text -> its translation, or None
    language_tags: LanguageTags | None = None  # None: those of the tokenizer

    def __post_init__(self) -> None:
        check_choice("too_long", self.too_long, TooLongToTranslate)
        self._language_tags = self.language_tags or LanguageTags(self.tokenizer)

    @cached_property
    def _frame(self) -> list[int]:
        """The special tokens that the tokenizer adds to each text, before and behind it."""
        ids: list[int] = self.ids([""])["input_ids"][0]
        return ids

    @property
    def around(self) -> int:
        """Number of special tokens that the tokenizer adds to each text."""
        return len(self._frame)

    def kept(self, ids: Sequence[int]) -> list[int]:
        """The places of the tokens that truncation to `limit` leaves, with the special tokens around them."""
        # The first of a text's ids, or the last if that is the tokenizer's `truncation_side`. The tokenizer does not
        # truncate: in those of transformers that is a state that all threads share.
        alike = (one == other for one, other in zip(reversed(ids), reversed(self._frame)))
        behind = sum(itertools.takewhile(bool, alike))
        first, last = self.limit - behind, behind
        if self.tokenizer.truncation_side == "left":
            first = self.around - behind
            last = self.limit - first
        return [*range(first), *range(len(ids) - last, len(ids))]

    def ids(self, texts: Sequence[str], **options: Any) -> Any:
        """The tokenizer's output for texts: `input_ids` and what the options request."""
        # verbose=False: the tokenizer would log the length of the first over-long text as an error.
        texts = [self.prefix + text for text in texts]
        with failing_in_one_line("cuts a text"):
            argument = "text_target" if self.is_target else "text"
            encoded = self.tokenizer(**{argument: texts}, verbose=False, **options)
        if self.prefix and "offset_mapping" in encoded:  # the prefix gets (0, 0), as special tokens
            shift = len(self.prefix)
            encoded["offset_mapping"] = [
                [(max(0, start - shift), max(0, end - shift)) for start, end in places]
                for places in encoded["offset_mapping"]
            ]
        return encoded

    def check_length(self, text: str, length: int, instead: str, side: str = "") -> None:
        """`ValueError` for a text above the limit that may not go through whole; `instead`: what would allow it."""
        if self.too_long == "whole":
            if length <= self.positions:
                return
            why = f", and the model has {self.positions} positions: it cannot go through the model whole"
        else:
            why = f" and at most {self.limit} go through the model at once; too_long={instead!r} would allow it"
        raise ValueError(f"{side}{text[:40]!r}… has {length} tokens{why}")

    def __call__(self, texts: Sequence[str], tally: Tally | None = None) -> list[list[Part]]:
        """The parts of each text: its lines, or their sentences, and the parts of those that had to be split."""
        # White space has none, nor has what is copied. A language tag holds until another one begins a line or
        # sentence.
        check_texts(texts)
        found = [self._lines(text) for text in texts]
        read = [part for parts, _ in found for part in parts if part.copied is None]
        for part, ids in zip(read, self.ids([part.text for part in read])["input_ids"] if read else []):
            part.ids = ids
        results, counts = [], {"too_long": 0, "doubtful": 0, "without_letters": 0}
        for place, (parts, after) in enumerate(found):
            with placed(place):
                own = [one for part in parts for one in self._fitting(part)]
            own, before = without_empty(own)
            if own:
                own[-1].after = before + after
            is_long = self._is_over_long(parts)
            counts["too_long"] += is_long
            searched = [part for part in parts if part.known is None]
            is_doubtful = self.is_guess and not is_long and any(len(part.ids) > SENSIBLE_SOURCE for part in searched)
            counts["doubtful"] += is_doubtful
            is_invisible = self.copies_without_letters and not parts and texts[place].strip()
            counts["without_letters"] += bool(is_invisible or any(part.copied for part in parts))
            results.append(own)
        if tally is not None:
            tally.add(**counts)
        return results

    def _lines(self, text: str) -> tuple[list[Part], str]:
        """The lines of a text, or their sentences, without tokens yet; and the white space after the last."""
        known = {} if self.known is None or is_constrained(text) else {"known": self.known}
        parts, after = split_parts(text, self.language, in_sentences=self.in_sentences, **known)
        copies = self.copies_without_letters and not is_constrained(text)
        self.repeat_tags(parts)
        for part in parts:
            body = part.text[len(part.tags) :]
            if not body or (copies and part.known is None and not has_letters(body)):
                part.copied = body
        return parts, after

    def repeat_tags(self, parts: Sequence[Part]) -> None:
        """Put the language tags before a line or sentence also before those that follow and have none of their own."""
        tags, words = "", range(0)
        for part in parts:
            if own := self._language_tags.before(part.text):
                tags = own if len(own) < len(part.text) else f"{own} "
                words = range(part.first_word, part.first_word + count_words(tags))
                part.tags = own
            elif tags:
                part.text, part.tags, part.repeated = tags + part.text, tags, words

    def _fitting(self, whole: Part) -> list[Part]:
        """A line or sentence, or its beginning, or what it is split into: its sentences, and parts of long ones."""
        if len(whole.ids) <= self.limit or whole.known is not None:
            return [whole]
        if self.too_long == "truncate":
            return [replace(whole, ids=[whole.ids[place] for place in self.kept(whole.ids)])]
        if self.too_long != "split":
            self.check_length(whole.text, len(whole.ids), "split")
            return [whole]
        tags, text = whole.tags, whole.text[len(whole.tags) :]

        def count(texts: Sequence[str]) -> list[int]:
            return [len(ids) - self.around for ids in self.ids(texts)["input_ids"]]

        taken = self.around + (count([tags])[0] if tags else 0)
        part_limit = self.limit if self.part_limit is None else min(self.part_limit, self.limit)
        limit, part_limit = (max(1, most - taken) for most in (self.limit, part_limit))
        spans = split_text(text, limit, count=count, part_limit=part_limit, language=self.language)
        first = whole.first_word + (0 if whole.repeated else count_words(tags))
        repeated = whole.repeated or range(whole.first_word, first)
        starts, texts = word_starts(text), [tags + text[start:end] for start, end in spans]
        words = [first + bisect_right(starts, start) - 1 for start, _ in spans]
        parts = [
            Part(part, ids, word, before=None, is_cut=True, repeated=repeated)
            for part, ids, word in zip(texts, self.ids(texts)["input_ids"], words, strict=True)
        ]
        parts[0].before = whole.before
        return parts

    def _is_over_long(self, parts: Sequence[Part]) -> bool:
        """Whether a line is longer than the model takes, also one that was split because it has several sentences."""
        parts = [part for part in parts if part.known is None]
        if self.too_long != "split" or not any(part.before is None for part in parts):
            return any(len(part.ids) > self.limit for part in parts)
        most, total = 0, 0
        for part in parts:
            total = max(0, len(part.ids) - self.around) + (total if part.before is None else self.around)
            most = max(most, total)
        return most > self.limit


def without_empty(parts: Sequence[Part]) -> tuple[list[Part], str]:
    """The parts that have tokens; what stands in place of the others comes before the next, the rest is the second."""
    # Such are white space at the beginning of lines, and what is copied.
    kept, before = list[Part](), ""
    for part in parts:
        if not part.ids:
            follows = part.before is None and part.copied and bool(kept or before)
            before += (" " if follows else part.before or "") + (part.copied or "")
            continue
        if before or part.before:
            goes_on = part.before is None and not before[-1:].isspace()
            part.before, before = before + (" " if goes_on else part.before or ""), ""
        kept.append(part)
    return kept, before


@contextmanager
def placed(place: int) -> Iterator[None]:
    """A context that turns a `ValueError` into a [`TextError`] of the text at this index."""
    try:
        yield
    except ValueError as error:
        raise TextError(place, str(error)) from error


def check_texts(texts: Sequence[Any]) -> None:
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"cannot translate {type(text).__name__} {str(text)[:40]!r}: each text must be a str")
        if as_text(text) != text:
            reason = f"{as_text(text)[:40]!r} has half of a character, which is not valid Unicode; remove it."
            raise TextError(place, reason)


def sorted_batches(
    lengths: Sequence[int], batch_size: int | None = None, batch_tokens: int | None = None
) -> Iterator[list[int]]:
    """Indices of `lengths` in batches of similar ones, longest first, so that a lack of memory shows at once."""
    for name, limit in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name}={limit}: must be at least 1")
    if batch_size is None and batch_tokens is None:
        batch_size, batch_tokens = BATCH_SENTENCES, BATCH_TOKENS
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    start = 0
    while start < len(order):
        rows = len(order) if batch_size is None else batch_size
        if batch_tokens is not None:
            rows = min(rows, max(1, batch_tokens // max(1, lengths[order[start]])))
        yield order[start : start + rows]
        start += rows


def pad_rows(rows: Sequence[Sequence[int]], value: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """Rows of ids as a tensor (B, S), padded with `value`, and a mask (B, S) that is 1 for ids; S is at least 1."""
    import torch

    width = max(1, *map(len, rows))
    ids = torch.full((len(rows), width), value)  # (B, S)
    mask = torch.zeros_like(ids)  # (B, S)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[place, : len(row)] = 1
    return ids, mask


def token_reader(tokenizer: Any) -> Callable[[Sequence[str]], list[str]]:
    """A function from target tokens to readable text: those of byte-level vocabularies ("dreiÃŁig") are decoded."""
    # One by one, with the bytes of incomplete characters as in SentencePiece, "<0xC3>"; others are unchanged.
    from transformers.convert_slow_tokenizer import bytes_to_unicode

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
