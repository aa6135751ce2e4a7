"""What is found of a machine: limits of containers, devices by name, and numbers that can be."""

import joblib
import psutil
import pytest
import torch

from vanilla_transformer_hf.common import machine
from vanilla_transformer_hf.common.machine import accelerators, device_type, free_memory, look


@pytest.fixture(autouse=True)
def cgroup(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    return tmp_path


def test_a_container_has_less_memory_than_its_machine(cgroup):
    available = psutil.virtual_memory().available
    assert free_memory() == pytest.approx(available, rel=0.5), "no limit"
    (cgroup / "memory.current").write_text("1000\n")
    (cgroup / "memory.max").write_text("max\n")
    assert free_memory() > 1000
    (cgroup / "memory.max").write_text("3000\n")
    assert free_memory() == 2000
    (cgroup / "memory").mkdir()  # cgroups of version 1
    (cgroup / "memory" / "memory.limit_in_bytes").write_text("1500\n")
    (cgroup / "memory" / "memory.usage_in_bytes").write_text("500\n")
    assert free_memory() == 1000
    (cgroup / "memory.current").write_text("4000\n")
    assert free_memory() == 0


@pytest.mark.parametrize(("busy", "idle"), [(0.0, 4.0), (100.0, 0.0), (37.5, 2.5)])
def test_idle_cores(monkeypatch, busy, idle):
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: busy)
    found = look("cpu")
    assert found.idle == idle and found.accelerators == 0 and found.memory > 0


@pytest.mark.parametrize(("allowed", "threads", "cores"), [(2, 64, 2), (64, 4, 4)])
def test_cores_of_a_container_and_those_that_the_environment_allows(monkeypatch, allowed, threads, cores):
    monkeypatch.setattr(joblib, "cpu_count", lambda: allowed)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 0.0)
    assert look("cpu").cores == cores


def test_accelerators_by_name(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)
    assert [accelerators(name) for name in ("cpu", "cuda", "cuda:1")] == [0, 3, 1]
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    assert (device_type(None), accelerators(None)) == ("cuda", 3)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert (device_type(None), accelerators(None)) == ("cpu", 0)
