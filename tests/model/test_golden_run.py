"""Names of weights, logits, losses, gradients and translations of every kind of model are those of the record."""

import json
import os
import subprocess
import sys

import pytest
import torch
from cpu_bits import computed_bits
from golden_run import RECORD, batch_of, digest, measure, model_of, rows


GOLDEN = json.loads(RECORD.read_text())
SAME_BITS = computed_bits() == GOLDEN["computed_bits"]


@pytest.fixture(autouse=True)
def one_thread():
    """Sums of several threads have other bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def differences(found, expected):
    """What is not as recorded: bits where a CPU computes the same, elsewhere sums of values; "int8" only there."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if not isinstance(value, dict):
            is_compared = SAME_BITS or not name.startswith("int8")
            if is_compared and found[name] != value:
                yield name
        elif SAME_BITS:
            if found[name]["bits"] != value["bits"]:
                yield name
        else:
            # Gradients are float32 sums over a batch and back through all layers, in an order that a CPU chooses.
            size = (1e-3 if name.startswith("gradients") else 1e-4) * value["norm"]
            pairs = zip([*found[name]["sums"], found[name]["norm"]], [*value["sums"], value["norm"]], strict=True)
            if any(abs(one - other) > size for one, other in pairs):
                yield name


# The norms of the other rows are where the equations of these have none.
FAST = [row for row in rows() if not row.endswith("-pre")] + ["plain-pre", "causal-pre", "masked-pre"]


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=() if row in FAST else pytest.mark.slow) for row in GOLDEN["rows"]]
)
def test_every_kind_computes_what_it_did(row):
    assert list(differences(measure(row), GOLDEN["rows"][row])) == []


def test_all_kinds_are_recorded():
    assert list(rows()) == list(GOLDEN["rows"])


# Of every file of code that may travel.
FOLDERS = ["plain", "tied", "rotary", "shaw", "gated_alibi", "window_global", "lsh", "performer", "linformer"]
FOLDERS += ["pooling", "recurrent", "synthesizers", "additive", "swiglu", "speech", "image", "causal", "masked"]
ALONE = """
import json, sys
from pathlib import Path
sys.modules["vanilla_transformer_hf"] = None
import torch, transformers
torch.set_num_threads(1)
for folder in sorted(Path(sys.argv[1]).iterdir()):
    entries = json.loads((folder / "config.json").read_text())["auto_map"]
    auto = next(name for name in entries if name not in ("AutoConfig", "AutoModel"))
    model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()
    batch = torch.load(folder / "batch.pt", weights_only=True)
    with torch.no_grad():
        torch.save(model(**batch).logits, folder / "logits.pt")
    if hasattr(model, "generate"):
        inputs = {name: each for name, each in batch.items() if "decoder" not in name}
        torch.save(model.generate(**inputs, num_beams=3, max_new_tokens=4), folder / "beams.pt")
"""


@pytest.mark.slow
def test_folders_compute_it_with_their_own_code(tmp_path):
    folders = tmp_path / "folders"
    for row in FOLDERS:
        model = model_of(row)
        model.save_pretrained(folders / row)
        torch.save(batch_of(model), folders / row / "batch.pt")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ALONE, str(folders)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    for row in FOLDERS:
        model, folder = model_of(row), folders / row
        with torch.no_grad():
            expected = model(**batch_of(model)).logits
        assert digest(torch.load(folder / "logits.pt")) == digest(expected), row
        if hasattr(model, "generate"):
            inputs = {name: each for name, each in batch_of(model).items() if "decoder" not in name}
            beams = model.generate(**inputs, num_beams=3, max_new_tokens=4)
            assert torch.equal(torch.load(folder / "beams.pt"), beams), row
