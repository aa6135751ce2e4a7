"""Training of translation models with the host's Trainer, from parallel text to a folder ready to publish."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import yaml
from accelerate.utils import broadcast_object_list
from huggingface_hub import CardData
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)
from transformers.tokenization_utils_base import LARGE_INTEGER
from transformers.trainer import TRAINER_STATE_NAME

from ..common.files import open_output
from ..common.matmul import (
    TOLERANCE,
    choose_matmul,
    describe_matmul,
    probe_matmul,
    set_matmul,
)
from ..common.opening import check_fit
from ..evaluation.scores import METRICS, Scores, write_predictions
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.generation_vanilla_transformer import VanillaTransformerGenerationConfig
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..publishing.model_card import (
    CARD_FILE,
    CURVES_FILE,
    EMISSIONS_FILE,
    CardFacts,
    ScoredText,
    check_metadata,
    is_edited,
    public_settings,
    read_emissions,
    write_card,
)
from .averaging import AverageCheckpointsCallback, MovingAverageCallback
from .bpe_dropout import BpeDropoutCollator
from .callbacks import EarlyStopping
from .checkpoints import UNFINISHED, find_last_checkpoint, set_aside_later
from .corpus import (
    CorpusFilter,
    TranslationCollator,
    iterate_texts,
    load_parallel_text,
    tokenize_corpus,
    tokenize_stream,
    vocabulary_sizes,
)
from .recipe import DataArguments, RunArguments, TranslationTrainingArguments
from .trainer import TranslationTrainer


# In the record of a run's settings: what "auto" was found to mean.
CHOSEN_MATMUL = "chosen_matmul"
# Settings that the result does not depend on: where to begin, where to publish, and what the card says.
NO_MATTER = ("resume_from_checkpoint", "push_to_hub", "hub_", "license", "card_example", "corpus_name")
# Settings that would change nothing -> where that is so, as a recipe says it, and whether it is.
BY_TOKENS = ("tokens_per_step", lambda run: run.training.tokens_per_step is not None)
BY_SENTENCES = ("no tokens_per_step", lambda run: run.training.tokens_per_step is None)
TOKENIZER_GIVEN = (
    "a tokenizer that is there",
    lambda run: (run.model.tokenizer_name_or_path or run.model.model_name_or_path) is not None,
)
TRAINS = ("train.py, which trains; translate.py and score.py evaluate", lambda run: not run.training.do_train)
WITHOUT_EFFECT: dict[str, tuple[str, Callable[["RunArguments"], bool]]] = {
    "gradient_accumulation_steps": BY_TOKENS,
    "per_device_train_batch_size": BY_TOKENS,
    "train_sampling_strategy": BY_TOKENS,
    "dataloader_drop_last": BY_TOKENS,
    "dataloader_prefetch_factor": BY_TOKENS,
    "dataloader_persistent_workers": BY_TOKENS,
    "per_device_train_tokens": BY_SENTENCES,
    "shuffle_buffer_size": ("no streaming", lambda run: not run.data.streaming),
    "tokenizer_model": TOKENIZER_GIVEN,
    "separate_vocabularies": TOKENIZER_GIVEN,
    "do_eval": TRAINS,
    "do_predict": TRAINS,
    "fp16": ("a processor; bf16 has", lambda run: run.training.device.type == "cpu"),
}
# What a checkpoint can be the best of.
SCORES = (*METRICS, "loss")
# Sentence pairs at the beginning of a stream that a new tokenizer is trained on.
STREAM_SAMPLE = 1_000_000


@dataclass
class ScoredSet:
    """A held-out text, its scores, and its (source, translation, reference) rows in the order of the text."""

    role: str
    scores: Scores
    rows: list[tuple[str, str, str]]


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
        if not source:
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
            streaming=arguments.streaming and role == "train",
        )
    return corpora


def _tokenize(corpora: dict[str, Any], tokenizer: PreTrainedTokenizerBase, run: RunArguments) -> dict[str, Any]:
    """Token ids of the corpora, by role; what was left out or cut is shown."""
    data, arguments = {}, run.data
    held_out_rules = CorpusFilter(arguments.max_source_length, arguments.max_target_length)
    train_rules = replace(
        held_out_rules,
        too_long=arguments.too_long,
        max_length_ratio=arguments.max_length_ratio,
        drop_duplicates=arguments.drop_duplicates,
    )
    for role, corpus in corpora.items():
        rules, keep_text = (train_rules, arguments.bpe_dropout > 0) if role == "train" else (held_out_rules, True)
        source = getattr(arguments, f"{role}_source")
        if isinstance(corpus, datasets.IterableDataset):
            data[role] = tokenize_stream(corpus, tokenizer, rules, keep_text=keep_text)
            _say(run.training, f"{role}: streamed from {source}.")
            continue
        tokenized = tokenize_corpus(
            corpus, tokenizer, rules, keep_text=keep_text, num_proc=arguments.preprocessing_num_workers
        )
        _say(run.training, f"{role}: {tokenized} (from {source}).")
        data[role] = tokenized.data
    return data


def _planned_config(run: RunArguments) -> VanillaTransformerConfig:
    """The config of a new model as far as it is known before its tokenizer: `vocab_size` is what is wished for."""
    config = VanillaTransformerConfig.from_preset(run.model.preset or "base", **run.config)
    if run.model.separate_vocabularies:
        config.source_vocab_size = config.vocab_size
        config.validate_architecture()
    return config


def get_tokenizer(
    run: RunArguments, corpus: Any, folder: Path, checkpoint: str | None = None
) -> PreTrainedTokenizerBase:
    """
    The tokenizer that is named or belongs to the named model; else a new one, trained once and kept in `folder`.
    Without one there, a run that continues from `checkpoint` has that one's.
    """
    name = run.model.tokenizer_name_or_path or run.model.model_name_or_path
    if name is None and not folder.exists() and checkpoint and Path(checkpoint, "tokenizer_config.json").exists():
        name = checkpoint
    if name:
        return AutoTokenizer.from_pretrained(name)
    if not folder.exists():
        if isinstance(corpus, datasets.IterableDataset):
            corpus = corpus.take(STREAM_SAMPLE)
        tokenizer = VanillaTransformerTokenizer.train(
            iterate_texts(corpus, "source"),
            iterate_texts(corpus, "target"),
            vocab_size=_planned_config(run).vocab_size,
            model=run.model.tokenizer_model,
            separate_vocabularies=run.model.separate_vocabularies,
            src_lang=run.data.source_lang,
            tgt_lang=run.data.target_lang,
            length=None if isinstance(corpus, datasets.IterableDataset) else len(corpus),
        )
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    return VanillaTransformerTokenizer.from_pretrained(folder)


def _record_longest_source(tokenizer: PreTrainedTokenizerBase, run: RunArguments) -> None:
    """
    Save `max_source_length` as the tokenizer's `model_max_length`: translation splits longer texts, of whose length
    the model has seen none. A model that is trained further keeps a longer one that it was trained on before.
    """
    known = tokenizer.model_max_length if run.model.model_name_or_path is not None else 0
    known = known if known <= LARGE_INTEGER else 0  # the host's mark for "not known"
    tokenizer.model_max_length = max(known, run.data.max_source_length)


def get_model(run: RunArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """
    The named model, or a new one of the named size for this tokenizer, with a complete generation config.

    Raises:
        ValueError: The tokenizer does not fit the model.
    """
    # At the lengths of sentences, the CPU's fused kernel is the slower one, backward above all.
    default = "eager" if run.training.device.type == "cpu" else None
    attention = run.model.attn_implementation or default
    backend = {"attn_implementation": attention} if attention else {}
    if run.model.model_name_or_path:
        # Updates are too small for weights in half precision, which a published model may have.
        settings = {"dtype": torch.float32, **run.config, **backend}
        model = AutoModelForSeq2SeqLM.from_pretrained(run.model.model_name_or_path, **settings)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(
                f"{run.model.model_name_or_path}: an adapter, whose model does not learn; make one of both first "
                "(merge_and_unload of peft)."
            )
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
    check_fit(model, tokenizer)
    return model


def _make_generation_config(run: RunArguments, model: PreTrainedModel) -> GenerationConfig:
    """
    The search that the recipe states, and for the rest that of the model which is trained further, with a limit of
    length: the host's default would cut every translation at 20 tokens.

    Raises:
        ValueError: The model cannot search like that.
    """
    config = model.config
    generation_config: GenerationConfig = VanillaTransformerGenerationConfig(num_beams=4)
    if run.model.model_name_or_path is not None:
        generation_config = copy.deepcopy(model.generation_config)
        generation_config._from_model_config = False  # or of its file only the host's own fields would be read
    for name in ("num_beams", "length_penalty", "length_penalty_type", "max_extra_tokens"):
        if (value := getattr(run.model, name)) is not None:
            if not hasattr(generation_config, name):
                raise ValueError(f"{name}={value!r}: {type(model).__name__} cannot search like that.")
            setattr(generation_config, name, value)
    limit = None if getattr(generation_config, "max_extra_tokens", None) else run.data.max_target_length
    generation_config.update(
        max_length=None,
        max_new_tokens=run.training.generation_max_length or limit,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )
    if generation_config.num_beams == 1:  # the host refuses settings of a beam search where there is none
        generation_config.length_penalty = generation_config.early_stopping = None
    generation_config.validate(strict=True)
    return generation_config


def _claim_checkpoints(training: TranslationTrainingArguments, settings: dict[str, Any]) -> str | None:
    """
    Make `output_dir`/checkpoints the Trainer's folder, and return the checkpoint to continue from, if any.

    The same settings continue where the last run stopped. They are kept beside the checkpoints, with the backend
    of matrix products: chosen again, it could be another, and the run would end otherwise.

    Raises:
        ValueError: The checkpoints are those of a run with other settings, or the wanted one is not there.
    """
    folder = Path(str(training.output_dir), "checkpoints")
    training.output_dir = str(folder)
    wanted, training.resume_from_checkpoint = training.resume_from_checkpoint, None
    settings = {name: value for name, value in settings.items() if not name.startswith(NO_MATTER)}
    record = folder / "recipe.yaml"
    found = find_last_checkpoint(folder)
    before = yaml.safe_load(record.read_text(encoding="utf-8")) if record.is_file() else {}
    backend = before.pop(CHOSEN_MATMUL, None)
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
        if training.use_cpu or training.device.type == "cpu":
            training.matmul = _choose_matmul(training, backend if found else None)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        if wanted and (later := set_aside_later(folder, _step_of(str(checkpoint)))):
            moved = ", ".join(path.name for path in later)
            _say(training, f"{moved}: of later steps than {checkpoint}, now in {later[0].parent}.")
        if found is None:
            shutil.rmtree(folder / "tokenizer", ignore_errors=True)
            (folder / EMISSIONS_FILE).unlink(missing_ok=True)
        with open_output(record) as file:
            text = yaml.safe_dump(settings | {CHOSEN_MATMUL: training.matmul}, sort_keys=False, allow_unicode=True)
            file.write(text.encode())
    return checkpoint


def _step_of(checkpoint: str) -> int:
    state = json.loads(Path(checkpoint, TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    return int(state["global_step"])


def _choose_matmul(training: TranslationTrainingArguments, before: Any) -> Any:
    """The backend of matrix products, said aloud: as `before` if it does not round here, else by measurement."""
    rows = probe_matmul()
    exact = {row.name for row in rows if row.error <= TOLERANCE}
    name = choose_matmul(before if training.matmul == "auto" and before in exact else training.matmul, rows)
    _say(training, describe_matmul(name, rows))
    return name


def _set_matmul(training: TranslationTrainingArguments) -> None:
    """Every process uses what the first has chosen: each for itself, they could choose differently."""
    if training.use_cpu or training.device.type == "cpu":
        chosen: list[Any] = [training.matmul]
        broadcast_object_list(chosen)
        training.matmul = chosen[0]
        set_matmul(chosen[0])


def score_corpus(trainer: TranslationTrainer, role: str, corpus: Any) -> ScoredSet:
    """Translate a tokenized corpus with the model's own search, and score it against its references."""
    num_beams = trainer.model.generation_config.num_beams or 1
    trainer.predict(corpus, metric_key_prefix=role, num_beams=num_beams)
    _say(trainer.args, f"{role}, {num_beams} beams: {trainer.scores}")
    rows = sorted(zip(corpus["line"], corpus["source"], trainer.translations, corpus["target"]))
    return ScoredSet(role, trainer.scores, [(source, text, reference) for _, source, text, reference in rows])


