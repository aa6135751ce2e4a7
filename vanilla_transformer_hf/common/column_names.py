"""The columns of a table with source and target text, by names in any spelling; and the pairs of its rows."""

import re
import unicodedata
from collections.abc import Iterable, Iterator

import langcodes


SIDES = ("source", "target")
Names = tuple[tuple[str, ...], ...]  # possible column names of each side
NumberedRow = tuple[int, list[str]]  # its cells

# Words of column names -> the side that they name, if they name one. Words that are language names are not listed.
WORDS: dict[str, str | None] = {
    **dict.fromkeys(("source", "src", "input", "original"), "source"),
    **dict.fromkeys(("target", "tgt", "trg", "translation", "translated", "output"), "target"),
    **dict.fromkeys(("text", "texts", "sentence", "sentences", "segment", "phrase", "string", "language", "lang")),
    **dict.fromkeys(("id", "line", "column", "index", "score", "domain", "reference", "ref", "url", "key")),
}
# A code of a language and what may follow it: de, de-DE, deu_Latn.
TAG = re.compile(r"[a-z]{2,3}([-_][a-z0-9]{2,8})*")


def plain(name: str) -> str:
    """A name without case, quotes, spaces around it and other differences of spelling."""
    return unicodedata.normalize("NFKC", name).strip("\ufeff\"'“”«»`:# \t\r").casefold()


def language_of(name: str) -> langcodes.Language | None:
    """The language of a column name: a code (en, eng_Latn), a name in any language, or one of these among words."""
    name = plain(name)
    if WORDS.get(name) or len(name) > 200:  # src and trg are codes of languages, too; a line of text is none
        return None
    without_marks = (letter for letter in unicodedata.normalize("NFD", name) if not unicodedata.combining(letter))
    if found := _language(name) or _language("".join(without_marks)):  # Yoruba of Yorùbá, as many write it
        return found
    others = [word for word in _words(name) if word not in WORDS]
    is_column = len(others) < len(_words(name))
    return _language(" ".join(others)) if others and is_column else None


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", name)


def _language(name: str) -> langcodes.Language | None:
    tag = name if TAG.fullmatch(name) else _tag_of_name(re.sub(r"(?<!\s)\s*+\([^()]*\)$", "", name))
    # langcodes would also find English in "English is hard".
    if tag is None or (" " in name and tag == _tag_of_name(name.rpartition(" ")[0]) and "(" not in name):
        return None
    try:
        # "macro": Mandarin is Chinese, as most corpora write it.
        language = langcodes.Language.get(langcodes.standardize_tag(tag, macro=True))
    except ValueError:  # not a tag
        return None
    return language if language.is_valid() else None


def _tag_of_name(name: str) -> str | None:
    try:
        return str(langcodes.find(name))
    except LookupError:
        return None


def is_header(cells: list[str], names: Names) -> bool:
    """Whether a first row holds column names: one that is looked for, one of their languages, or names alone."""
    if all(set(side) & set(cells) for side in names):
        return True
    full = [cell for cell in cells if plain(cell)]
    wanted = {_base(name) for side in names for name in side} - {None}
    if wanted & set(map(_base, full)):
        return True
    words = [set(_words(plain(cell))) for cell in full]  # of names of columns, probably, and not of texts
    are_names = (language_of(cell) is not None or (each and each <= WORDS.keys()) for cell, each in zip(full, words))
    return len(full) > 1 and all(are_names)


def are_names_of_sides(texts: tuple[str, str], names: Names) -> bool:
    """Whether the first lines of two files name their sides: two languages, or "source" and "target"."""
    # Languages that are not looked for count by their names, not by codes, of which many are words ("one", "no").
    languages = [_base(text) for text in texts]
    if None in languages:
        return tuple(map(_side, texts)) == SIDES
    if languages == [_base(candidates[0]) for candidates in names]:
        return True
    return languages[0] != languages[1] and not any(TAG.fullmatch(plain(text)) for text in texts)


