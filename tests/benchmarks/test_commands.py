"""`python -m benchmarks commands`: whole commands beside the programs of other packages."""

import argparse
import json
import subprocess
import sys

import pytest

from benchmarks import commands
from benchmarks.__main__ import main
from benchmarks.turns import ROOT


MODEL = ROOT / "model_cards" / "multi30k_raw_en_de"
LINES = ("A man is riding a bike.", "", "Two dogs play in the snow.")


def test_a_turn_counts_time_memory_and_lines_of_the_whole_command(tmp_path):
    source = tmp_path / "source.txt"
    source.write_text("one\ntwo\n", encoding="utf-8")
    code = "import sys; held = bytearray(60 * 2**20); print(sys.stdin.read().upper(), end='')"
    found = commands.run_once(commands.Command("shout", [sys.executable, "-c", code]), source, 1, tmp_path)
    assert found["lines"] == ["ONE", "TWO"]
    assert found["cpu_seconds"] > 0 and found["seconds"] > 0
    assert 60 < found["peak_mib"] < 120  # not that of this process, which has torch


def test_a_command_that_fails_is_named_with_its_last_lines(tmp_path):
    source = tmp_path / "source.txt"
    source.write_text("one\n", encoding="utf-8")
    command = commands.Command("broken", [sys.executable, "-c", "raise SystemExit('no model')"])
    with pytest.raises(ChildProcessError, match=r"(?s)broken ended with code 1:\nno model"):
        commands.run_once(command, source, 1, tmp_path)
    source.write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(ChildProcessError, match="head wrote 1 lines for the 2 that it read"):
        commands.run_once(commands.Command("head", ["head", "-n", "1"]), source, 1, tmp_path)


def test_a_table_has_medians_and_ratios_to_the_first_row(tmp_path, capsys):
    source = tmp_path / "source.txt"
    source.write_text("one\n", encoding="utf-8")
    echo = [sys.executable, "-S", "-c", "import sys; print(sys.stdin.read(), end='')"]
    slow = [sys.executable, "-S", "-c", "import time; time.sleep(0.5); print('another')"]
    rows = [commands.Command("fast", echo), commands.Command("slow", slow)]
    found = commands.measure(rows, source, 1, argparse.Namespace(rounds=2, busy=1))
    assert [row["same"] for row in found] == [1, 0]
    assert found[0]["ratio"] == 1 and found[1]["ratio"] == found[1]["seconds"] / found[0]["seconds"]
    assert found[1]["seconds"] > 0.5 > found[1]["cpu_seconds"]
    commands.print_table("a table", found)
    assert "fast" in capsys.readouterr().out


def test_numbers_out_of_range_are_refused(tmp_path):
    source = tmp_path / "source.txt"
    source.write_text("one\n", encoding="utf-8")
    given = ["commands", "--model", str(MODEL), "--source", str(source)]
    with pytest.raises(ValueError, match=r"source\.txt has 1"):
        main("benchmarks", [*given, "--lines", "2"])
    with pytest.raises(ValueError, match="are 1 or more"):
        main("benchmarks", [*given, "--lines", "1", "--beams", "0"])


def test_a_model_that_no_engine_can_express_is_measured_beside_other_programs(tmp_path, monkeypatch, capsys):
    source = tmp_path / "source.txt"
    source.write_text("one\n", encoding="utf-8")
    names = []
    monkeypatch.setattr(commands, "measure", lambda rows, *rest: names.extend(row.name for row in rows) or [])
    given = ["commands", "--model", str(MODEL), "--source", str(source), "--lines", "1", "--beams", "5"]
    main("benchmarks", [*given, "--threads", "1", "--against", "--other", "eole", "eole predict"])
    assert names == ["vanilla-transformer translate", "… --quantization int8", "eole"]


@pytest.mark.slow
@pytest.mark.parametrize("weights", [[], ["--preset", "smoke"]], ids=["trained", "random"])
def test_all_commands_find_the_words_of_ours(tmp_path, weights):
    pytest.importorskip("ctranslate2")
    source, report = tmp_path / "test.en", tmp_path / "report.json"
    source.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    given = ["--model", str(MODEL), "--source", str(source), "--lines", "3", "--beams", "1", "--rounds", "1"]
    given += weights
    more = ["--threads", "1", "--other", "upper case", "tr a-z A-Z", "--json", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "commands", *given, *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(report.read_text())["measurements"]}
    assert list(rows) == [
        *("vanilla-transformer translate", "… --quantization int8", "… --engine ctranslate2", "MarianMT"),
        *("CTranslate2 float32", "CTranslate2 int8", "upper case"),
    ]
    # Of an empty line, they make up a translation; ours is empty.
    assert all(rows[name]["same"] >= 2 / 3 for name in ("MarianMT", "CTranslate2 float32"))
    assert all(name in done.stdout for name in rows)
