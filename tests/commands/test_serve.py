"""The command `serve`: settings that are checked before it listens, and processes that end as they should."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from counting_model import SOURCES

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.commands import serve
from vanilla_transformer_hf.serving import server
from vanilla_transformer_hf.serving.batcher import Batcher
from vanilla_transformer_hf.serving.http import bind
from vanilla_transformer_hf.serving.protocols import Limits
from vanilla_transformer_hf.serving.server import (
    ServerSettings,
    languages_of,
    make_application,
    name_and_place,
    open_models,
    read_api_keys,
)


ROOT = Path(__file__).parents[2]


def test_models_are_named_by_the_user_or_by_their_folder(tmp_path):
    assert name_and_place("outputs/en-de/") == ("en-de", "outputs/en-de/")
    assert name_and_place("news=outputs/en-de") == ("news", "outputs/en-de")
    (tmp_path / "a=b").mkdir()
    assert name_and_place(str(tmp_path / "a=b")) == ("a=b", str(tmp_path / "a=b"))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"languages": ["en-de", "de-en"]}, "2 for 1 models"),
        ({"languages": ["german"]}, "'german' is not a language pair: expected SOURCE-TARGET"),
        ({"workers": 0}, "workers=0: must be at least 1"),
        ({"log": "all"}, "log='all': must be one of"),
        ({"models": ["a/en-de", "b/en-de"]}, "each model needs a name of its own: got en-de, en-de"),
        ({"allowed_origins": ["example.org"]}, "allowed_origins: 'example.org' is not an origin"),
        ({"split_sentences": "some"}, "split_sentences='some': must be one of 'auto', 'always', 'never'"),
    ],
)
def test_settings_out_of_range_are_named(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ServerSettings(**{"models": ["outputs/en-de"], **settings})


def test_limits_out_of_range_are_named():
    with pytest.raises(ValueError, match="seconds=0: must be above 0"):
        Limits(seconds=0)


def test_the_command_refuses_in_one_line_before_it_opens_a_model(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# nobody\n\n")
    with pytest.raises(ValueError, match="has no keys: expected one a line"):
        read_api_keys(str(keys))
    keys.write_text("# two\n one \n\nanother\n")
    assert read_api_keys(str(keys)) == ["one", "another"] and read_api_keys(None) is None
    with pytest.raises(
        ValueError, match="--quantization int16: expected int8 or int8_reduced, or --engine ctranslate2"
    ):
        serve.main("serve", ["folder", "--quantization", "int16"])
    with pytest.raises(OSError, match=r"cannot listen on not\.an\.address\.invalid:9: "):
        serve.main("serve", ["folder", "--host", "not.an.address.invalid", "--port", "9"])


def test_languages_are_those_of_the_tokenizer_or_of_the_user(translator):
    assert languages_of(translator, "en-de") == ("en", {"de": None})
    assert languages_of(translator, None) == (None, {})
    translator.tokenizer.init_kwargs["target_lang_tags"] = {"de": "<2de> ", "fr": "<2fr> "}
    try:
        assert languages_of(translator, None)[1] == {"de": "<2de> ", "fr": "<2fr> "}
        assert languages_of(translator, "en-fr") == ("en", {"fr": "<2fr> "})
        with pytest.raises(ValueError, match="'en-sv' is not a pair of a model that translates to de, fr"):
            languages_of(translator, "en-sv")
    finally:
        del translator.tokenizer.init_kwargs["target_lang_tags"]


def test_a_target_language_puts_its_tag_before_the_text(translator):
    translator.source_prefix = "two "
    expected = translator.translate("one")
    translator.source_prefix = ""
    batcher = Batcher(translator)
    batcher.start()
    assert batcher.submit(["one"], source_prefix="two ").future.result(10) == [[expected]]
    assert batcher.submit(["one"]).future.result(10) == [[translator.translate("one")]]
    batcher.stop()


@pytest.mark.slow
def test_ctranslate2_gives_the_same_answers_and_keeps_its_batches_together(counting_folder, tmp_path):
    pytest.importorskip("ctranslate2", reason="pip install '.[export]'")
    folder = tmp_path / "en-de"
    shutil.copytree(counting_folder, folder)
    (model,) = open_models(ServerSettings([str(folder)], engine="ctranslate2", device="cpu"))
    translator = Translator.from_pretrained(folder, device="cpu")
    model.batcher.start()
    tickets = [model.batcher.submit([text, ""]) for text in SOURCES[::5]]
    for text, ticket in zip(SOURCES[::5], tickets):
        assert ticket.future.result(30) == [[translator.translate(text)], [""]]
    n_best = model.batcher.submit(["one two"], {"num_beams": 3, "num_return_sequences": 3}).future.result(30)[0]
    assert len(n_best) == 3 and n_best[0] == "zwei eins"
    model.batcher.stop()


def started(*arguments):
    """A server in a process of its own, and its address."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "vanilla_transformer_hf", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    lines = []
    threading.Thread(target=lambda: lines.extend(process.stderr), daemon=True).start()
    began = time.monotonic()
    while time.monotonic() - began < 300 and process.poll() is None:
        address = re.search(r"listening on (\S+)", "".join(lines))
        try:
            if address and httpx.get(f"{address[1]}/ready", timeout=2).status_code == 200:
                return process, address[1], lines
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    process.kill()
    raise AssertionError("".join(lines))


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers_of(process):
    """Process ids of the workers: they are forked by a child of the supervisor, which has imported the package."""
    return [worker for child in children_of(process.pid) for worker in children_of(child)]


