"""The common run of commands on streams of lines, and that on a document: open files and model, work, report."""

import argparse
import hashlib
import itertools
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import torch
from transformers.utils import logging

from ...common.command_line import AUTO
from ...common.files import output_or_stdout, refuse_overwriting
from ...common.lines import ON_BAD_BYTES, open_input, read_lines
from ...common.matmul import choose_matmul, describe_matmul
from ...common.opening import vocabularies
from ...common.process import keep_heap_small
from ..documents.document import Reading, read_document
from ..documents.memory import Memory
from ..documents.places import aligner
from ..documents.plain import checked_encoding
from ..text.glossary import Glossary
from ..text.tally import ProgressBar
from ..text_model import WINDOW
from ..translator import Translator
from .lines import read_items, run_lines
from .pool import LocalWorker, WorkerPool
from .resumable_output import ResumableOutput, StreamOutput, open_result
from .sharing import shared
from .work import LineWork


# Near matches of a sentence in a memory that are listed.
NEAR_MATCHES = 3


def open_translator(
    arguments: argparse.Namespace,
    matmul: str,
    ensemble: Sequence[str] = (),
    shortlist: str | None = None,
    device: str | None = None,
) -> Translator:
    """The model that the arguments of a command name, in any process."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # only the bar of loading weights; that for sentences stays
    translator = Translator.from_pretrained(
        arguments.model,
        device,
        arguments.dtype,
        matmul_backend=matmul,
        ensemble=ensemble,
        quantization=getattr(arguments, "quantization", None),  # which `align` does not have
        engine=getattr(arguments, "engine", "ours"),
    )
    if shortlist is not None:
        translator.shortlist = translator.pieces_of(read_lines(shortlist))
    if arguments.max_source_length is not None:
        translator.max_source_length = arguments.max_source_length
    translator.without_letters = getattr(arguments, "without_letters", "copy")
    if arguments.target_lang_tag is not None:
        translator.use_target_lang(arguments.target_lang_tag)
    source, target = (getattr(translator.tokenizer, name, None) for name in ("src_lang", "tgt_lang"))
    languages = source, arguments.target_lang_tag or target
    if getattr(arguments, "glossary", None) is not None:
        translator.glossary = Glossary.read(arguments.glossary, languages)
    if getattr(arguments, "memory", None) is not None:
        translator.memory = Memory.read(arguments.memory, languages)
        is_told = arguments.file is not None or arguments.format in ("jsonl", "html")
        translator.near_matches = NEAR_MATCHES if is_told else 0
    return translator


class Description(NamedTuple):
    """The facts about a translator that the main process needs; the translator may be in another process."""

    note: str  # A line for users, or None
    settings: dict[str, Any]  # The settings that the output depends on
    limits: tuple[int, int]  # Maximum number of tokens of a source and of a target


def describe(translator: Translator, has_digest: bool = True) -> Description:
    """A translator's [`Description`]; the digest, for outputs to be continued, reads 1.7 GB of weights a second."""
    model = translator.model
    names = ("matmul", "max_source_length", "source_prefix", "quantization", "engine", "without_letters")
    settings = {
        "device": model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        **{name: getattr(translator, name) for name in names},
        **{name: getattr(getattr(translator, name), "digest", None) for name in ("glossary", "memory")},
    }
    if has_digest:
        settings["model"] = digest_of(translator)
    note = describe_matmul(translator.matmul, translator.matmul_rows) if translator.matmul_rows else ""
    return Description(note, settings, limits=(translator.max_source_length, translator.max_target_length))


def digest_of(translator: Translator) -> str:
    """The SHA-256 of all that a translator's output depends on: configs, tokenizer, shortlist, all weights."""
    model, tokenizer = translator.model, translator.tokenizer
    digest = hashlib.sha256(model.config.to_json_string().encode() + model.generation_config.to_json_string().encode())
    digest.update(repr(translator.shortlist).encode())
    backends = [getattr(tokenizer, f"{side}backend_tokenizer", None) for side in ("", "source_")]
    for vocabulary, backend in itertools.zip_longest(vocabularies(tokenizer), backends):
        pipeline = {} if backend is None else json.loads(backend.to_str())
        # Each call sets these two again.
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


