"""scripts/compare_models.py: a row for each model, with its size, speed and score."""

import gzip
from pathlib import Path

import pytest
from counting_model import SOURCES, TARGETS


@pytest.mark.slow
def test_it_prints_a_row_for_each_model(counting_folder, tmp_path, script):
    for name, lines in (("val.en.gz", SOURCES[:40]), ("val.de.gz", TARGETS[:40])):
        (tmp_path / name).write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    files = [tmp_path / "val.en.gz", tmp_path / "val.de.gz", counting_folder]
    code, out, _ = script("compare_models.py", *files, "--rounds", "1", "--bleu_tokenize", "char")
    row = [cell.strip() for cell in out.splitlines()[-1].strip("|").split("|")]
    size = Path(counting_folder, "model.safetensors").stat().st_size
    assert code == 0 and row[0] == Path(counting_folder).name and float(row[2]) == pytest.approx(size / 1e6, abs=0.06)
    assert float(row[3]) > 0 and float(row[4]) > 0 and float(row[5]) > 90
