"""Office documents: all but the text stays, and formats, links, fields and notes stand in the translation."""

import io
import re
import zipfile

import pytest
from docx import Document as Word
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from odf.opendocument import OpenDocumentText
from odf.text import A, Bookmark, H, LineBreak, Note, NoteBody, NoteCitation, P, S, Span


def run(inner, bold=False):
    return f"<w:r>{'<w:rPr><w:b/></w:rPr>' if bold else ''}{inner}</w:r>"


def words(text, **look):
    return run(f'<w:t xml:space="preserve">{text}</w:t>', **look)


def field(code, shown):
    marks = [run(f'<w:fldChar w:fldCharType="{kind}"/>') for kind in ("begin", "separate", "end")]
    return f"{marks[0]}{run(f'<w:instrText>{code}</w:instrText>')}{marks[1]}{words(shown)}{marks[2]}"


FRAME = f"<w:pict><w:txbxContent><w:p>{words('in a frame')}</w:p></w:txbxContent></w:pict>"
# Paragraphs, and what they are in capitals.
PARAGRAPHS = [
    (words("a plain text"), words("A PLAIN TEXT")),
    (words("a ") + words("bo", bold=True) + words("ld", bold=True) + words(" text"),
     words("A ") + words("BOLD", bold=True) + words(" TEXT")),
    (words("wo") + '<w:proofErr w:type="spellStart"/>' + words("rd <"[:2] + " &lt; x"), words("WORD &lt; X")),
    (words("page ") + field(" PAGE ", "7") + words(" of it"), words("PAGE ") + field(" PAGE ", "7") + words(" OF IT")),
    (words("see ") + field(' HYPERLINK "x" ', "this page") + words("."),
     words("SEE ") + field(' HYPERLINK "x" ', "THIS PAGE") + words(".")),
    ('<w:hyperlink w:anchor="x">' + words("a link", bold=True) + "</w:hyperlink>" + words(" and much more text"),
     '<w:hyperlink w:anchor="x">' + words("A LINK", bold=True) + "</w:hyperlink>" + words(" AND MUCH MORE TEXT")),
    (words("name") + run("<w:tab/>") + words("value") + run("<w:br/>"),
     words("NAME") + run("<w:tab/>") + words("VALUE") + run("<w:br/>")),
    (words("a") + run('<w:footnoteReference w:id="2"/>') + words(", b"),
     words("A") + run('<w:footnoteReference w:id="2"/>') + words(", B")),
    ('<w:bookmarkStart w:id="1" w:name="x"/>' + words("one") + '<w:bookmarkEnd w:id="1"/>' + words(" two"),
     '<w:bookmarkStart w:id="1" w:name="x"/>' + words("ONE") + '<w:bookmarkEnd w:id="1"/>' + words(" TWO")),
    ("<w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:ins>" + words("new") + "</w:ins>" + words(" and old"),
     "<w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:ins>" + words("NEW") + "</w:ins>" + words(" AND OLD")),
    (run('<w:fldChar w:fldCharType="begin"/>') + run("<w:instrText>TOC</w:instrText>") + words("one"),
     run('<w:fldChar w:fldCharType="begin"/>') + run("<w:instrText>TOC</w:instrText>") + words("ONE")),
    (words("out ") + run(FRAME), words("OUT ") + run(FRAME.replace("in a frame", "IN A FRAME"))),
    ('<w:sdt><w:sdtPr/><w:sdtContent>' + words("one") + "</w:sdtContent></w:sdt>",
     '<w:sdt><w:sdtPr/><w:sdtContent>' + words("ONE") + "</w:sdtContent></w:sdt>"),
    (words("42") + run("<w:t>1</w:t>"), words("42") + run("<w:t>1</w:t>")),
]  # fmt: skip


def saved(document):
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def test_paragraphs_of_word(shout):
    document = Word()
    for source, _ in PARAGRAPHS:
        document.element.body.append(
            parse_xml(f'<w:p {nsdecls("w")}><w:pPr><w:jc w:val="center"/></w:pPr>{source}</w:p>')
        )
    document.element.body.append(document.element.body[0])  # the section's properties come last
    content = saved(document)
    translated = shout(content, "a.docx")
    found = zipfile.ZipFile(io.BytesIO(translated)).read("word/document.xml").decode()
    found = re.sub(r' xmlns:\w+="[^"]*"', "", found).replace('<w:pPr><w:jc w:val="center"/></w:pPr>', "")
    for source, expected in PARAGRAPHS:
        assert f"<w:p>{expected}</w:p>" in found, source
    Word(io.BytesIO(translated))


def test_tables_headers_and_the_rest_of_a_document(shout):
    document = Word()
    document.add_heading("title", 0)
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "cell", "42"
    document.sections[0].header.paragraphs[0].text = "header"
    content = saved(document)
    translated = shout(content, "a.docx")
    found = Word(io.BytesIO(translated))
    assert found.paragraphs[0].text == "TITLE" and found.paragraphs[0].style.name == "Title"
    assert [cell.text for cell in found.tables[0].rows[0].cells] == ["CELL", "42"]
    assert found.sections[0].header.paragraphs[0].text == "HEADER"
    before, after = (zipfile.ZipFile(io.BytesIO(each)) for each in (content, translated))
    assert before.namelist() == after.namelist()
    for name in before.namelist():
        if not re.fullmatch(r"word/(document|header\d|footer\d|comments)\.xml", name):
            assert before.read(name) == after.read(name)


