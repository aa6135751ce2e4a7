"""Attention of a sentence as a picture: the weights are those of the paper's equation 1, each in its place."""

import math

import pytest
import torch
from counting_model import SOURCES, TARGETS

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.translation.pictures.attention_maps import MOST_PIECES, attention_maps, draw_attention


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(SOURCES, TARGETS, vocab_size=275, show_progress=False)


@pytest.fixture
def model(tiny_model, tokenizer):
    return tiny_model(vocab_size=len(tokenizer), decoder_layers=3, attn_implementation="sdpa")


def equation_1(attention, queries, keys, mask=0.0):
    heads = 4
    query = attention.q_proj(queries).unflatten(-1, (heads, -1)).transpose(1, 2)
    key = attention.k_proj(keys).unflatten(-1, (heads, -1)).transpose(1, 2)
    return (query @ key.transpose(2, 3) / math.sqrt(query.shape[-1]) + mask).softmax(dim=-1)[0]


def test_weights_are_those_of_the_equation(model, tokenizer):
    seen = {}
    layers = {"encoder": model.get_encoder().layers[0], "decoder": model.get_decoder().layers[0]}
    for name, layer in layers.items():
        layer.register_forward_pre_hook(lambda module, args, name=name: seen.__setitem__(name, args[0]))
    cross = model.get_decoder().layers[0].encoder_attn
    cross.register_forward_pre_hook(
        lambda module, args, kwargs: seen.__setitem__("cross", (args[0], seen["memory"])), with_kwargs=True
    )
    model.get_encoder().register_forward_hook(lambda module, args, out: seen.__setitem__("memory", out[0]))
    maps = attention_maps(model, tokenizer, "one two", "zwei eins drei")
    steps = len(maps.read)
    future = torch.full((steps, steps), -math.inf).triu(1)
    with torch.no_grad():
        encoder = equation_1(layers["encoder"].self_attn, seen["encoder"], seen["encoder"])
        decoder = equation_1(layers["decoder"].self_attn, seen["decoder"], seen["decoder"], future)
        across = equation_1(cross, *seen["cross"])
    torch.testing.assert_close(maps.encoder[0], encoder)
    torch.testing.assert_close(maps.decoder[0], decoder)
    torch.testing.assert_close(maps.cross[0], across)
    assert maps.cross.shape == (3, 4, steps, len(maps.source))
    assert model.config._attn_implementation == "sdpa"


def test_pieces_stand_at_their_steps(model, tokenizer):
    maps = attention_maps(model, tokenizer, "one two", "zwei eins")
    assert (maps.source[-1], maps.read[0], maps.predicted[-1]) == ("</s>", "<pad>", "</s>")
    assert maps.read[1:] == maps.predicted[:-1]
    assert "".join(maps.predicted[:-1]).translate({ord("·"): "", ord("␣"): ""}) == "zweieins"
    own = attention_maps(model, tokenizer, "one two")
    found = model.generate(**tokenizer(["one two"], return_tensors="pt"))[0]
    assert len(own.predicted) == len(found) - 1


def test_pieces_that_go_on_with_a_word_are_marked(model, tokenizer):
    maps = attention_maps(model, tokenizer, "xyz one", "eins")
    assert maps.source == ["␣", "x", "·y", "·z", "␣", "one", "</s>"]


def test_the_picture_has_a_row_for_each_layer_and_the_mean_first(model, tokenizer):
    maps = attention_maps(model, tokenizer, "one two", "zwei eins")
    figure = draw_attention(maps)
    pictures = [axis.images[0].get_array() for axis in figure.axes[: 3 * 5]]
    torch.testing.assert_close(torch.tensor(pictures[5].data), maps.cross[1].mean(dim=0))
    torch.testing.assert_close(torch.tensor(pictures[8].data), maps.cross[1, 2])
    labels = figure.axes[0].get_yticklabels(), figure.axes[10].get_xticklabels()
    assert [[text.get_text() for text in side] for side in labels] == [maps.predicted, maps.source]
    (alone,) = draw_attention(maps, "encoder", layer=1).axes[0].images
    torch.testing.assert_close(torch.tensor(alone.get_array().data), maps.encoder[1].mean(dim=0))


def test_what_cannot_be_drawn_is_said(model, tokenizer):
    maps = attention_maps(model, tokenizer, "one", "eins")
    with pytest.raises(ValueError, match="layer=3: the layers are 0 to 2"):
        draw_attention(maps, layer=3)
    with pytest.raises(ValueError, match="part='all': one of encoder, decoder, cross"):
        draw_attention(maps, "all")
    with pytest.raises(ValueError, match=f"the source has 2.. tokens; a picture shows up to {MOST_PIECES}"):
        attention_maps(model, tokenizer, "x" * 250, "eins")
    for empty in ("", " \u200b"):
        with pytest.raises(ValueError, match="the source is empty: expected a sentence"):
            attention_maps(model, tokenizer, empty)
