"""Threads of a run: as the user says, or as many as cores are idle, on machines that are made up."""

import pytest
import torch

from vanilla_transformer_hf.common.machine import Machine
from vanilla_transformer_hf.training import process
from vanilla_transformer_hf.training.recipe import TranslationTrainingArguments


@pytest.fixture(autouse=True)
def found(monkeypatch):
    """A machine with four cores, of which another program uses one; the threads that torch has been told."""
    threads = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(process, "look", lambda device: Machine(cores=4, idle=2.9, memory=0, accelerators=0))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return threads


def arguments(tmp_path, **fields):
    return TranslationTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **fields)


@pytest.mark.parametrize(
    ("given", "set_to", "printed"),
    [
        ("2", [2], ""),
        ("auto", [3], "threads: 3 (2.9 cores are idle, 4 allowed).\n"),
        (
            None,
            [],
            "Warning: 4 threads, but 2.9 idle cores: those that other programs keep from a core are waited for in "
            "every step. --threads auto would take 3.\n",
        ),
    ],
)
def test_threads_beside_another_program(tmp_path, found, capsys, given, set_to, printed):
    process.use_threads(arguments(tmp_path, threads=given))
    assert found == set_to
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("case", ["idle", "environment", "one thread", "several processes"])
def test_nothing_is_said_of_threads_that_are_decided_or_have_cores(tmp_path, monkeypatch, found, capsys, case):
    if case == "idle":
        monkeypatch.setattr(process, "look", lambda device: Machine(cores=4, idle=3.8, memory=0, accelerators=0))
    else:
        monkeypatch.setattr(process, "look", lambda device: pytest.fail("looked"))
    if case == "environment":
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
    if case == "one thread":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    if case == "several processes":
        monkeypatch.setattr(TranslationTrainingArguments, "world_size", 2)
    process.use_threads(arguments(tmp_path))
    assert not found and not capsys.readouterr().out


def test_several_processes_do_not_count_the_same_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(TranslationTrainingArguments, "world_size", 2)
    with pytest.raises(ValueError, match="threads=auto with 2 processes: each would count the same idle cores"):
        arguments(tmp_path, threads="auto")


def test_a_run_computes_with_its_threads_and_may_be_continued_with_others(prepare, found):
    settings = {"max_steps": 2, "save_steps": 2, "eval_steps": 2}
    prepare(**settings, threads=2).trainer.train()
    assert prepare(**settings, threads=3).checkpoint is not None
    assert found == [2, 3]
