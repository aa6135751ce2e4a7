"""How the tokenizers library fails: with errors of its own, or in a panic."""

from collections.abc import Iterator
from contextlib import contextmanager


def is_failure(error: BaseException) -> bool:
    """Whether the tokenizers library raised it: a plain `Exception`, or, where it panics, what is no `Exception`."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


class TokenizerError(ValueError):
    """A tokenizer failed on a text, or on tokens; the message is one line."""


@contextmanager
def failing_in_one_line(what: str) -> Iterator[None]:
    """`TokenizerError`s that say `what` the tokenizer does, in place of the tokenizers library's errors and panics."""
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise TokenizerError(f"the tokenizer of the model fails where it {what}: {reason}") from None
