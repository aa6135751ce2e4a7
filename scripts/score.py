"""
How probable a model finds translations that are given, one pair of sentences per line: log-probability and perplexity.

    python scripts/score.py outputs/quickstart numbers.en numbers.de > scores.txt    # log-probabilities
    python scripts/score.py outputs/quickstart numbers.en numbers.de --format tsv    # with the perplexity
    python scripts/score.py outputs/quickstart numbers.en numbers.de --format jsonl --output scores.jsonl
"""

import argparse

from vanilla_transformer_hf.common.command_line import run


def parse_arguments() -> argparse.Namespace:
    from vanilla_transformer_hf.translation.streams.arguments import add_arguments

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder saved by scripts/train.py, or the id of a Hub repository")
    parser.add_argument("source", help="UTF-8 text, also .gz")
    parser.add_argument("target", help="its translation, line by line")
    parser.add_argument(
        "--format",
        default="text",
        choices=["text", "tsv", "jsonl"],
        help="text: the log-probability of each target, in nats (default); tsv: line number, log-probability, tokens, "
        "perplexity, target; jsonl: a record for each pair, with the log-probability of each token",
    )
    parser.add_argument(
        "--too_long",
        default="error",
        choices=["error", "cut"],
        help="a line longer than the model takes: stop there (default), or score its beginning",
    )
    add_arguments(parser)
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> None:
    from vanilla_transformer_hf.translation.streams.command import run_command
    from vanilla_transformer_hf.translation.streams.work import LineWork

    work = LineWork("score", arguments.format, {"too_long": arguments.too_long})
    run_command(arguments, work, [arguments.source, arguments.target])


if __name__ == "__main__":
    run(lambda: main(parse_arguments()))
