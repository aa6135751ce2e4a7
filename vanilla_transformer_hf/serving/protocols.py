"""
Requests and answers in the two protocols of translation clients.

- LibreTranslate: POST /translate {q, source, target, format, alternatives, api_key} → {translatedText, alternatives,
  detectedLanguage}. `model`, `stream`, `glossary`, `memory`, `matches` and `mbr` are ours; unknown fields are ignored,
  as there.
  POST /suggest {q, s, source, target, api_key} → {success}.
  POST /translate_file {file, source, target, api_key} → {translatedFileUrl}. `glossary`, `memory` and `encoding`, of a
  file that is not UTF-8, are ours.
- Hugging Face: POST / or /models/NAME {inputs, parameters} → [{translation_text}].

Both become a `TranslationRequest`. An invalid request raises a `RequestError` that names the field.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..common.lines import text_encoding
from ..common.white_space import as_text, normalize_space
from ..translation.documents.memory import Memory
from ..translation.documents.plain import checked_encoding
from ..translation.results import Translation
from ..translation.search.minimum_risk import MinimumRisk
from ..translation.text.glossary import Glossary
from .http import RequestError


# Options of the search that a client may set -> (type, smallest, largest).
SEARCH_PARAMETERS: dict[str, tuple[type, float, float]] = {
    "num_beams": (int, 1, 16),
    "max_new_tokens": (int, 1, 512),
    "length_penalty": (float, -10, 10),
    "no_repeat_ngram_size": (int, 0, 100),
    "repetition_penalty": (float, 0.01, 100),
}
MOST_ALTERNATIVES = 16
# Fields of `mbr`, and what else it says.
MBR_PARAMETERS: dict[str, tuple[type, float, float]] = {
    "samples": (int, 2, 64),
    "epsilon": (float, 0, 0.99),
    "top_k": (int, 1, 1000),
    "temperature": (float, 0.01, 100),
    "seed": (int, 0, 999_999),
}

# `secret` is sent by LibreTranslate's own page and is ignored here.
LIBRETRANSLATE_FIELDS = (
    *("q", "source", "target", "format", "alternatives", "api_key", "model", "stream", "secret"),
    *("glossary", "memory", "matches", "mbr"),
)
# Entries of a glossary or memory that a request brings.
MOST_ENTRIES = 1000
SUGGESTION_FIELDS = ("q", "s", "source", "target", "api_key", "model", "secret")
FILE_FIELDS = ("file", "source", "target", "api_key", "model", "encoding", "secret", "glossary", "memory")
# What a text may be.
FORMATS = ("text", "html")
# The value of `source` with which the language of the texts is detected.
AUTO = "auto"
# What forms say for true and false.
TEXTS_OF_SWITCHES = {"true": True, "false": False, "1": True, "0": False, "": False}
HUGGING_FACE_FIELDS = ("inputs", "parameters", "options", "stream")
# Fields of `parameters` beside those of the search, with the only values that are accepted.
HUGGING_FACE_PARAMETERS = ("src_lang", "tgt_lang", "num_return_sequences", "generate_parameters")
IGNORED_PARAMETERS = {"clean_up_tokenization_spaces": (None, True, False), "truncation": (None, "do_not_truncate")}


@dataclass(frozen=True)
class Limits:
    """The limits of one request."""

    characters: int = 50_000  # Of all its texts together
    texts: int = 128  # Of a list
    body_bytes: int = 2**20  # Of the body
    seconds: float = 60.0  # From the request to its answer
    body_seconds: float = 10.0  # Until the body has arrived
    file_bytes: int = 10 * 2**20  # Of the body with a file; 0: none are translated
    file_seconds: float = 600.0  # For which a translated file is kept

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (value > 0 or (name == "file_bytes" and value == 0)):
                raise ValueError(f"{name}={value}: must be above 0")


@dataclass(frozen=True)
class TranslationRequest:
    texts: list[str]  # The source texts
    is_list: bool  # Whether the client sent a list, and gets one
    # source, target: Language codes; None if the server chooses. `source` may be `AUTO`.
    source: str | None = None
    target: str | None = None
    alternatives: int = 0  # Number of further translations of each text
    options: dict[str, Any] = field(default_factory=dict)  # Arguments of `generate()`
    stream: bool = False  # Whether parts are sent as soon as they are translated
    api_key: str | None = None  # The key in the body, if there is one
    model: str | None = None  # The name of the model; None if the languages choose it
    encoding: str | None = None  # Of a file of text that is not UTF-8
    ignored: tuple[str, ...] = ()  # Names of the fields that are not known
    is_html: bool = False  # Whether the texts have markup, which stays
    # The language that was found for `AUTO`, and the confidence from 0 to 100
    detected: tuple[str, float] | None = None
    # glossary, memory: Those of the request, in place of the server's
    glossary: Glossary | None = None
    memory: Memory | None = None
    lists_matches: bool = False  # Whether near matches of the memory are listed
    mbr: MinimumRisk | None = None  # The search, in place of that for the most likely translation


def read_libretranslate(body: Mapping[str, Any], limits: Limits) -> TranslationRequest:
    """A request in LibreTranslate's protocol: the fields of a JSON object, or of a form, whose values are texts."""
    texts, is_list = _texts(body, "q", limits)
    markup = "text" if body.get("format") in (None, "") else body["format"]
    if markup not in FORMATS:
        raise RequestError(f"must be {' or '.join(map(repr, FORMATS))}, got {shown(markup)}", "format")
    given = 0 if body.get("alternatives") in (None, "") else body["alternatives"]
    alternatives = _number(given, "alternatives", int, 0, MOST_ALTERNATIVES, takes_text=True)
    return TranslationRequest(
        texts,
        is_list,
        **_common(body, LIBRETRANSLATE_FIELDS),
        **_aids(body, limits),
        alternatives=alternatives,
        stream=_switch(body, "stream"),
        is_html=markup == "html",
        lists_matches=_switch(body, "matches"),
        mbr=_minimum_risk(body, alternatives + 1),
    )


