"""The trained models of this repository: complete, small, and as good as their cards say."""

import gzip
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hub_server import ROOT
from kept_beside import kept_beside
from transformers import AutoTokenizer

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.evaluation.scores import score_translations
from vanilla_transformer_hf.publishing.model_card import CardFacts, is_edited
from vanilla_transformer_hf.publishing.upload_plan import plan_upload


# Multi30k's text is for research and is not part of this repository.
CORPUS = kept_beside("data", "multi30k")


class Shipped(NamedTuple):
    """A model of this repository, the files of its test text, and BLEU and chrF of the first 100 sentences there."""

    name: str
    text: str
    first_hundred: tuple[float, float]
    tokenize: str | None = None

    @property
    def folder(self) -> Path:
        return ROOT / "model_cards" / self.name


RAW = Shipped("multi30k_raw_en_de", "raw/test_2016_flickr", (40.58, 64.74))
TOKENIZED = Shipped("multi30k_tiny_en_de", "tok/test_2016_flickr.lc.norm.tok", (42.34, 65.71), tokenize="none")
both = pytest.mark.parametrize("shipped", [RAW, TOKENIZED], ids=lambda one: one.name)

SENTENCES = """
A brown dog is running through the snow.
Ein brauner Hund rennt durch den Schnee.
Two children are playing in the sand at the beach.
Zwei Kinder spielen am Strand im Sand.
A man in a red shirt is riding a bicycle down the street.
Ein Mann in einem roten Hemd fährt auf einem Fahrrad die Straße entlang.
A woman with long hair is reading a book on a bench.
Eine Frau mit langen Haaren liest ein Buch auf einer Bank.
Three young men are playing soccer on a green field.
Drei junge Männer spielen Fußball auf einem grünen Feld.
An old man is selling fruit at the market.
Ein alter Mann verkauft auf dem Markt Obst.
A girl in a blue dress is jumping into a pool.
Ein Mädchen in einem blauen Kleid springt in ein Schwimmbecken.
People are waiting for the train in a station.
Leute warten auf den Zug in einem Bahnhof.
A group of musicians is playing on a stage.
Eine Gruppe von Musikern spielt auf einer Bühne.
A little boy is eating ice cream in the park.
Ein kleiner Junge isst im Park Eis.
""".strip().splitlines()


@both
def test_it_is_what_an_upload_sends(shipped):
    """The code is left to the package, which adds its own to an upload."""
    plan = plan_upload(shipped.folder, shipped.name)
    names = {path.name for path in shipped.folder.iterdir()}
    assert names == {file.name for file in plan.files if not file.name.endswith(".py")} | {"card_facts.json"}
    assert "modeling_vanilla_transformer.py" in {file.name for file in plan.files}
    assert sum(path.stat().st_size for path in shipped.folder.iterdir()) <= 6e6
    assert not is_edited(shipped.folder) and plan.card.startswith("---\n")


def test_the_model_of_natural_text_translates():
    translator = Translator.from_pretrained(RAW.folder)
    assert translator.model.dtype == torch.float32  # computes so, although the file is in bfloat16
    assert translator.translate(SENTENCES[::2]) == SENTENCES[1::2]


def test_the_model_of_natural_text_translates_sentences_and_lines_as_if_they_were_alone():
    """0 of 12 lines of two sentences were right: it was trained on sentences."""
    translator = Translator.from_pretrained(RAW.folder)
    alone = dict(zip(SENTENCES[::2], SENTENCES[1::2]))
    pairs = [(first, other) for first in SENTENCES[:8:2] for other in SENTENCES[:8:2] if first != other]
    for joint in (" ", "\n", "\r\n\r\n"):
        expected = [f"{alone[first]}{joint}{alone[other]}" for first, other in pairs]
        assert len(pairs) == 12
        assert translator.translate([f"{first}{joint}{other}" for first, other in pairs]) == expected
    around = ("  {}", "\t{}\n", "{}\u00a0", "{}\r\n", "\u3000{}")
    found = translator.translate([form.format(text) for form in around for text in alone])
    assert found == [form.format(text) for form in around for text in alone.values()]


def test_the_model_of_tokenized_text_translates():
    translator = Translator.from_pretrained(TOKENIZED.folder)
    assert translator.model.dtype == torch.float32
    found = translator.translate(["a brown dog is running through the snow .", "people are waiting for the train ."])
    assert found == ["ein brauner hund rennt durch den schnee .", "leute warten auf den zug ."]


@both
def test_the_first_hundred_sentences_of_the_test_text(shipped):
    if not CORPUS.is_dir():
        pytest.skip("needs the text of Multi30k")
    sources, references = (
        gzip.decompress((CORPUS / f"{shipped.text}.{side}.gz").read_bytes()).decode().splitlines()[:100]
        for side in ("en", "de")
    )
    translations = Translator.from_pretrained(shipped.folder).translate(sources)
    scores = score_translations(translations, references, "de", shipped.tokenize)
    assert (round(scores.bleu, 2), round(scores.chrf, 2)) == shipped.first_hundred


@both
def test_the_page_of_results_states_its_scores(shipped):
    scored = {part.role: part.scores for part in CardFacts.read(shipped.folder).scored}
    assert list(scored) == ["validation", "test"] and scored["test"].sentences == 1000
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = re.search(r"^## The models in this repository\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)[1]
    assert all(f"{value:.2f}" in section for one in scored.values() for value in (one.bleu, one.chrf))


@pytest.mark.parametrize(
    "shipped, expected",
    [
        (RAW, [223, 260, 223, 485, 3760, 71, 139, 226, 2238, 105, 1017, 236, 201, 1]),
        (TOKENIZED, [223, 260, 223, 468, 129, 257, 71, 139, 226, 223, 3589, 161, 225, 236, 201, 1]),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_tokenizers_from_before_white_space_was_normalised_stay_as_they_are(shipped, expected):
    tokenizer = AutoTokenizer.from_pretrained(shipped.folder)
    assert tokenizer(" a  dog\u00a0e\u0301 é\u200b\n")["input_ids"] == expected
