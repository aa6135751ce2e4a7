"""The command line of `train`, as scripts/train.py and as `vanilla-transformer train`."""

import os
import signal
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from benchmarks.training import SCRIPT_ENVIRONMENT
from vanilla_transformer_hf.commands.train import RECIPES, find_recipe
from vanilla_transformer_hf.commands.train import train as train_command
from vanilla_transformer_hf.training import run
from vanilla_transformer_hf.training.checkpoints.files import EvaluationStopped, TrainingInterrupted


pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.fixture
def train(script):
    """`train(*argv)`: exit code, output and error output of the script."""
    return partial(script, "train.py")


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["quickstart", "--dropout", "0.1", "--help"]])
def test_help_shows_examples_and_the_options_of_most_runs(train, argv):
    code, out, err = train(*argv)
    assert (code, err) == (0, "")
    for text in ("vanilla-transformer train multi30k_raw", "\nmodel:\n", "\ncontinuing:\n", "recipes: african_news, "):
        assert text in out
    for option in ("--train_source", "--preset", "--d_model", "--bf16", "--unset", "--help-all"):
        assert f"  {option} " in out
    assert out.count("\n  --") < 40 and "--lsh_rounds" not in out


@pytest.mark.parametrize("argv", [["--help-all"], ["quickstart", "--help_all", "--help"]])
def test_help_all_shows_every_option(train, argv):
    code, out, err = train(*argv)
    assert (code, err) == (0, "") and out.count("\n  --") > 240
    assert "rounds of lsh attention" in " ".join(out.split())
    assert all(f"  {option} " in out for option in ("--d_model", "--lsh_rounds", "--cell_type", "--fsdp", "--unset"))


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--train_source", "missing.en", "--train_target", "missing.de"], "train.py: missing.en: no such file."),
        (["--dropout", "1.5"], "dropout=1.5: must be at least 0 and less than 1"),
        (["--separate_vocabularies"], "embedding_sharing='all' with source_vocab_size"),
        (["--preset", "bsae"], "no preset is called 'bsae' (did you mean 'base'?)"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(train, tmp_path, argv, message):
    for side in ("en", "de"):
        (tmp_path / f"a.{side}").write_text("one\n")
    files = ["--train_source", tmp_path / "a.en", "--train_target", tmp_path / "a.de"]
    code, _, _ = train(*files, "--output_dir", tmp_path / "out", *argv)
    assert code.startswith("train.py: ") and message in code and "\n" not in code
    assert not (tmp_path / "out").exists(), "nothing is left behind"


def test_a_recipe_is_found_by_name_and_by_path(train, tmp_path, monkeypatch):
    assert find_recipe("multi30k_tiny") == str(RECIPES["multi30k_tiny"])
    (tmp_path / "multi30k_tiny").write_text("max_steps: 1\n")
    (tmp_path / "paper_base").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_recipe("multi30k_tiny") == "multi30k_tiny", "a file of this name comes first"
    assert find_recipe("paper_base") == str(RECIPES["paper_base"]), "a folder is not a recipe"
    code, _, err = train("quikstart", "--max_steps", "1")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("train.py: 'quikstart' is neither a file nor the name of a recipe (did you mean 'quick")
    assert all(name in err for name in RECIPES)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the kernel says which memory has large pages")
def test_large_tensors_lie_in_large_pages():
    """torch reads the variable once, at its first tensor: nothing that is imported before may make one."""
    code = """
import torch, vanilla_transformer_hf.commands.train
tensor = torch.ones(2**24)
address = tensor.data_ptr()
for line in open("/proc/self/smaps"):
    name, _, rest = line.partition(" ")
    if "-" in name:
        begin, end = (int(part, 16) for part in name.split("-"))
    elif name == "VmFlags:" and begin <= address < end:
        print("hg" in rest.split())
"""
    environment = {name: value for name, value in os.environ.items() if name not in SCRIPT_ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_ctrl_c_before_the_first_step_ends_without_a_traceback(train, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("vanilla_transformer_hf.training.tasks.text_to_text.tokenize", interrupted)
    for side in ("en", "de"):
        (tmp_path / f"a.{side}").write_text("one\ntwo\n")
    files = ["--train_source", tmp_path / "a.en", "--train_target", tmp_path / "a.de"]
    sizes = ["--vocab_size", 270, "--d_model", 32, "--encoder_attention_heads", 2, "--decoder_attention_heads", 2]
    code, _, err = train(*files, *sizes, "--output_dir", tmp_path / "out", "--tokens_per_step", 2000)
    assert code == 130 and "Traceback" not in err


def test_a_run_that_is_stopped_in_an_evaluation_frees_its_trainer(monkeypatch):
    """Its exception was raised while another one was handled, whose frames have the trainer, too."""
    job = SimpleNamespace(trainer=Mock())
    kept = weakref.ref(job.trainer)

    def evaluate(trainer):
        raise EvaluationStopped

    def run_job(job):
        try:
            evaluate(job.trainer)
        except EvaluationStopped as error:
            raise TrainingInterrupted(signal.SIGTERM, step=3) from error

    jobs = [job]
    del job
    monkeypatch.setattr(run, "prepare_job", lambda *_: jobs.pop())
    monkeypatch.setattr(run, "run_job", run_job)
    with pytest.raises(SystemExit) as stop:
        train_command("train", Mock(), {})
    assert stop.value.code == 128 + signal.SIGTERM and kept() is None
