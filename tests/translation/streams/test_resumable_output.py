"""Output files that an interrupted run leaves to the next one."""

import errno
import io
import json
import os
from pathlib import Path

import pytest

from vanilla_transformer_hf.common import files
from vanilla_transformer_hf.translation.streams.lines import LocalWorker, run_lines
from vanilla_transformer_hf.translation.streams.resumable_output import ResumableOutput, StreamOutput, open_result
from vanilla_transformer_hf.translation.streams.work import LineWork


LINES = [f"line {number}" for number in range(1, 12)]
BACKWARDS = "".join(f"{line[::-1]}\n" for line in LINES).encode()
SETTINGS = {"num_beams": 4, "dtype": "float32"}


class Killed(BaseException):
    pass


@pytest.fixture
def path(tmp_path):
    return tmp_path / "output"


@pytest.fixture
def run(backwards, path):
    """`run(lines, settings, restart)`: a run; what it says of where it began."""

    def run(lines=LINES, settings=SETTINGS, restart=False):
        with ResumableOutput(path, restart) as output:
            output.resume(settings)
            began = output.lines
            worker = LocalWorker(backwards, LineWork("translate"))
            run_lines(worker, lines, output, window=3, name="output")
        return began

    return run


@pytest.fixture
def interrupted(run, path):
    """A run that ended inside its third window, as an exception ends it."""

    def lines():
        yield from LINES[:7]
        raise Killed

    with pytest.raises(Killed):
        run(lines())
    return path.with_name("output.partial")


def names(path):
    return sorted(entry.name for entry in path.parent.iterdir())


def test_a_whole_run_leaves_the_file_alone(run, path):
    assert run() == 0
    assert path.read_bytes() == BACKWARDS
    assert names(path) == ["output"]


def test_the_next_run_continues_to_the_same_bytes(run, path, interrupted, backwards, caplog):
    assert interrupted.read_bytes() == b"".join(f"{line[::-1]}\n".encode() for line in LINES[:6])
    assert names(path) == ["output.partial", "output.partial.json"]
    backwards.seen.clear()
    assert run() == 6
    assert path.read_bytes() == BACKWARDS
    assert backwards.seen == [LINES[6:9], LINES[9:]], "windows as in a run in one go"
    assert names(path) == ["output"]


def test_an_interruption_says_that_the_file_is_kept(run, path, interrupted, caplog):
    with pytest.raises(ValueError, match="another input"):
        run([])
    assert caplog.messages == [f"{interrupted} is kept: the same command continues it"]


def test_half_a_window_is_dropped(run, path, interrupted):
    with interrupted.open("ab") as file:
        file.write(b"7 en")  # torn off by a kill
    assert run() == 6
    assert path.read_bytes() == BACKWARDS


def test_what_the_first_run_counted_counts_at_the_end(path, backwards):
    lines = ["long", "2", "3", "long", "long", "6", "long", "8"]

    def run(items):
        with ResumableOutput(path) as output:
            output.resume(SETTINGS)
            return run_lines(LocalWorker(backwards, LineWork("translate")), items, output, window=3)

    def killed():
        yield from lines[:7]
        raise Killed

    with pytest.raises(Killed):
        run(killed())
    assert run(lines).too_long == 4


def test_a_changed_file_is_refused(run, path, interrupted):
    content = interrupted.read_bytes()
    interrupted.write_bytes(content[:3] + b"X" + content[4:])
    with pytest.raises(ValueError, match=r"output\.partial was changed since .* its first 42 bytes"):
        run()
    assert names(path) == ["output.partial", "output.partial.json"], "and nothing is lost"
    interrupted.write_bytes(content)
    assert run() == 6
    assert path.read_bytes() == BACKWARDS


def test_a_run_that_ended_inside_its_last_window_ends(run, path, interrupted):
    journal = json.loads(interrupted.with_name("output.partial.json").read_text())
    assert (journal["lines"], journal["bytes"], journal["settings"]) == (6, interrupted.stat().st_size, SETTINGS)
    assert run(LINES[:6]) == 6
    assert path.read_bytes() == interrupted.read_bytes() if interrupted.exists() else path.read_bytes()


def test_another_input_is_refused(run, path, interrupted):
    for lines in (["other", *LINES[1:]], LINES[:5], []):
        with pytest.raises(ValueError, match="output was begun with another input: its first 6 lines"):
            run(lines)
        assert names(path) == ["output.partial", "output.partial.json"], "and nothing is lost"
    assert run() == 6


