"""A checkpoint of every toolkit, converted and opened in the explorer."""

import numpy as np
import pytest
import torch
from checkpoints import WRITERS, write
from make_spoken_digits import write_wave
from tokenizers import Tokenizer, models

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion.converter import convert
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.file_sources import FileSubject
from vanilla_transformer_hf.explorer.results import from_json


def add_tokenizer(folder, config):
    """Checkpoints without a vocabulary are converted without a tokenizer: each id is a word."""
    size = min(config.vocab_size, config.source_vocab_size or config.vocab_size)
    special = {config.pad_token_id: "<pad>", config.eos_token_id: "</s>"}
    unknown = next(f"w{index}" for index in range(size) if index not in special)
    words = {special.get(index, f"w{index}"): index for index in range(size)}
    backend = Tokenizer(models.WordLevel(words, unk_token=unknown))
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": unknown}
    VanillaTransformerTokenizer(tokenizer_object=backend, **names).save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("source", WRITERS)
@torch.no_grad()
def test_a_converted_checkpoint_has_all_views(source, tmp_path):
    config = convert(source, write(source, tmp_path / "checkpoint"), tmp_path / "model").config
    if not (tmp_path / "model" / "tokenizer.json").exists():
        add_tokenizer(tmp_path / "model", config)
    explorer = Explorer.open([str(tmp_path / "model")])
    (subject,) = explorer.subjects.values()
    if isinstance(subject, FileSubject):
        noise = np.random.default_rng(0).normal(scale=0.1, size=1600)
        write_wave(tmp_path / "noise.wav", noise, subject.processor.feature_extractor.sampling_rate)
        request = {"text": explorer.open_files("speech", [tmp_path / "noise.wav"])[0]}
    else:
        known = [index for index in range(min(subject.tokenizer.vocab_size, 9)) if index not in subject.special]
        request = {"text": subject.tokenizer.decode(known[-3:])}
    found = explorer.answer("translate", request)["hypotheses"][0]
    if subject.kind != "masked":
        request["target_ids"] = found["ids"][:9]  # untrained models do not end
    (info,) = explorer.answer("models", {})
    for part in info["layers"]:
        weights = explorer.answer("attention", {**request, "part": part, "layer": 0})["weights"]
        sums = from_json(weights).sum(dim=-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-5, rtol=0)
        explorer.answer("head", {**request, "part": part, "layer": 0, "head": 0})
    walk = explorer.answer("walk", request)
    assert len(walk["lenses"]) == info["layers"][subject.lens_stack] and walk["boxes"][-1]["name"] == "probabilities"
    if subject.kind != "masked":  # these have rows at mask tokens
        attributions = explorer.answer("attributions", request)
        assert attributions["scores"]["shape"][0] == explorer.answer("ranks", request)["ranks"]["shape"][1] > 0
    explorer.answer("positions", {"stack": "encoder" if "encoder" in info["layers"] else "decoder"})
