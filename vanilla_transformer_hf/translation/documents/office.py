"""Office documents, Word's .docx and OpenDocument's .odt: archives of XML, in which only paragraphs' texts change."""

import copy
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

from lxml import etree

from .document import Document, Reading
from .inline import WIDE_SPACE, Piece, Text, apart
from .variables import PROSE, without_variables
from .xml_parts import (
    DEEPEST,
    NO_XML,
    Container,
    detached,
    fill_mixed,
    filled_anew,
    local_name,
    mixed_pieces,
    parse_xml,
    without_children,
    write_xml,
)


MOST_PARTS = 10_000
TYPES = "[Content_Types].xml"
# What the list of a docx calls its parts with text, the names that they have where there is no list, and the main one.
TYPES_OF_DOCX = re.compile(
    r"application/vnd\.(?:openxmlformats-officedocument\.wordprocessingml|ms-word)\."
    r"(?:(?P<main>(?:document|template)(?:\.macroEnabled(?:Template)?)?\.main)|header|footer|footnotes|endnotes|comments)\+xml"
)
PARTS_OF_DOCX = re.compile(r"word/(?:(?P<main>document)|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
PARTS_OF_ODT = re.compile(r"(?P<main>content|styles)\.xml")


class Archive:
    """The parts of an archive."""

    def __init__(self, content: bytes, reading: Reading):
        self.name = reading.name
        try:
            with zipfile.ZipFile(BytesIO(content)) as archive:
                self._infos = archive.infolist()
                # No part becomes larger than the size that the archive states.
                size = sum(info.file_size for info in self._infos)
                if size > reading.most_bytes:
                    raise ValueError(
                        f"{self.name}: unpacks to {size:,} bytes; at most {reading.most_bytes:,} are read"
                    )
                if len(self._infos) > MOST_PARTS or len({info.filename for info in self._infos}) < len(self._infos):
                    raise ValueError(f"{self.name}: has more than {MOST_PARTS:,} parts, or two of one name")
                if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in self._infos):
                    raise ValueError(f"{self.name}: is compressed in a way that office documents are not")
                self.parts = {info.filename: archive.read(info) for info in self._infos}
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, OSError) as error:
            raise ValueError(
                f"{self.name}: not an office document, or one that is damaged or has a password ({error})."
            ) from error

    def trees(self, names: re.Pattern[str], types: re.Pattern[str] | None = None) -> dict[str, Any]:
        """The parts with text as trees, by their names; by their types in an archive that states them."""
        found = {name: names.fullmatch(name) for name in self.parts}
        if types is not None and TYPES in self.parts:
            root = parse_xml(self.parts[TYPES], f"{self.name}, {TYPES}").getroot()
            defaults = {each.get("Extension", ""): each for each in root.iterchildren("{*}Default")}
            parts = {each.get("PartName", ""): each for each in root.iterchildren("{*}Override")}
            stated = {name.lower(): each.get("ContentType", "") for name, each in (defaults | parts).items()}
            extension = {name: stated.get(name.rpartition(".")[2].lower(), "") for name in self.parts}
            found = {name: types.fullmatch(stated.get(f"/{name}".lower(), extension[name])) for name in self.parts}
        trees = {name: parse_xml(self.parts[name], f"{self.name}, {name}") for name, match in found.items() if match}
        if any(tree.docinfo.doctype for tree in trees.values()):
            raise ValueError(f"{self.name}: has a document type, which office documents may not have")
        if not any(match and match["main"] for match in found.values()):
            raise ValueError(f"{self.name}: not a document of this kind: it has no text")
        return trees

    def written(self, changed: dict[str, bytes]) -> bytes:
        """The archive with some of its parts changed, all in their order."""
        out = BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for info in self._infos:
                archive.writestr(info, changed.get(info.filename, self.parts[info.filename]))
        return out.getvalue()


