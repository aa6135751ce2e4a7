"""transformers' `generate()`, for all models of this package, without three of its surprises."""

import copy
from typing import Any

import torch
from transformers.generation import GenerationMixin

from ..releases.models import CACHE, check_loops


# An id that no token has.
NO_TOKEN = -1


class HostGenerationMixin(GenerationMixin):
    """
    transformers' `generate()`, which

    - fills the sequences of a beam search that have ended with the padding id, also where that is 0, as greedy search
      does; transformers' loop takes 0 for none, and fills them with the end token;
    - leaves `encoder_outputs` as they are; transformers repeats a caller's own for each beam;
    - takes no padding of a source for tokens, also without an `attention_mask`; some releases of transformers do.
    """

    def generate(self: Any, inputs: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """transformers' `generate`."""
        if (given := kwargs.get("encoder_outputs")) is not None:
            kwargs["encoder_outputs"] = copy.copy(given)
        return super().generate(inputs, *args, **self._masking_padding(inputs, kwargs))

    def init_continuous_batching(self: Any, *args: Any, **kwargs: Any) -> Any:
        """transformers' batches of paged caches, which would end each request with an error beside an empty result."""
        instead = "generate_stream() or generate()" if hasattr(self, "generate_stream") else "generate()"
        raise NotImplementedError(f"{type(self).__name__} has no paged cache for continuous batching: call {instead}")

    def _masking_padding(self: Any, inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the mask of a source (B, S) that has padding, if it has none and can have one."""
        ids, config = kwargs.get("input_ids") if inputs is None else inputs, self.config
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        is_read = any(kwargs.get(name) is not None for name in ("attention_mask", "encoder_outputs"))
        is_source = config.is_encoder_decoder and torch.is_tensor(ids) and ids.dim() == 2  # not sounds or images
        if is_read or not is_source or config.pad_token_id in ends:
            return kwargs
        is_token = ids != config.pad_token_id
        return kwargs if is_token.all() else {**kwargs, "attention_mask": is_token.long()}

    def prepare_inputs_for_generation(self: Any, *args: Any, inputs_embeds: Any = None, **kwargs: Any) -> Any:
        """transformers' arguments of one step; for PEFT also with the cache's older name, which it replaces."""
        check_loops(self, super().generate)  # here, because every loop of transformers begins here
        # A prompt may be embeddings where the signature names them.
        inputs = super().prepare_inputs_for_generation(*args, inputs_embeds=inputs_embeds, **kwargs)
        # PEFT has a method in the place of this one, or a hook. An export makes two caches of one with two names.
        is_peft = "prepare_inputs_for_generation" in vars(self) or self._forward_pre_hooks
        return {**inputs, "past_key_values": inputs[CACHE]} if is_peft and CACHE in inputs else inputs

    def _beam_search(self: Any, *args: Any, generation_config: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        pad = generation_config._pad_token_tensor
        if is_zero := pad is not None and not pad.any():
            generation_config._pad_token_tensor = torch.full_like(pad, NO_TOKEN)  # of a config of this call
        found = super()._beam_search(*args, generation_config=generation_config, **kwargs)  # type: ignore[misc]
        if is_zero:
            sequences = found if torch.is_tensor(found) else found.sequences
            sequences.masked_fill_(sequences == NO_TOKEN, 0)
        return found
