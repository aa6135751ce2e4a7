"""Keys and values that grow and shrink: what they hold afterwards, and in which memory it lies."""

import pytest
import torch

from vanilla_transformer_hf.model.search.layer_tensors import LayerTensors


def drawn(heads=(2, 2, 2)):
    return [torch.randn(5, each, 4, 3) for each in heads]


@pytest.mark.parametrize("heads", [(2, 2, 2), (1, 3, 2)], ids=str)
def test_rows_are_kept_and_dimensions_cut_or_padded(heads):
    expected, rows = drawn(heads), torch.tensor([3, 0, 0, 2])
    tensors = LayerTensors([layer.clone() for layer in expected])
    for dim, size in ((-2, 7), (-1, 6), (-2, 3), (-1, 1)):
        tensors.keep(rows)
        tensors.resize(dim, size)
        for number, layer in enumerate(expected):
            kept = layer[rows].narrow(dim, 0, min(size, layer.shape[dim]))
            padding = [0, 0] * (-dim - 1) + [0, size - kept.shape[dim]]
            expected[number] = torch.nn.functional.pad(kept, padding)
        assert all(map(torch.equal, tensors.layers, expected))
        assert all(layer.is_contiguous() for layer in tensors.layers)
        assert all(map(torch.equal, tensors.flat, (layer.flatten(0, 1) for layer in expected)))


def test_what_shrinks_and_grows_again_stays_in_its_memory():
    tensors, rows = LayerTensors(drawn()), torch.arange(5)
    tensors.keep(rows)
    memory = {layer.data_ptr() for layer in (*tensors.layers, tensors._spare)}
    assert len(memory) == 4
    for count in (5, 1, 3):
        tensors.keep(torch.zeros(count, dtype=torch.long))
        assert {layer.data_ptr() for layer in tensors.layers} < memory
