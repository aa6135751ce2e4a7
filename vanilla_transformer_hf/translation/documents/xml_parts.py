"""XML of documents: read without entities, and texts with elements inside as pieces."""

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from lxml import etree

from .inline import Piece


# Bytes of XML that are read: as a tree it takes about ten times as much memory.
LARGEST_XML = 32 * 2**20
# Namespaces at one place: each element that is moved is compared with all of them.
MOST_NAMESPACES = 256
# Elements around text inside each other; what is deeper is kept as it is.
DEEPEST = 20
# Characters that XML cannot hold.
NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parse_xml(content: bytes, name: str) -> Any:
    """The tree of an XML file; nothing is loaded from elsewhere."""
    if len(content) > LARGEST_XML:
        raise ValueError(f"{name}: {len(content):,} bytes of XML; at most {LARGEST_XML:,} are read")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        tree = etree.fromstring(content, parser).getroottree()
    except (etree.XMLSyntaxError, ValueError) as error:
        if getattr(error, "code", None) == etree.ErrorTypes.ERR_NO_MEMORY:
            raise MemoryError from error
        reason = str(error).partition(" (")[0]
        raise ValueError(f"{name}: not XML, or a damaged file ({reason}).") from error
    depth = 0
    for event, _ in etree.iterwalk(tree, ("start-ns", "end-ns")):
        depth += 1 if event == "start-ns" else -1
        if depth > MOST_NAMESPACES:
            raise ValueError(f"{name}: has more than {MOST_NAMESPACES} namespaces; at most so many are read")
    declared = tree.docinfo.internalDTD
    if declared is not None and any(True for _ in declared.iterentities()):
        raise ValueError(f"{name}: declares XML entities, which are not read; replace them by their text.")
    return tree


def write_xml(tree: Any) -> bytes:
    """The bytes of a tree, in the encoding that it had."""
    encoding, is_alone = tree.docinfo.encoding or "UTF-8", tree.docinfo.standalone or None
    return bytes(etree.tostring(tree, xml_declaration=True, encoding=encoding, standalone=is_alone))


def local_name(element: Any) -> str:
    """The name of an element without its namespace; "" for comments, instructions and entities."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def without_children(element: Any, *kept: str) -> Any:
    """A copy of an element with its attributes, and of its children those of these names."""
    # Without the namespaces that are declared around it, of which there can be many: it gets them where it is put.
    shell = element.makeelement(element.tag, dict(element.attrib))
    shell.extend(copy.deepcopy(child) for child in element if local_name(child) in kept)
    return shell


def detached(element: Any) -> Any:
    """An element without the text behind it, which lxml would move with it."""
    element.tail = None
    return element


@contextmanager
def filled_anew(element: Any, *kept: str) -> Iterator[None]:
    """What is added to an element takes the place of all that it has, except children of these names."""
    # The old children go last: codes among them move within the tree, and lxml (6.1) takes the square of the time for
    # an element that is put into a tree from outside.
    border = etree.SubElement(element, "border")
    yield
    for child in [*border.itersiblings(preceding=True)]:
        if local_name(child) not in kept:
            element.remove(child)
    element.text = border.tail
    element.remove(border)


class Container:
    """An element around text: `shell` is the element without the text, `inner`, or itself, what has it."""

    def __init__(self, shell: Any, inner: Any = None):
        self.shell, self.inner = shell, shell if inner is None else inner


def mixed_pieces(
    element: Any, classify: Callable[[Any], Piece | None], is_around: Callable[[Any], bool], depth: int = 0
) -> Iterable[Piece]:
    """The pieces, not nested yet, of an element whose text and elements are mixed."""
    # It changes only in the tails of its children once they are moved. `classify` makes a piece of an element around
    # no text; None: it is left out.
    yield Piece("text", element.text or "")
    for child in element:
        tail = child.tail or ""
        if is_around(child) and depth < DEEPEST:
            container = Container(without_children(child))
            yield Piece("begin", container, container, is_element=True)
            yield from mixed_pieces(child, classify, is_around, depth + 1)
            yield Piece("end", container, container, is_element=True)
        elif (piece := classify(child)) is not None:
            yield piece
        yield Piece("text", tail)


def fill_mixed(parent: Any, pieces: Iterable[Piece]) -> None:
    """Append text and elements of a translation to an element that is empty."""
    parents = [parent]
    for is_text, group in groupby(pieces, lambda piece: isinstance(piece.value, str)):
        if is_text:  # or codes that are text in the file; at once, because lxml copies what there is
            here, text = parents[-1], NO_XML.sub("", "".join(piece.value for piece in group))
            last = next(here.iterchildren(reversed=True), None)  # len() counts all of them
            if last is not None:
                last.tail = (last.tail or "") + text
            else:
                here.text = (here.text or "") + text
            continue
        for piece in group:
            if piece.kind == "begin" and piece.is_element:
                parents[-1].append(piece.value.shell)
                parents.append(piece.value.inner)
            elif piece.kind == "end" and piece.is_element:
                parents.pop()
            else:
                parents[-1].append(detached(piece.value))
