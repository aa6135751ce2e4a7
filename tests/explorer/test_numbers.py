"""Every number that is shown is the model's own: outputs of the host, of `generate()`, of changed weights."""

import copy
import math

import pytest
import torch
from reference import unshared
from torch import nn

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.interventions import copy_without
from vanilla_transformer_hf.explorer.requests import RequestError
from vanilla_transformer_hf.explorer.results import from_json
from vanilla_transformer_hf.explorer.subject import Subject


TEXT, TARGET = "three one five", "fünf eins drei"
PARTS = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
VARIANTS = {
    "paper": {},
    "pre-norm rotary": {"encoder_norm_position": "pre", "decoder_norm_position": "pre", "position_encoding": "rotary"},
    "shaw": {"position_encoding": "shaw", "d_v": 12, "attention_bias": True},
    "t5 bias": {"position_encoding": "t5_bias", "feed_forward_type": "gated", "norm_type": "rms_norm"},
    "gates": {"position_encoding": "gated_alibi", "decoder_position_encoding": "rotary_halves"},
    "alibi": {"position_encoding": "alibi", "layernorm_embedding": True, "decoder_layers": 3},
}


def close(found, expected):
    found = from_json(found) if isinstance(found, dict) else torch.as_tensor(found)
    torch.testing.assert_close(found, torch.as_tensor(expected).float(), atol=1e-6, rtol=1e-6)


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(["one two three four five"], ["eins zwei drei vier fünf"], vocab_size=290)


@pytest.fixture(params=VARIANTS)
def variant(request, tiny_model, tokenizer):
    return tiny_model(vocab_size=len(tokenizer), **VARIANTS[request.param])


class Asked:
    """An explorer of one model, and what the host itself makes of one pair."""

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.explorer = Explorer([Subject("tiny", model, tokenizer)])
        self.batch = tokenizer([TEXT], return_tensors="pt")
        self.ids = tokenizer(text_target=[TARGET])["input_ids"][0]
        self.pair = {"text": TEXT, "target_ids": self.ids}

    def __call__(self, question, **request):
        return self.explorer.answer(question, request)

    @torch.no_grad()
    def outputs(self, model=None):
        """By the host's own interface, of a copy with eager attention."""
        model = copy.deepcopy(model or self.model)
        model.set_attn_implementation("eager")
        start = model.config.decoder_start_token_id
        return model(
            input_ids=self.batch["input_ids"],
            attention_mask=self.batch["attention_mask"],
            decoder_input_ids=torch.tensor([[start, *self.ids[:-1]]]),
            output_attentions=True,
            output_hidden_states=True,
        )


@pytest.fixture
def asked(variant, tokenizer):
    return Asked(variant, tokenizer)


