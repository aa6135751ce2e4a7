"""
Kinds of attention and position encodings, as far as the config needs to know them.

A kind is a row of a table: what it can be combined with, its text in the documentation, and its options. Options
are fields of the config that only this kind, or a few, use: each group is a class here, whose fields the config
inherits, so that they are keyword arguments, entries of config.json and options of the command line under their own
names. What computes a kind lies elsewhere and imports nothing of this: a config is opened without it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from importlib import import_module
from inspect import cleandoc
from textwrap import fill, indent
from typing import Any, TypeVar

from huggingface_hub.dataclasses import validated_field


Options = TypeVar("Options", bound=type)
# Far beyond any model. A downloaded config may have 10⁹ layers or a matrix of 2⁴⁰ columns, which would hang.
LARGEST_DEPTH = 1_024
LARGEST_SIZE = 2**24


def no_check(config: Any, stack: str) -> None:
    """No check."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """
    Attributes:
        about: Its text in the documentation of the field and in `train --help-all`.
        module: The module that computes it, which is imported with the first use; empty: it adds itself.
        options: Groups of options that it uses.
        check: A function of the config and "encoder" or "decoder", the stack that has this kind: raises a ValueError
            where it cannot be combined with other fields.
    """

    about: str
    module: str = ""
    options: tuple[type, ...] = ()
    check: Callable[[Any, str], None] = no_check


class Classes(dict[str, type[Any]]):
    """
    Name of a kind -> the class that computes it, which is imported with the first use.

    Args:
        package: That of the rows' modules.
        tables: The rows.
    """

    def __init__(self, package: str | None, *tables: Mapping[str, Kind]):
        super().__init__()
        self.package, self.tables = package, tables

    def row(self, kind: str) -> Kind | None:
        """The row of this name."""
        return next((table[kind] for table in self.tables if kind in table), None)

    def __missing__(self, kind: str) -> type[Any]:
        row = self.row(kind)
        try:
            import_module(f"{self.package}.{row.module if row else kind}")
        except ModuleNotFoundError as error:
            raise ValueError(
                f"{kind!r}: the code of this folder lacks it; install vanilla_transformer_hf, which has every kind"
            ) from error
        if kind not in self:
            raise ValueError(f"{kind!r}: no class computes it; define one with this name")
        return self[kind]

    def add(self, kind: str, computes: type[Any], **facts: Any) -> None:
        """
        Add a class.

        Args:
            facts: What its row says, too.

        Raises:
            ValueError: The config has no row for this kind, or row and class disagree.
        """
        row = self.row(kind)
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


def option_group(group: Options) -> Options:
    """A class decorator: the annotated names of a class become fields that a config can inherit."""
    dataclass(init=False, repr=False, eq=False, kw_only=True)(group)  # changes the class itself
    return group


def any_number(default: float) -> Any:
    """An option that may be zero or less; others must be positive."""
    return field(default=default, metadata={"any_number": True})


def name_in(table: Mapping[str, Kind], name: str, default: str | None) -> Any:
    """A field of the config whose value is the name of a row of a table; None only where that is its default."""

    def check(value: Any) -> None:
        if value not in table and not (value is default is None):
            raise ValueError(f"Field {name!r} expected one of {(*table,)}, got {value}")

    return validated_field(check, default=default)


def groups_of(*tables: Mapping[str, Kind]) -> list[type]:
    """The groups of options of all rows, in their order."""
    return list(dict.fromkeys(group for table in tables for kind in table.values() for group in kind.options))


def options_of(*groups: type) -> list[Field[Any]]:
    """The options of groups, in their order."""
    return [option for group in groups for option in fields(group)]


def users_of_options(table: Mapping[str, Kind]) -> dict[str, tuple[str, ...]]:
    """Option -> the kinds that use it."""
    return {
        option.name: tuple(sorted(name for name, kind in table.items() if group in kind.options))
        for group in groups_of(table)
        for option in options_of(group)
    }


def check_sizes_of_options(config: Any, *groups: type) -> None:
    """
    Raises:
        ValueError: An option that counts something is not positive, or far too large.
    """
    for option in options_of(*groups):
        if "any_number" not in option.metadata:
            check_positive(option.name, getattr(config, option.name))


def check_positive(name: str, value: Any) -> None:
    """
    Raises:
        ValueError: A number is not positive, or far beyond any model. What is no number is left to the type's check.
    """
    if not isinstance(value, int | float):
        return
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r}: must be greater than 0")
    largest = LARGEST_DEPTH if name.endswith("_layers") else LARGEST_SIZE
    if value > largest:
        raise ValueError(f"{name}={value!r}: must be at most {largest:,}")


def documented(docstring: str, tables: Mapping[str, Mapping[str, Kind]], groups: Iterable[type]) -> str:
    """
    A config's docstring, completed: after the text of a field the texts of its table's rows, and after the last
    argument the options.

    Args:
        tables: Field, or several as the docstring has them -> its table.
        groups: Groups of options.
    """
    arguments, raises, rest = cleandoc(docstring).partition("\n\nRaises:")
    for names, table in tables.items():
        rows = indent(fill(rows_in_words(table), 111, break_long_words=False, break_on_hyphens=False), " " * 8)
        text = re.search(rf"^ {{4}}{names} \(.*(\n {{8}}.*)*", arguments, re.MULTILINE)
        end = text.end() if text else len(arguments)
        arguments = f"{arguments[:end]}\n{rows}{arguments[end:]}"
    options = [cleandoc(group.__doc__ or "").partition("Args:\n")[2] for group in groups]
    return "\n".join([arguments, *options]) + raises + rest


def rows_in_words(table: Mapping[str, Kind]) -> str:
    """The texts of the rows of a table, as one sentence."""
    return "; ".join(f'`"{name}"`: {kind.about}' for name, kind in table.items()) + "."


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint with the names closest to `name`, or an empty string where none is near enough to be a misspelling."""
    near = get_close_matches(name, list(allowed), n=2, cutoff=0.75)
    return f" (did you mean {' or '.join(repr(other) for other in near)}?)" if near else ""
