"""Corrections that clients send: pairs of texts, appended to a file for each pair of languages."""

import os
from functools import partial
from pathlib import Path
from urllib.parse import quote

from ..common.files import lock_path
from ..translation.streams.work import as_json


# Bytes of a file that still grows: clients cannot fill the disk.
LARGEST = 64 * 2**20


class FullError(Exception):
    """A file of suggestions has no more room."""


class Suggestions:
    """Files of suggestions in a folder, such as en-de.jsonl, which only their owner can read."""

    # A line of JSON has the texts of a suggestion by language under "translation", as corpora do.

    def __init__(self, folder: str):
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, languages: tuple[str, str], texts: tuple[str, str]) -> None:
        """Append a pair, whole or not at all, also where several processes do."""
        path = self._folder / f"{quote('-'.join(languages), safe='')}.jsonl"
        line = f"{as_json({'translation': dict(zip(languages, texts, strict=True))})}\n".encode()
        opened = partial(os.open, mode=0o600)  # appended, as the mode of `open` says
        with lock_path(f"{path}.lock", wait=True), open(path, "ab+", buffering=0, opener=opened) as file:
            size = file.seek(0, os.SEEK_END)
            if size + len(line) > LARGEST:
                raise FullError
            if size:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line  # an editor left no end of line
            try:
                if (file.write(line) or 0) < len(line):
                    raise OSError("the disk is full")
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
