"""Activation patching equals a pass whose tensor is overwritten by hooks of torch, outside the explorer's code."""

import pytest
import torch
from reference import unshared

from vanilla_transformer_hf import VanillaTransformerForCausalLM, VanillaTransformerTokenizer
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.patching import counterparts
from vanilla_transformer_hf.explorer.requests import RequestError
from vanilla_transformer_hf.explorer.results import from_json
from vanilla_transformer_hf.explorer.single_stacks import CausalSubject
from vanilla_transformer_hf.explorer.subject import Subject


TEXT, TARGET = "three one five", "fünf eins drei"
OTHER, LONGER = "three two five", "three two one five"
VARIANTS = {
    "paper": {},
    "pre-norm rotary": {"encoder_norm_position": "pre", "decoder_norm_position": "pre", "position_encoding": "rotary"},
    "shaw": {"position_encoding": "shaw", "d_v": 12, "attention_bias": True},
}


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(
        ["one two three four five"] * 4, ["eins zwei drei vier fünf"] * 4, vocab_size=330
    )


class ByHand:
    """A model, two sentences and one target; passes with a tensor that is kept, or overwritten."""

    def __init__(self, model, tokenizer, other=OTHER):
        self.model = model.eval()
        self.ids = tokenizer(text_target=[TARGET])["input_ids"][0]
        self.request = {"text": TEXT, "other": other, "target_ids": self.ids}
        self.sources = [tokenizer([text], return_tensors="pt") for text in (TEXT, other)]
        self.read = torch.tensor([[model.config.decoder_start_token_id, *self.ids[:-1]]])
        self.explorer = Explorer([Subject("tiny", model, tokenizer)])

    def __call__(self, question, **request):
        return self.explorer.answer(question, self.request | request)

    def module(self, name):
        part, layer, *head = name.split(".")
        stack = self.model.get_encoder() if part == "encoder" else self.model.get_decoder()
        module = stack.layers_in_order[int(layer)]
        if not head and part != "cross":
            return module, None
        attention = module.encoder_attn if part == "cross" else module.self_attn
        width = attention.d_v
        return attention.out_proj, slice(*(width * (int(head[0]) + more) for more in (0, 1))) if head else slice(None)

    @torch.no_grad()
    def logits(self, place, name=None, row=None, values=None, kept=None):
        """Logits (T, V) after a sentence; one row of a tensor is overwritten, or the tensor is kept."""
        hooks = []
        if name is not None:
            module, columns = self.module(name)

            def at(states):
                if kept is not None:
                    kept.append((states if columns is None else states[..., columns])[0].clone())
                    return states
                states = states.clone()
                states[0, row, slice(None) if columns is None else columns] = values
                return states

            if columns is None:
                hooks = [module.register_forward_hook(lambda module, given, output: overwritten(output, at))]
            else:
                hooks = [module.register_forward_pre_hook(lambda module, given: (at(given[0]), *given[1:]))]
        found = self.model(**self.sources[place], decoder_input_ids=self.read).logits[0]
        for hook in hooks:
            hook.remove()
        return found

    def patched(self, name, row, taken=None):
        kept = []
        self.logits(1, name, kept=kept)
        return self.logits(0, name, row, kept[0][row if taken is None else taken])


def overwritten(output, at):
    return (at(output[0]), *output[1:]) if isinstance(output, tuple) else at(output)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_next_token_is_that_of_a_pass_that_hooks_change(variant, tiny_model, tokenizer):
    hand = ByHand(tiny_model(vocab_size=len(tokenizer), **VARIANTS[variant]), tokenizer)
    plain, other, step = hand.logits(0), hand.logits(1), 2
    for name, row in (
        ("encoder.0", 1), ("encoder.1", 0), ("encoder.0.3", 1), ("encoder.1.0", 2),
        ("decoder.0", 1), ("decoder.1", 2), ("decoder.0.2", 0), ("cross.1.1", 2), ("cross.0", 1),
    ):  # fmt: skip
        found = hand("patch", tensor=name, position=row, step=step)
        patched = hand.patched(name, row)
        first, second = found["first"]["id"], found["second"]["id"]
        assert first == int(plain[step].argmax()) and found["step"] == step and found["other_position"] == row
        expected = [float(one[step, first] - one[step, second]) for one in (plain, patched, other)]
        assert found["differences"] == pytest.approx(expected, abs=2e-6), name
        for listed, logits in zip(found["best"], (plain, patched, other)):
            probabilities = logits[step].softmax(dim=-1)
            assert [one["probability"] for one in listed] == pytest.approx(
                [float(probabilities[one["id"]]) for one in listed], abs=1e-6
            )
            assert listed[0]["id"] == int(logits[step].argmax()) and {first, second} <= {one["id"] for one in listed}


