"""What a continued run compares: everything that its output depends on."""

import copy

import pytest
import torch

from vanilla_transformer_hf.translation.streams.opening import describe, digest_of
from vanilla_transformer_hf.translation.translator import Translator


def change_last_weight(translator):
    """The change that 256 elements of each tensor did not show."""
    with torch.no_grad():
        translator.model.get_input_embeddings().weight[-1, -1] += 1e-6


def change_tokenizer(translator):
    translator.tokenizer.backend_tokenizer.model.dropout = 0.5


def change_vocabulary(translator):
    translator.tokenizer.add_tokens(["<de>"])


def change_search(translator):
    translator.model.generation_config.length_penalty = 0.7


def change_shortlist(translator):
    translator.shortlist = [5, 6]


def add_to_ensemble(translator):
    translator.ensemble = [translator.model]


@pytest.fixture
def fresh(translator):
    """The translator, on a model and a tokenizer of its own."""
    model, tokenizer = copy.deepcopy(translator.model), copy.deepcopy(translator.tokenizer)
    return Translator(model, tokenizer, matmul_backend="default")


CHANGES = [change_last_weight, change_tokenizer, change_vocabulary, change_search, change_shortlist, add_to_ensemble]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_shows_in_the_digest(fresh, change):
    before = digest_of(fresh)
    fresh.tokenizer(["one two", "one"], padding=True, truncation=True, max_length=2)  # leaves no trace
    fresh.translate("one two")
    assert digest_of(fresh) == before
    change(fresh)
    assert digest_of(fresh) != before
    assert describe(fresh).settings["model"] == digest_of(fresh)
    assert "model" not in describe(fresh, has_digest=False).settings, "not read where nothing can be continued"


def test_the_configs_of_an_ensemble_are_part_of_the_digest(fresh):
    fresh.ensemble = [copy.deepcopy(fresh.model)]
    before = digest_of(fresh)
    fresh.ensemble[0].config.encoder_attention_heads //= 2  # with weights of the same shapes
    assert digest_of(fresh) != before


def test_weights_of_half_precision_have_a_digest(fresh):
    before = digest_of(fresh)
    fresh.model.to(torch.bfloat16)
    assert digest_of(fresh) != before
