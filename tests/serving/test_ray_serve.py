"""The server on Ray Serve, if Ray is installed: the configuration of docs/scaling.md, and a killed replica."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from counting_model import SOURCES
from ray_processes import ROOT, processes, ray_environment

from vanilla_transformer_hf import Translator


pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


# The fast tests' environment has no Ray.
@pytest.mark.slow
def test_settings_are_checked_before_a_replica_starts():
    from vanilla_transformer_hf.serving.ray_serve import application

    with pytest.raises(ValueError, match="model: expected some of models, languages"):
        application({"model": "outputs/quickstart"})
    with pytest.raises(ValueError, match="cpus"):
        application({"models": "outputs/quickstart", "cpus": "many"})
    with pytest.raises(ValueError, match="languages: 2 for 1 models"):
        application({"models": "outputs/quickstart", "languages": "en-de,de-en"})


@pytest.fixture
def served(counting_folder, tmp_path):
    """The address of two replicas, and the mark of their processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (config,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8"), re.DOTALL)
    config = config.replace("outputs/quickstart", str(counting_folder)).replace("port: 8000", f"port: {port}")
    assert "replicas: 2" in config and str(port) in config
    (tmp_path / "serve.yaml").write_text(config)
    mark = tmp_path.name
    command = [str(Path(sys.executable).with_name("serve")), "run", str(tmp_path / "serve.yaml")]
    process = subprocess.Popen(
        command, env=ray_environment(mark), stdout=-1, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    )
    said = []
    threading.Thread(target=lambda: said.extend(process.stdout), daemon=True).start()
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, "".join(said)
            try:
                if httpx.get(f"{address}/ready", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        yield address, mark
    finally:  # at once: Ray would first wait for a replica that is still starting
        process.kill()
        for pid in processes(mark, b"ray"):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_replica_loses_no_answer_of_clients_that_repeat(counting_folder, served):
    address, mark = served
    texts = SOURCES[:20]
    translator = Translator.from_pretrained(counting_folder, device="cpu")
    expected = dict(zip(texts, map(str, translator.translate(texts))))
    counts, killed = Counter(), threading.Event()

    def ask(number):
        """Until a replica has been killed and has been replaced; translation has no effects: it may be repeated."""
        with httpx.Client(timeout=60) as client:
            for place in range(number, number + 400):
                text = texts[place % len(texts)]
                for _ in range(20):
                    answer = client.post(f"{address}/translate", json={"q": text})
                    if answer.status_code == 200:
                        break
                    counts["repeated"] += 1
                    time.sleep(0.2)
                counts["right" if answer.json() == {"translatedText": expected[text]} else "wrong"] += 1
                if counts["right"] > 200:
                    killed.set()

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for client in clients:
        client.start()
    assert killed.wait(120)
    replicas = list(processes(mark, b"ray::ServeReplica"))
    assert len(replicas) == 2
    os.kill(replicas[0], signal.SIGKILL)
    for client in clients:
        client.join()
    assert counts["right"] == 8 * 400 and not counts["wrong"], counts
    for _ in range(300):  # Ray Serve starts another one
        if len(set(processes(mark, b"ray::ServeReplica"))) == 2:
            return
        time.sleep(0.2)
    raise AssertionError("the replica was not replaced")
