"""Continuous batching: clients' texts share searches, which parts enter between two steps, in turns, and leave."""

import logging
import math
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import torch

from ..model.tokenizer.failures import TokenizerError
from ..translation.documents.places import aligner
from ..translation.results import Translation, known_translations
from ..translation.search.minimum_risk import MinimumRisk
from ..translation.text.glossary import Glossary
from ..translation.text.splitting import Part
from ..translation.text.texts import BATCH_SENTENCES, BATCH_TOKENS
from ..translation.text_translator import KnownTexts
from ..translation.translator import Translator
from .fair_queue import FairQueue
from .searches import Found, NotSharedError, SeparateSearch, SharedSearch, Work


logger = logging.getLogger(__name__)

# A request of more parts is a long one: it has a search of its own, which takes turns with that of the short ones.
SHORT_PARTS = 8
# Maximum number of sentences in the search of long requests: each of its steps delays the short ones.
LONG_ROWS = 16
# Waiting parts join at once if their number is this share of those in the search.
JOINING_SHARE = 1 / 4
# Most tokens of all hypotheses of a search together, which bounds its memory; a single sentence may have more.
SEARCH_TOKENS = 2**17
# Separate searches that a client may have at the same time. An engine that cannot pause works beside the others, with
# as many searches as it has copies for: a client gets one.
CLIENT_SEARCHES, CLIENT_SEARCHES_BESIDE = 4, 1
# Separate searches of all clients together: each has a thread, and memory.
SEPARATE_SEARCHES = 16
# Searches of sentences that need far more memory than others: those beyond stay where they are until one ends.
MOST_WIDE = 8
# Settings that are known to need a separate search; when there are more they are found out again.
KNOWN_SEPARATE = 1024
# Seconds between checks for requests past their deadline.
DEADLINE_INTERVAL = 0.02
# Texts that are encoded before others may be.
ENCODED_TOGETHER = 16
# Beams of sentences with terms of a glossary where others are searched with one.
TERM_BEAMS = 4
# Limits of Retry-After, in seconds, when the queue is full.
RETRY_AFTER = (1, 60)


class QueueFullError(Exception):
    """Too many parts of texts wait; after `retry_after` seconds there may be room."""

    def __init__(self, waiting: int, most: int, retry_after: int):
        super().__init__(f"{waiting:,} sentences wait, and at most {most:,} may; try again in {retry_after} seconds")
        self.retry_after = retry_after


class DeadlineError(Exception):
    """The deadline of a request passed before its texts were translated."""


