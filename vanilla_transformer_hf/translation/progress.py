"""How far a translation is: a bar with sentences and target tokens per second."""

import time
from typing import Any

from tqdm.auto import tqdm

from .texts import Tally


class ProgressBar(Tally):
    """
    A tally that shows itself on standard error, inside a `with` statement.

    Args:
        total: Sentences, None if not known.
        done: Those that an earlier run has translated.
        disable: Count only.
        delay: Seconds until the bar appears.
    """

    def __init__(self, total: int | None, done: int = 0, disable: bool = False, delay: float = 0):
        super().__init__()
        self._bar: Any = tqdm(
            total=total, initial=done, unit=" sentences", dynamic_ncols=True, disable=disable, delay=delay
        )
        self._began = time.perf_counter()

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bar.close()

    def add(self, sentences: int = 0, tokens: int = 0, too_long: int = 0, lacking: int = 0) -> None:
        super().add(sentences, tokens, too_long, lacking)
        speed = self.tokens / max(time.perf_counter() - self._began, 1e-9)
        self._bar.set_postfix_str(f"{speed:,.0f} target tokens/s", refresh=False)
        self._bar.update(sentences)
