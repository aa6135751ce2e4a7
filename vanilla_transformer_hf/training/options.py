"""What `train --help` shows, by task. It must not take seconds: nothing here imports torch or transformers."""

import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from inspect import cleandoc
from typing import Any, Literal, NamedTuple

from ..common.command_line import make_parser
from .arguments import DataArguments, ModelArguments, OwnTrainingArguments


class Option(NamedTuple):
    """One option as a page of help shows it: `values` stands for what it takes; in `about`, %% is a percent sign."""

    name: str
    values: str
    about: str


UNSET = Option("unset", "FIELD [FIELD ...]", "remove the values of a recipe for these fields")
# What a user wants to decide -> the options of `--help`; `--help-all` has the others.
MAIN_OPTIONS = {
    "text": (
        *("train_source", "train_target", "validation_source", "validation_target", "test_source", "test_target"),
        *("source_lang", "target_lang"),
    ),
    "model": (
        *("preset", "vocab_size", "d_model", "encoder_layers", "decoder_layers", "dropout", "model_name_or_path"),
    ),
    "length of training, batches and learning rate": (
        *("num_train_epochs", "max_steps", "tokens_per_step", "learning_rate", "warmup_steps"),
        *("bf16", "threads", "seed"),
    ),
    "evaluation and search": ("eval_strategy", "eval_steps", "num_beams", "length_penalty"),
    "saving and publishing": (
        *("output_dir", "save_steps", "load_best_model_at_end", "average_last", "push_to_hub", "hub_model_id"),
    ),
    "continuing": ("resume_from_checkpoint", "unset"),
}
# The config's fields among them. Importing the config takes seconds; a test compares these with it.
SIZES = (
    Option(
        *("vocab_size", "N"),
        "size of the target vocabulary, which is also the source's unless source_vocab_size is given (default: the "
        "preset's; 37000 in base)",
    ),
    Option("d_model", "N", "width of embeddings and of every sub-layer's output (default: the preset's; 512 in base)"),
    Option("encoder_layers", "N", "N, the layers of each stack (default: the preset's; 6 in base)"),
    Option("decoder_layers", "N", "N, the layers of each stack (default: the preset's; 6 in base)"),
    Option(
        *("dropout", "X"),
        "P_drop on sub-layer outputs and on the sums of embeddings and positions (default: the preset's; 0.1 in base)",
    ),
)


def main_options() -> dict[str, list[Option]]:
    """The options of `--help`, by task."""
    known = {UNSET.name: UNSET} | {option.name: option for option in SIZES}
    for group in (DataArguments, ModelArguments, OwnTrainingArguments):
        known |= {option.name: option for option in options_of(group)}
    return {task: [known[name] for name in names] for task, names in MAIN_OPTIONS.items()}


def documented_fields(docstring: str) -> dict[str, str]:
    """Field -> its description in the `Args:` of a docstring, on one line and without Markdown's marks."""
    block = re.split(r"\n+(?=\S)", cleandoc(docstring).partition("Args:\n")[2])[0]
    texts: dict[str, str] = {}
    for names, text in re.findall(r"^ {4}(\w[\w, ]*) \(.*?\): (.*(?:\n {8}.*)*)", block, re.MULTILINE):
        text = re.sub(r'`"([^`"]+)"`', r"\1", " ".join(text.split())).replace("`", "").removesuffix(".")
        # As the other options begin, but not where it begins with a symbol, such as N.
        text = text[:1].lower() + text[1:] if text[1:2].islower() else text
        texts |= dict.fromkeys(names.split(", "), text)
    return texts


def config_option(name: str, hint: Any, default: Any, texts: Mapping[str, str], has_presets: bool = True) -> Option:
    """A field of a new model's config; if it is not given, it has the value of the preset, where there are presets."""
    shown = _shown(default)
    if has_presets:
        shown = "the preset's" if default is None else f"the preset's; {shown} in base"
    return Option(name, values_of(hint), f"{texts.get(name, '').replace('%', '%%')} (default: {shown})")


def options_of(group: type) -> list[Option]:
    """The options of a dataclass of arguments, which have their help as HfArgumentParser reads it."""
    hints = typing.get_type_hints(group)  # not `Field.type`, which HfArgumentParser overwrites
    options = []
    for each in fields(group):
        if not each.init:
            continue
        default = each.default if each.default_factory is MISSING else each.default_factory()
        about, choices = each.metadata["help"].strip(), each.metadata.get("choices")
        if default is not None or "not given" not in about:
            about = f"{about} (default: {_shown(default)})"
        options.append(Option(each.name, values_of(Literal[*choices] if choices else hints[each.name]), about))
    return options


def _shown(value: Any) -> str:
    """A default as the command line would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None or value in ("", []) else str(value)


def values_of(hint: Any) -> str:
    """What stands in the help for the values of a field of this type, such as N or {drop,truncate}."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"{{{','.join(map(str, parts))}}}"
    if origin is list:
        return "{0} [{0} ...]".format(values_of(parts[0]))
    if dict in (hint, origin):
        return "JSON"
    if parts:  # HfArgumentParser reads text if a union allows text and None; else the first other type
        kinds = [kind for kind in parts if kind is not type(None)]
        shown = [values_of(kind) for kind in kinds if kind is not str or len(kinds) < len(parts)]
        # A mapping is written as JSON, and a float may be written as an int.
        return next((each for each in ("JSON", "VALUE", "X") if each in shown), shown[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"{{{','.join(each.value for each in hint)}}}"
    return {bool: "{true,false}", int: "N", float: "X"}.get(hint, "VALUE")


def help_page(
    groups: Mapping[str, Sequence[Option]], prog: str, usage: str, description: str | None, epilog: str
) -> str:
    """The text of `--help` or `--help-all`: title of a group -> its options."""
    page = make_parser(prog, description, usage=usage, epilog=epilog, add_help=False)
    page.add_argument("-h", "--help", action="store_true", help="show the options that most runs need, and exit")
    page.add_argument("--help-all", action="store_true", help="show every option, and exit")
    for title, options in groups.items():
        group = page.add_argument_group(title)
        for option in options:
            group.add_argument(f"--{option.name}", metavar=option.values, help=option.about)
    return page.format_help()