def test_maps_are_the_single_patches(tiny_model, tokenizer):
    hand = ByHand(tiny_model(vocab_size=len(tokenizer), encoder_layers=3), tokenizer)
    for part, layers in (("encoder", 3), ("decoder", 2), ("cross", 2)):
        found = hand("patch_map", part=part, step=2)
        differences = from_json(found["differences"])
        assert list(differences.shape) == [layers, len(found["places"])] and found["layers"] == [*range(layers)]
        first, second = found["first"]["id"], found["second"]["id"]
        for layer in range(layers):
            for row in range(len(found["places"])):
                logits = hand.patched(f"{part}.{layer}", row)[2]
                assert float(differences[layer, row]) == pytest.approx(float(logits[first] - logits[second]), abs=5e-6)
        heads = hand("patch_map", part=part, step=2, position=1)
        for layer in range(layers):
            for head in range(4):
                logits = hand.patched(f"{part}.{layer}.{head}", 1)[2]
                difference = float(from_json(heads["differences"])[layer, head])
                assert difference == pytest.approx(float(logits[first] - logits[second]), abs=5e-6)


def test_all_rows_of_the_encoder_make_the_other_sentence(tiny_model, tokenizer):
    """Where the last layer of the encoder is exchanged as a whole, nothing of the first sentence is left."""
    hand = ByHand(tiny_model(vocab_size=len(tokenizer)), tokenizer)
    kept = []
    hand.logits(1, "encoder.1", kept=kept)
    torch.testing.assert_close(hand.logits(0, "encoder.1", slice(None), kept[0]), hand.logits(1))
    found = hand("patch", tensor="decoder.1", position=2, step=2)  # the last tensor before the output matrix
    assert found["differences"][1] == pytest.approx(found["differences"][2], abs=1e-6)
    assert [one["id"] for one in found["best"][1]] == [one["id"] for one in found["best"][2]]


def test_a_sentence_of_another_length_stands_in_from_both_ends(tiny_model, tokenizer):
    assert counterparts([1, 2, 3, 9], [1, 4, 9]) == [0, 1, None, 2]
    assert counterparts([1, 4, 9], [1, 2, 3, 9]) == [0, 1, 3]
    assert counterparts([5, 5], [5, 5, 5]) == [1, 2] and counterparts([1, 2], [3, 4]) == [0, 1]
    hand = ByHand(tiny_model(vocab_size=len(tokenizer)), tokenizer, LONGER)
    found = hand("patch", tensor="encoder.0", position=2, step=0)
    logits = hand.patched("encoder.0", 2, 3)[0]
    difference = float(logits[found["first"]["id"]] - logits[found["second"]["id"]])
    assert found["other_position"] == 3 and found["differences"][1] == pytest.approx(difference, abs=2e-6)
    assert len(found["places"]) + 1 == len(found["other_places"])
    chosen = hand("patch", tensor="encoder.0", position=2, other_position=2, step=0)
    logits = hand.patched("encoder.0", 2, 2)[0]
    difference = float(logits[found["first"]["id"]] - logits[found["second"]["id"]])
    assert chosen["differences"][1] == pytest.approx(difference, abs=2e-6)
    less = Explorer([Subject("tiny", hand.model, tokenizer)])
    shorter = {"text": LONGER, "other": TEXT, "target_ids": hand.ids}
    row = from_json(less.answer("patch_map", shorter)["differences"])[0]
    assert row.isnan().tolist() == [False, True, False, False, False]
    with pytest.raises(RequestError, match="other_position: is missing: the other sentence has no token"):
        less.answer("patch", shorter | {"position": 1})


def test_the_translation_is_that_of_a_search_with_the_tensor(opened_translator):
    model, tokenizer = opened_translator.model, opened_translator.tokenizer
    explorer = Explorer([Subject("counting", model, tokenizer)])
    ids = explorer.answer("translate", {"text": TEXT})["hypotheses"][0]["ids"]
    kept = []
    layer = model.get_encoder().layers[0]
    hook = layer.register_forward_hook(lambda module, given, output: kept.append(output) or None)
    model.generate(**tokenizer([OTHER], return_tensors="pt"), max_new_tokens=1)
    hook.remove()
    for row in range(4):

        def put(module, given, output, row=row):
            output = output.clone()
            output[:, row] = kept[0][:, row]
            return output

        hook = layer.register_forward_hook(put)
        expected = model.generate(**tokenizer([TEXT], return_tensors="pt"))
        hook.remove()
        request = {"text": TEXT, "other": OTHER, "target_ids": ids, "tensor": "encoder.0", "position": row}
        found = explorer.answer("patch", request)
        assert found["translation"] == tokenizer.decode(expected[0], skip_special_tokens=True)
        assert found["first"]["text"] != found["second"]["text"]
    same = explorer.answer("translate", {"text": TEXT})["hypotheses"][0]
    assert same["ids"] == ids, "nothing stays changed"


