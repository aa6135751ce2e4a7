"""The numbers behind the figure and the tour: every box is what its name says, computed here from other tensors."""

import json

import pytest
import torch
from reference import unshared

from vanilla_transformer_hf import VanillaTransformerForMaskedLM, VanillaTransformerTokenizer
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.results import from_json
from vanilla_transformer_hf.explorer.single_stacks import MaskedSubject
from vanilla_transformer_hf.explorer.subject import Card, Subject, card_of
from vanilla_transformer_hf.publishing.model_card import CardFacts


PAIR = {"text": "three one five", "target_ids": [9, 12, 1]}
# Sublayers of each stack, and the norm of each.
SUBLAYERS = {
    "encoder": {"self_attn": "self_attn_layer_norm", "fc2": "final_layer_norm"},
    "decoder": {
        "self_attn": "self_attn_layer_norm",
        "encoder_attn": "encoder_attn_layer_norm",
        "fc2": "final_layer_norm",
    },
}


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(["one two three four five"], ["eins zwei drei vier fünf"], vocab_size=290)


@pytest.fixture
def opened(tiny_model, tokenizer):
    """`opened(**overrides)`: a tiny model and an explorer of it."""

    def make(**overrides):
        model = tiny_model(vocab_size=len(tokenizer), **overrides)
        return model, Explorer([Subject("tiny", model, tokenizer)])

    return make


def boxes_of(explorer):
    return {box["name"]: box for box in explorer.answer("walk", PAIR)["boxes"]}


def values_of(explorer, name):
    return from_json(explorer.answer("tensor", {**PAIR, "box": name}))


@torch.no_grad()
@pytest.mark.parametrize("position, alpha", [("post", 1.0), ("pre", 1.0), ("post", 0.5), ("pre", 2.0)])
def test_norms_and_sums_around_each_sublayer(position, alpha, opened):
    fields = {f"{side}_norm_position": position for side in SUBLAYERS}
    model, explorer = opened(**fields, **{f"{side}_residual_alpha": alpha for side in SUBLAYERS})
    names = list(boxes_of(explorer))
    for side, sublayers in SUBLAYERS.items():
        stream = values_of(explorer, f"{side}.input")
        stack = model.get_encoder() if side == "encoder" else model.get_decoder()
        for number, layer in enumerate(stack.layers):
            for name, norm in sublayers.items():
                prefix = f"{side}.{number}.{name}"
                normed, added = getattr(layer, norm), values_of(explorer, prefix)
                if position == "pre":
                    assert names.index(f"{prefix}.norm") == names.index(prefix) - 1
                    close(values_of(explorer, f"{prefix}.norm"), normed(stream))
                    stream = alpha * stream + added
                else:
                    assert f"{prefix}.norm" not in names
                    stream = normed(alpha * stream + added)
                after = f"{prefix}.stream" if name != "fc2" else f"{side}.{number}.output"
                assert names.index(after) == names.index(prefix) + 1
                close(values_of(explorer, after), stream)
    (info,) = explorer.answer("models", {})
    assert {side: stack["norm"] for side, stack in info["stacks"].items()} == dict.fromkeys(SUBLAYERS, position)
    factor = "x" if alpha == 1 else f"{alpha:g} x"
    assert factor in boxes_of(explorer)["decoder.1.output"]["formula"]


@pytest.mark.parametrize("sharing", ["stack", "all", "encoder_only"])
def test_a_shared_feed_forward_is_shown_in_every_layer(sharing, opened):
    """It had no box, and the stream was shown to end before it."""
    model, explorer = opened(feed_forward_sharing=sharing)
    boxes = boxes_of(explorer)
    sides = ["encoder"] if sharing == "encoder_only" else list(SUBLAYERS)
    assert {name for name in boxes if name.endswith("fc2")} == {f"{side}.{n}.fc2" for side in sides for n in range(2)}
    copies = unshared({name.removeprefix("model."): one for name, one in model.state_dict().items()}, model.config)
    for side in sides:
        for layer in range(2):
            read = values_of(explorer, f"{side}.{layer}.{list(SUBLAYERS[side])[-2]}.stream")
            (w1, b1), (w2, b2) = ([copies[f"{side}.layers.{layer}.{fc}.{one}"] for one in ("weight", "bias")]
                                  for fc in ("fc1", "fc2"))  # fmt: skip
            close(values_of(explorer, f"{side}.{layer}.fc2"), torch.relu(read @ w1.T + b1) @ w2.T + b2)
    (info,) = explorer.answer("models", {})
    owners = {"stack": ("stack", "stack"), "all": ("stack", "encoder"), "encoder_only": ("stack", "nobody")}
    assert tuple(stack["feed_forward"] for stack in info["stacks"].values()) == owners[sharing]


