"""
The Transformer with another front end: speech or images in, text out. Encoder, decoder, search and loss are those of
`VanillaTransformerForConditionalGeneration`.

Shapes: B sources, F frames, C channels, H and W pixels, T target positions, V vocabulary.
"""

from typing import Any

import torch
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration


class VanillaTransformerForSpeechSeq2Seq(VanillaTransformerForConditionalGeneration):
    """
    Frames of speech to text, with `front_end="speech"` or `"speech_stacked"`.

    Raises:
        ValueError: The config has another front end.

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForSpeechSeq2Seq
    >>> config = VanillaTransformerConfig(front_end="speech", vocab_size=99, d_model=32, decoder_layers=1)
    >>> model = VanillaTransformerForSpeechSeq2Seq(config).eval()
    >>> features = torch.randn(2, 100, config.num_mel_bins)
    >>> model(features, labels=torch.randint(4, 99, (2, 5))).logits.shape
    torch.Size([2, 5, 99])
    ```
    """

    main_input_name = "input_features"

    def forward(  # type: ignore[override]  # the source has another name
        self,
        input_features: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """
        Frames (B, F, num_mel_bins), 1 or 0 for each frame (B, F), and target ids or labels (B, T) to logits (B, T, V)
        and the loss. Other arguments are those of `VanillaTransformerForConditionalGeneration`.
        """
        if encoder_outputs is None:
            kwargs["input_features"] = input_features
        return super().forward(
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            cache=cache,
            decoder_inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **kwargs,
        )


class VanillaTransformerForImageTextToText(VanillaTransformerForConditionalGeneration):
    """
    Pixels of images to text, with `front_end="image"`.

    Raises:
        ValueError: The config has another front end.

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForImageTextToText
    >>> sizes = {"image_height": 8, "image_width": 64, "patch_height": 8, "patch_width": 4, "num_channels": 1}
    >>> config = VanillaTransformerConfig(front_end="image", **sizes, vocab_size=99, d_model=32, decoder_layers=1)
    >>> model = VanillaTransformerForImageTextToText(config).eval()
    >>> model(torch.randn(2, 1, 8, 64), labels=torch.randint(4, 99, (2, 5))).logits.shape
    torch.Size([2, 5, 99])
    ```
    """

    main_input_name = "pixel_values"

    def forward(  # type: ignore[override]  # the source has another name
        self,
        pixel_values: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """
        Pixels (B, C, H, W), 1 or 0 for each patch or None, and target ids or labels (B, T) to logits (B, T, V) and the
        loss. Other arguments are those of `VanillaTransformerForConditionalGeneration`.
        """
        if encoder_outputs is None:
            kwargs["pixel_values"] = pixel_values
        return super().forward(
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            cache=cache,
            decoder_inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **kwargs,
        )


# transformers' pipeline looks there for whether a model writes text by itself; `register` of the Auto classes leaves
# the table as it is.
MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.setdefault(
    VanillaTransformerConfig.model_type, VanillaTransformerForSpeechSeq2Seq.__name__
)
