"""
Train variants of a recipe on the same text, with the same batches and the same budget, and compare them:

    vanilla-transformer compare quickstart --variants positions --output outputs/positions
    vanilla-transformer compare quickstart --variants norms --seeds 3 --processes 2 --max_steps 300 \\
        --output outputs/norms
    vanilla-transformer compare quickstart --variants mine.yaml --seconds 120 --lr_scheduler_type inverse_sqrt \\
        --output outputs/mine

A file of variants names the fields of the recipe that each of them changes:

    settings:                 # of all variants, optional
      max_steps: 300
    variants:
      post: {}
      pre: {encoder_norm_position: pre, decoder_norm_position: pre}

Any field of a recipe can be given on the command line, for all variants; vanilla-transformer train --help-all shows
them. The folder of --output receives table.md, table.csv, curves.png, lengths.md (scores by length of the source),
differences.md (which scores differ by more than chance), and every model in runs/. The same command continues after an
interruption: finished runs are not repeated, and failed ones are tried again. Variants and seeds can be added; other
settings are an error. A run that fails or diverges is in the table with its error, and the exit status is 1. The model
of the last step is measured, or with --load_best_model_at_end true that of the best checkpoint.
"""

import os
import sys
from functools import partial
from pathlib import Path

from ..common.command_line import make_parser
from .train import TRAINING, find_named, find_recipe


# Name of a file of variants -> the file.
VARIANTS = {path.stem: path for path in sorted(TRAINING.glob("variants/*.yaml"))}


def _at_least(least: float, kind: type):
    """A type of arguments: numbers from `least` on."""

    def number(text: str):
        value = kind(text)
        if not least <= value < float("inf"):
            raise ValueError
        return value

    number.__name__ = f"number of at least {least:g}:"
    return number


def main(prog: str, argv: list[str]) -> None:
    epilog = "variants:\n"  # each with the comment at the top of its file
    for name, path in VARIANTS.items():
        lines = path.read_text(encoding="utf-8").splitlines()
        epilog += f"  {name}: {next((line.removeprefix('# ') for line in lines if line.startswith('#')), '')}\n"
    usage = f"{prog} RECIPE --variants FILE --output DIR [options] [--field value ...]"
    parser = make_parser(prog, __doc__, usage=usage, epilog=epilog, allow_abbrev=False)
    parser.add_argument("recipe", metavar="RECIPE", help="file or name of a recipe; the first argument")
    parser.add_argument("--variants", required=True, help="YAML file of variants, or one of the names below")
    parser.add_argument("--output", type=Path, required=True, help="folder for the table, the picture and the runs")
    count = _at_least(1, int)
    parser.add_argument("--seeds", type=count, default=1, help="seeds, from the recipe's on (default: 1)")
    parser.add_argument("--processes", type=count, default=1, help="runs at the same time (default: 1)")
    parser.add_argument(
        "--seconds",
        type=_at_least(1e-3, float),
        help="budget of a run in seconds of training, without evaluations, instead of steps",
    )
    if argv and argv[0].startswith("-") and not {"-h", "--help"} & set(argv):
        parser.error(f"the first argument is the recipe, got {argv[0]!r}")
    arguments, others = parser.parse_known_args(argv)
    if any(each.split("=")[0] == "--output_dir" for each in others):
        parser.error("--output_dir belongs to single runs: give --output")
    recipe, variants = find_recipe(arguments.recipe), find_named(arguments.variants, VARIANTS, "a file of variants")
    # Linux: large tensors in pages of 2 MiB, as in `train`; the processes of the runs inherit it.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # datasets and others, which --help does without.
    from ..training.comparison.comparison import plan_comparison, read_variants, run_comparison
    from ..training.comparison.report import write_report
    from ..training.comparison.run import FINISHED

    chosen = read_variants(variants)
    plan = plan_comparison(recipe, chosen, others, arguments.seeds, arguments.output, arguments.seconds, prog)
    try:
        tell = partial(print, flush=True)
        runs = run_comparison(plan, arguments.output, arguments.seconds, arguments.processes, tell)
    except (KeyboardInterrupt, SystemExit):
        print(f"{prog}: stopped; the same command continues.", file=sys.stderr)
        raise
    training = plan.base.training
    budget = f"{training.max_steps:,} steps" if training.max_steps > 0 else f"{training.num_train_epochs:g} epochs"
    if arguments.seconds is not None:
        budget = f"{arguments.seconds:g} seconds of training"
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(each.run.seed for each in runs))
    about = f"`{Path(recipe).stem}`, `{Path(variants).stem}`: {budget} a run; seeds: {seeds}."
    print(write_report(runs, arguments.output, about), flush=True)
    print(f"{arguments.output}: tables, curves.png and the runs written.")
    if any(each.result["status"] != FINISHED for each in runs):
        sys.exit(1)
