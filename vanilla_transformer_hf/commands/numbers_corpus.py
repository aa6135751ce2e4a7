"""
Write the quickstart's corpus, numbers and dates spelled out in English and German:

    vanilla-transformer numbers-corpus outputs/quickstart-data
    vanilla-transformer numbers-corpus outputs/multilingual-data --both_directions
"""

from ..common.command_line import make_parser
from ..training.numbers_corpus import write_numbers_corpus


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument("folder", help="receives train, valid and test as .en and .de files")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (default: 0)")
    parser.add_argument(
        "--both_directions",
        action="store_true",
        help="each pair in both directions, as .source and .target files: sources begin with <2de> or <2en>, the tag "
        "of the language that they are translated to",
    )
    arguments = parser.parse_args(argv)
    try:
        sizes = write_numbers_corpus(arguments.folder, arguments.seed, arguments.both_directions)
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: pip install 'vanilla_transformer_hf[demo]'") from error
    print(f"{arguments.folder}: " + ", ".join(f"{name} {size:,} pairs" for name, size in sizes.items()))
