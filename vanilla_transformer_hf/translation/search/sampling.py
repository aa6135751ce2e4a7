"""Samples by greedy search, whose sentences leave the batch while others join it, with random numbers of one's own."""

import torch
from transformers import LogitsProcessor


class SampledToken(LogitsProcessor):
    """Draws each next token, and makes it the most likely one, which greedy search takes."""

    # Of the `top_k` most likely or (0) of all, and of those with a probability of at least `epsilon` (or the most
    # likely one alone). Random numbers are the generator's, or torch's: after `torch.manual_seed` the same batches
    # give the same samples.

    # The distribution of a row depends on its own scores alone (`model/search/plan.py`).
    treats_rows_alone = True

    def __init__(
        self,
        temperature: float | None = None,
        top_k: int = 0,
        epsilon: float = 0.0,
        generator: torch.Generator | None = None,
    ):
        self.temperature, self.top_k = 1.0 if temperature is None else temperature, top_k
        self.epsilon, self.generator = epsilon, generator
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature={temperature}: must be greater than 0")
        if top_k < 0:
            raise ValueError(f"top_k={top_k}: must be at least 1, or 0 for all tokens")
        if not 0 <= epsilon < 1:
            raise ValueError(f"epsilon={epsilon}: must be at least 0 and less than 1")

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores (A, V) with the drawn token of each row above all others."""
        likely, tokens = scores, None
        if 0 < self.top_k < scores.shape[-1]:
            likely, tokens = scores.topk(self.top_k, dim=-1)
        # The first token at which the sum of probabilities passes a random share of the whole.
        probabilities = (likely.float() / self.temperature).softmax(dim=-1)
        if self.epsilon > 0:
            least = probabilities.amax(dim=-1, keepdim=True).clamp(max=self.epsilon)
            probabilities = probabilities.where(probabilities >= least, 0.0)
        sums = probabilities.cumsum(dim=-1)
        shares = torch.rand(len(sums), 1, device=sums.device, generator=self.generator) * sums[:, -1:]
        drawn = torch.searchsorted(sums, shares, right=True).clamp(max=sums.shape[-1] - 1)
        if tokens is not None:
            drawn = tokens.gather(-1, drawn)
        return torch.full_like(scores, -torch.inf).scatter(-1, drawn, 0.0)
