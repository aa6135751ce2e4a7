"""
A translation that changes nothing gives back the document, and one that changes letters alone leaves all else where it
was: over documents made of words, marks, variables, tags, spaces and line breaks in all neighbourhoods.
"""

import html
import io
import random
import zipfile
from xml.sax.saxutils import escape

import polib
import pytest
import torch
from lxml import etree

from vanilla_transformer_hf.translation.documents.document import Reading, read_document
from vanilla_transformer_hf.translation.results import Translation


COUNT = 250
WORDS = ["the", "black", "dog", "sleeps", "Ärger", "don't", "well-known", "CO", "10", "6", "x2", "l'", "naïve", "犬"]
MARKS = """.,:;!?…'"()[]„“«»-–/*、。"""
SPACES = [" ", " ", " ", " ", "", "", "\u00a0", "  "]
PROSE = [
    *("{name}", "{{ x }}", "{{y}}", "%s", "%(n)s", "%1$s", "${a}", "#{b}", "%field%", "@name"),
    "https://example.org/a_b?c=d",
]
PROSE += ["me@example.org"]
PROGRAMS = [
    *PROSE,
    "%lld",
    "%@",
    "{0}",
    "%d",
    "%1",
    "%name",
    "@count",
    "%0:s",
    "%<PRIu64>",
    "&nbsp;",
    "&lt;",
    "$HOME",
    "--help",
]
PROGRAMS += ["-v", "/usr/share/doc", "\\n", "%%", "@@a@@", "%<key>s"]
TAGS = ["b", "i", "sup", "a href='x.html'", 'span class="y z"']
ICU = [
    "{n, plural, =0 {no dogs} one {# dog's} other {# dogs, {name}}}",
    "{who, select, he {his <b>dog</b>} other {{n, plural, one {a dog} other {'{'# dogs'}'}}}}",
]


def text_of(rng, codes, lines=("\n", "\t", "\n\n"), tags=True, depth=0):
    """A random string of words, marks, codes and tags."""
    out = ""
    for _ in range(rng.randint(1, 6)):
        kind = rng.random()
        if kind < 0.45:
            out += rng.choice(WORDS)
        elif kind < 0.6:
            out += rng.choice(MARKS)
        elif kind < 0.8:
            out += rng.choice(codes)
        elif tags and depth < 3:
            tag = rng.choice(TAGS)
            inner = (
                text_of(rng, codes, lines, tags, depth + 1) if rng.random() < 0.8 else rng.choice(["", " ", "<br/>"])
            )
            out += rng.choice(
                [
                    f"<{tag}>{inner}</{tag.split()[0]}>",
                    f"<{tag}>{inner}</{tag.split()[0]}>",
                    f"<img {tag}>",
                    f"<{tag}>",
                ]
            )
        out += rng.choice([*SPACES, *(lines if rng.random() < 0.3 else ())])
    return out


def archive(**parts):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in parts.items():
            file.writestr(name.replace("__", "/") + ".xml", content)
    return out.getvalue()


def html_of(rng):
    body = "".join(
        f"<p>{text_of(rng, [*PROSE, '&amp;', '&quot;', '&eacute;', '&#233;', '&nbsp;', '&lt;b&gt;'])}</p>\n"
        for _ in range(3)
    )
    return (body + f"<pre>{text_of(rng, PROSE)}</pre>").encode(), "a.html"


FLAGS = ["", "", "#, python-format\n", "#, c-format\n", "#, python-brace-format\n"]


def catalogue(rng, flags, texts):
    entries = "".join(f'\n{flags}msgid "{polib.escape(text)}"\nmsgstr ""\n' for text in dict.fromkeys(texts) if text)
    return f'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n{entries}'.encode(), "a.po"


def po_of(rng):
    texts = [text_of(rng, PROGRAMS), text_of(rng, PROGRAMS), f"{rng.choice('_&')}{text_of(rng, ['%s'])}"]
    return catalogue(rng, rng.choice(FLAGS), texts)


def po_with_branches(rng):
    texts = [rng.choice(ICU), text_of(rng, PROGRAMS) + rng.choice(ICU), text_of(rng, PROGRAMS)]
    return catalogue(rng, rng.choice([*FLAGS, "#, icu-message-format\n", "#, java-format\n"]), texts)


def inline_of(rng):
    out = ""
    for _ in range(rng.randint(1, 5)):
        text = escape(text_of(rng, PROGRAMS))
        out += rng.choice([text, text, f'<g id="1">{text}</g>', f'<x id="2"/>{text}', f'<ph id="3">%s</ph>{text}'])
        out += rng.choice(
            ["", f'<bpt id="4">(</bpt>{text}<ept id="4">)</ept>', '<x id="5" ctype="lb"/>', "<g id='6'> </g>"]
        )
    return out


def xliff(rng, sources):
    space = rng.choice(["", ' xml:space="preserve"'])
    units = (f"<trans-unit id='{n}'{space}><source>{each}</source></trans-unit>" for n, each in enumerate(sources))
    return (
        '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" source-language="en"'
        f' datatype="plaintext"><body>{"".join(units)}</body></file></xliff>'.encode(),
        "a.xlf",
    )


def xliff_of(rng):
    return xliff(rng, [inline_of(rng), inline_of(rng)])


def xliff_with_branches(rng):
    return xliff(rng, [escape(rng.choice(ICU)), "{n, plural, one {<x id='1'/> dog} other {dogs}}", inline_of(rng)])


