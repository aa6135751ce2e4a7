"""Training of translation models with transformers' Trainer, from parallel text to a folder ready to publish."""

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerControl,
    TrainerState,
    set_seed,
)

from ..common.files import new_files
from ..common.matmul import (
    TOLERANCE,
    choose_matmul,
    describe_matmul,
    probe_matmul,
    set_matmul,
)
from ..evaluation.scores import Scores
from ..model.packing.packed import lacks_bfloat16
from ..publishing.model_card import (
    CURVES_FILE,
    NOT_TRAINED,
    TRAINED,
    CardFacts,
    ScoredText,
    public_settings,
    read_emissions,
)
from .build import (
    describe_tokenizer,
    get_model,
    get_tokenizer,
    load_corpora,
    make_callbacks,
    make_collators,
    make_generation_config,
    paper_learning_rate,
    record_longest_source,
    record_sentences,
    say,
    tokenize,
)
from .checkpoints.averaging import AverageCheckpointsCallback
from .checkpoints.resume import (
    Start,
    check_rate,
    find_data_sums,
    find_start,
    lock_folder,
    prepare_folder,
    settings_of_all_parts,
)
from .checks import check_run
from .doubts import find_doubts
from .finishing import FinalScores, LaterParts, of_main_process, write_final_card, write_model
from .objectives.distillation import digest_of_teacher, open_teacher
from .recipe import RunArguments, TranslationTrainingArguments
from .trainer.gated import GatedTrainer
from .trainer.progress import quiet_libraries
from .trainer.translation import TranslationTrainer


@dataclass
class ScoredSet:
    """A held-out text with its scores and its (source, translation, reference) rows in order."""

    role: str
    scores: Scores
    rows: list[tuple[str, str, str]]


def _choose_matmul(training: TranslationTrainingArguments, before: Any) -> Any:
    """Choose and print the library of matrix products: `before` if it does not round here, else the best one."""
    rows = probe_matmul()
    exact = {row.name for row in rows if row.error <= TOLERANCE}
    name = choose_matmul(before if training.matmul == "auto" and before in exact else training.matmul, rows)
    say(training, describe_matmul(name, rows))
    if training.bf16 and lacks_bfloat16():
        say(training, "bf16: this processor has no instructions for bfloat16; float32 is faster here: --bf16 false")
    return name


def _set_matmul(name: str) -> Any:
    """Use the first process's choice in every process; separate choices could differ."""
    chosen: list[Any] = [name]
    broadcast_object_list(chosen)
    set_matmul(chosen[0])
    return chosen[0]


def score_corpus(trainer: TranslationTrainer, role: str, corpus: Any) -> ScoredSet:
    """Translate a tokenized corpus with the model's own search, and score it against its references."""
    num_beams = trainer.model.generation_config.num_beams or 1
    trainer.predict(corpus, metric_key_prefix=role, num_beams=num_beams)
    say(trainer.args, f"{role}, {num_beams} beams: {trainer.scores}")
    rows = sorted(zip(corpus["line"], corpus["source"], trainer.translations, corpus["target"]))
    return ScoredSet(role, trainer.scores, [(source, text, reference) for _, source, text, reference in rows])


def _hardware(training: TranslationTrainingArguments) -> str:
    """The hardware of a run, in words."""
    threads = torch.get_num_threads()
    name = f"{threads} CPU thread{'s' * (threads > 1)}"
    if training.device.type == "cuda":
        name = torch.cuda.get_device_name(training.device)
    return name if training.world_size == 1 else f"{training.world_size} processes, {name} each"


