"""Training of translation models with the host's Trainer: arguments, recipes, Trainer and the whole run."""

import argparse
import copy
import json
import os
import shutil
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from torch.utils.data import SequentialSampler
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    EvalPrediction,
    GenerationConfig,
    HfArgumentParser,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import get_last_checkpoint

from .configuration_vanilla_transformer import PRESETS, VanillaTransformerConfig
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
from .tokenization_vanilla_transformer import VanillaTransformerTokenizer


def _help(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class DataArguments:
    """Where the parallel text is and how long its sentences may be."""

    _argument_group_name = "data"

    train_source: str | None = _help(
        "training text: a plain-text file (with train_target), a .tsv, .csv, .jsonl or .parquet file that holds both "
        "sides, a folder saved by `datasets`, or the id of a dataset on the Hub; text files may be .gz"
    )
    train_target: str | None = _help("the translations of a plain-text train_source, line by line")
    validation_source: str | None = _help("text that is scored during training and at its end; as train_source")
    validation_target: str | None = _help("the translations of a plain-text validation_source")
    test_source: str | None = _help("text that is scored once, at the end; as train_source")
    test_target: str | None = _help("the translations of a plain-text test_source")
    dataset_config_name: str | None = _help("configuration of a dataset on the Hub")
    train_split: str = _help("split of a saved folder or of a dataset on the Hub", "train")
    validation_split: str = _help("likewise for validation_source", "validation")
    test_split: str = _help("likewise for test_source", "test")
    source_lang: str | None = _help("code of the source language, such as en; names a column too")
    target_lang: str | None = _help("code of the target language")
    source_column: str | None = _help("column of the source text, if it is not named by its language or 'source'")
    target_column: str | None = _help("column of the target text, if it is not named by its language or 'target'")
    corpus_name: str | None = _help("name of the corpus in the model card; train_source if not given")
    max_source_length: int = _help("most tokens of a source sentence; the rest is cut off", 256)
    max_target_length: int = _help("most tokens of a target sentence, also in generation", 256)
    preprocessing_num_workers: int | None = _help("processes that tokenize")


@dataclass
class ModelArguments:
    """Which model is trained, or trained further, and with which tokenizer."""

    _argument_group_name = "model and tokenizer"

    preset: str | None = _help(f"size of a new model: {', '.join(PRESETS)}; base if not given")
    model_name_or_path: str | None = _help("model to train further, instead of a new one")
    tokenizer_name_or_path: str | None = _help("tokenizer to use; if not given, the model's, or a new one is trained")
    tokenizer_model: Literal["bpe", "wordpiece"] = _help("kind of a newly trained tokenizer", "bpe")
    separate_vocabularies: bool = _help("train one vocabulary for each language, not one for both", False)
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2", "flex_attention"] | None = _help(
        "attention backend; the host chooses if not given"
    )
    num_beams: int = _help("beams of the final scores and of generation_config.json", 4)
    license: str | None = _help("licence of the model for its card, such as apache-2.0; never assumed")
    card_example: str | None = _help("source sentence of the usage example in the model card")


# The tokenizer decides these, or the class of the model does.
_DERIVED_FIELDS = {"source_vocab_size", "tie_word_embeddings", "is_encoder_decoder", "use_cache"}


def _config_arguments() -> type:
    """A dataclass with the fields of the config that a user may set; None: what the preset says."""
    columns = []
    for name, hint in VanillaTransformerConfig.__annotations__.items():
        if name in _DERIVED_FIELDS or name.endswith("_id"):
            continue
        if isinstance(hint, types.UnionType):
            kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
            hint = float if float in kinds else kinds[0]
        columns.append((name, hint | None, _help("field of the config; the preset's value if not given")))
    return make_dataclass("ConfigArguments", columns, namespace={"_argument_group_name": "config"})


ConfigArguments = _config_arguments()


