"""
Searches that parts of any clients' texts enter and leave between two steps, for both engines.

Each search has one set of options. `SharedSearch` is the search of this package, `CTranslate2Search` that of
CTranslate2, which translates batch by batch.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
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


class RunningSearch(ABC):
    """The interface of a search that the batcher runs. All methods are called by one thread."""

    # Steps for which waiting parts may wait for more, so that they start together; starting costs as much as some
    # steps.
    patience = 0

    @property
    @abstractmethod
    def running(self) -> Collection[Work]:
        """The works that have joined and have no result yet."""

    @abstractmethod
    def join(self, works: Sequence[Work]) -> None:
        """Add these works, each of which has tokens."""

    @abstractmethod
    def step(self) -> Found:
        """Run one step; return the finished works, each with the n-best list of its part."""

    @abstractmethod
    def leave(self, works: Collection[Work]) -> None:
        """Drop these: their clients have left."""


class SharedSearch(RunningSearch):
    """
    The search of this package (continuous batching): a sentence joins between any two steps and leaves as soon as it
    is done. The result for a sentence does not depend on the others.

    Args:
        translator: Whose model searches.
        options: Arguments of `generate()`.
    """

    patience = 8

    def __init__(self, translator: Translator, options: dict[str, Any]):
        self._translator, self._options = translator, options
        self._search: Search | None = None
        self._joined: dict[Search, list[Work | None]] = {}  # the works of each joined search; None: done
        self._ready: Found = []

    @property
    def running(self) -> Collection[Work]:
        return [work for works in self._joined.values() for work in works if work is not None]

    def join(self, works: Sequence[Work]) -> None:
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


# Arguments of `generate()` -> those of CTranslate2's `translate_batch`.
CTRANSLATE2_OPTIONS = {
    "num_beams": "beam_size",
    "num_return_sequences": "num_hypotheses",
    "max_new_tokens": "max_decoding_length",
    "length_penalty": "length_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "repetition_penalty": "repetition_penalty",
}


class CTranslate2Engine:
    """
    A model that was exported for CTranslate2, opened once for all its searches.

    Args:
        folder: Output of `vanilla-transformer export ctranslate2`.
        threads: For each batch.

    Raises:
        OSError: A file of the folder is missing.
        ValueError: CTranslate2 is not installed.
    """

    def __init__(self, folder: Path, threads: int):
        try:
            import ctranslate2
        except ModuleNotFoundError as error:
            message = "engine ctranslate2 is not installed: pip install 'vanilla_transformer_hf[export]'"
            raise ValueError(message) from error
        self.translate_batch = ctranslate2.Translator(
            str(folder), device="auto", intra_threads=threads
        ).translate_batch
        self.options = json.loads((folder / "translate_batch.json").read_text(encoding="utf-8"))
        shared = folder / "shared_vocabulary.json"
        self.source, self.target = (
            json.loads((shared if shared.exists() else folder / f"{side}_vocabulary.json").read_text(encoding="utf-8"))
            for side in ("source", "target")
        )
        self.ids = {piece: index for index, piece in enumerate(self.target)}


class CTranslate2Search(RunningSearch):
    """
    Batches through CTranslate2: works that have joined are translated in the next step.

    Args:
        engine: The exported model.
        translator: The translator whose tokenizer decodes the results.
        options: Arguments of `generate()` of `CTRANSLATE2_OPTIONS`.
    """

    def __init__(self, engine: CTranslate2Engine, translator: Translator, options: dict[str, Any]):
        self._engine, self._translator = engine, translator
        self._options = {**engine.options, **{CTRANSLATE2_OPTIONS[name]: value for name, value in options.items()}}
        longest = translator.max_target_length
        self._options["max_decoding_length"] = min(self._options["max_decoding_length"], longest)
        self._works: list[Work] = []

    @property
    def running(self) -> Collection[Work]:
        return self._works

    def join(self, works: Sequence[Work]) -> None:
        self._works += works

    def step(self) -> Found:
        works, self._works = self._works, []
        if not works:
            return []
        sources = [[self._engine.source[index] for index in work.part.ids] for work in works]
        results = self._engine.translate_batch(sources, **self._options)
        return [(work, self._read(result.hypotheses)) for work, result in zip(works, results, strict=True)]

    def leave(self, works: Collection[Work]) -> None:
        gone = set(works)
        self._works = [work for work in self._works if work not in gone]

    def _read(self, hypotheses: Sequence[Sequence[str]]) -> list[Translation]:
        padding = self._translator.tokenizer.pad_token_id
        rows = [[padding, *(self._engine.ids[piece] for piece in each)] for each in hypotheses]
        longest = max(map(len, rows))
        sequences = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
        return self._translator.decode(sequences, None)


# Options of `generate()` to a search with them.
MakeSearch = Callable[[dict[str, Any]], RunningSearch]
