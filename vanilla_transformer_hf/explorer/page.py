"""
The files of the page, and the page as one file that opens without a server.

In that file the modules are data: URLs in an import map, and the answers to the page's questions are a block of JSON.
"""

import base64
import json
import math
import re
from contextlib import suppress
from importlib import resources
from typing import Any
from urllib.parse import urlencode

from .explorer import Explorer
from .requests import RequestError


MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
FOLDER = resources.files(__package__) / "page"
# Maximum count of numbers of heads, or of tensors, in a file.
MOST_NUMBERS = 4_000_000


def page_names() -> list[str]:
    """Names of the files."""
    return sorted(one.name for one in FOLDER.iterdir() if one.name.rsplit(".", 1)[-1] in MEDIA_TYPES)


def page_file(name: str) -> str | None:
    """A file of the page, None if no file has this name."""
    return (FOLDER / name).read_text(encoding="utf-8") if name in page_names() else None


def offline_page(answers: dict[str, Any] | None = None, state: str = "", theme: str | None = None) -> str:
    """The page as one file, with answers by their questions, written as the page writes them."""
    # `state` is that of the page's URL fragment; no `theme` is the reader's.
    addresses = {}
    for name in page_names():
        if name.endswith(".js"):
            # A module at a data: URL cannot import by relative paths, only by names of the import map.
            text = re.sub(r'from "\./', 'from "explorer/', str(page_file(name)))
            encoded = base64.b64encode(text.encode()).decode()
            addresses[f"explorer/{name}"] = f"data:text/javascript;base64,{encoded}"
    kept = json.dumps({"state": state, "answers": answers or {}}, ensure_ascii=False, separators=(",", ":"))
    kept = kept.replace("<", "\\u003c")  # so that it may stand inside a script element
    parts = {
        '<link rel="stylesheet" href="/page/style.css" />': f"<style>{page_file('style.css')}</style>",
        '<script type="module" src="/page/main.js"></script>': (
            f'<script type="importmap">{json.dumps({"imports": addresses})}</script>\n'
            f'<script id="answers" type="application/json">{kept}</script>\n'
            '<script type="module">import "explorer/main.js";</script>'
        ),
        '<html lang="en">': f'<html lang="en" data-theme="{theme}">' if theme else '<html lang="en">',
    }
    html = str(page_file("index.html"))
    for element, instead in parts.items():
        if element not in html:
            raise AssertionError(f"index.html has no {element}")  # its files would be missing
        html = html.replace(element, instead)
    return html


def key_of(question: str, request: dict[str, Any]) -> str:
    """The key of a question, as the page writes it: fields in alphabetical order."""
    return f"{question} {json.dumps(request, ensure_ascii=False, sort_keys=True, separators=(',', ':'))}"


def page_of(
    explorer: Explorer,
    text: str,
    settings: dict[str, Any],
    *,
    view: str = "translate",
    theme: str | None = None,
    most_numbers: int = MOST_NUMBERS,
) -> str:
    """A file that shows the translation of a text, or of an opened file; `settings` are of `TranslateRequest`."""
    # It has all attention, heads and tensors, if these are at most so many numbers.
    answers: dict[str, Any] = {}
    settings = {
        name: (int(value) if isinstance(value, float) and value.is_integer() else value)
        for name, value in settings.items()
    }

    def ask(question: str, **request: Any) -> Any:
        answers[key_of(question, request)] = found = explorer.answer(question, request)
        return found

    models = ask("models")
    first = models[0]
    base = {"model": first["name"], "off": []}
    found = ask("translate", **base, text=text, **settings)
    pair = {**base, "text": text, "target_ids": found["hypotheses"][0]["ids"]}
    pair["target_lang"] = settings.get("target_lang", "")
    if first["reads"] != "text":
        ask("source", model=first["name"], text=text)
    for part, layers in first["layers"].items():
        with suppress(RequestError):  # a part that attends to sums of tokens is not shown
            ask("grid", **pair, part=part, size=32)
            for layer in range(layers):
                ask("attention", **pair, part=part, layer=layer)
                if part == "cross" and first["reads"] != "text":
                    ask("diagonality", **pair, layer=layer)
    ask_analysis(ask, first, pair)
    if first["is_ours"]:
        ask_all(ask, first, pair, most_numbers)
    return offline_page(answers, urlencode({"view": view, "text": text, **settings}), theme)


# Weights times the square of the output's tokens, above which integrated gradients take longer than some seconds.
MOST_INTEGRALS = 5e8


def ask_analysis(ask: Any, model: dict[str, Any], pair: dict[str, Any]) -> None:
    """Ask what Analyse shows by each method, as far as the model has it, and the neurons of each first token."""
    for method in ("left_out", "gradient_x_input", "gradient", "rollout"):
        with suppress(RequestError):
            ask("attributions", **pair, method=method)
    if model["parameters"] * len(pair["target_ids"]) ** 2 <= MOST_INTEGRALS:
        with suppress(RequestError):
            ask("attributions", **pair, method="integrated_gradients", steps=256, baseline="zero")
    with suppress(RequestError):
        ask("ranks", **pair)
    for stack in [part for part in model["layers"] if part != "cross"]:
        for layer in range(model["layers"][stack]):
            with suppress(RequestError):
                ask("neurons", **pair, stack=stack, layer=layer, piece=0, top=10)


def ask_all(ask: Any, model: dict[str, Any], pair: dict[str, Any], most_numbers: int) -> None:
    """Ask the questions that only models of this package answer."""
    boxes = ask("walk", **pair)["boxes"]
    for stack in [part for part in model["layers"] if part != "cross"]:
        ask("positions", model=pair["model"], off=pair["off"], stack=stack, length=64)
    if sum(math.prod(box["shape"]) for box in boxes) <= most_numbers:
        for box in boxes:
            ask("tensor", **pair, box=box["name"])
    side = "encoder" if "encoder" in model["layers"] else "decoder"
    for what in ("gain", "bias"):  # of the norm in the tour; RMSNorm has no bias
        with suppress(RequestError):
            ask("tensor", **pair, box=f"{side}.0.self_attn.{what}")
    heads: dict[tuple[str, int, int], None] = {}
    for number, part in enumerate(part for part in ("encoder", "decoder") if part in model["layers"]):
        with suppress(RequestError):  # its weights are not those of tokens
            found = ask("mixing", **pair, part=part)
            if number == 0:  # the tour shows these: they are asked even if all are too many
                heads |= dict.fromkeys((part, *place) for place in zip(found["layers"], found["heads"], strict=True))
    few = len(heads)
    heads |= dict.fromkeys(
        (part, layer, head)
        for part, layers in model["layers"].items()
        for layer in range(layers)
        for head in range(model["heads"][part][layer])
    )
    size = None  # numbers of the first head that can be shown
    for count, (part, layer, head) in enumerate(heads):
        if size is not None and count >= few and size * len(heads) > most_numbers:
            break
        with suppress(RequestError):  # its weights are no softmax over tokens
            found = ask("head", **pair, part=part, layer=layer, head=head)
            if size is None:
                size = sum(math.prod(one["shape"]) for one in found.values() if isinstance(one, dict))
