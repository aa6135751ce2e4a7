"""Speech2Text: folders that transformers itself saves, with its processor; the new folder writes the same texts."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from make_spoken_digits import write_wave
from samples import sounds, write_sounds
from transformers import (
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    Speech2TextConfig,
    Speech2TextFeatureExtractor,
    Speech2TextForConditionalGeneration,
    Speech2TextProcessor,
    pipeline,
)

from vanilla_transformer_hf.common.recordings import read_recording
from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.translation.recognition import Recognizer


SIZES = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "vocab_size": 40}
SIZES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 24, "conv_channels": 24}
SIZES |= {"input_feat_per_channel": 12}
SOUNDS = sounds(9000, 5000)
CASES = {
    "plain": {},
    "one convolution": {"num_conv_layers": 1, "conv_kernel_sizes": (3,), "activation_function": "gelu"},
    "untied": {"tie_word_embeddings": False, "scale_embedding": False, "pad_token_id": 4, "num_conv_layers": 3}
    | {"conv_kernel_sizes": (5, 5, 5)},
}


def build(seed=0, **options):
    torch.manual_seed(seed)
    model = Speech2TextForConditionalGeneration(Speech2TextConfig(**{**SIZES, **options})).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=(0.5 if "encoder_attn" in name else 0.2) if parameter.dim() > 1 else 0.1)
    return model


@cache
def words():
    """Vocabulary and SentencePiece model of a tokenizer."""
    library = pytest.importorskip("sentencepiece")
    with TemporaryDirectory() as folder:
        text, prefix = Path(folder, "text.txt"), Path(folder, "m")
        text.write_text("one two three four five\n" * 20, encoding="utf-8")
        options = {"vocab_size": 32, "hard_vocab_limit": False, "minloglevel": 2}
        library.SentencePieceTrainer.train(input=str(text), model_prefix=str(prefix), **options)
        model = library.SentencePieceProcessor(model_file=f"{prefix}.model")
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *(model.id_to_piece(n) for n in range(3, model.get_piece_size()))]
        return pieces, Path(f"{prefix}.model").read_bytes()


def save(folder, model):
    """A folder of the model and a processor."""
    from transformers import Speech2TextTokenizer

    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    pieces, spm = words()
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "sentencepiece.bpe.model").write_bytes(spm)
    tokenizer = Speech2TextTokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"))
    extractor = Speech2TextFeatureExtractor(12, 16000, num_mel_bins=12)
    Speech2TextProcessor(extractor, tokenizer).save_pretrained(folder)
    return folder


def write(folder):
    """A checkpoint with its processor."""
    save(folder, build())


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_logits_are_those_of_speech_to_text(options, tmp_path):
    theirs = build(**options)
    theirs.save_pretrained(tmp_path / "theirs")
    done = convert("auto", tmp_path / "theirs", tmp_path / "ours")
    assert done.source == "speech_to_text" and done.reopened == 0 and done.reference <= 1e-5
    ours = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "ours")
    frames, ids = torch.randn(2, 41, 12), torch.randint(5, 40, (2, 6))
    with torch.no_grad():
        found, expected = ours(frames, decoder_input_ids=ids).logits, theirs(frames, decoder_input_ids=ids).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_texts_are_those_of_speech_to_text(tmp_path):
    theirs = build(seed=15, vocab_size=len(words()[0]))
    convert("speech_to_text", save(tmp_path / "theirs", theirs), tmp_path / "ours")
    processor = AutoProcessor.from_pretrained(tmp_path / "ours")
    assert type(processor) is Speech2TextProcessor
    ours = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "ours")
    options, texts, files = {"max_new_tokens": 12, "num_beams": 5}, [], write_sounds(tmp_path, SOUNDS)
    recordings = [read_recording(path)[0] for path in files]
    for samples in recordings:
        batch = processor(samples, sampling_rate=16000, return_tensors="pt")
        for beams in (1, 5):
            found = ours.generate(**batch, **{**options, "num_beams": beams})
            assert torch.equal(found, theirs.generate(**batch, **{**options, "num_beams": beams}))
        texts += processor.batch_decode(found, skip_special_tokens=True)
    assert texts[0] != texts[1]
    reads = pipeline("automatic-speech-recognition", model=str(tmp_path / "ours"))
    assert [reads(each, generate_kwargs={"max_new_tokens": 12})["text"] for each in recordings] == texts
    reader = Recognizer(str(tmp_path / "ours"))
    assert [*reader.texts(files, **options)] == [*reader.texts(files, batch_size=1, **options)] == texts
    write_wave(tmp_path / "silence.wav", np.zeros(8000), 16000)
    with pytest.raises(ValueError, match=r"silence.wav: its frames are NaN or infinite, as of .* pure silence"):
        list(reader.texts([tmp_path / "silence.wav"]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"conv_kernel_sizes": [5, 3]}, r"conv_kernel_sizes=\[5, 3\]: must be num_conv_layers=2 times one size"),
        ({"conv_kernel_sizes": [5]}, r"conv_kernel_sizes=\[5\]: must be num_conv_layers=2 times one size"),
        ({"pad_token_id": 0}, "pad_token_id=0: Speech2Text then gives no frame a position"),
        ({"architectures": ["Speech2TextModel"]}, r"architectures=\['Speech2TextModel'\]: must be one of"),
        ({"num_conv_layers": "2"}, "num_conv_layers: '2' .expected int"),
        ({"input_feat_per_channel": 10**6}, "num_mel_bins=1,000,000, and no tensor is longer than"),
        ({"conv_channels": 9 * 10**6}, "conv_channels=9,000,000, and no tensor is longer than"),
        ({"model_type": "whisper"}, "model_type='whisper', must be 'speech_to_text'"),
    ],
)
def test_what_cannot_be_converted_is_named(fields, message, tmp_path):
    build().save_pretrained(tmp_path / "theirs")
    config = tmp_path / "theirs" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text(encoding="utf-8")), **fields}))
    with pytest.raises(ConversionError, match=message):
        convert("speech_to_text", tmp_path / "theirs", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_what_only_training_does_is_noted(tmp_path):
    build(encoder_layerdrop=0.1).save_pretrained(tmp_path / "theirs")
    done = convert("speech_to_text", tmp_path / "theirs", tmp_path / "ours")
    assert "encoder_layerdrop=0.1: not done in training here" in done.notes
    assert any("the files of a processor are missing" in note for note in done.notes)