def _common(body: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The languages, the key and the model of a request, and the names of its fields that are not known."""
    found = {name: _optional_text(body, name) for name in ("source", "target", "api_key", "model")}
    return {**found, "ignored": tuple(name for name in body if name not in known)}


def _aids(body: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The glossary and the memory that a request brings."""
    glossary = _entries(body, "glossary", limits, partial(Glossary, forms=None))
    return {"glossary": glossary, "memory": _entries(body, "memory", limits, Memory)}


def _object_of(body: Mapping[str, Any], name: str) -> Any:
    """The value of a field; an object that a form has as text is one."""
    value = body.get(name)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _entries(body: Mapping[str, Any], name: str, limits: Limits, make: Callable[[list[tuple[str, str]]], Any]) -> Any:
    """A glossary or memory of an object of texts and their translations; None without one."""
    value = _object_of(body, name)
    if value is None or value == "":
        return None
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value.values()):
        raise RequestError("must be an object of texts and their translations", name)
    characters = sum(len(source) + len(target) for source, target in value.items())
    if len(value) > MOST_ENTRIES or characters > limits.characters:
        most = f"{MOST_ENTRIES:,} entries or {limits.characters:,} characters"
        raise RequestError(f"more than {most}; a request may have so many", name, 413)
    if any(as_text(text) != text for pair in value.items() for text in pair):
        raise RequestError("has a lone surrogate, which is not a character", name)
    try:
        return make([pair for pair in value.items() if all(map(normalize_space, pair))])
    except ValueError as error:
        raise RequestError(str(error), name, 413) from None


def _minimum_risk(body: Mapping[str, Any], n_best: int) -> MinimumRisk | None:
    """The search by minimum risk, if the request wants it: true, or its settings; it finds at least so many."""
    fields = _object_of(body, "mbr")
    if not isinstance(fields, Mapping):
        if not _switch(body, "mbr"):
            return None
        fields = {}
    _check_names(fields, (*MBR_PARAMETERS, "candidates"), prefix="mbr.")
    given = _numbers(fields, MBR_PARAMETERS, "mbr.")
    if "samples" in given:
        given["samples"] = max(given["samples"], n_best)
    if candidates := _optional_text(fields, "candidates", "mbr."):
        given["candidates"] = candidates
    try:
        return MinimumRisk(**given)
    except ValueError as error:
        raise RequestError(str(error), "mbr") from None


