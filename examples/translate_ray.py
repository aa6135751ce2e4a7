"""
Translate a corpus with Ray Data, on one machine or a cluster: text, JSON lines or Parquet.

    python examples/translate_ray.py outputs/quickstart --input numbers.en --output numbers.de --actors 2
    python examples/translate_ray.py outputs/quickstart --input part-1.parquet part-2.parquet --column text \\
        --output translations.jsonl --format jsonl
    python examples/translate_ray.py outputs/quickstart --input web.jsonl --output web.tsv --format tsv \\
        --address auto

The corpus is planned as windows of lines, which say where their lines are. Each actor is a process that opens the
model once, and reads and translates one window at a time; Ray starts one that was killed again and repeats its window.
The output is complete and in the order of the lines; a run that was killed leaves whole lines in FILE.partial, and the
same command continues it. On a cluster, every machine needs the package, and the model and the corpus under the same
paths.
"""

import argparse
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch

from vanilla_transformer_hf.commands.translate import add_search_arguments, add_split_sentences, search_options
from vanilla_transformer_hf.common.choices import TooLongToTranslate
from vanilla_transformer_hf.common.command_line import make_parser, run
from vanilla_transformer_hf.common.files import refuse_overwriting
from vanilla_transformer_hf.common.lines import bounded_lines, decode_lines
from vanilla_transformer_hf.translation.streams.lines import write_answers
from vanilla_transformer_hf.translation.streams.opening import describe, open_translator
from vanilla_transformer_hf.translation.streams.resumable_output import StreamOutput, open_result
from vanilla_transformer_hf.translation.streams.work import Answer, LineWork
from vanilla_transformer_hf.translation.text.tally import ProgressBar, Tally


# The object store of a local Ray holds windows on their way, which are small.
OBJECT_STORE_BYTES = 256 * 2**20
ENDINGS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".gz": "gz"}


class CorpusWindow(NamedTuple):
    """Lines of a corpus, and where they are."""

    path: str
    kind: str  # "text", "jsonl" or "parquet"
    first: int  # Number of the first line in the corpus
    lines: int
    group: int  # Row group of a Parquet file; 0 of other files
    start: int  # First row in it; first byte of other files
    column: str  # Field or column with the text; "" for text
    digest: str  # Of the corpus up to the last line

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
        is_table, name = kind == "parquet", "" if kind == "text" else column
        places = _parquet_places(path, size, column) if is_table else _line_places(path, size, digest)
        for group, start, lines in places:
            first = windows[-1].last + 1 if windows else 1
            if is_table:
                digest.update(f"{Path(path).stat().st_size} {group} {start} {lines}".encode())
            windows.append(CorpusWindow(path, kind, first, lines, group, start, name, digest.hexdigest()))
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


class WindowTranslator:
    """An actor of Ray Data: a process with a model. Errors of the corpus come back as text, other ones are Ray's."""

    def __init__(self, opens: Callable[[str | None], Any], work: LineWork, device: str | None, threads: int):
        torch.set_num_threads(threads)
        self._translator, self._work = opens(device), work

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


