"""The decoder alone: the same as its encoder-decoder without a source, in forward, in caches and in every search."""

import json

import pytest
import torch
import torch.nn.functional as F
from host_search import forbid_host_loops
from transformers import AutoModel, AutoModelForCausalLM, pipeline
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from vanilla_transformer_hf import (
    VanillaTransformerDecoderModel,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)


# Schemes of positions of each kind, and the switches of the layers.
VARIANTS = {
    "paper": {},
    "pre_learned": {"position_encoding": "learned", "max_position_embeddings": 64, "decoder_norm_position": "pre"},
    "rotary_gated": {"position_encoding": "rotary", "feed_forward_type": "gated", "norm_type": "rms_norm"},
    "t5_bias": {"position_encoding": "t5_bias"},
    "gated_alibi": {"position_encoding": "gated_alibi", "type_vocab_size": 2},
    "shaw": {"decoder_position_encoding": "shaw", "max_relative_distance": 3},
    "shared": {"decoder_layer_sets": 1, "projection_sharing": "key_value"},
    "two_sizes": {"encoder_d_model": 24, "embedding_sharing": "decoder", "decoder_layers": 3, "d_k": 6},
}
every_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)

SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "n_best": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.4, "early_stopping": True},
    "processors": {"num_beams": 2, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
}


def decided(config):
    """A model whose continuations end at different lengths, with clear differences."""
    model = VanillaTransformerForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(2.5)
        model.lm_head.bias[1] += 5
    return model


