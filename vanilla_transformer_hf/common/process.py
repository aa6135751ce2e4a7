"""
What the libraries of a process are told: how threads wait for each other, how many compiled kernels are kept, how much
memory the heap keeps. Nothing heavy is imported: the first two are decided before torch is.
"""

import ctypes
import os
import sys
from functools import cache
from typing import Any


# GNU's OpenMP, which torch's wheels for Linux use, lets a thread look this often whether the others are done before it
# sleeps. Its own 300,000 keep cores from the very threads that are waited for when other work takes them up; threads
# that sleep at once are slow on a quiet machine.
TURNS = 10_000
# Variables by which a user, or a cluster, sets how threads wait.
WAITS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def wait_briefly() -> None:
    """Let threads of this process and its children wait `TURNS` turns, unless the environment sets how they wait."""
    if not any(name in os.environ for name in WAITS):
        os.environ["GOMP_SPINCOUNT"] = str(TURNS)


# Kernels are compiled for each shape, and oneDNN and torch's layer above it keep 1,024 each. A search has another
# number of rows at most steps, training on long sentences another number of tokens in each batch; both come back to
# few. With all kernels, what `low_resource` has in use grew by 6 MiB a step; with few it stays, at the same speed.
KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "64"}


def keep_few_kernels() -> None:
    """Let this process and its children keep few of them, unless the environment sets other numbers."""
    for name, kernels in KERNELS.items():
        os.environ.setdefault(name, kernels)


# Of glibc alone, by functions that its manual documents: numbers of parameters in <malloc.h>, and the largest blocks
# that are allocated in the heap, in bytes. By itself, glibc lets this limit grow to 32 MiB; blocks of so many sizes
# leave gaps that nothing fits into. Smaller ones are worth the heap: the pages of others are new, and cleared, each
# time.
M_MMAP_THRESHOLD, LARGEST_BLOCK = -3, 2**22
# Free memory at the end of the heap from which it goes back at once. That happens anyway after a window of lines.
M_TRIM_THRESHOLD, MOST_FREE = -1, 2**28
# Variables by which a user sets the heap.
HEAP = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def _library() -> Any:
    """The C library if it is glibc, else None."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def keep_heap_small() -> None:
    """Allocate large blocks outside of the heap, from where they go back when they are freed, unless a user set it."""
    if (library := _library()) is not None and not any(name in os.environ for name in HEAP):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        library.mallopt(M_TRIM_THRESHOLD, MOST_FREE)


def give_back_memory() -> None:
    """Give the heap's free memory back to the system: glibc does so only at the heap's end, and the rest grows."""
    if (library := _library()) is not None:
        library.malloc_trim(0)
