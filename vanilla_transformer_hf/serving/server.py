"""From settings to a running server: open the models, create the application, run one process or several."""

import logging
import multiprocessing
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from transformers.utils.logging import disable_progress_bar

from ..common.choices import SplitSentences, check_choice
from ..common.lines import read_lines
from ..translation.documents.memory import Memory
from ..translation.text.glossary import Glossary
from ..translation.text.texts import WithoutLetters
from ..translation.translator import Translator
from .apart import begin
from .application import ServedModel, create_application
from .batcher import Batcher
from .connections import ending_in_time
from .http import ANY, names_of, run_server
from .metrics import FOLDER_VARIABLE
from .protocols import Limits
from .workers import BEAT_INTERVAL, Supervisor


logger = logging.getLogger(__name__)

NAME = re.compile(r"[\w.+-]+")
ORIGIN = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s]+/?")
PAIR = re.compile(r"(?P<source>[^-\s]+)-(?P<target>[^-\s]+)")
# Seconds that a request and its answer may take beside the limits on its body and its translation.
SPARE_SECONDS = 30.0
# A text whose search shows, before requests are taken, that a model can be served, and the length of its answer.
TRIAL, TRIAL_TOKENS = "Test", 4
LOGS = ("errors", "requests", "texts")


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server; they are passed to its workers."""

    models: Sequence[str]  # Folders of models or ids of the Hub, each maybe as NAME=FOLDER
    # For each model "SOURCE-TARGET", where its tokenizer does not record it; may be empty
    languages: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    # most_rows, most_tokens, most_waiting: As in `Batcher`
    most_rows: int = 128
    most_tokens: int = 2048
    most_waiting: int = 4096
    api_keys: str | None = None  # File of keys, one a line
    log: str = "requests"  # One of `LOGS`
    # device, dtype, quantization, engine: As in `Translator.from_pretrained`
    device: str | None = None
    dtype: str = "auto"
    workers: int = 1  # Processes, each with its own models and its share of the threads
    seconds_to_finish: int = 60  # Time for running requests after SIGTERM
    quantization: str | None = None
    engine: str = "ours"
    split_sentences: SplitSentences = "auto"  # As in `Translator.translate`
    without_letters: WithoutLetters = "copy"  # As in `Translator`
    allowed_hosts: Sequence[str] = ()  # Names by which requests may call it; empty: any
    allowed_origins: Sequence[str] = ()  # Origins whose pages may send requests to it and read the answers
    glossary: str | None = None  # A file of terms, as of `translate`, for one pair of languages
    memory: str | None = None  # A file of translations, likewise
    suggestions: str | None = None  # A folder for what clients suggest; None: nothing is kept
    files_folder: str | None = None  # Where translated files wait to be fetched, for all workers; None: in memory

    def __post_init__(self) -> None:
        if self.languages and len(self.languages) != len(self.models):
            raise ValueError(f"languages: {len(self.languages)} for {len(self.models)} models; name one for each")
        for pair in self.languages:
            if not PAIR.fullmatch(pair):
                raise ValueError(f"languages: {pair!r} is not a language pair: expected SOURCE-TARGET, such as en-de")
        names = [name_and_place(model)[0] for model in self.models]
        if len({*names}) < len(names):
            raise ValueError(f"each model needs a name of its own: got {', '.join(names)}; name them as NAME=FOLDER")
        for origin in self.allowed_origins:
            if origin != ANY and not ORIGIN.fullmatch(origin):
                expected = "expected one such as https://example.org"
                raise ValueError(f"allowed_origins: {origin!r} is not an origin: {expected}")
        if self.log not in LOGS:
            raise ValueError(f"log={self.log!r}: must be one of {', '.join(map(repr, LOGS))}")
        if self.workers < 1:
            raise ValueError(f"workers={self.workers}: must be at least 1")
        check_choice("split_sentences", self.split_sentences, SplitSentences)


def name_and_place(model: str) -> tuple[str, str]:
    """Split NAME=FOLDER; a folder without a name is called by its last part. An existing folder is never split."""
    name, _, place = model.partition("=")
    if place and NAME.fullmatch(name) and not Path(model).exists():
        return name, place
    return Path(model.rstrip("/\\")).name or model, model


def read_api_keys(path: str | None) -> list[str] | None:
    """The keys of a file, one a line; empty lines and lines that begin with # are ignored."""
    if path is None:
        return None
    keys = [line.strip() for line in read_lines(path)]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        raise ValueError(f"{path} has no keys: expected one a line")
    return keys


