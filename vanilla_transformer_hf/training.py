"""Training of translation models with the host's Trainer, from parallel text to a folder ready to publish."""

import copy
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch.utils.data import SequentialSampler
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    EvalPrediction,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import get_last_checkpoint

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .data import (
    TranslationCollator,
    check_vocabularies,
    iterate_texts,
    load_parallel_text,
    tokenize_corpus,
    vocabulary_sizes,
)
from .evaluation import Scores, decode_predictions, score_translations, write_predictions
from .model_card import CURVES_FILE, ScoredSet, TrainingFacts, make_card, plot_curves
from .recipe import DataArguments, RunArguments
from .text_files import open_output
from .tokenization_vanilla_transformer import VanillaTransformerTokenizer


class TranslationTrainer(Seq2SeqTrainer):
    """
    The host's `Seq2SeqTrainer`, scoring generated text against the "target" column of the data it is given.

    Afterwards `translations` holds the generated texts in the order of the data and `scores` the scores with their
    signatures. `evaluate` generates if `predict_with_generate` says so, `predict` always.
    """

    # What the host leaves open.
    model: PreTrainedModel
    args: Seq2SeqTrainingArguments
    processing_class: PreTrainedTokenizerBase
    train_dataset: Any
    eval_dataset: Any

    references: list[str]
    translations: list[str]
    scores: Scores

    def __init__(self, *args: Any, target_lang: str | None = None, **kwargs: Any):
        self.target_lang = target_lang
        super().__init__(*args, **kwargs)
        if self.args.predict_with_generate:
            self.compute_metrics = self._score

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        self.references = list(data["target"])
        return super().evaluate(eval_dataset, *args, **kwargs)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        self.references = list(test_dataset["target"])
        self.args.predict_with_generate, self.compute_metrics = True, self._score
        return super().predict(test_dataset, *args, **kwargs)

    def _score(self, prediction: EvalPrediction) -> dict[str, float]:
        # Several processes fill up their last batch with repeated sentences.
        token_ids = np.asarray(prediction.predictions)[: len(self.references)]
        self.translations = decode_predictions(self.processing_class, token_ids)
        self.scores = score_translations(self.translations, self.references, self.target_lang)
        return {"bleu": self.scores.bleu, "chrf": self.scores.chrf, "exact_match": self.scores.exact_match}

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        # The host fills the model's generation config with global defaults here, a max_length of 20 among them.
        generation_config = self.model.generation_config
        self.model.generation_config = copy.deepcopy(generation_config)
        try:
            return super().prediction_step(*args, **kwargs)
        finally:
            self.model.generation_config = generation_config

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # Continuing a run that is complete already, the host would add one step to it.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        # The host drops the stored lengths before it asks for them, and would then read every sentence to count it.
        if self.args.train_sampling_strategy == "group_by_length" and self.train_dataset is not None:
            size = self.args.train_batch_size * self.args.gradient_accumulation_steps
            return LengthGroupedSampler(size, lengths=list(self.train_dataset["length"]))
        return super()._get_train_sampler(train_dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        # The order of the data is the order of the references; grouping by length would shuffle it.
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None


def paper_learning_rate(d_model: int, warmup_steps: float) -> float:
    """
    The highest learning rate of the paper's schedule d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), section 5.3,
    which is reached at the end of the warm-up.

    Raises:
        ValueError: The warm-up is not a number of steps.
    """
    if warmup_steps < 1:
        raise ValueError(
            f"warmup_steps={warmup_steps}: the paper's learning rate needs a number of steps; or set learning_rate."
        )
    return d_model**-0.5 * warmup_steps**-0.5


def _say(training: Seq2SeqTrainingArguments, text: str):
    """Print a line, once for all processes."""
    if training.process_index == 0:
        print(text, flush=True)


def _load_corpora(arguments: DataArguments) -> dict[str, Any]:
    """The corpora that are named, by role: train, validation, test."""
    corpora = {}
    for role in ("train", "validation", "test"):
        source = getattr(arguments, f"{role}_source")
        if source is None:
            continue
        corpora[role] = load_parallel_text(
            source,
            getattr(arguments, f"{role}_target"),
            split=getattr(arguments, f"{role}_split"),
            config_name=arguments.dataset_config_name,
            source_column=arguments.source_column,
            target_column=arguments.target_column,
            source_lang=arguments.source_lang,
            target_lang=arguments.target_lang,
        )
    return corpora


def _tokenize(corpora: dict[str, Any], tokenizer: PreTrainedTokenizerBase, run: RunArguments) -> dict[str, Any]:
    """Token ids of the corpora, by role; what was left out or cut is shown."""
    data, arguments = {}, run.data
    for role, corpus in corpora.items():
        tokenized = tokenize_corpus(
            corpus,
            tokenizer,
            max_source_length=arguments.max_source_length,
            max_target_length=arguments.max_target_length,
            keep_text=role != "train",
            num_proc=arguments.preprocessing_num_workers,
        )
        _say(
            run.training,
            f"{role}: {len(tokenized.data):,} pairs from {getattr(arguments, f'{role}_source')}; "
            f"{tokenized.empty:,} with an empty side left out, {tokenized.truncated:,} cut to "
            f"{arguments.max_source_length} source or {arguments.max_target_length} target tokens.",
        )
        data[role] = tokenized.data
    return data


def _planned_config(run: RunArguments) -> VanillaTransformerConfig:
    """The config of a new model as far as it is known before its tokenizer: `vocab_size` is what is wished for."""
    config = VanillaTransformerConfig.from_preset(run.model.preset or "base", **run.config)
    if run.model.separate_vocabularies:
        config.source_vocab_size = config.vocab_size
        config.validate_architecture()
    return config


def get_tokenizer(run: RunArguments, corpus: Any, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that is named or belongs to the named model; else a new one, trained once and kept in `folder`."""
    name = run.model.tokenizer_name_or_path or run.model.model_name_or_path
    if name:
        return AutoTokenizer.from_pretrained(name)
    if not folder.exists():
        tokenizer = VanillaTransformerTokenizer.train(
            iterate_texts(corpus, "source"),
            iterate_texts(corpus, "target"),
            vocab_size=_planned_config(run).vocab_size,
            model=run.model.tokenizer_model,
            separate_vocabularies=run.model.separate_vocabularies,
            src_lang=run.data.source_lang,
            tgt_lang=run.data.target_lang,
            length=len(corpus),
        )
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    return VanillaTransformerTokenizer.from_pretrained(folder)


def get_model(run: RunArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """
    The named model, or a new one of the named size for this tokenizer, with a complete generation config.

    Raises:
        ValueError: The tokenizer does not fit the model.
    """
    backend = {"attn_implementation": run.model.attn_implementation} if run.model.attn_implementation else {}
    if run.model.model_name_or_path:
        model = AutoModelForSeq2SeqLM.from_pretrained(run.model.model_name_or_path, **run.config, **backend)
    else:
        # A newly trained vocabulary may have come out smaller than it was asked to be.
        wanted = run.config.get("vocab_size") if run.model.tokenizer_name_or_path else None
        config = VanillaTransformerConfig.from_preset(
            run.model.preset or "base",
            **{
                **run.config,
                "vocab_size": wanted or len(tokenizer),
                "source_vocab_size": getattr(tokenizer, "source_vocab_size", None),
                **{name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")},
            },
        )
        model = AutoModelForSeq2SeqLM.from_config(config, **backend)
    check_vocabularies(tokenizer, model)
    return model


def _make_generation_config(run: RunArguments, model: PreTrainedModel) -> GenerationConfig:
    """Beam search with a length limit of its own; the host's default would cut every translation at 20 tokens."""
    config = model.config
    generation_config = GenerationConfig(
        num_beams=run.model.num_beams,
        max_new_tokens=run.training.generation_max_length or run.data.max_target_length,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )
    generation_config.validate(strict=True)
    return generation_config


def _claim_checkpoints(training: Seq2SeqTrainingArguments, settings: dict[str, Any]) -> str | None:
    """
    Make `output_dir`/checkpoints the Trainer's folder, and return the checkpoint to continue from, if any.

    The same settings continue where the last run stopped. They are kept beside the checkpoints.

    Raises:
        ValueError: The checkpoints are those of a run with other settings, or the wanted one is not there.
    """
    folder = Path(str(training.output_dir), "checkpoints")
    training.output_dir = str(folder)
    wanted, training.resume_from_checkpoint = training.resume_from_checkpoint, None
    settings = {name: value for name, value in settings.items() if name != "resume_from_checkpoint"}
    record = folder / "recipe.yaml"
    found = get_last_checkpoint(folder) if folder.is_dir() else None
    before = yaml.safe_load(record.read_text(encoding="utf-8")) if record.is_file() else {}
    if wanted is None and found and before != settings:
        names = [name for name in {**before, **settings} if before.get(name) != settings.get(name)]
        raise ValueError(
            f"{found} belongs to a run with other settings ({', '.join(names)}): continue it with "
            f"--resume_from_checkpoint last, or choose another output_dir, or delete {folder}."
        )
    checkpoint = found if wanted in (None, "last") else wanted
    if wanted and (checkpoint is None or not Path(checkpoint).is_dir()):
        raise ValueError(f"resume_from_checkpoint={wanted}: no such checkpoint; the last one here is {found}.")
    if training.process_index == 0:
        folder.mkdir(parents=True, exist_ok=True)
        if found is None:
            shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        with open_output(record) as file:
            file.write(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).encode())
    return checkpoint


def score_corpus(trainer: TranslationTrainer, role: str, corpus: Any, num_beams: int) -> ScoredSet:
    """Translate a tokenized corpus with beam search, and score it against its references."""
    trainer.predict(corpus, metric_key_prefix=role, num_beams=num_beams)
    _say(trainer.args, f"{role}, {num_beams} beams: {trainer.scores}")
    rows = sorted(zip(corpus["line"], corpus["source"], trainer.translations, corpus["target"]))
    return ScoredSet(role, trainer.scores, [(source, text, reference) for _, source, text, reference in rows])


def publish(folder: Path, trainer: TranslationTrainer, facts: TrainingFacts):
    """
    Write the folder of a trained model: weights, configs, tokenizer, model card, curves and translations.

    Every file is written beside its place and renamed when all are complete. Runs on the main process only.
    """
    unfinished = folder / f".unfinished.{os.getpid()}"
    try:
        # The Trainer switches the cache off in the config, where generation looks for it.
        trainer.model.config.use_cache = True
        trainer.model.save_pretrained(unfinished)
        trainer.processing_class.save_pretrained(unfinished)
        for scored in facts.scored:
            write_predictions(unfinished / f"predictions.{scored.role}.tsv", scored.rows)
        plot_curves(facts.log_history, unfinished / CURVES_FILE)
        make_card(facts, trainer.model).save(unfinished / "README.md")
        for path in unfinished.iterdir():
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"


@dataclass
class TrainingJob:
    """A run that is ready to start: its arguments, the Trainer with its data, and the checkpoint to continue from."""

    run: RunArguments
    settings: dict[str, Any]
    folder: Path
    checkpoint: str | None
    trainer: TranslationTrainer
    scored_data: dict[str, Any]


def prepare_job(run: RunArguments, settings: dict[str, Any]) -> TrainingJob:
    """
    Everything up to the first step: corpora, tokenizer, model and Trainer.

    Args:
        settings: The arguments as a recipe says them; a run with the same settings continues an earlier one.

    Raises:
        FileNotFoundError: A file, folder or dataset is not there.
        ValueError: A corpus is unusable, arguments contradict each other, or `output_dir` belongs to another run.
    """
    if run.data.train_source is None:
        raise ValueError("train_source is not given: name the text to train on.")
    if run.model.model_name_or_path is None:
        _planned_config(run)
    elif run.model.preset is not None:
        raise ValueError("preset and model_name_or_path exclude each other: a model has its size already.")
    folder = Path(str(run.training.output_dir))
    with run.training.main_process_first(local=False, desc="data"):
        corpora = _load_corpora(run.data)
        checkpoint = _claim_checkpoints(run.training, settings)
        tokenizer = get_tokenizer(run, corpora["train"], Path(str(run.training.output_dir), "tokenizer"))
        data = _tokenize(corpora, tokenizer, run)
    set_seed(run.training.seed)
    model = get_model(run, tokenizer)
    model.generation_config = _make_generation_config(run, model)
    run.training.generation_max_length = None
    if run.training.learning_rate is None:
        run.training.learning_rate = paper_learning_rate(model.config.d_model, run.training.warmup_steps)
    # Sentences of one length together leave little padding.
    scored_data = {
        role: corpus.select(np.argsort(corpus["length"], kind="stable"))
        for role, corpus in data.items()
        if role != "train"
    }
    source_size, target_size = vocabulary_sizes(model)
    trainer = TranslationTrainer(
        model=model,
        args=run.training,
        data_collator=TranslationCollator(tokenizer, source_vocab_size=source_size, target_vocab_size=target_size),
        train_dataset=data["train"],
        eval_dataset=scored_data.get("validation"),
        processing_class=tokenizer,
        target_lang=run.data.target_lang,
    )
    return TrainingJob(run, settings, folder, checkpoint, trainer, scored_data)


def run_job(job: TrainingJob) -> list[ScoredSet]:
    """Train, score the held-out text with beam search, and publish the result in `output_dir`."""
    trainer, data = job.trainer, job.run.data
    _say(
        trainer.args,
        f"{trainer.model.num_parameters():,} parameters, {len(trainer.train_dataset):,} training pairs; "
        + (f"continuing from {job.checkpoint}." if job.checkpoint else f"checkpoints in {trainer.args.output_dir}."),
    )
    result = trainer.train(resume_from_checkpoint=job.checkpoint)
    scored = [score_corpus(trainer, role, corpus, job.run.model.num_beams) for role, corpus in job.scored_data.items()]
    if trainer.is_world_process_zero():
        facts = TrainingFacts(
            name=job.folder.name,
            corpus=data.corpus_name or Path(str(data.train_source)).name,
            pairs=len(trainer.train_dataset),
            source_lang=data.source_lang,
            target_lang=data.target_lang,
            license=job.run.model.license,
            example=job.run.model.card_example,
            settings=job.settings,
            device=_device_name(trainer.args.device),
            minutes=result.metrics["train_runtime"] / 60 if job.checkpoint is None else None,
            log_history=trainer.state.log_history,
            scored=scored,
        )
        publish(job.folder, trainer, facts)
        _say(trainer.args, f"{job.folder}: model, tokenizer, model card, curves and translations written.")
    return scored
