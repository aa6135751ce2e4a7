"""Checksums: damage is found, and what was written anew on purpose is not called damage."""

import hashlib
import os
import shutil

import pytest

from vanilla_transformer_hf.common.checksums import SUMS_FILE, check_unchanged, verify_folder, write_checksums


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    (folder / "more").mkdir(parents=True)
    for name, content in {"config.json": b"{}", "model.safetensors": b"w" * 999, "more/a b.txt": "ä".encode()}.items():
        (folder / name).write_bytes(content)
    write_checksums(folder)
    return folder


def damage(path):
    time = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    os.utime(path, ns=(time, time))


def test_a_whole_folder_is_right(folder):
    found = verify_folder(folder)
    assert sorted(found.right) == ["config.json", "model.safetensors", "more/a b.txt"]
    assert not found.wrong and not found.unknown
    check_unchanged(folder)


def test_the_format_is_that_of_sha256sum(folder):
    lines = (folder / SUMS_FILE).read_text().splitlines()
    assert f"{hashlib.sha256(b'{}').hexdigest()}  config.json" in lines


def test_damage_loss_and_what_is_new_are_told(folder):
    damage(folder / "model.safetensors")
    (folder / "config.json").unlink()
    (folder / "new").write_text("x")
    found = verify_folder(folder)
    assert found.right == ["more/a b.txt"]
    assert sorted(found.wrong) == ["config.json", "model.safetensors"] and found.unknown == ["new"]
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        check_unchanged(folder)


def test_a_card_may_be_edited_and_a_config_written_again(folder):
    """What was edited on purpose and copied without its times is refused in one line, which says what to do."""
    (folder / "README.md").write_text("card")
    write_checksums(folder)
    damage(folder / "README.md")
    check_unchanged(folder)
    assert verify_folder(folder).wrong == ["README.md"]
    damage(folder / "config.json")
    with pytest.raises(ValueError, match=r"config\.json is damaged: .*run vanilla-transformer verify .* --write"):
        check_unchanged(folder)
    write_checksums(folder)
    check_unchanged(folder)


def test_checkpoints_and_hidden_files_are_left_out(folder):
    for name in (".lock", "checkpoints/checkpoint-1/model.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    write_checksums(folder)
    found = verify_folder(folder)
    assert sorted(found.right) == ["config.json", "model.safetensors", "more/a b.txt"] and not found.unknown


def test_a_checkpoint_is_compared_with_the_card_of_its_conversion(folder, tmp_path):
    card = tmp_path / "card.md"
    row = "| model.safetensors | 999 | `{}` |"
    card.write_text("# Card\n" + row.format(hashlib.sha256(b"w" * 999).hexdigest()) + "\n")
    assert verify_folder(folder, card).right == ["model.safetensors"]
    card.write_text(row.format("0" * 64) + "\n| gone.pt | 1 | `" + "1" * 64 + "` |\n")
    assert verify_folder(folder, card).wrong == ["model.safetensors", "gone.pt"]
    card.write_text("# Card\n")
    with pytest.raises(ValueError, match="does not list the files of a checkpoint"):
        verify_folder(folder, card)


def test_what_was_written_later_is_not_damage(folder):
    time = (folder / SUMS_FILE).stat().st_mtime_ns + 10**9
    (folder / "model.safetensors").write_bytes(b"trained further")
    os.utime(folder / "model.safetensors", ns=(time, time))
    check_unchanged(folder)
    assert verify_folder(folder).wrong == ["model.safetensors"]


@pytest.mark.parametrize("line", ["x", "0" * 64 + "  ../x", "0" * 64 + "  /etc/passwd", "0" * 63 + "  config.json"])
def test_what_is_not_a_list_of_checksums_is_refused(line, folder):
    (folder / SUMS_FILE).write_text(line + "\n")
    with pytest.raises(ValueError, match="SHA256SUMS is damaged: line 1"):
        verify_folder(folder)


def test_what_the_hubs_cache_knows(tmp_path):
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "0"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    small = hashlib.sha1(b"blob 2\0{}").hexdigest()
    large = hashlib.sha256(b"weights").hexdigest()
    for name, etag, content in (("config.json", small, b"{}"), ("model.safetensors", large, b"weights")):
        (blobs / etag).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{etag}")
    assert sorted(verify_folder(snapshot).right) == ["config.json", "model.safetensors"]
    check_unchanged(snapshot)
    (blobs / large).write_bytes(b"weightx")
    with pytest.raises(ValueError, match="not the one in the Hub's cache"):
        check_unchanged(snapshot)
    assert verify_folder(snapshot).wrong == ["model.safetensors"]
    # A download to a folder leaves records beside the files.
    local = tmp_path / "local"
    records = local / ".cache" / "huggingface" / "download"
    records.mkdir(parents=True)
    shutil.copy(blobs / small, local / "config.json")
    (records / "config.json.metadata").write_text(f"revision\n{small}\n1.5\n")
    assert verify_folder(local).right == ["config.json"]
    (local / "config.json").write_text("[]")
    assert verify_folder(local).wrong == ["config.json"]


def test_a_folder_without_checksums_is_told(tmp_path):
    with pytest.raises(ValueError, match="holds no checksums"):
        verify_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        verify_folder(tmp_path / "nowhere")
    check_unchanged(tmp_path)
