"""Linear maps that another module may own or stand in for, and whether a module computes what its class says."""

from threading import get_ident
from typing import Any

from torch import nn

from ..config.sharing import GLOBAL_PROJECTIONS, PROJECTIONS


def is_unchanged(module: nn.Module) -> bool:
    """Whether the module computes what its class says: no hook, no replaced forward."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def is_plain(module: nn.Module) -> bool:
    """Whether the module is an `nn.Linear` without hooks, adapters or quantized weights."""
    return type(module) is nn.Linear and type(module.weight) is nn.Parameter and is_unchanged(module)


# Names of the linear maps that are looked up in `Borrower.maps`, never in the module itself.
LOOKED_UP = {
    *(prefix + name for prefix in GLOBAL_PROJECTIONS.values() for name in (*PROJECTIONS["none"], "out_proj")),
    *("fc1", "fc2", "fc3"),
}
# Thread -> for the id of a module that owns linear maps, what stands in for it there: a search's packed copies.
STAND_INS: dict[int, dict[int, Any]] = {}


class Borrower(nn.Module):
    """A module that may use the linear maps of another module, its lender, which owns them."""

    lender: nn.Module | None = None

    def borrow(self, lender: nn.Module | None):
        """Use the maps of `lender`, also after they are replaced there; None: the module has its own."""
        if lender is not None:
            object.__setattr__(self, "lender", lender)  # nn.Module would register it as a submodule

    @property
    def owner(self) -> Any:
        """The module that owns the maps."""
        return self if self.lender is None else self.lender

    @property
    def maps(self) -> Any:
        """What computes them: that module or, while a search reads a source, its stand-in."""
        owner = self.owner
        return STAND_INS.get(get_ident(), {}).get(id(owner), owner) if STAND_INS else owner

    def _replicate_for_data_parallel(self):
        if self.lender is not None:
            raise NotImplementedError(
                "torch.nn.DataParallel copies each part of a model by itself, so that shared weights stay on the "
                "first device; start one process for each device (torchrun, accelerate launch), or use one device"
            )
        return super()._replicate_for_data_parallel()  # type: ignore[operator]
