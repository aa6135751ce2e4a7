"""XLIFF 1.2 and 2: units that are to be translated and are not yet get a translation with their source's codes."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from .document import Document, Reading
from .inline import Piece, Text
from .strings import string_pieces
from .xml_parts import fill_mixed, local_name, mixed_pieces, parse_xml, without_children, write_xml


# States of translations that are none yet.
NEW_STATES = ("new", "needs-translation", "initial")
LINE_BREAKS = ("lb", "xlf:lb")
UNITS = ("trans-unit", "unit")
XML_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
# Kinds of files whose variables are those of one format -> its name in gettext's flags.
DATATYPES = {
    "csharp": "csharp-format",
    "resx": "csharp-format",
    "javapropertyresourcebundle": "java-format",
    "javalistresourcebundle": "java-format",
    "x-icu": "icu-message-format",
}
# Inline elements around text, and codes that begin and end something: their names -> the attributes with what both
# ends have in common.
AROUND = ("g", "mrk", "pc")
BEGINS = {"bpt": ("rid", "id"), "bx": ("rid", "id"), "sc": ("id",), "sm": ("id",)}
ENDS = {"ept": ("rid", "id"), "ex": ("rid", "id"), "ec": ("startRef",), "em": ("startRef",)}


def read_xliff(content: bytes, reading: Reading) -> Document:
    tree = parse_xml(content, reading.name)
    root = tree.getroot()
    if local_name(root) != "xliff":
        raise ValueError(f"{reading.name}: not a file of this kind: its first element is not <xliff>.")
    units = [*root.iter("{*}trans-unit", "{*}unit")]
    if not units:
        raise ValueError(f"{reading.name}: has no units with text")
    for above in {each: None for unit in units for each in unit.iterancestors()}:  # they are read for each unit
        if any(len(value) > 10_000 for value in above.attrib.values()):
            raise ValueError(f"{reading.name}, line {above.sourceline}: an attribute of more than 10,000 characters.")
    texts = [text for unit in units for text in _texts_of_unit(unit)]

    def write(found: Sequence[Sequence[Piece]], language: str | None) -> bytes:
        for text, pieces in zip(texts, found, strict=True):
            text.fill(pieces)
        # The language of the translations, where the file does not say it.
        is_new = root.get("version", "").startswith("2")
        name = "trgLang" if is_new else "target-language"
        for element in [root] if is_new else root.iterchildren("{*}file"):
            if language and not element.get(name):
                element.set(name, language)
        return write_xml(tree)

    return Document([text.segment for text in texts], write)


def _texts_of_unit(unit: Any) -> Iterator["_Text"]:
    """What is translated of a unit."""
    around = [*unit.iterancestors()]
    switches = (element.get("translate") for element in (unit, *around))
    if next(filter(None, switches), "yes") == "no" or unit.get("approved") == "yes":
        return
    if any(local_name(element) in UNITS for element in around):  # no XLIFF: it would be read once for each level
        return
    is_new = local_name(unit) == "unit"
    for parent in unit.iterchildren("{*}segment") if is_new else [unit]:
        source, target = parent.find("{*}source"), parent.find("{*}target")
        states = [each.get("state") for each in (parent, target) if each is not None]
        is_empty = target is None or not "".join(target.itertext()).strip()
        if source is None or not (is_empty or {*states} & {*NEW_STATES}):
            continue
        segmented = parent.find("{*}seg-source")
        model = source if segmented is None else segmented
        if target is None:  # an empty one behind the source
            namespace = model.tag.rpartition("}")[0]
            target = model.makeelement(f"{namespace}}}target" if namespace else "target")
            model.addnext(target)
            target.tail = model.tail
        else:
            target[:], target.text = [], None
        if is_new:
            parent.set("state", "translated")
        else:
            target.set("state", "needs-review-translation")
            target.set("state-qualifier", "mt-suggestion")
        yield from _texts_of_target(target, model)


def _texts_of_target(target: Any, source: Any) -> Iterator["_Text"]:
    """The texts of a target: of a source that was cut into segments, one for each of these, with what is between."""
    marks = {each for each in source.iterchildren("{*}mrk") if each.get("mtype") == "seg"}
    if not marks:
        yield _Text(target, source)
        return
    target.text = source.text
    for child in source:
        is_mark = child in marks
        copied = without_children(child) if is_mark else copy.deepcopy(child)
        copied.tail = child.tail
        target.append(copied)
        if is_mark:
            yield _Text(copied, child)


class _Text:
    """A text with inline codes, `source`, and the element that gets its translation."""

    def __init__(self, target: Any, source: Any):
        pieces = [*mixed_pieces(copy.deepcopy(source), _classify, _is_around)]
        keeps_lines = next(filter(None, (each.get(XML_SPACE) for each in (source, *source.iterancestors()))), "")
        flags = list[str]()  # what is said of the format of the text, as gettext's flags say it
        for above in source.iterancestors("{*}trans-unit", "{*}unit", "{*}file"):
            flags += (above.get("weblate-flags") or "")[:1000].split(",")  # those of a file are read for each text
            flags += [DATATYPES.get((above.get("datatype") or "").lower(), "")]
        self.segment = Text(*string_pieces(pieces, flags, keeps_lines == "preserve"))
        self._target = target

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Set the translation."""
        fill_mixed(self._target, pieces)


def _is_around(element: Any) -> bool:
    protected = element.get("mtype") == "protected" or element.get("translate") == "no"
    return local_name(element) in AROUND and not protected


def _classify(element: Any) -> Piece:
    name = local_name(element)
    if {element.get("ctype"), element.get("type"), element.get("subType")} & {*LINE_BREAKS}:
        return Piece("ending", element)
    if name in BEGINS:
        return Piece("begin", element, _key(element, BEGINS[name]))
    if name in ENDS:
        return Piece("end", element, _key(element, ENDS[name]))
    return Piece("alone", element)


def _key(element: Any, names: Sequence[str]) -> Any:
    """What both ends of a pair have in common; an end alone has nothing."""
    return next((value for name in names if (value := element.get(name))), element)
