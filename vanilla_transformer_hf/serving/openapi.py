"""
The OpenAPI description of the server, from the tables that requests are checked with, and the models' languages.

Lengths of texts and lists are told in words: JSON Schema cannot say how long all texts are together, and what is
longer gets 413, which tools that check servers by their description do not take for a refusal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ..model.config.release import VERSION
from ..translation.search.minimum_risk import OF_CANDIDATES, MinimumRisk
from .protocols import (
    AUTO,
    FORMATS,
    MBR_PARAMETERS,
    MOST_ALTERNATIVES,
    MOST_ENTRIES,
    SEARCH_PARAMETERS,
    TEXTS_OF_SWITCHES,
    Limits,
)


# Field ("model", "source", "target") -> values that are refused together with those of the other fields; None: it is
# left out. A field that is not there may have any value.
Refusal = Mapping[str, Sequence[str] | None]
# Whether a model is found for a source and a target, of which either may be None.
Accepts = Callable[[str | None, str | None], bool]


@dataclass(frozen=True)
class Choice:
    """Models that requests choose among."""

    names: Sequence[str]  # Their names
    sources: Sequence[Sequence[str]]  # Codes of the source languages of each
    targets: Sequence[Sequence[str]]  # Codes and tags of the target languages of each
    accepts: Accepts  # Which languages choose one of them

    @property
    def all_sources(self) -> list[str]:
        """Those of all models, each once."""
        return [*dict.fromkeys(source for each in self.sources for source in each)]

    @property
    def all_targets(self) -> list[str]:
        """Those of all models, each once."""
        return [*dict.fromkeys(target for each in self.targets for target in each)]

    @property
    def is_uniform(self) -> bool:
        """Whether all models have the same languages."""
        return len({*map(tuple, self.sources)}) == len({*map(tuple, self.targets)}) == 1


@dataclass(frozen=True)
class Served:
    """What requests may name."""

    choice: Choice  # All models and their languages
    alone: Sequence[Choice]  # Each model by itself
    endings: Sequence[str]  # Of the files that are translated
    takes_suggestions: bool = False


Schema = dict[str, Any]


def describe(limits: Limits, needs_key: bool, served: Served) -> Schema:
    """The description, as OpenAPI 3.1."""
    schemas = _schemas(limits, served)
    paths = {
        "/translate": _post(
            *("translate", "Translate, LibreTranslate's protocol", "Translation", "TranslateRequest"),
            streams=True,
            description=OR_FORM,
        ),
        "/translate_file": _post("translateFile", "Translate a document", "TranslatedFile", _file_body()),
        "/download_file/{name}": {
            "get": {
                "operationId": "downloadFile",
                "summary": "A translated document, by the link of the answer",
                "parameters": [_path_parameter({"type": "string"})],
                "responses": {"200": _response("The document", {"type": "string", "format": "binary"}, BYTES)}
                | _refused("404"),
            }
        },
        "/detect": _post("detect", "Languages of texts", "Detections", "DetectRequest", description=OR_FORM),
        "/suggest": _post(
            *("suggest", "Keep a better translation", "Suggested", "SuggestRequest"), description=OR_FORM
        )
        if served.takes_suggestions
        else {"post": {"operationId": "suggest", "summary": "Suggestions are off", "responses": _refused("403")}},
        "/": _post("generate", "Translate, Hugging Face's protocol", "Generations", "GenerateRequest", streams=True),
        **_paths_of_models(served),
        "/languages": {"get": _look("languages", "Languages, and what they are translated to", _ref("Languages"))},
        "/frontend/settings": {
            "get": _look("frontendSettings", "What LibreTranslate's page requests first", _ref("FrontendSettings"))
        },
        "/health": {"get": _look("health", "Whether the process works", _ref("Health"), "503")},
        "/ready": {"get": _look("ready", "Whether requests are taken", _ref("Readiness"), "503")},
        "/metrics": {"get": _look("metrics", "Metrics for Prometheus", {"type": "string"}, kind="text/plain")},
    }
    components: Schema = {"schemas": schemas}
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "vanilla-transformer serve", "version": VERSION},
        "paths": paths,
        "components": components,
    }
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        for path in ("/languages", "/frontend/settings", "/health", "/ready", "/metrics", "/download_file/{name}"):
            paths[path]["get"]["security"] = []
        if not served.takes_suggestions:
            paths["/suggest"]["post"]["security"] = []
    return document


# ---------------------------------------------------------------------------------------------------------- schemas

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}


def _schemas(limits: Limits, served: Served) -> Schema:
    together = f"At most {limits.characters:,} characters together, and {limits.texts:,} texts of a list."
    texts: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}], "description": together}
    filled = {**TEXT, "pattern": r"\S", "description": together}
    choice = served.choice
    languages: Schema = {
        "source": {**_enumeration(["", AUTO, *choice.all_sources]), "description": "'auto': that of the texts."},
        "target": _enumeration(["", *choice.all_targets]),
    }
    model = {**_enumeration(["", *choice.names]), "description": "Else the first one with the languages."}
    # Languages choose among all models; or the field `model` names one, first without the languages of others.
    wrong: list[Refusal] = []
    for names, one in [(None, choice), *((one.names, one) for one in served.alone)]:
        if sources := [language for language in choice.all_sources if language not in one.all_sources]:
            wrong.append({"model": names, "source": sources})
        if targets := [language for language in choice.all_targets if language not in one.all_targets]:
            wrong.append({"model": names, "target": targets})
        own = refused(one.accepts, [None, AUTO, *one.all_sources], one.all_targets)
        wrong += [{"model": names, **each} for each in own]
    without = _without(wrong)
    digits = map(str, range(MOST_ALTERNATIVES + 1))
    common: Schema = {
        "q": texts,
        "format": _enumeration(["", *FORMATS]),
        "alternatives": {"anyOf": [{**COUNT, "maximum": MOST_ALTERNATIVES}, _enumeration(["", *digits])]},
        "stream": {
            "anyOf": [{"type": "boolean"}, _enumeration([*TEXTS_OF_SWITCHES])],
            "description": "Send parts as server-sent events.",
        },
        "api_key": TEXT,
        "model": model,
        **languages,
    }
    entries = {
        "type": "object",
        "additionalProperties": TEXT,
        "description": f"At most {MOST_ENTRIES:,} texts with their translations, in place of the server's.",
    }
    common |= {"glossary": entries, "memory": entries}
    risks, numbers = list[Schema](), _number_schemas(MBR_PARAMETERS)
    for kind, read in OF_CANDIDATES.items():  # what a kind does not read may be null, as what it reads
        fields = {name: one if name in ("samples", *read) else {"type": "null"} for name, one in numbers.items()}
        is_default = kind == MinimumRisk.candidates
        candidates = _or_null(_enumeration(["", kind])) if is_default else _enumeration([kind])
        risks.append(_object([] if is_default else ["candidates"], candidates=candidates, **fields))
    common["mbr"] = {
        "anyOf": [*common["stream"]["anyOf"], *risks],
        "description": "Of many candidates, the translation that is most like the others.",
    }
    common["matches"] = {**common["stream"], "description": "List near matches of the memory."}
    # As LibreTranslate, JSON takes null, which forms do not have.
    strict = ("q", "stream", "matches", "mbr")
    lenient = {name: one if name in strict else _or_null(one) for name, one in common.items()}
    listed = {"type": "array", "items": TEXT}
    return {
        # Other fields are ignored, and named in the header X-Ignored-Fields.
        "TranslateRequest": {**_object(["q"], **lenient), "additionalProperties": True, **without},
        "SuggestRequest": {
            **_object(
                ["q", "s", "source", "target"],
                q=filled,
                s=filled,
                source=_enumeration([AUTO, *choice.all_sources]),
                target=_enumeration(choice.all_targets or [""]),
                api_key=_or_null(TEXT),
                model=_or_null(model),
            ),
            "additionalProperties": True,
            **without,
        },
        "Suggested": _object(["success"], success={"type": "boolean"}),
        "DetectRequest": {**_object(["q"], q=texts, api_key=_or_null(TEXT)), "additionalProperties": True},
        "FileForm": _object(
            ["file"],
            file={
                "type": "string",
                "format": "binary",
                "description": f"A file whose name ends in {', '.join(served.endings)}.",
            },
            model=model,
            encoding={**TEXT, "format": "encoding", "description": "Of text that is not UTF-8, such as cp1252."},
            glossary=entries,
            memory=entries,
            **languages,
        )
        | {"additionalProperties": True, **without},  # such as LibreTranslate's api_key
        **_generation_schemas(served, texts, common["stream"]),
        "Translation": _object(
            ["translatedText"],
            translatedText={"anyOf": [TEXT, listed]},
            alternatives={"type": "array", "items": {"anyOf": [TEXT, listed]}},
            detectedLanguage={"anyOf": [_ref("Detection"), _ref("Detections")]},
            suspicious={"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "boolean"}}]},
            missingTerms=_of_each(_ref("Term")),
            matches=_of_each(_ref("Match")),
        ),
        "Term": _object(["source", "target"], source=TEXT, target=TEXT),
        "Match": _object(
            ["source", "translation", "similarity"], source=TEXT, translation=TEXT, similarity={"type": "number"}
        ),
        "Event": _object(["event", "data"], event=_enumeration(["part", "answer", "error"]), data=TEXT),
        "TranslatedFile": _object(
            ["translatedFileUrl"],
            translatedFileUrl=TEXT,
            detectedLanguage=_ref("Detection"),
            missingTerms={"type": "array", "items": _ref("Term")},
        ),
        "Detection": _object(["confidence", "language"], confidence={"type": "number"}, language=TEXT),
        "Detections": {"type": "array", "items": _ref("Detection")},
        "Generation": _object(
            ["translation_text"],
            translation_text=TEXT,
            suspicious={"type": "boolean"},
            missing_terms={"type": "array", "items": _ref("Term")},
        ),
        "Generations": {"type": "array", "items": _ref("Generation")},
        "Language": _object(["code", "name", "targets"], code=TEXT, name=TEXT, targets=listed),
        "Languages": {"type": "array", "items": _ref("Language")},
        "NamedLanguage": _object(["code", "name"], code=TEXT, name=TEXT),
        "DefaultLanguages": _object(["source", "target"], source=_ref("NamedLanguage"), target=_ref("NamedLanguage")),
        "FrontendSettings": _object(
            ["charLimit", "filesTranslation", "language", "supportedFilesFormat"],
            **{name: {"type": "boolean"} for name in ("apiKeys", "filesTranslation", "keyRequired", "suggestions")},
            charLimit=COUNT,
            frontendTimeout=COUNT,
            language=_ref("DefaultLanguages"),
            supportedFilesFormat=listed,
        ),
        "Health": _object(["status"], status=TEXT, error=TEXT),
        "Readiness": _object(["status"], status=TEXT, models=listed),
        "Error": _object(["error", "field"], error=TEXT, field={"type": ["string", "null"]}),
    }


def _generation_schemas(served: Served, texts: Schema, stream: Schema) -> Schema:
    """What POST / and /models/NAME take: one for all models with the same languages, else one for each model too."""
    search = _number_schemas({**SEARCH_PARAMETERS, "num_return_sequences": (int, 1, MOST_ALTERNATIVES)})
    found = {"SearchParameters": _object([], **search)}
    names = {"source": "src_lang", "target": "tgt_lang"}
    # The end of a schema's name, the models to choose among, and the one that answers without languages.
    requests = [("", served.choice, served.alone[0])]
    if not served.choice.is_uniform:
        requests += [(str(number), one, one) for number, one in enumerate(served.alone, 1)]
    for suffix, choice, first in requests:
        is_optional = first.accepts(None, None)
        wrong = refused(choice.accepts, [None, *choice.all_sources], choice.all_targets)
        if is_optional:
            wrong = [each for each in wrong if each != {"source": None, "target": None}]
        parameters = _ref(f"Parameters{suffix}")
        found[f"GenerateRequest{suffix}"] = _object(
            ["inputs"] if is_optional else ["inputs", "parameters"],
            inputs=texts,
            parameters=_or_null(parameters) if is_optional else parameters,
            options={"type": ["object", "null"]},
            stream=stream,
        )
        found[f"Parameters{suffix}"] = {
            **_object(
                [],
                src_lang=_or_null(_enumeration(["", *choice.all_sources])),
                tgt_lang=_or_null(_enumeration(["", *choice.all_targets])),
                generate_parameters=_or_null(_ref("SearchParameters")),
                **search,
                clean_up_tokenization_spaces={"type": ["boolean", "null"]},
                truncation=_or_null(_enumeration(["do_not_truncate"])),
            ),
            **_without([{names[name]: values for name, values in each.items()} for each in wrong]),
        }
    return found


def _paths_of_models(served: Served) -> Schema:
    """One path with a parameter, or where models have different languages, which it cannot say, one for each."""
    if served.choice.is_uniform:
        named = [_path_parameter(_enumeration(served.choice.names))]
        summary, body = "Translate with a model", "GenerateRequest"
        operation = _post("generateWithModel", summary, "Generations", body, streams=True, parameters=named)
        return {"/models/{name}": operation}
    paths = {}
    for number, one in enumerate(served.alone, 1):
        path, summary = f"/models/{quote(one.names[0])}", f"Translate with {one.names[0]}"
        names = (f"generateWithModel{number}", summary, "Generations", f"GenerateRequest{number}")
        paths[path] = _post(*names, streams=True)
    return paths


def _without(refusals: Sequence[Refusal]) -> Schema:
    """The part of a schema that excludes what is refused; empty if nothing is."""
    schemas = [
        {
            "properties": {
                name: {"enum": ["", None] if values is None else [*values]} for name, values in each.items()
            },
            "required": [name for name, values in each.items() if values is not None],
        }
        for each in refusals
    ]
    return {"not": {"anyOf": schemas}} if schemas else {}


def _object(required: Sequence[str], **properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _enumeration(values: Sequence[str]) -> Schema:
    return {"type": "string", "enum": [*dict.fromkeys(values)]}


def _number_schemas(bounds: Mapping[str, tuple[type, float, float]]) -> Schema:
    return {
        name: _or_null({"type": "integer" if kind is int else "number", "minimum": least, "maximum": most})
        for name, (kind, least, most) in bounds.items()
    }


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _of_each(schema: Schema) -> Schema:
    """A list for one text, or a list of them."""
    items = {"type": "array", "items": schema}
    return {"anyOf": [items, {"type": "array", "items": items}]}


# ------------------------------------------------------ combinations of model and languages that requests may not name


def refused(accepts: Accepts, sources: Sequence[str | None], targets: Sequence[str]) -> list[Refusal]:
    """What is refused of these sources with each of these targets, and without one."""
    found = list[Refusal]()
    for source in sources:
        own = None if source is None else [source]
        if wrong := [target for target in targets if not accepts(source, target)]:
            found.append({"source": own, "target": wrong})
        if not accepts(source, None):
            found.append({"source": own, "target": None})
    return found


# ------------------------------------------------------------------------------------------------------- operations

JSON, MULTIPART = "application/json", "multipart/form-data"
# Not described as a body of its own: generators of clients have one function for an operation and one body for that.
OR_FORM = "A form with these fields, application/x-www-form-urlencoded or multipart/form-data, is taken as well."
BYTES = "application/octet-stream"
REFUSALS = {
    "400": "A field is wrong",
    "403": "The key is missing or not valid, or this is off here",
    "404": "There is no such model or file",
    "408": "The body came too slowly",
    "413": "More than a request may ask for",
    "415": "A body of another type",
    "429": "Too many texts wait; Retry-After says when to come back",
    "501": "Languages are not detected here",
    "503": "The server is stopping",
    "504": "Not translated in time",
}


def _response(description: str, schema: Schema, kind: str = JSON) -> Schema:
    return {"description": description, "content": {kind: {"schema": schema}}}


def _refused(*statuses: str) -> Schema:
    return {status: _response(REFUSALS[status], _ref("Error")) for status in statuses or REFUSALS}


def _post(
    name: str, summary: str, answer: str, body: str | Schema, streams: bool = False, **more: Any
) -> dict[str, Schema]:
    """A request that texts come with; `body` is the name of a JSON object's schema, or all of the body."""
    found = _response("What was found", _ref(answer))
    if streams:
        found["content"]["text/event-stream"] = {"schema": _ref("Event")}
    body = _body(JSON, body) if isinstance(body, str) else body
    operation = {"operationId": name, "summary": summary, "responses": {"200": found} | _refused()}
    return {"post": {**operation, "requestBody": body, **more}}


def _body(kind: str, name: str) -> Schema:
    return {"required": True, "content": {kind: {"schema": _ref(name)}}}


def _file_body() -> Schema:
    body = _body(MULTIPART, "FileForm")
    example = {"type": "string", "example": 'form-data; name="file"; filename="text.txt"'}
    body["content"][MULTIPART]["encoding"] = {"file": {"headers": {"Content-Disposition": {"schema": example}}}}
    return body


def _look(name: str, summary: str, schema: Schema, *refusals: str, kind: str = JSON) -> Schema:
    answers = {"200": _response(summary, schema, kind)} | {each: _response(summary, schema) for each in refusals}
    return {"operationId": name, "summary": summary, "responses": answers}


def _path_parameter(schema: Schema) -> Schema:
    return {"name": "name", "in": "path", "required": True, "schema": schema}
