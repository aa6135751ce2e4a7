"""The documentation site: every page is in its navigation, every public name and command has a page, it builds."""

import json
import re
import subprocess
import sys

import pytest
import yaml
from hub_server import ROOT

from vanilla_transformer_hf.commands.main import COMMANDS
from vanilla_transformer_hf.training.recipe import CONFIG_GROUPS, all_options


class Settings(yaml.SafeLoader):
    """YAML with MkDocs' own tags."""


Settings.add_constructor("!ENV", lambda loader, node: loader.construct_sequence(node)[-1])
SETTINGS = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Settings)


def leaves(nav):
    """The pages of a navigation."""
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from leaves(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation_once():
    pages = [*leaves(SETTINGS["nav"])]
    written = {path.name for path in (ROOT / "docs").glob("*.md")} | {"CONTRIBUTING.md", "CHANGELOG.md"}
    generated = {"API_PAGES", "COMMAND_PAGES", "reference/config.md"}
    assert len(pages) == len(set(pages)) and set(pages) == written | generated
    groups = [name for entry in SETTINGS["nav"] for name in entry]
    assert groups == ["Home", "Tutorials", "How-to", "Reference", "Explanation"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


# What users type -> the page that has to come first.
ASKED = {
    **{"install": "first_model", "which recipe": "which_recipe", "fine-tune": "which_recipe"},
    **{"vocabulary size": "which_recipe", "resume": "training", "resume training": "training"},
    **{"interrupted": "training", "early stopping": "training", "learning rate": "training"},
    **{"Seq2SeqTrainer": "stock_trainer", "optuna": "stock_trainer", "hyper-parameters": "stock_trainer"},
    **{"tensorboard": "stock_trainer", "training log": "training", "overfitting": "glossary", "fp16": "gpu"},
    **{"bf16": "gpu", "GPU": "gpu", "OOM": "gpu", "CUDA": "troubleshooting", "CUDA out of memory": "troubleshooting"},
    **{"out of memory": "troubleshooting", "batch size out of memory": "troubleshooting"},
    **{"loss nan": "troubleshooting", "BLEU 0": "troubleshooting", "custom code": "troubleshooting"},
    **{"hallucination": "troubleshooting", "slow": "troubleshooting", "csv": "preparing_data"},
    **{"dataset format": "preparing_data", "cite": "citing", "licence": "citing", "bibtex": "citing"},
    **{"windows": "deployment", "macos": "deployment", "docker": "serving", "beam size": "translating"},
    **{"length penalty": "translating", "fairseq": "coming_from", "opennmt": "coming_from", "JoeyNMT": "coming_from"},
    **{"convert marian": "conversion", "label smoothing": "claims", "glossary": "glossary", "lesson": "lessons"},
    "exercises": "lessons",
}


@pytest.fixture(scope="module")
def search(site):
    pytest.importorskip("lunr")
    from site_search import SiteSearch

    return SiteSearch(json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("query", ASKED)
def test_the_search_answers_with_the_page_that_a_user_needs(query, search):
    assert search.pages(query)[:1] == [f"{ASKED[query]}/"]


@pytest.mark.slow
def test_it_builds_without_a_dead_link_and_shows_names_fields_and_commands(site):
    import vanilla_transformer_hf

    api = "".join(path.read_text(encoding="utf-8") for path in (site / "reference" / "api").rglob("*.html"))
    for name in set(vanilla_transformer_hf.__all__) - {"__version__"}:
        assert f'id="vanilla_transformer_hf.{name}"' in api, name
    assert "Source code in" in api and str(ROOT) not in api
    config = (site / "reference" / "config" / "index.html").read_text(encoding="utf-8")
    options = all_options()
    assert {f"<code>{each.name}</code>" for title in CONFIG_GROUPS for each in options[title]} <= {*re.findall(
        r"<code>\w+</code>", config
    )}  # fmt: skip
    for name in COMMANDS:
        page = (site / "reference" / "commands" / name / "index.html").read_text(encoding="utf-8")
        assert f"usage: vanilla-transformer {name}" in page and str(ROOT) not in page
    assert str(ROOT) not in (site / "search" / "search_index.json").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_public_name_without_a_page_ends_the_build(monkeypatch):
    pytest.importorskip("mkdocs")
    import importlib.util

    spec = importlib.util.spec_from_file_location("generated_pages", ROOT / "scripts" / "site" / "generated_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    monkeypatch.setattr(pages.vanilla_transformer_hf, "__all__", ["Translator", "NewName"])
    with pytest.raises(ValueError, match="API has no page for NewName"):
        pages.api_pages()
