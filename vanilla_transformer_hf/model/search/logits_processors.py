"""transformers' logits processors; some of them run here without a copy of all scores."""

import math
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
# Processors that add biases, of which those of single tokens are added here.
BIASES = ("NoBadWordsLogitsProcessor", "SequenceBiasLogitsProcessor")


def host_name(one: Any) -> str:
    """The name of a processor or criterion that is transformers' own; empty for others, also those derived from it."""
    kind = type(one)
    return kind.__name__ if kind.__module__.startswith("transformers.generation.") else ""


def process(processors: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Apply the processors to scores (R, V) that follow the ids (R, L); the scores may be overwritten."""
    for one in processors:
        name = host_name(one)
        # In place, as these would take longer than the step itself.
        if name == "MinLengthLogitsProcessor":
            if ids.shape[1] < one.min_length:
                scores[:, one.eos_token_id] = -math.inf
        elif name == "MinNewTokensLengthLogitsProcessor":
            if ids.shape[1] - one.prompt_length_to_skip < one.min_new_tokens:
                scores[:, one.eos_token_id] = -math.inf
        elif name in BIASES and one.prepared_bias_variables and not any(len(each) > 1 for each in one.sequence_bias):
            tokens = [token for (token,) in one.sequence_bias]
            scores[:, tokens] += scores.new_tensor(list(one.sequence_bias.values()))
        else:
            scores = one(ids, scores)
    return scores