@dataclass
class TrainingJob:
    """
    A run that is ready to start.

    Its given arguments, the Trainer with its data, the start, and the record of an earlier run in `folder`, if any.
    Until `lock` ends, no other process can train in this folder.
    """

    run: RunArguments
    settings: dict[str, Any]
    folder: Path
    start: Start
    trainer: TranslationTrainer
    scored_data: dict[str, Any]
    earlier: CardFacts
    lock: AbstractContextManager | None = None

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint to continue from, if any."""
        return None if self.start.checkpoint is None else str(self.start.checkpoint)


def prepare_job(run: RunArguments, settings: dict[str, Any]) -> TrainingJob:
    """
    Everything up to the first step: corpora, tokenizer, model and Trainer. `run` is not changed.

    Args:
        settings: The arguments as a recipe says them; a run with the same settings continues an earlier one.

    Raises:
        FileNotFoundError: A file, folder or dataset does not exist.
        OSError: A model or tokenizer cannot be opened, or another process trains in `output_dir`.
        ValueError: A corpus is unusable, arguments contradict each other, or `output_dir` belongs to another run.
    """
    check_run(run, settings)
    training = copy.copy(run.training)  # the Trainer's arguments, completed below
    folder = Path(str(training.output_dir))
    checkpoints = folder / "checkpoints"
    earlier = CardFacts.read(folder)
    training.output_dir, training.resume_from_checkpoint = str(checkpoints), None
    training.hub_model_id = training.hub_model_id or folder.resolve().name
    for callback in make_callbacks(training, None):
        callback.on_init_end(training, TrainerState(), TrainerControl())  # before any text is read
    with quiet_libraries(), training.main_process_first(local=False, desc="data"):
        corpora = load_corpora(run.data)
        start, lock = _prepare_start(run, settings, training, checkpoints, corpora)
        tokenizer = get_tokenizer(run, corpora["train"], checkpoints / "tokenizer", start)
        say(training, describe_tokenizer(tokenizer, run))
        data = tokenize(corpora, tokenizer, run)
        record_longest_source(tokenizer, run, data["train"])
        record_sentences(tokenizer, run, corpora["train"])
        for doubt in find_doubts(run, tokenizer, corpora, data):
            say(training, f"Warning: {doubt}")
    if training.device.type == "cpu":
        training.matmul = _set_matmul(training.matmul)
    model = _make_model(run, training, tokenizer)
    # Batches of sentences of equal length need little padding.
    scored_data = {
        role: corpus.select(np.argsort(corpus["length"], kind="stable"))
        for role, corpus in data.items()
        if role != "train"
    }
    told = settings_of_all_parts(settings, start.earlier)
    if training.device.type == "cpu":
        told["matmul"] = training.matmul  # what "auto" was found to mean: the last bits of the weights depend on it
    trainer = (GatedTrainer if training.head_gates else TranslationTrainer)(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=scored_data.get("validation"),
        processing_class=tokenizer,
        target_lang=run.data.target_lang,
        callbacks=make_callbacks(training, start.checkpoint),
        teacher=_open_teacher(training, model, tokenizer),
        facts=_known_facts(run, told, folder.resolve().name, None if run.data.streaming else len(data["train"])),
        **make_collators(run, model, tokenizer),
    )
    return TrainingJob(run, settings, folder, start, trainer, scored_data, earlier, lock)


def _prepare_start(
    run: RunArguments,
    settings: dict[str, Any],
    training: TranslationTrainingArguments,
    checkpoints: Path,
    corpora: dict[str, Any],
) -> tuple[Start, AbstractContextManager | None]:
    """
    Find where the run continues, lock and prepare its folder, and choose the library of matrix products on a
    CPU.
    """
    sums = find_data_sums(run.data, corpora)
    teacher = Path(run.training.teacher or "")
    if run.training.teacher and teacher.is_dir():
        sums["teacher"] = digest_of_teacher(teacher)
    lock = lock_folder(checkpoints) if training.process_index == 0 else None
    start = find_start(checkpoints, run.training.resume_from_checkpoint, settings, sums)
    check_rate(start, training)
    for note in start.notes:
        say(training, note)
    if training.process_index == 0:
        if training.device.type == "cpu":
            training.matmul = _choose_matmul(training, start.matmul)
        if moved := prepare_folder(checkpoints, start, settings, sums, training.matmul):
            names = ", ".join(path.name for path in moved)
            say(training, f"{names}: of later steps than {start.checkpoint}, moved to {moved[0].parent}.")
    return start, lock


def _make_model(
    run: RunArguments, training: TranslationTrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    """The model with its generation config; sets the paper's learning rate if none is given."""
    set_seed(training.seed)
    with quiet_libraries():
        model = get_model(run, tokenizer)
    base = None if run.model.model_name_or_path is None else model.generation_config
    model.generation_config = make_generation_config(run, model.config, base)
    training.generation_max_length = None
    if training.learning_rate is None:
        training.learning_rate = paper_learning_rate(model.config.d_model, training.warmup_steps)
    return model


