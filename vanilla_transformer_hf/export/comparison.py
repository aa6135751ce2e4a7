"""Compare an engine's logits with those of the model in float64."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from . import ExportError


# Largest absolute difference of logits in float32. Where float32 rounding alone exceeds it, as with random words in
# some trained models, ten times the model's own rounding error is allowed.
TOLERANCE = 1e-4
OWN_ERRORS = 10


def random_batches(config: VanillaTransformerConfig) -> list[dict[str, torch.Tensor]]:
    """Random ids with a fixed seed: three sentences, padded on the right or the left; and one of a single id."""
    generator = torch.Generator().manual_seed(0)
    longest = min(config.max_position_embeddings, config.decoder_max_position_embeddings or 8)
    batches = []
    for sentences, source_length, target_length in ((3, 9, 8), (1, 1, 2)):
        shapes = (sentences, min(source_length, longest)), (sentences, min(target_length, longest))
        source = torch.randint(config.source_vocab_size or config.vocab_size, shapes[0], generator=generator)
        target = torch.randint(config.vocab_size, shapes[1], generator=generator)
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        other = next(index for index in range(config.vocab_size) if index not in ends)
        for end in ends:  # engines stop at the end of a sentence
            target[target == end] = other
        target[:, 0] = int(config.decoder_start_token_id or 0)
        mask = torch.ones_like(source)
        if sentences > 1:
            mask[1, source.shape[1] // 2 :] = 0
            mask[2, : source.shape[1] // 3] = 0
        batches.append({"input_ids": source, "attention_mask": mask, "decoder_input_ids": target})
    return batches


class Comparison(NamedTuple):
    """Batches, their logits (B, T, V) in float64, and how far off those of the model in float32 are."""

    batches: list[dict[str, torch.Tensor]]
    exact: list[torch.Tensor]
    own_error: float

    @classmethod
    @torch.no_grad()
    def with_model(cls, model: VanillaTransformerForConditionalGeneration) -> "Comparison":
        """Compute the logits of a model in float32."""
        batches = random_batches(model.config)
        own = [model(**batch, use_cache=False).logits for batch in batches]
        model.double()
        exact = [model(**batch, use_cache=False).logits for batch in batches]
        model.float()  # the same numbers as before
        return cls(batches, exact, largest_difference(own, exact))

    def check(self, logits_of: Callable[[dict[str, torch.Tensor]], torch.Tensor]) -> float:
        """Largest absolute difference of logits of each batch, or `ExportError` if it is too large or NaN."""
        found = largest_difference([logits_of(batch) for batch in self.batches], self.exact)
        allowed = max(TOLERANCE, OWN_ERRORS * self.own_error)
        if not found <= allowed:
            raise ExportError(f"what was written gives logits that differ by {found:.1e}; {allowed:.0e} is allowed")
        return found

    def rounding(self, logits_of: Callable[[dict[str, torch.Tensor]], torch.Tensor]) -> str:
        """The effect of rounded weights: the mean difference, and how often the likeliest token stays."""
        pairs = [(logits_of(batch), exact) for batch, exact in zip(self.batches, self.exact)]
        mean = torch.cat([(one - other).abs().flatten() for one, other in pairs]).mean().item()
        same = torch.cat([(one.argmax(-1) == other.argmax(-1)).flatten() for one, other in pairs])
        return f"{mean:.1e} on average, and the most likely token is the same at {same.sum()} of {len(same)} places"


def largest_difference(ours: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """Largest absolute difference of tensors of the same shapes."""
    return max((one - other).abs().max().item() for one, other in zip(ours, others, strict=True))
