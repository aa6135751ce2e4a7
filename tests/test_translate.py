"""scripts/translate.py as users run it."""

import io
import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_translation import MIXED, TRANSLATED, saved_model

from vanilla_transformer_hf.matmul import available_matmuls


ROOT = Path(__file__).resolve().parent.parent
SCRIPT = str(ROOT / "scripts" / "translate.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
TEXT = "\n".join(MIXED).encode() + b"\n"
OUTPUT = "\n".join(TRANSLATED).encode() + b"\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """`run(*arguments, text=b"")`: exit code, standard output and standard error of the script, in this process."""

    def run(*arguments, text=b""):
        monkeypatch.setattr(sys, "argv", ["translate.py", *map(str, arguments)])
        stdin = io.BytesIO(text)
        stdin.name, stdin.seekable = "<stdin>", lambda: False
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
        code = 0
        try:
            runpy.run_path(SCRIPT, run_name="__main__")
        except SystemExit as stop:
            code = stop.code
        output, errors = capfdbinary.readouterr()
        return code, output, errors.decode()

    return run


def test_standard_input_to_standard_output(folder):
    command = [sys.executable, SCRIPT, folder, "--batch_size", "2"]
    done = subprocess.run(command, input=TEXT, capture_output=True, env=ENVIRONMENT, timeout=120)
    assert (done.returncode, done.stdout) == (0, OUTPUT)
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("float32 matrix products: "), "what was measured and chosen, nothing else"


def test_matmul_is_switchable(run, folder):
    for arguments in (("--matmul", "default"), ("--dtype", "bfloat16")):
        assert run(folder, *arguments, text=b"two\n") == (0, b"zwei\n", ""), "nothing to choose, nothing to say"
    if "onednn" in available_matmuls():
        code, output, errors = run(folder, "--matmul", "onednn", text=b"two\n")
        assert (code, output) == (0, b"zwei\n")
        assert errors.startswith("float32 matrix products: onednn (default ")


def test_pipeline_after_importing_the_package_alone(folder):
    code = "import vanilla_transformer_hf, sys; from transformers import pipeline; p = pipeline('translation', "
    code += "model=sys.argv[1]); assert p('two') == [{'translation_text': 'zwei'}]"
    command = [sys.executable, "-c", code, folder]
    done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert b"arning" not in done.stderr


def test_killed_run_leaves_no_output_under_its_name(folder, tmp_path):
    command = [sys.executable, SCRIPT, folder, "--output", str(tmp_path / "output")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    assert [entry.name for entry in tmp_path.iterdir()] == ["output.partial"]


def test_file_to_file(run, folder, tmp_path):
    (tmp_path / "input").write_bytes(TEXT.removesuffix(b"\n"))  # a last line without its end
    files = ("--input", tmp_path / "input", "--output", tmp_path / "output")
    code, output, errors = run(folder, *files, "--matmul", "default")
    assert (code, output, errors) == (0, b"", "")
    assert (tmp_path / "output").read_bytes() == OUTPUT
    assert run(folder, "--input", os.devnull)[:2] == (0, b"")


def test_n_best_is_a_table(run, folder):
    code, output, _ = run(folder, "--num_beams", 3, "--n_best", 3, text=TEXT)
    rows = [line.split("\t") for line in output.decode().splitlines()]
    assert code == 0
    assert [int(row[0]) for row in rows] == [number for number in range(1, len(MIXED) + 1) for _ in range(3)]
    assert [row[2] for row in rows[::3]] == TRANSLATED
    assert all(float(first[1]) >= float(second[1]) for first, second in zip(rows[::3], rows[1::3], strict=True))


def test_errors_are_one_line_and_leave_nothing(run, folder, tmp_path):
    output = tmp_path / "output"
    bad = tmp_path / "bad"
    bad.write_bytes(b"one\ntwo\n\xff\n")
    cases = {
        "no such folder": (tmp_path / "nothing",),
        "No such file": (folder, "--input", tmp_path / "nothing"),
        "nothing/output.partial": (folder, "--output", tmp_path / "nothing" / "output"),
        "bad, line 3: not valid UTF-8": (folder, "--input", bad, "--output", output),
        "'nonsense' cannot be used": (folder, "--device", "nonsense", "--output", output),
        "batch_size=0": (folder, "--batch_size", 0, "--output", output),
        "num_beams": (folder, "--n_best", 9, "--output", output),
    }
    for message, arguments in cases.items():
        code, _, errors = run(*arguments, "--matmul", "default", text=b"one\n")
        assert code == 2, message
        assert message in errors
        assert errors.startswith("translate.py: ")
        assert errors.count("\n") == 1, errors
    code, _, errors = run(folder, "--output", output, "--matmul", "default", text=b"one\n\xff")
    assert (code, errors.count("\n")) == (2, 1)
    assert "<stdin>, line 2: not valid UTF-8" in errors
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad"]


def test_corrupt_weights_are_one_line(run, folder, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    code, _, errors = run(broken, text=b"one\n")
    assert (code, errors.count("\n")) == (2, 1)
    assert f"cannot open the weights of {broken}" in errors


def test_help_shows_examples(run):
    code, output, _ = run("--help")
    assert code == 0
    assert b"python scripts/translate.py outputs/quickstart < " in output
