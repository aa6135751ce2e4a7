"""Strings of programs as texts: tags, variables, lines and messages of ICU."""

from collections.abc import Sequence

from .icu import BRANCH, MESSAGE, icu_pieces
from .inline import LINES, STRING, WIDE_SPACE, Piece, Text, Writing, apart, with_letters
from .markup import string_tags
from .variables import declared_kinds, without_variables


def string_pieces(
    pieces: Sequence[Piece], flags: Sequence[str] = (), keeps_lines: bool = True
) -> tuple[list[Piece], Writing]:
    """The pieces of a string, in which tags may stand as text, and how its characters are written."""
    # `flags` are of its format, such as `python-format`; with `keeps_lines`, line breaks and tabs end sentences, else
    # only wide spaces do.
    kinds = declared_kinds(flags)

    def is_letter(piece: Piece) -> bool:
        return piece.kind == "alone" and isinstance(piece.value, str) and with_letters(piece.value).isalpha()

    def coded(parts: Sequence[Piece], *more: str) -> list[Piece]:
        tagged = (each for part in parts for each in (string_tags(part.value) if part.kind == "text" else [part]))
        coded = without_variables(tagged, (*more, *kinds))
        texts = (Piece("text", each.value) if is_letter(each) else each for each in coded)
        return [*apart(texts, LINES if keeps_lines else WIDE_SPACE, "ending")]

    is_declared = any(flag.strip() in ("icu-message-format", "java-format") for flag in flags)
    message = icu_pieces(pieces, lambda branch: Text(coded(branch, "quoted"), BRANCH), is_declared)
    return (coded(pieces), STRING) if message is None else (coded(message, "quoted"), MESSAGE)
