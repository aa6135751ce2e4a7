"""
The translations of a text by a model, made once, continued after an interruption, and read again line by line; those
of the training text by a teacher are sequence-level distillation (Kim and Rush 2016, arXiv 1606.07947, section 3.2).
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from ...common.checksums import digest_of_all
from ...common.column_names import SIDES
from ...common.command_line import AUTO
from ...common.corpus_files import find_reader, kind_of
from ...common.files import open_output, write_text
from ...common.lines import read_lines
from ...common.settings import read_object
from ...translation.streams.arguments import add_arguments
from ...translation.streams.command import run_command
from ...translation.streams.work import LineWork
from ..arguments import DataArguments
from ..checkpoints.resume import changed_names
from ..data.corpora import load_corpora
from ..data.corpus import iterate_rows, iterate_texts
from ..data.parts import refuse_several
from ..objectives.losses import digest_of_teacher
from ..recipe import RunArguments


@dataclass(frozen=True)
class ModelSearch:
    """A model, and how it searches translations."""

    model: str  # its folder, or the id of a Hub repository
    # Arguments of `Translator.translate_stream`; None stands for what the model was saved with.
    options: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None  # of samples; None: nothing is drawn
    streams: dict[str, Any] = field(default_factory=dict)  # options of `translate`, such as `processes`, `dtype`

    def __post_init__(self) -> None:
        for name in ("processes", "threads", "batch_tokens", "window"):
            if (value := self.streams.get(name)) is not None and value != AUTO and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")

    @property
    def settings(self) -> dict[str, Any]:
        """All that the translations depend on besides the text."""
        path, dtype = Path(self.model), self.streams.get("dtype", "auto")
        others = {"seed": self.seed, "quantization": self.streams.get("quantization")}
        others["dtype"] = None if dtype == "auto" else dtype
        known = {name: value for name, value in (self.options | others).items() if value is not None}
        return {"model": digest_of_teacher(path) if path.is_dir() else self.model, **known}


def translate_file(search: ModelSearch, lines: Path, output: Path) -> None:
    """Translate the lines of a file to JSON lines, unless `output` exists; a run that was interrupted is continued."""
    if output.is_file():
        return
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(["--output", str(output)])
    vars(arguments).update(search.streams, model=search.model)
    options = {"too_long": "split", "return_scores": False, **search.options}
    run_command(arguments, LineWork("translate", "brief", options, seed=search.seed), [str(lines)])


def read_translated(lines: Path, translations: Path) -> Iterator[tuple[int, str, list[dict[str, Any]]]]:
    """Number from 1, line, and translations, best first: `text`, `score`, `finished`; of equal texts the first."""
    rows = map(json.loads, read_lines(translations))
    for (number, line), (of_line, group) in zip(
        enumerate(read_lines(lines), start=1), groupby(rows, key=lambda row: row["number"]), strict=True
    ):
        if number != of_line:
            raise ValueError(f"{translations}: line {number} of {lines} is missing; delete the file")
        distinct = dict[str, dict[str, Any]]()
        for row in group:
            distinct.setdefault(row["text"], row)
        yield number, line, list(distinct.values())


def begin(
    record: Path, settings: dict[str, Any], made: Sequence[Path], instead: str, inputs: Sequence[Path] = ()
) -> None:
    """Record as JSON the settings that files depend on, before the first of the files, `made`, is begun."""
    # `instead` says what to do if they were made with other settings; `inputs`, which are written after the record,
    # are removed where nothing is made of them yet.
    known = read_object(record, {}) if record.is_file() else None
    now = json.loads(json.dumps(settings))
    # Translations that were begun have a journal beside them (`ResumableOutput`).
    begun = [*made, *(path.with_name(f"{path.name}.partial.json") for path in made)]
    if known is not None and any(path.is_file() for path in begun):
        if changed := changed_names(now, known):
            raise ValueError(
                f"{record.parent} has translations that were made with another {' and '.join(changed)}: {instead}, or "
                f"delete {record.parent}"
            )
        return
    for path in inputs:  # of a run that went no further, perhaps with other settings
        path.unlink(missing_ok=True)
    write_json(record, settings)


def is_made_with(record: Path, settings: dict[str, Any], made: Sequence[Path]) -> bool:
    """Whether all these files exist, and the record, which is written after them, has these settings."""
    if not (record.is_file() and all(path.is_file() for path in made)):
        return False
    return bool(read_object(record, {}).get("settings") == json.loads(json.dumps(settings)))


def columns_of(data: DataArguments) -> tuple[str, str]:
    """Names of source and target in JSON lines, as the recipe expects them; with `reverse`, it exchanges the sides."""
    source, target = SIDES[::-1] if data.reverse else SIDES
    return data.source_column or source, data.target_column or target


def write_pairs(path: Path, pairs: Iterable[tuple[str, str]], columns: tuple[str, str]) -> None:
    """Write pairs as JSON lines with these columns, completely or not at all."""
    with open_output(path) as file:
        for pair in pairs:
            file.write(json.dumps(dict(zip(columns, pair)), ensure_ascii=False).encode() + b"\n")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file completely or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


# Files in the output folder of the student.
FOLDER, PAIRS, TRANSLATIONS = "distillation", "pairs.jsonl", "translations.jsonl"
SOURCES, RECORD = "sources.txt", "settings.json"


def translate_training_text(
    run: RunArguments,
    teacher: str,
    n_best: int = 1,
    num_beams: int | None = None,
    streams: dict[str, Any] | None = None,
) -> Path:
    """Write pairs of training sources and the teacher's `n_best` translations as JSON lines, unless they are there."""
    # Without `num_beams` it is the teacher's saved number, but at least `n_best`; `streams` are as in `ModelSearch`.
    for name, value in (("n_best", n_best), ("num_beams", num_beams)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    if num_beams is not None and num_beams < n_best:
        raise ValueError(f"n_best={n_best}: must be at most num_beams={num_beams}")
    refuse_several(run.data, "distill")
    if not run.data.train_source:
        raise ValueError("train_source is not given: name the text that the teacher translates")
    folder = Path(str(run.training.output_dir)) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    sources = _source_file(run.data, folder)
    beams = num_beams
    if beams is None and n_best > 1:
        with suppress(OSError):  # there are no saved settings
            beams = GenerationConfig.from_pretrained(teacher).num_beams
        beams = max(beams or 1, n_best)
    options = {"num_beams": beams, "num_return_sequences": n_best}
    search = ModelSearch(teacher, options, streams={**(streams or {}), "matmul": run.training.matmul})
    settings = {
        "teacher": search.settings["model"],
        "source_sha256": digest_of_all(sources),
        "n_best": n_best,
        "num_beams": num_beams,
        "columns": list(columns_of(run.data)),
    }
    pairs, translations = folder / PAIRS, folder / TRANSLATIONS
    begin(folder / RECORD, settings, [pairs, translations], instead="choose another output_dir")
    if not pairs.is_file():
        translate_file(search, sources, translations)
        found = ((source, one["text"]) for _, source, many in read_translated(sources, translations) for one in many)
        write_pairs(pairs, found, columns_of(run.data))  # each distinct pair
    return pairs


def _source_file(data: DataArguments, folder: Path) -> Path:
    """A text file with one source per line: the recipe's, or one that is written here."""
    given = Path(str((data.reverse and data.train_target) or data.train_source))
    if given.is_file() and find_reader(str(given)) is None and kind_of(str(given)) != ".parquet":
        if data.reverse and not data.train_target:
            raise ValueError("train_target is not given: with reverse, it is the text that the teacher translates")
        sides = data.train_source, data.train_target
        if all(side and Path(side).is_file() for side in sides):  # a header of both is an error, as in training
            next(iterate_rows(*map(str, sides), source_lang=data.source_lang, target_lang=data.target_lang), None)
        return given
    written = folder / SOURCES
    with open_output(written) as file:  # each time: the corpus may be another one, which its checksum tells
        for text in iterate_texts(load_corpora(data)["train"], "source"):
            file.write(" ".join(text.splitlines()).encode() + b"\n")
    return written
