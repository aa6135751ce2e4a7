import gzip
from functools import partial
from pathlib import Path

import pytest

from vanilla_transformer_hf import VanillaTransformerTokenizer


@pytest.fixture
def run(tmp_path, monkeypatch, script):
    (tmp_path / "a.en").write_text("the dog runs\n\nthe cat runs\n", encoding="utf-8")
    with gzip.open(tmp_path / "a.de.gz", "wt", encoding="utf-8") as file:
        file.write("der Hund läuft\n\ndie Katze läuft\n")
    monkeypatch.chdir(tmp_path)
    return partial(script, "train_tokenizer.py")


def test_trains_and_refuses_to_overwrite(run, tmp_path):
    files = ("--source", "a.en", "--target", "a.de.gz")
    code, out, _ = run("out/tokenizer", *files, "--vocab_size", "270", "--separate_vocabularies", "--src_lang", "en")
    assert code == 0
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    assert 259 < tokenizer.source_vocab_size <= 270 and 259 < len(tokenizer) <= 270
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("en", None)
    source, target, saved = filter(None, out.splitlines())  # behind the bars of tokenizers
    assert source.startswith(f"source: {tokenizer.source_vocab_size} tokens in the vocabulary, ")
    assert target.startswith(f"target: {len(tokenizer)} tokens in the vocabulary, ")
    assert saved == f"saved in {Path('out/tokenizer')}"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tokenizer"]
    code, _, err = run("out/tokenizer", *files)
    assert (code, err) == (2, f"train_tokenizer.py: {Path('out/tokenizer')} exists already; name a new folder\n")


def test_files_that_hold_both_sides_give_the_same_vocabulary(run, tmp_path):
    sides = ["the dog runs", "the cat runs"], ["der Hund läuft", "die Katze läuft"]
    rows = "".join(f"{other}\t{one}\n" for one, other in zip(*sides, strict=True))
    (tmp_path / "both.tsv").write_text(f"German\tEnglish\n{rows}", encoding="utf-8")
    options = ("--vocab_size", "280", "--src_lang", "en", "--tgt_lang", "de", "--separate_vocabularies")
    for out, files in (("plain", ["a.en", "--target", "a.de.gz"]), ("both", ["both.tsv"])):
        assert run(out, "--source", *files, *options)[0] == 0
    plain, both = (VanillaTransformerTokenizer.from_pretrained(tmp_path / name) for name in ("plain", "both"))
    assert plain.get_vocab() == both.get_vocab()
    assert plain.source_backend_tokenizer.get_vocab() == both.source_backend_tokenizer.get_vocab()
    code, _, err = run("third", "--source", "a.en", "--target", "both.tsv")
    assert (code, err) == (2, "train_tokenizer.py: both.tsv holds both sides: name it under --source\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--source", "a.en", "--vocab_size", "9"], "vocab_size=9 cannot hold the 256 bytes and 3 special tokens"),
        (["--source", "b.en"], "b.en"),
    ],
)
def test_leaves_nothing_behind_after_an_error(run, tmp_path, arguments, message):
    code, _, err = run("out", *arguments)
    assert code == 2
    assert err.startswith("train_tokenizer.py: ") and message in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()
