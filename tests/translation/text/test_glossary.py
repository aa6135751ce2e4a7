"""Terms of glossaries in texts, and in translations of a tiny model that counts backwards in German."""

import random
import time

import pytest
from counting_model import MIXED, TRANSLATED

from vanilla_transformer_hf.translation.text import glossary
from vanilla_transformer_hf.translation.text.glossary import Glossary, Term


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Two DOGS, a hotdog and a dog-house", ["Hunde", "Hund"]),
        ("the dogs' bone; it is no IT", ["Hunde", "EDV"]),
        ("a New  York\tTimes reader in New York", ["NYT", "N.Y."]),
        ("new yorks", []),
        ("我喜欢北京烤鸭", ["Pekingente"]),
        ("C++ is no C", ["C plus"]),
        ("कि क", ["ka"]),
        ("dog " * 50, ["Hund"]),
        ("", []),
    ],
)
def test_terms_are_whole_words_in_any_case_and_the_longest(text, found):
    terms = [("dog|dogs", "Hund|Hunde"), ("IT", "EDV"), ("new york", "N.Y."), ("new york times|NYT", "NYT")]
    terms += [("北京", "Peking"), ("北京烤鸭", "Pekingente"), ("C++", "C plus"), ("क", "ka")]
    assert [term.target for term in Glossary(terms).find(text)] == found


