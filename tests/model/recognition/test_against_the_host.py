"""The whole model against the host's: with the weights of Whisper and of Speech2Text, their logits."""

import pytest
import torch
from transformers import (
    Speech2TextConfig,
    Speech2TextForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForSpeechSeq2Seq


SIZES = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
SIZES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 24, "vocab_size": 40}
OURS = {
    **{"front_end": "speech", "encoder_norm_position": "pre", "decoder_norm_position": "pre", "attention_bias": True},
    **{"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
}


def copied(theirs, renamed, config):
    """Our model with the weights of another, of which some have other names."""
    model = VanillaTransformerForSpeechSeq2Seq(config).eval()
    weights = {}
    for name, value in theirs.state_dict().items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        if name in model.state_dict():
            weights[name] = value
    left = model.load_state_dict(weights, strict=False)
    for name in left.missing_keys:  # Whisper's keys have no bias
        assert name.endswith("k_proj.bias"), name
        model.get_parameter(name).data.zero_()
    return model


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_whisper():
    options = {"num_mel_bins": 12, "max_source_positions": 20, "max_target_positions": 15, "pad_token_id": 1}
    theirs = WhisperForConditionalGeneration(
        WhisperConfig(**SIZES, **options, bos_token_id=2, eos_token_id=2, decoder_start_token_id=2)
    ).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    config = VanillaTransformerConfig(
        **SIZES,
        **OURS,
        num_mel_bins=12,
        conv_strides=[1, 2],
        activation_function="gelu",
        position_encoding="learned",
        max_position_embeddings=20,
        decoder_max_position_embeddings=15,
        scale_embedding=False,
    )
    renamed = {
        "encoder.conv1": "encoder.front_end.convolutions.0",
        "encoder.conv2": "encoder.front_end.convolutions.1",
    }
    ours = copied(theirs, {**renamed, "proj_out": "lm_head"}, config)
    frames, target = torch.randn(2, 40, 12), torch.randint(3, 40, (2, 6))
    found = ours(frames, decoder_input_ids=target).logits
    expected = theirs(frames.transpose(1, 2), decoder_input_ids=target).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_speech_to_text():
    options = {"input_feat_per_channel": 12, "conv_channels": 24, "num_conv_layers": 2, "conv_kernel_sizes": (5, 5)}
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    theirs = Speech2TextForConditionalGeneration(Speech2TextConfig(**SIZES, **options, **special)).eval()
    config = VanillaTransformerConfig(
        **SIZES,
        **OURS,
        num_mel_bins=12,
        conv_kernel_size=5,
        conv_channels=24,
        conv_activation="glu",
        position_encoding="sinusoidal_halves_inclusive",
        position_offset=2,
    )
    ours = copied(theirs, {"encoder.conv.conv_layers": "encoder.front_end.convolutions"}, config)
    frames, target = torch.randn(2, 41, 12), torch.randint(3, 40, (2, 6))
    found = ours(frames, decoder_input_ids=target).logits
    torch.testing.assert_close(found, theirs(frames, decoder_input_ids=target).logits, atol=1e-5, rtol=1e-5)
