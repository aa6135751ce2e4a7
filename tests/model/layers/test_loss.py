"""The loss against the paper's equation, in pieces as whole, and where logits are needed."""

import copy
from functools import partial

import pytest
import torch
from reference import smoothed_loss
from torch import nn
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from vanilla_transformer_hf.model.layers import loss as loss_module
from vanilla_transformer_hf.model.layers.base_model import smoothed_cross_entropy


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.3])
def test_loss_equals_the_papers_equation(label_smoothing, in_pieces, tiny_model, batch):
    model = tiny_model(label_smoothing=label_smoothing, dropout=0.0).train()
    labels = torch.randint(3, 90, (2, 6))
    labels[1, 4:] = -100
    del batch["decoder_input_ids"], batch["decoder_attention_mask"]
    out = model(**batch, labels=labels)
    if in_pieces:
        out.loss = model(**batch, labels=labels, return_logits=False).loss
    expected = sum(
        smoothed_loss(row[kept].double(), label[kept].tolist(), label_smoothing)
        for row, label in zip(out.logits, labels, strict=True)
        for kept in [label != -100]
    )
    torch.testing.assert_close(out.loss, (expected / 10).float())
    # In evaluation nothing is smoothed: the exponential of the loss is the perplexity.
    plain = model.eval()(**batch, labels=labels).loss
    torch.testing.assert_close(plain, torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten()))


def test_training_gives_logits_as_every_model_of_transformers(tiny_model, batch, tmp_path):
    """A loss of one's own reads them; in the host's Trainer, nothing says that they could be missing."""
    model = tiny_model(dropout=0.0).train()
    labels = torch.randint(3, 90, (2, 6))
    out = model(**batch, labels=labels)
    assert out.logits.shape == (2, 6, 99)
    loss, logits = model(**batch, labels=labels, return_dict=False)[:2]
    assert torch.equal(loss, out.loss) and torch.equal(logits, out.logits)
    assert model(**batch, labels=labels, return_logits=False).logits is None

    def own_loss(outputs, labels, num_items_in_batch=None):
        return torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())

    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, per_device_train_batch_size=2
    )
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    columns = {"input_ids": batch["input_ids"], "decoder_input_ids": shifted, "labels": labels}
    rows = [{name: column[row] for name, column in columns.items()} for row in range(2)]
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=rows, compute_loss_func=own_loss)
    assert trainer.train().training_loss > 0


@pytest.fixture
def pieces(monkeypatch):
    """Losses are computed three rows of a vocabulary of 99 at a time."""
    monkeypatch.setattr(loss_module, "LOGITS_AT_ONCE", 3 * 99 + 7)


