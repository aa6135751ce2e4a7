"""Text files: what ends a line, what is refused, and when a file takes its name."""

import gzip
import os

import pytest

from vanilla_transformer_hf.common.files import decode_lines, open_output, read_lines, refuse_overwriting


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
