"""Checkpoints that are whole or absent, and signals that stop a run."""

import json
import os
import signal
import threading

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from vanilla_transformer_hf.common.checksums import digest, read_checksums, write_checksums
from vanilla_transformer_hf.training.checkpoints.files import (
    UNFINISHED,
    StopOnSignal,
    TrainingInterrupted,
    checkpoints_in,
    find_damage,
    move_in,
    remove_surplus,
    resumable_files,
    step_of,
)


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(step, parent)`: a complete checkpoint of this step."""

    def checkpoint(step, parent=tmp_path):
        folder = parent / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text(f"weights of {step}")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        write_checksums(folder)
        return folder

    return checkpoint


def names(folder):
    return {path.name for path in folder.iterdir()} - {UNFINISHED}


def test_a_checkpoint_of_another_step_is_damaged(checkpoint, tmp_path):
    assert checkpoints_in(tmp_path / "nowhere") == {}
    folders = {step: checkpoint(step) for step in (9, 10, 200)}
    assert list(checkpoints_in(tmp_path).items()) == list(folders.items())
    (tmp_path / "checkpoint-200" / "trainer_state.json").write_text('{"global_st')
    assert "trainer_state.json is damaged" in find_damage(tmp_path / "checkpoint-200")
    (tmp_path / "checkpoint-10" / "trainer_state.json").unlink()
    assert find_damage(tmp_path / "checkpoint-10") == "trainer_state.json is missing"
    (tmp_path / "checkpoint-9").rename(tmp_path / "checkpoint-11")
    assert find_damage(tmp_path / "checkpoint-11") == "trainer_state.json is of another step"


def test_missing_and_damaged_files_are_found(checkpoint):
    folder = checkpoint(3)
    weights = folder / "model.safetensors"
    assert find_damage(folder) is None
    weights.write_bytes(weights.read_bytes().replace(b"3", b"4"))
    assert find_damage(folder) == "model.safetensors differs from its checksum"
    weights.unlink()
    assert find_damage(folder) == "model.safetensors is missing"
    (folder / "SHA256SUMS").write_text("no sum")
    assert "SHA256SUMS is damaged" in find_damage(folder)
    (folder / "SHA256SUMS").unlink()
    assert find_damage(folder) == "SHA256SUMS is missing"


def test_sums_of_what_is_published_are_those_of_what_is_published(checkpoint, tmp_path):
    folder = checkpoint(3)
    (folder / "training_args.bin").write_text("a token")
    write_checksums(folder)
    there = tmp_path / "there"
    there.mkdir()
    for name, content in resumable_files(folder, "last").items():
        data = content if isinstance(content, bytes) else content.read_bytes()
        (there / name.removeprefix("last/")).write_bytes(data)
    sums = read_checksums(there)
    assert sums.keys() == {"model.safetensors", "trainer_state.json"}
    assert all(digest(there / name) == value for name, value in sums.items())


def test_a_checkpoint_moves_in_whole_and_replaces_one_of_its_step(checkpoint, tmp_path):
    old = checkpoint(5)
    (old / "left over").write_text("")
    new = checkpoint(5, tmp_path / UNFINISHED)
    move_in(new, tmp_path)
    assert names(tmp_path) == {"checkpoint-5"}
    assert names(old) == {"model.safetensors", "trainer_state.json", "SHA256SUMS"}
    assert not list((tmp_path / UNFINISHED).iterdir())


@pytest.mark.parametrize(
    "limit, best, kept",
    [
        *((None, 1, {1, 2, 3, 4}), (2, None, {3, 4}), (2, 1, {1, 4}), (1, 1, {1, 4}), (3, 2, {2, 3, 4})),
        (9, 1, {1, 2, 3, 4}),
    ],
)
def test_the_oldest_go_first_and_never_the_newest_or_the_best(checkpoint, tmp_path, limit, best, kept):
    folders = {step: checkpoint(step) for step in (1, 2, 3, 4)}
    remove_surplus(tmp_path, limit, best and str(folders[best]))
    assert names(tmp_path) == {f"checkpoint-{step}" for step in kept}


@pytest.fixture
def arguments(tmp_path):
    return TrainingArguments(str(tmp_path), use_cpu=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_for_a_checkpoint_behind_the_step_and_then_stops(arguments, number, capsys):
    callback, state = StopOnSignal(), TrainerState(global_step=7, epoch=0.5)
    before = signal.getsignal(number)
    with callback.listening():
        control = TrainerControl()
        callback.on_step_end(arguments, state, control)
        callback.on_save(arguments, state, control)
        assert not control.should_save
        os.kill(os.getpid(), number)
        callback.on_step_end(arguments, state, control)
        assert control.should_save and number.name in capsys.readouterr().out
        with pytest.raises(TrainingInterrupted, match=f"stopped by {number.name} after step 7") as stop:
            callback.on_save(arguments, state, control)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)  # once more, at once
    assert stop.value.signal == number and signal.getsignal(number) == before


@pytest.mark.parametrize("place", ["on_epoch_end", "on_save"])
def test_processes_ask_each_other_wherever_they_could_part(arguments, place, monkeypatch):
    """One that alone knows of a signal would wait in a checkpoint for others that have gone on."""
    callback, asked = StopOnSignal(), []
    monkeypatch.setattr(callback, "received_by_any", lambda args: asked.append(place) or signal.SIGTERM)
    state, control = TrainerState(global_step=8, epoch=2.0), TrainerControl()
    if place == "on_save":
        with pytest.raises(TrainingInterrupted):
            callback.on_save(arguments, state, control)
    else:
        callback.on_epoch_end(arguments, state, control)
        assert control.should_save
    assert asked == [place]


def test_at_the_end_of_an_epoch_its_evaluation_comes_first(arguments):
    callback, state, control = StopOnSignal(), TrainerState(global_step=8, epoch=2.0), TrainerControl()
    callback.received = signal.SIGTERM
    callback.on_step_end(arguments, state, control)
    assert not control.should_save
    callback.on_epoch_end(arguments, state, control)
    assert control.should_save


def test_outside_the_main_thread_signals_are_left_alone():
    handlers = []

    def listen():
        with StopOnSignal().listening():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize("content", ["[]", "5", "null", "{}", '{"global_step": "5"}', "{"])
def test_a_state_of_another_form_is_named(content, tmp_path):
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(ValueError, match=r"trainer_state\.json (is damaged: expected|cannot be read as JSON)"):
        step_of(tmp_path)
