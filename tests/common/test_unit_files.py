"""Files of translators, written by the tools of these formats: TMX, XLIFF, PO, Excel's workbooks and text."""

import datetime
import gzip
import logging
import resource
import sys
import zipfile

import openpyxl
import pytest
from translate.storage import pypo, tmx, xliff, xliff2

from vanilla_transformer_hf.common import unit_files
from vanilla_transformer_hf.common.unit_files import (
    FUZZY,
    LOCKED,
    ONE_LANGUAGE,
    UNTRANSLATED,
    po_pairs,
    tmx_pairs,
    xliff_pairs,
    xlsx_pairs,
)
from vanilla_transformer_hf.training.data.corpus import load_parallel_text


pytestmark = pytest.mark.usefixtures("datasets_cache")
ENGLISH, YORUBA = ["one dog", "two & three dogs"], ["ajá kan", "ajá méjì & mẹ́ta"]
PAIRS = [{"source": source, "target": target} for source, target in zip(ENGLISH, YORUBA)]
BACK = [{"source": pair["target"], "target": pair["source"]} for pair in PAIRS]
NAMES = (("source", "source"), ("target", "target"))
EN_YO, YO_EN = (("en", "source"), ("yo", "target")), (("yo", "source"), ("en", "target"))


def store(kind, *languages, **settings):
    """A store of translate-toolkit with the pairs."""
    made = kind(**settings)
    for source, target in zip(ENGLISH, YORUBA):
        unit = made.addsourceunit(source)
        unit.settarget(target, *languages)
    return made


def save(path, content):
    path.write_bytes(content if isinstance(content, bytes) else bytes(content))
    return str(path)


@pytest.fixture
def tmx_file(tmp_path):
    made = tmx.tmxfile()
    for source, target in zip(ENGLISH, YORUBA):
        made.addtranslation(source, "en", target, "yo")
    return save(tmp_path / "a.tmx", made)


def tmx_text(body, head="", srclang="en"):
    return f'<?xml version="1.0"?>{head}<tmx version="1.4"><header srclang="{srclang}"/><body>{body}</body></tmx>'


def tu(**texts):
    variants = "".join(f'<tuv xml:lang="{name.replace("_", "-")}"><seg>{t}</seg></tuv>' for name, t in texts.items())
    return f"<tu>{variants}</tu>"


def test_tmx_of_its_tool_is_read_in_both_directions(tmx_file):
    assert list(tmx_pairs(tmx_file, NAMES)) == list(tmx_pairs(tmx_file, EN_YO)) == PAIRS
    assert list(tmx_pairs(tmx_file, YO_EN)) == BACK


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tmx_with_other_spellings_variants_and_inline_codes(tmp_path, encoding):
    body = tu(
        EN_us="one <bpt i='1'>&lt;b></bpt>dog<ept i='1'>&lt;/b></ept>", fr="x", yor="ajá<ph> %s</ph> <hi>kan</hi>"
    )
    body += tu(EN_us="only", fr="x") + tu(EN_us="empty", yor=" ") + tu(yor="y")
    text = tmx_text(body, '<!DOCTYPE tmx SYSTEM "tmx14.dtd">').replace(
        'version="1.0"', f'version="1.0" encoding="{encoding}"'
    )
    path = save(tmp_path / "a.tmx", text.encode(encoding))
    expected = [{"source": "one dog", "target": "ajá kan"}, ONE_LANGUAGE, UNTRANSLATED, ONE_LANGUAGE]
    assert list(tmx_pairs(path, EN_YO)) == expected


@pytest.mark.parametrize("srclang", ["en", "en-US", "EN", "English"])
def test_a_memory_in_two_languages_is_read_from_its_source_language(tmp_path, srclang):
    path = save(tmp_path / "a.tmx", tmx_text(tu(yo="kan", en="one"), srclang=srclang).encode())
    assert list(tmx_pairs(path, NAMES)) == [{"source": "one", "target": "kan"}]


