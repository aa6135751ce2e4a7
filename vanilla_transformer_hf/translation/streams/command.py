"""What the commands on streams of lines do: open files and model, work, say what happened."""

import argparse
import hashlib
import itertools
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from transformers.utils import logging

from ...common.files import open_input, read_lines, refuse_overwriting
from ...common.matmul import choose_matmul, describe_matmul
from ...common.opening import vocabularies
from ..text_model import WINDOW
from ..translator import Translator
from .lines import read_items, run_lines
from .resumable_output import ResumableOutput, open_result
from .work import LineWork
from .worker_pool import LocalWorker, WorkerPool


@dataclass(frozen=True)
class OpenTranslator:
    """Opens a model as the arguments of a command say, in whichever process."""

    model: str
    dtype: str
    matmul: str
    max_source_length: int | None
    ensemble: tuple[str, ...] = ()
    shortlist: str | None = None
    target_lang_tag: str | None = None

    def __call__(self, device: str | None) -> Translator:
        logging.set_verbosity_error()
        logging.disable_progress_bar()  # of loading weights; the one for sentences stays
        translator = Translator.from_pretrained(
            self.model, device, self.dtype, matmul_backend=self.matmul, ensemble=self.ensemble
        )
        if self.shortlist is not None:
            translator.shortlist = translator.pieces_of(read_lines(self.shortlist))
        if self.max_source_length is not None:
            translator.max_source_length = self.max_source_length
        if self.target_lang_tag is not None:
            translator.use_target_lang(self.target_lang_tag)
        return translator


@dataclass(frozen=True)
class Description:
    """
    What the main process has to know of a translator that another process may hold.

    Attributes:
        note: A line for people, or nothing.
        settings: What the output depends on.
        limits: Most tokens of a source and of a target.
    """

    note: str
    settings: dict[str, Any]
    limits: tuple[int, int]


def describe(translator: Translator, has_digest: bool = True) -> Description:
    """
    The [`Description`] of a translator.

    Args:
        translator: The translator.
        has_digest: Whether `settings` are to tell models and tokenizers apart, for an output that may be continued;
            all weights are read for this, 1.7 GB a second.
    """
    model = translator.model
    settings = {
        "device": model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "matmul": translator.matmul,
        "max_source_length": translator.max_source_length,
    }
    if translator.source_prefix:
        settings["source_prefix"] = translator.source_prefix
    if has_digest:
        settings["model"] = digest_of(translator)
    note = describe_matmul(translator.matmul, translator.matmul_rows) if translator.matmul_rows else ""
    return Description(note, settings, (translator.max_source_length, translator.max_target_length))


def digest_of(translator: Translator) -> str:
    """The SHA-256 of all that a translator's output depends on: configs, tokenizer, shortlist, and all weights."""
    model, tokenizer = translator.model, translator.tokenizer
    digest = hashlib.sha256(model.config.to_json_string().encode() + model.generation_config.to_json_string().encode())
    digest.update(repr(translator.shortlist).encode())
    backends = [getattr(tokenizer, f"{side}backend_tokenizer", None) for side in ("", "source_")]
    for vocabulary, backend in itertools.zip_longest(vocabularies(tokenizer), backends):
        pipeline = {} if backend is None else json.loads(backend.to_str())
        # Each call sets these two anew.
        digest.update(json.dumps({**pipeline, "padding": None, "truncation": None}, sort_keys=True).encode())
        digest.update(json.dumps(vocabulary, sort_keys=True).encode())
    for name, tensor in itertools.chain.from_iterable(
        one.state_dict().items() for one in (model, *translator.ensemble)
    ):
        if torch.is_tensor(tensor):
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def run_command(
    arguments: argparse.Namespace,
    work: LineWork,
    inputs: Sequence[str | None],
    ensemble: Sequence[str] = (),
    shortlist: str | None = None,
) -> None:
    """
    Do what a command line says.

    Args:
        arguments: Those of `add_arguments`, and `model`.
        work: What is done with each line.
        inputs: Names of files, None for standard input.
        ensemble: Names of models that translate beside the first.
        shortlist: Name of a file of target text, beyond whose pieces translations use none.

    Raises:
        OSError: A file or the model cannot be opened.
        ValueError: The input is damaged or also the output, or arguments are out of range.
    """
    if arguments.processes < 1:
        raise ValueError(f"processes={arguments.processes}: must be at least 1")
    refuse_overwriting(arguments.output, [*inputs, *([] if shortlist is None else [shortlist])])
    limits = {"batch_size": arguments.batch_size, "batch_tokens": arguments.batch_tokens}
    work = replace(work, options={**work.options, **limits})
    with ExitStack() as stack:
        # The files before the model, which takes longer to open.
        if None in inputs and sys.stdin is None:
            raise ValueError("standard input is closed, and no file is given")
        files = [sys.stdin.buffer if name is None else stack.enter_context(open_input(name)) for name in inputs]
        output = stack.enter_context(open_result(arguments.output, arguments.restart))
        items, total = read_items(files, arguments.on_bad_bytes)
        matmul = arguments.matmul
        if matmul == "auto":  # what is measured may differ from run to run and from process to process
            matmul = output.recall().get("matmul", "auto" if arguments.processes == 1 else choose_matmul())
        open_translator = OpenTranslator(
            arguments.model,
            arguments.dtype,
            matmul,
            arguments.max_source_length,
            tuple(ensemble),
            shortlist,
            arguments.target_lang_tag,
        )
        describe_it = partial(describe, has_digest=isinstance(output, ResumableOutput))
        worker: LocalWorker | WorkerPool
        if arguments.processes == 1:
            translator = open_translator(arguments.device)
            worker = LocalWorker(translator, work, describe_it(translator))
        else:
            worker = WorkerPool(open_translator, work, arguments.processes, arguments.device, describe_it)
        stack.enter_context(worker)
        if worker.description.note:
            print(worker.description.note, file=sys.stderr)
        window = WINDOW if arguments.window is None else arguments.window
        window = 1 if any(file.isatty() for file in files) else window
        settings = {"work": work.kind, "format": work.format, "window": window, **work.options}
        settings |= {"constraints": True} if work.constraints else {}
        output.resume({**settings, **worker.description.settings})
        if output.lines:
            print(f"{arguments.output}: continued behind line {output.lines:,}", file=sys.stderr)
        tally = run_lines(worker, items, output, window, total, str(arguments.output))
        limits = worker.description.limits[: 1 if work.kind == "translate" else 2]
        for note in tally.notes(work.options["too_long"], *limits).values():
            print(note, file=sys.stderr)
