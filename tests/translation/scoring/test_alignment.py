"""Word alignments: of words rather than pieces, by the layer and the step that know the word."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from counting_model import SIZES, SOURCES, TARGETS
from transformers import MarianConfig, MarianMTModel

from vanilla_transformer_hf import Translator, VanillaTransformerTokenizer
from vanilla_transformer_hf.translation.pictures.attention_maps import attention_maps
from vanilla_transformer_hf.translation.scoring.alignment import (
    Alignment,
    align_words,
    attention_to_source,
    default_layer,
    join_alignments,
    with_eager_attention,
    words_of_pieces,
)


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(SOURCES, TARGETS, vocab_size=275, show_progress=False)


@pytest.fixture
def translator(tiny_model, tokenizer):
    return Translator(tiny_model(vocab_size=len(tokenizer), decoder_layers=4), tokenizer, matmul_backend="default")


@pytest.mark.parametrize("text", ["one two", " one  two ", "naïve “fünf”\u2028東京 x", "", "o", "n" * 200])
def test_pieces_belong_to_the_words_they_are_in(tokenizer, text):
    encoded = tokenizer(text, return_offsets_mapping=True)
    words = words_of_pieces(text, encoded["offset_mapping"])
    assert words[-1] == -1, "the end-of-sentence token"
    for number, word in enumerate(text.split()):
        pieces = [piece for piece, place in zip(encoded["input_ids"], words) if place == number]
        assert tokenizer.decode(pieces).strip() == word


def test_weights_are_summed_over_source_pieces_and_averaged_over_target_pieces():
    offsets = [(0, 1), (1, 2), (2, 4), (0, 0)], [(0, 2), (2, 4), (4, 5), (0, 0)]  # "ab c" and "AB CD"
    weights = torch.tensor([[0.5, 0.2, 0.1, 0.2], [0.0, 0.1, 0.9, 0.0], [0.2, 0.0, 0.6, 0.2], [0.0, 0.0, 0.0, 1.0]])
    found = align_words(("ab c", "AB CD"), offsets, weights)
    assert (found.source_words, found.target_words) == (["ab", "c"], ["AB", "CD"])
    torch.testing.assert_close(found.weights, torch.tensor([[0.7, 0.1], [0.15, 0.75]]))
    assert (found.links, str(found)) == ([(0, 0), (1, 1)], "0-0 1-1")


def test_links_are_in_source_order_and_a_word_without_attention_has_none():
    weights = torch.tensor([[0.1, 0.2], [0.0, 0.0], [0.9, 0.0]])
    assert str(Alignment(["a", "b"], ["x", "y", "z"], weights)) == "0-2 1-0"
    assert str(Alignment([], ["x"], torch.zeros(1, 0))) == ""


def test_parts_are_put_side_by_side():
    first = Alignment(["a", "b"], ["x"], torch.tensor([[0.1, 0.8]]))
    second = Alignment(["c"], ["y", "z"], torch.tensor([[0.5], [0.6]]))
    none = [range(0)] * 2
    whole = join_alignments(("a b c", "x  y z"), [first, second], [(0, 0), (2, 1)], none)
    assert (str(whole), whole.target_words) == ("1-0 2-1 2-2", ["x", "y", "z"])
    torch.testing.assert_close(whole.weights, torch.tensor([[0.1, 0.8, 0], [0, 0, 0.5], [0, 0, 0.6]]))
    within = join_alignments(("a bc", "x y z"), [first, second], [(0, 0), (1, 1)], none)  # "bc" was cut in two
    assert (str(within), len(within.source_words)) == ("1-0 1-1 1-2", 2)
    shared = join_alignments(
        ("a b \u200b c", "xy z"), [first, second], [(0, 0), (2, 0)], none
    )  # no space between x and y
    assert (shared.source_words, shared.target_words) == (["a", "b", "\u200b", "c"], ["xy", "z"])
    torch.testing.assert_close(shared.weights, torch.tensor([[0.05, 0.4, 0, 0.25], [0, 0, 0, 0.6]]))
    tagged = Alignment(["<de>", "c"], ["y"], torch.tensor([[0.2, 0.7]]))
    repeated = join_alignments(("<de> b c", "x y"), [first, tagged], [(0, 0), (2, 1)], [range(0), range(1)])
    torch.testing.assert_close(repeated.weights, torch.tensor([[0.1, 0.8, 0], [0.2, 0, 0.7]]))


def test_default_is_the_end_of_the_lower_half():
    assert [default_layer(layers) for layers in (1, 2, 3, 4, 6, 12)] == [0, 0, 0, 1, 2, 5]


def test_attention_is_read_where_the_word_is_known(translator):
    """Lower layers: at the step that reads the piece, so that another piece shows; upper layers: the step before."""
    tokenizer, eager = translator.tokenizer, with_eager_attention(translator.model)
    source = tokenizer("one two three", return_tensors="pt")
    targets = [torch.tensor([[0, first, 5, 1]]) for first in (7, 8)]
    for layer, is_known in ((None, True), (0, True), (1, True), (2, False), (3, False), (-1, False)):
        one, other = (
            attention_to_source(eager, source["input_ids"], source["attention_mask"], target, layer)[0, 0]
            for target in targets
        )
        assert torch.equal(one, other) != is_known
        assert one.sum().item() == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="layer=4: the decoder's layers are 0 to 3"):
        translator.align("one", "eins", layer=4)


def test_alignments_of_many_are_those_of_each(translator):
    pairs = list(zip(SOURCES, TARGETS))[3:12]
    together = translator.align(*zip(*pairs), batch_tokens=20)
    for pair, found in zip(pairs, together, strict=True):
        alone = translator.align(*pair)
        torch.testing.assert_close(found.weights, alone.weights, atol=1e-5, rtol=1e-4)
        assert found.weights.shape == (len(pair[1].split()), len(pair[0].split()))
    assert str(translator.align("one", "")) == str(translator.align("", "eins")) == ""


def test_aligning_leaves_the_model_alone(translator, monkeypatch):
    """Another thread may be using it: nothing of it changes, not even for the time of the call."""
    model = translator.model
    before = translator.score("one two", "eins zwei")
    modules = [id(module) for module in model.modules()]
    forward, seen = type(model).forward, []

    def spy(self, **arguments):
        seen.append((self is model, model.config._attn_implementation))
        return forward(self, **arguments)

    monkeypatch.setattr(type(model), "forward", spy)
    translator.align("one two", "eins zwei")
    translator.translate("one two", max_new_tokens=4, return_alignments=True)
    attention_maps(model, translator.tokenizer, "one two", "eins zwei")
    monkeypatch.undo()
    asked = [(is_own, kind) for is_own, kind in seen if not is_own]
    assert asked and {kind for _, kind in seen} == {"sdpa"}
    assert [id(module) for module in model.modules()] == modules
    assert translator.score("one two", "eins zwei") == before
    twin = with_eager_attention(model)
    assert twin.config._attn_implementation == "eager" and model.config._attn_implementation == "sdpa"
    shared = {tensor.data_ptr() for tensor in model.parameters()}
    assert {tensor.data_ptr() for tensor in twin.parameters()} == shared, "no second copy of the weights"


def test_two_threads_align_as_one_does(translator):
    pairs = list(zip(SOURCES, TARGETS))[3:12]
    expected = [translator.align(*pair).weights for pair in pairs]
    scores = [translator.score(*pair) for pair in pairs]

    def work(place):
        pair = pairs[place % len(pairs)]
        if place % 2:
            return torch.equal(translator.align(*pair).weights, expected[place % len(pairs)])
        return translator.score(*pair) == scores[place % len(pairs)]

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(54)))


def test_translations_come_with_alignments(translator):
    options = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 6, "return_alignments": True}
    for source in ("one two three", "four"):
        for translation in translator.translate(source, **options):
            alone = translator.align(source, translation)
            assert str(translation.alignment) == str(alone)
            torch.testing.assert_close(translation.alignment.weights, alone.weights)


def test_a_split_line_has_the_alignment_of_the_whole(translator):
    line = "one two three four five one two three"
    translator.max_source_length = 6
    translation = translator.translate(line, max_new_tokens=6, return_alignments=True)
    assert translation.alignment.source_words == line.split()
    assert translation.alignment.target_words == translation.split()
    assert translation.alignment.weights.shape == (len(translation.split()), 8)


def test_models_of_other_kinds_align_too(tokenizer):
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    marian = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), **SIZES, **special))
    found = Translator(marian, tokenizer).align("one two three", "eins zwei")
    assert found.weights.shape == (2, 3)
    assert len(found.links) == 2


def test_what_tells_no_attention_is_refused(translator, monkeypatch):
    forward = type(translator.model).forward

    def silent(self, **arguments):
        arguments.pop("output_attentions")
        return forward(self, **arguments)

    monkeypatch.setattr(type(translator.model), "forward", silent)
    with pytest.raises(ValueError, match="does not return the attention of its decoder"):
        translator.align("one", "eins")
    monkeypatch.setattr(type(translator.tokenizer), "is_fast", False)
    with pytest.raises(ValueError, match="does not return the offsets of its tokens"):
        translator.align("one", "eins")
