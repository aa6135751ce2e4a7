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


def test_pipeline_saves_a_folder_that_opens_without_running_its_code(counting_folder, tmp_path):
    pipeline("translation", model=counting_folder).save_pretrained(tmp_path)
    assert "custom_pipelines" in json.loads((tmp_path / "config.json").read_text())  # for those without this package
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


def test_arguments_of_transformers_4(counting_folder, quiet):
    translate = pipeline("translation", model=counting_folder)
    expected = [{"translation_text": "zwei"}]
    for given in (
        {"src_lang": "en", "tgt_lang": "de"},  # this tokenizer does not know its languages
        {"truncation": False},
        {"truncation": "longest_first"},
        {"clean_up_tokenization_spaces": True},
        {"clean_up_tokenization_spaces": False},
        {"return_text": True},
        {"return_tensors": False, "return_text": None},
    ):
        assert translate("two", **given) == expected, given
        assert pipeline("translation", model=counting_folder, **given)("two") == expected, given
    both, ids = (translate("two", return_tensors=True, return_text=text)[0] for text in (True, False))
    assert both.pop("translation_text") == "zwei" and both.keys() == ids.keys() == {"translation_token_ids"}
    for given, message in (
        ({"return_text": False}, "return_text=False: nothing is left"),
        ({"truncation": "longest"}, "truncation='longest': expected True, False or one of only_first"),
        ({"return_type": 1}, "return_type: not an argument of this pipeline; give return_tensors"),
        ({"stop_sequence": "."}, "stop_sequence: not an argument of this pipeline; give stop_strings"),
    ):
        with pytest.raises(ValueError, match=message):
            translate("two", **given)


def test_truncation_keeps_the_beginning_of_a_long_text(counting_folder):
    translate, line = pipeline("translation", model=counting_folder), "two " * 60 + "three"
    translate.translator.max_source_length = 8
    cut = translate(line, truncation=True)
    expected = translate.translator.translate(line, too_long="truncate")
    assert cut == [{"translation_text": expected}] != translate(line)


def test_spaces_of_tokenization_are_cleaned_up(counting_folder, monkeypatch):
    translate = pipeline("translation", model=counting_folder)
    decode = translate.translator.decode
    monkeypatch.setattr(translate.translator, "decode", lambda *args: [spaced(one) for one in decode(*args)])
    assert translate("two")[0]["translation_text"] == " , zwei ."
    assert translate("two", clean_up_tokenization_spaces=True)[0]["translation_text"] == ", zwei."


def spaced(translation):
    return type(translation)(" , zwei .", translation.score, translation.tokens)


def test_languages_as_arguments(counting_folder):
    tokenizer = VanillaTransformerTokenizer.from_pretrained(counting_folder, src_lang="en", tgt_lang="de")
    translate = pipeline("translation", model=counting_folder, tokenizer=tokenizer)
    assert translate("two", src_lang="en", tgt_lang="de") == [{"translation_text": "zwei"}]
    for wrong in ({"src_lang": "fr"}, {"tgt_lang": "fr"}):
        (name, code), *_ = wrong.items()
        with pytest.raises(ValueError, match=f"{name}='{code}': the model's {name} is '"):
            translate("two", **wrong)
        with pytest.raises(ValueError, match=f"{name}='{code}': the model's {name} is '"):
            pipeline("translation", model=counting_folder, tokenizer=tokenizer, **wrong)
    tokenizer.init_kwargs["target_lang_tags"] = {"de": "", "fr": "three "}
    several = pipeline("translation", model=counting_folder, tokenizer=tokenizer, target_lang_tag="de")
    assert several("two", tgt_lang="fr") == several("two", target_lang_tag="fr") != several("two")
    with pytest.raises(ValueError, match="'it' is not a target language of this model: expected one of de, fr"):
        several("two", tgt_lang="it")
    with pytest.raises(ValueError, match="tgt_lang='fr': differs from target_lang_tag='de'; give one"):
        several("two", tgt_lang="fr", target_lang_tag="de")
