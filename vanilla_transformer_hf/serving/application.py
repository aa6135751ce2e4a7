"""
The HTTP application: the choice of the model, authorization, and error responses.

Every answer is JSON, every error {"error": message, "field": name or null}; the texts of requests are not logged
unless requested.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import PurePosixPath
from time import monotonic, perf_counter
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes
from weakref import WeakValueDictionary

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..common.white_space import as_text
from ..model.tokenizer.failures import TokenizerError
from ..translation.documents.document import Reading, readable_endings
from ..translation.documents.inline import TooManyCharactersError
from ..translation.documents.markup import MarkupText, with_translations
from ..translation.documents.places import Align
from ..translation.results import NearMatch, Translation
from ..translation.translator import Translator
from .apart import Apart, texts_of, translated
from .batcher import Batcher, DeadlineError, QueueFullError, Ticket
from .downloads import Downloads
from .http import ANY, CLIENT_LEFT, ERROR_HANDLERS, HostCheck, RequestError, media_type, parse_object, read_body
from .languages import LanguageDetector, english_name
from .metrics import Metrics
from .openapi import Choice, Served, describe
from .protocols import (
    AUTO,
    Limits,
    TranslationRequest,
    answer_hugging_face,
    answer_libretranslate,
    detected_language,
    languages_as_json,
    read_detection,
    read_file_request,
    read_hugging_face,
    read_libretranslate,
    read_suggestion,
    shown,
)
from .suggestions import FullError, Suggestions


logger = logging.getLogger(__name__)

# Seconds that the batcher has to answer a request whose time is over, before it is answered without.
GRACE = 1.0
# Seconds that the batcher has to stop, after the requests have been answered.
STOP_SECONDS = 1.0
# Threads that encode texts, beside those that other parts of the process share.
ENCODING_THREADS = 4
# Seconds between checks whether a client is still connected.
DISCONNECT_INTERVAL = 0.2
# Seconds between updates of the gauges of waiting and running parts.
METRICS_INTERVAL = 0.5
# The header of an answer with the names of the fields that were ignored, and how many it names.
IGNORED_HEADER, MOST_IGNORED = "X-Ignored-Fields", 10
# What is left out of texts with markup when their language is detected.
TAG = re.compile(r"<[^<>]*>")
MULTIPART = "multipart/form-data"
FORMS = ("application/x-www-form-urlencoded", MULTIPART)
# For each byte of the largest upload: bytes that an office document may unpack to, those of all files that wait to be
# fetched, and the memory of a process that reads one, which has some in any case.
UNPACKED, WAITING, MEMORY, LEAST_MEMORY = 8, 16, 48, 128 * 2**20

Answer = Callable[[TranslationRequest, Sequence[Sequence[Translation]]], Any]


@dataclass(frozen=True)
class ServedModel:
    """
    A model under the name by which requests choose it.

    Attributes:
        name: The last part of its folder, or the name given to the server.
        batcher: What translates.
        source: Code of its source language; None if unknown.
        targets: Codes of its target languages, each with the tag put before a source text, or None.

    Example:

    ```python
    >>> from vanilla_transformer_hf import Translator
    >>> from vanilla_transformer_hf.serving.application import ServedModel
    >>> from vanilla_transformer_hf.serving.batcher import Batcher
    >>> batcher = Batcher(Translator.from_pretrained("model_cards/multi30k_raw_en_de"))
    >>> ServedModel("captions", batcher, source="en", targets={"de": None}).pairs
    [('en', 'de')]

    ```
    """

    name: str
    batcher: Batcher
    source: str | None = None
    targets: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def sources(self) -> list[str]:
        """Codes of its source languages; where they are unknown, any of its targets may be translated to another."""
        if self.source is not None:
            return [self.source]
        return [*self.targets] if len(self.targets) > 1 else []

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Its language pairs."""
        both = [(source, target) for source in self.sources for target in self.targets]
        return both if self.source is not None else [pair for pair in both if len({*pair}) > 1]

    def prefix_of(self, target: str | None) -> str | None:
        """What stands before texts that are translated to this language."""
        language = None if target is None else self.language_of(target)
        return None if language is None else self.targets[language]

    def language_of(self, target: str) -> str | None:
        """The target language with this code or this tag; None if the model has none."""
        named = [language for language, tag in self.targets.items() if tag and tag.strip() == target]
        return target if target in self.targets else next(iter(named), None)


