"""Recurrent models: their equations, torch's own layers, padding, carried states, search, saving, refusals."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from reference import recurrent_logits
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM
from travelling_code import MODEL_CODE

from vanilla_transformer_hf import (
    RecurrentSeq2SeqConfig,
    RecurrentSeq2SeqForConditionalGeneration,
    RecurrentSeq2SeqModel,
)
from vanilla_transformer_hf.recurrent.cache import RecurrentCache


KINDS = {
    "sutskever": {"cell_type": "lstm"},
    "deep_gru": {"cell_type": "gru", "encoder_layers": 3, "decoder_layers": 3, "residual_layers": True},
    "bahdanau": {"cell_type": "gru", "bidirectional": True, "attention": "bahdanau", "encoder_layers": 1},
    "luong": {"attention": "luong", "bidirectional": True, "embedding_sharing": "none", "source_vocab_size": 77},
    "feeding": {"attention": "luong", "input_feeding": True, "decoder_layers": 1, "embedding_sharing": "decoder"},
}


def build(kind: str, **fields) -> RecurrentSeq2SeqForConditionalGeneration:
    """A tiny model in evaluation mode whose biases are not zero."""
    config = RecurrentSeq2SeqConfig(**{"vocab_size": 99, "d_model": 16, **KINDS[kind], **fields})
    model = RecurrentSeq2SeqForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture(params=KINDS)
def model(request):
    return build(request.param)


@pytest.fixture
def sentences():
    """Three sources of 7, 4 and 1 tokens, padded on the right, and three targets of 5 tokens."""
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] + [0] * 6])
    target = torch.randint(3, 70, (3, 5))
    target[:, 0] = 0
    return {"input_ids": torch.randint(3, 70, (3, 7)) * mask, "attention_mask": mask, "decoder_input_ids": target}


@torch.no_grad()
def test_logits_are_those_of_the_plain_equations(model, sentences):
    found = model(**sentences).logits
    for row, (source, mask, target) in enumerate(zip(*sentences.values())):
        ids = source[mask.bool()].tolist()
        expected = recurrent_logits(model.state_dict(), model.config, ids, target.tolist())
        torch.testing.assert_close(found[row].double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@torch.no_grad()
def test_the_encoder_is_that_of_torch(cell, sentences):
    model = build("sutskever", cell_type=cell.__name__.lower(), bidirectional=True)
    whole = cell(16, 8, num_layers=2, bidirectional=True, batch_first=True)
    for number, layer in enumerate(model.get_encoder().layers):
        for name, value in layer.named_parameters():
            getattr(whole, name.replace("_l0", f"_l{number}")).copy_(value)
    embeddings = model.get_input_embeddings()(sentences["input_ids"])
    lengths = sentences["attention_mask"].sum(dim=1)
    packed, final = whole(pack_padded_sequence(embeddings, lengths, batch_first=True))
    found = model.get_encoder()(sentences["input_ids"], sentences["attention_mask"])
    torch.testing.assert_close(found.last_hidden_state, pad_packed_sequence(packed, batch_first=True)[0])
    for part, state in enumerate(final if isinstance(final, tuple) else (final,)):
        expected = state.unflatten(0, (2, 2)).permute(2, 0, 1, 3).flatten(2)  # (B, layers, D)
        torch.testing.assert_close(found.final_states[:, :, part], expected)


@torch.no_grad()
def test_padding_on_either_side_of_source_and_target_changes_nothing(model, sentences):
    expected = model.double()(**sentences).logits
    mask = sentences["attention_mask"]
    left = torch.stack([row.roll(int(7 - kept.sum())) for row, kept in zip(sentences["input_ids"], mask)])
    target = torch.cat((torch.full((3, 2), 5), sentences["decoder_input_ids"], torch.full((3, 1), 5)), dim=1)
    seen = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0]] * 3)
    found = model(left, mask.flip(1), target, decoder_attention_mask=seen).logits[:, 2:-1]
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


@torch.no_grad()
def test_steps_with_a_carried_state_give_what_whole_passes_give(model, sentences):
    expected = model.double()(**sentences).logits
    target, source = sentences.pop("decoder_input_ids"), sentences["attention_mask"]
    encoded, cache, logits = model.get_encoder()(**sentences), None, []
    for first, last in ((0, 1), (1, 3), (3, 5)):
        step = model(
            attention_mask=source,
            encoder_outputs=encoded,
            decoder_input_ids=target[:, first:last],
            past_key_values=cache,
            use_cache=True,
        )
        cache = step.past_key_values
        assert type(cache) is RecurrentCache and cache.get_seq_length() == last
        logits.append(step.logits)
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, atol=1e-10, rtol=0)
    size = sum(tensor.numel() for name, tensor in cache.state.tensors.items() if name != "keys")
    parts = 2 if model.config.cell_type == "lstm" else 1
    assert size == 3 * 16 * (parts * model.config.decoder_layers + 1)  # it does not grow with the target


@pytest.mark.parametrize("beams", [1, 3])
def test_search_with_a_carried_state_finds_what_it_finds_without(model, sentences, beams):
    del sentences["decoder_input_ids"]
    with torch.no_grad():
        model.lm_head.weight.mul_(4)  # clear differences
    options = {"num_beams": beams, "max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True}
    found = model.generate(**sentences, **options)
    assert type(found.past_key_values) is RecurrentCache
    expected = model.generate(**sentences, **options, use_cache=False)
    assert torch.equal(found.sequences, expected.sequences)
    assert torch.equal(model.generate(sentences["input_ids"], **options).sequences, found.sequences)
    if beams > 1:
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, atol=1e-5, rtol=0)


@torch.no_grad()
def test_each_beam_has_its_own_state():
    model = build("bahdanau")
    cache = RecurrentCache()
    cache.state.store({"states": torch.arange(3.0)[:, None]}, tokens=2)
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([5, 0, 0, 2, 2, 3]))
    assert cache.state.tensors["states"].flatten().tolist() == [2, 0, 0, 1, 1, 1] and cache.get_seq_length() == 2
    with pytest.raises(ValueError, match="cannot take tokens back"):
        cache.crop(-1)
    cache.reset()
    assert cache.get_seq_length() == 0 and not cache.state.tensors
    with pytest.raises(ValueError, match="assisted"):
        model.generate(torch.tensor([[5, 6]]), assistant_model=build("bahdanau"), max_new_tokens=3)


def test_attention_weights_are_returned_and_leave_padding_out(sentences):
    for kind in ("bahdanau", "luong", "feeding"):
        (weights,) = build(kind)(**sentences, output_attentions=True).cross_attentions
        assert weights.shape == (3, 1, 5, 7)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3, 1, 5))
        assert weights[1, ..., 4:].abs().max() == 0
    assert build("sutskever")(**sentences, output_attentions=True).cross_attentions is None


def test_hidden_states_are_embeddings_and_the_outputs_of_all_layers(model, sentences):
    outputs = model(**sentences, output_hidden_states=True)
    for states, stack, ids in (
        (outputs.encoder_hidden_states, model.get_encoder(), sentences["input_ids"]),
        (outputs.decoder_hidden_states, model.get_decoder(), sentences["decoder_input_ids"]),
    ):
        assert len(states) == len(stack.layers) + 1
        torch.testing.assert_close(states[0], stack.embed_tokens(ids))
        assert all(each.shape == states[0].shape for each in states)
    if not model.config.input_feeding and model.config.attention == "none":
        torch.testing.assert_close(model.lm_head(outputs.decoder_hidden_states[-1]), outputs.logits)
    assert model(**sentences).decoder_hidden_states is None


def test_the_loss_without_logits_has_the_same_gradients(model, sentences):
    del sentences["decoder_input_ids"]
    labels, gradients = torch.randint(3, 70, (3, 4)), []
    labels[1, 2:] = -100
    model.config.dropout = model.model.encoder.dropout.p = model.model.decoder.dropout.p = 0.0
    for with_logits in (True, False):
        model.train().zero_grad()
        loss = model(**sentences, labels=labels, return_logits=with_logits).loss
        loss.backward()
        gradients.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)
    model.eval()
    expected = nn.functional.cross_entropy(model(**sentences, labels=labels).logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(model(**sentences, labels=labels).loss, expected)


def test_dropout_acts_in_training_only(sentences):
    model = build("luong", dropout=0.5)
    outputs = [model(**sentences).logits, model(**sentences).logits, model.train()(**sentences).logits]
    assert torch.equal(*outputs[:2]) and not torch.allclose(*outputs[1:])


@torch.no_grad()
def test_a_saved_model_opens_and_saves_the_same_bytes(model, sentences, tmp_path):
    model.save_pretrained(tmp_path / "one")
    opened = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "one")
    assert type(opened) is RecurrentSeq2SeqForConditionalGeneration
    torch.testing.assert_close(opened(**sentences).logits, model(**sentences).logits, atol=1e-6, rtol=0)
    opened.save_pretrained(tmp_path / "two")
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names > MODEL_CODE
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert type(AutoModel.from_pretrained(tmp_path / "one")) is RecurrentSeq2SeqModel
    assert type(AutoConfig.from_pretrained(tmp_path / "one")) is RecurrentSeq2SeqConfig


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"bidirectional": True, "d_model": 15}, "d_model must be even"),
        ({"input_feeding": True}, "input_feeding=True with attention='none': it belongs to 'luong'"),
        ({"source_vocab_size": 9}, "embedding_sharing='all' with source_vocab_size=9"),
        ({"dropout": 1.0}, "dropout=1.0: must be at least 0 and less than 1"),
        ({"decoder_layers": 0}, "decoder_layers=0: must be at least 1"),
        ({"is_encoder_decoder": False}, "a recurrent model has both stacks"),
    ],
)
def test_a_config_that_cannot_be_is_refused(fields, said):
    with pytest.raises(StrictDataclassClassValidationError, match=said):
        RecurrentSeq2SeqConfig(**fields)


def test_an_encoding_without_the_last_states_is_refused(sentences):
    model = build("luong")
    encoded = model.get_encoder()(sentences.pop("input_ids"), sentences["attention_mask"], return_dict=False)
    with pytest.raises(ValueError, match="give the RecurrentEncoderOutput"):
        model(**sentences, encoder_outputs=encoded[:1])
