"""Documents of twice the size take twice the time, whatever is in them: for reading, and for writing."""

import zipfile
from functools import partial
from io import BytesIO

import pytest
from machine import is_linear, seconds_of

from vanilla_transformer_hf.translation.documents.document import Reading, read_document
from vanilla_transformer_hf.translation.results import Translation


W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
MARK, FIELD = "<mrk mtype='seg'>a</mrk>", "<w:r><w:fldChar w:fldCharType='begin'/></w:r>"
RUN, UNIT = "<w:r><w:t>dog</w:t></w:r>", "<trans-unit><source>a</source></trans-unit>"


def archive(name: str, content: str) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, content)
    return out.getvalue()


def docx(body: str, more: str = "") -> tuple[str, bytes]:
    content = f'<w:document xmlns:w="{W}" {more}><w:body>{body}</w:body></w:document>'
    return "a.docx", archive("word/document.xml", content)


def odt(body: str, more: str = "") -> tuple[str, bytes]:
    return "a.odt", archive("content.xml", f'<office xmlns:text="{TEXT}" {more}><text:p>{body}</text:p></office>')


def xliff(units: str, more: str = "", of_file: str = "") -> tuple[str, bytes]:
    return "a.xlf", f'<xliff version="1.2" {more}><file {of_file}><body>{units}</body></file></xliff>'.encode()


def unit(source: str) -> tuple[str, bytes]:
    return xliff(f"<trans-unit><source>{source}</source></trans-unit>")


HEADER = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'


def po(message: str) -> tuple[str, bytes]:
    return "a.po", f'{HEADER}msgid {message}\nmsgstr ""\n'.encode()


def html(text: str) -> tuple[str, bytes]:
    return "a.html", text.encode()


def srt(cue: str) -> tuple[str, bytes]:
    return "a.srt", f"1\n00:00:01,000 --> 00:00:02,000\n{cue}".encode()


def frames(paragraphs: str, depth: int = 80) -> tuple[str, bytes]:
    begin, end = "<w:p><w:r><w:t>dog</w:t><w:txbxContent>", "</w:txbxContent></w:r></w:p>"
    return docx(begin * depth + paragraphs + end * depth)


def names(count: int) -> str:
    """So many namespaces: a file may have 256."""
    return " ".join(f'xmlns:n{number}="urn:{number}"' for number in range(min(count, 250)))


# Parts of pages, and of texts with tags.
PAGES = ("<p>the dog</p>\n", "<p translate=no>a", "<script>", "<title>a</title>", "<pre>a\n", "<!--", "<p a=b ")
INSIDE = (
    *("<b>x </b>", "dog <img> ", "<img>", "<img>,", "<b>x", "</b>x", "<b></b>", "<code>dog ", "<i>@a</i> <b>dog</b> "),
    *(
        "&amp;&#65; a",
        "the dog plays. ",
        "dog",
        "a@",
        "%s ",
        "{a",
        "{a}",
        "((",
        "'",
        "www.a/",
        "<b>" * 49 + "x" + "</b>" * 49,
    ),
)
# What grows -> its document at a size.
KINDS = {
    "lines of a message": lambda n: po('""\n' + '"the dog\\n"\n' * (2 * n)),
    "words of a message": lambda n: po(f'"{"the dog " * (8 * n)}"'),
    "punycode": lambda n: ("a.po", f"{HEADER.replace('UTF-8', 'punycode')}# -{'a' * 20 * n}".encode()),
    "messages": lambda n: po('"a"\nmsgstr ""\n\nmsgid '.join(f'"dog {each}"\n' for each in range(n)) + '""'),
    "segments of a unit": lambda n: xliff(
        "<trans-unit><source>a</source><seg-source>" + MARK * (2 * n) + "</seg-source></trans-unit>"
    ),
    "units in units": lambda n: unit(
        "<trans-unit><source>a" * 60 + "<g>dog</g>" * (8 * n) + "</source></trans-unit>" * 60
    ),
    "codes of a unit": lambda n: unit("a <x id='1'/> dog <g>b</g> " * n),
    "pairs of codes": lambda n: unit("a <bpt id='1'/>dog <ept id='1'/> " * n),
    "namespaces of links": lambda n: docx(f"<w:p>{f'<w:hyperlink>{RUN}</w:hyperlink>' * n}</w:p>", names(n)),
    "namespaces of spans": lambda n: odt("<text:a>dog</text:a>" * n, names(n)),
    "namespaces of units": lambda n: xliff("<trans-unit><source>a<g>b</g></source></trans-unit>" * n, names(n)),
    "flags of a file": lambda n: xliff(UNIT * n, of_file=f"weblate-flags='{'a,' * 4500}'"),
    "frames": lambda n: frames(f"<w:p>{RUN}</w:p>" * n),
    "paragraphs": lambda n: docx(f"<w:p>{RUN}</w:p>" * n),
    "looks": lambda n: docx(f"<w:p>{f'<w:r><w:rPr><w:b/></w:rPr><w:t>dog</w:t></w:r>{RUN}' * n}</w:p>"),
    "fields that do not end": lambda n: docx(f"<w:p>{f'{FIELD}{RUN}' * n}</w:p>"),
    "spaces": lambda n: odt("a" + "<text:s/>" * (4 * n)),
    "bookmarks": lambda n: odt("".join(f"<text:bookmark-start text:name='{each}'/>" for each in range(n)) + "dog"),
    "spans": lambda n: odt("<text:span>dog</text:span> " * n),
}
KINDS |= {
    f"{name}: {what[:20]!r}": lambda n, make=make, what=what: make(what * (16 * n // len(what)))
    for name, make, texts in (
        ("html", html, (*PAGES, *INSIDE)),
        ("message", lambda text: po(f'"{text}"'), INSIDE),
        ("cue", srt, (*INSIDE, "the dog\n", "- the dog\n", "{a}", "a\\N")),
        ("text", lambda text: ("a.txt", text.encode()), ("the dog\n", "\n", "dog ")),
    )
    for what in texts
}
REFUSED = {
    "properties of a run that has many parts": lambda n: docx(
        f"<w:p><w:r><w:rPr>{'<w:b/>' * n}</w:rPr>{'<w:t>dog</w:t><w:tab/>' * n}</w:r></w:p>"
    ),
    **{
        f"{name} of a file with many units": lambda n, name=name: xliff(UNIT * n, of_file=f"{name}='{'a' * 500 * n}'")
        for name in ("translate", "weblate-flags")
    },
}
KINDS |= REFUSED | {
    "variables of an odt": lambda n: odt("a {a} " * (2 * n)),
    "variables of XLIFF": lambda n: unit("a {a} " * (2 * n)),
}


def seconds(kind: str, size: int) -> float:
    """CPU time of reading and writing a document with its own texts as translations."""
    name, content = KINDS[kind](size)

    def translated():
        try:
            document = read_document(content, Reading(name))
            found = [[Translation(text)] for text in document.texts]
            document.translated(found, lambda pairs: [None] * len(pairs))
        except ValueError:
            assert kind in ("punycode", *REFUSED)

    return seconds_of(translated)


@pytest.mark.parametrize("kind", KINDS)
def test_twice_as_much_takes_twice_as_long(kind):
    assert is_linear(partial(seconds, kind), 2000)


def test_no_more_namespaces_than_files_have():
    many = " ".join(f'xmlns:n{number}="urn:{number}"' for number in range(300))
    for name, content in (docx("", many), odt("", many), xliff("", many)):
        with pytest.raises(ValueError, match="has more than 256 namespaces; at most so many are read"):
            read_document(content, Reading(name))
