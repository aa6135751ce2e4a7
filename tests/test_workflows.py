"""
The workflows of public CI, without the service that runs them: their form, the commands of their steps, and that they
are the targets of `make`, the scripts and the commands that exist.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from hub_server import ROOT

from vanilla_transformer_hf.commands.main import COMMANDS, PROG
from vanilla_transformer_hf.model.config.release import VERSION


WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
# Programs that the runners of CI have, or that a step before has installed.
PROGRAMS = {"cd", "echo", "gh", "git", "grep", "sudo", "tee", "test", "twine", "pre-commit", "pip", ".venv/bin/mike"}


def jobs():
    for name, workflow in WORKFLOWS.items():
        for job_name, job in workflow["jobs"].items():
            yield f"{name}:{job_name}", job


def values_of(job):
    """Every combination of a job's matrix that its steps may name, one variable at a time."""
    matrix = job.get("strategy", {}).get("matrix", {})
    return {name: [str(value) for value in values] for name, values in matrix.items()}


def commands(job):
    """The commands of a job's steps, with each value of its matrix."""
    for step in job["steps"]:
        for line in step.get("run", "").splitlines():
            found = re.search(r"\$\{\{ matrix\.(\w+) \}\}", line)
            for value in values_of(job)[found[1]] if found else [None]:
                filled = re.sub(r"\$\{\{ matrix\.\w+ \}\}", str(value), line)
                yield from re.split(r" (?:&&|\|) ", filled)


ALL = [
    pytest.param(command, id=f"{name} {command}") for name, job in jobs() for command in dict.fromkeys(commands(job))
]


@pytest.mark.parametrize("command", ALL)
def test_a_step_calls_what_exists(command):
    program, *arguments = shlex.split(command)
    if program == "make":
        target = arguments[0].replace(".venv/", "$(VENV)/")
        assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE)
        for name, _, value in (argument.partition("=") for argument in arguments[1:]):
            assert re.search(rf"^{name} \?= ", MAKEFILE, re.MULTILINE), "a variable that the Makefile has"
            written = value.removeprefix("outputs/").removesuffix(".txt")
            assert re.search(rf"^{written}:", MAKEFILE, re.MULTILINE), "a target writes this file"
    elif program == PROG:
        assert arguments[0] in COMMANDS or arguments[0].startswith("--")
    elif program in ("python", ".venv/bin/python"):
        assert arguments[0] == "-m" or (ROOT / arguments[0]).is_file()
        if "--constraint" in arguments:
            assert (ROOT / arguments[arguments.index("--constraint") + 1]).is_file()
    else:
        assert program in PROGRAMS


def test_public_ci_runs_what_ci_runs_here():
    ours = re.findall(r"^make (\S+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    theirs = {command.split()[1] for _, job in jobs() for command in commands(job) if command.startswith("make ")}
    assert ours and set(ours) <= theirs


def test_every_script_of_a_step_is_one_that_bash_reads():
    for name, job in jobs():
        for step in job["steps"]:
            script = re.sub(r"\$\{\{.*?\}\}", "value", step.get("run", ""))
            done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
            assert done.returncode == 0, (name, done.stderr)


def test_the_linter_of_workflows_finds_nothing():
    linter = shutil.which("jactionlint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("jactionlint is not installed")
    (line,) = re.findall(r"^\t\$\(BIN\)/jactionlint (.*?)(?:  #.*)?$", MAKEFILE, re.MULTILINE)
    done = subprocess.run([linter, *line.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_versions_of_python_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = values_of(WORKFLOWS["tests.yml"]["jobs"]["python"])["python"]
    stated = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert tested == stated and project["requires-python"] == f">={tested[0]}"


def test_a_job_may_only_what_it_needs():
    for name, workflow in WORKFLOWS.items():
        for job in workflow["jobs"].values():
            rights = {"contents": "write"} if name == "docs.yml" else {"contents": "read"}
            if name == "weekly.yml":
                rights = {"contents": "read", "issues": "write"}
            if job.get("environment") == "release":
                rights = {"id-token": "write"}
            assert job.get("permissions", workflow["permissions"]) == rights, name
    publish = WORKFLOWS["release.yml"]["jobs"]["publish"]
    assert publish["needs"] == "build"
    assert [step["uses"] for step in publish["steps"]][-1] == "pypa/gh-action-pypi-publish@release/v1"
    assert "secrets." not in "".join(path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_step_that_compares_tag_and_version_accepts_this_version():
    (step,) = [
        step for step in WORKFLOWS["release.yml"]["jobs"]["build"]["steps"] if "version of the tag" in str(step)
    ]
    (line,) = [line for line in step["run"].splitlines() if line.startswith("test ")]
    answer = f"vanilla-transformer() {{ echo {PROG} {VERSION}; }}\n"  # as tests/commands/test_main.py shows it
    for tag, code in ((f"v{VERSION}", 0), ("v0.0.0", 1)):
        assert subprocess.run(["bash", "-c", answer + line], env={"GITHUB_REF_NAME": tag}).returncode == code


@pytest.mark.slow
def test_every_module_is_imported_on_other_systems():
    (line,) = [command for command in commands(WORKFLOWS["tests.yml"]["jobs"]["systems"]) if "import_all" in command]
    done = subprocess.run([sys.executable, *line.split()[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "docs" in EXTRAS and "imported" in done.stdout
