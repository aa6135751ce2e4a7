"""
Average the weights of checkpoints (safetensors) into a model's folder that is ready to use:

    vanilla-transformer average outputs/en-de --last 5 --output outputs/en-de-average
    vanilla-transformer average outputs/en-de --best 5 --metric eval_chrf --output outputs/en-de-average
    vanilla-transformer average run1/checkpoint-900 run1/checkpoint-1000 --output outputs/en-de-average

The paper averages the last 5 checkpoints of its base models and the last 20 of the big ones (section 6.1).
"""

from pathlib import Path

from ..common.command_line import make_parser


def main(prog: str, argv: list[str]) -> None:
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
    arguments = parser.parse_args(argv)
    from ..training.checkpoints.averaging import average_checkpoints, select_checkpoints

    folders, last, best = arguments.folders, arguments.last, arguments.best
    chosen, is_run = list(map(Path, folders)), last is not None or best is not None
    if is_run and len(folders) > 1:
        raise ValueError(f"{len(folders)} folders with --last or --best: expected one output_dir.")
    if is_run:
        chosen = select_checkpoints(folders[0], last=last, best=best, metric=arguments.metric)
    elif len(folders) == 1:
        raise ValueError(f"{folders[0]} is a single folder: expected two or more checkpoints, or --last or --best.")
    average_checkpoints(chosen, arguments.output)
    print(f"average of {', '.join(map(str, chosen))}\nsaved in {arguments.output}")
