"""
The tour and the figure in a real browser, for models whose layers are made in different ways: `make test-browser`.

What is shown is compared with the tensors that Python gets from the model.
"""

import re
from urllib.parse import urlencode

import pytest
import torch

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.page import page_of
from vanilla_transformer_hf.explorer.results import from_json
from vanilla_transformer_hf.explorer.single_stacks import CausalSubject, MaskedSubject
from vanilla_transformer_hf.explorer.subject import Card, Subject


pytestmark = pytest.mark.browser
EXAMPLE = "three one five"
SIZES = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 2), ("ffn_dim", 48))}
SIZES |= {"d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "eos_token_id": 1}
PRE = {"encoder_norm_position": "pre", "decoder_norm_position": "pre"}
MODELS = {
    "post": (Subject, VanillaTransformerForConditionalGeneration, {}),
    "pre": (Subject, VanillaTransformerForConditionalGeneration, {**PRE, "position_encoding": "rotary"}),
    "shared": (
        Subject,
        VanillaTransformerForConditionalGeneration,
        {"encoder_layers": 4, "encoder_layer_sets": 2, "decoder_layers": 3, "feed_forward_sharing": "stack"},
    ),
    "pooled": (Subject, VanillaTransformerForConditionalGeneration, {"encoder_pooling": [1]}),
    "causal": (CausalSubject, VanillaTransformerForCausalLM, {}),
    "masked": (MaskedSubject, VanillaTransformerForMaskedLM, {}),
}


@pytest.fixture(scope="module")
def explorer():
    """Untrained models: the tour says what they compute, whatever it is."""
    tokenizer = VanillaTransformerTokenizer.train(["one two three four five"] * 2, vocab_size=290)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    torch.manual_seed(5)
    subjects = []
    for name, (kind, model_class, fields) in MODELS.items():
        config = VanillaTransformerConfig(**{**SIZES, "vocab_size": len(tokenizer), "output_bias": True, **fields})
        model = model_class(config)
        if name != "masked":  # untrained models repeat what they read, as padding, which is no translation
            model.generation_config.update(min_new_tokens=4, max_new_tokens=6)
            model.get_output_embeddings().bias.data[tokenizer.pad_token_id] = -1e4
        subjects.append(kind(name, model, tokenizer, Card(EXAMPLE, ("en", "de"), "Numbers", 29_000)))
    return Explorer(subjects)


@pytest.fixture
def press(drawn):
    """`press(page, key)`, and what it leads to."""

    def press(page, key):
        page.keyboard.press(key)
        drawn(page)

    return press


def figure_texts(page):
    return " ".join(page.locator(".figure text").all_text_contents())


def rows_in(page):
    """The rows of the table of a stop: heading and cells; numbers as such."""
    found = []
    for row in page.locator("#tour-numbers tbody tr").all():
        cells = [cell.replace("−", "-") for cell in row.locator("th, td").all_inner_texts()]
        found.append([float(cell) if re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell) else cell for cell in cells])
    return found


def numbers_in(page):
    """By heading the cells of the rows."""
    return {str(name): cells for name, *cells in rows_in(page)}


def pair_of(explorer, model, text=EXAMPLE):
    found = explorer.answer("translate", {"model": model, "text": text})
    return {"model": model, "text": text, "target_ids": found["hypotheses"][0]["ids"]}


def test_the_tour_by_keyboard(open_page, press):
    page = open_page(model="post", text=EXAMPLE, view="tour")
    count = int(re.search(r"Stop 1 of (\d+)", page.inner_text("#tour-at"))[1])
    assert count == 12 and page.is_disabled("#tour-back")
    page.focus("#tour-next")
    titles = []
    for stop in range(count):
        assert page.inner_text("#tour-at") == f"Stop {stop + 1} of {count}"
        titles.append(page.inner_text("#tour-title"))
        assert page.locator("#equation math").count() == 1 and page.get_attribute("#equation math", "aria-label")
        assert len(page.inner_text("#tour-words")) > 80 and numbers_in(page) and page.inner_text("#tour-shapes")
        assert page.locator("#tour-missing, .error").count() == 0
        assert page.evaluate("document.activeElement.id") == "tour-next"
        if stop == 4:
            assert "stop=4" in page.url
        if stop < count - 1:
            press(page, "Enter")
    assert len({*titles}) == count
    page.focus("#tour-back")
    press(page, "Enter")
    assert page.inner_text("#tour-title") == titles[-2]
    page.focus("#token-0")
    press(page, "ArrowRight")
    press(page, "Enter")
    assert page.get_attribute("#token-1", "aria-pressed") == "true"
    page.focus("#tour-skip")
    press(page, "Enter")
    assert page.locator("#translation").count() == 1


