"""An output file that the next run completes after a kill, with the same bytes."""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ...common.files import open_locked, write_text
from ...common.settings import read_object


logger = logging.getLogger(__name__)

# Fields of the record beside an output that is not complete.
JOURNAL = {"lines": int, "bytes": int, "digest": str, "counts": dict, "settings": dict}


class StreamOutput:
    """An output that cannot be continued, such as a pipe; `lines`, `digest` and `counts` are of results it has."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.lines, self.digest, self.counts = 0, "", dict[str, int]()

    def recall(self) -> dict[str, Any]:
        """The settings of the run that will be continued, empty without one."""
        return {}

    def resume(self, settings: dict[str, Any]) -> None:
        """Nothing to take up."""

    def write(self, content: bytes, lines: int, digest: str, counts: dict[str, int]) -> None:
        """Write the output of the input's lines up to number `lines`, and their counts."""
        self._file.write(content)
        self._file.flush()


class ResumableOutput(StreamOutput):
    """A file that is written as `path` + ".partial" and renamed when it is complete."""

    # Beside it, `path` + ".partial.json" records the valid part: the number of input lines, their digest, the length
    # and digest of the output, the counts of the lines, and the settings. Bytes after the valid part, left by a kill,
    # are dropped. If nothing has been written yet, an error leaves no file. `restart` ignores what an earlier run has
    # left.

    def __init__(self, path: str | os.PathLike[str], restart: bool = False):
        self.path = Path(path).resolve()
        self.partial = self.path.with_name(self.path.name + ".partial")
        self.journal = self.path.with_name(self.path.name + ".partial.json")
        self._settings, self._restart, self._hash = dict[str, Any](), restart, hashlib.sha256()
        super().__init__(open_locked(self.partial))

    def recall(self) -> dict[str, Any]:
        settings: dict[str, Any] = (self._read_journal() or {}).get("settings", {})
        return settings

    def resume(self, settings: dict[str, Any]) -> None:
        """Continue the output of an earlier run with these settings: all that it depends on but the input."""
        self._settings = json.loads(json.dumps(settings))
        size, record = 0, self._read_journal()
        if record is not None:
            for name in sorted({*record["settings"], *self._settings}):
                theirs, ours = record["settings"].get(name), self._settings.get(name)
                if theirs != ours:
                    raise ValueError(
                        f"{self.partial} was begun with {name}={theirs!r}, and now it is {ours!r}: the same again "
                        "would continue it, --restart starts over"
                    )
            self.lines, self.digest, size = record["lines"], record["digest"], record["bytes"]
            self.counts = record["counts"]
            self._file.seek(0)
            while left := size - self._file.tell():
                self._hash.update(self._file.read(min(left, 2**20)))
            if self._hash.hexdigest() != record.get("sha256"):
                raise ValueError(
                    f"{self.partial} was changed since the run that began it: its first {size} bytes are not those "
                    f"that {self.journal.name} records; --restart starts over"
                )
        else:
            self.journal.unlink(missing_ok=True)
        self._file.truncate(size)
        self._file.seek(size)

    def _read_journal(self) -> dict[str, Any] | None:
        """The journal of an earlier run; None if there is none or it is of another version."""
        if self._restart or not self.journal.exists():
            return None
        try:
            record = read_object(self.journal, JOURNAL)
            if not all(type(count) is int and count >= 0 for count in (*record["counts"].values(), record["lines"])):
                raise ValueError(f"{self.journal} is damaged: expected counts of at least 0")
        except ValueError as error:
            raise ValueError(f"{self.journal}: damaged ({error}); --restart starts over") from error
        return record if 0 <= record["bytes"] <= self.partial.stat().st_size else None

    def write(self, content: bytes, lines: int, digest: str, counts: dict[str, int]) -> None:
        view, begun = memoryview(content), self._file.tell()
        digest_of_output = self._hash.copy()
        digest_of_output.update(content)
        try:
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
            record = {
                "lines": lines,
                "bytes": self._file.tell(),
                "sha256": digest_of_output.hexdigest(),
                "digest": digest,
                "counts": counts,
                "settings": self._settings,
            }
            write_text(self.journal, json.dumps(record))
        except OSError as error:  # a full disk: the valid part is kept
            self._file.truncate(begun)
            raise OSError(f"{self.partial}: {error.strerror or error}") from error
        self.lines, self.digest, self.counts, self._hash = lines, digest, counts, digest_of_output

    def __enter__(self) -> "ResumableOutput":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        finished = kind is None
        if finished and os.name == "posix":  # before the lock is released; other systems rename open files
            self.partial.replace(self.path)
        self._file.close()
        if finished:
            if os.name != "posix":
                self.partial.replace(self.path)
            self.journal.unlink(missing_ok=True)
        elif not self.journal.exists():
            self.partial.unlink()
        else:
            logger.warning("%s is kept: the same command continues it", self.partial)


@contextmanager
def open_result(path: str | os.PathLike[str] | None, restart: bool = False) -> Iterator[StreamOutput]:
    """A `ResumableOutput`; pipes, devices and standard output (None) are written to directly."""
    if path is None:
        yield StreamOutput(sys.stdout.buffer)
    elif Path(path).exists() and not Path(path).is_file():
        with Path(path).open("wb") as file:
            yield StreamOutput(file)
    else:
        with ResumableOutput(path, restart) as output:
            yield output


class InputDigest:
    """Lines, or tuples of lines, with a running digest, so that a later run checks that it reads the same."""

    def __init__(self, items: Iterator[Any]):
        self._items = items
        self._hash = hashlib.sha256()
        self.lines = 0

    def __iter__(self) -> "InputDigest":
        return self

    def __next__(self) -> Any:
        item = next(self._items)
        for line in (item,) if isinstance(item, str) else item:
            self._hash.update(line.encode() + b"\n")
        self.lines += 1
        return item

    @property
    def digest(self) -> str:
        """The digest of the lines read so far."""
        return self._hash.hexdigest()

    def skip(self, lines: int, digest: str, name: str) -> None:
        """Skip the first `lines` lines."""
        for _ in zip(range(lines), self):
            pass
        if self.lines < lines or (lines and self.digest != digest):
            raise ValueError(
                f"{name} was begun with another input: its first {lines} lines are not those of this one; --restart "
                "starts over"
            )
