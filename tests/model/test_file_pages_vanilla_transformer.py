"""Pages of mapped files: what was written is seen, and dropping the rest changes no value."""

import mmap
from pathlib import Path

import pytest
import torch

from vanilla_transformer_hf.model.file_pages_vanilla_transformer import FilePages, private_mappings


pytestmark = pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="needs Linux's list of pages")
COUNT = 64 * mmap.PAGESIZE // 4


@pytest.fixture
def mapped(tmp_path):
    torch.arange(COUNT, dtype=torch.float32).numpy().tofile(tmp_path / "numbers")
    return torch.from_file(str(tmp_path / "numbers"), shared=False, size=COUNT)


@pytest.mark.parametrize(
    "write",
    [
        lambda tensor: tensor.data.mul_(2),
        lambda tensor: tensor.numpy().__setitem__(7, 7.0),  # the value that it has
        lambda tensor: memoryview(tensor.numpy()).cast("B").__setitem__(1000, 1),
    ],
    ids=["data", "numpy", "bytes"],
)
def test_every_write_is_seen(mapped, write):
    pages = FilePages.of([mapped[: COUNT // 2], mapped[COUNT // 2 :]])
    assert mapped.sum() > 0 and pages.are_unwritten()
    pages.leave(mapped)
    assert pages.are_unwritten()
    write(mapped)
    assert not pages.are_unwritten()
    assert FilePages.of([mapped]) is None


def test_a_part_of_a_tensor_has_its_own_pages(mapped):
    half = COUNT // 2
    first, second = FilePages.of([mapped[:half]]), FilePages.of([mapped[half:]])
    mapped.sum()
    second.leave(mapped[half:])
    mapped.data[-1] = 0
    assert first.are_unwritten() and not second.are_unwritten()


def test_written_pages_are_never_dropped(mapped):
    pages, expected = FilePages.of([mapped]), mapped.clone()
    pages.leave(mapped)
    assert torch.equal(mapped, expected)
    mapped[COUNT - 1], expected[COUNT - 1] = 3, 3
    pages.leave(mapped)
    assert torch.equal(mapped, expected)


def test_only_private_mappings_count(mapped, tmp_path):
    shared = torch.from_file(str(tmp_path / "numbers"), shared=True, size=COUNT)
    assert FilePages.of([mapped]) is not None
    for other in (shared, torch.ones(COUNT), mapped.view(2, -1).t(), torch.ones(COUNT, device="meta")):
        assert FilePages.of([mapped, other]) is None
    assert FilePages.of([]) is None
    assert all(len(one) > 0 for one in private_mappings())
