"""Shared weights: as many copies would compute, once in files, optimizers, adapters and searches."""

import copy
import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from reference import set_of, unshared
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer_hf import VanillaTransformerEncoderModel, VanillaTransformerForCausalLM
from vanilla_transformer_hf.model.config.sharing import LAYER_SHARING
from vanilla_transformer_hf.model.packing import packed as packed_weights
from vanilla_transformer_hf.publishing.upload_plan import plan_upload
from vanilla_transformer_hf.training.checkpoints.averaging import average_checkpoints


SHARED = {
    "sequence": {"encoder_layers": 4, "encoder_layer_sets": 2, "decoder_layer_sets": 1},
    "cycle": {
        **{"encoder_layers": 4, "encoder_layer_sets": 2, "decoder_layers": 4, "decoder_layer_sets": 2},
        **{"layer_sharing": "cycle", "projection_sharing": "key_value", "feed_forward_sharing": "stack"},
    },
    "cycle_reverse": {
        **{"decoder_layers": 4, "decoder_layer_sets": 2, "layer_sharing": "cycle_reverse", "attention_bias": True},
        **{"projection_sharing": "query_key", "decoder_attention_sharing": True, "feed_forward_sharing": "all"},
    },
    "one_projection": {"projection_sharing": "query_key_value", "feed_forward_type": "gated", "output_bias": True},
    "untied": {"embedding_sharing": "none", "decoder_attention_sharing": True, "feed_forward_sharing": "all"},
}
# What a model with the same sizes that shares nothing has.
NOTHING_SHARED = {
    **{"encoder_layer_sets": None, "decoder_layer_sets": None, "layer_sharing": "sequence"},
    **{"projection_sharing": "none", "feed_forward_sharing": "none", "decoder_attention_sharing": False},
}

every_sharing = pytest.mark.parametrize("fields", SHARED.values(), ids=SHARED)


def unshared_twin(model, tiny_model, fields):
    """A model of the same sizes with copies of the weights."""
    twin = tiny_model(**{**fields, **NOTHING_SHARED})
    weights = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    whole = unshared(weights, model.config)
    twin.load_state_dict({name if name.startswith("lm_head") else f"model.{name}": whole[name] for name in whole})
    return twin


def test_orders_of_layers():
    letters = {name: "".join("ABC"[number] for number in order(3, 6)) for name, order in LAYER_SHARING.items()}
    assert letters == {"sequence": "AABBCC", "cycle": "ABCABC", "cycle_reverse": "ABCCBA"}
    assert LAYER_SHARING["cycle_reverse"](3, 9) == [0, 1, 2, 0, 1, 2, 2, 1, 0], "the last cycle alone is reversed"
    assert LAYER_SHARING["cycle_reverse"](3, 4) == [0, 1, 2, 2] and LAYER_SHARING["cycle"](3, 4) == [0, 1, 2, 0]
    for name, order in LAYER_SHARING.items():
        assert order(1, 5) == [0] * 5 and order(5, 5) == [0, 1, 2, 3, 4]
        for sets in range(1, 8):
            assert set(order(sets, 7)) == set(range(sets)), "no set is left over"
        assert order(2, 6) == [set_of(layer, 2, 6, name) for layer in range(6)]


@every_sharing
def test_computes_what_copies_compute_and_sums_their_gradients(fields, tiny_model, batch):
    fields = {**fields, "dropout": 0.0}
    model = tiny_model(**fields)
    twin = unshared_twin(model, tiny_model, fields)
    assert model.num_parameters() < twin.num_parameters()
    labels = torch.randint(3, 90, (2, 6))
    for each in (model, twin):
        each.train()(**batch, labels=labels).loss.backward()
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(**batch).logits, twin.eval()(**batch).logits, atol=1e-6, rtol=0)
    # Which names of the twin are copies of one matrix: those into which its number goes.
    marks = {name: torch.full_like(tensor, number) for number, (name, tensor) in enumerate(model.state_dict().items())}
    names = list(marks)
    copies = unshared({name.removeprefix("model."): mark for name, mark in marks.items()}, model.config)
    sums = dict.fromkeys(names, 0)
    gradients = {name: parameter.grad for name, parameter in twin.named_parameters()}
    for name, mark in copies.items():
        name = name if name.startswith("lm_head") else f"model.{name}"
        if name in gradients:
            sums[names[int(mark.flatten()[0])]] += gradients[name]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, sums[name], atol=1e-6, rtol=1e-5)


