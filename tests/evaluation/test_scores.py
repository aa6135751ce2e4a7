"""Scores, and the table of translations."""

import pytest

from vanilla_transformer_hf.evaluation.evaluate_module import find_tokenizer
from vanilla_transformer_hf.evaluation.scores import (
    error_rates,
    is_meaningful,
    score_translations,
    variety,
    write_predictions,
)


def test_scores_carry_sacrebleu_signatures():
    references = ["ein roter Hund läuft", "zwei kleine Hunde laufen im Park"]
    scores = score_translations([references[0], "zwei kleine Katzen laufen im Park"], references)
    assert (scores.exact_match, scores.sentences) == (50, 2)
    # What `sacrebleu -m bleu chrf` prints for these files.
    assert scores.bleu == pytest.approx(53.8956, abs=1e-4)
    assert scores.chrf == pytest.approx(80.5755, abs=1e-4)
    assert scores.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert scores.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert scores.bleu_signature in str(scores)


def test_the_target_language_chooses_the_tokenization():
    for code in ("zh", "zh_TW", "cmn-Hans"):
        assert "tok:zh" in score_translations(["我爱你"], ["我爱你"], target_lang=code).bleu_signature
    assert find_tokenizer("de") == find_tokenizer() == ("13a", None)
    assert find_tokenizer("th") == ("char", None)  # 13a would take a sentence for a word


@pytest.mark.parametrize("code, module", [("ja", "ja"), ("jpn", "ja"), ("ko", "ko"), ("ko_KR", "ko")])
def test_without_its_tokenizer_a_language_is_scored_on_characters(monkeypatch, code, module):
    monkeypatch.setattr(f"sacrebleu.tokenizers.tokenizer_{module}_mecab.MeCab", None)
    note = rf"BLEU of {code} is computed on characters, because {module}-mecab is not installed: pip install 'sacre"
    with pytest.warns(UserWarning, match=note):
        scores = score_translations(["私は犬を飼う。"], ["私は猫を飼う。"], target_lang=code)
    assert "tok:char" in scores.bleu_signature and 0 < scores.bleu < 100
    with pytest.raises(ValueError, match=rf"tokenize='{module}-mecab': sacreBLEU cannot make this tokenizer: pip ins"):
        score_translations(["a"], ["a"], tokenize=f"{module}-mecab")


def test_scores_of_one_text_for_all_sources_mean_nothing():
    references = [f"Satz {number} von {chr(97 + number)}" for number in range(26)]
    assert variety(references, references) == 100
    for same in (["。"] * 26, ["." * number for number in range(26)], ["so so"] * 13 + ["so so so"] * 13):
        assert variety(same, references) < 10
    assert variety(["a"] * 5, references[:5]) is None  # of so few, it is chance
    logged = {"eval_chrf": 9, "eval_variety": 4, "eval_law_bleu": 1, "eval_law_variety": 40, "eval_loss": 5}
    found = {name: is_meaningful(logged, name) for name in ("eval_chrf", "eval_law_bleu", "eval_loss")}
    assert found == {"eval_chrf": False, "eval_law_bleu": True, "eval_loss": True}


def test_text_that_is_tokenized_already_is_taken_as_it_is(caplog):
    lines = ["don 't stop now ."] * 100
    scores = score_translations(["do n't stop now .", *lines[1:]], lines, tokenize="none")
    assert "tok:none" in scores.bleu_signature and not caplog.records
    # What `sacrebleu --tokenize none` prints for these files.
    assert scores.bleu == pytest.approx(99.3581, abs=1e-4)
    with pytest.warns(UserWarning, match="many translations end in ' .', so the text seems to be tokenized") as warned:
        score_translations(lines, lines)
    assert len(warned) == 1 and not caplog.records
    with pytest.raises(ValueError, match=r"tokenize='moses': expected one of none, zh, 13a, "):
        score_translations(["a"], ["a"], tokenize="moses")


def test_several_references_for_a_translation():
    rows = [["ein Hund läuft im Park", "ein Hund rennt im Park"], ["zwei Hunde"]]
    scores = score_translations(["ein Hund rennt im Park", "zwei Hunde"], rows)
    assert (scores.bleu, scores.chrf, scores.exact_match) == (pytest.approx(100), pytest.approx(100), 100)
    assert scores.bleu_signature.startswith("nrefs:var|")
    first = score_translations(["ein Hund rennt im Park", "zwei Hunde"], [row[0] for row in rows])
    assert first.bleu < 100 and first.exact_match == 50


def test_translations_stand_beside_their_references(tmp_path):
    write_predictions(tmp_path / "a.tsv", [("a\tb", "c\\d", "e\nf"), ("g", "", "h")])
    lines = (tmp_path / "a.tsv").read_text(encoding="utf-8").split("\n")
    assert lines == ["source\ttranslation\treference", r"a\tb" "\t" r"c\\d" "\t" r"e\nf", "g\t\th", ""]


def test_error_rates_are_those_of_edits():
    found = error_rates(["one two", "three four four"], ["one two", "three five"])
    assert found["wer"] == pytest.approx(100 * 2 / 4)  # one substitution and one insertion of four words
    assert error_rates(["abd"], ["abc"]) == {"wer": 100.0, "cer": pytest.approx(100 / 3)}
    for texts, references in ((["a"], []), (["a"], [""])):
        with pytest.raises(ValueError, match="expected as many, none empty"):
            error_rates(texts, references)
