"""
The Space of examples/space: the commands of the page make its folder, the steps of its Dockerfile, without docker, an
environment in which the page of Gradio answers Gradio's client as the model translates.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gradio
import pytest
import yaml
from gradio_client import Client
from gradio_client.exceptions import AppError

from vanilla_transformer_hf import Translator


ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "examples" / "space" / "Dockerfile").read_text(encoding="utf-8").splitlines()
MODEL = ROOT / "model_cards" / "multi30k_raw_en_de"
TEXT = ["A brown dog is running through the snow.", "", "Three young men are playing soccer on a green field."]


def steps(name: str) -> list[str]:
    """The arguments of all steps of this name."""
    return [line.removeprefix(f"{name} ") for line in LINES if line.startswith(f"{name} ")]


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> Path:
    """The folder of the Space, as the commands of the page make it in a copy of the repository."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in ("vanilla_transformer_hf", "examples", "model_cards"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "vanilla_transformer_hf_command.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, checkout)
    page = (ROOT / "docs" / "publishing.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"```bash\n(pip wheel .+?)```", page, re.DOTALL)
    programs = checkout / "bin"
    programs.mkdir()
    (programs / "pip").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip "$@"\n', encoding="utf-8")
    (programs / "pip").chmod(0o755)
    places = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", commands], check=True, cwd=checkout, env={**os.environ, **places})
    return checkout / "outputs" / "space"


@pytest.fixture(scope="module")
def python(app, tmp_path_factory) -> Path:
    """The interpreter of an environment made by the steps of the Dockerfile. As in test_dockerfile.py nothing is
    downloaded: a library that is missing, or has another version than the step asks for, is an error."""
    torch_step, package_step = steps("RUN")[-2:]
    assert torch_step.startswith("python -m pip install --no-cache-dir") and '"torch>=2.6,<3"' in torch_step
    (gradio_requirement,) = re.fullmatch(
        r'python -m pip install --no-cache-dir \*\.whl "(gradio.+)"', package_step
    ).groups()
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/python*/site-packages")
    folders = [str(Path(gradio.__file__).parents[1]), sysconfig.get_path("purelib")]
    (site / "libraries.pth").write_text("\n".join(folders) + "\n")
    (wheel,) = app.glob("*.whl")
    interpreter = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet", "--no-index"]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, str(wheel), gradio_requirement], check=True, cwd=app, env=plain)
    return interpreter


@pytest.fixture(scope="module")
def address(app, python, tmp_path_factory):
    """Where the Space's command serves its page, without a network."""
    program, *arguments = json.loads(steps("CMD")[0])
    assert program == "python"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "HF_HUB_OFFLINE")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    variables |= dict(one.split("=") for step in steps("ENV") for one in step.split())
    variables |= {"GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    variables |= {"HOME": str(tmp_path_factory.mktemp("home")), "PYTHONUNBUFFERED": "1"}
    command = [str(python), *arguments]
    with subprocess.Popen(command, cwd=app, env=variables, stdout=subprocess.PIPE, text=True) as server:
        try:
            while "Running on" not in (line := server.stdout.readline()):
                assert line, "it has ended"
            yield line.split()[-1]
        finally:
            server.terminate()
            server.wait(60)


def test_the_folder_is_a_space(app):
    _, front, _ = (app / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    settings = yaml.safe_load(front)
    assert settings["sdk"] == "docker" and str(settings["app_port"]) == steps("EXPOSE")[0]
    assert {"Dockerfile", "README.md", "gradio_app.py", "multi30k_raw_en_de"} <= {path.name for path in app.iterdir()}
    assert steps("USER") == ["user"] and "useradd" in steps("RUN")[0] and "--uid 1000" in steps("RUN")[0]


def test_clients_get_the_model_s_translations(address):
    expected = "\n".join(map(str, Translator.from_pretrained(MODEL).translate(TEXT, num_beams=4)))
    assert "Ein brauner Hund rennt durch den Schnee." in expected
    with ThreadPoolExecutor(3) as clients:
        answers = clients.map(
            lambda _: Client(address, verbose=False, analytics_enabled=False).predict(
                "\n".join(TEXT), 4, api_name="/translate"
            ),
            range(3),
        )
        assert [*answers] == [expected] * 3


def test_what_the_page_does_not_take_is_an_error_of_its_client_alone(address):
    client = Client(address, verbose=False, analytics_enabled=False)
    for text, beams, reason in (
        ("word " * 1_001, 4, "5,005 characters: expected at most 5,000"),
        ("word", 99, "greater than maximum"),
    ):
        with pytest.raises(AppError, match=reason):
            client.predict(text, beams, api_name="/translate")
    assert client.predict("", 1, api_name="/translate") == ""
