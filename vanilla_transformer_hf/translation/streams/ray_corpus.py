"""
A corpus of text, JSON lines or Parquet through Ray Data, on one machine or a cluster.

The corpus is planned as windows of lines, which say where their lines are; each actor opens the model once, and reads
and translates one window at a time. Ray starts an actor that was killed again and repeats its window. The results
come back in the order of the lines.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...common.lines import bounded_lines, decode_lines
from ..text.tally import ProgressBar, Tally
from ..translator import Translator
from .command import Description, OpenTranslator, describe
from .lines import write_answers
from .resumable_output import StreamOutput
from .work import Answer, LineWork


# The object store of a local Ray holds windows on their way, which are small.
OBJECT_STORE_BYTES = 256 * 2**20
ENDINGS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".gz": "gz"}


class CorpusWindow(NamedTuple):
    """
    Lines of a corpus, and where they are.

    Attributes:
        path, kind: The file: "text", "jsonl" or "parquet".
        first, lines: Number of the first line in the corpus, and the number of lines.
        group, start: Row group and first row of a Parquet file; 0 and the first byte of other files.
        column: Name of the field or column with the text; "" for text.
        digest: Of the corpus up to the last line.
    """

    path: str
    kind: str
    first: int
    lines: int
    group: int
    start: int
    column: str
    digest: str

    @property
    def last(self) -> int:
        """Number of the last line."""
        return self.first + self.lines - 1

    def read(self) -> list[str]:
        """The lines."""
        if self.kind == "parquet":
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(self.path) as table:
                rows = table.read_row_group(self.group, columns=[self.column]).slice(self.start, self.lines)
            found: list[str] = rows[self.column].to_pylist()
        else:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                lines = decode_lines(file, f"{self.path}, from line {self.first} of the corpus on")
                found = list(islice(lines, self.lines))
            if self.kind == "jsonl":
                found = [self._text(self.first + place, line) for place, line in enumerate(found)]
        for place, text in enumerate(found):
            if not isinstance(text, str):
                raise ValueError(
                    f"{self.path}: line {self.first + place} of the corpus has no text in {self.column!r}"
                )
        return found

    def _text(self, number: int, line: str) -> Any:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{self.path}: line {number} of the corpus is not JSON: {error}") from error
        return record.get(self.column) if isinstance(record, dict) else None


def plan(paths: Sequence[str], size: int, column: str = "text") -> list[CorpusWindow]:
    """The windows of all files, in their order; text files are read once, of Parquet files the metadata."""
    if size < 1:
        raise ValueError(f"window={size}: must be at least 1")
    windows, digest = list[CorpusWindow](), hashlib.sha256()
    for path in map(os.path.abspath, paths):
        kind = ENDINGS.get(Path(path).suffix, "text")
        if kind == "gz":
            raise ValueError(f"{path} is compressed, so that its lines cannot be shared out: unpack it first")
        places = (
            _parquet_places(path, size, column=column)
            if kind == "parquet"
            else _line_places(path, size, digest=digest)
        )
        for group, start, lines in places:
            first = windows[-1].last + 1 if windows else 1
            if kind == "parquet":
                digest.update(f"{Path(path).stat().st_size} {group} {start} {lines}".encode())
            name = "" if kind == "text" else column
            windows.append(
                CorpusWindow(
                    path,
                    kind,
                    first=first,
                    lines=lines,
                    group=group,
                    start=start,
                    column=name,
                    digest=digest.hexdigest(),
                )
            )
    return windows


def _line_places(path: str, size: int, digest: Any) -> Iterator[tuple[int, int, int]]:
    with open(path, "rb") as file:
        lines, start = 0, 0
        for line in bounded_lines(file, path):
            digest.update(line)
            lines += 1
            if lines == size:
                yield 0, start, lines
                lines, start = 0, file.tell()
        if lines:
            yield 0, start, lines


def _parquet_places(path: str, size: int, column: str) -> Iterator[tuple[int, int, int]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    with table:
        names = table.schema_arrow.names
        if column not in names:
            raise ValueError(f"{path} has no column {column!r}: expected one of {', '.join(names)}")
        for group in range(table.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            for start in range(0, rows, size):
                yield group, start, min(size, rows - start)


class WindowTranslator:
    """An actor of Ray Data: a process with a model. Errors of the corpus come back as text, other ones are Ray's."""

    def __init__(self, open_translator: OpenTranslator, work: LineWork, device: str | None, threads: int):
        torch.set_num_threads(threads)
        self._translator, self._work = open_translator(device), work

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        (code,) = batch["window"]
        window = CorpusWindow(*json.loads(str(code)))
        tally, content, error = Tally(), b"", ""
        counts: dict[str, int] = {}
        try:
            content, counts = self._work(self._translator, window.first, window.read(), tally)
        except (OSError, ValueError) as problem:
            error = str(problem) or type(problem).__name__
        shown = {"sentences": tally.sentences, "tokens": tally.tokens}
        return {"window": [code], "content": [content], "counts": [json.dumps([shown, counts])], "error": [error]}


