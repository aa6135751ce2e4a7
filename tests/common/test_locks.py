"""Locks: other processes are kept out, killed ones and file systems without locks keep nobody out."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from filelock import Timeout

from vanilla_transformer_hf.common import files
from vanilla_transformer_hf.common.files import (
    lock_open_file,
    lock_path,
    new_files,
    new_folder,
    open_output,
    write_text,
)
from vanilla_transformer_hf.training.checkpoints.resume import lock_folder


# Without the package, whose import takes seconds. Its child stays, as a worker of a DataLoader does.
HOLD = """
import os, sys, time
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
if os.fork() == 0:  # which gives its copy of the lock up before it goes on
    print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def hold():
    """`hold(path)`: another process, which holds the lock of a path, and its child, which was forked with it."""
    processes = []

    def hold(path):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, start_new_session=True
        )
        processes.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield hold
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_that_another_process_writes_is_left_alone_until_it_is_killed(hold, tmp_path):
    left = tmp_path / ".out.unfinished"
    left.mkdir()
    (left / "weights").write_text("of the other process")
    other = hold(tmp_path / ".out.unfinished.lock")
    message = r"\.out\.unfinished is being written by another process"
    with pytest.raises(ValueError, match=message), new_folder(tmp_path / "out"):
        raise AssertionError("entered")
    assert names(left) == ["weights"]
    other.kill()
    other.wait()  # its child lives on
    with new_folder(tmp_path / "out") as folder:
        assert not names(folder)
        (folder / "weights").write_text("ours")
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "weights").read_text() == "ours"


def test_a_folder_that_gets_files_is_locked_against_threads_too(tmp_path):
    with new_files(tmp_path) as unfinished:
        (unfinished / "model").write_text("first")
        with pytest.raises(ValueError, match="is being written by another process"), new_files(tmp_path):
            raise AssertionError("entered")
    assert names(tmp_path) == ["model"]


def test_a_link_in_place_of_an_unfinished_folder_is_not_followed(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    (tmp_path / ".out.unfinished").symlink_to("precious")
    with pytest.raises(OSError, match="symbolic link"), new_folder(tmp_path / "out"):
        raise AssertionError("entered")
    assert names(tmp_path) == [".out.unfinished", "precious"] and names(tmp_path / "precious") == ["file"]


def test_a_process_takes_over_a_run_of_its_own_and_none_of_another(hold, tmp_path):
    given_up = lock_folder(tmp_path)
    with lock_folder(tmp_path):
        assert given_up
        code = f"from filelock import FileLock; FileLock({str(tmp_path / '.lock')!r}, timeout=0).acquire()"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 1
    other = hold(tmp_path / ".lock")
    with pytest.raises(OSError, match="another process is training in this folder; choose another output_dir"):
        lock_folder(tmp_path)
    other.kill()
    other.wait()
    with lock_folder(tmp_path):
        assert (tmp_path / ".lock").is_file()


def test_an_open_file_is_locked_against_a_second_opening(tmp_path):
    with open(tmp_path / "file", "wb") as first, open(tmp_path / "file", "wb") as second:
        lock_open_file(first, first.name)
        with pytest.raises(Timeout):
            lock_open_file(second, second.name)
    with open(tmp_path / "file", "wb") as third:
        lock_open_file(third, third.name)


@pytest.mark.skipif(os.name != "posix", reason="other systems do not lock what they rename")
def test_an_output_is_written_by_the_descriptor_that_locks_it(tmp_path, monkeypatch):
    """Others cannot write to it on a share of Windows (SMB), where locks are mandatory."""
    locked = []
    monkeypatch.setattr("fcntl.flock", lambda descriptor, operation: locked.append(descriptor))
    (tmp_path / "output.partial").write_bytes(b"longer than what is written, left by a run that was killed")
    with open_output(tmp_path / "output") as file:
        file.write(b"whole")
        assert locked == [file.fileno()]
    assert (tmp_path / "output").read_bytes() == b"whole"


@pytest.mark.parametrize("number", files.NO_LOCKS)
def test_file_systems_without_locks_are_written_to_with_one_warning(number, tmp_path, monkeypatch, caplog):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with lock_folder(tmp_path), open(tmp_path / "file", "wb") as file:
        lock_open_file(file, file.name)
    with new_folder(tmp_path / "out") as folder:
        (folder / "model").write_text("whole")
    assert (tmp_path / "out" / "model").read_text() == "whole"
    write_text(tmp_path / "log", "step 1")
    write_text(tmp_path / "log", "step 2")
    assert [record.message for record in caplog.records] == [
        f"{tmp_path}: its file system has no locks; do not run two processes that write there"
    ]


def test_other_errors_are_told(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        lock_path(tmp_path / "lock")
    with pytest.raises(OSError, match=f"{tmp_path}"):
        lock_path(tmp_path)  # a folder
