"""Secrets and absolute paths in texts: found in what is published, and hidden in what is printed."""

import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

from huggingface_hub import get_token

from ..model.tokenization_vanilla_transformer import TOKENIZER_FILES
from .secret_forms import as_read, assigned_secrets, is_secret_value, secrets_by_form


# Absolute paths, except those that every machine has, and also those behind a host ("host:/data") or a scheme that
# names files. A lone "/name" counts where it is a whole value.
PATH = re.compile(
    r"(?:(?<![\w./\\<)\]}~-])|(?<=\s-[A-Z])|(?<=^-[A-Z]))"
    r"(?:~\w{0,99}/\w|/(?!dev/(?:null|zero|u?random|std\w{1,3}|fd|tty)\b|bin/|usr/bin/)[\w.@+-]{1,255}/[\w.@+-]"
    r"|[A-Za-z]:[\\/]{1,9}[\w .-]{1,255}[\\/]|\\\\[\w.?$-]{1,255}\\\w|\\Users\\\w)"
    r"|\bfile:(?://|[/~]\w)"
    # Home folders right behind a word, which no relative path has as its second part.
    r"|(?<![\w.@/\\-])[^\W\d_]{1,20}/(?:home|Users)/[\w.@+-]|[A-Za-z]:\\{1,4}Users\\",
    re.IGNORECASE,
)
LONE_PATH = re.compile(r"(?:~|/[\w.@+-]{1,255}|[A-Za-z]:[\\/][\w .-]{0,255})[\\/]?")
# Addresses, which are no paths; those of files are.
ADDRESS = re.compile(r"\b(?!file:)[A-Za-z][\w+.-]{1,30}://[^\s\"'<>)\]},;]*", re.IGNORECASE)
# Links to pages of the Hub, which begin with a slash too.
HUB_LINK = re.compile(r"\]\(/(?:datasets|spaces|papers|docs|blog|collections)/[^)\s]{0,300}\)")

# Fields of a tokenizer's files with tokens learned from text: tokens such as "/usr/lib" are not paths.
LEARNED = re.compile(r"(?:model|added_tokens)\b")


def _known_secrets() -> set[str]:
    """The secrets of this process: its token of the Hub, and what variables of the environment call a secret."""
    given = {value for name, value in os.environ.items() if len(value) >= 8 and is_secret_value(name, value)}
    return given | {token for token in (get_token(),) if token}


def _fields(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every value of a JSON document as ("outer.inner", text), and every key that could be a path."""
    # {"name": a name, "value": a value} is a field, too.
    name = name if len(name) < 1000 else f"{name[:400]}…{name[-400:]}"  # which comes with each value
    if isinstance(value, dict):
        if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
            yield value["name"], value["value"]
        for key, inner in value.items():
            if re.search(r"[~/\\]", str(key)):
                yield f"{name}.{key}" if name else str(key), str(key)
            yield from _fields(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _fields(inner, f"{name}.{number}")
    else:
        yield name, str(value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def parse_json(content: bytes, name: str) -> Any:
    """The value of a JSON document without duplicate fields, because readers differ in which one they use."""
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: damaged JSON ({error or 'nested too deeply'}).") from error


def find_private_text(name: str, content: bytes) -> list[str]:
    """Secrets and absolute paths in a text file, a sentence each with the place and the kind, never the secret."""
    is_json, is_learned = name.endswith(".json"), name in TOKENIZER_FILES.values()
    if is_json:
        values = dict(enumerate(_fields(parse_json(content, name))))
        places = [f"field {field}" for field, _ in values.values()]
        texts = [f'{field} = "{value}"' for field, value in values.values()]
        # Not of what a tokenizer has learned.
        given = ["" if is_learned and LEARNED.match(field) else value for field, value in values.values()]
    else:
        numbered = list(_lines(content.decode("utf-8", errors="replace")))
        places, given = [f"line {number}" for number, _ in numbered], [line for _, line in numbered]
        texts = given
    problems = [(place, f"a secret ({kind})") for place, kind in _found_in(texts, _kinds)]
    problems += [
        (place, "a password or key")
        for place, _ in _found_in(given, partial(assigned_secrets, is_code=name.endswith(".py")))
    ]
    if is_json:
        names = [field for field, _ in values.values()]
        found = [is_secret_value(*pair) for pair in zip(names, given, strict=True)]
        problems += [(place, "a password or key") for place, is_one in enumerate(found) if is_one]
    for place, text in enumerate(given):
        for version in {text, as_read(text)} - {""}:
            rest = "" if version.startswith("#!") else HUB_LINK.sub("]()", ADDRESS.sub("", version))
            if PATH.search(rest) or (is_json and LONE_PATH.fullmatch(version)):
                problems.append((place, "an absolute path"))
    return [f"{name}, {places[place]}: contains {what}" for place, what in dict.fromkeys(sorted(problems))]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; one that ends with a backslash is continued by the next, as in shells."""
    parts = list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield number - len(parts) + 1, "".join(parts)
            parts = []
    if parts:
        yield number - len(parts) + 1, "".join(parts)


def _found_in(texts: list[str], find: Callable[[str], Iterator[tuple[int, str]]]) -> Iterator[tuple[int, str]]:
    """The number of the text, and what `find` finds there: in texts, one a line, and in these as they are read."""
    # Texts may be parts of one thing.
    for version in dict.fromkeys((tuple(texts), tuple(map(as_read, texts)))):
        starts = list(accumulate((len(text) + 1 for text in version), initial=0))
        for at, what in find("\n".join(version)):
            yield bisect_right(starts, at) - 1, what


def _kinds(text: str) -> Iterator[tuple[int, str]]:
    for at, kind, _ in secrets_by_form(text):
        yield at, kind
    for secret in _known_secrets():
        at = text.find(secret)
        while at >= 0:
            yield at, "one of this process"
            at = text.find(secret, at + len(secret))


def hide_secrets(text: str, *known: str | None) -> str:
    """A text to print, with "<token>" in place of known secrets and of anything that looks like one."""
    found = [*(secret for *_, secret in secrets_by_form(text)), *(secret for _, secret in assigned_secrets(text))]
    for secret in dict.fromkeys((*known, *_known_secrets(), *found)):
        if secret and (len(secret) >= 8 or secret in known):
            text = text.replace(secret, "<token>")
    return text
