"""Models of one stack: numbers of the explorer are those of the host's interface."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from vanilla_transformer_hf import (
    Translator,
    VanillaTransformerDecoderModel,
    VanillaTransformerEncoderModel,
    VanillaTransformerForCausalLM,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
    VanillaTransformerModel,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.page import page_of
from vanilla_transformer_hf.explorer.requests import RequestError
from vanilla_transformer_hf.explorer.results import from_json
from vanilla_transformer_hf.publishing import weight_files


def close(found, expected):
    found = from_json(found) if isinstance(found, dict) else torch.as_tensor(found)
    torch.testing.assert_close(found, torch.as_tensor(expected).float(), atol=1e-6, rtol=1e-6)


@pytest.fixture
def saved(tiny_config, tmp_path):
    """`saved(class)`: the folder of a model of this class, with a tokenizer that has a mask token."""

    def save(kind, **overrides):
        tokenizer = VanillaTransformerTokenizer.train(["one two three four five"] * 2, vocab_size=290)
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
        kind(tiny_config(vocab_size=len(tokenizer), **overrides)).save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return tmp_path / "model", tokenizer

    return save


@pytest.mark.parametrize(
    "kind, what",
    [
        (VanillaTransformerEncoderModel, "an encoder without a head: open it by AutoModel"),
        (VanillaTransformerDecoderModel, "a decoder without its output layer: open it by AutoModel"),
        (VanillaTransformerModel, "an encoder–decoder without its output layer: open it by AutoModel"),
        (VanillaTransformerForSequenceClassification, r"a classifier: use pipeline\("),
        (VanillaTransformerForTokenClassification, r"a classifier of tokens: use pipeline\("),
    ],
)
def test_models_without_predictions_of_tokens_are_named(saved, kind, what):
    folder, _ = saved(kind, output_bias=True)
    with pytest.raises(ValueError, match=f"model: the explorer shows predictions of tokens, and this is {what}"):
        Explorer.open([folder])
    with pytest.raises(ValueError, match=f"model cannot translate, it is {what}"):
        Translator.from_pretrained(folder)
    with pytest.raises(ValueError, match=f"model cannot translate, it is {what}"):
        weight_files.open_config(folder)  # of export and export-checkpoint


@torch.no_grad()
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_language_model(saved, norm):
    folder, tokenizer = saved(VanillaTransformerForCausalLM, decoder_norm_position=norm)
    explorer = Explorer.open([folder])
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    (info,) = explorer.answer("models", {})
    assert info["kind"] == "causal" and info["layers"] == {"decoder": 2} and info["is_ours"]
    prompt = tokenizer(["three one"], return_tensors="pt")["input_ids"][:, :-1]
    request = {"text": "three one", "num_beams": 3, "max_new_tokens": 5}
    found = explorer.answer("translate", request)
    expected = model.generate(prompt, num_beams=3, num_return_sequences=3, max_new_tokens=5)
    ids = [one["ids"] for one in found["hypotheses"]]
    assert [tokenizer.decode(row) for row in ids] == tokenizer.batch_decode(expected[:, prompt.shape[1] :])
    finished = [node["score"] for node in found["tree"] if node["state"] == "finished"]
    for one in found["hypotheses"]:
        assert min(abs(one["score"] - score) for score in finished) < 1e-6
    pair = {"text": "three one", "target_ids": ids[0]}
    whole = torch.cat((prompt, torch.tensor([ids[0][:-1]])), dim=1)
    outputs = model(whole, output_attentions=True, output_hidden_states=True)
    rows = outputs.logits[0].softmax(dim=-1)[prompt.shape[1] - 1 :]
    for step, row in zip(found["hypotheses"][0]["steps"], rows, strict=True):
        assert step["probability"] == pytest.approx(float(row[step["piece"]["id"]]), abs=1e-6)
    for layer in range(2):
        answer = explorer.answer("attention", {**pair, "part": "decoder", "layer": layer})
        close(answer["weights"], outputs.attentions[layer][0])
        head = explorer.answer("head", {**pair, "part": "decoder", "layer": layer, "head": 3})
        close(head["weights"], outputs.attentions[layer][0, 3])
    close(explorer.answer("tensor", {**pair, "box": "logits"}), outputs.logits[0])
    walk = explorer.answer("walk", pair)
    assert len(walk["lenses"]) == 2
    continued = explorer.answer("translate", {**request, "prefix": ids[1][:2]})["hypotheses"][0]
    assert continued["ids"][:2] == ids[1][:2]
    off = explorer.answer("translate", {**request, "off": ["decoder.0", "decoder.1.2"]})
    assert off["hypotheses"][0]["log_probability"] != found["hypotheses"][0]["log_probability"]
    with pytest.raises(RequestError, match="'cross' is not one of this model"):
        explorer.answer("attention", {**pair, "part": "cross"})
    assert "walk " in page_of(explorer, "three one", {"num_beams": 2})


@torch.no_grad()
def test_a_model_that_fills_gaps(saved):
    folder, tokenizer = saved(VanillaTransformerForMaskedLM)
    explorer = Explorer.open([folder])
    model = VanillaTransformerForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    text = "three <mask> one <mask>"
    ids = tokenizer([text], return_tensors="pt")["input_ids"]
    outputs = model(ids, output_attentions=True)
    found = explorer.answer("translate", {"text": text})
    (only,) = found["hypotheses"]
    places = (ids[0] == tokenizer.mask_token_id).nonzero()[:, 0]
    assert len(only["steps"]) == len(places) == 2
    for step, row in zip(only["steps"], outputs.logits[0, places].softmax(dim=-1)):
        assert [one["id"] for one in step["alternatives"]] == row.topk(8).indices.tolist()
        close([one["probability"] for one in step["alternatives"]], row.topk(8).values)
    pair = {"text": text, "part": "encoder", "layer": 1}
    close(explorer.answer("attention", pair)["weights"], outputs.attentions[1][0])
    close(explorer.answer("head", {**pair, "head": 2})["weights"], outputs.attentions[1][0, 2])
    close(explorer.answer("tensor", {"text": text, "box": "logits"}), outputs.logits[0])
    walk = explorer.answer("walk", {"text": text})
    for states, lens in zip(model(ids, output_hidden_states=True).hidden_states[1:], walk["lenses"], strict=True):
        logits = model.lm_head(model.transform_norm(model.transform_activation(model.transform(states[0]))))
        for found, row in zip(lens["steps"], logits.softmax(dim=-1), strict=True):
            assert [one["id"] for one in found] == row.topk(len(found)).indices.tolist()
            close([one["probability"] for one in found], row.topk(len(found)).values)
    assert explorer.answer("positions", {"stack": "encoder"})["pictures"]
    with pytest.raises(RequestError, match="cannot be scored"):
        explorer.answer("score", {"text": text, "target": "one"})
    assert "walk " in page_of(explorer, text, {})