@pytest.fixture
def prompts():
    """Prompts of 7 and 4 tokens, padded on the left."""
    ids, mask = torch.randint(3, 90, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    ids[1, :3] = mask[1, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


@every_variant
def test_every_search_gives_what_the_loops_of_transformers_give(options, tiny_config, prompts, monkeypatch):
    fields = {"output_bias": True, "embedding_sharing": "none", **options}
    model = decided(tiny_config(**fields))
    for settings in SEARCHES.values():
        settings = {**prompts, **settings, "max_new_tokens": 25}
        with monkeypatch.context() as patch:
            forbid_host_loops(patch)
            found = model.generate(**settings)
        expected = model.generate(**settings, return_dict_in_generate=True).sequences
        assert torch.equal(found, expected), settings


def test_labels_change_no_search(tiny_config, prompts, monkeypatch):
    """Evaluation in transformers' Trainer passes whole batches on to generate()."""
    model = decided(tiny_config(output_bias=True, embedding_sharing="none"))
    forbid_host_loops(monkeypatch)
    for options in ({}, {"num_beams": 3, "length_penalty_type": "gnmt"}, {"ensemble": [model]}):
        expected = model.generate(**prompts, **options, max_new_tokens=9)
        assert torch.equal(
            model.generate(**prompts, **options, labels=prompts["input_ids"], max_new_tokens=9), expected
        )


@every_variant
def test_steps_with_a_cache_give_what_whole_sequences_give(options, tiny_config, prompts):
    model = VanillaTransformerForCausalLM(tiny_config(**options)).eval().double()
    with torch.no_grad():
        whole = model(**prompts).logits
        cache, steps = None, []
        for end in range(1, 8):
            out = model(
                prompts["input_ids"][:, end - 1 : end],
                attention_mask=prompts["attention_mask"][:, :end],
                past_key_values=cache,
                use_cache=True,
            )
            cache = out.past_key_values
            steps.append(out.logits)
    real = prompts["attention_mask"].bool()
    torch.testing.assert_close(torch.cat(steps, dim=1)[real], whole[real], rtol=0, atol=1e-10)


def test_it_is_the_decoder_whose_source_says_nothing(tiny_model, batch, tmp_path):
    """With values of the source's attention zero, the encoder-decoder computes what its decoder alone computes."""
    whole = tiny_model(decoder_norm_position="pre", decoder_layers=3)
    with torch.no_grad():
        for layer in whole.model.decoder.layers:
            layer.encoder_attn.v_proj.weight.zero_()
        expected = whole(**batch).logits
    whole.save_pretrained(tmp_path)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert all("encoder" in name for name in report["unexpected_keys"])
    mask = batch["decoder_attention_mask"]
    with torch.no_grad():
        found = model.eval()(batch["decoder_input_ids"], attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-6)
    assert model.config.num_hidden_layers == 3


def test_common_names_are_those_of_the_stack(tiny_config):
    """Also where another library assigns them, as PEFT does for a smaller copy of a stack."""
    config = VanillaTransformerForCausalLM(tiny_config()).config
    config.num_hidden_layers, config.num_attention_heads = 1, 1
    model = VanillaTransformerForCausalLM(config)
    assert len(model.get_decoder().layers) == config.decoder_layers == 1 and config.decoder_attention_heads == 1
    assert model(torch.tensor([[4, 5]]), use_cache=True).past_key_values.get_seq_length() == 2
    both = tiny_config()
    both.num_hidden_layers = 1
    assert both.decoder_layers == tiny_config().decoder_layers != 1


def test_saved_alone_it_opens_as_what_it_is(tiny_config, tmp_path):
    model = VanillaTransformerForCausalLM(tiny_config())
    model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["is_decoder"] and not fields["is_encoder_decoder"]
    assert sorted(fields["auto_map"]) == ["AutoConfig", "AutoModel", "AutoModelForCausalLM"]
    assert type(AutoModel.from_pretrained(tmp_path)) is VanillaTransformerDecoderModel
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    with pytest.raises(ValueError, match="has an encoder and a decoder, and the config"):
        VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)


def test_the_loss_shifts_the_labels(tiny_config, prompts):
    model = VanillaTransformerForCausalLM(tiny_config(dropout=0.0, label_smoothing=0.1)).train()
    labels = prompts["input_ids"].masked_fill(prompts["attention_mask"] == 0, -100)
    found = model(**prompts, labels=labels)
    logits, wanted = found.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    torch.testing.assert_close(found.loss, F.cross_entropy(logits, wanted, label_smoothing=0.1))
    torch.testing.assert_close(model(**prompts, labels=labels, return_logits=False).loss, found.loss)
    assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["vanilla_transformer"] == "VanillaTransformerForCausalLM"


def test_limits_ensembles_prefixes_and_what_needs_a_source(tiny_config, prompts):
    model = decided(tiny_config(output_bias=True, embedding_sharing="none", eos_token_id=None))
    assert model.generate(**prompts).shape == (2, 7 + 50)
    assert model.generate(**prompts, max_extra_tokens=5).shape == (2, 12)
    begun = model.generate(**prompts, prefixes=[[5, 6], [7]], max_new_tokens=3)
    assert begun[0, 7:9].tolist() == [5, 6] and begun[1, 7] == 7
    twice = model.generate(**prompts, ensemble=[model], num_beams=2, max_new_tokens=8)
    assert torch.equal(twice, model.generate(**prompts, num_beams=2, max_new_tokens=8))
    with pytest.raises(ValueError, match="coverage_penalty: needs a model with an encoder"):
        model.generate(**prompts, coverage_penalty=0.2, num_beams=2)
    with pytest.raises(ValueError, match="padding that is not on the left"):
        flipped = {name: value.flip(1) for name, value in prompts.items()}
        model.generate(**flipped, prefixes=[[5], [6]], max_new_tokens=3)
    with pytest.raises(ValueError, match="encoder_hidden_states: not possible, because the model has no encoder"):
        model(**prompts, encoder_hidden_states=torch.zeros(len(prompts["input_ids"]), 3, 32))


@pytest.mark.parametrize("beams", [1, 3])
def test_a_prompt_may_be_embeddings(beams, tiny_config, prompts):
    model = decided(tiny_config(output_bias=True, embedding_sharing="none"))
    embeddings, mask = model.get_input_embeddings()(prompts["input_ids"]), prompts["attention_mask"]
    settings = {"attention_mask": mask, "num_beams": beams, "max_new_tokens": 6}
    expected = model.generate(prompts["input_ids"], **settings)
    assert torch.equal(model.generate(inputs_embeds=embeddings, **settings), expected[:, 7:])
    # Of both, the ids are those of the prompt.
    assert torch.equal(model.generate(prompts["input_ids"], inputs_embeds=embeddings, **settings), expected)


def test_streams_and_sampling_work(tiny_config, prompts):
    model = decided(tiny_config(output_bias=True, embedding_sharing="none"))
    one = {"input_ids": prompts["input_ids"][:, :1]}
    streamed = list(model.generate_stream([one, prompts, one], max_new_tokens=6))
    for found, batch in zip(streamed, (one, prompts, one), strict=True):
        assert torch.equal(found, model.generate(**batch, max_new_tokens=6))
    torch.manual_seed(1)
    sampled = model.generate(**prompts, do_sample=True, max_new_tokens=6)
    assert torch.equal(sampled[:, :7], prompts["input_ids"])


def test_the_pipeline_writes_on(tiny_config, tmp_path):
    tokenizer = VanillaTransformerTokenizer.train(["one two three four", "five six seven"], vocab_size=300)
    VanillaTransformerForCausalLM(tiny_config(vocab_size=len(tokenizer))).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write = pipeline("text-generation", model=str(tmp_path))
    found = write("one two", max_new_tokens=4, do_sample=False)[0]["generated_text"]
    assert found.startswith("one two")
