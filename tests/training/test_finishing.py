"""What follows the last step of a run costs no model: failures, signals and kills in scores, card, curves, upload."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from new_process import run_script
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vanilla_transformer_hf.common.checksums import verify_folder
from vanilla_transformer_hf.evaluation import Scores
from vanilla_transformer_hf.publishing.model_card import CardFacts
from vanilla_transformer_hf.training import finishing
from vanilla_transformer_hf.training.checkpoints import averaging
from vanilla_transformer_hf.training.checkpoints.files import TrainingInterrupted
from vanilla_transformer_hf.training.finishing import UnfinishedRunError
from vanilla_transformer_hf.training.run import run_job
from vanilla_transformer_hf.training.trainer.translation import TranslationTrainer


TRAIN = Path(__file__).parents[2] / "scripts" / "train.py"
SHORT = {"save_steps": 2, "eval_strategy": "no", "load_best_model_at_end": False, "metric_for_best_model": None}


def opens(folder):
    """Whether the model in a folder opens with its tokenizer, and the files agree with their checksums, if any."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    is_right = not (folder / "SHA256SUMS").exists() or not verify_folder(folder).wrong
    return is_right and model.generate(**tokenizer(["one two"], return_tensors="pt")).numel() > 0


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


def test_what_fails_behind_the_last_step_costs_no_model(prepare, monkeypatch, capsys):
    """Scores of one text, curves and card at once; the same command then makes what is missing, and that alone."""
    out, score = prepare.out, finishing.score_corpus
    scored = []

    def score_some(trainer, role, corpus):
        scored.append(role)
        assert (out / "model.safetensors").is_file() and (out / "tokenizer.json").is_file(), "written before"
        if role == "test" and len(scored) == 2:
            raise torch.OutOfMemoryError("no memory is left")
        return score(trainer, role, corpus)

    monkeypatch.setattr(finishing, "score_corpus", score_some)
    with monkeypatch.context() as patch:
        patch.setattr(TranslationTrainer, "plot_curves", failing(OSError("no space left")))
        patch.setattr(finishing, "write_card", failing(ValueError("no template")))
        with pytest.raises(UnfinishedRunError) as raised:
            run_job(prepare(**SHORT))
    told = str(raised.value)
    assert "\n" not in told and f"{out} is complete but was not given a model card: no template" in told
    assert "nor scored on the test text: OutOfMemoryError: no memory is left" in told
    assert "nor given its training curves: no space left" in told and "the same command continues" in told
    assert opens(out) and not (out / "README.md").exists()
    weights = (out / "model.safetensors").read_bytes()
    capsys.readouterr()
    parts = run_job(prepare(**SHORT))
    assert scored == ["validation", "test", "test"] and "measured before" in capsys.readouterr().out
    assert [(part.role, len(part.rows)) for part in parts] == [("validation", 6), ("test", 5)]
    assert (out / "model.safetensors").read_bytes() == weights and opens(out)
    assert [part.role for part in CardFacts.read(out).scored] == ["validation", "test"]
    assert {"README.md", "training_curves.png", "predictions.test.tsv"} <= set(verify_folder(out).right)
    run_job(prepare(**SHORT, max_steps=4, resume_from_checkpoint="last"))
    assert scored[3:] == ["validation", "test"], "of another model"


class FakeTrackio:
    """What transformers' callback calls of Trackio; `runs` are the names of what each run has logged."""

    __version__ = "0.0"

    def __init__(self):
        self.runs, self.config = [], {}
        self.context_vars = SimpleNamespace(current_space_id=SimpleNamespace(get=lambda: None))

    def init(self, **settings):
        self.config = type("Config", (dict,), {"update": lambda *_, **__: None})()
        self.runs.append(set())

    def log(self, metrics):
        self.runs[-1] |= metrics.keys()

    def finish(self):
        self.runs[-1].add("finished")


