"""What differs between releases of transformers 5, each by the name of the thing and found by what is there."""

from dataclasses import fields
from typing import Any

import torch
import transformers
from transformers.cache_utils import Cache
from transformers.modeling_outputs import Seq2SeqModelOutput


# The name of the cache in outputs, and in what transformers' loops hand over: `past_key_values`, and since 5.24
# `cache`. Models take both.
CACHE = "cache" if "cache" in {field.name for field in fields(Seq2SeqModelOutput)} else "past_key_values"


def named(cache: Any) -> dict[str, Any]:
    """A cache as an argument of transformers' outputs and functions."""
    return {CACHE: cache}


def given_cache(model: torch.nn.Module, cache: Any, past_key_values: Any, others: dict[str, Any]) -> Any:
    """
    The cache of a call of a model, which may come under either name; None if there is none.

    Raises:
        ValueError: Two caches are given; another argument holds one, which without its past would be a wrong answer;
            or layers that gradient checkpointing computes twice would grow it twice.
    """
    name = type(model).__name__
    for other, value in others.items():
        if isinstance(value, Cache):
            raise ValueError(
                f"{name}: {other} holds a cache, which this model takes as cache or past_key_values; transformers "
                f"{transformers.__version__} may be newer than this model's code: update vanilla_transformer_hf"
            )
    given = [one for one in (cache, past_key_values) if one is not None]
    if len(given) == 2 and cache is not past_key_values:
        given = [one for one in given if one.get_seq_length()] or given[:1]  # PEFT's prefix beside a new cache
        if len(given) == 2:
            raise ValueError(f"{name}: cache and past_key_values are two caches with tokens; expected one of them")
    found = given[0] if given else None
    is_checkpointed = getattr(model, "gradient_checkpointing", False) and model.training and torch.is_grad_enabled()
    if found is not None and is_checkpointed:
        raise ValueError(f"{name}: gradient checkpointing is not possible with a cache; call it without")
    return found
