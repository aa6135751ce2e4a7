"""Recipes: the arguments of a training run, in a YAML file and on the command line."""

import argparse
import os
import re
import sys
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from difflib import get_close_matches
from typing import Any, Literal

import torch
import yaml
from transformers import HfArgumentParser, Seq2SeqTrainingArguments
from transformers.training_args import OptimizerNames

from ..common.settings import read_yaml
from ..common.too_long import TooLongToTrain, current_name
from ..model.configuration_vanilla_transformer import PRESETS, VanillaTransformerConfig
from ..model.predecessors.configuration import RecurrentSeq2SeqConfig
from .objectives.first_moment import OPTIMIZERS


def _help(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


# The value of a recipe's field that the command line must set.
REQUIRED = "???"


@dataclass
class DataArguments:
    """The parallel text and the limits of its sentences."""

    _argument_group_name = "data"

    task: Literal["translation", "masked_lm", "causal_lm", "classification", "token_classification"] = _help(
        "what is learned; the last four train one stack on plain-text lines (train_source), for classification with "
        "the class of each line in train_target, for token_classification with the classes of its words",
        "translation",
    )
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
    target_lang_tags: list[str] | None = _help(  # noqa: RUF009
        "languages of a multilingual model, such as de en: each training source begins with the tag of the language "
        "that it is translated to, such as <2de>, which a new tokenizer has as a token"
    )
    source_column: str | None = _help("column of the source text, if it is not named by its language or 'source'")
    target_column: str | None = _help("column of the target text, if it is not named by its language or 'target'")
    corpus_name: str | None = _help("name of the corpus in the model card; train_source if not given")
    streaming: bool = _help(
        "read the training text while training, for text larger than the disk; needs max_steps", False
    )
    max_source_length: int = _help("maximum number of tokens of a source sentence", 256)
    max_target_length: int = _help("maximum number of tokens of a target sentence, also in generation", 256)
    too_long: TooLongToTrain = _help(  # noqa: RUF009
        "what happens to longer training pairs; held-out text is truncated", "drop"
    )
    max_length_ratio: float | None = _help(
        "leave out training pairs with a side over this many times as long as the other"
    )
    drop_duplicates: bool = _help("leave out training pairs that occurred before", False)
    bpe_dropout: float = _help(
        "probability of skipping a merge, which varies the pieces of each epoch (BPE-dropout)", 0.0
    )
    preprocessing_num_workers: int | None = _help("processes that tokenize")


@dataclass
class ModelArguments:
    """The model that is trained or trained further, and its tokenizer."""

    _argument_group_name = "model and tokenizer"

    model_type: Literal["vanilla_transformer", "recurrent_seq2seq"] = _help(
        "kind of a new model: the Transformer, or LSTM or GRU layers as before it", "vanilla_transformer"
    )
    preset: str | None = _help(f"size of a new model: {', '.join(PRESETS)}; base if not given")
    model_name_or_path: str | None = _help("model to train further, instead of a new one")
    tokenizer_name_or_path: str | None = _help("tokenizer to use; if not given, the model's, or a new one is trained")
    tokenizer_model: Literal["bpe", "wordpiece"] = _help("kind of a newly trained tokenizer", "bpe")
    separate_vocabularies: bool = _help("train one vocabulary for each language, not one for both", False)
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2", "flex_attention"] | None = _help(
        "attention backend; if not given, plain products (eager) on a CPU, where they are faster, else transformers'"
    )
    num_beams: int | None = _help(
        "beams of the final scores and of generation_config.json; of a new model 4, and as with the other options of "
        "the search, if not given, what the model has that is trained further"
    )
    length_penalty: float | None = _help(
        "α of beam search: scores are divided by length^α, so more gives longer sentences; of a new model 1"
    )
    length_penalty_type: Literal["power", "gnmt"] | None = _help(
        "gnmt, as in the paper: scores are divided by ((5 + length) / 6)^α"
    )
    max_extra_tokens: int | None = _help(
        "maximum number of tokens of a translation beyond those of its source, 50 in the paper; of a new model, "
        "generation_max_length or max_target_length is the limit"
    )
    license: str | None = _help("licence of the model for its card, such as apache-2.0; never assumed")
    card_example: str | None = _help("source sentence of the usage example in the model card")
    project_url: str | None = _help("https address of the git repository of this package, for the model card")


# Type of a new model -> its config.
CONFIGS: dict[str, Any] = {config.model_type: config for config in (VanillaTransformerConfig, RecurrentSeq2SeqConfig)}
# The tokenizer decides these, or the class of the model does.
_DERIVED_FIELDS = {"source_vocab_size", "tie_word_embeddings", "is_encoder_decoder", "is_decoder", "use_cache"}


