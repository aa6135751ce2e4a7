"""What the page does with the focus, with typed text, addresses, errors and kept files: `make test-browser`."""

import pytest


pytestmark = pytest.mark.browser
TEXT, TRANSLATION = "three one five", "fünf eins drei"


def focused(page):
    return page.evaluate("document.activeElement.id")


def test_the_skip_link_leaves_the_sentence_and_the_view(open_page, drawn):
    page = open_page(text=TEXT, view="head")
    before = page.url
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'view'")
    assert (page.url, focused(page), page.input_value("#text")) == (before, "view", TEXT)
    page.evaluate("location.hash = 'view'")  # an anchor that someone typed is no state, either
    page.wait_for_function("location.hash.includes('view=head')")
    assert page.locator("#tab-head[aria-selected=true]").count() == 1
    page = open_page(at=f"{before.split('#')[0]}#somewhere")
    assert page.input_value("#text") == ""


def test_addresses_that_name_what_there_is_not_are_drawn(open_page, show):
    page = open_page()
    for state in (
        {"view": "nothing", "model": "nobody"}, {"layer": "99"}, {"heads": "a,9"}, {"picture": "x"}, {"row": "1.5"},
        {"hypothesis": "77"}, {"part": "x"}, {"view": "head", "head": "-3", "layer": "x", "row": "99"}, {"box": "x"},
        {"threshold": "x"}, {"__proto__": "1"}, {"view": "analyse", "analysis": "toString"},
    ):  # fmt: skip
        show(page, text=TEXT, **{"view": "attention", **state})
        assert page.locator(".error").count() == 0, state


def test_a_control_keeps_the_focus(open_page, drawn, show):
    page = open_page(text=TEXT, num_beams=3)
    for view, control, keys in (
        ("attention", "#choose-layer", ["Home"]),
        ("attention", "#threshold", ["ArrowRight", "ArrowRight"]),
        ("attention", "#head-1", ["Enter"]),
        ("attention", "#join-tokens-to-words", ["Space"]),
        ("attention", "#row-1", ["Enter"]),
        ("translate", "#num_beams", ["ArrowUp", "ArrowUp"]),
        ("translate", "#show-pruned-hypotheses", ["Space"]),
        ("translate", "#hypothesis-1", ["ArrowDown"]),
        ("translate", "#alternative-1-2", ["Enter"]),
        ("head", "#choose-head", ["ArrowDown"]),
        ("head", "#key-1", ["Enter"]),
        ("head", "#map-softmax", ["ArrowDown", "ArrowRight", "Enter"]),
        ("intervene", "#off-cross\\.0", ["Enter"]),
        ("intervene", "#the-other-views-show-the-changed-model", ["Space"]),
        ("intervene", "#theme", ["Enter"]),
    ):
        show(page, text=TEXT, num_beams=3, view=view)
        page.focus(control)
        for key in keys:
            page.keyboard.press(key)
            drawn(page)
        kept = {"#hypothesis-1": "hypothesis-2"}.get(control, control[1:].replace("\\", ""))
        assert focused(page) == kept, (view, control)
    show(page, text=TEXT, view="attention")
    page.focus("#threshold")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    drawn(page)
    assert page.input_value("#threshold") == "0.08" and "threshold=0.08" in page.url
    show(page, text=TEXT, prefix="5")  # what has done its work is gone: the focus is at the view
    page.click("text=Start again")
    drawn(page)
    assert focused(page) == "view"


def test_a_number_out_of_range_is_refused_beside_its_control(open_page, drawn, show):
    page = open_page(text=TEXT)
    page.fill("#num_beams", "99")
    page.press("#num_beams", "Tab")
    drawn(page)
    assert page.inner_text(".error") == "Beams: expected a whole number from 1 to 32"
    assert page.inner_text("#translation") == TRANSLATION and "num_beams" not in page.url
    page.fill("#num_beams", "2")
    page.press("#num_beams", "Tab")
    drawn(page)
    assert page.locator(".error").count() == 0 and "num_beams=2" in page.url
    for view in ("translate", "attention", "head", "walk", "intervene"):  # from a link, in any view
        show(page, text=TEXT, num_beams=99, view=view)
        assert "is 99; expected 1 to 32" in page.inner_text("main .error >> nth=-1")
        assert page.get_attribute("#num_beams", "aria-invalid") == "true"
    page.fill("#num_beams", "3")
    page.press("#num_beams", "Tab")
    drawn(page)
    assert page.locator(".error").count() == 0
    for name in ("length_penalty", "max_new_tokens", "prefix", "target_lang"):
        show(page, text=TEXT, **{name: "9999"})
        page.click("#plain-model") if name != "target_lang" else show(page, text=TEXT)
        drawn(page)
        assert page.inner_text("#translation") == TRANSLATION, name


