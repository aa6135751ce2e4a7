"""What a run computes on: processes, threads, library of float32 products; and what it prints, once for all."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import datasets
import torch
from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments
from transformers.utils import logging

from ..common.command_line import AUTO
from ..common.machine import look
from ..common.matmul import TOLERANCE, choose_matmul, describe_matmul, known_speeds, probe_matmul
from .recipe import TranslationTrainingArguments


def say(training: TrainingArguments, text: str) -> None:
    """Print a line, once for all processes."""
    if training.process_index == 0:
        print(text, flush=True)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Show the progress bars of datasets only on terminals, and hide transformers' short ones for loading files."""
    had_bars = logging.is_progress_bar_enabled(), not datasets.are_progress_bars_disabled()
    logging.disable_progress_bar()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if had_bars[0]:
            logging.enable_progress_bar()
        if had_bars[1]:
            datasets.enable_progress_bars()


def use_threads(training: TranslationTrainingArguments) -> None:
    """Let torch compute with a run's threads, in the whole process; print what "auto" is, or that they are many."""
    wanted, threads = training.threads, torch.get_num_threads()
    if wanted not in (None, AUTO):
        torch.set_num_threads(int(str(wanted)))
        return
    is_decided = threads == 1 or "OMP_NUM_THREADS" in os.environ or training.world_size > 1
    if wanted is None and (is_decided or training.device.type != "cpu"):
        return
    machine = look("cpu")
    if wanted == AUTO:
        torch.set_num_threads(machine.free_cores)
        say(training, f"threads: {machine.free_cores} ({machine.idle:.1f} cores are idle, {machine.cores} allowed).")
    elif machine.free_cores < threads:
        say(
            training,
            f"Warning: {threads} threads, but {machine.idle:.1f} idle cores: those that other programs keep from a "
            f"core are waited for in every step. --threads auto would take {machine.free_cores}.",
        )


def of_main_process(value: Any) -> Any:
    """The main process's value in every process: others may not see its files, or may measure other speeds."""
    values = [value]
    broadcast_object_list(values)
    return values[0]


def find_matmul(training: TranslationTrainingArguments, before: str | None) -> Literal["default", "onednn"]:
    """The library of matrix products for a run on a CPU; "auto" keeps that of a continued run if it does not round."""
    rows = probe_matmul()
    is_kept = training.matmul == "auto" and before in {row.name for row in rows if row.error <= TOLERANCE}
    name = choose_matmul(str(before) if is_kept else training.matmul, rows)
    say(training, describe_matmul(name, rows))
    if training.bf16 and (speeds := known_speeds(name, "bfloat16"))["bfloat16"] < speeds[name]:
        known = f"{speeds[name]:.0f} to {speeds['bfloat16']:.0f} GFLOP/s"
        say(training, f"bf16: float32 is faster on this CPU, {known}: --bf16 false")
    return cast(Literal["default", "onednn"], name)
