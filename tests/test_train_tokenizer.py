import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from vanilla_transformer_hf import VanillaTransformerTokenizer


SCRIPT = Path(__file__).parent.parent / "scripts" / "train_tokenizer.py"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "a.en").write_text("the dog runs\n\nthe cat runs\n", encoding="utf-8")
    with gzip.open(tmp_path / "a.de.gz", "wt", encoding="utf-8") as file:
        file.write("der Hund läuft\n\ndie Katze läuft\n")
    return lambda *arguments: subprocess.run(
        [sys.executable, SCRIPT, *arguments], cwd=tmp_path, capture_output=True, text=True
    )


def test_trains_and_refuses_to_overwrite(run, tmp_path):
    files = ("--source", "a.en", "--target", "a.de.gz")
    done = run("out/tokenizer", *files, "--vocab_size", "270", "--separate_vocabularies", "--src_lang", "en")
    assert done.returncode == 0, done.stderr
    source, target, saved = done.stdout.split("\n")[-4:-1]  # the progress bars leave empty lines before
    assert source.startswith("source: 270 pieces") and target.startswith("target: 270 pieces")
    assert saved == f"saved in {Path('out/tokenizer')}"
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    assert (tokenizer.source_vocab_size, len(tokenizer), tokenizer.src_lang) == (270, 270, "en")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tokenizer"]
    again = run("out/tokenizer", *files)
    assert again.returncode == 2
    assert again.stderr.startswith("train_tokenizer.py: ") and "exists already" in again.stderr


def test_leaves_nothing_behind_after_an_error(run, tmp_path):
    done = run("out", "--source", "a.en", "--vocab_size", "9")
    assert done.returncode == 2
    assert done.stderr == (
        "train_tokenizer.py: vocab_size=9 cannot hold the 256 bytes and 3 special tokens; at least 259 are needed.\n"
    )
    assert not (tmp_path / "out").exists()
