"""
Checksums of the files of a folder: `SHA256SUMS`, as `sha256sum` writes and reads it, the checksums in the Hub's cache,
and those in a model card of the checkpoint that its model was converted from.
"""

import hashlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .settings import read_text


SUMS_FILE = "SHA256SUMS"
# A folder of a training run beside its model; each checkpoint in it has checksums of its own.
CHECKPOINTS = "checkpoints"
# The files that a model is opened from. A card or a picture may be edited at any time.
OPENED = (".json", ".py", ".safetensors")
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_ROW_OF_CARD = re.compile(r"\| ([^|/]+) \| [\d,]+ \| `([0-9a-f]{64})` \|")


class Verified(NamedTuple):
    """A comparison's files with the right checksum, wrong or missing files, and files without a checksum."""

    right: list[str]
    wrong: list[str]
    unknown: list[str]


class Known(NamedTuple):
    """A checksum, its origin, and when it was written: a newer file has been rewritten since."""

    digest: str
    origin: str
    time: float


def digest(path: Path, kind: str = "sha256") -> str:
    """The checksum of a file; `git` is git's blob id, which the Hub uses: SHA-1 of its length and bytes."""
    with path.open("rb") as file:
        if kind != "git":
            return hashlib.file_digest(file, kind).hexdigest()
        whole = hashlib.sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size, usedforsecurity=False)
        while block := file.read(2**20):
            whole.update(block)
        return whole.hexdigest()


def digest_of_all(path: Path) -> str:
    """The SHA-256 of a file; of a folder, that of the names and checksums of its files."""
    if path.is_dir():
        kept = set(path.rglob("cache-*.arrow"))  # what `datasets` has made of a folder that it saved, and keeps there
        files = sorted(each for each in path.rglob("*") if each.is_file() and each not in kept)
        names = "".join(f"{digest(each)}  {each.relative_to(path)}\n" for each in files)
        return hashlib.sha256(names.encode()).hexdigest()
    return digest(path)


def write_checksums(folder: str | os.PathLike):
    """Write `SHA256SUMS` of all that is in a folder, hidden files and a run's checkpoints left out."""
    folder = Path(folder)
    sums = {path.relative_to(folder).as_posix(): digest(path) for path in _files(folder)}
    partial = folder / f".{SUMS_FILE}.partial"
    try:
        partial.write_text(format_checksums(sums), encoding="utf-8")
        partial.replace(folder / SUMS_FILE)
    finally:
        partial.unlink(missing_ok=True)


def format_checksums(sums: dict[str, str]) -> str:
    """File -> checksum, as `sha256sum` writes them."""
    return "".join(f"{value}  {name}\n" for name, value in sums.items())


def read_checksums(folder: Path) -> dict[str, str]:
    """File -> checksum, as `SHA256SUMS` has them."""
    found = {}
    for number, line in enumerate(read_text(folder / SUMS_FILE).splitlines(), 1):
        match = _LINE.fullmatch(line)
        if not match or Path(match[2]).is_absolute() or ".." in Path(match[2]).parts:
            raise ValueError(
                f"{folder / SUMS_FILE} is damaged: line {number} is not a checksum with the name of a file beside it"
            )
        found[match[2]] = match[1]
    return found


def verify_folder(folder: str | os.PathLike, card: str | os.PathLike | None = None) -> Verified:
    """Compare a folder with its checksums, those of `SHA256SUMS` and of the Hub's cache, or those in a model card."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    if card is None:
        expected = _known(folder)
    else:
        rows = map(_ROW_OF_CARD.fullmatch, read_text(card).splitlines())
        expected = {row[1]: Known(row[2], f"{card}", Path(card).stat().st_mtime) for row in rows if row}
    if not expected and card is None:
        raise ValueError(f"{folder} holds no checksums: neither {SUMS_FILE} nor metadata of the Hub's cache")
    if not expected:
        raise ValueError(f"{card} does not list the files of a checkpoint with their checksums")
    right: list[str] = []
    wrong: list[str] = []
    for name, known in expected.items():
        (right if _is_right(folder / name, known) else wrong).append(name)
    unknown = [path.relative_to(folder).as_posix() for path in _files(folder)]
    return Verified(right, wrong, [name for name in unknown if name not in expected])


def check_unchanged(folder: str | os.PathLike):
    """Compare the files that a model is opened from with the checksums of its folder, if it has some."""
    folder = Path(folder)
    for name, known in _known(folder).items():
        path = folder / name
        # What is newer was rewritten on purpose, as by `save_pretrained`; damage does not change the time.
        if path.suffix not in OPENED or not path.is_file() or path.stat().st_mtime > known.time:
            continue
        if not _is_right(path, known):
            raise ValueError(
                f"{path} is damaged: its checksum is not the one in {known.origin}; copy or download it again, or, if "
                f"it was changed on purpose, run vanilla-transformer verify {folder} --write"
            )


def _is_right(path: Path, known: Known) -> bool:
    return path.is_file() and digest(path, "git" if len(known.digest) == 40 else "sha256") == known.digest


def _files(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those in it, without hidden ones and a run's checkpoints."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in (SUMS_FILE, CHECKPOINTS):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif path.is_file():
            yield path


def _known(folder: Path) -> dict[str, Known]:
    """The checksums of `SHA256SUMS` or, where they are newer, of the Hub's cache."""
    sums = folder / SUMS_FILE
    if not sums.is_file():
        return _known_to_the_hub(folder)
    time = sums.stat().st_mtime
    found = {name: Known(value, SUMS_FILE, time) for name, value in read_checksums(folder).items()}
    return found | {name: known for name, known in _known_to_the_hub(folder).items() if known.time > time}


def _known_to_the_hub(folder: Path) -> dict[str, Known]:
    """The checksums of a snapshot in the Hub's cache, whose links name them, or of a downloaded folder."""
    # huggingface_hub's own check (`verify_repo_checksums`, `hf cache verify`) gets the checksums from the Hub; this
    # one is made at each opening, offline.
    found = dict[str, Known]()
    if not folder.is_dir():
        return found
    for path in _files(folder):
        if path.is_symlink() and path.resolve().parent.name == "blobs":
            found[path.relative_to(folder).as_posix()] = Known(path.resolve().name, "the Hub's cache", math.inf)
    records = folder / ".cache" / "huggingface" / "download"
    for record in sorted(records.rglob("*.metadata")) if records.is_dir() else ():
        lines = read_text(record).splitlines()
        if len(lines) > 1:
            name = record.relative_to(records).as_posix().removesuffix(".metadata")
            found[name] = Known(lines[1].strip('"'), f"{record}", record.stat().st_mtime)
    return {name: known for name, known in found.items() if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", known.digest)}
