"""What `train --help` and `train --help-all` show."""

import subprocess
import sys
import typing
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from transformers import Seq2SeqTrainingArguments
from transformers.hf_argparser import string_to_bool
from transformers.trainer_utils import IntervalStrategy

from vanilla_transformer_hf import RecurrentSeq2SeqConfig, VanillaTransformerConfig
from vanilla_transformer_hf.training.arguments import OwnTrainingArguments
from vanilla_transformer_hf.training.options import MAIN_OPTIONS, documented_fields, help_page, main_options, values_of
from vanilla_transformer_hf.training.recipe import (
    ConfigArguments,
    RecipeParser,
    TranslationTrainingArguments,
    all_options,
)


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def everything():
    """The options of --help-all by name."""
    return {option.name: option for options in all_options().values() for option in options}


def test_help_imports_neither_torch_nor_transformers():
    code = f"""
import sys, types
package = types.ModuleType("vanilla_transformer_hf")  # without what its __init__ imports
package.__path__ = [{str(ROOT / "vanilla_transformer_hf")!r}]
sys.modules[package.__name__] = package
from vanilla_transformer_hf.commands.train import main
try:
    main("train", ["--help"])
finally:
    print({{"torch", "transformers", "yaml"}} & {{*sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--d_model N" in done.stdout and done.stdout.endswith("set()\n")


def test_help_shows_about_thirty_options_as_help_all_has_them(everything):
    names = [name for names in MAIN_OPTIONS.values() for name in names]
    assert len({*names}) == len(names) and 25 <= len(names) <= 35
    assert [option for options in main_options().values() for option in options] == [
        everything[name] for name in names
    ]


def test_help_all_has_every_option_once_and_says_what_it_does(everything):
    groups = all_options()
    assert sum(map(len, groups.values())) == len(everything)
    assert everything.keys() == RecipeParser().names | {"unset"}
    for name, option in everything.items():
        text, _, default = option.about.partition(" (default: ")
        assert len(text.split()) > 1, f"{name}: {option.about!r}"
        assert default or "not given" in text or name == "unset", f"{name} does not say its default"
    page = help_page(groups, "train", "train RECIPE", "about", "the end")
    assert all(f"\n{title}:\n" in page for title in groups) and "%%" not in page


def test_help_all_shows_the_values_that_are_accepted(everything):
    for action in RecipeParser()._actions:
        shown = everything[action.dest].values
        assert (action.nargs == "+") == shown.endswith(" ...]"), action.dest
        if action.choices:
            assert shown == f"{{{','.join(map(str, action.choices))}}}"
        if kind := {string_to_bool: "{true,false}", int: "N", float: "X"}.get(action.type):
            assert shown.split()[0] == kind, action.dest


@pytest.mark.parametrize("config", [VanillaTransformerConfig, RecurrentSeq2SeqConfig])
def test_the_docstring_of_a_config_explains_every_field_that_can_be_set(config):
    texts = documented_fields(config.__doc__)
    settable = ConfigArguments.__annotations__.keys() & config.__annotations__.keys()
    assert settable <= texts.keys()
    assert texts.keys() <= config.__annotations__.keys(), "nothing else is taken for a field"
    assert not [text for text in texts.values() if "`" in text]


def test_fields_are_read_from_the_arguments_of_a_docstring():
    text = """
    Sizes (`all`): of a model.

    Args:
        first, second (`int`, *optional*): Width of `"one"`
            or [`two`]; 100% of it.
        third (`list[int]`): N, the rest.

    Raises:
        fourth (`ValueError`): Never.
    """
    same = "width of one or [two]; 100% of it"
    assert documented_fields(text) == {"first": same, "second": same, "third": "N, the rest"}
    assert documented_fields("no arguments") == {}


def test_defaults_of_transformers_are_kept_but_for_those_of_the_paper_and_large_evaluations():
    def defaults(group):
        return {
            each.name: each.default if each.default is not MISSING else each.default_factory()
            for each in fields(group)
        }

    theirs, ours = defaults(Seq2SeqTrainingArguments), defaults(OwnTrainingArguments)
    assert {name for name in theirs.keys() & ours if theirs[name] != ours[name]} == {
        *("learning_rate", "lr_scheduler_type", "warmup_steps", "adam_beta2", "adam_epsilon", "max_grad_norm"),
        *("predict_with_generate", "generation_num_beams", "ddp_find_unused_parameters"),
        "per_device_eval_batch_size",
    }
    assert ours.items() <= defaults(TranslationTrainingArguments).items()


@pytest.mark.parametrize(
    "hint, values",
    [
        *((bool | None, "{true,false}"), (int, "N"), (float | int, "X"), (str | None, "VALUE")),
        *((list[str] | None, "VALUE [VALUE ...]"), (dict | str | None, "JSON"), (str | list[str] | None, "VALUE")),
        *((str | bool, "{true,false}"), (IntervalStrategy | str, "{no,steps,epoch}")),
        (typing.Literal["a", "b"] | None, "{a,b}"),
    ],
)
def test_values_are_shown_by_their_type(hint, values):
    assert values_of(hint) == values


def test_a_percent_sign_and_a_list_are_shown(everything):
    page = help_page({"a": [everything["use_liger_kernel"]]}, "train", "train", None, "")
    assert "--use_liger_kernel {true,false}" in page and "~20%" in page
    assert everything["include_for_metrics"].about.endswith("(default: none)")
