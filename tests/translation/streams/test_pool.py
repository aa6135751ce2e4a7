"""Several processes: order, errors, and that none of them outlives its work."""

import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
import torch
from backwards import Backwards
from test_resumable_output import BACKWARDS, LINES

from vanilla_transformer_hf.translation.streams.lines import read_windows
from vanilla_transformer_hf.translation.streams.opening import open_translator
from vanilla_transformer_hf.translation.streams.pool import WorkerPool, device_of
from vanilla_transformer_hf.translation.streams.resumable_output import InputDigest
from vanilla_transformer_hf.translation.streams.work import LineWork
from vanilla_transformer_hf.translation.text.tally import Tally


def open_backwards(device):
    return Backwards()


def open_nothing(device):
    raise OSError("no such model")


def describe(translator, trace=None):
    if trace is not None:
        (trace / str(os.getpid())).touch()
    return os.getpid(), torch.get_num_threads()


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Holds a file for each process of `pool` that has described its translator."""
    return tmp_path_factory.mktemp("trace")


@pytest.fixture(scope="module")
def pool(trace):
    with WorkerPool(open_backwards, LineWork("translate"), 2, "cpu", partial(describe, trace=trace)) as pool:
        yield pool


def windows(lines, size=2):
    return read_windows(InputDigest(iter(lines)), size)


def test_order_is_kept_and_all_is_counted(pool):
    tally = Tally()
    found = list(pool.map(windows(LINES), tally))
    assert [window.first for window, _ in found] == [1, 3, 5, 7, 9, 11]
    assert b"".join(answer.content for _, answer in found) == BACKWARDS
    assert (tally.sentences, tally.tokens) == (11, 22)
    assert pool.description[0] != os.getpid()
    assert pool.description[1] == max(1, torch.get_num_threads() // 2)


def test_the_first_process_alone_describes_its_translator(pool, trace):
    assert [path.name for path in trace.iterdir()] == [str(pool.description[0])]


def test_answers_know_what_was_counted_of_them(pool):
    found = pool.map(windows(["long", "a", "long", "long", "b"]), Tally())
    assert [answer.counts["too_long"] for _, answer in found] == [1, 2, 0]


def test_memory_is_bounded(pool):
    ahead, read = [], []
    lines = (read.append(number) or f"line {number}" for number in range(40))
    for given, _ in enumerate(pool.map(windows(lines, 1), Tally()), start=1):
        ahead.append(len(read) - given)
    assert given == 40
    assert max(ahead) <= 3, "two for each process, one of which has just been given back"


def test_what_was_read_before_an_error_is_done(pool):
    def lines():
        yield from LINES[:5]
        raise ValueError("line 6 cannot be read")

    found = []
    with pytest.raises(ValueError, match="line 6 cannot be read"):
        found += (answer.content for _, answer in pool.map(windows(lines(), 2), Tally()))
        raise AssertionError("the error is lost")
    for _, answer in pool.map(windows(LINES[:1]), Tally()):
        assert answer.content == b"1 enil\n", "and the pool can go on"


@pytest.mark.slow
def test_errors_come_from_the_processes_and_one_that_died_while_it_had_nothing_to_do_is_named(capfd):
    """Not as a broken pipe, which the scripts take for a reader of their output that has seen enough."""
    with WorkerPool(open_backwards, LineWork("translate"), 1, "cpu", describe) as pool:
        with pytest.raises(ValueError, match="told to fail"):
            list(pool.map(windows(["one", "two", "fail"], 1), Tally()))
        os.kill(pool.description[0], signal.SIGKILL)
        with pytest.raises(OSError, match="1 of 1 processes ended before its work was done") as raised:
            list(pool.map(windows(LINES), Tally()))
    assert not isinstance(raised.value, BrokenPipeError)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_model_that_cannot_be_opened_is_told_by_the_processes(capfd):
    with pytest.raises(OSError, match="no such model"):
        WorkerPool(open_nothing, LineWork("translate"), 1, "cpu", describe)
    assert capfd.readouterr().err == ""


def imported(translator):
    heavy = "vanilla_transformer_hf.translation.translator", "transformers.pipelines", "peft", "transformers.trainer"
    return [name for name in heavy if name in sys.modules]


@pytest.mark.slow
def test_processes_import_nothing_that_translating_does_without(counting_folder):
    given = Namespace(model=str(counting_folder), dtype="auto", max_source_length=None, target_lang_tag=None)
    opens = partial(open_translator, given, "default")
    with WorkerPool(opens, LineWork("translate"), 1, "cpu", imported) as pool:
        assert pool.description == ["vanilla_transformer_hf.translation.translator"]


def test_devices_are_shared_out(monkeypatch):
    for device in (None, "cpu", "cuda:1"):
        assert device_of(1, device) == (
            device if device or not torch.accelerator.is_available() else device_of(1, None)
        )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert [device_of(number, "cuda") for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert device_of(3, "cuda:1") == "cuda:1"


SCRIPT = """
import os, signal
from functools import partial
from test_pool import LineWork, WorkerPool, describe, open_backwards
if __name__ == "__main__":
    pool = WorkerPool(open_backwards, LineWork("translate"), 1, "cpu", describe)
    print(pool.description[0], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_processes_end_when_the_main_process_is_killed(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    worker = Path(f"/proc/{int(done.stdout)}")
    for _ in range(300):
        if not worker.exists():
            return
        time.sleep(0.1)
    raise AssertionError("the process waits for work that nobody has")


def test_a_killed_process_is_named(pool):
    """The last of this file: the pool is of no use afterwards."""
    os.kill(pool.description[0], signal.SIGKILL)
    with pytest.raises(OSError, match="1 of 2 processes ended before its work was done"):
        for _ in range(100):  # the other process may finish these lines before the end is noticed
            list(pool.map(windows(LINES), Tally()))
            time.sleep(0.1)
