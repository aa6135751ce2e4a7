"""The trained models of this repository: complete, small, and as good as their cards say."""

import gzip
import re
from pathlib import Path

import pytest
import torch
from hub_server import ROOT

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.evaluation.scores import score_translations
from vanilla_transformer_hf.publishing.model_card import CardFacts, is_edited
from vanilla_transformer_hf.publishing.upload_plan import plan_upload


FOLDER = ROOT / "model_cards" / "multi30k_raw_en_de"
# Multi30k's text is for research and is not part of this repository.
CORPUS = Path(__file__).parents[2] / "shared" / "data" / "multi30k" / "raw"

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
Ein alter Mann verkauft Obst auf dem Markt.
A girl in a blue dress is jumping into a pool.
Ein Mädchen in einem blauen Kleid springt in ein Schwimmbecken.
People are waiting for the train in a station.
Leute warten auf den Zug in einem Bahnhof.
A group of musicians is playing on a stage.
Eine Gruppe von Musikern spielt auf einer Bühne.
A little boy is eating ice cream in the park.
Ein kleiner Junge isst im Park Eis.
""".strip().splitlines()


@pytest.fixture(scope="module")
def translator():
    return Translator.from_pretrained(FOLDER)


def test_it_is_what_an_upload_sends():
    """The code is left to the package, which adds its own to an upload."""
    plan = plan_upload(FOLDER, "multi30k_raw_en_de")
    names = {path.name for path in FOLDER.iterdir()}
    assert names == {file.name for file in plan.files if not file.name.endswith(".py")} | {"card_facts.json"}
    assert "modeling_vanilla_transformer.py" in {file.name for file in plan.files}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 6e6
    assert not is_edited(FOLDER) and plan.card.startswith("---\n")


def test_it_translates(translator):
    assert translator.model.dtype == torch.float32  # computes so, although the file is in bfloat16
    assert translator.translate(SENTENCES[::2]) == SENTENCES[1::2]


@pytest.mark.skipif(not CORPUS.is_dir(), reason="needs the text of Multi30k")
def test_the_first_hundred_sentences_of_the_test_text(translator):
    sources, references = (
        gzip.decompress((CORPUS / f"test_2016_flickr.{side}.gz").read_bytes()).decode().splitlines()[:100]
        for side in ("en", "de")
    )
    scores = score_translations(translator.translate(sources), references, "de")
    assert (round(scores.bleu, 2), round(scores.chrf, 2)) == (40.25, 64.18)


def test_the_page_of_results_states_its_scores():
    scored = {part.role: part.scores for part in CardFacts.read(FOLDER).scored}
    assert list(scored) == ["validation", "test"] and scored["test"].sentences == 1000
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = re.search(r"^## The model in this repository\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)[1]
    assert all(f"{value:.2f}" in section for one in scored.values() for value in (one.bleu, one.chrf))
