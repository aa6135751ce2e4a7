"""Files and folders: which may be read, and new ones, written completely or not at all."""

import errno
import logging
import os
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO

from .checksums import write_checksums


logger = logging.getLogger(__name__)


def beside(folder: str | os.PathLike, name: object) -> Path:
    """The path in `folder` of a file that another file names, of which only the base name is used."""
    # A checkpoint may record a path of the machine that trained it, and must not choose which files are read here.
    folder, base = Path(folder), os.path.basename(name) if isinstance(name, str) else ""
    if base in ("", ".", "..") or "\0" in base:
        raise ValueError(f"{name!r} is not the name of a file in {folder}")
    path, home = folder / base, folder.resolve()
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:  # links in a circle
        raise ValueError(f"{path} is a broken symbolic link: {error}") from error
    blobs = [parent.parent / "blobs" for parent in home.parents if parent.name == "snapshots"]
    if not target.is_relative_to(home) and target.parent not in blobs:
        raise ValueError(f"{path} is a link to {target}, outside its folder; copy the file into the folder")
    return path


def regular_file(path: str | os.PathLike) -> Path:
    """Check the path of a file that was found by a program, not named by its user, before it is read."""
    path = beside(Path(path).parent, Path(path).name)
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a regular file")
    return path


def refuse_overwriting(output: str | os.PathLike | None, inputs: Iterable[str | os.PathLike | None]) -> None:
    """Check that a command can write, and not where it reads, under any spelling, through links or as .partial."""
    if output is not None and not os.path.isdir(os.path.dirname(os.path.realpath(output))):
        raise FileNotFoundError(f"{output}: expected a file in a folder that exists; make the folder first")

    def identity(path: str | os.PathLike | int) -> tuple[int, int] | None:
        """Device and inode of a regular file."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None

    places: list[str | os.PathLike | int] = [1] if output is None else [output, f"{os.path.realpath(output)}.partial"]
    written = {identity(place) for place in places} - {None}
    for name in inputs:
        if identity(0 if name is None else name) in written:
            source = "standard input" if name is None else name
            target = "standard output" if output is None else output
            raise ValueError(f"{source} is also the output ({target}), which would replace it; name another file")


@contextmanager
def open_output(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A new file, complete or not at all: `path`.partial, synced and renamed; pipes and devices get it directly."""
    path = Path(path)  # a link to a pipe, as /dev/stdout may be, has no other path
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
    elif os.name != "posix":  # these systems rename no open files
        with new_file(path) as partial, partial.open("wb") as file:
            yield file
    else:
        path = path.resolve()
        # On shares of Windows (SMB), only the descriptor that locks a file can write to it.
        with open_locked(path.with_name(path.name + ".partial"), buffering=-1) as file, new_file(path):
            file.truncate()
            yield file
            file.flush()


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text as a file, complete or not at all."""
    with open_output(path) as file:
        file.write(text.encode())


def open_locked(path: Path, buffering: int = 0) -> BinaryIO:
    """A file, new or with its content, that is locked until it is closed; unbuffered by default."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering)
    try:
        lock_open_file(file, path)
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            raise OSError("it has just been finished")
    except OSError as error:
        file.close()
        raise OSError(f"{path}: another run is writing this file") from error
    return file


def output_or_stdout(path: str | os.PathLike | None) -> AbstractContextManager[BinaryIO]:
    """What a command writes to: the new file of `open_output`; without a path standard output, which stays open."""
    return nullcontext(sys.stdout.buffer) if path is None else open_output(path)


@contextmanager
def new_file(path: str | os.PathLike) -> Iterator[Path]:
    """A new file for functions that write to a path, complete or not at all: `path`.partial, synced and renamed."""
    path = Path(path).resolve()
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_regular_file(path: str | os.PathLike) -> bytes:
    """The content of a regular file that is not a link."""
    check_regular_file(path)
    # A link that was created since then fails here; Windows has neither flag.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        return file.read()