class Call(NamedTuple):
    """A request, who sent it, what it wants of which model, and when, by the loop's time, its answer must be there."""

    request: Request
    client: str
    model: ServedModel
    wanted: TranslationRequest
    ends: float


class Service:
    """The functions of the routes, with what they share; the first of the models answers POST / without languages."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits,
        api_keys: Iterable[str] | None,
        logs_texts: bool,
        files_folder: str | None = None,
        suggestions: str | None = None,
    ):
        self.suggestions = None if suggestions is None else Suggestions(suggestions)
        self.models, self.limits, self.logs_texts = {model.name: model for model in models}, limits, logs_texts
        self.api_keys = None if api_keys is None else [key.encode() for key in api_keys]
        self.metrics = Metrics(list(self.models))
        self.is_ready = False
        pairs = self._pairs
        self.detector = LanguageDetector([source for source, _ in pairs], [target for _, target in pairs])
        self.downloads = Downloads(limits.file_seconds, WAITING * limits.file_bytes, files_folder)
        self._threads = ThreadPoolExecutor(ENCODING_THREADS, thread_name_prefix="encoding")
        self._clients = WeakValueDictionary[str, asyncio.Lock]()  # whose markup is read
        self.documents = Apart(LEAST_MEMORY + MEMORY * limits.file_bytes)

    # ------------------------------------------------------------------------------------------------ translations

    async def libretranslate(self, request: Request) -> Response:
        """POST /translate"""
        wanted = read_libretranslate(await self._fields(request, forms=FORMS), self.limits)
        client = self._client(request, wanted.api_key)
        async with self._in_time() as ends:
            model, wanted = await self._model_for(wanted)
            answer = await self._translate(Call(request, client, model, wanted, ends), answer_libretranslate)
        return _naming_ignored(answer, wanted)

    @contextlib.asynccontextmanager
    async def _in_time(self) -> AsyncIterator[float]:
        """When, by the loop's time, the answer must be there; it, and errors of a tokenizer, hold for all within."""
        ends = asyncio.get_running_loop().time() + self.limits.seconds
        try:
            async with asyncio.timeout_at(ends + GRACE):
                yield ends
        except TimeoutError:
            raise self._late() from None
        except TokenizerError as error:
            raise RequestError(str(error)) from None

    async def _model_for(self, wanted: TranslationRequest) -> tuple[ServedModel, TranslationRequest]:
        """The model for a request of LibreTranslate's protocol, and the request with its texts' language."""
        if wanted.model is not None and wanted.model not in self.models:
            raise RequestError(
                f"{shown(wanted.model)} is not a model here: expected {', '.join(self.models)}", "model"
            )
        models = [*self.models.values()] if wanted.model is None else [self.models[wanted.model]]
        if wanted.source == AUTO:  # that of its texts: one from which these models translate to its target
            if sources := _sources_to(wanted.target, models):
                texts = [TAG.sub(" ", text) for text in wanted.texts] if wanted.is_html else wanted.texts
                detected, *_ = await self._detected(texts, sources, "source")
                wanted = replace(wanted, source=detected[0], detected=detected)
            else:  # unknown: the models take what comes
                wanted = replace(wanted, source=None)
        return by_languages(wanted, models=models), wanted

    async def translate_file(self, request: Request) -> Response:
        """POST /translate_file"""
        if not self.limits.file_bytes:
            raise RequestError("files are not translated here", status=403)
        body = await self._fields(request, self.limits.file_bytes, forms=(MULTIPART,), takes_json=False)
        wanted = read_file_request(body, self.limits)
        client = self._client(request, wanted.api_key)
        upload = body.get("file")
        if not isinstance(upload, UploadFile) or not upload.filename:
            raise RequestError("missing; send one file with its name, as multipart/form-data", "file")
        name = PurePosixPath(as_text(upload.filename).replace("\\", "/")).name
        most_bytes, most_characters = UNPACKED * self.limits.file_bytes, self.limits.characters
        reading = Reading(name, "strict", wanted.encoding, most_bytes, most_characters)
        async with self._in_time() as ends:
            given = upload.file.read(), reading
            try:
                texts = await self.documents.run(client, ends, texts_of, given)
                model, wanted = await self._model_for(replace(wanted, texts=texts))
                language = model.language_of(wanted.target) if wanted.target else next(iter(model.targets), None)
                call = Call(request, client, model, wanted, ends)
                found = await self._found(call, texts)
                best = [f"{each[0]}" for each in found]
                aligner = self._aligner(call)
                written = await self.documents.run(client, ends, translated, (*given, best, language), aligner)
            except RequestError:
                raise
            except ValueError as error:
                status = 413 if isinstance(error, TooManyCharactersError) else 400
                raise RequestError(str(error), "file", status) from error
            token = await self._in_thread(self.downloads.add, written)
        path = PurePosixPath(name)
        link = quote(f"{token}.{path.stem[:100]}_{language or 'translated'}{path.suffix}", safe="")  # report_de.docx
        answer = {"translatedFileUrl": f"{request.base_url}download_file/{link}", **detected_language(wanted)}
        if missing := [term._asdict() for each in found for term in each[0].missing_terms]:
            answer["missingTerms"] = missing
        return _naming_ignored(JSONResponse(answer), wanted)

    async def download_file(self, request: Request) -> Response:
        """GET /download_file/{name}"""
        token, _, name = request.path_params["name"].partition(".")
        content = await self._in_thread(self.downloads.get, token)
        if content is None:
            seconds = f"{self.limits.file_seconds:g} seconds"
            raise RequestError(f"there is no such file, or not any more: files are kept for {seconds}", status=404)
        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(as_text(name), safe='')}",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def _detected(
        self, texts: Sequence[str], among: Collection[str] | None, name: str | None, status: int = 400
    ) -> list[tuple[str, float]]:
        """What `LanguageDetector.detect` finds, or `RequestError` of this field and status."""
        try:
            return await self._in_thread(self.detector.detect, texts, among)
        except ValueError as error:
            raise RequestError(str(error), name, status) from error

    async def detect(self, request: Request) -> Response:
        """POST /detect"""
        wanted = read_detection(await self._fields(request, forms=FORMS), self.limits)
        self._client(request, wanted.api_key)
        async with self._in_time():
            return JSONResponse(languages_as_json(await self._detected(wanted.texts, None, None, 501)))

    async def suggest(self, request: Request) -> Response:
        """POST /suggest"""
        if self.suggestions is None:
            raise RequestError("suggestions are off: this server keeps no texts", status=403)
        wanted, text = read_suggestion(await self._fields(request, forms=FORMS), self.limits)
        self._client(request, wanted.api_key)
        async with self._in_time():
            model, wanted = await self._model_for(wanted)
            source, target = wanted.source or model.source, model.language_of(wanted.target or "")
            if source is None or target is None:  # where sources are unknown, they are not detected
                raise RequestError("missing; name the language", "source")
            try:
                await self._in_thread(self.suggestions.add, (source, target), (wanted.texts[0], text))
            except FullError:
                raise RequestError("suggestions are full: this server keeps no more texts", status=403) from None
        return _naming_ignored(JSONResponse({"success": True}), wanted)

    async def hugging_face(self, request: Request) -> Response:
        """POST / and POST /models/{name}"""
        client = self._client(request, None)
        name = request.path_params.get("name")
        if name is not None and name not in self.models:
            raise RequestError(f"{name[:100]!r} is not a model here: expected {', '.join(self.models)}", status=404)
        wanted = read_hugging_face(await self._fields(request), self.limits)
        if name is None and wanted.source is None and wanted.target is None:
            name = next(iter(self.models))
        models = [*self.models.values()] if name is None else [self.models[name]]
        model = by_languages(wanted, models, names=("parameters.src_lang", "parameters.tgt_lang"))
        async with self._in_time() as ends:
            return await self._translate(Call(request, client, model, wanted, ends), answer_hugging_face)

    async def _translate(self, call: Call, answer: Answer) -> Response:
        wanted = call.wanted
        if wanted.stream and not wanted.is_html:
            return _event_stream(self._events(call, await self._begin(call, wanted.texts), answer))
        if wanted.is_html:
            try:
                markup = await self._in_turn(call.client, lambda: [MarkupText(text) for text in wanted.texts])
            except ValueError as error:
                raise RequestError(str(error), "q") from error
            texts = [sentence.text for each in markup for sentence in each.sentences]
            align, of_sentences = self._aligner(call), await self._found(call, texts)
            given = (markup, of_sentences, wanted.alternatives + 1, align)
            found = await self._in_turn(call.client, with_translations, *given)
        else:
            found = await self._found(call, wanted.texts)
        if self.logs_texts:
            pairs = [[text, *map(str, n_best)] for text, n_best in zip(wanted.texts, found)]
            logger.info("%s: %s", call.model.name, json.dumps(pairs, ensure_ascii=False))
        if wanted.stream:  # markup, which is put together when all of it is there
            return _event_stream([_event("answer", answer(wanted, found))])
        return JSONResponse(answer(wanted, found))

    def _aligner(self, call: Call) -> Align:
        deadline = monotonic() + call.ends - asyncio.get_running_loop().time()
        return partial(call.model.batcher.align, prefix=call.model.prefix_of(call.wanted.target), deadline=deadline)

    async def _begin(self, call: Call, texts: Sequence[str]) -> Ticket:
        """The ticket of a request; its characters are counted. It is cancelled if its time passes before."""
        model, wanted = call.model, call.wanted
        call.request.state.model = model.name
        options = search_options(model.batcher.translator, wanted)
        self.metrics.characters.labels(model.name).inc(sum(map(len, wanted.texts)))
        loop = asyncio.get_running_loop()
        arguments = (texts, options, call.client, call.ends - loop.time(), model.prefix_of(wanted.target))
        aids = wanted.glossary, wanted.memory, wanted.mbr
        future = loop.run_in_executor(self._threads, model.batcher.submit, *arguments, *aids)
        try:
            return await asyncio.shield(future)
        except DeadlineError:
            raise TimeoutError from None
        except asyncio.CancelledError:
            future.add_done_callback(_cancel_ticket)
            raise
        except QueueFullError as error:
            raise RequestError(str(error), status=429, retry_after=error.retry_after) from error
        except ValueError as error:
            raise RequestError(str(error)) from error
        except RuntimeError:
            raise _stopping() from None

    async def _found(self, call: Call, texts: Sequence[str]) -> list[list[Translation]]:
        """The n-best lists of these texts."""
        name, began = call.model.name, perf_counter()
        ticket = await self._begin(call, texts)
        try:
            found = await self._outcome(call.request, ticket)
            await self._list_matches(call, ticket, found)
        finally:
            ticket.cancel()
        self.metrics.suspicious.labels(name).inc(sum(n_best[0].is_suspicious for n_best in found))
        count, characters, seconds = len(call.wanted.texts), sum(map(len, call.wanted.texts)), perf_counter() - began
        self.metrics.seconds.labels(name).observe(seconds)
        logger.info("%s: %d texts, %d characters, %.0f ms", name, count, characters, 1000 * seconds)
        return found

    async def _list_matches(self, call: Call, ticket: Ticket, found: Sequence[Sequence[Translation]]) -> None:
        """Near matches of a memory, if the request wants them; `TimeoutError` after its time."""
        translator = call.model.batcher.translator
        memory = translator.memory if call.wanted.memory is None else call.wanted.memory
        if not call.wanted.lists_matches or memory is None:
            return
        deadline = monotonic() + call.ends - asyncio.get_running_loop().time()

        def find() -> None:
            for parts, n_best in zip(ticket.parts, found, strict=True):
                near = list[NearMatch]()
                for part in parts:
                    if monotonic() > deadline:
                        raise TimeoutError
                    near += memory.near(part.text)
                n_best[0].near_matches = near

        await self._in_turn(call.client, find)

    async def _in_turn(self, client: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of markup returns, one at a time of a client: 50,000 characters may take a second."""
        async with self._clients.setdefault(client, asyncio.Lock()):
            return await self._in_thread(function, *arguments)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns; other requests are answered meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def _late(self) -> RequestError:
        return RequestError(f"not translated within {self.limits.seconds:g} seconds", status=504)

    async def _outcome(self, request: Request, ticket: Ticket) -> list[list[Translation]]:
        """What the ticket brings; `ClientDisconnect` if the client has left."""
        future = asyncio.wrap_future(ticket.future)
        while not (await asyncio.wait([future], timeout=DISCONNECT_INTERVAL))[0]:
            if await request.is_disconnected():
                raise ClientDisconnect
        if not future.cancelled():
            future.exception()  # checked here, raised below
        return self._result(ticket)

    def _result(self, ticket: Ticket) -> list[list[Translation]]:
        try:
            return ticket.future.result()
        except CancelledError:
            raise _stopping() from None
        except DeadlineError:
            raise self._late() from None
        except TokenizerError as error:
            raise RequestError(str(error)) from None

    async def _events(self, call: Call, ticket: Ticket, answer: Answer) -> AsyncIterator[str]:
        """Server-sent events until its time is over: `part`s in the order of the texts, then `answer` or `error`."""
        loop, parts, ends = asyncio.get_running_loop(), asyncio.Queue[Any](), call.ends + GRACE

        def tell(event: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(parts.put_nowait, event)

        ticket.listen(tell)
        try:
            while (event := await asyncio.wait_for(parts.get(), max(0.0, ends - loop.time()))) is not None:
                yield _event("part", event)
            found = self._result(ticket)
            await self._list_matches(call, ticket, found)
            yield _event("answer", answer(call.wanted, found))
        except TimeoutError:
            yield _event("error", self._late().body)
        except RequestError as error:
            yield _event("error", error.body)
        except Exception:
            logger.exception("a search failed")
            yield _event("error", {"error": "internal server error; the server's log has the details", "field": None})
        finally:
            ticket.cancel()

    # -------------------------------------------------------------------------------------------------- what is here

    async def languages(self, request: Request) -> Response:
        """GET /languages"""
        targets: dict[str, list[str]] = {}
        for source, target in self._pairs:
            targets.setdefault(source, []).append(target)
            targets.setdefault(target, [])
        return JSONResponse(
            [{"code": code, "name": english_name(code), "targets": found} for code, found in targets.items()]
        )

    async def frontend_settings(self, request: Request) -> Response:
        """GET /frontend/settings: what LibreTranslate's page requests before it shows anything."""
        targets = [target for _, target in self._pairs]
        code = targets[0] if targets else ""
        needs_key = self.api_keys is not None
        return JSONResponse(
            {
                "apiKeys": needs_key,
                "charLimit": self.limits.characters,
                "filesTranslation": self.limits.file_bytes > 0,
                "frontendTimeout": 500,
                "keyRequired": needs_key,
                "language": {
                    "source": {"code": AUTO, "name": "Auto Detect"},
                    "target": {"code": code, "name": english_name(code)},
                },
                "suggestions": self.suggestions is not None,
                "supportedFilesFormat": readable_endings() if self.limits.file_bytes else [],
            }
        )

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        """The language pairs of all models, each once."""
        return [*dict.fromkeys(pair for model in self.models.values() for pair in model.pairs)]

    async def health(self, request: Request) -> Response:
        """GET /health: whether the process is alive."""
        broken = [model.name for model in self.models.values() if not model.batcher.is_alive]
        if broken:
            return JSONResponse({"status": "error", "error": f"{', '.join(broken)} stopped"}, 503)
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """GET /ready: whether the server accepts requests."""
        if not self.is_ready:
            return JSONResponse({"status": "stopping"}, 503)
        return JSONResponse({"status": "ready", "models": list(self.models)})

    async def tell_metrics(self, request: Request) -> Response:
        """GET /metrics"""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json"""
        return JSONResponse(await self._in_thread(lambda: self._description))

    @cached_property
    def _description(self) -> dict[str, Any]:
        """Computed once: a multilingual model has thousands of pairs."""
        endings = readable_endings() if self.limits.file_bytes else []
        alone, takes_suggestions = [self._choice([name]) for name in self.models], self.suggestions is not None
        served = Served(self._choice(self.models), alone, endings, takes_suggestions)
        return describe(self.limits, self.api_keys is not None, served)

    def _choice(self, names: Iterable[str]) -> Choice:
        """The choice among the models of these names."""
        models = [self.models[name] for name in names]

        def accepts(source: str | None, target: str | None) -> bool:
            if source == AUTO:
                sources: set[str | None] = {*_sources_to(target, models)} or {None}
                can_detect = len(sources) < 2 or self.detector.can_compare
                return can_detect and all(accepts(each, target) for each in sources)
            try:
                by_languages(TranslationRequest(["one"], True, source, target), models=models)
            except RequestError:
                return False
            return True

        tags = [[tag.strip() for tag in model.targets.values() if tag] for model in models]
        targets = [[*model.targets, *own] for model, own in zip(models, tags)]  # as requests may call them
        return Choice([model.name for model in models], [model.sources for model in models], targets, accepts)

    async def watch(self) -> None:
        """Update the gauges of the metrics."""
        while True:
            for model in self.models.values():
                self.metrics.waiting.labels(model.name).set(model.batcher.waiting)
                self.metrics.running.labels(model.name).set(model.batcher.running)
            self.downloads.forget_old()
            await asyncio.sleep(METRICS_INTERVAL)

    # ------------------------------------------------------------------------------------------------------- checks

    async def _fields(
        self, request: Request, most_bytes: int | None = None, forms: Collection[str] = (), takes_json: bool = True
    ) -> Mapping[str, Any]:
        """The fields of a request, as JSON or as one of these kinds of forms."""
        # JSON is read under every content type: some clients (`curl -d`, urllib) call all bodies forms by default.
        kind = media_type(request)
        content = await read_body(request, most_bytes or self.limits.body_bytes, self.limits.body_seconds)
        if takes_json and (kind == "application/json" or content.lstrip()[:1] == b"{"):
            return parse_object(content)
        if kind not in forms:
            accepted = ("application/json" + (" or a form" if forms else "")) if takes_json else MULTIPART
            raise RequestError(f"content-type {kind[:60]!r}: send {accepted}", status=415)
        return await _form(request, content, most_files=0 if takes_json else 1)

    def _client(self, request: Request, in_body: str | None) -> str:
        """The client's identity: its key, or its address if no key is required."""
        if self.api_keys is None:
            return request.client.host if request.client else ""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        key = (in_body or bearer).encode("utf-8", "surrogatepass")
        matches = [hmac.compare_digest(key, one) for one in self.api_keys]  # of all: timing reveals nothing
        if not any(matches):
            what = "not a valid key" if key else "missing; send it here or as `Authorization: Bearer KEY`"
            raise RequestError(what, "api_key", 403)
        return key.decode()


def by_languages(
    wanted: TranslationRequest, models: Sequence[ServedModel], names: tuple[str, str] = ("source", "target")
) -> ServedModel:
    """The one of these models for the languages of a request, the first of several."""

    def known(else_known: str = "none is known") -> str:
        """The pairs, for an error: a multilingual model has thousands."""
        return ", ".join(dict.fromkeys("-".join(pair) for model in models for pair in model.pairs)) or else_known

    fit = [model for model in models if wanted.source is None or wanted.source in model.sources]
    if not fit:
        raise RequestError(f"{shown(wanted.source)} is not a source language here: {known()}", names[0])
    fit = [model for model in fit if wanted.target is None or model.language_of(wanted.target)]
    if not fit:
        found = f"from {shown(wanted.source)} " if wanted.source else ""
        message = f"{shown(wanted.target)} is not a target language {found}here: {known()}"
        raise RequestError(message, names[1])
    languages = {
        (wanted.source or model.source, *([model.language_of(wanted.target)] if wanted.target else model.targets))
        for model in fit
    }
    is_open = wanted.target is None and len(fit[0].targets) > 1
    if is_open:  # unless each text that has words begins with the tag of its language, and one has
        tags = fit[0].batcher.translator.language_tags
        tagged = [bool(tags.before(text)) for text in wanted.texts if text.strip()]
        is_open = not (tagged and all(tagged))
    if len(languages) > 1 or is_open:
        side = names[1] if wanted.target is None else names[0]
        raise RequestError(f"missing; name one of {known(', '.join(model.name for model in fit))}", side)
    return fit[0]


def _sources_to(target: str | None, models: Sequence[ServedModel]) -> set[str]:
    """Languages from which these models translate to a target, which may be a tag, or to any if it is None."""
    named = [(model, None if target is None else model.language_of(target)) for model in models]
    return {source for model, code in named for source, own in model.pairs if target is None or own == code}


def search_options(translator: Translator, wanted: TranslationRequest) -> dict[str, Any]:
    """The arguments of `generate()` for a request."""
    options = dict(wanted.options)
    if wanted.alternatives:
        options["num_return_sequences"] = wanted.alternatives + 1
    if wanted.alternatives and wanted.mbr is None:
        beams = options.get("num_beams", translator.search.setting("num_beams", {}) or 1)
        options["num_beams"] = max(beams, wanted.alternatives + 1)
    return options


def _cancel_ticket(future: asyncio.Future[Ticket]) -> None:
    """Cancel the ticket of a request that has been answered with an error."""
    if not future.cancelled() and future.exception() is None:
        future.result().cancel()


def _stopping() -> RequestError:
    return RequestError("the server is stopping", status=503, retry_after=5)


def _event_stream(events: AsyncIterator[str] | Iterable[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _event(kind: str, data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def _naming_ignored(answer: Response, wanted: TranslationRequest) -> Response:
    """An answer whose header names the fields that were ignored."""
    if wanted.ignored:
        # Not logged: what follows an & in a form that was not encoded is part of a text.
        # A header neither begins nor ends with a space, so a name that is empty has its quotes.
        names = [quote(as_text(name[:60])) or '""' for name in wanted.ignored[:MOST_IGNORED]]
        answer.headers[IGNORED_HEADER] = ", ".join(names)
    return answer


class InMemory(MultiPartParser):
    """A parser of forms that puts no part of a file on the disk: the body is in memory, and its size is limited."""

    spool_max_size = 2**31


async def _form(request: Request, content: bytes, most_files: int) -> Mapping[str, Any]:
    """The fields of a form; a repeated field becomes a list, a file an `UploadFile`."""

    async def whole(content: bytes) -> AsyncGenerator[bytes, None]:
        yield content

    if media_type(request) == MULTIPART:
        parser: FormParser | MultiPartParser = InMemory(request.headers, whole(content), max_files=most_files)
    else:  # `curl -d` escapes nothing, and Starlette reads what is not escaped as Latin-1
        parser = FormParser(request.headers, whole(quote(content, safe=bytes(range(128))).encode()))
    try:
        # Starlette reads what is not UTF-8 as Latin-1, or puts U+FFFD in its place.
        if isinstance(parser, FormParser):
            unquote_to_bytes(content).decode()
        form = await parser.parse()
        texts, place = [text for _, text in form.multi_items() if isinstance(text, str)], 0
        for text in texts if isinstance(parser, InMemory) else ():  # in the order of the body, which is read once
            if (place := content.find(text.encode(), place)) < 0:
                raise ValueError("its text is not UTF-8")
    except (MultiPartException, HTTPException, ValueError, KeyError) as error:
        raise RequestError(f"the body is not a valid form: {getattr(error, 'detail', error)}") from None
    return {name: values if len(values := form.getlist(name)) > 1 else values[0] for name in form}


def counted(metrics: Metrics, function: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """The endpoint `function`, whose answers are counted by model and status; others than 200 are logged."""

    async def endpoint(request: Request) -> Response:
        status = 500
        try:
            response = await function(request)
            status = response.status_code
            return response
        except RequestError as error:
            status = error.status
            raise
        except ClientDisconnect:
            status = CLIENT_LEFT
            raise
        except asyncio.CancelledError:  # the time for running requests is over
            status = 503
            raise _stopping() from None
        finally:
            name = getattr(request.state, "model", "")
            metrics.requests.labels(name, str(status)).inc()
            if status != 200:
                logger.info("%s: answered with status %d", request.scope["route"].path, status)

    return endpoint


def create_application(
    models: Sequence[ServedModel],
    limits: Limits | None = None,
    api_keys: Iterable[str] | None = None,
    logs_texts: bool = False,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
    files_folder: str | None = None,
    suggestions: str | None = None,
) -> Starlette:
    """
    The application, for uvicorn or any other ASGI server.

    Args:
        models: The models; the first answers POST /. They start and stop with the application.
        limits: The limits of one request.
        api_keys: Keys of which a request must have one; None: requests need no key.
        logs_texts: Whether the texts of requests and their translations are logged.
        hosts: Names by which requests may call the server; empty: any, and pages of any site may send requests.
        origins: Origins whose pages may send requests in any case, and read the answers (CORS); "*": all.
        files_folder: Where translated files wait to be fetched, shared by processes; None: in memory.
        suggestions: The folder of what clients suggest, of which nothing is kept without one.

    Raises:
        ValueError: `models` is empty, or two models have the same name.

    Example:

    ```python
    >>> from starlette.testclient import TestClient
    >>> from vanilla_transformer_hf import Translator
    >>> from vanilla_transformer_hf.serving.application import ServedModel, create_application
    >>> from vanilla_transformer_hf.serving.batcher import Batcher
    >>> batcher = Batcher(Translator.from_pretrained("model_cards/multi30k_raw_en_de"))
    >>> application = create_application([ServedModel("captions", batcher, "en", {"de": None})])
    >>> with TestClient(application) as client:
    ...     request = {"q": "Two dogs are playing.", "source": "en", "target": "de"}
    ...     client.post("/translate", json=request).json()
    {'translatedText': 'Zwei Hunde spielen.'}

    ```
    """
    if not models or len({model.name for model in models}) < len(models):
        names = ", ".join(model.name for model in models)
        raise ValueError(f"each model needs a name of its own: got {names or 'none'}; name them as NAME=FOLDER")
    service = Service(models, limits or Limits(), api_keys, logs_texts, files_folder, suggestions)

    @contextlib.asynccontextmanager
    async def lifespan(application: Starlette) -> AsyncIterator[None]:
        for model in models:
            model.batcher.start()
        if service.limits.file_bytes:
            try:
                await service.documents.start()
            except Exception as error:  # whatever it is, texts are translated
                service.limits = replace(service.limits, file_bytes=0)
                logger.warning(
                    "files are not translated: the process that reads them does not start (%s); a program that serves "
                    "has to begin under `if __name__ == '__main__':`",
                    type(error).__name__,
                )
        watching = asyncio.create_task(service.watch())
        service.is_ready = True
        yield
        service.is_ready = False
        watching.cancel()
        for model in models:
            # Requests have been answered by now; what still runs is not needed.
            await asyncio.to_thread(model.batcher.stop, False, STOP_SECONDS)

    routes = [
        Route("/translate", counted(service.metrics, service.libretranslate), methods=["POST"]),
        Route("/translate_file", counted(service.metrics, service.translate_file), methods=["POST"]),
        Route("/download_file/{name}", counted(service.metrics, service.download_file)),
        Route("/", counted(service.metrics, service.hugging_face), methods=["POST"]),
        Route("/models/{name:path}", counted(service.metrics, service.hugging_face), methods=["POST"]),
        Route("/detect", counted(service.metrics, service.detect), methods=["POST"]),
        Route("/suggest", counted(service.metrics, service.suggest), methods=["POST"]),
        Route("/languages", service.languages),
        Route("/frontend/settings", service.frontend_settings),
        Route("/health", service.health),
        Route("/ready", service.ready),
        Route("/metrics", service.tell_metrics),
        Route("/openapi.json", service.openapi),
    ]
    middleware = [Middleware(HostCheck, hosts=hosts, origins=origins)] if hosts else []
    if origins:
        allowed = [ANY] if ANY in origins else [origin.lower().rstrip("/") for origin in origins]
        takes: dict[str, Any] = {"allow_origins": allowed, "allow_methods": ["GET", "POST"], "allow_headers": ["*"]}
        middleware.append(Middleware(CORSMiddleware, **takes, expose_headers=[IGNORED_HEADER, "Retry-After"]))
    return Starlette(routes=routes, middleware=middleware, exception_handlers=dict(ERROR_HANDLERS), lifespan=lifespan)
