"""The command `clean`: every format in, plain text, TSV or JSON lines out, completely or not at all."""

import gzip
import json

import pytest

from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.training.data.corpus import load_parallel_text


PAIRS = [
    *(("one dog", "ein Hund"), ("two  dogs", "zwei\u00a0Hunde"), ("same", "Same"), ("one dog", "ein Hund")),
    ("x", ""),
]
CLEAN = {"source": ["one dog", "two dogs"], "target": ["ein Hund", "zwei Hunde"]}


@pytest.fixture
def corpus(tmp_path, monkeypatch, datasets_cache):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    (tmp_path / "a.en").write_text("".join(f"{source}\n" for source, _ in PAIRS), encoding="utf-8")
    (tmp_path / "a.de").write_text("".join(f"{target}\n" for _, target in PAIRS), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("given", [["a.tsv"], ["a.en", "a.de"]])
@pytest.mark.parametrize("output", [["b.tsv"], ["b.jsonl"], ["b.tsv.gz"], ["b.en", "b.de"], ["b.en.gz", "b.de.gz"]])
def test_pairs_are_cleaned_and_can_be_trained_on(corpus, capsys, given, output):
    main(["clean", *given, "--output", *output, "--report", "b.json", "--source_lang", "en", "--target_lang", "de"])
    assert (
        load_parallel_text(*output)[:] == load_parallel_text(*output, source_lang="en", target_lang="de")[:] == CLEAN
    )
    said = capsys.readouterr().out
    assert "5 pairs read, 2 kept, 3 left out." in said and "1 identical: both sides are the same" in said
    assert "    3: same | Same" in said and f"{', '.join(output)}: written." in said
    report = json.loads((corpus / "b.json").read_text(encoding="utf-8"))
    assert (report["read"], report["kept"], report["left_out"]["duplicate"]) == (5, 2, 1)
    assert report["examples"]["duplicate"] == [{"pair": 4, "source": "one dog", "target": "ein Hund"}]
    first = [(corpus / name).read_bytes() for name in output]
    main(["clean", *given, "--output", *output])
    assert first == [(corpus / name).read_bytes() for name in output], "the same bytes in every run"


def test_parquet_and_held_out_files_of_every_format(corpus, capsys):
    load_parallel_text("a.tsv").to_parquet("a.parquet")
    (corpus / "held.jsonl").write_text('{"en": "One dog.", "de": "egal"}', encoding="utf-8")
    (corpus / "held.txt.gz").write_bytes(gzip.compress(b"nothing\n"))
    files = ["held.jsonl", "held.txt.gz"]
    main(
        ["clean", "a.parquet", "--output", "b.tsv", "--held_out", *files, "--source_lang", "en", "--target_lang", "de"]
    )
    assert load_parallel_text("b.tsv")[:] == {"source": ["two dogs"], "target": ["zwei Hunde"]}
    assert "2 held_out" in capsys.readouterr().out


def test_units_of_a_translation_memory_that_are_no_pairs_are_said(corpus, capsys):
    unit = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv></tu>'
    units = "".join(unit.format(*pair) for pair in PAIRS)
    (corpus / "a.tmx").write_text(f'<tmx><header srclang="en"/><body>{units}</body></tmx>', encoding="utf-8")
    main(["clean", "a.tmx", "--output", "b.en", "b.de", "--source_lang", "de", "--target_lang", "en"])
    assert load_parallel_text("b.de", "b.en")[:] == CLEAN
    assert "4 pairs read, 2 kept, 2 left out." in (said := capsys.readouterr().out)
    assert "1 without a translation in the file: no pair." in said


def test_a_dry_run_writes_nothing(corpus, capsys):
    before = sorted(corpus.iterdir())
    main(["clean", "a.tsv", "--dry-run"])
    assert sorted(corpus.iterdir()) == before
    assert "2 kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["a.tsv"], "one of --output and --dry-run is needed"),
        (["a.tsv", "--output", "a.tsv"], "a.tsv is also the output"),
        (["a.tsv", "--output", "b.tsv", "--report", "a.tsv"], "a.tsv is also the output"),
        (["a.tsv", "--output", "b.en", "./b.en"], "two different ones for source and target"),
        (["a.tsv", "--output", "b.en", "b.de", "--report", "./b.de"], "target; --report another one"),
        (["a.tsv", "--output", "b.txt"], "b.txt: one file for both sides is .tsv or .jsonl"),
        (["a.tsv", "--output", "b.tsv", "--max_length", "1"], "no pair is left; nothing is written"),
        (["c.tsv", "--output", "b.tsv"], "c.tsv: no such file"),
        (["a.tsv", "--output", "b.tsv", "--split", "dev"], "--split dev has no effect: a.tsv has no splits"),
        (["a.en", "a.en", "--output", "b.tsv", "--source_column", "x"], "have no effect on two plain files"),
        (["a.en", "a.tsv", "--output", "b.tsv"], "a.en has 5 lines, a.tsv has 1 lines"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(corpus, capsys, arguments, message):
    (corpus / "a.tsv").write_text("one\tein\n", encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        main(["clean", *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(corpus.glob("b.*"))
