"""Models of speech and images: training, padding, searches, saving, and opening with and without the package."""

import copy
import re

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from host_search import host
from PIL import Image
from transformers import (
    AutoModel,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    Speech2TextProcessor,
    TrOCRProcessor,
    pipeline,
)
from transformers.generation.streamers import BaseStreamer
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerFeatureExtractor,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForImageTextToText,
    VanillaTransformerForSpeechSeq2Seq,
    VanillaTransformerModel,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.conversion import ConversionError
from vanilla_transformer_hf.conversion.targets import TARGETS, export
from vanilla_transformer_hf.export import ExportError
from vanilla_transformer_hf.export.export import export_for
from vanilla_transformer_hf.export.int8_folder import quantize_folder
from vanilla_transformer_hf.training.checkpoints.averaging import average_checkpoints


SIZES = {"vocab_size": 50, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
SIZES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
PRE = {"encoder_norm_position": "pre", "decoder_norm_position": "pre"}
SPEECH = {"front_end": "speech", "num_mel_bins": 12}
IMAGE = {"front_end": "image", "num_channels": 1, "image_height": 8, "image_width": 24, "patch_height": 4}
IMAGE |= {"patch_width": 4}
VARIANTS = {
    "post": SPEECH,
    "pre, Whisper's": {**SPEECH, "conv_strides": [1, 2], "position_encoding": "learned", **PRE},
    "stacked, rotary": {"front_end": "speech_stacked", "num_mel_bins": 12, "position_encoding": "rotary", **PRE},
    "alibi, eager": {**SPEECH, "position_encoding": "alibi"},
    "t5_bias": {**SPEECH, "position_encoding": "t5_bias", "relative_buckets": 8, "max_relative_distance": 6},
    "window, shaw": {**SPEECH, "encoder_attention_type": "window", "attention_window": 2, "position_encoding": "shaw"},
    "window_global": {**SPEECH, "encoder_attention_type": "window_global", "attention_window": 2},
    "pooling": {**SPEECH, "encoder_pooling": [1]},
    "performer": {**SPEECH, "encoder_attention_type": "performer", **PRE},
    "whisper": {"front_end": "speech_whisper", "num_mel_bins": 12, "max_position_embeddings": 8},
    "image": IMAGE,
    "image, grid": {**IMAGE, "position_encoding": "sinusoidal_grid", "decoder_position_encoding": "sinusoidal", **PRE},
}


@pytest.fixture
def make():
    """`make(**fields)`: a model without dropout, in evaluation mode, and a batch of two sources of two lengths."""

    def made(attn_implementation="sdpa", **fields):
        torch.manual_seed(0)
        config = VanillaTransformerConfig(**SIZES, dropout=0.0, **fields, attn_implementation=attn_implementation)
        is_image = config.front_end == "image"
        model = (VanillaTransformerForImageTextToText if is_image else VanillaTransformerForSpeechSeq2Seq)(config)
        for name, parameter in model.named_parameters():
            if "front_end" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        if is_image:
            return model.eval(), {"pixel_values": torch.randn(2, 1, 8, 24)}
        if config.front_end == "speech_whisper":
            return model.eval(), {"input_features": torch.randn(2, 12, 32)}
        mask = torch.ones(2, 29, dtype=torch.long)
        mask[1, 18:] = 0
        return model.eval(), {"input_features": torch.randn(2, 29, 12), "attention_mask": mask}

    return made


@pytest.mark.parametrize("fields", [SPEECH, IMAGE], ids=["speech", "image"])
def test_whole_numbers_are_no_token_ids(fields, make):
    """Pixels as files have them: a value that is the id of padding hides nothing."""
    model, batch = make(**fields)
    source = next(iter(batch.values())).abs().mul(4).to(torch.uint8)
    assert (source == model.config.pad_token_id).any()
    for options in ({}, {"num_beams": 2}, {"output_hidden_states": True}):
        found = model.generate(source, max_new_tokens=5, **options)
        assert torch.equal(found, model.generate(source.float(), max_new_tokens=5, **options))


FAST = ("post", "stacked, rotary", "window, shaw", "image, grid")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def test_padding_changes_nothing_and_searches_equal_the_hosts(name, make):
    model, batch = make("eager" if "eager" in name else "sdpa", **VARIANTS[name])
    labels = torch.randint(3, 50, (2, 5))
    with torch.no_grad():
        together = model(**batch, labels=labels)
        if "attention_mask" in batch:
            alone = model(batch["input_features"][1:, :18], labels=labels[1:]).logits
            tolerance = 1e-6 if model.config.encoder_attention_type == "full" else 1e-5
            torch.testing.assert_close(together.logits[1:], alone, atol=5 * tolerance, rtol=0)
    other = host(model)
    for options in ({"num_beams": 1}, {"num_beams": 3, "length_penalty": 0.6}):
        found = model.generate(**batch, max_new_tokens=7, **options)
        expected = other.generate(**batch, max_new_tokens=7, **options)
        assert torch.equal(found, expected), options
        assert torch.equal(model.generate(next(iter(batch.values())), attention_mask=batch.get("attention_mask"),
                                          max_new_tokens=7, **options), found)  # fmt: skip
    streamed = [*model.generate_stream([batch, batch], max_new_tokens=7, num_beams=3, length_penalty=0.6)]
    assert all(torch.equal(each, found) for each in streamed)
    model.train()
    loss = model(**batch, labels=labels, return_logits=False).loss
    by_position = model(*batch.values(), labels=labels, return_logits=False).loss
    assert torch.equal(by_position, loss)
    loss.backward()
    plain = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    assert all(grad.abs().sum() > 0 for name, grad in plain.items() if "front_end" in name)
    for reentrant in (False, True):
        model.zero_grad()
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model(**batch, labels=labels).loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, plain[name], atol=1e-5, rtol=1e-4, msg=name)


