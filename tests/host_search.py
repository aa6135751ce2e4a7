"""Our model with the search of transformers, to compare with."""

import torch
from transformers import GenerationMixin

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration


class HostSearch(VanillaTransformerForConditionalGeneration):
    """Our model with the loops of transformers."""

    _sample = GenerationMixin._sample
    _beam_search = GenerationMixin._beam_search


def host(model):
    """The same weights, searched by transformers."""
    twin = HostSearch(model.config).eval()
    twin.load_state_dict(model.state_dict())
    twin.generation_config = model.generation_config
    return twin


def same(model, source, **options):
    """Search both ways and compare; returns our sequences."""
    ours = model.generate(**source, **options)
    theirs = host(model).generate(**source, **options)
    assert torch.equal(ours, theirs), options
    return ours
