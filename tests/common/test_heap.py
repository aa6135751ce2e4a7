"""How much memory the heap keeps: what glibc is told, and that other C libraries are left alone."""

import os
import sys
from platform import libc_ver
from types import SimpleNamespace

import pytest

from vanilla_transformer_hf.common import heap


@pytest.fixture(autouse=True)
def looked_up_anew(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    heap._library.cache_clear()
    yield
    heap._library.cache_clear()


@pytest.fixture
def told(monkeypatch):
    """What the library is told."""
    calls = []
    library = SimpleNamespace(mallopt=lambda *values: calls.append(values), malloc_trim=calls.append)
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    return calls


def test_large_blocks_lie_outside_and_free_memory_goes_back(told):
    heap.keep_heap_small()
    heap.give_back_memory()
    assert told == [(-3, 2**22), (-1, 2**28), 0]


@pytest.mark.parametrize("name", heap.SETTINGS)
def test_what_the_environment_says_stays(told, name):
    os.environ[name] = "1"
    heap.keep_heap_small()
    assert told == []


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_other_c_libraries_are_left_alone(monkeypatch, platform):
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: SimpleNamespace())
    monkeypatch.setattr(sys, "platform", platform)
    heap.keep_heap_small()
    heap.give_back_memory()
    assert heap._library() is None


@pytest.mark.skipif(libc_ver()[0] != "glibc", reason="not glibc")
def test_glibc_takes_the_values():
    library = heap._library()
    assert library.mallopt(heap.M_TRIM_THRESHOLD, heap.MOST_FREE) == 1
    assert library.malloc_trim(0) in (0, 1)