def test_typed_text_is_not_lost(open_page, drawn, show):
    page = open_page(text=TEXT)
    page.fill("#text", "five one")
    page.click("#tab-attention")
    drawn(page)
    assert page.input_value("#text") == "five one" and TEXT in page.inner_text("#typed")
    page.click("#tab-intervene")
    drawn(page)
    page.fill("#target", "vier")
    page.click("#off-cross\\.0")
    drawn(page)
    assert page.input_value("#target") == "vier"
    page.click("#tab-translate")
    drawn(page)
    page.click("#tab-intervene")
    drawn(page)
    assert page.input_value("#target") == "vier" and page.input_value("#text") == "five one"
    page.click("#score")
    drawn(page)
    assert "target=vier" in page.url
    page.click("text=Undo typing")
    assert page.input_value("#text") == TEXT and page.is_hidden("#typed")
    page.fill("#text", "five")
    page.press("#text", "Enter")
    drawn(page)
    assert page.is_hidden("#typed") and page.input_value("#target") == "" and "text=five" in page.url


def test_back_stays_in_the_page(open_page, drawn, go):
    page = open_page(text=TEXT)
    for view in ("attention", "head", "intervene"):
        page.click(f"#tab-{view}")
        drawn(page)
    page.fill("#text", "five")
    page.press("#text", "Enter")
    drawn(page)
    seen = []
    for _ in range(4):
        go(page, -1)
        seen.append((page.evaluate("document.querySelector('[aria-selected=true]').id"), page.input_value("#text")))
    assert seen == [(f"tab-{view}", TEXT) for view in ("intervene", "head", "attention", "translate")]
    go(page, 1)
    assert "view=attention" in page.url


def test_the_title_says_what_is_shown_and_the_theme_is_remembered(open_page, drawn):
    page = open_page(text=TEXT)
    assert page.title() == f"Translate · {TEXT} · counting · model explorer"
    page.select_option("#model", "other")
    drawn(page)
    page.click("#tab-head")
    drawn(page)
    assert page.title() == f"Head · {TEXT} · other · model explorer"
    page.click("#theme")
    drawn(page)
    page.reload()
    drawn(page)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.inner_text("#theme") == "Light theme"


def test_waiting_is_shown_and_said(open_page, address):
    page = open_page()
    held = []  # the answer comes when the page was seen waiting, however slow the machine is
    page.route("**/api/translate", lambda route: held.append(route))
    page.evaluate(
        "document.getElementById('announcer').textContent = '';"
        "window.said = [];"
        "new MutationObserver(() => said.push(document.getElementById('announcer').textContent))"
        ".observe(document.getElementById('announcer'), { childList: true });"
    )
    page.fill("#text", TEXT)
    page.press("#text", "Enter")
    page.wait_for_selector("main.slow")
    for route in held:
        route.continue_()
    page.wait_for_selector("#translation")
    assert page.evaluate("said") == ["Loading…", TRANSLATION]
    assert page.locator("main.slow").count() == 0
    page.route("**/api/models", lambda route: route.abort())
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("main .error")
    assert "The server does not answer" in page.inner_text("main")
    page.unroute_all()
    page.route("**/api/models", lambda route: route.fulfill(status=502, content_type="text/html", body="<p>Bad"))
    page.reload()
    page.wait_for_selector("main .error")
    assert page.inner_text("main").strip() == "The server answers with status 502."


CHANGES = {
    "off: cross-attention layer 0 head 1, decoder layer 0": {"off": "cross.0.1,decoder.0", "applied": "true"},
    "beams 3 (model: 1)": {"num_beams": 3},
    "length penalty α 2": {"length_penalty": 2},
    "begins with": {"prefix": "5"},
    "hypothesis 2, not the best": {"hypothesis": 1, "num_beams": 3},
    "a hypothesis of the tree": {"ids": "5,6", "num_beams": 3},
}


def test_what_is_not_the_plain_model_is_named_in_every_view(open_page, drawn, show):
    page = open_page()
    for view in ("translate", "attention", "head", "walk", "intervene"):
        show(page, text=TEXT, view=view, num_beams=1)  # the model's own
        assert page.locator("#changes").count() == 0
        for words, state in CHANGES.items():
            show(page, text=TEXT, view=view, **state)
            assert words in page.inner_text("#changes"), (view, words)
        page.click("#plain-model")
        drawn(page)
        assert page.locator("#changes").count() == 0 and f"view={view}" in f"{page.url}&view=translate"
        show(page, text=TEXT, view=view, off="cross.0", applied="true", num_beams=2)
        page.click("#undo-off")
        drawn(page)
        assert "off=" not in page.url and "beams 2" in page.inner_text("#changes")


def test_another_model_has_nothing_of_the_one_before(open_page, drawn):
    """Its tokens and heads are others: they would be read as its own."""
    page = open_page(text=TEXT, prefix="5,6", off="cross.0", applied="true", num_beams=3, view="attention")
    page.select_option("#model", "other")
    drawn(page)
    assert page.locator(".change").all_text_contents() == ["undo: beams 3 (model: 1) ✕"]
    assert "prefix" not in page.url and "off" not in page.url
    page.select_option("#model", "counting")
    drawn(page)
    page.click("#tab-intervene")
    drawn(page)
    page.click("#off-cross\\.0")
    drawn(page)
    page.select_option("#model_b", "other")
    drawn(page)
    assert "off=" not in page.url and page.locator("text=the other views show").count() == 0


