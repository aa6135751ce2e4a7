"""Every recipe trains, scores with its own search, and leaves a model that is opened; scripts: tests/test_docs.py."""

import random
import re
from itertools import cycle, islice
from pathlib import Path

import checkpoints
import pytest
import torch
import yaml
from conftest import SIZES, WORDS
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from vanilla_transformer_hf import (
    Translator,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.commands import convert, distill, train
from vanilla_transformer_hf.evaluation.scores import read_predictions
from vanilla_transformer_hf.training.recipe import REQUIRED, RecipeLoader


pytestmark = pytest.mark.usefixtures("datasets_cache")
RECIPES = Path(train.__file__).parents[1] / "training" / "recipes"
# Sizes of a new model, and steps. The fields of the search stay those of the recipe.
NEW = SIZES | {"vocab_size": 300}
SEARCH_FIELDS = ("num_beams", "length_penalty", "length_penalty_type", "max_extra_tokens")
STEPS = {"max_steps": 6, "logging_steps": 3, **dict.fromkeys(("eval_strategy", "save_strategy"), "steps")}
STEPS |= {"eval_steps": 3, "save_steps": 3}
OPENED_AS = {
    **{"denoising": AutoModelForSeq2SeqLM, "causal_lm": AutoModelForCausalLM, "masked_lm": AutoModelForMaskedLM},
    **{"classification": AutoModelForSequenceClassification, "token_classification": AutoModelForTokenClassification},
}


def sentences(count, seed):
    rng = random.Random(seed)
    return [rng.choices(list(WORDS), k=rng.randint(1, 6)) for _ in range(count)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Fields with small texts for a task: parallel, with the tags of languages, or with classes."""
    folder = tmp_path_factory.mktemp("corpus")

    def write(name, lines):
        (folder / name).write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
        return str(folder / name)

    def fields(recipe, task):
        tags = [f"<2{language}>" for language in recipe.get("target_lang_tags", ())]
        found = {}
        for seed, (role, count) in enumerate({"train": 60, "validation": 5, "test": 4}.items()):
            source = sentences(count, seed)
            targets = {
                "translation": [[WORDS[word] for word in line] for line in source],
                "classification": islice(cycle([["odd"], ["even"]]), count),
                "token_classification": [[word[0] for word in line] for line in source],
            }
            if tags:
                source = [[tag, *line] for tag, line in zip(cycle(tags), source)]
            if task == "denoising":
                found[f"{role}_text"] = write(f"text-{role}", source)
                continue
            found[f"{role}_source"] = write(f"{task}-{len(tags)}-{role}.source", source)
            if task in targets:
                found[f"{role}_target"] = write(f"{task}-{len(tags)}-{role}.target", targets[task])
        return found

    return fields


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The folder of a model to train further, with a search that transformers' loops do not have."""
    folder = tmp_path_factory.mktemp("base")
    texts = [" ".join(WORDS), " ".join(WORDS.values())]
    tokenizer = VanillaTransformerTokenizer.train(*([text] for text in texts), vocab_size=300, show_progress=False)
    torch.manual_seed(0)
    config = VanillaTransformerConfig(**{**NEW, "vocab_size": len(tokenizer)})
    model = VanillaTransformerForConditionalGeneration(config)
    own = {"num_beams": 3, "length_penalty": 0.6, "length_penalty_type": "gnmt", "max_extra_tokens": 8}
    model.generation_config.update(**own)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def as_options(fields):
    return [text for name, value in fields.items() for text in (f"--{name}", str(value))]


def call(path, recipe, corpus, base, out):
    """Train a recipe for a few steps: as `train` does, or as `distill` if it is a student's."""
    task = recipe.get("task", "translation")
    fields = {**corpus(recipe, task), **STEPS, "output_dir": str(out)}
    if "model_name_or_path" in recipe:
        fields["model_name_or_path"] = base
    else:
        fields |= NEW if task in ("translation", "denoising") else {name: NEW[name] for name in NEW if name in recipe}
    if "corrections" in recipe:
        fields["corrections"] = str(out.with_name("corrections.tsv"))
        Path(fields["corrections"]).write_text("one two\tdrei\n", encoding="utf-8")
    if recipe.get("train_source") == REQUIRED:
        del fields["train_target"]
        distill.main("distill", [base, str(path), *as_options(fields)])
    else:
        train.main("train", [str(path), *as_options(fields)])


def of_text(path):
    """Recipes of recordings and images are trained in recognition/test_run.py."""
    return yaml.load(path.read_text(encoding="utf-8"), RecipeLoader).get("task") not in ("speech", "image")


@pytest.mark.slow
@pytest.mark.parametrize("path", filter(of_text, sorted(RECIPES.glob("*.yaml"))), ids=lambda path: path.stem)
def test_every_recipe_ends_with_a_model_that_opens(path, corpus, base, tmp_path):
    recipe, out = yaml.load(path.read_text(encoding="utf-8"), RecipeLoader), tmp_path / "out"
    call(path, recipe, corpus, base, out)
    if (task := recipe.get("task", "translation")) != "translation":
        model, tokenizer = OPENED_AS[task].from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
        batch = tokenizer(["one two"], return_tensors="pt")
        if task == "denoising":
            batch["labels"] = batch["input_ids"]
        assert model(**batch).logits.isfinite().all()
        return
    translator = Translator.from_pretrained(out, device="cpu")
    searched = translator.model.generation_config
    wanted = {name: recipe[name] for name in SEARCH_FIELDS if name in recipe}
    assert {name: getattr(searched, name) for name in wanted} == wanted
    name = "validation.text" if "corrections" in recipe else "validation"
    assert len(read_predictions(out / f"predictions.{name}.tsv")) == 5
    assert len(translator.translate(["one two", "six"])) == 2


@pytest.mark.slow
@pytest.mark.parametrize("source", ["joeynmt", "tensor2tensor"])
def test_a_converted_model_is_trained_further_with_its_own_search(source, corpus, tmp_path):
    checkpoint, converted, out = tmp_path / "checkpoint", tmp_path / "converted", tmp_path / "out"
    checkpoints.write(source, checkpoint)
    if source == "joeynmt":
        settings = yaml.safe_load((checkpoint / "config.yaml").read_text())
        settings["testing"] = {"beam_size": 4, "beam_alpha": 0.6}
        (checkpoint / "config.yaml").write_text(yaml.safe_dump(settings))
    convert.main("convert", [source, str(checkpoint), str(converted)])
    fields = corpus({}, "translation")
    if source == "tensor2tensor":  # its subwords know no other letters
        for name, path in fields.items():
            fields[name] = str(tmp_path / name)
            Path(fields[name]).write_text(re.sub(r"\w+", "ab", Path(path).read_text(encoding="utf-8")))
    fields |= {**STEPS, "model_name_or_path": converted, "output_dir": out}
    fields |= {"max_source_length": 20, "max_target_length": 20, "too_long": "truncate"}
    train.main("train", [str(RECIPES / "finetune.yaml"), *as_options(fields)])
    translator = Translator.from_pretrained(out, device="cpu")
    assert translator.model.generation_config.length_penalty_type == "gnmt"
    assert len(translator.translate(["ab ab" if source == "tensor2tensor" else "one two"])) == 1
