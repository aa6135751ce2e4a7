"""Translations: search results as text, and the joining of a long text's parts."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import category, east_asian_width

from ..common.white_space import EDGES, word_starts
from ..model.tokenizer.failures import failing_in_one_line
from .text.splitting import Part
from .text.texts import has_letters


if TYPE_CHECKING:
    from .scoring.alignment import Alignment
    from .text.glossary import Term


# A translation is marked that repeats a phrase so often in a row, or has more than so many tokens and so many times
# as many as its source. Short texts may have long translations: "WHO".
SUSPICIOUS_REPEATS, SUSPICIOUS_LENGTH, SUSPICIOUS_RATIO = 10, 40, 5


class NearMatch(NamedTuple):
    """A text of a memory that is nearly another, its translation, and how alike the texts are, from 0 to 1."""

    source: str
    translation: str
    similarity: float


class Translation(str):
    """
    A translated line. It is a `str` with more attributes.

    Attributes:
        score: The score of beam search, None unless requested: the sum of the natural log-probabilities of the tokens,
            divided by their number to the power of `length_penalty`, or according to `length_penalty_type`. An empty
            line has the score 0.
        tokens: Its tokens, including the end-of-sentence token if the model generated one.
        alignment: Its word alignment, None unless requested.
        is_complete: Whether the model ended it. False: it, or a part of it, was cut off at the limit of tokens
            (`max_new_tokens`, `max_extra_tokens`).
        is_suspicious: Whether it, or a part of it, repeats a phrase ten times in a row where its source does not, or
            has more than 40 tokens and five times as many as its source; or whether its source has no letters, with
            `without_letters="mark"`.
        missing_terms: Terms of a glossary in its source whose translation it does not contain.
        near_matches: Of the best translation: texts of a memory that are nearly its source, or sentences of it, with
            their translations; empty unless requested.

    Example:

    ```python
    >>> from vanilla_transformer_hf import Translation, Translator
    >>> translation = Translator.from_pretrained("model_cards/multi30k_raw_en_de").translate("Two dogs are playing.")
    >>> isinstance(translation, Translation), translation.upper(), translation.is_complete
    (True, 'ZWEI HUNDE SPIELEN.', True)
    >>> translation.tokens
    ['ĠZwei', 'ĠHunde', 'Ġspielen', '.', '</s>']
    ```
    """

    score: float | None
    tokens: list[str]
    alignment: "Alignment | None"
    is_complete: bool
    is_suspicious: bool = False
    missing_terms: "Sequence[Term]" = ()
    near_matches: Sequence[NearMatch] = ()

    def __new__(
        cls,
        text: str,
        score: float | None = None,
        tokens: Sequence[str] = (),
        alignment: "Alignment | None" = None,
        is_complete: bool = True,
    ) -> "Translation":
        translation = super().__new__(cls, text)
        translation.score, translation.tokens, translation.alignment = score, list(tokens), alignment
        translation.is_complete = is_complete
        return translation


def read_translations(
    tokenizer: Any, sequences: Sequence[list[int]], scores: Sequence[float] | None, ends: Collection[int]
) -> list[Translation]:
    """The translations in N sequences and scores; without end-of-sentence tokens all are complete."""
    with failing_in_one_line("joins tokens to a text"):
        texts = tokenizer.batch_decode(sequences, skip_special_tokens=True)
    translations, values = list[Translation](), repeat(None, len(texts)) if scores is None else scores
    for text, score, row in zip(texts, values, sequences, strict=True):
        last = next((place for place, token in enumerate(row[1:], start=1) if token in ends), None)
        kept = [token for token in row[1 : None if last is None else last + 1] if token != tokenizer.pad_token_id]
        # A row of padding only is the result for a source without tokens.
        is_complete = last is not None or not kept or not ends
        tokens = tokenizer.convert_ids_to_tokens(kept)
        translations.append(Translation(text, score, tokens=tokens, is_complete=is_complete))
    return translations


def join_parts(
    line: str,
    parts: Sequence[Part],
    found: Sequence[Sequence[Translation]],
    penalty: Callable[[Any], Any],
    marks_without_letters: bool = False,
) -> list[Translation]:
    """The n-best list of a text from those of its parts; `penalty`: number of tokens -> divisor of log-probability."""
    for part, translations in zip(parts, found, strict=True):
        is_marked = marks_without_letters and not has_letters(part.text)
        for one in translations:
            one.is_suspicious = is_marked or is_suspicious(part.ids, one.tokens)
            one.missing_terms = [term for term, text, _ in part.terms if not text or text not in one]
    if len(parts) == 1 and line == parts[0].text:
        return list(found[0])
    joined = []
    for each in zip(*found):
        text, starts = join_texts(parts, each)
        score, tokens = each[0].score, [token for part in each for token in part.tokens]
        scores = [part.score for part in each if part.score is not None]
        if len(scores) == len(each) > 1:  # as if the whole text were one hypothesis
            import torch  # which has computed them

            lengths = [float(penalty(torch.tensor(len(part.tokens)))) for part in each]
            total = sum(score * length for score, length in zip(scores, lengths))
            score = total / float(penalty(torch.tensor(len(tokens)))) if tokens else 0.0
        alignments = [part.alignment for part in each if part.alignment is not None]
        alignment = None
        if len(alignments) == len(each):
            from .scoring.alignment import join_alignments

            words = word_starts(text)
            first_words = [(part.first_word, bisect_right(words, start) - 1) for part, start in zip(parts, starts)]
            alignment = join_alignments(
                (line, text), alignments, first_words=first_words, repeated=[part.repeated for part in parts]
            )
        is_complete = all(part.is_complete for part in each)
        joined.append(Translation(text, score, tokens=tokens, alignment=alignment, is_complete=is_complete))
        joined[-1].is_suspicious = any(part.is_suspicious for part in each)
        joined[-1].missing_terms = [term for part in each for term in part.missing_terms]
    return joined


def join_texts(parts: Sequence[Part], translations: Sequence[str]) -> tuple[str, list[int]]:
    """The translation of a text, with its white space, from those of its parts, and where each of these begins."""
    # A space stands between sentences of one line, unless the translation before it is Chinese or Japanese.
    pieces, starts, length, left = list[str](), list[int](), 0, ""
    for part, text in zip(parts, translations, strict=True):
        before = _space_between(left, text) if part.before is None else part.before
        starts.append(length + len(before) + len(text) - len(text.lstrip(EDGES)))
        pieces += before, text
        length += len(before) + len(text)
        left = text or (left if part.before is None else "")
    return "".join([*pieces, parts[-1].after]), starts


def _space_between(left: str, right: str) -> str:
    """What stands between the translations of two parts of a line: nothing after Chinese or Japanese, else a space."""
    if not left or not right:
        return ""
    # Wide letters and marks; emoji are symbols, and Korean has spaces.
    is_wide = (
        east_asian_width(left[-1]) in "WF" and category(left[-1])[0] != "S" and not "\uac00" <= left[-1] <= "\ud7a3"
    )
    return "" if is_wide else " "


def copied_translation(text: str, has_score: bool, has_alignment: bool) -> Translation:
    """A text, empty or without letters, that is its own translation and is not passed to the model."""
    alignment = None
    if has_alignment:
        import torch

        from .scoring.alignment import Alignment

        words = text.split()
        alignment = Alignment(words, words, weights=torch.eye(len(words)))
    return Translation(text, 0.0 if has_score else None, alignment=alignment)


def known_translations(text: str, n_best: int) -> list[Translation]:
    """The n-best list of a part whose translation a memory has: that, each time."""
    return [Translation(text, 0.0) for _ in range(n_best)]


def is_suspicious(source: Sequence[Any], target: Sequence[Any]) -> bool:
    """Whether a translation (tokens) is far too long for its source, or goes round in circles where that does not."""
    is_long = len(target) > SUSPICIOUS_LENGTH and len(target) > SUSPICIOUS_RATIO * len(source)
    return is_long or (repeats(target) and not repeats(source))


def repeats(tokens: Sequence[Any], times: int = SUSPICIOUS_REPEATS) -> bool:
    """Whether a phrase occurs this many times in a row."""
    for length in range(1, len(tokens) // times + 1):
        alike = 0  # tokens in a row that are those of a phrase before
        for token, before in zip(tokens[length:], tokens):
            alike = alike + 1 if token == before else 0
            if alike == (times - 1) * length:
                return True
    return False
