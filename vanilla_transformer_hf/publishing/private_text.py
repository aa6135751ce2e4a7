"""
Secrets and absolute paths in texts: found in what is published, and hidden in what is printed.

The patterns of keys and tokens are those of detect-secrets; it has none for the tokens in `OWN_PATTERNS`.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from huggingface_hub import get_token

from ..model.tokenization_vanilla_transformer import TOKENIZER_FILES


OWN_PATTERNS = {
    "Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "GitHub token": re.compile(r"\bgithub_pat_\w{20,}"),
    # A run of letters and digits, so that names of data in Slovak ("sk-en-…") are not taken for keys.
    "secret key (sk-…)": re.compile(r"\bsk-[\w-]*?[A-Za-z0-9]{20,}"),
    "Google API key": re.compile(r"\bAIza[\w-]{35}"),
    "Private Key": re.compile(r"BEGIN [A-Z0-9 ]*PRIVATE KEY"),
    "access token": re.compile(r"(?i)(?:hub|access|auth|api|bot)_?token[\"']?\s*[:=]\s*[\"']([^\"'\s]{8,})[\"']"),
}

# Of detect-secrets: IP addresses are not secrets, and neither are random-looking strings, such as a file's SHA-256;
# and a word in capitals, such as APFELKUCHEN, looks like a key of Artifactory.
LEFT_OUT = {"IPPublicDetector", "ArtifactoryDetector"}

# Absolute paths, except those that every machine has. A lone "/name" counts where it is a whole value.
PATH = re.compile(
    r"(?<![\w.:/\\<)\]}~-])"
    r"(?:~\w*/\w|/(?!(?:dev|bin|usr)/)[\w.@+-]+/[\w.@+-]|[A-Za-z]:[\\/]+[\w .-]+[\\/]|\\\\[\w.-]+\\\w)"
    r"|\bfile://"
)
LONE_PATH = re.compile(r"(?:~|/[\w.@+-]+|[A-Za-z]:[\\/][\w .-]*)[\\/]?")
# Links to pages of the Hub, which begin with a slash too.
HUB_LINK = re.compile(r"\]\(/(?:datasets|spaces|papers|docs|blog|collections)/[^)\s]*\)")

# Fields of a tokenizer's files with pieces learned from text: pieces such as "/usr/lib" are not paths.
LEARNED = re.compile(r"(?:model|added_tokens)\b")


@cache
def _detectors() -> list[tuple[str, Any]]:
    """The detectors of detect-secrets by the kind of secret, without online verification."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    classes: Any = get_mapping_from_secret_type_to_class().items()
    return [
        (kind, detector())
        for kind, detector in classes
        if issubclass(detector, RegexBasedDetector) and detector.__name__ not in LEFT_OUT
    ]


def _secrets(text: str) -> Iterator[tuple[str, str]]:
    """Each kind of secret in a text with the secret itself."""
    for kind, pattern in OWN_PATTERNS.items():
        for found in pattern.finditer(text):
            yield kind, found[pattern.groups]
    for kind, detector in _detectors():
        # The detectors check what they find, but some give no more than its beginning.
        if any(True for _ in detector.analyze_string(text)):
            for pattern in detector.denylist:
                for found in pattern.finditer(text):
                    yield kind, found[0]


def _passwords(text: str) -> Iterator[str]:
    """Values assigned to names such as "password" or "api_key", except placeholders."""
    from detect_secrets.filters.heuristic import is_not_alphanumeric_string, is_templated_secret
    from detect_secrets.plugins.keyword import KeywordDetector

    for found in KeywordDetector().analyze_string(text):
        if not is_templated_secret(found) and not is_not_alphanumeric_string(found):
            yield "password or key"


def _fields(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """
    Every value of a JSON document as (field, text), the field as "outer.inner"; and every key that could be a path.
    """
    if isinstance(value, dict):
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
    known = get_token()
    joined = "\n".join(line for _, line, _ in lines)
    if (known and known in joined) or any(True for _ in _secrets(joined)):
        for place, line, _ in lines:
            kinds = {kind for kind, _ in _secrets(line)}
            if known and known in line:
                kinds.add("Hugging Face token")
            problems += [f"{name}, {place}: contains a secret ({kind})" for kind in sorted(kinds)]
        # A secret that is split over several lines.
        problems = problems or [f"{name}: contains a secret ({kind})" for kind, _ in _secrets(joined)]
    for place, line, value in lines:
        if is_learned and LEARNED.match(place.removeprefix("field ")):
            continue
        if any(True for _ in _passwords(line)):
            problems.append(f"{name}, {place}: contains a password or key")
        if _has_path(line if value is None else value, is_value=value is not None):
            problems.append(f"{name}, {place}: contains an absolute path")
    return problems


def _has_path(text: str, is_value: bool) -> bool:
    if is_value and LONE_PATH.fullmatch(text):
        return True
    return not text.startswith("#!") and PATH.search(HUB_LINK.sub("]()", text)) is not None


def hide_secrets(text: str, *known: str | None) -> str:
    """A text to print, with "<token>" in place of known secrets and of anything that looks like one."""
    for secret in (*known, get_token(), *(found for _, found in _secrets(text))):
        if secret:
            text = text.replace(secret, "<token>")
    return text