def test_attention_and_heads_are_those_of_the_outputs(asked):
    outputs, config = asked.outputs(), asked.model.config
    for part, name in PARTS.items():
        expected = getattr(outputs, name)
        for layer in range(len(expected)):
            close(asked("attention", **asked.pair, part=part, layer=layer)["weights"], expected[layer][0])
        close(asked("grid", **asked.pair, part=part, size=128)["weights"], torch.cat(expected))
        layer = len(expected) - 1
        heads = [asked("head", **asked.pair, part=part, layer=layer, head=head) for head in range(4)]
        for head, found in enumerate(heads):
            close(found["weights"], expected[layer][0, head])
            products, mask = from_json(found["products"]), from_json(found["mask"])
            close(found["scaled"], products / math.sqrt(config.d_k or config.d_model // 4))
            close(found["weights"], (from_json(found["scaled"]) + mask).softmax(dim=-1))
        side = asked.model.get_encoder() if part == "encoder" else asked.model.get_decoder()
        module = side.layers[layer].encoder_attn if part == "cross" else side.layers[layer].self_attn
        joined = torch.cat([from_json(found["mixed"]) for found in heads], dim=-1)
        close(heads[0]["output"], module.out_proj(joined).detach())  # concatenation and W^O
        total = sum(from_json(found["contribution"]) for found in heads)
        bias = 0 if module.out_proj.bias is None else module.out_proj.bias.detach()
        torch.testing.assert_close(total + bias, from_json(heads[0]["output"]), atol=1e-5, rtol=1e-5)


def test_white_space_of_texts_is_no_matter(tiny_model, tokenizer):
    asked = Asked(tiny_model(vocab_size=len(tokenizer)), tokenizer)
    text, target = "\ufeff three\u00a0one\n five\n", f" {TARGET}\u2028"
    assert asked("translate", text=text, num_beams=1) == asked("translate", text=TEXT, num_beams=1)
    assert asked("score", text=text, target=target) == asked("score", text=TEXT, target=TARGET)


def test_the_walk_is_made_of_hidden_states_and_logits(asked):
    outputs, config = asked.outputs(), asked.model.config
    found = asked("walk", **asked.pair)

    def values(name):
        return from_json(asked("tensor", **asked.pair, box=name))

    for side, states in (("encoder", outputs.encoder_hidden_states), ("decoder", outputs.decoder_hidden_states)):
        is_normed = config.layernorm_embedding
        close(values(f"{side}.normed" if is_normed else f"{side}.input"), states[0][0])
        count = getattr(config, f"{side}_layers")
        for layer in range(count - 1):  # the host puts the final norm onto the last
            close(values(f"{side}.{layer}.output"), states[layer + 1][0])
        last = f"{side}.norm" if getattr(config, f"{side}_final_norm") else f"{side}.{count - 1}.output"
        close(values(last), states[-1][0])
    close(values("logits"), outputs.logits[0])
    close(values("probabilities"), outputs.logits[0].softmax(dim=-1))
    boxes = {box["name"]: box for box in found["boxes"]}
    for name in ("decoder.1.fc2", "encoder.0.self_attn", "decoder.0.encoder_attn"):
        box, tensor = boxes[name], values(name)
        close([box["mean"], box["least"], box["most"]], torch.stack((tensor.mean(), tensor.min(), tensor.max())))
        close(box["deviation"], tensor.std(unbiased=False))
        close(box["norms"], tensor.norm(dim=-1))
    norm = asked.model.get_decoder().layers[1].encoder_attn_layer_norm
    close(values("decoder.1.encoder_attn.gain"), norm.weight.detach()[None])
    if getattr(norm, "bias", None) is not None:
        close(values("decoder.1.encoder_attn.bias"), norm.bias.detach()[None])
    if config.decoder_norm_position == "pre":  # the stream is the sum
        before, last = values("decoder.0.output"), boxes["decoder.1.fc2"]
        assert boxes["decoder.1.self_attn"]["before"] == pytest.approx(float(before.norm(dim=-1).mean()), rel=1e-6)
        parts = [values(f"decoder.1.{name}") for name in ("self_attn", "encoder_attn", "fc2")]
        torch.testing.assert_close(before + sum(parts), values("decoder.1.output"), atol=1e-5, rtol=1e-5)
        assert last["after"] == pytest.approx(float(values("decoder.1.output").norm(dim=-1).mean()), rel=1e-6)
    probabilities = outputs.logits[0].softmax(dim=-1)
    last = found["lenses"][-1]
    assert last["layer"] == config.decoder_layers - 1
    for step, row in zip(last["steps"], probabilities):
        for one in step:
            assert one["probability"] == pytest.approx(float(row[one["id"]]), abs=1e-6)
        assert step[0]["id"] == int(row.argmax())


def test_positions_are_what_the_scheme_adds(tiny_model, tokenizer):
    found = Asked(tiny_model(vocab_size=len(tokenizer)), tokenizer)("positions", length=9)
    (picture,) = found["pictures"]
    assert (picture["kind"], picture["number"]) == ("added", None)
    angles = torch.arange(9)[:, None] / 10000 ** (torch.arange(0, 32, 2) / 32)
    close(picture["values"], torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))
    alibi = Asked(tiny_model(vocab_size=len(tokenizer), position_encoding="alibi"), tokenizer)("positions", length=5)
    distances = (torch.arange(5)[:, None] - torch.arange(5)).abs()
    for head, picture in enumerate(alibi["pictures"]):
        assert (picture["kind"], picture["number"]) == ("scores", head)
        close(picture["values"], -distances * 2.0 ** (-2 * (head + 1)))
    assert len(alibi["pictures"]) == 4


@pytest.mark.parametrize(
    "settings", [{}, {"length_penalty": 0.6, "length_penalty_type": "gnmt"}], ids=["power", "gnmt"]
)
def test_the_n_best_list_is_that_of_generate_and_its_tree_holds_it(settings, decided_model, tokenizer):
    asked = Asked(decided_model(vocab_size=len(tokenizer)), tokenizer)
    expected = asked.model.generate(
        **asked.batch, num_beams=4, num_return_sequences=4, return_dict_in_generate=True, max_new_tokens=12, **settings
    )
    found = asked("translate", text=TEXT, num_beams=4, max_new_tokens=12, **settings)
    texts = tokenizer.batch_decode(expected.sequences, skip_special_tokens=True)
    assert [one["text"] for one in found["hypotheses"]] == texts
    close([one["score"] for one in found["hypotheses"]], expected.sequences_scores)
    tree = found["tree"]
    paths = {}
    for number, node in enumerate(tree):
        paths[number] = [*paths[node["parent"]], node["piece"]["id"]] if number else []
        if number:
            assert tree[node["parent"]]["step"] == node["step"] - 1
            assert tree[node["parent"]]["state"] in ("running", "dead")
    for one in found["hypotheses"]:
        (node,) = [tree[number] for number, path in paths.items() if path == one["ids"]]
        assert node["state"] == "finished"
        assert node["score"] == pytest.approx(one["score"], abs=1e-6)
        total = math.fsum(step["log_probability"] for step in one["steps"])
        assert node["log_probability"] == pytest.approx(total, abs=2e-5)
    assert {node["state"] for node in tree} >= {"running", "finished", "dead"}
    for step in range(1, max(node["step"] for node in tree)):
        here = [number for number, node in enumerate(tree) if node["step"] == step]
        assert len({tree[number]["parent"] for number in here}) <= 4


def test_a_recorder_changes_nothing_and_greedy_search_has_none(decided_model, source):
    model, steps = decided_model(), []
    settings = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 10, "return_dict_in_generate": True}
    plain = model.generate(**source, **settings)
    recorded = model.generate(**source, **settings, recorder=steps.append)
    assert torch.equal(plain.sequences, recorded.sequences)
    assert torch.equal(plain.sequences_scores, recorded.sequences_scores)
    assert 0 < len(steps) <= 10 and steps[0].chosen.shape == (9, 3)
    with pytest.raises(ValueError, match="recorder: needs num_beams of at least 2, not 1"):
        model.generate(**source, recorder=steps.append)


