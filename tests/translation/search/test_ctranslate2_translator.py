"""A `Translator` with the engine CTranslate2, beside the search of this package."""

import json
import os
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from vanilla_transformer_hf import ConstrainedText, MinimumRisk, Translator
from vanilla_transformer_hf.export import ExportError
from vanilla_transformer_hf.translation.kept_copy import kept_copy
from vanilla_transformer_hf.translation.text.glossary import Glossary


pytest.importorskip("ctranslate2", reason="pip install '.[export]'")
pytestmark = pytest.mark.slow

TEXTS = ["one two", "", "three", "two one three two one", "two"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """The assets cache of this file: what an earlier exporter has written is not in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path_factory.mktemp("assets")))
        yield Path(constants.HF_ASSETS_CACHE, "vanilla_transformer_hf", "ctranslate2", "models")


@pytest.fixture(scope="module")
def folder(counting_folder, tmp_path_factory):
    copy = tmp_path_factory.mktemp("engine") / "en-de"
    shutil.copytree(counting_folder, copy)
    return copy


@pytest.fixture(scope="module")
def both(folder):
    return Translator.from_pretrained(folder, device="cpu"), Translator.from_pretrained(
        folder, device="cpu", engine="ctranslate2"
    )


def test_the_copy_is_exported_once_to_the_cache_and_belongs_to_the_files(folder, both, cache, tmp_path, caplog):
    assert [path.name for path in folder.parent.iterdir()] == ["en-de"], "nothing beside the model"
    (copy,) = cache.glob("en-de-as_saved-*")
    before = os.stat(copy).st_mtime_ns
    assert kept_copy(folder, None) == copy and os.stat(copy).st_mtime_ns == before and not caplog.records
    other = tmp_path / "en-de"
    shutil.copytree(folder, other)
    assert kept_copy(other, None) == copy, "a model of the same files has the same copy"
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "dropout": 0.3}))
    (other / "SHA256SUMS").unlink(missing_ok=True)
    changed = kept_copy(other, None)
    assert changed != copy and changed.is_dir() and caplog.text.endswith(f"once for CTranslate2, to {changed}\n")


def test_types_that_the_engine_does_not_have_leave_nothing_in_the_cache(folder, cache):
    for wrong in ("int3", "../../elsewhere"):
        with pytest.raises(ExportError, match="must be one of int8"):
            kept_copy(folder, wrong)
    found = [path.name for path in cache.parents[2].rglob("*")]
    assert not [name for name in found if "int3" in name or "elsewhere" in name]


SAME = [{}, {"num_beams": 3}, {"max_new_tokens": 2}, {"max_extra_tokens": 1}, {"min_new_tokens": 4}]
SAME += [{"no_repeat_ngram_size": 1}, {"repetition_penalty": 1.5}, {"num_beams": 3, "no_repeat_ngram_size": 2}]


@pytest.mark.parametrize("options", SAME, ids=str)
def test_translations_are_the_same(both, options):
    ours, theirs = (each.translate(TEXTS, return_scores=True, **options) for each in both)
    assert theirs == ours
    for mine, other in zip(ours, theirs):
        assert other.tokens == mine.tokens and other.is_complete == mine.is_complete
        assert other.score == pytest.approx(mine.score, abs=1e-4)


# What the converters write for fairseq, JoeyNMT and MarianMT.
CONVERTED: dict[str, dict] = {
    "fairseq": {"forced_eos_token_id": 1, "suppress_tokens": [0], "early_stopping": True},
    "joeynmt": {"length_penalty_type": "gnmt", "suppress_tokens": [0, 2], "early_stopping": False},
    "marianmt": {"forced_eos_token_id": 1, "bad_words_ids": [[0]], "early_stopping": False},
}


@pytest.mark.parametrize("toolkit", CONVERTED)
def test_converted_models_are_searched_as_here(folder, toolkit, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    before = json.loads((copy / "generation_config.json").read_text())
    settings = {**before, "num_beams": 3, "min_new_tokens": 1, "max_new_tokens": 6, **CONVERTED[toolkit]}
    (copy / "generation_config.json").write_text(json.dumps(settings))
    (copy / "SHA256SUMS").unlink(missing_ok=True)
    both = [Translator.from_pretrained(copy, device="cpu", engine=engine) for engine in ("ours", "ctranslate2")]
    for options in ({}, {"num_beams": 1}, {"max_new_tokens": 2}, {"max_new_tokens": 1}):
        ours, theirs = (each.translate(TEXTS, return_scores=True, **options) for each in both)
        assert [each.tokens for each in theirs] == [each.tokens for each in ours], options


def test_n_best_lists_prefixes_and_alignments(both):
    for each in both:
        n_best = each.translate("one two", num_beams=3, num_return_sequences=3)
        assert len(n_best) == 3
    ours, theirs = (each.translate([ConstrainedText("one two", "zwei")], return_alignments=True) for each in both)
    assert theirs == ours and str(theirs[0].alignment) == str(ours[0].alignment)


@pytest.mark.parametrize(
    "options, lacks",
    [
        ({"num_beams": 2, "coverage_penalty": 0.2}, "coverage_penalty=0.2"),
        ({"num_beams": 2, "suppress_tokens": [7]}, "suppress_tokens=[7]"),
        ({"do_sample": True}, "do_sample=True"),
        ({"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1.0}, "num_beam_groups=2"),
    ],
)
def test_what_the_engine_lacks_is_refused_by_name(both, options, lacks):
    with pytest.raises(ValueError, match="engine ctranslate2 does not support") as caught:
        both[1].translate("one", **options)
    assert lacks in str(caught.value)


def test_required_phrases_ensembles_and_unknown_engines_are_refused(folder, both):
    with pytest.raises(ValueError, match="engine ctranslate2 does not support required_phrases"):
        both[1].translate([ConstrainedText("one two", phrases=["zwei"])], num_beams=2)
    ensemble = Translator.from_pretrained(folder, device="cpu", engine="ctranslate2", ensemble=[folder])
    with pytest.raises(ValueError, match="engine ctranslate2 does not support ensemble"):
        ensemble.translate("one")
    with pytest.raises(ValueError, match="engine='marian': expected one of 'ours', 'ctranslate2'"):
        Translator.from_pretrained(folder, engine="marian")


def test_glossaries_and_samples_are_refused_by_these_names(both, monkeypatch):
    monkeypatch.setattr(both[1], "glossary", Glossary([("one", "eins")]))
    with pytest.raises(ValueError, match="glossary: not supported by engine ctranslate2"):
        both[1].translate("two", num_beams=2)
    monkeypatch.setattr(both[1], "glossary", None)
    with pytest.raises(ValueError, match=r"ctranslate2 does not support logits processors, .* 'beam' need none\)$"):
        both[1].translate("one", mbr=MinimumRisk(2, "bleu"))
    assert both[1].translate("one", mbr=MinimumRisk(2, "bleu", "beam")).startswith("eins")


def test_int8_has_a_copy_of_its_own(folder, cache):
    translator = Translator.from_pretrained(folder, device="cpu", engine="ctranslate2", quantization="int8")
    assert translator.engine == "ctranslate2 int8" and len([*cache.glob("en-de-int8-*")]) == 1
    assert translator.translate("one two") == "zwei eins"