@contextmanager
def connected(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Inside, Ray runs. Yields the arguments of `map_batches` that set how many actors there are."""
    cpus, gpus = arguments.cpus_per_actor, arguments.gpus_per_actor
    if cpus < 1 or (arguments.actors or 1) < 1 or (gpus or 0) < 0:
        raise ValueError(
            f"actors={arguments.actors}, cpus_per_actor={cpus}, gpus_per_actor={gpus}: actors and their CPUs must be "
            "at least 1, and GPUs at least 0"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    local: dict[str, Any] = (
        {} if arguments.address else {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    )
    try:
        ray.init(address=arguments.address, logging_level=logging.ERROR, log_to_driver=False, **local)
    except ConnectionError as error:
        raise OSError(f"address={arguments.address}: there is no Ray cluster: {error}") from error
    try:
        resources = ray.cluster_resources()
        gpus = min(1.0, resources.get("GPU", 0.0)) if gpus is None else gpus
        most = int(resources.get("CPU", 0) // cpus)
        most = min(most, int(resources.get("GPU", 0) // gpus)) if gpus else most
        actors = arguments.actors or most
        if not 1 <= actors <= most:
            raise ValueError(
                f"actors={actors}, each with {cpus} CPUs and {gpus:g} GPUs: the cluster has room for {most}"
            )
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield {"compute": ray.data.ActorPoolStrategy(size=actors), "num_cpus": cpus, "num_gpus": gpus}
    finally:
        ray.shutdown()


def answers_for(
    windows: Sequence[CorpusWindow],
    opens: Callable[[str | None], Any],
    work: LineWork,
    arguments: argparse.Namespace,
    tally: Tally,
) -> Iterator[tuple[CorpusWindow, Answer]]:
    """Each window with its answer, in order; nothing is started for none."""
    if not windows:
        return
    with connected(arguments) as size:
        import ray

        make = {"opens": opens, "work": work, "device": None if size["num_gpus"] else "cpu"}
        make["threads"] = arguments.cpus_per_actor
        items = [{"window": json.dumps(window)} for window in windows]
        data = ray.data.from_items(
            items, override_num_blocks=len(items)
        )  # a window is repeated after a crash, not more
        rows = data.map_batches(WindowTranslator, fn_constructor_kwargs=make, batch_size=1, **size).iter_rows()
        for window, row in zip(windows, rows, strict=True):
            if json.loads(str(row["window"])) != list(window):
                raise RuntimeError(f"expected the lines from {window.first}, got those of {row['window']}")
            if row["error"]:
                raise ValueError(row["error"])
            shown, counts = json.loads(row["counts"])
            tally.add(**shown, **counts)
            yield window, Answer(row["content"], counts)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(os.path.basename(sys.argv[0]), __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help="UTF-8 text, .jsonl or .parquet")
    parser.add_argument("--output", required=True, metavar="FILE", help="where to write")
    parser.add_argument("--column", default="text", metavar="NAME", help="field of the text (default: text)")
    parser.add_argument("--format", default="text", choices=["text", "tsv", "jsonl"], help="as of translate")
    parser.add_argument("--n_best", type=int, metavar="N", help="write the N best translations of each line")
    parser.add_argument("--restart", action="store_true", help="begin FILE anew")
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument("--address", help="a running cluster: auto or HOST:PORT (default: start Ray here)")
    cluster.add_argument("--actors", type=int, metavar="N", help="processes that translate (default: all that fit)")
    cluster.add_argument("--cpus_per_actor", type=int, default=1, metavar="N", help="also its threads (default: 1)")
    cluster.add_argument("--gpus_per_actor", type=float, metavar="N", help="default: 1 if the cluster has any")
    add_search_arguments(parser.add_argument_group("search (default: what the model was saved with)"))
    model = parser.add_argument_group("model")
    choices = get_args(TooLongToTranslate)
    model.add_argument("--too_long", default="split", choices=choices, help="as of translate (default: split)")
    add_split_sentences(model)
    model.add_argument("--window", type=int, default=2048, metavar="N", help="lines of a task (default: 2048)")
    model.add_argument("--max_source_length", type=int, metavar="N", help="tokens of the longest line")
    model.add_argument("--target_lang_tag", metavar="LANG", help="target language of a multilingual model")
    model.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if find_spec("ray") is None:
        raise ValueError("Ray is not installed; run pip install 'vanilla_transformer_hf[ray]'")
    work = LineWork("translate", arguments.format, search_options(arguments), arguments.constraints)
    refuse_overwriting(arguments.output, arguments.input)
    windows = plan(arguments.input, arguments.window, arguments.column)
    # The products of matrices are the same on every machine.
    opens = partial(open_translator, arguments, "default")
    with open_result(arguments.output, arguments.restart) as output:
        # Opened here too: a mistake in the model's name is then one line, and not that of every actor.
        about = describe(opens("cpu"))
        output.resume({**work.settings, **about.settings})
        left = list(not_done(windows, output, arguments.output))
        with ProgressBar(sum(window.lines for window in windows), done=output.lines, delay=1) as tally:
            write_answers(answers_for(left, opens, work, arguments, tally), output, tally=tally)
    for note in tally.notes(arguments.too_long, about.limits[0]).values():
        print(note, file=sys.stderr)


if __name__ == "__main__":
    run(main)
