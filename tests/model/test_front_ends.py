"""
Front ends: shapes, padding, and patches as the host's own modules have them. Convolutions are those of Speech2Text and
Whisper in tests/conversion/sources.
"""

import pytest
import torch
from transformers import ViTConfig
from transformers.models.vit.modeling_vit import ViTPatchEmbeddings

from vanilla_transformer_hf import VanillaTransformerConfig
from vanilla_transformer_hf.model.config.front_ends import FRONT_ENDS, shortened_padding, source_length
from vanilla_transformer_hf.model.front_ends import FrontEndBase
from vanilla_transformer_hf.model.modeling_vanilla_transformer import FRONT_END_CLASSES


MEL = {"num_mel_bins": 12}
GATED = {"front_end": "speech", **MEL, "conv_activation": "glu", "conv_channels": 24, "conv_kernel_size": 5}
WHISPER = {"front_end": "speech", **MEL, "conv_strides": [1, 2]}
WINDOW = {"front_end": "speech_whisper", **MEL, "conv_strides": [1, 2], "max_position_embeddings": 16}
SPEECH = {
    "convolutions": {"front_end": "speech", **MEL},
    "gated": GATED,
    "whisper": WHISPER,
    "one": {"front_end": "speech", **MEL, "conv_strides": [3], "conv_kernel_size": 7},
    "stacked": {"front_end": "speech_stacked", **MEL, "stacked_frames": 3},
}
IMAGE = {"front_end": "image", "num_channels": 2, "image_height": 6, "image_width": 8, "patch_height": 3}
IMAGE |= {"patch_width": 2}


@pytest.fixture
def front_end():
    """`front_end(**fields)`: a front end of width 16 with random biases, and its config."""

    def make(**fields):
        torch.manual_seed(0)
        config = VanillaTransformerConfig(d_model=16, **fields)
        made = FRONT_END_CLASSES[config.front_end](config)
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
        return made.requires_grad_(False), config

    return make


def test_every_row_but_that_of_tokens_has_a_class():
    assert all(issubclass(FRONT_END_CLASSES[kind], FrontEndBase) for kind in FRONT_ENDS.keys() - {"tokens"})
    with pytest.raises(ValueError, match="Smell: 'smell' is not a row of a table in config/; add it there first"):

        class Smell(FrontEndBase, kind="smell"):
            pass


@pytest.mark.parametrize("name", SPEECH)
@pytest.mark.parametrize("frames", [1, 2, 3, 10, 11, 24])
def test_padding_of_frames_changes_nothing(name, frames, front_end):
    made, config = front_end(**SPEECH[name])
    made, speech = made.double(), torch.randn(1, frames, 12).double()
    alone = made(speech, None)
    for garbage in (0.0, 7.0):
        padded = torch.cat((speech, torch.full((1, 9, 12), garbage)), dim=1)
        mask = torch.tensor([[1] * frames + [0] * 9])
        short = shortened_padding(config, mask)
        found = made(padded, mask)
        assert found.shape[:2] == short.shape == (1, source_length(config, padded.shape))
        assert int(short.sum()) == alone.shape[1] == source_length(config, speech.shape)
        torch.testing.assert_close(found[:, : alone.shape[1]], alone, atol=1e-10, rtol=0)


def test_frames_of_a_window_stand_last_and_have_no_padding(front_end):
    ours, config = front_end(**WINDOW)
    plain, _ = front_end(**WHISPER)
    plain.load_state_dict(ours.state_dict())
    speech, mask = torch.randn(2, 32, 12), torch.ones(2, 32)
    mask[1, 9:] = 0
    found = ours(speech.transpose(1, 2), mask)
    assert torch.equal(found, plain(speech, None))
    assert shortened_padding(config, mask) is None and source_length(config, (2, 12, 32)) == found.shape[1] == 16


@pytest.mark.parametrize("patch", [(2, 2), (3, 3)])
def test_patches_equal_those_of_vit(patch, front_end):
    fields = {"num_channels": 3, "image_height": 6, "image_width": 12, "patch_height": patch[0]}
    ours, config = front_end(front_end="image", **fields, patch_width=patch[1])
    theirs = ViTPatchEmbeddings(ViTConfig(image_size=(6, 12), patch_size=patch, hidden_size=16))
    weights = ours.projection
    theirs.projection.load_state_dict({"weight": weights.weight.view(16, 3, *patch), "bias": weights.bias})
    pixels = torch.randn(2, 3, 6, 12)
    found = ours(pixels, None)
    torch.testing.assert_close(found, theirs(pixels), atol=1e-5, rtol=0)
    assert found.shape[1] == source_length(config, pixels.shape)