def test_files_are_read_as_they_are_and_refused_in_one_line(tmp_path):
    def read(name, text, *languages):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return Glossary.read(str(tmp_path / name), *languages)

    assert read("a.tsv", "two|twos\tzwei\nthree|threes\tdrei|Dreien\n").find("twos threes") == [
        Term("twos", "zwei"),
        Term("threes", "Dreien"),
    ]
    old = "<tig><term>{}</term></tig>"
    new = '<termSec><term>{}</term><termNote type="administrativeStatus">{}-admn-sts</termNote></termSec>'
    terms = {
        "tbx": ("conceptEntry", "langSec", [new.format("two <hi>three</hi>", "admittedTerm"), new.format("2", "x")],
                [new.format("alt", "deprecatedTerm"), new.format("neu", "x"), new.format("best", "preferredTerm")]),
        "martif": ("termEntry", "langSet", [old.format("two three"), old.format("2")], [old.format("best")]),
    }  # fmt: skip
    for root, (entry, section, sources, targets) in terms.items():
        languages = {"en-GB": sources, "fr": [], "de": targets}
        sections = "".join(
            f'<{section} xml:lang="{name}">{"".join(each)}</{section}>' for name, each in languages.items()
        )
        tbx = f"<{root}><text><body><{entry}>{sections}</{entry}></body></text></{root}>"
        assert read("a.tbx", tbx, ("en", "de")).find("two three 2") == [Term("two three", "best"), Term("2", "best")]
    for name, text, message in (
        ("a.tbx", tbx.replace("en-GB", "nl"), "no concept has terms in en and de; its languages are nl, fr, de"),
        ("a.tbx", '<!DOCTYPE a [<!ENTITY e "e">]><tbx>&e;</tbx>', "declares XML entities"),
        ("a.tbx", "<tmx/>", "its first element is not <martif> or <tbx>"),
        ("a.tsv", "a|b\tc|d|e\n", r"'a\|b' has 2 forms and 'c\|d\|e' 3"),
        ("a.tsv", "a\t\n", "'a', translated as '', is no term: a side is empty"),
        ("a.tsv", f"{'a ' * 33}\tb\n", "has 33 words: a term has at most 32"),
        ("a.txt", "a\tb\n", "not a file of both sides"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            read(name, text, ("en", "de"))
        assert str(caught.value).startswith(str(tmp_path)) and "\n" not in str(caught.value)
    # A model that does not record its languages, as a converted one: what to do, by what a translator has.
    tmx = '<tmx version="1.4"><header/><body><tu>{}{}</tu></body></tmx>'
    sides = ('<tuv xml:lang="en"><seg>a</seg></tuv>', '<tuv xml:lang="de"><seg>b</seg></tuv>')
    line = '{"translation": {"en": "a", "de": "b"}}\n'
    for name, text in (
        *(("a.tbx", tbx), ("a.tsv", "en\tde\na\tb\n"), ("a.csv", "en,de\na,b\n"), ("a.jsonl", line)),
        ("a.tmx", tmx.format(*sides)),
    ):
        with pytest.raises(ValueError, match="does not record its languages: add src_lang and tgt_lang") as caught:
            read(name, text)
        assert str(caught.value).startswith(str(tmp_path)) and "source_lang" not in str(caught.value)
        read(name, text, ("en", "de"))


def test_the_number_of_terms_is_bounded_and_time_grows_with_the_text_alone(monkeypatch):
    monkeypatch.setattr(glossary, "MOST_TERMS", 3)
    with pytest.raises(ValueError, match="more than 3 terms"):
        Glossary([("a|b|c|d", "e")])
    monkeypatch.undo()
    words = ["a", "b"]
    found = Glossary((" ".join(random.Random(n).choices(words, k=32)), "x") for n in range(2000))
    seconds = []
    for size in (5_000, 20_000):
        text = " ".join(random.Random(0).choices(words, k=size))
        began = time.process_time()
        found.find(text)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 10 * seconds[0] + 0.2


def test_terms_are_in_translations_and_missing_ones_are_named(translator, caplog):
    assert translator.translate(MIXED, num_beams=4) == TRANSLATED
    translator.glossary = Glossary(
        [("two", "fünf"), ("one two", "vier"), ("nine|four", "日本|x"), ("five three", "drei")]
    )
    texts = ["one two", "TWO three", "three", "four", "one five. three one"]
    longer, other, same, unknown, across = translator.translate(texts, num_beams=4, return_scores=True)
    assert "vier" in longer and "fünf" in other and same == "drei"
    assert not (longer.missing_terms or other.missing_terms or same.missing_terms)
    assert [found.missing_terms for found in (unknown, across)] == [[Term("four", "x")], []] or "x" in unknown
    short = translator.translate("two two", num_beams=4, max_new_tokens=1)
    assert short.missing_terms == [Term("two", "fünf")] or "fünf" in short
    assert not translator.translate(["three. two. two", "one"], num_beams=4, num_return_sequences=2)[0][
        1
    ].missing_terms
    with pytest.raises(ValueError, match="glossary: needs num_beams of at least 2, not 1"):
        translator.translate("one")
    with pytest.raises(ValueError, match="glossary: not possible together with num_beam_groups"):
        translator.translate("one", num_beams=4, num_beam_groups=2, diversity_penalty=0.5)


def test_what_cannot_be_required_is_reported(translator, monkeypatch, caplog):
    translator.glossary = Glossary([("two", "fünf"), ("one. two", "drei"), ("three", "vier")])
    monkeypatch.setattr(glossary, "MOST_OF_SENTENCE", 1)
    monkeypatch.setattr("vanilla_transformer_hf.translation.translator.MOST_OF_SENTENCE", 1)
    found = translator.translate("three one two", num_beams=4)
    assert "vier" in found and found.missing_terms == [Term("two", "fünf")]
    assert "1 line with a translation that lacks a term of the glossary" in caplog.text
    across = translator.translate("one. two", num_beams=4, split_sentences="always")
    assert Term("one. two", "drei") in across.missing_terms and "fünf" in across
    whole = translator.translate("one. two", num_beams=4, split_sentences="never")
    assert "drei" in whole and not whole.missing_terms
    end = translator.tokenizer.eos_token_id  # as an unknown token, which a vocabulary of bytes does not have
    monkeypatch.setattr(translator, "_target_ids", lambda texts: [[end] for _ in texts])
    assert translator.translate("two", num_beams=4).missing_terms == [Term("two", "fünf")]
