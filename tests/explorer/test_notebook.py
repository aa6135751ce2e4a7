"""`explore(model, tokenizer, text)` in the cell of a notebook: what it returns, and how JupyterLab shows it."""

import html
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
import torch
from files_to_explore import hears, sees
from PIL import Image
from transformers import MarianConfig, MarianMTModel

from vanilla_transformer_hf import (
    RecurrentSeq2SeqConfig,
    RecurrentSeq2SeqForConditionalGeneration,
    VanillaTransformerForCausalLM,
    VanillaTransformerModel,
    VanillaTransformerTokenizer,
    explore,
)
from vanilla_transformer_hf.common.recordings import read_recording
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.file_sources import FileSubject
from vanilla_transformer_hf.explorer.notebook import MOST_IN_A_CELL
from vanilla_transformer_hf.explorer.page import page_of
from vanilla_transformer_hf.translation.recognition import Recognizer


TEXT, TRANSLATION = "three one five", "fünf eins drei"


@pytest.fixture(scope="module")
def parts(opened_translator):
    return opened_translator.model, opened_translator.tokenizer


def test_a_cell_has_the_page_in_a_frame_of_its_own(parts, tmp_path):
    model, tokenizer = parts
    was = model.train().config.to_dict()
    try:
        page = explore(model, tokenizer, TEXT, num_beams=2, view="attention", height=500, theme="dark")
        assert model.training and model.config.to_dict() == was  # as it was given
    finally:
        model.eval()
    assert repr(page).startswith("<a page of ") and ".save('page.html')" in repr(page)
    assert page.save(tmp_path / "page.html").read_text(encoding="utf-8") == page.page
    frame = page._repr_html_()
    (source,) = re.findall(r"srcdoc='([^']*)'", frame)
    assert html.unescape(source) == page.page  # whole, and nothing of it ends the attribute
    assert "height: 500px" in frame and 'sandbox="allow-scripts allow-downloads"' in frame
    assert '<html lang="en" data-theme="dark">' in page.page
    assert json.dumps(f"view=attention&text={TEXT.replace(' ', '+')}&num_beams=2")[1:-1] in page.page
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page.page) and str(tmp_path.parent) not in page.page


def test_hostile_texts_stay_texts(parts):
    text = """'"><script>alert(1)</script> & ' &#39; &quot;"""
    page = explore(*parts, text)
    frame = page._repr_html_()
    assert re.sub(r"srcdoc='[^']*'", "", frame).count(">") == 2, "a frame and its end"
    assert html.unescape(re.findall(r"srcdoc='([^']*)'", frame)[0]) == page.page
    assert "<script>alert" not in page.page


def test_language_models_and_models_of_transformers(parts, tiny_config):
    tokenizer = parts[1]
    model = VanillaTransformerForCausalLM(tiny_config(vocab_size=len(tokenizer)))
    assert '"kind":"causal"' in explore(model, tokenizer, TEXT, max_new_tokens=3).page
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": len(tokenizer)}
    sizes |= {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "forced_eos_token_id": 2}
    marian = MarianMTModel(MarianConfig(**sizes, **ids))
    assert '"is_ours":false' in explore(marian, tokenizer, TEXT, max_new_tokens=3).page