def test_probabilities_are_those_of_the_logits_and_a_prefix_goes_on(asked):
    found = asked("translate", text=TEXT, num_beams=2, max_new_tokens=6)
    best = found["hypotheses"][0]
    asked.ids = best["ids"]
    probabilities = asked.outputs().logits[0].softmax(dim=-1)
    for step, row in zip(best["steps"], probabilities, strict=True):
        assert step["probability"] == pytest.approx(float(row[step["piece"]["id"]]), abs=1e-6)
        assert step["rank"] == int((row > row[step["piece"]["id"]]).sum())
        close([one["probability"] for one in step["alternatives"]], row.topk(8).values)
        assert [one["id"] for one in step["alternatives"]] == row.topk(8).indices.tolist()
    chosen = [best["ids"][0], best["steps"][1]["alternatives"][3]["id"]]
    if not {*chosen} & {1}:
        again = asked("translate", text=TEXT, num_beams=2, max_new_tokens=6, prefix=chosen)["hypotheses"][0]
        assert again["ids"][:2] == chosen and [step["given"] for step in again["steps"]][:3] == [True, True, False]
        assert again["log_probability"] == pytest.approx(sum(s["log_probability"] for s in again["steps"][2:]))


def test_a_target_that_is_given_is_scored_as_translators_do(opened_translator):
    explorer = Explorer([Subject("counting", opened_translator.model, opened_translator.tokenizer)])
    found = explorer.answer("score", {"text": TEXT, "target": TARGET})["hypotheses"][0]
    expected = opened_translator.score(TEXT, TARGET)
    assert found["log_probability"] == pytest.approx(expected.log_probability, abs=1e-5)
    assert found["text"] == TARGET and found["is_complete"]
    assert explorer.answer("translate", {"text": TEXT})["hypotheses"][0]["text"] == TARGET