class Cluster(NamedTuple):
    """
    Where a corpus is translated.

    Args:
        address: Of a running Ray cluster, such as "auto" or "ray://host:10001"; None starts Ray on this machine.
        actors: How many processes translate; None: as many as there are accelerators, or else CPU cores.
        cpus, gpus: Of an actor; None: an accelerator if the cluster has some.
    """

    address: str | None = None
    actors: int | None = None
    cpus: int = 1
    gpus: float | None = None


@contextmanager
def connected(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Inside, Ray runs. Yields the arguments of `map_batches` that set how many actors there are."""
    if cluster.cpus < 1 or (cluster.actors or 1) < 1 or (cluster.gpus or 0) < 0:
        raise ValueError(f"{cluster}: actors and cpus must be at least 1, and gpus at least 0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    local: dict[str, Any] = (
        {} if cluster.address else {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    )
    try:
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False, **local)
    except ConnectionError as error:
        raise OSError(f"address={cluster.address}: there is no Ray cluster: {error}") from error
    try:
        resources = ray.cluster_resources()
        gpus = min(1.0, resources.get("GPU", 0.0)) if cluster.gpus is None else cluster.gpus
        most = int(resources.get("CPU", 0) // cluster.cpus)
        most = min(most, int(resources.get("GPU", 0) // gpus)) if gpus else most
        actors = cluster.actors or most
        if not 1 <= actors <= most:
            raise ValueError(
                f"actors={actors}, each with {cluster.cpus} CPUs and {gpus:g} GPUs: the cluster has room for {most}"
            )
        compute = ray.data.ActorPoolStrategy(size=actors)
        yield {"compute": compute, "num_cpus": cluster.cpus, "num_gpus": gpus}
    finally:
        ray.shutdown()


def rows_of(windows: Sequence[CorpusWindow], make: dict[str, Any], size: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of `WindowTranslator`, made with the arguments `make`, for each window, in order."""
    import ray

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    items = [{"window": json.dumps(window)} for window in windows]
    data = ray.data.from_items(items, override_num_blocks=len(items))  # a window is repeated after a crash, not more
    yield from data.map_batches(WindowTranslator, fn_constructor_kwargs=make, batch_size=1, **size).iter_rows()


def run_corpus(
    windows: Sequence[CorpusWindow],
    open_translator: OpenTranslator,
    work: LineWork,
    output: StreamOutput,
    cluster: Cluster,
    name: str = "the output",
) -> tuple[Tally, Description]:
    """Translate a corpus, with a progress bar on standard error; each actor opens the model."""
    # Opened here too: a mistake in the model's name is then one line, and not that of every actor.
    translator: Translator = open_translator("cpu")
    about = describe(translator)
    del translator
    output.resume({**work.settings, **about.settings})
    left = list(not_done(windows, output, name=name))
    with ProgressBar(sum(window.lines for window in windows), done=output.lines, delay=1) as tally:
        write_answers(answers_for(left, open_translator, work=work, cluster=cluster, tally=tally), output, tally=tally)
    return tally, about


def answers_for(
    windows: Sequence[CorpusWindow], open_translator: OpenTranslator, work: LineWork, cluster: Cluster, tally: Tally
) -> Iterator[tuple[CorpusWindow, Answer]]:
    """Each window with its answer, in order; nothing is started for none."""
    if not windows:
        return
    with connected(cluster) as size:
        device = None if size["num_gpus"] else "cpu"
        make = {"open_translator": open_translator, "work": work, "device": device, "threads": cluster.cpus}
        for window, row in zip(windows, rows_of(windows, make, size=size), strict=True):
            if json.loads(str(row["window"])) != list(window):
                raise RuntimeError(f"expected the lines from {window.first}, got those of {row['window']}")
            if row["error"]:
                raise ValueError(row["error"])
            shown, counts = json.loads(row["counts"])
            tally.add(**shown, **counts)
            yield window, Answer(row["content"], counts)


def not_done(windows: Iterable[CorpusWindow], output: StreamOutput, name: str) -> Iterator[CorpusWindow]:
    """The windows whose results the output does not have."""
    begun = output.lines == 0
    for window in windows:
        begun = begun or (window.last == output.lines and window.digest == output.digest)
        if window.last > output.lines:
            if not begun:
                break
            yield window
    if not begun:
        raise ValueError(
            f"{name} was begun with another input or another window: its first {output.lines} lines are not those of "
            "this one; --restart starts over"
        )