class Ticket:
    """A request on its way; its `future` gets the n-best list of each text, or the error, such as `DeadlineError`."""

    # `deadline` is by `time.monotonic()`. `finish` takes a text, its parts, their n-best lists and the options to the
    # text's n-best list, `size` the tokens of a part to the most tokens of all its hypotheses.

    def __init__(
        self,
        texts: Sequence[str],
        parts: Sequence[Sequence[Part]],
        options: dict[str, Any],
        client: Hashable,
        deadline: float,
        finish: Callable[..., list[Translation]],
        size: Callable[[int], int] = lambda length: 1,
        n_best: int = 1,
        mbr: MinimumRisk | None = None,
    ):
        self.texts, self.parts, self.options, self.mbr = texts, parts, options, mbr
        self.client, self.deadline, self._finish = client, deadline, finish
        self.future: Future[list[list[Translation]]] = Future()
        self.is_cancelled = False
        self.works = [
            Work(self, text, place, part, size(len(part.ids)))
            for text, own in enumerate(parts)
            for place, part in enumerate(own)
        ]
        self.searched, self._found = list[Work](), dict[tuple[int, int], list[Translation]]()
        for work in self.works:
            if work.part.known is None:
                self.searched.append(work)
            else:
                self._found[work.text, work.place] = known_translations(work.part.known, n_best)
        self._told, self._lock = 0, threading.Lock()
        self._listener: Callable[[dict[str, Any] | None], None] | None = None

    def cancel(self) -> None:
        """Cancel the request; its parts leave the search."""
        self.is_cancelled = True

    def listen(self, tell: Callable[[dict[str, Any] | None], None]) -> None:
        """Call `tell`, from any thread, with each part when it and all earlier parts are done, and with None."""
        # A part is {"text": index of the text, "part": index of the part, "translation": its best}; None, when the
        # future is done.
        with self._lock:
            self._listener = tell
            self._tell()
        self.future.add_done_callback(lambda future: tell(None))

    def add(self, work: Work, found: list[Translation]) -> None:
        """Store the n-best list of a part; the last one completes the future."""
        with self._lock:
            self._found[work.text, work.place] = found
            self._tell()
        if len(self._found) == len(self.works):
            self.complete()

    def complete(self) -> None:
        """Complete the future; all parts are done."""
        found = [[self._found[place, part] for part in range(len(own))] for place, own in enumerate(self.parts)]
        texts = zip(self.texts, self.parts, found)
        self.settle([self._finish(text, parts, lists, self.options) for text, parts, lists in texts])

    def settle(self, result: list[list[Translation]] | BaseException) -> None:
        """Set the future's result or exception, unless it is done."""
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)

    def _tell(self) -> None:
        while self._listener is not None and self._told < len(self.works):
            work = self.works[self._told]
            if (work.text, work.place) not in self._found:
                return
            best = str(self._found[work.text, work.place][0])
            self._listener({"text": work.text, "part": work.place, "translation": best})
            self._told += 1


Options = tuple[tuple[str, Any], ...]
# Who takes turns: a client, whether its requests have options of their own, and whether they have searches alone.
Flow = tuple[Hashable, bool, bool]


@dataclass(frozen=True)
class LaneKey:
    """What the parts in a lane have in common."""

    is_long: bool  # whether they are of long requests
    options: Options  # arguments of `generate()`
    is_shared: bool  # whether they share a search that parts may join
    owner: Hashable = None  # the only client, where others must not wait for its search
    # Number of a search of parts that need far more memory than others, and have left them; 0: it is none.
    wide: int = 0
    mbr: MinimumRisk | None = None


class Lane:
    """A search and its queue; of a client's lanes the one with the fewest seconds `spent` runs next."""

    def __init__(self, key: LaneKey, translator: Translator, most_rows: int, spent: float):
        self.key, self.most_rows, self.spent, self._translator = key, most_rows, spent, translator
        self.waiting = FairQueue[Work]()
        self.waited = 0  # steps since waiting parts could have joined
        self.begin_anew()

    def begin_anew(self) -> None:
        """Replace the search by a new one."""
        given = self._translator, dict(self.key.options)
        self.search = SharedSearch(*given) if self.key.is_shared else SeparateSearch(*given, self.key.mbr)

    @property
    def clients(self) -> set[Hashable]:
        """Those whose parts wait or are searched; the owner also while a call runs whose result is not needed."""
        if self.key.owner is not None:
            return {self.key.owner}
        return {*self.waiting.clients, *(work.request.client for work in self.search.running)}

    def entering(self, most_tokens: int) -> list[Work]:
        """The parts that join before the next step: as many as fit, unless waiting for more is better."""
        running = self.search.running
        rows = len(running)
        is_closed = self.search.is_busy and not self.search.is_shared
        if not self.waiting or rows >= self.most_rows or is_closed:
            return []
        self.waited += 1
        if rows and len(self.waiting) < rows * JOINING_SHARE and self.waited <= self.search.patience:
            return []
        longest = max((len(work.part.ids) for work in running), default=0)
        largest = max((work.size for work in running), default=0)
        works = list[Work]()
        while self.waiting and (filled := rows + len(works)) < self.most_rows:
            work = self.waiting.next()
            longest, largest = max(longest, len(work.part.ids)), max(largest, work.size)
            if filled and ((filled + 1) * longest > most_tokens or (filled + 1) * largest > SEARCH_TOKENS):
                break
            works.append(self.waiting.take())
        if works:
            self.waited = 0
        return works