def _config_arguments() -> type:
    """A dataclass with the fields of the configs that a user may set; None: what the preset says."""
    columns = []
    for name, hint in {**RecurrentSeq2SeqConfig.__annotations__, **VanillaTransformerConfig.__annotations__}.items():
        if name in _DERIVED_FIELDS or name.endswith("_id"):
            continue
        if isinstance(hint, types.UnionType):
            kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
            hint = float if float in kinds else kinds[0]
        about = "field of the config; the preset's value if not given"
        if name not in VanillaTransformerConfig.__annotations__:
            about = "field of recurrent models (model_type recurrent_seq2seq)"
        columns.append((name, hint | None, _help(about)))
    return make_dataclass("ConfigArguments", columns, namespace={"_argument_group_name": "config"})


ConfigArguments = _config_arguments()


@dataclass
class TranslationTrainingArguments(Seq2SeqTrainingArguments):
    """
    transformers' arguments with the optimizer settings of the paper (section 5.3) as defaults.

    Raises:
        ValueError: `label_smoothing_factor` is given, while the model smooths its own loss; arguments exclude each
            other; or several GPUs would be driven by one process.
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
    bleu_tokenize: str | None = _help(
        "sacreBLEU's tokenizer; none for text that is tokenized already. Its own if not given"
    )
    optim: str = _help("optimizer; with weight_decay 0, AdamW is the paper's Adam", "adamw_torch_fused")
    adam_first_moment: Literal["float32", "bfloat16"] = _help(
        "type of Adam's first moment between steps; bfloat16 takes two bytes less for each weight", "float32"
    )
    ddp_find_unused_parameters: bool | None = _help(
        "let several processes search for parameters without a gradient in each step; this model has none", False
    )
    tokens_per_step: int | None = _help(
        "tokens of an optimizer step, on the longer side, with padding, over all devices and accumulated batches; "
        "the paper has 25000. If not given: per_device_train_batch_size sentences, gradient_accumulation_steps times"
    )
    per_device_train_tokens: int = _help(
        "most tokens of a side that a device computes at once; more batches are accumulated to tokens_per_step", 4096
    )
    shuffle_buffer_size: int = _help(
        "sentence pairs of a stream that are in memory to be sorted and shuffled", 100_000
    )
    r_drop: float = _help(
        "weight of R-Drop, which makes outputs under two dropout masks agree; about twice the work", 0.0
    )
    teacher: str | None = _help(
        "model of the same vocabulary whose distribution is learned at each position, beside the reference "
        "(word-level distillation); its tokenizer is used if no other is named"
    )
    distillation_weight: float = _help("weight of the teacher, 0 to 1; the reference has the rest", 0.5)
    distillation_temperature: float = _help("both distributions are softmax(logits / temperature)", 1.0)
    head_gates: float = _help(
        "train a gate on each attention head, with this penalty for each open one, and remove the closed heads at the "
        "end; such as 0.01",
        0.0,
    )
    head_gates_learning_rate: float = _help("peak of the learning rate of these gates", 0.05)
    average_last: int | None = _help("publish the average of this many last checkpoints")
    average_best: int | None = _help("publish the average of this many best checkpoints by metric_for_best_model")
    moving_average: float | None = _help(
        "decay of a moving average of the weights to evaluate and publish, such as 0.999"
    )
    early_stopping_patience: int | None = _help(
        "stop after this many evaluations without a better metric_for_best_model"
    )
    matmul: Literal["auto", "default", "onednn"] = _help(
        "library of float32 matrix products on a CPU; auto: torch's default, unless oneDNN is clearly faster on this "
        "processor, as measured once, and does not round",
        "auto",
    )

    def __post_init__(self):
        # Without an accelerator transformers uses the CPU, but bfloat16 needs use_cpu to be set.
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        super().__post_init__()
        if self.n_gpu > 1:
            raise ValueError(
                f"{self.n_gpu} GPUs, but one process: start one for each (accelerate launch --num_processes "
                f"{self.n_gpu} scripts/train.py …), or choose one with CUDA_VISIBLE_DEVICES=0."
            )
        if self.tokens_per_step is not None:
            self._divide_step()
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor}: the model smooths the labels inside its own "
                "loss; set label_smoothing instead."
            )
        averages = [
            name for name in ("average_last", "average_best", "moving_average") if getattr(self, name) is not None
        ]
        if len(averages) > 1:
            raise ValueError(f"{' and '.join(averages)} exclude each other: one model is published.")
        for name in ("average_last", "average_best"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ValueError(f"{name}={count}: must be 1 or more, or nothing: --unset {name}.")
        if self.load_best_model_at_end and averages and averages != ["moving_average"]:
            raise ValueError(f"load_best_model_at_end and {averages[0]} exclude each other: one model is published.")
        if self.teacher is not None:
            self._check_distillation()
        for name in ("head_gates", "head_gates_learning_rate"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 0.")
        if self.adam_first_moment == "bfloat16" and self.optim not in OPTIMIZERS:
            raise ValueError(
                f"adam_first_moment='bfloat16' with optim={OptimizerNames(self.optim).value!r}: must be one of "
                f"{', '.join(map(repr, OPTIMIZERS))}, or leave the first moment in float32."
            )
        # The loss is checked at each step, and NaN stops the run.
        self.logging_nan_inf_filter = False
        # transformers would warn at every evaluation that pinned memory has no effect.
        self.dataloader_pin_memory = self.dataloader_pin_memory and self.device.type != "cpu"

    def _check_distillation(self):
        if self.r_drop:
            raise ValueError(f"teacher={self.teacher} and r_drop={self.r_drop} exclude each other: set one of them.")
        if not 0 < self.distillation_weight <= 1:
            raise ValueError(f"distillation_weight={self.distillation_weight}: must be greater than 0 and at most 1.")
        if not 0 < self.distillation_temperature < float("inf"):
            raise ValueError(f"distillation_temperature={self.distillation_temperature}: must be greater than 0.")

    def _divide_step(self):
        """Set the number of accumulated batches of equal size for each step."""
        tokens, room = int(self.tokens_per_step or 0), self.per_device_train_tokens
        if min(tokens, room) < 1:
            raise ValueError(f"tokens_per_step={tokens}, per_device_train_tokens={room}: both are 1 or more.")
        self.gradient_accumulation_steps = -(-tokens // (self.world_size * room))

    @property
    def device_batch_tokens(self) -> int:
        """Maximum number of tokens of one device's batch; the batches of a step have `tokens_per_step` together."""
        return -(-int(self.tokens_per_step or 0) // (self.world_size * self.gradient_accumulation_steps))


# Fields for batches filled by sentences, and for batches filled by tokens.
SENTENCE_FIELDS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "train_sampling_strategy"),
    *("dataloader_drop_last", "dataloader_prefetch_factor", "dataloader_persistent_workers"),
)
TOKEN_FIELDS = ("tokens_per_step", "per_device_train_tokens", "bpe_dropout", "streaming", "shuffle_buffer_size")
# Kinds of attention with the weights of full attention; of `window_global`, those with shared projections.
KINDS_OF_ONE_WEIGHT = ("full", "window", "blocks", "chunk", "window_global")
# Fields of the config that may change when a model is trained further; its weights depend on the others.
CHANGEABLE_FIELDS = (
    *("dropout", "attention_dropout", "activation_dropout", "label_smoothing"),
    *("encoder_attention_type", "decoder_attention_type", "attention_window", "attention_block", "chunk_summary"),
    *("global_tokens", "global_projections"),
)
# A field -> those that it excludes.
EXCLUDED = {
    "tokens_per_step": SENTENCE_FIELDS,
    **dict.fromkeys(SENTENCE_FIELDS, TOKEN_FIELDS),
    "streaming": ("drop_duplicates", *SENTENCE_FIELDS),
    "drop_duplicates": ("streaming", "shuffle_buffer_size"),
    "average_last": ("average_best", "moving_average", "load_best_model_at_end"),
    "average_best": ("average_last", "moving_average", "load_best_model_at_end"),
    "moving_average": ("average_last", "average_best"),
    "load_best_model_at_end": ("average_last", "average_best"),
    "tokenizer_name_or_path": ("tokenizer_model", "separate_vocabularies", "target_lang_tags"),
    "model_name_or_path": (
        *("model_type", "preset", "tokenizer_model", "separate_vocabularies", "target_lang_tags"),
        *(name for name in ConfigArguments.__annotations__ if name not in CHANGEABLE_FIELDS),
    ),
    "preset": ("model_name_or_path",),
    "teacher": ("r_drop", "vocab_size", "tokenizer_model", "separate_vocabularies", "target_lang_tags"),
    "r_drop": ("teacher",),
}
# Options of this package's search, which transformers' own, with which recurrent models generate, does not have.
OWN_SEARCH_FIELDS = ("length_penalty_type", "max_extra_tokens")
# Type of a model -> fields that it does not have.
FIELDS_OF_OTHERS = {
    kind: tuple(name for name in ConfigArguments.__annotations__ if name not in config.__annotations__)
    for kind, config in CONFIGS.items()
}
FIELDS_OF_OTHERS["recurrent_seq2seq"] += ("preset", *OWN_SEARCH_FIELDS)
# Fields that need evaluations.
EVALUATION_FIELDS = (
    *("eval_steps", "load_best_model_at_end", "metric_for_best_model", "average_best", "early_stopping_patience"),
)


