"""The OpenAPI description of the server, from the same tables that requests are checked with."""

from typing import Any

from ..model.config.release import VERSION
from .protocols import FORMATS, MOST_ALTERNATIVES, SEARCH_PARAMETERS, Limits


def describe(limits: Limits, needs_key: bool) -> dict[str, Any]:
    """The description, as OpenAPI 3.1."""
    text_or_null = {"type": ["string", "null"]}
    text = {"type": "string", "maxLength": limits.characters}
    texts = {"oneOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": limits.texts}]}
    language = _object(["confidence", "language"], confidence={"type": "number"}, language={"type": "string"})
    count = {"type": "integer", "minimum": 0, "maximum": MOST_ALTERNATIVES, "default": 0}
    stream = {"type": "boolean", "default": False, "description": "Send parts as server-sent events."}
    search = {
        name: {"type": "integer" if kind is int else "number", "minimum": least, "maximum": most}
        for name, (kind, least, most) in SEARCH_PARAMETERS.items()
    }
    libretranslate = _object(
        ["q"],
        q=texts,
        source={**text_or_null, "description": "Language code; 'auto': the language of the texts."},
        target=text_or_null,
        format={"enum": [*FORMATS, "", None], "default": "text"},
        alternatives=count,
        model={**text_or_null, "description": "Name of the model; else the first one with the languages."},
        api_key=text_or_null,
        secret={},
        stream=stream,
    )
    libretranslate["additionalProperties"] = True  # ignored, and named in the header X-Ignored-Fields
    detection = {**_object(["q"], q=texts, api_key=text_or_null), "additionalProperties": True}
    parameters = _object([], src_lang={"type": "string"}, tgt_lang={"type": "string"}, **search)
    parameters["properties"]["num_return_sequences"] = {"type": "integer", "minimum": 1, "maximum": MOST_ALTERNATIVES}
    parameters["properties"]["generate_parameters"] = _object([], **search)
    hugging_face = _object(["inputs"], inputs=texts, parameters=parameters, options={"type": "object"}, stream=stream)
    translated = _object(
        ["translatedText"],
        translatedText={"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        alternatives={
            "type": "array",
            "items": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        },
        detectedLanguage={"oneOf": [language, {"type": "array", "items": language}]},
        suspicious={"oneOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "boolean"}}]},
    )
    generated = {
        "type": "array",
        "items": _object(["translation_text"], translation_text={"type": "string"}, suspicious={"type": "boolean"}),
    }
    languages = {
        "type": "array",
        "items": _object(
            ["code", "name", "targets"],
            code={"type": "string"},
            name={"type": "string"},
            targets={"type": "array", "items": {"type": "string"}},
        ),
    }
    paths = {
        "/translate": {"post": _operation("Translate, LibreTranslate's protocol", libretranslate, translated, True)},
        "/detect": {"post": _operation("Languages of texts", detection, {"type": "array", "items": language}, True)},
        "/suggest": {"post": {"summary": "Suggestions are off", "responses": {"403": _REFUSED["403"]}}},
        "/": {"post": _operation("Translate, Hugging Face's protocol", hugging_face, generated)},
        "/models/{name}": {
            "post": _operation("Translate with a named model, Hugging Face's protocol", hugging_face, generated),
            "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
        },
        "/languages": {"get": _look("Languages and what they are translated into", schema=languages)},
        "/frontend/settings": {"get": _look("What LibreTranslate's page requests first", schema={"type": "object"})},
        "/health": {"get": _look("Whether the process works")},
        "/ready": {"get": _look("Whether requests are taken")},
        "/metrics": {"get": _look("Metrics for Prometheus", "text/plain")},
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "vanilla-transformer serve", "version": VERSION},
        "paths": paths,
    }
    if needs_key:
        document["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        document["security"] = [{"key": []}]
    return document


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_ERROR = _object(["error", "field"], error={"type": "string"}, field={"type": ["string", "null"]})
_REFUSED = {
    status: {"description": description, "content": {"application/json": {"schema": _ERROR}}}
    for status, description in {
        "400": "A field is wrong",
        "403": "The key is missing or not valid, or this is off here",
        "404": "There is no such model",
        "408": "The body came too slowly",
        "413": "The request exceeds a limit",
        "415": "A body of another type",
        "429": "Too many texts wait; Retry-After says when to come back",
        "501": "Languages are not detected here",
        "503": "The server is stopping",
        "504": "Not translated in time",
    }.items()
}


def _operation(summary: str, body: dict[str, Any], answer: dict[str, Any], forms: bool = False) -> dict[str, Any]:
    kinds = ["application/json", *(["application/x-www-form-urlencoded", "multipart/form-data"] if forms else [])]
    content = {kind: {"schema": body} for kind in kinds}
    found: dict[str, Any] = {"application/json": {"schema": answer}}
    if "stream" in body["properties"]:
        found["text/event-stream"] = {"schema": {"type": "string"}}
    answers = {"200": {"description": "What was found", "content": found}, **_REFUSED}
    return {"summary": summary, "requestBody": {"required": True, "content": content}, "responses": answers}


def _look(summary: str, kind: str = "application/json", schema: dict[str, Any] | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {} if schema is None else {"schema": schema}
    return {"summary": summary, "responses": {"200": {"description": summary, "content": {kind: content}}}}
