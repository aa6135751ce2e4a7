"""Training of one stack with a task of `TASKS`: from lines of text to a folder ready to publish."""

import copy
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import set_seed

from ...common.lines import read_lines
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..beginning import begin_run, refuse_unused
from ..checkpoints.record import find_data_sums, settings_of_all_parts
from ..checks import check_evaluation
from ..console import quiet_libraries, say
from ..data.parts import ROLES, refuse_several
from ..facts import facts_of_run
from ..finishing import LaterParts, train_and_write, write_final_card
from ..model import check_lengths, choose_attention, paper_learning_rate
from ..recipe import CORPUS_TEXTS, RunArguments
from ..tokenizer import tokenizer_of_texts
from ..trainer.translation import TranslationTrainer
from .tasks import TASKS, StackTask, best_ids, to_examples, whole_line, with_perplexity


# Fields that these tasks use, of those that not all do.
USED_FIELDS = (
    *("task", *CORPUS_TEXTS, "source_lang", "corpus_name", "max_source_length", "preset", "tokenizer_name_or_path"),
    *("tokenizer_model", "unicode_normalization", "attn_implementation", "license", "card_example", "project_url"),
    *("adam_first_moment", "threads"),
)


def check_task(run: RunArguments, settings: dict[str, Any]) -> None:
    """Raise `ValueError` if a text is not named, or a field has no effect in this task."""
    task, name = TASKS[run.data.task], run.data.task
    refuse_several(run.data, f"task={run.data.task}")
    if not run.data.train_source:
        raise ValueError("train_source is not given: name the text to train on.")
    refuse_unused(run, settings, USED_FIELDS)
    check_evaluation(run, ("loss", "accuracy"))
    for role in ROLES:
        source, target = getattr(run.data, f"{role}_source"), getattr(run.data, f"{role}_target")
        if source and task.classes_of and not target:
            each = "each line" if task.classes_of is whole_line else "each word"
            raise ValueError(f"{role}_target is not given: name the file with the class of {each} of {source}.")
        if target and not (source and task.classes_of):
            raise ValueError(f"{role}_target={target} has no effect with task={name}: remove it.")


def read_texts(run: RunArguments, role: str) -> tuple[list[str], list[list[str]] | None]:
    """The lines of a text, and the classes of each line if it has classes."""
    source, target = getattr(run.data, f"{role}_source"), getattr(run.data, f"{role}_target")
    texts = list(read_lines(source))
    if not texts:
        raise ValueError(f"{source} is empty: expected a text on each line.")
    if target is None:
        return texts, None
    classes_of: Any = TASKS[run.data.task].classes_of
    classes = [classes_of(line) for line in read_lines(target)]
    if len(classes) != len(texts):
        raise ValueError(f"{target} has {len(classes):,} lines and {source} {len(texts):,}: expected as many.")
    for number, (text, found) in enumerate(zip(texts, classes), start=1):
        if classes_of is str.split and len(found) != len(text.split()):
            raise ValueError(
                f"line {number:,} of {target} has {len(found):,} classes and that of {source} {len(text.split()):,} "
                "words: expected a class for each word, separated by spaces."
            )
    return texts, classes


def get_tokenizer(run: RunArguments, task: StackTask, texts: Sequence[str], folder: Path) -> Any:
    """`tokenizer_of_texts` for a task; the named one may be that of another task."""
    return tokenizer_of_texts(run, texts, folder, task.prepare, model_max_length=run.data.max_source_length)


def make_model(run: RunArguments, task: StackTask, tokenizer: Any, names: list[str]) -> Any:
    """A new model of the named size for this tokenizer and these classes."""
    labels: dict[str, Any] = {}
    if task.classes_of:
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    config = VanillaTransformerConfig.from_preset(
        run.model.preset or "base", **{**run.config, "vocab_size": len(tokenizer), **ids, **labels}
    )
    if chosen := choose_attention(run, config):
        config._attn_implementation = chosen["attn_implementation"]
    return task.model(config)