@pytest.mark.parametrize("made", [(xliff.xlifffile, "yo"), (xliff2.Xliff2File,)], ids=["1", "2"])
def test_xliff_of_its_tool(tmp_path, made):
    kind, *languages = made
    units = store(kind, *languages, sourcelanguage="en", targetlanguage="yo")
    path = save(tmp_path / "a.xlf", units)
    assert list(xliff_pairs(path, NAMES)) == list(xliff_pairs(path, EN_YO)) == PAIRS
    assert list(xliff_pairs(path, YO_EN)) == BACK
    units.addsourceunit("untranslated")
    fuzzy = units.addsourceunit("fuzzy")
    fuzzy.settarget("ko dá", *languages)
    fuzzy.markfuzzy()
    rows = list(xliff_pairs(save(tmp_path / "b.xliff", units), EN_YO))
    assert rows[:3] == [*PAIRS, UNTRANSLATED] and rows[3] in (UNTRANSLATED, FUZZY)
    with pytest.raises(ValueError, match=r"a\.xlf, line \d: its text is in en and yo: expected en and de"):
        list(xliff_pairs(path, (("en", "source"), ("de", "target"))))


def test_states_inline_codes_and_alternatives_of_xliff(tmp_path):
    one = """<xliff version="1.2"><file source-language="en-US"><body><group>
      <trans-unit id="1"><source>a <g id="1">big</g><x id="2" ctype="lb"/>dog<ph id="3">{0}</ph></source>
        <target state="translated">ajá<!-- no --> <g id="1">ńlá</g> kan</target>
        <alt-trans><source>old</source><target>wrong</target></alt-trans></trans-unit>
      <trans-unit id="2"><source>b</source><target state="needs-review-translation">c</target></trans-unit>
      <trans-unit id="3"><source>b</source><target state="new">b</target></trans-unit>
      <trans-unit id="4" translate="no"><source>Linux</source><target>Linux</target></trans-unit>
      <trans-unit id="5"><source>d</source></trans-unit></group></body></file></xliff>"""
    first = {"source": "a big dog", "target": "ajá ńlá kan"}
    assert list(xliff_pairs(save(tmp_path / "a.xlf", one.encode()), EN_YO)) == [
        *(first, FUZZY, UNTRANSLATED, LOCKED, UNTRANSLATED)
    ]
    two = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="yo">
      <file id="f"><unit id="1"><segment state="final"><source>a <pc id="1">big</pc> dog<ph id="2"/></source>
      <target>ajá <mrk id="m">ńlá</mrk> kan</target></segment><ignorable><source> </source></ignorable>
      <segment state="initial"><source>b</source><target>c</target></segment><segment><source>d</source></segment>
      </unit></file></xliff>"""
    assert list(xliff_pairs(save(tmp_path / "b.xlf", two.encode()), EN_YO)) == [first, FUZZY, UNTRANSLATED]


def test_po_of_its_tool_with_plural_fuzzy_and_obsolete_messages(tmp_path):
    made = pypo.pofile()
    for source, target in zip(ENGLISH, YORUBA):
        made.addsourceunit(source).target = target
    made.updateheader(
        add=True, Language="yo", Content_Type="text/plain; charset=UTF-8", Plural_Forms="nplurals=1; plural=0;"
    )
    made.addsourceunit("untranslated")
    fuzzy = made.addsourceunit("fuzzy")
    fuzzy.target = "ko dá"
    fuzzy.markfuzzy()
    plural = made.addsourceunit(["%d dog", "%d dogs"])
    plural.target = ["ajá %d"]
    path = save(tmp_path / "a.po", made)
    expected = [*PAIRS, UNTRANSLATED, FUZZY, {"source": "%d dogs", "target": "ajá %d"}]
    assert list(po_pairs(path, NAMES)) == list(po_pairs(path, EN_YO)) == expected
    assert list(po_pairs(path, YO_EN))[:2] == BACK
    with pytest.raises(ValueError, match=r"a\.po: its text is in yo: expected en and de"):
        list(po_pairs(path, (("en", "source"), ("de", "target"))))
    german = 'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\nmsgid "dog"\nmsgid_plural "dogs"\n'
    german += 'msgstr[0] "Hund"\nmsgstr[1] "Hunde"\n\n#~ msgid "old"\n#~ msgstr "alt"\n'
    pairs = [tuple(row.values()) for row in po_pairs(save(tmp_path / "b.po", german.encode()), NAMES)]
    assert pairs == [("dog", "Hund"), ("dogs", "Hunde")]


@pytest.mark.parametrize(
    "header",
    [
        "PO-Revision-Date: 2024-05-01 10:15+0200",
        "POT-Creation-Date: 2024-05-01T10:15:30+00:00",  # WordPress
        "PO-Revision-Date: ",  # Poedit, Lingui
        "POT-Creation-Date: YEAR-MO-DA HO:MI+ZONE",
        "PO-Revision-Date: 2024-05-01 10:15:30+0200",
        "Language-Team: Deutsch: alle",
        "Plural-Forms: nplurals=2; plural=(n > 1)?1:0",
        "no field",
    ],
)
def test_headers_of_catalogues_are_as_programs_write_them(tmp_path, header):
    text = f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"{header}\\n"\n"Language: de\\n"\n\n'
    text += '#| msgid "Dog"\nmsgid "dog\u2028s\x85"\nmsgstr "Hunde"\n\n#~| msgid "A dog"\n#~ msgid "A black dog"\n'
    text += '#~ msgstr "Ein Hund"\n'
    for end in ("\n", "\r\n", "\r"):
        path = save(tmp_path / "a.po", text.replace("\n", end).encode())
        names = (("en", "source"), ("de", "target"))
        assert list(po_pairs(path, names)) == [{"source": "dog\u2028s\x85", "target": "Hunde"}]


def test_catalogues_in_other_encodings(tmp_path):
    text = 'msgid ""\nmsgstr "Content-Type: text/plain; charset={}\\n"\n\nmsgid "dog"\nmsgstr "собака"\n'
    for charset in ("koi8-r", "windows-1251", "ISO-8859-5", "UTF-8", "CHARSET"):
        encoding = "utf-8" if charset == "CHARSET" else charset
        path = save(tmp_path / "a.po", text.format(charset).encode(encoding))
        assert list(po_pairs(path, NAMES)) == [{"source": "dog", "target": "собака"}]
    for charset in ("punycode", "no-such", "ascii"):
        with pytest.raises(ValueError, match=r"a\.po: not a gettext catalogue, or a damaged one"):
            list(po_pairs(save(tmp_path / "a.po", text.format(charset).encode()), NAMES))


def workbook(path, *rows, more=()):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for title in more:
        book.create_sheet(title).append(["x", "y"])
    book.create_sheet("empty")
    book.save(path)
    return str(path)


@pytest.mark.parametrize("header", [["Yoruba", "note", "en-US"], ["YO", None, "English"], None])
def test_workbooks_with_and_without_a_header(tmp_path, header):
    rows = list(zip(YORUBA, ["", "n"], ENGLISH)) if header else list(zip(ENGLISH, YORUBA))
    path = workbook(tmp_path / "a.xlsx", *filter(None, [header]), rows[0], [None], *rows[1:], [1984, 2.5, "x"])
    found = list(xlsx_pairs(path, EN_YO))
    assert found == [*PAIRS, {"source": "x", "target": "1984"} if header else {"source": "1984", "target": "2.5"}]


@pytest.mark.parametrize(
    "rows, more, message",
    [
        ([["English", "German"]], (), "no column 'yo' or 'target'"),
        ([["en", "yo"]], ["other"], r"several sheets have content: Sheet, other; keep one"),
        ([["en", "yo"], ["a", datetime.date(2024, 1, 1)]], (), r"a\.xlsx, row 2: a cell holds a datetime"),
        ([["en", "yo"], ["a", "#REF!"]], (), r"a\.xlsx, row 2: the formula of a cell has the error #REF!"),
        (
            [["My texts"], ["en", "yo"], ["a", "b"]],
            (),
            r"a\.xlsx, row 1: 1 columns, but 2 .* it is a title, which must",
        ),
        ([[1, "a", "b"], [2, "c", "d"]], (), r"a\.xlsx, row 1: 3 columns, the first of numbers, need a header"),
        ([["en", "yo"]], (), "the corpus is empty"),
    ],
)
def test_workbooks_that_do_not_say_enough_are_refused(tmp_path, rows, more, message):
    with pytest.raises(ValueError, match=message):
        load_parallel_text(workbook(tmp_path / "a.xlsx", *rows, more=more), source_lang="en", target_lang="yo")


def test_numbers_have_all_their_digits(tmp_path):
    path = workbook(tmp_path / "a.xlsx", ["en", "yo"], [1.2345678e20, 12345678901], [0.5, 3.0])
    assert [[*row.values()] for row in xlsx_pairs(path, EN_YO)] == [["1.2345678e+20", "12345678901"], ["0.5", "3"]]


def test_escapes_of_excel_are_what_they_stand_for(tmp_path):
    path = workbook(tmp_path / "a.xlsx", ["en", "yo"], ["a_x000D_\nb", "_x005F_x000D_ _x_ _x005f_"], ["_xD83D_", "c"])
    expected = [["a \nb", "_x000D_ _x_ _"], ["_xD83D_", "c"]]
    assert [[*row.values()] for row in xlsx_pairs(path, EN_YO)] == expected


def test_columns_that_are_not_read_may_hold_anything(tmp_path):
    others = [datetime.date(2024, 1, 1), "#N/A", True, datetime.timedelta(1), 1e300, "x"]
    rows = [(source, other, target) for source, target, other in zip(ENGLISH * 3, YORUBA * 3, others)]
    path = workbook(tmp_path / "a.xlsx", ["en", datetime.date(2024, 1, 1), "yo"], *rows)
    expected = [{"source": source, "target": target} for source, _, target in rows]
    assert list(xlsx_pairs(path, EN_YO)) == expected
    beside = workbook(tmp_path / "b.xlsx", *[(source, target, other) for source, other, target in rows])
    assert list(xlsx_pairs(beside, EN_YO)) == expected


def test_excels_unicode_text_and_csv_with_semicolons(tmp_path):
    tabs = 'English\tYoruba\r\n"say ""a, b"""\t"two\nlines"\r\none\tkan\r\n'
    expected = {"source": ['say "a, b"', "one"], "target": ["two\nlines", "kan"]}
    languages = {"source_lang": "en", "target_lang": "yo"}
    for name, text in (
        ("a.txt", tabs.encode("utf-16")),
        ("b.TXT", b"\xfe\xff" + tabs.encode("utf-16-be")),
        ("c.tsv", tabs.encode("utf-16")),
        ("d.txt.gz", gzip.compress(tabs.encode("utf-16"))),
        ("e.csv", tabs.replace("\t", ";").encode("utf-8-sig")),
        ("f.csv", b"sep=;\r\n" + tabs.replace("\t", ";").encode()),
        (
            "g.csv",
            tabs.replace("\t", ";")
            .replace("English;", "id;Yoruba, old;EN;")
            .replace("one;", "1;x;one;")
            .replace('"say', '1;x;"say')
            .encode(),
        ),
        ("h.csv", tabs.encode()),
    ):
        assert load_parallel_text(save(tmp_path / name, text), **languages)[:] == expected, name
    two = [save(tmp_path / name, text.encode("utf-16")) for name, text in (("i.en", "a\nb"), ("i.yo", "c\r\nd\r\n"))]
    assert load_parallel_text(*two)[:] == {"source": ["a", "b"], "target": ["c", "d"]}
    headless = tabs.partition("\n")[2].encode("utf-16")
    assert load_parallel_text(save(tmp_path / "j.txt", headless), **languages)[:] == expected


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.txt", "en\tyo\r\na\tb\tc\r\n".encode("utf-16"), r"a\.txt, line 2: 3 columns, but 2 expected"),
        ("a.txt", "English\tFrench\r\na\tb\r\n".encode("utf-16"), "no column 'yo'"),
        ("a.txt", "a\tb".encode("utf-16")[:-1], r"a\.txt: not valid UTF-16"),
        (
            "a.csv",
            b"one;ein\ntwo;zwei\n",
            "a.csv, line 1, its header: no column 'en' or 'source' .*there are: one, ein",
        ),
        ("a.csv", b"sep=;\n", "a.csv, line 2, its header: no column 'en' or 'source' .*there are: none"),
        ("a.csv", b"en;yo\na;b;c\n", r"a\.csv, line 2: the number of columns differs from the header's 2"),
        ("a.csv", b"en;yo\ra;b\rc;d\r", r"a\.csv, line 1: new-line character seen in unquoted field\."),
        ("a.csv", b"sep=;\nen;yo\ra;b\r", r"a\.csv, line 2: new-line character seen in unquoted field\."),
        ("a.csv", b"sep=;\nen;yo\na;b;c\n", r"a\.csv, line 3: the number of columns"),
    ],
)
def test_tables_of_excel_that_are_refused(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        load_parallel_text(save(tmp_path / name, text), source_lang="en", target_lang="yo")


@pytest.mark.parametrize("header", [("English", "Yoruba"), ("en", "yo"), ("Source", "Target"), ("EN-us", "YORÙBÁ")])
def test_headers_in_two_plain_files_are_refused(tmp_path, header):
    files = [save(tmp_path / f"a{n}", f"{name}\ntext\n".encode()) for n, name in enumerate(header)]
    with pytest.raises(ValueError, match="is a header and not a pair of texts; remove this line from both files"):
        load_parallel_text(*files, source_lang="en", target_lang="yo")


def test_short_texts_in_plain_files_are_no_headers(tmp_path):
    for n, pair in enumerate([("one", "ein"), ("no", "nei"), ("German", "Deutsch"), ("text", "Text"), ("", "")]):
        files = [save(tmp_path / f"{n}{side}", f"{text}\nx\n".encode()) for side, text in zip("ab", pair)]
        assert load_parallel_text(*files)[0] == dict(zip(("source", "target"), pair))


def test_what_is_left_out_is_said_in_every_run(tmp_path, caplog):
    body = tu(en="one", yo="kan") + tu(en="two", yo="") + tu(en="three")
    path = save(tmp_path / "a.tmx", tmx_text(body).encode())
    said = "a.tmx: units left out: 1 without a text in both languages; 1 without a translation."
    for streaming in (False, False, True):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            corpus = load_parallel_text(path, source_lang="en", target_lang="yo", streaming=streaming)
            assert list(corpus) == [{"source": "one", "target": "kan"}]
        assert said in caplog.text
    path = save(tmp_path / "b.tmx", tmx_text(tu(en="two", yo="")).encode())
    with pytest.raises(ValueError, match=r"b\.tmx: the corpus is empty, .* \(1 without a translation\)"):
        load_parallel_text(path)


BOMB = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi"))
OUTSIDE = '<!ENTITY x SYSTEM "file:///etc/passwd">'


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.tmx", tmx_text(tu(en="&i;", yo="x"), f'<!DOCTYPE tmx [<!ENTITY a "lol">{BOMB}]>'), "declares XML ent"),
        ("a.tmx", tmx_text(tu(en="&x;", yo="x"), f"<!DOCTYPE tmx [{OUTSIDE}]>"), "declares XML entities"),
        ("a.tmx", tmx_text("", f"<!DOCTYPE tmx [{OUTSIDE.replace('x ', '% x ')}%x;]>"), "declares XML entities"),
        ("a.tmx", tmx_text(tu(en="&x;", yo="x"), '<!DOCTYPE tmx SYSTEM "t.dtd">'), "line 1: the entity &x;"),
        ("a.tmx", tmx_text(tu(en="a", yo="b"))[:-30], "not XML, or a damaged file"),
        ("a.tmx", "<a>" * 1000, "not XML, or a damaged file"),
        ("a.tmx", "", "not XML, or a damaged file"),
        ("a.tmx", "<xliff/>", "its first element is not <tmx>"),
        ("a.tmx", tmx_text(tu(en="a", yo="b") + tu(fr="c")), "texts in en, yo, fr; set source_lang"),
        ("a.tmx", tmx_text(tu(en="a", yo="b"), srclang="*all*"), "texts in en, yo; set source_lang"),
        ("a.tmx.gz", "not gzip", "not a complete gzip file"),
        ("a.xlf", "<html/>", "its first element is not <xliff>"),
        ("a.po", 'msgid "a"\nmsgstr "b"\n<<<<<<< HEAD\n', "not a gettext catalogue"),
        ("a.po", 'msgid "a"\nmsgstr "b', "the corpus is empty"),
        ("a.xlsx", "no zip", "no .xlsx workbook, or one with a password"),
    ],
)  # fmt: skip
def test_damaged_and_hostile_files_are_refused_in_one_line(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message) as refusal:
        load_parallel_text(save(tmp_path / name, text.encode()))
    assert "\n" not in str(refusal.value) and name in str(refusal.value)


