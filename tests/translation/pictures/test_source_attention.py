"""Attention over recordings and images: which part of the picture a position stands for, and what is drawn."""

import numpy as np
import pytest
import torch
from make_spoken_digits import write_wave
from PIL import Image
from transformers import Speech2TextProcessor, TrOCRProcessor
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from vanilla_transformer_hf import (
    Translator,
    VanillaTransformerConfig,
    VanillaTransformerFeatureExtractor,
    VanillaTransformerForImageTextToText,
    VanillaTransformerForSpeechSeq2Seq,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.translation.pictures.source_attention import draw_source_attention, lit, source_attention
from vanilla_transformer_hf.translation.pictures.source_pictures import picture_of
from vanilla_transformer_hf.translation.recognition import Recognizer, read_image, read_speech


SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(["one two three"], vocab_size=280, show_progress=False)


def speech_model(folder, tokenizer, **fields):
    processor = Speech2TextProcessor(VanillaTransformerFeatureExtractor(feature_size=8, sampling_rate=8000), tokenizer)
    fields = {"front_end": "speech", "num_mel_bins": 8, "vocab_size": len(tokenizer), **SIZES, **fields}
    torch.manual_seed(0)
    VanillaTransformerForSpeechSeq2Seq(VanillaTransformerConfig(**fields)).save_pretrained(folder)
    processor.save_pretrained(folder)
    write_wave(folder / "one.wav", np.sin(np.arange(4000) ** 1.3 / 90), 8000)
    return folder


def image_model(folder, tokenizer, shape=(8, 24), patch=(8, 4), channels=1):
    height, width = shape
    size = {"height": height, "width": width}
    grey = {"image_mean": [0.5] * channels, "image_std": [0.25] * channels, "do_resize": False, "size": size}
    processor = TrOCRProcessor(ViTImageProcessorPil(**grey, do_pad=True, pad_size=size), tokenizer)
    fields = {"num_channels": channels, "image_height": height, "image_width": width}
    fields |= {"patch_height": patch[0], "patch_width": patch[1], "vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    config = VanillaTransformerConfig(front_end="image", **fields, **SIZES)
    VanillaTransformerForImageTextToText(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    pixels = np.arange(height * 14 * channels, dtype=np.uint8).reshape(height, 14, channels)
    Image.fromarray(pixels.squeeze()).save(folder / "strip.png")
    return folder


@pytest.fixture(scope="module")
def heard(tmp_path_factory, tokenizer):
    return speech_model(tmp_path_factory.mktemp("speech"), tokenizer)


@pytest.fixture(scope="module")
def seen(tmp_path_factory, tokenizer):
    return image_model(tmp_path_factory.mktemp("image"), tokenizer)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"conv_strides": [1, 2]},
        {"conv_strides": [2, 3, 1], "conv_kernel_size": 5},
        {"front_end": "speech_stacked", "stacked_frames": 3},
    ],
)
def test_a_position_lies_on_the_frames_that_it_is_computed_from(fields, tokenizer, tmp_path):
    """A change of a frame changes the positions that see it: those whose cell, widened to what is seen, holds it."""
    recognizer = Recognizer(str(speech_model(tmp_path, tokenizer, **fields)))
    source = read_speech(tmp_path / "one.wav", recognizer.processor)
    picture = picture_of(recognizer.model.config, recognizer.processor, source)
    assert picture.kind == "speech" and picture.is_row and picture.used == len(picture.cells) == len(picture.names)
    assert torch.equal(picture.values, source.t().flip(0)) and picture.seconds == 0.01
    front_end = recognizer.model.get_encoder().front_end
    plain = front_end(source[None], None)[0]
    assert len(plain) == len(picture.cells)
    middles = (picture.cells[:, 0] + picture.cells[:, 2]) / 2
    for frame in (11, 12, 13, 14, 20):
        changed = source.clone()
        changed[frame] += 1
        moved = (front_end(changed[None], None)[0] - plain).abs().amax(dim=1) > 1e-6
        assert torch.equal(moved, (middles - (frame + 0.5)).abs() <= picture.seen / 2), frame
    assert torch.equal(picture.cells[1:, 0], picture.cells[:-1, 2])  # one beside the other
    stride = int(picture.cells[2, 0] - picture.cells[1, 0])
    assert picture.names[3] == f"{3 * stride / 100:.2f} s"


@pytest.mark.parametrize("patch, channels", [((8, 4), 1), ((4, 8), 3)])
def test_a_patch_lies_on_its_pixels(patch, channels, tokenizer, tmp_path):
    folder = image_model(tmp_path, tokenizer, patch=patch, channels=channels)
    recognizer = Recognizer(str(folder))
    source = read_image(folder / "strip.png", recognizer.processor)
    picture = picture_of(recognizer.model.config, recognizer.processor, source)
    with Image.open(folder / "strip.png") as image:
        expected = torch.from_numpy(np.array(image) / 255).float()
    torch.testing.assert_close(picture.values[:, :14], expected, atol=1e-6, rtol=0)
    front_end = recognizer.model.get_encoder().front_end
    plain = front_end(source[None], None)[0]
    for place, (left, top, right, bottom) in enumerate(picture.cells.int().tolist()):
        changed = source.clone()
        changed[:, top:bottom, left:right] += 1
        moved = (front_end(changed[None], None)[0] - plain).abs().amax(dim=1) > 1e-6
        assert moved.nonzero().flatten().tolist() == [place]
    assert picture.is_row == (patch[0] == 8)
    assert picture.used == (4 if picture.is_row else 6)  # 14 of 24 columns are no padding: four patches of 4
    assert picture.names[1] == ("patch 1" if picture.is_row else "patch 0, 1")