def publish(
    folder: Path,
    trainer: TranslationTrainer,
    scored: list[ScoredSet],
    weights: dict[str, torch.Tensor] | None = None,
):
    """
    Write the folder of a trained model: weights, configs, tokenizer, model card, curves and translations.

    Every file is written beside its place and renamed when all are complete; a card that somebody has edited stays.
    Runs on the main process only. `weights` are those of a model that is sharded, gathered.
    """
    unfinished = folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed
    try:
        # The Trainer switches the cache off in the config, where generation looks for it.
        trainer.model.config.use_cache = True
        trainer.model.save_pretrained(unfinished, state_dict=weights)
        trainer.processing_class.save_pretrained(unfinished)
        for part in scored:
            write_predictions(unfinished / f"predictions.{part.role}.tsv", part.rows)
        if any("loss" in entry or "eval_loss" in entry for entry in trainer.state.log_history):
            trainer.plot_curves(unfinished / CURVES_FILE)
        write_card(trainer.current_facts(), unfinished)
        if is_edited(folder):
            (unfinished / CARD_FILE).unlink()
            _say(trainer.args, f"{folder / CARD_FILE} stays as it is: somebody has edited it.")
        for path in unfinished.iterdir():
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _hardware(training: TranslationTrainingArguments) -> str:
    """What a run computes on, in words."""
    threads = torch.get_num_threads()
    name = f"{threads} CPU thread{'s' * (threads > 1)}"
    if training.device.type == "cuda":
        name = torch.cuda.get_device_name(training.device)
    return name if training.world_size == 1 else f"{training.world_size} processes, {name} each"


