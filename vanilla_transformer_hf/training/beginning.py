"""The beginning of a run: what has no effect is refused, its folder is locked, and where it continues is found."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import Seq2SeqTrainingArguments

from ..publishing.model_card import CardFacts
from .arguments import FIELDS_OF_NEW_TOKENIZERS, DataArguments, ModelArguments, OwnTrainingArguments
from .checkpoints.resume import Start, check_rate, find_start, lock_folder, prepare_folder
from .console import say
from .machine import use_threads
from .recipe import FIELDS_OF_OTHERS, RunArguments, refuse_without_effect


# Of transformers' arguments, those that have no effect in tasks other than those of text to text.
_OF_TRANSLATION = {
    *("predict_with_generate", "generation_max_length", "generation_num_beams", "push_to_hub", "hub_model_id")
}
# Fields of models that only text to text has, and this package's own arguments.
_NOT_IN_ALL_TASKS = {
    *FIELDS_OF_OTHERS["vanilla_transformer"],
    *(each.name for group in (DataArguments, ModelArguments) for each in fields(group)),
    *({each.name for each in fields(OwnTrainingArguments)} - {each.name for each in fields(Seq2SeqTrainingArguments)}),
}


def refuse_unused(run: RunArguments, settings: dict[str, Any], used: Collection[str]) -> None:
    """Raise `ValueError` if a field is set that is not among those that the run's task uses."""
    for name, value in settings.items():
        if name in (_NOT_IN_ALL_TASKS | _OF_TRANSLATION) - {*used}:
            raise ValueError(f"{name}={value} has no effect with task={run.data.task}: remove it.")
        if name in FIELDS_OF_NEW_TOKENIZERS and not run.model.trains_tokenizer:
            raise ValueError(
                f"{name}={value} has no effect: the tokenizer is that of tokenizer_name_or_path. Remove it."
            )
    refuse_without_effect(settings)


def begin_run(
    run: RunArguments,
    settings: dict[str, Any],
    checkpoints: Path,
    sums: dict[str, str],
    matmul: Callable[[Start], str] = lambda start: "default",
) -> tuple[Start, AbstractContextManager[Any]]:
    """
    Choose the threads of a run, say where it continues, and prepare and lock the folder of its checkpoints.

    `sums` are checksums of the run's data; `matmul` finds the library of matrix products for a start.
    """
    CardFacts.read(checkpoints.parent)  # which the end of the run reads again: a damaged one is found now
    use_threads(run.training)
    is_main = run.training.process_index == 0
    lock = lock_folder(checkpoints) if is_main else nullcontext()
    start = find_start(checkpoints, run.training.resume_from_checkpoint, settings, sums)
    check_rate(start, run.training)
    for note in start.notes:
        say(run.training, note)
    if is_main and (moved := prepare_folder(checkpoints, start, settings, sums, matmul(start))):
        names = ", ".join(path.name for path in moved)
        say(run.training, f"{names}: of later steps than {start.checkpoint}, moved to {moved[0].parent}.")
    return start, lock
