"""Recipes and the command line."""

from pathlib import Path

import pytest
import yaml

from vanilla_transformer_hf import RecurrentSeq2SeqConfig, VanillaTransformerConfig
from vanilla_transformer_hf.training.arguments import TEXTS
from vanilla_transformer_hf.training.recipe import (
    AT_LEAST,
    BELOW_ONE,
    EXCLUDED,
    OPTIONS,
    ConfigArguments,
    RecipeParser,
    TranslationTrainingArguments,
    check_numbers,
    check_options,
    refuse_without_effect,
)


PARSER = RecipeParser(prog="train.py")
RECIPES = sorted(Path(__file__).parents[2].glob("vanilla_transformer_hf/training/recipes/*.yaml"))


@pytest.fixture
def parse(tmp_path, capsys):
    """`parse(recipe, *argv)`: what comes out of a recipe and a command line; a refusal's one line if it is refused."""

    def parse(recipe, *argv):
        path = tmp_path / "recipe.yaml"
        path.write_text(recipe, encoding="utf-8")
        try:
            return RecipeParser(prog="train.py").parse([str(path), *argv])
        except SystemExit as error:
            assert error.code == 2
            return capsys.readouterr().err.removesuffix("\n")

    return parse


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_is_valid(path):
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    given = [f"--{name}=given" for name, value in recipe.items() if value == "???"]
    run, settings = RecipeParser().parse([str(path), *given])
    assert settings.keys() == recipe.keys()
    VanillaTransformerConfig.from_preset(run.model.preset or "base", **run.config)


def test_one_process_for_several_gpus_is_refused(parse, monkeypatch):
    """The host would split each batch between them in one process, of which our losses know nothing."""
    monkeypatch.setattr(TranslationTrainingArguments, "n_gpu", property(lambda self: 2))
    assert "2 GPUs, but one process: start one for each (accelerate launch --num_processes 2" in parse("{}")


def test_pairs_are_not_split_in_training(parse):
    assert "choose from 'drop', 'truncate'" in parse("{too_long: split}").replace(
        "drop, truncate", "'drop', 'truncate'"
    )


@pytest.mark.parametrize("wrong", ["0", "-1", "all", "1.5"])
def test_threads_are_a_number_or_auto(parse, wrong):
    assert parse(f"{{threads: {wrong}}}").endswith(f"threads={wrong}: must be 1 or more, or auto.")


def test_no_is_a_choice_and_no_boolean(parse):
    run, settings = parse("{eval_strategy: no, save_strategy: no}")
    assert settings == {"save_strategy": "no"} and run.training.eval_strategy == "no"


@pytest.mark.parametrize(
    ("metric", "greater"),
    [("wer", False), ("eval_cer", False), ("loss", False), ("bleu", True), ("exact_match", True)],
)
def test_the_least_rate_of_errors_is_the_best(parse, metric, greater):
    """transformers knows of losses alone that the least is the best, and would publish the worst checkpoint."""
    run, _ = parse(f"{{output_dir: out, metric_for_best_model: {metric}}}")
    assert run.training.greater_is_better is greater
    recipe = "{output_dir: out, metric_for_best_model: wer, greater_is_better: false}"
    run, _ = parse(recipe, "--metric_for_best_model", metric)
    assert run.training.greater_is_better is greater


def test_the_command_line_overrides_the_recipe(parse):
    recipe = "{preset: big, dropout: 0.2, learning_rate: 1e-4, load_best_model_at_end: no, label_names: [labels, x]}"
    run, settings = parse(recipe, "--dropout", "0.3", "--embedding-sharing=none", "--warmup_steps", "10")
    assert run.model.preset == "big"
    assert run.config == {"dropout": 0.3, "embedding_sharing": "none"}
    assert (run.training.learning_rate, run.training.warmup_steps) == (1e-4, 10)
    assert run.training.label_names == ["labels", "x"]
    assert settings == {
        **{"preset": "big", "dropout": 0.3, "embedding_sharing": "none", "learning_rate": 1e-4, "warmup_steps": 10},
        "label_names": ["labels", "x"],
    }


