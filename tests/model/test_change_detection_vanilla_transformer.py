"""A checksum of a tensor tells of every change."""

import pytest
import torch

from vanilla_transformer_hf.model.change_detection_vanilla_transformer import fingerprint


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("shape", [(64, 32), (7, 5), (9,), (1, 1), (3, 70_000)])
def test_every_value_and_its_place_is_in_the_fingerprint(shape, dtype):
    tensor = (100 * torch.randn(shape)).to(dtype)
    found = fingerprint(tensor)
    assert torch.equal(found, fingerprint(tensor.clone()))
    for place in range(0, tensor.numel(), max(1, tensor.numel() // 20)):
        other = tensor.clone()
        other.view(-1)[place] += 1 + other.view(-1)[place].abs()
        assert not torch.equal(found, fingerprint(other))
    for dim in range(tensor.dim()):
        if tensor.shape[dim] > 1:
            assert not torch.equal(found, fingerprint(tensor.flip(dim))), dim


def test_a_part_of_a_tensor_that_no_word_begins_with_has_one_too():
    tensor = torch.randn(40, dtype=torch.bfloat16)
    assert torch.equal(fingerprint(tensor[4:12]), fingerprint(tensor[4:12].clone()))
    assert not torch.equal(fingerprint(tensor[3:11]), fingerprint(tensor[3:11].flip(0)))
    assert not torch.equal(fingerprint(tensor.view(8, 5).t()), fingerprint(tensor.view(8, 5).t().flip(0)))