def test_the_numbers_of_the_tour_are_those_of_the_model(open_page, drawn, explorer):
    pair, token = pair_of(explorer, "post"), 2
    pages = [open_page(model="post", text=EXAMPLE, view="tour", token=token, step=1)]

    def stop(number):
        pages[-1].click(f".tour-stops li:nth-child({number + 1}) button")
        drawn(pages[-1])
        return numbers_in(pages[-1]), pages[-1].inner_text("#tour-words")

    def row(box, place=token):
        return from_json(explorer.answer("tensor", {**pair, "box": box}))[place]

    def vector(shown, expected):
        *start, dots, length = shown
        assert start == pytest.approx(expected[:4].tolist(), rel=1e-3) and dots == "…"
        assert length == pytest.approx(float(expected.norm()), rel=1e-3)

    walk = explorer.answer("walk", pair)
    shown, words = stop(0)
    (expected,) = {piece["id"] for piece in walk["source"][token : token + 1]}
    assert f"number {expected}" in " ".join(words.split())
    for number, boxes in (
        (1, {f"E[{expected}]": "encoder.embedding", "· √32": "encoder.scaled"}),
        (2, {"X": "encoder.scaled", "+ PE": "encoder.positions", "sum": "encoder.input"}),
        (6, {"x": "encoder.input", "Sublayer": "encoder.0.self_attn", "LayerNorm(…)": "encoder.0.self_attn.stream"}),
        (7, {"x": "encoder.0.self_attn.stream", "FFN(x)": "encoder.0.fc2"}),
    ):
        shown, _ = stop(number)
        for name, box in boxes.items():
            vector(shown[name], row(box))
    norm = explorer.subjects["post"].model.get_encoder().layers[0].self_attn_layer_norm
    total = row("encoder.input") + row("encoder.0.self_attn")
    shown, words = stop(6)
    vector(shown["x + Sublayer"], total)
    vector(shown["γ"], norm.weight.detach())
    assert shown["β"][-1] == pytest.approx(float(norm.bias.detach().norm()), abs=1e-6)
    told = {name: float(value.replace("−", "-")) for name, value in re.findall(r"([μσ]) = (−?[\d.]+)", words)}
    assert told == pytest.approx({"μ": float(total.mean()), "σ": float(total.std(unbiased=False))}, rel=1e-3)
    assert pages[-1].locator("#map-tour canvas").count() == 1
    mixing = explorer.answer("mixing", {**pair, "part": "encoder"})
    where = {"layer": mixing["layers"][token], "head": mixing["heads"][token]}
    head = explorer.answer("head", {**pair, "part": "encoder", **where})
    shown, _ = stop(3)
    for name, part in {"q": "query", "k": "key", "v": "value"}.items():
        vector(shown[name], from_json(head[part])[token])
    shown, words = stop(4)
    weights = [from_json(head[part])[token] for part in ("products", "scaled", "weights")]
    weights.append(weights[0].softmax(dim=0))  # without the root
    assert f"head {where['head']} of layer {where['layer']}" in " ".join(words.split())
    places = [
        at
        for at, piece in enumerate(walk["source"])
        if [one["text"] for one in walk["source"]].count(piece["text"]) == 1
    ]
    for at in places:
        name = ("·" if walk["source"][at]["continues"] else "") + walk["source"][at]["text"]
        if name in shown:
            assert shown[name] == pytest.approx([float(part[at]) for part in weights], rel=1e-3)
    assert f"{float(weights[2].max()):.1%}".replace("%", " %") in words
    shown, _ = stop(8)
    first = row("encoder.input")
    for layer in (0, 1):
        last = row(f"encoder.{layer}.output")
        expected = [float(last.norm()), float(torch.cosine_similarity(first, last, dim=0))]
        assert shown[f"{layer}.0"][-2:] == pytest.approx(expected, abs=1e-3)
    where = explorer.answer("mixing", {**pair, "part": "decoder"})
    found = explorer.answer("attention", {**pair, "part": "decoder", "layer": where["layers"][1]})
    shown, _ = stop(9)
    row_of_head = from_json(found["weights"])[where["heads"][1], 1]
    assert max(cells[1] for cells in shown.values() if cells) == pytest.approx(float(row_of_head.max()), rel=1e-3)
    shown, _ = stop(10)
    cross = from_json(explorer.answer("attention", {**pair, "part": "cross", "layer": 1})["weights"]).mean(dim=0)[1]
    assert max(cells[0] for cells in shown.values() if cells) == pytest.approx(float(cross.max()), rel=1e-3)
    best = row("logits", 1).topk(5)
    stop(11)
    found = [cells[1:] for cells in rows_in(pages[-1])]
    expected = zip(best.values.tolist(), row("probabilities", 1)[best.indices].tolist(), strict=True)
    assert [pytest.approx(list(cells), rel=1e-3) for cells in expected] == found


