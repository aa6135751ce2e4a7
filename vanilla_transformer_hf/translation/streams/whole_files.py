"""A document, read and translated as a whole: `translate --file`, and `--format html`."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ...common.command_line import AUTO
from ...common.files import output_or_stdout, refuse_overwriting
from ...common.lines import ON_BAD_BYTES, open_input
from ..documents.document import Reading, read_document
from ..documents.plain import checked_encoding
from ..text.places import aligner
from ..text.tally import ProgressBar
from .command import opener
from .sharing import shared


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
    refuse_overwriting(arguments.output, [name, *([] if shortlist is None else [shortlist])])
    errors, _ = ON_BAD_BYTES[arguments.on_bad_bytes]
    encoding = checked_encoding(arguments.encoding)
    document = read_document(_read(name), Reading(name or "standard input", errors, encoding), ending)
    texts = document.texts
    limits = {"batch_size": arguments.batch_size, "batch_tokens": arguments.batch_tokens}
    with ExitStack() as stack:
        # The file is opened before the model, which takes longer.
        output = stack.enter_context(output_or_stdout(arguments.output))
        stack.enter_context(shared(arguments, 1, [arguments.model, *ensemble]))  # one process has it all
        translator = opener(arguments, arguments.matmul, ensemble, shortlist)(arguments.device)
        with ProgressBar(len(texts), delay=1) as tally:
            found = list(translator.translate_stream(texts, tally=tally, **limits, **options))
        language = arguments.target_lang_tag or getattr(translator.tokenizer, "tgt_lang", None)
        output.write(document.translated(found, aligner(translator), language))
        output.flush()
    for note in tally.notes(options["too_long"], translator.max_source_length).values():
        print(note, file=sys.stderr)


def _read(name: str | None) -> bytes:
    if name is None and sys.stdin is None:
        raise ValueError("standard input is closed, and no file is given")
    with ExitStack() as stack:
        file = sys.stdin.buffer if name is None else stack.enter_context(open_input(name))
        return file.read()
