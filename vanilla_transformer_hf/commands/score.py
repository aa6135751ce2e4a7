"""
Score given translations by a model: log-probability and perplexity, one pair of sentences per line. This is not BLEU,
for which `vanilla-transformer translate MODEL < SOURCE | sacrebleu REFERENCE` is the command.

    vanilla-transformer score outputs/quickstart numbers.en numbers.de > scores.txt    # log-probabilities
    vanilla-transformer score outputs/quickstart numbers.en numbers.de --format tsv    # with the perplexity
    vanilla-transformer score outputs/quickstart numbers.en numbers.de --format jsonl --output scores.jsonl
    vanilla-transformer score outputs/quickstart numbers.en numbers.de --quantization int8 > scores.txt
"""

import argparse
from typing import get_args

from ..common.command_line import make_parser
from ..common.too_long import TooLongToScore, current_name
from .translate import add_split_sentences_of_pairs, split_sentences_option


def parse_arguments(prog: str, argv: list[str]) -> argparse.Namespace:
    from ..translation.streams.arguments import add_arguments

    parser = make_parser(prog, __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    parser.add_argument("source", help="UTF-8 text, also .gz")
    parser.add_argument("target", help="the translations, line by line")
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
    from ..translation.streams.command import run_command
    from ..translation.streams.work import LineWork

    options = {"too_long": arguments.too_long, **split_sentences_option(arguments)}
    work = LineWork("score", arguments.format, options)
    run_command(arguments, work, [arguments.source, arguments.target])