# Kinds of attention whose weights sdpa never has.
NO_KERNEL = ("performer", "alibi, eager")


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_kernels_agree_and_padding_changes_nothing_at_all(name, make):
    """In float64, so that what is left is no rounding: padding on the right, and the rows beside a recording."""
    model, batch = make("sdpa", **VARIANTS[name])
    model, batch = (
        model.double(),
        {key: each.double() if each.is_floating_point() else each for key, each in batch.items()},
    )
    ids = torch.randint(3, 50, (2, 5))
    expected = model(**batch, decoder_input_ids=ids).logits
    if name not in NO_KERNEL:
        twin, _ = make("eager", **VARIANTS[name])
        twin.double().load_state_dict(model.state_dict())
        torch.testing.assert_close(twin(**batch, decoder_input_ids=ids).logits, expected, atol=1e-10, rtol=0)
    if "attention_mask" not in batch:
        return
    frames, mask = batch["input_features"], batch["attention_mask"]
    for garbage in (0.0, 3.0):
        longer = torch.cat((frames, torch.full((2, 13, 12), garbage).double()), dim=1)
        longer[1, 18:] = garbage
        whole = torch.cat((mask, torch.zeros(2, 13, dtype=torch.long)), dim=1)
        found = model(longer, attention_mask=whole, decoder_input_ids=ids).logits
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    alone = model(frames[1:, :18], decoder_input_ids=ids[1:]).logits
    torch.testing.assert_close(alone, expected[1:], atol=1e-12, rtol=0)


class Written(BaseStreamer):
    """What a streamer is given."""

    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


@pytest.mark.parametrize("name", ["post", "whisper", "image"])
def test_streamers_batches_and_types(name, make):
    model, batch = make(**VARIANTS[name])
    ids = model.generate(**batch, max_new_tokens=6)
    for row in range(2):
        one = {key: value[row : row + 1] for key, value in batch.items()}
        streamer = Written()
        model.generate(**one, max_new_tokens=6, streamer=streamer)
        assert streamer.ended and streamer.tokens == ids[row, : len(streamer.tokens)].tolist()
    assert model.generate(**batch, num_beams=2, num_return_sequences=2, max_new_tokens=6).shape[0] == 4
    for dtype in (torch.bfloat16, torch.float16):
        half = copy.deepcopy(model).to(dtype)
        for beams in (1, 2):  # features stay in float32, as a processor makes them
            assert half.generate(**batch, num_beams=beams, max_new_tokens=6).shape[0] == 2


