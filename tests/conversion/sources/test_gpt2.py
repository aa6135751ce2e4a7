"""GPT-2 and GPT-1: folders that transformers itself saves, with and without the language-model head."""

import json

import pytest
import torch
from single_stacks import check_tokenizers, write_byte_bpe, write_gpt1_bpe
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    GPT2Model,
    GPT2Tokenizer,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    OpenAIGPTModel,
    OpenAIGPTTokenizer,
)

from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.conversion.key_table import model_class
from vanilla_transformer_hf.model.configuration_vanilla_transformer import VanillaTransformerConfig


SIZES = {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40}
IDS = {"bos_token_id": 59, "eos_token_id": 59}
CASES = {
    "gpt2": (GPT2LMHeadModel, GPT2Config, IDS),
    "gpt2_options": (GPT2LMHeadModel, GPT2Config, {**IDS, "n_inner": 24, "activation_function": "relu"}),
    "gpt2_untied": (GPT2LMHeadModel, GPT2Config, {**IDS, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3}),
    "gpt2_bare": (GPT2Model, GPT2Config, IDS),
    "gpt1": (OpenAIGPTLMHeadModel, OpenAIGPTConfig, {}),
    "gpt1_relu": (OpenAIGPTLMHeadModel, OpenAIGPTConfig, {"afn": "relu"}),
    "gpt1_bare": (OpenAIGPTModel, OpenAIGPTConfig, {}),
}


def random_model(host, config_class, **options):
    model = host(config_class(**{**SIZES, **options})).eval()
    with torch.no_grad():  # biases of zero and norms of one would hide what is swapped
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def write(folder):
    """A folder with a language model and its tokenizer."""
    ids = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": write_byte_bpe(folder, ["<|endoftext|>"])}
    random_model(GPT2LMHeadModel, GPT2Config, **ids).save_pretrained(folder)


@pytest.mark.parametrize(("host", "config_class", "options"), CASES.values(), ids=CASES)
def test_outputs_are_those_of_transformers(host, config_class, options, tmp_path):
    theirs = random_model(host, config_class, **options)
    theirs.save_pretrained(tmp_path / "theirs")
    done = convert("auto", tmp_path / "theirs", tmp_path / "ours")
    assert done.source == "gpt2" and done.reopened == 0 and done.reference <= 1e-5
    ours = model_class(VanillaTransformerConfig.from_pretrained(tmp_path / "ours"))
    ours = ours.from_pretrained(tmp_path / "ours").eval()
    ids = torch.randint(0, 58, (3, 11))
    with torch.no_grad():
        found, expected = ours(ids, output_hidden_states=True), theirs(ids, output_hidden_states=True)
        bare = AutoModel.from_pretrained(tmp_path / "ours").eval()(ids)[0]
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(bare, expected.hidden_states[-1], rtol=0, atol=1e-5)
    for one, other in zip(found.hidden_states[:-1], expected.hidden_states[:-1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gpt2_options", "gpt1"])
def test_greedy_and_beam_outputs_are_the_same(name, tmp_path):
    host, config_class, options = CASES[name]
    theirs = random_model(host, config_class, **options)
    theirs.save_pretrained(tmp_path / "theirs")
    convert("gpt2", tmp_path / "theirs", tmp_path / "ours")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    ids = torch.randint(0, 58, (4, 6))
    for beams in (1, 3):
        settings = {"num_beams": beams, "max_new_tokens": 20, "attention_mask": torch.ones_like(ids)}
        settings["pad_token_id"] = ours.config.pad_token_id
        assert torch.equal(ours.generate(ids, **settings), theirs.generate(ids, **settings))


@pytest.mark.parametrize("kind", ["gpt2", "gpt1"])
def test_the_tokenizer_is_the_same(kind, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    if kind == "gpt2":
        write(folder)
    else:
        size = write_gpt1_bpe(folder)
        random_model(OpenAIGPTLMHeadModel, OpenAIGPTConfig, vocab_size=size).save_pretrained(folder)
    tokenizer = (GPT2Tokenizer if kind == "gpt2" else OpenAIGPTTokenizer).from_pretrained(folder)
    convert("gpt2", folder, tmp_path / "ours")
    check_tokenizers(AutoTokenizer.from_pretrained(tmp_path / "ours"), tokenizer)


@pytest.mark.parametrize(
    ("host", "options", "message"),
    [
        (GPT2ForSequenceClassification, {}, r"architectures=\['GPT2ForSequenceClassification'\]: must be one of"),
        (GPT2LMHeadModel, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True: must be"),
        (GPT2LMHeadModel, {"scale_attn_weights": False}, "scale_attn_weights=False: must be True"),
        (GPT2LMHeadModel, {"add_cross_attention": True}, "add_cross_attention=True: must be False"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(host, options, message, tmp_path):
    random_model(host, GPT2Config, **IDS, **options).save_pretrained(tmp_path / "theirs")
    with pytest.raises(ConversionError, match=message):
        convert("gpt2", tmp_path / "theirs", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("value", ["tanh", ["gelu"]])
def test_a_wrong_activation_is_refused_by_name(value, tmp_path):
    random_model(OpenAIGPTLMHeadModel, OpenAIGPTConfig).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"afn": value}))
    with pytest.raises(ConversionError, match="afn"):
        convert("gpt2", tmp_path / "theirs", tmp_path / "ours")
