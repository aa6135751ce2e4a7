"""
Average the weights of checkpoints (safetensors) into a model's folder that is ready to use:

    vanilla-transformer average outputs/en-de --last 5 --output outputs/en-de-average
    vanilla-transformer average outputs/en-de --best 5 --metric eval_chrf --output outputs/en-de-average
    vanilla-transformer average run1/checkpoint-900 run1/checkpoint-1000 --output outputs/en-de-average

The paper averages the last 5 checkpoints of its base models and the last 20 of the big ones (section 6.1).
"""

import argparse
from pathlib import Path

from ..common.command_line import make_parser


def parse_arguments(prog: str, argv: list[str]) -> argparse.Namespace:
    parser = make_parser(prog, __doc__)
    parser.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="checkpoints; with --last or --best, the output_dir of a run"
    )
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--last", type=int, metavar="N", help="average the last N checkpoints of a run")
    number.add_argument("--best", type=int, metavar="N", help="average the N checkpoints with the best --metric")
    parser.add_argument(
        "--metric",
        default="eval_bleu",
        help="metric of --best; lower is better if its name ends in loss (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="new folder; renamed from a temporary name when complete"
    )
    return parser.parse_args(argv)


def choose(folders: list[str], last: int | None, best: int | None, metric: str) -> list[Path]:
    """The checkpoints that the arguments name."""
    from ..training.checkpoints.averaging import select_checkpoints

    if last is None and best is None:
        if len(folders) == 1:
            raise ValueError(
                f"{folders[0]} is a single folder: expected two or more checkpoints, or --last or --best."
            )
        return [Path(folder) for folder in folders]
    if len(folders) > 1:
        raise ValueError(f"{len(folders)} folders with --last or --best: expected one output_dir.")
    return select_checkpoints(folders[0], last=last, best=best, metric=metric)


def main(prog: str, argv: list[str]) -> None:
    arguments = parse_arguments(prog, argv)
    from ..training.checkpoints.averaging import average_checkpoints

    chosen = choose(arguments.folders, arguments.last, arguments.best, arguments.metric)
    average_checkpoints(chosen, arguments.output)
    print(f"average of {', '.join(map(str, chosen))}")
    print(f"saved in {arguments.output}")
