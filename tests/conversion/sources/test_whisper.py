"""Whisper: folders that transformers itself saves, with its processor; the converted folder writes the same texts."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from make_spoken_digits import write_wave
from samples import sounds, write_sounds
from single_stacks import write_byte_bpe
from transformers import (
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    AutoTokenizer,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForAudioClassification,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
    pipeline,
)

from vanilla_transformer_hf import VanillaTransformerForSpeechSeq2Seq
from vanilla_transformer_hf.common.recordings import read_recording
from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.conversion.sources.whisper import Whisper
from vanilla_transformer_hf.translation.recognition import Recognizer


SIZES = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
SIZES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 24, "num_mel_bins": 80}
SPECIAL = ("endoftext", "startoftranscript", "en", "de", "translate", "transcribe", "notimestamps")
SPECIAL = [f"<|{name}|>" for name in SPECIAL]
IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 1}
SEVERAL = {"lang_to_id": {"<|en|>": 2, "<|de|>": 3}, "task_to_id": {"translate": 4, "transcribe": 5}}
SEVERAL |= {"no_timestamps_token_id": 6, "is_multilingual": True, "return_timestamps": False}
SUPPRESSED = {"suppress_tokens": [20, 21, 22], "begin_suppress_tokens": [220, 0]}
SOUNDS = sounds(12000, 7000)
CASES = {
    "plain": {},
    "large": {"num_mel_bins": 128, "activation_function": "relu", "tie_word_embeddings": False, "encoder_layers": 1},
    "short": {"max_source_positions": 100, "max_target_positions": 30, "scale_embedding": True},
}


def build(seed=0, **options):
    """A model with random weights whose outputs depend on the sound: its encoder's positions are small beside it."""
    torch.manual_seed(seed)
    sizes = {**SIZES, "vocab_size": 330, "max_source_positions": 50, "max_target_positions": 40}
    model = WhisperForConditionalGeneration(WhisperConfig(**{**sizes, **IDS, **options})).eval()
    for name, parameter in model.named_parameters():
        spread = 0.02 if "encoder.embed_positions" in name else 0.5 if "encoder_attn" in name else 0.3
        torch.nn.init.normal_(parameter, std=spread if parameter.dim() > 1 else 0.1)
    return model


