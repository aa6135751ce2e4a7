"""transformers' logits processors; some of them run here without a copy of all scores."""

import math
from collections.abc import Callable
from typing import Any

import torch


# By their names, so that one that a release of transformers lacks breaks nothing.
# Processors that treat each row alone, so that rows may leave the batch.
PROCESSORS = {
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "InfNanRemoveLogitsProcessor",
    "LogitNormalization",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "SequenceBiasLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
    # Of sampling.
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "MinPLogitsWarper",
    "TemperatureLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "TypicalLogitsWarper",
}
# Processors that count tokens from the end of the decoder prompt, which prefixes would move for each row.
COUNTING_PROCESSORS = {
    "ExponentialDecayLengthPenalty",
    "ForcedEOSTokenLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
}


def host_name(one: Any) -> str:
    """The name of a processor or criterion that is transformers' own; empty for others, also those derived from it."""
    kind = type(one)
    return kind.__name__ if kind.__module__.startswith("transformers.generation.") else ""


def hide_ends_before_length(processor: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Apply transformers' processor of `min_length`, in place."""
    if ids.shape[1] < processor.min_length:
        scores[:, processor.eos_token_id] = -math.inf
    return scores


def hide_ends_before_new_tokens(processor: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Apply transformers' processor of `min_new_tokens`, in place."""
    if ids.shape[1] - processor.prompt_length_to_skip < processor.min_new_tokens:
        scores[:, processor.eos_token_id] = -math.inf
    return scores


def add_biases(processor: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Apply the processors of biases; biases of single tokens are added in place."""
    if not processor.prepared_bias_variables or any(len(tokens) > 1 for tokens in processor.sequence_bias):
        biased: torch.Tensor = processor(ids, scores)
        return biased
    tokens = [token for (token,) in processor.sequence_bias]
    scores[:, tokens] += scores.new_tensor(list(processor.sequence_bias.values()))
    return scores


# Processors that would take longer than the step itself -> a function of (processor, ids, scores) that works in place.
SHORTCUTS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "MinLengthLogitsProcessor": hide_ends_before_length,
    "MinNewTokensLengthLogitsProcessor": hide_ends_before_new_tokens,
    "NoBadWordsLogitsProcessor": add_biases,
    "SequenceBiasLogitsProcessor": add_biases,
}


def process(processors: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Apply the processors to scores (R, V) that follow the ids (R, L); the scores may be overwritten."""
    for processor in processors:
        shortcut = SHORTCUTS.get(host_name(processor))
        scores = processor(ids, scores) if shortcut is None else shortcut(processor, ids, scores)
    return scores
