"""A folder as the first release wrote it, kept in tests/data/first_release: every later release opens it."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import vanilla_transformer_hf
from vanilla_transformer_hf.model import configuration_vanilla_transformer
from vanilla_transformer_hf.model.config import release


ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "data" / "first_release"


def test_it_opens_and_generates_what_it_did():
    expected = json.loads((FOLDER / "expected.json").read_text())
    tokenizer, model = AutoTokenizer.from_pretrained(FOLDER), AutoModelForSeq2SeqLM.from_pretrained(FOLDER)
    batch = tokenizer(["two six one", "five"], return_tensors="pt", padding=True)
    assert model.generate(**batch).tolist() == expected["ids"]
    with torch.no_grad():
        logits = model(**batch, decoder_input_ids=torch.tensor([[0, 5], [0, 6]])).logits
    assert logits[:, -1, :5].tolist() == [pytest.approx(row, abs=1e-5) for row in expected["logits"]]


def test_saved_again_it_is_complete(tmp_path):
    before = json.loads((FOLDER / "config.json").read_text())
    AutoModelForSeq2SeqLM.from_pretrained(FOLDER).save_pretrained(tmp_path)
    after = json.loads((tmp_path / "config.json").read_text())
    assert after.pop("vanilla_transformer_hf_version") == vanilla_transformer_hf.__version__
    assert after.pop("auto_map").keys() == before.pop("auto_map").keys() | {"AutoModel"}
    assert after.pop("custom_pipelines").keys() == {"translation"}
    assert after == before | {"transformers_version": transformers.__version__}
    assert (tmp_path / "model.safetensors").read_bytes() == (FOLDER / "model.safetensors").read_bytes()


def test_the_version_is_written_in_one_place():
    assert release.VERSION == vanilla_transformer_hf.__version__ == configuration_vanilla_transformer.VERSION
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": f"{release.__name__}.VERSION"}
    files = [*(ROOT / "vanilla_transformer_hf").rglob("*.py"), ROOT / "pyproject.toml", ROOT / "CITATION.cff"]
    stated = [path.name for path in files if f'"{release.VERSION}"' in path.read_text(encoding="utf-8")]
    assert stated == ["release.py"]
