"""
Readers of the files of translators: TMX, XLIFF 1.2 and 2, PO and Excel's workbooks.

Such files hold units: a segment with its translation, and what is known of it. A reader yields the pair of a unit, or
the reason why it is none, so that those that are left out are counted.

Inline codes, which stand for formatting and variables of the original document, are removed, and the text that they
enclose is kept: models translate text, and what writes documents puts the codes back.

XML is read by lxml a unit at a time. Files that declare entities are errors, nothing is loaded from elsewhere, and no
more than `LONGEST_UNIT` is read for one unit.
"""

import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO

from .column_names import SIDES, MissingColumnError, Names, find_column, find_columns, table_pairs
from .lines import naming_damaged_gzip, open_input


Row = dict[str, str] | str  # a pair, or one of the reasons below
UNTRANSLATED = "without a translation"
FUZZY = "marked as unfinished (fuzzy)"
LOCKED = "marked as not to be translated"
ONE_LANGUAGE = "without a text in both languages"

EXTRA = "pip install 'vanilla_transformer_hf[formats]'"
LONGEST_UNIT = 64 * 2**20  # bytes
# Bytes of all parts of a workbook without compression, its rows, and characters of a cell; Excel writes no more.
LARGEST_WORKBOOK = 512 * 2**20
LAST_ROW, LONGEST_CELL = 2**20, 2**15 - 1
# How it writes the control characters of a text, and a _ before what would look like one.
ESCAPE_OF_EXCEL = re.compile("_x00(?:[01][0-9A-Fa-f]|5[Ff])_")
ERRORS_OF_EXCEL = ("#REF!", "#VALUE!", "#N/A", "#NAME?", "#DIV/0!", "#NULL!", "#NUM!")

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Inline elements around text; all others stand for codes of the original document, and their content is such code.
AROUND_TEXT = ("hi", "g", "mrk", "pc")
LINE_BREAKS = ("lb", "xlf:lb")
# States of translations in XLIFF 1.2 (section 2.2) that mean: not translated yet, or not finished.
NEW_STATES = ("new", "needs-translation")
UNFINISHED_STATES = (
    *("needs-adaptation", "needs-l10n"),
    *("needs-review-adaptation", "needs-review-l10n", "needs-review-translation"),
)


def _import(name: str, path: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"{path}: {name.partition('.')[0]}, which reads it, is not installed: {EXTRA}") from error


class _Bounded:
    """An open file that is read in order, no more than `LONGEST_UNIT` bytes between two calls of `allow_more`."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file, self._path, self._left = file, path, LONGEST_UNIT

    def allow_more(self) -> None:
        self._left = LONGEST_UNIT

    def read(self, size: int) -> bytes:
        found = self._file.read(size)
        self._left -= len(found)
        if self._left < 0:
            raise ValueError(f"{self._path}: more than {LONGEST_UNIT:,} bytes without a unit of text.")
        return found


def elements(
    path: str, roots: tuple[str, ...], units: tuple[str, ...], others: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Name and element of each unit of an XML file; and of its root, one of `roots`, and of `others` as they begin."""
    etree = _import("lxml.etree", path)
    found, checked = False, False
    with open_input(path) as file, naming_damaged_gzip(path), _naming_damage(path, etree):
        bounded = _Bounded(file, path)
        events = etree.iterparse(
            bounded,
            events=("start", "end"),
            tag=[f"{{*}}{name}" for name in (*roots, *units, *others)],
            load_dtd=False,
            no_network=True,
            resolve_entities=False,
            remove_comments=True,
            remove_pis=True,
            collect_ids=False,
        )
        for event, element in events:
            name = etree.QName(element).localname
            if not checked:
                declared = element.getroottree().docinfo.internalDTD
                if declared is not None and any(True for _ in declared.iterentities()):
                    raise ValueError(f"{path}: declares XML entities, which are not read; replace them by their text.")
                found, checked = name in roots, True
            if event == "start" and name not in units:
                yield name, element
            elif event == "end" and name in units:
                bounded.allow_more()
                yield name, element
                _forget(element)
    if not found:
        raise ValueError(f"{path}: not a file of this kind: its first element is not <{'> or <'.join(roots)}>.")


def _forget(element: Any) -> None:
    """Remove the content of an element, and all that stands before it in the file."""
    element.clear()
    for each in (element, *element.iterancestors()):
        while each.getprevious() is not None:
            del each.getparent()[0]


@contextmanager
def _naming_damage(path: str, etree: Any) -> Iterator[None]:
    """Name the file in errors of the parser."""
    try:
        yield
    except etree.XMLSyntaxError as error:
        reason = str(error).partition(" (")[0]
        raise ValueError(f"{path}: not XML, or a damaged file ({reason}).") from error


def text_of(path: str, element: Any) -> str:
    """The text of a segment without its inline codes."""
    if element is None:
        return ""
    parts = [element.text or ""]
    for child in element:
        if not isinstance(child.tag, str):  # comments are not kept: this is an entity
            raise ValueError(f"{path}, line {child.sourceline}: the entity {child.text} is not known.")
        if child.tag.rpartition("}")[2] in AROUND_TEXT:
            parts.append(text_of(path, child))
        elif {child.get("ctype"), child.get("type"), child.get("subType")} & set(LINE_BREAKS):
            parts.append(" ")
        parts.append(child.tail or "")
    return "".join(parts)