@pytest.mark.parametrize(
    ("fields", "shape", "mask", "message"),
    [
        (SPEECH["gated"], (2, 9), None, r"input_features: expected \(recordings, frames, 12\).*got.*\(2, 9\)"),
        (SPEECH["gated"], (2, 9, 80), None, r"\(num_mel_bins=12\), got a tensor of shape \(2, 9, 80\)"),
        (SPEECH["stacked"], (2, 0, 12), None, "with at least one frame"),
        (SPEECH["stacked"], (2, 9, 12), (2, 3), r"attention_mask: expected 1 or 0 for each frame .*, \(2, 9\), got"),
        (
            WINDOW,
            (2, 12, 30),
            None,
            r"input_features: expected \(recordings, 12, 32\), num_mel_bins and the frames of",
        ),
        (WINDOW, (2, 32, 12), None, r"max_position_embeddings positions, got a tensor of shape \(2, 32, 12\)"),
        (IMAGE, (1, 6, 8), None, r"pixel_values: expected \(images, 2, 6, 8\).*got a tensor of shape \(1, 6, 8\)"),
        (IMAGE, (1, 3, 6, 8), None, "as num_channels, image_height, image_width, got"),
        (IMAGE, (1, 2, 6, 8), (1, 6), r"attention_mask: expected 1 or 0 for each patch, \(1, 8\), got"),
    ],
)
def test_wrong_shapes_are_named(fields, shape, mask, message, front_end):
    made, _ = front_end(**fields)
    with pytest.raises(ValueError, match=message) as error:
        made(torch.zeros(shape), None if mask is None else torch.ones(mask))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"front_end": "smell"}, "front_end"),
        ({"num_mel_bins": 40}, "num_mel_bins=40: only front_end='speech' or 'speech_stacked' or 'speech_whisper' has"),
        ({"front_end": "image", "conv_strides": [2]}, r"conv_strides=\[2\]: only front_end='speech' or"),
        ({"front_end": "speech", "conv_kernel_size": 4}, "conv_kernel_size=4: must be odd"),
        ({"front_end": "speech", "conv_strides": [2, 0]}, "must be one to eight numbers from 1 to 8"),
        ({"front_end": "speech", "conv_strides": []}, "must be one to eight numbers from 1 to 8"),
        ({"front_end": "speech", "conv_activation": "glue"}, r"did you mean 'glu'|must be 'glu' or one of"),
        ({"front_end": "speech", "conv_activation": "glu", "conv_channels": 7}, "conv_channels=7: must be even"),
        ({"front_end": "speech", "num_mel_bins": 0}, "num_mel_bins=0: must be greater than 0"),
        ({"front_end": "image", "patch_width": 5}, "patch_width=5: must divide image_width=224"),
        ({"front_end": "image", "source_vocab_size": 9}, "source_vocab_size=9: its source has no tokens"),
        ({"front_end": "speech", "type_vocab_size": 2}, "type_vocab_size=2: its source has no tokens"),
        ({"front_end": "speech", "is_encoder_decoder": False}, "only models with an encoder and a decoder have it"),
        ({"position_encoding": "sinusoidal_grid"}, "only the encoder of an image has rows and columns"),
        ({"front_end": "image", "position_encoding": "sinusoidal_grid"}, "or, in a model of images, another decoder_"),
    ],
)  # fmt: skip
def test_configs_that_cannot_be_are_named(fields, message):
    with pytest.raises(ValueError, match=message) as error:
        VanillaTransformerConfig(**fields)
    assert "\n" not in str(error.value)


def test_a_config_of_text_has_none_of_it():
    assert (
        not {"front_end", "num_mel_bins", "conv_strides", "image_width"} & VanillaTransformerConfig().to_dict().keys()
    )
    config = VanillaTransformerConfig(**IMAGE)
    assert VanillaTransformerConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert config.tied_matrices == "decoder"


def test_positions_of_a_grid():
    grid = {"position_encoding": "sinusoidal_grid", "decoder_position_encoding": "none"}
    from vanilla_transformer_hf.model.config.stacks import StackSizes
    from vanilla_transformer_hf.model.modeling_vanilla_transformer import (
        POSITION_ENCODINGS,
        SinusoidalPositionEncoding,
    )

    config = VanillaTransformerConfig(d_model=16, **IMAGE, **grid)
    scheme = POSITION_ENCODINGS["sinusoidal_grid"](config, StackSizes(config, "encoder"))
    found = scheme(torch.zeros(1, 8, 16), torch.arange(8)[None])[0]  # 2 rows of 4
    one = SinusoidalPositionEncoding.encode(torch.arange(4), 8)
    for row in range(2):
        for column in range(4):
            torch.testing.assert_close(found[4 * row + column], torch.cat((one[row], one[column])))
