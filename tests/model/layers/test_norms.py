"""Batch norm over the tokens of a batch, against torch's own over the tokens without padding."""

import copy

import pytest
import torch
from host_search import host
from torch import nn

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model.layers.norms import TokenBatchNorm


FIELDS = {"norm_type": "batch_norm", "dropout": 0.0}


def test_equals_torch_on_the_tokens_alone():
    """Outputs, gradients and running averages over three batches of unequal lengths, then evaluation."""
    ours, theirs = TokenBatchNorm(6, eps=1e-3), nn.BatchNorm1d(6, eps=1e-3)
    with torch.no_grad():
        for name in ("weight", "bias"):
            value = torch.randn(6)
            getattr(ours, name).copy_(value), getattr(theirs, name).copy_(value)
    for longest in (7, 4, 9):
        states = torch.randn(5, longest, 6) * 3 + 1
        padding = (torch.arange(longest) < torch.randint(1, longest + 1, (5, 1))).long()
        mine, its = (states.clone().requires_grad_() for _ in range(2))
        TokenBatchNorm.note_tokens(ours, padding, longest)
        found, expected = ours(mine)[padding.bool()], theirs(its[padding.bool()])
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(found)
        (found * weight).sum().backward(), (expected * weight).sum().backward()
        torch.testing.assert_close(mine.grad, its.grad, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_variance, theirs.running_var)
    states = torch.randn(4, 6)
    torch.testing.assert_close(ours.eval()(states[None])[0], theirs.eval()(states))


def test_padding_has_no_part_in_training(tiny_model, batch):
    """Of source and target, masked or behind the last label: the loss, its gradients and the statistics."""
    labels = torch.randint(3, 90, (2, 6))
    labels[1, 3:] = -100
    model = tiny_model(**FIELDS).train()
    longer = copy.deepcopy(model)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    loss = model(**source, labels=labels).loss
    padded = {name: nn.functional.pad(tensor, (0, 5)) for name, tensor in source.items()}
    other = longer(**padded, labels=nn.functional.pad(labels, (0, 4), value=-100)).loss
    torch.testing.assert_close(other, loss)
    loss.backward(), other.backward()
    for (name, one), two in zip(model.named_parameters(), longer.parameters()):
        torch.testing.assert_close(two.grad, one.grad, atol=1e-5, rtol=1e-4, msg=name)
        assert one.grad.any() or name.endswith("norm.bias"), name
    for (name, one), two in zip(model.named_buffers(), longer.buffers()):
        torch.testing.assert_close(two, one, msg=name)
        assert one.any(), name


def test_statistics_are_saved_and_used_alone_in_evaluation(tiny_model, batch, tmp_path):
    model = tiny_model(**FIELDS).train()
    for _ in range(60):
        model(**batch)
    model.eval().save_pretrained(tmp_path)
    opened = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    with torch.no_grad():
        whole = model(**batch).logits
        torch.testing.assert_close(opened(**batch).logits, whole, atol=0, rtol=0)
        alone = model(**{name: tensor[:1] for name, tensor in batch.items()}).logits
        torch.testing.assert_close(alone, whole[:1], atol=1e-5, rtol=0)
        half = copy.deepcopy(model).bfloat16()(**batch).logits.float()
        assert (half - whole)[batch["decoder_attention_mask"].bool()].abs().max() < 0.15
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    for search in ({}, {"num_beams": 3}):
        found = model.generate(**source, max_new_tokens=6, **search)
        assert torch.equal(host(model).generate(**source, max_new_tokens=6, **search), found)


def test_gradient_checkpointing_changes_no_gradient(tiny_model, batch):
    labels, gradients = torch.randint(3, 90, (2, 6)), []
    model = tiny_model(**FIELDS).train()
    for use in (False, True):
        if use:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(**batch, labels=labels).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_what_it_cannot_know_is_refused(tiny_config, tiny_model, batch):
    for fields, message in (
        ({"is_encoder_decoder": False}, "norm_type='batch_norm' with an encoder alone: only models of encoder and"),
        ({"encoder_pooling": [1]}, r"norm_type='batch_norm' with encoder_pooling=\[1\]: its statistics are of tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            tiny_config(**FIELDS, **fields)
    model = tiny_model(**FIELDS).train()
    ready = batch["attention_mask"][:, None, None].bool()
    with pytest.raises(
        ValueError, match=r"attention_mask of shape \(2, 1, 1, 7\): in training, norm_type='batch_norm'"
    ):
        model(**{**batch, "attention_mask": ready})
