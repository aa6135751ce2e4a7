"""
Measure speed and memory side by side, in one run, the engines taking turns:

    python scripts/benchmark.py train --source train.en.gz --target train.de.gz --json speed.json
    python scripts/benchmark.py train --presets tiny --dtypes float32 --loads run   # on a made-up corpus
    python scripts/benchmark.py generate --model outputs/en-de --source test.en --json search.json

Each engine runs in a process of its own, so that its peak memory is its own. Use a quiet machine: a row says how far
its measurements lie apart.
"""

import argparse
import sys

from benchmarks import generation, training


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


if __name__ == "__main__":
    arguments = parse_arguments()
    try:
        SUBCOMMANDS[arguments.subcommand].run(arguments)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
