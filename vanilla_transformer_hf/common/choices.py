"""
What happens to a text that is long or has several sentences: the same values for translation, scoring and training.

A text with too many tokens (`too_long`):

| value | meaning |
| --- | --- |
| split | work on it in parts, and join the results |
| truncate | keep the first tokens |
| whole | work on all of it at once, as models of long texts can |
| drop | leave it out |
| error | stop with an error |

Sentences on one line (`split_sentences`) are translated one by one:

| value | meaning |
| --- | --- |
| auto | unless the model has seen enough lines of several sentences in its training |
| always | wherever a sentence clearly ends |
| never | only where a line is too long |
"""

from typing import Any, Literal, get_args


# The first value of each purpose is the default. Splitting loses nothing in translation; "drop" is not allowed there,
# because line n of the output belongs to line n of the input.
TooLongToTranslate = Literal["split", "truncate", "error", "whole"]
# Scores and alignments of truncated pairs are not those of the given pairs.
TooLongToScore = Literal["error", "truncate", "whole"]
# From truncated pairs a model learns to leave text out.
TooLongToTrain = Literal["drop", "truncate"]

SplitSentences = Literal["auto", "always", "never"]

# Key of a tokenizer's settings: the share of its training sources that have more than one sentence.
MULTI_SENTENCE_SHARE = "multi_sentence_share"
# A model with this share keeps sentences together. Of a corpus of sentences, as Multi30k or news, some percent of the
# lines have two, and models of such corpora merge or drop sentences; splitting loses no more than the context.
ENOUGH_LINES = 0.1


def check_choice(name: str, value: Any, choices: object) -> Any:
    """The value of an argument, if it is one of a type above."""
    if value not in get_args(choices):
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, get_args(choices)))}")
    return value
