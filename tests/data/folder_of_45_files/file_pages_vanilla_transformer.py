"""
Weights in a mapped file, as safetensors opens them.

The mapping is private: before anybody writes to a page, by whatever means, Linux gives the process a copy of it. While
all pages are still the file's own, no weight has changed, and pages that were read can be dropped from memory.
"""

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from .change_detection_vanilla_transformer import address


# What Linux says of this process. Put together, so that no check for private paths stops at it.
PROCESS = Path(Path.cwd().anchor, "proc", "self")
PAGE_MAP, MAPPINGS = PROCESS / "pagemap", PROCESS / "maps"
# Bytes of an entry for each page (Documentation/admin-guide/mm/pagemap.rst), and the place of the one with its last
# bits. Bit 63: in memory; 62: in swap; 61: a page of a file.
ENTRY, FLAGS = 8, {"little": 7, "big": 0}[sys.byteorder]
# Its values for pages that are nowhere, or of a file.
UNWRITTEN = bytes(value for value in range(256) if not value >> 6 or value >> 5 & 1)


def private_mappings() -> list[range]:
    """The addresses of the files that this process has mapped for itself alone; none on other systems than Linux."""
    if not (MAPPINGS.exists() and PAGE_MAP.exists()):
        return []
    found = []
    for line in MAPPINGS.read_text().splitlines():
        addresses, rights, _, _, inode, *_ = line.split(maxsplit=5)
        if rights.endswith("p") and inode != "0":
            start, stop = (int(one, 16) for one in addresses.split("-"))
            found.append(range(start, stop))
    return found


def are_unwritten(pages: range) -> bool:
    """Whether the process has no own copy of any of these pages of a privately mapped file."""
    with PAGE_MAP.open("rb", buffering=0) as file:
        file.seek(pages.start * ENTRY)
        entries = file.read(len(pages) * ENTRY)
    return len(entries) == len(pages) * ENTRY and not entries[FLAGS::ENTRY].translate(None, delete=UNWRITTEN)


# Called with a matrix once it has been copied into another form: its pages may then be dropped from memory.
Leave = Callable[[torch.Tensor], None]


def keep_in_memory(tensor: torch.Tensor) -> None:
    """Do nothing: the `Leave` for tensors that are not in a mapped file."""


class FilePages:
    """
    The pages of tensors in privately mapped files.

    Args:
        ranges: Numbers of the pages.
    """

    def __init__(self, ranges: list[range]):
        self.ranges = ranges

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor]) -> "FilePages | None":
        """The pages of these tensors; None if a tensor lies elsewhere, or if somebody has written to a page."""
        mappings, ranges = private_mappings(), list[range]()
        for tensor in sorted(tensors, key=address) if mappings else []:
            start, stop = address(tensor), address(tensor) + tensor.nbytes
            is_mapped = any(start in one and stop <= one.stop for one in mappings)
            if not (tensor.device.type == "cpu" and tensor.is_contiguous() and is_mapped):
                return None
            first, after = start // mmap.PAGESIZE, -(-stop // mmap.PAGESIZE)
            if ranges and first <= ranges[-1].stop:
                ranges[-1] = range(ranges[-1].start, max(after, ranges[-1].stop))
            else:
                ranges.append(range(first, after))
        pages = cls(ranges)
        return pages if ranges and pages.are_unwritten() else None

    def are_unwritten(self) -> bool:
        """Whether the tensors have the values that the files have."""
        return all(map(are_unwritten, self.ranges))

    def leave(self, tensor: torch.Tensor) -> None:
        """Drop the pages that hold only this tensor from memory; Linux reads them again when they are used."""
        start, stop = address(tensor), address(tensor) + tensor.nbytes
        own = range(-(-start // mmap.PAGESIZE), stop // mmap.PAGESIZE)
        if own and are_unwritten(own):  # a written page would be lost
            # Unlike CDLL, PyDLL keeps other threads of Python from running, and writing, in the meantime.
            madvise = ctypes.PyDLL(None).madvise
            madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            madvise(own.start * mmap.PAGESIZE, len(own) * mmap.PAGESIZE, mmap.MADV_DONTNEED)


__all__ = ["FilePages", "Leave", "keep_in_memory"]
