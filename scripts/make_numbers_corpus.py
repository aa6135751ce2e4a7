"""
Write the quickstart's corpus, numbers and dates spelled out in English and German:

    python scripts/make_numbers_corpus.py outputs/quickstart-data
"""

import argparse

from vanilla_transformer_hf.common.command_line import run
from vanilla_transformer_hf.training.numbers_corpus import write_numbers_corpus


def main():
    parser = argparse.ArgumentParser(
        prog="make_numbers_corpus.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="receives train, valid and test as .en and .de files")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another corpus (default: 0)")
    arguments = parser.parse_args()
    try:
        sizes = write_numbers_corpus(arguments.folder, arguments.seed)
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: pip install 'vanilla_transformer_hf[demo]'") from error
    print(f"{arguments.folder}: " + ", ".join(f"{name} {size:,} pairs" for name, size in sizes.items()))


if __name__ == "__main__":
    run(main)
