"""Several corpora in one run: what a recipe says of each, and what follows for languages and tags."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..arguments import DataArguments
from .column_names import SIDES


ROLES = ("train", "validation", "test")
# What a corpus of its own may say; for the rest it has what the recipe says.
CORPUS_FIELDS = (
    *(f"{role}_{what}" for role in ROLES for what in (*SIDES, "split")),
    *(f"{side}_{what}" for side in SIDES for what in ("lang", "column")),
    "dataset_config_name",
)
RATE = "rate"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def check_corpora(corpora: Any, where: str) -> dict[str, dict[str, Any]]:
    """The corpora of a recipe, or of a file that it names: name -> fields."""
    if not isinstance(corpora, Mapping) or not corpora:
        raise ValueError(f"{where}: expected a mapping of names of corpora to their fields.")
    for name, fields in corpora.items():
        if not NAME.fullmatch(str(name)):
            raise ValueError(f"{where}: {name!r} is not a name of a corpus: expected letters, digits, _ and -.")
        if not isinstance(fields, Mapping):
            raise ValueError(f"{where}: {name} is not a mapping of fields to values.")
        for field, value in fields.items():
            if field not in (*CORPUS_FIELDS, RATE):
                raise ValueError(
                    f"{where}: {name} has a field {field!r}; a corpus has {RATE}, {', '.join(CORPUS_FIELDS)}."
                )
            is_right = (
                isinstance(value, int | float) and value is not True if field == RATE else isinstance(value, str)
            )
            if not is_right:
                expected = "a number" if field == RATE else "text"
                raise ValueError(f"{where}: {name}: {field} is {value!r}: expected {expected}.")
    return {str(name): dict(fields) for name, fields in corpora.items()}


def _fields(data: DataArguments) -> dict[str, dict[str, Any]]:
    corpora: Any = data.corpora  # a name of a file only before the recipe is read
    # In the order of their names: another order in a recipe is the same run.
    return dict(sorted((corpora or {}).items()))


def corpus_parts(data: DataArguments) -> dict[str, DataArguments]:
    """Name of a corpus -> its arguments; empty if there is one, which the recipe itself names."""
    return {
        name: replace(data, corpora=None, **{field: value for field, value in fields.items() if field != RATE})
        for name, fields in _fields(data).items()
    }


def rates_of(data: DataArguments) -> dict[str, float | None]:
    """Name of a training corpus -> its rate."""
    return {name: fields.get(RATE) for name, fields in _fields(data).items() if fields.get("train_source")}


def exchange_parts(data: DataArguments) -> dict[str, dict[str, Any]]:
    """The corpora with languages and columns of their sides exchanged, for a model of the other direction."""
    other = {f"{one}_{what}": f"{two}_{what}" for one, two in (SIDES, SIDES[::-1]) for what in ("lang", "column")}
    return {
        name: {other.get(field, field): value for field, value in fields.items()}
        for name, fields in _fields(data).items()
    }


def new_tags(data: DataArguments) -> list[str]:
    """The target languages of several corpora, as tags of the sources, if there are several and no tags yet."""
    languages = dict.fromkeys(part.target_lang for part in corpus_parts(data).values() if part.target_lang)
    return list(languages) if len(languages) > 1 and not data.target_lang_tags else []


def refuse_several(data: DataArguments, reader: str) -> None:
    """Raise `ValueError` if the recipe has several corpora, because `reader` reads one."""
    if data.corpora:
        raise ValueError(f"corpora: {reader} reads one training corpus; name it by train_source, without corpora.")
