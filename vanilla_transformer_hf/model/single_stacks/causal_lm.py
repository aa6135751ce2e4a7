"""
The decoder alone, as a language model: layers without cross-attention, and the projection to the vocabulary.

Shapes: B sequences, T positions, D = d_model, V vocabulary.
"""

from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..layers.base_model import VanillaTransformerPreTrainedModel, tied_output
from ..modeling_vanilla_transformer import VanillaTransformerDecoder
from ..releases.models import CACHE, given_cache, named
from ..search.generate_causal import VanillaTransformerCausalGenerationMixin
from .base import SingleStackModel, of_one_stack


class VanillaTransformerDecoderModel(SingleStackModel):
    """
    The decoder without cross-attention and without the projection to the vocabulary: ids (B, T) to states (B, T, D).

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerDecoderModel
    >>> config = VanillaTransformerConfig(
    ...     vocab_size=99, d_model=32, decoder_layers=1, is_encoder_decoder=False, is_decoder=True
    ... )
    >>> VanillaTransformerDecoderModel(config)(torch.randint(4, 99, (2, 7))).last_hidden_state.shape
    torch.Size([2, 7, 32])
    ```
    """

    stack_name = "decoder"
    stack_class = VanillaTransformerDecoder
    decoder: VanillaTransformerDecoder

    @can_return_tuple
    def forward(  # type: ignore[misc]  # transformers reads from this type that attentions can be returned
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        """Token ids (B, T), or embeddings (B, T, D), to states (B, T, D)."""
        return self.decoder(
            input_ids,
            attention_mask,
            cache=given_cache(self, cache, past_key_values, kwargs),
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            use_cache=use_cache,
            **kwargs,
        )


class VanillaTransformerForCausalLM(VanillaTransformerCausalGenerationMixin, VanillaTransformerPreTrainedModel):
    """
    The decoder alone as a language model: ids (B, T) to logits (B, T, V) = Y Eᵀ (+ b). `from_pretrained` on an
    encoder-decoder loads its decoder without the cross-attention.

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForCausalLM
    >>> config = VanillaTransformerConfig(
    ...     vocab_size=99, d_model=32, decoder_layers=1, is_encoder_decoder=False, is_decoder=True
    ... )
    >>> model = VanillaTransformerForCausalLM(config).eval()
    >>> model.generate(torch.randint(4, 99, (2, 7)), max_new_tokens=3, min_new_tokens=3).shape
    torch.Size([2, 10])
    ```
    """

    # The loss divides by num_items_in_batch itself; the Trainer must not divide again.
    accepts_loss_kwargs = True
    _tp_plan: Any = {"lm_head": "colwise_gather_output"}
    _pp_plan: Any = {"lm_head": (["hidden_states"], ["logits"])}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(of_one_stack(config, "decoder", type(self).__name__))
        config = self.config
        self.model = VanillaTransformerDecoderModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self._tied_weights_keys = tied_output(config, "decoder")
        self.post_init()

    @can_return_tuple
    def forward(  # type: ignore[misc]
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool = True,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """
        Token ids (B, T) to logits (B, T, V), and the loss if labels (B, T) are given. The labels are shifted here:
        each state predicts the next label, and -100 is ignored. `shift_labels` are already shifted. The loss is
        smoothed in training (`label_smoothing`); `return_logits=False` leaves the logits out there.
        """
        # If the signature named it, the Trainer would expect it in every batch.
        shift_labels: Any = kwargs.pop("shift_labels", None)
        if labels is not None and shift_labels is None:
            shift_labels = F.pad(labels[:, 1:], (0, 1), value=-100)
        if shift_labels is not None:
            use_cache = False
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids=position_ids,
            cache=given_cache(self, cache, past_key_values, kwargs),
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        loss, logits = self.predict(
            outputs[0],
            shift_labels,
            num_items_in_batch=num_items_in_batch,
            return_logits=return_logits,
            logits_to_keep=logits_to_keep,
        )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **named(getattr(outputs, CACHE)),
        )
