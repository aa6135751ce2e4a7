"""
What happens to a text with too many tokens: the same values for translation, scoring and training.

| value | meaning |
| --- | --- |
| split | work on it in parts, and join the results |
| truncate | keep the first tokens |
| whole | work on all of it at once, as models of long texts can |
| drop | leave it out |
| error | stop with an error |
"""

from typing import Literal, get_args


# The first value of each purpose is the default. Splitting loses nothing in translation; "drop" is not allowed there,
# because line n of the output belongs to line n of the input.
TooLongToTranslate = Literal["split", "truncate", "error", "whole"]
# Scores and alignments of truncated pairs are not those of the given pairs.
TooLongToScore = Literal["error", "truncate", "whole"]
# From truncated pairs a model learns to leave text out.
TooLongToTrain = Literal["drop", "truncate"]


def check_too_long(value: str, purpose: object) -> str:
    """A value of `too_long` that is allowed for a purpose, one of the types above."""
    choices = get_args(purpose)
    if value not in choices:
        raise ValueError(f"too_long={value!r}: must be one of {', '.join(map(repr, choices))}")
    return value
