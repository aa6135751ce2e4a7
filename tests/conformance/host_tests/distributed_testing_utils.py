"""Stand-in for the module of the same name, which the source distribution of transformers leaves out.

The ranks are processes on the CPU that talk through gloo.
"""

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


PRELOADED = ["transformers.testing_utils", "vanilla_transformer_hf.model.modeling_vanilla_transformer"]


def _get_distributed_device_type() -> str:
    return "cpu"


def _get_distributed_backend() -> str:
    return "gloo"


def _get_rank_device(rank: int) -> torch.device:
    return torch.device("cpu")


def _set_rank_device(rank: int) -> None:
    """A CPU process has no device to select."""


def _start_rank_processes(function: Callable, args: tuple, nprocs: int) -> None:
    """
    Call `function(rank, *args)` in `nprocs` new processes; an error in one of them is raised here. They are copies of
    one process that has imported what they need, since to import it takes each of them longer than the test.
    """
    mp.set_forkserver_preload(PRELOADED)
    mp.start_processes(function, args=args, nprocs=nprocs, start_method="forkserver")


def _run_rank(rank: int, function: Callable, args: tuple, world_size: int, rendezvous: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group(
        _get_distributed_backend(), init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    try:
        function(rank, *args)
    finally:
        dist.destroy_process_group()


def run_distributed(world_size: int) -> Callable:
    """`run_distributed(n)(function)(*args)` calls `function(rank, *args)` in a process group of `n` ranks."""

    def decorator(function: Callable) -> Callable:
        @functools.wraps(function)
        def launch(*args: object) -> None:
            with tempfile.TemporaryDirectory() as folder:
                rendezvous = str(Path(folder, "rendezvous"))
                _start_rank_processes(_run_rank, (function, args, world_size, rendezvous), world_size)

        return launch

    return decorator
