"""The command line of scripts/train.py."""

import runpy
import sys
from pathlib import Path

import datasets
import pytest


SCRIPT = Path(__file__).parents[2] / "scripts" / "train.py"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def train(monkeypatch, capsys):
    """`train(*argv)`: exit code, output and error output of the script."""

    def train(*argv):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, argv)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return train


def test_help_shows_examples_and_every_group(train):
    code, out, _ = train("--help")
    assert code == 0
    for text in ("python scripts/train.py scripts/recipes/", "--train_source", "--preset", "--d_model", "--bf16"):
        assert text in out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--train_source", "missing.en", "--train_target", "missing.de"], "train.py: missing.en: no such file."),
        (["--dropout", "1.5"], "dropout=1.5: must be at least 0 and less than 1"),
        (["--separate_vocabularies"], "embedding_sharing='all' with source_vocab_size"),
        (["--preset", "bsae"], "no preset is called 'bsae' (did you mean 'base'?)"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(train, tmp_path, argv, message):
    for side in ("en", "de"):
        (tmp_path / f"a.{side}").write_text("one\n")
    files = [
        "--train_source",
        tmp_path / "a.en",
        "--train_target",
        tmp_path / "a.de",
        "--output_dir",
        tmp_path / "out",
    ]
    code, _, _ = train(*files, *argv)
    assert code.startswith("train.py: ") and message in code and "\n" not in code
    assert not (tmp_path / "out").exists(), "nothing is left behind"
