"""The copy for CTranslate2 in the cache: one export for all who need it."""

import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from huggingface_hub import constants

from vanilla_transformer_hf.common.files import lock_path, new_folder
from vanilla_transformer_hf.export import kept_copy


def test_who_finds_another_export_of_the_same_copy_waits_for_it(tmp_path, monkeypatch):
    """The second one ended with "is being written by another process"."""
    model, second_waits, exports = tmp_path / "model", threading.Event(), []
    model.mkdir()
    (model / "config.json").write_text("{}")
    callers = []

    def lock(path, wait):
        callers.append(path)
        if len(callers) == 2:
            second_waits.set()
        return lock_path(path, wait=wait)

    def export(engine, folder, copy, quantization):
        assert second_waits.wait(60)
        with new_folder(copy) as unfinished:
            (unfinished / "model.bin").write_bytes(bytes(99))
        exports.append(copy)

    module = sys.modules[kept_copy.__module__]
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.setattr(module, "lock_path", lock)
    monkeypatch.setattr(module, "export_for", export)
    with ThreadPoolExecutor(2) as pool:
        copies = [each.result() for each in [pool.submit(kept_copy, model, None) for _ in range(2)]]
    assert copies == [*exports, *exports] and copies[0].is_dir()


def flip(copy):
    (copy / "model.bin").write_bytes(bytes(98) + b"x")


def halve(copy):
    (copy / "model.bin").write_bytes(bytes(50))


def no_copy(copy):
    shutil.rmtree(copy)
    copy.write_bytes(b"")


DAMAGES = {
    "flipped bits": flip,
    "half a file": halve,
    "without a file": lambda copy: (copy / "model.bin").unlink(),
    "without checksums": lambda copy: (copy / "SHA256SUMS").unlink(),
    "with empty checksums": lambda copy: (copy / "SHA256SUMS").write_bytes(b""),
    "with damaged checksums": lambda copy: (copy / "SHA256SUMS").write_bytes(b"\xff"),
    "emptied": lambda copy: [file.unlink() for file in copy.iterdir()],
    "a file in its place": no_copy,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_copy_is_made_again(damage, tmp_path, monkeypatch, caplog):
    """Flipped bits gave other translations without a message."""
    model, exports = tmp_path / "model", []
    model.mkdir()
    (model / "config.json").write_text("{}")

    def export(engine, folder, copy, quantization):
        with new_folder(copy) as unfinished:
            (unfinished / "model.bin").write_bytes(bytes(99))
        exports.append(copy)

    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.setattr(sys.modules[kept_copy.__module__], "export_for", export)
    copy = kept_copy(model, None)
    damage(copy)
    assert kept_copy(model, None) == copy == kept_copy(model, None)
    assert len(exports) == 2 and (copy / "model.bin").read_bytes() == bytes(99)
    assert "is damaged, and made again" in caplog.text
