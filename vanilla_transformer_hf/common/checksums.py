"""
Checksums of the files of a folder: `SHA256SUMS`, as `sha256sum` writes and reads it, and what the Hub's cache knows of
what it downloaded.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .settings import read_text


SUMS_FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class Verified(NamedTuple):
    """What was compared: files whose checksums are right, wrong or missing files, and files without a checksum."""

    right: list[str]
    wrong: list[str]
    unknown: list[str]


def digest(path: Path, kind: str = "sha256") -> str:
    """The checksum of a file; `git` is what the Hub calls a small file by: SHA-1 of its length and its bytes."""
    with path.open("rb") as file:
        if kind != "git":
            return hashlib.file_digest(file, kind).hexdigest()
        whole = hashlib.sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size, usedforsecurity=False)
        while block := file.read(2**20):
            whole.update(block)
        return whole.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those in it, without hidden ones."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(".") and path.name != SUMS_FILE:
            if path.is_dir() and not path.is_symlink():
                yield from _files(path)
            elif path.is_file():
                yield path


def write_checksums(folder: str | os.PathLike):
    """
    Write `SHA256SUMS` of all that is in a folder.

    Raises:
        OSError: A file cannot be read or written.
    """
    folder = Path(folder)
    lines = [f"{digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in _files(folder)]
    (folder / SUMS_FILE).write_text("".join(lines), encoding="utf-8")


def _read_sums(folder: Path) -> dict[str, str]:
    """
    File -> checksum, as `SHA256SUMS` has them.

    Raises:
        ValueError: A line is not a checksum with the name of a file in this folder.
    """
    found = {}
    for number, line in enumerate(read_text(folder / SUMS_FILE).splitlines(), 1):
        match = _LINE.fullmatch(line)
        if not match or Path(match[2]).is_absolute() or ".." in Path(match[2]).parts:
            raise ValueError(f"{folder / SUMS_FILE}, line {number}: not a checksum with the name of a file beside it")
        found[match[2]] = match[1]
    return found


def _known_to_the_hub(folder: Path) -> dict[str, str]:
    """File -> etag, of a snapshot in the Hub's cache, whose links name them, or of a folder that was downloaded."""
    found = {}
    for path in _files(folder):
        if path.is_symlink() and path.resolve().parent.name == "blobs":
            found[path.relative_to(folder).as_posix()] = path.resolve().name
    records = folder / ".cache" / "huggingface" / "download"
    for record in sorted(records.rglob("*.metadata")) if records.is_dir() else ():
        lines = read_text(record).splitlines()
        if len(lines) > 1:
            found[record.relative_to(records).as_posix().removesuffix(".metadata")] = lines[1].strip('"')
    return {name: etag for name, etag in found.items() if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", etag)}


def verify_folder(folder: str | os.PathLike) -> Verified:
    """
    Compare the files of a folder with the checksums that it holds: those of `SHA256SUMS` or, without one, those that
    the Hub's cache has for what it downloaded.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The folder holds no checksums, or `SHA256SUMS` is not a list of them.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    expected = _read_sums(folder) if (folder / SUMS_FILE).is_file() else _known_to_the_hub(folder)
    if not expected:
        raise ValueError(f"{folder} holds no checksums: neither {SUMS_FILE} nor what the Hub's cache knows of it")
    right: list[str] = []
    wrong: list[str] = []
    for name, known in expected.items():
        path = folder / name
        kind = "git" if len(known) == 40 else "sha256"
        (right if path.is_file() and digest(path, kind) == known else wrong).append(name)
    unknown = [path.relative_to(folder).as_posix() for path in _files(folder)]
    return Verified(right, wrong, [name for name in unknown if name not in expected])


def check_unchanged(folder: str | os.PathLike):
    """
    Compare the files that have not been written since `SHA256SUMS` was with it, where there is one. A file that is
    newer was written anew on purpose, as `save_pretrained` does; damage on a disk or on the way leaves the time alone.

    Raises:
        ValueError: A file is damaged or missing.
    """
    sums = Path(folder) / SUMS_FILE
    if not sums.is_file():
        return
    written = sums.stat().st_mtime_ns
    for name, known in _read_sums(Path(folder)).items():
        path = Path(folder) / name
        if path.is_file() and path.stat().st_mtime_ns <= written and digest(path) != known:
            raise ValueError(f"{path} is damaged: its checksum is not the one in {SUMS_FILE}; copy the folder again")
