"""Secrets and absolute paths in texts: found in what is published, and hidden in what is printed."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

from huggingface_hub import get_token

from ..model.tokenization_vanilla_transformer import TOKENIZER_FILES
from .secret_forms import assigned_secrets, is_placeholder, is_secret_value, secrets_by_form


# Absolute paths, except those that every machine has, and also those behind a host ("host:/data") or a scheme that
# names files. A lone "/name" counts where it is a whole value.
PATH = re.compile(
    r"(?<![\w./\\<)\]}~-])"
    r"(?:~\w*/\w|/(?!dev/(?:null|zero|u?random|std\w+|fd|tty)\b|bin/|usr/bin/)[\w.@+-]+/[\w.@+-]"
    r"|[A-Za-z]:[\\/]+[\w .-]+[\\/]|\\\\[\w.?-]+\\\w)"
    r"|\bfile:(?://|[/~]\w)",
    re.IGNORECASE,
)
LONE_PATH = re.compile(r"(?:~|/[\w.@+-]+|[A-Za-z]:[\\/][\w .-]*)[\\/]?")
# Addresses, which are no paths; those of files are.
ADDRESS = re.compile(r"\b(?!file:)[A-Za-z][\w+.-]+://[^\s\"'<>)\]},;]*", re.IGNORECASE)
# Links to pages of the Hub, which begin with a slash too.
HUB_LINK = re.compile(r"\]\(/(?:datasets|spaces|papers|docs|blog|collections)/[^)\s]*\)")

# Fields of a tokenizer's files with tokens learned from text: tokens such as "/usr/lib" are not paths.
LEARNED = re.compile(r"(?:model|added_tokens)\b")


def _passwords(text: str, is_code: bool = False) -> Iterator[str]:
    """Values given to names such as "password" or "api_key", except placeholders."""
    from detect_secrets.plugins.keyword import KeywordDetector

    yield from assigned_secrets(text, is_code)
    for found in KeywordDetector().analyze_string(text):
        if not is_placeholder(found) and re.search("[A-Za-z]", found):
            yield found


def _known_secrets() -> set[str]:
    """The secrets of this process: its token of the Hub, and what variables of the environment call a secret."""
    given = {value for name, value in os.environ.items() if len(value) >= 8 and is_secret_value(name, value)}
    return given | {token for token in (get_token(),) if token}


def _fields(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """
    Every value of a JSON document as (field, text), the field as "outer.inner"; and every key that could be a path.
    {"name": a name, "value": a value} is a field, too.
    """
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
    """
    The value of a JSON document without duplicate fields, because readers differ in which one they use.

    Raises:
        ValueError: It is not such a document; the message begins with `name`.
    """
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: damaged JSON ({error or 'nested too deeply'}).") from error


def find_private_text(name: str, content: bytes) -> list[str]:
    """
    Secrets and absolute paths in a text file that is to be published, a sentence each.

    A sentence names the file and the field (JSON) or line, and the kind of secret, never the secret.

    Args:
        name: The file's name; JSON is searched field by field.

    Raises:
        ValueError: The JSON is damaged.
    """
    lines: list[tuple[str, str, str | None]]
    is_learned = name in TOKENIZER_FILES.values()
    if name.endswith(".json"):
        places = [(f"field {field}", field, value) for field, value in _fields(parse_json(content, name))]
        lines = [(place, f'{field} = "{value}"', value) for place, field, value in places]
    else:
        text = content.decode("utf-8", errors="replace")
        lines = [(f"line {number}", line, None) for number, line in enumerate(text.splitlines(), start=1)]
    problems = []
    known = _known_secrets()
    joined = "\n".join(line for _, line, _ in lines)
    if any(secret in joined for secret in known) or any(True for _ in secrets_by_form(joined)):
        for place, line, _ in lines:
            kinds = {kind for kind, _ in secrets_by_form(line)}
            if any(secret in line for secret in known):
                kinds.add("one of this process")
            problems += [f"{name}, {place}: contains a secret ({kind})" for kind in sorted(kinds)]
        # A secret that is split over several lines.
        problems = problems or [f"{name}: contains a secret ({kind})" for kind, _ in secrets_by_form(joined)]
    for place, line, value in lines:
        field = place.removeprefix("field ")
        if is_learned and LEARNED.match(field):
            continue
        is_password = value is not None and is_secret_value(field, value)
        if is_password or any(True for _ in _passwords(line if value is None else value, name.endswith(".py"))):
            problems.append(f"{name}, {place}: contains a password or key")
        if _has_path(line if value is None else value, is_value=value is not None):
            problems.append(f"{name}, {place}: contains an absolute path")
    return problems


def _has_path(text: str, is_value: bool) -> bool:
    if is_value and LONE_PATH.fullmatch(text):
        return True
    return not text.startswith("#!") and PATH.search(HUB_LINK.sub("]()", ADDRESS.sub("", text))) is not None


def hide_secrets(text: str, *known: str | None) -> str:
    """A text to print, with "<token>" in place of known secrets and of anything that looks like one."""
    found = [*(secret for _, secret in secrets_by_form(text)), *assigned_secrets(text)]
    for secret in (*known, *_known_secrets(), *found):
        if secret and (len(secret) >= 8 or secret in known):
            text = text.replace(secret, "<token>")
    return text