@every_sharing
def test_is_saved_once_and_opens_strictly(fields, tiny_model, batch, tmp_path):
    model = tiny_model(**fields)
    model.resize_token_embeddings(110)
    expected = model(**batch).logits
    for folder, size in (("whole", "1GB"), ("sharded", "20KB")):
        model.save_pretrained(tmp_path / folder, max_shard_size=size)
        found, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / folder, output_loading_info=True)
        assert not any(report.values()), report
        torch.testing.assert_close(found(**batch).logits, expected, rtol=0, atol=0)
    stored = load_file(tmp_path / "whole" / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == model.num_parameters()
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    found.load_state_dict(stored, strict=True)
    plan = plan_upload(tmp_path / "whole")
    assert {"model.safetensors", "layers_vanilla_transformer.py"} < {file.name for file in plan.files}
    assert f"{model.num_parameters():,} parameters" in plan.card
    average_checkpoints([tmp_path / "whole", tmp_path / "whole"], tmp_path / "mean")
    mean = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mean")
    torch.testing.assert_close(mean(**batch).logits, expected)


def test_a_config_that_shares_nothing_says_nothing(tiny_config, tmp_path):
    fields = set(NOTHING_SHARED)
    tiny_config().save_pretrained(tmp_path)
    assert not fields & set(json.loads((tmp_path / "config.json").read_text()))
    config = tiny_config(encoder_layers=4, encoder_layer_sets=2, layer_sharing="cycle")
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert {name: saved[name] for name in fields & set(saved)} == {"encoder_layer_sets": 2, "layer_sharing": "cycle"}


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"encoder_layer_sets": 3}, "encoder_layer_sets=3: must be at least 1 and at most encoder_layers=2"),
        ({"decoder_layer_sets": 0}, "decoder_layer_sets=0: must be at least 1"),
        ({"layer_sharing": "cycle"}, "set encoder_layer_sets to less than 2 or decoder_layer_sets"),
        ({"projection_sharing": "key_value", "d_v": 5}, "keys of width 8 and values of width 5 in the encoder"),
        ({"projection_sharing": "query_key"}, "projection_sharing='query_key' with encoder_d_model=48"),
        ({"decoder_attention_sharing": True}, "take False, or one width"),
        ({"feed_forward_sharing": "all"}, "feed_forward_sharing='all' with encoder_d_model=48"),
        ({"feed_forward_sharing": "all", "encoder_ffn_dim": 96}, "encoder_ffn_dim=96 and decoder_ffn_dim=64"),
        ({"feed_forward_sharing": "all", "decoder_activation_function": "gelu"}, "decoder_activation_function='gelu'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_shared_is_refused(fields, message, tiny_config):
    if "encoder_d_model=48" in message or "one width" in message:
        fields = {**fields, "encoder_d_model": 48, "embedding_sharing": "decoder"}
    with pytest.raises(StrictDataclassError) as refused:
        tiny_config(**fields)
    assert message in str(refused.value)


def test_keys_and_values_of_one_projection_differ_where_keys_are_turned(tiny_model, batch):
    """K = V is a matter of weights: positions turn keys, not values."""
    model = tiny_model(projection_sharing="key_value", position_encoding="rotary")
    cache = model(**batch, use_cache=True).past_key_values
    own, source = cache.self_attention_cache.layers[1], cache.cross_attention_cache.layers[1]
    assert torch.equal(own.keys[:, :, 0], own.values[:, :, 0]) and not torch.equal(own.keys, own.values)
    assert torch.equal(source.keys, source.values)


def test_layers_of_one_set_have_places_of_their_own_in_the_cache(tiny_model, batch):
    model = tiny_model(decoder_layers=3, decoder_layer_sets=1)
    model.set_attn_implementation("eager")
    out = model(**batch, use_cache=True, output_hidden_states=True, output_attentions=True)
    keys = [layer.keys for layer in out.past_key_values.self_attention_cache.layers]
    assert len(keys) == 3 and not torch.equal(keys[0], keys[1]) and not torch.equal(keys[1], keys[2])
    assert (len(out.decoder_hidden_states), len(out.decoder_attentions), len(out.cross_attentions)) == (4, 3, 3)


def test_a_search_packs_shared_weights_once(tiny_model, source, monkeypatch):
    packs, pack = [], packed_weights.pack

    def counted(weight, *rest, **options):
        packs.append(weight)
        return pack(weight, *rest, **options)

    monkeypatch.setattr(packed_weights, "SMALL", 0)
    monkeypatch.setattr(packed_weights, "pack", counted)
    monkeypatch.setitem(packed_weights.MAKERS, None, (packed_weights.for_few_rows, counted))
    counts = {}
    for sets, sharing in ((None, "none"), (1, "none"), (None, "all")):
        model = tiny_model(
            decoder_layers=4, decoder_layer_sets=sets, feed_forward_sharing=sharing, attn_implementation="eager"
        )
        packs.clear()
        for _ in range(2):
            model.generate(**source, max_new_tokens=3)
        counts[sets, sharing] = len(packs) - 1  # the output
    # Queries, keys and values are one map. A layer has six in steps, one for the source; an encoder layer has four.
    assert counts == {(None, "none"): 4 * 7 + 2 * 4, (1, "none"): 7 + 2 * 4, (None, "all"): 4 * 5 + 2 + 2 * 2 + 2}


@pytest.mark.parametrize("merge", [False, True], ids=["beside", "merged"])
def test_lora_adapts_a_shared_projection_wherever_it_is_used(merge, tiny_model, batch):
    peft = pytest.importorskip("peft")
    fields = {
        **{"decoder_layer_sets": 1, "decoder_attention_sharing": True, "projection_sharing": "key_value"},
        **{"feed_forward_sharing": "all"},
    }
    model = tiny_model(**fields)
    expected = copy.deepcopy(model)
    targets = ["q_proj", "v_proj", "fc1"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, init_lora_weights=False)).eval()
    changed = [name for name, module in adapted.named_modules() if hasattr(module, "lora_A")]
    assert len(changed) == 2 * 2 + 2 + 1  # two encoder layers, one decoder layer for all, one feed-forward
    with torch.no_grad():
        for name, parameter in expected.named_parameters():
            module = adapted.base_model.model.get_submodule(name.rpartition(".")[0])
            if name.endswith("weight") and hasattr(module, "get_delta_weight"):
                parameter.add_(module.get_delta_weight("default"))
    found = adapted.merge_and_unload() if merge else adapted
    torch.testing.assert_close(found(**batch).logits, expected(**batch).logits, atol=1e-5, rtol=0)
    ids = found.generate(input_ids=batch["input_ids"], max_new_tokens=6)
    assert torch.equal(ids, expected.generate(input_ids=batch["input_ids"], max_new_tokens=6))


