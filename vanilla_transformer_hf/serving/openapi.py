"""The OpenAPI description of the server, from the same tables that requests are checked with."""

from typing import Any

from ..model.config.release import VERSION
from .protocols import MOST_ALTERNATIVES, SEARCH_PARAMETERS, Limits


def describe(limits: Limits, needs_key: bool) -> dict[str, Any]:
    """The description, as OpenAPI 3.1."""
    text = {"type": "string", "maxLength": limits.characters}
    texts = {"oneOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": limits.texts}]}
    count = {"type": "integer", "minimum": 0, "maximum": MOST_ALTERNATIVES, "default": 0}
    stream = {"type": "boolean", "default": False, "description": "Send parts as server-sent events."}
    search = {
        name: {"type": "integer" if kind is int else "number", "minimum": least, "maximum": most}
        for name, (kind, least, most) in SEARCH_PARAMETERS.items()
    }
    libretranslate = _object(
        ["q"],
        q=texts,
        source={"type": "string", "description": "Language code, or 'auto' where one model has the target."},
        target={"type": "string"},
        format={"const": "text"},
        alternatives=count,
        api_key={"type": "string"},
        secret={"type": "string"},
        stream=stream,
    )
    parameters = _object([], src_lang={"type": "string"}, tgt_lang={"type": "string"}, **search)
    parameters["properties"]["num_return_sequences"] = {"type": "integer", "minimum": 1, "maximum": MOST_ALTERNATIVES}
    parameters["properties"]["generate_parameters"] = _object([], **search)
    hugging_face = _object(["inputs"], inputs=texts, parameters=parameters, options={"type": "object"}, stream=stream)
    translated = _object(
        ["translatedText"],
        translatedText={"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        alternatives={"type": "array"},
        suspicious={"oneOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "boolean"}}]},
    )
    generated = {
        "type": "array",
        "items": _object(["translation_text"], translation_text={"type": "string"}, suspicious={"type": "boolean"}),
    }
    paths = {
        "/translate": {"post": _operation("Translate, LibreTranslate's protocol", libretranslate, translated, True)},
        "/": {"post": _operation("Translate, Hugging Face's protocol", hugging_face, generated)},
        "/models/{name}": {
            "post": _operation("Translate with a named model, Hugging Face's protocol", hugging_face, generated),
            "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
        },
        "/languages": {"get": _look("Languages and what they are translated into")},
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


def _answers(schema: dict[str, Any]) -> dict[str, Any]:
    error = _object(["error", "field"], error={"type": "string"}, field={"type": ["string", "null"]})
    refused = {"content": {"application/json": {"schema": error}}}
    return {
        "200": {"description": "The translations", "content": {"application/json": {"schema": schema}}},
        "400": {"description": "A field is wrong", **refused},
        "403": {"description": "The key is missing or not valid", **refused},
        "408": {"description": "The body came too slowly", **refused},
        "413": {"description": "More than a request may ask for", **refused},
        "415": {"description": "A body of another type", **refused},
        "429": {"description": "Too many texts wait; Retry-After says when to come back", **refused},
        "504": {"description": "Not translated in time", **refused},
    }


def _operation(summary: str, body: dict[str, Any], answer: dict[str, Any], forms: bool = False) -> dict[str, Any]:
    kinds = ["application/json", *(["application/x-www-form-urlencoded", "multipart/form-data"] if forms else [])]
    content = {kind: {"schema": body} for kind in kinds}
    return {"summary": summary, "requestBody": {"required": True, "content": content}, "responses": _answers(answer)}


def _look(summary: str, kind: str = "application/json") -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": summary, "content": {kind: {}}}}}