@dataclass
class TranslationTrainingArguments(Seq2SeqTrainingArguments):
    """
    The host's arguments with the optimizer settings of the paper (section 5.3) as defaults.

    Raises:
        ValueError: `label_smoothing_factor` is given; the model smooths its own loss.
    """

    _argument_group_name = "training"

    learning_rate: float | None = _help(  # type: ignore[assignment]
        "peak of the learning rate; if not given, the paper's d_model^-0.5 * warmup_steps^-0.5"
    )
    lr_scheduler_type: str = _help("schedule of the learning rate", "inverse_sqrt")
    warmup_steps: float = _help("steps in which the learning rate rises to its peak", 4000)
    adam_beta2: float = _help("Adam's second decay rate", 0.98)
    adam_epsilon: float = _help("Adam's epsilon", 1e-9)
    max_grad_norm: float = _help("clip gradients to this norm; 0, as in the paper: no clipping", 0.0)
    predict_with_generate: bool = _help("score generated translations, not the loss alone", True)
    generation_num_beams: int | None = _help("beams of the scores during training", 1)

    def __post_init__(self):
        super().__post_init__()
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor}: the model smooths the labels inside its own "
                "loss; set label_smoothing instead."
            )


class RecipeParser(HfArgumentParser):
    """
    Reads a recipe (YAML) and the command line, which overrides it, into the four groups of arguments.

    Every problem ends the program with one line: an unknown field with the nearest name, a value of the wrong type.
    """

    def __init__(self, **kwargs: Any):
        class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
            pass

        groups = (DataArguments, ModelArguments, ConfigArguments, TranslationTrainingArguments)
        super().__init__(groups, formatter_class=HelpFormatter, allow_abbrev=False, **kwargs)
        self.names = {argument.name for group in groups for argument in fields(group) if argument.init}

    def error(self, message: str) -> typing.NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")

    def parse(self, argv: Sequence[str]) -> tuple["RunArguments", dict[str, Any]]:
        """The arguments, and what of them differs from the defaults, as a recipe says it."""
        argv = list(argv)
        recipe = argv.pop(0) if argv and not argv[0].startswith("-") else None
        tokens = (self._recipe_tokens(recipe) if recipe else []) + argv
        namespace, unknown = self.parse_known_args(tokens)
        if unknown:
            name = unknown[0].removeprefix("--").split("=")[0].replace("-", "_")
            self.error(self._unknown(name, "the command line") if unknown[0].startswith("--") else f"what is {unknown[0]!r}?")
        settings = {name: value for name, value in vars(namespace).items() if value != self.get_default(name)}
        try:
            data, model, config, training = self.parse_args_into_dataclasses(tokens, look_for_args_file=False)
        except ValueError as error:
            self.error(str(error))
        given = {name: value for name, value in vars(config).items() if value is not None}
        return RunArguments(data, model, given, training), settings

    def _unknown(self, name: str, where: str) -> str:
        near = get_close_matches(name, self.names, n=1, cutoff=0.0)
        return f"{where}: unknown field {name!r}; the nearest name is {near[0]!r}."

    def _recipe_tokens(self, path: str) -> list[str]:
        try:
            recipe = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            self.error(f"{path}: cannot be read as a recipe ({' '.join(str(error).split())}).")
        if not isinstance(recipe, dict):
            self.error(f"{path}: a recipe is a YAML mapping of fields to values.")
        tokens = []
        for name, value in recipe.items():
            if name not in self.names:
                self.error(self._unknown(str(name), path))
            if isinstance(value, list):
                tokens += [f"--{name}", *map(str, value)]
            elif value is not None:
                tokens.append(f"--{name}={json.dumps(value) if isinstance(value, (dict, bool)) else value}")
        return tokens


@dataclass
class RunArguments:
    """What one training run needs: data, model, the config fields that differ from the preset, and the host's part."""

    data: DataArguments
    model: ModelArguments
    config: dict[str, Any]
    training: TranslationTrainingArguments


class TranslationTrainer(Seq2SeqTrainer):
    """
    The host's `Seq2SeqTrainer`, scoring generated text against the "target" column of the data it is given.

    After `evaluate` or `predict`, `translations` holds the generated texts in the order of the data and `scores` the
    scores with their signatures.
    """

    def __init__(self, *args: Any, target_lang: str | None = None, **kwargs: Any):
        self.target_lang = target_lang
        self.references: list[str] = []
        self.translations: list[str] = []
        self.scores: Scores | None = None
        super().__init__(*args, **kwargs)
        if self.args.predict_with_generate:
            self.compute_metrics = self._score

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        self.references = list(data["target"])
        return super().evaluate(eval_dataset, *args, **kwargs)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        self.references = list(test_dataset["target"])
        return super().predict(test_dataset, *args, **kwargs)

    def _score(self, prediction: EvalPrediction) -> dict[str, float]:
        # Several processes fill up their last batch with repeated sentences.
        token_ids = prediction.predictions[: len(self.references)]
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


