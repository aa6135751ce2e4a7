"""Checks of a run's arguments, before any text is read."""

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from huggingface_hub import CardData
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig, Seq2SeqTrainingArguments
from transformers.trainer_utils import HubStrategy

from ..common.column_names import SIDES, TAG, language_of, plain
from ..common.command_line import message_of
from ..common.opening import open_config
from ..evaluation.scores import METRICS
from ..model.config.front_ends import reads_tokens
from ..model.config.stacks import HEAD_FIELDS, heads_of_layers
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..publishing.model_card import check_metadata, check_project_url
from .arguments import FIELDS_OF_NEW_TOKENIZERS, DataArguments, ModelArguments, OwnTrainingArguments
from .data.corpus import has_splits, hub_id
from .data.parts import REPLAYED, ROLES, check_rates, corpus_parts, rates_of, refuse_several
from .model import make_generation_config, paper_learning_rate, plan_config
from .pretraining.denoising import DENOISING, NOISE_FIELDS, PAIR_FIELDS, check_denoising
from .process import say
from .recipe import (
    CHANGEABLE_FIELDS,
    FIELDS_OF_OTHERS,
    KINDS_OF_ONE_WEIGHT,
    RunArguments,
    TranslationTrainingArguments,
    refuse_without_effect,
)
from .transfer import check_transfer


# Metrics for the best checkpoint.
SCORES = (*METRICS, "loss")
# Of transformers' arguments, those that have no effect in tasks other than those of text to text.
_OF_TRANSLATION = {
    *("predict_with_generate", "generation_max_length", "generation_num_beams", "push_to_hub", "hub_model_id")
}
# Fields that all tasks use.
_OF_ALL_TASKS = {
    *("task", *(f"{role}_source" for role in ROLES), "source_lang", "corpus_name", "preset", "attn_implementation"),
    *("tokenizer_name_or_path", "tokenizer_model", "unicode_normalization", "license", "card_example", "project_url"),
    *("adam_first_moment", "threads", "eval_min_steps"),
}
# Fields of models that only text to text has, and this package's own arguments.
_NOT_IN_ALL_TASKS = {
    *FIELDS_OF_OTHERS["vanilla_transformer"],
    *(each.name for group in (DataArguments, ModelArguments) for each in fields(group)),
    *({each.name for each in fields(OwnTrainingArguments)} - {each.name for each in fields(Seq2SeqTrainingArguments)}),
}


def check_run(run: RunArguments, settings: dict[str, Any]) -> None:
    """Check the arguments of a run against each other, and the config of the model that it fine-tunes."""
    if run.data.task == DENOISING:
        refuse_several(run.data, "task=denoising")
        check_denoising(run.data)
    elif run.data.corrections and REPLAYED not in rates_of(run.data):
        raise ValueError("corrections: name the text that the model has learned from by train_source, too.")
    elif run.data.corpora:  # each has a text, one of them is for training, and their rates fit
        for name, part in corpus_parts(run.data).items():
            if not any(getattr(part, f"{role}_source") for role in ROLES):
                raise ValueError(
                    f"corpora: {name} names no text; expected train_source, validation_source or test_source."
                )
        if not (rates := rates_of(run.data)):
            raise ValueError("corpora: none of them has a train_source, the text to train on.")
        check_rates(list(rates.values()), run.data.corpus_temperature)
    elif not run.data.train_source:
        raise ValueError("train_source is not given: name the text to train on.")
    translates = run.training.predict_with_generate and run.data.task != DENOISING
    check_evaluation(run, SCORES if translates else ("loss",))
    _check_batches(run)
    rows: Any = run.data.by_pairs or {}
    for row in ({}, *rows.values()):  # each as `size_by_pairs` takes it
        if not 0 <= (probability := row.get("bpe_dropout", run.data.bpe_dropout)) <= 1:
            raise ValueError(f"bpe_dropout={probability}: must be a probability from 0 to 1.")
        if probability and run.model.trains_tokenizer and run.model.tokenizer_model != "bpe":
            raise ValueError(f"bpe_dropout={probability} needs tokenizer_model=bpe, got {run.model.tokenizer_model}.")
        _check_model(replace(run, config=run.config | {name: row[name] for name in row if name != "bpe_dropout"}))
    reasons = dict[str, str]()  # field without effect -> why
    if not run.model.trains_tokenizer:
        given = "the tokenizer is that of tokenizer_name_or_path or of the model, and none is trained"
        reasons |= dict.fromkeys(FIELDS_OF_NEW_TOKENIZERS, given)
    if not run.training.do_train:
        evaluated = "training always scores validation_source and test_source at the end"
        reasons |= dict.fromkeys(("do_eval", "do_predict"), evaluated)
    if run.training.device.type == "cpu":
        reasons["fp16"] = "CPUs do not support it; use bf16"
    if run.data.task == DENOISING:
        reasons |= dict.fromkeys(PAIR_FIELDS, "task=denoising learns from train_text, and has no pairs")
    else:
        reasons |= dict.fromkeys(NOISE_FIELDS, "it needs task=denoising")
    kind = "text" if run.data.task == DENOISING else "source"
    for role in () if run.data.corpora else ROLES:  # of several, one may have the splits that another lacks
        names = [named] if isinstance(named := getattr(run.data, f"{role}_{kind}") or [], str) else named
        if not any(map(has_splits, names)):
            reasons[f"{role}_split"] = f"{', '.join(names)} has no splits" if names else f"it needs {role}_{kind}"
    sides = ([getattr(run.data, f"{role}_{side}") for side in SIDES] for role in ROLES)
    texts = [(source, target) for source, target in sides if source]
    if texts and not run.data.corpora:
        if all(target for _, target in texts):
            reasons |= dict.fromkeys(("source_column", "target_column"), "two plain files have no columns")
        if not any(hub_id(source) for source, _ in texts):
            reasons["dataset_config_name"] = "no text is a dataset of the Hub"
    for values in (settings, *({**settings, **row} for row in rows.values())):  # a row needs what the run needs
        refuse_without_effect(values, reasons)
    problems = check_metadata(CardData(license=run.model.license)) if run.training.push_to_hub else []
    if problems := [*problems, *check_project_url(run.model.project_url)]:
        raise ValueError(f"{problems[0]}.")
    check_callbacks(run.training)


