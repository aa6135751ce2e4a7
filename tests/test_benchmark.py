"""scripts/benchmark.py: that it measures what it says, on sizes that say nothing about speed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from benchmarks import corpus, training, turns  # noqa: E402


def run(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPTS / "benchmark.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_three_engines_train_on_text_and_on_a_made_up_corpus(tmp_path):
    files = {"source": "one two three\n\nfour five\n" * 40, "target": "eins zwei drei\n\nvier fünf\n" * 40}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    small = ["--presets", "smoke", "--rounds", "2", "--block", "1", "--threads", "1", "--tokens", "64"]
    text = ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]
    done = run("train", *small, *text, "--dtypes", "bfloat16", "--loads", "run", "--json", str(tmp_path / "json"))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "json").read_text())
    rows = result["measurements"]
    assert [row["engine"] for row in rows] == ["ours", "marian", "torch"]
    assert all(row["tokens_per_second"] > 0 and row["peak_mib"] > 100 for row in rows)
    assert all(row["slowest"] <= row["tokens_per_second"] <= row["fastest"] for row in rows)
    for row in rows:
        assert row["ratio"] == pytest.approx(rows[0]["tokens_per_second"] / row["tokens_per_second"])
        assert row["name"] in done.stdout
    done = run("train", *small, "--dtypes", "float32", "--loads", "step", "--against", "torch")
    assert done.returncode == 0, done.stderr
    assert "smoke, float32, step" in done.stdout


def test_errors_are_one_line(tmp_path):
    for arguments, message in (
        (("--source", "x"), "--source and --target are given together"),
        (("--rounds", "0"), "are 1 or more"),
        (("--source", "none", "--target", "none", "--presets", "smoke"), "No such file"),
    ):
        done = run("train", *arguments)
        assert done.returncode == 2
        assert message in done.stderr.splitlines()[-1]


def test_an_engine_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"(?s)ours ended with code 1:.*KeyError: 'block'"):
        turns.Engine("ours", "benchmarks.training_engine", {}, threads=1)


def test_both_sides_have_the_same_backend_somewhere():
    rows = training.float32_rows("onednn")
    assert [(row.engine, row.matmul) for row in rows] == [
        ("ours", "onednn"),
        ("marian", "default"),
        ("torch", "default"),
        ("ours", "default"),
        ("marian", "onednn"),
    ]
    assert training.float32_rows("default") == training.BFLOAT16_ROWS


def test_ours_runs_in_the_environment_that_the_script_sets():
    for name, value in training.SCRIPT_ENVIRONMENT.items():
        line = f'os.environ.setdefault("{name}", "{value}")'
        assert line in (SCRIPTS / "train.py").read_text(encoding="utf-8")


def test_operations_are_those_of_the_weights():
    config = VanillaTransformerConfig.from_preset("multi30k_tiny", vocab_size=500)
    model = VanillaTransformerForConditionalGeneration(config)
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    assert training.gflops_per_token(config) == pytest.approx(6e-9 * weights)


def test_made_up_corpus_has_the_lengths_it_says():
    source, target = ([len(line.split()) for line in side] for side in corpus.made_up_text(5000))
    for lengths, mean, deviation in zip((source, target), corpus.MEANS, corpus.DEVIATIONS, strict=True):
        assert np.mean(lengths) == pytest.approx(mean, rel=0.02)
        assert np.std(lengths) == pytest.approx(deviation, rel=0.05)
    assert np.corrcoef(source, target)[0, 1] == pytest.approx(corpus.CORRELATION, abs=0.03)
    assert corpus.made_up_text(5) == corpus.made_up_text(5)
