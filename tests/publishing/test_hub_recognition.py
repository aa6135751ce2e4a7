"""Models of speech and images on the Hub: pushed for real, opened by Auto classes and pipeline without the package."""

import json
import subprocess
import sys

import numpy as np
import pytest
import test_whisper
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, Speech2TextProcessor, TrOCRProcessor, pipeline
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from vanilla_transformer_hf import (
    VanillaTransformerFeatureExtractor,
    VanillaTransformerForImageTextToText,
    VanillaTransformerForSpeechSeq2Seq,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.conversion import convert
from vanilla_transformer_hf.publishing.hub import publish_folder
from vanilla_transformer_hf.publishing.model_card import CardFacts, write_card


SPEECH, IMAGE, WHISPER = "someone/speech", "someone/image", "someone/whisper"
STRANGER = """
import json, sys
sys.modules["vanilla_transformer_hf"] = None
import numpy as np
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, pipeline

speech, image, whisper, again = sys.argv[1:]
trust, texts = {"trust_remote_code": True}, []
for name, rate in ((speech, 8000), (whisper, 16000)):
    reads = pipeline("automatic-speech-recognition", model=name, **trust)
    assert "transformers_modules" in type(reads.model).__module__
    sound = {"raw": np.sin(np.arange(4000.0)), "sampling_rate": rate}
    texts.append(reads(sound, generate_kwargs={"max_new_tokens": 5})["text"])
processor = AutoProcessor.from_pretrained(image, **trust)
model = AutoModelForImageTextToText.from_pretrained(image, **trust)
pixels = processor(images=Image.fromarray(np.arange(192, dtype="uint8").reshape(8, 24)), return_tensors="pt")
texts.append(processor.batch_decode(model.generate(**pixels, max_new_tokens=5))[0])
AutoProcessor.from_pretrained(speech, **trust).save_pretrained(again)
print(json.dumps(texts))
"""


@pytest.fixture
def published(hub, tiny_config, tmp_path):
    """A model of speech, one of images, and a converted Whisper, each on the Hub with its processor."""
    torch.manual_seed(0)
    tokenizer = VanillaTransformerTokenizer.train(["one two three"], vocab_size=280, show_progress=False)
    sizes = {"num_channels": 1, "image_height": 8, "image_width": 24, "patch_height": 4, "patch_width": 4}
    images = ViTImageProcessorPil(do_resize=False, size={"height": 8, "width": 24}, image_mean=[0.5], image_std=[0.5])
    for name, kind, processor, fields in (
        (
            SPEECH,
            VanillaTransformerForSpeechSeq2Seq,
            Speech2TextProcessor(VanillaTransformerFeatureExtractor(12, 8000), tokenizer),
            {"front_end": "speech", "num_mel_bins": 12},
        ),
        (
            IMAGE,
            VanillaTransformerForImageTextToText,
            TrOCRProcessor(images, tokenizer),
            {"front_end": "image", **sizes},
        ),
    ):
        kind(tiny_config(vocab_size=len(tokenizer), **fields)).save_pretrained(tmp_path / name)
        processor.save_pretrained(tmp_path / name)
        write_card(CardFacts(name=name, license="cc0-1.0"), tmp_path / name)
    (tmp_path / "theirs").mkdir()
    test_whisper.write(tmp_path / "theirs")
    convert("whisper", tmp_path / "theirs", tmp_path / WHISPER)
    for name in (SPEECH, IMAGE, WHISPER):
        publish_folder(tmp_path / name, name)
    return tmp_path


@pytest.mark.slow
def test_pushed_models_are_opened_without_the_package(published, hub, tmp_path):
    files = {name: hub.repositories[name].files() for name in (SPEECH, IMAGE, WHISPER)}
    assert all("processor_config.json" in each and "tokenizer.json" in each for each in files.values())
    assert "feature_extraction_vanilla_transformer.py" in files[SPEECH]
    for name, tag in ((SPEECH, "automatic-speech-recognition"), (IMAGE, "image-to-text")):
        assert f"pipeline_tag: {tag}" in files[name]["README.md"].decode()
    assert "pipeline_tag: automatic-speech-recognition" in files[WHISPER]["README.md"].decode()
    command = [sys.executable, "-c", STRANGER, SPEECH, IMAGE, WHISPER, str(tmp_path / "again")]
    done = subprocess.run(command, capture_output=True, text=True, env=hub.environment(tmp_path / "elsewhere"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "again" / "feature_extraction_vanilla_transformer.py").is_file()
    texts = []
    for name, rate in ((SPEECH, 8000), (WHISPER, 16000)):
        sound = {"raw": np.sin(np.arange(4000.0)), "sampling_rate": rate}
        reads = pipeline("automatic-speech-recognition", model=str(published / name))
        texts.append(reads(sound, generate_kwargs={"max_new_tokens": 5})["text"])
    processor = AutoProcessor.from_pretrained(published / IMAGE)
    model = AutoModelForImageTextToText.from_pretrained(published / IMAGE)
    pixels = processor(images=Image.fromarray(np.arange(192, dtype="uint8").reshape(8, 24)), return_tensors="pt")
    texts.append(processor.batch_decode(model.generate(**pixels, max_new_tokens=5))[0])
    assert json.loads(done.stdout.splitlines()[-1]) == texts
