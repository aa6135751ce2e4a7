"""
Average the weights of checkpoints (safetensors) into a model's folder that is ready to use:

    python scripts/average_checkpoints.py outputs/en-de --last 5 --output outputs/en-de-average
    python scripts/average_checkpoints.py outputs/en-de --best 5 --metric eval_chrf --output outputs/en-de-average
    python scripts/average_checkpoints.py run1/checkpoint-900 run1/checkpoint-1000 --output outputs/en-de-average

The paper averages the last 5 checkpoints of its base models and the last 20 of the big ones (section 6.1).
"""

import argparse
from pathlib import Path

from vanilla_transformer_hf.common.command_line import run


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="the checkpoints; or, with --last or --best, one output_dir"
    )
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--last", type=int, metavar="N", help="average the last N checkpoints of a run")
    number.add_argument("--best", type=int, metavar="N", help="average the N with the best --metric")
    parser.add_argument(
        "--metric", default="eval_bleu", help="for --best; lower is better if it ends in loss (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, required=True, help="new folder; takes its name when it is whole")
    return parser.parse_args()


def main(folders: list[str], last: int | None, best: int | None, metric: str, output: Path):
    from vanilla_transformer_hf.training.averaging import average_checkpoints, select_checkpoints

    if last is None and best is None:
        if len(folders) == 1:
            raise ValueError(f"{folders[0]} alone has no average; choose from its checkpoints by --last or --best.")
        chosen = [Path(folder) for folder in folders]
    elif len(folders) == 1:
        chosen = select_checkpoints(folders[0], last=last, best=best, metric=metric)
    else:
        raise ValueError(f"{len(folders)} folders given; --last and --best choose from one output_dir.")
    average_checkpoints(chosen, output)
    print(f"average of {', '.join(map(str, chosen))}")
    print(f"saved in {output}")


if __name__ == "__main__":
    run(lambda: main(**vars(parse_arguments())))
