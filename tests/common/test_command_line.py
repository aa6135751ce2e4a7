"""How commands and scripts end, each of them."""

import argparse
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
SCRIPTS = {path.name: path for folder in ("scripts", "docs/drawing") for path in (ROOT / folder).glob("*.py")}


class PanicException(BaseException):
    """What libraries written in Rust raise."""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(script, *arguments):
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS[script]), *arguments])
        with pytest.raises((SystemExit, KeyboardInterrupt)) as end:
            runpy.run_path(sys.argv[0], run_name="__main__")
        return end.value.code, capsys.readouterr().err

    return call


# train.py has exit codes of its own, see test_train.py.
@pytest.mark.parametrize("script", sorted(SCRIPTS.keys() - {"train.py"}))
@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (OSError("no space"), 2), (PanicException("no space"), 2)]
)
def test_every_script_ends_in_the_same_way(run, monkeypatch, script, error, code):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", fail)
    assert run(script) == (code, f"{script}: no space\n" if code == 2 else "")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["try_model.py", "nothing"], "nothing: no such folder\n"),
        (["draw_architecture.py", "a.png", "--preset", "bas"], "no preset is called 'bas'"),
    ],
)
def test_what_the_user_can_mend_is_one_line(run, command, message):
    code, errors = run(*command)
    assert code == 2 and errors.startswith(f"{command[0]}: {message}") and errors.count("\n") == 1


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    code = "from vanilla_transformer_hf.common.command_line import run; run(lambda: print('text'))"
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_package_that_is_missing_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "num2words", None)
    message = "make_numbers_corpus.py: num2words is missing: pip install 'vanilla_transformer_hf[demo]'\n"
    assert run("make_numbers_corpus.py", "out") == (2, message)
