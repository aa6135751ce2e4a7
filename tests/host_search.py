"""Our model with the search of transformers, to compare with."""

import copy
from functools import wraps

import pytest
import torch
from transformers import GenerationMixin

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration


class HostLoops:
    """The loops of transformers, of which beam search takes padding of id 0 for none."""

    def _sample(self, *args, **kwargs):
        return GenerationMixin._sample(self, *args, **kwargs)

    def _beam_search(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        padding = generation_config._pad_token_tensor
        if padding is not None and padding.any():
            return GenerationMixin._beam_search(
                self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs
            )
        config = copy.copy(generation_config)
        config.return_dict_in_generate = config.output_scores = True
        found = GenerationMixin._beam_search(self, input_ids, logits_processor, stopping_criteria, config, **kwargs)
        ended = found.beam_indices < 0
        found.sequences[:, -ended.shape[1] :].masked_fill_(ended, 0 if padding is None else int(padding))
        return found if generation_config.return_dict_in_generate else found.sequences


class HostSearch(HostLoops, VanillaTransformerForConditionalGeneration):
    """Our model with the loops of transformers."""


def forbid_host_loops(monkeypatch):
    """From here on a test fails where transformers' loops search."""

    def forbid(loop):
        @wraps(loop)  # transformers reads its arguments
        def fail(*args, **kwargs):
            pytest.fail("transformers' loop")

        return fail

    for name in ("_sample", "_beam_search"):
        monkeypatch.setattr(GenerationMixin, name, forbid(getattr(GenerationMixin, name)))


def host(model):
    """A model of the class and with the weights of this one, searched by the loops of transformers."""
    twin = type("HostSearch", (HostLoops, type(model)), {})(model.config).eval()
    twin.load_state_dict(model.state_dict())
    twin.generation_config = model.generation_config
    return twin


def same(model, source, **options):
    """Search both ways and compare; returns our sequences."""
    ours = model.generate(**source, **options)
    theirs = host(model).generate(**source, **options)
    assert torch.equal(ours, theirs), options
    return ours
