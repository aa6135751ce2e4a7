"""
The page in a real browser: `make test-browser`. Its pictures are kept in the folder of EXPLORER_PICTURES.

The model is the tiny one that counts backwards in German.
"""

import base64
import os
import re
from pathlib import Path

import pytest


pytestmark = pytest.mark.browser
TEXT, TRANSLATION = "three one five", "fünf eins drei"
SIZES, THEMES = (1280, 390), ("light", "dark")
VIEWS = ("tour", "translate", "attention", "head", "walk", "analyse", "intervene")


def test_translate_alternative_head_off_save_and_open_again(drawn, open_page, tmp_path):
    page = open_page()
    page.fill("#text", TEXT)
    page.press("#text", "Enter")
    page.wait_for_selector("#translation")
    assert page.inner_text("#translation") == TRANSLATION
    page.fill("#num_beams", "3")
    page.press("#num_beams", "Tab")
    page.wait_for_selector("svg.tree")
    assert page.locator(".node.dead").count() > 0 and page.locator("table.n-best tbody tr").count() == 3

    second = page.locator('.alternative[data-step="0"]').nth(1)
    piece = second.locator(".piece").inner_text()
    second.click()
    page.wait_for_selector("#prefix")
    assert page.inner_text("#translation").startswith(piece) and "prefix=" in page.url
    page.click("text=Start again")
    page.wait_for_selector("#prefix", state="detached")
    assert page.inner_text("#translation") == TRANSLATION

    page.click("#tab-intervene")
    before = page.inner_text("#changed >> xpath=..")
    page.click("#off-cross\\.0")
    page.wait_for_selector("text=1 off")
    assert page.inner_text("#changed >> xpath=..") != before and page.inner_text("#plain") == TRANSLATION

    for view in VIEWS:  # what has been seen is kept
        page.click(f"#tab-{view}")
        drawn(page)
    with page.expect_download() as waiting:
        page.click("#save")
    file = tmp_path / "kept.html"
    waiting.value.save_as(file)
    text = file.read_text(encoding="utf-8")
    assert TRANSLATION in text and "/tmp" not in text and os.path.expanduser("~") not in text

    again = open_page(at=file.as_uri(), is_offline=True)
    for view in VIEWS:
        again.click(f"#tab-{view}")
        drawn(again)
        assert again.locator(".error").count() == 0, view
    again.click("#tab-translate")
    drawn(again)
    assert again.inner_text("#translation") == TRANSLATION
    assert re.search("kept page", again.inner_text("header"))


def test_a_file_of_the_command_opens_offline(drawn, open_page, counting_folder, tmp_path):
    from vanilla_transformer_hf.commands.main import main

    file = tmp_path / "page.html"
    main(["explore", counting_folder, "--html", str(file), "--text", TEXT, "--num_beams", "2"])
    page = open_page(at=file.as_uri(), is_offline=True)
    assert page.inner_text("#translation") == TRANSLATION
    for view in VIEWS:
        page.click(f"#tab-{view}")
        drawn(page)
        assert page.locator(".error").count() == 0, view
    page.click("#tab-head")
    drawn(page)
    for name in ("encoder", "decoder"):
        page.select_option("main select >> nth=0", name)
        drawn(page)
        assert page.locator(".error").count() == 0, name
    page.click("#tab-walk")
    drawn(page)
    page.click("#box-logits")
    page.wait_for_selector("#opened canvas")


@pytest.mark.parametrize(
    ("name", "text", "deed"),
    [
        ("VanillaTransformerForCausalLM", "three one", "Continue"),
        ("VanillaTransformerForMaskedLM", "three <mask> one", "Fill"),
    ],
)
def test_models_of_one_stack(drawn, name, text, deed, open_page, tiny_config, tmp_path, pictures):
    import vanilla_transformer_hf
    from vanilla_transformer_hf.explorer.explorer import Explorer
    from vanilla_transformer_hf.explorer.page import page_of

    tokenizer = vanilla_transformer_hf.VanillaTransformerTokenizer.train(["one two three four five"], vocab_size=290)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    getattr(vanilla_transformer_hf, name)(tiny_config(vocab_size=len(tokenizer))).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    file = tmp_path / "page.html"
    file.write_text(page_of(Explorer.open([tmp_path / "model"]), text, {}), encoding="utf-8")
    page = open_page(at=file.as_uri(), is_offline=True)
    assert page.inner_text("#tab-translate .tab-name") == deed and page.locator(".step .alternative").count() >= 5
    for view in VIEWS:
        page.click(f"#tab-{view}")
        drawn(page)
        assert page.locator(".error").count() == 0, view
        page.screenshot(path=pictures / f"{deed.lower()}-{view}.png", full_page=True)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", SIZES)
def test_pictures_at_both_widths_and_themes(width, theme, open_page, show, pictures):
    states = {view: {"view": view} for view in VIEWS}
    states["attention-map"] = {"view": "attention", "picture": "map"}
    states["attention-grid"] = {"view": "attention", "picture": "grid"}
    states["analyse-neurons"] = {"view": "analyse", "analysis": "neurons"}
    states["walk-open"] = {"view": "walk", "box": "decoder.0.fc2"}
    page = open_page(width, theme)
    for name, state in states.items():
        show(page, text=TEXT, num_beams=3, **state)
        assert page.locator(".error").count() == 0
        # Wide pictures scroll inside, not the page.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        page.screenshot(path=pictures / f"{name}-{width}-{theme}.png", full_page=True)


