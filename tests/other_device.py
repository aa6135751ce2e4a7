"""
A second device on a machine that has only its CPU, which shows where a tensor is made on the wrong one.

Its tensors say that they are there, and no operation takes them together with tensors of the CPU, as on an
accelerator. Each operation is computed on the CPU, so that searches find their way and results can be compared.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import arg_tree_leaves, tree_map


# Besides the CPU and the meta device, torch's build for CPUs knows only this one well enough to index its tensors.
DEVICE = torch.device("lazy:0")
CPU = torch.device("cpu")
aten = torch.ops.aten
# Their second argument, indices, may be on the CPU, whatever the device of the rest.
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}
# Of packed sequences the numbers of tokens, the second argument and result, must be there.
PACKED = {aten._pack_padded_sequence.default, aten._pad_packed_sequence.default}


class MixedDevicesError(RuntimeError):
    """An operation takes tensors of several devices."""


class There(torch.Tensor):
    """A tensor on `DEVICE`; its values are in a tensor on the CPU."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "There":
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=DEVICE
        )

    def __init__(self, values: torch.Tensor):
        self.values = values

    def __repr__(self) -> str:
        return f"There({self.values})"

    def tolist(self) -> Any:
        return self.values.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = _device_of_results(func, args, kwargs)

        def placed(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or device == CPU or (func in PACKED and value.dtype == torch.long):
                return value
            return There(value)

        result = tree_map(placed, func(*tree_map(_on_cpu, tuple(args)), **tree_map(_on_cpu, kwargs)))
        # Operations that change an argument return it, with its new shape.
        return return_and_correct_aliasing(func, args, kwargs, result) if device == DEVICE else result


class OtherDevice(TorchDispatchMode):
    """A context in which `DEVICE` is there. What was made before is on the CPU; `.to(DEVICE)` moves it."""

    def __enter__(self) -> "OtherDevice":
        # torch.tensor() makes its tensor on the CPU and moves it by an operation, which comes here.
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        torch._C._set_only_lift_cpu_tensors(False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return There.__torch_dispatch__(func, types, args, kwargs)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, There):
        return value.values
    return CPU if isinstance(value, torch.device) else value


def _device_of_results(func: Any, args: Any, kwargs: Any) -> torch.device:
    """
    Raises:
        MixedDevicesError: The tensors are on several devices. One number on the CPU is taken everywhere.
    """
    if kwargs.get("device") is not None:
        return kwargs["device"]
    if func is aten.copy_.default:
        return args[0].device
    if func in PACKED or (func in INDEXING and args[0].device == DEVICE):
        args = (args[0], *args[2:])
    tensors = [each for each in arg_tree_leaves(*args, **kwargs) if isinstance(each, torch.Tensor)]
    devices = {each.device for each in tensors if each.dim() or each.device != CPU}
    if len(devices) > 1:
        raise MixedDevicesError(f"{func}: tensors on {DEVICE} and {CPU}")
    return devices.pop() if devices else CPU
