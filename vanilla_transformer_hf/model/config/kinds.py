"""
Kinds of attention, position encodings and front ends, as far as the config needs to know them.

A kind is a row of a table: the module that computes it, what it can be combined with, and its options: fields of the
config that only this kind, or a few, use. What computes a kind imports nothing of this: a config is opened without it.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from huggingface_hub.dataclasses import validated_field


# Far beyond any model. A downloaded config may have 10⁹ layers or a matrix of 2⁴⁰ columns, which would hang.
LARGEST_DEPTH = 1_024
LARGEST_SIZE = 2**24


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A row of a table."""

    module: str = ""  # which computes it, and is imported with the first use; empty: it adds itself
    options: tuple[str, ...] = ()  # the config's fields that it uses, and not all others do


PACKAGE = str(__package__).removesuffix(".config")  # of the model's modules; in a saved folder, all are in one


def part(module: str, wanted: str) -> Any:
    """A module that not every saved folder has; a `ValueError` if this one lacks it, and with it what is `wanted`."""
    try:
        return import_module(f"{PACKAGE}.{module}")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{wanted}: the code of this folder lacks it; install vanilla_transformer_hf, which has all of it"
        ) from error


# `norm_type` -> its row.
NORM_KINDS = {
    "layer_norm": Kind(),
    "rms_norm": Kind(),
    "rms_norm_author": Kind(module="layers.norms"),
    "batch_norm": Kind(module="layers.norms"),
}


class Classes(dict[Any, Any]):
    """Name of a kind in `tables` -> its class, imported with the first use from the module in its row."""

    def __init__(self, *tables: Any):
        super().__init__()
        self.rows: Mapping[Any, Kind] = ChainMap(*tables)

    def __missing__(self, kind: str) -> Any:
        row = self.rows.get(kind)
        part(row.module if row else kind, repr(kind))
        if kind not in self:
            raise ValueError(f"{kind!r}: no class computes it; define one with this name")
        return self[kind]

    def add(self, kind: str, computes: type[Any], **facts: Any) -> None:
        """Add a class, of which `facts` says what its row says; a `ValueError` if there is none, or they disagree."""
        row = self.rows.get(kind)
        if row is None:
            raise ValueError(
                f"{computes.__name__}: {kind!r} is not a row of a table in config/; add it there first, so that a "
                "config may name it"
            )
        for name, value in facts.items():
            if getattr(row, name) != value:
                raise ValueError(
                    f"{computes.__name__}: {name}={value}, and the row {kind!r} has {name}={getattr(row, name)}: they "
                    "must be equal, or configs would be taken that do not work"
                )
        computes.is_added = True  # the search takes it as one of ours
        self[kind] = computes


def name_in(table: Mapping[str, Kind], name: str, default: str | None) -> Any:
    """A field of the config whose value is the name of a row of a table; None only where that is its default."""

    def check(value: Any) -> None:
        if value not in table and not (value is default is None):
            raise ValueError(f"Field {name!r} expected one of {(*table,)}, got {value}")

    return validated_field(check, default=default)


def users_of_options(table: Mapping[str, Kind]) -> dict[str, tuple[str, ...]]:
    """Option -> the kinds that use it."""
    names = dict.fromkeys(name for row in table.values() for name in row.options)
    return {name: tuple(sorted(kind for kind, row in table.items() if name in row.options)) for name in names}


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint with the names closest to `name`, or an empty string where none is near enough to be a misspelling."""
    near = get_close_matches(name, list(allowed), n=2, cutoff=0.75)
    return f" (did you mean {' or '.join(repr(other) for other in near)}?)" if near else ""
