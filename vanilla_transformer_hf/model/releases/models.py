"""What differs for models between releases of transformers 5, found by what is there."""

import inspect
import os
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from transformers import modeling_utils
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqModelOutput
from transformers.utils import generic


NEWEST_TESTED = "5.24.0"
SKIP_CHECK = "VANILLA_TRANSFORMER_HF_SKIP_CHECK"  # a variable of the environment

# The name of the cache in outputs, and in the arguments that transformers' loops pass: `past_key_values`, and since
# 5.24 `cache`. Models take both.
CACHE = "cache" if "cache" in {field.name for field in fields(Seq2SeqModelOutput)} else "past_key_values"


def named(cache: Any) -> dict[str, Any]:
    """A cache as an argument of transformers' outputs and functions."""
    return {CACHE: cache}


def given_cache(model: Any, cache: Any, past_key_values: Any, others: dict[str, Any]) -> Any:
    """The cache of a call of a model, which may come under either name; None if there is none."""
    # A `ValueError` if two are given; if another argument holds one, which without its past would be a wrong answer;
    # if it has no place for the source; or if layers that gradient checkpointing computes twice would grow it twice.
    name = type(model).__name__
    for other, value in others.items():
        if isinstance(value, Cache):
            raise ValueError(
                f"{name}: {other} holds a cache, which this model takes as cache or past_key_values; transformers "
                f"{transformers.__version__} may be newer than this model's code: update vanilla_transformer_hf"
            )
    found = past_key_values if cache is None else cache
    has_place = hasattr(found, "is_updated") or hasattr(found, "state")  # EncoderDecoderCache, RecurrentCache
    if found is not None and model.config.is_encoder_decoder and not has_place:
        raise ValueError(
            f"{name}: a {type(found).__name__} has no place for the source: expected the cache of an earlier call, or "
            "of a Transformer EncoderDecoderCache(DynamicCache(), DynamicCache())"
        )
    if past_key_values is not None and found is not past_key_values:
        is_around = getattr(found, "base", None) is past_key_values  # PEFT's ShadowCache, of two models
        if not is_around and found.get_seq_length() and past_key_values.get_seq_length():
            raise ValueError(f"{name}: cache and past_key_values are two caches with tokens; expected one of them")
        if is_around or past_key_values.get_seq_length():  # PEFT's prefix beside a new cache
            found = past_key_values
    is_checkpointed = getattr(model, "gradient_checkpointing", False) and model.training and torch.is_grad_enabled()
    if found is not None and is_checkpointed:
        raise ValueError(f"{name}: gradient checkpointing is not possible with a cache; call it without")
    return found


TAKES_PLACES = "cache_kwargs" in inspect.signature(Cache.update).parameters


