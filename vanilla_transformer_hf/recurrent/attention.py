"""
How a recurrent decoder attends to the source: not at all, or by the attention of Bahdanau et al. or of Luong et al.

Shapes: B sentences, S source positions, T target positions, D = d_model.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from .configuration import RecurrentSeq2SeqConfig


# Values of each position (B, T, ·), and weights (B, T, S) if the source was looked at for them.
Looked: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]


@dataclass
class Source:
    """The encoder's output (B, S, D), what it is compared by (B, S, D), and which positions are tokens (B, S)."""

    memory: torch.Tensor
    keys: torch.Tensor
    is_token: torch.Tensor | None


class NoAttention(nn.Module):
    """The decoder's first state is its only input from the source (Sutskever et al. 2014, arXiv 1409.3215)."""

    # What a step is fed beside its embedding: nothing, or D values, for which positions are computed one by one.
    is_fed = False

    def __init__(self, config: RecurrentSeq2SeqConfig):
        super().__init__()

    def keys(self, memory: torch.Tensor) -> torch.Tensor:
        """What the source is compared by (B, S, D), computed once for a sentence."""
        return memory

    def before(self, top: torch.Tensor, output: torch.Tensor, source: Source) -> Looked:
        """The last step's top state and output (B, 1, D) to what this step is fed, and weights (B, 1, S)."""
        # It is fed (B, 1, D) or (B, 1, 0).
        return output[..., :0], None

    def after(self, states: torch.Tensor, embeddings: torch.Tensor, fed: torch.Tensor, source: Source) -> Looked:
        """States of the top layer (B, T, D) to what predicts the next tokens (B, T, D), and weights (B, T, S)."""
        return states, None

    @staticmethod
    def look(scores: torch.Tensor, source: Source) -> Looked:
        """Scores (B, T, S) to the weighted mean of the memory (B, T, D), and the weights (B, T, S)."""
        if source.is_token is not None:
            scores = scores.masked_fill(~source.is_token[:, None], torch.finfo(scores.dtype).min)
        weights = scores.float().softmax(dim=-1).to(scores.dtype)
        return weights @ source.memory, weights


class BahdanauAttention(NoAttention):
    """Additive attention before each step, e = vᵀ tanh(W s + U h): Bahdanau et al. 2015, arXiv 1409.0473, A.1.2."""

    # With s the last state of the decoder; the context c is an input of the step (section 3.1). What predicts the next
    # token is tanh(O [s; c; y]), of the new state, the context and the last word, with tanh in the place of the
    # paper's maxout.

    is_fed = True

    def __init__(self, config: RecurrentSeq2SeqConfig):
        super().__init__(config)
        width = config.d_model
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.out = nn.Linear(3 * width, width)

    def keys(self, memory: torch.Tensor) -> torch.Tensor:
        return self.key(memory)

    def before(self, top: torch.Tensor, output: torch.Tensor, source: Source) -> Looked:
        scores = self.score(torch.tanh(self.query(top) + source.keys)).transpose(1, 2)  # (B, 1, S)
        return self.look(scores, source)

    def after(self, states: torch.Tensor, embeddings: torch.Tensor, fed: torch.Tensor, source: Source) -> Looked:
        return torch.tanh(self.out(torch.cat((states, fed, embeddings), dim=-1))), None


class LuongAttention(NoAttention):
    """Multiplicative attention after each step (Luong et al. 2015, arXiv 1508.04025, 3.1, the "general" score)."""

    # e = sᵀ W h with s the new state of the decoder, and tanh(C [c; s]) predicts the next token.

    def __init__(self, config: RecurrentSeq2SeqConfig):
        super().__init__(config)
        width = config.d_model
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(2 * width, width, bias=False)

    def after(self, states: torch.Tensor, embeddings: torch.Tensor, fed: torch.Tensor, source: Source) -> Looked:
        context, weights = self.look(self.query(states) @ source.keys.transpose(1, 2), source)
        return torch.tanh(self.out(torch.cat((context, states), dim=-1))), weights


class FeedingLuongAttention(LuongAttention):
    """Luong's attention with input feeding: what predicted the last token is an input of the step (section 3.3)."""

    is_fed = True

    def before(self, top: torch.Tensor, output: torch.Tensor, source: Source) -> Looked:
        return output, None


# (attention, input_feeding) -> class.
RECURRENT_ATTENTION: dict[tuple[str, bool], type[NoAttention]] = {
    ("none", False): NoAttention,
    ("bahdanau", False): BahdanauAttention,
    ("luong", False): LuongAttention,
    ("luong", True): FeedingLuongAttention,
}