@pytest.mark.parametrize(
    "recipe, argv, left, replaced",
    [
        (
            "{per_device_train_batch_size: 64, train_sampling_strategy: group_by_length, seed: 1}",
            ["--tokens_per_step", "4096"],
            {"tokens_per_step": 4096, "seed": 1},
            "--tokens_per_step replaces per_device_train_batch_size, train_sampling_strategy of the recipe",
        ),
        (
            "{tokens_per_step: 4096, per_device_train_tokens: 64}",
            ["--per_device_train_batch_size=9"],
            {"per_device_train_batch_size": 9},
            "--per_device_train_batch_size replaces tokens_per_step, per_device_train_tokens",
        ),
        ("{average_last: 10}", ["--moving_average", "0.9"], {"moving_average": 0.9}, "replaces average_last"),
        ("{average_last: 10}", ["--load_best_model_at_end", "false"], {"average_last": 10}, ""),
        (
            "{load_best_model_at_end: true, eval_strategy: epoch, save_strategy: epoch, metric_for_best_model: bleu}",
            ["--eval_strategy", "no"],
            {"save_strategy": "epoch"},
            "--eval_strategy replaces load_best_model_at_end, metric_for_best_model",
        ),
        *(
            (
                "{eval_strategy: epoch, eval_min_steps: 100, save_strategy: epoch}",
                [f"--eval_strategy={strategy}"],
                {"save_strategy": "epoch"} | ({} if strategy == "no" else {"eval_strategy": strategy}),
                "--eval_strategy replaces eval_min_steps of the recipe",
            )
            for strategy in ("no", "steps", "epoch")
        ),
        (
            "{eval_strategy: steps, eval_steps: 9, save_steps: 9}",
            ["--eval_strategy=epoch", "--save_strategy=epoch"],
            {"eval_strategy": "epoch", "save_strategy": "epoch"},
            "--eval_strategy replaces eval_steps of the recipe.\ntrain.py: --save_strategy replaces save_steps of the",
        ),
        (
            "{eval_strategy: steps, eval_steps: 9}",
            ["--eval_strategy=steps"],
            {"eval_strategy": "steps", "eval_steps": 9},
            "",
        ),
        (
            "{train_source: a, train_target: b, test_source: c, test_target: d, corpus_name: C, card_example: d}",
            ["--train_source=x.tsv", "--test_source=x", "--test_target=y"],
            {"train_source": "x.tsv", "test_source": "x", "test_target": "y"},
            "--train_source replaces train_target, corpus_name, card_example of the recipe",
        ),
        (
            "{train_source: a, train_target: b, corpus_name: C}",
            ["--train_source=a"],
            {"train_source": "a", "train_target": "b", "corpus_name": "C"},
            "the card names the text C, as the recipe does; if it is another: --corpus_name NAME.",
        ),
        (
            "{corpora: {law: {train_source: a}}, corpus_name: C}",
            ["--test_source=y.tsv", "--train_source=x.tsv"],
            {"train_source": "x.tsv", "test_source": "y.tsv"},
            "--test_source replaces corpora of the recipe.\ntrain.py: --train_source replaces corpus_name of",
        ),
        (
            "{preset: big, vocab_size: 800, dropout: 0.2}",
            ["--model_name_or_path=x"],
            {"model_name_or_path": "x", "dropout": 0.2},
            "replaces preset, vocab_size",
        ),
        (
            "{drop_duplicates: true, tokens_per_step: 9}",
            ["--streaming"],
            {"streaming": True, "tokens_per_step": 9},
            "s",
        ),
    ],
)
def test_the_command_line_replaces_what_it_excludes(parse, capsys, recipe, argv, left, replaced):
    _, settings = parse(recipe, *argv)
    assert settings == left
    assert replaced in capsys.readouterr().err


