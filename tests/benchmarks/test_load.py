"""A server under mixed load: every answer is checked, nothing is lost or mixed up, and its memory does not grow."""

import gzip
import json

import pytest
from counting_model import SOURCES

from benchmarks import __main__ as benchmark
from benchmarks.serving_load import WRONG


@pytest.mark.slow
def test_mixed_load_with_clients_that_cancel_err_and_dawdle(counting_folder, tmp_path):
    source = tmp_path / "source.en.gz"
    source.write_bytes(gzip.compress("\n".join(SOURCES).encode()))
    out = tmp_path / "numbers.json"
    arguments = ["--model", counting_folder, "--source", str(source), "--json", str(out), "--rounds", "1"]
    arguments += ["--seconds", "1", "--clients", "2", "--lengths", "mixed", "--long_words", "200"]
    benchmark.main("benchmark", ["serve", *arguments, "--soak_seconds", "12"])
    rows = {
        (row["section"], row["server"], row["sentences"]): row for row in json.loads(out.read_text())["measurements"]
    }
    assert {server for section, server, _ in rows if section == "load"} == {"together", "one by one", "plain"}
    for row in rows.values():
        assert row["answers"]["right"] > 0 and row["requests_per_second"] > 0
        assert row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    soak = rows["soak", "together", "mixed"]
    assert soak["answers"].keys() == {"right", *WRONG}  # none with another status, or a wrong translation
    first, *_, last = soak["memory_mib"]
    assert last < first + 30 or first == 0
