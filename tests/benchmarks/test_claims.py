"""`python -m benchmarks claims`, with budgets in which nothing is learned."""

import argparse
import json

import pytest
import torch

from benchmarks import claims, claims_training
from benchmarks.claims_picture import draw_lines, panels, table_of_training
from benchmarks.claims_training import PAD, draw_batch


def parsed(*argv):
    parser = argparse.ArgumentParser()
    claims.add_arguments(parser)
    sizes = "--seeds 1 --d_k 8 16 --lengths 8 16 --widths 64 128 --chain_lengths 4 8 --distances 1 8 --batches 2 4"
    sizes += " --speed_lengths 4 8 --speed_widths 8 --rounds 1"
    return parser.parse_args([*argv, *sizes.split(), "--steps", "2", "--sentences", "3", "--warmup", "1"])


def test_digits_are_written_backwards():
    batch = draw_batch(50, (2, 5), torch.Generator().manual_seed(1))
    assert batch["input_ids"].shape == batch["labels"].shape
    for source, mask, labels in zip(*(batch[name].tolist() for name in ("input_ids", "attention_mask", "labels"))):
        size = sum(mask) - 1
        assert 2 <= size <= 5 and source[size] == labels[size] == 1
        assert source[:size] == labels[:size][::-1] and min(source[:size]) >= 3
        assert set(source[size + 1 :]) <= {PAD} and set(labels[size + 1 :]) <= {-100}


def test_each_line_of_a_picture_is_drawn():
    _, (axes,) = panels(1, ["twelve systems"])
    draw_lines(axes, [{"pairs": 1000, "bleu": n, "system": n} for n in range(12)], "pairs", "bleu", "system")
    assert axes.get_legend_handles_labels()[1] == [str(n) for n in range(12)]


@pytest.fixture(autouse=True)
def few_sequences(monkeypatch):
    for module in (claims, claims_training):
        monkeypatch.setattr(module, "SENTENCES", 20)


@pytest.mark.slow
def test_every_claim_gives_rows_and_a_picture(tmp_path, capsys):
    runs, rows = tmp_path / "runs.jsonl", tmp_path / "rows.json"
    files = ["--runs", str(runs), "--pictures", str(tmp_path), "--json", str(rows)]
    only = ["base", "no_residual", "gru_bahdanau"]
    claims.run(parsed(*claims.CLAIMS, *files, "--only", *only))
    found = json.loads(rows.read_text())
    assert [row["variant"] for row in found["training"]] == only
    assert all(len(row["training_loss"]) == 2 and row["loss"] > 0 for row in found["training"])
    spread = {row["d_k"]: row["spread"] for row in found["scores"] if row["score"] == "dot"}
    assert spread[16] > spread[8] > 2
    operations = {(row["part"], row["n"]): row["operations"] for row in found["cost"] if row["over"] == "n"}
    assert operations["scores and sums", 16] == 4 * operations["scores and sums", 8] == 4 * 16 * 16 * 512
    assert operations["feed-forward", 16] == 2 * operations["feed-forward", 8] == 16 * 16 * 512**2
    times = {(row["what"], row["size"], row["call"]): row for row in found["speed"]}
    assert {what for what, _, _ in times} == {"scores", "heads", "Transformer", "LSTM", "norm", "layer with it"}
    one = times["Transformer", 8, "in one pass"]
    assert one["ratio"] == 1 and times["Transformer", 8, "token by token"]["ratio"] > 2
    assert times["norm", 8, "rms"]["milliseconds"] < times["layer with it", 8, "rms"]["milliseconds"]
    chain = {(row["model"], row["n"]): row["chain"] for row in found["chain"]}
    assert chain["transformer", 8] == chain["transformer", 4]
    assert chain["lstm", 8] > chain["lstm", 4] + 4
    gradients = {(row["network"], row["distance"]): row["gradient"] for row in found["distance"]}
    assert gradients["RNN", 8] < gradients["LSTM, forget bias 1", 8] and gradients["Transformer", 8] > 0.5
    assert gradients["RNN", 8] < 0.1 * gradients["RNN", 1] == 0.1
    assert [row["batch"] for row in found["statistics"]] == [None, 2, 4]
    for name in claims.CLAIMS:
        assert (tmp_path / f"claims_{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "| `base` | 1 | 232,768 | " in table_of_training(found["training"])
    assert "| `base` | 1 | 232,768 | " in capsys.readouterr().out


def test_finished_runs_are_not_repeated(tmp_path):
    runs = tmp_path / "runs.jsonl"
    arguments = ["training", "--runs", str(runs), "--only", "base"]
    claims.run(parsed(*arguments))
    before = runs.read_bytes()
    claims.run(parsed(*arguments))
    assert runs.read_bytes() == before
    more = parsed(*arguments)
    more.steps = 3
    with pytest.raises(ValueError, match="runs with other settings than"):
        claims.run(more)
    with pytest.raises(ValueError, match="--only bse: expected some of base"):
        claims.run(parsed(*arguments[:3], "--only", "bse"))
    with pytest.raises(ValueError, match="training: give --runs"):
        claims.run(parsed("training"))
