"""
Folders of earlier layouts with the code they carried, of one model: eight files, as the flat package wrote them
(tests/data/flat_package), and 45, as each module of model/ travelled by itself (tests/data/folder_of_45_files). They
open with this package, with their own code, can be published, and are saved again with the files of today.
"""

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from travelling_code import CODE, MODEL_CODE

from vanilla_transformer_hf.publishing import remote_code
from vanilla_transformer_hf.publishing.upload_plan import plan_upload


ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [ROOT / "tests" / "data" / name for name in ("flat_package", "folder_of_45_files")]


def generated(folder, **trust):
    """What the model in a folder generates, and the class that it is of."""
    tokenizer = AutoTokenizer.from_pretrained(folder, **trust)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, **trust)
    batch = tokenizer(["two six one", "five"], return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = model(**batch, decoder_input_ids=torch.tensor([[0, 5], [0, 6]])).logits
    return {
        "ids": model.generate(**batch).tolist(),
        "beams": model.generate(**batch, num_beams=4).tolist(),
        "logits": logits[:, -1, :5].tolist(),
        "module": type(model).__module__,
    }


# Run in a fresh process, from which the package is hidden.
OPEN = f"""
import json, sys
import torch
sys.modules["vanilla_transformer_hf"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

{inspect.getsource(generated)}
print(json.dumps([generated(folder, trust_remote_code=True) for folder in sys.argv[1:]]))
"""


def generated_alone(place):
    """What each folder's model generates with its own code."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(place), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OPEN, *map(str, FOLDERS)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("package", ["installed", "hidden"])
def test_they_open_and_generate_what_they_did(package, tmp_path):
    is_hidden = package == "hidden"
    for folder, found in zip(FOLDERS, generated_alone(tmp_path) if is_hidden else map(generated, FOLDERS)):
        expected = json.loads((folder / "expected.json").read_text())
        assert (found["ids"], found["beams"]) == (expected["ids"], expected["beams"])
        assert found["logits"] == [pytest.approx(row, abs=1e-5) for row in expected["logits"]]
        assert ("transformers_modules" in found["module"]) == is_hidden, found["module"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_is_published_with_the_code_it_carries(folder):
    sources = {file.name: file.source for file in plan_upload(folder, "someone/numbers").files}
    code = {path.name: path.read_bytes() for path in folder.glob("*.py")}
    assert code and {name: sources[name] for name in sources if name.endswith(".py")} == code
    weights = sources["model.safetensors"]
    assert isinstance(weights, Path) and weights.read_bytes() == (folder / "model.safetensors").read_bytes()


def test_what_travels_lies_in_one_folder_and_is_found_by_its_imports():
    named = {"modeling_vanilla_transformer", "tokenization_vanilla_transformer"}
    for folder in FOLDERS:
        code, problems = remote_code.find_code(folder, named)
        assert problems == [] and code == {path.name: path.read_bytes() for path in folder.glob("*.py")}
    code, problems = remote_code.find_code(Path("nowhere"), named)
    assert (code.keys(), problems) == (CODE, [])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_saving_into_it_leaves_the_files_of_today_and_those_of_others(folder, tmp_path):
    place = tmp_path / "folder"
    shutil.copytree(folder, place)
    others = {"my_layers.py", "my_norms_vanilla_transformer.py", "notes.txt"}
    for name in others:
        (place / name).write_text("# mine\n")
    tokenizer = AutoTokenizer.from_pretrained(place)
    tokenizer.save_pretrained(place)
    # The model's own code is still needed; what a tokenizer writes is one file.
    assert {path.name for path in place.iterdir()} == {path.name for path in folder.iterdir()} | others
    AutoModelForSeq2SeqLM.from_pretrained(place).save_pretrained(place)
    assert {path.name for path in place.glob("*.py")} == CODE | others - {"notes.txt"}
    code, problems = remote_code.find_code(place, {"modeling_vanilla_transformer"})
    assert problems == [] and code.keys() == MODEL_CODE
