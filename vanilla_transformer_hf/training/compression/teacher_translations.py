"""Sequence-level distillation (Kim and Rush 2016, arXiv 1606.07947, section 3.2): the teacher's translations of the
training text, made once, kept beside the student, and continued after an interruption."""

from pathlib import Path

from ...common.checksums import digest_of_all
from ...common.command_line import Count
from ...common.corpus_files import find_reader, kind_of
from ...common.files import open_output
from ..arguments import DataArguments
from ..data.corpora import load_corpora
from ..data.corpus import iterate_texts
from ..data.parts import refuse_several
from ..recipe import RunArguments
from ..synthetic.translations import ModelSearch, begin, columns_of, read_translated, translate_file, write_pairs


# Files in the output folder of the student.
FOLDER, PAIRS, TRANSLATIONS = "distillation", "pairs.jsonl", "translations.jsonl"
SOURCES, RECORD = "sources.txt", "settings.json"


def translate_training_text(
    run: RunArguments,
    teacher: str,
    n_best: int = 1,
    num_beams: int | None = None,
    processes: Count = 1,
    threads: Count | None = None,
) -> Path:
    """Write pairs of training sources and the teacher's `n_best` translations as JSON lines, unless they are there."""
    # Without `num_beams` it is the teacher's saved number, but at least `n_best`.
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
    beams = num_beams if num_beams is not None or n_best == 1 else max(4, n_best)
    options = {"num_beams": beams, "num_return_sequences": n_best}
    search = ModelSearch(teacher, options, processes=processes, threads=threads, matmul=run.training.matmul)
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
    given = Path(str(data.train_source))
    if given.is_file() and find_reader(str(given)) is None and kind_of(str(given)) != ".parquet":
        return given
    written = folder / SOURCES
    with open_output(written) as file:  # each time: the corpus may be another one, which its checksum tells
        for text in iterate_texts(load_corpora(data)["train"], "source"):
            file.write(" ".join(text.splitlines()).encode() + b"\n")
    return written