def _pair_or_reason(source: str, target: str, order: tuple[int, int], reason: str = "") -> Row:
    """The pair of a unit, sides in the requested order; or the reason why it is none."""
    texts = source, target
    if not (source.strip() and target.strip()):
        return reason or UNTRANSLATED
    return reason or {side: texts[place] for side, place in zip(SIDES, order)}


def _are_default(names: Names) -> bool:
    return names == tuple((side, side) for side in SIDES)


def tmx_pairs(path: str, names: Names) -> Iterator[Row]:
    """Pairs of a TMX file (1.1 to 1.4) in the named languages, or from its source language (srclang) to the other."""
    chosen: dict[tuple[str, ...], list[str] | None] = {}
    known, source_lang, pairs = dict[str, None](), "", 0
    for name, element in elements(path, ("tmx",), ("tu",), ("header",)):
        if name != "tu":
            source_lang = element.get("srclang") or source_lang
            continue
        texts = dict[str, str]()
        for variant in element.iterchildren("{*}tuv"):
            language = variant.get(LANGUAGE) or variant.get("lang") or ""
            texts.setdefault(language, text_of(path, variant.find("{*}seg")))
        languages = tuple(texts)
        if languages not in chosen:
            known |= dict.fromkeys(languages)
            if len(known) > 1000:
                raise ValueError(f"{path}, line {element.sourceline}: more than a thousand languages.")
            where = f"{path}, line {element.sourceline}"
            chosen[languages] = _languages_of_unit(where, languages, list(known), names, source_lang)
        columns = chosen[languages]
        if columns is None:
            yield ONE_LANGUAGE
            continue
        pairs += 1
        yield _pair_or_reason(texts[columns[0]], texts[columns[1]], (0, 1))
    if chosen and not pairs:
        wanted = " and ".join(side[0] for side in names)
        raise ValueError(f"{path}: no unit has both {wanted}; its languages are {', '.join(known)}.")


def _languages_of_unit(
    where: str, languages: tuple[str, ...], known: list[str], names: Names, source_lang: str
) -> list[str] | None:
    """Which of a unit's languages are source and target; None if it has not both."""
    if not _are_default(names):
        try:
            return find_columns(where, list(languages), names)
        except MissingColumnError:
            return None
    if len(known) < 2:
        return None
    try:
        source = find_column(where, known, "source", (source_lang,))
    except ValueError:
        source = ""
    if len(known) > 2 or not source:
        raise MissingColumnError(
            f"{where}: texts in {', '.join(known)}; set source_lang and target_lang to choose two."
        )
    target = next(each for each in known if each != source)
    return [source, target] if {source, target} <= set(languages) else None


def _order(where: str, languages: tuple[str | None, str | None], names: Names) -> tuple[int, int]:
    """The places of source and target among the two languages of a file, of which either may be unknown."""
    if _are_default(names) or languages == (None, None):
        return 0, 1
    columns = [language or side for language, side in zip(languages, SIDES)]
    places = [_place(where, columns, side, candidates[:1]) for side, candidates in zip(SIDES, names)]
    for this, other in ((0, 1), (1, 0)):
        # A side that is not said, in the file or by the user, is the one that is left.
        place = places[other]
        if places[this] is None and place is not None and (None in languages or names[this][0] in SIDES):
            places[this] = 1 - place
    source, target = places
    if source is None or target is None or source == target:
        known, wanted = " and ".join(filter(None, languages)), " and ".join(side[0] for side in names)
        raise ValueError(f"{where}: its text is in {known}: expected {wanted}.")
    return source, target


def _place(where: str, columns: list[str], side: str, candidates: tuple[str, ...]) -> int | None:
    try:
        return columns.index(find_column(where, columns, side, candidates))
    except MissingColumnError:
        return None


def xliff_pairs(path: str, names: Names) -> Iterator[Row]:
    """Pairs of an XLIFF file, version 1.2 or 2: each unit or segment whose state is not that of an unfinished one."""
    order = (0, 1)
    for name, element in elements(path, ("xliff",), ("trans-unit", "unit"), ("file",)):
        if name == "trans-unit":
            yield _row_of_unit(path, element, element.find("{*}target"), order, element.get("translate"))
        elif name == "unit":
            for segment in element.iterchildren("{*}segment"):
                yield _row_of_unit(path, segment, segment, order, element.get("translate"))
        elif name == "file" or element.get("srcLang"):  # version 1 has the languages of each file, 2 of all
            languages = [
                element.get(new) or element.get(old)
                for new, old in (("srcLang", "source-language"), ("trgLang", "target-language"))
            ]
            if any(languages):
                order = _order(f"{path}, line {element.sourceline}", (languages[0], languages[1]), names)


