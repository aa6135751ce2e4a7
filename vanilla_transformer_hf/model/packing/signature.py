"""
Whether a model still has the weights that its packed copies were made of.

torch counts changes in place, but not those through `.data`, as of averages, merged adapters or swapped weights. So
some rows of every matrix are compared, too: who writes through `.data` changes whole matrices. What is not noticed is
a change of a few other rows through `.data`; after one, call `model.train()`, which drops the copies, and `eval()`.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch


# Rows of a matrix that are compared: the first, the last and others at equal distances.
SAMPLED_ROWS = 4
# The same for the values of a vector; a shorter one is compared whole.
SAMPLED_VALUES = 2**12
# Bytes of a value -> integers of this width: compared bit by bit, NaN equals itself.
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a tensor, which may be distributed over several (DTensor)."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def sampled(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Views of some rows of a matrix (O, D), or of some values of a vector (O); the first and the last among them."""
    rows = local_part(tensor).detach()
    most = SAMPLED_ROWS if rows.dim() > 1 else SAMPLED_VALUES
    step = max(1, -(-(len(rows) - 1) // (most - 1)))
    return [rows[:-1:step], rows[-1:]]


def places_of(tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Which tensors these are, where their values lie, and how often torch saw them change."""
    counts = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
    return [
        (id(one), local_part(one).data_ptr(), one.dtype, one.shape, one.stride(), count)
        for one, count in zip(tensors, counts, strict=True)
    ]


class WeightSignature:
    """What distinguishes the present weights of a model from others."""

    # What identifies its modules, compared with ==, and the weights that are packed, with their biases.

    def __init__(self, modules: Any, tensors: Sequence[torch.Tensor]):
        self.modules, self.places = modules, places_of(tensors)
        # By width, so that each group is read as one matrix. The views keep their memory: no other tensor comes to lie
        # at its address.
        self.views = defaultdict[Any, list[torch.Tensor]](list)
        for view in (view for tensor in tensors for view in sampled(tensor)):
            self.views[view.device, view.dtype, view.shape[1:]].append(view)
        self.values = self._read()

    def _read(self) -> list[torch.Tensor]:
        """The sampled values of each width, as integers."""
        values = [torch.cat(views) for views in self.views.values()]
        return [one.view(INTEGERS[one.itemsize]) for one in values]

    def fits(self, modules: Any, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same modules and tensors, with the same values where they are compared."""
        same = self.modules == modules and self.places == places_of(tensors)
        return same and all(map(torch.equal, self.values, self._read()))
