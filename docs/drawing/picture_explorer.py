"""
Take the pictures of docs/explorer.md in a browser that is driven by playwright (the extra `browser`):

    python docs/drawing/picture_explorer.py model_cards/multi30k_raw_en_de docs
    python docs/drawing/picture_explorer.py outputs/quickstart outputs/pictures --views tour walk
    python docs/drawing/picture_explorer.py model_cards/multi30k_raw_en_de docs --run outputs/watched

Each is one view of the page about one sentence, the example of the model's card where the view needs no other.
"""

import shutil
import threading
from pathlib import Path
from urllib.parse import urlencode

import uvicorn
from PIL import Image

from vanilla_transformer_hf.common.command_line import make_parser, run
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.server import HOST, make_app
from vanilla_transformer_hf.explorer.watching import Watched
from vanilla_transformer_hf.serving import http


SIZE = {"width": 1280, "height": 800}
# Name of a picture -> what the page shows, its theme, and its height.
PICTURES = {
    "tour": ({"view": "tour", "stop": 4}, "light", 860),
    "translate": ({"view": "translate"}, "light", 1180),
    "attention": ({"view": "attention", "layer": 2, "heads": "0,1,2,3", "threshold": 0.1}, "light", 700),
    "head": ({"view": "head", "layer": 2, "row": 2}, "dark", 760),
    "walk": ({"view": "walk", "box": "decoder.0.encoder_attn"}, "light", 1030),
    "analyse": ({"view": "analyse", "method": "integrated_gradients", "steps": "512", "step": 2}, "light", 900),
    "intervene": ({"view": "intervene", "off": "cross.2,cross.3.1"}, "dark", 1000),
    "watch": ({"view": "watch", "model": "checkpoint-1200", "checkpoint": 240, "layer": 1}, "light", 1380),
    "sides": ({"view": "intervene", "model": "checkpoint-120", "model_b": "checkpoint-1200"}, "light", 1100),
    "patch": (
        {"view": "intervene", "text": "Two dogs are playing.", "other": "Two men are playing.", "patch_map": "layers"},
        "light",
        1040,
    ),
}
# What is at the top of a picture that does not begin with the page.
STARTS = {"patch": "#other", "sides": "#sides-attention"}
OF_A_RUN = ("watch", "sides")


def main() -> None:
    parser = make_parser("picture_explorer.py", __doc__)
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("folder", help="folder to write the pictures to, as explorer_NAME.png")
    parser.add_argument("--views", nargs="+", choices=PICTURES, help="default: all, those of a run with --run alone")
    parser.add_argument("--run", help="folder of a training, for the pictures of one")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright  # of an extra that --help does without

    listening = http.bind(HOST, 0)
    explorer = Explorer.open([arguments.model])
    if arguments.run:
        explorer.watched = Watched(explorer, arguments.run)
        explorer.watched.look()
    texts = {one["name"]: one["example"] for one in explorer.answer("models", {})}
    server = uvicorn.Server(uvicorn.Config(make_app(explorer), log_level="warning"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in arguments.views or [name for name in PICTURES if arguments.run or name not in OF_A_RUN]:
            state, theme, height = PICTURES[name]
            text = [*texts.values()][-1 if name in OF_A_RUN else 0]
            page = browser.new_page(viewport={**SIZE, "height": height}, color_scheme=theme)
            address = f"{http.address_of(listening)}/#{urlencode({'text': text, **state})}"
            page.goto(address)
            page.wait_for_selector("main[aria-busy=false]")
            page.wait_for_timeout(500)  # canvases are drawn after the page
            if name in STARTS:
                page.evaluate(f"document.querySelector('{STARTS[name]}').closest('section').scrollIntoView()")
                page.wait_for_timeout(200)
            path = Path(arguments.folder) / f"explorer_{name}.png"
            page.screenshot(path=path)
            Image.open(path).convert("RGB").quantize(255).save(path, optimize=True)  # a third of the bytes
            page.close()
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    run(main)
