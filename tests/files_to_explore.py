"""Small models that read recordings and images, with a file each, for the explorer's tests."""

import numpy as np
import torch
from make_spoken_digits import write_wave
from PIL import Image
from transformers import Speech2TextProcessor, TrOCRProcessor
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerFeatureExtractor,
    VanillaTransformerForImageTextToText,
    VanillaTransformerForSpeechSeq2Seq,
    VanillaTransformerTokenizer,
)


SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
LIMITS = {"max_new_tokens": 6}


def tokenizer():
    return VanillaTransformerTokenizer.train(["one two three"], vocab_size=280, show_progress=False)


def saved(folder, model, processor):
    model.generation_config.update(**LIMITS)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def hears(folder):
    """A model that hears, with `tones.wav`: half a second of three tones."""
    pieces = tokenizer()
    torch.manual_seed(0)
    config = VanillaTransformerConfig(front_end="speech", num_mel_bins=16, vocab_size=len(pieces), **SIZES)
    extractor = VanillaTransformerFeatureExtractor(feature_size=16, sampling_rate=8000)
    saved(folder, VanillaTransformerForSpeechSeq2Seq(config), Speech2TextProcessor(extractor, pieces))
    hertz = np.repeat([300, 900, 2000], 1400)
    write_wave(folder / "tones.wav", 0.5 * np.sin(2 * np.pi * hertz * np.arange(4200) / 8000), 8000)
    return folder


def sees(folder, patch=(8, 4), channels=1):
    """A model that sees, with `glyph.png`: a drawn glyph of 8 by 16 pixels, in an image of 8 by 24."""
    size = {"height": 8, "width": 24}
    plain = {"image_mean": [0.5] * channels, "image_std": [0.5] * channels, "do_resize": False, "size": size}
    pieces = tokenizer()
    torch.manual_seed(0)
    fields = {"num_channels": channels, "image_height": 8, "image_width": 24}
    fields |= {"patch_height": patch[0], "patch_width": patch[1], "vocab_size": len(pieces)}
    config = VanillaTransformerConfig(front_end="image", **fields, **SIZES)
    processor = TrOCRProcessor(ViTImageProcessorPil(**plain, do_pad=True, pad_size=size), pieces)
    saved(folder, VanillaTransformerForImageTextToText(config), processor)
    glyph = np.zeros((8, 16), dtype=np.uint8)
    glyph[1:7, 3], glyph[1, 3:12], glyph[6, 3:12] = 255, 200, 200
    image = Image.fromarray(glyph)
    (image if channels == 1 else image.convert("RGB")).save(folder / "glyph.png")
    return folder