# What is needed -> the options that have no effect without it.
NEEDS = {
    "tokens_per_step": "per_device_train_tokens bpe_dropout streaming",
    "streaming": "shuffle_buffer_size",
    "corpora": "corpus_temperature",
    "train_sampling_strategy=group_by_length": "curriculum_steps",
    "task=speech": "time_masks longest_time_mask frequency_masks widest_frequency_mask",
    "model_name_or_path": "tokenizer",
    "teacher": "distillation_weight distillation_temperature",
    "head_gates": "head_gates_learning_rate",
    "corrections": "replay",
    "eval_strategy": "eval_sample eval_max_extra_tokens average_best early_stopping_patience "
    "load_best_model_at_end metric_for_best_model",
    "eval_strategy=epoch": "eval_min_steps",
    "eval_strategy=steps": "eval_steps",
    "save_strategy=steps": "save_steps",
}
EXCLUDES = {
    "tokens_per_step": "per_device_train_batch_size gradient_accumulation_steps train_sampling_strategy "
    "curriculum_steps dataloader_drop_last dataloader_prefetch_factor dataloader_persistent_workers",
    "streaming": "drop_duplicates",
    "corpora": f"{TEXTS} streaming curriculum_steps",
    "corrections": "corpora streaming curriculum_steps",
    "preset": "model_name_or_path",
    **dict.fromkeys(("encoder_from", "decoder_from"), "model_name_or_path preset tokenizer_name_or_path"),
    "tokenizer": "tokenizer_name_or_path",
    "teacher": "r_drop",
    "load_best_model_at_end": "average_last average_best",
    "eval_min_steps": "streaming eval_delay",
    "average_last": "average_best moving_average",
    "average_best": "moving_average",
}
LEAST = {
    0: "num_train_epochs preprocessing_num_workers r_drop replay curriculum_steps head_gates head_gates_learning_rate "
    "learning_rate warmup_steps adam_beta1 adam_beta2 adam_epsilon weight_decay max_grad_norm moving_average "
    "eval_steps eval_delay save_steps logging_steps " + NEEDS["task=speech"],
    1: "max_length_ratio generation_num_beams shuffle_buffer_size tokens_per_step per_device_train_tokens num_beams "
    "eval_min_steps eval_sample eval_max_extra_tokens early_stopping_patience average_last average_best "
    "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps",
}


def test_what_options_demand_is_what_is_known_here():
    """The tests behind this one try each of them."""
    about = OPTIONS.items()
    needs = {(one.needs, name) for name, one in about if one.needs}
    assert needs == {(needed, name) for needed, names in NEEDS.items() for name in names.split()}
    assert {*EXCLUDED} == {(name, other) for name, others in EXCLUDES.items() for other in others.split()}
    assert {name: value for value, names in LEAST.items() for name in names.split()} == AT_LEAST


# A value of each field that is not its default; of the others, 2.
VALUES = {
    **dict.fromkeys(("streaming", "drop_duplicates", "load_best_model_at_end", "dataloader_drop_last"), True),
    **{"dataloader_persistent_workers": True, "train_sampling_strategy": "group_by_length", "tokenizer": "new"},
    **{"eval_strategy": "steps", "teacher": "x", "corpora": {"law": {"train_source": "x"}}, "task": "speech"},
    **dict.fromkeys(("preset", "model_name_or_path", "encoder_from", "decoder_from", "tokenizer_name_or_path"), "x"),
    **dict.fromkeys(TEXTS.split(), "x"),
    **dict.fromkeys(("distillation_weight", "bpe_dropout", "moving_average"), 0.25),
}


@pytest.mark.parametrize("one, other", EXCLUDED)
def test_of_two_that_exclude_each_other_one_is_given(one, other):
    """Both are an error, and on the command line either replaces the other, with what needs it."""
    values = {name: VALUES.get(name, 2) for name in (one, other)}
    with pytest.raises(ValueError, match=rf"{one}(=new)? and {other}(=\w+)? exclude each other: .*\.$"):
        check_options(values)
    for given, before in ((one, other), (other, one)):
        needing = {name: VALUES.get(name, 2) for name, about in OPTIONS.items() if about.needs == before}
        needing.pop(given, None)
        recipe = {before: values[before], **needing, "seed": 3}
        assert PARSER.override(recipe, {given: values[given]}) == {given: values[given], "seed": 3}


@pytest.mark.parametrize("name", [name for name, about in OPTIONS.items() if about.needs])
def test_what_has_no_effect_without_another_is_an_error(name):
    needed, _, value = OPTIONS[name].needs.partition("=")
    settings = {name: VALUES.get(name, 2)} | ({"save_strategy": "epoch"} if name == "save_steps" else {})
    with pytest.raises(ValueError, match=rf"^{name}=.* has no effect: it needs {OPTIONS[name].needs}\. Remove it; "):
        refuse_without_effect(settings)
    more = {needed: value or VALUES.get(needed, 2)}
    if needed in OPTIONS and (third := OPTIONS[needed].needs):
        more[third] = VALUES.get(third, 2)
    refuse_without_effect(settings | more)