def srt_of(rng):
    end, out = rng.choice(["\n", "\r\n", "\r"]), ""
    for number in range(4):
        lines = [text_of(rng, [*PROSE, "{\\an8}", "\\N"], ()).strip("\n") for _ in range(rng.randint(1, 3))]
        lines = [rng.choice(["", "", "", "- ", "-", "<i>- "]) + line for line in lines]
        out += f"{number + 1}{end}00:00:0{number},000 --> 00:00:0{number},900{end}{end.join(lines)}{end}"
        out += rng.choice([end, end, end + end, ""])
    return out.encode(), "a.srt"


WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def docx_of(rng):
    def run():
        look = rng.choice(["", "", "<w:rPr><w:b/></w:rPr>", "<w:rPr><w:rtl/></w:rPr>"])
        text = escape(rng.choice([text_of(rng, PROSE, (), tags=False), " ", rng.choice(WORDS), rng.choice(MARKS)]))
        inner = rng.choice(
            [f'<w:t xml:space="preserve">{text}</w:t>'] * 4 + ["<w:tab/>", '<w:footnoteReference w:id="2"/>']
        )
        return f"<w:r>{look}{inner}</w:r>"

    def paragraph():
        runs = [run() for _ in range(rng.randint(1, 6))]
        runs.insert(rng.randint(0, len(runs)), f'<w:hyperlink w:anchor="x">{run()}{run()}</w:hyperlink>')
        return f"<w:p>{''.join(runs)}</w:p>"

    body = "".join(paragraph() for _ in range(3))
    return archive(word__document=f"<w:document {WORD}><w:body>{body}</w:body></w:document>"), "a.docx"


def odt_of(rng):
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text")
    )

    def part():
        text = escape(text_of(rng, PROSE, ("\n",), tags=False))
        marked = f'<text:bookmark-start text:name="a"/>{text}<text:bookmark-end text:name="a"/>'
        codes = ["<text:span> </text:span>", "<text:s/>", '<text:s text:c="2"/>', "<text:line-break/>"]
        return rng.choice([text, f'<text:span text:style-name="T1">{text}</text:span>', marked, *codes])

    body = "".join(f"<text:p>{''.join(part() for _ in range(rng.randint(1, 6)))}</text:p>" for _ in range(3))
    body = f"<office:body><office:text>{body}</office:text></office:body>"
    return archive(content=f"<office:document-content {spaces}>{body}</office:document-content>"), "a.odt"


def txt_of(rng):
    return rng.choice(["\n", "\r\n", "\r"]).join(text_of(rng, PROGRAMS) for _ in range(4)).encode(), "a.txt"


def shown(content, name):
    """The texts of a document: all of its characters, for archives with what stands between them."""
    if name.endswith(".po"):
        return [(entry.msgid, entry.msgstr or entry.msgid) for entry in polib.pofile(f"\n{content.decode()}")]
    if name.endswith(".xlf"):
        root = etree.fromstring(content)
        return [
            inner(unit.find("{*}target") if unit.find("{*}target") is not None else unit[0])
            for unit in root.iter("{*}trans-unit")
        ]
    if name.endswith((".docx", ".odt")):
        (part,) = (
            each
            for each in ("word/document.xml", "content.xml")
            if each in zipfile.ZipFile(io.BytesIO(content)).namelist()
        )
        root = etree.fromstring(zipfile.ZipFile(io.BytesIO(content)).read(part))
        return ["".join(text_and_codes(each)) for each in root.iter("{*}p")]
    return content.decode()


def inner(element):
    return (element.text or "") + "".join(etree.tostring(child).decode() for child in element)


def text_and_codes(element):
    """Texts, and elements without text, of a paragraph; spans and runs are where their texts are."""
    name = etree.QName(element).localname
    yield element.text or ""
    for child in element:
        yield from text_and_codes(child)
        yield child.tail or ""
    if not len(element) and not element.text and name not in ("t", "b", "rtl", "rPr", "r", "span"):
        yield f"<{name}>"


def translated(content, name, translate, align):
    document = read_document(content, Reading(name))
    found = [[Translation(translate(text))] for text in document.texts]
    return document.translated(found, align)


def eye(pairs):
    return [torch.eye(len(source.split())) for source, _ in pairs]


def random_attention(pairs):
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(len(target.split()), len(source.split()), generator=generator) for source, target in pairs]


MAKERS = [html_of, po_of, po_with_branches, xliff_of, xliff_with_branches, srt_of, docx_of, odt_of, txt_of]


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
def maker(request):
    """A function that makes a random document."""
    if "branches" in request.param.__name__:
        pytest.importorskip("pyicumessageformat")
    return request.param


def test_a_translation_that_changes_nothing_gives_back_the_text(maker):
    rng = random.Random(0)
    for number in range(COUNT):
        content, name = maker(rng)
        written = translated(content, name, str, random_attention if number % 2 else lambda pairs: [None] * len(pairs))
        assert shown(written, name) == shown(content, name), number


def swapped(text):
    """The same letters in the other case, where that has as many characters."""
    return "".join(each.swapcase() if len(each.swapcase()) == len(each) else each for each in text)


def test_a_translation_word_by_word_moves_nothing(maker):
    """But for spaces and entities beside words that changed, all that is no letter is where it was."""
    rng = random.Random(1)
    for number in range(COUNT):
        content, name = maker(rng)
        written = translated(content, name, swapped, eye)
        before, after = (folded(shown(each, name)) for each in (content, written))
        assert after == before, number


def folded(texts):
    joined = (
        texts
        if isinstance(texts, str)
        else "\n".join("\n".join(each) if isinstance(each, tuple) else each for each in texts)
    )
    return "".join(html.unescape(html.unescape(joined.lower())).lower().replace("'", "").split())