@cache
def words():
    """Vocabulary and merges as Whisper has them."""
    with TemporaryDirectory() as folder:
        write_byte_bpe(folder, SPECIAL)
        merges = Path(folder, "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
        return json.loads(Path(folder, "vocab.json").read_text(encoding="utf-8")), merges


def save(folder, model, **generation):
    """A folder of the model and a processor of its window, 10 ms a frame and two frames a position."""
    folder.mkdir(exist_ok=True)
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    vocabulary, merges = words()
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[tuple(line.split(" ")) for line in merges])
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL[1:]})
    config = model.config
    extractor = WhisperFeatureExtractor(config.num_mel_bins, chunk_length=max(1, config.max_source_positions // 50))
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    return folder


def write(folder):
    """A checkpoint with one language."""
    save(folder, build())


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_logits_are_those_of_whisper(options, tmp_path):
    theirs = build(**options)
    done = convert("auto", save(tmp_path / "theirs", theirs), tmp_path / "ours")
    assert done.source == "whisper" and done.reopened == 0 and done.reference <= 1e-5
    assert done.config.front_end == "speech_whisper"
    ours = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "ours")
    assert type(ours) is VanillaTransformerForSpeechSeq2Seq
    processor = AutoProcessor.from_pretrained(tmp_path / "ours")
    batch = processor(SOUNDS, sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
    ids = torch.randint(7, 330, (2, 9))
    with torch.no_grad():
        found = ours(**batch, decoder_input_ids=ids).logits
        expected = theirs(**batch, decoder_input_ids=ids).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        labels = ours(**batch, labels=ids).loss, theirs(**batch, labels=ids).loss
    torch.testing.assert_close(*labels, rtol=0, atol=1e-5)


def test_texts_are_those_of_whisper(tmp_path):
    theirs = build(seed=5)
    save(tmp_path / "theirs", theirs, **SEVERAL, **SUPPRESSED)
    with pytest.raises(ConversionError, match=r"language: en is usual\n.*such as --set language=en$"):
        convert("whisper", tmp_path / "theirs", tmp_path / "ours")
    convert("whisper", tmp_path / "theirs", tmp_path / "ours", options={"language": "de"})
    processor = AutoProcessor.from_pretrained(tmp_path / "ours")
    assert type(processor) is WhisperProcessor
    assert type(AutoTokenizer.from_pretrained(tmp_path / "ours")) is WhisperTokenizer
    ours = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "ours")
    assert ours.generation_config.decoder_prompt_ids == [3, 5, 6]
    files = write_sounds(tmp_path, SOUNDS)
    recordings = [read_recording(path)[0] for path in files]
    batch = processor(recordings, sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
    for beams in (1, 4):
        options = {"num_beams": beams, "max_new_tokens": 12}
        found = ours.generate(**batch, **options)
        whole = {"force_unique_generate_call": True, "language": "de", "task": "transcribe"}
        assert torch.equal(found, theirs.generate(**batch, **options, **whole))
        assert found[:, :4].tolist() == [[1, 3, 5, 6]] * 2 and not torch.equal(found[0], found[1])
        streamed = [*ours.generate_stream([batch, batch], **options)]
        assert all(torch.equal(each, found) for each in streamed)
        prompt = torch.tensor([[1, 2, 4, 6]] * 2)
        found = ours.generate(**batch, **options, decoder_input_ids=prompt)
        assert torch.equal(
            found, theirs.generate(**batch, **options, **whole | {"language": "en", "task": "translate"})
        )
        assert torch.equal(found, ours.generate(**batch, **options, decoder_prompt_ids=[2, 4, 6]))
    with pytest.raises(ValueError, match="decoder_prompt_ids: token id 999 lies outside the vocabulary of 330 tokens"):
        ours.generate(**batch, decoder_prompt_ids=[999])
    with pytest.raises(ValueError, match="decoder_prompt_ids=7: must be a list of token ids, or None"):
        ours.generate(**batch, decoder_prompt_ids=7)
    reads = pipeline("automatic-speech-recognition", model=str(tmp_path / "ours"))
    ids = ours.generate(**batch, max_new_tokens=12, num_beams=5)
    texts = processor.batch_decode(ids, skip_special_tokens=True)
    assert [reads(each, generate_kwargs={"max_new_tokens": 12})["text"] for each in recordings] == texts
    assert [*Recognizer(str(tmp_path / "ours")).texts(files, max_new_tokens=12, num_beams=5)] == texts
    write_wave(tmp_path / "long.wav", np.zeros(24000), 16000)
    with pytest.raises(ValueError, match=r"long.wav has 1.5 seconds, and this model reads 1: cut it into parts"):
        list(Recognizer(str(tmp_path / "ours")).texts([tmp_path / "long.wav"]))


@pytest.fixture
def settings_of(tmp_path):
    """The generation config that a folder with these settings gets, with options of the command."""

    def made(generation, given):
        write_settings = tmp_path / "generation_config.json"
        write_settings.write_text(json.dumps(generation), encoding="utf-8")
        options = {"model_type": "whisper", **SIZES, **IDS, "vocab_size": 330, **given}
        found = Whisper(options, {}, None, tmp_path, [write_settings])
        return found.to_generation_config(found.to_config()).to_dict(), found.guessed()

    return made


@pytest.mark.parametrize(
    ("generation", "given", "prompt"),
    [
        ({"forced_decoder_ids": [[1, 6]]}, {}, [6]),  # English alone
        ({**SEVERAL, "forced_decoder_ids": [[1, None], [2, 5]]}, {"language": "en"}, [2, 5, 6]),
        ({**SEVERAL, "forced_decoder_ids": [[1, 3], [2, 4]]}, {}, [3, 4, 6]),
        ({**SEVERAL, "language": "<|de|>", "task": "translate"}, {}, [3, 4, 6]),
        ({**SEVERAL, "language": "de"}, {"task": "translate"}, [3, 4, 6]),
        ({}, {"forced_decoder_ids": [[1, 2], [3, 4]]}, [2]),  # of config.json, up to the gap
        ({}, {}, None),
    ],
)
def test_the_prompt(generation, given, prompt, settings_of):
    saved, guessed = settings_of({**generation, **SUPPRESSED}, given)
    assert saved.get("decoder_prompt_ids") == prompt and not guessed
    assert not {"lang_to_id", "forced_decoder_ids", "return_timestamps", "language"} & saved.keys()
    assert SUPPRESSED.items() <= saved.items()


@pytest.mark.parametrize(
    ("generation", "given", "message"),
    [
        (SEVERAL, {"language": "fr"}, r"^language='fr': expected one of de, en$"),
        (SEVERAL, {"language": "de", "task": "sing"}, r"^task='sing': expected one of transcribe, translate$"),
        ({}, {"language": "de"}, r"^language='de': generation_config.json lacks lang_to_id, the ids$"),
        ({"forced_decoder_ids": [[1, 999]]}, {}, r"the prompt has the id 999, and there are 330 tokens$"),
        ({"forced_decoder_ids": [[1, "x"]]}, {}, r"the prompt has the id 'x', and there are 330 tokens$"),
    ],
)
def test_prompts_that_cannot_be_are_named(generation, given, message, settings_of):
    with pytest.raises(ConversionError, match=message):
        settings_of(generation, given)


def test_what_cannot_be_converted_is_named(tmp_path):
    config = WhisperConfig(**SIZES, **IDS, vocab_size=330, max_source_positions=50, classifier_proj_size=4)
    WhisperForAudioClassification(config).save_pretrained(tmp_path / "theirs")
    with pytest.raises(ConversionError, match=r"architectures=\['WhisperForAudioClassification'\]: must be one of"):
        convert("whisper", tmp_path / "theirs", tmp_path / "ours")
    save(tmp_path / "other", build())
    settings = tmp_path / "other" / "processor_config.json"
    content = json.loads(settings.read_text(encoding="utf-8"))
    content["feature_extractor"]["feature_size"] = 128
    settings.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConversionError, match="the feature extractor makes 128 mel bins, and the model reads 80"):
        convert("whisper", tmp_path / "other", tmp_path / "ours")
    settings.unlink()
    done = convert("whisper", tmp_path / "other", tmp_path / "ours")
    assert "the files of a processor are missing beside the checkpoint: the model has none" in done.notes
    assert not (tmp_path / "ours" / "tokenizer.json").exists()


def test_no_code_and_no_place_of_the_checkpoint_goes_along(tmp_path):
    save(tmp_path / "theirs", build())
    for name in ("processor_config.json", "tokenizer_config.json"):
        path = tmp_path / "theirs" / name
        content = json.loads(path.read_text(encoding="utf-8"))
        auto = {"AutoTokenizer": ["evil.Tokenizer", None], "AutoFeatureExtractor": "evil.Extractor"}
        inner = {"feature_extractor": {**content.get("feature_extractor", {}), "auto_map": auto}}
        path.write_text(json.dumps({**content, **inner, "auto_map": auto, "name_or_path": "/home/me"}))
    convert("whisper", tmp_path / "theirs", tmp_path / "ours")
    for name in ("processor_config.json", "tokenizer_config.json"):
        text = (tmp_path / "ours" / name).read_text(encoding="utf-8")
        assert not any(word in text for word in ("evil", "/home", "/tmp", "auto_map"))