@pytest.mark.parametrize("model", MODELS)
def test_the_tour_of_every_kind_of_model_in_a_kept_page(model, explorer, open_page, drawn, tmp_path):
    """Without a server, every stop has its numbers; attention to sums of tokens says that it has none."""
    only = Explorer([explorer.subjects[model]])
    text = f"{EXAMPLE} <mask>" if model == "masked" else EXAMPLE
    file = tmp_path / "page.html"
    file.write_text(page_of(only, text, {}), encoding="utf-8")
    page = open_page(at=file.as_uri(), is_offline=True)
    page.click("#tab-tour")
    drawn(page)
    count = int(re.search(r"of (\d+)", page.inner_text("#tour-at"))[1])
    assert count == (10 if model in ("causal", "masked") else 12)
    missing = []
    for stop in range(count):
        if page.locator("#tour-missing").count():
            missing.append(stop)
        else:
            assert numbers_in(page), stop
        assert page.locator(".error").count() == 0
        if stop < count - 1:
            page.click("#tour-next")
            drawn(page)
    assert missing == ([3, 4, 5, 10] if model == "pooled" else [])


def centre(page, name):
    box = page.locator(f'[id="box-{name}"]').bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_the_figure_has_norms_where_the_model_has_them(open_page):
    """Post: the sublayer, then add & norm. Pre: norm, the sublayer, then the sum; a final norm at the top."""
    page = open_page(model="post", text=EXAMPLE, view="walk")
    heights = [centre(page, f"decoder.1.{name}")[1] for name in ("self_attn", "self_attn.stream", "fc2", "output")]
    assert heights == sorted(heights, reverse=True)
    assert page.locator('[id$=".norm"]').count() == 0 and "add & norm" in figure_texts(page)
    for layer in range(2):  # the encoder's output arrives at the attention of every layer of the decoder
        assert page.locator(f'[id="box-decoder.{layer}.encoder_attn"]').count() == 1
    assert page.locator(".figure .head.memory").count() == 2
    assert page.locator(".figure .flow.residual").count() == 2 * 2 + 2 * 3
    page = open_page(model="pre", text=EXAMPLE, view="walk")
    names = ("self_attn.norm", "self_attn", "self_attn.stream", "fc2.norm", "fc2", "output")
    heights = [centre(page, f"encoder.0.{name}")[1] for name in names]
    assert heights == sorted(heights, reverse=True)
    assert centre(page, "encoder.norm")[1] < centre(page, "encoder.1.output")[1]
    assert "add & norm" not in figure_texts(page)
    assert page.locator('[id="box-encoder.positions"]').count() == 0  # rotary: nothing is added


def test_the_figure_says_which_layers_share_their_weights(open_page):
    page = open_page(model="shared", text=EXAMPLE, view="walk")
    text = figure_texts(page)
    assert [text.count(f"weights {letter}") for letter in "AB"] == [2, 2] and "one feed-forward for all" in text
    assert page.locator(".figure .head.memory").count() == 3
    assert (
        page.locator('[id="box-encoder.0.fc2"]').count() == 1 and page.locator('[id="box-encoder.2.fc2"]').count() == 0
    )
    page.click('[id="box-encoder.2.output"]')  # it opens, with its tensor
    page.wait_for_selector('[id="box-encoder.2.fc2"]')
    assert "layer 2" in page.inner_text("#opened-title")
    page.check("text=all layers in full")
    page.wait_for_selector('[id="box-encoder.3.fc2"]')
    assert page.locator('[id$=".fc2"]').count() == 4 + 3
    pooled = open_page(model="pooled", text=EXAMPLE, view="walk", box="encoder.1.output")
    assert "pairs become one" in figure_texts(pooled)
    off = open_page(model="post", text=EXAMPLE, view="walk", off="encoder.0", applied="true")
    assert "layer 0 is off" in figure_texts(off) and off.locator(".figure .head.memory").count() == 2


