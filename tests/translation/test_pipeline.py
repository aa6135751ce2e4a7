"""The pipeline, on a tiny model that has learned to count backwards in German."""

import json

import pytest
from counting_model import MIXED, TRANSLATED
from transformers import pipeline
from transformers.pipelines.pt_utils import KeyDataset
from transformers.utils import logging as host_logging

import vanilla_transformer_hf
from vanilla_transformer_hf import TranslationPipeline, VanillaTransformerTokenizer


@pytest.fixture
def quiet(caplog, recwarn):
    """Fails the test if transformers logs a warning or Python issues one."""
    host_logging.enable_propagation()
    yield
    host_logging.disable_propagation()
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []
    assert [str(warning.message) for warning in recwarn.list] == []


def test_pipeline_answers_as_the_one_of_transformers_4(counting_folder, quiet):
    translate = pipeline("translation", model=counting_folder)
    assert type(translate) is TranslationPipeline
    assert type(translate.tokenizer) is VanillaTransformerTokenizer
    expected = [{"translation_text": text} for text in TRANSLATED]
    assert translate("two") == [{"translation_text": "zwei"}]
    assert translate(MIXED) == expected
    assert translate(MIXED, batch_size=3) == expected
    assert translate([]) == []
    assert list(translate(text for text in MIXED)) == [[item] for item in expected]
    rows = KeyDataset([{"en": text} for text in MIXED], "en")
    assert list(translate(rows, batch_size=3)) == [[item] for item in expected]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_pipeline_equals_translator(translator, batch_size, quiet):
    translate = pipeline("translation", model=translator.model, tokenizer=translator.tokenizer, num_beams=4)
    options = {"num_return_sequences": 3, "return_scores": True, "batch_size": batch_size}
    for found, expected in zip(
        translate(MIXED, **options), translator.translate(MIXED, num_beams=4, **options), strict=True
    ):
        assert [candidate["translation_text"] for candidate in found] == expected
        scores = [candidate.score for candidate in expected]
        assert [candidate["score"] for candidate in found] == pytest.approx(scores, abs=1e-5)
    assert [len(candidates) for candidates in translate(MIXED, num_return_sequences=2)] == [2] * len(MIXED)


def test_pipeline_translates_lines_and_sentences(translator):
    translate = pipeline("translation", model=translator.model, tokenizer=translator.tokenizer)
    text = " one two\r\n\r\nthree four. five\n"
    for choice in ("always", "never"):
        expected = translator.translate([text, "two"], split_sentences=choice)
        found = translate([text, "two"], split_sentences=choice, batch_size=2)
        assert [each["translation_text"] for each in found] == expected
    (record,) = translate("one two\nfive", return_tensors=True)
    assert translator.tokenizer.decode(record["translation_token_ids"], skip_special_tokens=True).split() == [
        "zwei",
        "eins",
        "fünf",
    ]


def test_pipeline_returns_tensors(translator):
    translate = pipeline("translation", model=translator.model, tokenizer=translator.tokenizer)
    (record,) = translate("two", return_tensors=True)
    assert list(record) == ["translation_token_ids"]
    assert translator.tokenizer.decode(record["translation_token_ids"], skip_special_tokens=True) == "zwei"


def test_pipeline_saves_a_folder_that_opens_without_running_its_code(counting_folder, tmp_path):
    pipeline("translation", model=counting_folder).save_pretrained(tmp_path)
    assert "custom_pipelines" not in json.loads((tmp_path / "config.json").read_text())
    assert pipeline("translation", model=str(tmp_path))("two") == [{"translation_text": "zwei"}]


def test_pipeline_without_a_model_or_with_misspelt_arguments_is_refused(translator):
    with pytest.raises(ValueError, match="default"):
        pipeline("translation")
    translate = pipeline("translation", model=translator.model, tokenizer=translator.tokenizer)
    with pytest.raises(ValueError, match="num_beam"):
        translate("two", num_beam=4)


def test_registering_leaves_an_existing_translation_pipeline_alone(monkeypatch):
    from transformers import pipelines

    theirs = {"impl": object}
    monkeypatch.setitem(pipelines.PIPELINE_REGISTRY.supported_tasks, "translation", theirs)
    vanilla_transformer_hf.registration.register_pipeline()
    assert pipelines.PIPELINE_REGISTRY.supported_tasks["translation"] is theirs


def test_languages_in_the_name_of_the_task(counting_folder, tmp_path):
    """As in transformers 4; a pair that is not the model's is refused."""
    translate = pipeline("translation_en_to_de", model=counting_folder)
    assert type(translate) is TranslationPipeline and translate("two") == [{"translation_text": "zwei"}]
    tokenizer = VanillaTransformerTokenizer.from_pretrained(counting_folder, src_lang="en", tgt_lang="de")
    named = {"model": translate.model, "tokenizer": tokenizer}
    assert pipeline("translation_en_to_de", **named)("two") == [{"translation_text": "zwei"}]
    with pytest.raises(ValueError, match="translation_de_to_en: the model translates from en to de"):
        pipeline("translation_de_to_en", **named)
    with pytest.raises(KeyError, match="translation_en"):
        pipeline("translation_en", **named)