def test_a_link_restores_the_picture_and_keys_move_through_it(drawn, open_page):
    page = open_page(text=TEXT, view="attention", picture="map", part="encoder", num_beams=2)
    page.focus(".map")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    shown = page.inner_text(".readout")
    assert re.fullmatch(r"three, one: [\d.]+", shown) and page.inner_text("#announcer") == shown
    page.focus("#tab-attention")
    page.keyboard.press("ArrowRight")
    drawn(page)
    assert "view=head" in page.url and page.evaluate("document.activeElement.id") == "tab-head"
    other = open_page(at=page.url)
    assert other.inner_text("main") == page.inner_text("main")
    other.click("#theme")
    assert other.evaluate("document.documentElement.dataset.theme") == "dark"


def test_pictures_are_saved_as_png_and_svg(drawn, open_page):
    page = open_page(text=TEXT, num_beams=3)
    for name, kind, beginning in (("tree", "SVG", b"<svg"), ("tree", "PNG", b"\x89PNG")):
        with page.expect_download() as waiting:
            page.click(f'[aria-label="save beam-{name} as {kind}"]')
        assert Path(waiting.value.path()).read_bytes().startswith(beginning)
    page.click("#tab-attention")
    drawn(page)
    for kind, beginning in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as waiting:
            page.click(f"text=/^{kind}$/")
        assert Path(waiting.value.path()).read_bytes().startswith(beginning)


# The mean difference of the bytes of two pictures of which one is SVG, after the browser has drawn it.
COMPARE = """
async ([svg, png]) => {
  const pixels = async (address, width, height) => {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width ?? image.width, height ?? image.height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  };
  const one = await pixels(`data:image/png;base64,${png}`);
  const other = await pixels(`data:image/svg+xml;base64,${svg}`, one.width, one.height);
  let sum = 0;
  for (let place = 0; place < one.data.length; place++) sum += Math.abs(one.data[place] - other.data[place]);
  return [sum / one.data.length, one.data.reduce((a, b) => Math.max(a, b)), one.data.some((value) => value < 128)];
}
"""


@pytest.mark.parametrize("picture, shape", [("map", "<rect"), ("lines", "<path"), ("grid", "<rect")])
def test_an_svg_of_attention_has_shapes_and_looks_like_the_png(open_page, picture, shape):
    page = open_page(text=TEXT, view="attention", picture=picture)
    contents = {}
    for kind in ("SVG", "PNG"):
        with page.expect_download() as waiting:
            page.click(f"text=/^{kind}$/")
        contents[kind] = Path(waiting.value.path()).read_bytes()
    text = contents["SVG"].decode()
    assert "<image" not in text and text.count(shape) >= 9 and (picture == "grid" or ">three</text>" in text)
    codes = [base64.b64encode(content).decode() for content in contents.values()]
    difference, lightest, has_dark = page.evaluate(COMPARE, codes)
    assert lightest == 255 and has_dark and difference < 5  # of 255; the edges of letters differ


def test_an_svg_of_too_many_cells_is_refused_by_name(open_page):
    page = open_page()
    page.evaluate("""async () => {
        const { heatMap } = await import("/page/heat_map.js");
        const map = heatMap({ title: "large", values: new Float32Array(600 * 600), rows: 600, columns: 600 });
        document.querySelector("main").replaceChildren(map);
    }""")
    page.click("[aria-label='save large as SVG']")
    page.wait_for_selector(".save .error")
    assert "more than 300,000 shapes: save it as PNG" in page.inner_text(".save .error")
    with page.expect_download():
        page.click("[aria-label='save large as PNG']")
    assert page.locator(".save .error").count() == 0


def test_an_error_is_shown_and_the_page_goes_on(open_page):
    page = open_page(text="five " * 200, view="translate")
    assert "This model reads at most" in page.inner_text(".error")
    page.fill("#text", TEXT)
    page.click("#translate")
    page.wait_for_selector("#translation")
    assert page.inner_text("#translation") == TRANSLATION


def test_512_pieces_are_drawn_in_a_frame(browser, tmp_path):
    """A map of 512 × 512 scrolls at least 20 times a second: only what is seen is drawn."""
    from vanilla_transformer_hf.explorer.page import offline_page

    code = """
import { heatMap } from "explorer/heat_map.js";
import { attentionLines } from "explorer/attention_lines.js";
const size = 512, values = new Float32Array(size * size);
for (let row = 0; row < size; row++) for (let column = 0; column < size; column++)
  values[row * size + column] = Math.exp(-Math.abs(row - column) / 4) / 8;
const names = Array.from({ length: size }, (_, place) => `piece ${place}`);
const options = { title: "map", values, rows: size, columns: size, rowLabels: names, columnLabels: names, cell: 9 };
const lines = { title: "lines", maps: [{ values, color: null }], rowLabels: names, columnLabels: names };
const more = { threshold: 0.03, pinned: -1, pinnedColumn: -1, pin() {} };
document.getElementById("view").replaceChildren(heatMap(options), attentionLines({ ...lines, ...more }));
const frame = () => new Promise(requestAnimationFrame);
async function scroll(box) {
  await frame(); await frame();
  const start = performance.now();
  for (let step = 1; step <= 30; step++) { box.scrollTop = step * 60; await frame(); await frame(); }
  return (performance.now() - start) / 30;
}
async function fastest(box) {  // another program may have had the CPU
  let time = await scroll(box);
  for (let again = 0; again < 4 && time >= 100; again++) time = Math.min(time, await scroll(box));
  return time;
}
window.times = [await fastest(document.querySelector(".map")), await fastest(document.querySelector(".lines"))];
"""
    file = tmp_path / "large.html"
    text = offline_page().replace('import "explorer/main.js";', code)
    file.write_text(text, encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    page.wait_for_function("window.times", timeout=60_000)
    times = page.evaluate("window.times")
    page.close()
    print("milliseconds for a scroll of 512 pieces: map, lines", times)
    assert max(times) < 100  # two frames of 50 ms
