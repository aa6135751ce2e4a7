"""Translated files that wait to be fetched, under names that nobody guesses, for a limited time."""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


TOKEN_BYTES = 24


class Downloads:
    """Files by their tokens for some seconds, in memory or in a folder that processes share; for any thread."""

    # When all together have more than `most_bytes`, the oldest are dropped.

    def __init__(self, seconds: float, most_bytes: int, folder: str | None = None):
        self.seconds, self._most_bytes = seconds, most_bytes
        self._folder = None if folder is None else Path(folder)
        self._files: dict[str, tuple[float, bytes]] = {}  # oldest first
        self._lock = threading.Lock()

    def add(self, content: bytes) -> str:
        """Keep a file; its token."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        if self._folder is None:
            with self._lock:
                self._files[token] = (time.time(), content)
        else:
            (self._folder / token).write_bytes(content)
        self.forget_old()
        return token

    def get(self, token: str) -> bytes | None:
        """The file with a token; None if there is none, or its time is over."""
        self.forget_old()
        if self._folder is None:
            return self._files.get(token, (0, None))[1]
        if not token.replace("-", "").replace("_", "").isalnum():  # no path
            return None
        with suppress(OSError):
            return (self._folder / token).read_bytes()
        return None

    def forget_old(self) -> None:
        """Remove the files whose time is over, and the oldest where there are too many."""
        with self._lock:
            kept, now = 0, time.time()
            for token, written, size in sorted(self._listed(), key=lambda file: -file[1]):
                kept += size
                if now - written > self.seconds or (kept > self._most_bytes and kept > size):
                    if self._folder is None:
                        self._files.pop(token, None)
                    else:
                        with suppress(OSError):
                            (self._folder / token).unlink()

    def _listed(self) -> Iterator[tuple[str, float, int]]:
        """Token, time and size of each file."""
        if self._folder is None:
            yield from [(token, written, len(content)) for token, (written, content) in self._files.items()]
            return
        for path in self._folder.iterdir():
            with suppress(OSError):  # another process has removed it
                status = path.stat()
                yield path.name, status.st_mtime, status.st_size
