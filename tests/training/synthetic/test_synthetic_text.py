"""Synthetic text of a folder in which an earlier run has begun."""

from vanilla_transformer_hf.training.synthetic import synthetic_text
from vanilla_transformer_hf.training.synthetic.synthetic_text import SyntheticText, make_synthetic_text
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
