"""Synthetic text of a folder in which an earlier run has begun."""

import pytest

from vanilla_transformer_hf.training.synthetic import synthetic_text
from vanilla_transformer_hf.training.synthetic.synthetic_text import BLANK, Noise, SyntheticText, make_synthetic_text
from vanilla_transformer_hf.training.synthetic.translations import ModelSearch


def test_lines_of_a_run_that_translated_nothing_are_not_taken_for_those_of_another_text(tmp_path, monkeypatch):
    """Such as one with a misspelt model, corrected together with the text."""

    def is_missing(*arguments):
        raise OSError("no such model")

    monkeypatch.setattr(synthetic_text, "translate_file", is_missing)
    for text in ("old", "new"):
        (tmp_path / text).write_text(f"{text} one\n{text} two\n")
        try:
            make_synthetic_text(SyntheticText(ModelSearch("model"), (str(tmp_path / text),)), tmp_path / "folder")
        except OSError as error:
            assert str(error) == "no such model"
        assert (tmp_path / "folder" / "lines.txt").read_text() == f"{text} one\n{text} two\n"


TEXT = " ".join(map(str, range(2000)))


def test_it_is_the_same_again_and_another_one_in_another_line():
    assert Noise()(TEXT, 1) == Noise()(TEXT, 1) != Noise()(TEXT, 2)
    assert Noise(seed=2)(TEXT, 1) != Noise()(TEXT, 1)


def test_words_are_dropped_replaced_and_moved_as_often_as_asked():
    assert Noise(0, 0, 0)(TEXT, 1) == TEXT
    assert 0.08 < 1 - len(Noise(0.1, 0, 0)(TEXT, 1).split()) / 2000 < 0.12
    assert 0.08 < Noise(0, 0.1, 0)(TEXT, 1).split().count(BLANK) / 2000 < 0.12
    moved = list(map(int, Noise(0, 0, 3)(TEXT, 1).split()))
    assert sorted(moved) == list(range(2000))
    assert {abs(place - word) for place, word in enumerate(moved)} == {0, 1, 2, 3}


def test_a_text_never_becomes_empty():
    assert all(Noise(0.99, 0, 3)("one two", number) for number in range(20))
    assert Noise()("", 1) == ""


@pytest.mark.parametrize("wrong", [{"drop": 1}, {"replace": -0.1}, {"shuffle": -1}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="_words="):
        Noise(**wrong)
