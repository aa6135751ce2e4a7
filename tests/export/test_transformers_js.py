"""The folder for transformers.js: in ONNX Runtime, and, where Node and the library are, in JavaScript."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.export import ExportError
from vanilla_transformer_hf.export.export import export_for


onnx = pytest.importorskip("onnx", reason="pip install '.[export]'")
engine = pytest.importorskip("vanilla_transformer_hf.export.onnx")

ROOT = Path(__file__).parents[2]
# Where `make test-browser` installs it.
LIBRARY = Path(os.environ.get("TRANSFORMERS_JS", ROOT / "outputs" / "node")) / "node_modules" / "@huggingface"
MODULE = LIBRARY / "transformers" / "dist" / "transformers.node.mjs"
MODEL = ROOT / "model_cards" / "multi30k_raw_en_de"
with_library = pytest.mark.skipif(
    not (shutil.which("node") and MODULE.is_file()), reason="no Node, or no transformers.js in it"
)
TEXTS = [
    "A brown dog is running through the snow.",
    "A man in a red shirt is riding a bicycle down the street.",
    "Three young men are playing soccer on a green field.",
    "A little girl climbing into a wooden playhouse.",
    "Two women — “friends” — are sitting at a café table.",
]


@pytest.mark.slow
def test_both_steps_in_one_graph_search_as_the_model(save_model, tmp_path, capsys):
    model, folder = save_model(decoder_layers=2, d_k=5, d_v=12, decoder_attention_heads=2)
    model.generation_config.num_beams = 3
    model.generation_config.save_pretrained(folder)
    main(["export", "onnx", str(folder), str(tmp_path / "out"), "--for", "transformers.js"])
    printed = capsys.readouterr().out
    assert "note: num_beams=3 is left out: transformers.js searches greedily" in printed
    assert re.search(r"note: weights in uint8 change logits by \S+ on average", printed)
    there = engine.open_model(tmp_path / "out")
    source = torch.randint(3, 99, (4, 9))
    mask = torch.ones_like(source)
    mask[1, 5:] = 0
    for beams in (1, 4):
        options = {"attention_mask": mask, "num_beams": beams, "max_new_tokens": 12}
        assert torch.equal(there.generate(source, **options), model.generate(source, **options))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["SHA256SUMS", "config.json", "generation_config.json", "onnx", *names[4:]]
    assert all(name.startswith("tokenizer") and name.endswith(".json") for name in names[4:])
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out" / "onnx").iterdir()}
    assert len(sizes) == 4 and sizes["decoder_model_merged_quantized.onnx"] < sizes["decoder_model_merged.onnx"]
    for path in (tmp_path / "out" / "onnx").iterdir():
        onnx.checker.check_model(str(path), full_check=True)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "marian"


def test_what_the_library_cannot_read_is_refused(save_model, tmp_path):
    _, folder = save_model(source_vocab_size=70, embedding_sharing="decoder")
    with pytest.raises(ExportError, match=r"a vocabulary for each side: transformers\.js reads one"):
        export_for("onnx", folder, tmp_path / "out", layout="transformers.js")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
def test_push_puts_it_beside_the_weights(save_model, tmp_path, hub, capsys):
    _, folder = save_model()
    main(["push", str(folder), "someone/numbers", "--onnx", "--dry-run"])
    assert "with onnx/, exported for transformers.js when it is published" in capsys.readouterr().out
    assert not hub.repositories
    main(["push", str(folder), "someone/numbers", "--onnx"])
    files = hub.repositories["someone/numbers"].files()
    assert json.loads(files["config.json"])["model_type"] == "vanilla_transformer"
    assert {name for name in files if name.startswith("onnx/")} == {
        f"onnx/{name}{kind}.onnx" for name in ("encoder_model", "decoder_model_merged") for kind in ("", "_quantized")
    }
    onnx.checker.check_model(onnx.load_model_from_string(files["onnx/decoder_model_merged.onnx"]))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The shipped model in the folder of a page."""
    folder = tmp_path_factory.mktemp("page") / "model"
    export_for("onnx", MODEL, folder, layout="transformers.js")
    return folder


