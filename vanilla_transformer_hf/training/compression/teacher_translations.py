"""Sequence-level distillation (Kim and Rush 2016, arXiv 1606.07947, section 3.2): the teacher's translations of the
training text, made once, kept beside the student, and continued after an interruption."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ...common.checksums import digest_of_all
from ...common.files import open_output
from ...common.lines import read_lines
from ...common.settings import read_object
from ...translation.streams.arguments import add_arguments
from ...translation.streams.command import run_command
from ...translation.streams.work import LineWork
from ..arguments import DataArguments
from ..data.corpora import load_corpora
from ..data.corpus import iterate_texts
from ..data.corpus_files import ROW_READERS, kind_of
from ..objectives.distillation import digest_of_teacher
from ..recipe import RunArguments


# Files in the output folder of the student.
FOLDER, PAIRS, TRANSLATIONS, SOURCES, RECORD = (
    "distillation",
    "pairs.jsonl",
    "translations.tsv",
    "sources.txt",
    "settings.json",
)


@dataclass(frozen=True)
class TeacherSearch:
    """
    Settings of the teacher's search.

    Args:
        teacher: Its folder, or the id of a Hub repository.
        n_best: Number of translations of each sentence that the student learns.
        num_beams: Beams; if None, the teacher's saved number, but at least `n_best`.
        processes: The number of processes that translate.
    """

    teacher: str
    n_best: int = 1
    num_beams: int | None = None
    processes: int = 1

    def __post_init__(self) -> None:
        for name in ("n_best", "num_beams"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if self.num_beams is not None and self.num_beams < self.n_best:
            raise ValueError(f"n_best={self.n_best}: must be at most num_beams={self.num_beams}")


def translate_training_text(search: TeacherSearch, run: RunArguments) -> Path:
    """
    Write the pairs of training sources and the teacher's translations as JSON lines; existing ones are kept.

    Raises:
        OSError: A file or the teacher cannot be opened.
        ValueError: The folder has translations of another teacher, text or search.
    """
    if not run.data.train_source:
        raise ValueError("train_source is not given: name the text that the teacher translates")
    folder = Path(str(run.training.output_dir)) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    sources = _source_file(run.data, folder)
    settings = {
        "teacher": digest_of_teacher(Path(search.teacher)) if Path(search.teacher).is_dir() else search.teacher,
        "source_sha256": digest_of_all(sources),
        "n_best": search.n_best,
        "num_beams": search.num_beams,
        "columns": list(_columns(run.data)),
    }
    record, pairs = folder / RECORD, folder / PAIRS
    if record.is_file():
        known = read_object(record, {})
        if changed := [name for name, value in settings.items() if known.get(name) != value]:
            raise ValueError(
                f"{folder} has translations that were made with another {' and '.join(changed)}: choose another "
                f"output_dir, or delete {folder}"
            )
        if pairs.is_file():
            return pairs
    if not (folder / TRANSLATIONS).is_file():
        _translate(search, sources, folder / TRANSLATIONS, run.training.matmul)
    with open_output(pairs) as file:
        for line in _pairs(sources, folder / TRANSLATIONS, _columns(run.data)):
            file.write(line)
    with open_output(record) as file:
        file.write(json.dumps(settings, indent=2).encode() + b"\n")
    return pairs


def _columns(data: DataArguments) -> tuple[str, str]:
    """Names of the two sides in the JSON lines, as the student's recipe expects them."""
    return data.source_column or "source", data.target_column or "target"


def _source_file(data: DataArguments, folder: Path) -> Path:
    """A text file with one source per line: the recipe's, or one that is written here."""
    given = Path(str(data.train_source))
    if given.is_file() and kind_of(str(given)) not in (*ROW_READERS, ".parquet"):
        return given
    written = folder / SOURCES
    if not written.is_file():
        with open_output(written) as file:
            for text in iterate_texts(load_corpora(data)["train"], "source"):
                file.write(" ".join(text.splitlines()).encode() + b"\n")
    return written


def _translate(search: TeacherSearch, sources: Path, output: Path, matmul: str) -> None:
    """All lines of a file as tab-separated values; a run that was interrupted is continued."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(["--output", str(output), "--processes", str(search.processes), "--matmul", matmul])
    arguments.model = search.teacher
    beams = search.num_beams if search.num_beams is not None or search.n_best == 1 else max(4, search.n_best)
    options: dict[str, Any] = {"num_beams": beams, "num_return_sequences": search.n_best, "too_long": "split"}
    run_command(arguments, LineWork("translate", "tsv", options), [str(sources)])


def _pairs(sources: Path, translations: Path, columns: tuple[str, str]) -> Iterator[bytes]:
    """The lines of the JSON file: each distinct pair of a source and one of its translations."""
    rows = (line.split("\t", 2) for line in read_lines(translations))
    texts = enumerate(read_lines(sources), start=1)
    for number, group in groupby(rows, key=lambda row: int(row[0])):
        place, source = next(texts)
        while place < number:
            place, source = next(texts)
        for translation in dict.fromkeys(row[2] for row in group):
            yield json.dumps(dict(zip(columns, (source, translation))), ensure_ascii=False).encode() + b"\n"