def test_what_takes_the_place_of_a_lent_map_is_used(decided_model, source):
    """A quantizer or a pruning replaces modules where they are registered; a search sees it too."""
    model = decided_model(feed_forward_sharing="stack", decoder_attention_sharing=True)
    before = model.generate(**source, max_new_tokens=20)
    decoder = model.get_decoder()
    decoder.feed_forward.fc2 = nn.Linear(64, 32)
    decoder.layers[0].self_attn.out_proj = nn.Linear(32, 32, bias=False)
    decoder.layers[0].self_attn.q_proj.register_forward_hook(lambda module, args, output: output * 0.5)
    found = model.generate(**source, max_new_tokens=20)
    assert not torch.equal(before, found)
    with torch.no_grad():
        expected = model(**source, decoder_input_ids=found[:, :-1]).logits.argmax(dim=-1)
    ended = (found[:, :-1] == model.config.eos_token_id).cumsum(dim=1).bool()
    assert torch.equal(found[:, 1:][~ended], expected[~ended])


def test_a_copied_model_lends_to_itself(tiny_model, batch):
    model = tiny_model(feed_forward_sharing="all", decoder_attention_sharing=True)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.get_encoder().feed_forward.fc2.weight.zero_()
        model.get_decoder().layers[0].self_attn.q_proj.weight.zero_()
    assert twin.get_decoder().layers[1].shared_from is twin.get_encoder().feed_forward
    assert twin.get_decoder().layers[0].encoder_attn.owner.q_proj.weight.any()