SHEET, STRINGS, TYPES = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml", "[Content_Types].xml"
SHARED = (
    f'<Override PartName="/{STRINGS}" '
    'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"/></Types>'
)


def changed_workbook(path, **contents):
    """A workbook with another content of its sheet, of the texts that Excel keeps beside it, or with a picture."""
    workbook(path, ["en", "yo"], ["a", "b"])
    with zipfile.ZipFile(path) as archive:
        parts = {info.filename: archive.read(info).decode() for info in archive.infolist()}
    if "strings" in contents:
        parts[STRINGS], parts[TYPES] = contents["strings"], parts[TYPES].replace("</Types>", SHARED)
    parts[SHEET] = contents.get("sheet", parts[SHEET])
    parts["xl/media/image.png"] = contents.get("picture", "")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return str(path)


STRICT = {
    "http://schemas.openxmlformats.org/spreadsheetml/2006/main": "http://purl.oclc.org/ooxml/spreadsheetml/main",
    "http://schemas.openxmlformats.org/officeDocument/2006": "http://purl.oclc.org/ooxml/officeDocument",
}


def test_the_text_of_a_cell_is_as_long_as_excel_allows(tmp_path):
    """One text may stand in many cells, in some bytes of each."""
    workbook(tmp_path / "a.xlsx", ["en", "yo", "note"], ["a", "b", "much"])
    with zipfile.ZipFile(tmp_path / "a.xlsx") as book:
        parts = {name: book.read(name) for name in book.namelist()}
    for name, asked in {"b.xlsx": b">much<", "c.xlsx": b">b<"}.items():
        with zipfile.ZipFile(tmp_path / name, "w") as changed:
            for part, content in parts.items():
                changed.writestr(part, content.replace(asked, b">" + b"x" * 32_768 + b"<"))
    assert list(xlsx_pairs(str(tmp_path / "b.xlsx"), EN_YO)) == [{"source": "a", "target": "b"}], "no text of a pair"
    with pytest.raises(ValueError, match=r"c\.xlsx, row 2: a cell of 32,768 characters; Excel allows 32,767"):
        list(xlsx_pairs(str(tmp_path / "c.xlsx"), EN_YO))