def test_a_head_that_is_off_is_a_head_whose_columns_of_the_output_matrix_are_zero(asked):
    off = ["encoder.0.3", "cross.1", "decoder.0.1"]
    changed = copy.deepcopy(asked.model)
    encoder, decoder = changed.get_encoder().layers, changed.get_decoder().layers
    width = asked.model.config.d_v or 8
    with torch.no_grad():
        encoder[0].self_attn.out_proj.weight[:, 3 * width :] = 0
        decoder[0].self_attn.out_proj.weight[:, width : 2 * width] = 0
        decoder[1].encoder_attn.out_proj.weight.zero_()
    expected = asked.outputs(changed)
    close(asked("tensor", **asked.pair, off=off, box="logits"), expected.logits[0])
    found = asked("translate", text=TEXT, num_beams=2, max_new_tokens=5, off=off)["hypotheses"]
    ids = changed.generate(**asked.batch, num_beams=2, num_return_sequences=2, max_new_tokens=5)
    assert [one["text"] for one in found] == asked.tokenizer.batch_decode(ids, skip_special_tokens=True)
    close(asked("tensor", **asked.pair, box="logits"), asked.outputs().logits[0])  # the model itself is as it was


def test_a_layer_that_is_off_is_a_layer_less(asked):
    count = asked.model.config.decoder_layers
    smaller = copy.deepcopy(asked.model)
    stack = smaller.get_decoder()
    stack.layers = nn.ModuleList([layer for number, layer in enumerate(stack.layers) if number != 1])
    stack.order_of_layers = list(range(count - 1))
    scheme = stack.embed_positions
    if hasattr(scheme, "keys"):  # Shaw's vectors of each layer
        scheme.keys, scheme.values = (nn.Parameter(table[[0]]) for table in (scheme.keys, scheme.values))
        scheme.order = [0]
    expected = asked.outputs(smaller)
    close(asked("tensor", **asked.pair, off=["decoder.1"], box="logits"), expected.logits[0])
    grid = asked("grid", **asked.pair, off=["decoder.1"], part="cross", size=128)
    assert grid["layers"] == [number for number in range(count) if number != 1]
    close(grid["weights"], torch.cat(expected.cross_attentions))
    found = asked("translate", text=TEXT, num_beams=2, max_new_tokens=5, off=["decoder.1"])
    assert found["tree"] and asked.model.config.decoder_layers == count == len(asked.model.get_decoder().layers)
    with pytest.raises(RequestError, match="1 is not a layer that is on"):
        asked("attention", **asked.pair, off=["decoder.1"], part="cross", layer=1)


def test_what_shares_weights_is_shown_as_if_it_shared_nothing(tiny_model, tokenizer):
    """A head that is off is off in one layer and in one attention, also where others have the same matrix."""
    shared = {
        **{"decoder_layer_sets": 1, "decoder_attention_sharing": True, "projection_sharing": "key_value"},
        **{"feed_forward_sharing": "all", "vocab_size": len(tokenizer)},
    }
    model, twin = tiny_model(**shared), tiny_model(vocab_size=len(tokenizer))
    copies = unshared({name.removeprefix("model."): one for name, one in model.state_dict().items()}, model.config)
    twin.load_state_dict({name if "lm_head" in name else f"model.{name}": one for name, one in copies.items()})
    ours, theirs = Asked(model, tokenizer), Asked(twin, tokenizer)
    for off in ([], ["decoder.0.1", "cross.1.2"], ["decoder.1"]):
        for name, key, fields in (
            ("tensor", None, {"box": "logits"}),
            ("grid", "weights", {"part": "cross", "size": 128}),
            ("head", "contribution", {"part": "decoder", "layer": 0, "head": 2}),
            ("head", "contribution", {"part": "cross", "layer": 0, "head": 2}),
        ):
            found, expected = (asked(name, **asked.pair, off=off, **fields) for asked in (ours, theirs))
            close(found if key is None else found[key], from_json(expected if key is None else expected[key]))


def test_models_of_the_host_show_attention_and_translations(host_model, tokenizer):
    asked = Asked(host_model, tokenizer)
    outputs = asked.outputs()
    for part, name in PARTS.items():
        close(asked("attention", **asked.pair, part=part, layer=1)["weights"], getattr(outputs, name)[1][0])
    (info,) = asked("models")
    assert not info["is_ours"] and info["layers"] == {"encoder": 2, "decoder": 2, "cross": 2}
    assert info["heads"] == {part: [2, 2] for part in ("encoder", "decoder", "cross")}
    found = asked("translate", text=TEXT, num_beams=2, max_new_tokens=4)
    assert len(found["hypotheses"]) == 2 and found["tree"] is None
    begun = asked("translate", text=TEXT, prefix=[9, 12], max_new_tokens=4)["hypotheses"][0]
    assert begun["ids"][:2] == [9, 12]
    with pytest.raises(RequestError, match="only its attention and attributions can be shown"):
        asked("walk", **asked.pair)
    with pytest.raises(RequestError, match="cannot be changed here"):
        asked("translate", text=TEXT, off=["cross.0"])


