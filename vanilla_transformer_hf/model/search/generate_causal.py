"""
`generate()` of a decoder alone: the search of this package after prompts of any length.

One forward pass of the model reads a prompt; `IncrementalDecoder` computes the steps after it.

Shapes: B prompts, n beams, P tokens of a prompt.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from transformers.cache_utils import DynamicCache

from ..config.search_settings import Settings
from ..layers.parts import counted
from ..packing.packed import StepWeights
from .generate import VanillaTransformerGenerationMixin
from .incremental_decoder import IncrementalDecoder
from .layer_tensors import LayerTensors
from .plan import SearchPlan, SearchRequest


class CausalDecoder(IncrementalDecoder):
    """A decoder without a source that has read a prompt and takes one token of each hypothesis at a time."""

    # Keys and values of a prompt are kept once for all its hypotheses. `attention_mask` is 1 for a token of the
    # prompts, 0 for padding on the left (B, P).

    can_absorb = False

    def __init__(
        self,
        model: Any,
        weights: StepWeights,
        attention_mask: torch.Tensor,
        beams: int,
        shortlist: torch.Tensor | None = None,
    ):
        states = model.get_decoder().embed_tokens.weight.new_empty(0)
        self._begin(model, weights, states, len(attention_mask), beams, False, shortlist)
        self.prompt_mask = attention_mask
        padding = (attention_mask == 0).sum(dim=1, keepdim=True)  # (B, 1)
        self.begins = padding if padding.any() else padding[:1]
        if self.key_positions is not None:
            self.key_positions = self.key_positions.repeat(len(self.begins), 1)

    def read(self, prompt: torch.Tensor) -> None:
        """Read all but the last token of each prompt (B, P - 1) at once."""
        self.length = length = prompt.shape[1]
        if not length:
            return
        mask, cache = self.prompt_mask[:, :length], DynamicCache()
        self.weights.decoder(prompt, mask, cache=cache, use_cache=True)
        hidden = (mask == 0)[:, None, :, None]  # (B, 1, P - 1, 1)
        slots = length + self.mask.shape[-1]
        # A mask does not hide NaN, and padding that attends to nothing may give NaN.
        layers: list[Any] = cache.layers
        if self.sums is not None:
            own = [layer.self_attn for layer in self.decoder.layers_in_order]
            sums = (each.state_of(layer.keys, layer.values, mask) for each, layer in zip(own, layers))
            (self.sums,) = LayerTensors.copies(([each.expand(-1, -1, self.beams, -1)] for each in sums), torch.float32)
            return
        self.filled = length
        shown = ((layer.keys.masked_fill(hidden, 0), layer.values.masked_fill(hidden, 0)) for layer in layers)
        stored = ((self.turned(keys), values) for keys, values in shown)
        self.keys, self.values = LayerTensors.copies(stored, self.mask.dtype)
        self.resize(self.keys, self.values, size=slots)
        seen = torch.zeros_like(mask, dtype=self.mask.dtype).masked_fill(mask == 0, -math.inf)
        self.mask = torch.cat((seen[:, None].expand(-1, self.beams, -1), self.mask), dim=-1)
        if self.key_positions is not None:
            self.key_positions = F.pad(counted(mask[: len(self.begins)]), (0, slots - length))


class VanillaTransformerCausalGenerationMixin(VanillaTransformerGenerationMixin):
    """
    transformers' `generate()` of a language model, with the search of this package where the prompts are padded on the
    left. As there, the result begins with the prompt.

    The options are those of `VanillaTransformerGenerationMixin`, except that there is no source: without any limit of
    length there are at most 50 new tokens, `max_extra_tokens` is the most new tokens, and `coverage_penalty` is
    refused. Dictionaries of outputs come from transformers' loops.
    """

    def _lengths(
        self: Any, inputs: torch.Tensor | None, kwargs: dict[str, Any], settings: Settings
    ) -> tuple[int, torch.Tensor]:
        """Number of tokens of the prompt, and of the source (B), which has 0."""
        given = (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
        prompt = next((tensor for tensor in given if tensor is not None), torch.zeros(1, 1, device=self.device))
        return prompt.shape[1], torch.zeros(len(prompt), dtype=torch.long, device=prompt.device)

    def _read_source(
        self: Any, inputs: torch.Tensor | None, kwargs: dict[str, Any], settings: Settings, request: SearchRequest
    ) -> dict[str, Any]:
        """There is no source to read: only the weights are packed."""
        if request.options.coverage_penalty:
            raise ValueError("coverage_penalty: needs a model with an encoder, but this model is decoder-only")
        ids = kwargs.get("input_ids") if inputs is None else inputs
        request.check_ensemble(self, has_source=ids is not None)
        if not self.training:
            quantization = request.requests.get("quantization")
            request.weights = [StepWeights.of(model, quantization) for model in (self, *request.models)]
        return {}

    def _search_obstacle(self: Any, kwargs: dict[str, Any]) -> str | None:
        mask, position_ids = kwargs.get("attention_mask"), kwargs.get("position_ids")
        if mask is not None and (mask.dim() != 2 or (mask.diff(dim=1) < 0).any() or not mask[:, -1].all()):
            return "padding that is not on the left"
        if position_ids is not None:
            expected = torch.arange(position_ids.shape[-1], device=position_ids.device)
            if mask is not None and mask.shape == position_ids.shape:
                expected = counted(mask)
            if (position_ids != expected).any():
                return "position_ids"
        reason: str | None = super()._search_obstacle(kwargs)
        return reason

    def _decoders(self: Any, plan: SearchPlan, kwargs: dict[str, Any], weights: list[StepWeights]) -> list[Any]:
        mask = kwargs.get("attention_mask")
        mask = torch.ones_like(plan.prompt) if mask is None else mask[:: plan.beams]
        ids = None if plan.shortlist is None else plan.shortlist.ids
        return [
            CausalDecoder(model, weights=packed, attention_mask=mask, beams=plan.beams, shortlist=ids)
            for model, packed in zip((self, *plan.request.models), weights, strict=True)
        ]
