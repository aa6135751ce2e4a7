"""From settings to a running server: open the models, create the application, run one process or several."""

import json
import logging
import os
import re
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette

from ..common.files import read_lines
from ..common.http import QUIET, run_server
from ..common.split_sentences import SplitSentences, check_split_sentences
from ..translation.texts import WithoutLetters
from ..translation.translator import Translator
from .application import ServedModel, create_application
from .batcher import Batcher
from .metrics import FOLDER_VARIABLE
from .protocols import Limits


logger = logging.getLogger(__name__)

# Environment variable with the workers' settings.
SETTINGS_VARIABLE = "VANILLA_TRANSFORMER_SERVE"
NAMED = re.compile(r"(?P<name>[\w.+-]+)=(?P<place>.+)")
PAIR = re.compile(r"(?P<source>[^-\s]+)-(?P<target>[^-\s]+)")
# Seconds without an answer after which a worker is replaced; opening large models takes a while.
HEALTHCHECK_SECONDS = 120
LOGS = ("errors", "requests", "texts")


@dataclass(frozen=True)
class ServerSettings:
    """
    The settings of a server; they are passed to its workers as JSON.

    Attributes:
        models: Folders of models or ids of the Hub, each maybe as NAME=FOLDER.
        languages: For each model "SOURCE-TARGET", where its tokenizer does not say it; may be empty.
        limits: The fields of `Limits`.
        most_rows, most_tokens, most_waiting: As in `Batcher`.
        api_keys: File of keys, one a line.
        log: One of `LOGS`.
        device, dtype, quantization, engine: As in `Translator.from_pretrained`.
        split_sentences: As in `Translator.translate`.
        workers: Processes, each with its own models and its share of the threads.
        seconds_to_finish: Time for running requests after SIGTERM.
        without_letters: As in `Translator`.

    Raises:
        ValueError: A value is out of range.
    """

    models: Sequence[str]
    languages: Sequence[str] = ()
    limits: dict[str, Any] = field(default_factory=dict)
    most_rows: int = 128
    most_tokens: int = 2048
    most_waiting: int = 4096
    api_keys: str | None = None
    log: str = "requests"
    device: str | None = None
    dtype: str = "auto"
    workers: int = 1
    seconds_to_finish: int = 60
    quantization: str | None = None
    engine: str = "ours"
    split_sentences: SplitSentences = "auto"
    without_letters: WithoutLetters = "copy"

    def __post_init__(self) -> None:
        if self.languages and len(self.languages) != len(self.models):
            raise ValueError(f"languages: {len(self.languages)} for {len(self.models)} models; name one for each")
        for pair in self.languages:
            if not PAIR.fullmatch(pair):
                raise ValueError(f"languages: {pair!r} is not a language pair: expected SOURCE-TARGET, such as en-de")
        if self.log not in LOGS:
            raise ValueError(f"log={self.log!r}: must be one of {', '.join(map(repr, LOGS))}")
        if self.workers < 1:
            raise ValueError(f"workers={self.workers}: must be at least 1")
        check_split_sentences(self.split_sentences)
        Limits(**self.limits)


def name_and_place(model: str) -> tuple[str, str]:
    """Split NAME=FOLDER; a folder without a name is called by its last part. An existing folder is never split."""
    found = None if Path(model).exists() else NAMED.fullmatch(model)
    return (found["name"], found["place"]) if found else (Path(model.rstrip("/\\")).name or model, model)


def read_api_keys(path: str | None) -> list[str] | None:
    """
    The keys of a file, one a line; empty lines and lines that begin with # are ignored.

    Raises:
        OSError: It cannot be read.
        ValueError: The file has no keys: every request would be refused.
    """
    if path is None:
        return None
    keys = [line.strip() for line in read_lines(path)]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        raise ValueError(f"{path} has no keys: expected one a line")
    return keys


def languages_of(translator: Translator, pair: str | None) -> tuple[str | None, dict[str, str | None]]:
    """Source language of a model, and its target languages with their tags."""
    if pair and (found := PAIR.fullmatch(pair)):
        return found["source"], {found["target"]: None}
    tokenizer = translator.tokenizer
    source, target = (getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang"))
    if tags := translator.target_lang_tags:
        return source, dict[str, str | None](tags)
    return source, {target: None} if target else {}


def open_models(settings: ServerSettings) -> list[ServedModel]:
    """
    Raises:
        OSError: A model or the file of keys cannot be read; one line says which.
        ValueError: A value is out of range.
    """
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
        rows, tokens, waiting = settings.most_rows, settings.most_tokens, settings.most_waiting
        batcher = Batcher(translator, rows, tokens, waiting)
        source, targets = languages_of(translator, settings.languages[number] if settings.languages else None)
        models.append(ServedModel(name, batcher, source, targets))
    return models


def make_application(settings: ServerSettings) -> Starlette:
    """
    The application with its models.

    Raises:
        OSError, ValueError: As `open_models`.
    """
    keys = read_api_keys(settings.api_keys)
    return create_application(open_models(settings), Limits(**settings.limits), keys, settings.log == "texts")


def start_log(settings: ServerSettings) -> None:
    """Log to standard error as `settings.log` requests."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger(__package__).setLevel(logging.WARNING if settings.log == "errors" else logging.INFO)


def application_of_worker() -> Starlette:
    """The application of a worker process."""
    settings = ServerSettings(**json.loads(os.environ[SETTINGS_VARIABLE]))
    start_log(settings)
    return make_application(settings)


def serve(settings: ServerSettings, listening: socket.socket) -> None:
    """
    Serve requests until SIGTERM or Ctrl-C; running ones are finished.

    Raises:
        OSError, ValueError: As `make_application`.
    """
    start_log(settings)
    application = make_application(settings)
    if settings.workers == 1:
        run_server(application, listening, settings.seconds_to_finish)
        return
    del application  # opened here to check that it opens: workers that cannot start are restarted endlessly
    host, port = listening.getsockname()[:2]
    listening.close()  # uvicorn opens its own, which the workers inherit
    with tempfile.TemporaryDirectory() as counts:
        os.environ |= {SETTINGS_VARIABLE: json.dumps(asdict(settings)), FOLDER_VARIABLE: counts}
        uvicorn.run(
            f"{__name__}:application_of_worker",
            factory=True,
            host=host,
            port=port,
            workers=settings.workers,
            timeout_worker_healthcheck=HEALTHCHECK_SECONDS,
            timeout_graceful_shutdown=settings.seconds_to_finish,
            **QUIET,
        )
