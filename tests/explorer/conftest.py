"""The explorer's page in the one browser of all tests, a server for those of a file, and models of the host."""

import os
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)


@pytest.fixture(params=["marian", "bart", "t5"])
def host_model(request, tokenizer):
    """A small model of transformers' own for the tokenizer of a file of tests."""
    sizes = {"vocab_size": len(tokenizer), "d_model": 16, "decoder_start_token_id": 0, "pad_token_id": 0}
    sides = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    ends = {"eos_token_id": 1, "forced_eos_token_id": None, "scale_embedding": True}
    model = {
        "marian": lambda: MarianMTModel(MarianConfig(**sizes, **sides, **ends)),
        "bart": lambda: BartForConditionalGeneration(BartConfig(**sizes, **sides, **ends)),
        "t5": lambda: T5ForConditionalGeneration(T5Config(**sizes, num_layers=2, num_heads=2, d_kv=8, eos_token_id=1)),
    }[request.param]()
    return model.eval()


@pytest.fixture(scope="module")
def explorer(opened_translator):
    """Two names for one model; a file of tests may have others."""
    from vanilla_transformer_hf.explorer.explorer import Explorer
    from vanilla_transformer_hf.explorer.subject import Subject

    parts = opened_translator.model, opened_translator.tokenizer
    return Explorer([Subject("counting", *parts), Subject("other", *parts)])


@pytest.fixture(scope="module")
def address(explorer):
    """Where the page is served."""
    import uvicorn

    from vanilla_transformer_hf.explorer.server import make_app
    from vanilla_transformer_hf.serving import http

    listening = http.bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(explorer), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield http.address_of(listening)
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    folder = Path(os.environ.get("EXPLORER_PICTURES") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def open_page(browser, address):
    """
    `open_page(width, theme, address, is_offline, forced, **state)`: a page that is drawn. At its end, its console has
    no error.
    """
    faults, contexts = [], []

    def open_page(width=1280, theme="light", at=None, is_offline=False, forced=None, **state):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, forced_colors=forced, offline=is_offline
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda one: faults.append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{at or address}{'#' + urlencode(state) if state else ''}")
        wait_until_drawn(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    refused = "Failed to load resource"  # the browser's own note of an error that the page shows
    assert not [fault for fault in faults if not fault.startswith(refused)]


@pytest.fixture(scope="session")
def drawn():
    """`drawn(page)` waits until a page shows its state."""
    return wait_until_drawn


@pytest.fixture
def show(address, drawn):
    """`show(page, **state)`: another state in the same page."""

    def show(page, **state):
        page.evaluate(SHOW, urlencode(state))
        drawn(page)

    return show


@pytest.fixture
def go(drawn):
    """`go(page, steps)`: to another page of the browser's history, as by its buttons Back and Forward."""

    def go(page, steps):
        page.evaluate(GO, steps)
        drawn(page)

    return go


# The page begins to draw a state at an event that comes after the address has changed.
SHOW = """address => new Promise((done) => {
  const before = location.href;
  addEventListener("hashchange", () => done(), { once: true });
  location.hash = address;
  if (location.href === before) done();
})"""
GO = """steps => new Promise((done) => {
  addEventListener("hashchange", () => done(), { once: true });
  history.go(steps);
})"""
# Canvases are drawn in the frame after that in which their size is known.
FRAMES = """async () => {
  for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
}"""


def wait_until_drawn(page):
    page.wait_for_selector("main[aria-busy=false]", timeout=60_000)
    page.evaluate(FRAMES)
