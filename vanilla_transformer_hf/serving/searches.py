"""Searches of clients' texts: one that parts enter and leave between two steps, and one for separate calls."""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import torch

from ..model.search.search import Search
from ..model.search.together import StepHook, absorb, evict, take_wide_rows
from ..translation.search.minimum_risk import MinimumRisk
from ..translation.search.parts import constraints_of
from ..translation.text.splitting import Part
from ..translation.translator import Translator


Result = TypeVar("Result")

# Seconds for which a step of a separate search has the turn alone; a longer one continues beside the other searches.
PATIENCE = 0.05
# The same for an engine that cannot pause, and so always works beside the others: it is looked at between their steps.
PATIENCE_BESIDE = 0.005


class Work:
    """A part of a request's text in a search; `size` is the most tokens of all its hypotheses together."""

    def __init__(self, request: Any, text: int, place: int, part: Part, size: int = 1):
        self.request, self.text, self.place, self.part, self.size = request, text, place, part, size


# Works, each with the sequences (n, T) of its n-best list.
Found = list[tuple[Work, torch.Tensor]]


class NotSharedError(Exception):
    """The model or the arguments of `generate()` do not allow that sentences join a running search."""


class SharedSearch:
    """The search of this package (continuous batching); all methods are called by one thread."""

    # A sentence joins between any two steps and leaves as soon as it is done; the others do not change its result.

    # Steps for which waiting parts may wait for more, so that they start together; starting costs as much as some
    # steps.
    patience = 8
    is_shared = True

    def __init__(self, translator: Translator, options: dict[str, Any]):
        self._translator, self._options = translator, options
        self._search: Search | None = None
        self._joined: dict[Search, list[Work | None]] = {}  # the works of each joined search; None: done
        self._ready: Found = []

    @property
    def running(self) -> Collection[Work]:
        """The works that have joined and have no result yet."""
        return [work for works in self._joined.values() for work in works if work is not None]

    @property
    def is_busy(self) -> bool:
        return bool(self._joined or self._ready)

    def join(self, works: Sequence[Work]) -> None:
        """Add works with tokens; `NotSharedError`, after one step, if the search would run to its end here."""

        def refuse() -> None:
            raise NotSharedError

        ids, criteria = [work.part.ids for work in works], [StepHook(refuse)]
        begun = self._translator.begin(ids, stopping_criteria=criteria, **self._options)
        if not isinstance(begun, Search):
            self._ready += zip(works, begun)
        elif self._search is None or not len(self._search.rows):
            self._search, self._joined = begun, {begun: list(works)}
        else:
            absorb(self._search, begun, slice(0, len(works)))
            begun.decoder = None  # copied, because its last sentence may take long
            self._joined[begun] = list(works)

    @torch.no_grad()
    def step(self) -> Found:
        """Run one step; return the finished works."""
        ready, self._ready = self._ready, []
        if self._joined and self._search is not None:
            self._search.step()
            for search, works in list(self._joined.items()):
                places = [place for place in search.is_done.nonzero()[:, 0].tolist() if works[place] is not None]
                if places:
                    search.check_scores()
                    found = search.n_best(torch.tensor(places, device=search.is_done.device))
                    ready += [(works[place], found[row]) for row, place in enumerate(places)]  # type: ignore[misc]
                    for place in places:
                        works[place] = None
                self._forget_if_done(search)
        return ready

    def take_wide(self) -> "SharedSearch | None":
        """A search of the works that need far more memory and would delay the others; they leave this one."""
        alone = None if self._search is None else take_wide_rows(self._search)
        if alone is None:
            return None
        taken = SharedSearch(self._translator, self._options)
        taken._search = alone
        for owner, search in alone.searches.items():
            works = self._joined[search]
            places = {*alone.rows.places[alone.rows.owners == owner].tolist()}
            taken._joined[search] = [work if place in places else None for place, work in enumerate(works)]
            self._joined[search] = [None if place in places else work for place, work in enumerate(works)]
            for each in (self, taken):
                each._forget_if_done(search)
        return taken

    def leave(self, works: Collection[Work]) -> None:
        """Drop these: their clients have left."""
        gone = set(works)
        self._ready = [(work, found) for work, found in self._ready if work not in gone]
        for search, its in list(self._joined.items()):
            places = [place for place, work in enumerate(its) if work in gone]
            if places and self._search is not None:
                evict(self._search, search, torch.tensor(places, device=search.is_done.device))
                for place in places:
                    its[place] = None
                self._forget_if_done(search)

    def _forget_if_done(self, search: Search) -> None:
        if not any(self._joined[search]):
            del self._joined[search]
        if not self._joined:
            self._search = None  # frees its memory


