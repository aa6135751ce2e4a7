"""
Whether sentences on one line are translated one by one.

| value | meaning |
| --- | --- |
| auto | unless the model has seen enough lines of several sentences in its training |
| always | wherever a sentence clearly ends |
| never | only where a line is too long |
"""

from typing import Literal, get_args


SplitSentences = Literal["auto", "always", "never"]

# Key of a tokenizer's settings: the share of its training sources that have more than one sentence.
MULTI_SENTENCE_SHARE = "multi_sentence_share"
# A model with this share keeps sentences together. Of a corpus of sentences, as Multi30k or news, some percent of the
# lines have two, and models of such corpora merge or drop sentences; splitting loses no more than the context.
ENOUGH_LINES = 0.1


def check_split_sentences(value: str) -> str:
    """The value, if it is one of the choices; else `ValueError`."""
    if value not in get_args(SplitSentences):
        choices = ", ".join(map(repr, get_args(SplitSentences)))
        raise ValueError(f"split_sentences={value!r}: must be one of {choices}")
    return value
