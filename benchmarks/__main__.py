"""
Measure speed and memory side by side, in one run, the engines taking turns:

    python -m benchmarks train --source train.en.gz --target train.de.gz --json speed.json
    python -m benchmarks train --presets tiny --dtypes float32 --loads run   # on a synthetic corpus
    python -m benchmarks generate --model outputs/en-de --source test.en --json search.json
    python -m benchmarks commands --model outputs/en-de --source test.en       # whole commands, start-up included
    python -m benchmarks serve --model outputs/en-de --source test.en --json serving.json
    python -m benchmarks memory                                              # of a training step, presets by tokens
    python -m benchmarks variants --preset tiny                              # each against the paper's model
    python -m benchmarks attention --picture attention.png                   # kinds over the length
    python -m benchmarks predecessors --picture predecessors.png             # LSTM and GRU over the length
    python -m benchmarks claims scores cost chain --json claims.json         # what textbooks say
    python -m benchmarks low_data --sizes 1000 2000 5000 ...                 # quality, beside JoeyNMT and MarianMT

Each engine of train and generate runs in its own process, so that peak memory is measured separately. Use a quiet
machine: each row shows the spread of its measurements.
"""

import argparse
import sys

from vanilla_transformer_hf.common.command_line import make_parser
from vanilla_transformer_hf.common.command_line import run as run_command

from . import attention, claims, commands, generation, low_data, memory, predecessors, serving, training, variants


PROG = "python -m benchmarks"

# Name of the subcommand -> module with a docstring, `add_arguments(parser)` and `run(arguments)`.
SUBCOMMANDS = {
    "train": training,
    "memory": memory,
    "generate": generation,
    "commands": commands,
    "serve": serving,
    "variants": variants,
    "attention": attention,
    "predecessors": predecessors,
    "claims": claims,
    "low_data": low_data,
}


def parse_arguments(prog: str, argv: list[str]) -> argparse.Namespace:
    parser = make_parser(prog, __doc__)
    subparsers = parser.add_subparsers(dest="subcommand", required=True)
    for name, module in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=(module.__doc__ or "").strip().splitlines()[0],
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
    return parser.parse_args(argv)


def main(prog: str, argv: list[str]) -> None:
    arguments = parse_arguments(prog, argv)
    SUBCOMMANDS[arguments.subcommand].run(arguments)


if __name__ == "__main__":
    run_command(lambda: main(PROG, sys.argv[1:]), PROG)
