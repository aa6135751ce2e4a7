"""
Translate text, one sentence per line.

    vanilla-transformer translate outputs/quickstart < numbers.en > numbers.de
    vanilla-transformer translate outputs/quickstart --input numbers.en --output numbers.de --num_beams 4
    vanilla-transformer translate outputs/quickstart --input numbers.en --num_beams 4 --n_best 4    # as TSV
    vanilla-transformer translate outputs/quickstart --input numbers.en --format jsonl --alignment
    vanilla-transformer translate outputs/quickstart --input numbers.en.gz --output numbers.de --processes 2
    vanilla-transformer translate outputs/quickstart --input page.html --output page.de.html --format html
    vanilla-transformer translate outputs/quickstart --file report.docx --output report.de.docx
    vanilla-transformer translate outputs/quickstart --quantization int8 < numbers.en > numbers.de
    vanilla-transformer translate outputs/quickstart --engine ctranslate2 < numbers.en > numbers.de
    vanilla-transformer translate outputs/spoken-digits --audio one.wav two.wav
    vanilla-transformer translate outputs/digit-strips --image strip.png
    vanilla-transformer translate outputs/quickstart --search mbr --samples 64 < numbers.en > numbers.de
    vanilla-transformer translate outputs/quickstart --constraints --num_beams 8 < phrases.tsv    # with tabs
    vanilla-transformer translate outputs/quickstart --glossary terms.tsv --memory old.tmx --num_beams 8 < numbers.en

Order, empty lines and white space at the edges of lines are kept, memory does not grow with the input. A run that was
killed leaves whole lines in FILE.partial; the same command continues it, and FILE is as without the interruption.
"""

import argparse
from typing import Any, get_args

from ..common.choices import SplitSentences, TooLongToTranslate
from ..common.command_line import make_parser, other_options
from ..translation.streams.arguments import add_arguments


# Options of the search that recordings and images have, too, and all that they have.
SEARCH_OF_FILES = (
    *("num_beams", "length_penalty", "length_penalty_type", "max_new_tokens", "no_repeat_ngram_size"),
    *("repetition_penalty", "num_beam_groups", "diversity_penalty"),
)
OPTIONS_OF_FILES = (
    *("model", "audio", "image", "output", "batch_size", "device", "dtype", "quantization", *SEARCH_OF_FILES),
)
# Endings of files whose lines nobody wants to have translated: documents, and tables.
NO_LINES = (".html", ".htm", ".srt", ".docx", ".odt", ".xlf", ".xliff", ".po")
TABLES = (".csv", ".tsv", ".xlsx", ".json", ".jsonl", ".parquet", ".tmx")


def add_engine_arguments(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--engine",
        default="ours",
        choices=["ours", "ctranslate2"],
        help="who searches (default: ours); ctranslate2: batch by batch, by a copy of the model that is exported "
        "once, to the cache of the Hugging Face libraries (HF_ASSETS_CACHE)",
    )
    parser.add_argument(
        "--quantization",
        metavar="TYPE",
        help="int8: compute linear maps with weights and inputs rounded to int8; int8_reduced: inputs to seven bits, "
        "which is faster on CPUs with AVX2 alone; with --engine ctranslate2, also another type of that copy's "
        "weights: int16, float16 … (default: as the model was saved)",
    )


def add_split_sentences(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--split_sentences",
        default="auto",
        choices=get_args(SplitSentences),
        help="translate the sentences of a line one by one: auto: unless the model has seen enough lines of several "
        "sentences in its training (default); always: wherever a sentence clearly ends; never: only in lines that are "
        "too long",
    )


def add_without_letters(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--without_letters",
        default="copy",
        choices=["copy", "mark", "translate"],
        help="a text without letters, such as *** or 42: copy it (default), translate it and mark the "
        "translation as suspicious, or translate it, for models that translate digits",
    )


def add_glossary_arguments(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--glossary",
        metavar="FILE",
        help="terms and their translations, .tsv (forms separated by |) or .tbx: a translation contains those whose "
        "terms its source has (needs 2 beams); missing ones are told",
    )
    parser.add_argument(
        "--memory",
        metavar="FILE",
        help="texts that are translated already, .tmx or another file with both sides, such as .tsv: their "
        "translations are taken; of others, --format jsonl and --file list the most similar",
    )


