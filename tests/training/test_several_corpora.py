"""Several corpora in one run: fine-tuning mixed with general text, and one model for several languages."""

import json

import pytest
import torch
import yaml
from conftest import RECIPE, WORDS
from transformers import AutoTokenizer

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.publishing.model_card import CardFacts
from vanilla_transformer_hf.training.recipe import RecipeParser
from vanilla_transformer_hf.training.run import run_job


FRENCH = dict(zip(WORDS, ["un", "deux", "trois", "quatre", "cinq", "six"], strict=True))
# `prepare` gives these of one corpus.
NO_TEXT = {f"{role}_{side}": None for role in ("train", "validation", "test") for side in ("source", "target")}
SIZES = dict.fromkeys(name for name in RECIPE if name.startswith(("d_model", "encoder_", "decoder_", "vocab")))


@pytest.fixture
def corpora(tmp_path):
    """`corpora(law={...}, general={...})`: their fields; the texts are numbers in German or French."""

    def write(**fields):
        found = {}
        for name, (words, size, more) in fields.items():
            folder = tmp_path / "texts"
            folder.mkdir(exist_ok=True)
            found[name] = dict(more)
            for role, count in (("train", size), ("validation", 3), ("test", 2)):
                path = folder / f"{name}.{role}.jsonl"
                keys = list(words) * (count // 6 + 1)
                path.write_text("".join(
                    json.dumps({"translation": {"en": f"{key} {name}", "xx": f"{words[key]} {name}"}}) + "\n"
                    for key in keys[:count]
                ), encoding="utf-8")  # fmt: skip
                found[name] |= {f"{role}_source": str(path), "target_column": "xx"}
        return found

    return write


def test_one_model_for_two_languages(prepare, corpora, capsys):
    texts = corpora(german=(WORDS, 12, {"target_lang": "de"}), french=(FRENCH, 24, {"target_lang": "fr"}))
    settings = {**NO_TEXT, "target_lang": None, "corpora": texts, "corpus_temperature": 5, "vocab_size": 275}
    scored = run_job(prepare(**settings))
    told = capsys.readouterr().out
    assert "train, german: 17 of the 36 pairs of an epoch (47.2%), from 12, so each is seen 1.42 times." in told
    assert "step 2 of 2, epoch" in told
    for line in ("validation german: loss", "validation french: loss", "validation: loss"):
        assert line in told
    assert [part.role for part in scored] == [
        f"{role}.{name}" for name in sorted(texts) for role in ("validation", "test")
    ]
    tokenizer = AutoTokenizer.from_pretrained(prepare.out)
    assert tokenizer.init_kwargs["target_lang_tags"] == {"de": "<2de>", "fr": "<2fr>"} and len(tokenizer) <= 275
    predicted = (prepare.out / "predictions.test.french.tsv").read_text(encoding="utf-8").splitlines()
    assert predicted[1].startswith("<2fr> one french\t")
    translator = Translator.from_pretrained(prepare.out, device="cpu", matmul_backend="default")
    translator.use_target_lang("fr")
    card = (prepare.out / "README.md").read_text(encoding="utf-8")
    assert (
        "- german: 17 of the 36 pairs" in card
        and "| test.french | 2 |" in card
        and str(prepare.out.parent) not in card
    )
    facts = CardFacts.read(prepare.out)
    assert facts.target_lang is None and facts.corpus == "french, german" and not facts.before


@pytest.fixture
def parent(prepare, tmp_path):
    prepare(output_dir=str(tmp_path / "parent")).trainer.save_model(str(tmp_path / "parent"))
    return tmp_path / "parent"


def test_a_domain_is_mixed_with_general_text_and_both_are_scored_before_and_after(prepare, corpora, parent, capsys):
    texts = corpora(law=(WORDS, 12, {"rate": 4}), general=(WORDS, 24, {"rate": 1}))
    settings = {**NO_TEXT, **SIZES, "model_name_or_path": str(parent), "corpora": texts}
    run_job(prepare(**settings))
    told = capsys.readouterr().out
    assert "train, law: 12 of the 15 pairs of an epoch (80.0%)" in told
    for name in texts:
        assert f"validation.{name}: BLEU " in told and f"before training: validation.{name}, 4 beams: BLEU" in told
    before = CardFacts.read(prepare.out).before
    assert [part.role for part in before] == ["validation.general", "validation.law"]
    card = (prepare.out / "README.md").read_text(encoding="utf-8")
    assert "The model that this training began with, decoded alike:" in card
    job = prepare(**settings)  # finished, and asked again
    run_job(job)
    assert "before training:" not in capsys.readouterr().out and CardFacts.read(prepare.out).before == before
    for damaged in ("[{", '[{"role": "x"}]', '[{"role": "x", "scores": {"bleu": 1}}]'):
        (prepare.out / "checkpoints" / "scores_before.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"scores_before\.json is damaged .*; without it, the run continues"):
            run_job(prepare(**settings))


def test_a_text_may_only_be_scored_and_the_weights_are_those_without(prepare, corpora, parent, tmp_path):
    texts = corpora(law=(WORDS, 12, {}), general=(WORDS, 24, {}))
    del texts["general"]["train_source"]
    one = {**NO_TEXT, **SIZES, "model_name_or_path": str(parent), "eval_strategy": "no", "save_strategy": "no",
           "load_best_model_at_end": None, "metric_for_best_model": None, "eval_steps": None}  # fmt: skip
    weights = []
    for name, text in (("a", {"corpora": texts}), ("b", texts["law"])):
        job = prepare(**{**one, **text}, output_dir=str(tmp_path / name))
        run_job(job)
        weights.append(job.trainer.model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert [part.role for part in CardFacts.read(tmp_path / "a").before] == ["validation.general", "validation.law"]


@pytest.mark.parametrize(
    "batches",
    ["tokens", pytest.param("sentences", marks=pytest.mark.slow), pytest.param("lengths", marks=pytest.mark.slow)],
)
def test_a_run_continues_inside_an_epoch(prepare, corpora, tmp_path, batches):
    texts = corpora(german=(WORDS, 13, {"rate": 1}), french=(FRENCH, 40, {"rate": 2}))
    kind = {
        "tokens": {"tokens_per_step": 60, "per_device_train_tokens": 60},
        "sentences": {"per_device_train_batch_size": 3, "tokens_per_step": None, "per_device_train_tokens": None},
    }
    kind["lengths"] = {**kind["sentences"], "train_sampling_strategy": "group_by_length"}
    settings = {**NO_TEXT, "corpora": texts, "lr_scheduler_type": "constant", "max_target_length": 20, "dropout": 0.1,
                "max_source_length": 20, "load_best_model_at_end": None, "eval_strategy": "no", "eval_steps": None,
                "metric_for_best_model": None, **kind[batches]}  # fmt: skip

    def weights(name, *steps):
        for step in steps:
            resume = {} if step == steps[0] else {"resume_from_checkpoint": "last"}
            job = prepare(**settings, max_steps=step, output_dir=str(tmp_path / name), **resume)
            job.trainer.train(resume_from_checkpoint=job.checkpoint)
        return job.trainer.model.state_dict()

    whole, parts = weights("whole", 9), weights("parts", 7, 9)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_changed_corpus_or_rate_is_said(prepare, corpora):
    texts = corpora(law=(WORDS, 12, {"rate": 4}), general=(WORDS, 24, {"rate": 1}))
    job = prepare(**NO_TEXT, corpora=texts, max_steps=1)
    job.trainer.train()
    job.lock.__exit__(None, None, None)
    with pytest.raises(ValueError, match=r"other settings \(corpora\)"):
        prepare(
            **NO_TEXT, corpora=corpora(law=(WORDS, 12, {"rate": 3}), general=(WORDS, 24, {"rate": 1})), max_steps=1
        )
    with pytest.raises(ValueError, match=r"law.train_source has other content"):
        prepare(
            **NO_TEXT, corpora=corpora(law=(WORDS, 11, {"rate": 4}), general=(WORDS, 24, {"rate": 1})), max_steps=1
        )


def test_tags_are_added_to_a_model_that_has_none(prepare, corpora, parent):
    texts = corpora(german=(WORDS, 12, {"target_lang": "de"}), french=(FRENCH, 24, {"target_lang": "fr"}))
    job = prepare(**NO_TEXT, **SIZES, target_lang=None, corpora=texts, model_name_or_path=str(parent))
    tokenizer = job.trainer.processing_class
    assert tokenizer.init_kwargs["target_lang_tags"] == {"de": "<2de>", "fr": "<2fr>"}
    assert job.trainer.model.config.vocab_size == len(tokenizer)
    assert job.trainer.train_dataset[0]["input_ids"][0] == tokenizer.convert_tokens_to_ids("<2fr>")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"corpora": {"a": {"source_lang": "en"}}}, "a names no text"),
        ({"corpora": {"a": {"validation_source": "text"}}}, "none of them has a train_source"),
    ],
)
def test_contradictions_are_one_line(prepare, corpora, settings, message):
    texts = corpora(law=(WORDS, 12, {}), general=(WORDS, 24, {}))
    with pytest.raises(ValueError, match=message):
        prepare(**{**NO_TEXT, "corpora": texts, "eval_strategy": "no", "load_best_model_at_end": None, **settings})


