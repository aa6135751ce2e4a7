"""Translation memories, alone and in texts and documents of a tiny model that counts backwards in German."""

import pytest

from vanilla_transformer_hf.translation.documents import memory
from vanilla_transformer_hf.translation.documents.document import Reading, read_document
from vanilla_transformer_hf.translation.documents.memory import Memory
from vanilla_transformer_hf.translation.text.glossary import Glossary, Term
from vanilla_transformer_hf.translation.text.texts import ConstrainedText


TMX = """<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en"><seg>one <bpt i="1">&lt;b></bpt>two<ept i="1">&lt;/b></ept></seg></tuv>
<tuv xml:lang="de"><seg>EINS <hi>ZWEI</hi></seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>three four</seg></tuv></tu></body></tmx>"""


def test_pairs_are_found_as_they_are_and_nearly(tmp_path, monkeypatch):
    (tmp_path / "a.tmx").write_text(TMX, encoding="utf-8")
    found = Memory.read(str(tmp_path / "a.tmx"), ("en", "de"))
    assert (found.get(" one\ttwo "), found.get("One two"), found.get("three four")) == ("EINS ZWEI", None, None)
    assert [*found.near("one twos")[0]] == ["one two", "EINS ZWEI", 0.875]
    assert found.near("one two") == found.near("") == found.near("five " * 999) == found.near("xyz") == []
    (tmp_path / "a.tsv").write_text("one\tEINS\none\tUNO\n\tx\n", encoding="utf-8")
    assert Memory.read(str(tmp_path / "a.tsv")).get("one") == "UNO"
    (tmp_path / "a.tmx").write_text('<!DOCTYPE tmx [<!ENTITY e "e">]><tmx>&e;</tmx>', encoding="utf-8")
    for name, message in (("a.tmx", "declares XML entities"), ("a.txt", "not a file of both sides")):
        with pytest.raises(ValueError, match=message) as caught:
            Memory.read(str(tmp_path / name))
        assert str(caught.value).startswith(str(tmp_path)) and "\n" not in str(caught.value)
    for name, most in (("MOST_PAIRS", 1), ("MOST_CHARACTERS", 5)):
        monkeypatch.setattr(memory, name, most)
        with pytest.raises(ValueError, match="at most so many are read"):
            Memory([("one", "a"), ("two", "b")])
        monkeypatch.undo()


def test_near_matches_are_the_best_of_all_lengths(monkeypatch):
    monkeypatch.setattr(memory, "MOST_COMPARED", 4)
    found = Memory([("x" * length, f"{length}") for length in range(1, 40)])
    assert {near.translation for near in found.near("x" * 20 + "y", 2)} == {"20", "21"}


def test_lines_and_sentences_are_taken_from_a_memory(translator, generated):
    pairs = [("one two", "EINS"), ("three. four", "DREI, VIER"), ("five.", "FÜNF."), ("42", "zweiundvierzig")]
    translator.memory = Memory(pairs)
    assert translator.translate(["one two", " three. four\n42", "five.  one two\n"]) == [
        "EINS",
        " DREI, VIER\nzweiundvierzig",
        "FÜNF. EINS\n",
    ]
    assert generated == []
    mixed = translator.translate(
        "one two. two\nfive. one two", num_beams=2, num_return_sequences=2, return_scores=True
    )
    assert [each.split("\n")[1] for each in mixed] == ["FÜNF. EINS"] * 2 and mixed[0].split()[-3] == "zwei"
    assert translator.translate("one two", return_scores=True, return_alignments=True).score == 0
    assert translator.translate(ConstrainedText("one two", prefix="drei")).startswith("drei")
    assert translator.translate("one two " * 40 + "one two", too_long="split") != "EINS"


def test_near_matches_and_missing_terms_are_listed(translator, caplog):
    translator.memory, translator.near_matches = Memory([("three four one", "X"), ("two one", "Y")]), 2
    translator.glossary = Glossary([("two", "zwei")])
    near, known = translator.translate(["three four two. one", "two one"], num_beams=2)
    assert [each.translation for each in near.near_matches] == ["X"] and not near.missing_terms
    assert (known, known.missing_terms, known.near_matches) == ("Y", [Term("two", "zwei")], ())
    assert "1 line with a near match in the memory" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.html", "<p>one <b>two</b></p><p>three</p>", "<p>EINS <b>ZWEI</b></p><p>drei</p>"),
        ("a.html", "<p>{{ x }} two three</p>", "<p>{{ x }} DREI zwei</p>"),
        ("a.txt", "one two\r\nthree\r\n", "EINS ZWEI\r\ndrei\r\n"),
    ],
)
def test_documents_keep_their_codes_around_translations_of_a_memory(translator, name, content, expected):
    pytest.importorskip("lxml")
    translator.memory = Memory([("one two", "EINS ZWEI"), ("{n} two three", "{n} DREI zwei")])
    document = read_document(content.encode(), Reading(name))
    found = [*translator.translate_stream(document.texts)]
    assert document.translated(found, lambda pairs: [None] * len(pairs)).decode() == expected