def add_search_arguments(search: argparse._ArgumentGroup) -> None:
    search.add_argument("--num_beams", type=int, metavar="N", help="beams; 1 is greedy search")
    search.add_argument(
        "--length_penalty",
        type=float,
        metavar="ALPHA",
        help="exponent of the length; larger values favour longer translations",
    )
    search.add_argument("--length_penalty_type", choices=["power", "gnmt"], help="|Y|^α, or the paper's ((5+|Y|)/6)^α")
    search.add_argument("--coverage_penalty", type=float, metavar="BETA", help="weight of the coverage penalty (GNMT)")
    search.add_argument(
        "--max_extra_tokens",
        type=int,
        metavar="N",
        help="maximum number of tokens that a translation may have beyond the number of its source",
    )
    search.add_argument("--max_new_tokens", type=int, metavar="N", help="maximum number of tokens of a translation")
    search.add_argument(
        "--no_repeat_ngram_size", type=int, metavar="N", help="phrases of N tokens occur once in a translation"
    )
    search.add_argument(
        "--repetition_penalty",
        type=float,
        metavar="P",
        help="above 1: makes tokens that the translation has already less probable",
    )
    search.add_argument(
        "--num_beam_groups",
        type=int,
        metavar="N",
        help="diverse beam search: beams in N groups that avoid each other's tokens; for --n_best",
    )
    search.add_argument(
        "--diversity_penalty", type=float, metavar="LAMBDA", help="what a token costs that another group has taken"
    )
    search.add_argument(
        "--ensemble",
        nargs="+",
        default=[],
        metavar="MODEL",
        help="other models; the search uses the mean of all probabilities",
    )
    search.add_argument(
        "--constraints",
        action="store_true",
        help="lines are SOURCE, tab, PHRASE, tab, PHRASE, …; a translation contains all its phrases (needs 2 beams); "
        "those without room for them are counted at the end",
    )
    add_engine_arguments(search)
    add_without_letters(search)
    add_glossary_arguments(search)
    search.add_argument("--shortlist", metavar="FILE", help="target text; translations use only its tokens")


def add_mbr_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("search mbr: of many candidates the one that is most like the others")
    group.add_argument(
        "--search",
        default="beam",
        choices=["beam", "mbr"],
        help="beam: the most likely translation (default); mbr: minimum Bayes risk, sentence by sentence",
    )
    group.add_argument("--samples", type=int, metavar="N", help="candidates of a sentence (default: 64)")
    group.add_argument("--utility", choices=["chrf", "bleu"], help="what likeness is (default: chrf)")
    group.add_argument(
        "--candidates",
        choices=["epsilon", "top_k", "beam"],
        help="epsilon: samples without tokens that are less likely than --epsilon (default); top_k: samples of the "
        "--top_k most likely tokens; beam: the best of as many beams",
    )
    group.add_argument("--epsilon", type=float, metavar="P", help="(default: 0.02)")
    group.add_argument("--top_k", type=int, metavar="K", help="(default: 10)")
    group.add_argument("--temperature", type=float, metavar="T", help="below 1: more likely samples (default: 1)")
    group.add_argument(
        "--seed", type=int, metavar="N", help="of samples; each sentence draws from it and its own text (default: 1)"
    )