@pytest.mark.parametrize("name", ["post", "stacked, rotary", "whisper", "image"])
def test_devices_by_accelerate(name, make, tmp_path):
    model, batch = make(**VARIANTS[name])
    model.save_pretrained(tmp_path / "model")
    ids = model.generate(**batch, max_new_tokens=6, num_beams=2)
    for place in ("cpu", "auto", {"model.encoder": "disk", "model.decoder": "cpu", "lm_head": "cpu"}):
        opened = type(model).from_pretrained(tmp_path / "model", device_map=place, offload_folder=tmp_path / "disk")
        assert torch.equal(opened.generate(**batch, max_new_tokens=6, num_beams=2), ids), place
    prepared = Accelerator(cpu=True).prepare(model.train())
    prepared(**batch, labels=torch.randint(3, 50, (2, 5))).loss.backward()
    assert all(each.grad is not None for name, each in model.named_parameters() if "front_end" in name)


@pytest.mark.parametrize("fields", [SPEECH, IMAGE], ids=["speech", "image"])
def test_what_has_no_front_end_of_this_kind_names_it(fields, make, tmp_path):
    model, _ = make(**fields)
    model.save_pretrained(tmp_path / "model")
    line = f"front_end={model.config.front_end!r}: must be 'tokens'"
    for engine in ("ctranslate2", "onnx", "torch_export"):
        with pytest.raises(ExportError, match=re.escape(line)):
            export_for(engine, tmp_path / "model", tmp_path / "out")
    for target in TARGETS:
        with pytest.raises(ConversionError, match=re.escape(line)):
            export(target, tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_limits_of_length_count_positions(make):
    model, batch = make(**SPEECH)
    model.generation_config.eos_token_id = None
    assert model.generate(**batch).shape[1] == 1 + 8 + 50
    model, batch = make(**IMAGE)
    model.generation_config.eos_token_id = None
    assert model.generate(**batch).shape[1] == 1 + 12 + 50


def test_ensembles_and_int8(make):
    model, batch = make(**SPEECH)
    assert torch.equal(
        model.generate(**batch, ensemble=[model], max_new_tokens=6), model.generate(**batch, max_new_tokens=6)
    )
    assert model.generate(**batch, quantization="int8", num_beams=2, max_new_tokens=6).shape[0] == 2
    other, _ = make(**IMAGE)
    with pytest.raises(ValueError, match="its front_end is image and the model's is speech"):
        model.generate(**batch, ensemble=[other])


def test_the_wrong_source_is_named(make):
    model, batch = make(**SPEECH)
    labels = torch.randint(3, 50, (2, 5))
    for given, name in (({"input_ids": labels}, "input_ids"), ({"pixel_values": labels}, "pixel_values")):
        with pytest.raises(ValueError, match=f"{name} given; front_end='speech' reads input_features"):
            model(**given, labels=labels)
    with pytest.raises(ValueError, match="inputs_embeds given; front_end='speech' reads input_features"):
        model(inputs_embeds=torch.randn(2, 5, 16), labels=labels)
    with pytest.raises(ValueError, match="no input_features given"):
        model(labels=labels)
    text = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**SIZES))
    with pytest.raises(ValueError, match="input_features given; front_end='tokens' reads input_ids"):
        text(labels, labels=labels, **batch)
    with pytest.raises(ValueError, match="reads input_ids, and the config's front_end='speech' reads input_features; "
                       "open it with AutoModelForSpeechSeq2Seq"):  # fmt: skip
        VanillaTransformerForConditionalGeneration(model.config)
    with pytest.raises(ValueError, match="open it with AutoModelForSeq2SeqLM"):
        VanillaTransformerForSpeechSeq2Seq(text.config)


