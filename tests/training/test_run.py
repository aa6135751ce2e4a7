"""Whole training runs at toy size, the Trainer, and what stops a run before its first step."""

import json
import logging
import re
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from host_search import forbid_host_loops
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerControl,
    TrainerState,
    get_inverse_sqrt_schedule,
)

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.common.checksums import verify_folder
from vanilla_transformer_hf.common.matmul import MatmulRow
from vanilla_transformer_hf.model.config.generation import VanillaTransformerGenerationConfig
from vanilla_transformer_hf.model.search.beam import BeamSearch
from vanilla_transformer_hf.publishing.model_card import CardFacts, write_card
from vanilla_transformer_hf.training import process
from vanilla_transformer_hf.training.checkpoints.averaging import select_checkpoints
from vanilla_transformer_hf.training.data.collators import TranslationCollator
from vanilla_transformer_hf.training.model import paper_learning_rate
from vanilla_transformer_hf.training.run import facts_of_run, run_job
from vanilla_transformer_hf.training.tasks import text_to_text
from vanilla_transformer_hf.training.trainer.progress import ShortRunWarning, ZeroScoreWarning, find_short_run
from vanilla_transformer_hf.training.trainer.translation import TranslationTrainer


RECIPES = Path(__file__).parents[2] / "vanilla_transformer_hf" / "training" / "recipes"


@pytest.fixture
def warnings_of_the_host(caplog):
    """The warnings that transformers logs; its own logger does not hand them on."""
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    yield lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    logger.removeHandler(caplog.handler)


def test_a_run_publishes_a_folder_that_opens(prepare, tmp_path, warnings_of_the_host, capsys):
    scored = run_job(prepare(license="cc0-1.0", card_example="one two"))
    out = tmp_path / "out"
    assert not warnings_of_the_host()
    published = {path.name for path in out.iterdir()}
    assert {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json", "training_curves.png", "predictions.validation.tsv", "predictions.test.tsv",
    } <= published  # fmt: skip
    assert set(verify_folder(out).right) == published - {"SHA256SUMS", "checkpoints"}
    assert not any(name.endswith((".bin", ".pt")) or "unfinished" in name for name in published)
    assert json.loads((out / "config.json").read_text())["use_cache"] is True
    GenerationConfig.from_pretrained(out).validate(strict=True)

    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForSeq2SeqLM.from_pretrained(out)
    rows = [line.split("\t") for line in (out / "predictions.test.tsv").read_text(encoding="utf-8").split("\n")[1:-1]]
    assert [row[0] for row in rows] == (tmp_path / "test.source").read_text().split("\n")[:-1]
    assert [row[2] for row in rows] == (tmp_path / "test.target").read_text(encoding="utf-8").split("\n")[:-1]
    ids = model.generate(**tokenizer([rows[0][0]], return_tensors="pt"))
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == [rows[0][1]]
    assert ids.shape[1] <= 31

    card = ModelCard.load(out / "README.md")
    values = {(result.dataset_split, result.metric_type): result.metric_value for result in card.data.eval_results}
    assert [part.role for part in scored] == ["validation", "test"]
    for part in scored:
        assert values[part.role, "chrf"] == round(part.scores.chrf, 2)
        assert str(part.scores) in capsys.readouterr().out or part.role == "test"


def test_the_same_command_continues_and_other_settings_are_refused(prepare, tmp_path, warnings_of_the_host):
    run_job(prepare(max_steps=4, save_steps=2, eval_steps=2))
    first = (tmp_path / "out" / "model.safetensors").read_bytes()
    again = prepare(max_steps=4, save_steps=2, eval_steps=2)
    assert again.checkpoint.endswith("checkpoint-4")
    run_job(again)
    assert again.trainer.state.global_step == 4
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == first
    with pytest.raises(ValueError, match=r"checkpoint-4 belongs to a run with other settings \(max_steps, dropout\)"):
        prepare(max_steps=5, save_steps=2, eval_steps=2, dropout=0.2)
    run_job(prepare(max_steps=5, save_steps=2, eval_steps=2, resume_from_checkpoint="last"))
    assert not warnings_of_the_host()
    with pytest.raises(ValueError, match=r"is not a checkpoint; the last one here is .*checkpoint-5"):
        prepare(resume_from_checkpoint="elsewhere")


