"""Caches by the names of every release of transformers, in every model, and through every loop of transformers."""

import copy
import re
import runpy
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache, StaticCache

from vanilla_transformer_hf import (
    RecurrentSeq2SeqConfig,
    RecurrentSeq2SeqForConditionalGeneration,
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForImageTextToText,
    VanillaTransformerForSpeechSeq2Seq,
)
from vanilla_transformer_hf.model.releases import models as releases
from vanilla_transformer_hf.model.releases.models import CACHE


IDS = torch.tensor([[7, 8, 9, 10], [11, 12, 13, 14]])
SMALL = {"vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
SIZES = {**SMALL, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64}
IMAGES = {"image_height": 4, "image_width": 16, "patch_height": 4, "patch_width": 4, "num_channels": 1}


def config(**fields):
    return VanillaTransformerConfig(**SIZES, encoder_ffn_dim=16, decoder_ffn_dim=16, **fields)


# Each kind of model, and its source.
KINDS = {
    "encoder-decoder": lambda: (VanillaTransformerForConditionalGeneration(config()), {"input_ids": IDS}),
    "speech": lambda: (VanillaTransformerForSpeechSeq2Seq(config(front_end="speech")), {"input_features": FRAMES}),
    "image": lambda: (
        VanillaTransformerForImageTextToText(config(front_end="image", **IMAGES)),
        {"pixel_values": PIXELS},
    ),
    "decoder alone": lambda: (VanillaTransformerForCausalLM(config(is_encoder_decoder=False, is_decoder=True)), {}),
    "recurrent": lambda: (
        RecurrentSeq2SeqForConditionalGeneration(RecurrentSeq2SeqConfig(**SMALL)),
        {"input_ids": IDS},
    ),
}
FRAMES, PIXELS = torch.randn(2, 16, 80), torch.randn(2, 1, 4, 16)


@pytest.fixture(params=KINDS)
def parts(request):
    """A model, what is given of the source, and the name of the target ids."""
    model, source = KINDS[request.param]()
    return model.eval(), source, "decoder_input_ids" if source else "input_ids"


def with_past(name, model, source, ids):
    """Logits of the last two of four tokens, after a cache that a call before made."""
    made = getattr(model(**source, **{ids: IDS[:, :2]}, use_cache=True), CACHE)
    return model(**source, **{ids: IDS[:, 2:], name: made}).logits


@torch.no_grad()
@pytest.mark.parametrize("part", ["head", "model", "decoder"])
def test_a_cache_is_taken_under_both_names(parts, part):
    head, source, ids = parts
    whole = head(**source, **{ids: IDS}).logits[:, 2:]
    for name in ("cache", "past_key_values"):
        torch.testing.assert_close(with_past(name, head, source, ids), whole, atol=1e-5, rtol=1e-5)
    inner = {"head": head, "model": head.model, "decoder": head.get_decoder()}[part]
    made = getattr(head(**source, **{ids: IDS}, use_cache=True), CACHE)
    given = {**source, ids: IDS}
    if part == "decoder":
        states = torch.zeros(2, 3, 16)
        given = {"input_ids": IDS, **({"encoder_hidden_states": states} if source else {})}
    with pytest.raises(ValueError, match=r"state_of_next_year holds a cache.*transformers \d"):
        inner(**given, state_of_next_year=made)
    with pytest.raises(ValueError, match="cache and past_key_values are two caches with tokens"):
        inner(**given, cache=made, past_key_values=copy.deepcopy(made))


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    "options", [{"do_sample": True}, {"output_scores": True}, {"repetition_penalty": 1.2}], ids=str
)
def test_transformers_loops_keep_the_past(parts, options, beams):
    model, source, _ = parts
    model.lm_head.weight.mul_(4)  # clear differences
    found = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        settings = {"num_beams": beams, "max_new_tokens": 6, "return_dict_in_generate": True, **options}
        settings["output_hidden_states"] = True  # only their loops return these
        found.append(model.generate(**source or {"input_ids": IDS}, use_cache=use_cache, **settings).sequences)
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", ["encoder-decoder", "speech", "recurrent"])
def test_a_cache_without_a_place_for_the_source_is_an_error(kind):
    model, source = KINDS[kind]()
    for cache in (DynamicCache(), StaticCache(config=model.config, max_cache_len=8), ()):
        message = f"a {type(cache).__name__} has no place for the source: expected the cache of an earlier call"
        with pytest.raises(ValueError, match=message):
            model(**source, decoder_input_ids=IDS, past_key_values=cache)


def test_checkpointed_layers_take_no_cache():
    model, _ = KINDS["decoder alone"]()
    cache = getattr(model(IDS[:, :2], use_cache=True), CACHE)
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="gradient checkpointing is not possible with a cache"):
        model.train()(IDS[:, 2:], cache=cache)


class ForgetsItsPast(VanillaTransformerForConditionalGeneration):
    """A model as one whose cache comes under a name that it does not know."""

    def forward(self, *args, cache=None, past_key_values=None, **kwargs):
        return super().forward(*args, **kwargs)


def test_a_newer_release_whose_loops_lose_the_past_is_an_error(monkeypatch):
    models = [ForgetsItsPast(config()).eval(), KINDS["speech"]()[0].eval(), KINDS["recurrent"]()[0].eval()]
    settings = {"max_new_tokens": 4, "return_dict_in_generate": True, "output_hidden_states": True}
    models[0].generate(IDS, **settings)  # a tested release is not checked
    monkeypatch.setattr(releases, "NEWEST_TESTED", "4.0.0")
    monkeypatch.setattr(releases, "checked", set())
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"newer than 4.0.0.*set VANILLA_TRANSFORMER_HF_SKIP_CHECK=1"):
            models[0].generate(IDS, **settings)
    models[1].generate(input_features=FRAMES, **settings)
    models[2].generate(IDS, **settings)
    assert releases.checked == {type(models[1]), type(models[2])}
    monkeypatch.setenv(releases.SKIP_CHECK, "1")
    models[0].generate(IDS, **settings)


def test_the_bounds_of_the_package_are_those_that_are_tested():
    root = Path(__file__).resolve().parents[2]
    tested = runpy.run_path(str(root / "tests" / "range" / "run.py"))["RELEASES"]
    assert f'"transformers>={tested[0].removesuffix(".0")},<6"' in (root / "pyproject.toml").read_text(
        encoding="utf-8"
    )
    pinned = re.search(r"^transformers==(.*)$", (root / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned[1] == tested[-1] == releases.NEWEST_TESTED
    page = (root / "docs" / "what_is_tested.md").read_text(encoding="utf-8")
    assert all(f"| {release} |" in page for release in tested)