def test_data_parallel_is_refused(tiny_model):
    """Its copies of a layer would compute with the first device's weights."""
    model = tiny_model(feed_forward_sharing="stack")
    with pytest.raises(NotImplementedError, match="torchrun"):
        model.get_encoder().layers[0]._replicate_for_data_parallel()
    assert tiny_model().get_encoder().layers[0]._replicate_for_data_parallel() is not None


def test_half_precision_and_checkpointing(tiny_model, batch):
    model = tiny_model(**SHARED["cycle_reverse"], dropout=0.0).train()
    labels = torch.randint(3, 90, (2, 6))
    gradients = []
    for use_reentrant in (None, True, False):
        model.zero_grad()
        if use_reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        model(**batch, labels=labels).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0])
    half = model.eval().to(torch.bfloat16)
    assert half(**batch).logits.isfinite().all()
    assert half.generate(input_ids=batch["input_ids"], num_beams=2, max_new_tokens=4).shape[0] == 2


@pytest.mark.slow
def test_compiles_into_one_graph(tiny_model, batch):
    model = tiny_model(**SHARED["cycle_reverse"])
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(**batch).logits
        torch.testing.assert_close(compiled, model(**batch).logits, atol=1e-5, rtol=0)


def test_one_stack_alone_opens_from_a_model_that_shares(tiny_model, batch, tmp_path):
    model = tiny_model(**SHARED["cycle"])
    model.save_pretrained(tmp_path)
    encoder, report = VanillaTransformerEncoderModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = model.get_encoder()(**source).last_hidden_state
    torch.testing.assert_close(encoder(**source).last_hidden_state, expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="feed_forward_sharing='all': that feed-forward belongs to the encoder"):
        VanillaTransformerForCausalLM(tiny_model(**SHARED["cycle_reverse"]).config)


@pytest.mark.parametrize("sharing", ["none", "stack", "encoder_only"])
def test_a_decoder_alone_shares_and_is_searched_in_steps(sharing, tiny_config, tmp_path):
    config = tiny_config(
        **{"decoder_layers": 4, "decoder_layer_sets": 2, "layer_sharing": "cycle_reverse", "output_bias": True},
        **{"projection_sharing": "query_key", "feed_forward_sharing": sharing, "embedding_sharing": "none"},
    )
    model = VanillaTransformerForCausalLM(config).eval()
    assert len(model.get_decoder().layers) == 2 and len(model.get_decoder().layers_in_order) == 4
    with torch.no_grad():
        model.lm_head.weight.mul_(2.5)
    prompt = torch.randint(3, 90, (3, 5))
    found = model.generate(prompt, max_new_tokens=12, num_beams=3)
    with torch.no_grad():
        greedy = model.generate(prompt, max_new_tokens=12)
        expected = model(greedy[:, :-1]).logits.argmax(dim=-1)
    ended = (greedy[:, 5:-1] == model.config.eos_token_id).cumsum(dim=1).bool()
    assert torch.equal(greedy[:, 6:][~ended], expected[:, 5:][~ended])
    model.save_pretrained(tmp_path)
    again, report = VanillaTransformerForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()) and again.config.decoder_layers == 4
    assert torch.equal(again.generate(prompt, max_new_tokens=12, num_beams=3), found)
