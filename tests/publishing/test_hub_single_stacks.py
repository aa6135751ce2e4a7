"""One stack on the Hub: pushed for real, opened by its Auto class and pipeline, with the package and without it."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from vanilla_transformer_hf import (
    VanillaTransformerForCausalLM,
    VanillaTransformerForTokenClassification,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.publishing.hub import publish_folder
from vanilla_transformer_hf.publishing.model_card import CardFacts, write_card


TAGGER, WRITER = "someone/places", "someone/numbers-lm"
STRANGER = """
import json, sys
sys.modules["vanilla_transformer_hf"] = None
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer, pipeline

tagger, writer = sys.argv[1:]
trust = {"trust_remote_code": True}
tokenizer = AutoTokenizer.from_pretrained(tagger, **trust)
model = AutoModelForTokenClassification.from_pretrained(tagger, **trust)
tag = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="first")
prompt = tokenizer(["two six", "one"], return_tensors="pt", padding=True, padding_side="left")
written = AutoModelForCausalLM.from_pretrained(writer, **trust).generate(**prompt, num_beams=2, max_new_tokens=5)
assert "transformers_modules" in type(model).__module__
print(json.dumps([[found["entity_group"] for found in tag("one two three")], written.tolist()]))
"""


@pytest.fixture
def published(hub, tiny_config, tmp_path):
    """A tagger and a language model that share a tokenizer, each on the Hub: (models, tokenizer)."""
    tokenizer = VanillaTransformerTokenizer.train(["one two three", "four five six"], vocab_size=300)
    classes = {"id2label": {0: "odd", 1: "even"}, "label2id": {"odd": 0, "even": 1}}
    config = tiny_config(vocab_size=len(tokenizer), position_encoding="rotary", norm_type="rms_norm", **classes)
    models = {TAGGER: VanillaTransformerForTokenClassification, WRITER: VanillaTransformerForCausalLM}
    models = {name: model(config).eval() for name, model in models.items()}
    for name, model in models.items():
        folder = tmp_path / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_card(CardFacts(name=name, example="one two", license="cc0-1.0"), folder)
        publish_folder(folder, name)
    return models, tokenizer


@torch.no_grad()
def test_a_pushed_tagger_is_found_as_one(published, hub):
    models, tokenizer = published
    card = hub.repositories[TAGGER].files()["README.md"].decode()
    assert "pipeline_tag: token-classification" in card and 'aggregation_strategy="first"' in card
    batch = tokenizer(["one two three"], return_tensors="pt")
    opened = AutoModelForTokenClassification.from_pretrained(TAGGER)
    assert torch.equal(opened(**batch).logits, models[TAGGER](**batch).logits)
    tag = pipeline("token-classification", model=TAGGER, tokenizer=AutoTokenizer.from_pretrained(TAGGER))
    assert [found["entity"] for found in tag("one two three")] == [
        opened.config.id2label[number]
        for number in opened(**batch).logits[0, :-1].argmax(-1).tolist()  # not of the end token
    ]


@pytest.mark.slow
def test_strangers_open_both_without_the_package(published, hub, tmp_path):
    models, tokenizer = published
    command = [sys.executable, "-c", STRANGER, TAGGER, WRITER]
    environment = hub.environment(tmp_path / "home", token=None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    tags, written = json.loads(done.stdout.splitlines()[-1])
    tag = pipeline("token-classification", model=models[TAGGER], tokenizer=tokenizer, aggregation_strategy="first")
    assert tags == [found["entity_group"] for found in tag("one two three")]
    prompt = tokenizer(["two six", "one"], return_tensors="pt", padding=True, padding_side="left")
    assert written == models[WRITER].generate(**prompt, num_beams=2, max_new_tokens=5).tolist()