def test_strict_workbooks_are_one_line(tmp_path):
    path = workbook(tmp_path / "a.xlsx", ["en", "yo"], ["a", "b"])
    with zipfile.ZipFile(path) as archive:
        parts = {info.filename: archive.read(info).decode() for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            for old, new in STRICT.items():
                data = data.replace(old, new)
            archive.writestr(name, data)
    with pytest.raises(ValueError, match=r"a\.xlsx: has no sheets that can be read, as a Strict Open XML one") as told:
        load_parallel_text(path)
    assert "\n" not in str(told.value)


def test_hostile_workbooks_are_refused(tmp_path, monkeypatch):
    bomb = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "lol">{BOMB}]><x>&i;</x>'
    monkeypatch.setattr(unit_files, "LAST_ROW", 1000)
    far = '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    far += '<row r="999999999"><c r="A999999999"><v>1</v></c></row></sheetData></worksheet>'
    for contents in ({"sheet": bomb}, {"strings": bomb}, {"sheet": "<worksheet>"}, {"sheet": ""}, {"sheet": far}):
        with pytest.raises(ValueError, match=r"a\.xlsx: .*damaged") as refusal:
            load_parallel_text(changed_workbook(tmp_path / "a.xlsx", **contents))
        assert "\n" not in str(refusal.value)
    monkeypatch.setattr(unit_files, "LARGEST_WORKBOOK", 100_000)
    path = changed_workbook(tmp_path / "a.xlsx", picture="0" * 200_000)
    with pytest.raises(ValueError, match=r"a\.xlsx: unpacks to 2\d\d,\d{3} bytes, more than the 100,000"):
        load_parallel_text(path)