def test_what_cannot_be_shown_is_said_in_one_line(parts, tiny_config):
    model, tokenizer = parts
    for given, message in (
        ({"num_beams": 99}, "num_beams: is 99; expected 1 to 32"),
        ({"view": "picture"}, "view: 'picture' is not one: expected one of tour, translate, attention, head, walk"),
        ({"theme": "blue"}, "theme: 'blue' is not one: expected light, dark or None"),
        ({"beams": 2}, "beams: is not a setting of the page: expected one of num_beams, length_penalty"),
    ):
        with pytest.raises(ValueError) as caught:
            explore(model, tokenizer, TEXT, **given)
        assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="text: is empty: type a sentence"):
        explore(model, tokenizer, " ")
    small = VanillaTransformerTokenizer.train(["one two three"], vocab_size=270)
    sizes = {"d_model": 16, "vocab_size": len(small), "encoder_layers": 1, "decoder_layers": 1}
    for wrong, message in (
        (VanillaTransformerModel(tiny_config()), "predictions of tokens, which VanillaTransformerModel has not"),
        (
            RecurrentSeq2SeqForConditionalGeneration(RecurrentSeq2SeqConfig(**sizes)),
            "attention, which a recurrent model with attention=none has not",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            explore(wrong, small, TEXT)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """What is read -> the folder of a model, with a file, and model and processor."""
    folders = {
        "audio": hears(tmp_path_factory.mktemp("audio") / "hears"),
        "image": sees(tmp_path_factory.mktemp("image") / "sees"),
    }
    opened = {name: Recognizer(str(folder)) for name, folder in folders.items()}
    return {name: (folders[name], opened[name].model, opened[name].processor) for name in folders}


@pytest.mark.parametrize("reads", ["audio", "image"])
def test_recordings_and_images_have_the_page_of_the_command(readers, reads):
    folder, model, processor = readers[reads]
    path = folder / {"audio": "tones.wav", "image": "glyph.png"}[reads]
    cell = explore(model, processor, **{reads: path}, num_beams=2)
    explorer = Explorer.open([folder])
    (name,) = explorer.open_files({"audio": "speech", "image": "image"}[reads], [path])
    assert cell.page == page_of(explorer, name, {"num_beams": 2}, most_numbers=MOST_IN_A_CELL)
    assert (cell.text, name) == (path.name, path.name) and str(folder) not in cell.page


def test_samples_and_pictures_are_what_their_files_are(readers):
    folder, model, processor = readers["audio"]
    samples, rate = read_recording(folder / "tones.wav")
    hearing = FileSubject("hears", model, processor)
    file = hearing.files[hearing.open_given(str(folder / "tones.wav"))]
    for given in (
        {"raw": samples, "sampling_rate": rate},
        {"array": (samples * 32767).round().astype(np.int16), "sampling_rate": rate, "path": "of datasets"},
    ):
        name = hearing.open_given(given)
        assert name.startswith("recording")
        torch.testing.assert_close(hearing.files[name], file, atol=1e-3, rtol=1e-3)
    folder, model, processor = readers["image"]
    seeing = FileSubject("sees", model, processor)
    with Image.open(folder / "glyph.png") as image:
        assert seeing.open_given(folder / "glyph.png") == seeing.open_given(image) == "glyph.png"
        assert seeing.open_given(image.convert("RGB")) == "image"
    assert torch.equal(*seeing.files.values())


def test_a_source_that_a_model_does_not_read_is_said_in_one_line(parts, readers, tmp_path):
    tones, *hearing = readers["audio"]
    glyph, *seeing = readers["image"]
    tokenizer = hearing[1].tokenizer
    for arguments, given, message in (
        (parts, {"audio": tones / "tones.wav"}, "audio: model0 reads text: give text"),
        (parts, {"text": TEXT, "image": "a.png"}, "text: give one of text, audio and image: got text and image"),
        (parts, {}, "text: give one of text, audio and image: got none"),
        (hearing, {"text": TEXT}, "text: hears reads speech: give audio"),
        (hearing, {"image": glyph / "glyph.png"}, "image: hears reads speech: give audio"),
        (hearing, {"audio": [0.0] * 800}, "audio: is a list; expected a path, or {'raw': samples, 'sampling_rate': "),
        (hearing, {"audio": {"raw": [0.0]}}, "audio: is a dict; expected a path, or {'raw': samples"),
        (hearing, {"audio": {"raw": [0.1] * 800, "sampling_rate": 16000}}, "the recording has 16,000 samples per"),
        (hearing, {"audio": {"raw": [], "sampling_rate": 8000}}, "recording 0: it is empty"),
        (hearing, {"audio": {"raw": np.zeros((2, 800)), "sampling_rate": 8000}}, "recording 0: expected one channel"),
        (
            (hearing[0], tokenizer),
            {"audio": "a.wav"},
            "tokenizer: is a VanillaTransformerTokenizer; hears reads speech",
        ),
        ((hearing[0], seeing[1]), {"audio": "a.wav"}, "tokenizer: is a TrOCRProcessor; hears reads speech"),
        ((parts[0], hearing[1]), {"text": TEXT}, "tokenizer: is a Speech2TextProcessor; model0 reads text: give its"),
        (seeing, {"image": np.zeros((8, 8))}, "image: is a ndarray; expected a path or a PIL image"),
        (seeing, {"image": Image.new("L", (99, 8))}, "it is 99 pixels wide and 8 high, and this model reads at most"),
        (seeing, {"image": glyph / "glyph.png", "target_lang": "de"}, "target_lang: 'de' is given: this model has no"),
    ):
        with pytest.raises(ValueError) as caught:
            explore(*arguments, **given)
        assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    with pytest.raises(OSError, match=r"nothing\.png"):
        explore(*seeing, image=tmp_path / "nothing.png")


def test_numbers_of_settings_are_written_as_the_page_writes_them(parts):
    """1.0 is 1 in JavaScript: the page must find its answer."""
    page = explore(*parts, TEXT, length_penalty=1.0, num_beams=2).page
    assert '\\"length_penalty\\":1,' in page and '\\"length_penalty\\":1.0' not in page


CELLS = (
    "from vanilla_transformer_hf import Translator, explore\n"
    "translator = Translator.from_pretrained({folder!r})\n"
    "explore(translator.model, translator.tokenizer, {text!r}, num_beams=2, length_penalty=1.0)",
    "explore(translator.model, translator.tokenizer, 'five one', view='attention', height=420, theme='dark')",
)
FRAMES = ".jp-OutputArea iframe"


@pytest.fixture
def lab(tmp_path, counting_folder):
    """The address of a notebook in JupyterLab, whose settings and news are of this test alone."""
    pytest.importorskip("jupyterlab")
    sources = [cell.format(folder=str(counting_folder), text=TEXT) for cell in CELLS]
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [{**cell, "id": f"cell-{place}", "source": source} for place, source in enumerate(sources)]
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "book.ipynb").write_text(json.dumps(book), encoding="utf-8")
    (tmp_path / "config" / "labconfig").mkdir(parents=True)
    quiet = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (tmp_path / "config" / "labconfig" / "page_config.json").write_text(json.dumps(quiet), encoding="utf-8")
    names = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "run"}
    folders = {name: str(tmp_path / folder) for name, folder in {**names, "IPYTHONDIR": "ipython"}.items()}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--no-browser", "--allow-root", "--LabApp.extension_manager=readonly", "--IdentityProvider.token="]
    options += [f"--ServerApp.port={port}", f"--ServerApp.root_dir={tmp_path / 'books'}"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], env={**os.environ, **folders}, stdout=log, stderr=log
        )
        address = f"http://127.0.0.1:{port}"
        try:
            wait_for(f"{address}/api", server)
            yield f"{address}/lab/tree/book.ipynb"
        finally:
            server.terminate()
            server.wait(timeout=60)


