"""A search that parts of any clients' texts enter and leave between two steps."""

from collections.abc import Collection, Sequence
from typing import Any

import torch

from ..model.search_vanilla_transformer import Search
from ..translation.results import Translation
from ..translation.texts import Part
from ..translation.translator import Translator


class Work:
    """
    A part of a request's text in a search.

    Args:
        request: Whose it is.
        text: Index of its text.
        place: Index of the part in the text.
        part: The part.
    """

    def __init__(self, request: Any, text: int, place: int, part: Part):
        self.request, self.text, self.place, self.part = request, text, place, part


Found = list[tuple[Work, list[Translation]]]


class SharedSearch:
    """
    The search of this package (continuous batching): a sentence joins between any two steps and leaves as soon as it
    is done. The result for a sentence does not depend on the others.

    All methods are called by one thread.

    Args:
        translator: Whose model searches.
        options: Arguments of `generate()`, the same for all sentences.
    """

    # Steps for which waiting parts may wait for more, so that they start together; starting costs as much as some
    # steps.
    patience = 8

    def __init__(self, translator: Translator, options: dict[str, Any]):
        self._translator, self._options = translator, options
        self._search: Search | None = None
        self._joined: dict[Search, list[Work | None]] = {}  # the works of each joined search; None: done
        self._ready: Found = []

    @property
    def running(self) -> Collection[Work]:
        """The works that have joined and have no result yet."""
        return [work for works in self._joined.values() for work in works if work is not None]

    def join(self, works: Sequence[Work]) -> None:
        """Add these works, each of which has tokens."""
        begun = self._translator.begin([work.part.ids for work in works], **self._options)
        if not isinstance(begun, Search):  # others cannot join this kind of search
            self._ready += zip(works, self._lists(begun))
        elif self._search is None or not len(self._search.rows):
            self._search, self._joined = begun, {begun: list(works)}
        else:
            self._search.absorb(begun, slice(0, len(works)))
            begun.decoder = None  # copied, because its last sentence may take long
            self._joined[begun] = list(works)

    @torch.no_grad()
    def step(self) -> Found:
        """Run one step; return the finished works, each with the n-best list of its part."""
        ready, self._ready = self._ready, []
        if self._joined and self._search is not None:
            self._search.step()
            for search, works in list(self._joined.items()):
                places = [place for place in search.is_done.nonzero()[:, 0].tolist() if works[place] is not None]
                if places:
                    search.check_scores()
                    lists = self._lists(search.n_best(torch.tensor(places, device=search.is_done.device)))
                    ready += [(works[place], lists[row]) for row, place in enumerate(places)]  # type: ignore[misc]
                    for place in places:
                        works[place] = None
                self._forget_if_done(search)
        return ready

    def leave(self, works: Collection[Work]) -> None:
        """Drop these: their clients have left."""
        gone = set(works)
        self._ready = [(work, found) for work, found in self._ready if work not in gone]
        for search, its in list(self._joined.items()):
            places = [place for place, work in enumerate(its) if work in gone]
            if places and self._search is not None:
                self._search.leave(search, torch.tensor(places, device=search.is_done.device))
                for place in places:
                    its[place] = None
                self._forget_if_done(search)

    def _forget_if_done(self, search: Search) -> None:
        if not any(self._joined[search]):
            del self._joined[search]
        if not self._joined:
            self._search = None  # frees its memory

    def _lists(self, sequences: torch.Tensor) -> list[list[Translation]]:
        """The n-best lists of sequences (B, n, T)."""
        count, n_best, _ = sequences.shape
        flat = self._translator.decode(sequences.flatten(0, 1), None)
        return [flat[row * n_best : (row + 1) * n_best] for row in range(count)]
