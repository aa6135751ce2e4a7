"""Training of encoder–decoders with transformers' Trainer, from text, mostly parallel, to a published folder."""

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import set_seed

from ..common.matmul import set_matmul
from .beginning import begin_run
from .checkpoints.record import find_data_sums, settings_of_all_parts
from .checkpoints.resume import Start
from .checks import check_run
from .console import quiet_libraries, say
from .data.corpora import (
    by_length,
    join_corpora,
    load_corpora,
    make_collators,
    mix,
    tokenize,
    training_text,
    validation_of,
)
from .data.parts import corpus_parts
from .doubts import find_doubts
from .facts import facts_of_run
from .finishing import ScoredSet, finish_denoising, finish_translation, score_before, train_and_write
from .machine import find_matmul, of_main_process
from .model import check_lengths, make_model, paper_learning_rate
from .objectives.distillation import digest_of_teacher, open_teacher
from .pretraining.denoising import DENOISING, make_denoising_collators
from .pretraining.texts import load_texts
from .pretraining.warm_start import begin_with, find_origins
from .recipe import RunArguments, TranslationTrainingArguments
from .tokenizer import describe_tokenizer, get_tokenizer, record_longest_source, record_sentences, tags_of_corpora
from .trainer.callbacks import make_callbacks
from .trainer.translation import TranslationTrainer
from .transfer import describe_transfer


@dataclass
class TrainingJob:
    """
    A run that is ready to start.

    Its given arguments, the Trainer with its data, and the start. Until `lock` ends, no other process can train in
    this folder.
    """

    run: RunArguments
    settings: dict[str, Any]
    folder: Path
    start: Start
    trainer: TranslationTrainer
    scored_data: dict[str, Any]
    lock: AbstractContextManager[Any] | None = None

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint to continue from, if any."""
        return None if self.start.checkpoint is None else str(self.start.checkpoint)

    @property
    def compares_before(self) -> bool:
        """
        Whether the model that the run begins with is scored: one that is fine-tuned on several corpora. A new
        vocabulary is not known to it, and a sharded model is not whole before it is trained.
        """
        is_further = self.run.model.model_name_or_path is not None and self.run.model.tokenizer != "new"
        return bool(self.run.data.corpora) and is_further and not self.trainer.is_fsdp_enabled


def prepare_job(run: RunArguments, settings: dict[str, Any]) -> TrainingJob:
    """Everything up to the first step: corpora, tokenizer, model and Trainer; `run` is not changed."""
    check_run(run, settings)
    training = copy.copy(run.training)  # the Trainer's arguments, completed below
    folder = Path(str(training.output_dir))
    checkpoints = folder / "checkpoints"
    training.output_dir, training.resume_from_checkpoint = str(checkpoints), None
    training.generation_max_length = None  # the model's generation config has it
    denoises = run.data.task == DENOISING
    training.predict_with_generate &= not denoises
    training.hub_model_id = training.hub_model_id or folder.resolve().name
    with quiet_libraries(), training.main_process_first(local=False, desc="data"):
        corpora = load_texts(run) if denoises else load_corpora(run.data)
        start, lock = _find_start(run, settings, training, corpora)
        tokenizer = get_tokenizer(run, training_text(run, corpora), checkpoints / "tokenizer", start)
        say(training, describe_tokenizer(tokenizer, run))
        origin = describe_transfer(run, tokenizer)
        for sentence in origin:
            say(training, sentence)
        joined = join_corpora(run, corpora, tags_of_corpora(run, tokenizer))
        data = tokenize(joined, tokenizer, run)
        mixture = mix(run, corpora, data["train"])
        if not denoises:  # what translation has to know of its sentences
            record_longest_source(tokenizer, run, data["train"])
            record_sentences(tokenizer, run, joined["train"])
        for doubt in find_doubts(run, tokenizer, joined, data):
            say(training, f"Warning: {doubt}")
    told = settings_of_all_parts(settings, start.earlier)
    if training.device.type == "cpu":
        # What "auto" was found to mean: the last bits of the weights depend on it.
        training.matmul = told["matmul"] = of_main_process(training.matmul)
        set_matmul(training.matmul)
    set_seed(training.seed)
    with quiet_libraries():
        model = make_model(run, tokenizer)
        check_lengths(model, data)
        if origins := find_origins(run.model):
            origin = begin_with(origins, model)
            for sentence in origin:
                say(training, sentence)
        teacher = None
        if training.teacher is not None:
            teacher = open_teacher(training.teacher, model, tokenizer, training.device)
    if training.learning_rate is None:
        training.learning_rate = paper_learning_rate(model.config.d_model, training.warmup_steps)
    scored_data = {role: by_length(corpus) for role, corpus in data.items() if role != "train"}
    trainer = TranslationTrainer(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=validation_of(run, scored_data),
        processing_class=tokenizer,
        target_lang=run.data.target_lang,
        target_langs={name: part.target_lang for name, part in corpus_parts(run.data).items()},
        mixture=mixture,
        callbacks=make_callbacks(training, start.checkpoint),
        teacher=teacher,
        facts=facts_of_run(
            run,
            told,
            folder,
            pairs=None if run.data.streaming else len(data["train"]),
            origin=origin,
            mixture=[] if mixture is None else mixture.sentences(),
        ),
        **(make_denoising_collators if denoises else make_collators)(run, model, tokenizer),
    )
    trainer.expect_final_scores(scored_data)
    return TrainingJob(run, settings, folder, start, trainer, scored_data, lock)


def _find_start(
    run: RunArguments, settings: dict[str, Any], training: TranslationTrainingArguments, corpora: dict[str, Any]
) -> tuple[Start, AbstractContextManager[Any]]:
    """Where the run continues; its folder is then locked and prepared, and its matrix products are chosen."""
    sums = find_data_sums(run.data, corpora)
    if training.teacher and Path(training.teacher).is_dir():
        sums["teacher"] = digest_of_teacher(Path(training.teacher))

    def matmul(start: Start) -> str:
        if training.device.type == "cpu":
            training.matmul = find_matmul(training, start.matmul)
        return training.matmul

    return begin_run(run, settings, Path(str(training.output_dir)), sums, matmul)


def run_job(job: TrainingJob, keep_scores: bool = True) -> list[ScoredSet]:
    """
    Train, write the model in `output_dir`, score the held-out text with beam search, and publish the result.

    The model is written before anything else is done with it. If a later part fails, the others are done all the
    same, and the same run, started again, does what is missing; then `UnfinishedRunError` is raised.
    """
    trainer, args, folder = job.trainer, job.trainer.args, job.folder
    with job.lock or nullcontext(), quiet_libraries(), trainer.signals.listening(), trainer.one_tracked_run():
        begin = f"continuing from {job.checkpoint}." if job.checkpoint else f"checkpoints in {args.output_dir}."
        say(args, f"{trainer.model.num_parameters():,} parameters, {args.batches_in_words}; {begin}")
        if job.compares_before:
            before = score_before(trainer, job.scored_data, is_new=job.checkpoint is None)
            trainer.facts = replace(trainer.facts, before=before)
        if trainer.is_world_process_zero():
            trainer.facts.write(Path(str(args.output_dir)))  # for cards of its checkpoints and their averages
        train_and_write(folder, trainer, job.start)
        with trainer.stopping_at_once(f"its model is written in {folder}, but not all that belongs to it."):
            finish = finish_denoising if job.run.data.task == DENOISING else finish_translation
            return finish(folder, trainer, job.scored_data, keep_scores)