def test_a_run_goes_on_from_an_earlier_checkpoint(prepare, tmp_path, capsys):
    """The later ones are no longer its own; nobody has to lose them."""
    settings = {"save_steps": 2, "eval_steps": 2, "load_best_model_at_end": False, "metric_for_best_model": None}
    checkpoints = tmp_path / "out" / "checkpoints"
    prepare(max_steps=6, **settings).trainer.train()
    job = prepare(max_steps=4, **settings, resume_from_checkpoint=str(checkpoints / "checkpoint-2"))
    assert "checkpoint-4, checkpoint-6: of later steps" in capsys.readouterr().out
    job.trainer.train(resume_from_checkpoint=job.checkpoint)
    assert {path.name for path in checkpoints.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    prepare(max_steps=4, **settings, resume_from_checkpoint=str(checkpoints / "checkpoint-2"))
    kept = {path.name for path in (checkpoints / "set_aside").iterdir()}
    assert kept == {"checkpoint-4", "checkpoint-6", "checkpoint-4.2"}


def test_a_checkpoint_from_elsewhere_brings_its_tokenizer(prepare, tmp_path):
    settings = {"max_steps": 2, "save_steps": 2, "eval_steps": 2}
    first = prepare(**settings)
    first.trainer.train()
    corpus = tmp_path / "other"
    corpus.write_text("\n".join(f"zyx {number} wvu" for number in range(40)), encoding="utf-8")
    other = {"train_source": str(corpus), "train_target": str(corpus), "output_dir": str(tmp_path / "new")}
    there = str(tmp_path / "out" / "checkpoints" / "checkpoint-2")
    second = prepare(**settings, **other, resume_from_checkpoint=there)
    assert second.trainer.processing_class.get_vocab() == first.trainer.processing_class.get_vocab()


def test_a_model_in_half_precision_is_trained_in_full(prepare, tmp_path):
    run_job(prepare())
    base = tmp_path / "out"
    AutoModelForSeq2SeqLM.from_pretrained(base).half().save_pretrained(base)
    job = prepare(**prepare.no_sizes, model_name_or_path=str(base), output_dir=str(tmp_path / "more"))
    assert {parameter.dtype for parameter in job.trainer.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("before, used", [("onednn", "default"), ("auto", "default"), ("default", "default")])
def test_the_backend_of_before_is_used_if_it_is_exact_here(prepare, tmp_path, monkeypatch, before, used):
    settings = {"max_steps": 2, "save_steps": 2, "eval_steps": 2}
    prepare(**settings).trainer.train()
    record = tmp_path / "out" / "checkpoints" / "recipe.yaml"
    text = record.read_text(encoding="utf-8")
    record.write_text(re.sub(r"chosen_matmul: \w+", f"chosen_matmul: {before}", text), encoding="utf-8")
    rows = [MatmulRow("default", 100.0, 1e-5), MatmulRow("onednn", 300.0, 0.3)]
    monkeypatch.setattr(process, "probe_matmul", lambda: rows)
    trainer = prepare(**settings).trainer
    assert trainer.args.matmul == trainer.facts.settings["matmul"] == used


def test_a_published_model_is_trained_further(prepare, tmp_path):
    run_job(prepare())
    base = str(tmp_path / "out")
    job = prepare(**prepare.no_sizes, model_name_or_path=base, output_dir=str(tmp_path / "more"), dropout=0.3)
    assert job.trainer.model.config.dropout == 0.3
    before = AutoModelForSeq2SeqLM.from_pretrained(base)
    torch.testing.assert_close(job.trainer.model.lm_head.weight, before.lm_head.weight)
    run_job(job)
    for rows in (100, 1000):  # so many more, Translator would refuse what was trained
        with pytest.raises(ValueError, match=f"the tokenizer has 290 source tokens and the model {rows} source"):
            prepare(vocab_size=rows, tokenizer_name_or_path=base, output_dir=str(tmp_path / f"other-{rows}"))


def test_the_published_tokenizer_says_how_long_sources_were(prepare, tmp_path):
    """Translator splits longer texts by it."""
    run_job(prepare(max_source_length=12))
    base = tmp_path / "out"
    assert AutoTokenizer.from_pretrained(base).model_max_length == 12
    assert Translator.from_pretrained(base, device="cpu").max_source_length == 12
    further = {**prepare.no_sizes, "model_name_or_path": str(base), "output_dir": str(tmp_path / "more")}
    for limit, known in ((10, 12), (14, 14), (50, None)):
        trainer = prepare(**further, max_source_length=limit).trainer
        longest = max(trainer.train_dataset["length"])
        assert trainer.processing_class.model_max_length == (known or longest) < 50, "no sentence has 50 tokens"
        part = trainer.processing_class.init_kwargs["part_max_length"]
        lengths = sorted(trainer.train_dataset["length"])
        assert lengths[len(lengths) * 4 // 5] <= part <= trainer.processing_class.model_max_length
    unknown = AutoTokenizer.from_pretrained(base, model_max_length=int(1e30))
    unknown.save_pretrained(base)
    assert prepare(**further, max_source_length=14).trainer.processing_class.model_max_length == 14


def test_the_tokenizer_says_how_many_sources_had_several_sentences(prepare, tmp_path):
    """Translator splits lines into sentences by it."""

    def share(**settings):
        tokenizer = prepare(**settings).trainer.processing_class
        return tokenizer.init_kwargs["multi_sentence_share"]

    source = tmp_path / "documents"
    source.write_text("".join(f"{'One. Two.' if row < 10 else 'Dr. one'}\n" for row in range(40)))
    run_job(prepare(train_source=str(source)))
    folder = tmp_path / "out"
    assert AutoTokenizer.from_pretrained(folder).init_kwargs["multi_sentence_share"] == 0.25
    assert not Translator.from_pretrained(folder, device="cpu").encoder().in_sentences
    assert share(output_dir=str(tmp_path / "other")) == 0
    assert share(**prepare.no_sizes, model_name_or_path=str(folder), output_dir=str(tmp_path / "more")) == 0.25


def test_long_training_pairs_bring_no_warning_of_the_host(prepare, warnings_of_the_host):
    prepare(max_source_length=9, max_target_length=9)
    assert not warnings_of_the_host()


def test_a_card_names_a_teacher_of_the_hub_and_no_folder(prepare, tmp_path):
    task = prepare().task
    for teacher, known in ((str(tmp_path), None), ("somebody/big", "somebody/big")):
        task.run.training.teacher = teacher
        facts = facts_of_run(task.run, {"teacher": teacher, "seed": 3}, tmp_path, pairs=3)
        assert facts.settings == {"seed": 3} | ({"teacher": known} if known else {})


def test_a_card_that_was_edited_stays(prepare, tmp_path, capsys):
    settings = {"max_steps": 2, "save_steps": 2, "eval_steps": 2}
    run_job(prepare(**settings))
    card = tmp_path / "out" / "README.md"
    assert "in less than a minute on" in card.read_text()
    run_job(prepare(**settings))
    assert "is kept, because it was edited" not in capsys.readouterr().out
    assert "in less than a minute on" in card.read_text()  # there was nothing left to do
    text = card.read_text() + "\nIn my own words.\n"
    for _ in range(2):
        card.write_text(text)
        run_job(prepare(**settings))
        assert card.read_text() == text and "is kept, because it was edited" in capsys.readouterr().out


def test_a_damaged_record_is_found_before_training(prepare, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "card_facts.json").write_text("{")
    with pytest.raises(ValueError, match=r"card_facts.json: damaged"):
        prepare()


def test_what_a_killed_run_left_is_gone_after_the_next(prepare, tmp_path):
    for left in ("out/.unfinished", "out/checkpoints/.tokenizer.unfinished"):
        (tmp_path / left).mkdir(parents=True)
        (tmp_path / left / "strange.json").write_text("{")
    run_job(prepare(max_steps=2, save_steps=2, eval_steps=2))
    assert not [*(tmp_path / "out").glob("*unfinished*"), *(tmp_path / "out").rglob("strange.json")]
    assert not (tmp_path / left).exists()


def test_a_run_without_anything_logged_has_no_picture(prepare, tmp_path):
    nothing = {"eval_strategy": "no", "load_best_model_at_end": False, "logging_steps": 50, "max_steps": 2}
    run_job(prepare(**nothing, metric_for_best_model=None, early_stopping_patience=None))
    assert not (tmp_path / "out" / "training_curves.png").exists()


def test_a_stream_has_no_epochs(prepare, tmp_path, capsys):
    run_job(prepare(streaming=True, max_steps=4, save_steps=2, eval_steps=2, logging_steps=1))
    shown = capsys.readouterr().out
    assert "step 2 of 4: " in shown and ", epoch" not in shown
    sentence = re.compile(r"^(?:\d+ sentence pairs, )?4 steps .*$", re.MULTILINE)
    assert "epoch" not in sentence.search((tmp_path / "out" / "README.md").read_text())[0]
    write_card(CardFacts.read(tmp_path / "out" / "checkpoints" / "checkpoint-2"), tmp_path / "out")
    assert "epoch" not in re.search(r"^2 steps.*$", (tmp_path / "out" / "README.md").read_text(), re.MULTILINE)[0]


def test_an_adapter_is_not_trained_further(prepare, tmp_path, monkeypatch):
    base = prepare().trainer.model.requires_grad_(False)
    base.config.save_pretrained(tmp_path / "adapter")
    report = dict.fromkeys(("missing_keys", "mismatched_keys", "unexpected_keys"), ())
    monkeypatch.setattr(AutoModelForSeq2SeqLM, "from_pretrained", lambda *args, **kwargs: (base, report))
    prepare().trainer.processing_class.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match="is an adapter, whose base model is frozen"):
        prepare(**prepare.no_sizes, model_name_or_path=str(tmp_path / "adapter"), output_dir=str(tmp_path / "more"))


def test_an_upload_that_is_refused_says_that_the_model_is_complete(prepare, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("no such owner")

    job = prepare(max_steps=2, save_steps=2, eval_steps=2)
    job.trainer.args.push_to_hub = True
    monkeypatch.setattr(job.trainer, "upload", refuse)
    with pytest.raises(OSError, match="out is complete but was not published: no such owner"):
        run_job(job)


def test_the_search_of_the_recipe_is_the_models(prepare, warnings_of_the_host):
    searched = prepare(num_beams=3, length_penalty=1.4).trainer.model.generation_config
    assert (searched.num_beams, searched.length_penalty) == (3, 1.4)
    searched_greedily = prepare(num_beams=3, length_penalty=1.4).trainer
    searched_greedily.evaluate()
    assert not warnings_of_the_host()
    assert prepare(num_beams=1, length_penalty=1.4).trainer.model.generation_config.length_penalty is None


def test_the_papers_search(prepare, warnings_of_the_host):
    settings = {"length_penalty": 0.6, "length_penalty_type": "gnmt", "max_extra_tokens": 50}
    trainer = prepare(**settings).trainer
    found = trainer.model.generation_config
    assert {name: getattr(found, name) for name in settings} == settings
    assert (found.num_beams, found.max_new_tokens, found.max_length) == (4, None, None)
    trainer.evaluate()
    assert not warnings_of_the_host()
    assert prepare(**settings, generation_max_length=9).trainer.model.generation_config.max_new_tokens == 9
    for name in ("paper_base", "paper_big"):
        recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
        assert settings.items() <= recipe.items() and recipe["num_beams"] == 4


@pytest.mark.parametrize("kind", ["length_penalty_type", "max_extra_tokens"])
def test_evaluation_uses_the_search_of_this_package(prepare, monkeypatch, kind):
    """In training and at the end; transformers' loops do not have these options."""
    forbid_host_loops(monkeypatch)
    searches, run = [], BeamSearch.run
    monkeypatch.setattr(BeamSearch, "run", lambda search: searches.append(search.plan.options) or run(search))
    options = {"length_penalty_type": "gnmt", "length_penalty": 0.6} if kind == "length_penalty_type" else {kind: 5}
    run_job(
        prepare(
            num_beams=3, generation_num_beams=2, per_device_eval_batch_size=3, eval_steps=2, save_steps=2, **options
        )
    )
    assert len(searches) == 2 + 2 + 2 and all(getattr(each, kind) == options[kind] for each in searches)
    assert Translator.from_pretrained(prepare.out, device="cpu").translate(["one two"])


def test_a_text_without_references_is_translated(prepare):
    trainer = prepare().trainer
    expected = trainer.predict(trainer.eval_dataset) and trainer.translations
    sources = trainer.eval_dataset.select_columns(["input_ids"])
    for collator in (trainer.data_collator, DataCollatorForSeq2Seq(trainer.processing_class, model=trainer.model)):
        trainer.data_collator = collator
        trainer.predict(sources)
        assert trainer.translations == expected


@pytest.mark.parametrize(
    "settings, warning",
    [
        (
            {"warmup_steps": 4000},
            r"10 updates of the weights, all in its warm-up of 4,000: .* raise max_steps or lower warmup_steps to",
        ),
        (
            {"max_steps": 5},
            r"5 updates of the weights, which is too few to learn .*; raise max_steps or lower tokens_per_step\.$",
        ),
        (
            {"max_steps": 1},
            "makes 1 update of the weights, which is too few to learn anything, and all in its warm-up",
        ),
        ({"max_steps": None, "num_train_epochs": 1}, "updates of the weights, .*raise num_train_epochs"),
        ({"eval_delay": 10}, None),
        (
            {"eval_delay": 11},
            r"weights, which end before eval_delay=11, so .* in training; raise max_steps or lower eval_delay\.$",
        ),
        ({"warmup_steps": 4000, "lr_scheduler_type": "constant", "learning_rate": 0.1}, None),
        ({}, None),
    ],
    ids=str,
)
def test_a_run_that_is_too_short_says_so_at_its_start(prepare, capsys, settings, warning):
    steps = {"max_steps": 10, "eval_steps": 99, "save_steps": 99, "load_best_model_at_end": False}
    trainer = prepare(**{**steps, "metric_for_best_model": None, **settings}).trainer
    arguments, count = trainer.args, 4 if settings.get("num_train_epochs") else trainer.args.max_steps
    state = TrainerState(max_steps=count)
    trainer.callback_handler.on_train_begin(arguments, state, TrainerControl())
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning: the run makes")]
    assert len(lines) == (warning is not None) and (warning is None or re.search(warning, lines[0])), lines
    state.global_step = count
    trainer.callback_handler.on_train_begin(arguments, state, TrainerControl())
    shown = capsys.readouterr().out
    assert "Warning" not in shown and f"All {count} updates are done: nothing is trained; raise " in shown


def test_a_new_tokenizer_normalises_and_says_so(prepare, tmp_path):
    assert prepare().trainer.processing_class("e\u0301\u00a0 x\n") == prepare().trainer.processing_class("é x")
    plain = prepare(unicode_normalization="none", output_dir=str(tmp_path / "plain")).trainer.processing_class
    assert plain("e\u0301\n")["input_ids"] == plain("e\u0301")["input_ids"] != plain("é")["input_ids"]


def test_the_name_of_a_language_in_place_of_its_code_is_told(prepare, tmp_path, capsys):
    prepare(target_lang="German")
    told = "Warning: German is a name: scores and the card look for the code of a language, de."
    assert told in capsys.readouterr().out.splitlines()
    for code in ("de-DE", "deu_Latn", "xq_own", "x1"):
        prepare(target_lang=code, output_dir=str(tmp_path / code))
        assert "is a name" not in capsys.readouterr().out


def test_a_run_that_ends_within_its_first_epoch_says_so(prepare, capsys):
    training = prepare().trainer.args
    assert find_short_run(training, 10, epoch=10) is None
    training.warmup_steps = 1
    assert "warm-up" not in find_short_run(training, 1), "which cannot be shorter"
    assert "10 updates of the weights, fewer than the 11 that see all of its" in find_short_run(training, 10, 11)
    ShortRunWarning().on_train_begin(training, TrainerState(max_steps=0), TrainerControl())
    assert "Warning: the run makes 0 updates of the weights, which is too few" in capsys.readouterr().out
    training.eval_strategy, training.eval_delay = "epoch", 2
    assert find_short_run(training, 20, epoch=10) is find_short_run(training, 19) is None, "a stream's is unknown"
    assert "19 updates of the weights, which end before eval_delay=2" in find_short_run(training, 19, epoch=10)
    for batches, warns in ((training.max_steps, False), (training.max_steps + 1, True)):
        loader = range(batches * training.gradient_accumulation_steps)
        state = TrainerState(max_steps=training.max_steps)
        ShortRunWarning().on_train_begin(training, state, TrainerControl(), train_dataloader=loader)
        assert ("fewer than" in capsys.readouterr().out) == warns


def test_a_model_that_is_trained_further_keeps_its_own_search(prepare, tmp_path):
    model, tokenizer = prepare().trainer.model, prepare().trainer.processing_class
    base, own = tmp_path / "base", {"num_beams": 3, "length_penalty": 0.6, "early_stopping": True}
    own |= {"length_penalty_type": "gnmt", "max_extra_tokens": 7, "suppress_tokens": [5]}
    model.generation_config = VanillaTransformerGenerationConfig(**own, eos_token_id=model.config.eos_token_id)
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    further = {**prepare.no_sizes, "model_name_or_path": str(base), "output_dir": str(tmp_path / "more")}
    found = prepare(**further).trainer.model.generation_config
    assert {name: getattr(found, name) for name in own} == own and found.max_new_tokens is None
    found = prepare(**further, num_beams=1, max_extra_tokens=9).trainer.model.generation_config
    assert (found.num_beams, found.max_extra_tokens, found.length_penalty, found.suppress_tokens) == (1, 9, None, [5])


@pytest.mark.parametrize("given, used", [(None, "eager"), ("sdpa", "sdpa")])
def test_on_a_cpu_attention_is_plain_products_unless_told(prepare, given, used):
    assert prepare(attn_implementation=given).trainer.model.config._attn_implementation == used


def test_two_vocabularies(prepare):
    job = prepare(separate_vocabularies=True, embedding_sharing="decoder", tokenizer_model="wordpiece")
    tokenizer, config = job.trainer.processing_class, job.trainer.model.config
    assert (config.source_vocab_size, config.vocab_size) == (tokenizer.source_vocab_size, len(tokenizer))
    job.trainer.train()


def test_evaluation_is_not_cut_at_20_tokens_and_leaves_the_generation_config_alone(prepare):
    trainer = prepare().trainer
    with torch.no_grad():
        trainer.model.model.shared.weight[trainer.processing_class.eos_token_id] = 0  # it hardly ever ends
    before = trainer.model.generation_config.to_dict()
    metrics = trainer.evaluate()
    assert trainer.model.generation_config.to_dict() == before
    assert {"eval_bleu", "eval_chrf", "eval_exact_match", "eval_loss"} <= metrics.keys()
    assert trainer.predict(trainer.eval_dataset).predictions.shape[1] == 31
    assert trainer.references == list(trainer.eval_dataset["target"])


def test_without_generation_in_training_the_result_is_scored_all_the_same(prepare):
    job = prepare(predict_with_generate=False, metric_for_best_model="loss")
    assert not {"eval_bleu", "eval_chrf"} & job.trainer.evaluate().keys()
    assert [part.scores.sentences for part in run_job(job)] == [6, 5]


def test_sentences_of_one_length_come_together_but_scored_text_keeps_its_order(prepare):
    sentences = {"tokens_per_step": None, "per_device_train_tokens": None, "per_device_train_batch_size": 4}
    trainer = prepare(**sentences, train_sampling_strategy="group_by_length").trainer
    lengths = list(trainer.train_dataset["length"])
    order = list(trainer._get_train_sampler(trainer.train_dataset.remove_columns("length")))
    assert sorted(order) == list(range(40))

    def spread(rows):
        batches = [[lengths[row] for row in rows[start : start + 4]] for start in range(0, 40, 4)]
        return sum(max(batch) - min(batch) for batch in batches)

    assert spread(order) < spread(range(40))
    seen, generate = [], trainer.model.generate
    trainer.model.generate = lambda **batch: seen.extend(batch["attention_mask"].sum(dim=1)) or generate(**batch)
    trainer.evaluate()
    assert len({*seen}) > 1 and seen == [len(ids) for ids in trainer.eval_dataset["input_ids"]]


def test_the_hosts_schedule_is_the_papers():
    warmup, d_model = 4000, 512
    optimizer = torch.optim.Adam([torch.zeros(1)], lr=paper_learning_rate(d_model, warmup))
    schedule = get_inverse_sqrt_schedule(optimizer, num_warmup_steps=warmup)
    for step in (1, 17, 3999, 4000, 4001, 100_000):
        expected = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert optimizer.defaults["lr"] * schedule.lr_lambdas[0](step) == pytest.approx(expected, rel=1e-12)


def test_the_hosts_own_trainer_says_nothing_about_missing_or_unexpected_keys(
    prepare, tmp_path, tiny_model, warnings_of_the_host
):
    job = prepare()
    tokenizer, data = job.trainer.processing_class, job.trainer.train_dataset.remove_columns(["line", "length"])
    model = tiny_model(vocab_size=len(tokenizer))
    model.generation_config.update(max_new_tokens=5, num_beams=2, length_penalty_type="gnmt")
    for steps in (2, 4):
        arguments = {
            name: prepare.recipe[name]
            for name in ("eval_strategy", "eval_steps", "save_steps", "use_cpu", "disable_tqdm")
        }
        arguments |= {"load_best_model_at_end": True, "predict_with_generate": True, "dataloader_pin_memory": False}
        trainer = Seq2SeqTrainer(
            model,
            Seq2SeqTrainingArguments(str(tmp_path / "host"), max_steps=steps, **arguments),
            data_collator=TranslationCollator(tokenizer, source_vocab_size=290, target_vocab_size=290),
            train_dataset=data,
            eval_dataset=data.select(range(4)),
            processing_class=tokenizer,
        )
        trainer.train(resume_from_checkpoint=steps == 4)
    assert not [message for message in warnings_of_the_host() if "keys" in message]
    assert model.lm_head.weight.data_ptr() == model.model.encoder.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize(
    "files, message",
    [
        ([], "cannot open the config of"),
        (["config.json"], "cannot open the tokenizer of"),
        (["config.json", "tokenizer.json", "tokenizer_config.json"], "cannot open the weights of"),
        (["adapter_config.json"], "is an adapter without its model"),
    ],
)
def test_a_model_that_cannot_be_opened_is_named_in_one_line(prepare, tmp_path, files, message):
    prepare().trainer.save_model(tmp_path / "whole")
    (tmp_path / "whole" / "adapter_config.json").write_text("{}")
    base = tmp_path / "base"
    base.mkdir()
    for name in files:
        (base / name).write_bytes((tmp_path / "whole" / name).read_bytes())
    further = {**prepare.no_sizes, "model_name_or_path": str(base), "output_dir": str(tmp_path / "more")}
    with pytest.raises((ValueError, OSError), match=f"{message}|{base} {message}") as error:
        prepare(**further)
    assert "\n" not in str(error.value)


def test_a_name_that_is_nothing_is_refused_before_any_text_is_read(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(text_to_text, "load_corpora", None)
    for name in ("no/such/folder", "no-such-model"):
        with pytest.raises(OSError, match=name):
            prepare(**prepare.no_sizes, model_name_or_path=name)


def test_weights_that_are_missing_are_not_filled_with_random_numbers(prepare, tmp_path):
    prepare().trainer.save_model(tmp_path / "base")
    weights = load_file(tmp_path / "base" / "model.safetensors")
    name = next(name for name in weights if "encoder" in name)
    save_file({other: value for other, value in weights.items() if other != name}, tmp_path / "base/model.safetensors")
    further = {**prepare.no_sizes, "model_name_or_path": str(tmp_path / "base")}
    with pytest.raises(OSError, match=rf"weights of .*base: 1 tensors are missing .*{name}"):
        prepare(**further)


@pytest.mark.parametrize(("field", "side"), [("", "source"), ("decoder_", "target")])
def test_texts_that_the_positions_of_a_model_do_not_reach_are_refused(prepare, field, side):
    """They ended the training with an IndexError, at the first batch that had one."""
    positions = {"max_position_embeddings": 99, f"{field}max_position_embeddings": 2}
    message = (
        rf"^train: the longest {side} text has .* and the model 2 positions: lower max_{side}_length to 2, or raise"
    )
    with pytest.raises(ValueError, match=message):
        prepare(position_encoding="learned", **positions)
    prepare(position_encoding="learned", max_position_embeddings=99)


def test_a_config_field_that_contradicts_the_model_is_refused(prepare, tmp_path):
    prepare().trainer.save_model(tmp_path / "base")
    further = {**prepare.no_sizes, "model_name_or_path": str(tmp_path / "base")}
    with pytest.raises(ValueError, match=r"d_model=64 contradicts .*base, which has d_model=32; remove it"):
        prepare(**further | {"d_model": 64})
    job = prepare(**further | {"d_model": 32, "dropout": 0.25}, output_dir=str(tmp_path / "more"))
    assert job.trainer.model.config.dropout == 0.25


@pytest.mark.parametrize(
    "kind",
    [
        {"encoder_attention_type": "window", "attention_window": 2, "decoder_attention_type": "blocks"},
        {"encoder_attention_type": "chunk", "attention_block": 2, "chunk_summary": "mean"},
        {"encoder_attention_type": "window_global", "global_tokens": 2, "global_projections": "shared"},
    ],
    ids=lambda kind: kind["encoder_attention_type"],
)
def test_a_model_is_trained_further_with_attention_of_the_same_weights(prepare, tmp_path, kind):
    before = prepare().trainer
    before.save_model(tmp_path / "base")
    further = {**prepare.no_sizes, "model_name_or_path": str(tmp_path / "base")}
    model = prepare(**further, **kind, output_dir=str(tmp_path / "more")).trainer.model
    assert {name: getattr(model.config, name) for name in kind} == kind
    assert type(model.get_encoder().layers[0].self_attn) is not type(before.model.get_encoder().layers[0].self_attn)
    weights = before.model.state_dict()
    assert all(torch.equal(weights[name].cpu(), tensor.cpu()) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "kind, message",
    [
        (
            {"encoder_attention_type": "linformer"},
            "encoder_attention_type=linformer: its weights are not those of full",
        ),
        ({"decoder_attention_type": "lsh"}, "decoder_attention_type=lsh: its weights are not those of full"),
        ({"encoder_attention_type": "window_global"}, "projections of their own, .* add global_projections=shared"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attention_of_other_weights_is_refused_before_any_text_is_read(prepare, tmp_path, monkeypatch, kind, message):
    prepare().trainer.save_model(tmp_path / "base")
    monkeypatch.setattr(text_to_text, "load_corpora", None)
    with pytest.raises(ValueError, match=message):
        prepare(**prepare.no_sizes, **kind, model_name_or_path=str(tmp_path / "base"))


BEST = {"load_best_model_at_end": False}
LAST = {**BEST, "metric_for_best_model": None}
GIVEN = {"tokenizer_name_or_path": "x", "vocab_size": None}
NO_TOKENS = {"tokens_per_step": None, "per_device_train_tokens": None}


# Which options need or exclude which others is in test_recipe.py; one of each is here.
@pytest.mark.parametrize(
    "settings, message",
    [
        ({"train_source": None}, "train_source is not given"),
        ({"validation_source": None}, "eval_strategy=steps needs validation_source"),
        ({"per_device_train_batch_size": 7}, "tokens_per_step and per_device_train_batch_size exclude each other"),
        ({"tokens_per_step": None}, "per_device_train_tokens=120 has no effect: it needs tokens_per_step"),
        ({"tokens_per_step": 30}, "a batch of 30 tokens has no room for a sentence of 60"),
        ({"streaming": True, "max_steps": None}, "streaming needs max_steps"),
        ({"streaming": True, "dataloader_num_workers": 2}, "dataloader_num_workers=2: a stream is read by one worker"),
        ({"learning_rate": None, "warmup_steps": 0.1}, "the paper's learning rate needs a number of steps"),
        ({"learning_rate": None, "warmup_steps": 0}, "warmup_steps=0"),
        ({**LAST, "average_best": 2, "eval_strategy": "no"}, "average_best=2 has no effect: it needs eval_strategy"),
        ({**LAST, "average_best": 3, "save_total_limit": 9}, "=9: an average of the best .* needs all of them"),
        ({**LAST, "average_last": 3, "save_total_limit": 2}, "=2: averaging 3 checkpoints needs 3 or more"),
        ({**BEST, "average_last": 3, "save_total_limit": 3}, "=3: averaging 3 checkpoints needs 4 or more"),
        ({**LAST, "average_last": 3, "save_strategy": "no"}, "save_strategy=no leaves no checkpoints to average"),
        ({**LAST, "moving_average": 1.0}, "moving_average=1.0: must be at least 0 and less than 1"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0: must be at least 0"),
        ({**LAST, "early_stopping_patience": 2}, "early_stopping_patience needs metric_for_best_model"),
        ({**BEST, "early_stopping_patience": 2, "eval_strategy": "no"}, "early_stopping_patience=2 has no effect: it"),
        ({"metric_for_best_model": "blue"}, "metric_for_best_model=blue: must be one of bleu, chrf, exact_match"),
        ({"predict_with_generate": False}, "metric_for_best_model=bleu: must be one of loss"),
        ({"fp16": True}, "fp16=True has no effect: CPUs"),
        ({"do_predict": True}, "do_predict=True has no effect: training always scores"),
        ({"validation_split": "dev"}, r"validation_split=dev has no effect: .*source has no splits"),
        (
            {"test_source": None, "test_target": None, "test_split": "dev"},
            "test_split=dev has no effect: it needs test",
        ),
        ({"source_column": "english"}, "source_column=english has no effect: two plain files have no columns"),
        ({"dataset_config_name": "de-en"}, "dataset_config_name=de-en has no effect: no text is a dataset of the Hub"),
        ({"noise_rate": 0.2}, "noise_rate=0.2 has no effect: it needs task=denoising"),
        ({**GIVEN, "tokenizer_model": "wordpiece"}, "tokenizer_model=wordpiece has no effect: the tokenizer is that"),
        ({**GIVEN, "unicode_normalization": "NFD"}, "unicode_normalization=NFD has no effect: the tokenizer is that"),
        ({"bpe_dropout": 0.1, "tokenizer_model": "wordpiece"}, "bpe_dropout=0.1 needs tokenizer_model=bpe"),
        ({"bpe_dropout": 1.5}, "bpe_dropout=1.5: must be a probability"),
        (
            {**NO_TOKENS, "by_pairs": {9: {"bpe_dropout": 0.1}}},
            "bpe_dropout=0.1 has no effect: it needs tokens_per_step",
        ),
        ({"tokenizer_model": "wordpiece", "by_pairs": {9: {"bpe_dropout": 0.1}}}, "bpe_dropout=0.1 needs tokenizer_m"),
        ({"by_pairs": {9: {"bpe_dropout": 1.5}}}, "bpe_dropout=1.5: must be a probability"),
        ({"by_pairs": {9: {"activation_dropout": 7.0}}}, "activation_dropout"),
        ({"num_beams": 0}, "num_beams"),
        ({"max_source_length": 1}, "max_source_length=1"),
        ({"d_model": 33}, "d_model"),
        ({"front_end": "speech"}, "front_end=speech with task=translation: must be tokens"),
        ({"push_to_hub": True, "license": "CC BY"}, "license='CC BY': must be an identifier"),
    ],
)
def test_what_is_wrong_with_the_plan_is_said_before_any_text_is_read(
    prepare, tmp_path, monkeypatch, settings, message
):
    monkeypatch.setattr(text_to_text, "load_corpora", None)
    with pytest.raises(Exception, match=message) as error:
        prepare(**settings)
    assert not isinstance(error.value, TypeError)
    assert not (tmp_path / "out").exists()


def test_sizes_go_by_the_number_of_pairs(prepare, tmp_path, capsys):
    """40 pairs here; what the recipe sets itself, here the width and three layers of the decoder, stays."""
    table = {20: {"dropout": 0.4, "encoder_layers": 1}, 55: {"dropout": 0.3, "encoder_layers": 2, "d_model": 64}}
    settings = {"by_pairs": table, "encoder_layers": None, "dropout": None, "max_steps": 2, "save_steps": 2}
    job = prepare(**settings)
    line = "40 training pairs: dropout 0.3, encoder_layers 2, as the recipe has it for 55 pairs (by_pairs); options"
    assert line in capsys.readouterr().out
    config = job.trainer.model.config
    assert (config.dropout, config.encoder_layers, config.d_model) == (0.3, 2, prepare.recipe["d_model"])
    record = yaml.safe_load((tmp_path / "out" / "checkpoints" / "recipe.yaml").read_text(encoding="utf-8"))
    assert "by_pairs" not in record and (record["dropout"], record["encoder_layers"]) == (0.3, 2)
    assert job.trainer.facts.settings["encoder_layers"] == 2 and "by_pairs" not in job.trainer.facts.settings
    # A run that continues keeps its sizes, also when its text is another one.
    job.trainer.train()
    for side in ("source", "target"):
        path = tmp_path / f"train.{side}"
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(True)[:12]), encoding="utf-8")
    again = prepare(**settings | {"max_steps": 4}, resume_from_checkpoint="last")
    assert "12 training pairs: dropout 0.3, encoder_layers 2, as the run began.\n" in capsys.readouterr().out
    assert again.trainer.model.config.encoder_layers == 2 and again.start.changes.data == (
        "train_source",
        "train_target",
    )
    new = prepare(**settings, output_dir=str(tmp_path / "new"))
    assert (new.trainer.model.config.dropout, new.trainer.model.config.encoder_layers) == (0.4, 1)
    # From a checkpoint elsewhere, too.
    elsewhere = str(tmp_path / "out" / "checkpoints" / "checkpoint-2")
    other = prepare(**settings, output_dir=str(tmp_path / "other"), resume_from_checkpoint=elsewhere)
    assert other.trainer.model.config.encoder_layers == 2


def test_the_size_of_the_vocabulary_is_printed(prepare, tmp_path, capsys):
    prepare()
    assert "vocabulary: 290 tokens.\n" in capsys.readouterr().out
    prepare(vocab_size=5000, output_dir=str(tmp_path / "more"))
    shown = capsys.readouterr().out
    assert re.search(r"vocabulary: \d\d\d tokens; vocab_size is 5,000, but the training text has too few", shown)
    prepare(separate_vocabularies=True, embedding_sharing="decoder", output_dir=str(tmp_path / "two"))
    assert re.search(r"vocabularies: \d+ source tokens and \d+ target tokens", capsys.readouterr().out)


def test_bfloat16_that_is_slower_than_float32_is_said_to_be(prepare, tmp_path, capsys, monkeypatch):
    """A line with both speeds, from which a CPU without fast products of bfloat16 is known."""
    speeds = {"default": 167.0, "onednn": 164.0, "bfloat16": 92.0}
    monkeypatch.setattr(process, "known_speeds", lambda *names: speeds)
    prepare(bf16=True, matmul="default")
    assert "bf16: float32 is faster on this CPU, 167 to 92 GFLOP/s: --bf16 false\n" in capsys.readouterr().out
    prepare(bf16=False, output_dir=str(tmp_path / "float32"))
    speeds["bfloat16"] = 320.0
    prepare(bf16=True, matmul="default", output_dir=str(tmp_path / "fast"))
    assert "bf16:" not in capsys.readouterr().out


def test_the_arguments_stay_as_they_were_given(prepare, tmp_path):
    job = prepare(learning_rate=None, generation_max_length=12)
    assert job.task.run.training.output_dir == str(tmp_path / "out") == str(job.folder)
    assert (job.task.run.training.learning_rate, job.task.run.training.generation_max_length) == (None, 12)
    assert job.task.run.training.hub_model_id is None
    assert job.trainer.args.output_dir == str(tmp_path / "out" / "checkpoints")
    assert job.trainer.args.learning_rate == paper_learning_rate(32, 4)


def test_a_log_has_lines_alone(prepare, capfd):
    """No bars of the libraries, no blank lines, no questions of sacreBLEU at every evaluation."""
    dotted = prepare.out.parent / "dotted"
    dotted.write_text("one .\n" * 150, encoding="utf-8")
    run_job(prepare(validation_source=str(dotted), validation_target=str(dotted)))
    shown = capfd.readouterr()
    assert all(shown.out.splitlines()), shown.out
    for noise in ("Writing model shards", "Generating", "Tokenizing", "it/s", "tokenized period"):
        assert noise not in shown.err + shown.out


def test_what_scores_need_is_looked_for_before_training(prepare, monkeypatch, capsys):
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(
        ValueError, match=r"tokenize='ja-mecab': sacreBLEU cannot make this tokenizer: pip install 'sa"
    ):
        prepare(target_lang="ja", bleu_tokenize="ja-mecab")
    job = prepare(target_lang="ja")
    assert "Warning: BLEU of ja is computed on characters, because ja-mecab is not" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        scored = run_job(job)
    assert all("tok:char" in part.scores.bleu_signature for part in scored)


def test_evaluations_during_training_have_a_limit_of_their_own(prepare):
    """Scores of young models are of texts that are cut; those at the end, and the model, are as without it."""
    lengths = []
    for fields in ({}, {"eval_max_extra_tokens": 1, "output_dir": f"{prepare.out}-2"}):
        job, found = prepare(**fields), []

        def listening(*args, generate=job.trainer.model.generate, trainer=job.trainer, found=found, **kwargs):
            tokens = generate(*args, **kwargs)
            found.append((trainer.is_in_train, tokens.shape[1] - kwargs["input_ids"].shape[1]))
            return tokens

        job.trainer.model.generate = listening
        job.trainer.train()
        job.trainer.predict(job.scored_data["validation"])
        assert job.trainer.model.generation_config.max_extra_tokens is None
        lengths.append({kind: [more for in_train, more in found if in_train == kind] for kind in (True, False)})
    plain, limited = lengths
    assert max(plain[True]) > 2 >= max(limited[True]), "with the first token"
    assert limited[False] == plain[False]


def test_a_sample_of_the_validation_text_is_scored_during_training(prepare):
    job = prepare(eval_sample=4)
    sample, whole = job.trainer.eval_dataset, job.scored_data["validation"]
    assert len(sample) == 4 < len(whole) == 6 and set(sample["line"]) <= set(whole["line"])
    assert sample["line"] == prepare(eval_sample=4, output_dir=f"{prepare.out}-2").trainer.eval_dataset["line"]
    assert len(prepare(eval_sample=60, output_dir=f"{prepare.out}-3").trainer.eval_dataset) == 6
    validation = next(part for part in run_job(job) if part.role == "validation")
    assert validation.scores.sentences == 6


def test_the_score_of_one_text_for_all_sources_chooses_no_checkpoint(prepare, monkeypatch, capsys):
    score, calls = TranslationTrainer._score, []

    def scored(self, prediction):
        calls.append(None)
        return {**score(self, prediction), "chrf": 10 - len(calls), "variety": 80 if len(calls) == 2 else 3}

    monkeypatch.setattr(TranslationTrainer, "_score", scored)
    job = prepare(max_steps=3, metric_for_best_model="chrf")
    run_job(job)
    state = job.trainer.state
    assert (state.best_metric, Path(state.best_model_checkpoint).name) == (8, "checkpoint-2")
    assert [entry["eval_chrf"] for entry in state.log_history if "eval_chrf" in entry] == [9, 8, 7]  # as measured
    assert "step 1: nearly all sources have the same translation (" in capsys.readouterr().out
    assert select_checkpoints(prepare.out, best=1, metric="eval_chrf")[0].name == "checkpoint-2"


def test_a_corpus_of_which_nothing_is_left_or_there_is_named(prepare, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.de: no such file"):
        prepare(test_target="missing.de")
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(ValueError, match=r"validation_source=.*empty: no sentence pair is left of the 2 pairs"):
        prepare(validation_source=str(tmp_path / "empty"), validation_target=str(tmp_path / "empty"))
    (tmp_path / "nothing").write_text("")
    with pytest.raises(ValueError, match=r"nothing: the corpus is empty"):
        prepare(train_source=str(tmp_path / "nothing"), train_target=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "metric, scores, warns",
    [
        *(("bleu", (0.0, 0.0), True), ("eval_bleu", (0.0, 0.0), True), ("bleu", (0.0, 0.1), False)),
        *(("bleu", (0.0,), False), ("chrf", (0.0, 0.0), False), (None, (0.0, 0.0), False)),
    ],
)
def test_a_checkpoint_that_a_score_of_0_has_chosen_is_told(tmp_path, capsys, metric, scores, warns):
    args = Seq2SeqTrainingArguments(str(tmp_path), metric_for_best_model=metric, greater_is_better=True)
    state = TrainerState(log_history=[{"eval_bleu": score} for score in scores])
    ZeroScoreWarning().on_train_end(args, state, TrainerControl())
    said = capsys.readouterr().out
    assert ("Warning: bleu was 0 at all 2 evaluations" in said) == bool(said) == warns