def run_node(name, folder):
    """What a program prints."""
    done = subprocess.run(["node", name], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.browser
@with_library
def test_node_translates_as_we_do(exported, tmp_path):
    """By the library's own pipeline, greedily, and by the example page's beams; quantized, as our engine does."""
    page = (ROOT / "examples" / "browser.html").read_text(encoding="utf-8")
    (script,) = re.findall(r'<script type="module">\n(.*?)</script>', page, flags=re.DOTALL)
    (address,) = re.findall(r'from "(https://[^"]+)"', script)
    version = json.loads((LIBRARY / "transformers" / "package.json").read_text())["version"]
    assert address.endswith(f"/transformers@{version}"), "the page's version is the tested one"
    published = shutil.copytree(MODEL, exported.parent / "published")  # as `push --onnx` leaves it
    shutil.copytree(exported / "onnx", published / "onnx")
    (tmp_path / "page.mjs").write_text(script.replace(address, MODULE.as_uri()), encoding="utf-8")
    (tmp_path / "test.mjs").write_text(
        f"""
import {{ AutoConfig, pipeline, env }} from "{MODULE.as_uri()}";
import {{ open, translate }} from "./page.mjs";
env.allowRemoteModels = false;
env.localModelPath = {json.dumps(str(exported.parent) + "/")};
const found = {{}};
for (const dtype of ["fp32", "q8"]) {{
  const translator = await pipeline("translation", "model", {{ dtype }});
  const config = {{ ...(await AutoConfig.from_pretrained("published")), model_type: "marian" }};
  const renamed = await pipeline("translation", "published", {{ dtype, config }});
  const opened = await open("published", {{ dtype }});
  found[dtype] = {{ pipeline: [], renamed: [], 1: [], 4: [] }};
  for (const text of {json.dumps(TEXTS)}) {{
    found[dtype].pipeline.push((await translator(text))[0].translation_text);
    found[dtype].renamed.push((await renamed(text, {{ num_beams: 1 }}))[0].translation_text);
    for (const beams of [1, 4]) found[dtype][beams].push(await translate(opened, text, beams));
  }}
}}
console.log(JSON.stringify(found));
""",
        encoding="utf-8",
    )
    found = json.loads(run_node("test.mjs", tmp_path).splitlines()[-1])
    translator = Translator.from_pretrained(MODEL, "cpu", matmul_backend="default")  # of float32 on every CPU
    for beams in (1, 4):
        assert found["fp32"][str(beams)] == [str(text) for text in translator.translate(TEXTS, num_beams=beams)]
        quantized = engine.open_model(exported, quantized=True)
        inputs = [translator.tokenizer(text, return_tensors="pt") for text in TEXTS]
        ids = [quantized.generate(**each, num_beams=beams)[0] for each in inputs]
        assert found["q8"][str(beams)] == translator.tokenizer.batch_decode(ids, skip_special_tokens=True)
    for kind in found.values():
        assert kind["pipeline"] == kind["renamed"] == kind["1"]

    # The blocks of the page, with the model that is here.
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```js\n(.*?)```", page, flags=re.DOTALL)
    block = first.replace("@huggingface/transformers", MODULE.as_uri()).replace('"outputs/"', f'"{exported.parent}/"')
    second = second.replace("your-name/your-model", "published")
    (tmp_path / "block.mjs").write_text(f"{block}{{\n{second}}}\n", encoding="utf-8")
    assert "translation_text" in run_node("block.mjs", tmp_path)


@pytest.mark.browser
@with_library
def test_the_example_page_translates_in_chromium(exported, browser):
    """All that it would download is here; by default its weights have 8 bits."""

    def answer(route):
        path = route.request.url.split("/", 3)[3]
        if path.startswith("npm/@huggingface/"):
            file = LIBRARY / "transformers" / "dist" / "transformers.min.js"  # its package.json names it
        elif path.startswith("npm/"):
            file = LIBRARY.parent / re.sub("@[^/]+", "", path.removeprefix("npm/"))
        else:
            file = exported.parent / path if path.startswith("model/") else ROOT / "examples" / path
        if file.is_file():
            route.fulfill(path=file, headers={"Access-Control-Allow-Origin": "*"})
        else:
            route.fulfill(status=404)

    page = browser.new_page()
    page.route("**/*", answer)
    page.goto("http://localhost/browser.html")
    page.get_by_text("Ready: nothing that you enter leaves this page.").wait_for()
    page.get_by_label("Text").fill(TEXTS[0])
    page.get_by_role("button", name="Translate").click()
    page.get_by_text("Ein brauner Hund rennt durch den Schnee.").wait_for()
    page.close()