def names_of(
    source_column: str | None = None,
    target_column: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> Names:
    """The possible names of each side, where a column or a language is named for it."""
    return tuple(
        (column,) if column else (lang or side, side)
        for column, lang, side in zip((source_column, target_column), (source_lang, target_lang), SIDES)
    )


class MissingColumnError(ValueError):
    """A table has no column for a side."""


def find_columns(where: str, columns: list[str], names: Names) -> list[str]:
    """The source and the target column, by their `names` or by other spellings of these."""
    # EN, English, en-US and eng_Latn are en; src is source.
    found = [find_column(where, columns, side, candidates) for side, candidates in zip(SIDES, names)]
    if found[0] == found[1]:
        raise ValueError(f"{where}: source and target are the same column {found[0]!r}.")
    return found


def find_column(where: str, columns: list[str], side: str, candidates: tuple[str, ...]) -> str:
    """The column of one side; see `find_columns`."""
    for candidate in candidates:
        if columns.count(candidate) == 1:
            return candidate
    wanted = " or ".join(repr(name) for name in dict.fromkeys(candidates))
    for spelling in (str, plain, _tag, _base, _side):  # from the closest to the widest
        looked_for = {spelling(name) for name in candidates} - {None}
        present = [name for name in columns if spelling(name) in looked_for]
        if len(present) > 1:
            raise ValueError(
                f"{where}: several columns could be {wanted}, the {side} text: {', '.join(map(repr, present))}; name "
                f"one by {side}_column."
            )
        if present:
            return present[0]
    # Without a language, that is what is missing.
    by = f"{side}_lang or {side}_column" if candidates == (side, side) else f"{side}_column"
    raise MissingColumnError(
        f"{where}: no column {wanted} for the {side} text; there are: {', '.join(columns) or 'none'}. Name it by {by}."
    )


def _tag(name: str) -> str | None:
    found = language_of(name)
    return None if found is None else found.to_tag()


def _base(name: str) -> str | None:
    found = language_of(name)
    return None if found is None else {"nb": "no"}.get(str(found.language), found.language)


def _side(name: str) -> str | None:
    """The side that a name such as "src" or "Source text" stands for."""
    sides = {WORDS[word] for word in _words(plain(name)) if word in WORDS} - {None}
    return sides.pop() if len(sides) == 1 and language_of(name) is None else None


def header_positions(where: str, cells: list[str], names: Names) -> list[int] | None:
    """The places of the source and target column, if the first row of a table holds names; None if it is a pair."""
    # Named columns must exist; language codes need not be column names.
    if not (any(len(side) == 1 for side in names) or is_header(cells, names)):
        return None
    try:
        return [cells.index(name) for name in find_columns(where, cells, names)]
    except ValueError as error:
        hint = "(If these are texts, put a header before them, such as the names source and target.)"
        raise type(error)(f"{error} {hint}") from None


def table_pairs(path: str, rows: Iterable[NumberedRow], names: Names, unit: str = "line") -> Iterator[dict[str, str]]:
    """Pairs of numbered rows: of the named columns, or of the first two if the first row is not a header."""
    width, positions = 0, [0, 1]
    for number, cells in rows:
        if not width:
            width, found = max(len(cells), 2), header_positions(f"{path}, {unit} {number}", cells, names)
            if found is None and width > 2 and cells[0].strip().replace(".", "", 1).isdecimal():
                raise ValueError(f"{path}, {unit} {number}: {width} columns, the first of numbers, need a header.")
            if found is not None:
                positions = found
                continue
        if len(cells) != width:
            guess = "a tab is missing" if len(cells) < width else "there is a tab inside a text"
            guess = guess if unit == "line" else "it is a title, which must be deleted"
            raise ValueError(f"{path}, {unit} {number}: {len(cells)} columns, but {width} expected; perhaps {guess}.")
        yield {side: cells[position] for side, position in zip(SIDES, positions)}