def _open_teacher(
    training: TranslationTrainingArguments, student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Any:
    if training.teacher is None:
        return None
    with quiet_libraries():
        return open_teacher(training.teacher, student, tokenizer, training.device)


def run_job(job: TrainingJob, keep_scores: bool = True) -> list[ScoredSet]:
    """
    Train, write the model in `output_dir`, score the held-out text with beam search, and publish the result.

    The model is written before anything else is done with it. If a later part fails, the others are done all the
    same, and the same run, started again, does what is missing.

    Args:
        job: A run that is ready to start.
        keep_scores: Whether scores of the same model that an earlier call has measured are kept.

    Raises:
        UnfinishedRunError: The model is written, but it could not be scored, described or published.
        FloatingPointError, TrainingInterrupted, OSError: See `TranslationTrainer`.
    """
    with job.lock or nullcontext(), quiet_libraries():
        return _train_and_finish(job, keep_scores)


def _train_and_finish(job: TrainingJob, keep_scores: bool) -> list[ScoredSet]:
    trainer = job.trainer
    say(
        trainer.args,
        f"{trainer.model.num_parameters():,} parameters, {_batches_in_words(trainer.args)}; "
        + (f"continuing from {job.checkpoint}." if job.checkpoint else f"checkpoints in {trainer.args.output_dir}."),
    )
    if trainer.is_world_process_zero():
        trainer.facts.write(Path(str(trainer.args.output_dir)))  # for cards of its checkpoints and their averages
    with trainer.signals.listening():
        result = trainer.train(resume_from_checkpoint=job.checkpoint)
        weights = trainer.gather_weights()
        # The time is known for a run that was already finished, and unknown for a continued one.
        minutes = job.earlier.minutes if job.earlier.steps == trainer.state.global_step else None
        averages = [
            each for each in trainer.callback_handler.callbacks if isinstance(each, AverageCheckpointsCallback)
        ]
        trainer.facts = replace(
            trainer.facts,
            average_of=[folder.name for each in averages for folder in each.folders],
            minutes=result.metrics["train_runtime"] / 60 if job.checkpoint is None else minutes,
        )
        if trainer.is_world_process_zero():
            write_model(job.folder, trainer, weights)
            say(trainer.args, f"{job.folder}: model and tokenizer written.")
        trainer.accelerator.wait_for_everyone()
        with trainer.stopping_at_once(f"its model is written in {job.folder}, but not all that belongs to it."):
            return _finish(job, keep_scores)


def _finish(job: TrainingJob, keep_scores: bool) -> list[ScoredSet]:
    """
    All that follows when the model is written: scores, card, curves, upload.

    Raises:
        UnfinishedRunError: One of these has failed.
    """
    trainer, parts = job.trainer, LaterParts(job.folder, job.trainer.args.world_size)
    if is_main := trainer.is_world_process_zero():
        with parts.part("given a model card"):
            write_final_card(job.folder, trainer, trainer.current_facts(), is_last=False)
    scored = _score_all(job, parts, keep_scores)
    trainer.facts = replace(trainer.facts, scored=[ScoredText(part.role, part.scores) for part in scored])
    if is_main:
        _describe(job, parts)
        if not parts.failed:
            say(trainer.args, f"{job.folder}: model card, curves and translations written.")
        if trainer.args.push_to_hub and not parts.failed:  # what is published has its scores
            with parts.part("published"):
                say(trainer.args, f"published: {trainer.upload(job.folder, 'End of training').url}")
    parts.tell()
    return scored


def _score_all(job: TrainingJob, parts: LaterParts, keep_scores: bool) -> list[ScoredSet]:
    """The scores of all held-out texts, of which those that the run has measured before are kept."""
    trainer, scored = job.trainer, []
    known, kept = None, dict[str, Any]()
    if trainer.is_world_process_zero():
        known = FinalScores(job.folder, Path(str(trainer.args.output_dir)), keep_scores)
        kept = {role: known.find(role) for role in job.scored_data}
    kept = of_main_process(kept)
    for role, corpus in job.scored_data.items():
        with parts.part(f"scored on the {role} text"):
            if kept[role] is not None:
                scored.append(ScoredSet(role, *kept[role]))
                say(trainer.args, f"{role}: {scored[-1].scores}; measured before.")
                continue
            scored.append(score_corpus(trainer, role, corpus))
            if known is not None:
                known.add(role, scored[-1].scores, scored[-1].rows)
    return scored


def _describe(job: TrainingJob, parts: LaterParts) -> None:
    """Write curves and card, with everything that is known in the end."""
    trainer, folder = job.trainer, job.folder
    with parts.part("given its training curves"):
        if any("loss" in entry or "eval_loss" in entry for entry in trainer.state.log_history):
            with new_files(folder) as unfinished:
                trainer.plot_curves(unfinished / CURVES_FILE)
    with parts.part("given a model card"):
        co2 = read_emissions(str(trainer.args.output_dir), trainer.facts.further, trainer.facts.device)
        trainer.facts = replace(trainer.facts, co2=co2)
        write_final_card(folder, trainer, trainer.current_facts())


def _known_facts(run: RunArguments, settings: dict[str, Any], name: str, pairs: int | None) -> CardFacts:
    """The facts for a run's card that are known before training."""
    data, model, source = run.data, run.model.model_name_or_path, str(run.data.train_source)
    return CardFacts(
        name=name,
        corpus=data.corpus_name or Path(source).name,
        pairs=pairs,
        datasets=[] if Path(source).exists() else [source],
        source_lang=data.source_lang,
        target_lang=data.target_lang,
        license=run.model.license,
        # A local folder has no name that others could look up.
        base_model=None if model is None or Path(model).exists() else model,
        further=model is not None,
        compression=_compression(model),
        example=run.model.card_example,
        project_url=run.model.project_url,
        settings=public_settings(settings),
        device=_hardware(run.training),
    )


def _compression(model: str | None) -> list[str]:
    """The section on pruning or distillation in the card of the model that is trained further."""
    known = CardFacts.read(Path(model)).compression if model is not None and Path(model).is_dir() else []
    return [sentence.replace(NOT_TRAINED, TRAINED) for sentence in known]


def _batches_in_words(training: TranslationTrainingArguments) -> str:
    if training.tokens_per_step is None:
        return f"{training.per_device_train_batch_size} sentences per device and batch"
    return (
        f"steps of {training.tokens_per_step:,} tokens ({training.world_size} devices, "
        f"{training.gradient_accumulation_steps} batches of {training.device_batch_tokens:,} each)"
    )
