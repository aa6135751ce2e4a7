"""Catalogues of gettext: messages without a translation get one, variables and tags stay."""

import polib
import pytest


CATALOGUE = r"""
# note
msgid ""
msgstr ""
"Content-Type: text/plain; charset=ISO-8859-1\n"
"Plural-Forms: nplurals=3; plural=0;\n"
"X-Own: kept\n"

#: a.c:1
#, c-format
msgid "deleted %1$s of <b>%s</b> &amp; <file>.\n"
"done\n"
msgstr ""

msgctxt "menu"
msgid "café {name}"
msgid_plural "%(n)d cafés <code>x</code>"
msgstr[0] ""
msgstr[1] ""

msgid "old"
msgstr "alt"

msgid "%s"
msgstr ""

#~ msgid "gone"
#~ msgstr ""
""".encode("latin-1")


def test_messages_without_a_translation_get_one_that_is_fuzzy(shout):
    written = shout(CATALOGUE, "a.po", "de").decode()
    found = {entry.msgid: entry for entry in polib.pofile(written)}
    first, plural, old, variable, gone = found.values()
    assert first.msgstr == "DELETED %1$s OF <b>%s</b> &amp; <file>.\nDONE\n" and set(first.flags) == {
        "c-format",
        "fuzzy",
    }
    forms = "CAFÉ {name}", *["%(n)d CAFÉS <code>x</code>"] * 2
    assert plural.msgstr_plural == dict(enumerate(forms)) and plural.msgctxt == "menu"
    assert old.msgstr == "alt" and not old.flags and gone.msgstr == "" and variable.msgstr == "%s"
    assert all(kept in written for kept in ('"X-Own: kept\\n"', "#: a.c:1", "# note", "charset=UTF-8", "Language: de"))
    assert shout(written.encode(), "a.po").decode() == written


def test_one_form_is_the_plural(shout):
    content = b'msgid ""\nmsgstr "Plural-Forms: nplurals=1; plural=0;\\n"\n\nmsgid "one"\nmsgid_plural "two"\n'
    assert b'msgstr[0] "TWO"' in shout(content + b'msgstr[0] ""\n', "a.po")


@pytest.mark.parametrize("content", [b'msgid "\xff"', b'"Content-Type: charset=no-such\\n"', b"\0", b"one"])
def test_damaged_catalogues_are_one_line(shout, content):
    with pytest.raises(ValueError, match=r"^a.po: not a gettext catalogue, or a damaged one \([^\n]*\)\.$"):
        shout(content, "a.po")


def test_content_that_is_the_name_of_a_file_is_not_opened(shout, tmp_path):
    (tmp_path / "other.po").write_text('msgid "secret"\nmsgstr ""\n')
    with pytest.raises(ValueError, match="not a gettext catalogue") as error:
        shout(str(tmp_path / "other.po").encode(), "a.po")
    assert "secret" not in str(error.value)