@pytest.mark.slow
def test_final_scores_belong_to_the_run_of_the_training_in_trackers(prepare, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trackio = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    monkeypatch.setattr("transformers.integrations.integration_utils.is_trackio_available", lambda: True)
    run_job(prepare(report_to=["tensorboard", "trackio"]))
    (logged,) = trackio.runs
    wanted = {"train/loss", "eval/bleu", "test/bleu", "test/chrf"}
    assert {*wanted, "finished"} <= logged
    (folder,) = (prepare.out / "checkpoints" / "runs").iterdir()
    (file,) = folder.iterdir()
    assert wanted <= set(accumulator.EventAccumulator(str(file)).Reload().Tags()["scalars"])


def test_an_upload_that_failed_is_made_by_the_same_command(prepare, monkeypatch):
    """A model is not published without what belongs to it."""
    uploads, score = [], finishing.score_corpus
    monkeypatch.setattr(TranslationTrainer, "upload", lambda *_: uploads.append(1) or failing(OSError("refused"))())

    def job():
        ready = prepare(**SHORT, test_source=None, test_target=None)
        ready.trainer.args.push_to_hub, ready.trainer.args.hub_strategy = True, "end"
        return ready

    with monkeypatch.context() as patch:
        patch.setattr(finishing, "score_corpus", failing(RuntimeError("no score")))
        with pytest.raises(UnfinishedRunError, match="not scored on the validation text: RuntimeError: no score"):
            run_job(job())
    assert not uploads
    calls = []
    monkeypatch.setattr(finishing, "score_corpus", lambda *parts: calls.append(parts[1]) or score(*parts))
    for _ in range(2):
        with pytest.raises(UnfinishedRunError, match="is complete but was not published: refused"):
            run_job(job())
    assert calls == ["validation"] and len(uploads) == 2 and opens(prepare.out)


@pytest.mark.slow
def test_an_average_that_cannot_be_made_leaves_the_checkpoints(prepare, monkeypatch):
    settings = {**SHORT, "average_last": 2, "save_steps": 1}
    with monkeypatch.context() as patch:
        patch.setattr(averaging, "mean_of", failing(ValueError("it is damaged.")))
        with pytest.raises(OSError, match=r"all 2 steps are done, and .*checkpoint-2 has .* it is damaged\. The same"):
            run_job(prepare(**settings))
    assert opens(prepare.out / "checkpoints" / "checkpoint-2")
    run_job(prepare(**settings))
    assert opens(prepare.out) and CardFacts.read(prepare.out).average_of == ["checkpoint-1", "checkpoint-2"]


@pytest.mark.parametrize(
    "owner, name", [(finishing, "score_corpus"), pytest.param(averaging, "load_average", marks=pytest.mark.slow)]
)
def test_a_signal_behind_the_last_step_ends_the_run_at_once(prepare, monkeypatch, owner, name):
    settings = {**SHORT, "average_last": 1, "test_source": None, "test_target": None}
    after, function = [], getattr(owner, name)

    def stopped(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        after.append(function(*args))

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stopped)
        with pytest.raises(TrainingInterrupted, match=r"stopped by SIGTERM after step 2; its (model|checkpoint) is"):
            run_job(prepare(**settings))
    assert not after and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert opens(prepare.out / "checkpoints" / "checkpoint-2")
    assert name != "score_corpus" or opens(prepare.out)
    run_job(prepare(**settings))
    assert opens(prepare.out)


# python victim.py PLACE COUNT train.py ARGUMENTS: runs train.py and kills itself at the COUNT-th call of PLACE.
VICTIM = """
import os, pathlib, runpy, signal, sys
from vanilla_transformer_hf.training import finishing
from vanilla_transformer_hf.training.trainer.translation import TranslationTrainer

place, count, calls, is_written = sys.argv[1], int(sys.argv[2]), [0], [False]
owner = {"score_corpus": finishing, "write_card": finishing, "plot_curves": TranslationTrainer, "fsync": os}[place]
function, write = getattr(owner, place), finishing.write_model

def deadly(*args, **kwargs):
    calls[0] += is_written[0]
    if calls[0] == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*args, **kwargs)

def write_model(*args, **kwargs):
    write(*args, **kwargs)
    is_written[0] = True

setattr(owner, place, deadly)
finishing.write_model = write_model
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_run_that_is_killed_behind_its_last_step_has_its_model(prepare, tmp_path):
    prepare(**SHORT)  # writes the recipe
    (tmp_path / "victim.py").write_text(VICTIM)
    environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def train(*prefix):
        return run_script(*prefix, str(TRAIN), str(tmp_path / "recipe.yaml"), environment=environment)

    for place, count in {"score_corpus": 2, "write_card": 2, "plot_curves": 1, "fsync": 9}.items():
        done = train(str(tmp_path / "victim.py"), place, str(count))
        assert done.returncode == -signal.SIGKILL, f"{place}: {done.stderr[-2000:]}"
        assert opens(prepare.out), place
    done = train()
    assert done.returncode == 0 and "is kept, because it was edited" not in done.stdout, done.stderr
    assert "measured before" in done.stdout
    assert {"README.md", "training_curves.png", "predictions.test.tsv"} <= set(verify_folder(prepare.out).right)


def test_a_loss_that_is_not_printed_is_not_called_forgetting(capsys):
    def of(bleu, chrf):
        return SimpleNamespace(role="validation", scores=Scores(bleu, chrf, 0.0, "", "", 9))

    trainer = SimpleNamespace(args=SimpleNamespace(process_index=0))
    finishing.say_changes(trainer, [of(30.001, 50.0)], [of(29.999, 49.5)])
    finishing.say_changes(trainer, [of(30.01, 50.0)], [of(29.99, 50.0)])
    same, less = capsys.readouterr().out.splitlines()
    assert same == "validation: BLEU 30.00 before, 30.00 after (+0.00), chrF 50.00 before, 49.50 after (-0.50)."
    assert less.endswith(
        "BLEU 30.01 before, 29.99 after (-0.02), chrF 50.00 before, 50.00 after (+0.00). The model has "
        "forgotten some of it."
    )
