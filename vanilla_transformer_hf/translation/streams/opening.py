"""What commands need torch for: the model of a stream of lines, in this process or in several; and documents."""

import argparse
import hashlib
import itertools
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import torch
from transformers.utils import logging

from ...common.command_line import AUTO
from ...common.files import output_or_stdout, refuse_overwriting
from ...common.lines import ON_BAD_BYTES, read_lines
from ...common.matmul import choose_matmul, describe_matmul
from ...common.opening import vocabularies
from ...common.process import keep_heap_small
from ..documents.document import READERS, Reading, read_document
from ..documents.places import aligner
from ..documents.plain import checked_encoding
from ..text.glossary import Glossary
from ..text.tally import ProgressBar
from ..text_translator import TextTranslator
from ..translator import Translator
from .command import Description, beside, describe_copy, open_copy, opened, set_up
from .lines import LocalWorker
from .pool import WorkerPool
from .resumable_output import ResumableOutput, StreamOutput
from .sharing import shared
from .work import LineWork


def open_translator(arguments: argparse.Namespace, matmul: str, device: str | None = None) -> Translator:
    """The model that the arguments of a command name, in any process."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # only the bar of loading weights; that for sentences stays
    translator = Translator.from_pretrained(
        arguments.model,
        device,
        arguments.dtype,
        matmul_backend=matmul,
        ensemble=getattr(arguments, "ensemble", ()),
        quantization=getattr(arguments, "quantization", None),  # which `align` does not have
        engine=getattr(arguments, "engine", "ours"),
    )
    if (shortlist := getattr(arguments, "shortlist", None)) is not None:
        translator.shortlist = translator.pieces_of(read_lines(shortlist))
    languages = set_up(translator, arguments)
    if getattr(arguments, "glossary", None) is not None:
        translator.glossary = Glossary.read(arguments.glossary, languages)
    return translator


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
    models = (model, *translator.ensemble)
    settings = (each.to_json_string() for each in (model.generation_config, *(one.config for one in models)))
    digest = hashlib.sha256("".join(settings).encode())
    digest.update(repr(translator.shortlist).encode())
    backends = [getattr(tokenizer, f"{side}backend_tokenizer", None) for side in ("", "source_")]
    for vocabulary, backend in itertools.zip_longest(vocabularies(tokenizer), backends):
        pipeline = {} if backend is None else json.loads(backend.to_str())
        # Each call sets these two again.
        digest.update(json.dumps({**pipeline, "padding": None, "truncation": None}, sort_keys=True).encode())
        digest.update(json.dumps(vocabulary, sort_keys=True).encode())
    for name, tensor in itertools.chain.from_iterable(one.state_dict().items() for one in models):
        if torch.is_tensor(tensor):
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def open_worker(
    arguments: argparse.Namespace, work: LineWork, output: StreamOutput, processes: int, copy: Path | None = None
) -> LocalWorker | WorkerPool:
    """The worker of a command: the model, or a copy that is enough, in this process or in each of several."""
    keep_heap_small()
    matmul = arguments.matmul
    if matmul == "auto":  # a measured choice may differ between runs and processes
        matmul = output.recall().get("matmul", "auto" if processes == 1 else choose_matmul())
    opens: Callable[[str | None], TextTranslator] = partial(open_translator, arguments, matmul)
    describe_it: Callable[[Any], Description] = partial(describe, has_digest=isinstance(output, ResumableOutput))
    if copy is not None:
        opens, describe_it = partial(open_copy, arguments, copy, None), partial(describe_copy, copy)
    if processes == 1:
        translator = opens(arguments.device)
        return LocalWorker(translator, work, description=describe_it(translator))
    if copy is None and getattr(arguments, "engine", "ours") == "ctranslate2":
        from ..kept_copy import kept_copy  # which most users do without

        kept_copy(arguments.model, arguments.quantization)  # once, before several processes look for it
    return WorkerPool(opens, work, processes=processes, device=arguments.device, describe=describe_it)


def run_document(arguments: argparse.Namespace, name: str | None, ending: str | None, options: dict[str, Any]) -> None:
    """Translate a document, a file or standard input; it is of the kind of its `ending` or its name's."""
    if arguments.processes not in (1, AUTO):
        raise ValueError(f"--processes {arguments.processes}: a document is translated by 1")
    refuse_overwriting(arguments.output, [name, *beside(arguments)])
    kinds = [READERS.get(PurePath(each or "").suffix.lower()) for each in (name, arguments.output)]
    if ending is None and None not in kinds and kinds[0] != kinds[1]:
        raise ValueError(f"{arguments.output}: the translation of {name} is of its kind; give it the same ending")
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
        stack.enter_context(shared(arguments, 1))  # one process has it all
        translator = open_translator(arguments, arguments.matmul, arguments.device)
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
