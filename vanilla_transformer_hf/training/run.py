"""Training with transformers' Trainer, from text, mostly parallel, to a folder that can be published."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, set_seed
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from ..common.matmul import set_matmul
from ..publishing.model_card import NOT_TRAINED, TRAINED, CardFacts, public_settings
from .checkpoints.averaging import AverageCheckpointsCallback, MovingAverageCallback
from .checkpoints.files import EarlyStopping, TrainingInterrupted, checkpoints_in
from .checkpoints.resume import (
    RunRecord,
    Start,
    check_rate,
    find_data_sums,
    find_start,
    lock_folder,
    prepare_folder,
    settings_of_all_parts,
)
from .data.corpora import size_by_pairs, validation_of
from .data.corpus import hub_id
from .data.parts import corpus_parts
from .finishing import ScoredSet, finish, score_before, train_and_write
from .model import choose_attention, paper_learning_rate
from .objectives.head_gates import HeadGatesCallback
from .objectives.losses import digest_of_teacher, open_teacher
from .pretraining.denoising import DENOISING, noise_of
from .process import find_matmul, of_main_process, quiet_libraries, say, use_threads
from .recipe import RunArguments
from .tasks.one_stack import CausalLM, Classification, MaskedLM, TokenClassification
from .tasks.recognition import MODELS, Recognition
from .tasks.task import Task
from .tasks.text_to_text import Denoising, Translation
from .trainer.translation import TranslationTrainer


# Task -> what its runs do of their own.
TASKS: dict[str, type[Task]] = {
    "translation": Translation,
    "denoising": Denoising,
    "masked_lm": MaskedLM,
    "causal_lm": CausalLM,
    "classification": Classification,
    "token_classification": TokenClassification,
    **dict.fromkeys(MODELS, Recognition),
}


def facts_of_run(
    run: RunArguments,
    settings: dict[str, Any],
    folder: Path,
    pairs: int | None,
    origin: Sequence[str] = (),
    mixture: Sequence[str] = (),
) -> CardFacts:
    """The facts for the card of a run's model; `origin` and `mixture` are sentences, `pairs` is None of a stream."""
    data, model, teacher = run.data, run.model.model_name_or_path, run.training.teacher
    parts = corpus_parts(data)
    sources = [str(part.train_source) for part in parts.values() if part.train_source]
    names = data.train_text or sources or [str(data.train_source)]
    named = ", ".join(name for name, part in parts.items() if part.train_source)
    targets = {part.target_lang for part in parts.values() or [data]}
    # Pretraining, pruning and distillation, from the card of the model that is fine-tuned.
    known = CardFacts.read(Path(model)).inherited() if model is not None and Path(model).is_dir() else CardFacts()
    on_hub = [*filter(hub_id, dict.fromkeys(names))]
    corpus = data.corpus_name or named or ", ".join(on_hub) or None  # a file is not named after its data set
    about = []
    if data.task == DENOISING:  # for the card, and for those of models that are made of this one
        text = " of ".join(each for each in (f"{pairs:,} texts" if pairs else "", corpus or "") if each) or "text"
        spoken = f" ({', '.join(data.text_langs)})" if data.text_langs else ""
        about = [f"Pretrained by denoising {text}{spoken}: {noise_of(data)}."]
    threads, training = torch.get_num_threads(), run.training
    device = f"{threads} CPU thread{'s' * (threads > 1)}"
    if training.device.type == "cuda":
        device = torch.cuda.get_device_name(training.device)
    return CardFacts(
        name=folder.resolve().name,
        task=data.task if data.task == DENOISING else None,
        languages=data.text_langs or [],
        corpus=corpus,
        pairs=pairs,
        datasets=on_hub,
        source_lang=data.source_lang,
        target_lang=targets.pop() if len(targets) == 1 else None,
        mixture=list(mixture),
        license=run.model.license,
        base_model=hub_id(model),  # a local folder has no name that others could look up
        further=model is not None,
        origin=[*origin, *about],
        quoted=[sentence.replace(NOT_TRAINED, TRAINED) for sentence in known.quoted],
        example=run.model.card_example,
        project_url=run.model.project_url,
        settings=public_settings(settings) | ({"teacher": teacher} if hub_id(teacher) else {}),
        device=device if training.world_size == 1 else f"{training.world_size} processes, {device} each",
    )


