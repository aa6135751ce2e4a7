"""Recordings and images in the page: chosen, dropped, drawn with the attention to them. `make test-browser`."""

import base64
from importlib import resources

import pytest
from files_to_explore import hears, sees
from make_spoken_digits import write_wave
from page_checks import COUNT, by_keyboard

from vanilla_transformer_hf.common.recordings import read_recording
from vanilla_transformer_hf.explorer.results import from_json


pytestmark = pytest.mark.browser
VIEWS = ("tour", "translate", "attention", "head", "walk", "analyse", "intervene")
STATES = [
    *({"view": view} for view in VIEWS),
    {"view": "attention", "row": 1},
    {"view": "attention", "part": "encoder"},
    {"view": "attention", "picture": "map"},
    {"view": "attention", "picture": "grid"},
    {"view": "walk", "box": "encoder.embedding"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def explorer(folder):
    """A model that hears, with a recording; one that sees, and one that sees in two dimensions and colours."""
    from vanilla_transformer_hf.explorer.explorer import Explorer

    folders = [hears(folder / "hears"), sees(folder / "sees"), sees(folder / "grid", patch=(4, 8), channels=3)]
    explorer = Explorer.open(folders)
    explorer.open_files("speech", [folder / "hears" / "tones.wav"])
    explorer.subjects["grid"].open_file(folder / "grid" / "glyph.png")
    return explorer


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_violation_in_any_view(width, theme, open_page, show, pictures):
    page = open_page(width, theme)
    page.evaluate((resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    for model, text in (("hears", "tones.wav"), ("grid", "glyph.png"), ("sees", "")):
        for state in STATES if text else STATES[:1]:
            show(page, model=model, text=text, num_beams=2, **state)
            assert page.locator("main .error").count() == 0, (model, state)
            assert page.evaluate(COUNT) == [], (model, state)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (model, state)
            if text and state["view"] in ("attention", "head", "analyse"):
                name = "-".join(map(str, (model, *state.values(), width, theme)))
                page.screenshot(path=pictures / f"file-{name}.png", full_page=True)


def test_a_token_shows_where_it_looks(open_page, explorer):
    page = open_page(model="hears", text="tones.wav", view="attention", layer=1, heads="1")
    found = explorer.answer("translate", {"model": "hears", "text": "tones.wav"})["hypotheses"][0]
    pair = {"model": "hears", "text": "tones.wav", "target_ids": found["ids"]}
    answer = explorer.answer("attention", {**pair, "part": "cross", "layer": 1})
    weights = from_json(answer["weights"])[1]
    page.hover("#row-1")
    best = int(weights[1].argmax())
    time = answer["columns"][best]["text"]
    assert f"attends to {time} {100 * float(weights[1, best]):.1f} %" in page.inner_text(".readout")
    page.mouse.move(0, 0)
    page.focus("#source-speech")
    for _ in range(3):  # the first arrow leads to the first position
        page.keyboard.press("ArrowRight")
    told = page.inner_text(".readout")
    assert told.startswith("0.08 s is attended by ") and page.inner_text("#announcer") == told
    measured = explorer.answer("diagonality", {**pair, "layer": 1})
    assert f"Head 1: order {measured['order'][2]:.2f}" in page.inner_text("#diagonality")
    page.focus("#row-0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#row-1[aria-pressed=true]")
    assert "row=1" in page.url and page.evaluate("document.activeElement.id") == "row-1"
    for kind in ("PNG", "SVG"):
        with page.expect_download():
            page.click(f"text=/^{kind}$/")


# Drops a file onto the page, as a file manager does.
DROP = """([data, name, type]) => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const moved = new DataTransfer();
  moved.items.add(new File([bytes], name, { type }));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: moved, bubbles: true, cancelable: true }));
}"""


def test_files_are_chosen_and_dropped(open_page, drawn, folder, tmp_path):
    page = open_page(model="sees")
    assert "Open an image" in page.inner_text("main") and not page.is_visible("#text")
    page.set_input_files("#open-file", str(folder / "sees" / "glyph.png"))
    page.wait_for_selector("#translation")
    assert "text=glyph.png" in page.url and page.input_value("#file") == "glyph.png"
    page.select_option("#model", "hears")
    drawn(page)
    assert page.input_value("#file") == "tones.wav" and page.locator("main .error").count() == 0
    samples, rate = read_recording(folder / "hears" / "tones.wav")
    write_wave(tmp_path / "shorter.wav", samples[:-400], rate)
    data = base64.b64encode((tmp_path / "shorter.wav").read_bytes()).decode()
    page.evaluate(DROP, [data, "shorter.wav", "audio/wav"])
    page.wait_for_selector("#file option[value='shorter.wav']", state="attached")
    drawn(page)
    assert "text=shorter.wav" in page.url
    page.evaluate(DROP, [base64.b64encode(b"no recording").decode(), "no.wav", "audio/wav"])
    page.wait_for_selector("#file-error:not([hidden])")
    assert "no.wav is not a WAV file" in page.inner_text("#file-error") and "text=shorter.wav" in page.url
    with page.expect_download() as waiting:
        page.click("#save")
    kept = tmp_path / "kept.html"
    waiting.value.save_as(kept)
    assert data not in kept.read_text(encoding="utf-8")
    again = open_page(at=kept.as_uri(), is_offline=True)
    assert again.input_value("#file") == "shorter.wav" and again.is_disabled("#open-file")


def test_a_file_of_the_command_opens_offline(drawn, open_page, folder, tmp_path):
    from vanilla_transformer_hf.commands.main import main

    file = tmp_path / "page.html"
    main(["explore", str(folder / "hears"), "--html", str(file), "--audio", str(folder / "hears" / "tones.wav")])
    page = open_page(at=file.as_uri(), is_offline=True)
    for view in VIEWS:
        page.click(f"#tab-{view}")
        drawn(page)
        assert page.locator("main .error").count() == 0, view
    page.click("#tab-tour")
    drawn(page)
    assert "Tour follows a sentence from its ids, and hears reads files" in page.inner_text("main")


def test_all_of_each_view_is_reached_by_keyboard(open_page, show):
    page = open_page()
    for view in ("translate", "attention", "head"):
        show(page, model="hears", text="tones.wav", view=view)
        unreached, _ = by_keyboard(page)
        assert unreached == set(), view
