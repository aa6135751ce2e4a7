"""
Keys or values of all layers, which may differ in their number of heads.

Shapes: B sentences, H heads, T positions, d features of a head.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import torch


class LayerTensors:
    """
    A tensor (B, H, T, d) for each layer. Each lies in memory by itself: when they grow, no more than one of them is
    there twice.
    """

    def __init__(self, layers: list[torch.Tensor]):
        self.layers = layers

    @cached_property
    def flat(self) -> list[torch.Tensor]:
        """The tensors as (B H, T, d), in the same memory."""
        return [layer.view(layer.shape[0] * layer.shape[1], *layer.shape[2:]) for layer in self.layers]

    @classmethod
    def copies(cls, layers: Iterable[Sequence[torch.Tensor]]) -> list["LayerTensors"]:
        """
        From the tensors of each layer, such as its keys and its values (B, H, T, d), one of them for each. They are
        copied as they come, so that those of one layer at a time are in memory twice.
        """
        found = [[tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors] for tensors in layers]
        return [cls(list(one)) for one in zip(*found)]

    @classmethod
    def zeros(cls, like: torch.Tensor, heads: Sequence[int], batch: int, *sizes: int) -> "LayerTensors":
        """Zeros (B, H, *sizes) for each layer; `heads` are the numbers of heads of the layers."""
        return cls([like.new_zeros(batch, each, *sizes) for each in heads])

    def __getitem__(self, layer: int) -> torch.Tensor:
        return self.layers[layer]

    def change(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace each tensor by the result of `change`, one after the other."""
        vars(self).pop("flat", None)  # views, which would keep the tensors in memory
        for number in range(len(self.layers)):
            self.layers[number] = change(self.layers[number])

    def put(self, rows: torch.Tensor, others: Iterable[torch.Tensor | float]) -> None:
        """Put other tensors, or numbers, in place of the sentences `rows`, one for each layer."""
        for layer, other in zip(self.layers, others):
            layer[rows] = other