@dataclass
class TrainingJob:
    """
    A run that is ready to start: its arguments, the Trainer with its data, the checkpoint to continue from, and what
    an earlier run has left in `folder`, if any.
    """

    run: RunArguments
    settings: dict[str, Any]
    folder: Path
    checkpoint: str | None
    trainer: TranslationTrainer
    scored_data: dict[str, Any]
    earlier: CardFacts


def prepare_job(run: RunArguments, settings: dict[str, Any]) -> TrainingJob:
    """
    Everything up to the first step: corpora, tokenizer, model and Trainer.

    Args:
        settings: The arguments as a recipe says them; a run with the same settings continues an earlier one.

    Raises:
        FileNotFoundError: A file, folder or dataset is not there.
        ValueError: A corpus is unusable, arguments contradict each other, or `output_dir` belongs to another run.
    """
    _check_run(run, settings)
    folder = Path(str(run.training.output_dir))
    earlier = CardFacts.read(folder)
    if run.training.hub_model_id is None:
        run.training.hub_model_id = folder.resolve().name
    with run.training.main_process_first(local=False, desc="data"):
        corpora = _load_corpora(run.data)
        checkpoint = _claim_checkpoints(run.training, settings)
        folder_of_tokenizer = Path(str(run.training.output_dir), "tokenizer")
        tokenizer = get_tokenizer(run, corpora["train"], folder_of_tokenizer, checkpoint)
        _record_longest_source(tokenizer, run)
        data = _tokenize(corpora, tokenizer, run)
    _set_matmul(run.training)
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
    collator: dict[str, Any] = {
        "tokenizer": tokenizer, "source_vocab_size": source_size, "target_vocab_size": target_size
    }  # fmt: skip
    train_collator = None
    if run.data.bpe_dropout:
        limits = (run.data.max_source_length, run.data.max_target_length)
        train_collator = BpeDropoutCollator(
            **collator, probability=run.data.bpe_dropout, limits=limits, seed=run.training.seed
        )
    trainer = TranslationTrainer(
        model=model,
        args=run.training,
        data_collator=TranslationCollator(**collator),
        train_collator=train_collator,
        train_dataset=data["train"],
        eval_dataset=scored_data.get("validation"),
        processing_class=tokenizer,
        target_lang=run.data.target_lang,
        callbacks=_make_callbacks(run.training, checkpoint),
        facts=_known_facts(run, settings, folder.resolve().name, None if run.data.streaming else len(data["train"])),
    )
    return TrainingJob(run, settings, folder, checkpoint, trainer, scored_data, earlier)


