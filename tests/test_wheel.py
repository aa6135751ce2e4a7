"""The wheel, as `pip install` unpacks it outside the checkout: its command, its recipes, training and translating."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
SOURCES = ["one two three", "four five six", "two one", "six five four three"] * 20
TARGETS = ["eins zwei drei", "vier fünf sechs", "zwei eins", "sechs fünf vier drei"] * 20

OPEN = """
import vanilla_transformer_hf
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("outputs/model")
model = AutoModelForSeq2SeqLM.from_pretrained("outputs/model")
rows = model.generate(**tokenizer("one", return_tensors="pt")).shape[0]
print(vanilla_transformer_hf.__file__, type(model).__module__, rows)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the checkout, in which setuptools leaves its own files."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "checkout"
    shutil.copytree(
        ROOT / "vanilla_transformer_hf", copy / "vanilla_transformer_hf", ignore=shutil.ignore_patterns("__pycache__")
    )
    alone = "vanilla_transformer_hf_command.py"
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", alone):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(copy)], check=True, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """`run(program, *arguments)`: standard output of a program of a new environment with the wheel alone."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, cwd=folder)
    # The libraries come from the environment of the tests: nobody downloads gigabytes. Behind a .pth file no other
    # .pth file is read, so an editable installation of the checkout there has no effect.
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(program, *arguments, code=0):
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
        command = [str(folder / "venv" / "bin" / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=600)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    run.folder = folder
    return run


@pytest.mark.slow
def test_the_wheel_holds_recipes_configs_and_the_template_of_cards(wheel):
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    for folder in ("training/recipes", "training/variants", "training/accelerate", "publishing"):
        for path in (ROOT / "vanilla_transformer_hf" / folder).iterdir():
            if path.is_file():
                assert f"vanilla_transformer_hf/{folder}/{path.name}" in names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "vanilla_transformer_hf").rglob("*.py")}
    assert modules <= names
    assert not [name for name in names if name.startswith(("tests", "scripts", "benchmarks"))]


@pytest.mark.slow
def test_what_pip_installs_trains_translates_and_opens(run):
    for name, lines in (("en", SOURCES), ("de", TARGETS)):
        (run.folder / f"text.{name}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert "\n    train " in run("vanilla-transformer", "--help")
    assert run("vanilla-transformer", "--version") == run("python", "-m", "vanilla_transformer_hf", "--version")
    pairs = [f"--{part}_{side}=text.{name}" for part in ("train", "validation", "test")
             for side, name in (("source", "en"), ("target", "de"))]  # fmt: skip
    small = ["--vocab_size=300", "--max_steps=3", "--output_dir=outputs/model"]
    run("vanilla-transformer", "train", "quickstart", *pairs, *small)
    assert (run.folder / "outputs" / "model" / "model.safetensors").exists()
    assert "# " in (run.folder / "outputs" / "model" / "README.md").read_text(encoding="utf-8")
    run("vanilla-transformer", "translate", "outputs/model", "--input", "text.en", "--output", "text.translated")
    assert (run.folder / "text.translated").read_text(encoding="utf-8").count("\n") == len(SOURCES)
    place, module, rows = run("python", "-c", OPEN).splitlines()[0].split()
    assert place.startswith(str(run.folder)) and rows == "1"
    assert module == "vanilla_transformer_hf.model.modeling_vanilla_transformer", "not the code in the folder"
    message = run("vanilla-transformer", "train", "quikstart", code=2)
    assert message.startswith("vanilla-transformer train: 'quikstart' is neither a file nor the name of a recipe")
