"""Counts while lines are translated, shown as progress and, for losses, reported at the end."""

import math
import time
from dataclasses import dataclass, fields
from typing import Any


# Treatment of texts that are too long -> the wording of the final note.
TOO_LONG = {
    "split": "split into parts of at most",
    "truncate": "truncated to the first",
    "error": "refused above",
    "whole": "passed through the model whole, with more than",
}
# A longer source, in tokens, causes a warning if the model does not record how long its training sentences were.
SENSIBLE_SOURCE = 256


@dataclass
class Tally:
    """Counts of the work so far. All counts but the first two are reported to the user at the end."""

    sentences: int = 0  # Texts, or pairs of texts, that are done
    tokens: int = 0  # Target tokens
    too_long: int = 0  # Texts that were too long for the model
    lacking: int = 0  # Texts whose best translation lacks a required prefix or phrase
    unfinished: int = 0  # Texts whose best translation was cut off at the limit of tokens
    # Texts of more than `SENSIBLE_SOURCE` tokens, for a model that does not record its training lengths
    doubtful: int = 0
    suspicious: int = 0  # Texts whose best translation `is_suspicious`
    without_letters: int = 0  # Texts without letters that are their own translations
    missing_terms: int = 0  # Texts whose best translation lacks a term of the glossary
    near_matches: int = 0  # Texts that are nearly one of the memory

    def add(self, **counts: int) -> None:
        """Add to the named counts; progress bars override this."""
        for name, count in counts.items():
            setattr(self, name, getattr(self, name) + count)

    def to_tell(self) -> dict[str, int]:
        """The counts that are reported at the end."""
        return {name: count for name, count in vars(self).items() if name in TOLD}

    def notes(self, too_long: str, source_limit: int, target_limit: int | None = None) -> dict[str, str]:
        """A line for each counted loss, by the name of its count; `too_long` is a key of `TOO_LONG`."""
        limit = f"{source_limit}" if target_limit is None else f"{source_limit} source or {target_limit} target"
        notes = {
            "too_long": f"{_lines(self.too_long, 'over-long ')} {TOO_LONG[too_long]} {limit} tokens",
            "lacking": f"{_lines(self.lacking)} with a translation that lacks a required prefix or phrase (no room "
            "for it, or an empty source)",
            "unfinished": f"{_lines(self.unfinished)} with a translation that was cut off at the limit of tokens, see "
            "max_new_tokens and max_extra_tokens",
            "doubtful": f"{_lines(self.doubtful)} with more than {SENSIBLE_SOURCE} source tokens: the model does not "
            "say how long sentences were in its training (model_max_length), and translations of longer ones may lack "
            "most of the text; set max_source_length to split them",
            "suspicious": f"{_lines(self.suspicious)} with a suspicious translation, which JSON lines mark: it "
            "repeats a phrase ten times or is five times as long as its source, or the source has no letters; "
            "no_repeat_ngram_size and repetition_penalty prevent repetition",
            "without_letters": f"{_lines(self.without_letters)} without letters copied unchanged, see without_letters",
            "missing_terms": f"{_lines(self.missing_terms)} with a translation that lacks a term of the glossary, "
            "which JSON lines name",
            "near_matches": f"{_lines(self.near_matches)} with a near match in the memory, which JSON lines list",
        }
        return {name: note for name, note in notes.items() if getattr(self, name)}


TOLD = tuple(each.name for each in fields(Tally))[2:]


class ProgressBar(Tally):
    """A tally with a progress bar on standard error, inside a `with` statement, after `delay` seconds."""

    def __init__(self, total: int | None, done: int = 0, disable: bool = False, delay: float = 0):
        super().__init__()
        self._bar: Any = None
        self._total, self._done, self._delay = total, done, math.inf if disable else delay
        self._began = time.perf_counter()
        self.add()

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, **counts: int) -> None:
        super().add(**counts)
        seconds, done = time.perf_counter() - self._began, self._done + self.sentences
        if self._bar is None and seconds >= self._delay:
            from tqdm.auto import tqdm  # whose import takes a tenth of a short command

            self._bar = tqdm(total=self._total, initial=done, unit=" sentences", dynamic_ncols=True)
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self.tokens / max(seconds, 1e-9):,.0f} target tokens/s", refresh=False)
            self._bar.update(done - self._bar.n)


def _lines(count: int, kind: str = "") -> str:
    return f"{count} {kind}line{'' if count == 1 else 's'}"