@pytest.mark.parametrize("name", AT_LEAST)
def test_the_least_value_of_an_option_is_allowed(name):
    least = AT_LEAST[name]
    check_numbers({name: least})
    for value in (least - 1, float("nan"), *([1] if name in BELOW_ONE else [])):
        with pytest.raises(ValueError, match=f"{name}={value}: must be at least {least}"):
            check_numbers({name: value})


@pytest.mark.parametrize("steps", [0, -1, -5])
def test_without_a_number_of_steps_the_epochs_decide(parse, steps):
    run, _ = parse(f"{{max_steps: {steps}, num_train_epochs: 2}}")
    assert run.training.max_steps < 0


def test_every_value_of_a_recipe_can_be_unset(parse):
    recipe = "{average_last: 3, source_lang: en, embedding_sharing: none, bf16: true, dropout: 0.2}"
    run, settings = parse(recipe, "--unset", "average_last", "source_lang", "bf16", "--seed", "3")
    assert settings == {"embedding_sharing": "none", "dropout": 0.2, "seed": 3}
    assert run.training.average_last is None and run.data.source_lang is None
    assert "--unset: unknown field 'averagelast'; the nearest name is 'average_last'" in parse(
        recipe, "--unset", "averagelast"
    )


TABLE = "by_pairs: {1000: {vocab_size: 900, dropout: 0.4}, 9000: {vocab_size: 5000, dropout: 0.3, bpe_dropout: 0.1}}"
SMALL, LARGE = {"vocab_size": 900, "dropout": 0.4}, {"vocab_size": 5000, "dropout": 0.3}


@pytest.mark.parametrize(
    "recipe, argv, rows",
    [
        ("{TABLE}", [], [SMALL, LARGE | {"bpe_dropout": 0.1}]),
        ("{TABLE}", ["--dropout", "0.2"], [{"vocab_size": 900}, {"vocab_size": 5000, "bpe_dropout": 0.1}]),
        ("{TABLE}", ["--bpe_dropout", "0"], [SMALL, LARGE]),
        ("{tokens_per_step: 9, TABLE}", ["--per_device_train_batch_size", "8"], [SMALL, LARGE]),
        ("{vocab_size: 70, TABLE}", ["--unset", "dropout", "bpe_dropout"], [{}, {}]),
        ("{TABLE}", ["--model_name_or_path", "x", "--bpe_dropout", "0.2"], [{"dropout": 0.4}, {"dropout": 0.3}]),
        ("{TABLE}", ["--tokenizer_name_or_path", "x", "--unset", "bpe_dropout"], [{"dropout": 0.4}, {"dropout": 0.3}]),
        ("{TABLE}", ["--by_pairs", "{3: {d_model: '64'}}"], [{"d_model": 64}]),
    ],
)
def test_what_is_given_wins_over_sizes_by_pairs(parse, recipe, argv, rows):
    """So does what decides them, such as a model that has its sizes."""
    run, settings = parse(recipe.replace("TABLE", TABLE), *argv)
    assert [*run.data.by_pairs.values()] == rows and settings["by_pairs"] == run.data.by_pairs
    assert "by_pairs" not in parse(recipe.replace("TABLE", TABLE), "--unset", "by_pairs")[1]


def test_a_recipe_says_what_has_to_be_given(parse):
    """A model is not trained anew by a recipe that was made to train one further."""
    assert "model_name_or_path must be set: --model_name_or_path VALUE" in parse("model_name_or_path: ???")
    assert parse("model_name_or_path: ???", "--model_name_or_path=x")[0].model.model_name_or_path == "x"
    line = RecipeParser(prog="train.py")
    with pytest.raises(SystemExit):
        line.parse([str(next(path for path in RECIPES if path.stem == "finetune"))])


def test_values_have_the_types_of_their_fields(parse):
    run, _ = parse("{learning_rate: 1, d_model: '64', bf16: yes, save_strategy: no, eval_strategy: no}")
    assert (type(run.training.learning_rate), run.config["d_model"]) == (float, 64)
    assert run.training.bf16 is True and run.training.save_strategy == "no"
    assert "invalid int value: '1.5'" in parse("{d_model: 1.5}")


