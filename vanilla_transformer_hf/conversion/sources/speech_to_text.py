"""
Speech2Text: folders that transformers saved for `Speech2TextForConditionalGeneration`, fairseq's models of speech
recognition and translation, with its processor.

After transformers/models/speech_to_text/{configuration,modeling}_speech_to_text.py.
"""

from typing import Any

from transformers import Speech2TextConfig, Speech2TextFeatureExtractor, Speech2TextProcessor

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..key_table import KeyTable, written_out
from .saved_model import FINAL_NORM_KEYS, STACK_KEYS, SavedModel


KEYS: KeyTable = {
    **STACK_KEYS,
    **FINAL_NORM_KEYS,
    **written_out(
        {
            "model.encoder.conv.conv_layers.{}.{weight,bias}": "model.encoder.front_end.convolutions.{}.{weight,bias}",
            # Sinusoids, which older versions of transformers saved.
            "model.{encoder,decoder}.embed_positions.weights": None,
        }
    ),
    "lm_head.weight": "lm_head.weight",
}


class SpeechToText(SavedModel):
    name = "speech_to_text"
    table = KEYS
    hosts = {"speech_to_text": Speech2TextConfig}
    classes = {"Speech2TextForConditionalGeneration": "VanillaTransformerForSpeechSeq2Seq"}
    training = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    has_model = True

    def unsupported(self) -> list[str]:
        if problems := super().unsupported():
            return problems
        options, kernels = self.settings, self.settings["conv_kernel_sizes"]
        if len(kernels) != options["num_conv_layers"] or len(set(kernels)) != 1:
            problems.append(
                f"conv_kernel_sizes={kernels}: must be num_conv_layers={options['num_conv_layers']} times one size"
            )
        if options["pad_token_id"] == 0:
            problems.append("pad_token_id=0: Speech2Text then gives no frame a position")
        return problems

    def to_config(self) -> VanillaTransformerConfig:
        options = self.settings
        return self.speech_config(
            front_end="speech",
            num_mel_bins=options["input_feat_per_channel"] * options["input_channels"],
            conv_strides=[2] * options["num_conv_layers"],
            conv_kernel_size=options["conv_kernel_sizes"][0],
            conv_channels=options["conv_channels"],
            conv_activation="glu",
            position_encoding="sinusoidal_halves_inclusive",
            position_offset=options["pad_token_id"] + 1,
        )

    def to_processor(self, config: VanillaTransformerConfig) -> Any:
        """transformers' own, whose tokenizer needs sentencepiece."""
        from transformers import Speech2TextTokenizer  # here, because the class cannot be had without sentencepiece

        classes = (Speech2TextProcessor, Speech2TextFeatureExtractor, Speech2TextTokenizer)
        names = ("vocab.json", "sentencepiece.bpe.model")
        return self.processor_of(config, classes, names, needed=names)

    def decoding_notes(self) -> list[str]:
        """Differences in the padding, and in training."""
        return [
            "a recording gives in a batch what it gives alone; Speech2Text's convolutions read biases behind its end",
            *super().decoding_notes(),
        ]
