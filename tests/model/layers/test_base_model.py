"""Saving over an earlier save: one set of weights is left, whose values are the new ones."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, Trainer, TrainingArguments

from vanilla_transformer_hf import RecurrentSeq2SeqConfig, RecurrentSeq2SeqForConditionalGeneration
from vanilla_transformer_hf.training.finishing import write_model


INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def weight_files(folder):
    return {path.name for path in folder.glob("model*.safetensors*")}


def is_one_set(folder):
    names = weight_files(folder)
    shards = names - {INDEX, SINGLE}
    counts = {name.split("-of-")[1] for name in shards}
    return names == {SINGLE} or (names - shards == {INDEX} and len(counts) == 1 and shards)


@pytest.fixture(params=["Transformer", "recurrent"])
def model(request, tiny_model):
    if request.param == "Transformer":
        return tiny_model(vocab_size=99)
    return RecurrentSeq2SeqForConditionalGeneration(RecurrentSeq2SeqConfig(vocab_size=99, d_model=16))


@pytest.mark.parametrize("sizes", [("1GB", "20KB"), ("20KB", "1GB"), ("20KB", "30KB"), ("30KB", "20KB", "1GB")])
def test_the_newly_saved_weights_are_what_opens(model, sizes, tmp_path):
    (tmp_path / "model-notes.safetensors").write_text("not ours")
    for size in sizes:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        model.save_pretrained(tmp_path, max_shard_size=size)
    (tmp_path / "model-notes.safetensors").unlink()  # is not touched
    assert is_one_set(tmp_path), weight_files(tmp_path)
    opened = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).state_dict()
    assert all(opened[name].equal(value) for name, value in model.state_dict().items())


def test_what_is_not_written_removes_nothing(tiny_model, tmp_path):
    model = tiny_model(vocab_size=99)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    before = weight_files(tmp_path)
    model.save_pretrained(tmp_path, is_main_process=False)
    model.save_pretrained(tmp_path, variant="half")
    assert weight_files(tmp_path) - {"model.half.safetensors"} == before


def test_the_trainer_leaves_one_set(tiny_model, tmp_path):
    model = tiny_model(vocab_size=99)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    Trainer(model, TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)).save_model()
    assert weight_files(tmp_path) == {SINGLE}


def test_the_writer_of_a_trained_model_leaves_one_set(tiny_model, tmp_path):
    model = tiny_model(vocab_size=99)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    write_model(
        tmp_path, SimpleNamespace(model=model, processing_class=SimpleNamespace(save_pretrained=lambda _: None))
    )
    assert weight_files(tmp_path) == {SINGLE}