def read_file_request(body: Mapping[str, Any], limits: Limits) -> TranslationRequest:
    """The fields of a form beside its file, which brings the texts."""
    encoding = _optional_text(body, "encoding")
    try:
        checked_encoding(encoding and text_encoding(encoding))
    except (LookupError, ValueError):
        raise RequestError(f"must be an encoding of text such as cp1252, got {shown(encoding)}", "encoding") from None
    return TranslationRequest([], True, **_common(body, FILE_FIELDS), **_aids(body, limits), encoding=encoding)


def read_suggestion(body: Mapping[str, Any], limits: Limits) -> tuple[TranslationRequest, str]:
    """A text with its languages, and the translation that it should have."""
    texts = []
    for name in ("q", "s"):
        found, is_list = _texts(body, name, limits)
        if is_list or not found[0].strip():
            raise RequestError("must be one text that is not empty", name)
        texts += found
    wanted = TranslationRequest(texts[:1], False, **_common(body, SUGGESTION_FIELDS))
    for name in ("source", "target"):
        if getattr(wanted, name) is None:
            raise RequestError("missing; name the language", name)
    return wanted, texts[1]


def read_detection(body: Mapping[str, Any], limits: Limits) -> TranslationRequest:
    """The texts whose language is to be detected, and the key."""
    texts, is_list = _texts(body, "q", limits)
    return TranslationRequest(texts, is_list, api_key=_optional_text(body, "api_key"))


