"""What several tests share: a tiny config, a model with weights that are not special, and a batch."""

import os


# Set before transformers is imported: no test may reach for the network.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


TINY = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def tiny_config():
    """`tiny_config(**overrides)`: a config of 2 + 2 layers, width 32, vocabulary 99."""
    return lambda **overrides: VanillaTransformerConfig(**{**TINY, **overrides})


@pytest.fixture
def tiny_model(tiny_config):
    """`tiny_model(**overrides)`: a model in evaluation mode whose biases and norms differ from zero and one."""

    def build(**overrides):
        model = VanillaTransformerForConditionalGeneration(tiny_config(**overrides)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        return model

    return build


@pytest.fixture
def batch():
    """Two sentences of 7 and 4 tokens, padded on the right, and decoder inputs of 6 and 3 behind the pad token."""
    source = torch.randint(3, 90, (2, 7))
    target = torch.randint(3, 90, (2, 6))
    target[:, 0] = 0
    attention_mask = torch.ones_like(source)
    decoder_attention_mask = torch.ones_like(target)
    source[1, 4:], attention_mask[1, 4:] = 0, 0
    target[1, 3:], decoder_attention_mask[1, 3:] = 0, 0
    return {
        "input_ids": source,
        "attention_mask": attention_mask,
        "decoder_input_ids": target,
        "decoder_attention_mask": decoder_attention_mask,
    }
