"""Two models beside each other in Intervene: `make test-browser`."""

import pytest

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.explorer.results import from_json


pytestmark = pytest.mark.browser
TEXT = "three one five"


@pytest.fixture(scope="module")
def explorer(opened_translator):
    """A trained model, and one before training that has the norms elsewhere, more layers and fewer heads."""
    from vanilla_transformer_hf.explorer.explorer import Explorer
    from vanilla_transformer_hf.explorer.subject import Subject

    trained, tokenizer = opened_translator.model, opened_translator.tokenizer
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    norms = {"encoder_norm_position": "pre", "decoder_norm_position": "pre"}
    config = VanillaTransformerConfig(**{**trained.config.to_diff_dict(), **sizes, **norms})
    untrained = VanillaTransformerForConditionalGeneration(config)
    return Explorer([Subject("trained", trained, tokenizer), Subject("untrained", untrained, tokenizer)])


def pair_of(explorer, model, off=()):
    found = explorer.answer("translate", {"model": model, "text": TEXT, "off": [*off]})
    return {"model": model, "text": TEXT, "off": [*off], "target_ids": found["hypotheses"][0]["ids"]}


def read_cell(page, at, row, column):
    """What the map of a side reads out at a cell."""
    page.focus(f"#map-attention-{at}")
    # From the first cell: a map that is drawn again has its cursor where it was.
    for key, count in (("ArrowUp", 9), ("ArrowLeft", 9), ("ArrowDown", row), ("ArrowRight", column)):
        for _ in range(count):
            page.keyboard.press(key)
    return float(page.inner_text(f"figure:has(#map-attention-{at}) output").rsplit(": ", 1)[-1])


def test_attention_and_ranks_of_two_models(open_page, show, explorer):
    state = {"text": TEXT, "view": "intervene", "model_b": "untrained"}
    page = open_page(**state, part="cross", layer=1, heads="3")
    places = {"trained": (0, 3), "untrained": (1, slice(None))}  # the layer and the heads that it has
    for at, (model, (layer, heads)) in enumerate(places.items()):
        pair = pair_of(explorer, model)
        found = explorer.answer("attention", {**pair, "part": "cross", "layer": layer})
        weights = from_json(found["weights"])[heads]
        weights = weights if weights.ndim == 2 else weights.mean(axis=0)
        assert abs(read_cell(page, at, 1, 1) - float(weights[1, 1])) < 1e-6, model
        ranks = explorer.answer("ranks", pair)
        rows = page.locator(f"#ranks-{at} tbody tr")
        assert rows.count() == len(ranks["layers"])
        last = rows.first.locator("td span:first-child").all_inner_texts()  # the last layer is at the top
        assert last == [str(int(rank) + 1) for rank in from_json(ranks["ranks"])[-1]]
    show(page, **state, part="encoder", layer=0, heads="1")  # both have these
    for at, model in enumerate(places):
        found = explorer.answer("attention", {**pair_of(explorer, model), "part": "encoder", "layer": 0})
        assert abs(read_cell(page, at, 2, 1) - float(from_json(found["weights"])[1, 2, 1])) < 1e-6, model


def test_a_model_beside_itself_without_a_layer(open_page, explorer, show):
    state = {"text": TEXT, "view": "intervene", "model": "untrained"}
    page = open_page(**state)
    assert page.locator("#ranks-0").count() == 0  # both sides are the same
    show(page, **state, off="decoder.0", part="decoder", layer=0)
    assert [page.locator(f"#ranks-{at} tbody tr").count() for at in (0, 1)] == [2, 1]
    found = explorer.answer(
        "attention", {**pair_of(explorer, "untrained", ["decoder.0"]), "part": "decoder", "layer": 1}
    )
    assert abs(read_cell(page, 1, 2, 1) - float(from_json(found["weights"]).mean(axis=0)[2, 1])) < 1e-6


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [1280, 390])
def test_controls_keep_the_focus_and_nothing_is_cut(language, width, open_page, drawn, pictures):
    page = open_page(width, text=TEXT, view="intervene", model_b="untrained", language=language)
    for control, value in (("#sides-attention", "decoder"), ("#sides-layer", "1")):
        page.focus(control)
        page.select_option(control, value)
        drawn(page)
        assert page.evaluate("document.activeElement.id") == control[1:]
    page.locator(".heads .swatch").nth(2).click()
    drawn(page)
    assert "heads=2" in page.url and page.locator(".error").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=pictures / f"sides-{width}-{language}.png", full_page=True)
