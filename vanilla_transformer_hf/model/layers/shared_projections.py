"""Projections that another module may own, and whether a module computes what its class defines."""

from typing import Any

from torch import nn


def is_unchanged(module: nn.Module) -> bool:
    """Whether the module computes what its class defines: no hook, no replaced forward."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def is_plain(module: nn.Module) -> bool:
    """Whether the module is an `nn.Linear` without hooks, adapters or quantized weights."""
    return type(module) is nn.Linear and type(module.weight) is nn.Parameter and is_unchanged(module)


class SharesProjections(nn.Module):
    """A module that may use the projections of another module, which owns them (`shared_from`)."""

    shared_from: nn.Module | None = None

    def share_projections_of(self, shared_from: nn.Module | None) -> None:
        """Use the projections of `shared_from`, also after they are replaced there; None: the module has its own."""
        if shared_from is not None:
            object.__setattr__(self, "shared_from", shared_from)  # nn.Module would register it as a submodule

    @property
    def owner(self) -> Any:
        """The module that owns the projections."""
        return self if self.shared_from is None else self.shared_from

    def _replicate_for_data_parallel(self) -> Any:
        if self.shared_from is not None:
            raise NotImplementedError(
                "torch.nn.DataParallel copies each part of a model by itself, so that shared weights stay on the "
                "first device; start one process for each device (torchrun, accelerate launch), or use one device"
            )
        return super()._replicate_for_data_parallel()
