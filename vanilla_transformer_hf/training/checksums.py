"""SHA-256 sums of files: in the format of `sha256sum` for the files of a folder, and of the data of a run."""

import hashlib
from pathlib import Path

from ..common.checksums import SUMS_FILE, digest


def sha256_of(path: Path) -> str:
    """The sum of a file in hexadecimal digits; of a folder, that of the names and sums of its files."""
    if path.is_dir():
        names = "".join(f"{sha256_of(each)}  {each.relative_to(path)}\n" for each in files_in(path))
        return hashlib.sha256(names.encode()).hexdigest()
    return digest(path)


def files_in(folder: Path) -> list[Path]:
    """The files of a folder and of those in it, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def format_sums(sums: dict[str, str]) -> str:
    """Name -> sum, as `sha256sum` writes them."""
    return "".join(f"{value}  {name}\n" for name, value in sums.items())


def write_sums(folder: Path) -> None:
    """Write the sums of all files of a folder into it."""
    sums = {str(path.relative_to(folder)): sha256_of(path) for path in files_in(folder) if path.name != SUMS_FILE}
    (folder / SUMS_FILE).write_text(format_sums(sums), encoding="utf-8")


def read_sums(folder: Path) -> dict[str, str]:
    """
    Name -> sum.

    Raises:
        OSError: There is no such file.
        ValueError: It is damaged.
    """
    sums = {}
    for line in (folder / SUMS_FILE).read_text(encoding="utf-8").splitlines():
        value, separator, name = line.partition("  ")
        if len(value) != 64 or not separator or not name:
            raise ValueError(f"{folder / SUMS_FILE} is damaged: {line[:80]!r} is not a checksum and a name.")
        sums[name] = value
    return sums
