"""Documents by their endings; text and pages, in their encodings."""

import io
import re
import sys
import zipfile
from pathlib import Path

import pytest

from vanilla_transformer_hf.commands.translate import NO_LINES, TABLES
from vanilla_transformer_hf.common.corpus_files import ROW_READERS
from vanilla_transformer_hf.translation.documents.document import READERS
from vanilla_transformer_hf.translation.documents.plain import checked_encoding


def archive_of(parts):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "one\r\n\n  two  \né".encode(), "ONE\r\n\n  TWO  \nÉ".encode()),
        ("a.TXT", "one".encode("utf-16"), "ONE".encode("utf-16")),
        ("a.txt", b"", b""),
        ("a.txt", b"one\rtwo\r\rthree", b"ONE\rTWO\r\rTHREE"),
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


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\n{}\n", "utf-8"),
        ("a.txt", "{}", "utf-8"),
        ("a.html", "<p>{}</p>", "cp1251"),
    ],
)
def test_an_encoding_that_is_given(shout, name, content, expected):
    text = content.format("собака спит")
    assert shout(text.encode("cp1251"), name, encoding="cp1251") == content.format("СОБАКА СПИТ").encode(expected)
    with pytest.raises(ValueError, match=f"{name}, byte .*: not ascii"):
        shout(text.encode("cp1251"), name, encoding="ascii")


@pytest.mark.parametrize("name", ["rot13", "no-such", "hex"])
def test_what_is_no_encoding_of_text_is_one_line(name):
    with pytest.raises(ValueError, match=f"^encoding {name}: not an encoding of text"):
        checked_encoding(name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.srt", b"the dog sleeps\n", "a.srt: no subtitles found"),
        ("a.srt", b"\xef\xbb\xbf1\n00h01 00h02\ndog\n", "a.srt: no subtitles found"),
        ("a.xlf", b"<xliff version='1.2'><file><body/></file></xliff>", "a.xlf: has no units"),
        ("a.xliff", b"<xliff version='2.0'><file><group/></file></xliff>", "a.xliff: has no units"),
        ("a.po", b'msgid ""\nmsgstr "Language: de\\n"\n', "a.po: has no messages"),
        ("a.docx", archive_of({"word/document.xml": "<w/>"}), "a.docx: has no paragraphs"),
        ("a.odt", archive_of({"content.xml": "<w/>"}), "a.odt: has no paragraphs"),
    ],
)
def test_a_file_of_which_nothing_was_read_is_an_error(shout, name, content, message):
    with pytest.raises(ValueError, match=message):
        shout(content, name)


def test_a_missing_library_is_named(shout, monkeypatch):
    monkeypatch.setitem(sys.modules, "polib", None)
    for name in ("translation.documents.po", "common.catalogues"):
        monkeypatch.delitem(sys.modules, f"vanilla_transformer_hf.{name}", raising=False)
    with pytest.raises(ValueError, match=r"a.po: polib, which reads it, is not installed: pip install '.*documents"):
        shout(b"", "a.po")


def test_endings_are_those_of_the_command_and_the_pages():
    assert {".txt", *NO_LINES} == set(READERS)
    assert {*TABLES} | {*NO_LINES} >= {".parquet", *ROW_READERS} and not {*TABLES} & {*NO_LINES}
    pages = "".join(
        (Path(__file__).parents[3] / "docs" / name).read_text() for name in ("translating.md", "serving.md")
    )
    assert all(f"`{ending}`" in pages for ending in READERS if ending != ".htm")