class Paragraph:
    """A paragraph: its text and codes, not nested yet; `add` appends those of the translation to its element."""

    def __init__(self, pieces: Iterable[Piece], element: Any, add: Callable[[Sequence[Piece]], None], *kept: str):
        coded = apart(without_variables(pieces, PROSE), WIDE_SPACE, "ending")
        self.segment, self._element, self._add, self._kept = Text(coded), element, add, kept

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Put a translation in place of all but the children that are kept."""
        with filled_anew(self._element, *self._kept):
            self._add(pieces)


def _document(
    archive: Archive, trees: dict[str, Any], paragraphs_of: Callable[[Any], Iterator[Paragraph]]
) -> Document:
    paragraphs, count = list[Paragraph](), 0
    for tree in trees.values():
        for paragraph in paragraphs_of(tree.getroot()):
            count += 1
            if paragraph.segment.sentences:  # those without text are not touched
                paragraphs.append(paragraph)
    if not count:
        raise ValueError(f"{archive.name}: has no paragraphs")

    def write(translations: Sequence[Sequence[Piece]], language: str | None) -> bytes:
        for paragraph, translation in zip(paragraphs, translations, strict=True):
            paragraph.fill(translation)
        return archive.written({name: write_xml(tree) for name, tree in trees.items()})

    return Document([paragraph.segment for paragraph in paragraphs], write)


# ------------------------------------------------------------------------------------------------------------- .odt

ODT_AROUND = ("span", "a", "meta")
ODT_DROPPED = ("soft-page-break",)
ODT_ENDING = ("tab", "line-break")
ODT_RANGE = re.compile(r"(?P<what>bookmark|reference-mark|toc-mark|user-index-mark|alphabetical-index-mark|hidden)"
                       r"-(?P<side>start|end)")  # fmt: skip


def read_odt(content: bytes, reading: Reading) -> Document:
    archive = Archive(content, reading)
    return _document(archive, archive.trees(PARTS_OF_ODT), _odt_paragraphs)


def _odt_paragraphs(root: Any) -> Iterator[Paragraph]:
    text = root.nsmap.get("text", "urn:oasis:names:tc:opendocument:xmlns:text:1.0")
    deleted = f"{{{text}}}tracked-changes"
    for element in root.iter(f"{{{text}}}p", f"{{{text}}}h"):
        if not any(above.tag == deleted for above in element.iterancestors()):
            pieces = mixed_pieces(element, _odt_piece, lambda child: local_name(child) in ODT_AROUND)
            yield Paragraph(pieces, element, partial(fill_mixed, element))


def _odt_piece(element: Any) -> Piece | None:
    name = local_name(element)
    if name in ODT_DROPPED:
        return None
    if name == "s":  # spaces
        before = element.getprevious()
        is_first = before is None and not (element.getparent().text or "").strip()
        is_one = all(value == "1" for value in element.attrib.values())
        return Piece("alone", element, is_space=True) if is_one and not is_first else Piece("ending", element)
    if name in ODT_ENDING:
        return Piece("ending", element)
    if found := ODT_RANGE.fullmatch(name):
        key = (found["what"], *sorted(element.attrib.values())[:1])
        return Piece("begin" if found["side"] == "start" else "end", element, key)
    return Piece("alone", element)


# ------------------------------------------------------------------------------------------------------------ .docx

DOCX_AROUND = ("hyperlink", "ins", "moveTo", "smartTag", "customXml", "dir", "bdo")
DOCX_PROPERTIES = ("smartTagPr", "customXmlPr", "sdtPr", "sdtEndPr")
# What Word writes anew: marks of its spelling check, and where pages ended when it was last shown.
DOCX_DROPPED = ("proofErr", "lastRenderedPageBreak", "softHyphen")
DOCX_ENDING = ("tab", "br", "cr", "ptab")
DOCX_RANGE = re.compile(r"(?P<what>bookmark|commentRange|perm|customXmlInsRange|customXmlDelRange)(?P<side>Start|End)")
# Properties of a run that do not show.
INVISIBLE = ("lang", "noProof", "rPrChange")
LARGEST_LOOK = 20_000  # bytes of them, which each part of the run has again


class Format:
    """How text looks, by the element of a run that says it; None: as the paragraph."""

    def __init__(self, properties: Any):
        self.properties = properties
        shown = [] if properties is None else [child for child in properties if local_name(child) not in INVISIBLE]
        self.key = b"".join(sorted(etree.tostring(child, with_tail=False) for child in shown))


def read_docx(content: bytes, reading: Reading) -> Document:
    archive = Archive(content, reading)
    return _document(archive, archive.trees(PARTS_OF_DOCX, TYPES_OF_DOCX), _docx_paragraphs)


def _docx_paragraphs(root: Any) -> Iterator[Paragraph]:
    namespace = root.tag.partition("}")[0] + "}"
    for element in root.iter(f"{namespace}p"):
        paragraph = DocxParagraph(element, namespace)
        yield Paragraph(paragraph.pieces(), element, paragraph.add, "pPr")


@dataclass(frozen=True)
class Part:
    """What a run has beside its text, or text that is not translated."""

    properties: Any  # Of the run
    content: Any  # An element, or a text


# A piece, and the format of a text.
Shown = tuple[Piece, Format | None]


class DocxParagraph:
    """A paragraph of Word: runs, which are texts of one look, and what encloses them."""

    # Word cuts runs where the spelling check or an editor once stood: neighbours that look alike are one text here,
    # and what looks as most of the paragraph does is its plain text. `namespace` is in braces.

    def __init__(self, element: Any, namespace: str):
        self._element, self._w = element, namespace
        shares = dict[bytes, tuple[int, Format]]()
        for run in self._runs(element):
            own = Format(run.find(f"{namespace}rPr"))
            count = sum(len(text.text or "") for text in run.iterchildren(f"{namespace}t"))
            shares[own.key] = (shares.get(own.key, (0, own))[0] + count, own)
        _, self._plain = max(shares.values(), key=lambda each: each[0], default=(0, Format(None)))

    def _runs(self, element: Any) -> Iterator[Any]:
        """Its own runs, without those of the paragraphs of frames in it."""
        for child in element:
            if child.tag == f"{self._w}r":
                yield child
            elif child.tag != f"{self._w}p":
                yield from self._runs(child)

    def pieces(self) -> list[Piece]:
        """Its pieces, not nested yet, with pairs around the texts that do not look as most of the paragraph does."""
        out, current = list[Piece](), self._plain

        def change(wanted: Format) -> None:
            nonlocal current
            if wanted.key == current.key:
                return
            if current.key != self._plain.key:
                out.append(Piece("end", current, current, is_element=True))
            current = wanted
            if current.key != self._plain.key:
                out.append(Piece("begin", current, current, is_element=True))

        for piece, look in _fields([*self._read(self._element, 0)]):
            change(self._plain if look is None else look)
            out.append(piece)
        change(self._plain)
        return out

    def _read(self, element: Any, depth: int) -> Iterator[Shown]:
        """Pieces with the format of texts; fields are codes of their own yet."""
        for child in element:
            name = local_name(child)
            if name in ("pPr", *DOCX_PROPERTIES, *DOCX_DROPPED):
                continue
            if name == "r":
                yield from self._read_run(child)
            elif name == "sdt" and (content := child.find(f"{self._w}sdtContent")) is not None and depth < DEEPEST:
                shell = without_children(child, *DOCX_PROPERTIES)
                shell.append(without_children(content))
                yield from self._around(Container(shell, shell[-1]), content, depth)
            elif name in DOCX_AROUND and depth < DEEPEST:
                yield from self._around(Container(without_children(child, *DOCX_PROPERTIES)), child, depth)
            elif found := DOCX_RANGE.fullmatch(name):
                key = (found["what"], child.get(f"{self._w}id"))
                yield Piece("begin" if found["side"] == "Start" else "end", [child], key), None
            else:
                yield Piece("alone", [child]), None

    def _around(self, container: Container, content: Any, depth: int) -> Iterator[Shown]:
        yield Piece("begin", container, container, is_element=True), None
        yield from self._read(content, depth + 1)
        yield Piece("end", container, container, is_element=True), None

    def _read_run(self, run: Any) -> Iterator[Shown]:
        properties = run.find(f"{self._w}rPr")
        if properties is not None and len(etree.tostring(properties)) > LARGEST_LOOK:
            raise ValueError(f"the properties of a run have more than {LARGEST_LOOK:,} bytes, which no program writes")
        look = Format(properties)
        for child in run:
            name = local_name(child)
            if name == "t":
                yield Piece("text", child.text or ""), look
            elif name == "noBreakHyphen":
                yield Piece("text", "\u2011"), look
            elif name not in ("rPr", *DOCX_DROPPED):
                yield Piece("ending" if name in DOCX_ENDING else "alone", [Part(properties, child)]), None

    def add(self, pieces: Sequence[Piece]) -> None:
        """Append a translation."""
        parents, looks, text = [self._element], [self._plain], ""
        for piece in (*pieces, Piece("alone", [])):
            value = piece.value
            if isinstance(value, str):  # text, or a code that is text in the file
                text += value
                continue
            if text:
                self._add(parents[-1], [Part(looks[-1].properties, text)])
                text = ""
            if piece.kind == "begin" and isinstance(value, Container):
                parents[-1].append(value.shell)
                parents.append(value.inner)
            elif piece.kind == "end" and isinstance(value, Container):
                parents.pop()
            elif piece.kind == "begin" and isinstance(value, Format):
                looks.append(value)
            elif piece.kind == "end" and isinstance(value, Format):
                looks.pop()
            else:
                self._add(parents[-1], value)

    def _add(self, parent: Any, values: Sequence[Any]) -> None:
        """Append elements and parts of runs."""
        for value in values:
            if not isinstance(value, Part):
                parent.append(detached(value))
                continue
            run = etree.SubElement(parent, f"{self._w}r")
            if value.properties is not None:
                run.append(copy.deepcopy(value.properties))
            if not isinstance(value.content, str):
                run.append(detached(value.content))
                continue
            text = etree.SubElement(run, f"{self._w}t")
            text.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")
            text.text = NO_XML.sub("", value.content)


# A field, such as the number of a page or a link, is a row of runs: its begin, its code, a separator, what it shows,
# its end.


def _fields(pieces: Sequence[Shown]) -> Iterator[Shown]:
    """Pieces with a field as one code, and a link as a pair around its text; fields across paragraphs stay."""
    # The index of the begin of each field -> that of its end, where that is in the same element.
    ends, fields, elements = dict[int, int](), list[tuple[int, int]](), [-1]
    for index, (piece, _) in enumerate(pieces):
        if piece.is_element and piece.kind == "begin":
            elements.append(index)
        elif piece.is_element:
            elements.pop()
        mark = _field_mark(piece)
        if mark == "begin":
            fields.append((index, elements[-1]))
        elif mark == "end" and fields:
            first, element = fields.pop()
            if element == elements[-1]:
                ends[first] = index
    place = 0
    while place < len(pieces):
        piece, mark, end = pieces[place][0], _field_mark(pieces[place][0]), ends.get(place)
        if end is not None:
            yield from _field(pieces[place : end + 1])
            place = end
        else:
            yield (Piece("ending", piece.value), None) if mark else pieces[place]
        place += 1


def _field_mark(piece: Piece) -> str:
    """Which part of a field this is: "begin", "code", "separate" or "end"; "" if it is none."""
    part = piece.value[0] if piece.kind == "alone" else None
    if not isinstance(part, Part):
        return ""
    if local_name(part.content) == "instrText":
        return "code"
    types = (value for name, value in part.content.attrib.items() if name.endswith("fldCharType"))
    return next(types, "") if local_name(part.content) == "fldChar" else ""


def _field(pieces: Sequence[Shown]) -> Iterator[Shown]:
    marks = [_field_mark(piece) for piece, _ in pieces]
    code = "".join(piece.value[0].content.text or "" for (piece, _), mark in zip(pieces, marks) if mark == "code")
    if code.strip().upper().startswith("HYPERLINK") and marks.count("separate") == 1:
        text = marks.index("separate") + 1
        first = [part for piece, _ in pieces[:text] if piece.kind == "alone" for part in piece.value]
        last = pieces[-1][0].value
        yield Piece("begin", first, id(last)), None
        yield from pieces[text:-1]
        yield Piece("end", last, id(last)), None
    elif any(piece.kind in ("begin", "end") for piece, _ in pieces):  # what encloses parts of it stays around them
        for piece, look in pieces:
            yield (Piece("ending", piece.value) if _field_mark(piece) else piece), look
    else:
        texts = ([Part(look.properties, piece.value)] if look else piece.value for piece, look in pieces)
        yield Piece("alone", [part for parts in texts for part in parts]), None
