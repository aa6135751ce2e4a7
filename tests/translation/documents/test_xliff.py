"""XLIFF: units without a translation get one, with the inline codes of their source."""

import itertools

import pytest
from lxml import etree


ONE = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" source-language="en"
 datatype="plaintext"><body><group>{}</group></body></file></xliff>"""
TWO = """<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en">
<file id="f">{}</file></xliff>"""
DONE = ' state="needs-review-translation" state-qualifier="mt-suggestion"'
CASES_OF_ONE = [
    ('a <g id="1">b <x id="2"/></g> c.', "", 'A <g id="1">B <x id="2"/></g> C.'),
    ('a <bpt id="1">b</bpt>b<ept id="1">b</ept> c', "<target/>", 'A <bpt id="1">b</bpt>B<ept id="1">b</ept> C'),
    ('a<x ctype="lb" id="1"/>b', '<target state="new">z</target>', 'A<x ctype="lb" id="1"/>B'),
    ('a <mrk mtype="protected">x</mrk>', '<target state="new">z</target>', 'A <mrk mtype="protected">x</mrk>'),
    ('a <ph id="1">%s</ph>, b', '<target state="needs-translation">z<g/></target>', 'A <ph id="1">%s</ph>, B'),
]


@pytest.mark.parametrize(("source", "target", "expected"), CASES_OF_ONE)
def test_version_1(shout, source, target, expected):
    unit = f'<trans-unit id="1"><source>{source}</source>{target}</trans-unit>'
    written = shout(ONE.format(unit).encode(), "a.xlf", "de").decode()
    assert f"<target{DONE}>{expected}</target></trans-unit>" in written
    assert f"<source>{source}</source>" in written and 'target-language="de"' in written


def test_segments_keep_their_marks_and_what_is_between(shout):
    marks = '<mrk mtype="seg" mid="{}">{}</mrk>'
    cut = "".join(marks.format(number, text) + " " for number, text in enumerate(["One.", 'Two <ph id="3">%s</ph>.']))
    unit = f'<trans-unit id="1"><source>One. Two.</source><seg-source>{cut}</seg-source></trans-unit>'
    written = shout(ONE.format(unit).encode(), "a.xlf").decode()
    assert f"<target{DONE}>{cut.replace('One', 'ONE').replace('Two', 'TWO')}</target>" in written


@pytest.mark.parametrize(
    "unit",
    [
        '<trans-unit id="1" translate="no"><source>a</source></trans-unit>',
        '<trans-unit id="1" approved="yes"><source>a</source><target/></trans-unit>',
        '<trans-unit id="1"><source>a</source><target state="translated">z</target></trans-unit>',
        '<trans-unit id="1"><source>a</source><target>z</target></trans-unit>',
        '<group translate="no"><trans-unit id="1"><source>a</source></trans-unit></group>',
    ],
)
def test_what_is_done_or_locked_stays(shout, unit):
    assert unit in shout(ONE.format(unit).encode(), "a.xlf").decode()


def test_version_2(shout):
    text = 'press <pc id="1">the <ph id="2"/> key</pc> <sc id="3"/>now<ec startRef="3"/>'
    text += ' <mrk id="m" translate="no">x</mrk>'
    done = "<segment><source>a</source><target>z</target></segment>"
    locked = '<unit id="2" translate="no"><segment><source>a</source></segment></unit>'
    unit = f'<unit id="1"><segment state="initial"><source>{text}</source></segment>{done}</unit>{locked}'
    written = shout(TWO.format(unit).encode(), "a.xliff", "de").decode()
    expected = text
    for word in ("press", "the", "key", "now"):
        expected = expected.replace(word, word.upper())
    assert f'<segment state="translated"><source>{text}</source><target>{expected}</target></segment>{done}' in written
    assert locked in written and 'trgLang="de"' in written
    assert shout(written.encode(), "a.xliff").decode() == written


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<tmx/>", "its first element is not <xliff>"),
        ("<xliff>", "not XML, or a damaged file"),
        ("", "not XML, or a damaged file"),
        ('<!DOCTYPE xliff [<!ENTITY a "b">]><xliff>&a;</xliff>', "declares XML entities"),
        ('<!DOCTYPE xliff [<!ENTITY a SYSTEM "file:///etc/hostname">]><xliff>&a;</xliff>', "declares XML entities"),
        ('<!DOCTYPE xliff [<!ENTITY % a SYSTEM "file:///etc/hostname"> %a;]><xliff/>', "declares XML entities"),
        ("<xliff>" + "<g>" * 100_000, "not XML, or a damaged file"),
    ],
)
def test_damaged_and_hostile_files_are_one_line(shout, content, message):
    with pytest.raises(ValueError, match=message) as error:
        shout(content.encode(), "a.xlf")
    assert "\n" not in str(error.value)


def test_entities_of_entities_take_no_time(shout):
    names = "abcdefghij"
    entities = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in itertools.pairwise(names))
    hostile = f'<!DOCTYPE xliff [<!ENTITY a "laugh">{entities}]><xliff name="&j;">&j;</xliff>'
    with pytest.raises(ValueError, match=r"a\.xlf: "):
        shout(hostile.encode(), "a.xlf")


def test_characters_of_markup_are_text(shout):
    unit = '<unit id="1"><segment><source>one\u2028two &lt; a &amp; &lt;b&gt;c&lt;/b&gt;</source></segment></unit>'
    written = shout(TWO.format(unit).encode(), "a.xliff")
    found = etree.fromstring(written).xpath("string(//*[local-name()='target'])")
    assert found == "ONE\u2028TWO < A & <b>C</b>"
