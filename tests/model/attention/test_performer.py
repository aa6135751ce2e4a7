"""Performer attention: equal to the package performer-pytorch, causal, and with one sum in steps."""

import copy
import math
from functools import partial

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model.attention import performer
from vanilla_transformer_hf.model.search.incremental_decoder import ROOM, IncrementalDecoder
from vanilla_transformer_hf.training.checkpoints.averaging import average_checkpoints


FIELDS = {"encoder_attention_type": "performer", "decoder_attention_type": "performer", "performer_features": 12}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(performer, "POSITIONS_AT_ONCE", 4)


def module_of(is_causal, **fields):
    config = VanillaTransformerConfig(d_model=16, encoder_attention_heads=2, **{**FIELDS, **fields})
    config._attn_implementation = "sdpa"
    return performer.PerformerAttention(config, 16, 16, 2, is_causal)


@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@torch.no_grad()
def test_outputs_are_those_of_performer_pytorch(is_causal):
    theirs = pytest.importorskip("performer_pytorch.performer_pytorch")
    ours = module_of(is_causal)
    states = torch.randn(2, 11, 16)
    query, key, value = ours.project(states, ours.roles)
    features = ours.random_features
    query = theirs.softmax_kernel(query, projection_matrix=features, is_query=True, eps=0)
    key = theirs.softmax_kernel(key, projection_matrix=features, is_query=False, eps=0)
    attend = partial(theirs.causal_linear_attention_noncuda, eps=0) if is_causal else theirs.linear_attention
    expected = ours.out_proj(attend(query, key, value).transpose(1, 2).flatten(-2))
    found = ours(states, ours.mask(states, None, None, False))[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_outputs_and_gradients_are_those_of_the_equations(is_causal, size):
    """By logarithms of sums; also with exponents of several hundred."""
    ours = module_of(is_causal).double()
    states = (size * torch.randn(2, 11, 16, dtype=torch.double)).requires_grad_()
    real = torch.ones(2, 11, dtype=torch.long)
    real[1, :3] = 0
    query, key, value = ours.project(states, ours.roles)
    logs = [
        (each / 8**0.25) @ ours.random_features.t() - (each / 8**0.25).square().sum(-1, keepdim=True) / 2
        for each in (query, key)
    ]
    scores = (logs[0][:, :, :, None] + logs[1][:, :, None]).logsumexp(dim=-1)
    hidden = (real == 0)[:, None, None] | (torch.ones(11, 11).triu(1).bool() & is_causal)
    weights = scores.masked_fill(hidden, -1e9).softmax(dim=-1)
    expected = ours.out_proj((weights @ value).transpose(1, 2).flatten(-2))[real.bool()]
    found = ours(states, ours.mask(states, real, None, False))[0][real.bool()]
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    ours.config._attn_implementation = "eager"
    output, found_weights = ours(states, ours.mask(states, real, None, False))
    torch.testing.assert_close(output[real.bool()], expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(found_weights[0], weights[0], atol=1e-9, rtol=0)
    gradients = [torch.autograd.grad(each.square().sum(), states, retain_graph=True)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-7, rtol=1e-7)


@torch.no_grad()
def test_features_are_orthogonal_and_their_mean_is_the_kernel():
    features = performer.orthogonal_features(20, 8)
    products = features[:8] @ features[:8].t()
    torch.testing.assert_close(products, products.diag().diag(), atol=1e-4, rtol=0)
    ours = module_of(False, performer_features=20_000)
    query, key = 0.4 * torch.randn(1, 2, 5, 8), 0.4 * torch.randn(1, 2, 6, 8)
    found = (ours.exponents(query).exp() @ ours.exponents(key).exp().transpose(2, 3)) / 20_000
    expected = (query @ key.transpose(2, 3) / math.sqrt(8)).exp()
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0)


@torch.no_grad()
def test_search_in_steps_keeps_one_sum(tiny_model, monkeypatch):
    model, kept = tiny_model(**FIELDS), []
    step = IncrementalDecoder.step

    def watched(self, tokens):
        kept.append((self.mask.shape[-1], self.keys[0].numel(), self.sums[0].shape[3]))
        return step(self, tokens)

    monkeypatch.setattr(IncrementalDecoder, "step", watched)
    source = {"input_ids": torch.randint(4, 99, (3, 9)), "attention_mask": torch.ones(3, 9, dtype=torch.long)}
    model.generate(**source, num_beams=1, max_new_tokens=40, min_new_tokens=40)
    assert max(kept) <= (1 + 2 * ROOM, 0, 12 * 9 + 1) and len(kept) >= 40


def test_features_are_drawn_anew_in_training_alone(tiny_model, batch, tmp_path):
    model = tiny_model(**FIELDS, performer_redraw=2, dropout=0.0)
    attention = model.get_encoder().layers[1].self_attn
    model.gradient_checkpointing_enable()
    before = attention.random_features.clone()
    model(**batch)
    assert torch.equal(attention.random_features, before) and attention.passes == 0
    model.train()(**batch, labels=torch.ones(2, 6, dtype=torch.long)).loss.backward()
    assert torch.equal(attention.random_features, before) and attention.passes == 1
    model(**batch, labels=torch.ones(2, 6, dtype=torch.long)).loss.backward()
    assert not torch.equal(attention.random_features, before) and attention.passes == 2
    model.eval().save_pretrained(tmp_path / "1")
    again = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "1")
    assert torch.equal(again(**batch).logits, model(**batch).logits)
    assert again.get_encoder().layers[1].self_attn.passes == 2
    other = copy.deepcopy(model)
    other.get_encoder().layers[1].self_attn.draw()
    other.save_pretrained(tmp_path / "2")
    average_checkpoints([tmp_path / "2", tmp_path / "1"], tmp_path / "mean")
    mean = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "mean")
    assert torch.equal(mean.get_encoder().layers[1].self_attn.random_features, attention.random_features)


def test_built_in_half_precision(tiny_config, tmp_path):
    model = AutoModelForSeq2SeqLM.from_config(tiny_config(**FIELDS), dtype=torch.bfloat16).eval()
    model.save_pretrained(tmp_path)
    again, ids = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.bfloat16), torch.randint(4, 99, (2, 7))
    with torch.no_grad():
        assert torch.equal(again(ids, decoder_input_ids=ids).logits, model(ids, decoder_input_ids=ids).logits)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_gradients_of_explicit_weights_are_those_of_the_sums(side, tiny_model):
    """With padding, also in front of what a decoder's first tokens see."""
    found, ids = [], torch.randint(4, 90, (2, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    for kernel in ("sdpa", "eager"):
        torch.manual_seed(0)
        model = tiny_model(**{f"{side}_attention_type": "performer"}, attn_implementation=kernel)
        outputs = model(
            ids, mask, decoder_input_ids=ids, decoder_attention_mask=mask, labels=ids.where(mask > 0, -100)
        )
        outputs.loss.backward()
        found.append(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-3)
