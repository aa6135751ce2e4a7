"""BERT and RoBERTa: folders that transformers itself saves, for each head and option."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from single_stacks import check_tokenizers, write_byte_bpe, write_wordpiece
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertTokenizer,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
    RobertaTokenizer,
    pipeline,
)

from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.conversion.key_table import model_class
from vanilla_transformer_hf.model.configuration_vanilla_transformer import VanillaTransformerConfig


SIZES = {
    **{"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 24, "max_position_embeddings": 20},
}
CASES = {
    "bert": (BertModel, BertConfig, {}),
    "bert_mlm": (BertForMaskedLM, BertConfig, {"hidden_act": "relu", "type_vocab_size": 3}),
    "bert_untied": (BertForMaskedLM, BertConfig, {"tie_word_embeddings": False, "layer_norm_eps": 1e-5}),
    "bert_pretraining": (BertForPreTraining, BertConfig, {"hidden_act": "gelu_new"}),
    "bert_sequences": (BertForSequenceClassification, BertConfig, {"num_labels": 3, "classifier_dropout": 0.2}),
    "bert_tokens": (BertForTokenClassification, BertConfig, {"num_labels": 5}),
    "roberta": (RobertaModel, RobertaConfig, {}),
    "roberta_mlm": (RobertaForMaskedLM, RobertaConfig, {"type_vocab_size": 1}),
    "roberta_sequences": (RobertaForSequenceClassification, RobertaConfig, {"num_labels": 3}),
    "roberta_tokens": (RobertaForTokenClassification, RobertaConfig, {"num_labels": 5}),
}


def random_model(host, config_class, **options):
    model = host(config_class(**{**SIZES, **options})).eval()
    with torch.no_grad():  # biases of zero and norms of one would hide what is swapped
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def write(folder):
    """A folder with a masked language model and its tokenizer."""
    random_model(BertForMaskedLM, BertConfig, vocab_size=write_wordpiece(folder)).save_pretrained(folder)


@pytest.mark.parametrize(("host", "config_class", "options"), CASES.values(), ids=CASES)
def test_outputs_are_those_of_transformers(host, config_class, options, tmp_path):
    theirs = random_model(host, config_class, **options)
    theirs.save_pretrained(tmp_path / "theirs")
    done = convert("auto", tmp_path / "theirs", tmp_path / "ours")
    assert done.source == "bert" and done.reopened == 0 and done.reference <= 1e-5
    config = VanillaTransformerConfig.from_pretrained(tmp_path / "ours")
    ours = model_class(config).from_pretrained(tmp_path / "ours").eval()
    ids, segments = torch.randint(3, 60, (3, 9)), torch.randint(0, theirs.config.type_vocab_size, (3, 9))
    mask = (torch.arange(9) < torch.tensor([[9], [4], [7]])).long()
    inputs = {"attention_mask": mask, "token_type_ids": segments, "output_hidden_states": True}
    inputs["input_ids"] = ids.masked_fill(mask == 0, theirs.config.pad_token_id)
    with torch.no_grad():
        found, expected = ours(**inputs), theirs(**inputs)
    real = mask.bool()
    for one, other in zip(found.hidden_states[1:], expected.hidden_states[1:], strict=True):
        torch.testing.assert_close(one[real], other[real], rtol=0, atol=1e-5)
    first, second = found[0], expected[0]
    if first.dim() == 3:
        first, second = first[real], second[real]
    torch.testing.assert_close(first, second, rtol=0, atol=1e-5)
    assert config.id2label == theirs.config.id2label
    bare = AutoModel.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        states = bare(**{name: inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")})[0]
    torch.testing.assert_close(states[real], expected.hidden_states[-1][real], rtol=0, atol=1e-5)


def test_a_reference_is_refused(tmp_path):
    """transformers has the model itself, whose logits of any input are there to compare."""
    random_model(BertForMaskedLM, BertConfig).save_pretrained(tmp_path / "theirs")
    message = "a reference is not needed: bert is compared with transformers' own model; leave out --reference"
    with pytest.raises(ConversionError, match=message):
        convert("bert", tmp_path / "theirs", tmp_path / "ours", reference=tmp_path / "reference.npz")
    assert not (tmp_path / "ours").exists()


def test_names_of_before_2019_and_buffers_are_read(tmp_path):
    random_model(BertForMaskedLM, BertConfig).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs/model.safetensors"
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(path).items()
    }
    save_file({**renamed, "bert.embeddings.position_ids": torch.arange(20)[None]}, path, metadata={"format": "pt"})
    assert convert("bert", tmp_path / "theirs", tmp_path / "ours").reference <= 1e-5


@pytest.mark.parametrize("lower_case", [True, False])
def test_the_wordpiece_tokenizer_is_the_same_and_the_pipeline_gives_the_same(lower_case, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    size = write_wordpiece(folder)
    theirs = random_model(BertForMaskedLM, BertConfig, vocab_size=size)
    theirs.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower_case, "model_max_length": 20}))
    tokenizer = BertTokenizer.from_pretrained(folder)
    convert("bert", folder, tmp_path / "ours")
    fill = pipeline("fill-mask", model=str(tmp_path / "ours"))
    check_tokenizers(fill.tokenizer, tokenizer)
    found, expected = (
        one("the cat [MASK] on two hats") for one in (fill, pipeline("fill-mask", model=theirs, tokenizer=tokenizer))
    )
    assert [one["token"] for one in found] == [one["token"] for one in expected]


def test_the_tokenizer_of_roberta_is_the_same(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    size = write_byte_bpe(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    random_model(RobertaForMaskedLM, RobertaConfig, vocab_size=size).save_pretrained(folder)
    tokenizer = RobertaTokenizer.from_pretrained(folder)
    convert("bert", folder, tmp_path / "ours")
    fill = pipeline("fill-mask", model=str(tmp_path / "ours"))
    check_tokenizers(fill.tokenizer, tokenizer)
    assert len(fill("the cat <mask> on")) == 5
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "ours")).__name__ == "VanillaTransformerForMaskedLM"


@pytest.mark.parametrize(
    ("host", "config_class", "options", "message"),
    [
        (BertForQuestionAnswering, BertConfig, {}, r"architectures=\['BertForQuestionAnswering'\]: must be one of"),
        (BertModel, BertConfig, {"is_decoder": True}, "is_decoder=True: must be False"),
        (BertModel, BertConfig, {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        (RobertaForMaskedLM, RobertaConfig, {"hidden_act": "relu"}, "hidden_act='relu': must be 'gelu'"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(host, config_class, options, message, tmp_path):
    random_model(host, config_class, **options).save_pretrained(tmp_path / "theirs")
    with pytest.raises(ConversionError, match=message):
        convert("bert", tmp_path / "theirs", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
