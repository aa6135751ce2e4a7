"""How much memory the C library's heap keeps. Only glibc is set, by functions that its manual documents."""

import ctypes
import os
import sys
from functools import cache
from typing import Any


# Numbers of parameters in <malloc.h>, and the largest blocks that are allocated in the heap, in bytes. By itself,
# glibc lets this limit grow to 32 MiB; blocks of so many sizes leave gaps that nothing fits into. Smaller ones are
# worth the heap: the pages of others are new, and cleared, each time.
M_MMAP_THRESHOLD, LARGEST_BLOCK = -3, 2**22
# Free memory at the end of the heap from which it goes back at once. That happens anyway after a window of lines.
M_TRIM_THRESHOLD, MOST_FREE = -1, 2**28
# Variables by which a user sets the heap.
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def _library() -> Any:
    """The C library if it is glibc, else None."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def keep_heap_small() -> None:
    """Allocate large blocks outside of the heap, from where they go back when they are freed, unless a user set it."""
    if (library := _library()) is not None and not any(name in os.environ for name in SETTINGS):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        library.mallopt(M_TRIM_THRESHOLD, MOST_FREE)


def give_back_memory() -> None:
    """Give the heap's free memory back to the system: glibc does so only at the heap's end, and the rest grows."""
    if (library := _library()) is not None:
        library.malloc_trim(0)
