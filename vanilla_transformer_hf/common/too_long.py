"""
What happens to a text with more tokens than are allowed: one vocabulary for translation, scoring and training.

| value | meaning |
| --- | --- |
| split | work on it in parts, and join the results |
| truncate | keep the first tokens |
| drop | leave it out |
| error | stop with an error |
"""

from typing import Literal, get_args


# Of each purpose the first is the default. A translation in parts lacks nothing; it cannot leave a line out, because
# line n of the output belongs to line n of the input.
TooLongToTranslate = Literal["split", "truncate", "error"]
# The score or the alignment of the beginning of a pair is that of another pair than the one that was given.
TooLongToScore = Literal["error", "truncate"]
# From a source with the beginning of its translation, a model learns to leave text out.
TooLongToTrain = Literal["drop", "truncate"]
TooLong = Literal["split", "truncate", "drop", "error"]

# What versions before called a value -> its name.
OLD_NAMES = {"cut": "truncate"}


def current_name(value: str) -> str:
    """The name of a value of `too_long` that may be spelled as in earlier versions."""
    return OLD_NAMES.get(value, value)


def check_too_long(value: str, purpose: object) -> str:
    """
    The name of a value of `too_long` for a purpose, one of the types above.

    Raises:
        ValueError: The value is not one of those that the purpose has.
    """
    choices = get_args(purpose)
    if current_name(value) not in choices:
        raise ValueError(f"too_long={value!r}: must be one of {', '.join(map(repr, choices))}")
    return current_name(value)
