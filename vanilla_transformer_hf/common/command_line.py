"""How commands read their arguments and how they end."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal


# A number that the user sets, or that is chosen.
AUTO: Final = "auto"
Count = int | Literal["auto"]

# What a library written in Rust raises where it panics: no `Exception`, and no class that can be imported.
PANIC = "PanicException"


def make_parser(prog: str, description: str | None, **settings: Any) -> argparse.ArgumentParser:
    """A parser whose --help shows `description` with its examples, keeping its line breaks."""
    formatter = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=prog, description=description, formatter_class=formatter, **settings)


def read_count(text: str) -> Count:
    """A number of processes or threads, or "auto"; a parser calls it."""
    try:
        return AUTO if text == AUTO else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: expected 1, 2, … or {AUTO}") from None


def other_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace, used: Iterable[str]) -> list[str]:
    """The options that have another value than their default and are not among those used: they would be ignored."""
    names = vars(arguments).keys() - {*used}
    return [f"--{name}" for name in sorted(names) if getattr(arguments, name) != parser.get_default(name)]


def errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Errors that the user of a command can fix, and more; one's import takes a third of a short command."""
    from huggingface_hub.errors import StrictDataclassError

    return OSError, ValueError, StrictDataclassError, *more


def message_of(error: BaseException) -> str:
    """The text of an error; of an invalid config only the message of the check, without transformers' preamble."""
    if isinstance(error, OSError) and error.filename and error.filename2 is None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    from huggingface_hub.errors import StrictDataclassError

    while isinstance(error, StrictDataclassError) and error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def run(main: Callable[[], None], prog: str | None = None) -> None:
    """Call a command's `main`, and end the process: after Ctrl-C with 130, after an error with a message and 2."""
    try:
        main()
        print(end="", flush=True)  # a broken pipe raises here, not at exit
    except BrokenPipeError:  # the reader of standard output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
    except BaseException as error:
        if not isinstance(error, errors()) and type(error).__name__ != PANIC:
            raise
        print(f"{prog or os.path.basename(sys.argv[0])}: {message_of(error)}", file=sys.stderr)
        sys.exit(2)
