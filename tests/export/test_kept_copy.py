"""The copy for CTranslate2 in the cache: one export for all who need it."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from huggingface_hub import constants

from vanilla_transformer_hf.common.locks import lock_path
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
        copy.mkdir()
        exports.append(copy)

    module = sys.modules[kept_copy.__module__]
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.setattr(module, "lock_path", lock)
    monkeypatch.setattr(module, "export_for", export)
    with ThreadPoolExecutor(2) as pool:
        copies = [each.result() for each in [pool.submit(kept_copy, model, None) for _ in range(2)]]
    assert copies == [*exports, *exports] and copies[0].is_dir()
