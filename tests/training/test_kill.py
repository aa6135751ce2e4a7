"""Training that is killed with SIGKILL, again and again, ends bit by bit like training that was left alone.

KILLS=20 python -m pytest -m slow tests/training/test_kill.py      # more of them, a few minutes
"""

import os
import random
import signal
from pathlib import Path

import pytest
import torch
import yaml
from new_process import run_script

from vanilla_transformer_hf.training.run import run_job


KILLS = int(os.environ.get("KILLS", "2"))
TRAIN = Path(__file__).parents[2] / "scripts" / "train.py"

# python victim.py PLACE COUNT train.py ARGUMENTS: runs train.py and kills itself when PLACE is called the
# COUNT-th time; for "time", COUNT milliseconds after the first step has begun.
VICTIM = """
import os, pathlib, runpy, shutil, signal, sys, threading
import safetensors.torch, torch
from vanilla_transformer_hf.training.checkpoints import averaging, files
from vanilla_transformer_hf.training.trainer import translation

place, count, calls = sys.argv[1], int(sys.argv[2]), [0]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)

def half_written(save):
    def cut(what, path, *args, **kwargs):
        save(what, path, *args, **kwargs)
        os.truncate(path, os.path.getsize(path) // 2)
        die()
    return cut

def deadly(function, last):
    def called(*args, **kwargs):
        calls[0] += 1
        if place == "time" and calls[0] == 1:
            threading.Timer(count / 1000, die).start()
        return (last if place != "time" and calls[0] == count else function)(*args, **kwargs)
    return called

killed = lambda *args, **kwargs: die()
for owner, name, last in {
    "step": [(translation.TranslationTrainer, "training_step", killed)],
    "time": [(translation.TranslationTrainer, "training_step", killed)],
    "update": [(torch.optim.AdamW, "step", killed)],
    "evaluation": [(translation.TranslationTrainer, "prediction_step", killed)],
    "file": [
        (torch, "save", half_written(torch.save)),
        (averaging, "save_file", half_written(averaging.save_file)),
    ],
    "flush": [(os, "fsync", killed)],
    "name": [(pathlib.Path, "rename", killed)],
    "deletion": [(files.shutil, "rmtree", killed)],
}[place]:
    setattr(owner, name, deadly(getattr(owner, name), last))
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Place -> between which counts it is drawn. A checkpoint is five files and has more to flush; the first two counts are
# for the suite, one while a checkpoint is written and one in an evaluation.
PLACES = {
    **{"file": (11, 15), "evaluation": (2, 3), "step": (3, 12), "time": (100, 900), "flush": (1, 40), "name": (2, 3)},
    **{"update": (3, 8), "deletion": (3, 8)},
}


def fields_of_denoising(folder):
    """What a run on the text of `prepare` has in the place of pairs."""
    roles = ("train", "validation", "test")
    fields = {f"{role}_text": [str(folder / f"{role}.source"), str(folder / f"{role}.target")] for role in roles}
    fields |= {f"{role}_{side}": None for role in roles for side in ("source", "target")}
    return fields | {"task": "denoising", "bpe_dropout": None, "metric_for_best_model": None}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["translation", "denoising"])
def test_a_run_that_is_killed_ends_like_one_that_was_not(task, prepare, tmp_path):
    settings = {
        **{"max_steps": 10 + 5 * KILLS, "dropout": 0.1, "bpe_dropout": 0.2, "moving_average": 0.9, "eval_steps": 3},
        **{"save_steps": 2, "save_total_limit": 2, "load_best_model_at_end": False},
    }
    settings |= fields_of_denoising(tmp_path) if task == "denoising" else {}
    whole = prepare(output_dir=str(tmp_path / "whole"), **settings)
    run_job(whole)
    recipe = tmp_path / "killed.yaml"
    recipe.write_text((tmp_path / "recipe.yaml").read_text().replace(str(tmp_path / "whole"), str(tmp_path / "out")))
    (tmp_path / "victim.py").write_text(VICTIM)
    environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # another number adds in another order

    def train(*prefix):
        return run_script(*prefix, str(TRAIN), str(recipe), environment=environment)

    draw = random.Random(0)
    for kill in range(KILLS):
        place = list(PLACES)[kill % len(PLACES)]
        count = draw.randint(*PLACES[place])
        done = train(str(tmp_path / "victim.py"), place, str(count))
        assert done.returncode == -signal.SIGKILL, f"{place} {count}: {done.returncode}, {done.stderr[-2000:]}"
        print(f"killed in {place} {count}:", (done.stdout.strip().splitlines() or ["before a word"])[-1])
    done = train()
    assert done.returncode == 0, done.stderr
    assert "continuing from" in done.stdout, "something was left to continue from"
    for name in ("model.safetensors", *(["predictions.test.tsv"] if task == "translation" else [])):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    states = [
        yaml.safe_load(
            (tmp_path / run / "checkpoints" / f"checkpoint-{settings['max_steps']}" / "trainer_state.json").read_text()
        )
        for run in ("out", "whole")
    ]
    losses = [[entry.get("loss", entry.get("eval_loss")) for entry in state["log_history"]] for state in states]
    assert losses[0] == losses[1]
