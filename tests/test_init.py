"""Registration with transformers: lazily, in every order of imports, and in saved folders without the package."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import vanilla_transformer_hf
from vanilla_transformer_hf import VanillaTransformerTokenizer


PACKAGE = Path(vanilla_transformer_hf.__file__).parent
HUB_FILES = {path.stem for path in PACKAGE.glob("*_vanilla_transformer.py")}


def run_python(code: str, **environment: str) -> str:
    """Standard output of a fresh interpreter that runs `code`."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def saved_folder(tiny_model, tmp_path):
    """A model and a tokenizer as training leaves them, and the ids that the model generates for one sentence."""
    tokenizer = VanillaTransformerTokenizer.train(["one two three", "four five six"], vocab_size=300)
    model = tiny_model(vocab_size=len(tokenizer))
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ids = model.generate(**tokenizer("two six one", return_tensors="pt"), max_new_tokens=8)[0].tolist()
    return folder, ids


OPEN = """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({folder!r}, **{arguments})
model = AutoModelForSeq2SeqLM.from_pretrained({folder!r}, **{arguments})
print(model.generate(**tokenizer("two six one", return_tensors="pt"), max_new_tokens=8)[0].tolist())
"""

HIDE_PACKAGE = """
import sys
sys.modules["vanilla_transformer_hf"] = None
"""


def test_importing_the_package_imports_nothing_heavy():
    """Not even transformers: the time that the import adds is that of one file."""
    code = "import sys; before = set(sys.modules); import vanilla_transformer_hf; print(*set(sys.modules) - before)"
    added = run_python(code).split()
    # The interpreter's own finder of editable installs may show up beside our one module.
    heavy = [name for name in added if name.split(".")[0] in ("transformers", "torch", "tokenizers", "datasets")]
    assert heavy == ["transformers.models.vanilla_transformer"], "our own name for this package, and nothing else"


@pytest.mark.parametrize(
    "first",
    [
        "import vanilla_transformer_hf",
        "import transformers; import vanilla_transformer_hf",
        "from transformers import AutoConfig; import vanilla_transformer_hf",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer; import vanilla_transformer_hf",
        "import vanilla_transformer_hf; from transformers import GradientCheckpointingLayer, Seq2SeqTrainer",
        "from vanilla_transformer_hf.modeling_vanilla_transformer import VanillaTransformerModel",
    ],
)
def test_a_saved_folder_opens_in_every_order_of_imports(first, saved_folder):
    folder, ids = saved_folder
    out = run_python(first + OPEN.format(folder=str(folder), arguments={}))
    assert json.loads(out.splitlines()[-1]) == ids


def test_a_saved_folder_opens_without_the_package_and_saves_again_whole(saved_folder, tmp_path):
    folder, ids = saved_folder
    again = tmp_path / "again"
    save = f"\nmodel.save_pretrained({str(again)!r}); tokenizer.save_pretrained({str(again)!r})"
    arguments = {"trust_remote_code": True}
    for number, (place, code) in enumerate(((folder, save), (again, ""))):
        out = run_python(
            HIDE_PACKAGE + OPEN.format(folder=str(place), arguments=arguments) + code,
            HF_MODULES_CACHE=str(tmp_path / f"modules{number}"),
        )
        assert json.loads(out.splitlines()[-1]) == ids
    assert {path.name for path in again.iterdir()} == {path.name for path in folder.iterdir()}
    for name in ("model.safetensors", "tokenizer.json", "modeling_vanilla_transformer.py"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_without_the_package_and_without_trust_the_refusal_is_clear(saved_folder):
    code = (
        HIDE_PACKAGE
        + "from transformers import AutoConfig\ntry:\n    AutoConfig.from_pretrained({!r})\n"
        + ("except ValueError as error:\n    print(error)")
    )
    assert "trust_remote_code" in run_python(code.format(str(saved_folder[0])))


def test_the_tokenizer_is_ours_and_reopens(saved_folder):
    tokenizer = AutoTokenizer.from_pretrained(saved_folder[0])
    assert type(tokenizer) is VanillaTransformerTokenizer


def test_every_public_name_exists():
    for name in vanilla_transformer_hf.__all__:
        assert getattr(vanilla_transformer_hf, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Transformers'"):
        vanilla_transformer_hf.Transformers  # noqa: B018


def imports_of(path: Path) -> set[str]:
    """Modules that a file names in import statements; a leading dot stands for our own package."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return {name.replace("vanilla_transformer_hf.", ".") for name in names}


def test_hub_files_import_only_what_every_user_has():
    allowed = {"torch", "transformers", "huggingface_hub", "tokenizers", "safetensors"}
    for stem in HUB_FILES:
        for name in imports_of(PACKAGE / f"{stem}.py"):
            if name.startswith("."):
                assert name[1:] in HUB_FILES, f"{stem} imports {name}"
            else:
                root = name.split(".")[0]
                assert root in allowed or root in sys.stdlib_module_names, f"{stem} imports {name}"


def test_no_source_of_checkpoints_imports_another():
    folder = PACKAGE / "conversion"
    shared = {"mapping", "safe_load", "saved_model", "vocabularies", "opennmt_common", "state_dicts"}
    shared |= {"moses", "tensor_bundle", "subword_text", "sentencepiece_model", "protobuf"}
    sources = {path.stem for path in folder.glob("*.py")} - shared - {"__init__", "card", "export", "flow"}
    assert sources
    for stem in sources | shared:
        for name in imports_of(folder / f"{stem}.py"):
            if name.startswith("."):
                assert name.lstrip(".") in {""} | shared | HUB_FILES | {"text_files"}, f"{stem} imports {name}"


def test_imports_point_one_way():
    order = [
        HUB_FILES | {"matmul", "text_batches", "text_files"},
        {"alignment", "data", "forced_decoding", "numbers_corpus", "translation_models", "translation_progress"},
        {
            "batch_search",
            "batching",
            "bpe_dropout",
            "checkpoints",
            "early_stopping",
            "evaluation",
            "progress",
            "r_drop",
            "sharding",
        },
        {"attention_maps", "curves", "model_card", "recipe", "translation_scores"},
        {"averaging", "remote_code", "weight_files"},
        {"upload_plan"},
        {"hub"},
        {"trainer", "translation"},
        {"command_line", "pipeline", "training"},
    ]
    for level, stems in enumerate(order):
        above = set().union(*order[level + 1 :])
        for stem in stems:
            for name in imports_of(PACKAGE / f"{stem}.py"):
                assert name.lstrip(".") not in above | {"scripts"}, f"{stem} imports {name}"
                assert not name.startswith(".streams"), f"{stem} imports {name}"
    assert set().union(*order) == {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