def test_a_recording_that_is_too_long_is_named(tokenizer, tmp_path):
    folder = speech_model(tmp_path, tokenizer, position_encoding="learned", max_position_embeddings=5)
    recognizer = Recognizer(str(folder))
    message = r"one\.wav has 12 positions in the encoder; expected at most 5: cut it"
    with pytest.raises(ValueError, match=message):
        list(recognizer.texts([folder / "one.wav"]))
    with pytest.raises(ValueError, match=message):
        source_attention(recognizer, folder / "one.wav", "one")


def test_weights_are_those_of_the_model(heard):
    recognizer = Recognizer(str(heard))
    found = source_attention(recognizer, heard / "one.wav", "one two")
    tokenizer = recognizer.processor.tokenizer
    ids = tokenizer(text_target=["one two"], return_tensors="pt")["input_ids"]
    frames = read_speech(heard / "one.wav", recognizer.processor)[None]
    model = recognizer.model
    model.set_attn_implementation("eager")
    outputs = model(frames, labels=ids, output_attentions=True)
    torch.testing.assert_close(found.weights, torch.cat(outputs.cross_attentions).detach())
    assert found.text == "one two" and found.predicted[-1] == "</s>" and len(found.predicted) == ids.shape[1]
    assert found.is_text == [True] * (ids.shape[1] - 1) + [False]
    assert found.diagonality.order.shape == (2,)
    model.generation_config.max_new_tokens = 5
    own = source_attention(recognizer, heard / "one.wav")
    assert own.text == next(recognizer.texts([heard / "one.wav"]))


def test_pictures_have_the_source_and_a_map_for_each_layer_or_head(heard, seen, tokenizer, tmp_path):
    found = source_attention(Recognizer(str(heard)), heard / "one.wav", "one two")
    axes = draw_source_attention(found).axes
    assert [axis.get_ylabel() for axis in axes[:3]] == ["mel filter", "layer 0", "layer 1"]
    (mesh,) = axes[1].collections
    np.testing.assert_allclose(mesh.get_array(), found.weights[0].mean(dim=0))
    assert axes[2].get_xlabel() == "seconds" and axes[0].get_xlim() == axes[2].get_xlim()
    heads = draw_source_attention(found, layer=1).axes
    np.testing.assert_allclose(heads[2].collections[0].get_array(), found.weights[1, 1])
    with pytest.raises(ValueError, match="layer=2: the layers are 0 to 1"):
        draw_source_attention(found, layer=2)
    strip = source_attention(Recognizer(str(seen)), seen / "strip.png", "one")
    assert draw_source_attention(strip).axes[1].get_xlabel() == "" and strip.picture.kind == "image"
    grid = image_model(tmp_path, tokenizer, patch=(4, 8), channels=3)
    found = source_attention(Recognizer(str(grid)), grid / "strip.png", "one")
    axes = draw_source_attention(found).axes
    assert len(axes) == 2 * len(found.predicted) and axes[0].get_title() == found.predicted[0]
    weights = torch.tensor([0.0, 0, 1, 0, 0.25, 0])
    shown = lit(found.picture, weights)
    torch.testing.assert_close(shown[:4, 16:], found.picture.values[:4, 16:])
    torch.testing.assert_close(shown[:4, :16], 0.15 * found.picture.values[:4, :16])


def test_the_command_draws_files_and_tells_how_diagonal_they_are(heard, seen, tmp_path, capsys):
    for folder, option, file in ((heard, "--audio", "one.wav"), (seen, "--image", "strip.png")):
        picture = tmp_path / f"{option}.png"
        files = [str(folder / file)] * 2
        main(["attention", str(folder), str(picture), option, *files, "--target", "one two"])
        lines = capsys.readouterr().out.splitlines()
        one = source_attention(Recognizer(str(folder)), files[0], "one two").diagonality
        told = f"order {one.order[1]:.3f}, {100 * one.off_diagonal[1]:.1f} % of the weights off the diagonal"
        assert lines[0] == "one two" and lines[2] == f"layer 1: {told}"
        with Image.open(picture) as image:
            assert image.width > 800


def test_a_drawing_does_not_replace_what_it_shows(seen, tmp_path, capsys):
    before = (seen / "strip.png").read_bytes()
    for picture, message in (
        (seen / "strip.png", "is also the output"),
        (tmp_path / "none" / "a.png", "make the folder"),
    ):
        with pytest.raises(SystemExit):
            main(["attention", str(seen), str(picture), "--image", str(seen / "strip.png")])
        assert message in capsys.readouterr().err and (seen / "strip.png").read_bytes() == before


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "expected one source: a sentence, --audio FILE or --image FILE"),
        (["a", "--audio", "b"], "expected one source"),
        (["--audio", "b", "--part", "encoder"], "only cross-attention is drawn"),
        (["--image", "b"], "is a model that reads input_features, not pixel_values"),
        (["--audio", "b.wav"], "b.wav"),
        (["a sentence"], "reads recordings, not text: use `translate` with --audio"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message, heard, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["attention", str(heard), str(tmp_path / "x.png"), *arguments])
    assert message in capsys.readouterr().err and not (tmp_path / "x.png").exists()


def test_translators_and_servers_read_text_alone(heard, seen, capsys):
    with pytest.raises(ValueError, match="reads images, not text: use `translate` with --image, or"):
        Translator.from_pretrained(seen)
    with pytest.raises(SystemExit):
        main(["serve", str(heard), "--port", "0"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{heard} reads recordings, not text" in last
