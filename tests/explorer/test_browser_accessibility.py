"""axe-core, the keyboard, contrast and forced colours in every view of the page: `make test-browser`."""

from importlib import resources
from pathlib import Path

import pytest
from page_checks import COUNT, by_keyboard

from vanilla_transformer_hf.explorer.page import FOLDER, page_names


TEXT = "three one five"


def test_the_files_of_the_page_have_at_most_119_columns():
    """Lines that prettier can break (.prettierrc); it breaks neither texts nor comments."""
    for name in {*page_names()} - {"texts_en.js", "texts_zh.js"}:  # prose, wrapped as prose
        lines = (Path(str(FOLDER)) / name).read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if len(line) > 119], name


def views_of(page):
    return [
        one.removeprefix("tab-") for one in page.eval_on_selector_all("[role=tab]", "all => all.map(one => one.id)")
    ]


def states_of(page):
    """A state for each view and picture, for what is changed, and for an error."""
    states = [{}, *({"text": TEXT, "num_beams": 3, "view": view} for view in views_of(page))]
    states += [{"text": TEXT, "view": "attention", "picture": picture} for picture in ("map", "grid")]
    states += [{"text": TEXT, "view": "attention", "heads": "0,2", "row": 1}]
    states += [{"text": TEXT, "view": "walk", "box": "decoder.0.fc2"}]
    states += [{"text": TEXT, "view": view, "language": "zh"} for view in ("tour", "analyse")]
    states += [{"text": TEXT, "view": "analyse", "method": "integrated_gradients", "steps": 16, "step": 2}]
    states += [{"text": TEXT, "view": "analyse", "analysis": name} for name in ("ranks", "neurons")]
    states += [{"text": TEXT, "view": "intervene", "off": "cross.0", "applied": "true", "prefix": "5", "num_beams": 2}]
    patched = {"text": TEXT, "view": "intervene", "other": "three two five"}
    states += [{**patched, "patch_map": "layers"}, {**patched, "patch_tensor": "cross.0.1", "patch_map": "heads"}]
    return [*states, {"text": TEXT, "num_beams": 99}]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
class TestAxe:
    pytestmark = pytest.mark.browser

    def test_no_violation_in_any_view(self, width, theme, open_page, show):
        page = open_page(width, theme)
        page.evaluate((resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
        for state in states_of(page):
            show(page, **state)
            assert page.evaluate(COUNT) == [], state


# Rows of tables with another number of cells than headings; one that stands for others has one.
CELLS = """() => [...document.querySelectorAll("table:has(thead)")].flatMap((table) =>
  [...table.tBodies[0].rows].map((row) => row.cells.length)
    .filter((count) => count !== 1 && count !== table.tHead.rows[0].cells.length))"""


class TestKeyboard:
    pytestmark = pytest.mark.browser

    def test_all_of_each_view_is_reached(self, open_page, show):
        page = open_page()
        for view in views_of(page):
            show(page, text=TEXT, num_beams=3, view=view)
            unreached, stops = by_keyboard(page)
            assert unreached == set(), view
            assert stops < 60, (view, stops)
            assert page.evaluate(CELLS) == [], view

    def test_a_large_tree_is_one_stop(self, open_page):
        page = open_page(text=TEXT, num_beams=32)
        nodes = page.locator("svg.tree .node")
        assert nodes.count() > 100 and page.locator("svg.tree .node[tabindex='0']").count() == 1
        page.focus("svg.tree .node[tabindex='0']")
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        assert "log-probability" in page.inner_text(".details")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Continue from here"

    def test_a_sentence_is_explored_without_a_mouse(self, open_page, drawn):
        """From the address bar: write, translate, continue with another token, switch a head off, come back."""
        page = open_page()
        for _ in range(3):  # skip link, model, sentence
            page.keyboard.press("Tab")
        page.keyboard.type(TEXT)
        page.keyboard.press("Enter")
        page.wait_for_selector("#translation")
        first = page.inner_text("#translation")

        def tab_to(selector):
            for _ in range(40):
                page.keyboard.press("Tab")
                if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                    return
            raise AssertionError(f"{selector} is not reached")

        tab_to(".alternative")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector("#prefix")
        assert page.inner_text("#translation") != first
        page.keyboard.press("Shift+Tab")
        assert page.evaluate("document.activeElement.textContent") == "Start again"
        page.keyboard.press("Enter")
        page.wait_for_selector("#prefix", state="detached")
        assert page.inner_text("#translation") == first
        page.focus("#tab-translate")
        page.keyboard.press("End")
        drawn(page)
        assert "view=intervene" in page.url
        tab_to(".toggle")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Space")
        page.wait_for_selector("text=1 off")
        page.focus("#plain-model")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=1 off", state="detached")


# Least contrast of numbers on cells, over each scale.
CONTRAST = """async () => {
  const { diverging, readableOn, sequential } = await import("/page/colors.js");
  const light = (color) => {
    const [red, green, blue] = color.map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const rgb = (color) => color.startsWith("#")
    ? [...color.slice(1)].map((digit) => 17 * parseInt(digit, 16)) : color.match(/\\d+/g).map(Number);
  let least = 21;
  for (const scale of [sequential(1), diverging(1)])
    for (let step = -200; step <= 200; step++) {
      const color = scale(step / 200);
      const [high, low] = [light(rgb(color)), light(rgb(readableOn(color)))].sort((a, b) => b - a);
      least = Math.min(least, (high + 0.05) / (low + 0.05));
    }
  return least;
}"""


class TestColors:
    pytestmark = pytest.mark.browser

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_numbers_in_cells_can_be_read(self, theme, open_page):
        assert open_page(theme=theme).evaluate(CONTRAST) >= 4.5  # WCAG 1.4.3

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_what_is_chosen_is_seen_in_forced_colors(self, theme, open_page, show, pictures):
        page = open_page(theme=theme, forced="active")
        for view, chosen, other in (
            ("attention", "#tab-attention", "#tab-head"),
            ("attention", "#head-1", "#head-0"),
            ("attention", "#mean", "#maximum"),
            ("translate", ".alternative.chosen", ".alternative:not(.chosen)"),
            ("intervene", "#off-cross\\.0", "#off-cross\\.0\\.1"),
            ("intervene", "span.bar", ".side"),
        ):
            more = {"heads": "1"} if chosen == "#head-1" else {}
            show(page, text=TEXT, view=view, off="cross.0", **more)
            colors = [
                page.eval_on_selector(one, "one => getComputedStyle(one).backgroundColor") for one in (chosen, other)
            ]
            assert colors[0] != colors[1], chosen
            page.screenshot(path=pictures / f"forced-{view}-{theme}.png")
