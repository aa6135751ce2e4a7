"""Text files: what ends a line, and what is refused."""

import gzip
import os
import zipfile

import pytest

from vanilla_transformer_hf.common import lines as text_lines
from vanilla_transformer_hf.common.lines import decode_lines, read_lines


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


def test_a_workbook_is_no_text(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.csv", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sheet.xml", "\xe9" * 999)
    with pytest.raises(
        ValueError, match=r"a\.csv, line 1: not valid UTF-8 .*; it is an archive, such as a workbook: s"
    ):
        list(read_lines(tmp_path / "a.csv"))


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


def test_a_line_without_an_end_is_not_read(tmp_path, monkeypatch):
    """Memory is taken for the longest line that is allowed and no more, in plain and compressed files."""
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 1000)
    for path, open_it in ((tmp_path / "a.txt", open), (tmp_path / "a.gz", gzip.open)):
        with open_it(path, "wb") as file:
            file.write(b"short\n" + b"x" * 10**6)
        lines = read_lines(path)
        assert next(lines) == "short"
        with pytest.raises(ValueError, match=r"a\.\w+, line 2: longer than the 1,000 bytes"):
            next(lines)
    (tmp_path / "a.txt").write_bytes(b"x" * 999 + b"\n" + b"y" * 1000)
    assert list(map(len, read_lines(tmp_path / "a.txt"))) == [999, 1000]


def test_pipes_and_devices_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "fifo", tmp_path / "link", "/dev/zero"):
        with pytest.raises(ValueError, match="is not a regular file: read a pipe from standard input"):
            next(read_lines(path))
    reading, writing = os.pipe()
    os.write(writing, b"from a shell\n")
    os.close(writing)
    assert list(read_lines(f"/dev/fd/{reading}")) == ["from a shell"]
    os.close(reading)
    assert list(read_lines(os.devnull)) == []
    with pytest.raises(IsADirectoryError):
        next(read_lines(tmp_path))
