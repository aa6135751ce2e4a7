"""
Train a translation model from a recipe:

    python scripts/train.py scripts/recipes/quickstart.yaml
    python scripts/train.py scripts/recipes/multi30k_raw.yaml \\
        --train_source train.en.gz --train_target train.de.gz \\
        --validation_source val.en.gz --validation_target val.de.gz
    python scripts/train.py scripts/recipes/multi30k_raw.yaml \\
        --train_source wmt/wmt14 --dataset_config_name de-en --validation_source wmt/wmt14 --output_dir outputs/wmt14

Every field of a recipe can be overridden on the command line. The folder output_dir receives the model, its tokenizer,
model card, curves and translations; the same command continues a run that was interrupted from its last checkpoint.
SIGTERM and Ctrl-C save one more before the end.
"""

import os
import sys


# Linux: large tensors in pages of 2 MiB, which are ready sooner. torch asks for it once, at its first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from huggingface_hub.errors import StrictDataclassError

from vanilla_transformer_hf.training.checkpoints import TrainingInterrupted
from vanilla_transformer_hf.training.recipe import RecipeParser
from vanilla_transformer_hf.training.run import prepare_job, run_job


def main():
    parser = RecipeParser(prog="train.py", usage="train.py RECIPE.yaml [--field value ...]", description=__doc__)
    run, settings = parser.parse(sys.argv[1:])
    began_elsewhere = run.training.resume_from_checkpoint not in (None, "last")
    try:
        job = prepare_job(run, settings)
    except (ValueError, OSError, RuntimeError, StrictDataclassError) as error:
        sys.exit(f"train.py: {' '.join(str(error).split())}")
    stop = None
    try:
        run_job(job)
    except (OSError, FloatingPointError) as error:
        sys.exit(f"train.py: {' '.join(str(error).split())}")
    except TrainingInterrupted as interruption:
        stop = interruption
    # Processes that leave it open are aborted now and then by threads that outlive the interpreter.
    job.trainer.accelerator.end_training()
    if stop is not None:
        same = "The same command, without --resume_from_checkpoint," if began_elsewhere else "The same command"
        print(f"train.py: {stop} {same} continues from it.", file=sys.stderr)
        sys.exit(128 + stop.signal)


if __name__ == "__main__":
    main()
