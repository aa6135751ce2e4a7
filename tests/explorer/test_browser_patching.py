"""A tensor of another sentence, in the page: `make test-browser`."""

import pytest


pytestmark = pytest.mark.browser
TEXT, OTHER = "three one five", "three two five"


def test_a_second_sentence_by_keyboard_and_back(open_page, drawn, explorer, show, go):
    page = open_page(text=TEXT, view="intervene")
    page.focus("#other")
    page.keyboard.type(OTHER)
    page.keyboard.press("Enter")
    page.wait_for_selector("#patch-share")
    ids = explorer.answer("translate", {"text": TEXT})["hypotheses"][0]["ids"]
    request = {"text": TEXT, "other": OTHER, "target_ids": ids}
    found = explorer.answer("patch", {**request, "tensor": "encoder.0"})
    assert page.inner_text("#patch-translation") == found["translation"]
    assert f"encoder layer 0 of “{OTHER}”" in page.inner_text("#changes")
    assert page.evaluate("document.activeElement.id") == "other" and "other=three+two+five" in page.url
    for control, value, field in (
        ("#patch-part", "cross", "patch_tensor=cross.0"),
        ("#patch-head", "1", "patch_tensor=cross.0.1"),
        ("#patch-step", "2", "patch_step=2"),
        ("#patch-place", "2", "patch_place=2"),
        ("#patch-from", "1", "patch_from=1"),
    ):
        page.focus(control)
        page.select_option(control, value)
        drawn(page)
        assert field in page.url and page.evaluate("document.activeElement.id") == control[1:]
        assert page.locator(".error").count() == 0
    found = explorer.answer("patch", {**request, "tensor": "cross.0.1", "step": 2, "position": 2, "other_position": 1})
    plain, patched, other = found["differences"]
    assert f"{round(100 * (patched - plain) / (other - plain))} %" in page.inner_text("#patch-share")
    go(page, -1)
    assert "patch_from" not in page.url and page.locator("#patch-share").count() == 1

    show(page, text=TEXT, view="intervene", other=OTHER, patch_tensor="encoder.0")
    page.focus("#patch-map-layers")
    page.keyboard.press("Enter")
    page.wait_for_selector("#map-patching")
    page.focus("#map-patching")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#map-patching ~ .readout").startswith("layer 0, one: ")
    page.keyboard.press("Enter")
    drawn(page)
    assert "patch_place=1" in page.url and page.evaluate("document.activeElement.id") == "map-patching"
    page.click("#patch-map-heads")
    drawn(page)
    assert page.locator("#map-patching").count() == 1 and "patch_map=heads" in page.url
    page.click("#plain-model")
    drawn(page)
    assert page.locator("#changes, #patch-share").count() == 0
    for view in ("translate", "walk"):  # no other view has it
        show(page, text=TEXT, view=view, other=OTHER)
        assert page.locator("#changes").count() == 0


def test_what_is_wrong_is_said_below_the_controls(open_page, show):
    page = open_page(text=TEXT, view="intervene", other="three", patch_place=3, patch_from=3)
    assert "is 3; expected 0 to 1" in page.inner_text("main .error")
    for state in ({"patch_tensor": "x"}, {"patch_tensor": "cross.99.99"}, {"patch_step": "x"}, {"patch_map": "x"}):
        show(page, text=TEXT, view="intervene", other=OTHER, **state)
        assert page.locator(".error").count() == 0, state


def test_a_kept_page_has_what_was_compared(open_page, drawn, tmp_path):
    page = open_page(text=TEXT, view="intervene", other=OTHER, patch_map="layers")
    with page.expect_download() as waiting:
        page.click("#save")
    waiting.value.save_as(tmp_path / "kept.html")
    again = open_page(at=(tmp_path / "kept.html").as_uri(), is_offline=True)
    assert again.inner_text("#patch-share") == page.inner_text("#patch-share")
    assert again.locator("#map-patching").count() == 1 and again.locator(".error").count() == 0
    assert again.locator("#patch-part option:disabled").count() == 2 and again.is_disabled("#patch-run")
    assert again.is_disabled("#patch-map-heads")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pictures(width, theme, language, open_page, pictures):
    page = open_page(width, theme, text=TEXT, view="intervene", other=OTHER, patch_map="layers", language=language)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=pictures / f"patching-{width}-{theme}-{language}.png", full_page=True)
