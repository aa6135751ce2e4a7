"""The probe of matrix-product backends: what it measures, what it refuses, and that it leaves torch as it was."""

import contextlib
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from machine import is_within

from vanilla_transformer_hf.common import matmul as module
from vanilla_transformer_hf.common.matmul import (
    TOLERANCE,
    MatmulRow,
    available_matmuls,
    choose_matmul,
    describe_matmul,
    matmul,
    probe_matmul,
    set_matmul,
)


DEFAULT = MatmulRow("default", 100.0, 5e-5)
needs_onednn = pytest.mark.skipif("onednn" not in available_matmuls(), reason="this torch has no such switch")


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """The file of the speeds that this machine remembers."""
    path = tmp_path / "memory" / "gflops.json"
    path.parent.mkdir()
    monkeypatch.setattr(module, "_memory", lambda: path)
    return path


def setting() -> str:
    return torch.backends.mkldnn.matmul.fp32_precision


@needs_onednn
def test_probe_measures_every_backend_soon_and_changes_nothing():
    before, state = setting(), torch.get_rng_state()
    probe_matmul()  # the first call of a library prepares its kernels
    start = time.process_time()
    rows = probe_matmul()
    assert is_within(time.process_time() - start, 1), "some 50 ms on a quiet machine"
    assert [row.name for row in rows] == ["default", "onednn"]
    assert all(row.gflops > 0 for row in rows)
    assert module.known_speeds("default", "bfloat16").keys() == {"default", "onednn", "bfloat16"}
    assert 0 < rows[0].error < TOLERANCE
    assert setting() == before
    assert torch.equal(torch.get_rng_state(), state)


@needs_onednn
def test_a_machine_keeps_its_choice_however_busy_it_is(memory, monkeypatch):
    """Its two libraries add in different orders: with another choice, the same command would train other weights."""
    measured = [{"default": 100.0, "onednn": 110.0}, {"default": 100.0, "onednn": 250.0}]
    monkeypatch.setattr(module, "measure_speeds", lambda *names: measured.pop(0))
    for _ in range(3):
        assert choose_matmul("auto") == "default"
    assert len(measured) == 1
    monkeypatch.setattr(module, "_machine", lambda: "another processor")
    assert choose_matmul("auto") == choose_matmul("auto") == "onednn"
    memory.write_text("damaged")
    monkeypatch.setattr(module, "measure_speeds", lambda *names: {"default": 100.0, "onednn": 90.0})
    assert choose_matmul("auto") == "default"


@needs_onednn
def test_speeds_that_were_measured_before_bfloat16_was_keep_their_choice(memory, monkeypatch):
    memory.write_text(json.dumps({module._machine(): {"default": 100.0, "onednn": 110.0}}))
    monkeypatch.setattr(module, "measure_speeds", lambda *names: dict.fromkeys(names, 50.0))
    assert module.known_speeds("onednn", "bfloat16") == {"default": 100.0, "onednn": 110.0, "bfloat16": 50.0}
    assert choose_matmul("auto") == "default"


@needs_onednn
def test_only_trainings_in_bfloat16_measure_it(memory, monkeypatch):
    """Its products take up to a second on CPUs without instructions for it, which translations would wait for."""
    asked = []
    monkeypatch.setattr(module, "measure_speeds", lambda *names: asked.append(names) or dict.fromkeys(names, 1.0))
    probe_matmul()
    module.known_speeds("default", "bfloat16")
    assert asked == [("default", "onednn"), ("bfloat16",)]


@needs_onednn
def test_a_busy_machine_is_measured_by_its_fastest_products(monkeypatch):
    seconds = [0.05, 0.05] * 8 + [0.002, 0.001] + [0.05, 0.05] * 7
    clock = iter([moment for each in seconds for moment in (0, each)])
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert choose_matmul("auto") == "onednn"


@needs_onednn
def test_where_nothing_can_be_written_the_speeds_are_measured_each_time(memory, monkeypatch):
    memory.parent.rmdir()
    memory.parent.write_text("a file in the place of the folder")
    assert [row.name for row in probe_matmul()] == ["default", "onednn"]


