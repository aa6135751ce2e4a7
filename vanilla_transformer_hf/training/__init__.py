"""From parallel text to a folder that is ready to publish."""

from ..model.saving.former_names import alias_modules


# The names that modules had before this folder had rooms: scripts may import them for one release.
FORMER_NAMES = {
    "averaging": "checkpoints.averaging",
    "bpe_dropout": "data.bpe_dropout",
    "checkpoint_weights": "checkpoints.weights",
    "collator": "data.collators",
    "comparison_lengths": "comparison.lengths",
    "comparison_plan": "comparison.plan",
    "comparison_report": "comparison.report",
    "comparison_run": "comparison.run",
    "corpus": "data.corpus",
    "corpus_files": "data.corpus_files",
    "curves": "trainer.curves",
    "distillation": "objectives.distillation",
    "first_moment": "objectives.first_moment",
    "head_gates": "objectives.head_gates",
    "moving_average": "checkpoints.moving_average",
    "numbers_corpus": "data.numbers_corpus",
    "progress": "trainer.progress",
    "pruning": "compression.pruning",
    "pruning_run": "compression.pruning_run",
    "publishing_trainer": "trainer.publishing",
    "r_drop": "objectives.r_drop",
    "resume": "checkpoints.resume",
    "sharding": "checkpoints.sharding",
    "stack_run": "stacks.run",
    "stack_tasks": "stacks.tasks",
    "teacher_translations": "compression.teacher_translations",
    "token_batches": "data.token_batches",
    "tokenized_corpus": "data.tokenized_corpus",
}
alias_modules(__name__, FORMER_NAMES)
