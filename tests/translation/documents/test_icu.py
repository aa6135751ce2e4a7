"""Messages of ICU: branches are texts of their own, and all else stays."""

import sys

import polib
import pytest
import torch
from lxml import etree

from vanilla_transformer_hf.translation.documents.document import Reading, read_document
from vanilla_transformer_hf.translation.results import Translation


XLIFF = (
    '<xliff version="1.2"><file original="a" source-language="en" datatype="plaintext"><body><trans-unit id="1">'
    "<source>{}</source></trans-unit></body></file></xliff>"
)
LARGE = f"{{n, plural, offset:{'9' * 5000} other {{a}}}}"
# Messages, what the model gets of them, and what they are in capitals.
MESSAGES = {
    "{n, plural, one {# dog} other {# dogs}}": ("dog", "dogs", "{n, plural, one {# DOG} other {# DOGS}}"),
    "you have {n, plural,\n  =0 {no dogs}\n  other {{name}'s dogs}\n} at home": (
        *("you have at home", "no dogs", "'s dogs"),
        "YOU HAVE {n, plural,\n  =0 {NO DOGS}\n  other {{name}''S DOGS}\n} AT HOME",
    ),
    "{a, select, x {one} other {{n, selectordinal, offset:1 few {#rd} other {#th of}}}}": (
        *("one", "rd", "th of"),
        "{a, select, x {ONE} other {{n, selectordinal, offset:1 few {#RD} other {#TH OF}}}}",
    ),
    "{n, plural, other {'{'not a variable'}' {d, date, ::yMMMd}}}": (
        "not a variable",
        "{n, plural, other {'{'NOT A VARIABLE'}' {d, date, ::yMMMd}}}",
    ),
    "see {n, plural, one {# dog} other {# dogs}": ("see", "SEE {n, plural, one {# dog} other {# dogs}"),  # damaged
    "see {n, plural, offset:" + "9" * 5000 + " other {a}}": (
        "see",
        "SEE {n, plural, offset:" + "9" * 5000 + " other {a}}",
    ),
    "see {0,choice,0#no dogs|1#one dog}": ("see", "SEE {0,choice,0#no dogs|1#one dog}"),  # Java's
    "see {0,choice,0#no dogs|1≤{0} dogs} run": ("see", "SEE {0,choice,0#no dogs|1≤{0} dogs} run"),
    "{n, plural, other {" * 60 + "deep" + "}}" * 60: ("{n, plural, other {" * 60 + "deep" + "}}" * 60,),
}


def shouted(content, name, translate=str.upper):
    document = read_document(content.encode(), Reading(name))
    found = [[Translation(translate(text))] for text in document.texts]
    return document.texts, document.translated(found, lambda pairs: [torch.eye(len(one.split())) for one, _ in pairs])


@pytest.mark.parametrize("message", MESSAGES)
def test_branches_are_translated_one_by_one(message):
    pytest.importorskip("pyicumessageformat")
    *texts, expected = MESSAGES[message]
    found, written = shouted(f'msgid "{polib.escape(message)}"\nmsgstr ""\n', "a.po")
    (entry,) = polib.pofile(f"\n{written.decode()}")
    assert (found, entry.msgstr or entry.msgid) == (texts, expected)
    found, written = shouted(XLIFF.format(message), "a.xlf")
    assert (found, etree.fromstring(written).findtext(".//target")) == (texts, expected)


def test_codes_stay_inside_their_branches():
    pytest.importorskip("pyicumessageformat")
    message = "<x id='1'/> {n, plural, one {a <g id='2'>black</g> dog} other {dogs <x id='3'/>}}"
    _, written = shouted(XLIFF.format(message), "a.xlf")
    expected = message.replace("'", '"')
    for word in ("a ", "black", "dogs", " dog"):
        expected = expected.replace(f"{word}" if word != "a " else "{a ", word.upper() if word != "a " else "{A ")
    assert f">{expected}</target>" in written.decode()


def test_pages_have_messages_too():
    pytest.importorskip("pyicumessageformat")
    page = "<p>it's {n, plural, one {a <b>dog</b>} other {many &amp; more}}</p>\n<p>{x}</p>"
    found, written = shouted(page, "a.html")
    assert found == ["it's", "a dog", "many & more"]
    expected = "<p>IT'S {n, plural, one {A <b>DOG</b>} other {MANY &amp; MORE}}</p>\n<p>{x}</p>"
    assert written.decode() == expected
    damaged = "<p>see {n, plural, one {a dog} <p>see {n, plural, one {a dog}}"
    assert shouted(damaged, "a.html")[1].decode() == "<p>SEE {n, plural, one {a dog} <p>SEE {n, plural, one {A DOG}}"


def test_what_quotes_in_a_message_of_java_is_doubled():
    pytest.importorskip("pyicumessageformat")
    content = '#, java-format\nmsgid "of {0}"\nmsgstr ""\n\n#, python-brace-format\nmsgid "to {0}"\nmsgstr ""\n'
    _, written = shouted(content, "a.po", lambda text: "l'")
    assert [entry.msgstr for entry in polib.pofile(f"\n{written.decode()}")] == ["l'' {0}", "l' {0}"]


def test_a_missing_library_is_named_and_pages_need_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyicumessageformat", None)
    message = "see {n, plural, one {a dog} other {dogs}}"
    with pytest.raises(ValueError, match=r"a.po: pyicumessageformat, which reads it, is not installed: pip install"):
        shouted(f'msgid "{message}"\nmsgstr ""\n', "a.po")
    assert shouted(message, "a.html")[1].decode() == message.replace("see", "SEE")
