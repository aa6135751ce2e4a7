"""Sequence-level distillation (Kim and Rush 2016, arXiv 1606.07947, section 3.2): the teacher's translations of the
training text, made once, kept beside the student, and continued after an interruption."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...common.checksums import digest_of_all
from ...common.command_line import Count
from ...common.files import open_output
from ..arguments import DataArguments
from ..data.corpora import load_corpora
from ..data.corpus import iterate_texts
from ..data.corpus_files import find_reader, kind_of
from ..data.parts import refuse_several
from ..recipe import RunArguments
from ..synthetic.records import begin, columns_of, write_pairs
from ..synthetic.translations import ModelSearch, read_translated, translate_file


# Files in the output folder of the student.
FOLDER, PAIRS, TRANSLATIONS, SOURCES, RECORD = (
    "distillation",
    "pairs.jsonl",
    "translations.jsonl",
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
        processes, threads: As in `translate`: numbers, or "auto"; threads may be None.
    """

    teacher: str
    n_best: int = 1
    num_beams: int | None = None
    processes: Count = 1
    threads: Count | None = None

    def __post_init__(self) -> None:
        for name in ("n_best", "num_beams"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if self.num_beams is not None and self.num_beams < self.n_best:
            raise ValueError(f"n_best={self.n_best}: must be at most num_beams={self.num_beams}")


def translate_training_text(search: TeacherSearch, run: RunArguments) -> Path:
    """Write the pairs of training sources and the teacher's translations as JSON lines; existing ones are kept."""
    refuse_several(run.data, "distill")
    if not run.data.train_source:
        raise ValueError("train_source is not given: name the text that the teacher translates")
    folder = Path(str(run.training.output_dir)) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    sources = _source_file(run.data, folder)
    beams = search.num_beams if search.num_beams is not None or search.n_best == 1 else max(4, search.n_best)
    options = {"num_beams": beams, "num_return_sequences": search.n_best}
    of_teacher = ModelSearch(
        search.teacher, options, processes=search.processes, threads=search.threads, matmul=run.training.matmul
    )
    settings = {
        "teacher": of_teacher.settings["model"],
        "source_sha256": digest_of_all(sources),
        "n_best": search.n_best,
        "num_beams": search.num_beams,
        "columns": list(columns_of(run.data)),
    }
    pairs, translations = folder / PAIRS, folder / TRANSLATIONS
    begin(folder / RECORD, settings, [pairs, translations], instead="choose another output_dir")
    if pairs.is_file():
        return pairs
    translate_file(of_teacher, sources, translations)
    write_pairs(pairs, _pairs(sources, translations), columns_of(run.data))
    return pairs


def _source_file(data: DataArguments, folder: Path) -> Path:
    """A text file with one source per line: the recipe's, or one that is written here."""
    given = Path(str(data.train_source))
    if given.is_file() and find_reader(str(given)) is None and kind_of(str(given)) != ".parquet":
        return given
    written = folder / SOURCES
    with open_output(written) as file:  # each time: the corpus may be another one, which its checksum tells
        for text in iterate_texts(load_corpora(data)["train"], "source"):
            file.write(" ".join(text.splitlines()).encode() + b"\n")
    return written


def _pairs(sources: Path, translations: Path) -> Iterator[tuple[str, str]]:
    """Each distinct pair of a source and one of its translations."""
    for _, source, found in read_translated(sources, translations):
        for one in found:
            yield source, one["text"]
