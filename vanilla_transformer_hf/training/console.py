"""What a run prints: its own lines once for all processes, and no bars of libraries for what takes no time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
from transformers import TrainingArguments
from transformers.utils import logging


def say(training: TrainingArguments, text: str) -> None:
    """Print a line, once for all processes."""
    if training.process_index == 0:
        print(text, flush=True)


@contextmanager
def errors_only() -> Iterator[None]:
    """Hide transformers' warnings."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


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
