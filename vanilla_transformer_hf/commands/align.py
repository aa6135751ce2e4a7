"""
Align the words of sentences with the words of their translations, one pair per line, in the Pharaoh format.

    vanilla-transformer align outputs/quickstart numbers.en numbers.de > numbers.align     # 0-0 1-2 …
    vanilla-transformer align outputs/quickstart numbers.en numbers.de --format jsonl      # with the attention weights
"""

from ..common.command_line import make_parser
from .score import add_options_of_pairs, add_pairs, run_on_pairs


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    add_pairs(parser, "UTF-8 text, also .gz, in which white space separates words")
    parser.add_argument(
        "--layer",
        type=int,
        metavar="N",
        help="decoder layer whose attention is read, counted from 0 (default: the third of six, the second of four)",
    )
    parser.add_argument(
        "--format",
        default="text",
        choices=["text", "jsonl"],
        help="text: source-target pairs of word numbers (default); jsonl: a record for each pair, with the words "
        "and the attention of each target word to each source word",
    )
    add_options_of_pairs(parser, "align")
    arguments = parser.parse_args(argv)
    from ..translation.streams.work import LineWork

    options = {"layer": arguments.layer, "too_long": arguments.too_long, "split_sentences": arguments.split_sentences}
    run_on_pairs(arguments, LineWork("align", arguments.format, options))