def languages_as_json(found: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Languages and their confidences as LibreTranslate sends them."""
    return [{"confidence": confidence, "language": code} for code, confidence in found]


def detected_language(request: TranslationRequest) -> dict[str, Any]:
    """The field of an answer with the language that was found for `AUTO`."""
    return {} if request.detected is None else {"detectedLanguage": languages_as_json([request.detected])[0]}


def answer_libretranslate(request: TranslationRequest, found: Sequence[Sequence[Translation]]) -> dict[str, Any]:
    """The n-best lists of the texts as LibreTranslate sends them; `suspicious` only where a best one is."""
    best = [str(each[0]) for each in found]
    answer: dict[str, Any] = {"translatedText": best if request.is_list else best[0]}
    if request.alternatives:
        others = [[str(one) for one in each[1:]] for each in found]
        answer["alternatives"] = others if request.is_list else others[0]
    if language := detected_language(request).get("detectedLanguage"):
        answer["detectedLanguage"] = [language for _ in best] if request.is_list else language
    if any(suspicious := [each[0].is_suspicious for each in found]):
        answer["suspicious"] = suspicious if request.is_list else suspicious[0]
    if any(missing := [[term._asdict() for term in each[0].missing_terms] for each in found]):
        answer["missingTerms"] = missing if request.is_list else missing[0]
    if request.lists_matches:
        matches = [[near._asdict() for near in each[0].near_matches] for each in found]
        answer["matches"] = matches if request.is_list else matches[0]
    return answer


def read_hugging_face(body: Mapping[str, Any], limits: Limits) -> TranslationRequest:
    """A request in Hugging Face's protocol, a JSON object."""
    _check_names(body, HUGGING_FACE_FIELDS)
    texts, is_list = _texts(body, "inputs", limits)
    parameters = _object(body, "parameters")
    _check_names(parameters, (*SEARCH_PARAMETERS, *HUGGING_FACE_PARAMETERS, *IGNORED_PARAMETERS), prefix="parameters.")
    for name, values in IGNORED_PARAMETERS.items():
        given = parameters.get(name)
        if not any(given == value and type(given) is type(value) for value in values):  # 0 is not false
            raise RequestError(f"{shown(parameters[name])} is not supported; leave it out", f"parameters.{name}")
    inner = _object(parameters, "generate_parameters", "parameters.")
    _check_names(inner, (*SEARCH_PARAMETERS, "num_return_sequences"), prefix="parameters.generate_parameters.")
    known = {**SEARCH_PARAMETERS, "num_return_sequences": (int, 1, MOST_ALTERNATIVES)}
    options = _numbers(parameters, known, "parameters.")
    options |= _numbers(inner, known, "parameters.generate_parameters.")
    _object(body, "options")
    return TranslationRequest(
        texts,
        is_list,
        _optional_text(parameters, "src_lang", "parameters."),
        _optional_text(parameters, "tgt_lang", "parameters."),
        options.pop("num_return_sequences", 1) - 1,
        options,
        stream=_switch(body, "stream"),
    )


def _numbers(given: Mapping[str, Any], known: Mapping[str, tuple[type, float, float]], prefix: str) -> dict[str, Any]:
    """The numbers of these names that are given."""
    return {
        name: _number(given[name], f"{prefix}{name}", *bounds)
        for name, bounds in known.items()
        if given.get(name) is not None
    }


def answer_hugging_face(request: TranslationRequest, found: Sequence[Sequence[Translation]]) -> list[dict[str, Any]]:
    """The n-best lists of the texts as Hugging Face's inference servers send them, with marks where there are any."""
    return [
        {
            "translation_text": str(one),
            **({"suspicious": True} if one.is_suspicious else {}),
            **({"missing_terms": [term._asdict() for term in one.missing_terms]} if one.missing_terms else {}),
        }
        for each in found
        for one in each
    ]


def shown(value: Any) -> str:
    """The beginning of a value in a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _check_names(body: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
    for name in body:
        if name not in known:
            raise RequestError(f"unknown field; known are {', '.join(known)}", f"{prefix}{shown(name)[1:-1]}")


def _object(body: Mapping[str, Any], name: str, prefix: str = "") -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RequestError(f"must be an object, got {type(value).__name__}", f"{prefix}{name}")
    return value


def _texts(body: Mapping[str, Any], name: str, limits: Limits) -> tuple[list[str], bool]:
    """The texts, and whether they are a list."""
    value = body.get(name)
    if value is None:
        raise RequestError("missing; send a text or a list of texts", name)
    is_list = isinstance(value, list)
    texts = value if is_list else [value]
    if not texts:
        raise RequestError("an empty list; send at least one text", name)
    if len(texts) > limits.texts:
        raise RequestError(f"{len(texts):,} texts; a request may have {limits.texts:,}", name, 413)
    for place, text in enumerate(texts):
        where = f"{name}[{place}]" if is_list else name
        if not isinstance(text, str):
            raise RequestError(f"must be a text, got {type(text).__name__}", where)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise RequestError("has a lone surrogate, which is not a character", where)
    characters = sum(map(len, texts))
    if characters > limits.characters:
        raise RequestError(f"{characters:,} characters; a request may have {limits.characters:,}", name, 413)
    return texts, is_list


def _optional_text(body: Mapping[str, Any], name: str, prefix: str = "") -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"must be a text, got {type(value).__name__}", f"{prefix}{name}")
    return value or None


def _switch(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    value = TEXTS_OF_SWITCHES.get(value.lower(), value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        raise RequestError(f"must be true or false, got {shown(value)}", name)
    return value


def _number(value: Any, where: str, kind: type, least: float, most: float, takes_text: bool = False) -> Any:
    """The number; where fields may come from a form (`takes_text`), that of a text as well."""
    try:
        number = kind(value) if takes_text and isinstance(value, str) else value
    except ValueError:
        number = None
    if kind is int and isinstance(number, float) and number.is_integer():
        number = int(number)  # 12.0, which JSON does not tell from 12
    is_number = isinstance(number, int) or (kind is float and isinstance(number, float))
    if isinstance(number, bool) or not is_number or not least <= number <= most:
        wanted = "a whole number" if kind is int else "a number"
        raise RequestError(f"must be {wanted} from {least:g} to {most:g}, got {shown(value)}", where)
    return kind(number)
