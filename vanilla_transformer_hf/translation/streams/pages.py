"""A page with markup, read and translated as a whole: `translate --format html`."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ...common.files import open_output, refuse_overwriting
from ...common.lines import open_input
from ..text.markup import MarkupText, aligner, with_translations
from ..text.tally import ProgressBar
from .command import opener


# The argument of `decode` for each `--on_bad_bytes`.
ERRORS = {"error": "strict", "replace": "replace", "skip": "ignore"}


def run_page(
    arguments: argparse.Namespace, options: dict[str, Any], ensemble: Sequence[str], shortlist: str | None
) -> None:
    """
    Translate a page.

    Args:
        arguments: The arguments of `add_arguments`, `model` and `input`.
        options: Arguments of `Translator.translate_stream`.
        ensemble, shortlist: As in `run_command`.

    Raises:
        OSError: A file or the model cannot be opened.
        ValueError: The input is not UTF-8 or is also the output, or arguments are out of range.
    """
    if arguments.processes != 1:
        raise ValueError(f"--processes {arguments.processes}: a page is translated by 1")
    refuse_overwriting(arguments.output, [arguments.input, *([] if shortlist is None else [shortlist])])
    page = MarkupText(_read(arguments.input, ERRORS[arguments.on_bad_bytes]))
    texts = [sentence.text for sentence in page.sentences]
    limits = {"batch_size": arguments.batch_size, "batch_tokens": arguments.batch_tokens}
    with ExitStack() as stack:
        # The file is opened before the model, which takes longer.
        output = sys.stdout.buffer if arguments.output is None else stack.enter_context(open_output(arguments.output))
        translator = opener(arguments, arguments.matmul, ensemble, shortlist)(arguments.device)
        with ProgressBar(len(texts), delay=1) as tally:
            found = list(translator.translate_stream(texts, tally=tally, **limits, **options))
        ((translation,),) = with_translations([page], found, n_best=1, align=aligner(translator))
        output.write(translation.encode())
        output.flush()
    for note in tally.notes(options["too_long"], translator.max_source_length).values():
        print(note, file=sys.stderr)


def _read(name: str | None, errors: str) -> str:
    if name is None and sys.stdin is None:
        raise ValueError("standard input is closed, and no file is given")
    with ExitStack() as stack:
        file = sys.stdin.buffer if name is None else stack.enter_context(open_input(name))
        content = file.read()
    try:
        return content.decode(errors=errors)
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1:,}"
        raise ValueError(f"{name or 'standard input'}, {where}: not UTF-8; see --on_bad_bytes") from None
