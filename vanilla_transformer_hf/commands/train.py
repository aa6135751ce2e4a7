"""
Train a translation model from a recipe, which is a YAML file or the name of one that the package has:

    vanilla-transformer train quickstart
    vanilla-transformer train multi30k_raw \\
        --train_source train.en.gz --train_target train.de.gz \\
        --validation_source val.en.gz --validation_target val.de.gz
    vanilla-transformer train multi30k_raw \\
        --train_source wmt/wmt14 --dataset_config_name de-en --validation_source wmt/wmt14 --output_dir outputs/wmt14

Any field of a recipe can be set on the command line, which takes precedence and replaces the fields of the recipe that
it excludes; --unset FIELD ... removes values of the recipe. --help shows the fields that most runs set, --help-all all
of them. The folder output_dir receives the model, its tokenizer, model card, curves and translations. The same command
continues an interrupted run from its last checkpoint. On SIGTERM and Ctrl-C a run saves one more checkpoint and ends.
"""

import gc
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..common.command_line import errors, message_of


# Linux: large tensors in pages of 2 MiB, which are ready sooner. torch reads it once, at its first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

TRAINING = Path(__file__).parents[1] / "training"
# Name of a recipe -> its file.
RECIPES = {path.stem: path for path in sorted(TRAINING.glob("recipes/*.yaml"))}

# As other options, with hyphens or underscores.
HELP_ALL = {"--help-all", "--help_all"}
EPILOG = f"""recipes: {", ".join(RECIPES)}
  files: {TRAINING / "recipes"}
  configs for accelerate launch: {TRAINING / "accelerate"}
"""


def find_named(name: str, named: Mapping[str, Path], kind: str) -> str:
    """The YAML file of this path, or that of this name among the package's `named` ones."""
    if Path(name).is_file():
        return name
    if name in named:
        return str(named[name])
    near = get_close_matches(name, named, n=1)
    raise ValueError(
        f"{name!r} is neither a file nor the name of {kind}"
        + (f" (did you mean {near[0]!r}?)" if near else "")
        + f": expected the path of a YAML file or one of {', '.join(named)}."
    )


def find_recipe(name: str) -> str:
    """The file of a recipe, as `find_named`."""
    return find_named(name, RECIPES, "a recipe")


def main(prog: str, argv: list[str]) -> None:
    usage = f"{prog} RECIPE [--field value ...]"
    if {"-h", "--help", *HELP_ALL} & {*argv}:
        if HELP_ALL & {*argv}:
            from ..training.recipe import all_options as options
        else:
            from ..training.options import main_options as options
        from ..training.options import help_page

        print(help_page(options(), prog, usage, __doc__, EPILOG), end="")
        sys.exit(0)
    from ..training.recipe import RecipeParser

    parser = RecipeParser(prog=prog, usage=usage)
    if argv and not argv[0].startswith("-"):
        argv = [find_recipe(argv[0]), *argv[1:]]
    run, settings = parser.parse(argv)
    train(prog, run, settings)


def train(prog: str, run: Any, settings: dict[str, Any], compression: str | None = None) -> None:
    """Train according to `run`, and end the process as `train` does; `compression` is a sentence for the card."""
    # datasets and others, which --help does without.
    from ..training.checkpoints.files import TrainingInterrupted
    from ..training.run import prepare_job, run_job

    began_elsewhere, stop = run.training.resume_from_checkpoint not in (None, "last"), None
    try:
        job = prepare_job(run, settings)
        if compression is not None:
            job.trainer.facts.compression.append(compression)
    except errors(RuntimeError) as error:
        sys.exit(f"{prog}: {' '.join(message_of(error).split())}")
    try:
        run_job(job)
    except (OSError, FloatingPointError) as error:
        sys.exit(f"{prog}: {' '.join(message_of(error).split())}")
    except TrainingInterrupted as interruption:
        stop = str(interruption), 128 + interruption.signal
    # Threads of gloo that outlive the interpreter abort it now and then. The trainer holds them by its DDP, and is
    # itself held by cycles, and by the frames of an interruption and of what it interrupted.
    job.trainer.accelerator.end_training()
    del job
    gc.collect()
    if stop is not None:
        same = "The same command, without --resume_from_checkpoint," if began_elsewhere else "The same command"
        print(f"{prog}: {stop[0]} {same} continues from it.", file=sys.stderr)
        sys.exit(stop[1])