def test_mappings_and_switches_of_the_host_can_be_set(parse):
    run, _ = parse("{lr_scheduler_kwargs: {timescale: 7}, attention_bias: true, use_cpu: true}")
    assert run.training.lr_scheduler_kwargs == {"timescale": 7}
    assert run.config == {"attention_bias": True}
    assert run.training.use_cpu is True


def test_the_defaults_are_the_papers(parse):
    run, settings = parse("{}")
    training = run.training
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.lr_scheduler_type, training.warmup_steps, training.learning_rate) == ("inverse_sqrt", 4000, None)
    assert settings == {}


@pytest.mark.parametrize(
    "recipe, argv, message",
    [
        ("{d_modle: 64}", [], "unknown field 'd_modle'; the nearest name is 'd_model'"),
        (
            "{}",
            ["--warmup-step", "3"],
            "command line: unknown field 'warmup_step'; the nearest name is 'warmup_steps'",
        ),
        ("{}", ["--lerning_rate=3"], "the nearest name is 'learning_rate'"),
        ("{d_model: wide}", [], "argument --d_model/--d-model: invalid int value: 'wide'"),
        ("{embedding_sharing: some}", [], "invalid choice: 'some' (choose from"),
        ("{label_smoothing_factor: 0.1}", [], "set label_smoothing instead"),
        ("{average_last: 2, moving_average: 0.9}", [], "average_last and moving_average exclude each other"),
        (
            "{}",
            ["--average_last", "2", "--moving_average", "0.9"],
            "average_last and moving_average exclude each other",
        ),
        ("{seed: [1, 2]}", [], "seed takes one value, got [1, 2]"),
        ("{tokens_per_step: 0}", [], "tokens_per_step=0: must be at least 1."),
        ("{weight_decay: -1}", [], "weight_decay=-1.0: must be at least 0."),
        ("{}", ["--gradient_accumulation_steps", "0"], "gradient_accumulation_steps=0: must be at least 1."),
        ("{}", ["--learning_rate", "nan"], "learning_rate=nan: must be at least 0."),
        ("[d_model]", [], "a recipe is a YAML mapping"),
        ("by_pairs: 7", [], "by_pairs is not a mapping of numbers of pairs to fields, such as 2000: {dropout: 0.4}."),
        ("by_pairs: {7: 0.4}", [], "by_pairs is not a mapping of numbers of pairs to fields"),
        ("by_pairs: {0: {}}", [], "by_pairs: 0 is not a number of pairs: expected 1 or more"),
        ("by_pairs: {5: {seed: 2}}", [], "by_pairs: seed is no field of a model's config, nor bpe_dropout"),
        ("by_pairs: {5: {d_model: wide}}", [], "invalid int value: 'wide'"),
        ("{}", ["--by_pairs", "{5: {"], "by_pairs: while parsing a flow"),
        (
            "{tokens_per_step: 9, by_pairs: {5: {dropout: 0.4}, 6: {vocab_size: 9}}}",
            ["--streaming", "true"],
            "the number of pairs of a stream is not known: --unset by_pairs, and set dropout, vocab_size.",
        ),
        ("{d_model: 3", [], "cannot be read as a recipe"),
        (
            "{load_best_model_at_end: true, save_strategy: epoch}",
            ["--eval_strategy=steps", "--eval_steps=9"],
            '"best", but found - Evaluation strategy: IntervalStrategy.STEPS - Save strategy: SaveStrategy.EPOCH',
        ),
    ],
)
def test_mistakes_end_in_one_line(parse, recipe, argv, message):
    line = parse(recipe, *argv)
    assert line.startswith("train.py: ") and message in line and "\n" not in line


def test_every_field_of_the_config_can_be_set():
    derived = {"source_vocab_size", "tie_word_embeddings", "is_encoder_decoder", "is_decoder", "use_cache"}
    fields = {**VanillaTransformerConfig.__annotations__, **RecurrentSeq2SeqConfig.__annotations__}
    names = {name for name in fields if not name.endswith("_id")} - derived
    assert set(ConfigArguments.__annotations__) == names
    assert not names & set(TranslationTrainingArguments.__dataclass_fields__)
