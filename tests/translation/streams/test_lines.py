"""Streams: what is read, in which windows, and what is refused."""

import gzip
import io

import pytest

from vanilla_transformer_hf.common.lines import open_input
from vanilla_transformer_hf.translation.streams.lines import LocalWorker, read_items, run_lines
from vanilla_transformer_hf.translation.streams.resumable_output import StreamOutput
from vanilla_transformer_hf.translation.streams.work import LineWork


LINES = [f"line {number}" for number in range(1, 8)]
BACKWARDS = "".join(f"{line[::-1]}\n" for line in LINES).encode()


def named(content, name, seekable=True):
    file = io.BytesIO(content)
    file.name, file.seekable = name, lambda: seekable
    return file


def test_windows_are_written_as_they_are_done_and_read_no_further(backwards):
    events = []

    class Screen(io.BytesIO):
        def write(self, content):
            events.append(("write", content))

    source = (events.append(("read", line)) or line for line in LINES)
    tally = run_lines(LocalWorker(backwards, LineWork("translate")), source, StreamOutput(Screen()), window=3)
    assert [kind for kind, _ in events] == ["read"] * 3 + ["write"] + ["read"] * 3 + ["write", "read", "write"]
    assert b"".join(content for kind, content in events if kind == "write") == BACKWARDS
    assert backwards.seen == [LINES[:3], LINES[3:6], LINES[6:]]
    assert (tally.sentences, tally.tokens, tally.too_long) == (7, 14, 0)


def test_window_below_one_is_refused(backwards):
    with pytest.raises(ValueError, match="window=0: must be at least 1"):
        run_lines(LocalWorker(backwards, LineWork("translate")), LINES, StreamOutput(io.BytesIO()), window=0)


def test_a_file_is_counted_and_a_pipe_is_not(tmp_path):
    items, total = read_items([named(b"one\ntwo", "file")])
    assert (list(items), total) == (["one", "two"], 2)
    items, total = read_items([named(b"one\ntwo", "pipe", seekable=False)])
    assert (list(items), total) == (["one", "two"], None)
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    with open_input(tmp_path / "text.gz") as file:
        items, total = read_items([file])
        assert (list(items), total) == (["one", "two"], 2)


@pytest.mark.parametrize("on_bad_bytes", ["error", "replace"])
def test_an_incomplete_gzip_file_is_named_when_it_is_counted(tmp_path, on_bad_bytes):
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"one\n" * 1000)[:-12])
    with open_input(tmp_path / "text.gz") as file, pytest.raises(ValueError, match=r"text\.gz: not a complete gzip"):
        read_items([file], on_bad_bytes)


def test_files_are_read_side_by_side():
    items, total = read_items([named(b"one\ntwo\n", "source"), named(b"eins\nzwei\n", "target", seekable=False)])
    assert (list(items), total) == ([("one", "eins"), ("two", "zwei")], None)


@pytest.mark.parametrize("seekable", [True, False])
def test_files_of_unequal_length_are_refused(seekable):
    files = [named(b"one\ntwo\n", "source"), named(b"eins\n", "target", seekable)]
    with pytest.raises(ValueError, match="target ends before its line 2, another file does not"):
        list(read_items(files)[0])


@pytest.mark.parametrize("on_bad_bytes", ["replace", "skip"])
@pytest.mark.parametrize("seekable", [True, False])
def test_bad_bytes_are_replaced_or_skipped_and_counted(on_bad_bytes, seekable, caplog):
    file = named(b"one\nt\xffwo\n\xc3\nthree\n", "source", seekable)
    items, total = read_items([file], on_bad_bytes)
    middle = ["t\ufffdwo", "\ufffd"] if on_bad_bytes == "replace" else ["two", ""]
    assert (list(items), total) == (["one", *middle, "three"], 4 if seekable else None)
    what = "replaced by U+FFFD" if on_bad_bytes == "replace" else "left out"
    message = f"source: not valid UTF-8 in 2 lines, the first is line 2; these bytes were {what}"
    assert caplog.messages == [message]


def test_bad_bytes_in_a_pipe_do_not_lose_what_came_before(backwards):
    items, _ = read_items([named(b"one\ntwo\nthree\n\xff\nfour\n", "pipe", seekable=False)])
    target = io.BytesIO()
    with pytest.raises(ValueError, match="pipe, line 4: not valid UTF-8"):
        run_lines(LocalWorker(backwards, LineWork("translate")), items, StreamOutput(target), window=2)
    assert target.getvalue() == b"eno\nowt\neerht\n"


def test_bad_bytes_in_a_file_are_found_before_anything_is_done():
    with pytest.raises(ValueError, match="file, line 3: not valid UTF-8"):
        read_items([named(b"one\ntwo\n\xff\n", "file")])
