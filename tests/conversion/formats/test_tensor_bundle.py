"""TensorFlow's checkpoints: what TensorFlow itself wrote, and damaged ones."""

import json
from pathlib import Path

import pytest
import tensorflow_writer
import torch
from tensorflow_writer import write_checkpoint

from vanilla_transformer_hf.conversion import ConversionError
from vanilla_transformer_hf.conversion.formats.tensor_bundle import TensorBundle


RECORDED = Path(__file__).parents[1] / "recorded" / "tensorflow-2.21"


def test_what_tensorflow_wrote():
    """Eight tensors of eight types in two data files (SaveV2, MergeV2Checkpoints)."""
    expected = json.loads((RECORDED / "expected.json").read_text())
    bundle = TensorBundle(RECORDED / "model.ckpt-1")
    assert set(bundle) == set(expected)
    for name, values in expected.items():
        assert bundle[name].double().tolist() == values, name
    types = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)
    assert {bundle[name].dtype for name in bundle} == set(types)
    assert [path.name for path in bundle.files()][1:] == [
        "model.ckpt-1.data-00000-of-00002",
        "model.ckpt-1.data-00001-of-00002",
    ]


def test_tensors_in_slices_are_refused():
    with pytest.raises(ConversionError, match="w is stored in slices"):
        TensorBundle(RECORDED / "sliced")["w"]


def test_many_blocks(tmp_path):
    tensors = {f"scope/layer_{number}/kernel": torch.randn(3, number + 1) for number in range(300)}
    write_checkpoint(tmp_path / "m", tensors)
    bundle = TensorBundle(tmp_path / "m")
    assert len(bundle) == 300
    for name, tensor in tensors.items():
        assert torch.equal(bundle[name], tensor)


def test_missing_and_short_data_files_are_named(tmp_path):
    write_checkpoint(tmp_path / "m", {"a": torch.ones(4), "b": torch.ones(4)})
    data = tmp_path / "m.data-00001-of-00002"
    data.write_bytes(data.read_bytes()[:-1])
    bundle = TensorBundle(tmp_path / "m")
    assert torch.equal(bundle["a"], torch.ones(4))
    with pytest.raises(ConversionError, match=r"data-00001-of-00002 is damaged: the checksum of b is wrong"):
        bundle["b"]
    data.unlink()
    with pytest.raises(ConversionError, match=r"data-00001-of-00002 is missing"):
        bundle["b"]


def test_an_entry_that_is_cut_off_is_refused(tmp_path, monkeypatch):
    whole, longest = tensorflow_writer.block, 10  # of the index's other values
    monkeypatch.setattr(
        tensorflow_writer,
        "block",
        lambda entries: whole([(key, value[:-1] if len(value) > longest else value) for key, value in entries]),
    )
    write_checkpoint(tmp_path / "m", {"a": torch.ones(4)})
    with pytest.raises(ConversionError, match=r"m\.index is not a complete checkpoint index: a field is cut off"):
        TensorBundle(tmp_path / "m")


def test_without_the_library_of_checksums_it_is_named(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "m", {"a": torch.ones(4)})
    monkeypatch.setitem(__import__("sys").modules, "google_crc32c", None)
    with pytest.raises(ConversionError, match="pip install google-crc32c"):
        TensorBundle(tmp_path / "m")
