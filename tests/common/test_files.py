"""New files and folders: when they take their names, and what is refused."""

import os

import pytest

from vanilla_transformer_hf.common.files import new_files, open_output, refuse_overwriting


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


def test_two_never_write_one_output(tmp_path):
    path = tmp_path / "output"
    (tmp_path / "output.partial").write_bytes(b"longer than what is written, left by a run that was killed")
    with open_output(path) as file:
        file.write(b"first")
        with pytest.raises(OSError, match=r"output\.partial: another run is writing this file"), open_output(path):
            pass
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["output"]


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="needs files for descriptors")
def test_a_pipe_gets_its_output_directly_also_through_a_link():
    reads, writes = os.pipe()
    with open_output(f"/dev/fd/{writes}") as file:
        file.write(b"whole")
    os.close(writes)
    with open(reads, "rb") as pipe:
        assert pipe.read() == b"whole"


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
    for output in ("none/new", tmp_path / "none" / "new"):
        with pytest.raises(FileNotFoundError, match=r"new: expected a file in a folder that exists"):
            refuse_overwriting(output, ["text"])