def test_parts_that_do_not_exist_are_refused(tiny_model):
    for off, message in (
        (["cross"], "is not a part"),
        (["middle.0"], "is not a part"),
        (["cross.2"], "layer 2 of the decoder does not exist: it has 2"),
        (["encoder.0.4"], "head 4 does not exist: each layer has 4"),
        (["encoder.0", "encoder.1"], "all layers of the encoder are off"),
    ):
        with pytest.raises(RequestError, match=message):
            copy_without(tiny_model(), off)


def test_what_temperature_top_k_and_top_p_leave_is_shown(tiny_model, tokenizer):
    asked = Asked(tiny_model(vocab_size=len(tokenizer)), tokenizer)
    settings = {"temperature": 0.7, "top_k": 9, "top_p": 0.8}
    shown = asked("score", text=TEXT, target=TARGET, alternatives=50, **settings)["hypotheses"][0]["steps"]
    logits = asked.outputs().logits[0] / 0.7
    for step, row in zip(shown, logits, strict=True):
        best, ids = row.topk(9)
        shares = best.softmax(dim=0)
        kept = int((shares.cumsum(dim=0) - shares < 0.8).sum())  # the fewest that have this share together
        expected = dict(zip(ids[:kept].tolist(), (shares[:kept] / shares[:kept].sum()).tolist(), strict=True))
        others = step["alternatives"]
        close([one["drawn"] for one in others], [expected.get(one["id"], 0.0) for one in others])
        close(step["drawn"], expected.get(step["piece"]["id"], 0.0))
    plain = asked("score", text=TEXT, target=TARGET)["hypotheses"][0]["steps"]
    assert all(abs(one["drawn"] - one["probability"]) < 1e-6 for step in plain for one in step["alternatives"])


def test_draws_are_those_of_generate_and_repeat(tiny_model, tokenizer):
    asked = Asked(tiny_model(vocab_size=len(tokenizer)), tokenizer)
    settings = {"temperature": 2, "top_k": 20, "top_p": 0.9}
    before = torch.random.get_rng_state()
    found = asked("translate", text=TEXT, draws=4, seed=5, max_new_tokens=6, **settings)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)
    options = settings | {"temperature": 2.0, "do_sample": True, "num_return_sequences": 4, "max_new_tokens": 6}
    expected = asked.model.generate(**asked.batch, **options, num_beams=1)
    shown = [one["ids"] for one in found["hypotheses"]]
    assert [row[1 : 1 + len(ids)] for row, ids in zip(expected.tolist(), shown, strict=True)] == shown
    assert found["tree"] is None and len({*map(tuple, shown)}) > 1
    assert asked("translate", text=TEXT, draws=4, seed=5, max_new_tokens=6, **settings) == found
    others = asked("translate", text=TEXT, draws=4, seed=6, max_new_tokens=6)["hypotheses"]
    assert [one["ids"] for one in others] != shown
    prefix = shown[0][:2]
    begun = asked("translate", text=TEXT, draws=3, prefix=prefix, max_new_tokens=4)["hypotheses"]
    assert all(one["ids"][:2] == prefix and one["steps"][1]["given"] for one in begun)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_model_that_says_only_padding_is_shown_as_it_is(num_beams, tiny_model, tokenizer):
    """As some untrained ones do: before training is what a teacher shows first, and all views need a target."""
    model = tiny_model(vocab_size=len(tokenizer), output_bias=True)
    model.get_output_embeddings().bias.data[tokenizer.pad_token_id] = 1e4
    asked = Asked(model, tokenizer)
    (found, *_) = asked("translate", text=TEXT, num_beams=num_beams, max_new_tokens=4)["hypotheses"]
    assert found["ids"] == [tokenizer.pad_token_id] * 4 and not found["is_complete"]
    assert [step["piece"]["text"] for step in found["steps"]] == [tokenizer.pad_token] * 4
    pair = {"text": TEXT, "target_ids": found["ids"]}
    assert asked("walk", **pair)["predicted"] and asked("attributions", **pair)["output"]
