"""fairseq: real checkpoints where they are at hand, and checkpoints in its layout for every option."""

import json
from pathlib import Path

import pytest
from samples import PEERS, samples

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import convert


@pytest.mark.parametrize("name", samples("fairseq-*", "fairseq09-*"))
def test_sample(name, tmp_path):
    folder = PEERS / name
    done = convert("auto", folder, tmp_path / "out", reference=folder / "ref.npz")
    assert done.source == "fairseq"
    assert done.reopened == 0 and done.reference <= 1e-5
    record = json.loads((folder / "ref.json").read_text(encoding="utf-8"))
    assert done.greedy == (len(record["greedy"]), len(record["greedy"]))
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    for text, tokens in zip(record["src_text"], record["src_tokens"], strict=True):
        ids = tokenizer(text)["input_ids"]
        assert [token if id_ != 3 else "<unk>" for id_, token in zip(ids, tokens, strict=True)] == [
            tokenizer.convert_ids_to_tokens(id_) for id_ in ids
        ]
    assert Path(tmp_path / "out" / "generation_config.json").is_file()