def test_texts_of_opendocument(shout):
    document = OpenDocumentText()
    document.text.addElement(H(outlinelevel=1, text="title"))
    paragraph = P(text="one ")
    link, note, body = A(href="http://x.example/"), Note(id="n", noteclass="footnote"), NoteBody()
    link.addElement(Span(text="two"))
    link.addText(" three")
    body.addElement(P(text="the note"))
    for element in (NoteCitation(text="1"), body):
        note.addElement(element)
    for element in (link, note, Bookmark(name="x")):
        paragraph.addElement(element)
    paragraph.addText(", four")
    paragraph.addElement(S())
    paragraph.addText("five")
    paragraph.addElement(LineBreak())
    paragraph.addText("six")
    document.text.addElement(paragraph)
    translated = shout(saved(document), "a.odt")
    archive = zipfile.ZipFile(io.BytesIO(translated))
    found = archive.read("content.xml").decode()
    assert '<text:h text:outline-level="1">TITLE</text:h>' in found
    assert (
        '>ONE <text:a xlink:href="http://x.example/" xlink:type="simple"><text:span>TWO</text:span> THREE</text:a>'
        in found
    )
    assert "<text:p>THE NOTE</text:p>" in found and ", FOUR<text:s/>FIVE<text:line-break/>SIX</text:p>" in found
    assert '<text:bookmark text:name="x"/>' in found
    first = archive.infolist()[0]
    assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)


def archive_of(parts, compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
MAIN = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"


@pytest.mark.parametrize("type_of_main", [MAIN, "application/vnd.ms-word.document.macroEnabled.main+xml"])
@pytest.mark.parametrize("by_extension", [False, True])
def test_the_main_part_is_the_one_that_the_archive_calls_so(shout, type_of_main, by_extension):
    """Word Online names it word/document2.xml."""
    stated = f'<Override PartName="/Word/document2.xml" ContentType="{type_of_main}"/>'
    if by_extension:
        stated = f'<Default Extension="XML" ContentType="{type_of_main}"/>'
    types = f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{stated}</Types>'
    body = f"<w:document {WORD}><w:body><w:p>{words('the dog sleeps')}</w:p></w:body></w:document>"
    translated = shout(archive_of({"[Content_Types].xml": types, "word/document2.xml": body}), "a.docx")
    assert b"THE DOG SLEEPS" in zipfile.ZipFile(io.BytesIO(translated)).read("word/document2.xml")
    header = types.replace(type_of_main, MAIN.replace("document.main", "header"))
    with pytest.raises(ValueError, match="not a document of this kind: it has no text"):
        shout(archive_of({"[Content_Types].xml": header, "word/document2.xml": body}), "a.docx")


LAUGH = '<!DOCTYPE w [<!ENTITY a "b">]><w>&a;</w>'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an office document, or one that is damaged or has a password"),
        (b"\xd0\xcf\x11\xe0 with a password", "not an office document"),
        (archive_of({"a.txt": "b"}), "not a document of this kind: it has no text"),
        (archive_of({"word/document.xml": "<w:p"}), "word/document.xml: not XML"),
        (archive_of({"word/document.xml": LAUGH}), "declares XML entities"),
        (archive_of({"word/document.xml": "<!DOCTYPE w SYSTEM 'x'><w/>"}), "has a document type"),
        (archive_of({"word/document.xml": "<w/>", "bomb": b"0" * 2_000_001}), "unpacks to 2,000,005 bytes; at most"),
        (archive_of({"word/document.xml": "<w/>"}, zipfile.ZIP_LZMA), "compressed in a way"),
        (archive_of({str(number): "" for number in range(10_001)}), "more than 10,000 parts"),
        (archive_of({"word/document.xml": "<w/>"})[:-30], "not an office document"),
        (archive_of({"word/document.xml": "<w/>" * 20}).replace(b"word/document.xmlPK", b"x" * 19), "not an office"),
    ],
)
def test_damaged_and_hostile_documents_are_one_line(shout, content, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        shout(content, "a.docx", most_bytes=2_000_000)
    assert "\n" not in str(error.value)


def test_a_part_that_is_larger_than_it_says_is_not_read(shout):
    """The directory of a bomb says that a part is small; it is read as far as that."""
    content = archive_of({"word/document.xml": "<w/>", "bomb": b"0" * 2_000_000})
    lying = content.replace((2_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    with pytest.raises(ValueError, match="not an office document"):
        shout(lying, "a.docx", most_bytes=1000)


def test_deep_and_wide_documents(shout):
    namespace = nsdecls("w")
    deep = '<w:ins w:id="1">' * 60 + words("one") + "</w:ins>" * 60
    for body in (deep, words("a ", bold=True) * 2000, (words("a ") + words("b ", bold=True)) * 2000):
        content = archive_of({"word/document.xml": f"<w:document {namespace}><w:p>{body}</w:p></w:document>"})
        assert shout(content, "a.docx")
