"""Tiny runs of every kind train what they did, and helps say what they did."""

import json

import datasets
import pytest
import torch
from cpu_bits import computed_bits
from golden_runs import HELPS, RECORD, ROWS, continued, help_of, prepare, run


GOLDEN = json.loads(RECORD.read_text())
FAST = {"tokens", "denoising", "speech", "masked_lm"}  # one of each runner


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with the texts and the teacher, which is the current folder of the runs."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        prepare(folder)
        yield folder
        torch.set_num_threads(threads)


@pytest.mark.parametrize("row", [pytest.param(row, marks=() if row in FAST else pytest.mark.slow) for row in ROWS])
def test_every_kind_of_run_trains_what_it_did(row, texts):
    found, expected = run(row), GOLDEN["runs"][row]
    assert found["tokenizer"] == expected["tokenizer"]
    assert found["norm"] == pytest.approx(expected["norm"], rel=1e-4)
    if computed_bits() == GOLDEN["computed_bits"]:
        assert found["weights"] == expected["weights"]
    assert continued(row) == found


@pytest.mark.parametrize("command", HELPS, ids=" ".join)
def test_helps_say_what_they_did(command):
    assert help_of(command) == GOLDEN["helps"][" ".join(command)]


def test_all_are_recorded():
    assert (list(GOLDEN["runs"]), list(GOLDEN["helps"])) == (list(ROWS), [" ".join(each) for each in HELPS])
