"""
Whether a tensor's values have changed, also through `.data`, whose changes torch's version counter does not count.

Reading all weights at each call of `generate()` would take as long as the first token of a sentence. So where it can,
`KeptValues` keeps a copy-on-write clone: both share the memory until code asks torch for a writable address, which
moves the tensor. An unmoved tensor is unchanged, and no value has to be read.
"""

from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef


# Words of 64 bits that are summed at once, so that the second sum finds them in a processor's cache.
WORDS_AT_ONCE = 2**17


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """
    A checksum: the sums of the rows and of the columns of a matrix or vector, its bits read as integers, modulo 2^64.

    Changed or moved values change the sums. torch's version counter does not count changes made through `.data`.
    """
    rows = torch.atleast_2d(tensor.detach()).contiguous()
    start, size = rows.storage_offset() * rows.itemsize, rows.shape[1] * rows.itemsize
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
    words = rows.view(next(kind for width, kind in kinds.items() if start % width == size % width == 0))
    parts = words.split(max(1, WORDS_AT_ONCE // max(1, words.shape[1])))
    return torch.cat(
        [*(part.sum(dim=1) for part in parts), torch.stack([part.sum(dim=0) for part in parts]).sum(dim=0)]
    )


def address(tensor: torch.Tensor) -> int:
    """Where the tensor's values are; `data_ptr()` would move a tensor with a copy-on-write clone."""
    if not hasattr(torch._C, "_data_address"):
        return tensor.data_ptr()
    return torch._C._data_address(tensor) + tensor.storage_offset() * tensor.itemsize  # the first is its memory's


def is_copy_on_write(tensor: torch.Tensor) -> bool:
    """Whether the tensor moves before code can write to it."""
    return hasattr(torch._C, "_is_cow_tensor") and torch._C._is_cow_tensor(tensor)


def users(tensor: torch.Tensor) -> int:
    """The number of references to this tensor's memory: the tensor itself, tensors that share it, and their NumPy
    arrays."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def lazy_clone(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy-on-write clone of the tensor; None if other code may already have the address of its memory."""
    if not (tensor.device.type == "cpu" and hasattr(torch._C, "_storage_Use_Count")):
        return None
    if not (hasattr(torch, "_lazy_clone") and hasattr(torch._C, "_is_cow_tensor")):  # a torch without them
        return None
    if tensor.is_shared() or users(tensor) > users(torch.empty(0, device="cpu")):
        return None
    try:
        return torch._lazy_clone(tensor.detach())
    except RuntimeError:  # the memory does not belong to torch: a mapped file or a NumPy array
        return None


class KeptValues:
    """
    The values that a tensor has now.

    Args:
        is_loaded: Whether transformers has read the tensor from a file, so that no other code has its address. It is
            then copied into memory of torch, which can be cloned.
    """

    def __init__(self, tensor: torch.Tensor, is_loaded: bool = False):
        self.clone = lazy_clone(tensor)
        if self.clone is None and is_loaded and not tensor.is_inference():
            tensor.data = tensor.detach().clone()
            self.clone = lazy_clone(tensor)
        self.sums = fingerprint(tensor) if self.clone is None else None

    def have_moved(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor may have been written to, so that its values must be compared."""
        return self.clone is None or not is_copy_on_write(tensor) or address(tensor) != address(self.clone)

    def are_those_of(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has the same values, bit by bit."""
        if not self.have_moved(tensor):
            return True
        if self.sums is None and self.clone is not None:
            self.sums = fingerprint(self.clone)
        if self.sums is None or not torch.equal(self.sums, fingerprint(tensor)):
            return False
        if self.clone is not None:
            self.clone = lazy_clone(tensor)  # the old clone has its own memory now
        return True


class LoadedMemory:
    """The memory of tensors that transformers has just read from a file, as long as they keep it."""

    def __init__(self, model: Any):
        plain = [one for one in model.parameters() if type(one) is nn.Parameter and one.device.type == "cpu"]
        self.storages = {
            id(one): StorageWeakRef(one.untyped_storage()) for one in plain if not hasattr(one, "device_mesh")
        }

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether this is such a tensor, still in that memory, which no other tensor shares."""
        kept = self.storages.get(id(tensor))
        its = tensor.untyped_storage()
        return (
            kept is not None
            and kept.cdata == its._cdata
            and not tensor.is_shared()
            and users(tensor) == users(torch.empty(0, device="cpu"))
        )

    def copy_out(self, tensor: torch.Tensor) -> None:
        """Copy such a tensor into memory of torch: a mapped file takes memory until its last tensor has left it."""
        if self.holds(tensor) and not tensor.is_inference() and lazy_clone(tensor) is None:
            tensor.data = tensor.detach().clone()
