"""scripts/translate.py, score.py and align.py as users run them."""

import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from counting_model import MIXED, SOURCES, TRANSLATED
from files_to_explore import hears

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.common.machine import Machine
from vanilla_transformer_hf.common.matmul import TOLERANCE, available_matmuls, probe_matmul
from vanilla_transformer_hf.model.packing.packed import StepWeights
from vanilla_transformer_hf.translation import recognition
from vanilla_transformer_hf.translation.streams import sharing
from vanilla_transformer_hf.translation.streams.resumable_output import ResumableOutput


ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts" / "translate.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
TEXT = "\n".join(MIXED).encode() + b"\n"
OUTPUT = "\n".join(TRANSLATED).encode() + b"\n"


@pytest.fixture
def folder(counting_folder):
    return counting_folder


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """`run(*arguments, text=b"", script="translate")`: exit code, standard output and standard error of a script."""

    def run(*arguments, text=b"", script="translate"):
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *map(str, arguments)])
        stdin = io.BytesIO(text)
        stdin.name, stdin.seekable = "<stdin>", lambda: False
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
        code = 0
        try:
            runpy.run_path(str(ROOT / "scripts" / f"{script}.py"), run_name="__main__")
        except SystemExit as stop:
            code = stop.code
        output, errors = capfdbinary.readouterr()
        bar = r"\r[^\n]*sentences/s[^\n]*\n?"  # it appears after a second, so on slow machines
        return code, output, re.sub(bar, "", errors.decode())

    return run


@pytest.fixture
def run_killed(run, monkeypatch):
    """`run_killed(*arguments)`: the script as it ends behind its first window."""

    def run_killed(*arguments):
        write = ResumableOutput.write

        def killed(self, *window):
            write(self, *window)
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(ResumableOutput, "write", killed)
            assert run(*arguments)[0] == 2

    return run_killed


@pytest.fixture
def pairs(tmp_path):
    """Files with English and German number words, line by line, and their names."""
    (tmp_path / "source").write_bytes(TEXT)
    (tmp_path / "target").write_bytes(OUTPUT)
    return tmp_path / "source", tmp_path / "target"


def test_standard_input_to_standard_output(folder):
    command = [sys.executable, SCRIPT, folder, "--batch_size", "2"]
    done = subprocess.run(command, input=TEXT, capture_output=True, env=ENVIRONMENT, timeout=120)
    assert (done.returncode, done.stdout) == (0, OUTPUT)
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("float32 matrix products: "), "what was measured and chosen, nothing else"


def test_matmul_is_switchable(run, folder):
    for arguments in (("--matmul", "default"), ("--dtype", "bfloat16")):
        assert run(folder, *arguments, text=b"two\n") == (0, b"zwei\n", ""), "nothing to choose, nothing to say"
    if "onednn" in available_matmuls():
        code, output, errors = run(folder, "--matmul", "onednn", text=b"two\n")
        (error,) = [row.error for row in probe_matmul() if row.name == "onednn"]
        if error <= TOLERANCE:
            assert (code, output) == (0, b"zwei\n")
            assert errors.startswith("float32 matrix products: onednn (default ")
        else:  # a processor with bfloat16 matrix units
            assert (code, output) == (2, b"")
            assert "matmul='onednn': on this processor it rounds" in errors.splitlines()[-1]


@pytest.mark.slow
def test_pipeline_after_importing_the_package_alone(folder):
    code = "import vanilla_transformer_hf, sys; from transformers import pipeline; p = pipeline('translation', "
    code += "model=sys.argv[1]); assert p('two') == [{'translation_text': 'zwei'}]"
    command = [sys.executable, "-c", code, folder]
    done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert b"arning" not in done.stderr


