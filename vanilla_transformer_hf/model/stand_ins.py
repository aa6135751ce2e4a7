"""What computes in the place of a module, in one context alone: packed copies of projections."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import torch
from torch import nn


# By the ids of modules. A search has them while it reads a source or a prompt, int8 for a whole pass. Other threads
# keep computing with the modules.
STAND_INS: ContextVar[Mapping[int, Any]] = ContextVar("stand_ins", default=MappingProxyType({}))


def stand_in_for(module: nn.Module) -> Any:
    """The module or, inside `standing_in`, what stands in for it. Whoever calls a projection asks for it each time."""
    # torch.compile cannot follow a context variable; what it compiles computes with its own projections.
    return module if torch.compiler.is_compiling() else STAND_INS.get().get(id(module), module)


@contextmanager
def standing_in(stand_ins: Mapping[int, Any]) -> Iterator[None]:
    """A context in which these stand in for the modules with these ids."""
    token = STAND_INS.set({**STAND_INS.get(), **stand_ins})
    try:
        yield
    finally:
        STAND_INS.reset(token)


__all__ = ["stand_in_for", "standing_in"]
