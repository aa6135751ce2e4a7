"""Folders with int8 weights."""

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

from vanilla_transformer_hf import Int8Config
from vanilla_transformer_hf.model.packing.int8 import dequantize_rows, quantize_rows


@pytest.fixture
def folders(decided_model, tmp_path):
    """A saved model, and the same in int8."""
    decided_model().save_pretrained(tmp_path / "plain")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "plain", quantization_config=Int8Config())
    model.save_pretrained(tmp_path / "int8")
    return tmp_path / "plain", tmp_path / "int8", model


def test_a_folder_holds_a_byte_for_each_weight(folders):
    plain, folder, _ = folders
    with safe_open(folder / "model.safetensors", "pt") as file, safe_open(plain / "model.safetensors", "pt") as whole:
        assert {name for name in set(file.keys()) if not name.endswith("_scale")} == set(whole.keys())
        for name in list(whole.keys()):
            tensor, original = file.get_tensor(name), whole.get_tensor(name)
            if original.dim() == 2:
                assert tensor.dtype == torch.int8
                steps = file.get_tensor(f"{name}_scale")
                expected, expected_steps = quantize_rows(original)
                assert torch.equal(tensor, expected) and torch.equal(steps, expected_steps)
            else:
                assert torch.equal(tensor, original)


def test_it_opens_by_the_same_call_and_is_saved_the_same(folders, source, tmp_path):
    plain, folder, made = folders
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="bfloat16").eval()
    original = AutoModelForSeq2SeqLM.from_pretrained(plain).eval()
    assert model.dtype == torch.float32  # another type would change the weights
    for (name, tensor), other in zip(model.state_dict().items(), made.state_dict().values(), strict=True):
        assert torch.equal(tensor, other)
        weight = original.state_dict()[name]
        if weight.dim() == 2 and "position" not in name:
            assert torch.equal(tensor, dequantize_rows(*quantize_rows(weight)))
    # It searches in int8 by itself: with its weights in another model, that has to be asked for.
    original.load_state_dict(model.state_dict())
    options = {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True}
    expected = original.generate(**source, **options, quantization="int8")
    assert torch.equal(model.generate(**source, **options).sequences_scores, expected.sequences_scores)
    exact = original.generate(**source, **options)
    assert not torch.equal(exact.sequences_scores, expected.sequences_scores)
    model.generate(**source, use_cache=False, max_new_tokens=2)  # by transformers' loop, with the rounded weights
    model.save_pretrained(tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_it_cannot_be_trained(folders, tmp_path):
    with pytest.raises(ValueError, match="cannot perform fine-tuning on purely quantized models"):
        Seq2SeqTrainer(folders[2], Seq2SeqTrainingArguments(str(tmp_path / "run"), report_to=[]))