def _check_run(run: RunArguments, settings: dict[str, Any]):
    """
    Raises:
        ValueError: Arguments contradict each other, or one of them would change nothing.
    """
    metric = run.training.metric_for_best_model
    known = SCORES if run.training.predict_with_generate else ("loss",)
    if metric is not None and metric.removeprefix("eval_") not in known:
        raise ValueError(f"metric_for_best_model={metric}: must be one of {', '.join(known)}.")
    problems = check_metadata(CardData(license=run.model.license)) if run.training.push_to_hub else []
    if problems:
        raise ValueError(f"{problems[0]}.")
    if not run.data.train_source:
        raise ValueError("train_source is not given: name the text to train on.")
    if run.model.model_name_or_path is None:
        _planned_config(run)
    elif run.model.preset is not None:
        raise ValueError("preset and model_name_or_path exclude each other: a model has its size already.")
    if run.training.tokens_per_step is None:
        for name, value in (("bpe_dropout", run.data.bpe_dropout), ("streaming", run.data.streaming)):
            if value:
                raise ValueError(f"{name} needs batches that are filled by tokens: set tokens_per_step.")
    else:
        longest, room = max(run.data.max_source_length, run.data.max_target_length), run.training.device_batch_tokens
        if longest > room:
            raise ValueError(
                f"a batch of {room} tokens has no room for a sentence of {longest}: raise tokens_per_step and "
                "per_device_train_tokens, or lower max_source_length and max_target_length."
            )
    if run.data.streaming and run.training.dataloader_num_workers > 1:
        raise ValueError(
            f"dataloader_num_workers={run.training.dataloader_num_workers}: a stream is read by one worker at most."
        )
    if run.data.streaming and run.training.max_steps < 1:
        raise ValueError("streaming: nobody knows how long a stream is, so set max_steps.")
    for name, (where, is_so) in WITHOUT_EFFECT.items():
        if name in settings and is_so(run):
            raise ValueError(f"{name}={settings[name]}: has no effect with {where}.")


