"""The rules of `clean`: what each leaves out, what it keeps, and what is said of it."""

import sys
import unicodedata

import pytest

from vanilla_transformer_hf.training.data.cleaning import (
    RULES,
    CleaningOptions,
    CleaningReport,
    clean_pairs,
    held_out_sentences,
)


GOOD = [(f"sentence number {n} of the text", f"Satz mit der Nummer {n} für den Text") for n in range(20)]


def clean(pairs, **options):
    report = CleaningReport()
    rows = [{"source": source, "target": target} for source, target in pairs]
    return list(clean_pairs(rows, CleaningOptions(**options), report)), report


@pytest.mark.parametrize(
    "rule, pair, options",
    [
        ("empty", ("one", " \u200b\t"), {}),
        ("identical", ("The  Ẹ̀dá", unicodedata.normalize("NFD", "the ẹ̀dá")), {}),
        ("long", ("a " * 501, "ein " * 300), {}),
        ("unequal", ("a long sentence of many words", "kurz"), {}),
        ("unequal", ("short", "ein langer Satz aus vielen Wörtern"), {}),
        ("script", ("one dog", "одна собака"), {"source_lang": "en", "target_lang": "de"}),
        ("script", ("犬がいます", "ein Hund"), {"source_lang": "en", "target_lang": "de"}),
        ("held_out", ("Test SENTENCE!", "ein Hund"), {"held_out": held_out_sentences([{"text": "test sentence"}])}),
        ("held_out", ("a dog", "Prüf-Satz"), {"held_out": held_out_sentences([{"text": "prüf satz."}])}),
        ("duplicate", GOOD[3], {}),
        ("duplicate", (GOOD[3][0], unicodedata.normalize("NFD", GOOD[3][1])), {}),
    ],
)
def test_each_rule_leaves_out_its_pairs_and_shows_them(rule, pair, options):
    kept, report = clean([*GOOD, pair], **options)
    assert kept == GOOD
    assert report.left_out == {name: int(name == rule) for name in RULES}
    assert [each["pair"] for each in report.examples[rule]] == [21]
    assert (report.read, report.kept) == (21, 20)
    kept, report = clean([*GOOD, pair], **options, keep=(rule,))
    assert len(kept) == 21 or rule == "empty"


@pytest.mark.parametrize("text, other", [("का", "की"), ("ọkọ\u0300", "ọkọ"), ("นา", "น้ำ")])
def test_marks_of_letters_distinguish_held_out_sentences(text, other):
    held_out = held_out_sentences([{"text": f"{text}!"}])
    kept, _ = clean([(text, "one"), (other, "two")], held_out=held_out)
    assert kept == [(other, "two")]


@pytest.mark.parametrize(
    "languages, pairs",
    [
        (
            ("en", "zh"),
            [("a rather long sentence, translated", "一个翻译过来的句子"), ("so it is in this one", "这个也是")],
        ),
        (("en", "ja"), [("Sony makes a walkman", "ソニーはウォークマンを作る"), ("it is here", "ここにある")]),
        (("en", "ko"), [("where is it", "어디에 있나요 大韓")]),
        (("en", "sr-Latn"), [("a good day", "dobar dan")]),
        (("en", "ru"), [("the GPU", "GPU NVIDIA карта памяти"), ("12 %", "12 %.")]),
        (("en", "hi"), [("a book", "एक किताब")]),
        (("eng", "pcm"), [("how are you", "how you dey")]),
    ],
)
def test_scripts_and_lengths_of_other_languages_are_usual(languages, pairs):
    kept, report = clean(pairs, source_lang=languages[0], target_lang=languages[1])
    assert kept == pairs and not report.notes


def test_what_was_not_looked_at_is_said():
    _, report = clean(GOOD, source_lang="en")
    assert report.notes == ["script: not looked at in the target text; name its language."]


def test_units_without_a_pair_are_counted_and_white_space_is_single():
    report = CleaningReport()
    rows = ["fuzzy", {"source": "one\u00a0\n dog", "target": "ein\tHund"}, "fuzzy"]
    assert list(clean_pairs(rows, CleaningOptions(), report)) == [("one dog", "ein Hund")]
    assert report.units == {"fuzzy": 2} and report.read == 1


def test_options_that_make_no_sense_are_refused(monkeypatch):
    for options, message in (
        ({"keep": ("all",)}, "keep=all: must be one of empty, identical"),
        ({"max_length_ratio": 0.5}, "must be at least 1"),
        ({"check_language": True, "source_lang": "en"}, "needs source_lang and target_lang"),
        ({"check_language": True, "source_lang": "tw", "target_lang": "ha"}, "tw and ha are not among the languages"),
    ):
        with pytest.raises(ValueError, match=message):
            clean(GOOD, **options)
    monkeypatch.setitem(sys.modules, "lingua", None)
    with pytest.raises(ValueError, match=r"lingua is not installed: pip install 'vanilla_transformer_hf\[clean\]'"):
        clean(GOOD, check_language=True, source_lang="en", target_lang="de")


@pytest.mark.slow
def test_languages_are_identified():
    pairs = [
        ("The weather is very good today in the whole country.", "Das Wetter ist heute im ganzen Land sehr gut."),
        ("The weather is very good today in the whole country!", "The weather in the country is very good for today."),
        ("Le temps est très beau dans tout le pays aujourd'hui.", "Das Wetter ist sehr gut im ganzen Land."),
        ("12 %", "12 % und"),
    ]
    kept, report = clean(pairs, check_language=True, source_lang="en", target_lang="de")
    assert kept == [pairs[0], pairs[3]]
    assert report.left_out["language"] == 2
    kept, report = clean(pairs, check_language=True, source_lang="en", target_lang="tw", keep=("script",))
    assert "language: tw is not supported by lingua; its side is not checked." in report.notes
