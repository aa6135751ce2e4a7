"""scripts/average_checkpoints.py, run as its users do."""

import json
from functools import partial

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM


@pytest.fixture
def run(tmp_path, tiny_model, monkeypatch, script):
    for step, bleu in ((1, 9.0), (2, 1.0), (3, 8.0)):
        folder = tmp_path / "run" / "checkpoints" / f"checkpoint-{step}"
        model = tiny_model()
        with torch.no_grad():
            model.lm_head.weight.fill_(step)
        model.save_pretrained(folder)
        log = [{"step": step, "eval_bleu": bleu}]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    monkeypatch.chdir(tmp_path)
    return partial(script, "average_checkpoints.py")


@pytest.mark.parametrize(
    "choice, mean",
    [
        (["run", "--last", "2"], 2.5),
        (["run", "--best", "2"], 2.0),
        (["run/checkpoints/checkpoint-1", "run/checkpoints/checkpoint-2"], 1.5),
    ],
)
def test_averages_what_is_chosen(run, tmp_path, choice, mean):
    code, out, _ = run(*choice, "--output", "out/average")
    assert code == 0
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out" / "average").lm_head.weight.unique() == mean
    origin, saved = out.splitlines()
    assert origin.startswith("average of run/checkpoints/checkpoint-") and origin.count("checkpoint-") == 2
    assert saved == "saved in out/average"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run", "--last", "4"], "run: 3 checkpoints, but 4 are to be averaged."),
        (["run"], "run is a single folder: expected two or more checkpoints, or --last or --best."),
        (["run", "run", "--last", "2"], "2 folders with --last or --best: expected one output_dir."),
        (["run", "missing"], "run/config.json: no such file; is run a checkpoint?"),
        (["missing", "--best", "1"], "missing: no such folder."),
    ],
)
def test_problems_are_one_line(run, tmp_path, arguments, message):
    code, _, err = run(*arguments, "--output", "out")
    assert (code, err) == (2, f"average_checkpoints.py: {message}\n")
    assert not (tmp_path / "out").exists()


def test_the_help_shows_examples(run):
    code, out, _ = run("--help")
    assert code == 0 and out.count("vanilla-transformer average ") == 3