def _make_callbacks(training: TranslationTrainingArguments, checkpoint: str | None) -> list[TrainerCallback]:
    """What the arguments ask for beside the Trainer itself."""
    callbacks: list[TrainerCallback] = []
    if training.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(training.early_stopping_patience))
    if training.moving_average is not None:
        callbacks.append(MovingAverageCallback(training.moving_average, checkpoint))
    if training.average_last is not None or training.average_best is not None:
        metric = f"eval_{(training.metric_for_best_model or 'bleu').removeprefix('eval_')}"
        callbacks.append(AverageCheckpointsCallback(training.average_last, training.average_best, metric))
    return callbacks


def run_job(job: TrainingJob) -> list[ScoredSet]:
    """
    Train, score the held-out text with beam search, and publish the result in `output_dir`.

    Raises:
        FloatingPointError, TrainingInterrupted, OSError: See `TranslationTrainer`.
    """
    trainer = job.trainer
    _say(
        trainer.args,
        f"{trainer.model.num_parameters():,} parameters, {_batches_in_words(trainer.args)}; "
        + (f"continuing from {job.checkpoint}." if job.checkpoint else f"checkpoints in {trainer.args.output_dir}."),
    )
    if trainer.is_world_process_zero():
        trainer.facts.write(Path(str(trainer.args.output_dir)))  # for cards of its checkpoints and their averages
    result = trainer.train(resume_from_checkpoint=job.checkpoint)
    scored = [score_corpus(trainer, role, corpus) for role, corpus in job.scored_data.items()]
    weights = trainer.gather_weights()
    # The time of a run that had been over before; of one that was continued, nobody has it.
    minutes = job.earlier.minutes if job.earlier.steps == trainer.state.global_step else None
    averages = [each for each in trainer.callback_handler.callbacks if isinstance(each, AverageCheckpointsCallback)]
    trainer.facts = replace(
        trainer.facts,
        average_of=[folder.name for each in averages for folder in each.folders],
        minutes=result.metrics["train_runtime"] / 60 if job.checkpoint is None else minutes,
        co2=read_emissions(str(trainer.args.output_dir), trainer.facts.further, trainer.facts.device),
        scored=[ScoredText(part.role, part.scores) for part in scored],
    )
    if trainer.is_world_process_zero():
        publish(job.folder, trainer, scored, weights)
        _say(trainer.args, f"{job.folder}: model, tokenizer, model card, curves and translations written.")
        if trainer.args.push_to_hub:
            try:
                url = trainer.publish(job.folder, "End of training").url
            except ValueError as error:
                raise OSError(f"{job.folder} is complete, and was not published: {error}") from error
            _say(trainer.args, f"published: {url}")
    return scored


def _known_facts(run: RunArguments, settings: dict[str, Any], name: str, pairs: int | None) -> CardFacts:
    """What the card of a run can say before it is trained."""
    data, model, source = run.data, run.model.model_name_or_path, str(run.data.train_source)
    return CardFacts(
        name=name,
        corpus=data.corpus_name or Path(source).name,
        pairs=pairs,
        datasets=[] if Path(source).exists() else [source],
        source_lang=data.source_lang,
        target_lang=data.target_lang,
        license=run.model.license,
        # What lies in a folder has no name that others could look up.
        base_model=None if model is None or Path(model).exists() else model,
        further=model is not None,
        example=run.model.card_example,
        settings=public_settings(settings),
        device=_hardware(run.training),
    )


def _batches_in_words(training: TranslationTrainingArguments) -> str:
    if training.tokens_per_step is None:
        return f"{training.per_device_train_batch_size} sentences per device and batch"
    return (
        f"steps of {training.tokens_per_step:,} tokens ({training.world_size} devices, "
        f"{training.gradient_accumulation_steps} batches of {training.device_batch_tokens:,} each)"
    )
