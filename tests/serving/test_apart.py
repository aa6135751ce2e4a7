"""Documents are read in processes of their own, which take no more time and memory than they may."""

import asyncio
import io
import multiprocessing
import subprocess
import sys
import threading
import time
import zipfile

import pytest
import torch
from starlette.testclient import TestClient

from vanilla_transformer_hf.serving.apart import Apart, _bound, run_apart, texts_of, translated
from vanilla_transformer_hf.serving.application import ServedModel, create_application
from vanilla_transformer_hf.serving.batcher import Batcher
from vanilla_transformer_hf.serving.protocols import Limits
from vanilla_transformer_hf.translation.documents.document import Reading
from vanilla_transformer_hf.translation.documents.inline import TooManyCharactersError


W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
MEMORY = 128 * 2**20
# Seconds for a machine that does other work, and starts the first of these processes.
PATIENCE = 120.0


def docx(body: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>')
    return out.getvalue()


def read(content: bytes, name: str, ends: float = PATIENCE, memory: int = MEMORY, **reading):
    async def texts():
        given = texts_of, (content, Reading(name, **reading))
        return await Apart(memory).run("a client", asyncio.get_running_loop().time() + ends, *given)

    return asyncio.run(texts())


def no_process_is_left() -> bool:
    began = time.monotonic()
    while multiprocessing.active_children() and time.monotonic() - began < PATIENCE:
        time.sleep(0.01)
    return not multiprocessing.active_children()


def test_texts_are_read_and_written_with_the_attention_of_the_model():
    asked = []

    def align(pairs):
        asked.extend(pairs)
        return [torch.eye(2).flip(0)]

    async def written():
        apart, ends = Apart(MEMORY), asyncio.get_running_loop().time() + PATIENCE
        given = b"<p>a <b>dog</b></p>", Reading("a.html")
        assert await apart.run("a client", ends, texts_of, given) == ["a dog"]
        return await apart.run("a client", ends, translated, (*given, ["Hund ein"], "de"), align)

    assert asyncio.run(written()) == b"<p><b>Hund</b> ein</p>"
    assert asked == [("a dog", "Hund ein")] and no_process_is_left()


def test_memory_and_characters_are_bounded():
    bomb = docx("<w:p/>" * 900_000)
    assert len(bomb) < 20_000
    with pytest.raises(ValueError, match="needs more than the 32 MiB, or the time, that a document may take"):
        read(bomb, "a.docx", memory=2**25)
    with pytest.raises(TooManyCharactersError, match="more than 100 characters, which it may have"):
        read(b"<p>the dog</p>" * 2**16, "a.html", most_characters=100)
    with pytest.raises(ValueError, match=r"a\.docx: not an office document"):
        read(b"x", "a.docx")


@pytest.mark.parametrize(("file_bytes", "expected"), [(2000, ["none.txt"]), (0, [])])
def test_documents_are_read_at_once_when_a_server_takes_requests(serve, monkeypatch, file_bytes, expected):
    found = []

    async def run(self, client, ends, function, arguments):
        found.append(arguments[1].name)

    monkeypatch.setattr(Apart, "run", run)
    client = serve(limits=Limits(file_bytes=file_bytes))
    assert found == expected and client.get("/ready").status_code == 200


def fail(align):
    raise KeyError("a mistake of ours")


def end(align):
    raise SystemExit


def test_mistakes_are_told_with_their_place():
    with pytest.raises(RuntimeError, match=r"in fail\n.*\n.*KeyError: 'a mistake of ours'"):
        run_apart(fail, (), None, PATIENCE, MEMORY, threading.Event())
    with pytest.raises(ValueError, match="it needs more than"):
        run_apart(end, (), None, PATIENCE, MEMORY, threading.Event())


def test_limits_of_the_system_are_never_raised(monkeypatch):
    resource, found = pytest.importorskip("resource"), {}
    hard = {resource.RLIMIT_CPU: 5, resource.RLIMIT_AS: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (hard[kind], hard[kind]))
    monkeypatch.setattr(resource, "setrlimit", found.__setitem__)
    monkeypatch.setattr("os.nice", lambda more: 0)
    _bound(MEMORY, seconds=60)
    assert found.pop(resource.RLIMIT_CPU) == (5, 5)
    assert all(soft == most > MEMORY for soft, most in found.values())


def sleep(align):
    time.sleep(10 * PATIENCE)


def test_a_process_ends_with_its_time_or_its_request():
    read(b"dog", "a.txt")  # what the processes are copies of is there now
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        run_apart(sleep, (), None, 0.1, MEMORY, threading.Event())
    is_over = threading.Event()
    is_over.set()
    with pytest.raises(TimeoutError):
        run_apart(sleep, (), None, PATIENCE, MEMORY, is_over)
    assert time.monotonic() - began < PATIENCE and no_process_is_left()


def test_a_client_has_one_at_a_time_and_others_do_not_wait_for_it(monkeypatch):
    running, most, orders = [], [], []

    def run(function, arguments, align, seconds, memory, is_over):
        (client,) = arguments
        running.append(client)
        most.append({each: running.count(each) for each in running})
        time.sleep(0.05)
        running.remove(client)
        orders.append(client)

    monkeypatch.setattr("vanilla_transformer_hf.serving.apart.run_apart", run)

    async def all_of_them():
        apart, ends = Apart(MEMORY), asyncio.get_running_loop().time() + PATIENCE
        await asyncio.gather(*(apart.run(client, ends, None, (client,)) for client in "aaaaab"))

    asyncio.run(all_of_them())
    assert max(counts.get("a", 0) for counts in most) == 1 and orders.index("b") < 3


def test_large_files_of_one_client_do_not_hold_up_others_and_end_in_time(opened_translator):
    page = b"<b>x" * 400_000  # ten seconds
    limits = Limits(characters=10**7, file_bytes=2**21, seconds=1.5)
    model = ServedModel("en-de", Batcher(opened_translator), "en", {"de": None})
    answers = {}
    with TestClient(create_application([model], limits)) as client:

        def upload(number):
            answer = client.post("/translate_file", files={"file": ("a.html", page)})
            answers[number] = answer.status_code, answer.json()["error"]

        uploads = [threading.Thread(target=upload, args=(number,)) for number in range(3)]
        for each in uploads:
            each.start()
        while any(each.is_alive() for each in uploads):
            began = time.monotonic()
            assert client.get("/health").status_code == 200
            assert client.post("/translate", json={"q": "two"}).json() == {"translatedText": "zwei"}
            assert time.monotonic() - began < PATIENCE / 10
            time.sleep(0.05)
    assert answers == dict.fromkeys(range(3), (504, "not translated within 1.5 seconds"))
    assert no_process_is_left()


def test_detecting_the_language_is_within_the_time(serve, monkeypatch):
    leave = threading.Event()
    monkeypatch.setattr("vanilla_transformer_hf.serving.application.GRACE", 0.05)
    monkeypatch.setattr(
        "vanilla_transformer_hf.serving.languages.LanguageDetector.detect", lambda *arguments: leave.wait(PATIENCE)
    )
    client = serve({f"{code}-de": (code, {"de": None}) for code in ("en", "fr")}, Limits(seconds=0.2))
    for path, body in (("/translate", {"q": "two", "source": "auto", "target": "de"}), ("/detect", {"q": "two"})):
        assert client.post(path, json=body).status_code == 504
    leave.set()


UNGUARDED = """
import sys
from starlette.testclient import TestClient
from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.serving.application import ServedModel, create_application
from vanilla_transformer_hf.serving.batcher import Batcher
batcher = Batcher(Translator.from_pretrained(sys.argv[1]))
with TestClient(create_application([ServedModel("numbers", batcher, "en", {"de": None})])) as client:
    print(client.post("/translate", json={"q": "one two"}).status_code)
"""


@pytest.mark.slow
def test_a_program_that_starts_again_in_its_processes_serves_texts(counting_folder, tmp_path):
    """Such a process imports the program's file, which without a guard runs it again."""
    (tmp_path / "program.py").write_text(UNGUARDED)
    command = [sys.executable, str(tmp_path / "program.py"), str(counting_folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.splitlines()[-1] == "200"
    assert "has to begin under `if __name__ == '__main__':`" in done.stderr
