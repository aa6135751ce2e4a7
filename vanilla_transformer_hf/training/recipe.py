"""Recipes: the arguments of a training run, in a YAML file and on the command line."""

import argparse
import os
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from difflib import get_close_matches
from inspect import cleandoc
from types import MappingProxyType
from typing import Any

import torch
import yaml
from transformers import HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments
from transformers.training_args import OptimizerNames

from ..common.column_names import SIDES
from ..common.command_line import AUTO
from ..common.releases import check_trainer
from ..common.settings import read_yaml
from ..model.config.attention_kinds import ATTENTION_KINDS
from ..model.config.kinds import users_of_options
from ..model.config.position_schemes import POSITION_SCHEMES
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..recurrent.configuration import RecurrentSeq2SeqConfig
from .arguments import DataArguments, Help, ModelArguments, OwnTrainingArguments
from .data.parts import ROLES, add_corrections, check_corpora
from .objectives.first_moment import OPTIMIZERS
from .options import UNSET, Option, config_option, documented_fields, options_of


# Ends of the names of scores of which the least is the best.
RATES_OF_ERRORS = ("wer", "cer")
# The value of a recipe's field that the command line must set.
REQUIRED = "???"
# Type of a new model -> its config.
CONFIGS: dict[str, Any] = {config.model_type: config for config in (VanillaTransformerConfig, RecurrentSeq2SeqConfig)}
# The tokenizer decides these, or the class of the model does.
_DERIVED_FIELDS = {"source_vocab_size", "tie_word_embeddings", "is_encoder_decoder", "is_decoder", "use_cache"}


def _config_arguments() -> type:
    """A dataclass with the fields of the configs that a user may set; None: the preset's value."""
    columns = []
    for name, hint in {**RecurrentSeq2SeqConfig.__annotations__, **VanillaTransformerConfig.__annotations__}.items():
        if name in _DERIVED_FIELDS or name.endswith("_id"):
            continue
        if isinstance(hint, types.UnionType):
            kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
            hint = float if float in kinds else kinds[0]
        columns.append((name, hint | None, field(default=None)))
    return make_dataclass("ConfigArguments", columns)


ConfigArguments = _config_arguments()


