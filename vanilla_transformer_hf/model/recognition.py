"""
The Transformer with another front end: speech or images in, text out. Encoder, decoder, search and loss are those of
`VanillaTransformerForConditionalGeneration`.

Shapes: B sources, F frames, C channels, H and W pixels, T target positions, V vocabulary.
"""

from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration


class VanillaTransformerForSpeechSeq2Seq(VanillaTransformerForConditionalGeneration):
    """
    Frames of speech `input_features` (B, F, num_mel_bins), and 1 or 0 for each frame (B, F), to text, with
    `front_end="speech"` or `"speech_stacked"`.

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


class VanillaTransformerForImageTextToText(VanillaTransformerForConditionalGeneration):
    """
    Pixels of images `pixel_values` (B, C, H, W), and 1 or 0 for each patch or None, to text, with `front_end="image"`.

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


# transformers' pipeline looks there for whether a model writes text by itself; `register` of the Auto classes leaves
# the table as it is.
MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.setdefault(
    VanillaTransformerConfig.model_type, VanillaTransformerForSpeechSeq2Seq.__name__
)