def check_callbacks(training: TranslationTrainingArguments) -> None:
    """Early stopping and averages have the evaluations that they need, and the checkpoints are kept."""
    if training.early_stopping_patience is not None and training.metric_for_best_model is None:
        raise ValueError("early_stopping_patience needs metric_for_best_model, the score that has to improve.")
    limit = training.save_total_limit or 0
    if (count := training.average_best or training.average_last) is None:
        return
    # transformers also keeps the best checkpoint, within the same limit.
    needed = count + (training.metric_for_best_model is not None)
    if training.save_strategy == "no":
        raise ValueError("save_strategy=no leaves no checkpoints to average.")
    if training.average_best is not None and limit > 0:
        raise ValueError(f"save_total_limit={limit}: an average of the best checkpoints needs all of them kept.")
    if 0 < limit < needed:
        raise ValueError(f"save_total_limit={limit}: averaging {count} checkpoints needs {needed} or more.")


def refuse_unused(run: RunArguments, settings: dict[str, Any], used: Collection[str]) -> None:
    """Raise `ValueError` if a field is set that the run's task does not use; `used` are those that not all use."""
    for name, value in settings.items():
        if name in (_NOT_IN_ALL_TASKS | _OF_TRANSLATION) - _OF_ALL_TASKS - {*used}:
            raise ValueError(f"{name}={value} has no effect with task={run.data.task}: remove it.")
    decided = () if run.model.trains_tokenizer else FIELDS_OF_NEW_TOKENIZERS
    refuse_without_effect(settings, dict.fromkeys(decided, "the tokenizer is that of tokenizer_name_or_path"))


def check_evaluation(run: RunArguments, known: Sequence[str]) -> None:
    """Raise `ValueError` if the best checkpoint's score is unknown, or a text to evaluate on is not named."""
    training: Any = run.training
    metric = training.metric_for_best_model
    # Of several validation texts, the score of one, or without a name their mean.
    of_one = {f"{name}_{score}" for name in corpus_parts(run.data) for score in known}
    if metric is not None and metric.removeprefix("eval_") not in (*known, *of_one):
        raise ValueError(f"metric_for_best_model={metric}: must be one of {', '.join(known)}.")
    name = "validation_text" if run.data.task == DENOISING else "validation_source"
    texts = corpus_parts(run.data).values() or [run.data]
    if training.eval_strategy != "no" and not any(getattr(text, name) for text in texts):
        raise ValueError(
            f"eval_strategy={training.eval_strategy.value} needs {name}, the text to evaluate on; "
            "name one or set eval_strategy to no."
        )
    for lang in dict.fromkeys(each for text in texts for each in (text.source_lang, text.target_lang)):
        if lang and not TAG.fullmatch(plain(lang)) and (found := language_of(lang)):
            say(training, f"Warning: {lang} is a name: scores and the card look for the code of a language, {found}.")
    if training.predict_with_generate:  # what scores need is looked for before training
        from ..evaluation.evaluate_module import find_tokenizer

        for language in dict.fromkeys(text.target_lang for text in texts):
            if note := find_tokenizer(language, training.bleu_tokenize)[1]:
                say(training, f"Warning: {note}")


