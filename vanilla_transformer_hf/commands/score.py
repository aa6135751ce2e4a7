"""
Score given translations by a model: log-probability and perplexity, one pair of sentences per line. A model that reads
recordings or images is given a folder of these with texts.tsv, and its error rates are printed.

    vanilla-transformer score outputs/quickstart numbers.en numbers.de > scores.txt    # log-probabilities
    vanilla-transformer score outputs/quickstart numbers.en numbers.de --format tsv    # with the perplexity
    vanilla-transformer score outputs/quickstart numbers.en numbers.de --format jsonl --output scores.jsonl
    vanilla-transformer score outputs/quickstart numbers.en numbers.de --quantization int8 > scores.txt
    vanilla-transformer score outputs/spoken-digits outputs/spoken-digits-data/test    # word and character error rate
"""

import argparse
from pathlib import Path
from typing import get_args

from ..common.command_line import make_parser
from ..common.too_long import TooLongToScore, current_name
from .translate import add_split_sentences_of_pairs, split_sentences_option


def parse_arguments(prog: str, argv: list[str]) -> argparse.Namespace:
    from ..translation.streams.arguments import add_arguments

    parser = make_parser(prog, __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    parser.add_argument("source", help="UTF-8 text, also .gz; or a folder of recordings or images with texts.tsv")
    parser.add_argument("target", nargs="?", help="the translations, line by line; not with a folder")
    parser.add_argument(
        "--format",
        default="text",
        choices=["text", "tsv", "jsonl"],
        help="text: the log-probability of each target, in nats (default); tsv: line number, log-probability, tokens, "
        "perplexity, target; jsonl: a record for each pair, with the log-probability of each token",
    )
    parser.add_argument(
        "--too_long",
        type=current_name,
        default="error",
        choices=get_args(TooLongToScore),
        help="a line that is longer than the model's limit: stop with an error (default), score its beginning, "
        "or score it whole, if the encoder's attention costs O(n)",
    )
    add_split_sentences_of_pairs(parser)
    parser.add_argument(
        "--quantization",
        choices=["int8"],
        help="compute linear maps with weights and inputs rounded to int8 (default: in the type of the weights)",
    )
    add_arguments(parser)
    return parser.parse_args(argv)


def main(prog: str, argv: list[str]) -> None:
    arguments = parse_arguments(prog, argv)
    if (is_folder := Path(arguments.source).is_dir()) == (arguments.target is not None):
        raise ValueError(
            f"{arguments.source} is {'a folder: leave out the' if is_folder else 'a text: name its'} target"
        )
    if is_folder:
        return _score_folder(arguments)
    from ..translation.streams.command import run_command
    from ..translation.streams.work import LineWork

    options = {"too_long": arguments.too_long, **split_sentences_option(arguments)}
    work = LineWork("score", arguments.format, options)
    run_command(arguments, work, [arguments.source, arguments.target])


def _score_folder(arguments: argparse.Namespace) -> None:
    from ..evaluation.scores import error_rates
    from ..translation.recognition import Recognizer, read_texts

    rows = read_texts(Path(arguments.source))
    search = {} if arguments.quantization is None else {"quantization": arguments.quantization}
    reader = Recognizer(arguments.model, device=arguments.device)
    references = [text for _, text in rows]
    texts = list(reader.texts([path for path, _ in rows], arguments.batch_size or 32, **search))
    rates = error_rates(texts, references)
    exact = 100 * sum(text == reference for text, reference in zip(texts, references)) / len(rows)
    print(f"WER {rates['wer']:.2f} %, CER {rates['cer']:.2f} %, exact match {exact:.2f} % of {len(rows):,} files")
