"""
Measure speed and memory side by side, in one run, the engines taking turns:

    python scripts/benchmark.py train --source train.en.gz --target train.de.gz --json speed.json
    python scripts/benchmark.py train --presets tiny --dtypes float32 --loads run   # on a made-up corpus
    python scripts/benchmark.py generate --model outputs/en-de --source test.en --json search.json

Each engine runs in a process of its own, so that its peak memory is its own. Use a quiet machine: a row says how far
its measurements lie apart.
"""

import argparse

from benchmarks import generation, training

from vanilla_transformer_hf.common.command_line import run


# Name of the subcommand -> module with a docstring, `add_arguments(parser)` and `run(arguments)`.
SUBCOMMANDS = {"train": training, "generate": generation}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(dest="subcommand", required=True)
    for name, module in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=module.__doc__.strip().splitlines()[0],
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    SUBCOMMANDS[arguments.subcommand].run(arguments)


if __name__ == "__main__":
    run(main, (OSError, ValueError, RuntimeError))