@pytest.mark.parametrize("fields", [SPEECH, IMAGE], ids=["speech", "image"])
def test_is_saved_opened_averaged_and_resized(fields, make, tmp_path):
    model, batch = make(**fields)
    labels = torch.randint(3, 50, (2, 5))
    expected = model(**batch, labels=labels).logits
    for number in (1, 2):
        model.save_pretrained(tmp_path / f"checkpoint-{number}")
    opens = AutoModelForImageTextToText if fields is IMAGE else AutoModelForSpeechSeq2Seq
    again = opens.from_pretrained(tmp_path / "checkpoint-1")
    assert type(again) is type(model)
    torch.testing.assert_close(again(**batch, labels=labels).logits, expected, atol=0, rtol=0)
    with pytest.raises(ValueError, match="open it with"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "checkpoint-1")
    bare = AutoModel.from_pretrained(tmp_path / "checkpoint-1")
    assert type(bare) is VanillaTransformerModel and bare.main_input_name == model.main_input_name
    states = bare(**batch, decoder_input_ids=labels).last_hidden_state
    assert states.shape == (2, 5, 16)
    assert bare.get_input_embeddings() is bare.decoder.embed_tokens
    average_checkpoints([tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"], tmp_path / "average")
    average = opens.from_pretrained(tmp_path / "average")
    torch.testing.assert_close(average(**batch, labels=labels).logits, expected)
    again.resize_token_embeddings(53)
    assert (
        again(**batch, labels=labels).logits.shape[-1] == 53
        and again.lm_head.weight is again.get_input_embeddings().weight
    )
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert half(**batch, labels=labels).logits.dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("name", ["post", "stacked, rotary", "whisper", "image"])
def test_exports(name, make):
    model, batch = make(**VARIANTS[name])
    labels = torch.randint(3, 50, (2, 5))

    class Logits(torch.nn.Module):
        def forward(self, source, target):
            return model(source, decoder_input_ids=target, use_cache=False).logits

    source = batch[model.main_input_name]
    program = torch.export.export(Logits(), (source, labels)).module()
    torch.testing.assert_close(program(source, labels), model(source, decoder_input_ids=labels).logits)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A saved speech model and a saved image model, each with its processor."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = VanillaTransformerTokenizer.train(["zero one two three"], vocab_size=280, show_progress=False)
    sizes = {**SIZES, "vocab_size": len(tokenizer)}
    model = VanillaTransformerForSpeechSeq2Seq(VanillaTransformerConfig(**sizes, **SPEECH))
    model.save_pretrained(folder / "speech")
    Speech2TextProcessor(VanillaTransformerFeatureExtractor(12, 8000), tokenizer).save_pretrained(folder / "speech")
    VanillaTransformerForImageTextToText(VanillaTransformerConfig(**sizes, **IMAGE)).save_pretrained(folder / "image")
    size = {"height": 8, "width": 24}
    options = {"do_resize": False, "size": size, "do_pad": True, "pad_size": size}
    images = ViTImageProcessorPil(**options, image_mean=[0.5], image_std=[0.5])
    TrOCRProcessor(images, tokenizer).save_pretrained(folder / "image")
    return folder


def texts_with_the_package(folder):
    reads = pipeline("automatic-speech-recognition", model=str(folder / "speech"))
    assert reads.type == "seq2seq"
    speech = reads({"raw": np.sin(np.arange(4000.0)), "sampling_rate": 8000}, max_new_tokens=5)["text"]
    processor = AutoProcessor.from_pretrained(folder / "image")
    model = AutoModelForImageTextToText.from_pretrained(folder / "image")
    pixels = processor(images=Image.fromarray(np.arange(160, dtype="uint8").reshape(8, 20)), return_tensors="pt")
    assert pixels["pixel_values"].shape == (1, 1, 8, 24)
    return [speech, processor.batch_decode(model.generate(**pixels, max_new_tokens=5))[0]]


def test_pipelines_and_processors_with_the_package(folders):
    assert all(isinstance(text, str) for text in texts_with_the_package(folders))
    files = {path.name for path in (folders / "speech").iterdir()}
    assert "feature_extraction_vanilla_transformer.py" in files and len([n for n in files if n.endswith(".py")]) == 6
    assert len([*(folders / "image").glob("*.py")]) == 5


@pytest.mark.parametrize("kind", ["speech", "image"])
def test_int8_folders(kind, folders, tmp_path):
    quantize_folder(folders / kind, tmp_path / "int8")
    opens = AutoModelForImageTextToText if kind == "image" else AutoModelForSpeechSeq2Seq
    torch.manual_seed(0)
    source = torch.randn(2, 1, 8, 24) if kind == "image" else torch.randn(2, 29, 12)
    whole, rounded = opens.from_pretrained(folders / kind), opens.from_pretrained(tmp_path / "int8")
    found = rounded.generate(source, max_new_tokens=6, num_beams=2)
    assert torch.equal(found, whole.generate(source, max_new_tokens=6, num_beams=2, quantization="int8"))
    assert type(AutoProcessor.from_pretrained(tmp_path / "int8")) is type(
        AutoProcessor.from_pretrained(folders / kind)
    )
    facts = (tmp_path / "int8" / "README.md").read_text(encoding="utf-8")
    assert "int8 with one step for each output" in facts
