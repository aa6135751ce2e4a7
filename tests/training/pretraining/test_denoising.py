"""Denoising: a run, what it leaves, how it continues, fine-tuning on pairs, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vanilla_transformer_hf.training.arguments import DataArguments
from vanilla_transformer_hf.training.pretraining.denoising import (
    MASK_TOKEN,
    NOISE_FIELDS,
    NOISES,
    add_noise_tokens,
    check_denoising,
    make_denoising_collators,
)
from vanilla_transformer_hf.training.run import run_job


# Not those of pairs, and steps that are done at once.
FIELDS = {
    **{f"{role}_{side}": None for role in ("train", "validation", "test") for side in ("source", "target")},
    **{"task": "denoising", "metric_for_best_model": "loss", "source_lang": None, "target_lang": None},
}


@pytest.fixture
def texts(prepare, tmp_path):
    """Fields of a denoising run on number words in English and German."""
    return FIELDS | {
        f"{role}_text": [str(tmp_path / f"{role}.source"), str(tmp_path / f"{role}.target")]
        for role in ("train", "validation", "test")
    }


def test_a_run_leaves_a_model_that_says_what_it_is_and_is_trained_further(prepare, texts, tmp_path, capsys):
    run_job(prepare(**texts, text_langs=["en", "de"], target_lang_tags=["en", "de"], corpus_name="number words"))
    folder = tmp_path / "out"
    said = capsys.readouterr().out
    assert "train: 80 texts" in said and "test: loss " in said and "perplexity" in said
    card, facts = (folder / "README.md").read_text(), json.loads((folder / "card_facts.json").read_text())
    about = "Pretrained by denoising 80 texts of number words (en, de): text infilling as in BART: 30 % of the tokens"
    assert about in card and "It does not translate yet" in card and "pipeline_tag: feature-extraction" in card
    assert "- en\n- de" in card and "| test | perplexity |" in card and "80 texts, 2 steps" in card
    assert str(tmp_path) not in card and not list(folder.glob("predictions.*"))
    measured = facts["measured"]["validation"]
    assert measured["perplexity"] == pytest.approx(np.exp(measured["loss"]))
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.mask_token == MASK_TOKEN and model.config.vocab_size == len(tokenizer)
    assert model.generation_config.max_new_tokens == 30
    tagged = {f"{role}_source": str(tmp_path / f"{role}.tagged") for role in ("train", "validation", "test")}
    for role in ("train", "validation", "test"):
        lines = (tmp_path / f"{role}.source").read_text().splitlines()
        (tmp_path / f"{role}.tagged").write_text("".join(f"<2de> {line}\n" for line in lines))
    sizes = dict.fromkeys(name for name in prepare.recipe if name.startswith(("vocab", "d_model", "encoder", "decod")))
    job = prepare(**sizes, **tagged, model_name_or_path=str(folder), output_dir=str(tmp_path / "further"))
    began = job.trainer.model.state_dict()
    assert all(torch.equal(began[name], tensor) for name, tensor in model.state_dict().items())
    run_job(job)
    card = (tmp_path / "further" / "README.md").read_text()
    assert about in card and "pipeline_tag: translation" in card and "| test |" in card


@pytest.mark.slow
def test_a_run_that_continues_ends_like_one_that_did_not_stop(prepare, texts, tmp_path):
    """Of a stream; one of a table is among the golden runs."""
    settings = {**texts, "streaming": True, "shuffle_buffer_size": 20, "max_steps": 4, "dropout": 0.1}
    settings |= {"save_steps": 2, "eval_steps": 2}
    settings |= {"load_best_model_at_end": None, "metric_for_best_model": None, "noise": "spans"}
    run_job(prepare(**settings))
    whole = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").state_dict()
    scores = json.loads((tmp_path / "out" / "card_facts.json").read_text())["measured"]
    shutil.rmtree(tmp_path / "out/checkpoints/checkpoint-4")
    job = prepare(**settings)
    assert job.checkpoint.endswith("checkpoint-2")
    run_job(job)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert json.loads((tmp_path / "out" / "card_facts.json").read_text())["measured"] == scores


def test_noise_depends_on_seed_epoch_and_line_alone(prepare, texts):
    job = prepare(**texts, noise="spans", noise_rate=0.5)
    run, model, tokenizer = job.task.run, job.trainer.model, job.trainer.processing_class
    run.data.noise = "infilling"
    model.resize_token_embeddings(len(add_noise_tokens(tokenizer, run.data)))
    rows = [job.trainer.train_dataset[row] for row in range(30)]
    for noise in NOISES:
        run.data.noise = noise
        held_out, train = make_denoising_collators(run, model, tokenizer).values()
        first = train(rows)
        assert set(first) - {"decoder_input_ids"} == {"input_ids", "attention_mask", "labels", "line"}
        assert ("decoder_input_ids" in first) == (noise == "mass")
        assert all(torch.equal(first[name], tensor) for name, tensor in train(rows).items())
        backwards = train(rows[::-1])
        assert torch.equal(backwards["input_ids"].flip(0), first["input_ids"]), "not on what else is in a batch"
        train.set_epoch(1)
        assert not all(torch.equal(first[name], tensor) for name, tensor in train(rows).items())
        assert held_out.seed != train.seed and (first["input_ids"] == tokenizer.eos_token_id).sum() == len(rows)
        assert torch.isfinite(model(**{name: each for name, each in first.items() if name != "line"}).loss)


def test_files_of_pairs_give_the_texts_of_both_sides(prepare, texts, tmp_path):
    (tmp_path / "pairs.tsv").write_text("de\ten\nzwei\ttwo\n", encoding="utf-8")
    settings = texts | {"source_lang": "en", "target_lang": "de", "target_lang_tags": ["en", "de"]}
    settings |= {"train_text": [str(tmp_path / "pairs.tsv"), *texts["train_text"][:1]], "text_langs": ["en"]}
    settings |= {"validation_text": texts["validation_text"][:1], "test_text": None}
    job = prepare(**settings)
    tokenizer, data = job.trainer.processing_class, job.trainer.train_dataset
    assert len(data) == 42
    assert [tokenizer.decode(data[row]["labels"], skip_special_tokens=True) for row in (0, 1)] == ["two", "zwei"]
    tags = tokenizer.convert_tokens_to_ids(["<2en>", "<2de>"])
    assert [data[row]["input_ids"][0] for row in (0, 1, 2)] == [*tags, tags[0]]
    source = job.trainer.train_collator([data[1]])["input_ids"][0].tolist()
    assert source[0] == tags[1] and tokenizer.mask_token_id in source, "the tag stays"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_text": None}, "train_text is not given: name the text to train on"),
        ({"noise_rate": 0.0}, "noise_rate=0.0: must be greater than 0 and at most 1"),
        ({"noise": "mass", "span_length": 2.0}, "span_length=2.0 has no effect with noise=mass: remove it"),
        ({"span_length": 0.5}, "span_length=0.5: must be at least 1"),
    ],
)
def test_impossible_noise_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        check_denoising(DataArguments(**{"task": "denoising", "train_text": ["x"], **settings}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_source": "x"}, "train_source=x has no effect: task=denoising learns from train_text, and has no"),
        ({"tokens_per_step": None, "per_device_train_tokens": None}, "task=denoising needs batches that are filled"),
        ({"train_split": "dev"}, r"train_split=dev has no effect: .*train\.source, .*train\.target has no splits"),
        ({"validation_text": None}, "eval_strategy=steps needs validation_text"),
        ({"metric_for_best_model": "bleu"}, "metric_for_best_model=bleu: must be one of loss"),
        ({"text_langs": ["de"]}, "text_langs=de: 1 languages, but train_text names 2 plain-text files"),
        ({"target_lang_tags": ["de", "en"]}, "the language of .*train.source is not given: expected one of de, en"),
    ],
)
def test_what_is_impossible_is_said_before_text_is_read(settings, message, prepare, texts):
    with pytest.raises(ValueError, match=message):
        prepare(**(texts | settings))
    assert not prepare.out.exists()


def test_a_file_that_is_not_there_is_named(prepare, texts):
    with pytest.raises(FileNotFoundError, match=r"^nowhere.txt: no such file"):
        prepare(**(texts | {"train_text": ["nowhere.txt"]}))


def test_each_noise_can_be_chosen():
    assert set(DataArguments.__annotations__["noise"].__args__) == set(NOISES)
    assert set(NOISE_FIELDS) <= set(DataArguments.__annotations__)
