"""What is written for each line, in each format."""

import json

import pytest
import torch

from vanilla_transformer_hf.translation.scoring.alignment import Alignment
from vanilla_transformer_hf.translation.scoring.scoring import TextScore
from vanilla_transformer_hf.translation.streams.work import WORKS, LineWork
from vanilla_transformer_hf.translation.text.tally import TOLD, Tally
from vanilla_transformer_hf.translation.text.texts import token_reader
from vanilla_transformer_hf.translation.translator import Translation


ALIGNMENT = Alignment(["a", "b"], ["x"], torch.tensor([[0.25, 0.7500001]]))
BEST = [Translation("x\ty\nz", -0.25, ["x", "y"], ALIGNMENT), Translation("ü", -1.5, ["ü"], ALIGNMENT, False)]
PLAIN = [Translation("x\ty\nz", -0.25, ["x", "y"])]
SCORE = TextScore(["x", "</s>"], [-0.5, -1.5])


def lines(kind, format, item, result):
    return list(WORKS[kind][1](format, 7, item, result))


def test_settings_tell_what_an_output_depends_on():
    plain = LineWork("translate", "tsv", {"num_beams": 4})
    assert plain.settings == {"work": "translate", "format": "tsv", "num_beams": 4}
    assert LineWork("translate", "tsv", {"num_beams": 4}, True).settings == {**plain.settings, "constraints": True}


def test_text_is_the_best_translation_on_one_line():
    assert lines("translate", "text", "a b", PLAIN) == ["x\ty z"]


def test_tsv_has_a_line_for_each_translation():
    assert lines("translate", "tsv", "a b", PLAIN) == ["7\t-0.250000\tx y z"]
    assert lines("translate", "tsv", "a b", BEST) == ["7\t-0.250000\tx y z\t1-0", "7\t-1.500000\tü\t1-0"]


def test_jsonl_has_a_record_for_each_line():
    (line,) = lines("translate", "jsonl", "a b", BEST)
    first = {"text": "x\ty\nz", "score": -0.25, "finished": True, "tokens": ["x", "y"], "alignment": "1-0"}
    second = {"text": "ü", "score": -1.5, "finished": False, "tokens": ["ü"], "alignment": "1-0"}
    assert json.loads(line) == {"number": 7, "source": "a b", "translations": [first, second]}
    assert "ü" in line and "\n" not in line
    assert "alignment" not in lines("translate", "jsonl", "a b", PLAIN)[0]


def test_jsonl_is_one_line_for_every_reader():
    separators = "a\u2028b\u2029c\x85d\x0be\x1cf"
    (line,) = lines("translate", "jsonl", separators, [Translation(separators)])
    assert line.splitlines() == [line]
    record = json.loads(line)
    assert record["source"] == record["translations"][0]["text"] == separators


def test_tokens_in_jsonl_are_text(translator):
    """Those of a byte-level vocabulary are not text as they are: "ß" is "ÃŁ"."""
    tally = Tally()
    for kind, items, pick in (
        ("translate", ["five two"], lambda record: record["translations"][0]["tokens"]),
        ("score", [("five", "zwei fünf")], lambda record: record["tokens"]),
    ):
        options = {"num_beams": 1, "too_long": "split"} if kind == "translate" else {}
        tokens = pick(json.loads(LineWork(kind, "jsonl", options)(translator, 1, items, tally).content))
        assert "".join(tokens) == " zwei fünf</s>"
    read = token_reader(translator.tokenizer)
    assert read(["Ġ", "Ã", "¼", "Ã¼", "</s>"]) == [" ", "<0xC3>", "<0xBC>", "ü", "</s>"]
    translator.tokenizer.add_tokens(["Ã¼"])
    assert token_reader(translator.tokenizer)(["Ã¼"]) == ["Ã¼"], "an added token is no piece of bytes"


def test_scores():
    pair = ("a b", "x")
    assert lines("score", "text", pair, SCORE) == ["-2.000000"]
    assert lines("score", "tsv", pair, SCORE) == ["7\t-2.000000\t2\t2.718282\tx"]
    record = json.loads(lines("score", "jsonl", pair, SCORE)[0])
    assert record.pop("perplexity") == pytest.approx(2.718281828)
    values = {"log_probability": -2.0, "tokens": ["x", "</s>"], "token_log_probabilities": [-0.5, -1.5]}
    assert record == {"number": 7, "source": "a b", "target": "x", **values}


def test_alignments():
    assert lines("align", "text", ("a b", "x"), ALIGNMENT) == ["1-0"]
    words = {"source_words": ["a", "b"], "target_words": ["x"]}
    record = {"number": 7, **words, "alignment": "1-0", "weights": [[0.25, 0.75]]}
    assert json.loads(lines("align", "jsonl", ("a b", "x"), ALIGNMENT)[0]) == record


def test_formats_that_cannot_hold_it_are_refused():
    with pytest.raises(ValueError, match="format='xml': must be one of 'text', 'tsv', 'jsonl'"):
        LineWork("translate", "xml")
    for options in ({"num_return_sequences": 2}, {"return_alignments": True}):
        with pytest.raises(ValueError, match="holds only one translation"):
            LineWork("translate", "text", options)
    LineWork("translate", "text", {"num_return_sequences": None, "return_alignments": False})


def test_work_is_written_line_by_line(backwards):
    tally = Tally(too_long=7)
    answer = LineWork("translate")(backwards, 1, ["ab c", "", "de long"], tally)
    assert answer == (b"c ba\n\ngnol ed\n", {**dict.fromkeys(TOLD, 0), "too_long": 1})
    assert (tally.sentences, tally.tokens, tally.too_long) == (3, 4, 8)


def test_a_line_of_text_stays_one_line_for_every_reader():
    best = [Translation("x\u2028y\x85z\v\f\x1c\r\nw", -0.25, ["x"])]
    for format in ("text", "tsv"):
        (line,) = lines("translate", format, "a\u2028b", best)
        assert len(line.splitlines()) == 1 and line.split()[-4:] == ["x", "y", "z", "w"]
    (line,) = lines("translate", "jsonl", "a\u2028b", best)
    assert len(line.splitlines()) == 1 and json.loads(line)["translations"][0]["text"] == best[0]
