"""Opening of models: what is missing, damaged or of another model is named in one line."""

import json
import os
import shutil
import time

import pytest
import torch
from counting_model import SOURCES, TARGETS
from huggingface_hub import constants
from machine import is_within
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.common.opening import naming, open_config, open_model
from vanilla_transformer_hf.conversion.source import ConversionError
from vanilla_transformer_hf.conversion.sources.saved_model import saved_weights
from vanilla_transformer_hf.publishing import weight_files
from vanilla_transformer_hf.publishing.weight_files import find_weights, weight_paths
from vanilla_transformer_hf.training.checkpoints.averaging import CheckpointWeights
from vanilla_transformer_hf.translation.translator import Translator


@pytest.fixture
def broken(counting_folder, tmp_path):
    """A copy of the saved model, to be damaged."""
    return shutil.copytree(counting_folder, tmp_path / "broken")


def test_from_pretrained_takes_dtype_and_device(counting_folder):
    opened = Translator.from_pretrained(counting_folder, device="cpu", dtype="bfloat16")
    assert opened.model.dtype == torch.bfloat16
    assert opened.translate("two") == "zwei"
    with pytest.raises(ValueError, match="device 'nonsense' cannot be used here"):
        Translator.from_pretrained(counting_folder, device="nonsense")


def _one_line(folder):
    with pytest.raises((OSError, ValueError)) as raised:
        Translator.from_pretrained(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)
    return str(raised.value)


def test_missing_folder_is_named(tmp_path):
    assert "no such folder" in _one_line(tmp_path / "nothing")
    assert "no such folder" in _one_line("no-such-model")  # may be a Hub id too, but the Hub is not there


@pytest.mark.parametrize("content", [b"", b"\xff" * 99, "half"])
def test_damaged_weights_are_named(broken, content):
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000] if content == "half" else content)
    assert "cannot open the weights" in _one_line(broken)


def test_missing_files_are_named(broken):
    (broken / "model.safetensors").unlink()
    assert "cannot open the weights" in _one_line(broken)
    (broken / "tokenizer.json").unlink()
    assert "cannot open the tokenizer" in _one_line(broken)
    (broken / "config.json").write_text("{")
    assert "cannot open the config" in _one_line(broken)


@pytest.mark.parametrize(("value", "message"), [(1.5, "dropout=1.5: must be at least 0"), ("x", "Field 'dropout'")])
def test_a_config_out_of_range_is_said_as_the_check_says_it(broken, value, message):
    """Without "Class validation error for validator 'validate_architecture':" in the place of the message."""
    fields = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**fields, "dropout": value}))
    assert f"cannot open the config of {broken}: {message}" in _one_line(broken)


@pytest.mark.parametrize(("field", "value"), [("encoder_layers", 2), ("encoder_ffn_dim", 128)])
def test_weights_of_another_model_are_refused_instead_of_drawn_at_random(broken, field, value):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, field: value}))
    assert "missing or of another shape, the first is model.encoder.layers" in _one_line(broken)


def test_a_mistake_in_a_program_is_not_taken_for_a_damaged_file(broken):
    class ProgramError(Exception):
        pass

    with pytest.raises(ProgramError), naming("config", broken):
        raise ProgramError
    with (
        pytest.raises(OSError, match=r"cannot open the config of .*: as tokenizers raises it"),
        naming("config", broken),
    ):
        raise Exception("as tokenizers raises it")


@pytest.mark.parametrize("content", ["{", "{}", '{"model": 1}', "[" * 100_000, "[]"])
def test_a_damaged_tokenizer_is_named(broken, content):
    (broken / "tokenizer.json").write_text(content)
    assert f"{broken / 'tokenizer.json'} is not a complete tokenizer file" in _one_line(broken)


@pytest.mark.parametrize("field", ["encoder_layers", "decoder_ffn_dim", "vocab_size"])
def test_a_config_far_beyond_its_weights_is_refused_before_a_model_is_built(broken, field):
    """The host would take the memory, fill it with random numbers, and then say that the weights are missing."""
    config = json.loads((broken / "config.json").read_text())
    value = {"encoder_layers": 1024, "decoder_ffn_dim": 2**24, "vocab_size": 2**23}[field]
    large = {"encoder_ffn_dim": 2**20} if field == "encoder_layers" else {}
    (broken / "config.json").write_text(json.dumps({**config, field: value, **large}))
    start = time.process_time()
    assert "its config describes a model of at least" in _one_line(broken)
    assert is_within(time.process_time() - start, 1)


