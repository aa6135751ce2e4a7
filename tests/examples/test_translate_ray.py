"""Corpora for Ray Data: where their windows are, and, where Ray is installed, that the output is complete."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pyarrow
import pyarrow.parquet
import pytest
from counting_model import SOURCES
from ray_processes import ROOT, processes, ray_environment
from translate_ray import not_done, plan

from vanilla_transformer_hf import Translator


LINES = [f"line {number} ä" for number in range(1, 8)]


@pytest.fixture
def corpus(tmp_path):
    """Seven lines, three times: as text, as JSON lines, and as Parquet with two row groups."""
    paths = [tmp_path / name for name in ("a.en", "b.jsonl", "c.parquet")]
    paths[0].write_bytes("\n".join(LINES).encode())  # without a last line end
    paths[1].write_text("".join(json.dumps({"id": 1, "text": line}) + "\n" for line in LINES))
    table = pyarrow.table({"text": LINES, "id": range(7)})
    pyarrow.parquet.write_table(table, paths[2], row_group_size=4)
    return [str(path) for path in paths]


def test_windows_have_all_lines_in_order(corpus):
    windows = plan(corpus, 3)
    assert [window.lines for window in windows] == [3, 3, 1, 3, 3, 1, 3, 1, 3]
    assert [line for window in windows for line in window.read()] == 3 * LINES
    assert [window.first for window in windows] == [1, 4, 7, 8, 11, 14, 15, 18, 19]
    assert len({window.digest for window in windows}) == 9


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.gz", b"", r"a\.gz is compressed"),
        ("a.parquet", b"x", r"a\.parquet is not a Parquet file"),
        ("a.jsonl", b'{"text": "a"}\nx\n', r"a\.jsonl: line 2 of the corpus is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"other": "b"}\n', r"a\.jsonl: line 2 of the corpus has no text in 'text'"),
        ("a.en", b"\xff\n", r"a\.en, from line 1 of the corpus on, line 1: not valid UTF-8"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_named(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        plan([str(path)], 5)[0].read()


def test_a_line_of_a_file_that_is_no_text_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr("vanilla_transformer_hf.common.lines.LONGEST_LINE", 5)
    (tmp_path / "a.en").write_bytes(b"a\n" + 6 * b"b")
    with pytest.raises(ValueError, match=r"a\.en, line 2: longer than the 5 bytes"):
        plan([str(tmp_path / "a.en")], 5)


def test_columns_are_named(corpus):
    with pytest.raises(ValueError, match=r"has no column 'source': expected one of text, id"):
        plan(corpus, 3, "source")


class Begun:
    def __init__(self, lines, digest):
        self.lines, self.digest = lines, digest


def test_what_is_done_is_left_out(corpus):
    windows = plan(corpus[:1], 3)
    assert list(not_done(windows, Begun(0, ""), "out")) == windows
    assert list(not_done(windows, Begun(3, windows[0].digest), "out")) == windows[1:]
    assert list(not_done(windows, Begun(7, windows[2].digest), "out")) == []
    for lines, digest in ((2, windows[0].digest), (3, "other"), (9, windows[2].digest)):
        with pytest.raises(ValueError, match=f"out was begun with another input.*its first {lines} lines"):
            list(not_done(windows, Begun(lines, digest), "out"))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_killed_actor_loses_nothing(counting_folder, tmp_path):
    lines = [SOURCES[number % len(SOURCES)] for number in range(300)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    output, mark = tmp_path / "out.txt", tmp_path.name
    command = [sys.executable, str(ROOT / "examples" / "translate_ray.py"), counting_folder]
    command += ["--input", str(tmp_path / "corpus.jsonl"), "--output", str(output), "--actors", "2", "--window", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ray_environment(mark)) as process:
        partial = output.with_name("out.txt.partial")
        while process.poll() is None and not (partial.exists() and partial.stat().st_size):
            time.sleep(0.05)
        killed = list(processes(mark, b"ray::MapWorker", b"WindowTranslator"))
        assert process.poll() is None and len(killed) == 2, process.stderr.read()
        os.kill(killed[0], signal.SIGKILL)
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    expected = Translator.from_pretrained(counting_folder, device="cpu").translate(lines)
    assert output.read_text().splitlines() == list(map(str, expected))