@pytest.mark.parametrize("sharing", ["all", "none"])
@pytest.mark.parametrize("fields", [{}, {"label_smoothing": 0.0}, {"output_bias": True}])
def test_loss_in_pieces_has_the_gradients_of_the_whole(fields, sharing, pieces, tiny_model, batch):
    model = tiny_model(embedding_sharing=sharing, dropout=0.0, **fields).train()
    labels = torch.randint(3, 90, (2, 6))
    labels[0, 2:4] = labels[1, 3:] = -100
    results = []
    for arguments in ({}, {"return_logits": False}):
        for count in (None, 4, torch.tensor(11)):
            model.zero_grad()
            out = model(**batch, labels=labels, num_items_in_batch=count, **arguments)
            assert (out.logits is None) == bool(arguments)
            (3 * out.loss).backward()
            results.append([out.loss.detach(), *(parameter.grad for parameter in model.parameters())])
    for whole, part in zip(results[:3], results[3:], strict=True):
        for expected, found in zip(whole, part, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_look_ups_make_no_gradients_of_the_whole_matrix_where_the_loss_makes_one(tiny_model, batch):
    labels = torch.randint(3, 90, (2, 6))
    operations = []
    for sharing in ("all", "none"):
        model = tiny_model(embedding_sharing=sharing).train()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            model(**batch, labels=labels, return_logits=False).loss.backward()
        assert all(parameter.grad.layout == torch.strided for parameter in model.parameters())
        operations.append({event.key for event in profile.key_averages()})
    dense = "aten::embedding_dense_backward"
    assert dense not in operations[0] and dense in operations[1]
    with pytest.raises(IndexError, match="token id"):
        model(**{**batch, "input_ids": torch.full((2, 5), 99)}, labels=labels, return_logits=False)


def test_loss_in_pieces_is_differentiated_correctly(pieces):
    """Numerically, in float64; a second backward through the same graph included."""
    states, projection = torch.randn(8, 5).double().requires_grad_(), nn.Linear(5, 99).double()
    labels = torch.randint(0, 99, (8,))
    labels[4] = -100
    smoothed = partial(loss_module.cross_entropy_rows, 0.1)

    def loss(states, weight, bias):
        return loss_module.ProjectedLoss.apply(states[None], weight, bias, labels, smoothed, 7, torch.float64)

    torch.autograd.gradcheck(loss, (states, projection.weight, projection.bias))
    value = loss(states, projection.weight, projection.bias)
    first = torch.autograd.grad(value, projection.weight, retain_graph=True)[0].clone()
    (second,) = torch.autograd.grad(2 * value, projection.weight)
    torch.testing.assert_close(second, 2 * first)
    with torch.no_grad():
        torch.testing.assert_close(loss(states, projection.weight, projection.bias), value.detach())


def test_loss_in_pieces_in_bfloat16(pieces, tiny_model, batch):
    """Under autocast and with bfloat16 weights; the products round, their sum over the pieces does not."""
    labels = torch.randint(3, 90, (2, 6))
    for weights in (torch.float32, torch.bfloat16):
        model = tiny_model(dropout=0.0, vocab_size=5000).to(weights).train()
        gradients = []
        for arguments in ({}, {"return_logits": False}):
            model.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=weights == torch.float32):
                loss = model(**batch, labels=labels, **arguments).loss
            assert loss.dtype == torch.float32
            loss.backward()
            gradients.append([loss.detach(), model.lm_head.weight.grad.float()])
        for whole, part in zip(*gradients, strict=True):
            torch.testing.assert_close(part, whole, atol=3e-3, rtol=2e-2)


def test_loss_of_a_frozen_or_empty_head(pieces, tiny_model, batch):
    model = tiny_model(embedding_sharing="none", dropout=0.0).train()
    labels = torch.randint(3, 90, (2, 6))
    model.lm_head.requires_grad_(False)
    model(**batch, labels=labels).loss.backward()
    assert model.lm_head.weight.grad is None
    assert model.model.decoder.layers[0].fc1.weight.grad.abs().sum() > 0
    nothing = model(**batch, labels=torch.full_like(labels, -100)).loss
    nothing.backward()
    assert nothing.item() == 0


def test_logits_are_computed_whole_where_a_hook_or_adapter_needs_them(pieces, tiny_model, batch):
    labels = torch.randint(3, 90, (2, 6))
    expected = tiny_model(dropout=0.0).train()
    for change in (
        lambda model: model.lm_head.register_forward_hook(lambda module, inputs, output: output * 0.5),
        lambda model: setattr(model.lm_head, "forward", lambda states: nn.Linear.forward(model.lm_head, states) * 0.5),
        lambda model: setattr(model, "lm_head", nn.Sequential(model.lm_head, nn.Dropout(0.0))),
    ):
        model = copy.deepcopy(expected)
        change(model)
        out = model(**batch, labels=labels)
        loss = smoothed_cross_entropy(out.logits, labels, 0.1)
        torch.testing.assert_close(out.loss, loss)
        torch.testing.assert_close(model(**batch, labels=labels, return_logits=False).loss, loss)
