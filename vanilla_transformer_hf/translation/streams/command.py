"""
The common run of commands on streams of lines: open files and model, work, report.

Nothing heavy is imported, for runs that a kept copy for CTranslate2 is enough for.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...common.command_line import AUTO
from ...common.files import refuse_overwriting
from ...common.lines import open_input
from ...common.process import keep_heap_small
from ..text_translator import WINDOW, TextTranslator
from .lines import LocalWorker, read_items, run_lines
from .resumable_output import open_result
from .work import LineWork


# Near matches of a sentence in a memory that are listed.
NEAR_MATCHES = 3
# Options of `translate` that need the model itself, beside the formats with scores.
OF_MODELS = ("ensemble", "shortlist", "glossary", "memory", "prefixes", "constraints")


class Description(NamedTuple):
    """The facts about a translator that the main process needs; the translator may be in another process."""

    note: str  # A line for users, or None
    settings: dict[str, Any]  # The settings that the output depends on
    limits: tuple[int, int]  # Maximum number of tokens of a source and of a target


def set_up(translator: TextTranslator, arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """Set what the arguments of a command say about texts; return their languages."""
    if arguments.max_source_length is not None:
        translator.max_source_length = arguments.max_source_length
    translator.without_letters = getattr(arguments, "without_letters", "copy")
    if arguments.target_lang_tag is not None:
        translator.use_target_lang(arguments.target_lang_tag)
    source, target = (getattr(translator.tokenizer, name, None) for name in ("src_lang", "tgt_lang"))
    languages = source, arguments.target_lang_tag or target
    if getattr(arguments, "memory", None) is not None:
        from ..documents.memory import Memory

        translator.memory = Memory.read(arguments.memory, languages)
        is_told = arguments.file is not None or arguments.format in ("jsonl", "html")
        translator.near_matches = NEAR_MATCHES if is_told else 0
    return languages


def cores() -> int:
    """The cores that this process may use; of two that share one, one."""
    import psutil

    count = psutil.cpu_count(logical=False) or 1
    return min(count, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else count


def copy_for(arguments: argparse.Namespace, work: LineWork) -> Path | None:
    """The kept copy for CTranslate2 that is enough for a run; None where the model itself is needed."""
    from ..kept_copy import FACTS, kept_copy

    options = work.options
    needs_model = work.kind != "translate" or work.format != "text" or options.get("mbr") is not None
    needs_model |= options.get("too_long") == "whole" or any(getattr(arguments, name, None) for name in OF_MODELS)
    if needs_model or arguments.device not in (None, "cpu"):
        return None
    for name in ("dtype", "matmul"):
        if (value := getattr(arguments, name)) != "auto":
            raise ValueError(f"--{name} {value} has no effect with --engine ctranslate2: set its --quantization")
    copy = kept_copy(arguments.model, arguments.quantization)
    return copy if (copy / FACTS).exists() else None


def open_copy(
    arguments: argparse.Namespace, copy: Path, threads: int | None, device: str | None = None
) -> TextTranslator:
    """The translator that has a copy alone; without a number of threads, with those of torch."""
    from ..kept_copy import KeptTranslator

    if threads is None:
        import torch

        threads = torch.get_num_threads()
    translator = KeptTranslator(copy, threads, arguments.quantization)
    set_up(translator, arguments)
    return translator


def describe_copy(copy: Path, translator: TextTranslator) -> Description:
    """What a copy's output depends on, in however many processes."""
    names = ("max_source_length", "source_prefix", "engine", "without_letters")
    settings = {name: getattr(translator, name) for name in names} | {"model": copy.name.rpartition("-")[2]}
    return Description("", settings, limits=(translator.max_source_length, translator.max_target_length))


def beside(arguments: argparse.Namespace) -> list[str]:
    """Files that a command reads beside its input."""
    named = [getattr(arguments, name, None) for name in ("shortlist", "glossary", "memory")]
    return [name for name in named if name is not None]


def run_command(arguments: argparse.Namespace, work: LineWork, inputs: Sequence[str | None]) -> None:
    """Run a command with the arguments of `add_arguments` and `model`; None in `inputs` is standard input."""
    refuse_overwriting(arguments.output, [*inputs, *beside(arguments)])
    limits = {"batch_size": arguments.batch_size, "batch_tokens": arguments.batch_tokens}
    work = replace(work, options={**work.options, **limits})
    with ExitStack() as stack:
        # Files are opened before the model, which takes longer.
        files = [stack.enter_context(opened(name)) for name in inputs]
        output = stack.enter_context(open_result(arguments.output, arguments.restart))
        items, total = read_items(files, arguments.on_bad_bytes)
        copy = copy_for(arguments, work) if getattr(arguments, "engine", "ours") == "ctranslate2" else None
        worker: Any
        is_number = arguments.threads is None or (arguments.threads != AUTO and arguments.threads > 0)
        if copy is not None and arguments.processes == 1 and is_number:
            keep_heap_small()
            given = os.environ.get("OMP_NUM_THREADS", "")
            threads = arguments.threads or (int(given) if given.isdecimal() and int(given) else cores())
            translator = open_copy(arguments, copy, threads)
            worker = LocalWorker(translator, work, description=describe_copy(copy, translator))
        else:
            from ... import registration
            from .opening import open_worker
            from .sharing import shared

            registration.register(for_programs=False)
            processes = stack.enter_context(shared(arguments, total))
            worker = open_worker(arguments, work, output, processes, copy)
        stack.enter_context(worker)
        if worker.description.note:
            print(worker.description.note, file=sys.stderr)
        # By default that of the run that is continued.
        window = output.recall().get("window", WINDOW) if arguments.window is None else arguments.window
        window = 1 if any(file.isatty() for file in files) else window
        output.resume({"window": window, **work.settings, **worker.description.settings})
        if output.lines:
            print(f"{arguments.output}: continued after line {output.lines:,}", file=sys.stderr)
        tally = run_lines(worker, items, output=output, window=window, total=total, name=str(arguments.output))
        limits = worker.description.limits[: 1 if work.kind == "translate" else 2]
        for note in tally.notes(work.options["too_long"], *limits).values():
            print(note, file=sys.stderr)


def opened(name: str | None) -> AbstractContextManager[BinaryIO]:
    """The file of an input; standard input (None), which stays open afterwards."""
    if name is not None:
        return open_input(name)
    if sys.stdin is None:
        raise ValueError("standard input is closed, and no file is given")
    return nullcontext(sys.stdin.buffer)