def wait_until(is_so, seconds=60):
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)


@pytest.mark.slow
def test_workers_are_replaced_and_reloaded_and_never_left_behind(counting_folder):
    # Without files: a worker that ends before what reads them has started counts as one that cannot start.
    options = ("--workers", "2", "--batch_size", "2", "--max_file_bytes", "0")
    process, address, lines = started(counting_folder, *options)
    long, found = " ".join(f"{text}." for text in SOURCES), []

    def ask():
        found.append(httpx.post(f"{address}/translate", json={"q": long}, timeout=60).status_code)

    try:
        wait_until(lambda: len(workers_of(process)) == 2)
        for number in (signal.SIGSEGV, signal.SIGKILL, signal.SIGSEGV):
            before = workers_of(process)
            os.kill(before[0], number)
            wait_until(lambda before=before: {*workers_of(process)} - {*before}, seconds=3)
        for pid in workers_of(process):
            os.kill(pid, signal.SIGSEGV)
        assert httpx.post(f"{address}/translate", json={"q": "two"}, timeout=60).json() == {"translatedText": "zwei"}
        wait_until(lambda: len(workers_of(process)) == 2)
        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.2)
        before = {*workers_of(process)}
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: not before & {*workers_of(process)})
        asking.join()
        assert found == [200] and len(workers_of(process)) == 2
        left = workers_of(process)
        process.kill()
        for pid in left:
            wait_for_end(pid)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/ready")
        assert "Traceback" not in "".join(lines)
    finally:
        process.kill()


def test_what_documents_are_read_by_starts_while_models_are_opened(monkeypatch):
    order = []
    for name in ("begin", "make_application", "run_server"):
        monkeypatch.setattr(server, name, lambda *given, name=name, **options: order.append(name))
    monkeypatch.setattr(server, "ending_in_time", contextlib.nullcontext)
    listening = bind("127.0.0.1", 0)
    for limits in (Limits(), Limits(file_bytes=0)):
        server.serve(ServerSettings(["one"], limits=limits), listening)
    listening.close()
    assert order == ["begin", "make_application", "run_server", "make_application", "run_server"]


def test_what_cannot_be_served_is_said_before_the_server_starts(counting_folder, monkeypatch):
    def fail(self, works):
        raise RuntimeError("no\nroom")

    monkeypatch.setattr("vanilla_transformer_hf.serving.batcher.SharedSearch.join", fail)
    with pytest.raises(ValueError, match=r"^\S+ cannot be served: no room$"):
        open_models(ServerSettings([str(counting_folder)], device="cpu"))


def test_an_engine_that_cannot_do_the_models_settings_is_refused_before_the_server_starts(counting_folder, tmp_path):
    pytest.importorskip("ctranslate2", reason="pip install '.[export]'")
    folder = tmp_path / "en-de"
    shutil.copytree(counting_folder, folder)
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**config, "encoder_repetition_penalty": 1.5}))
    with pytest.raises(ValueError, match=r"en-de.* encoder_repetition_penalty") as caught:
        open_models(ServerSettings([str(folder)], device="cpu", engine="ctranslate2"))
    assert "\n" not in str(caught.value)


def wait_for_end(pid):
    """Until a killed process accepts no more connections: it is gone, or a zombie."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
            time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_finishes_what_runs_and_a_dead_worker_is_replaced(counting_folder, workers):
    process, address, lines = started(counting_folder, "--workers", str(workers), "--batch_size", "2")
    long, found = " ".join(f"{text}." for text in SOURCES[20:]), {}
    try:
        assert httpx.post(f"{address}/translate", json={"q": "one two"}).json() == {"translatedText": "zwei eins"}
        if workers > 1:
            killed = workers_of(process)[0]
            os.kill(killed, signal.SIGKILL)
            wait_for_end(killed)
            for _ in range(20):
                assert httpx.post(f"{address}/translate", json={"q": "two"}, timeout=60).status_code == 200
            metrics = httpx.get(f"{address}/metrics").text  # of all workers together
            assert re.search(r'translation_requests_total\{model="\w+",status="200"\} 2[01]\.0', metrics), metrics
        # Whichever worker translates a file, all of them hand it out.
        sent = {"file": ("a.txt", b"two")}
        url = httpx.post(f"{address}/translate_file", files=sent, timeout=60).json()["translatedFileUrl"]
        assert {httpx.get(url, timeout=60).content for _ in range(8)} == {b"zwei"}
        asking = threading.Thread(
            target=lambda: found.update(httpx.post(f"{address}/translate", json={"q": long}, timeout=60).json())
        )
        asking.start()
        runs = re.compile(r"translation_(waiting|running)_parts{[^}]*} [1-9]")
        wait_until(lambda: runs.search(httpx.get(f"{address}/metrics").text) or not asking.is_alive())
        process.send_signal(signal.SIGTERM)
        asking.join()
        # The supervisor looks at signals between two looks at its workers, one of which may still be starting.
        assert process.wait(300) == 0, "".join(lines)
        assert len(found["translatedText"].split()) > 100
        assert "Traceback" not in "".join(lines) and "one two" not in "".join(lines)
    finally:
        process.kill()


def test_an_application_is_made_of_settings(counting_folder):
    application = make_application(ServerSettings([f"numbers={counting_folder}"], languages=["en-de"], device="cpu"))
    assert {route.path for route in application.routes} >= {"/translate", "/models/{name:path}", "/metrics"}
    (model,) = open_models(ServerSettings([counting_folder], device="cpu", split_sentences="never"))
    assert model.batcher.translator.split_sentences == "never"