def grow(cache: Cache, key: torch.Tensor, value: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a layer (B, H, T, d) behind those in the cache, all of them."""
    if not TAKES_PLACES:
        return cache.update(key, value, layer_idx)
    # Before 5.4 a static cache has to be told the places, and would write at its beginning.
    places = torch.arange(key.shape[2], device=key.device) + cache.get_seq_length(layer_idx)
    return cache.update(key, value, layer_idx, {"cache_position": places})


def keep_logits(states: torch.Tensor, logits_to_keep: int | torch.Tensor) -> torch.Tensor:
    """States (B, T, D) of which logits are wanted: the last few, all for 0, or those at the places of a tensor."""
    # By transformers' `slice_logits_to_keep`, which takes places of each sentence and masks, too, where there is one.
    if hasattr(modeling_utils, "slice_logits_to_keep"):
        return modeling_utils.slice_logits_to_keep(states, logits_to_keep)
    return states[:, slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep]


def tie_skipped(model: Any, tied: dict[str, str]) -> None:
    """Tie what 5.3.0 leaves empty: it takes tied weights for present in models that are opened by a folder's code."""
    for target, source in tied.items():
        found = model.get_parameter(source)
        if model.get_parameter(target).is_meta and not found.is_meta:
            module, _, name = target.rpartition(".")
            setattr(model.get_submodule(module), name, found)
            model.all_tied_weights_keys[target] = source


def whole_mask(create: Callable[..., Any], skip: str) -> dict[str, Any]:
    """The argument by which transformers makes a mask that a kernel does without: since 5.16 that name."""
    if skip in inspect.signature(create).parameters:
        return {skip: False}
    # Any function: nothing is skipped beside it.
    return {"and_mask_function": lambda batch, head, query, key: key >= 0}


# Looked up once: a signature takes longer to read than a step of a small model may.
WHOLE_CAUSAL = whole_mask(create_causal_mask, "allow_is_causal_skip")
WHOLE_BIDIRECTIONAL = whole_mask(create_bidirectional_mask, "allow_is_bidirectional_skip")
TAKES_CACHE_POSITION = "cache_position" in inspect.signature(create_causal_mask).parameters  # required before 5.4


def causal_mask(
    config: Any, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool
) -> Any:
    """transformers' mask of the future, for the input of a stack (B, T, D) after what is in the cache."""
    arguments = named(cache) | (WHOLE_CAUSAL if is_needed else {})
    if TAKES_CACHE_POSITION:
        past = 0 if cache is None else cache.get_seq_length()
        arguments["cache_position"] = torch.arange(embeddings.shape[1], device=embeddings.device) + past
    return create_causal_mask(config, embeddings, padding, **arguments)


def bidirectional_mask(config: Any, embeddings: torch.Tensor, padding: torch.Tensor | None, is_needed: bool) -> Any:
    """transformers' mask of padding, for the input of a stack (B, T, D)."""
    return create_bidirectional_mask(config, embeddings, padding, **(WHOLE_BIDIRECTIONAL if is_needed else {}))


# What records the hidden states and attentions of a stack; before 5.2 it stood elsewhere, in one decorator.
HAS_CAPTURING = find_spec("transformers.utils.output_capturing") is not None
CAPTURING: Any = import_module("transformers.utils.output_capturing") if HAS_CAPTURING else generic
OutputRecorder = CAPTURING.OutputRecorder


def recorded(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A stack's `forward` with the config's defaults, whose hidden states and attentions transformers can record."""
    if HAS_CAPTURING:
        return generic.merge_with_config_defaults(CAPTURING.capture_outputs(forward))
    return generic.check_model_inputs(forward)


# What computes softmax(Q Kᵀ / √d_k) V under a name of transformers; the second argument is that of this package.
ATTENTION: Any = modeling_utils.ALL_ATTENTION_FUNCTIONS
attention_function: Callable[..., Any] = getattr(ATTENTION, "get_interface", ATTENTION.get)


checked: set[type] = set()


@torch.no_grad()
def check_loops(model: Any, generate: Callable[..., Any]) -> None:
    """On transformers newer than tested, once for each class: logits of `generate` with and without a cache."""
    # They must be equal. For three tokens; a `RuntimeError` if not. Set VANILLA_TRANSFORMER_HF_SKIP_CHECK=1 to go on
    # all the same.
    if type(model) in checked or model.training or os.environ.get(SKIP_CHECK):
        return
    installed, tested = (each.split(".")[:2] for each in (transformers.__version__, NEWEST_TESTED))
    if [*map(int, installed)] <= [*map(int, tested)] or "prepare_inputs_for_generation" in vars(model):
        return  # the latter in prompt learning of PEFT, whose prefix needs a cache
    checked.add(type(model))  # the calls below come here again, and none of them may fail
    ids = torch.arange(3, 8, device=model.device).remainder(model.config.vocab_size)[None]
    source: dict[str, Any] = {"input_ids": ids}
    if model.main_input_name != "input_ids":
        width = getattr(model.config, "encoder_d_model", None) or model.config.d_model
        states = torch.linspace(-1, 1, 3 * width, device=model.device, dtype=model.dtype)
        source = {"encoder_outputs": BaseModelOutput(states.view(1, 3, width))}
    found = []
    try:
        for use_cache in (True, False):
            settings = {"do_sample": False, "num_beams": 1, "min_new_tokens": 3, "max_new_tokens": 3}
            outputs = {"output_logits": True, "return_dict_in_generate": True, "use_cache": use_cache}
            found.append(torch.stack(generate(**source, **settings, **outputs).logits).float())
    except BaseException:
        checked.discard(type(model))
        raise
    difference, size = (found[0] - found[1]).abs().max(), found[1].abs().max()
    if difference > size * (1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05):
        checked.discard(type(model))
        raise RuntimeError(
            f"transformers {transformers.__version__} is newer than {NEWEST_TESTED}, the last that was tested; its "
            "generate() gives other results with a cache than without: update vanilla_transformer_hf, install "
            f"transformers {NEWEST_TESTED}, or set {SKIP_CHECK}=1"
        )
