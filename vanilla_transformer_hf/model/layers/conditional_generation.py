"""
How transformers calls a model of encoder, decoder and language-model head, and what it expects back.

Shapes: B sentences, S source positions, T target positions, D = d_model, V vocabulary.
"""

from typing import Any, Unpack

import torch
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from ..releases import given_cache
from .base_model import ShiftedLabels, tokens_of
from .loss import RowLoss
from .outputs import language_model_output


class ConditionalGeneration(ShiftedLabels):
    """The call of a `model` of encoder and decoder with an `lm_head`: logits, and the loss if there are labels."""

    @can_return_tuple
    def forward(  # type: ignore[misc]  # transformers reads from this type that attentions can be returned
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool = True,
        row_loss: RowLoss | None = None,
        token_type_ids: torch.Tensor | None = None,
        global_attention_mask: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """
        Source ids (B, S) and target ids (B, T) to logits (B, T, V), and the loss if labels (B, T) are given.

        Labels without target ids are shifted right here. The loss is smoothed in training; in evaluation it is the
        plain cross-entropy, whose exponential is the perplexity.

        With `return_logits=False`, training with labels does not return them: the loss does not need all of them at
        once, and they are by far the largest tensor. `row_loss` replaces the smoothed loss in training; then there may
        be K times as many states as labels, of K passes over the same sentences.
        """
        cache = given_cache(self, cache, past_key_values, kwargs)
        weight = None
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
                if decoder_attention_mask is None and getattr(self.config, "norm_type", None) == "batch_norm":
                    decoder_attention_mask = tokens_of(labels)  # whose statistics the norms compute
            if not return_logits:
                weight = self.weight_of_loss()
                input_ids, inputs_embeds = self.tied_rows(self.model.encoder, input_ids, inputs_embeds)
                decoder_input_ids, decoder_inputs_embeds = self.tied_rows(
                    self.model.decoder, decoder_input_ids, decoder_inputs_embeds
                )
        outputs: Seq2SeqModelOutput = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            position_ids=position_ids,
            decoder_position_ids=decoder_position_ids,
            use_cache=use_cache,
            token_type_ids=token_type_ids,
            global_attention_mask=global_attention_mask,
            **kwargs,
        )
        loss, logits = self.predict(
            outputs[0],
            labels,
            num_items_in_batch=num_items_in_batch,
            return_logits=return_logits,
            logits_to_keep=logits_to_keep,
            row_loss=row_loss,
            weight=weight,
        )
        return language_model_output(outputs, loss, logits)

    # The method that the search in search/generate.py replaces; it does not run for subclasses that override it.
    _step_forward = forward