def _row_of_unit(path: str, parent: Any, stated: Any, order: tuple[int, int], translate: str | None) -> Row:
    """The row of a source and its target, which are children of `parent`; the element `stated` has the state."""
    state = "" if stated is None else stated.get("state", "")
    source, target = (text_of(path, parent.find(f"{{*}}{name}")) for name in SIDES)
    reason = ""
    if translate == "no":
        reason = LOCKED
    elif state in NEW_STATES or not target.strip():
        reason = UNTRANSLATED
    elif state == "initial" or state in UNFINISHED_STATES:
        reason = FUZZY
    return _pair_or_reason(source, target, order, reason)


def po_pairs(path: str, names: Names) -> Iterator[Row]:
    """Pairs of a gettext catalogue, without fuzzy and obsolete ones; of plural forms, the first and the last."""
    _import("polib", path)
    from .catalogues import read_catalogue

    with open_input(path) as file, naming_damaged_gzip(path):
        catalogue = read_catalogue(file.read(), path)
    order = _order(path, (None, catalogue.metadata.get("Language", "").strip() or None), names)
    for entry in catalogue:
        if entry.obsolete:
            continue
        if entry.msgid_plural:
            forms = [form for _, form in sorted(entry.msgstr_plural.items())] or [""]
            pairs = [(entry.msgid, forms[0]), (entry.msgid_plural, forms[-1])]
            pairs = pairs if len(forms) > 1 else pairs[1:]  # a language without plural forms
        else:
            pairs = [(entry.msgid, entry.msgstr)]
        for text, form in pairs:
            yield _pair_or_reason(text, form, order, FUZZY if entry.fuzzy and form else "")


def xlsx_pairs(path: str, names: Names) -> Iterator[Row]:
    """Pairs of the sheet of an Excel workbook, with a header or none; numbers are text, as they are stored."""
    openpyxl = _import("openpyxl", path)
    _import("defusedxml", path)  # openpyxl reads sheets with it where it is installed
    try:  # a small file can unpack to any size; no part becomes larger than the size that the archive states
        with zipfile.ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
    except (zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"{path}: no .xlsx workbook, or one with a password ({error}); save it without.") from error
    if size > LARGEST_WORKBOOK:
        raise ValueError(
            f"{path}: unpacks to {size:,} bytes, more than the {LARGEST_WORKBOOK:,} that are read; save it as "
            "Unicode text or CSV."
        )
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
    except OSError:
        raise
    except Exception as error:  # whatever a damaged part makes of openpyxl
        raise ValueError(f"{path}: not an .xlsx workbook, or a damaged one ({_reason(error)}).") from error
    try:
        full = [sheet for sheet in book.worksheets if next(_rows_of_sheet(path, sheet), None) is not None]
        if len(full) > 1:
            raise ValueError(
                f"{path}: several sheets have content: {', '.join(sheet.title for sheet in full)}; keep one of them "
                "in the file."
            )
        if not book.worksheets:  # openpyxl finds none in a strict one
            raise ValueError(
                f"{path}: has no sheets that can be read, as a Strict Open XML one; save it as Excel Workbook (.xlsx)."
            )
        for row in table_pairs(path, _rows_of_sheet(path, (full or book.worksheets)[0]), names, "row"):
            for text in row.values():
                if isinstance(text, UnreadableCell):
                    raise ValueError(text)
            yield row
    finally:
        book.close()


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _rows_of_sheet(path: str, sheet: Any) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of the rows that are not empty, all as wide as the first; what is beside that is left out."""
    sheet.reset_dimensions()  # many programs state a wrong size
    width = 0
    try:
        for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
            if number > LAST_ROW:
                raise ValueError(f"more than {LAST_ROW:,} rows")
            cells = [_text_of_cell(f"{path}, row {number}", value) for value in row[: width or None]]
            while cells and not width and not cells[-1]:
                cells.pop()
            width = width or len(cells)
            if any(cells):
                yield number, cells + [""] * (width - len(cells))
    except (OSError, MemoryError):
        raise
    except Exception as error:  # as in xlsx_pairs
        raise ValueError(f"{path}: sheet {sheet.title!r} is damaged ({_reason(error)}).") from error


class UnreadableCell(str):
    """What is said of a cell that is neither text nor a number: an error where its column is read."""


def _text_of_cell(where: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        if value and len(value) > LONGEST_CELL:  # the text of one may stand in all, in a few bytes of each
            return UnreadableCell(f"{where}: a cell of {len(value):,} characters; Excel allows {LONGEST_CELL:,}.")
        if value and value.startswith("#") and value in ERRORS_OF_EXCEL:
            return UnreadableCell(f"{where}: the formula of a cell has the error {value}; put a text there.")
        return ESCAPE_OF_EXCEL.sub(lambda escape: "_" if escape[0][4] == "5" else " ", value or "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value).removesuffix(".0")
    return UnreadableCell(f"{where}: a cell holds a {type(value).__name__}, but text is expected.")


# Endings of files of units -> the reader of their rows.
UNIT_READERS: dict[str, Callable[[str, Names], Iterator[Row]]] = {
    ".tmx": tmx_pairs,
    ".xlf": xliff_pairs,
    ".xliff": xliff_pairs,
    ".po": po_pairs,
    ".xlsx": xlsx_pairs,
}