@pytest.fixture(scope="module")
def kept_page(counting_folder, tmp_path_factory):
    from vanilla_transformer_hf.commands.main import main

    file = tmp_path_factory.mktemp("kept") / "page.html"
    main(["explore", counting_folder, "--html", str(file), "--text", TEXT, "--num_beams", "2"])
    return file.as_uri()


def test_a_kept_page_stays_where_it_has_answers(kept_page, open_page, drawn):
    page = open_page(at=kept_page, is_offline=True)
    assert page.is_disabled("#translate") and page.is_disabled("#num_beams")
    page.click(".alternative >> nth=1")
    drawn(page)
    assert page.inner_text("#translation") == TRANSLATION and "prefix" not in page.url
    assert "This file does not hold this" in page.inner_text(".error")
    page.click("#hypothesis-1")  # whose attention is not in the file: the controls are
    drawn(page)
    page.click("#tab-attention")
    drawn(page)
    assert page.locator("#choose-picture").count() == 1
    page.click("#undo-hypothesis")
    drawn(page)
    assert page.locator(".error").count() == 0 and page.locator(".lines").count() == 1
    page.click("#tab-intervene")
    drawn(page)
    assert page.is_disabled("#off-cross\\.0") and page.inner_text("#plain") == TRANSLATION
    dead = open_page(at=f"{kept_page}#text=another+sentence", is_offline=True)
    assert dead.inner_text("#translation") == TRANSLATION and dead.locator(".error").count() == 1


def test_switches_and_their_result_are_seen_together(open_page, drawn):
    for width in (1280, 390):
        page = open_page(width, text=TEXT, view="intervene")
        page.locator("#off-cross\\.0\\.3").scroll_into_view_if_needed()
        drawn(page)
        seen = "id => { const box = document.getElementById(id).getBoundingClientRect();"
        seen += " return box.top >= 0 && box.bottom <= innerHeight; }"
        assert page.evaluate(seen, "changed") and page.evaluate(seen, "off-cross.0.3")


def test_vectors_of_a_head_are_seen_whole(open_page):
    page = open_page(text=TEXT, view="head", part="encoder")
    seen = "map => map.scrollWidth <= map.clientWidth && map.scrollHeight <= map.clientHeight"
    for name in ("#map-k", "#map-v", "#map-softmax"):
        assert page.eval_on_selector(name, seen), name


def test_bytes_are_joined_to_letters(open_page, drawn):
    page = open_page(text="مرحبا", view="attention", part="encoder")
    rows = [text for text in page.locator(".line-side.left .line-piece").all_inner_texts() if text != "</s>"]
    assert [text.strip("·\u2068\u2069") for text in rows if text != "␣"] == [*"مرحبا"]
    page.click("#join-bytes-to-letters")
    drawn(page)
    shown = page.locator(".line-side.left .line-piece")
    assert "·\u2068م\u2069 1/2" in shown.all_inner_texts()  # isolated: dot, letter, count from left to right
    places = """all => all.filter(one => one.textContent.includes("1/2")).map(one => {
      const range = document.createRange();
      return [0, 2, 5, 7].map(at => {
        range.setStart(one.firstChild, at); range.setEnd(one.firstChild, at + 1);
        return range.getBoundingClientRect().left;
      });
    })"""
    assert all(found == sorted(found) for found in shown.evaluate_all(places))
    page.click("#join-tokens-to-words")
    drawn(page)
    assert page.locator(".line-side.left .line-piece").all_inner_texts() == ["مرحبا", "</s>"]


def test_temperature_top_k_and_top_p_show_what_they_do_and_draws_are_listed(open_page, drawn):
    page = open_page(text=TEXT)
    first = page.locator(".alternative .share").all_inner_texts()
    assert not [one for one in first if "→" in one]
    for name, value in (("top_k", "2"), ("temperature", "2"), ("draws", "3")):
        page.fill(f"#{name}", value)
        page.press(f"#{name}", "Enter")
        drawn(page)
    shares = page.locator(".step >> nth=0").locator(".share").all_inner_texts()
    assert [one.split(" → ")[0] for one in shares] == first[:5]
    assert [one.endswith("never") for one in shares] == [False, False, True, True, True]
    assert page.locator("table.n-best tbody tr").count() == 3
    page.fill("#seed", "4")
    page.press("#seed", "Enter")
    drawn(page)
    assert "seed=4" in page.url
    assert page.locator(".change").evaluate_all("all => all.map((one) => one.textContent.replace('undo: ', ''))") == [
        "draws 3 ✕",
        "temperature 2 ✕",
        "top-k 2 ✕",
    ]
    page.click("#plain-model")
    drawn(page)
    assert page.locator(".alternative .share").all_inner_texts() == first and page.locator("#seed").count() == 0
