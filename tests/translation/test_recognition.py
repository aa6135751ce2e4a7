"""Recordings and images to texts: which files are read, and what is said of others."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from make_spoken_digits import write_wave
from PIL import Image

from vanilla_transformer_hf import VanillaTransformerFeatureExtractor
from vanilla_transformer_hf.translation.recognition import read_image, read_sources, read_texts


def image_processor(channels):
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    size = {"height": 8, "width": 24}
    scale = {"image_mean": [0.5] * channels, "image_std": [0.5] * channels}
    makes = ViTImageProcessorPil(do_resize=False, size=size, do_pad=True, pad_size=size, **scale)
    return SimpleNamespace(image_processor=makes)


GREY = np.arange(8 * 20, dtype=np.uint8).reshape(8, 20)
COLOURS = np.dstack([GREY, GREY[::-1], GREY])


@pytest.mark.parametrize("mode", ["RGB", "P", "LA", "RGBA"])
def test_grey_is_grey_however_it_is_stored(mode, tmp_path):
    Image.fromarray(GREY).save(tmp_path / "grey.png")
    Image.fromarray(GREY).convert(mode).save(tmp_path / "other.png")
    for channels in (1, 3):
        processor = image_processor(channels)
        pixels = read_image(tmp_path / "grey.png", processor)
        assert pixels.shape == (channels, 8, 24)
        torch.testing.assert_close(pixels[0, :, :20], torch.from_numpy(GREY / 127.5 - 1).float())
        assert torch.equal(read_image(tmp_path / "other.png", processor), pixels)


@pytest.mark.parametrize(
    ("name", "pixels", "message"),
    [
        ("colours.png", COLOURS, "it has colours, and this model reads grey images: convert it to grey first"),
        ("transparent.png", np.dstack([COLOURS, GREY]), "parts of it are transparent: put it on a background first"),
        ("deep.png", GREY.astype(np.uint16) * 200, "it has more than 8 bits for each pixel"),
        ("wide.png", np.tile(GREY, 2), "it is 40 pixels wide and 8 high, and this model reads at most 24 and 8"),
        ("high.png", np.tile(GREY, (2, 1)), "it is 20 pixels wide and 16 high, and this model reads at most 24 and 8"),
    ],
)
def test_images_that_would_lose_something(name, pixels, message, tmp_path):
    (tmp_path / "texts.tsv").write_text(f"grey.png\tone\n{name}\ttwo\n")
    Image.fromarray(GREY).save(tmp_path / "grey.png")
    Image.fromarray(pixels).save(tmp_path / name)
    with pytest.raises(ValueError, match=rf"^line 2 of texts\.tsv: \S*{name}: {message}[^\n]*$"):
        read_sources(read_texts(tmp_path), "pixel_values", image_processor(1))


def test_an_image_is_of_a_format_that_starts_no_program_and_of_a_bounded_size(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "script.eps")  # which Pillow gives to Ghostscript
    with pytest.raises(ValueError, match=r"script.eps is not an image"):
        read_image(tmp_path / "script.eps", image_processor(1))
    (tmp_path / "script.png").write_bytes((tmp_path / "script.eps").read_bytes())
    with pytest.raises(ValueError, match=r"script.png is not an image"):
        read_image(tmp_path / "script.png", image_processor(1))
    Image.new("1", (10_000, 10_000)).save(tmp_path / "large.png")  # 12 kB
    with pytest.raises(ValueError, match=r"large.png: it has 100,000,000 pixels; expected at most 67,108,864"):
        read_image(tmp_path / "large.png", image_processor(1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("none.png", b"text", " is not an image"), ("half.png", None, ": image file is truncated")],
)
def test_files_that_are_no_images(name, content, message, tmp_path):
    (tmp_path / "texts.tsv").write_text(f"{name}\tone\n")
    Image.fromarray(COLOURS).save(tmp_path / "whole.png")
    (tmp_path / name).write_bytes(content or (tmp_path / "whole.png").read_bytes()[:-40])
    with pytest.raises(ValueError, match=rf"^line 1 of texts\.tsv: \S*{name}{message}"):
        read_sources(read_texts(tmp_path), "pixel_values", image_processor(3))
    with pytest.raises(OSError, match=r"nowhere\.png"):
        read_image(tmp_path / "nowhere.png", image_processor(3))


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (0, 8000, r" is empty: expected at least one sample"),
        (900, 16000, r" has 16,000 samples per second, and this model reads 8,000: resample it"),
    ],
)
def test_recordings_that_cannot_be_used(samples, rate, message, tmp_path):
    (tmp_path / "texts.tsv").write_text("good.wav\tone\nbad.wav\ttwo\n")
    write_wave(tmp_path / "good.wav", np.ones(900), 8000)
    write_wave(tmp_path / "bad.wav", np.ones(samples), rate)
    processor = SimpleNamespace(feature_extractor=VanillaTransformerFeatureExtractor(12, 8000))
    with pytest.raises(ValueError, match=rf"^line 2 of texts\.tsv: \S*bad\.wav{message}"):
        read_sources(read_texts(tmp_path), "input_features", processor)
    (tmp_path / "bad.wav").unlink()
    with pytest.raises(FileNotFoundError, match=r"^line 2 of \S*texts\.tsv: \S*bad\.wav does not exist"):
        read_texts(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is empty"), ("a.wav one\n", "line 1 of .*expected a file, a tab and its text, got 'a.wav one'")],
)
def test_tables_that_cannot_be_used(content, message, tmp_path):
    (tmp_path / "texts.tsv").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_texts(tmp_path)
