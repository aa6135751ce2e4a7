"""A recurrent model in the explorer: its attention to the source, and itself beside a Transformer."""

import pytest
import torch

from vanilla_transformer_hf import RecurrentSeq2SeqConfig, RecurrentSeq2SeqForConditionalGeneration
from vanilla_transformer_hf.explorer.explorer import Explorer, subject_of
from vanilla_transformer_hf.explorer.page import page_of
from vanilla_transformer_hf.explorer.requests import RequestError
from vanilla_transformer_hf.explorer.results import from_json
from vanilla_transformer_hf.explorer.subject import Subject


TEXT = "three one five"


@pytest.fixture(scope="module", params=[("gru", "bahdanau", True), ("lstm", "luong", False)])
def model(request, opened_translator):
    torch.manual_seed(0)
    cell, attention, bidirectional = request.param
    config = RecurrentSeq2SeqConfig(
        vocab_size=len(opened_translator.tokenizer),
        d_model=16,
        cell_type=cell,
        attention=attention,
        bidirectional=bidirectional,
    )
    return RecurrentSeq2SeqForConditionalGeneration(config).eval()


@pytest.fixture(scope="module")
def explorer(opened_translator, model):
    own = Subject("transformer", opened_translator.model, opened_translator.tokenizer)
    return Explorer([own, subject_of("recurrent", model, opened_translator.tokenizer)])


@torch.no_grad()
def test_its_attention_and_probabilities_are_those_of_the_model(explorer, model, opened_translator):
    (_, info) = explorer.answer("models", {})
    assert (info["layers"], info["heads"], info["is_ours"]) == ({"cross": 1}, {"cross": [1]}, False)
    asked = {"model": "recurrent", "text": TEXT, "max_new_tokens": 5}
    best = explorer.answer("translate", asked)["hypotheses"][0]
    pair = {"model": "recurrent", "text": TEXT, "target_ids": best["ids"]}
    batch = opened_translator.tokenizer([TEXT], return_tensors="pt")
    read = torch.tensor([[model.config.decoder_start_token_id, *best["ids"][:-1]]])
    outputs = model(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        decoder_input_ids=read,
        output_attentions=True,
        use_cache=False,
    )
    found = from_json(explorer.answer("attention", {**pair, "part": "cross"})["weights"])
    assert found.shape == (1, len(best["ids"]), 4)
    torch.testing.assert_close(found, outputs.cross_attentions[0][0], atol=1e-6, rtol=0)
    logs = outputs.logits[0].log_softmax(dim=-1).gather(1, torch.tensor(best["ids"])[:, None])[:, 0]
    steps = torch.tensor([step["log_probability"] for step in best["steps"]])
    torch.testing.assert_close(steps, logs, atol=1e-5, rtol=0)
    # Of the attributions, leaving a word out is the logit with zeros for its embedding.
    scores = from_json(explorer.answer("attributions", {**pair, "method": "left_out"})["scores"])
    embeddings = model.get_encoder().look_up(batch["input_ids"], None).clone()
    embeddings[0, 1] = 0
    without = model(
        inputs_embeds=embeddings, attention_mask=batch["attention_mask"], decoder_input_ids=read, use_cache=False
    ).logits[0]
    falls = (outputs.logits[0] - without).gather(1, torch.tensor(best["ids"])[:, None])[:, 0]
    torch.testing.assert_close(scores[:, 1], falls, atol=1e-5, rtol=1e-4)
    for method in ("gradient", "gradient_x_input", "integrated_gradients"):
        assert from_json(explorer.answer("attributions", {**pair, "method": method, "steps": 16})["scores"]).any()


def test_what_it_has_not_is_one_line(explorer, opened_translator, model):
    pair = {"model": "recurrent", "text": TEXT, "target_ids": [5, 1]}
    for question, more, message in (
        ("attributions", {"method": "rollout"}, "method: rollout follows attention through all layers"),
        ("attention", {"part": "encoder"}, "part: 'encoder' is not one of this model: expected cross"),
        ("ranks", {}, "only its attention and attributions can be shown"),
        ("walk", {}, "only its attention and attributions can be shown"),
        ("translate", {"off": ["cross.0"]}, "off: a recurrent_seq2seq model cannot be changed here"),
    ):
        request = {name: value for name, value in pair.items() if question != "translate" or name != "target_ids"}
        with pytest.raises(RequestError) as caught:
            explorer.answer(question, request | more)
        assert message in str(caught.value) and "\n" not in str(caught.value)
    alone = RecurrentSeq2SeqForConditionalGeneration(RecurrentSeq2SeqConfig(vocab_size=99, d_model=8))
    with pytest.raises(ValueError, match="a recurrent model with attention=none has not"):
        subject_of("alone", alone, opened_translator.tokenizer)
    recurrent = Explorer([explorer.subjects["recurrent"]])
    assert "explorer" in page_of(recurrent, TEXT, {"max_new_tokens": 3})  # as a file, with what it has


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_it_stands_beside_a_transformer(width, open_page, show, explorer, pictures):
    page = open_page(width, text=TEXT, view="intervene", model_b="recurrent", part="encoder", max_new_tokens=6)
    assert page.locator(".error").count() == 0
    assert [page.locator(f"#map-attention-{at}").count() for at in (0, 1)] == [1, 1]
    assert page.locator("#sides-attention option").all_inner_texts() == ["cross: target to source"]
    assert page.locator("#ranks-0").count() == 0 and page.locator(".toggle").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=pictures / f"recurrent-{width}.png", full_page=True)
    for view in ("translate", "attention", "analyse", "intervene", "walk"):
        show(page, text=TEXT, model="recurrent", view=view, max_new_tokens=6)
        assert page.locator(".error").count() == 0, view