@dataclass
class TranslationTrainingArguments(OwnTrainingArguments, Seq2SeqTrainingArguments):  # type: ignore[misc]
    """transformers' arguments and this package's, with the optimizer settings of the paper (5.3) as defaults."""

    def __post_init__(self) -> None:
        check_numbers(vars(self))
        self.max_steps = self.max_steps or -1  # of 0, transformers' Trainer would make a run without any
        # Without an accelerator transformers uses the CPU, but bfloat16 needs use_cpu to be set.
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        if self.greater_is_better is None and (self.metric_for_best_model or "").endswith(RATES_OF_ERRORS):
            self.greater_is_better = False  # in transformers, only losses are so
        super().__post_init__()  # type: ignore[no-untyped-call]
        if self.n_gpu > 1:
            raise ValueError(
                f"{self.n_gpu} GPUs, but one process: start one for each (accelerate launch --num_processes "
                f"{self.n_gpu} -m vanilla_transformer_hf train …), or choose one with CUDA_VISIBLE_DEVICES=0."
            )
        if self.tokens_per_step is not None:  # accumulated batches of equal size
            room = self.world_size * self.per_device_train_tokens
            self.gradient_accumulation_steps = -(-int(self.tokens_per_step) // room)
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor}: the model smooths the labels inside its own "
                "loss; set label_smoothing instead."
            )
        if self.teacher is not None and not 0 < self.distillation_weight <= 1:
            raise ValueError(f"distillation_weight={self.distillation_weight}: must be greater than 0 and at most 1.")
        if self.teacher is not None and not 0 < self.distillation_temperature < float("inf"):
            raise ValueError(f"distillation_temperature={self.distillation_temperature}: must be greater than 0.")
        if self.threads not in (None, AUTO) and not (str(self.threads).isdecimal() and int(self.threads)):
            raise ValueError(f"threads={self.threads}: must be 1 or more, or {AUTO}.")
        if self.threads == AUTO and self.world_size > 1:
            raise ValueError(
                f"threads={AUTO} with {self.world_size} processes: each would count the same idle cores; set the "
                "number of threads of each."
            )
        if self.adam_first_moment == "bfloat16" and self.optim not in OPTIMIZERS:
            raise ValueError(
                f"adam_first_moment='bfloat16' with optim={OptimizerNames(self.optim).value!r}: must be one of "
                f"{', '.join(map(repr, OPTIMIZERS))}, or leave the first moment in float32."
            )
        # The loss is checked at each step, and NaN stops the run.
        self.logging_nan_inf_filter = False
        # transformers would warn at every evaluation that pinned memory has no effect.
        self.dataloader_pin_memory = self.dataloader_pin_memory and self.device.type != "cpu"

    @property
    def device_batch_tokens(self) -> int:
        """Maximum number of tokens of one device's batch; the batches of a step have `tokens_per_step` together."""
        return -(-int(self.tokens_per_step or 0) // int(self.world_size * self.gradient_accumulation_steps))

    @property
    def batches_in_words(self) -> str:
        """What an optimizer step sees."""
        if self.tokens_per_step is None:
            return f"{self.per_device_train_batch_size} sentences per device and batch"
        steps = f"steps of {self.tokens_per_step:,} tokens"
        if self.world_size == self.gradient_accumulation_steps == 1:
            return steps
        return (
            f"{steps} ({self.world_size} device{'s' * (self.world_size != 1)}, "
            f"{self.gradient_accumulation_steps} batch{'es' * (self.gradient_accumulation_steps != 1)} of "
            f"{self.device_batch_tokens:,} each)"
        )


# Kinds of attention with the weights of full attention; of `window_global`, those with shared projections.
KINDS_OF_ONE_WEIGHT = tuple(name for name, kind in ATTENTION_KINDS.items() if kind.has_weights_of_full)
# Fields of the config that may change when a model is fine-tuned; its weights depend on the others.
CHANGEABLE_FIELDS = (
    *("dropout", "attention_dropout", "activation_dropout", "label_smoothing"),
    *("encoder_attention_type", "decoder_attention_type", "attention_window", "attention_block", "chunk_summary"),
    *("global_tokens", "global_projections"),
)


def _replaced_by_stack(free: str) -> tuple[str, ...]:
    """The fields that a stack of another model decides; those of the other stack begin with `free`."""
    names = (
        *("model_name_or_path", "model_type", "preset", "tokenizer", "tokenizer_name_or_path", "tokenizer_model"),
        *("separate_vocabularies", "target_lang_tags"),
    )
    fixed = set(ConfigArguments.__annotations__) - {*CHANGEABLE_FIELDS, "embedding_sharing"}
    return *names, *sorted(name for name in fixed if not name.startswith(free))


# A field -> others of a recipe that it replaces because it decides them; the other way about they contradict it.
DECIDED = {
    "tokenizer_name_or_path": ("vocab_size", "tokenizer_model", "separate_vocabularies", "target_lang_tags"),
    "model_name_or_path": (
        *("model_type", "tokenizer_model", "separate_vocabularies", "target_lang_tags"),
        *(name for name in ConfigArguments.__annotations__ if name not in CHANGEABLE_FIELDS),
    ),
    "metric_for_best_model": ("greater_is_better",),
    "num_train_epochs": ("max_steps",),
    "encoder_from": _replaced_by_stack(free="decoder_"),
    "decoder_from": _replaced_by_stack(free="encoder_"),
    "teacher": ("vocab_size", "tokenizer_model", "separate_vocabularies", "target_lang_tags"),
}
# Name of an option -> its help, with what it demands of others.
OPTIONS: dict[str, Help] = {
    each.name: each.metadata["help"]
    for group in (DataArguments, ModelArguments, OwnTrainingArguments)
    for each in fields(group)
    if isinstance(each.metadata.get("help"), Help)
}
# Name of a number -> its least value, of transformers', too.
AT_LEAST = {name: about.at_least for name, about in OPTIONS.items() if about.at_least is not None} | {
    **dict.fromkeys(("weight_decay", "adam_beta1", "eval_delay", "eval_steps", "save_steps", "logging_steps"), 0),
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps"), 1),
}
# Decays: averages that would take in nothing new with 1.
BELOW_ONE = ("adam_beta1", "adam_beta2", "moving_average")
# Two fields -> why they exclude each other.
EXCLUDED = {
    (name, other): reason
    for name, about in OPTIONS.items()
    for others, reason in about.excludes.items()
    for other in others.split()
}
# Fields that the model of a run does not decide if the run has a tokenizer of its own (tokenizer=new).
FIELDS_OF_TRANSFER = ("vocab_size", "tokenizer_model", "target_lang_tags")
# Options of this package's search, which transformers' own, with which recurrent models generate, does not have.
OWN_SEARCH_FIELDS = ("length_penalty_type", "max_extra_tokens")
# Type of a model -> fields that it does not have.
FIELDS_OF_OTHERS = {
    kind: tuple(name for name in ConfigArguments.__annotations__ if name not in config.__annotations__)
    for kind, config in CONFIGS.items()
}
FIELDS_OF_OTHERS["recurrent_seq2seq"] += ("preset", "encoder_from", "decoder_from", *OWN_SEARCH_FIELDS)
# Fields that `by_pairs` can set.
FIELDS_BY_PAIRS = (*ConfigArguments.__annotations__, "bpe_dropout")
# Text of the command line -> what a recipe says of a text of its own that it replaces.
OF_TEXT = {f"{role}_source": (f"{role}_target", f"{role}_split") for role in ROLES}
OF_TEXTS = ("corpus_name", "card_example")  # of all of them


def replaced_by(name: str, value: Any) -> tuple[str, ...]:
    """The fields that a field of this value excludes."""
    if name in ("eval_strategy", "save_strategy"):
        needs, kept = name if value == "no" else f"{name}=", f"{name[:4]}_steps" if value == "steps" else None
        return tuple(each for each, about in OPTIONS.items() if str(about.needs).startswith(needs) and each != kept)
    if name == "model_type":
        return FIELDS_OF_OTHERS[value]
    if value in (None, False):
        return ()
    found = [one if other == name else other for one, other in EXCLUDED if name in (one, other)]
    found += DECIDED.get(name, ())
    for each in found:  # and what has no effect without these
        found += [other for other, about in OPTIONS.items() if about.needs == each and other not in found]
    return tuple(found)


def check_options(settings: dict[str, Any]) -> None:
    """Raise `ValueError` if two of these fields exclude each other."""

    def told(name: str) -> str:
        return f"{name}={settings[name]}" if name == "tokenizer" else name

    for (one, other), reason in EXCLUDED.items():
        if settings.get(one) and settings.get(other):
            raise ValueError(f"{told(one)} and {told(other)} exclude each other: {reason}.")


def check_numbers(values: Mapping[str, Any]) -> None:
    """Raise `ValueError` if one of these fields is below its least value, or a decay is not below 1."""
    for name, least in AT_LEAST.items():
        if (value := values.get(name)) is not None and not (value >= least and (name not in BELOW_ONE or value < 1)):
            raise ValueError(f"{name}={value}: must be at least {least:g}{' and less than 1' * (name in BELOW_ONE)}.")


def refuse_without_effect(settings: dict[str, Any], more: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raise `ValueError` if one of these fields has no effect, because it needs another, or for a reason of `more`."""
    reasons = dict(more)
    for name, about in OPTIONS.items():
        if about.needs is not None:
            needed, _, value = about.needs.partition("=")
            given = settings.get(needed, getattr(TranslationTrainingArguments, needed, None))
            if given in (None, False, 0, "no") if not value else given != value:
                reasons[name] = f"it needs {about.needs}"
    for name, reason in reasons.items():
        if name in settings:
            raise ValueError(
                f"{name}={settings[name]} has no effect: {reason}. Remove it; --unset {name} removes the value of a "
                "recipe."
            )


@dataclass
class RunArguments:
    """The arguments of a training run: data, model, config fields that differ from the preset, transformers' own."""

    data: DataArguments
    model: ModelArguments
    config: dict[str, Any]
    training: TranslationTrainingArguments


def exchange_sides(data: DataArguments) -> None:
    """Exchange languages, columns and limits of the two sides; `load_corpora` exchanges the texts of the files."""
    values = vars(data)
    for name in ("{}_lang", "{}_column", "max_{}_length"):
        source, target = map(name.format, SIDES)
        values[source], values[target] = values[target], values[source]
    if corpora := data.corpora:
        other = {f"{one}_{what}": f"{two}_{what}" for one, two in (SIDES, SIDES[::-1]) for what in ("lang", "column")}
        data.corpora = {
            name: {other.get(field, field): value for field, value in fields.items()}
            for name, fields in corpora.items()  # type: ignore[union-attr]
        }


class RecipeLoader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML in which only true and false are booleans, as in YAML 1.2: `eval_strategy: no` is text."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


RecipeLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("true|false", re.IGNORECASE), list("tTfF"))


class RecipeParser(HfArgumentParser):
    """Reads a recipe (YAML) and the command line, which overrides it, into the four groups of arguments."""

    # Programs compose the four steps of `parse`: `read_line`, `read`, `override` and `run`, whose mappings are of
    # fields to values. They raise `ValueError` with one line: an unknown field with the nearest name, a value of
    # another type. A recipe has `???` for a value that must be set.

    def __init__(self, **kwargs: Any):
        check_trainer()
        groups: tuple[Any, ...] = (DataArguments, ModelArguments, ConfigArguments, TranslationTrainingArguments)
        # `train --help` is shown without this parser, which needs seconds for its imports.
        super().__init__(groups, add_help=False, allow_abbrev=False, **kwargs)
        self.defaults = vars(self.parse_args([]))
        self.names = self.defaults.keys()
        for action in self._actions:
            action.default = argparse.SUPPRESS  # what is read has the given fields, and no others
        self.add_argument(f"--{UNSET.name}", nargs="+", action="extend", default=argparse.SUPPRESS)

    def error(self, message: str) -> typing.NoReturn:
        raise ValueError(message)

    def parse(self, argv: Sequence[str]) -> tuple[RunArguments, dict[str, Any]]:
        """The arguments, and those that differ from the defaults, as in a recipe; a problem ends the program."""
        try:
            path, given, unset = self.read_line(argv)
            recipe = self.override(self.read(path) if path else {}, given, unset, told=self.prog)
            return self.run(recipe, path)
        except ValueError as error:
            self.exit(2, f"{self.prog}: {' '.join(str(error).split())}\n")

    def read_line(self, argv: Sequence[str]) -> tuple[str | None, dict[str, Any], list[str]]:
        """The file of the recipe, the fields that are given, and those whose values are removed."""
        path = argv[0] if argv and not argv[0].startswith("-") else None
        namespace, unknown = self.parse_known_args(argv[1:] if path else argv)
        if unknown:
            name = unknown[0].removeprefix("--").split("=")[0].replace("-", "_")
            raise ValueError(self._unknown(name, "command line"))
        given = vars(namespace)
        return path, given, given.pop(UNSET.name, [])

    def read(self, path: str) -> dict[str, Any]:
        """A recipe, with the types that its fields have on the command line."""
        try:
            recipe = read_yaml(path, RecipeLoader)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: cannot be read as a recipe ({' '.join(str(error).split())}).") from error
        if not isinstance(recipe, dict):
            raise ValueError(f"{path}: a recipe is a YAML mapping of fields to values.")
        return self.typed(recipe, path)

    def typed(self, values: dict[str, Any], where: str) -> dict[str, Any]:
        """Values as YAML has them, with the types of their fields; those without a value are left out."""
        found = {}
        for name, value in values.items():
            if name not in self.names:
                raise ValueError(self._unknown(str(name), where))
            if name == "by_pairs" and value is not None:
                found[name] = self._typed_rows(value, where)
            elif isinstance(value, dict) or value == REQUIRED:
                found[name] = value
            elif value is not None:
                items = [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
                namespace, more = self.parse_known_args(items)
                if more and name != "report_to":  # one or several; transformers' parser takes the first alone
                    raise ValueError(f"{where}: {name} takes one value, got {value}.")
                found[name] = value if more else getattr(namespace, name)
        return found

    def override(
        self, recipe: dict[str, Any], given: dict[str, Any], unset: Sequence[str] = (), told: str | None = None
    ) -> dict[str, Any]:
        """A recipe without the fields `unset`, and with the given ones in place of those that they exclude."""
        # With `told`, the name of the program, they are those of the command line, and what is replaced is printed.
        notes = []
        for name in unset:
            if name not in self.names:
                raise ValueError(self._unknown(name, "--unset"))
        whole = recipe = {name: value for name, value in recipe.items() if name not in unset}
        if table := recipe.get("by_pairs"):
            left = {pairs: {name: row[name] for name in row if name not in unset} for pairs, row in table.items()}
            recipe["by_pairs"] = left
        for name, value in given.items():
            kept = FIELDS_OF_TRANSFER if (recipe | given).get("tokenizer") == "new" else ()
            others = list(replaced_by(name, value))
            own = whole.get(name, whole.get("train_source" if name == "corpora" else "corpora"))
            if told and own not in (None, REQUIRED, value):
                others += OF_TEXT.get(name, ()) + (OF_TEXTS if name in ("train_source", "corpora") else ())
            if replaced := [each for each in others if each in recipe and each not in (*kept, *given)]:
                notes.append(f"--{name} replaces {', '.join(replaced)} of the recipe.")
                recipe = {each: value for each, value in recipe.items() if each not in replaced}
        if {"train_source", "corpora"} & {*given} and "corpus_name" in recipe.keys() - given.keys():
            named = recipe["corpus_name"]
            notes.append(f"the card names the text {named}, as the recipe does; if it is another: --corpus_name NAME.")
        for note in notes if told and os.environ.get("RANK", "0") == "0" else ():  # in the first process only
            print(f"{told}: {note}", file=sys.stderr, flush=True)
        return recipe | given

    def run(self, values: dict[str, Any], where: str | None = None) -> tuple[RunArguments, dict[str, Any]]:
        """The arguments of a run, and those that differ from the defaults, of a recipe from the file `where`."""
        values = dict(values)
        for name, value in values.items():
            if value == REQUIRED:
                raise ValueError(f"{where}: {name} must be set: --{name} VALUE.")
        if (corpora := values.get("corpora")) is not None:  # on the command line a file of them, or YAML in braces
            try:
                source = where
                if isinstance(corpora, str) and corpora.lstrip().startswith("{"):
                    source, corpora = "corpora", yaml.load(corpora, RecipeLoader)
                elif isinstance(corpora, str):
                    source, corpora = corpora, read_yaml(corpora, RecipeLoader)
                values["corpora"] = check_corpora(corpora, f"{source}")
            except (OSError, ValueError, yaml.YAMLError) as error:
                raise ValueError(" ".join(str(error).split())) from error
        if "by_pairs" in values:
            values["by_pairs"] = self._open_rows(values, where or "command line")
        check_numbers(values)
        data, model, config, training = self.parse_dict(values)
        if training.teacher and not (model.tokenizer_name_or_path or model.model_name_or_path):
            model.tokenizer_name_or_path = training.teacher
        settings = {
            name: values[name] for name in self.names if name in values and values[name] != self.defaults[name]
        }
        check_options(settings)
        if data.corrections:
            add_corrections(data)
        if data.reverse:
            exchange_sides(data)
        stated = {name: value for name, value in vars(config).items() if value is not None}
        return RunArguments(data, model, stated, training), settings

    def _typed_rows(self, table: Any, where: str) -> dict[int, dict[str, Any]]:
        """The rows of `by_pairs`, with the types of their fields."""
        if isinstance(table, str):
            try:
                table = yaml.load(table, RecipeLoader)
            except yaml.YAMLError as error:
                raise ValueError(f"{where}: by_pairs: {' '.join(str(error).split())}") from error
        if not (isinstance(table, dict) and table and all(isinstance(row, dict) for row in table.values())):
            raise ValueError(
                f"{where}: by_pairs is not a mapping of numbers of pairs to fields, such as 2000: {{dropout: 0.4}}."
            )
        for pairs, row in table.items():
            if not isinstance(pairs, int) or pairs < 1:
                raise ValueError(f"{where}: by_pairs: {pairs!r} is not a number of pairs: expected 1 or more.")
            if wrong := [name for name in row if name not in FIELDS_BY_PAIRS]:
                raise ValueError(f"{where}: by_pairs: {wrong[0]} is no field of a model's config, nor bpe_dropout.")
        return {pairs: self.typed(row, where) for pairs, row in table.items()}

    def _open_rows(self, values: dict[str, Any], where: str) -> dict[int, dict[str, Any]]:
        """The rows of `by_pairs` without the fields that other values set or decide."""
        table = self._typed_rows(values["by_pairs"], where)
        if values.get("streaming"):
            names = ", ".join(dict.fromkeys(name for row in table.values() for name in row))
            raise ValueError(
                f"{where}: the number of pairs of a stream is not known: --unset by_pairs, and set {names}."
            )
        left = {pairs: self.override(row, values).items() for pairs, row in table.items()}
        return {
            pairs: {name: value for name, value in row if name in table[pairs] and name not in values}
            for pairs, row in left.items()
        }

    def _unknown(self, name: str, where: str) -> str:
        near = get_close_matches(name, self.names, n=1, cutoff=0.0)
        return f"{where}: unknown field {name!r}; the nearest name is {near[0]!r}."


# The fields of new models' configs in `--help-all`.
CONFIG_GROUPS = (
    "new models: sizes and switches",
    "new models: options of single position encodings",
    "new models: options of single kinds of attention",
    "new models of LSTM or GRU layers",
)


def all_options() -> dict[str, list[Option]]:
    """Every option of `train`, by group, as `train --help-all` shows them."""
    training = options_of(TranslationTrainingArguments)
    own = {argument.name for argument in fields(OwnTrainingArguments)}
    configs: dict[str, list[Option]] = {title: [] for title in CONFIG_GROUPS}
    sizes, positions, attention, others = configs.values()
    transformer, recurrent = (documented_fields(config.__doc__ or "") for config in CONFIGS.values())
    position_options, attention_options = users_of_options(POSITION_SCHEMES), users_of_options(ATTENTION_KINDS)
    for name, hint in ConfigArguments.__annotations__.items():
        if name in VanillaTransformerConfig.__annotations__:
            group = positions if name in position_options else attention if name in attention_options else sizes
            group.append(config_option(name, hint, getattr(VanillaTransformerConfig, name), transformer))
        else:
            default = getattr(RecurrentSeq2SeqConfig, name)
            others.append(config_option(name, hint, default, recurrent, has_presets=False))
    groups = {
        "text": options_of(DataArguments),
        "model, tokenizer and search": options_of(ModelArguments),
        **configs,
        "training": [option for option in training if option.name in own],
        "recipe": [UNSET],
    }
    titles, title = {}, ""  # of the sections in the docstring of transformers' arguments
    for line in cleandoc(TrainingArguments.__doc__ or "").splitlines():
        if found := re.match(r" {4}> (.+)", line):
            title = found[1]
        elif (found := re.match(r" {4}(\w+) ?\(", line)) and title:
            titles[found[1]] = title
    for option in training:
        if option.name not in own:
            title = f"transformers' Trainer: {titles.get(option.name, 'Others')}"
            groups.setdefault(title, []).append(option)
    return groups
