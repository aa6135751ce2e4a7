"""A run that is watched: its log and its checkpoints as they appear, are removed, are damaged, and begin anew."""

import json
import shutil
import threading

import pytest
import torch
from counting_model import SIZES

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.common.opening import open_tokenizer
from vanilla_transformer_hf.explorer import watching
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.requests import RequestError
from vanilla_transformer_hf.explorer.results import from_json
from vanilla_transformer_hf.explorer.subject import Pass
from vanilla_transformer_hf.explorer.watching import Watched


TEXT, TRANSLATION = "three one five", "fünf eins drei"


def log_of(step):
    log = [{"step": one, "loss": 5 / one, "learning_rate": 1.0} for one in range(1, step + 1)]
    log += [{"step": one, "eval_loss": 4 / one, "eval_bleu": 25.0 * one} for one in range(2, step + 1, 2)]
    return json.dumps({"global_step": step, "max_steps": 4, "log_history": log})


@pytest.fixture
def run(tmp_path, counting_folder):
    """`run(step)`: a run saves a checkpoint; that of step 4 is trained, the others are not."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)

    def save(step):
        folder = tmp_path / "run" / "checkpoints" / f"checkpoint-{step}"
        shutil.copytree(counting_folder, folder, dirs_exist_ok=True)
        if step != 4:
            size = len(open_tokenizer(counting_folder))
            VanillaTransformerForConditionalGeneration(
                VanillaTransformerConfig(vocab_size=size, **SIZES)
            ).save_pretrained(folder)
        (folder / "trainer_state.json").write_text(log_of(step))
        return folder

    return save


@pytest.fixture
def watched(tmp_path, run):
    explorer = Explorer([])
    explorer.watched = Watched(explorer, tmp_path / "run")
    return explorer.watched


def moment(watched, step, text=TEXT):
    return watched.explorer.answer("moment", {"step": step, "text": text})


def test_the_curves_grow_before_the_first_checkpoint(watched, tmp_path):
    watched.look()
    found = watched.explorer.answer("run", {})
    assert (found["step"], found["steps"], found["curves"], found["checkpoints"]) == (0, 0, {}, [])
    (tmp_path / "run" / "checkpoints" / "trainer_state.json").write_text(log_of(2))
    watched.look()
    found = watched.explorer.answer("run", {})
    assert (found["name"], found["step"], found["steps"], found["problem"]) == ("run", 2, 4, "")
    assert found["curves"] == {"loss": [[1, 5.0], [2, 2.5]], "eval_loss": [[2, 2.0]], "eval_bleu": [[2, 50.0]]}
    assert watched.explorer.answer("models", {}) == []
    with pytest.raises(RequestError, match="none is open: the run has no checkpoint yet"):
        watched.explorer.answer("translate", {"text": TEXT})


def test_each_checkpoint_translates_the_sentence_once_and_keeps_it_when_it_is_removed(watched, run, monkeypatch):
    first = run(2)
    watched.look()
    early = moment(watched, 2)
    shutil.rmtree(first)
    run(4)
    watched.look()
    assert watched.explorer.answer("run", {})["checkpoints"] == [2, 4]
    assert [one["name"] for one in watched.explorer.answer("models", {})] == ["checkpoint-4", "checkpoint-2"]
    late = moment(watched, 4)
    assert late["text"] == TRANSLATION != early["text"] and late["model"] == "checkpoint-4"
    assert moment(watched, 2) == early
    # Another sentence: the weights of the removed one are still there.
    assert moment(watched, 2, "two")["rows"][0]["special"]
    # They are the attention of the view of that name, heads taken together.
    pair = {"model": "checkpoint-4", "text": TEXT}
    ids = watched.explorer.answer("translate", pair)["hypotheses"][0]["ids"]
    found = watched.explorer.answer("attention", {**pair, "target_ids": ids})
    mean = from_json(found["weights"]).mean(dim=0)
    assert found["rows"] == late["rows"] and (from_json(late["weights"])[0] - mean).abs().max() < 1e-6
    # A checkpoint that appears has translated the sentence that was asked for last before the page asks for it.
    asked = []
    monkeypatch.setattr(watching, "translate", lambda *_: asked.append(1))
    assert moment(watched, 4)["text"] == TRANSLATION and asked == []


def test_the_layer_that_is_shown_first_is_the_one_whose_rows_differ(watched, run, monkeypatch):
    even, at_the_end, apart = torch.full((6, 6), 1 / 6), torch.eye(6)[[5] * 6], torch.eye(6)
    monkeypatch.setattr(
        Pass, "attentions", lambda *_: [each.expand(1, 4, -1, -1) for each in (even, at_the_end, apart)]
    )
    run(4)
    watched.look()
    assert moment(watched, 4)["layer"] == 2


def test_of_many_weights_the_newest_stay_and_what_was_translated_does(watched, run, monkeypatch):
    monkeypatch.setattr(watching, "MOST_WEIGHTS", 1)
    run(2)
    watched.look()
    early = moment(watched, 2)
    run(4)
    watched.look()
    assert [*watched.explorer.subjects] == ["checkpoint-4"] and moment(watched, 2) == early
    with pytest.raises(RequestError, match="checkpoint 2 is no longer there") as caught:
        moment(watched, 2, "two")
    assert (caught.value.code, caught.value.values) == ("removed", {"step": 2})
    with pytest.raises(RequestError, match="has 401 tokens"):
        moment(watched, 4, "five " * 400)


def test_a_checkpoint_is_read_when_it_is_whole_and_a_damaged_one_is_named(watched, run):
    folder = run(2)
    (folder / "trainer_state.json").rename(folder / "later")
    watched.look()
    assert watched.explorer.answer("run", {})["checkpoints"] == []
    (folder / "later").rename(folder / "trainer_state.json")
    watched.look()
    assert watched.explorer.answer("run", {})["checkpoints"] == [2]
    broken = run(3)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    (broken / "trainer_state.json").write_text("{")
    watched.look()
    found = watched.explorer.answer("run", {})
    assert found["checkpoints"] == [2] and found["step"] == 2  # the log of the one before
    assert "checkpoint-3 cannot be shown" in found["problem"] and "\n" not in found["problem"]
    assert "trainer_state.json cannot be read as JSON" in found["problem"]


def test_a_run_that_begins_anew_forgets_what_came_later(watched, run):
    for step in (2, 4):
        run(step)
    watched.look()
    assert moment(watched, 4)["text"] == TRANSLATION
    shutil.rmtree(watched.folder / "checkpoint-4")
    shutil.rmtree(watched.folder / "checkpoint-2")
    run(2)
    watched.look()
    assert watched.explorer.answer("run", {})["checkpoints"] == [2]
    assert [*watched.explorer.subjects] == ["checkpoint-2"]
    with pytest.raises(RequestError, match="checkpoint 4 is no longer there"):
        moment(watched, 4)


def test_no_run_is_watched(opened_translator):
    explorer = Explorer([])
    assert explorer.answer("run", {}) is None
    with pytest.raises(RequestError, match="no run is watched: start the explorer with --watch"):
        explorer.answer("moment", {"step": 1, "text": TEXT})


def test_the_command_refuses_what_it_cannot_watch(tmp_path, run, capsys, counting_folder):
    def refused(*arguments):
        with pytest.raises(SystemExit):
            main(["explore", *arguments])
        return capsys.readouterr().err

    assert "name a model, or --watch the output_dir of a training" in refused()
    for folder in (tmp_path / "nothing", counting_folder):
        assert f"{folder} is not the folder of a training" in refused("--watch", str(folder))
    html = ("--html", "page.html", "--text", TEXT, counting_folder)
    assert "--html serves nothing: leave out --watch" in refused("--watch", str(tmp_path / "run"), *html)
    folder = run(2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "recurrent_seq2seq"}))
    assert "checkpoint-2 cannot be shown" in refused("--watch", str(tmp_path / "run"))


def test_the_server_looks_by_itself(watched, run):
    threading.Thread(target=watched.keep_looking, args=(0.01,), daemon=True).start()
    run(4)
    waiting = threading.Event()
    for _ in range(1000):
        if watched.explorer.answer("run", {})["checkpoints"]:
            break
        waiting.wait(0.02)
    assert moment(watched, 4)["text"] == TRANSLATION
