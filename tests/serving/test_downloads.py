"""Translated files: kept for their time, in memory or in a folder, the oldest dropped first."""

import time
from types import SimpleNamespace

import pytest

from vanilla_transformer_hf.serving.downloads import Downloads


@pytest.fixture(params=["memory", "folder"])
def folder(request, tmp_path):
    return str(tmp_path) if request.param == "folder" else None


def test_files_are_kept_for_their_time(folder, tmp_path, monkeypatch):
    downloads = Downloads(600, 1000, folder)
    token = downloads.add(b"one")
    assert downloads.get(token) == b"one" and len(token) == 32
    assert downloads.get("x") is downloads.get("") is downloads.get(f"../{tmp_path.name}/{token}") is None
    later = SimpleNamespace(time=lambda: time.time() + 601)
    monkeypatch.setattr("vanilla_transformer_hf.serving.downloads.time", later)
    downloads.forget_old()
    assert downloads.get(token) is None and not [*tmp_path.iterdir()]


def test_the_oldest_are_dropped(folder):
    downloads = Downloads(100, 10, folder)
    tokens = []
    for content in (b"1234", b"5678", b"90ab", b"c" * 20):
        tokens.append(downloads.add(content))
        time.sleep(0.01)
        found = [downloads.get(token) for token in tokens]
    assert found == [None, None, None, b"c" * 20]
    assert downloads.get(downloads.add(b"1234")) == b"1234"