def languages_of(translator: Translator, pair: str | None) -> tuple[str | None, dict[str, str | None]]:
    """Source language of a model, and its target languages with their tags."""
    tokenizer, tags = translator.tokenizer, translator.target_lang_tags
    source, target = (getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang"))
    if pair and (found := PAIR.fullmatch(pair)):
        if tags and found["target"] not in tags:
            raise ValueError(f"languages: {pair!r} is not a pair of a model that translates to {', '.join(tags)}")
        return found["source"], {found["target"]: tags[found["target"]] if tags else None}
    if tags:
        return source, dict[str, str | None](tags)
    return source, {target: None} if target else {}


def open_models(settings: ServerSettings) -> list[ServedModel]:
    threads = max(1, torch.get_num_threads() // settings.workers)
    torch.set_num_threads(threads)
    models = []
    for number, model in enumerate(settings.models):
        name, place = name_and_place(model)
        translator = Translator.from_pretrained(
            place, settings.device, settings.dtype, quantization=settings.quantization, engine=settings.engine
        )
        translator.split_sentences = settings.split_sentences
        translator.without_letters = settings.without_letters
        source, targets = languages_of(translator, settings.languages[number] if settings.languages else None)
        if settings.glossary is not None or settings.memory is not None:
            if len(settings.models) > 1 or len(targets) > 1:
                raise ValueError(
                    "glossary and memory are of one pair of languages: serve one model of one pair, or let requests "
                    "bring their own."
                )
            pair = source, next(iter(targets), None)
            translator.glossary = None if settings.glossary is None else Glossary.read(settings.glossary, pair)
            translator.memory = None if settings.memory is None else Memory.read(settings.memory, pair)
        try:
            try_out(translator)
        except Exception as error:
            raise ValueError(f"{place} cannot be served: {' '.join(str(error).split())}") from error
        batcher = Batcher(translator, settings.most_rows, settings.most_tokens, settings.most_waiting)
        models.append(ServedModel(name, batcher, source, targets))
    return models


def try_out(translator: Translator) -> None:
    """Translate a word as the server does, so that what is not possible with the settings fails before it starts."""
    translator.check_options()
    batcher = Batcher(translator)
    batcher.start()
    try:
        batcher.submit([TRIAL], {"max_new_tokens": TRIAL_TOKENS}).future.result()
        batcher.align([(TRIAL, TRIAL)])  # for texts with markup
    finally:
        batcher.stop()


def make_application(settings: ServerSettings) -> Starlette:
    """The application with its models."""
    keys = read_api_keys(settings.api_keys)
    return create_application(
        open_models(settings),
        settings.limits,
        keys,
        settings.log == "texts",
        settings.allowed_hosts,
        settings.allowed_origins,
        settings.files_folder,
        settings.suggestions,
    )


def start_log(settings: ServerSettings) -> None:
    """Log to standard error as `settings.log` requests."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger(__package__).setLevel(logging.WARNING if settings.log == "errors" else logging.INFO)


def serve(settings: ServerSettings, listening: socket.socket, host: str | None = None) -> None:
    """Serve requests until SIGTERM or Ctrl-C; running ones are finished."""
    # One that listens for this machine alone is called by its names, `host` and `settings.allowed_hosts`.
    start_log(settings)
    address = listening.getsockname()[0]
    settings = replace(settings, allowed_hosts=names_of(address, host or address, settings.allowed_hosts))
    if settings.workers == 1:
        _serve_here(settings, listening)
        return
    make_application(settings)  # to check that it opens: workers that cannot start are restarted endlessly
    with tempfile.TemporaryDirectory() as counts, tempfile.TemporaryDirectory() as files:
        os.environ[FOLDER_VARIABLE] = counts
        settings = replace(settings, files_folder=files)
        Supervisor(
            partial(_work, settings), settings.workers, listening, settings.seconds_to_finish, preload=__name__
        ).run()


def _work(settings: ServerSettings, listening: socket.socket, beat: Callable[[], None]) -> None:
    """What a worker process does."""

    async def notify() -> None:
        beat()

    start_log(settings)
    disable_progress_bar()
    supervisor = multiprocessing.parent_process()
    try:
        _serve_here(settings, listening, callback_notify=notify, timeout_notify=BEAT_INTERVAL)
    finally:
        if settings.files_folder is not None and supervisor is not None and not supervisor.is_alive():
            shutil.rmtree(settings.files_folder, ignore_errors=True)  # nobody else does, if that was killed


def _serve_here(settings: ServerSettings, listening: socket.socket, **options: Any) -> None:
    """Serve requests in this process; `options` are uvicorn's."""
    limits = settings.limits
    if limits.file_bytes:
        begin()  # it imports while the models are opened
    application = make_application(settings)
    busy_seconds = limits.body_seconds + limits.seconds + SPARE_SECONDS
    with ending_in_time():
        run_server(application, listening, settings.seconds_to_finish, busy_seconds, **options)
