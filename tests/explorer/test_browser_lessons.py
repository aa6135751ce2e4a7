"""The addresses of the exercises in docs/lessons.md open the views that they speak of, with the solutions' numbers."""

import json
import re

import pytest
from hub_server import ROOT


pytestmark = pytest.mark.browser
TEXT = "A brown dog is running through the snow."
# What is to be seen at the address of each exercise: the view, the controls that are chosen, texts of the panel.
SEEN = [
    ("tour", {}, ["1.386", "15.68", "running"]),
    ("head", {"layer": "3", "head": "3", "row": "4"}, ["0.42", "0.32", "0.19"]),
    ("head", {"layer": "0", "head": "0", "row": "4"}, ["112.83", "53.95"]),
    ("attention", {"attention": "encoder", "picture": "grid"}, []),
    ("attention", {"attention": "decoder", "picture": "map", "layer": "1"}, []),
    ("attention", {"attention": "cross", "picture": "map", "layer": "2"}, []),
    ("walk", {}, ["6.21", "19.06"]),
    ("translate", {}, ["Ein brauner Hund, der durch den Schnee rennt.", "−0.2575"]),
    ("analyse", {}, ["brauner"]),
    ("intervene", {}, ["Ein brauner Hund läuft durch den Schnee.", "Ein brauner Hund rennt durch den Schnee."]),
]


def addresses(end):
    text = (ROOT / "docs" / f"lessons{end}.md").read_text(encoding="utf-8")
    return re.findall(r"http://127\.0\.0\.1:8000/(#[^)]+)\)", text)


@pytest.fixture(scope="module")
def explorer():
    from vanilla_transformer_hf.explorer.explorer import Explorer

    return Explorer.open([ROOT / "model_cards" / "multi30k_raw_en_de"])


@pytest.mark.parametrize("end", ["", "_zh"])
def test_the_address_of_an_exercise_opens_its_view(end, address, open_page, pictures):
    found = addresses(end)
    assert len(found) == len(SEEN)
    page = None
    for number, (fragment, (view, chosen, texts)) in enumerate(zip(found, SEEN, strict=True), 1):
        page = open_page(at=f"{address}{fragment}")
        assert page.get_attribute(f"#tab-{view}", "aria-selected") == "true", fragment
        assert page.locator(".error").count() == 0 and page.input_value("#text") == TEXT, fragment
        assert page.get_attribute("html", "lang") == ("zh" if end else "en")
        for name, value in chosen.items():
            assert page.input_value(f"#choose-{name}") == value, fragment
        heads = re.findall(r"&heads=(\d)", fragment)
        assert heads == page.locator(".swatch[aria-pressed=true]").all_inner_texts(), fragment
        shown = page.inner_text("#panel")
        assert [text for text in texts if text not in shown] == [], fragment
        page.screenshot(path=pictures / f"lesson{end}-{number}.png", full_page=True)
        page.close()


@pytest.mark.parametrize("name", ["attention", "training"])
def test_a_notebook_runs_in_jupyter(name, tmp_path):
    """In a kernel of its own, which puts the pictures into the cells."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    (tmp_path / "model_cards").symlink_to(ROOT / "model_cards")
    (tmp_path / "lessons").mkdir()
    book = nbformat.reads((ROOT / "lessons" / f"{name}.ipynb").read_text(encoding="utf-8"), as_version=4)
    nbformat.validate(json.loads(nbformat.writes(book)))
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path / "lessons")}}).execute()
    kinds = [kind for cell in book.cells for each in cell.get("outputs", []) for kind in each.get("data", {})]
    assert kinds.count("image/png") == 1