def test_folder_of_another_model_type_is_refused(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    assert "model type 'bert' is not an encoder–decoder" in _one_line(tmp_path)


def test_vocabulary_that_does_not_fit_is_refused(translator, tiny_model):
    size = len(translator.tokenizer)
    for rows in (99, 600):
        with pytest.raises(ValueError, match=f"tokenizer has {size} source tokens and the model {rows}"):
            Translator(tiny_model(vocab_size=rows), translator.tokenizer)
    Translator(tiny_model(vocab_size=size + 10), translator.tokenizer)  # padded to a round number


def test_two_vocabularies(tiny_model):
    tokenizer = VanillaTransformerTokenizer.train(
        SOURCES, TARGETS, vocab_size=300, separate_vocabularies=True, show_progress=False
    )
    source, target = tokenizer.source_vocab_size, len(tokenizer)
    model = tiny_model(vocab_size=target, source_vocab_size=source, embedding_sharing="decoder")
    assert isinstance(Translator(model, tokenizer).translate("two", max_new_tokens=3), str)
    for sizes in ((target, source + 200), (target + 200, source)):
        model = tiny_model(vocab_size=sizes[0], source_vocab_size=sizes[1], embedding_sharing="decoder")
        with pytest.raises(ValueError, match="do not belong together"):
            Translator(model, tokenizer)


def test_model_that_does_not_translate_is_refused(translator):
    bert = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8))
    with pytest.raises(ValueError, match="BertModel is not an encoder–decoder"):
        Translator(bert, translator.tokenizer)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(broken, value):
    weights = load_file(broken / "model.safetensors")
    name = "model.decoder.layers.0.fc1.weight"
    weights[name][3, 5] = value
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    assert f"{name} holds NaN or infinite values" in _one_line(broken)


def test_layers_that_the_config_leaves_out_are_refused(broken):
    """Opened, they would be left out without a word."""
    weights = load_file(broken / "model.safetensors")
    weights |= {name.replace("layers.0.", "layers.1."): tensor.clone() for name, tensor in weights.items()}
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    message = _one_line(broken)
    assert (
        "tensors do not belong to the model that the config describes, the first is model.decoder.layers.1." in message
    )


def test_without_a_network_the_hub_is_asked_once(monkeypatch):
    asked = []

    def ask(self, name, timeout=None):
        asked.append((name, timeout))
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", ask)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", None)
    with pytest.raises(OSError, match=r"config of no/such \(no such folder, so taken as a Hub id\): Name or service"):
        open_config("no/such")
    assert asked == [("no/such", 10)]


def test_no_config_of_the_hub_chooses_a_kernel(monkeypatch, tmp_path):
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    config = {"model_type": "marian"}
    (snapshot / "config.json").write_text(json.dumps(config))
    assert open_config("some/model").model_type == "marian"
    (snapshot / "config.json").write_text(json.dumps({**config, "attn_implementation": "somebody/kernel"}))
    for revision in (None, "main", "abc"):
        with pytest.raises(OSError, match=r"some/model.*config\.json: attn_implementation='somebody/kernel'"):
            open_config("some/model", revision=revision)


@pytest.mark.parametrize("kind", ["a pipe", "deep", "10^9 layers", "2^40 columns", "no heads"])
def test_hostile_settings_end_in_one_line_at_once(kind, tmp_path):
    config = {"model_type": "vanilla_transformer", "d_model": 32}
    more = {"10^9 layers": {"encoder_layers": 10**9}, "2^40 columns": {"d_model": 2**40}}
    more["no heads"] = {"encoder_attention_heads": 0}
    path = tmp_path / "config.json"
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        deep = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
        path.write_text(deep if kind == "deep" else json.dumps(config | more[kind]))
    start = time.process_time()
    with pytest.raises((OSError, ValueError), match="config") as error:
        open_model(tmp_path)
    assert is_within(time.process_time() - start, 1) and len(str(error.value).splitlines()) == 1


def test_two_sets_of_weights_are_refused(broken):
    """Two sets of weights: transformers saves in several files over one, leaves that, and would open it."""
    model = open_model(broken)[0]
    single = (broken / "model.safetensors").read_bytes()
    model.save_pretrained(broken, max_shard_size="20KB")
    (broken / "model.safetensors").write_bytes(single)
    said = "two sets of weights, model.safetensors and the"
    assert said in _one_line(broken)
    for read in (find_weights, weight_paths, weight_files.open_config, CheckpointWeights):
        with pytest.raises(ValueError, match=said):
            read(broken)
    with pytest.raises(ConversionError, match=said):
        saved_weights(broken, trust=False)
    for shard in broken.glob("model-*.safetensors"):
        shard.unlink()
    open_model(broken)  # an index without its files, which earlier versions left, says nothing