@pytest.mark.parametrize("width", [1280, 390])
def test_a_box_opens_beside_itself_by_keyboard(width, open_page, drawn, press):
    page = open_page(width, model="post", text=EXAMPLE, view="walk")
    page.focus('[id="box-decoder.0.self_attn"]')
    press(page, "ArrowUp")
    name = page.evaluate("document.activeElement.id")
    assert name == "box-decoder.0.self_attn.stream"
    assert page.locator('.figure [role="button"][tabindex="0"]').count() == 1
    assert "add & norm" in page.get_attribute(f'[id="{name}"]', "aria-label")
    press(page, "Enter")
    page.wait_for_selector("#opened canvas")
    assert page.evaluate("document.activeElement.id") == name and "box=decoder.0.self_attn.stream" in page.url
    box, beside = page.locator(f'[id="{name}"]').bounding_box(), page.locator("#beside").bounding_box()
    if width == 1280:
        assert beside["x"] > box["x"] + box["width"]
    else:
        assert box["y"] + box["height"] <= beside["y"] + 1 and beside["y"] + beside["height"] <= 901
    seen = min(900, beside["y"] + beside["height"]) - max(0, beside["y"])
    assert -1 <= box["y"] <= 900 and seen > 200
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click("#next-box")
    drawn(page)
    assert page.inner_text("#opened-title").startswith("attention to the source of layer 0")
    page.click("#close-box")
    drawn(page)
    assert page.locator("#opened").count() == 0


def test_the_page_speaks_chinese(browser, address, drawn, open_page):
    """By the browser's language, by the menu and by the address."""
    context = browser.new_context(locale="zh-CN")
    page = context.new_page()
    page.goto(f"{address}#{urlencode({'text': EXAMPLE, 'view': 'tour'})}")
    drawn(page)
    assert page.inner_text("#tour-next") == "下一站" and page.get_attribute("html", "lang") == "zh"
    assert page.locator("#tour-numbers th[scope=col]").all_inner_texts() == ["词元", "编号"]
    context.close()
    page = open_page(model="post", text=EXAMPLE, view="walk")
    page.select_option("#language", "zh")
    drawn(page)
    assert "自注意力" in figure_texts(page) and page.inner_text("#tab-walk .tab-name") == "结构图"
    assert "language=zh" in page.url and page.get_attribute("html", "lang") == "zh"
    assert page.inner_text("#reads") == "英语 → 德语 · 用 Numbers 的 29,000 个句对训练"


def test_the_first_page_is_the_example_translated_with_a_way_into_the_tour(open_page, drawn):
    page = open_page()
    assert page.input_value("#text") == EXAMPLE and page.locator("#translation").count() == 1
    assert page.inner_text("#reads") == "English → German · trained on 29,000 pairs of Numbers"
    lines = page.locator("[role=tab] .tab-line").all_inner_texts()
    assert len({*lines}) == 7 and all(lines) and page.locator(".view-line").is_hidden()
    page.select_option("#model", "masked")  # whose example has a gap to fill
    drawn(page)
    assert page.input_value("#text") == f"{EXAMPLE} <mask>"
    page.select_option("#model", "post")
    drawn(page)
    page.click("#tour-start")
    drawn(page)
    assert "view=tour" in page.url and page.locator("#tour-title").count() == 1
    page.fill("#text", "five one")
    page.press("#text", "Enter")
    drawn(page)
    page.click("#tab-translate")
    drawn(page)
    page.select_option("#model", "pre")  # a sentence of the user's own stays
    drawn(page)
    assert page.input_value("#text") == "five one" and page.locator("#invitation").count() == 0
    page.fill("#text", "")
    page.press("#text", "Enter")
    page.click("#example")
    drawn(page)
    assert page.input_value("#text") == EXAMPLE and page.locator("#translation").count() == 1
    narrow = open_page(390)
    assert narrow.locator(".view-line").is_visible() and narrow.locator(".tab-line >> nth=0").is_hidden()


def test_a_page_that_is_saved_has_the_tour(open_page, drawn, tmp_path):
    page = open_page(model="post", text=EXAMPLE)
    with page.expect_download() as waiting:
        page.click("#save")
    waiting.value.save_as(tmp_path / "kept.html")
    kept = open_page(at=(tmp_path / "kept.html").as_uri(), is_offline=True)
    kept.click("#tab-tour")
    drawn(kept)
    for stop in range(12):
        assert numbers_in(kept), stop
        if stop < 11:
            kept.click("#tour-next")
            drawn(kept)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pictures(width, theme, open_page, pictures):
    states = {"tour": ("post", {"view": "tour", "stop": 4})}
    states |= {f"figure-{model}": (model, {"view": "walk"}) for model in ("post", "pre", "shared")}
    for name, (model, state) in states.items():
        page = open_page(width, theme, model=model, text=EXAMPLE, **state)
        assert page.locator(".error").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        page.screenshot(path=pictures / f"{name}-{width}-{theme}.png", full_page=True)
        page.context.close()