@pytest.mark.slow
def test_a_killed_run_leaves_whole_lines_and_the_same_command_continues_it(run, folder, tmp_path):
    lines = [SOURCES[number * 7 % len(SOURCES)] for number in range(60)]
    text = "".join(f"{line}\n" for line in lines).encode()
    options = ("--matmul", "default", "--window", "4", "--num_beams", "2")
    code, whole, _ = run(folder, *options, text=text)
    assert (code, whole.count(b"\n")) == (0, 60)
    output, partial, journal = (tmp_path / f"output{end}" for end in ("", ".partial", ".partial.json"))
    command = [sys.executable, SCRIPT, folder, "--output", str(output), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        deadline = time.monotonic() + 100
        while not partial.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [entry.name for entry in tmp_path.iterdir()] == ["output.partial"]
        process.stdin.write(b"".join(text.splitlines(keepends=True)[:30]))  # and it goes on waiting for more
        process.stdin.flush()
        # Seven windows of four lines, and the eighth has to wait: nothing is just being renamed.
        answered = 0
        while answered < 28 and time.monotonic() < deadline:
            time.sleep(0.01)
            answered = json.loads(journal.read_text())["lines"] if journal.exists() else 0
        process.kill()
    begun = partial.read_bytes()
    assert begun.endswith(b"\n") and whole.startswith(begun)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["output.partial", "output.partial.json"]
    code, _, errors = run(folder, "--output", output, *options[:-1], "3", text=text)
    assert (code, errors.count("\n")) == (2, 1)
    assert "was begun with num_beams=2, and now it is 3" in errors
    code, _, errors = run(folder, "--output", output, *options, text=text)
    assert code == 0
    assert re.fullmatch(rf"{output}: continued after line \d+\n", errors)
    assert output.read_bytes() == whole
    assert [entry.name for entry in tmp_path.iterdir()] == ["output"]


@pytest.mark.slow
def test_several_processes_give_the_same_file(run, folder, pairs, tmp_path):
    arguments = (folder, "--input", pairs[0], "--output", tmp_path / "output", "--window", 2, "--processes", 2)
    code, _, errors = run(*arguments, "--matmul", "default")
    assert (code, errors) == (0, "")
    assert (tmp_path / "output").read_bytes() == OUTPUT


def test_a_process_that_is_not_worth_its_start_is_not_started(run, folder, pairs):
    code, output, errors = run(folder, "--input", pairs[0], "--processes", 2, "--matmul", "default")
    assert (code, output) == (0, OUTPUT)
    assert errors == "1 of 2 processes: more are not worth their start\n"


@pytest.mark.parametrize("script", ["translate", "score", "align"])
def test_what_is_chosen_is_told_and_changes_no_output(run, folder, pairs, monkeypatch, script):
    files = ("--input", pairs[0]) if script == "translate" else pairs
    before, given = torch.get_num_threads(), (folder, *files, "--matmul", "default")
    code, expected, errors = run(*given, script=script)
    assert (code, errors) == (0, "")
    for idle, threads in ((2.9, 3), (0.1, 1)):
        machine = Machine(cores=4, idle=idle, memory=2**34, accelerators=0)
        monkeypatch.setattr(sharing, "look", lambda device, machine=machine: machine)
        code, output, errors = run(*given, "--processes", "auto", "--threads", "auto", script=script)
        assert (code, output) == (0, expected)
        chosen = f"threads: {threads} ({idle} cores are idle, 4 allowed)"
        assert errors == f"processes: 1 (more have too few lines), {chosen}\n"
    assert torch.get_num_threads() == before


def test_a_killed_run_continues_with_what_is_chosen_then(run, run_killed, folder, tmp_path, monkeypatch):
    """The window, which others are shared out by, is that of the run before."""
    (tmp_path / "input").write_bytes(TEXT * 3)
    options = (folder, "--input", tmp_path / "input", "--matmul", "default", "--num_beams", "2", "--format", "tsv")
    code, expected, _ = run(*options)
    assert code == 0
    output = tmp_path / "output"
    run_killed(*options, "--output", output, "--window", 4, "--threads", 2)
    machine = Machine(cores=8, idle=8.0, memory=2**34, accelerators=0)
    monkeypatch.setattr(sharing, "look", lambda device: machine)
    code, _, errors = run(*options, "--output", output, "--processes", "auto", "--threads", "auto")
    assert code == 0 and f"{output}: continued after line 4\n" in errors and "threads: 8 (" in errors
    assert output.read_bytes() == expected


def test_a_killed_search_for_minimum_risk_continues_to_the_same_lines(run, run_killed, folder, tmp_path):
    (tmp_path / "input").write_bytes(TEXT)
    options = (folder, "--input", tmp_path / "input", "--matmul", "default", "--search", "mbr", "--samples", 4)
    hot = ("--temperature", 6)
    code, expected, errors = run(*options, *hot)
    assert (code, expected.count(b"\n")) == (0, len(MIXED)), errors
    output = tmp_path / "output"
    run_killed(*options, *hot, "--output", output, "--window", 4)
    assert "was begun with mbr=" in run(*options, "--output", output)[2]
    code, _, errors = run(*options, *hot, "--output", output)
    assert code == 0 and f"{output}: continued after line 4\n" in errors
    assert output.read_bytes() == expected
    assert "--samples: needs --search mbr" in run(folder, "--samples", 4)[2]


def test_file_to_file(run, folder, tmp_path):
    (tmp_path / "input").write_bytes(TEXT.removesuffix(b"\n"))  # a last line without its end
    files = ("--input", tmp_path / "input", "--output", tmp_path / "output")
    code, output, errors = run(folder, *files, "--matmul", "default")
    assert (code, output, errors) == (0, b"", "")
    assert (tmp_path / "output").read_bytes() == OUTPUT
    assert run(folder, "--input", os.devnull)[:2] == (0, b"")


def test_jsonl_has_texts_scores_tokens_and_alignments(run, folder):
    code, output, _ = run(folder, "--format", "jsonl", "--alignment", "--num_beams", 2, "--n_best", 2, text=TEXT)
    records = [json.loads(line) for line in output.decode().splitlines()]
    assert code == 0
    assert [record["number"] for record in records] == list(range(1, len(MIXED) + 1))
    assert [record["source"] for record in records] == MIXED
    assert [record["translations"][0]["text"] for record in records] == TRANSLATED
    for record in records:
        assert len(record["translations"]) == 2
        for translation in record["translations"]:
            assert set(translation) >= {"text", "score", "tokens"}
            links = [link.split("-") for link in translation.get("alignment", "").split()]
            assert len(links) == len(translation["text"].split())
            assert all(int(source) < len(record["source"].split()) for source, _ in links)


def test_scores_of_given_translations(run, folder, pairs, tmp_path):
    translator = Translator.from_pretrained(folder, device="cpu")
    expected = translator.score(MIXED, TRANSLATED)
    code, output, _ = run(folder, *pairs, script="score")
    assert code == 0
    assert [float(line) for line in output.split()] == pytest.approx(
        [score.log_probability for score in expected], abs=1e-4
    )
    code, output, _ = run(folder, *pairs, "--format", "tsv", "--batch_size", 2, script="score")
    rows = [line.split("\t") for line in output.decode().splitlines()]
    assert [float(row[3]) for row in rows] == pytest.approx([score.perplexity for score in expected], abs=1e-3)
    assert [row[4] for row in rows] == TRANSLATED
    pairs[1].write_bytes(b"eins\n")
    code, _, errors = run(folder, *pairs, script="score")
    assert (code, errors) == (2, f"score.py: {pairs[1]} ends before its line 2, another file does not\n")


TMX = """<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="de"><seg>eins</seg></tuv><tuv xml:lang="en"><seg>one</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>two</seg></tuv></tu>
<tu><tuv xml:lang="en-GB"><seg>two\nthree</seg></tuv><tuv xml:lang="de"><seg>drei zwei</seg></tuv></tu>
</body></tmx>"""
BOTH_SIDES = {
    "memory.tmx": TMX,
    "table.csv": 'German;English\neins;one\n"drei zwei";"two  three"\n',
    "rows.jsonl": '{"translation": {"en": "one", "de": "eins"}}\n{"de": "drei zwei", "en": "two three"}\n',
    "text.txt": "en\tde\none\teins\ntwo three\tdrei zwei\n",  # Excel's Unicode text
}


@pytest.mark.parametrize("name", BOTH_SIDES)
def test_given_translations_in_files_that_hold_both_sides(run, folder, tmp_path, name, caplog):
    (tmp_path / name).write_text(BOTH_SIDES[name], encoding="utf-16" if name == "text.txt" else "utf-8")
    languages = ["--source_lang", "en", "--target_lang", "de"]
    translator = Translator.from_pretrained(folder, device="cpu")
    expected = translator.score(["one", "two three"], ["eins", "drei zwei"])
    code, output, _ = run(folder, tmp_path / name, *languages, script="score")
    assert (code, [float(line) for line in output.split()]) == (
        0,
        pytest.approx([score.log_probability for score in expected], abs=1e-4),
    )
    assert ("units left out: 1 without a text in both languages" in caplog.text) == (name == "memory.tmx")
    known = shutil.copytree(folder, tmp_path / "known")  # a model that records its languages
    settings = json.loads((known / "tokenizer_config.json").read_text()) | {"src_lang": "en", "tgt_lang": "de"}
    (known / "tokenizer_config.json").write_text(json.dumps(settings))
    assert run(known, tmp_path / name, script="score")[:2] == (0, output)
    out = tmp_path / "out.align"
    code, _, _ = run(folder, tmp_path / name, *languages, "--output", out, script="align")
    aligned = translator.align(["one", "two three"], ["eins", "drei zwei"])
    assert (code, out.read_text().splitlines()) == (0, [str(each) for each in aligned])


@pytest.mark.parametrize("script", ["score", "align"])
def test_pairs_that_cannot_be_read_are_one_line(run, folder, pairs, tmp_path, script):
    (tmp_path / "rows.jsonl").write_text('{"en": "one"}\n')
    for arguments, message in (
        ([pairs[0]], "one file of a pair, or an unknown format"),
        ([*pairs, "--source_lang", "en"], "source_lang has no effect on two plain files"),
        ([tmp_path / "rows.jsonl"], "no column 'source' for the source text"),
        ([tmp_path / "rows.jsonl", "--on_bad_bytes", "skip"], "on_bad_bytes=skip needs two plain files"),
        ([tmp_path / "rows.jsonl", "--output", tmp_path / "rows.jsonl"], "is also the output"),
        ([tmp_path / "none.tmx"], "none.tmx: no such file"),
    ):
        code, output, errors = run(folder, *arguments, script=script)
        assert (code, output, errors.count("\n")) == (2, b"", 1) and message in errors, errors


@pytest.mark.parametrize("choice", ["never", "always"])
def test_sentences_of_given_translations(run, folder, pairs, choice):
    translator, texts = Translator.from_pretrained(folder, device="cpu"), ("one two. three.", "zwei. drei.")
    for path, text in zip(pairs, texts):
        path.write_text(f"{text}\n")
    code, output, _ = run(folder, *pairs, "--split_sentences", choice, script="score")
    expected = translator.score(*texts, split_sentences=choice).log_probability
    assert (code, float(output)) == (0, pytest.approx(expected, abs=1e-4))
    code, output, _ = run(folder, *pairs, "--split_sentences", choice, script="align")
    assert (code, output.decode().strip()) == (0, str(translator.align(*texts, split_sentences=choice)))


def test_alignments_of_given_translations(run, folder, pairs):
    code, output, _ = run(folder, *pairs, script="align")
    lines = output.decode().splitlines()
    assert (code, [len(line.split()) for line in lines]) == (0, [len(line.split()) for line in TRANSLATED])
    code, _, errors = run(folder, *pairs, "--layer", 7, script="align")
    assert (code, "layer=7: the decoder's layers are 0 to 0" in errors) == (2, True)


def test_over_long_lines_are_counted_at_the_end(run, folder, tmp_path):
    text = "".join(f"{line}\n" for line in MIXED).encode()
    notes = {"split": "split into parts of at most", "truncate": "truncated to the first"}
    for too_long, happened in notes.items():
        options = ("--too_long", too_long, "--max_source_length", 3, "--matmul", "default")
        code, output, errors = run(folder, *options, "--window", 3, text=text)
        assert (code, len(output.splitlines())) == (0, len(MIXED))
        assert errors == f"2 over-long lines {happened} 3 tokens\n"
    code, _, errors = run(folder, "--too_long", "error", "--max_source_length", 3, text=text)
    assert (code, "too_long='split' would allow it" in errors) == (2, True)
    code, output, errors = run(folder, "--too_long", "whole", "--matmul", "default", text=text)
    assert (code, output, "the encoder's attention is 'full'" in errors, errors.count("\n")) == (2, b"", True, 1)


def test_errors_are_one_line_and_leave_nothing(run, folder, tmp_path):
    output = tmp_path / "output"
    bad = tmp_path / "bad"
    bad.write_bytes(b"one\ntwo\n\xff\n")
    cases = {
        "no such folder": (tmp_path / "nothing",),
        "no such file": (folder, "--input", tmp_path / "nothing"),
        "nothing/output: expected a file in a folder that exists": (
            folder,
            "--output",
            tmp_path / "nothing" / "output",
        ),
        "bad, line 3: not valid UTF-8": (folder, "--input", bad, "--output", output),
        "'nonsense' cannot be used": (folder, "--device", "nonsense", "--output", output),
        "batch_size=0": (folder, "--batch_size", 0, "--output", output),
        "batch_tokens=0": (folder, "--batch_tokens", 0, "--output", output),
        "processes=0": (folder, "--processes", 0, "--output", output),
        "window=-1": (folder, "--window", -1, "--output", output),
        "num_beams": (folder, "--n_best", 9, "--output", output),
        "holds only one translation": (folder, "--n_best", 2, "--format", "text", "--output", output),
    }
    for message, arguments in cases.items():
        code, _, errors = run(*arguments, "--matmul", "default", text=b"one\n")
        assert code == 2, message
        assert message in errors
        assert errors.startswith("translate.py: ")
        assert errors.count("\n") == 1, errors
    code, _, errors = run(folder, "--output", output, "--matmul", "default", text=b"one\n\xff")
    assert (code, errors.count("\n")) == (2, 1)
    assert "<stdin>, line 2: not valid UTF-8" in errors
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bad", "output.partial", "output.partial.json"]
    assert (tmp_path / "output.partial").read_bytes() == b"eins\n", "of a pipe, what was whole"
    code, content, errors = run(folder, "--input", bad, "--on_bad_bytes", "skip", "--matmul", "default")
    assert (code, content) == (0, b"eins\nzwei\n\n")
    assert run(folder, "--matmul", "default", text=b"one\ntwo\n\xff\n")[:2] == (2, b"eins\nzwei\n")


@pytest.mark.parametrize("script", ["translate", "score", "align"])
def test_help_shows_examples(run, script):
    code, output, _ = run("--help", script=script)
    assert code == 0
    assert f"vanilla-transformer {script} outputs/quickstart ".encode() in output


@pytest.mark.slow
def test_ensembles_constraints_prefixes_and_shortlists(run, folder, tmp_path):
    plain = ("--matmul", "default", "--num_beams", "6")
    assert run(folder, *plain, "--ensemble", folder, folder, text=TEXT) == (0, OUTPUT, "")
    (tmp_path / "prefixes").write_text("drei\n\n", encoding="utf-8")
    (tmp_path / "words").write_text("zwei drei vier\n", encoding="utf-8")
    text = b"one two\tvier\tdrei\ntwo one\n"
    options = ("--constraints", "--format", "jsonl", "--processes", "2")
    code, output, errors = run(folder, *plain, *options, text=text)
    first, second = map(json.loads, output.splitlines())
    assert (code, errors, first["source"]) == (0, "", "one two")
    assert all(word in first["translations"][0]["text"] for word in ("vier", "drei"))
    assert second["translations"][0]["text"] == "eins zwei"
    options = ("--prefixes", tmp_path / "prefixes", "--shortlist", tmp_path / "words")
    code, output, errors = run(folder, *plain, *options, text=text.replace(b"\tvier\tdrei", b""))
    assert (code, errors) == (0, "") and output.startswith(b"drei") and output.count(b"\n") == 2
    code, output, errors = run(folder, "--matmul", "default", "--num_beams", "1", "--constraints", text=text)
    assert (code, errors) == (2, "translate.py: required_phrases: needs num_beams of at least 2, not 1\n")
    code, output, errors = run(folder, "--shortlist", tmp_path / "none", text=text)
    assert code == 2 and errors.count("\n") == 1 and "none" in errors


def test_terms_and_translations_that_are_there(run, folder, tmp_path):
    (tmp_path / "terms.tsv").write_text("two|twos\tfünf|Fünfen\n", encoding="utf-8")
    (tmp_path / "memory.tsv").write_text("one two\tEINS ZWEI\n", encoding="utf-8")
    options = ("--glossary", tmp_path / "terms.tsv", "--memory", tmp_path / "memory.tsv", "--num_beams", "4")
    options += ("--matmul", "default")
    text = b"one two\ntwo three\none twos\n"
    code, output, errors = run(folder, *options, "--format", "jsonl", text=text)
    known, placed, near = (json.loads(line)["translations"][0] for line in output.splitlines())
    missing = [{"source": "two", "target": "fünf"}]
    assert (code, known["text"], known["score"], known["missing_terms"]) == (0, "EINS ZWEI", 0, missing)
    assert "fünf" in placed["text"] and "missing_terms" not in placed
    assert [each["translation"] for each in near["near_matches"]] == ["EINS ZWEI"]
    assert "1 line with a translation that lacks a term" in errors and "1 line with a near match" in errors
    code, plain, errors = run(folder, *options, text=text)
    assert (code, plain.splitlines()[0]) == (0, b"EINS ZWEI") and errors.count("\n") == 1
    (tmp_path / "a.txt").write_bytes(text)
    code, document, errors = run(folder, *options, "--file", tmp_path / "a.txt")
    assert (code, document.decode().splitlines()) == (0, plain.decode().splitlines())
    assert "'one two': without 'fünf' for 'two'\n" in errors and "'one twos': 88% 'one two': 'EINS ZWEI'\n" in errors
    code, output, errors = run(folder, "--glossary", tmp_path / "terms.tsv", "--matmul", "default", text=text)
    assert (code, errors) == (2, "translate.py: glossary: needs num_beams of at least 2, not 1\n")


def test_a_run_with_another_glossary_does_not_continue_one(run, folder, tmp_path):
    (tmp_path / "text").write_bytes(b"two\n\xff\n")
    (tmp_path / "terms.tsv").write_text("two\tfünf\n", encoding="utf-8")
    partial = tmp_path / "output.partial"
    options = ("--input", tmp_path / "text", "--output", tmp_path / "output", "--glossary", tmp_path / "terms.tsv")
    options += ("--num_beams", "2", "--window", "1", "--on_bad_bytes", "replace", "--matmul", "default")
    with pytest.MonkeyPatch.context() as patch:
        write, written = ResumableOutput.write, []

        def stop(self, *given):
            write(self, *given)
            raise OSError("the disk is full")

        patch.setattr(ResumableOutput, "write", stop)
        assert run(folder, *options)[0] == 2 and partial.exists() and not written
    (tmp_path / "terms.tsv").write_text("two\tvier\n", encoding="utf-8")
    code, _, errors = run(folder, *options)
    assert code == 2 and "glossary" in errors and errors.count("\n") == 1


@pytest.mark.parametrize("option", ["--input", "--prefixes", "--shortlist", "--glossary", "--memory"])
def test_an_output_that_is_an_input_is_refused_before_anything_is_read(run, folder, tmp_path, option):
    (tmp_path / "text").write_bytes(TEXT)
    (tmp_path / "link").symlink_to("text")
    options = (option, tmp_path / "text", "--output", tmp_path / "link")
    code, output, errors = run(tmp_path / "no model is opened", *options, text=TEXT)
    assert (code, output, errors.count("\n")) == (2, b"", 1)
    assert f"{tmp_path / 'text'} is also the output" in errors
    assert (tmp_path / "text").read_bytes() == TEXT and (tmp_path / "link").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2
    for script in ("score", "align"):
        code, _, errors = run(
            folder, tmp_path / "text", tmp_path / "link", "--output", tmp_path / "text", script=script
        )
        assert code == 2 and f"{tmp_path / 'text'} is also the output" in errors


def test_groups_of_beams(run, folder):
    options = ["--n_best", "4", "--num_beams", "4", "--num_beam_groups", "2", "--diversity_penalty", "0.5"]
    code, output, _ = run(folder, *options, text=b"four five one\n")
    assert code == 0
    best = Translator.from_pretrained(folder).translate(
        "four five one", num_beams=4, num_return_sequences=4, num_beam_groups=2, diversity_penalty=0.5
    )
    assert [line.split("\t")[2] for line in output.decode().splitlines()] == [str(one) for one in best]
    code, _, errors = run(folder, "--num_beams", "4", "--num_beam_groups", "3", text=b"one\n")
    assert code != 0 and "num_beam_groups=3: must divide num_beams, which is 4" in errors


def test_repetition_and_texts_without_letters_have_options(run, folder):
    lines = b"four five one\n***\n42\n"
    options = ("--no_repeat_ngram_size", 1, "--repetition_penalty", 1.5)
    code, output, errors = run(folder, *options, text=lines)
    best = Translator.from_pretrained(folder).translate(
        "four five one", no_repeat_ngram_size=1, repetition_penalty=1.5
    )
    assert (code, output.decode().splitlines()) == (0, [str(best), "***", "42"])
    assert "2 lines without letters copied unchanged" in errors
    code, output, errors = run(folder, "--without_letters", "mark", "--format", "jsonl", text=lines)
    marks = [json.loads(line)["translations"][0].get("suspicious", False) for line in output.decode().splitlines()]
    assert code == 0 and marks == [False, True, True] and "2 lines with a suspicious translation" in errors
    code, _, errors = run(folder, "--repetition_penalty", 0, text=lines)
    assert code == 2 and "penalty" in errors and "Traceback" not in errors


def test_quantization_reaches_the_search(run, folder, monkeypatch):
    asked, made = [], StepWeights.of.__func__

    def of(cls, model, quantization=None):
        asked.append(quantization)
        return made(cls, model, quantization)

    monkeypatch.setattr(StepWeights, "of", classmethod(of))
    code, output, _ = run(folder, "--quantization", "int8", "--matmul", "default", text=TEXT)
    assert (code, set(asked)) == (0, {"int8"})
    assert len(output.splitlines()) == len(MIXED)


def test_a_page_is_translated_as_a_whole(run, folder, tmp_path):
    page, output = tmp_path / "page.html", tmp_path / "page.de.html"
    page.write_bytes(b"<p>three\r\n one</p>\r\n<ul><li><b>two</b></ul><script>one</script>")
    expected = b"<p>eins drei</p>\r\n<ul><li><b>zwei</b></ul><script>one</script>"
    assert run(folder, "--input", page, "--output", output, "--format", "html")[:2] == (0, b"")
    assert output.read_bytes() == expected and not list(tmp_path.glob("*.partial*"))
    assert run(folder, "--format", "html", text=page.read_bytes())[:2] == (0, expected)
    for options, message in (
        (["--n_best", "2"], "leave out --n_best"),
        (["--processes", "2"], "a document is translated by 1"),
        (["--input", page, "--output", page], "is also the output"),
    ):
        code, written, errors = run(folder, "--format", "html", *options, text=b"one")
        assert code and not written and message in errors and "Traceback" not in errors
    code, written, errors = run(folder, "--format", "html", text=b"<p>\xff</p>")
    assert code and not written and "standard input, byte 4: not UTF-8" in errors
    assert run(folder, "--format", "html", "--on_bad_bytes", "skip", text=b"<p>\xffone</p>")[1] == b"<p>eins</p>"


def test_a_file_is_translated_and_stays_what_it_is(run, folder, tmp_path):
    catalogue, output = tmp_path / "messages.po", tmp_path / "messages.de.po"
    catalogue.write_text('msgid ""\nmsgstr "Language: sv\\n"\n\nmsgid "three <b>one</b>"\nmsgstr ""\n')
    assert run(folder, "--file", catalogue, "--output", output)[:2] == (0, b"")
    assert '#, fuzzy\nmsgid "three <b>one</b>"\nmsgstr "<b>eins</b> drei"\n' in output.read_text()
    text = tmp_path / "text.TXT"
    text.write_bytes(b"\xef\xbb\xbfthree one\r\n\r\n  two")
    expected = b"\xef\xbb\xbfeins drei\r\n\r\n  zwei"
    assert run(folder, "--file", text)[:2] == (0, expected)
    for options, message in (
        (["--file", tmp_path / "report.pdf"], "report.pdf' is not a document: expected .txt, .html"),
        (["--file", text, "--n_best", "2", "--format", "text"], "leave out --n_best, --format"),
        (["--file", text, "--restart", "--window", "9"], "leave out --restart, --window"),
        (["--file", catalogue, "--encoding", "cp1252"], "messages.po says its encoding itself: leave out --encoding"),
        (["--file", catalogue, "--on_bad_bytes", "skip"], "leave out --encoding (the field) and --on_bad_bytes"),
        (["--file", catalogue, "--output", tmp_path / "a.txt"], "of its kind; give it the same ending"),
        (["--input", catalogue], "is a document: name it by --file"),
        (["--input", tmp_path / "page.html"], "is a document: name it by --file"),
        (
            ["--input", tmp_path / "a.CSV.gz"],
            "is a table: save its texts as lines of a file, or translate its lines as",
        ),
        (["--file", text, "--input", text], "not allowed with"),
        (["--file", tmp_path / "none.po"], "none.po"),
        (["--file", text, "--output", text], "is also the output"),
    ):
        (tmp_path / "report.pdf").write_bytes(b"%PDF")
        code, written, errors = run(folder, *options)
        assert code and not written and message in errors and "Traceback" not in errors
    assert text.read_bytes() == b"\xef\xbb\xbfthree one\r\n\r\n  two"
    (lines := tmp_path / "a.tsv").write_bytes(b"three one\n")
    for options in (["--format", "text"], ["--constraints", "--num_beams", "2"]):
        assert run(folder, "--input", lines, *options)[:2] == (0, b"eins drei\n")


# Options of text with values that change something, for each command that reads files.
OF_TEXT = {
    "translate": (
        *(["--format", "tsv"], ["--n_best", "2"], ["--alignment"], ["--constraints"], ["--prefixes", "a"]),
        *(["--shortlist", "a"], ["--glossary", "a"], ["--memory", "a"], ["--ensemble", "a"]),
        *(["--engine", "ctranslate2"], ["--without_letters", "mark"]),
        *(["--coverage_penalty", "0.2"], ["--max_extra_tokens", "9"], ["--too_long", "error"]),
    ),
    "score": (["--format", "tsv"], ["--too_long", "truncate"], ["--source_lang", "en"], ["--target_column", "de"]),
}
OF_LINES = (
    *(["--restart"], ["--batch_tokens", "99"], ["--window", "1"], ["--max_source_length", "9"]),
    *(["--target_lang_tag", "de"], ["--on_bad_bytes", "skip"], ["--processes", "2"], ["--matmul", "default"]),
    ["--split_sentences", "never"],
)


@pytest.fixture(scope="module")
def hearing(tmp_path_factory):
    """A model that hears, with a recording, which is also a corpus of one."""
    folder = hears(tmp_path_factory.mktemp("files") / "hears")
    (folder / "texts.tsv").write_text("tones.wav\tone two\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("script", ["translate", "score"])
def test_options_of_text_are_refused_with_files_in_one_line(script, run, hearing, tmp_path):
    source = ["--audio", hearing / "tones.wav"] if script == "translate" else [hearing]
    for option in (*OF_TEXT[script], *OF_LINES):
        code, output, errors = run(hearing, *source, *option, script=script)
        assert (code, output) == (2, b"") and errors.endswith(f"leave out {option[0]}\n") and errors.count("\n") == 1
    everything = [word for option in OF_LINES for word in option]
    assert (
        "leave out --batch_tokens, --matmul, --max_source_length"
        in run(hearing, *source, *everything, script=script)[2]
    )


def test_options_of_files_have_their_effect(run, hearing, tmp_path, monkeypatch):
    audio = ["--audio", hearing / "tones.wav", hearing / "tones.wav"]
    code, output, errors = run(hearing, *audio, "--max_new_tokens", "3")
    assert (code, errors) == (0, "") and output.count(b"\n") == 2
    options = ["--batch_size", "1", "--device", "cpu", "--output", tmp_path / "texts"]
    assert run(hearing, *audio, "--max_new_tokens", "3", *options)[:2] == (0, b"")
    assert (tmp_path / "texts").read_bytes() == output
    scored = run(hearing, hearing, script="score")[1]
    assert run(hearing, hearing, "--output", tmp_path / "rates", "--batch_size", "1", script="score")[:2] == (0, b"")
    assert (tmp_path / "rates").read_bytes() == scored and scored.startswith(b"WER ")
    refused = run(hearing, hearing, "--output", hearing / "texts.tsv", script="score")
    assert refused[0] == 2 and "is also the output" in refused[2]
    before = (hearing / "tones.wav").read_bytes()
    for option, message in (
        (["--output", hearing / "tones.wav"], "is also the output"),
        (["--batch_size", "0"], "batch_size=0: must be at least 1"),
        (["--device", "nowhere"], "device 'nowhere' cannot be used here"),
    ):
        code, output, errors = run(hearing, *audio, *option)
        assert (code, output) == (2, b"") and message in errors and errors.count("\n") == 1
    assert (hearing / "tones.wav").read_bytes() == before
    types = []
    monkeypatch.setattr(recognition.Recognizer, "texts", lambda self, *_, **__: types.append(self.model.dtype) or [])
    for name in ("auto", "bfloat16"):
        assert run(hearing, *audio, "--dtype", name)[0] == 0
    assert types == [torch.float32, torch.bfloat16]