def check_regular_file(path: str | os.PathLike):
    """Check that a path is a regular file and not a link."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise ValueError(f"{path} is a symbolic link, which is not followed: put a copy of the file in its place.")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is not a regular file.")


def check_new(output: str | os.PathLike):
    """Raise `ValueError` if `output` exists already and is not an empty folder."""
    output = Path(output)
    if os.path.lexists(output) and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists already; name a new folder")


@contextmanager
def new_folder(output: str | os.PathLike) -> Iterator[Path]:
    """A new folder, complete or not at all: filled as `.NAME.unfinished`, with `SHA256SUMS`, synced and renamed."""
    # On an exception, Ctrl-C and SIGTERM the unfinished folder is removed; after a SIGKILL or a power cut, by the next
    # process that writes the same output.
    output = Path(os.path.abspath(output))
    check_new(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.name}.unfinished")
    with _ended_by_sigterm(), _locked(unfinished):
        yield unfinished
        write_checksums(unfinished)
        sync_tree(unfinished)
        check_new(output)
        os.replace(unfinished, output)
        sync(output.parent)


# Subfolder for files that are being written or deleted.
UNFINISHED = ".unfinished"


@contextmanager
def new_files(folder: str | os.PathLike) -> Iterator[Path]:
    """New files of a folder that may have others: written in `.unfinished`, moved one by one when all are whole."""
    folder = Path(os.path.abspath(folder))
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / UNFINISHED
    with _ended_by_sigterm(), _locked(unfinished):
        yield unfinished
        sync_tree(unfinished)
        for path in unfinished.iterdir():
            path.replace(folder / path.name)
        sync(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """An empty folder, locked against other processes and removed in the end; so are leftovers of a dead process."""
    file = folder.with_name(f"{folder.name}.lock")
    try:
        lock = lock_path(file)
    except TimeoutError as error:
        raise ValueError(f"{folder} is being written by another process") from error
    with lock:
        try:
            if folder.is_dir():
                shutil.rmtree(folder)
            folder.mkdir()
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # Windows does not remove an open file
                file.unlink()


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Raise SIGTERM as an exception, so that the process cleans up, unless it has another handler."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: object):
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def sync_tree(folder: Path):
    """Sync a folder and everything in it to disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        sync(path)
    sync(folder)


def sync(path: Path):
    """Sync a file's bytes, or a folder's entries, to disk."""
    if path.is_symlink() or (os.name == "nt" and path.is_dir()):  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # Windows syncs what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Locks between processes are released by the system when a process ends, even if it is killed. Answers of file systems
# without them, such as some mounts of Lustre, and one warning for each folder, in which a run writes many small files.
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
warn = cache(partial(logger.warning, "%s: its file system has no locks; do not run two processes that write there"))


def lock_path(path: str | os.PathLike, take_over: bool = False, wait: bool = False) -> AbstractContextManager:
    """Lock a path against other processes and threads, by a file of this name, which is created and stays."""
    # `take_over`: take the lock over if this process holds it: an object that was given up, as in a notebook, holds
    # its lock until it is collected.
    from filelock import FileLock  # whose import takes a tenth of a short command

    with _unlocked_without_locks(path):
        # A marker in place of a lock (`fallback_to_soft`) would outlive a process that is killed.
        timeout = -1 if wait else 0
        lock = FileLock(path, timeout=timeout, thread_local=False, is_singleton=take_over, fallback_to_soft=False)
        if take_over:  # `lock` is then the object that holds it, if there is one
            lock.release(force=True)
        return lock.acquire()
    return nullcontext()


def lock_open_file(file: BinaryIO, name: str | os.PathLike):
    """Lock an open file against other processes, and other opened copies of it, until it is closed."""
    from filelock import Timeout, lock_descriptor

    with _unlocked_without_locks(name):
        if not lock_descriptor(file.fileno(), blocking=False):
            raise Timeout(str(name))


@contextmanager
def _unlocked_without_locks(name: str | os.PathLike) -> Iterator[None]:
    """A file system without locks does not end the work: a warning says that nothing is locked."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warn(Path(name).absolute().parent)