def test_other_settings_are_refused_by_name(run, path, interrupted):
    with pytest.raises(ValueError, match="was begun with num_beams=4, and now it is 5"):
        run(settings={**SETTINGS, "num_beams": 5})
    with pytest.raises(ValueError, match=r"was begun with length_penalty=None, and now it is 0\.6"):
        run(settings={**SETTINGS, "length_penalty": 0.6})
    assert run() == 6


def test_restart_begins_anew(run, path, interrupted):
    other = [line.upper() for line in LINES]
    assert run(other, {"num_beams": 5}, restart=True) == 0
    assert path.read_bytes() == "".join(f"{line[::-1]}\n" for line in other).encode()
    assert names(path) == ["output"]


@pytest.mark.parametrize("what", ["output", "journal"])
def test_a_full_disk_leaves_whole_lines_and_names_the_file(path, monkeypatch, what):
    def no_space(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"partial: No space left on device"), ResumableOutput(path) as output:
        output.resume({})
        output.write(b"one\ntwo\n", 2, "x", {})
        if what == "journal":
            monkeypatch.setattr(Path, "replace", no_space)
        else:
            monkeypatch.setattr(os, "fsync", no_space)
        output.write(b"three\nfour\n", 4, "y", {})
    assert output.partial.read_bytes() == b"one\ntwo\n"
    assert sorted(each.name for each in path.parent.iterdir()) == [output.partial.name, output.journal.name]


def test_what_has_written_nothing_leaves_nothing(run, path):
    with pytest.raises(ValueError, match="told to fail"):
        run(["one", "fail"])
    assert names(path) == []


def test_a_failed_restart_leaves_nothing(run, path, interrupted):
    with pytest.raises(ValueError, match="told to fail"):
        run(["fail"], restart=True)
    assert names(path) == []


def test_partial_file_without_a_journal_counts_nothing(run, path):
    path.with_name("output.partial").write_bytes(b"1 enil\n")
    assert run() == 0
    assert path.read_bytes() == BACKWARDS


def test_journal_without_its_file_counts_nothing(run, path, interrupted):
    interrupted.unlink()
    assert run() == 0
    assert path.read_bytes() == BACKWARDS


def test_a_damaged_journal_is_named(run, path, interrupted):
    path.with_name("output.partial.json").write_text("{")
    with pytest.raises(ValueError, match=r"output\.partial\.json: damaged .*--restart"):
        run()


@pytest.mark.parametrize(
    "change",
    [
        *([], "text", 5, None, True, {}),
        *({"bytes": "5"}, {"bytes": None}, {"lines": [1]}, {"lines": -1}, {"lines": True}, {"counts": []}),
        *({"counts": {"too_long": "5"}}, {"settings": []}, {"settings": None}, {"digest": 5}),
    ],
)
def test_a_journal_of_another_form_is_named(run, path, interrupted, change):
    journal = path.with_name("output.partial.json")
    known = json.loads(journal.read_text())
    journal.write_text(json.dumps({**known, **change} if isinstance(change, dict) and change else change))
    with pytest.raises(ValueError, match=r"output\.partial\.json: damaged .*--restart") as refused:
        run()
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=r"--restart"), ResumableOutput(path) as output:
        output.recall()


def test_two_runs_do_not_write_one_file(run, path):
    with ResumableOutput(path) as output:
        output.resume(SETTINGS)
        with pytest.raises(OSError, match="another run is writing this file"):
            run()
    assert path.read_bytes() == b""


def test_a_run_that_comes_as_another_ends_does_not_touch_its_file(run, path, monkeypatch):
    """It has opened the file that is written, and gets the lock once that has its last name."""
    lock = files.lock_open_file

    def late(file, name):
        path.with_name("output.partial").replace(path)
        lock(file, name)

    path.with_name("output.partial").write_bytes(b"whole")
    monkeypatch.setattr(files, "lock_open_file", late)
    with pytest.raises(OSError, match="another run is writing this file"):
        run()
    assert path.read_bytes() == b"whole"


def test_what_is_no_file_is_written_to(path, capfdbinary, monkeypatch):
    with open_result(os.devnull) as output:
        output.write(b"one\n", 1, "", {})
    reading, writing = os.pipe()
    with open_result(f"/dev/fd/{writing}") as output:
        output.write(b"one\n", 1, "", {})
    os.close(writing)
    assert os.read(reading, 9) == b"one\n"
    os.close(reading)
    target = io.BytesIO()
    StreamOutput(target).write(b"two\n", 1, "", {})
    assert target.getvalue() == b"two\n"
    assert not list(path.parent.iterdir())
