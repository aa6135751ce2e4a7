"""A model pushed to a Hub and opened from there by a stranger, with the package and without it."""

import json
import subprocess
import sys

import pytest
from hub_server import Hub

from vanilla_transformer_hf import VanillaTransformerTokenizer


REPOSITORY = "someone/numbers"
TEXTS = ["one two three", "four five six"]

PUSH = """
import sys
import vanilla_transformer_hf
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
folder, repository = sys.argv[1:]
AutoModelForSeq2SeqLM.from_pretrained(folder).push_to_hub(repository)
AutoTokenizer.from_pretrained(folder).push_to_hub(repository)
"""

# Writes what it opened to a folder, and prints the ids that the model generates.
OPEN = """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
repository, again, arguments = sys.argv[1], sys.argv[2], {"trust_remote_code": True} if hidden else {}
tokenizer = AutoTokenizer.from_pretrained(repository, **arguments)
model = AutoModelForSeq2SeqLM.from_pretrained(repository, **arguments)
assert ("transformers_modules" in type(model).__module__) == hidden, type(model)
tokenizer.save_pretrained(again)
model.save_pretrained(again)
batch = tokenizer(["two six one", "five"], return_tensors="pt", padding=True)
print(model.generate(**batch, max_new_tokens=8, do_sample=False).tolist())
"""
WITH_PACKAGE = "import sys, vanilla_transformer_hf; hidden = False" + OPEN
WITHOUT_PACKAGE = "import sys; sys.modules['vanilla_transformer_hf'] = None; hidden = True" + OPEN


def run_python(code, *arguments, environment) -> str:
    """Standard output of a fresh interpreter that runs `code`."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A model and a tokenizer as training leaves them, and the ids that the model generates."""
    tokenizer = VanillaTransformerTokenizer.train(TEXTS, vocab_size=300, show_progress=False)
    model = tiny_model(vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    batch = tokenizer(["two six one", "five"], return_tensors="pt", padding=True)
    return tmp_path / "model", model.generate(**batch, max_new_tokens=8, do_sample=False).tolist()


def test_a_pushed_model_opens_with_and_without_the_package(folder, tmp_path):
    folder, ids = folder
    local = {path.name: path.read_bytes() for path in folder.iterdir()}
    with Hub() as hub:
        run_python(PUSH, folder, REPOSITORY, environment=hub.environment(tmp_path / "author"))
        published = hub.repositories[REPOSITORY].files()
        assert published.keys() == {*local, "README.md"}, "each file of the saved folder, and a card"
        assert {name: published[name] for name in local} == local

        for number, code in enumerate((WITHOUT_PACKAGE, WITH_PACKAGE)):
            again = tmp_path / f"again{number}"
            out = run_python(code, REPOSITORY, again, environment=hub.environment(tmp_path / f"reader{number}"))
            assert json.loads(out.splitlines()[-1]) == ids
            for name in ("model.safetensors", "tokenizer.json"):
                assert (again / name).read_bytes() == local[name], name
    assert sum("/commit/" in request for request in hub.requests) == 2, "one whole commit each"