class Batcher:
    """
    Translates the texts of all clients together, in its own thread.

    Short requests share one search and long ones another, and requests with other options have their own searches.
    Clients take turns, by the time that their searches take; in a client's turn that of its searches runs that has had
    the least time. Requests of a client with options of their own take turns with its others: behind a proxy all have
    one address, and most have no options. Waiting parts join in turns of the clients and of their requests. Calls that
    other requests cannot join (another engine, transformers' loop) run in threads of their own, in turns with the
    rest; where the options are the request's, each client has its own, and all of these together take turns with the
    searches that are open to everybody. Sentences that need far more memory than the others of their search leave it
    for one of their own, which runs in the turns of their clients. The translation of a sentence equals that of
    `Translator.translate`, no matter what else is running.

    Args:
        translator: The translator; it must not be used elsewhere meanwhile.
        most_rows: Maximum number of sentences that are searched together. 1 translates one after the other.
        most_tokens: Maximum number of source tokens that are, padding included.
        most_waiting: Most parts of texts that may wait.

    Attributes:
        running: Parts of texts that are searched.

    Raises:
        ValueError: A bound is less than 1.

    Example:

    ```python
    >>> from vanilla_transformer_hf import Translator
    >>> from vanilla_transformer_hf.serving.batcher import Batcher
    >>> batcher = Batcher(Translator.from_pretrained("model_cards/multi30k_raw_en_de"))
    >>> batcher.start()
    >>> batcher.submit(["Two dogs are playing."], {"num_beams": 4}).future.result()  # an n-best list for each text
    [['Zwei Hunde spielen.']]
    >>> batcher.stop()

    ```
    """

    def __init__(
        self,
        translator: Translator,
        most_rows: int = BATCH_SENTENCES,
        most_tokens: int = BATCH_TOKENS,
        most_waiting: int = 4096,
    ):
        for name, value in (("most_rows", most_rows), ("most_tokens", most_tokens), ("most_waiting", most_waiting)):
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        self.translator = translator
        self._most_rows, self._most_tokens, self._most_waiting = most_rows, most_tokens, most_waiting
        self._lanes: dict[LaneKey, Lane] = {}
        self._spent: dict[Flow | bool, float] = {}  # seconds of its turns; of those with searches alone, and others
        self._separate: set[Options] = set()  # options that are known to need a separate search
        self._changed, self._encoding = threading.Condition(), threading.Lock()
        self._tickets: set[Ticket] = set()
        self._is_stopping, self.running, self._wide = False, 0, 0
        self._next_look = self._busy_since = 0.0
        self._done = 0  # parts since the batcher became busy
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    @property
    def waiting(self) -> int:
        """Parts of texts that wait for a place."""
        return sum(len(lane.waiting) for lane in list(self._lanes.values()))

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self, finish: bool = True, seconds: float | None = None) -> None:
        """
        Accept no more requests; finish running ones, or let them fail, and end the thread, for which this waits at
        most so many seconds.
        """
        with self._changed:
            self._is_stopping = True
            if not finish:
                for ticket in self._tickets:
                    ticket.cancel()
            self._changed.notify()
        if self.is_alive:
            self._thread.join(seconds)

    def submit(
        self,
        texts: Sequence[str],
        options: dict[str, Any] | None = None,
        client: Hashable = None,
        seconds: float = math.inf,
        source_prefix: str | None = None,
        glossary: Glossary | None = None,
        memory: KnownTexts | None = None,
        mbr: MinimumRisk | None = None,
    ) -> Ticket:
        """
        Submit texts for translation. Any thread may call it; it encodes the texts and returns without waiting.

        Args:
            texts: Texts of any length; those that are too long are split.
            options: Arguments of `generate()`.
            client: The client, for the order of turns.
            seconds: The time limit.
            source_prefix: Text put before each text, in place of the translator's.
            glossary, memory: In place of the translator's. Sentences with terms are searched with at least
                `TERM_BEAMS` beams where their options, or the model's, are of a greedy search.
            mbr: The search for the translation that is most like many others, sentence by sentence; where a sentence
                has terms, its candidates are of a beam search.

        Raises:
            ValueError: The options exclude each other or are out of range.
            QueueFullError: Too much waits already.
            RuntimeError: The batcher has stopped.
        """
        options = {name: value for name, value in (options or {}).items() if value is not None}
        own = options if mbr is None else mbr.of_candidates(options)
        self.translator.check_options(**own)
        deadline = monotonic() + seconds
        if self.waiting >= self._most_waiting_of(client):
            raise self._queue_full()
        glossary = self.translator.glossary if glossary is None else glossary
        memory = self.translator.memory if memory is None else memory
        if glossary is not None:
            with_terms = self._with_beams(own) if mbr is None else mbr.of_beams().of_candidates(options)
            self.translator.check_terms(**with_terms)
        parts = self._encode(texts, source_prefix, deadline, glossary, memory)
        beams = self.translator.search.setting("num_beams", own) or 1

        def size(length: int) -> int:
            return beams * self.translator.search.most_target_tokens(length, options)

        n_best = self.translator.search.setting("num_return_sequences", options) or 1
        ticket = Ticket(texts, parts, options, client, deadline, self.translator.join, size, n_best, mbr)
        if not ticket.searched:
            ticket.complete()
            return ticket
        with self._changed:
            if self._is_stopping:
                raise RuntimeError("the batcher has stopped")
            waiting = self.waiting
            if waiting and waiting + len(ticket.searched) > self._most_waiting_of(client):
                raise self._queue_full()
            if not self._tickets:
                self._busy_since, self._done = monotonic(), 0
            self._tickets.add(ticket)
            self._enqueue(ticket, ticket.searched)
            self._changed.notify()
        return ticket

    def align(
        self, pairs: Sequence[tuple[str, str]], prefix: str | None = None, deadline: float = math.inf
    ) -> Sequence[torch.Tensor | None]:
        """Attention as of `aligner`, from any thread; `TimeoutError` after a deadline by `time.monotonic()`."""
        align, found = aligner(self.translator, prefix), list[torch.Tensor | None]()
        for start in range(0, len(pairs), ENCODED_TOGETHER):
            with self._encoding:
                if monotonic() > deadline:
                    raise TimeoutError
                found += align(pairs[start : start + ENCODED_TOGETHER])
        return found

    def _with_beams(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of a search that requires terms."""
        beams = self.translator.search.setting("num_beams", options) or 1
        return options if beams > 1 else {**options, "num_beams": TERM_BEAMS}

    def _encode(
        self,
        texts: Sequence[str],
        source_prefix: str | None,
        deadline: float,
        glossary: Glossary | None,
        memory: KnownTexts | None,
    ) -> list[list[Part]]:
        """The parts of each text; `DeadlineError` where the time is too short for all of them."""
        known = None if memory is None else memory.get
        encoder, parts = self.translator.encoder(source_prefix=source_prefix, known=known), list[list[Part]]()
        for start in range(0, len(texts), ENCODED_TOGETHER):
            with self._encoding:  # the tokenizer is not used by two threads at once
                if monotonic() > deadline:
                    raise DeadlineError
                some = texts[start : start + ENCODED_TOGETHER]
                parts += encoder(some)
                if glossary is not None:
                    self.translator.require_terms(some, parts[start:], glossary)
        return parts

    def _most_waiting_of(self, client: Hashable) -> int:
        """Most parts that may wait with those of this client: a full queue keeps some places for those with none."""
        has_some = any(client in lane.waiting.clients for lane in list(self._lanes.values()))
        return self._most_waiting + (0 if has_some else self._most_waiting // 8)

    def _queue_full(self) -> QueueFullError:
        speed = self._done / max(monotonic() - self._busy_since, 1e-3)  # parts a second
        least, most = RETRY_AFTER
        waiting = self.waiting
        seconds = min(most, max(least, math.ceil(waiting / speed))) if speed else least
        return QueueFullError(waiting, self._most_waiting, seconds)

    def _enqueue(self, ticket: Ticket, works: Sequence[Work]) -> None:
        """Put parts of a request into the queues of their lanes: those whose translations must contain terms apart."""
        for has_terms in (False, True):
            some = [work for work in works if any(ids for *_, ids in work.part.terms) == has_terms]
            if not some:
                continue
            given, mbr = ticket.options, ticket.mbr
            if has_terms:
                given, mbr = (self._with_beams(given), None) if mbr is None else (given, mbr.of_beams())
            options = tuple(sorted(given.items()))
            # Sentences whose translations must contain something start together.
            can_share = mbr is None and not has_terms and self.translator.search.can_stream
            is_shared = can_share and options not in self._separate
            # With the model's own settings, which its owner has chosen, batches of all clients are faster.
            owner = ticket.client if (ticket.options or mbr) and not is_shared else None
            key = LaneKey(len(ticket.works) > SHORT_PARTS, options, is_shared, owner, mbr=mbr)
            if key not in self._lanes:
                rows = min(self._most_rows, LONG_ROWS) if key.is_long else self._most_rows
                rows = rows if key.mbr is None else 1  # whose candidates are a batch
                spent = min((lane.spent for lane in self._lanes.values()), default=0.0)
                self._lanes[key] = Lane(key, self.translator, rows, spent)
            for work in some:
                self._lanes[key].waiting.put(ticket.client, ticket, work)

    # ------------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._tickets and not self._is_stopping:
                    self._changed.wait()
                if not self._tickets:
                    return
                self._dismiss_those_gone()
                lane, flows = self._next_turn()
                works = lane.entering(self._most_tokens) if lane else []
                if lane is None and self._tickets:  # all wait for calls that end beside this thread
                    self._changed.wait(DEADLINE_INTERVAL)
            if lane is not None:
                self._advance(lane, works, flows)

    def _next_turn(self) -> tuple[Lane | None, Collection[Flow]]:
        """
        The lane that runs next, and those whose turn it is: of all who may run one, the one that has had the least
        time; it runs its lane that has. Those with searches alone take turns, together, with all others: one of theirs
        costs as much as the search of all.
        """
        lanes_of: dict[Flow, list[Lane]] = {}
        for lane in self._lanes.values():
            for client in lane.clients:
                flow = client, bool(lane.key.options or lane.key.mbr), lane.key.owner is not None
                lanes_of.setdefault(flow, []).append(lane)
        most = CLIENT_SEARCHES if self.translator.search.can_pause else CLIENT_SEARCHES_BESIDE
        has_room = _separate(self._lanes.values()) < SEPARATE_SEARCHES
        turns: dict[Flow, Lane] = {}
        for flow, lanes in lanes_of.items():
            may_begin = has_room and _separate(lanes) < most
            ready = [lane for lane in lanes if may_begin or lane.key.is_shared or lane.search.is_busy]
            if ready:
                turns[flow] = min(ready, key=lambda lane: lane.spent)
        if not turns:
            return None, ()
        spent: dict[Flow | bool, float] = {}
        alone = [flow for flow in lanes_of if flow[-1]]
        others = [flow for flow in lanes_of if not flow[-1]]
        equal: list[Collection[Flow | bool]] = [alone, others, {flow[-1] for flow in lanes_of}]
        for equals in equal:  # who comes anew begins with the least time that another has had
            least = min((self._spent[each] for each in equals if each in self._spent), default=0.0)
            spent |= {each: self._spent.get(each, least) for each in equals}
        self._spent = spent
        chosen = turns[min(turns, key=lambda flow: (spent[flow[-1]], spent[flow]))]
        return chosen, [flow for flow, lane in turns.items() if lane is chosen]

    def _advance(self, lane: Lane, works: list[Work], flows: Iterable[Flow]) -> None:
        """Run one step of a lane, in which these works join its search, in the turn of these."""
        began = monotonic()
        try:
            if works:
                lane.search.join(works)
            found = lane.search.step()
        except NotSharedError:
            found = []
            self._separate_lane(lane, works)
        except Exception as error:  # an error of the engine, such as out of memory; other requests continue
            logger.exception("a search failed")
            self._fail(lane, {work.request for work in [*works, *lane.search.running]}, error)
            return
        self._hand_out(found)
        took = monotonic() - began
        lane.spent += took
        with self._changed:
            has_room = sum(key.wide > 0 for key in self._lanes) < MOST_WIDE
            if has_room and not lane.key.wide and (wide := lane.search.take_wide()) is not None:
                self._wide += 1
                key = replace(lane.key, wide=self._wide)
                self._lanes[key] = Lane(key, self.translator, lane.most_rows, lane.spent)
                self._lanes[key].search = wide
            self._spent[lane.key.owner is not None] += took
            for flow in flows:
                self._spent[flow] += took
            self._tickets = {ticket for ticket in self._tickets if not ticket.future.done()}
            self._drop_idle_lanes()

    def _separate_lane(self, lane: Lane, works: list[Work]) -> None:
        """Move these works, and those that wait in the lane, to lanes with separate searches."""
        with self._changed:
            if len(self._separate) >= KNOWN_SEPARATE:
                self._separate.clear()
            self._separate.add(lane.key.options)
            del self._lanes[lane.key]
            while lane.waiting:
                works.append(lane.waiting.take())
            for work in works:
                self._enqueue(work.request, [work])

    def _hand_out(self, found: Found) -> None:
        for work, sequences in found:
            try:
                work.request.add(work, self.translator.decode(sequences, None))
            except TokenizerError as error:
                work.request.settle(error)
            except Exception as error:  # an error of a listener: other translations continue
                logger.exception("a translation could not be delivered")
                work.request.settle(error)
        self._done += len(found)

    def _fail(self, lane: Lane, tickets: Iterable[Ticket], error: Exception) -> None:
        """Let these requests fail, and continue with a new search for the others in the lane."""
        with self._changed:
            for ticket in tickets:
                lane.waiting.remove(ticket.client, ticket)
                ticket.settle(error)
                self._tickets.discard(ticket)
            lane.begin_anew()
            self._drop_idle_lanes()

    def _dismiss_those_gone(self) -> None:
        """Remove the parts of requests that were cancelled or are past their deadline."""
        now = monotonic()
        if now < self._next_look:
            return
        self._next_look = now + DEADLINE_INTERVAL
        gone = {ticket for ticket in self._tickets if ticket.is_cancelled or ticket.deadline < now}
        if not gone:
            return
        for lane in self._lanes.values():
            for ticket in gone:
                lane.waiting.remove(ticket.client, ticket)
            if works := [work for work in lane.search.running if work.request in gone]:
                lane.search.leave(works)
        for ticket in gone:
            if ticket.is_cancelled:
                ticket.future.cancel()
            ticket.settle(DeadlineError())
        self._tickets -= gone
        self._drop_idle_lanes()

    def _drop_idle_lanes(self) -> None:
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane.waiting or lane.search.is_busy}
        self.running = sum(len(lane.search.running) for lane in self._lanes.values())


def _separate(lanes: Iterable[Lane]) -> int:
    """The number of separate searches that run."""
    return sum(lane.search.is_busy for lane in lanes if not lane.key.is_shared)