def _tokenize(corpora: dict[str, Any], tokenizer: Any, arguments: DataArguments) -> dict[str, Any]:
    """Token ids of the corpora, by role; what was left out or cut is shown."""
    data = {}
    for role, corpus in corpora.items():
        tokenized = tokenize_corpus(
            corpus,
            tokenizer,
            max_source_length=arguments.max_source_length,
            max_target_length=arguments.max_target_length,
            keep_text=role != "train",
            num_proc=arguments.preprocessing_num_workers,
        )
        print(
            f"{role}: {len(tokenized.data):,} pairs from {getattr(arguments, f'{role}_source')}; "
            f"{tokenized.empty:,} with an empty side left out, {tokenized.truncated:,} cut to "
            f"{arguments.max_source_length} source or {arguments.max_target_length} target tokens."
        )
        data[role] = tokenized.data
    return data


def get_tokenizer(run: RunArguments, corpus: Any, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that is named or belongs to the named model; else a new one, trained once and kept in `folder`."""
    name = run.model.tokenizer_name_or_path or run.model.model_name_or_path
    if name:
        return AutoTokenizer.from_pretrained(name)
    with run.training.main_process_first(desc="tokenizer"):
        if not folder.exists():
            tokenizer = VanillaTransformerTokenizer.train(
                iterate_texts(corpus, "source"),
                iterate_texts(corpus, "target"),
                vocab_size=VanillaTransformerConfig.from_preset(run.model.preset or "base", **run.config).vocab_size,
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
        ValueError: Both a preset and a model are named, or the tokenizer does not fit the model.
    """
    backend = {"attn_implementation": run.model.attn_implementation} if run.model.attn_implementation else {}
    if run.model.model_name_or_path:
        if run.model.preset:
            raise ValueError("preset and model_name_or_path exclude each other: a model has its size already.")
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


def _claim_checkpoints(training: TranslationTrainingArguments, settings: dict[str, Any]) -> str | None:
    """
    Make `output_dir`/checkpoints the Trainer's folder, and return the checkpoint to continue from, if any.

    The same settings continue where the last run stopped. They are kept beside the checkpoints.

    Raises:
        ValueError: The checkpoints are those of a run with other settings.
    """
    folder = Path(training.output_dir, "checkpoints")
    training.output_dir = str(folder)
    wanted, training.resume_from_checkpoint = training.resume_from_checkpoint, None
    settings = {name: value for name, value in settings.items() if name != "resume_from_checkpoint"}
    record = folder / "recipe.yaml"
    found = get_last_checkpoint(folder) if folder.is_dir() else None
    before = yaml.safe_load(record.read_text(encoding="utf-8")) if record.is_file() else None
    if wanted is None and found and before != settings:
        names = [name for name in {**(before or {}), **settings} if (before or {}).get(name) != settings.get(name)]
        raise ValueError(
            f"{found} belongs to a run with other settings ({', '.join(names)}): continue it with "
            f"--resume_from_checkpoint last, or choose another output_dir, or delete {folder}."
        )
    if training.should_save:
        if found is None:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        _replace_text(record, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    return found if wanted in (None, "last") else wanted


def _replace_text(path: Path, text: str):
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def score_corpus(trainer: TranslationTrainer, role: str, corpus: Any) -> ScoredSet:
    """Translate a tokenized corpus as generation_config.json says, and score it against its references."""
    beams = trainer.model.generation_config.num_beams
    trainer.predict(corpus, metric_key_prefix=role, num_beams=beams)
    print(f"{role}, {beams} beams: {trainer.scores}")
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
    corpora = _load_corpora(run.data)
    folder = Path(run.training.output_dir)
    checkpoint = _claim_checkpoints(run.training, settings)
    tokenizer = get_tokenizer(run, corpora["train"], Path(run.training.output_dir, "tokenizer"))
    data = _tokenize(corpora, tokenizer, run.data)
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
    print(
        f"{trainer.model.num_parameters():,} parameters, {len(trainer.train_dataset):,} training pairs; "
        + (f"continuing from {job.checkpoint}." if job.checkpoint else f"checkpoints in {trainer.args.output_dir}.")
    )
    trainer.train(resume_from_checkpoint=job.checkpoint)
    scored = [
        score_corpus(trainer, role, corpus) for role, corpus in job.scored_data.items()
    ]
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
            log_history=trainer.state.log_history,
            scored=scored,
        )
        publish(job.folder, trainer, facts)
        print(f"{job.folder}: model, tokenizer, model card and translations written.")
    return scored