def run_task(run: RunArguments, settings: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Train a model of one stack, measure it on the held-out texts, and write it; the same settings continue a run."""
    check_task(run, settings)
    task, training = TASKS[run.data.task], copy.copy(run.training)
    folder = Path(str(training.output_dir))
    checkpoints = folder / "checkpoints"
    training.output_dir, training.resume_from_checkpoint = str(checkpoints), None
    training.predict_with_generate = False
    with quiet_libraries():
        roles = [role for role in ROLES if getattr(run.data, f"{role}_source")]
        texts = {role: read_texts(run, role) for role in roles}
        names = sorted(set(chain.from_iterable(texts["train"][1] or ())))
        with training.main_process_first(local=False, desc="tokenizer"):
            start, lock = begin_run(run, settings, checkpoints, find_data_sums(run.data))
            tokenizer = get_tokenizer(run, task, texts["train"][0], checkpoints / "tokenizer")
        data = {role: _examples(run, task, tokenizer, *texts[role], names) for role in roles}
        set_seed(training.seed)
        model = make_model(run, task, tokenizer, names)
        check_lengths(model, data)
        if training.learning_rate is None:
            training.learning_rate = paper_learning_rate(model.config.d_model, training.warmup_steps)
        trainer = TranslationTrainer(
            model=model,
            args=training,
            train_dataset=data["train"],
            eval_dataset=data.get("validation"),
            processing_class=tokenizer,
            data_collator=task.collator(tokenizer, training.seed),
            compute_metrics=task.measure,
            preprocess_logits_for_metrics=best_ids,
            facts=facts_of_run(run, settings_of_all_parts(settings, start.earlier), folder, pairs=len(data["train"])),
        )
    say(training, f"{run.data.task}: {model.num_parameters():,} parameters, {len(data['train']):,} texts.")
    with lock, quiet_libraries(), trainer.signals.listening(), trainer.one_tracked_run():
        train_and_write(folder, trainer, start)
        with trainer.stopping_at_once(f"its model is written in {folder}, but not all that belongs to it."):
            return _finish(folder, trainer, task, {role: data[role] for role in roles[1:]})


def _finish(
    folder: Path, trainer: TranslationTrainer, task: StackTask, data: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """The scores of the held-out texts, and the card of the model that is written already."""
    parts, facts = LaterParts(folder, trainer.args.world_size), trainer.current_facts()
    if is_main := trainer.is_world_process_zero():
        with parts.part("given a model card"):
            write_final_card(folder, trainer, facts, is_last=False)
    for role, examples in data.items():
        with parts.part(f"scored on the {role} text"):
            facts.measured[role] = _measure(trainer, task, role, examples)
    if is_main:
        with parts.part("given a model card"):
            write_final_card(folder, trainer, facts)
            say(trainer.args, f"{folder}: model card written.")
    parts.tell()
    return facts.measured


def _examples(
    run: RunArguments,
    task: StackTask,
    tokenizer: Any,
    texts: list[str],
    classes: list[list[str]] | None,
    names: list[str],
) -> list[dict[str, Any]]:
    numbers = None
    if classes is not None:
        if unknown := sorted(set(chain.from_iterable(classes)) - set(names)):
            raise ValueError(f"class {unknown[0]!r} is not one of the training text: {', '.join(names)}.")
        places = {name: number for number, name in enumerate(names)}
        numbers = [[places[name] for name in each] for each in classes]
    return to_examples(task, tokenizer, texts, numbers, run.data.max_source_length)


def _measure(trainer: TranslationTrainer, task: StackTask, role: str, data: Any) -> dict[str, float]:
    """The scores of a held-out text, also printed; masks are drawn from the seed again."""
    set_seed(trainer.args.seed)
    found = trainer.evaluate(data, metric_key_prefix=role)
    plain = {name.removeprefix(f"{role}_"): value for name, value in found.items()}
    scores = with_perplexity(
        task, {name: plain[name] for name in ("loss", "accuracy", "most_frequent") if name in plain}
    )
    say(trainer.args, f"{role}: " + ", ".join(f"{name} {value:.4g}" for name, value in scores.items()))
    return scores