@needs_onednn
def test_what_is_remembered_is_refused_where_it_rounds(memory, monkeypatch):
    monkeypatch.setattr(module, "measure_speeds", lambda *names: {"default": 100.0, "onednn": 250.0})
    monkeypatch.setattr(module, "measure_errors", lambda: {"default": 1e-5, "onednn": 0.3})
    assert choose_matmul("auto") == "default"


@needs_onednn
def test_a_backend_is_set_for_a_block_or_for_good():
    before = setting()
    with matmul("onednn"):
        assert setting() == "bf16"
        with pytest.raises(KeyError), matmul("default"):
            assert setting() == "none"
            raise KeyError
        assert setting() == "bf16"
    assert setting() == before
    set_matmul("onednn")
    assert setting() == "bf16"
    set_matmul("default")
    assert setting() == "none"


@pytest.mark.parametrize(
    ("gflops", "error", "chosen"),
    [(220, 1e-4, "onednn"), (105, 1e-4, "default"), (140, 1e-4, "default"), (220, 3e-2, "default")],
)
def test_auto_takes_what_is_clearly_faster_and_does_not_round(gflops, error, chosen):
    assert choose_matmul("auto", [DEFAULT, MatmulRow("onednn", gflops, error)]) == chosen


def test_a_named_backend_is_taken_unless_it_rounds():
    assert choose_matmul("onednn", [DEFAULT, MatmulRow("onednn", 50, 1e-4)]) == "onednn"
    with pytest.raises(ValueError, match=r"rounds \(largest error 3e-02, allowed 1e-03\)"):
        choose_matmul("onednn", [DEFAULT, MatmulRow("onednn", 220, 3e-2)])
    with pytest.raises(ValueError, match="'onednn': must be one of 'auto', 'default' here"):
        choose_matmul("onednn", [DEFAULT])
    with pytest.raises(ValueError, match="'openblas': must be one of 'default'"):
        set_matmul("openblas")


@needs_onednn
def test_rounding_is_found(monkeypatch):
    """A backend that rounds its factors to bfloat16, as oneDNN does on processors with matrix units for that."""
    linear = module.F.linear

    def rounding(*factors):
        if setting() == "bf16" and factors[0].dtype == torch.float32:
            factors = [factor.bfloat16().float() for factor in factors]
        return linear(*factors)

    monkeypatch.setattr(module.F, "linear", rounding)
    rows = probe_matmul()
    assert rows[0].error < TOLERANCE < 0.1 < rows[1].error
    assert choose_matmul("auto", rows) == "default"


def test_default_is_not_measured(monkeypatch):
    monkeypatch.setattr(module, "probe_matmul", None)
    assert choose_matmul("default") == "default"


def test_without_the_switch_there_is_the_default_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert [row.name for row in probe_matmul()] == ["default"]
    assert choose_matmul("auto") == "default"
    with matmul("default"):
        pass


def test_description_has_every_number():
    line = describe_matmul("onednn", [DEFAULT, MatmulRow("onednn", 220.4, 1.2e-4)])
    assert line == (
        "float32 matrix products: onednn (default 100 GFLOP/s with error 5e-05, onednn 220 GFLOP/s with error 1e-04)"
    )


@needs_onednn
def test_import_changes_nothing():
    code = (
        "import torch; b = torch.backends.mkldnn.matmul.fp32_precision; import vanilla_transformer_hf.common.matmul; "
    )
    code += "import vanilla_transformer_hf.model.modeling_vanilla_transformer; "
    code += "assert torch.backends.mkldnn.matmul.fp32_precision == b"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_threads_leave_the_switch_as_it_was():
    if "onednn" not in available_matmuls():
        pytest.skip("this torch has no such switch")
    before = torch.backends.mkldnn.matmul.fp32_precision
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:  # as two threads would enter and leave
        first.enter_context(matmul("onednn"))
        second.enter_context(matmul("onednn"))
        first.close()
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16", "the second is still inside"
        second.close()
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    with matmul("onednn"), matmul("default"):
        assert torch.backends.mkldnn.matmul.fp32_precision == "none"
    assert torch.backends.mkldnn.matmul.fp32_precision == before
