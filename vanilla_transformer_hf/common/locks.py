"""Locks between processes. The system releases them when a process ends, even if it is killed."""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import BinaryIO

from filelock import FileLock, Timeout, lock_descriptor


logger = logging.getLogger(__name__)

# Answers of file systems without locks, such as some mounts of Lustre.
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def lock_path(path: str | os.PathLike, take_over: bool = False, wait: bool = False) -> AbstractContextManager:
    """
    Lock a path against other processes and threads, by a file of this name, which is created and stays.

    `take_over`: take the lock over if this process holds it: an object that was given up, as in a notebook, holds its
    lock until it is collected.
    """
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
        logger.warning("%s: its file system has no locks; do not run two processes that write there", name)
