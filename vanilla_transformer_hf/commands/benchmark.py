"""
Measure speed and memory side by side, in one run, the engines taking turns:

    vanilla-transformer benchmark train --source train.en.gz --target train.de.gz --json speed.json
    vanilla-transformer benchmark train --presets tiny --dtypes float32 --loads run   # on a synthetic corpus
    vanilla-transformer benchmark generate --model outputs/en-de --source test.en --json search.json
    vanilla-transformer benchmark serve --model outputs/en-de --source test.en --json serving.json
    vanilla-transformer benchmark variants --preset tiny                              # each against the paper's model
    vanilla-transformer benchmark attention --picture attention.png                   # kinds over the length
    vanilla-transformer benchmark predecessors --picture predecessors.png             # LSTM and GRU over the length

Each engine of train and generate runs in its own process, so that peak memory is measured separately. Use a quiet
machine: each row shows the spread of its measurements.
"""

import argparse

from ..common.command_line import make_parser
from .benchmarks import attention, generation, predecessors, serving, training, variants


# Name of the subcommand -> module with a docstring, `add_arguments(parser)` and `run(arguments)`.
SUBCOMMANDS = {
    "train": training,
    "generate": generation,
    "serve": serving,
    "variants": variants,
    "attention": attention,
    "predecessors": predecessors,
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
