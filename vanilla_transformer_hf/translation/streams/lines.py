"""Streams of lines through a translator, in constant memory."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ...common.lines import bounded_lines, decode_lines
from ...common.process import give_back_memory
from ..text.tally import TOLD, ProgressBar, Tally
from ..text_translator import WINDOW
from .resumable_output import InputDigest, StreamOutput


if TYPE_CHECKING:
    from .pool import WorkerPool
    from .work import Answer, LineWork


class Window(NamedTuple):
    """Some lines: the number of the first, they themselves, and the digest of the input up to the last."""

    first: int
    items: list[Any]
    digest: str

    @property
    def last(self) -> int:
        """Number of the last line."""
        return self.first + len(self.items) - 1


def answer_of(work: "LineWork", translator: Any, window: Window, tally: Tally) -> "Answer":
    """The output for a window. What it needed goes back to the system: the next one begins with as little memory."""
    answer = work(translator, window.first, window.items, tally)
    give_back_memory()
    return answer


class LocalWorker:
    """Works in this process; `description` is the result of `describe` for the translator."""

    def __init__(self, translator: Any, work: "LineWork", description: Any = None):
        self._translator, self._work, self.description = translator, work, description

    def __enter__(self) -> "LocalWorker":
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def map(self, windows: Iterable[Window], tally: Tally) -> "Iterator[tuple[Window, Answer]]":
        """Each window with its output, in order; not read further than worked on."""
        for window in windows:
            yield window, answer_of(self._work, self._translator, window, tally)


def read_items(files: Sequence[BinaryIO], on_bad_bytes: str = "error") -> tuple[Iterator[Any], int | None]:
    """The lines of a file, or tuples of several files', and their number, counted before; None for pipes."""
    names = [getattr(file, "name", "input") for file in files]
    total = None
    if all(file.seekable() for file in files):
        starts = [file.tell() for file in files]
        check = decode_lines if on_bad_bytes == "error" else bounded_lines
        checked: list[Iterator[Any]] = [check(*each) for each in zip(files, names)]
        total = sum(1 for _ in _together(checked, names))
        for file, start in zip(files, starts):
            file.seek(start)
    items = _together([decode_lines(*each, on_bad_bytes=on_bad_bytes) for each in zip(files, names)], names)
    return (line for (line,) in items) if len(files) == 1 else items, total


def _together(files: Sequence[Iterable[Any]], names: Sequence[str]) -> Iterator[Any]:
    for number, lines in enumerate(itertools.zip_longest(*files), start=1):
        if None in lines:
            raise ValueError(f"{names[lines.index(None)]} ends before its line {number}, another file does not")
        yield lines


def read_windows(items: InputDigest, size: int) -> Iterator[Window]:
    """The items in windows of this size."""
    unreadable = None
    while unreadable is None:
        first, window = items.lines + 1, []
        try:
            for item in itertools.islice(items, size):
                window.append(item)
        except ValueError as error:
            unreadable = error
        if window:
            yield Window(first, window, digest=items.digest)
        elif unreadable is None:
            return
    raise unreadable


def run_lines(
    worker: "LocalWorker | WorkerPool",
    items: Iterable[Any],
    output: StreamOutput,
    window: int = WINDOW,
    total: int | None = None,
    name: str = "the output",
) -> Tally:
    """Work on a stream of lines, with a progress bar; the lines of a window are sorted and written together."""
    if window < 1:
        raise ValueError(f"window={window}: must be at least 1")
    digest = InputDigest(iter(items))
    digest.skip(output.lines, output.digest, name=name)
    with ProgressBar(total, done=output.lines, delay=1) as tally:
        write_answers(worker.map(read_windows(digest, window), tally), output, tally=tally)
    return tally


def write_answers(answers: "Iterable[tuple[Any, Answer]]", output: StreamOutput, tally: Tally) -> None:
    """Write the answers for windows of lines, in order, with the counts so far."""
    counts = Counter({name: output.counts.get(name, 0) for name in TOLD})
    tally.add(**counts)
    for done, answer in answers:
        counts.update(answer.counts)
        output.write(answer.content, done.last, done.digest, dict(counts))