def replaced_by(name: str, value: Any) -> tuple[str, ...]:
    """The fields that a field of this value excludes."""
    if name == "eval_strategy":
        return EVALUATION_FIELDS if value == "no" else ()
    if name == "model_type":
        return FIELDS_OF_OTHERS[value]
    return EXCLUDED.get(name, ()) if value not in (None, False) else ()


def _print_once(text: str) -> None:
    """Print a line to standard error, in the first process only."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


@dataclass
class RunArguments:
    """
    The arguments of one training run: data, model, the config fields that differ from the preset, and transformers'
    arguments.
    """

    data: DataArguments
    model: ModelArguments
    config: dict[str, Any]
    training: TranslationTrainingArguments


class RecipeLoader(yaml.SafeLoader):
    """YAML in which only true and false are booleans, as in YAML 1.2: `eval_strategy: no` is text."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


RecipeLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("true|false", re.IGNORECASE), list("tTfF"))


class RecipeParser(HfArgumentParser):
    """
    Reads a recipe (YAML) and the command line, which overrides it, into the four groups of arguments.

    A field that is given on the command line also replaces the fields of the recipe that it excludes (`replaced_by`),
    and `--unset FIELD ...` removes fields of the recipe. A recipe has `???` for a value that must be set.

    Every problem ends the program with one line: an unknown field with the nearest name, a value of the wrong type.
    """

    def __init__(self, **kwargs: Any):
        class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
            pass

        groups: tuple[Any, ...] = (DataArguments, ModelArguments, ConfigArguments, TranslationTrainingArguments)
        super().__init__(groups, formatter_class=HelpFormatter, allow_abbrev=False, **kwargs)
        self.names = {argument.name for group in groups for argument in fields(group) if argument.init}
        unset = "remove the values of a recipe for these fields"
        # Recipes of earlier versions have other names of its values.
        self._option_string_actions["--too_long"].type = current_name
        self.add_argument("--unset", nargs="+", action="extend", metavar="FIELD", help=unset)

    def error(self, message: str) -> typing.NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")

    def parse(self, argv: Sequence[str]) -> tuple[RunArguments, dict[str, Any]]:
        """The arguments, and those that differ from the defaults, as in a recipe."""
        argv = list(argv)
        path = argv.pop(0) if argv and not argv[0].startswith("-") else None
        missing = object()
        namespace, unknown = self.parse_known_args(argv, argparse.Namespace(**dict.fromkeys(self.names, missing)))
        if unknown:
            name = unknown[0].removeprefix("--").split("=")[0].replace("-", "_")
            self.error(self._unknown(name, "command line"))
        given = {name: value for name, value in vars(namespace).items() if value is not missing}
        unset = given.pop("unset", None) or []
        recipe = self._read_recipe(path) if path else {}
        for name in unset:
            if name not in self.names:
                self.error(self._unknown(name, "--unset"))
            recipe.pop(name, None)
        for name, value in given.items():
            if replaced := [each for each in replaced_by(name, value) if each in recipe and each not in given]:
                _print_once(f"{self.prog}: --{name} replaces {', '.join(replaced)} of the recipe.")
                recipe = {each: value for each, value in recipe.items() if each not in replaced}
        values = recipe | given
        for name, value in values.items():
            if value == REQUIRED:
                self.error(f"{path}: {name} must be set: --{name} VALUE.")
        try:
            data, model, config, training = self.parse_dict(values)
        except ValueError as error:
            self.error(str(error))
        if training.teacher and not (model.tokenizer_name_or_path or model.model_name_or_path):
            model.tokenizer_name_or_path = training.teacher
        defaults = vars(self.parse_args([]))
        settings = {name: values[name] for name in defaults if name in values and values[name] != defaults[name]}
        stated = {name: value for name, value in vars(config).items() if value is not None}
        return RunArguments(data, model, stated, training), settings

    def _unknown(self, name: str, where: str) -> str:
        near = get_close_matches(name, self.names, n=1, cutoff=0.0)
        return f"{where}: unknown field {name!r}; the nearest name is {near[0]!r}."

    def _read_recipe(self, path: str) -> dict[str, Any]:
        """Field -> value, with the field's type on the command line."""
        try:
            recipe = read_yaml(path, RecipeLoader)
        except (OSError, ValueError) as error:
            self.error(f"{path}: cannot be read as a recipe ({' '.join(str(error).split())}).")
        if not isinstance(recipe, dict):
            self.error(f"{path}: a recipe is a YAML mapping of fields to values.")
        for name in recipe:
            if name not in self.names:
                self.error(self._unknown(str(name), path))
        return {name: self._typed(path, name, value) for name, value in recipe.items() if value is not None}

    def _typed(self, path: str, name: str, value: Any) -> Any:
        if isinstance(value, dict) or value == REQUIRED:
            return value
        items = [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
        nothing = argparse.Namespace(**dict.fromkeys(self.names))
        return getattr(self.parse_known_args(items, nothing)[0], name)