class Stopped(BaseException):  # no error: what runs in the thread must not catch it
    """The caller does not need the result any more."""


class CallInTurns(Generic[Result]):
    """A call in a thread of its own, with a function that gives back its turn after each step, or raises `Stopped`."""

    # So a loop that can only be called, not stepped, shares a CPU fairly, and two never use a model at the same time
    # unless a step takes long.

    def __init__(self, call: Callable[[Callable[[], None]], Result]):
        self._future: Future[Result] = Future()
        self._changed = threading.Condition()
        self._has_turn = self._is_stopped = False
        threading.Thread(target=self._run, args=(call,), name="search in turns", daemon=True).start()

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def advance(self, seconds: float) -> bool:
        """Give the call the turn for at most so many seconds, and return whether it is done."""
        with self._changed:
            self._has_turn = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._has_turn, seconds)
        return self.is_done

    def stop(self) -> None:
        """End the call after its present step."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def result(self) -> Result:
        """The result of a call that is done."""
        return self._future.result()

    def _pause(self) -> None:
        """Give the turn back, and wait for the next one; called in the thread."""
        with self._changed:
            self._has_turn = False
            self._changed.notify_all()
        self._wait()

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has_turn or self._is_stopped)
            if self._is_stopped:
                raise Stopped

    def _run(self, call: Callable[[Callable[[], None]], Result]) -> None:
        try:
            self._wait()
            self._future.set_result(call(self._pause))
        except BaseException as error:
            self._future.set_exception(error)
        finally:
            with self._changed:
                self._has_turn = False
                self._changed.notify_all()


class SeparateSearch:
    """
    A search that no other request can join: transformers' loop, or another engine. It runs in a thread of its own, in
    turns with the others where the engine can pause, else beside them. All methods are called by one thread.
    """

    is_shared, patience = False, 0

    def __init__(self, translator: Translator, options: dict[str, Any], mbr: MinimumRisk | None = None):
        self._translator, self._options, self._mbr = translator, options, mbr
        self._call: CallInTurns[torch.Tensor] | None = None
        self._works: list[Work | None] = []  # None: its client has left

    @property
    def running(self) -> Collection[Work]:
        """The works that have no result yet."""
        return [work for work in self._works if work is not None]

    @property
    def is_busy(self) -> bool:
        """Whether a call runs: also one that is not needed any more, but cannot pause to be stopped."""
        return self._call is not None and not (self._call.is_done and not self.running)

    def join(self, works: Sequence[Work]) -> None:
        """Begin with these works, each of which has tokens; none is running."""
        translator, parts = self._translator, [work.part for work in works]
        arguments = translator.search.padded({"sources": [part.ids for part in parts], **constraints_of(parts)})
        arguments |= self._options

        def search(pause: Callable[[], None]) -> torch.Tensor:
            if translator.search.can_pause:
                arguments["stopping_criteria"] = [StepHook(pause)]
            return translator.generate(**arguments, mbr=self._mbr)["sequences"]

        self._works, self._call = [*works], CallInTurns(search)

    def step(self) -> Found:
        """Run one step; at the end, the works that are still wanted."""
        patience = PATIENCE if self._translator.search.can_pause else PATIENCE_BESIDE
        if self._call is None or not self._call.advance(patience):
            return []
        try:
            sequences: Sequence[torch.Tensor] = [*self._call.result()] if self.running else []
        except Stopped:
            sequences = []
        found = [(work, own) for work, own in zip(self._works, sequences) if work is not None]
        self._works, self._call = [], None
        return found

    def take_wide(self) -> SharedSearch | None:
        """None: the works of a call stay together."""
        return None

    def leave(self, works: Collection[Work]) -> None:
        """Drop these: their clients have disconnected. The call ends after its present step if no request is left."""
        gone = set(works)
        self._works = [None if work in gone else work for work in self._works]
        if self._call is not None and not self.running:
            self._call.stop()
