"""How many processes and threads share the lines: with numbers of cores, load and memory that are made up."""

from argparse import Namespace

import pytest
import torch

from vanilla_transformer_hf.common.machine import Machine
from vanilla_transformer_hf.translation.streams import sharing
from vanilla_transformer_hf.translation.streams.sharing import (
    bytes_of_weights,
    choose,
    shared,
    sharing_of,
    worth_starting,
)


GIB = 2**30
QUIET = Machine(cores=8, idle=7.9, memory=64 * GIB, accelerators=0)
MANY = 100_000


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((1, 10**6, None), 1),
        ((2, 1_000, None), 1),  # one window: the second would have nothing to do
        ((2, 8 * 2048 - 1, None), 1),
        ((2, 8 * 2048, None), 2),  # four windows each
        ((4, 9 * 2048, None), 2),
        ((4, 100_000, None), 4),
        ((2, None, None), 2),  # a pipe
        ((2, 0, None), 1),
        ((2, 9, 4), 2),
        ((2, 4, 4), 1),
        ((2, 10, 1), 2),
        ((2, 10, 0), 2),  # refused later
    ],
)
def test_as_many_processes_as_are_worth_their_start_share_the_lines(given, found):
    assert worth_starting(*given) == found


@pytest.mark.parametrize(
    ("cores", "idle", "found"),
    [
        (2, 2.0, 2),
        (2, 1.6, 2),
        (2, 1.4, 1),  # two threads would wait for each other while another program has the second core
        (2, 0.0, 1),
        (64, 20.2, 20),
        (2, 60.0, 2),  # a container with two cores of a large machine
    ],
)
def test_threads_are_the_idle_cores_that_may_be_used(cores, idle, found):
    assert QUIET._replace(cores=cores, idle=idle).free_cores == found
    chosen = choose(1, "auto", MANY, None, QUIET._replace(cores=cores, idle=idle), 0)
    assert (chosen.processes, chosen.threads) == (1, found)
    assert chosen.note.endswith(f", threads: {found} ({idle:.1f} cores are idle, {cores} allowed)")


@pytest.mark.parametrize(
    ("machine", "threads", "lines", "window", "weights", "found", "why"),
    [
        ({}, 8, MANY, None, 0, 8, "more have no thread"),
        ({}, 3, MANY, None, 0, 3, "more have no thread"),
        ({"idle": 2.1}, 8, MANY, None, 0, 2, "more have no idle core"),
        ({"idle": 0.2}, 8, MANY, None, 0, 1, "more have no idle core"),
        ({}, 8, 16_383, None, 0, 1, "more have too few lines"),
        ({}, 8, 16_384, None, 0, 2, "more have too few lines"),
        ({}, 8, 1, None, 0, 1, "more have too few lines"),
        ({}, 8, 1_000, 1, 0, 1, "more have too few lines"),  # many small windows are no more work
        ({}, 8, 80_000, 10_000, 0, 2, "more have too few lines"),  # large ones could not be shared out equally
        ({"memory": 3 * GIB}, 8, MANY, None, 0, 3, "more have no memory"),
        ({"memory": 15 * GIB}, 8, MANY, None, 2 * GIB, 2, "more have no memory"),
        ({"memory": 0}, 8, MANY, None, 0, 1, "more have no memory"),
        ({"accelerators": 1}, 8, MANY, None, 0, 1, "more have no accelerator"),
        ({"accelerators": 4, "idle": 0.0}, 1, MANY, None, 0, 4, "more have no accelerator"),
        ({}, 8, None, None, 0, 1, "the number of lines is not known"),
        ({}, 8, MANY, None, None, 1, "the size of the model is not known yet"),
    ],
)
def test_processes_are_as_many_as_everything_allows(machine, threads, lines, window, weights, found, why):
    chosen = choose("auto", threads, lines, window, QUIET._replace(**machine), weights)
    assert (chosen.processes, chosen.threads) == (found, threads)
    assert chosen.note == f"processes: {found} ({why}), threads: {threads} (as given)"


def test_both_together():
    found = choose("auto", "auto", MANY, None, QUIET._replace(cores=2, idle=1.0), 0)
    assert found[:2] == (1, 1), "one thread where another program computes, so one process"
    assert choose("auto", "auto", MANY, None, QUIET, 0)[:2] == (8, 8)


def test_numbers_are_taken_as_they_are_without_a_look_at_the_machine(monkeypatch):
    monkeypatch.setattr(sharing, "look", None)
    given = Namespace(processes=2, threads=None, window=None, device=None)
    note = "1 of 2 processes: more are not worth their start"
    assert sharing_of(given, 9) == (1, torch.get_num_threads(), note)
    assert sharing_of(Namespace(**{**vars(given), "threads": 3}), MANY) == (2, 3, "")
    for name in ("processes", "threads"):
        with pytest.raises(ValueError, match=f"{name}=0: must be at least 1"):
            sharing_of(Namespace(**{**vars(given), name: 0}), 9)


def test_size_of_models(tmp_path, monkeypatch):
    for name, size in (("one", 3), ("two", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x" * size)
        (tmp_path / name / "config.json").write_text("{}")
    folders = [str(tmp_path / name) for name in ("one", "two")]
    assert bytes_of_weights(folders) == 7
    assert bytes_of_weights([*folders, "someone/model-of-the-hub"]) is None
    cached = str(tmp_path / "one" / "config.json")
    monkeypatch.setattr(sharing, "try_to_load_from_cache", lambda name, file: cached)
    assert bytes_of_weights(["someone/model-of-the-hub"]) == 3


def test_threads_are_those_from_before_afterwards():
    before = torch.get_num_threads()
    given = Namespace(processes=1, threads=before + 1, window=None, device=None)
    with pytest.raises(OSError), shared(given, 9):
        assert torch.get_num_threads() == before + 1
        raise OSError
    assert torch.get_num_threads() == before
