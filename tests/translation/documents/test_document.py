"""Documents by their endings; text and pages, in their encodings."""

import re
import sys
from pathlib import Path

import pytest

from vanilla_transformer_hf.commands.translate import NO_LINES
from vanilla_transformer_hf.translation.documents.document import READERS


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "one\r\n\n  two  \né".encode(), "ONE\r\n\n  TWO  \nÉ".encode()),
        ("a.TXT", "one".encode("utf-16"), "ONE".encode("utf-16")),
        ("a.txt", b"", b""),
        ("a.html", b"<p>one <b>two</b> &lt;</p>", b"<p>ONE <b>TWO</b> &lt;</p>"),
        ("a.htm", "<meta charset='latin-1'>é".encode("latin-1"), "<meta charset='latin-1'>É".encode("latin-1")),
    ],
)
def test_text_and_pages(shout, name, content, expected):
    assert shout(content, name) == expected


def test_letters_that_an_encoding_lacks_are_written_by_number(shout):
    page = "<meta charset=iso-8859-2>ß é".encode("iso-8859-1")
    assert shout(page, "a.html").endswith(b"SS \xc9") and b"&#" not in shout(page, "a.html")
    assert shout("<meta charset=windows-1252>ÿ ÿ'n ŉ".encode("cp1252", "replace"), "a.html").endswith(b"?")
    assert b"&#700;N" in shout(b"<meta charset=iso-8859-1>\xff &#329;", "a.html")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", b"", "'a.pdf' is not a document: expected .txt, .html"),
        ("a", b"", "is not a document"),
        ("a.txt", b"one \xff", "a.txt, byte 5: not UTF-8"),
        ("a.html", b"<meta charset=unicode_escape>\xff", "a.html, byte 30: not UTF-8"),
        ("a.srt", b"\xff\xfeo", "a.srt, byte 3: not UTF-16"),
    ],
)
def test_what_is_no_document_is_one_line(shout, name, content, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        shout(content, name)
    assert "\n" not in str(error.value)


def test_a_missing_library_is_named(shout, monkeypatch):
    monkeypatch.setitem(sys.modules, "polib", None)
    monkeypatch.delitem(sys.modules, "vanilla_transformer_hf.translation.documents.po", raising=False)
    with pytest.raises(ValueError, match=r"a.po: polib, which reads it, is not installed: pip install '.*documents"):
        shout(b"", "a.po")


def test_endings_are_those_of_the_command_and_the_pages():
    assert set(NO_LINES) < set(READERS)
    pages = "".join(
        (Path(__file__).parents[3] / "docs" / name).read_text() for name in ("translating.md", "serving.md")
    )
    assert all(f"`{ending}`" in pages for ending in READERS if ending != ".htm")
