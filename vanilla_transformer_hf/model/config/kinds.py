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
        options: Groups of options that it uses.
        check: A function of the config and "encoder" or "decoder", the stack that has this kind: raises a ValueError
            where it cannot be combined with other fields.
    """

    about: str
    options: tuple[type, ...] = ()
    check: Callable[[Any, str], None] = no_check


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
