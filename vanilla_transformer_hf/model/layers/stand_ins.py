"""What computes in the place of a module, in one context alone: packed copies of projections."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from torch import nn


# By the ids of modules. A search has them while it reads a source or a prompt, int8 for a whole pass. Other threads
# keep computing with the modules.
STAND_INS: ContextVar[Mapping[int, Any]] = ContextVar("stand_ins", default=MappingProxyType({}))
# One entry for each open context, of any thread. torch.compile cannot follow a context variable, but sees whether this
# list is empty: outside of contexts it compiles whole models, inside it leaves the look-up to Python.
OPEN_CONTEXTS: list[None] = []


def stand_in_for(module: nn.Module) -> Any:
    """The module or, inside `standing_in`, what stands in for it. Every call of a projection looks it up."""
    return STAND_INS.get().get(id(module), module) if OPEN_CONTEXTS else module


@contextmanager
def standing_in(stand_ins: Mapping[int, Any]) -> Iterator[None]:
    """A context in which these stand in for the modules with these ids."""
    token = STAND_INS.set({**STAND_INS.get(), **stand_ins})
    OPEN_CONTEXTS.append(None)
    try:
        yield
    finally:
        OPEN_CONTEXTS.pop()
        STAND_INS.reset(token)


__all__ = ["stand_in_for", "standing_in"]
