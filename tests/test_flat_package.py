"""
A folder as the flat package wrote it, before its files moved into rooms, with the code it carried
(tests/data/flat_package): it opens with this package, with its own code, and can be published.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from travelling_code import CODE

from vanilla_transformer_hf.publishing import remote_code
from vanilla_transformer_hf.publishing.upload_plan import plan_upload


ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "data" / "flat_package"

# Run in a fresh process: the argument says whether the package is hidden from it.
OPEN = """
import json, sys
import torch
hidden = sys.argv[2] == "hidden"
if hidden:
    sys.modules["vanilla_transformer_hf"] = None
else:
    import vanilla_transformer_hf
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

trust = {"trust_remote_code": True} if hidden else {}
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], **trust)
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], **trust)
assert ("transformers_modules" in type(model).__module__) == hidden, type(model)
batch = tokenizer(["two six one", "five"], return_tensors="pt", padding=True)
with torch.no_grad():
    logits = model(**batch, decoder_input_ids=torch.tensor([[0, 5], [0, 6]])).logits
print(json.dumps({
    "ids": model.generate(**batch).tolist(),
    "beams": model.generate(**batch, num_beams=4).tolist(),
    "logits": logits[:, -1, :5].tolist(),
}))
"""


@pytest.mark.parametrize("package", ["installed", "hidden"])
def test_it_opens_and_generates_what_it_did(package, tmp_path):
    expected = json.loads((FOLDER / "expected.json").read_text())
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OPEN, str(FOLDER), package]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["ids"], found["beams"]) == (expected["ids"], expected["beams"])
    assert found["logits"] == [pytest.approx(row, abs=1e-5) for row in expected["logits"]]


def test_it_is_published_with_the_code_it_carries():
    sources = {file.name: file.source for file in plan_upload(FOLDER, "someone/numbers").files}
    code = {path.name: path.read_bytes() for path in FOLDER.glob("*.py")}
    assert code and {name: sources[name] for name in sources if name.endswith(".py")} == code
    weights = sources["model.safetensors"]
    assert isinstance(weights, Path) and weights.read_bytes() == (FOLDER / "model.safetensors").read_bytes()


def test_what_travels_lies_in_one_folder_and_is_found_by_its_imports():
    named = {"modeling_vanilla_transformer", "tokenization_vanilla_transformer"}
    code, problems = remote_code.find_code(FOLDER, named)
    assert problems == [] and {path.parent for path in code.values()} == {FOLDER}
    code, problems = remote_code.find_code(Path("nowhere"), named)
    assert (code.keys(), problems) == (CODE, [])