def wait_for(address, server):
    """Wait until a server answers."""
    for _ in range(600):
        assert server.poll() is None, "JupyterLab ended"
        try:
            return urllib.request.urlopen(address).read()
        except OSError:
            time.sleep(0.2)
    raise AssertionError("JupyterLab does not answer")


def open_book(browser, address, seen):
    """A page with the notebook, whose kernel is ready; requests to others than the notebook's server are noted."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    own = (address.split("/lab/")[0], "data:", "blob:")
    page.on("request", lambda one: None if one.url.startswith(own) else seen.append(one.url))
    page.goto(f"{address}?reset")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=120_000)
    return page


def frame_of(page, place):
    """The page in a cell's frame, drawn."""
    frame = page.frame_locator(FRAMES).nth(place)
    frame.locator("main[aria-busy=false]").wait_for(timeout=60_000)
    return frame


@pytest.mark.browser
def test_jupyterlab_shows_the_cells_and_a_saved_notebook_again(lab, browser, pictures, tmp_path):
    asked = []
    page = open_book(browser, lab, asked)
    style = "getComputedStyle(document.body).font + getComputedStyle(document.querySelector('button')).padding"
    before = page.evaluate(style)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.wait_for_function(f"document.querySelectorAll('{FRAMES}').length === 2", timeout=180_000)
    first, second = frame_of(page, 0), frame_of(page, 1)
    assert first.locator("#translation").inner_text() == TRANSLATION
    assert second.locator("#tab-attention[aria-selected=true]").count() == 1  # each cell has a state of its own
    assert [page.locator(FRAMES).nth(place).bounding_box()["height"] for place in (0, 1)] == [722, 422]
    dark = "one => getComputedStyle(one).backgroundColor"
    assert first.locator("body").evaluate(dark) != second.locator("body").evaluate(dark)
    for view in ("tour", "attention", "head", "walk"):
        first.locator(f"#tab-{view}").click()
        frame_of(page, 0).locator(f"#tab-{view}[aria-selected=true]").wait_for()
        assert first.locator(".error").count() == 0, view
    with page.expect_download() as waiting:
        first.get_by_role("button", name="PNG").first.click()
    assert waiting.value.suggested_filename.endswith(".png")
    page.screenshot(path=pictures / "jupyterlab.png")
    assert page.evaluate(style) == before, "the page's styles are not the notebook's"
    # The frame cannot reach the notebook, nor has it an address of its own that Back would leave.
    assert (
        first.locator("body").evaluate("() => { try { return parent.document.title; } catch { return null; } }")
        is None
    )

    page.get_by_role("menuitem", name="File", exact=True).click()
    page.get_by_text("Save Notebook", exact=True).click()
    book = tmp_path / "books" / "book.ipynb"
    saved = lambda: book.read_text(encoding="utf-8").count("srcdoc") == 2  # noqa: E731
    for _ in range(1200):
        if saved():
            break
        page.wait_for_timeout(100)
    assert saved()
    page.close()
    again = open_book(browser, lab, asked)
    again.screenshot(path=pictures / "jupyterlab-again.png")
    assert frame_of(again, 0).locator("#translation").inner_text() == TRANSLATION
    assert frame_of(again, 1).locator("#tab-attention[aria-selected=true]").count() == 1
    again.close()
    assert asked == [], "nothing comes from the network"
