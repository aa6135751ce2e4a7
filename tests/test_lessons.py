"""
The notebooks of lessons/ and the exercises of docs/lessons.md: a notebook runs from start to end in a fresh folder
without a network and prints what it shows; the Chinese ones are the same with other words.
"""

import json
import re
import socket

import matplotlib.pyplot as plt
import pytest
import torch
from hub_server import ROOT
from printed import same_print


PAGES = {
    language: (ROOT / "docs" / f"lessons{end}.md").read_text(encoding="utf-8")
    for language, end in (("en", ""), ("zh", "_zh"))
}
ADDRESS = re.compile(r"http://127\.0\.0\.1:8000/#([^)]+)\)")
HAN = re.compile(r"[\u4e00-\u9fff]")


def cells_of(name):
    return json.loads((ROOT / "lessons" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def code_of(cells):
    """What of the code has to be equal in both languages: source, output, tolerance."""
    return [
        {key: cell[key] for key in ("source", "outputs", "metadata")} for cell in cells if cell["cell_type"] == "code"
    ]


@pytest.fixture
def fresh_folder(tmp_path, monkeypatch):
    """The folder of a notebook, beside the model, without a network and without windows for pictures."""
    (tmp_path / "model_cards").symlink_to(ROOT / "model_cards")
    (tmp_path / "lessons").mkdir()
    monkeypatch.chdir(tmp_path / "lessons")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a notebook reaches for the network"))
    plt.switch_backend("Agg")
    yield tmp_path / "lessons"
    plt.close("all")


@pytest.mark.parametrize("name", ["attention", pytest.param("training", marks=pytest.mark.slow)])
def test_a_notebook_prints_and_draws_what_it_shows(name, fresh_folder, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(plt, "show", lambda: drawn.append(len(plt.gcf().axes)))
    threads, names = torch.get_num_threads(), {}
    try:
        for cell in cells_of(name):
            source = "".join(cell["source"])
            if cell["cell_type"] != "code":
                continue
            exec(compile(source, cell["id"], "exec"), names)
            assert {(each["output_type"], each.get("name")) for each in cell["outputs"]} <= {("stream", "stdout")}
            shown = "".join("".join(each["text"]) for each in cell["outputs"])
            same_print(capsys.readouterr().out, shown, cell["metadata"].get("tolerance", 1.01))
            assert bool(drawn) == ("plt.show()" in source), cell["id"]
            assert all(drawn), "a picture without panels"
            drawn.clear()
    finally:
        torch.set_num_threads(threads)
    assert [*fresh_folder.iterdir()] == []


@pytest.mark.parametrize("name", ["attention", "training"])
def test_the_chinese_notebook_has_the_code_of_the_english_one(name):
    ours, theirs = cells_of(name), cells_of(f"{name}_zh")
    assert code_of(ours) == code_of(theirs)
    kinds = [[cell["cell_type"] for cell in cells] for cells in (ours, theirs)]
    assert kinds[0] == kinds[1]
    for one, other in zip(ours, theirs, strict=True):
        if one["cell_type"] == "markdown":
            assert not HAN.search("".join(one["source"])) and HAN.search("".join(other["source"]))


@pytest.mark.parametrize("name", ["attention", "training", "attention_zh", "training_zh"])
def test_links_of_a_notebook_lead_somewhere(name):
    links = re.findall(r"\]\(([^)#]+)", "".join("".join(cell["source"]) for cell in cells_of(name)))
    links = [link for link in links if link.endswith((".md", ".ipynb"))]
    assert links and all((ROOT / "lessons" / link).is_file() for link in links), links


def test_there_are_ten_exercises_with_the_same_addresses_and_solutions_in_both_languages():
    english, chinese = PAGES["en"], PAGES["zh"]
    addresses = ADDRESS.findall(english)
    assert len({*addresses}) == 10
    assert ADDRESS.findall(chinese) == [f"{address}&language=zh" for address in addresses]
    blocks = [re.findall(r"^```.*?^```$", page, re.MULTILINE | re.DOTALL) for page in (english, chinese)]
    assert blocks[0] == blocks[1]
    for page, name in ((english, "Solution"), (chinese, "答案")):
        numbers = re.findall(r"^### (\d+)\. ", page, re.MULTILINE)
        assert numbers == [str(number) for number in range(1, 11)]
        assert page.count(f"<summary>{name}</summary>") == 10 and page.count("</details>") == 10


def test_the_chinese_exercises_say_the_numbers_of_the_english_ones():
    found = [
        re.findall(r"\d+\.\d+", re.sub(r"\(http[^)]*\)", "", "".join(page.split("```")[::2])))
        for page in PAGES.values()
    ]
    assert {*found[0]} == {*found[1]}


@pytest.mark.parametrize("language", PAGES)
def test_the_plan_takes_90_minutes_and_every_exercise_stands_in_it(language):
    page = PAGES[language]
    rows = re.findall(r"^\| (\d+) \|(.*)$", page, re.MULTILINE)
    assert sum(int(minutes) for minutes, _ in rows) == 90
    asked = [
        int(number)
        for _, row in rows
        for number in re.findall(r"\d+", " ".join(re.findall(r"(?:exercise|练习) ([\d、]+)", row)))
    ]
    assert sorted(asked) == [*range(1, 11)]


def test_addresses_name_fields_of_the_page():
    state = (ROOT / "vanilla_transformer_hf" / "explorer" / "page" / "state.js").read_text(encoding="utf-8")
    fields = {*re.findall(r"^  (\w+): \[", state.partition("const FIELDS = {")[2].partition("\n};")[0], re.MULTILINE)}
    for page in PAGES.values():
        for address in ADDRESS.findall(page):
            assert {part.partition("=")[0] for part in address.split("&")} <= fields, address