def test_what_the_figure_says_of_the_stacks(opened):
    _, explorer = opened(encoder_pooling=[1], decoder_layer_sets=1, norm_type="rms_norm", decoder_ffn_dim=48)
    (info,) = explorer.answer("models", {})
    encoder, decoder = info["stacks"]["encoder"], info["stacks"]["decoder"]
    assert (encoder["pools"], encoder["sets"], decoder["pools"], decoder["sets"]) == ([1], [0, 1], [], [0, 0])
    assert (decoder["inner"], decoder["width"], decoder["attention"]) == (48, 32, "full")
    boxes = boxes_of(explorer)
    long, short = (boxes[f"encoder.{layer}.output"]["shape"][0] for layer in range(2))
    assert short == long // 2 + 1 and boxes["encoder.0.output"]["formula"] == "RMSNorm(x + Sublayer(x))"


def test_a_step_that_changes_nothing_has_no_box(opened):
    _, explorer = opened(scale_embedding=False, position_encoding="rotary")
    boxes = boxes_of(explorer)
    assert not {f"{side}.{name}" for side in SUBLAYERS for name in ("scaled", "positions")} & boxes.keys()
    assert boxes["encoder.input"]["formula"] == "E[ids]"
    _, explorer = opened()
    assert boxes_of(explorer)["encoder.input"]["formula"] == "E[ids] · √d_model + PE(pos)"


def test_the_example_is_that_of_the_card(tmp_path, tiny_config):
    assert card_of(tmp_path).example == "" and card_of(tmp_path / "nothing") == Card()
    card = tmp_path / "README.md"
    for line, expected in (
        ('batch = tokenizer(["A \\"brown\\" dog."], return_tensors="pt", padding=True)', 'A "brown" dog.'),
        ('print(pipeline("fill-mask", model=name)("one" + \' \' + tokenizer.mask_token))', "one"),
        ('batch = tokenizer(["..."], return_tensors="pt")', ""),
        ('tokens = tokenizer(["of another card"])', ""),
    ):
        card.write_text(f"# a card\n\n```python\n{line}\n```\n", encoding="utf-8")
        assert card_of(tmp_path).example == expected
    for half in (r'batch = tokenizer(["\ud800"])', '---\nlanguage: "\\ud800"\n---\n\nbatch = tokenizer(["A dog."])'):
        card.write_text(half, encoding="utf-8")  # half of a character: the page of all models could not be sent
        assert card_of(tmp_path) == Card()
    card.write_text(
        '---\nlanguage: [en, de]\n---\n\nbatch = tokenizer(["A dog."], return_tensors="pt")\n', encoding="utf-8"
    )
    assert card_of(tmp_path) == Card("A dog.", ("en", "de"))
    CardFacts(source_lang="en", target_lang="de", example="from the facts", corpus="Numbers", pairs=9).write(tmp_path)
    assert card_of(tmp_path) == Card("from the facts", ("en", "de"), "Numbers", 9)
    (tmp_path / "card_facts.json").write_text("{")
    assert card_of(tmp_path).example == ""
    (tmp_path / "card_facts.json").write_text(json.dumps({"example": None}))
    card.write_bytes(b"\xff")
    assert card_of(tmp_path).example == ""
    tokenizer = VanillaTransformerTokenizer.train(["one two"], vocab_size=270)
    model = VanillaTransformerForMaskedLM(tiny_config(vocab_size=len(tokenizer)))
    assert MaskedSubject("m", model, tokenizer, Card("one")).example == ""  # there is no mask token to fill
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    assert MaskedSubject("m", model, tokenizer, Card("one")).example == "one <mask>"
