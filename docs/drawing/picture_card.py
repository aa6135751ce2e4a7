"""
Take the picture of a model card as the Hub shows it, in a browser that is driven by playwright (the extra `browser`):

    python docs/drawing/picture_card.py model_cards/multi30k_tiny_r_drop.md docs/model_card.png
"""

import shutil
from html import escape
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from PIL import Image

from vanilla_transformer_hf.common.command_line import make_parser, run


SIZE = {"width": 1340, "height": 1640}
PAGE = """<!doctype html><meta charset="utf-8"><base href="{base}/"><style>
body {{ margin: 0; font: 16px/1.55 system-ui, sans-serif; color: #1f2937 }}
header {{ padding: 14px 36px; background: #f9fafb; border-bottom: 1px solid #e5e7eb }}
header b {{ font: 600 20px monospace; display: block; margin-bottom: 8px }}
header span {{ border: 1px solid #d1d5db; border-radius: 9px; padding: 2px 10px; margin-right: 6px; font-size: 14px }}
main {{ display: grid; grid-template-columns: 860px 360px; gap: 44px; padding: 18px 36px }}
h1, h2 {{ border-bottom: 1px solid #e5e7eb; padding-bottom: 12px }}
table {{ border-collapse: collapse; font-size: 14px }} th, td {{ border: 1px solid #e5e7eb; padding: 6px 12px }}
pre {{ background: #f9fafb; border: 1px solid #e5e7eb; border-radius: 8px; padding: 12px; font-size: 13px }}
img {{ max-width: 100% }}</style>
<header><b>{name}</b>{tags}</header><main><article>{text}</article><aside><h4>Evaluation results</h4>
<table>{results}</table></aside></main>"""


def page_of(path: Path) -> str:
    """A card as a page of HTML: name and tags above, its text, and its metadata of scores beside it."""
    from markdown_it import MarkdownIt

    card = ModelCard.load(path)
    data: Any = card.data
    tags = [data.pipeline_tag, data.library_name, *data.language, *data.tags]
    rows = [
        (each.metric_name, each.dataset_split or each.dataset_name, each.metric_value) for each in data.eval_results
    ]
    return PAGE.format(
        base=path.resolve().parent.as_uri(),
        name=escape(path.stem),
        tags="".join(f"<span>{escape(tag)}</span>" for tag in tags),
        text=MarkdownIt("commonmark").enable("table").render(card.text),
        results="".join(f"<tr><td>{name}<td>{escape(where)}<td>{value}" for name, where, value in rows),
    )


def main() -> None:
    parser = make_parser("picture_card.py", __doc__)
    parser.add_argument("card", type=Path, help="file of a model card")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright  # of an extra that --help does without

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        beside = arguments.card.resolve().with_suffix(".html")  # a page of a file may show pictures of files
        try:
            beside.write_text(page_of(arguments.card), encoding="utf-8")
            page.goto(beside.as_uri(), wait_until="load")
            page.screenshot(path=arguments.picture)
        finally:
            beside.unlink(missing_ok=True)
        browser.close()
    Image.open(arguments.picture).convert("RGB").quantize(96).save(arguments.picture, optimize=True)


if __name__ == "__main__":
    run(main)