def test_one_huge_element_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(unit_files, "LONGEST_UNIT", 100_000)
    path = save(tmp_path / "a.tmx.gz", gzip.compress(tmx_text("<note>x</note>" * 100_000).encode()))
    with pytest.raises(ValueError, match=r"more than 100,000 bytes without a unit of text"):
        list(tmx_pairs(path, NAMES))


@pytest.mark.parametrize(
    "name, library", [("a.tmx", "lxml.etree"), ("a.po", "polib"), ("a.xlsx", "openpyxl"), ("a.xlsx", "defusedxml")]
)
def test_a_missing_library_names_the_extra(tmp_path, monkeypatch, name, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        ValueError, match=rf"{library.partition('.')[0]}, .* pip install 'vanilla_transformer_hf\[formats\]'"
    ):
        load_parallel_text(save(tmp_path / name, b""))


@pytest.mark.slow
def test_a_large_memory_is_read_in_little_memory(tmp_path):
    unit = tu(en="one dog & two cats " * 10, yo="ajá " * 30).replace("&", "&amp;")
    count = 100 * 2**20 // len(unit.encode())
    with open(tmp_path / "a.tmx", "w", encoding="utf-8") as file:
        file.write(tmx_text("").partition("</body>")[0])
        file.writelines(unit for _ in range(count))
        file.write("</body></tmx>")
    rows = tmx_pairs(str(tmp_path / "a.tmx"), EN_YO)
    next(rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(1 for _ in rows) == count - 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024  # KiB
