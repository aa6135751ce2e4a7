"""Batches of sentences of about equal length, filled up to a number of tokens or of sentences."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice, pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, Sampler
from transformers.trainer_pt_utils import LengthGroupedSampler

from .parts import Mixture


class OfEpochs:
    """Depends on a seed and on the epoch, which the Trainer sets, alone, so that runs continue inside an epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.epoch = epoch


class TokenBatchSampler(OfEpochs, Sampler[list[int]]):
    """Yields lists of row numbers, whose sentences, padded to the longest, have at most `max_tokens` tokens."""

    # In each epoch sentences of equal length are shuffled, and so are the batches; both depend only on `seed` and the
    # epoch, so a run can be continued inside an epoch. With another number of processes that epoch's batches may
    # differ. The number of batches is the same in each epoch and for each process: if the number of batches is not
    # divisible by the number of processes, the largest ones are split in two. No sentence is dropped or repeated. A
    # pair's length is that of its longer side; process i of n gets batches i, i + n, i + 2n, … of the same order.
    #
    # With a `mixture` of several corpora an epoch has the rows that it says, and as many batches as the first: of one
    # with a few more, some are left out by chance, and of one with fewer, the largest are divided.

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        *,
        mixture: Mixture | None = None,
        seed: int | Sequence[int] = 0,
        num_processes: int = 1,
        process_index: int = 0,
    ):
        self.lengths, self.max_tokens = np.asarray(lengths, dtype=np.int32), max_tokens
        self.mixture, self.seed, self.num_processes, self.process_index = mixture, seed, num_processes, process_index
        self._plan = self._planned(self.lengths if mixture is None else self.lengths[mixture.rows(0)])
        self._length = (len(self._plan[2]) - 1) // num_processes

    def _planned(self, lengths: np.ndarray, least_batches: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The sentences by their lengths; where these change in this order; and the bounds of batches in it."""
        if len(lengths) < self.num_processes:
            raise ValueError(f"{len(lengths)} sentences cannot be shared out to {self.num_processes} processes.")
        if (longest := int(lengths.max())) > self.max_tokens:
            raise ValueError(
                f"row {int(lengths.argmax())} has {longest} tokens, but a batch holds at most {self.max_tokens}: "
                "raise the tokens per batch or lower the longest sentence."
            )
        # Longest first: the first sentence of a batch says how many fit.
        order = np.argsort(-lengths, kind="stable").astype(np.int32)
        lengths = lengths[order]
        runs = np.flatnonzero(np.diff(lengths, prepend=-1, append=-1))  # boundaries between lengths
        starts = [0]
        while (room := starts[-1] + self.max_tokens // int(lengths[starts[-1]])) < len(lengths):
            starts.append(room)
        bounds = [*starts, len(lengths)]
        while (len(bounds) - 1) % self.num_processes or len(bounds) - 1 < least_batches:
            largest = int(np.diff(bounds).argmax())
            if bounds[largest + 1] - bounds[largest] < 2:
                raise ValueError(
                    f"{len(bounds) - 1} batches of one sentence each cannot be shared out evenly to "
                    f"{self.num_processes} processes: allow more tokens in a batch."
                )
            bounds.insert(largest + 1, (bounds[largest] + bounds[largest + 1]) // 2)
        return order, runs, np.asarray(bounds)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        order, runs, bounds = self._plan
        rows = None if self.mixture is None else self.mixture.rows(self.epoch)
        if rows is not None:
            order, runs, bounds = self._planned(self.lengths[rows], self._length * self.num_processes)
        rng = np.random.default_rng([self.epoch, *np.atleast_1d(self.seed)])
        order = order.copy()
        for start, end in pairwise(runs):
            rng.shuffle(order[start:end])
        own = rng.permutation(len(bounds) - 1)[self.process_index :: self.num_processes]
        for batch in own[: self._length]:
            found = order[bounds[batch] : bounds[batch + 1]]
            yield (found if rows is None else rows[found]).tolist()


class TokenBatchStream(IterableDataset[list[dict[str, Any]]]):
    """Batches, as lists of sentences, of a stream of tokenized pairs that is too large to be sorted; it never ends."""

    # `buffer_size` sentences are read, made into batches and yielded in random order, before the next are read. Every
    # process reads the whole stream and keeps its share of the batches. The length of an epoch is unknown, so the
    # stream starts over by itself; a Trainer counts only steps, and a continued run reads the skipped part of the
    # stream again. The column `epoch` is added.

    def __init__(
        self,
        stream: Iterable[dict[str, Any]],
        max_tokens: int,
        *,
        buffer_size: int = 100_000,
        seed: int = 0,
        num_processes: int = 1,
        process_index: int = 0,
    ):
        self.stream, self.max_tokens, self.buffer_size, self.seed = stream, max_tokens, buffer_size, seed
        self.num_processes, self.process_index = num_processes, process_index

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for epoch in count():
            if hasattr(self.stream, "set_epoch"):
                self.stream.set_epoch(epoch)
            stream = iter(self.stream)
            for block in count():
                sentences = [{**sentence, "epoch": epoch} for sentence in islice(stream, self.buffer_size)]
                if len(sentences) < self.num_processes and block == 0:
                    raise ValueError(
                        f"the stream holds {len(sentences)} sentences for {self.num_processes} processes."
                    )
                # A remainder smaller than the number of processes cannot be divided evenly.
                if len(sentences) < self.num_processes:
                    break
                sampler = TokenBatchSampler(
                    [sentence["length"] for sentence in sentences],
                    self.max_tokens,
                    seed=(self.seed, block),
                    num_processes=self.num_processes,
                    process_index=self.process_index,
                )
                sampler.set_epoch(epoch)
                for rows in sampler:
                    yield [sentences[row] for row in rows]


class MixedSampler(OfEpochs, Sampler[int]):
    """The rows of an epoch of a `Mixture`, for batches of sentences: in any order, or of like `lengths`."""

    def __init__(self, mixture: Mixture, seed: int, batch_size: int = 1, lengths: np.ndarray | None = None):
        self.mixture, self.seed, self.batch_size, self.lengths = mixture, seed, batch_size, lengths

    def __len__(self) -> int:
        return sum(self.mixture.counts)

    def __iter__(self) -> Iterator[int]:
        rows = self.mixture.rows(self.epoch)
        if self.lengths is None:
            order: Any = np.random.default_rng([self.seed, self.epoch]).permutation(len(rows))
        else:
            within = EpochLengthSampler(self.batch_size, self.lengths[rows].tolist(), self.seed)
            within.set_epoch(self.epoch)
            order = list(within)
        yield from rows[order].tolist()


class EpochLengthSampler(OfEpochs, LengthGroupedSampler):
    """transformers' sampler of like lengths, ordered by seed and epoch alone."""

    def __init__(self, batch_size: int, lengths: list[int], seed: int):
        super().__init__(batch_size, lengths=lengths, generator=torch.Generator())
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(hash((self.seed, self.epoch)))
        order: Iterator[int] = super().__iter__()  # type: ignore[no-untyped-call]
        return order


class CurriculumSampler(EpochLengthSampler):
    """Batches of like lengths, of the shortest rows at first (Platanios et al. 2019, arXiv 1903.09848)."""

    # The competence-based curriculum with the length as the difficulty. A batch of step t is taken from the shortest
    # c(t) of the rows, c(t) = √(t (1 - c₀²) / T + c₀²), c₀ = 0.01; from step T on, batches are those of
    # `EpochLengthSampler`.

    START = 0.01  # c₀

    def __init__(self, batch_size: int, lengths: list[int], seed: int, steps: int):
        super().__init__(batch_size, lengths, seed)
        self.steps = steps

    def __iter__(self) -> Iterator[int]:
        rows, size = len(self.lengths), self.batch_size
        rng = np.random.default_rng([self.seed, self.epoch])
        shortest_first = np.lexsort((rng.random(rows), np.asarray(self.lengths)))
        usual = list(super().__iter__())
        starts = range(0, rows, size)
        for step, start in enumerate(starts, start=self.epoch * len(starts)):
            batch: Any = usual[start : start + size]
            if step < self.steps:
                competence = (step * (1 - self.START**2) / self.steps + self.START**2) ** 0.5
                first = int(rng.integers(max(int(competence * rows) - len(batch), 0) + 1))
                batch = shortest_first[first : first + len(batch)].tolist()
            yield from batch