@pytest.mark.parametrize(
    "corpora, message",
    [
        ({}, "expected a mapping of names of corpora to their fields"),
        ({"a b": {}}, "'a b' is not a name of a corpus"),
        ({"a": "text"}, "a is not a mapping of fields"),
        ({"a": {"rates": 4}}, "a has a field 'rates'; a corpus has rate, train_source"),
        ({"a": {"rate": "4:1"}}, "a: rate is '4:1': expected a number"),
        ({"a": {"train_source": 3}}, "a: train_source is 3: expected text"),
    ],
)
def test_a_file_of_corpora_that_is_none(tmp_path, capsys, corpora, message):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(corpora), encoding="utf-8")
    for value in (str(tmp_path / "mine.yaml"), json.dumps(corpora)):
        with pytest.raises(SystemExit):
            RecipeParser(prog="train").parse(["--corpora", value])
        assert message in capsys.readouterr().err


def test_corpora_replace_the_text_of_a_recipe_and_are_exchanged(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "train_source: a.tsv\nvalidation_source: b.tsv\nsource_lang: en\nuse_cpu: true\n", encoding="utf-8"
    )
    argv = [str(recipe), "--corpora", '{"yor": {"train_source": "c.tsv", "target_lang": "yor"}}']
    run, settings = RecipeParser(prog="train").parse([*argv, "--reverse", "true"])
    assert "--corpora replaces train_source, validation_source of the recipe" in capsys.readouterr().err
    assert (
        run.data.corpora == {"yor": {"train_source": "c.tsv", "source_lang": "yor"}} and run.data.target_lang == "en"
    )
    assert settings["corpora"] == {"yor": {"train_source": "c.tsv", "target_lang": "yor"}}
