"""
Score given translations by a model: log-probability and perplexity, one pair of sentences per line. This is not BLEU,
for which `vanilla-transformer translate MODEL < SOURCE | sacrebleu REFERENCE` is the command. A model
that reads recordings or images gets a folder of these with texts.tsv; its error rates, BLEU and chrF are printed.

    vanilla-transformer score outputs/quickstart numbers.en numbers.de > scores.txt    # log-probabilities
    vanilla-transformer score outputs/quickstart numbers.en numbers.de --format tsv    # with the perplexity
    vanilla-transformer score outputs/quickstart numbers.en numbers.de --format jsonl --output scores.jsonl
    vanilla-transformer score outputs/quickstart numbers.en numbers.de --quantization int8 > scores.txt
    vanilla-transformer score outputs/spoken-digits outputs/spoken-digits-data/test    # word and character error rate
    vanilla-transformer score outputs/quickstart memory.tmx --source_lang en --target_lang de > scores.txt
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any, get_args

from ..common.choices import SplitSentences, TooLongToScore
from ..common.command_line import make_parser, other_options
from ..translation.streams.arguments import add_arguments


# What the error rates of a folder depend on, and where they are written.
OPTIONS_OF_FILES = ("model", "source", "target", "output", "batch_size", "device", "dtype", "quantization")
# What says which texts of a file are the two sides.
NAMES = ("source_lang", "target_lang", "source_column", "target_column")


def add_pairs(parser: argparse.ArgumentParser, source: str) -> None:
    """Add the arguments of text with its translations; `source` says what plain source text is."""
    parser.add_argument("source", help=f"{source}; or a file that holds both sides, such as TMX, .xlsx or JSON lines")
    parser.add_argument("target", nargs="?", help="the translations of plain source text, line by line")
    parser.add_argument("--source_lang", metavar="LANG", help="language of the source in a file that holds both sides")
    parser.add_argument("--target_lang", metavar="LANG", help="language of its target (default of both: the model's)")
    parser.add_argument("--source_column", metavar="NAME", help="column of its source, if languages do not say it")
    parser.add_argument("--target_column", metavar="NAME", help="column of its target")


def add_options_of_pairs(parser: argparse.ArgumentParser, do: str) -> None:
    """Add the options of commands on pairs; `do` is the verb of what is done with one."""
    parser.add_argument(
        "--too_long",
        default="error",
        choices=get_args(TooLongToScore),
        help=f"a line that is longer than the model's limit: stop with an error (default), {do} its beginning, or "
        f"{do} it whole, if the encoder's attention costs O(n)",
    )
    parser.add_argument(
        "--split_sentences",
        choices=get_args(SplitSentences),
        help="take the sentences of a pair of lines one by one, as `translate` does, where both sides have the same "
        "number: auto: unless the model has seen enough lines of several sentences in its training (default); always; "
        "never",
    )
    add_arguments(parser)


def run_on_pairs(arguments: argparse.Namespace, work: Any) -> None:
    """Run a command on the pairs of two plain files, or of one that holds both sides."""
    from ..translation.streams.command import run_command

    names = {name: value for name in NAMES if (value := getattr(arguments, name)) is not None}
    if arguments.target is not None:
        if names:
            raise ValueError(f"{next(iter(names))} has no effect on two plain files; remove it")
        run_command(arguments, work, [arguments.source, arguments.target])
        return
    from ..common.files import refuse_overwriting
    from ..common.opening import open_tokenizer
    from ..training.data.corpus import iterate_pairs

    if arguments.on_bad_bytes != "error":
        raise ValueError(f"on_bad_bytes={arguments.on_bad_bytes} needs two plain files: other formats are read whole")
    refuse_overwriting(arguments.output, [arguments.source])
    if not names:  # those that the model records
        known = open_tokenizer(arguments.model).init_kwargs
        names = {"source_lang": known.get("src_lang"), "target_lang": known.get("tgt_lang")}
    with tempfile.TemporaryDirectory() as folder:
        # As plain lines, which an interrupted run finds again whatever it has read before.
        sides = [str(Path(folder, side)) for side in ("source", "target")]
        with open(sides[0], "w", encoding="utf-8") as sources, open(sides[1], "w", encoding="utf-8") as targets:
            for source, target in iterate_pairs(arguments.source, **names):
                sources.write(f"{source}\n")
                targets.write(f"{target}\n")
        run_command(arguments, work, sides)


def parse_arguments(prog: str, argv: list[str]) -> argparse.Namespace:
    parser = make_parser(prog, __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    add_pairs(parser, "UTF-8 text, also .gz; a folder of recordings or images with texts.tsv")
    parser.add_argument(
        "--format",
        default="text",
        choices=["text", "tsv", "jsonl"],
        help="text: the log-probability of each target, in nats (default); tsv: line number, log-probability, tokens, "
        "perplexity, target; jsonl: a record for each pair, with the log-probability of each token",
    )
    parser.add_argument(
        "--quantization",
        choices=["int8", "int8_reduced"],
        help="compute linear maps with weights and inputs rounded to int8, or inputs to seven bits, which is faster "
        "on CPUs with AVX2 alone (default: in the type of the weights)",
    )
    add_options_of_pairs(parser, "score")
    arguments = parser.parse_args(argv)
    if is_folder(arguments) and (other := other_options(parser, arguments, OPTIONS_OF_FILES)):
        raise ValueError(f"{arguments.source} is a folder with texts.tsv: leave out {', '.join(other)}")
    return arguments


def is_folder(arguments: argparse.Namespace) -> bool:
    """Whether the source is a folder of recordings or images."""
    return Path(arguments.source, "texts.tsv").is_file()


def main(prog: str, argv: list[str]) -> None:
    arguments = parse_arguments(prog, argv)
    if is_folder(arguments):
        if arguments.target is not None:
            raise ValueError(f"{arguments.source} has its texts in texts.tsv: leave out {arguments.target}")
        from ..common.files import output_or_stdout, refuse_overwriting
        from ..evaluation.scores import error_rates, score_translations
        from ..translation.recognition import TEXTS_FILE, open_recognizer, read_texts

        rows = read_texts(Path(arguments.source))
        refuse_overwriting(arguments.output, [Path(arguments.source, TEXTS_FILE), *(path for path, _ in rows)])
        names = ("quantization", "batch_size")
        given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
        reader = open_recognizer(arguments)
        references = [text for _, text in rows]
        texts = list(reader.texts([path for path, _ in rows], **given))
        rates, scores = error_rates(texts, references), score_translations(texts, references)
        told = (
            f"WER {rates['wer']:.2f} %, CER {rates['cer']:.2f} %, BLEU {scores.bleu:.2f} ({scores.bleu_signature}), "
            f"chrF {scores.chrf:.2f} ({scores.chrf_signature}), exact match {scores.exact_match:.2f} % of "
            f"{len(rows):,} files\n"
        )
        with output_or_stdout(arguments.output) as output:
            output.write(told.encode())
        return
    from ..translation.streams.work import LineWork

    options = {"too_long": arguments.too_long, "split_sentences": arguments.split_sentences}
    run_on_pairs(arguments, LineWork("score", arguments.format, options))
