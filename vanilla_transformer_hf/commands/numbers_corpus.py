"""
Write the quickstart's corpus, numbers and dates spelled out in English and German:

    vanilla-transformer numbers-corpus outputs/quickstart-data
    vanilla-transformer numbers-corpus outputs/multilingual-data --both_directions
    vanilla-transformer numbers-corpus outputs/divisible --divisible_by 3
    vanilla-transformer numbers-corpus outputs/places --place_values
    vanilla-transformer numbers-corpus outputs/look-up --look_up 2048
    vanilla-transformer numbers-corpus outputs/lists --numbers_per_line 1 3 --digits 3

The third writes numbers and their classes, for `task: classification`, the fourth and the fifth the classes of words,
for `task: token_classification`. The last writes lists such as "twelve; three hundred and five": models that are
trained on short lists can be tested on longer ones.
"""

from ..common.command_line import make_parser
from ..training.data.numbers_corpus import write_labelled_corpus, write_numbers_corpus


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
    parser.add_argument(
        "--numbers_per_line",
        nargs=2,
        type=int,
        metavar=("FEWEST", "MOST"),
        help="each line is a list of so many numbers, separated by semicolons, without dates",
    )
    parser.add_argument("--digits", type=int, default=6, help="most digits of the numbers of lists (default: 6)")
    parser.add_argument(
        "--divisible_by",
        type=int,
        metavar="N",
        help="numbers from 0 to 9,999 in English, as .en files, and whether N divides them, as .class files",
    )
    parser.add_argument(
        "--place_values",
        action="store_true",
        help="numbers in English, as .en files, and for each of their words whether it counts ones, hundreds, "
        "thousands or hundred thousands, as .class files",
    )
    parser.add_argument(
        "--look_up",
        type=int,
        metavar="WORDS",
        help="texts of so many words, as .en files: a table of letters and their values, then letters alone; and the "
        "value of each letter, as .class files; texts for training are shorter, too",
    )
    arguments = parser.parse_args(argv)
    lists = arguments.numbers_per_line and tuple(arguments.numbers_per_line)
    try:
        labels = {
            "--divisible_by": arguments.divisible_by,
            "--place_values": arguments.place_values or None,
            "--look_up": arguments.look_up,
        }
        if given := [name for name, value in labels.items() if value is not None]:
            if len(given) > 1 or arguments.both_directions or lists or arguments.digits != 6:
                raise ValueError(f"{given[-1]} has text of its own: give no other option but --seed beside it.")
            sizes = write_labelled_corpus(arguments.folder, arguments.divisible_by, arguments.seed, arguments.look_up)
        else:
            sizes = write_numbers_corpus(
                arguments.folder, arguments.seed, arguments.both_directions, lists, arguments.digits
            )
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: pip install 'vanilla_transformer_hf[demo]'") from error
    print(f"{arguments.folder}: " + ", ".join(f"{name} {size:,} pairs" for name, size in sizes.items()))