def _check_batches(run: RunArguments) -> None:
    data, training = run.data, run.training
    if min(data.max_source_length, data.max_target_length) < 2:
        raise ValueError(
            f"max_source_length={data.max_source_length}, max_target_length={data.max_target_length}: must be at "
            "least 2, a token and the end."
        )
    if training.tokens_per_step is None:
        if data.task == DENOISING:
            raise ValueError("task=denoising needs batches that are filled by tokens: set tokens_per_step.")
    elif (longest := max(data.max_source_length, data.max_target_length)) > training.device_batch_tokens:
        raise ValueError(
            f"a batch of {training.device_batch_tokens} tokens has no room for a sentence of {longest}: raise "
            "tokens_per_step and per_device_train_tokens, or lower max_source_length and max_target_length."
        )
    if data.streaming and training.dataloader_num_workers > 1:
        raise ValueError(
            f"dataloader_num_workers={training.dataloader_num_workers}: a stream is read by one worker at most."
        )
    if data.streaming and training.max_steps < 1:
        raise ValueError("streaming needs max_steps: the length of a stream is not known.")


def _check_model(run: RunArguments) -> None:
    name = run.model.model_name_or_path
    if name is None:
        config: PreTrainedConfig = plan_config(run)
        if not reads_tokens(config):
            raise ValueError(f"front_end={config.front_end} with task={run.data.task}: must be tokens.")
        make_generation_config(run, config, None)
    else:
        if Path(name, "adapter_config.json").is_file() and not Path(name, "config.json").is_file():
            raise ValueError(
                f"{name} is an adapter without its model: merge the two first (merge_and_unload of peft), and train "
                "what that saves."
            )
        config = open_config(name)
        _check_config_fields(run, config)
        if run.model.tokenizer == "new":
            check_transfer(config, name)
            if run.model.separate_vocabularies and config.source_vocab_size is None:
                raise ValueError(
                    f"separate_vocabularies=True contradicts {name}, whose languages share a vocabulary; remove it."
                )
    if run.training.head_gates:  # heads that they close can be removed, and checkpoints, which have gates, stay here
        training, told = run.training, f"head_gates={run.training.head_gates}"
        if config.model_type != VanillaTransformerConfig.model_type:
            raise ValueError(f"{told}: models of type {config.model_type} have no heads that can be removed.")
        if training.push_to_hub and training.hub_strategy != HubStrategy.END:
            raise ValueError(f"{told}: checkpoints have gates and are no ordinary models; set hub_strategy to end.")
        fewer = {name: [max(1, n - 1) for n in heads_of_layers(config, kind)] for kind, name in HEAD_FIELDS.items()}
        try:
            type(config).from_dict({**config.to_dict(), **fewer})
        except StrictDataclassError as error:
            raise ValueError(f"{told}: heads of this model cannot be removed ({message_of(error)}).") from error
    if run.training.learning_rate is None:
        paper_learning_rate(config.d_model, run.training.warmup_steps)


def _check_config_fields(run: RunArguments, config: PreTrainedConfig) -> None:
    """Fields of the config that the weights depend on are those of the model."""
    name = run.model.model_name_or_path
    for field, value in run.config.items():
        if field in CHANGEABLE_FIELDS or (field == "vocab_size" and run.model.tokenizer == "new"):
            continue
        if not hasattr(config, field):
            raise ValueError(f"{field}={value}: the config of {name} ({config.model_type}) has no such field.")
        if (found := getattr(config, field)) != value:
            raise ValueError(f"{field}={value} contradicts {name}, which has {field}={found}; remove it.")
    # Another kind of attention has the weights of the model.
    for field in ("encoder_attention_type", "decoder_attention_type"):
        before = getattr(config, field, None)
        wanted = run.config.get(field, before)
        if wanted != before and not {wanted, before} <= set(KINDS_OF_ONE_WEIGHT):
            raise ValueError(
                f"{field}={wanted}: its weights are not those of {before}, which {run.model.model_name_or_path} has; "
                f"choose one of {', '.join(KINDS_OF_ONE_WEIGHT)}, or train a new model."
            )
    kinds = {run.config.get("encoder_attention_type"), getattr(config, "encoder_attention_type", None)}
    projections = run.config.get("global_projections", getattr(config, "global_projections", None))
    if len(kinds - {None}) == 2 and "window_global" in kinds and projections != "shared":
        raise ValueError(
            "encoder_attention_type=window_global: global tokens have projections of their own, which "
            f"{run.model.model_name_or_path} does not have; add global_projections=shared."
        )
