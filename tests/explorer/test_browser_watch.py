"""A run that is watched, in a browser: `make test-browser`."""

import json
import re
import shutil
from importlib import resources

import pytest
from counting_model import SIZES
from page_checks import COUNT, by_keyboard

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.common.opening import open_tokenizer
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.results import from_json
from vanilla_transformer_hf.explorer.watching import Watched


pytestmark = pytest.mark.browser
TEXT, TRANSLATION = "three one five", "fünf eins drei"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "checkpoints").mkdir()
    return folder


@pytest.fixture(scope="module")
def save(folder, counting_folder):
    """`save(step)`: the run has logged so many steps and, if they are even, saves a checkpoint; only 4 is trained."""

    def save(step):
        log = [{"step": one, "loss": 5 / one} for one in range(1, step + 1)]
        log += [{"step": one, "eval_loss": 4 / one, "eval_bleu": 25.0 * one} for one in range(2, step + 1, 2)]
        text = json.dumps({"global_step": step, "max_steps": 6, "log_history": log})
        (folder / "checkpoints" / "trainer_state.json").write_text(text)
        if step % 2:
            return
        checkpoint = folder / "checkpoints" / f"checkpoint-{step}"
        shutil.copytree(counting_folder, checkpoint)
        if step != 4:
            size = len(open_tokenizer(counting_folder))
            model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=size, **SIZES))
            model.save_pretrained(checkpoint)
        (checkpoint / "trainer_state.json").write_text(text)

    return save


@pytest.fixture(scope="module")
def explorer(folder, save):
    explorer = Explorer([])
    explorer.watched = Watched(explorer, folder)
    return explorer


@pytest.fixture(scope="module")
def whole(explorer, save):
    """The run with the checkpoints 2 and 4, of which it has removed the first."""
    if not explorer.watched.run(None).checkpoints:
        save(2)
        explorer.watched.look()
        explorer.answer("moment", {"step": 2, "text": TEXT})
        shutil.rmtree(explorer.watched.folder / "checkpoint-2")
        save(4)
        explorer.watched.look()
    return explorer


def test_a_run_is_seen_from_its_first_step_on(open_page, explorer, save, drawn):
    page = open_page()
    assert "logged nothing yet" in page.inner_text("#progress") and "no checkpoint yet" in page.inner_text(
        "main .note"
    )
    save(1)
    explorer.watched.look()
    page.wait_for_selector("#progress:has-text('Step 1 of 6')")
    assert "training 5 at step 1" in page.get_attribute("svg.chart", "aria-label")
    save(2)
    explorer.watched.look()
    page.wait_for_selector("#text")
    page.fill("#text", TEXT)
    page.press("#text", "Enter")
    page.wait_for_selector("#checkpoint-2")
    assert "view=watch" in page.url and page.get_attribute("#tab-watch", "aria-selected") == "true"
    assert TRANSLATION not in page.inner_text("main")
    shutil.rmtree(explorer.watched.folder / "checkpoint-2")
    save(4)
    explorer.watched.look()
    page.wait_for_selector("#checkpoint-4")
    assert page.inner_text("#announcer") == "Checkpoint of step 4"
    assert page.inner_text("tr.chosen .text") == TRANSLATION and page.locator(".n-best tbody tr").count() == 2
    assert page.locator("#model option").all_inner_texts() == ["checkpoint-4", "checkpoint-2"]
    # The other views open with what is newest, and keep it while it is looked at.
    assert page.input_value("#model") == "checkpoint-4"
    page.click("#tab-translate")
    drawn(page)
    assert page.input_value("#model") == "checkpoint-4" and TRANSLATION in page.inner_text("main")


def test_the_slider_shows_the_attention_of_each_checkpoint(open_page, drawn, whole):
    page = open_page(text=TEXT, view="watch")
    assert page.get_attribute("#slider", "aria-valuetext") == "Checkpoint of step 4"
    for step, key in ((4, None), (2, "ArrowLeft"), (4, "ArrowRight")):
        page.focus("#slider")
        if key:
            page.keyboard.press(key)
            drawn(page)
        assert page.evaluate("document.activeElement.id") == "slider"
        assert page.inner_text("tr.chosen button") == str(step)
        weights = from_json(whole.answer("moment", {"step": step, "text": TEXT})["weights"])
        page.focus("#map-moment")
        for move in ("ArrowUp", "ArrowLeft", "ArrowDown", "ArrowRight"):
            page.keyboard.press(move)
        shown = float(page.inner_text("figure:has(#map-moment) output").rsplit(": ", 1)[-1])
        assert abs(shown - float(weights[0, 1, 1])) < 1e-6, step
    page.click("#checkpoint-2")
    drawn(page)
    page.click("#beside-newest")
    drawn(page)
    assert "model=checkpoint-2" in page.url and "model_b=checkpoint-4" in page.url
    assert page.inner_text("#changed") == TRANSLATION and page.locator(".error").count() == 0


def test_errors_are_said_once_and_a_kept_page_has_the_run(open_page, drawn, whole, tmp_path):
    page = open_page(text="five " * 200, view="watch")
    assert page.locator("main .error").all_inner_texts() == [
        "This model reads at most 64 tokens; this sentence has 201. Shorten it."
    ]
    page.fill("#text", TEXT)
    page.press("#text", "Enter")
    page.wait_for_selector("#slider")
    with page.expect_download() as waiting:
        page.click("#save")
    file = tmp_path / "kept.html"
    waiting.value.save_as(file)
    again = open_page(at=file.as_uri(), is_offline=True)
    assert again.inner_text("main tr.chosen .text") == TRANSLATION and again.locator("#map-moment").count() == 1
    again.click("#checkpoint-2")
    drawn(again)
    assert again.locator(".error").count() == 0 and again.inner_text("tr.chosen button") == "2"


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_reached_by_all_and_nothing_is_cut(language, width, open_page, whole, pictures):
    for theme in ("light", "dark"):
        page = open_page(width, theme, text=TEXT, view="watch", language=language)
        page.evaluate((resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
        assert page.evaluate(COUNT) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.screenshot(path=pictures / f"watch-{width}-{theme}-{language}.png", full_page=True)
    unreached, stops = by_keyboard(page)
    assert unreached == set() and stops < 40
    shown = page.inner_text("main") + page.get_attribute("svg.chart", "aria-label")
    if language == "en":
        assert not re.search(r"[\u3000-\u9fff]", shown)
    else:
        words = {*re.findall(r"[A-Za-zäöüß]{2,}", shown)}
        names = {"BLEU", "run", "pad", "PNG", "SVG", *TEXT.split(), *TRANSLATION.split()}
        early = whole.answer("moment", {"step": 2, "text": TEXT})
        names |= {*re.findall(r"[A-Za-zäöüß]{2,}", " ".join([early["text"], *(one["text"] for one in early["rows"])]))}
        assert not words - names, words - names
