"""Catalogues of gettext: messages without a translation get one, variables and tags stay."""

import polib
import pytest
from translate.storage.placeables import general

from vanilla_transformer_hf.translation.documents.accelerators import without_accelerator
from vanilla_transformer_hf.translation.documents.document import Reading, read_document
from vanilla_transformer_hf.translation.documents.inline import Piece
from vanilla_transformer_hf.translation.results import Translation


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


def test_letters_that_are_written_as_entities_are_letters(shout):
    content = 'msgid ""\nmsgstr ""\n\nmsgid "a caf&eacute; &amp; th&#233;&nbsp;%s"\nmsgstr ""\n'
    (entry,) = polib.pofile(shout(content.encode(), "a.po").decode())
    assert entry.msgstr == "A CAFÉ &amp; THÉ&nbsp;%s"
    document = read_document(content.encode(), Reading("a.po"))
    assert document.texts == ["a café thé"]
    (entry,) = polib.pofile(document.translated([[Translation("a café thé")]], None).decode())
    assert entry.msgstr == "a caf&eacute; &amp; th&#233;&nbsp;%s", "a word that stays is written as it was"
    _, label = without_accelerator([Piece("text", "&Eacute;cole")])
    assert label is None and without_accelerator([Piece("text", "&Ecole")])[1].letter == "E"


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


def labels(*texts, header=""):
    entries = "".join(f'\nmsgid "{polib.escape(text)}"\nmsgstr ""\n' for text in texts)
    return f'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n{header}{entries}'.encode()


# Label -> what the model gets, and the translation of one that writes capitals.
LABELS = {
    "_File": ("File", "_FILE"),
    "&File": ("File", "&FILE"),
    "Save _As…": ("Save As…", "SAVE _AS…"),
    "Open &recent %s": ("Open recent %s", "OPEN &RECENT %s"),
    "<b>_Quit</b>": ("<b>Quit</b>", "<b>_QUIT</b>"),
    "Q &amp; A": ("Q &amp; A", "Q &amp; A"),  # an entity
    "R&D": ("R&D", "R&D"),  # inside a word
    "a && b": ("a && b", "A && B"),
    "file_name": ("file_name", "FILE_NAME"),
    "_one _two": ("_one _two", "_ONE _TWO"),  # none that is meant
    "%(name)s _of {name}": ("%(name)s of {name}", "%(name)s _OF {name}"),
}


@pytest.mark.parametrize("label", LABELS)
def test_accelerators_are_not_translated_and_come_back(label, shout):
    (entry,) = polib.pofile(f"\n{shout(labels(label), 'a.po').decode()}")
    assert entry.msgstr == LABELS[label][1]


def test_what_the_model_gets_has_no_accelerator():
    from vanilla_transformer_hf.translation.documents.accelerators import without_accelerator
    from vanilla_transformer_hf.translation.documents.inline import Piece, as_string
    from vanilla_transformer_hf.translation.documents.strings import string_pieces

    def read(label, mark=""):
        return without_accelerator(string_pieces([Piece("text", label)])[0], mark)

    for label, (given, _) in LABELS.items():
        pieces, found = read(label)
        assert as_string(pieces) == given and (found is None) == (label == given)
    pieces, found = read("E~xit", "~")
    assert as_string(pieces) == "Exit" and (found.mark, found.letter) == ("~", "x")
    assert read(f"_a {'word ' * 20}")[1] is None


@pytest.mark.parametrize(
    ("translated", "expected"),
    [
        ("Datei", "_Datei"),  # no such letter: the first
        ("Alles öffnen", "Alles ö_ffnen"),
        ("Neue Form", "Neue _Form"),  # where a word begins
        ("文件", "文件(_F)"),
        ("打开...", "打开(_F)..."),
        ("123", "123"),
    ],
)
def test_where_the_mark_stands_in_a_translation(translated, expected):
    from vanilla_transformer_hf.translation.documents.accelerators import Accelerator, with_accelerator
    from vanilla_transformer_hf.translation.documents.inline import Piece, as_string

    assert as_string(with_accelerator([Piece("text", translated)], Accelerator("_", "F"))) == expected


def test_a_header_names_the_mark(shout):
    content = labels("E~xit", "a_b", "_File", header='"X-Accelerator-Marker: ~\\n"\n')
    found = {one.msgid: one.msgstr for one in polib.pofile(f"\n{shout(content, 'a.po').decode()}")}
    assert found == {"E~xit": "E~XIT", "a_b": "A_B", "_File": "_FILE"}


MESSAGES = (
    "read %s of %d files", "hello %(name)s and %(count)03d", "at %1$s on %2$ld by %-10s or %*d or %hhd",
    "open %1 of %L2 in %n", "<b>%<name>s</b> has %<count>03d files, <i>%<part>.2f %</i> of all",
    "found {0} in {1,number,integer} at {when, date, short}", "{name!r} has {count:>5} or {{x}} of {{ y }}",
    "size %5.1lf with %'d and %I64d", "use ${HOME}, $PATH and %{path}", "%@ wrote %lu", "@@name@@ is {% here %}",
    "see https://example.org/a_b?c=d.", "go to www.example.org/(x), please", "write to me.too@mail.example.org!",
    "look in /usr/share/doc/x.txt.", "it is in ~/.config/x or ./a/b", "run with --no-help or -v",
    'a <a href="x">y</a>',
)  # fmt: skip
PLACEABLES = ("PythonFormatting", "JavaMessageFormat", "Formatting", "QtFormatting", "XMLEntity", "XMLTag", "Brace",
              "DoubleAt", "Email", "Option")  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES)
def test_what_translate_toolkit_calls_placeable_stays(message, shout):
    """Its checks (pofilter, Weblate, Pootle) complain about any that is missing."""
    (entry,) = polib.pofile(f"\n{shout(labels(message), 'a.po').decode()}")
    assert entry.msgstr != message and entry.msgstr.upper() == message.upper()
    for name in PLACEABLES:
        found = getattr(general, f"{name}Placeable").parse(entry.msgid) or []
        kept = [str(one) for one in found if type(one).__name__ == f"{name}Placeable"]
        assert not [one for one in kept if one not in entry.msgstr], name
    for address in ("https://example.org/a_b?c=d", "www.example.org/", "/usr/share/doc/x.txt", "~/.config/x", "./a/b"):
        assert (address in message) == (address in entry.msgstr)


@pytest.mark.parametrize(
    "text", ["and/or", "in 1/2", "a well-known e-mail", "-- yes", "so - no", "a @ b", "50% of it"]
)
def test_what_only_looks_like_a_code_is_translated(text, shout):
    (entry,) = polib.pofile(f"\n{shout(labels(text), 'a.po').decode()}")
    assert entry.msgstr == text.upper()


def test_a_tag_behind_a_percentage_is_no_code_of_ruby(shout):
    (entry,) = polib.pofile(f"\n{shout(labels('100%<b>a</b>'), 'a.po').decode()}")
    assert entry.msgstr == "100%<b>A</b>"
