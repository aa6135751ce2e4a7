"""Attributions, ranks, neurons and the products of a head in a real browser: `make test-browser`."""

import re

import pytest

from vanilla_transformer_hf.explorer.results import from_json


pytestmark = pytest.mark.browser
TEXT = "three one five"


@pytest.fixture
def answer(explorer):
    """`answer(question, **fields)`: about the translation, as Python gets it."""
    ids = explorer.answer("translate", {"text": TEXT})["hypotheses"][0]["ids"]

    def answer(question, **fields):
        return explorer.answer(question, {"text": TEXT, "target_ids": ids, **fields})

    return answer


def numbers_of(page, selector):
    texts = page.locator(selector).all_inner_texts()
    return [float(text.replace("−", "-").replace("%", "").strip()) for text in texts]


@pytest.mark.parametrize("method", ["left_out", "gradient_x_input", "gradient", "integrated_gradients", "rollout"])
def test_the_sentence_has_the_numbers_of_the_chosen_token(method, open_page, answer):
    page = open_page(text=TEXT, view="analyse", method=method, steps=16, step=1)
    found = answer("attributions", method=method, steps=16)
    assert page.inner_text("[aria-pressed=true] >> nth=0") in found["output"][1]["text"]
    before = len(found["source"]) + 2  # the start token, and one of the output
    assert numbers_of(page, ".weighed .value") == pytest.approx(from_json(found["scores"])[1, :before], rel=6e-3)
    said = page.inner_text("#sum").replace("−", "-")
    total = float(re.search(r"-?\d+(\.\d+)?(e-\d+)?", said)[0])
    assert total == pytest.approx(float(from_json(found["totals"])[1]), rel=1e-4)
    assert ("The sum misses it by" in said) == (method == "integrated_gradients")
    assert page.locator("#saturated").count() == method.startswith("gradient")
    maps = page.locator(".heat .map").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    count = len(found["output"])
    sizes = [f"{count} rows, {len(found[name])} columns" for name in ("source", "read")]
    assert [size in one for size, one in zip(sizes, maps, strict=True)] == [True, True]


def test_integrated_gradients_of_one_token_and_what_is_off(open_page, answer, drawn):
    state = {"view": "analyse", "method": "integrated_gradients", "steps": 16, "rows": "chosen", "step": 2}
    page = open_page(text=TEXT, off="cross.0", applied="true", **state)
    found = answer("attributions", method="integrated_gradients", steps=16, piece=2, off=["cross.0"])
    ids = page.evaluate("location.hash")
    assert "rows=chosen" in ids and page.locator(".map").count() == 0  # one row: the sentence alone
    assert page.inner_text("#changes").startswith("Not the plain model")
    assert len(found["numbers"]) == 1
    page.click("#output-0")
    drawn(page)
    assert "step=0" in page.url and page.evaluate("document.activeElement.id") == "output-0"


def test_all_is_chosen_by_keyboard_and_restored_from_the_address(open_page, drawn):
    page = open_page(text=TEXT, view="analyse")

    def choose(control, key):
        page.focus(control)
        page.keyboard.press(key)
        drawn(page)
        assert page.evaluate("document.activeElement.id") == control[1:]

    choose("#method", "ArrowDown")
    assert "method=gradient_x_input" in page.url
    page.focus("#map-analyse-source")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    drawn(page)
    assert "step=1" in page.url and page.get_attribute("#output-1", "aria-pressed") == "true"
    choose("#analysis", "ArrowDown")
    assert page.locator("#ranks td .small").count() > 0
    choose("#analysis", "ArrowDown")
    choose("#top", "ArrowUp")
    assert page.locator("#neurons tbody tr").count() == 5 and page.locator("#map-firing").count() == 1
    again = open_page(at=page.url)
    assert again.inner_text("main") == page.inner_text("main")


def test_ranks_and_neurons_are_those_of_the_answers(open_page, show, answer):
    page = open_page(text=TEXT, view="analyse", analysis="ranks")
    found = answer("ranks")
    ranks = [int(number) for number in numbers_of(page, "#ranks td span:first-child")]
    assert ranks == (from_json(found["ranks"]).flip(0).flatten() + 1).int().tolist()
    show(page, text=TEXT, view="analyse", analysis="neurons", part="encoder", layer=0, token=1)
    found = answer("neurons", stack="encoder", layer=0, piece=1)
    assert numbers_of(page, "#neurons th[scope=row]") == found["neurons"]
    shown = numbers_of(page, "#neurons td:nth-child(2)")
    written = [", ".join(piece["text"] for piece in own) for own in found["writes"]]
    assert page.locator("#neurons td:nth-child(4)").all_inner_texts() == written
    assert shown == pytest.approx(from_json(found["activations"])[:, 1].tolist(), rel=1e-5)


def test_products_of_a_head_sum_to_its_score(open_page, answer):
    page = open_page(text=TEXT, view="head", part="cross", layer=0, head=1, row=1, column=2)
    found = answer("head", part="cross", layer=0, head=1)
    product = (from_json(found["query"])[1] * from_json(found["key"])[2]).sum()
    said = page.inner_text("#products-sum").replace("−", "-")
    width = found["query"]["shape"][1]
    parts = [float(part.split()[0]) for part in said.replace("→", "=").split("= ")[1:]]
    assert parts[0] == pytest.approx(float(product), rel=1e-4)
    assert parts[1] == pytest.approx(float(product) / width**0.5, rel=1e-4) and f"/ √{width}" in said
    assert parts[-1] == pytest.approx(float(from_json(found["weights"])[1, 2]), rel=1e-4)
    page.focus("#map-products-all")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function("location.hash.includes('column=0')")


def test_what_a_model_has_not_is_said_in_a_line(open_page, tiny_model, tmp_path):
    from vanilla_transformer_hf import VanillaTransformerTokenizer
    from vanilla_transformer_hf.explorer.explorer import Explorer
    from vanilla_transformer_hf.explorer.page import page_of
    from vanilla_transformer_hf.explorer.subject import Subject

    tokenizer = VanillaTransformerTokenizer.train(["one two three four five"], ["eins zwei"], vocab_size=290)
    model = tiny_model(vocab_size=len(tokenizer), encoder_pooling=[1])
    file = tmp_path / "page.html"
    page_text = page_of(Explorer([Subject("pooled", model, tokenizer)]), TEXT, {"max_new_tokens": 4})
    file.write_text(page_text.replace("view=translate", "view=analyse"), encoding="utf-8")
    page = open_page(at=file.as_uri(), is_offline=True)
    assert page.locator(".weighed").count() == 2 and page.locator("main .error").all_inner_texts() == []
    assert page.locator("#method option[disabled]").all_inner_texts() == ["attention rollout"]
    page.select_option("#analysis", "neurons")
    page.wait_for_selector("#neurons")
    page.select_option("#stack", "encoder")
    page.wait_for_selector("text=Neurons of layer 1 at")
