"""Text files: what ends a line, what is refused, and when a file takes its name."""

import gzip
import os

import pytest

from vanilla_transformer_hf.common import files
from vanilla_transformer_hf.common.files import decode_lines, new_files, open_output, read_lines, refuse_overwriting


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_only_line_feeds_end_a_line(name, tmp_path):
    text = "\ufeffone\u2028two\r\n\n\x0b three\x85\rfour\n five"
    lines = ["one\u2028two", "", "\x0b three\x85\rfour", " five"]
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert list(read_lines(tmp_path / name)) == lines
    assert "".join(read_lines(tmp_path / name, keep_ends=True)) == text.removeprefix("\ufeff")


def test_an_empty_file_has_no_lines():
    assert list(decode_lines([], "nothing")) == []


def test_invalid_utf8_is_named(tmp_path):
    (tmp_path / "text").write_bytes(b"one\n\ntwo \xe9t\xe9\n")
    with pytest.raises(ValueError, match=r"text, line 3: not valid UTF-8 \(byte 0xe9 at position 4\)"):
        list(read_lines(tmp_path / "text"))


def test_invalid_utf8_behind_a_mark_is_named(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfab\xff\n")
    with pytest.raises(ValueError, match=r"text, line 1: not valid UTF-8 \(byte 0xff at position 5\)"):
        list(read_lines(tmp_path / "text"))


def test_a_damaged_gzip_file_is_named(tmp_path):
    whole = gzip.compress("".join(f"line {number}\n" for number in range(999)).encode())
    for place in range(30, len(whole), 40):
        (tmp_path / "text.gz").write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"text\.gz"):
            list(read_lines(tmp_path / "text.gz"))


def test_an_incomplete_gzip_file_is_named(tmp_path):
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"one\n" * 1000)[:-12])
    with pytest.raises(ValueError, match=r"text\.gz: not a complete gzip file"):
        list(read_lines(tmp_path / "text.gz"))


def test_output_takes_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "output"
    with open_output(path) as file:
        file.write(b"whole")
        assert [entry.name for entry in tmp_path.iterdir()] == ["output.partial"]
    assert path.read_bytes() == b"whole"
    with pytest.raises(ZeroDivisionError), open_output(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["output"]


def test_new_files_take_their_places_together(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "model").write_text("old")
    with new_files(tmp_path) as unfinished:
        for name in ("model", "config"):
            (unfinished / name).write_text("new")
        assert (tmp_path / "model").read_text() == "old"
    with pytest.raises(ZeroDivisionError), new_files(tmp_path) as unfinished:
        (unfinished / "model").write_text("half")
        raise ZeroDivisionError
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "old": "old", "model": "new", "config": "new",
    }  # fmt: skip


def test_an_output_that_is_an_input_is_refused_under_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("one\n")
    (tmp_path / "folder").mkdir()
    os.symlink("text", "link")
    os.link("text", "hard")
    for output in ("text", "./text", "folder/../text", str(tmp_path / "text"), "link", "hard"):
        with pytest.raises(ValueError, match=f"text is also the output \\({output}\\), which would replace it"):
            refuse_overwriting(output, ["nothing", "text"])
    (tmp_path / "new.partial").write_text("one\n")
    with pytest.raises(ValueError, match=r"new\.partial is also the output"):
        refuse_overwriting("new", ["new.partial"])
    for output in ("new", "text2", os.devnull, None):
        refuse_overwriting(output, ["text", None, os.devnull])


def test_a_line_without_an_end_is_not_read(tmp_path, monkeypatch):
    """Memory is taken for the longest line that is allowed and no more, in plain and compressed files."""
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    for path, open_it in ((tmp_path / "a.txt", open), (tmp_path / "a.gz", gzip.open)):
        with open_it(path, "wb") as file:
            file.write(b"short\n" + b"x" * 10**6)
        lines = files.read_lines(path)
        assert next(lines) == "short"
        with pytest.raises(ValueError, match=r"a\.\w+, line 2: longer than the 1,000 bytes"):
            next(lines)
    (tmp_path / "a.txt").write_bytes(b"x" * 999 + b"\n" + b"y" * 1000)
    assert list(map(len, files.read_lines(tmp_path / "a.txt"))) == [999, 1000]


def test_pipes_and_devices_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "fifo", tmp_path / "link", "/dev/zero"):
        with pytest.raises(ValueError, match="is not a regular file: read a pipe from standard input"):
            next(files.read_lines(path))
    reading, writing = os.pipe()
    os.write(writing, b"from a shell\n")
    os.close(writing)
    assert list(files.read_lines(f"/dev/fd/{reading}")) == ["from a shell"]
    os.close(reading)
    assert list(files.read_lines(os.devnull)) == []
    with pytest.raises(IsADirectoryError):
        next(files.read_lines(tmp_path))
