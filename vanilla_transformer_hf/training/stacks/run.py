"""Training of one stack with a task of `TASKS`: from lines of text to a folder ready to publish."""

import copy
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from ...common.files import new_folder
from ...common.lines import read_lines
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ...publishing.model_card import CardFacts, public_settings
from ..beginning import begin_run, refuse_unused
from ..checkpoints.record import find_data_sums
from ..checks import check_evaluation
from ..console import quiet_libraries, say
from ..data.parts import ROLES, refuse_several
from ..finishing import LaterParts, write_final_card, write_model
from ..model import choose_attention, paper_learning_rate
from ..recipe import CORPUS_TEXTS, RunArguments
from ..trainer.translation import TranslationTrainer
from .tasks import TASKS, StackTask, best_ids, to_examples, whole_line, with_perplexity


# Fields that these tasks use, of those that not all do.
USED_FIELDS = (
    *("task", *CORPUS_TEXTS, "source_lang", "corpus_name", "max_source_length", "preset", "tokenizer_name_or_path"),
    *("tokenizer_model", "unicode_normalization", "attn_implementation", "license", "card_example", "project_url"),
    "adam_first_moment",
)


def check_task(run: RunArguments, settings: dict[str, Any]) -> None:
    """
    Raises:
        ValueError: A text is not named, or a field has no effect in this task.
    """
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
    """
    The lines of a text, and the classes of each line if it has classes.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The text is empty, or there are not as many classes as lines, or words.
    """
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
    """The named tokenizer; else a new one, trained once and kept in `folder`."""
    if run.model.tokenizer_name_or_path:
        tokenizer = VanillaTransformerTokenizer.from_pretrained(run.model.tokenizer_name_or_path)
        task.prepare(tokenizer)  # which may be that of another task
        return tokenizer
    if not folder.exists():
        size = run.config.get("vocab_size", VanillaTransformerConfig.vocab_size)
        tokenizer = VanillaTransformerTokenizer.train(
            texts,
            vocab_size=size,
            model=run.model.tokenizer_model,
            unicode_normalization=run.model.normal_form,
            show_progress=False,
        )
        task.prepare(tokenizer)
        tokenizer.model_max_length = run.data.max_source_length
        with new_folder(folder) as unfinished:
            tokenizer.save_pretrained(unfinished)
    return VanillaTransformerTokenizer.from_pretrained(folder)


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
    """
    Train a model of one stack, measure it on the held-out texts, and write it into `output_dir`. The same settings
    continue an interrupted run.

    Raises:
        FileNotFoundError, OSError, ValueError: A file does not exist or cannot be used; arguments contradict each
            other; or `output_dir` belongs to another run.
        TrainingInterrupted: After SIGTERM or Ctrl-C, when a checkpoint is saved.
    """
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
        start, lock = begin_run(run, settings, checkpoints, find_data_sums(run.data))
        tokenizer = get_tokenizer(run, task, texts["train"][0], checkpoints / "tokenizer")
        data = {role: _examples(run, task, tokenizer, *texts[role], names) for role in roles}
        set_seed(training.seed)
        model = make_model(run, task, tokenizer, names)
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
        )
    say(training, f"{run.data.task}: {model.num_parameters():,} parameters, {len(data['train']):,} texts.")
    checkpoint = None if start.checkpoint is None else str(start.checkpoint)
    facts = CardFacts(
        name=folder.resolve().name,
        corpus=run.data.corpus_name or Path(str(run.data.train_source)).name,
        pairs=len(data["train"]),
        source_lang=run.data.source_lang,
        license=run.model.license,
        example=run.model.card_example,
        project_url=run.model.project_url,
        settings=public_settings(settings),
        device=f"{torch.get_num_threads()} CPU threads" if training.device.type == "cpu" else str(training.device),
    )
    with lock, quiet_libraries(), trainer.signals.listening():
        result = trainer.train(resume_from_checkpoint=checkpoint)
        weights = trainer.gather_weights()
        facts.minutes = result.metrics["train_runtime"] / 60 if checkpoint is None else None
        facts.steps, facts.epochs = trainer.state.global_step, float(trainer.state.epoch or 0)
        if trainer.is_world_process_zero():
            write_model(folder, trainer, weights)
            say(training, f"{folder}: model and tokenizer written.")
        trainer.accelerator.wait_for_everyone()
        with trainer.stopping_at_once(f"its model is written in {folder}, but not all that belongs to it."):
            return _finish(folder, trainer, task, {role: data[role] for role in roles[1:]}, facts)


def _finish(
    folder: Path, trainer: TranslationTrainer, task: StackTask, data: dict[str, Any], facts: CardFacts
) -> dict[str, dict[str, float]]:
    """
    The scores of the held-out texts, and the card of the model that is written already.

    Raises:
        UnfinishedRunError: One of these has failed.
    """
    parts = LaterParts(folder, trainer.args.world_size)
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