@dataclass
class TrainingJob:
    """A run that is ready to start."""

    # Its task, the Trainer with its data, and the start. Until `lock` ends, no other process can train in this folder.

    task: Task
    folder: Path
    start: Start
    trainer: TranslationTrainer
    scored_data: dict[str, Any]
    lock: AbstractContextManager[Any]

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint to continue from, if any."""
        return None if self.start.checkpoint is None else str(self.start.checkpoint)


def prepare_job(run: RunArguments, settings: dict[str, Any]) -> TrainingJob:
    """Everything up to the first step: texts, tokenizer, model and Trainer; `run` is not changed."""
    task = TASKS[run.data.task](run)
    task.check(settings)
    training = copy.copy(run.training)  # the Trainer's arguments, completed below
    task.decide(training)
    folder = Path(str(training.output_dir))
    checkpoints = folder / "checkpoints"
    training.output_dir, training.resume_from_checkpoint = str(checkpoints), None
    if training.metric_for_best_model and training.save_total_limit == 1:
        training.save_total_limit = 2  # of 1, the best is left at the end, and a finished run would train on from it
    training.generation_max_length = None  # the model's generation config has it
    training.hub_model_id = training.hub_model_id or folder.resolve().name
    is_main = training.process_index == 0
    with quiet_libraries(), training.main_process_first(local=False, desc="data"):
        texts = task.load()
        wanted = run.training.resume_from_checkpoint
        before = checkpoints if wanted in (None, "last") else Path(str(wanted)).parent
        kept = (RunRecord.read(before).settings or None) if checkpoints_in(before) else None
        run, sizes = size_by_pairs(run, texts, kept)
        task.run = run
        settings = {name: value for name, value in settings.items() if name != "by_pairs"} | sizes
        sums = find_data_sums(run.data, texts)
        if training.teacher and Path(training.teacher).is_dir():
            sums["teacher"] = digest_of_teacher(Path(training.teacher))
        CardFacts.read(folder)  # which the end of the run reads again: a damaged one is found now
        use_threads(training)
        lock = lock_folder(checkpoints) if is_main else nullcontext()
        start = find_start(checkpoints, run.training.resume_from_checkpoint, settings, sums)
        check_rate(start, training)
        for note in start.notes:
            say(training, note)
        chooses_matmul = task.is_text_to_text and training.device.type == "cpu"
        if is_main:
            if chooses_matmul:
                training.matmul = find_matmul(training, start.matmul)
            matmul = training.matmul if task.is_text_to_text else "default"
            if moved := prepare_folder(checkpoints, start, settings, sums, matmul):
                names = ", ".join(path.name for path in moved)
                say(training, f"{names}: of later steps than {start.checkpoint}, moved to {moved[0].parent}.")
        tokenizer = task.make_tokenizer(texts, checkpoints / "tokenizer", start)
    with quiet_libraries():
        data = task.make_data(texts, tokenizer)
        told = settings_of_all_parts(settings, start.earlier)
        if chooses_matmul:
            # What "auto" was found to mean: the last bits of the weights depend on it.
            training.matmul = told["matmul"] = of_main_process(training.matmul)
            set_matmul(training.matmul)
        set_seed(training.seed)
        model = task.make_model(tokenizer, data)
        teacher = None
        if training.teacher is not None:
            teacher = open_teacher(training.teacher, model, tokenizer, training.device)
            if training.bf16 and training.device.type == "cpu" and (kind := choose_attention(run, teacher.config)):
                teacher.set_attn_implementation(**kind)  # a quarter of a step; float32 keeps its last bits
    if training.learning_rate is None:
        training.learning_rate = paper_learning_rate(model.config.d_model, training.warmup_steps)
    scored_data = {role: corpus for role, corpus in data.items() if role != "train"}
    callbacks: list[TrainerCallback] = []
    if training.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(training.early_stopping_patience, start.scored_alike))
    if training.moving_average is not None:
        callbacks.append(MovingAverageCallback(training.moving_average, start.checkpoint))
    if training.average_last is not None:
        callbacks.append(AverageCheckpointsCallback(training.average_last))
    if training.average_best is not None:
        name = (training.metric_for_best_model or "bleu").removeprefix("eval_")
        callbacks.append(AverageCheckpointsCallback(training.average_best, f"eval_{name}"))
    if training.head_gates:
        callbacks.append(HeadGatesCallback(training.head_gates, training.head_gates_learning_rate))
    trainer = TranslationTrainer(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=validation_of(run, scored_data),
        processing_class=tokenizer,
        target_lang=run.data.target_lang,
        target_langs={name: part.target_lang for name, part in corpus_parts(run.data).items()},
        mixture=task.mixture,
        callbacks=callbacks,
        scored_alike=start.scored_alike,
        teacher=teacher,
        facts=facts_of_run(
            run,
            told,
            folder,
            pairs=None if run.data.streaming else len(data["train"]),
            origin=task.origin,
            mixture=[] if task.mixture is None else task.mixture.sentences(),
        ),
        **task.trainer_options(model, tokenizer),
    )
    least = training.eval_min_steps
    if least is not None and len(trainer.get_train_dataloader()) < least * training.gradient_accumulation_steps:
        training.eval_strategy, training.eval_steps = IntervalStrategy.STEPS, least  # type: ignore[assignment]
        if training.save_strategy == SaveStrategy.EPOCH:
            training.save_strategy, training.save_steps = SaveStrategy.STEPS, least
    trainer.expect_final_scores(scored_data)
    return TrainingJob(task, folder, start, trainer, scored_data, lock)


def run_job(job: TrainingJob, keep_scores: bool = True) -> list[ScoredSet]:
    """Train, write the model in `output_dir`, score the held-out texts, publish; returns scores of translations."""
    # The model is written before anything else is done with it. If a later part fails, the others are done all the
    # same, and the same run, started again, does what is missing; then `UnfinishedRunError` is raised.
    trainer, args, folder, run = job.trainer, job.trainer.args, job.folder, job.task.run
    with job.lock, quiet_libraries(), trainer.signals.listening(), trainer.one_tracked_run():
        begin = f"continuing from {job.checkpoint}." if job.checkpoint else f"checkpoints in {args.output_dir}."
        say(args, f"{trainer.model.num_parameters():,} parameters, {args.batches_in_words}; {begin}")
        is_further = run.model.model_name_or_path is not None and run.model.tokenizer != "new"
        if run.data.corpora and is_further and not trainer.is_fsdp_enabled:
            # A new vocabulary would not be known to the model, and a sharded one is not whole before it is trained.
            roles = [role for role in job.scored_data if run.data.corrections or role.startswith("validation")]
            data = {role: job.scored_data[role] for role in roles}
            before = score_before(trainer, data, is_new=job.checkpoint is None)
            trainer.facts = replace(trainer.facts, before=before)
        if trainer.is_world_process_zero():
            trainer.facts.write(Path(str(args.output_dir)))  # for cards of its checkpoints and their averages
        train_and_write(folder, trainer, job.start, job.task.processor)
        step, saved = trainer.state.global_step, f"its model is written in {folder}, but not all that belongs to it."
        with trainer.signals.at_once(lambda number: TrainingInterrupted(number, step, saved)):
            return finish(folder, trainer, job.task, job.scored_data, keep_scores)
