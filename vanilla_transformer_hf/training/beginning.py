"""The beginning of a run of a task other than translation: its folder is locked, and where it continues is found."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from .checkpoints.record import find_data_sums
from .checkpoints.resume import Start, find_start, lock_folder, prepare_folder
from .console import say
from .recipe import RunArguments


def begin_run(
    run: RunArguments, settings: dict[str, Any], checkpoints: Path
) -> tuple[Start, AbstractContextManager[Any]]:
    """
    Prepare the folder of a run's checkpoints, and say where the run continues.

    Returns:
        Where it begins, and a context that keeps other processes from training in the folder.

    Raises:
        OSError: Another process trains in the folder, or the folder cannot be written.
        ValueError: The folder belongs to another run.
    """
    sums = find_data_sums(run.data)
    lock = lock_folder(checkpoints) if run.training.process_index == 0 else nullcontext()
    start = find_start(checkpoints, run.training.resume_from_checkpoint, settings, sums)
    prepare_folder(checkpoints, start, settings, sums, "default")
    for note in start.notes:
        say(run.training, note)
    return start, lock
