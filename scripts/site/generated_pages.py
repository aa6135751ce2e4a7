"""
The generated pages of the documentation site, as a hook of MkDocs (see mkdocs.yml): the API reference, the table of
the config's fields, the help of every command, the pages that lie outside docs/, and the files that pages link to.
"""

import contextlib
import io
import json
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import vanilla_transformer_hf
from vanilla_transformer_hf.commands.main import COMMANDS, PROG, main
from vanilla_transformer_hf.training.recipe import CONFIG_GROUPS, all_options


ROOT = Path(__file__).resolve().parents[2]
# Page of the API reference -> its title and its public names, those with points from their modules. `api_pages` raises
# an error if one is missing.
API = {
    "translating": (
        "Translating",
        (
            "Translator",
            "Translation",
            "ConstrainedText",
            "MinimumRisk",
            "TextScore",
            "Alignment",
            "TranslationPipeline",
        ),
    ),
    "transformer": (
        "The Transformer",
        (
            "VanillaTransformerConfig",
            "PRESETS",
            "VanillaTransformerTokenizer",
            "VanillaTransformerForConditionalGeneration",
            "VanillaTransformerModel",
            "VanillaTransformerPreTrainedModel",
            "Int8Config",
        ),
    ),
    "single_stacks": (
        "One stack alone",
        (
            "VanillaTransformerEncoderModel",
            "VanillaTransformerForMaskedLM",
            "VanillaTransformerForSequenceClassification",
            "VanillaTransformerForTokenClassification",
            "VanillaTransformerDecoderModel",
            "VanillaTransformerForCausalLM",
        ),
    ),
    "beyond_text": (
        "Speech and images",
        (
            "VanillaTransformerForSpeechSeq2Seq",
            "VanillaTransformerForImageTextToText",
            "VanillaTransformerFeatureExtractor",
        ),
    ),
    "predecessors": (
        "LSTM and GRU models",
        ("RecurrentSeq2SeqConfig", "RecurrentSeq2SeqForConditionalGeneration", "RecurrentSeq2SeqModel"),
    ),
    "training": (
        "Training and scores",
        (
            "training.trainer.translation.TranslationTrainer",
            "evaluation.scores.score_translations",
            "evaluation.scores.Scores",
        ),
    ),
    "serving": (
        "Servers and the explorer",
        (
            "serving.application.create_application",
            "serving.application.ServedModel",
            "serving.batcher.Batcher",
            "explorer.explorer.Explorer",
            "explore",
        ),
    ),
}
# Pages that lie in the root of the repository.
FROM_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")
# Commands that have commands of their own, or a longer help.
MORE_HELP = {
    "train": (["--help-all"],),
    "export": (["ctranslate2", "--help"], ["onnx", "--help"], ["torch_export", "--help"]),
}
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation, where their names in capitals stand."""
    pages = {"API_PAGES": api_pages(), "COMMAND_PAGES": command_pages()}
    for section in config.nav or []:
        if isinstance(section, dict) and "Reference" in section:
            for entry in section["Reference"]:
                for title, place in entry.items() if isinstance(entry, dict) else ():
                    if place in pages:
                        entry[title] = list(pages[place])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; none of them is written into the repository."""
    linked = {path: linked_file(path) for path in linked_files(files)}
    pages = {**api_pages(), "reference/config.md": config_page(), **command_pages(), **linked}
    pages |= {name: (ROOT / name).read_text(encoding="utf-8") for name in FROM_ROOT}
    for path, text in pages.items():
        page = File.generated(config, path, content=text)
        if path in linked:
            page.inclusion = page.inclusion.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links to files outside docs/ lead to the pages that show them; notebooks have such links, too."""
    folder = posixpath.dirname(page.file.src_uri)
    home = "docs" if page.file.src_uri not in FROM_ROOT else ""
    is_notebook = page.file.src_uri.endswith(".ipynb.md")
    origin = folder.removeprefix("source/") if is_notebook else posixpath.join(home, folder)

    def replace(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(origin, match[1]))
        if target.startswith("docs/"):
            place = target.removeprefix("docs/")
        elif target in FROM_ROOT:
            place = target
        else:
            place = "index.md" if target == "README.md" else f"source/{target}.md"
        return f"]({posixpath.relpath(place, folder or '.')}{match[2] or ''})"

    is_ours = page.file.generated_by is None or home == "" or is_notebook
    return LINK.sub(replace, markdown) if is_ours else markdown


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Types and links as transformers' docstrings write them, which mkdocstrings shows as they stand."""
    if page.file.src_uri.startswith("reference/api/"):
        html = re.sub(r"<code>`([^`<]+)`(?:, \*(optional)\*)?</code>", as_type, html)
        html = re.sub(r"\[(<code>\w+</code>)\]", r"\1", html)
    return html


def as_type(match: re.Match[str]) -> str:
    """A type as code, and whether it is optional."""
    return f"<code>{match[1]}</code>{', optional' if match[2] else ''}"