def test_a_language_model_has_the_tensors_of_its_prompt(tiny_config, tokenizer):
    torch.manual_seed(0)
    model = VanillaTransformerForCausalLM(tiny_config(vocab_size=len(tokenizer))).eval()
    subject = CausalSubject("words", model, tokenizer)
    prompts = [subject.read_source(type("Asked", (), {"text": text}))["input_ids"] for text in (TEXT, OTHER)]
    ids = [7, 8, 9]
    read = [torch.cat((prompt, torch.tensor([ids[:-1]])), dim=1) for prompt in prompts]
    kept, layer = [], model.get_decoder().layers[0]
    with torch.no_grad():
        hook = layer.register_forward_hook(lambda module, given, output: kept.append(output) or None)
        model(input_ids=read[1])
        hook.remove()

        def put(module, given, output):
            output = output.clone()
            output[:, 1] = kept[0][:, 1]
            return output

        hook = layer.register_forward_hook(put)
        logits = model(input_ids=read[0]).logits[0, prompts[0].shape[1]]  # of step 1
        hook.remove()
    request = {"text": TEXT, "other": OTHER, "target_ids": ids, "step": 1}
    found = Explorer([subject]).answer("patch", request | {"tensor": "decoder.0", "position": 1})
    difference = float(logits[found["first"]["id"]] - logits[found["second"]["id"]])
    assert found["differences"][1] == pytest.approx(difference, abs=2e-6) and found["translation"] is None
    mapped = from_json(Explorer([subject]).answer("patch_map", request | {"part": "decoder"})["differences"])
    assert float(mapped[0, 1]) == pytest.approx(difference, abs=2e-6)


def test_a_layer_that_shares_its_weights_is_one_layer(tiny_model, tokenizer):
    """Not both layers that have these weights: as of a model of copies."""
    shared = tiny_model(vocab_size=len(tokenizer), encoder_layer_sets=1, feed_forward_sharing="stack")
    twin = tiny_model(vocab_size=len(tokenizer))
    copies = unshared({name.removeprefix("model."): one for name, one in shared.state_dict().items()}, shared.config)
    twin.load_state_dict({name if "lm_head" in name else f"model.{name}": one for name, one in copies.items()})
    ours, theirs = ByHand(shared, tokenizer), ByHand(twin, tokenizer)
    for name in ("encoder.0", "encoder.1.2"):
        found = ours("patch", tensor=name, position=1, step=1)
        logits = theirs.patched(name, 1)[1]
        difference = float(logits[found["first"]["id"]] - logits[found["second"]["id"]])
        assert found["differences"][1] == pytest.approx(difference, abs=2e-6)


@pytest.mark.parametrize(
    ("request_", "field", "message"),
    [
        ({"other": " "}, "other", "is empty"),
        ({"other": "one " * 600}, "other", "tokens; expected at most"),
        ({"step": 99}, "step", "is 99; the target has the steps 0 to"),
        ({"tensor": "encoder"}, "tensor", "is not a part"),
        ({"tensor": "encoder.9"}, "layer", "9 is not a layer"),
        ({"tensor": "encoder.0.9"}, "tensor", "head 9 does not exist: the layer has 4"),
        ({"position": 77}, "position", "is 77; expected 0 to"),
        ({"other_position": 77}, "other_position", "is 77; expected 0 to"),
        ({"tensor": "encoder.0", "off": ["encoder.0"]}, "layer", "0 is not a layer that is on"),
    ],
)
def test_what_cannot_be_exchanged_is_named(request_, field, message, tiny_model, tokenizer):
    hand = ByHand(tiny_model(vocab_size=len(tokenizer)), tokenizer)
    with pytest.raises(RequestError, match=message) as caught:
        hand("patch", **request_)
    assert caught.value.field == field


def test_an_encoder_that_halves_its_sequence_says_so(tiny_model, tokenizer):
    hand = ByHand(tiny_model(vocab_size=len(tokenizer), encoder_pooling=[1]), tokenizer)
    with pytest.raises(RequestError, match="its rows are not the tokens of the encoder"):
        hand("patch", tensor="encoder.1")
    assert hand("patch", tensor="cross.1", position=1)["best"]
