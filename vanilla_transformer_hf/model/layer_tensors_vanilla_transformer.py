"""
Keys or values of all layers in one tensor or, where layers differ in their number of heads, in a few.

Shapes: N layers with the same number of heads, B sentences, H heads, T positions, d features of a head.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import torch


class LayerTensors:
    """
    A tensor (B, H, T, d) for each layer. The tensors of layers with the same number of heads (all layers, unless the
    model was pruned) are kept in one tensor (N, B, H, T, d), so that one operation serves all of them.

    Attributes:
        groups: H -> its tensor.
        places: For each layer its H and its index N in that tensor.
        layers: The tensor of each layer (B, H, T, d).
    """

    def __init__(self, groups: dict[int, torch.Tensor], places: list[tuple[int, int]]):
        self.groups, self.places = groups, places
        self.layers = [groups[heads][place] for heads, place in places]

    @cached_property
    def flat(self) -> list[torch.Tensor]:
        """The same tensors, in the same memory, as (B H, T, d)."""
        return [layer.view(layer.shape[0] * layer.shape[1], *layer.shape[2:]) for layer in self.layers]

    @classmethod
    def stack(cls, layers: Iterable[Sequence[torch.Tensor]], heads: Sequence[int]) -> list["LayerTensors"]:
        """
        From the tensors of each layer, such as its keys and its values (B, H, T, d), one of them for each. They are
        copied as they come, so that those of one layer at a time are in memory twice; `heads` are the numbers of heads
        of the layers.
        """
        places, found = cls._places(heads), list[dict[int, torch.Tensor]]()
        for (each, place), tensors in zip(places, layers):
            found = found or [{} for _ in tensors]
            for groups, tensor in zip(found, tensors):
                if each not in groups:
                    groups[each] = tensor.new_empty(heads.count(each), *tensor.shape)
                groups[each][place] = tensor
        return [cls(groups, places) for groups in found]

    @classmethod
    def zeros(cls, like: torch.Tensor, heads: Sequence[int], batch: int, *sizes: int) -> "LayerTensors":
        """Zeros (B, H, *sizes) for each layer; `heads` are the numbers of heads of the layers."""
        groups = {each: like.new_zeros(heads.count(each), batch, each, *sizes) for each in dict.fromkeys(heads)}
        return cls(groups, cls._places(heads))

    @staticmethod
    def _places(heads: Sequence[int]) -> list[tuple[int, int]]:
        return [(each, heads[:layer].count(each)) for layer, each in enumerate(heads)]

    def __getitem__(self, layer: int) -> torch.Tensor:
        return self.layers[layer]

    def first(self) -> torch.Tensor:
        """The first of the tensors (N, B, H, T, d), which differ in N and H alone."""
        return next(iter(self.groups.values()))

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "LayerTensors":
        """The results of `change` for each tensor (N, B, H, T, d)."""
        return LayerTensors({heads: change(group) for heads, group in self.groups.items()}, self.places)

    def put(self, rows: torch.Tensor, other: "LayerTensors | float") -> None:
        """Put the sentences of `other`, or a number, in place of the sentences `rows`."""
        for heads, group in self.groups.items():
            group[:, rows] = other.groups[heads] if isinstance(other, LayerTensors) else other