def parse_arguments(prog: str, argv: list[str]) -> argparse.Namespace:
    parser = make_parser(prog, __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--input", metavar="FILE", help="UTF-8 text, also .gz (default: standard input)")
    inputs.add_argument(
        "--file",
        metavar="FILE",
        help="a document, which stays one: .docx, .odt, .html, .srt, .txt; of .xliff, .xlf and .po, messages "
        "without a translation get one",
    )
    parser.add_argument(
        "--encoding",
        metavar="NAME",
        help="of a --file that is text, subtitles or a page and not UTF-8, such as cp1251; the translation of text "
        "and subtitles is UTF-8",
    )
    inputs.add_argument("--audio", nargs="+", metavar="FILE", help="recordings, for a model that reads speech")
    inputs.add_argument("--image", nargs="+", metavar="FILE", help="images, for a model that reads them")
    parser.add_argument(
        "--format",
        choices=["text", "tsv", "jsonl", "html"],
        help="text: the best translation of each line; tsv: line number, score, text, alignment; jsonl: a record for "
        "each line with number, source and translations: text, score, finished (false: cut off at the limit of "
        "tokens), tokens, suspicious (true: repeats a phrase ten times, or is far too long), alignment; html: the "
        "input is one page, whose markup stays (default: text, or tsv with --n_best or --alignment)",
    )
    parser.add_argument("--n_best", type=int, metavar="N", help="write the N best translations of each line")
    parser.add_argument("--alignment", action="store_true", help="write word alignments: 0-0 1-2 …")
    search = parser.add_argument_group("search (default: what the model was saved with)")
    add_search_arguments(search)
    search.add_argument(
        "--prefixes", metavar="FILE", help="prefixes that the translations must begin with, line by line"
    )
    parser.add_argument(
        "--too_long",
        default="split",
        choices=get_args(TooLongToTranslate),
        help="a line longer than the model takes: translate it in parts (default), truncate it and translate its "
        "beginning, stop there, or translate it whole, if the encoder's attention costs O(n)",
    )
    add_mbr_arguments(parser)
    add_split_sentences(parser)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    if (arguments.audio or arguments.image) and (other := other_options(parser, arguments, OPTIONS_OF_FILES)):
        raise ValueError(f"--audio and --image write one text of each file: leave out {', '.join(other)}")
    return arguments


def search_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Translator.translate_stream` that the command line gives."""
    search = ("num_beams", "length_penalty", "length_penalty_type", "coverage_penalty", "max_extra_tokens")
    names = (*search, "max_new_tokens", "num_beam_groups", "diversity_penalty", "too_long", "split_sentences")
    repetition = ("no_repeat_ngram_size", "repetition_penalty")
    given = {name: value for name in repetition if (value := getattr(arguments, name)) is not None}
    return {name: getattr(arguments, name) for name in names} | {"num_return_sequences": arguments.n_best} | given


def minimum_risk(arguments: argparse.Namespace) -> dict[str, Any]:
    """The argument of `--search mbr`, if it is given."""
    names = ("samples", "utility", "candidates", "epsilon", "top_k", "temperature", "seed")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.search == "mbr":
        from ..translation.search.minimum_risk import MinimumRisk

        return {"mbr": MinimumRisk(**given)}
    if given:
        raise ValueError(f"{', '.join(f'--{name}' for name in given)}: needs --search mbr")
    return {}


def main(prog: str, argv: list[str]) -> None:
    arguments = parse_arguments(prog, argv)
    if arguments.audio or arguments.image:
        return _recognize(arguments)
    if arguments.file is not None or arguments.format == "html":
        return _translate_document(arguments)
    if arguments.encoding is not None:
        raise ValueError("--encoding says that of a document: name it by --file, or --format html")
    name = str(arguments.input).lower().removesuffix(".gz")
    if arguments.format is None and name.endswith(NO_LINES if arguments.constraints else NO_LINES + TABLES):
        do = "document: name it by --file" if name.endswith(NO_LINES) else "table: save its texts as lines of a file"
        raise ValueError(f"{arguments.input} is a {do}, or translate its lines as they are by --format text")
    from ..translation.streams.command import run_command
    from ..translation.streams.work import LineWork

    options = search_options(arguments) | minimum_risk(arguments) | {"return_alignments": arguments.alignment}
    form = arguments.format or ("tsv" if arguments.n_best or arguments.alignment else "text")
    inputs = [arguments.input, arguments.prefixes] if arguments.prefixes else [arguments.input]
    work = LineWork("translate", form, options, arguments.constraints)
    run_command(arguments, work, inputs)


def _recognize(arguments: argparse.Namespace) -> None:
    from ..common.files import output_or_stdout, refuse_overwriting
    from ..registration import register
    from ..translation.recognition import open_recognizer

    register(for_programs=False)
    names = (*SEARCH_OF_FILES, "quantization", "batch_size")
    search = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    files, reads = (arguments.audio, "input_features") if arguments.audio else (arguments.image, "pixel_values")
    refuse_overwriting(arguments.output, files)
    reader = open_recognizer(arguments, reads)
    with output_or_stdout(arguments.output) as output:
        for text in reader.texts(files, **search):
            output.write(f"{text}\n".encode())


def _translate_document(arguments: argparse.Namespace) -> None:
    of_lines = ("n_best", "alignment", "constraints", "prefixes", *(["format"] if arguments.file else []))
    if given := [f"--{name}" for name in (*of_lines, "restart", "window") if getattr(arguments, name)]:
        raise ValueError(f"a document is translated once, as a whole, in its own format: leave out {', '.join(given)}")
    from ..registration import register
    from ..translation.streams.opening import run_document

    register(for_programs=False)
    options = search_options(arguments) | minimum_risk(arguments)
    del options["num_return_sequences"]
    name, ending = (arguments.file, None) if arguments.file else (arguments.input, ".html")
    run_document(arguments, name, ending, options)
