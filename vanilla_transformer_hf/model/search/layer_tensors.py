"""
Keys or values of all layers, which may differ in their number of heads.

Shapes: B sentences, H heads, T positions, d features of a head.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import torch


class LayerTensors:
    """A contiguous tensor (B, H, T, d) for each layer."""

    # Each lies in memory by itself: when they grow, no more than one of them is there twice.

    def __init__(self, layers: list[torch.Tensor]):
        self.layers = layers
        # The memory of each, as one dimension, and that of one more, from which `rewrite` takes turns.
        self._memory, self._spare = [layer.view(-1) for layer in layers], layers[0].new_empty(0)

    @cached_property
    def flat(self) -> list[torch.Tensor]:
        """The tensors as (B H, T, d), in the same memory."""
        return [layer.view(layer.shape[0] * layer.shape[1], *layer.shape[2:]) for layer in self.layers]

    @classmethod
    def copies(cls, layers: Iterable[Sequence[torch.Tensor]], dtype: torch.dtype) -> list["LayerTensors"]:
        """From the tensors of each layer, such as its keys and its values (B, H, T, d), one of them for each."""
        # They are copied as they come, so that those of one layer at a time are in memory twice.
        layout = torch.contiguous_format
        found = [[tensor.to(dtype, copy=True, memory_format=layout) for tensor in tensors] for tensors in layers]
        return [cls(list(one)) for one in zip(*found)]

    @classmethod
    def zeros(cls, like: torch.Tensor, heads: Sequence[int], batch: int, *sizes: int) -> "LayerTensors":
        """Zeros (B, H, *sizes) for each layer; `heads` are the numbers of heads of the layers."""
        return cls([like.new_zeros(batch, each, *sizes) for each in heads])

    def __getitem__(self, layer: int) -> torch.Tensor:
        return self.layers[layer]

    def rewrite(self, dim: int, size: int, write: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        """Replace each tensor, one by one, by one whose dimension `dim` has this size, filled by `write(old, new)`."""
        # It gets the memory that the one before it had: tensors that are allocated again and again, each time a little
        # larger or smaller, leave gaps in the heap that nothing fits into.
        vars(self).pop("flat", None)  # views of what is overwritten
        for number, old in enumerate(self.layers):
            shape = [*old.shape]
            shape[dim] = size
            new = self._take(math.prod(shape)).view(shape)
            write(old, new)
            self.layers[number], self._memory[number], self._spare = new, self._spare, self._memory[number]

    def _take(self, count: int) -> torch.Tensor:
        """So many numbers of the spare memory, which is allocated anew if it has fewer, an eighth larger than now."""
        if len(self._spare) < count:
            self._spare = self._spare.new_empty(0)  # freed before
            self._spare = self._spare.new_empty(count + count // 8)
        return self._spare[:count]

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these sentences."""
        self.rewrite(0, len(rows), lambda old, new: torch.index_select(old, 0, rows, out=new))

    def resize(self, dim: int, size: int) -> None:
        """Cut the dimension `dim` to this size, or pad it with zeros."""
        common = min(size, self.layers[0].shape[dim])

        def write(old: torch.Tensor, new: torch.Tensor) -> None:
            new.narrow(dim, 0, common).copy_(old.narrow(dim, 0, common))
            new.narrow(dim, common, size - common).zero_()

        if self.layers[0].shape[dim] != size:
            self.rewrite(dim, size, write)

    def put(self, rows: torch.Tensor, others: Iterable[torch.Tensor | float]) -> None:
        """Put other tensors, or numbers, in place of the sentences `rows`, one for each layer."""
        for layer, other in zip(self.layers, others):
            layer[rows] = other
