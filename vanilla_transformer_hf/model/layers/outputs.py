"""What models return: transformers' classes of outputs, made of those of the parts."""

from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput

from ..releases import CACHE, named


def encoder_output(outputs: Any) -> BaseModelOutput:
    """What a caller gave as `encoder_outputs`: an output of the encoder, or a tuple with its fields."""
    return outputs if isinstance(outputs, BaseModelOutput) else BaseModelOutput(*outputs)


def model_output(encoder: BaseModelOutput, decoder: Any) -> Seq2SeqModelOutput:
    """The output of encoder and decoder, of those of each."""
    return Seq2SeqModelOutput(
        last_hidden_state=decoder.last_hidden_state,
        decoder_hidden_states=decoder.hidden_states,
        decoder_attentions=decoder.attentions,
        cross_attentions=decoder.cross_attentions,
        encoder_last_hidden_state=encoder.last_hidden_state,
        encoder_hidden_states=encoder.hidden_states,
        encoder_attentions=encoder.attentions,
        **named(getattr(decoder, CACHE)),
    )


def language_model_output(
    outputs: Seq2SeqModelOutput, loss: torch.Tensor | None, logits: torch.Tensor | None
) -> Seq2SeqLMOutput:
    """The output of a model with a head, of that of encoder and decoder."""
    return Seq2SeqLMOutput(
        loss=loss,
        logits=logits,
        decoder_hidden_states=outputs.decoder_hidden_states,
        decoder_attentions=outputs.decoder_attentions,
        cross_attentions=outputs.cross_attentions,
        encoder_last_hidden_state=outputs.encoder_last_hidden_state,
        encoder_hidden_states=outputs.encoder_hidden_states,
        encoder_attentions=outputs.encoder_attentions,
        **named(getattr(outputs, CACHE)),
    )