def linked_files(files: Files) -> Iterator[str]:
    """The files outside docs/ that pages link to, as paths of the pages that will show them."""
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    texts |= {name: (ROOT / name).read_text(encoding="utf-8") for name in FROM_ROOT}
    found = set()
    for page, text in texts.items():
        for link, _ in LINK.findall(text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
            if (
                not target.startswith("docs/")
                and target not in (*FROM_ROOT, "README.md")
                and (ROOT / target).is_file()
            ):
                found.add(f"source/{target}.md")
    yield from sorted(found)


def linked_file(path: str) -> str:
    """A page with the text of a file of the repository."""
    name = path.removeprefix("source/").removesuffix(".md")
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".ipynb"):
        return "\n\n".join(cell_text(cell) for cell in json.loads(text)["cells"]) + "\n"
    language = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash"}.get(Path(name).suffix, "text")
    return f"# {Path(name).name}\n\n`{name}` of the repository.\n\n````{language}\n{text.rstrip()}\n````\n"


def cell_text(cell: dict[str, Any]) -> str:
    """A cell of a notebook as Markdown, with what its code prints."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    printed = "".join(line for output in cell["outputs"] for line in output["text"])
    return f"```python\n{source}\n```" + (f"\n\n```text\n{printed}\n```" if printed else "")


def api_pages() -> dict[str, str]:
    """Path -> text of the API reference; mkdocstrings fills in the docstrings."""
    names = [name for _, group in API.values() for name in group]
    if missing := set(vanilla_transformer_hf.__all__) - set(names) - {"__version__"}:
        raise ValueError(f"{Path(__file__).name}: API has no page for {', '.join(sorted(missing))}; add the names.")
    return {
        f"reference/api/{page}.md": "\n\n".join(
            [f"# {title}", "\n".join(origins(group))] + [api_entry(name) for name in group]
        )
        for page, (title, group) in API.items()
    }


def origins(group: Sequence[str]) -> Iterator[str]:
    """From where the names of a page are imported, as a line, or as a list of Markdown."""
    places = [f"vanilla_transformer_hf.{name}".rpartition(".") for name in group]
    if len({module for module, _, _ in places}) == 1:
        yield f"Each is imported from `{places[0][0]}`."
    else:
        yield from (f"- `from {module} import {name}`" for module, _, name in places)


def api_entry(name: str) -> str:
    """A public name, which mkdocstrings documents from the source."""
    return f"::: vanilla_transformer_hf.{name}"


def config_page() -> str:
    """The fields of both configs as tables, by group, with their docstrings."""
    lines = [
        "# Config fields",
        "Each is an argument of `VanillaTransformerConfig` (the last group: of `RecurrentSeq2SeqConfig`), a field of "
        "recipes and an option of `vanilla-transformer train`.",
    ]
    groups = all_options()
    for title in CONFIG_GROUPS:
        rows = [
            f"| `{option.name}` | {as_cell(option.values)} | {as_text(option.about.replace('%%', '%'))} |"
            for option in groups[title]
        ]
        heading = title.removeprefix("new models: ").removeprefix("new ")
        lines += [
            f"## {heading[0].upper()}{heading[1:]}",
            "\n".join(["| field | values | |", "| --- | --- | --- |", *rows]),
        ]
    return "\n\n".join(lines) + "\n"


def as_cell(values: str) -> str:
    """The values of an option, each as code."""
    parts = values[1:-1].split(",") if values.startswith("{") and values.endswith("}") else [values]
    return ", ".join(f"`{part}`" for part in parts)


def as_text(text: str) -> str:
    """Plain text, so that Markdown and HTML take none of it for their marks."""
    return re.sub(r"([\\`*_\[\]|<>])", r"\\\1", text).replace("\\<", "&lt;").replace("\\>", "&gt;")


@cache
def command_pages() -> dict[str, str]:
    """Path -> text of the pages with the help of each command."""
    pages = {"reference/commands/index.md": f"# Commands\n\n```{{ .text .help }}\n{help_of([])}\n```\n"}
    for name, about in COMMANDS.items():
        texts = [f"# {name}", f"`{PROG} {name}`: {about}.", f"```{{ .text .help }}\n{help_of([name])}\n```"]
        for arguments in MORE_HELP.get(name, ()):
            shown = [part for part in arguments if part != "--help"]
            texts += [
                f"## {PROG} {name} {' '.join(shown)}",
                f"```{{ .text .help }}\n{help_of([name, *arguments[:-1]], arguments[-1])}\n```",
            ]
        pages[f"reference/commands/{name}.md"] = "\n\n".join(texts) + "\n"
    return pages


def help_of(arguments: list[str], option: str = "--help") -> str:
    """What a command answers to --help, without the folder of this machine."""
    shown = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "88"  # argparse reads it
    try:
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            main([*arguments, option])
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
    return shown.getvalue().replace(f"{ROOT}{os.sep}", "").rstrip()