def open_worker(
    arguments: argparse.Namespace,
    work: LineWork,
    output: StreamOutput,
    processes: int,
    ensemble: Sequence[str],
    shortlist: str | None,
) -> LocalWorker | WorkerPool:
    """The worker of a command: the model in this process, or several processes with a model each."""
    keep_heap_small()
    matmul = arguments.matmul
    if matmul == "auto":  # a measured choice may differ between runs and processes
        matmul = output.recall().get("matmul", "auto" if processes == 1 else choose_matmul())
    describe_it = partial(describe, has_digest=isinstance(output, ResumableOutput))
    if processes == 1:
        translator = open_translator(arguments, matmul, ensemble, shortlist, arguments.device)
        return LocalWorker(translator, work, description=describe_it(translator))
    if getattr(arguments, "engine", "ours") == "ctranslate2":
        from ...export import kept_copy  # which most users do without

        kept_copy(arguments.model, arguments.quantization)  # once, before several processes look for it
    opens = partial(open_translator, arguments, matmul, ensemble, shortlist)
    return WorkerPool(opens, work, processes=processes, device=arguments.device, describe=describe_it)


def beside(arguments: argparse.Namespace) -> list[str]:
    """Files that a command reads beside its input."""
    named = [getattr(arguments, name, None) for name in ("shortlist", "glossary", "memory")]
    return [name for name in named if name is not None]


def run_command(
    arguments: argparse.Namespace,
    work: LineWork,
    inputs: Sequence[str | None],
    ensemble: Sequence[str] = (),
    shortlist: str | None = None,
) -> None:
    """Run a command with the arguments of `add_arguments` and `model`; None in `inputs` is standard input."""
    refuse_overwriting(arguments.output, [*inputs, *beside(arguments)])
    limits = {"batch_size": arguments.batch_size, "batch_tokens": arguments.batch_tokens}
    work = replace(work, options={**work.options, **limits})
    with ExitStack() as stack:
        # Files are opened before the model, which takes longer.
        files = [stack.enter_context(opened(name)) for name in inputs]
        output = stack.enter_context(open_result(arguments.output, arguments.restart))
        items, total = read_items(files, arguments.on_bad_bytes)
        processes = stack.enter_context(shared(arguments, total, [arguments.model, *ensemble]))
        worker = open_worker(arguments, work, output, processes, ensemble, shortlist)
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


def run_document(
    arguments: argparse.Namespace,
    name: str | None,
    ending: str | None,
    options: dict[str, Any],
    ensemble: Sequence[str],
    shortlist: str | None,
) -> None:
    """Translate a document, a file or standard input; it is of the kind of its `ending` or its name's."""
    if arguments.processes not in (1, AUTO):
        raise ValueError(f"--processes {arguments.processes}: a document is translated by 1")
    refuse_overwriting(arguments.output, [name, *beside(arguments)])
    errors, _ = ON_BAD_BYTES[arguments.on_bad_bytes]
    encoding = checked_encoding(arguments.encoding)
    with opened(name) as file:
        reading = Reading(name or "standard input", errors, encoding)
        document = read_document(file.read(), reading, ending)
    texts = document.texts
    limits = {"batch_size": arguments.batch_size, "batch_tokens": arguments.batch_tokens}
    with ExitStack() as stack:
        # The file is opened before the model, which takes longer.
        output = stack.enter_context(output_or_stdout(arguments.output))
        stack.enter_context(shared(arguments, 1, [arguments.model, *ensemble]))  # one process has it all
        translator = open_translator(arguments, arguments.matmul, ensemble, shortlist, arguments.device)
        with ProgressBar(len(texts), delay=1) as tally:
            found = list(translator.translate_stream(texts, tally=tally, **limits, **options))
        language = arguments.target_lang_tag or getattr(translator.tokenizer, "tgt_lang", None)
        output.write(document.translated(found, aligner(translator), language))
        output.flush()
    for text, (best, *_) in zip(texts, found, strict=True):
        for term in best.missing_terms:
            print(f"{text[:60]!r}: without {term.target!r} for {term.source!r}", file=sys.stderr)
        for near in best.near_matches:
            print(f"{text[:60]!r}: {near.similarity:.0%} {near.source!r}: {near.translation!r}", file=sys.stderr)
    for note in tally.notes(options["too_long"], translator.max_source_length).values():
        print(note, file=sys.stderr)


def opened(name: str | None) -> AbstractContextManager[BinaryIO]:
    """The file of an input; standard input (None), which stays open afterwards."""
    if name is not None:
        return open_input(name)
    if sys.stdin is None:
        raise ValueError("standard input is closed, and no file is given")
    return nullcontext(sys.stdin.buffer)
