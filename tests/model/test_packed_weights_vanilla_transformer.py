"""Weights packed for the search are those of the model, whatever is done to it."""

import copy
import re
from pathlib import Path
from threading import Thread, get_ident

import pytest
import torch
import torch.nn.functional as F
from host_search import same
from torch import nn

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model import (
    change_detection_vanilla_transformer,
    file_pages_vanilla_transformer,
    packed_weights_vanilla_transformer,
)
from vanilla_transformer_hf.model.packed_weights_vanilla_transformer import StepWeights
from vanilla_transformer_hf.model.sharing_vanilla_transformer import STAND_INS


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    """The models of these tests have none that are large."""
    monkeypatch.setattr(packed_weights_vanilla_transformer, "SMALL", 0)


def test_they_follow_the_model(decided_model, source):
    model = decided_model()
    kept = StepWeights.of(model)
    assert StepWeights.of(model) is kept
    before = model.generate(**source, num_beams=3, max_new_tokens=8)
    with torch.no_grad():
        model.get_decoder().layers[0].fc1.weight.mul_(-1)
    assert StepWeights.of(model) is not kept
    after = same(model, source, num_beams=3, max_new_tokens=8)
    assert not torch.equal(before, after)
    model.get_decoder().layers[1].fc2 = nn.Linear(64, 32)
    same(model, source, num_beams=3, max_new_tokens=8)
    layer = model.get_decoder().layers[0]
    layer.fc1 = nn.Sequential(layer.fc1, nn.Tanh())
    wrapped = model.generate(**source, num_beams=3, max_new_tokens=8)
    assert torch.equal(wrapped, copy.deepcopy(model).generate(**source, num_beams=3, max_new_tokens=8))
    assert not torch.equal(wrapped, after)
    assert model in StepWeights._kept
    model.train()
    assert model not in StepWeights._kept


@pytest.mark.parametrize("after", ["none", "relu"])
def test_bfloat16_without_instructions_is_computed_in_float32_and_rounded_once(monkeypatch, after):
    weight, bias, states = torch.randn(48, 512).bfloat16(), torch.randn(48).bfloat16(), torch.randn(2, 5, 512)
    exact = states.bfloat16().double() @ weight.double().T + bias.double()
    exact = exact.relu() if after == "relu" else exact
    monkeypatch.setattr(packed_weights_vanilla_transformer, "lacks_bfloat16", lambda: True)
    found = packed_weights_vanilla_transformer.pack([weight], bias, after)(states)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-4)


def test_an_activation_computed_with_the_product_still_has_its_hooks(decided_model, source):
    model, options = decided_model(), {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True}
    plain = model.generate(**source, **options)
    model.get_decoder().layers[1].activation_fn.register_forward_hook(lambda module, args, output: output - 3)
    hooked, fresh = model.generate(**source, **options), copy.deepcopy(model).generate(**source, **options)
    assert torch.equal(hooked.sequences_scores, fresh.sequences_scores)
    assert not torch.equal(hooked.sequences_scores, plain.sequences_scores)


def test_models_opened_in_inference_mode(decided_model, source):
    expected = decided_model()
    with torch.inference_mode():
        model = VanillaTransformerForConditionalGeneration(expected.config).eval()
        model.load_state_dict(expected.state_dict())
        found = model.generate(**source, num_beams=3, max_new_tokens=8)
    assert torch.equal(found, expected.generate(**source, num_beams=3, max_new_tokens=8))


def test_a_norm_called_as_a_function_still_has_its_hooks(decided_model, source):
    model, options = decided_model(), {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True}
    plain = model.generate(**source, **options)
    model.get_decoder().layers[1].encoder_attn_layer_norm.register_forward_hook(lambda module, args, output: -output)
    hooked, fresh = model.generate(**source, **options), copy.deepcopy(model).generate(**source, **options)
    assert torch.equal(hooked.sequences_scores, fresh.sequences_scores)
    assert not torch.equal(hooked.sequences_scores, plain.sequences_scores)


def test_packed_maps_stand_in_for_a_models_own_in_one_thread_alone(decided_model):
    model = decided_model()
    weights, layer = StepWeights.of(model), model.get_encoder().layers[0]
    used = []
    weights.source.stand_ins[id(layer)].fc1 = lambda states: (
        used.append(get_ident()) or F.linear(states, layer.fc1.weight, layer.fc1.bias)
    )
    ids, found = torch.tensor([[5, 6, 2]]), {}

    def encode():
        found[get_ident()] = model.get_encoder()(ids).last_hidden_state

    with torch.no_grad(), weights.reading_the_source():
        encode()
        other = Thread(target=encode)
        other.start()
        other.join()
    assert used == [get_ident()] and layer.maps is layer and not STAND_INS
    first, second = found.values()
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("encoding, others", [("sinusoidal", 0), ("distance_mlp", 3)])
def test_torch_is_watched_only_for_maps_that_are_not_looked_up(tiny_config, encoding, others):
    model = VanillaTransformerForConditionalGeneration(tiny_config(position_encoding=encoding)).eval()
    weights = StepWeights.of(model)
    assert len(weights.source.others) == others
    assert weights.source.keys() >= weights.source.others.keys()


def swap(tensor, dim, size):
    """Move values of a tensor, in pieces of `size` side by side, without a change that torch counts."""
    order = torch.arange(tensor.shape[dim]).view(-1, size).flip(0).flatten()
    tensor.data.copy_(tensor.data.index_select(dim, order))


CHANGES = {
    "signs": lambda model: model.get_decoder().layers[0].fc1.weight.data.mul_(-1),
    "one value": lambda model: model.lm_head.weight.data[7].fill_(3),
    "order of pieces": lambda model: swap(model.lm_head.weight, 0, 1),
    "order of heads": lambda model: swap(model.get_decoder().layers[0].self_attn.out_proj.weight, 1, 8),
    "a bias": lambda model: model.lm_head.bias.data.add_(torch.randn(99)),
    "the encoder": lambda model: swap(model.get_encoder().layers[1].fc2.weight, 1, 1),
    "keys of the source": lambda model: model.get_decoder().layers[1].encoder_attn.k_proj.weight.data.mul_(-2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_they_follow_changes_that_torch_does_not_count(decided_model, source, change, dtype):
    model = decided_model().to(dtype)
    options = {"num_beams": 3, "max_new_tokens": 12, "return_dict_in_generate": True}
    before = model.generate(**source, **options)
    CHANGES[change](model)
    changed = model.generate(**source, **options)
    fresh = copy.deepcopy(model).generate(**source, **options)
    assert torch.equal(changed.sequences, fresh.sequences)
    assert torch.equal(changed.sequences_scores, fresh.sequences_scores)
    assert not torch.equal(before.sequences_scores, changed.sequences_scores)


def test_weights_that_are_expected_to_be_fixed_are_not_read_again(decided_model, source, monkeypatch):
    model = decided_model()
    before = model.generate(**source, max_new_tokens=8)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.get_decoder().layers[0].fc1.weight.mul_(-1)
    after = changed.generate(**source, max_new_tokens=8)
    assert not torch.equal(after, before)
    aliases = [weight.data for weight in model.parameters()]  # somebody may write through them
    monkeypatch.setattr(change_detection_vanilla_transformer, "fingerprint", lambda tensor: 1 / 0)
    model.expect_fixed_weights()
    assert torch.equal(model.generate(**source, max_new_tokens=8), before)
    with torch.no_grad():
        model.get_decoder().layers[0].fc1.weight.mul_(-1)
    assert torch.equal(model.generate(**source, max_new_tokens=8), after)
    model.train().eval()
    with pytest.raises(ZeroDivisionError):
        model.generate(**source, max_new_tokens=8)
    del aliases
    assert torch.equal(model.generate(**source, max_new_tokens=8), after)


@pytest.fixture
def loaded(decided_model, tmp_path):
    """A model whose weights are in memory of safetensors."""
    decided_model().save_pretrained(tmp_path)
    return VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)


@pytest.fixture
def unseen(loaded, monkeypatch):
    """The same on a system that does not tell which pages were written."""
    monkeypatch.setattr(file_pages_vanilla_transformer, "private_mappings", list)
    return loaded


@pytest.fixture(params=["made", "loaded", "unseen"])
def any_model(request, decided_model):
    return decided_model() if request.param == "made" else request.getfixturevalue("loaded")


def test_no_value_is_read_to_see_that_none_has_changed(any_model, source, monkeypatch):
    before = any_model.generate(**source, num_beams=3, max_new_tokens=8)
    monkeypatch.setattr(change_detection_vanilla_transformer, "fingerprint", lambda tensor: 1 / 0)
    kept = StepWeights.of(any_model)
    any_model(**source, decoder_input_ids=before)
    assert torch.equal(any_model.generate(**source, num_beams=3, max_new_tokens=8), before)
    assert torch.equal(any_model.generate(**source, max_new_tokens=8), any_model.generate(**source, max_new_tokens=8))
    assert StepWeights.of(any_model) is kept


needs_pages = pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="needs Linux's list of pages")


@needs_pages
def test_a_copied_model_leaves_the_mapped_file(unseen, source, tmp_path):
    def is_mapped():
        return str(tmp_path / "model.safetensors") in Path("/proc/self/maps").read_text()

    assert is_mapped()
    before = {name: weight.clone() for name, weight in unseen.state_dict().items()}
    unseen.generate(**source, max_new_tokens=2)
    assert not is_mapped()
    assert all(torch.equal(weight, before[name]) for name, weight in unseen.state_dict().items())


def resident_bytes(path):
    """How much of a mapped file this process holds in memory."""
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    return sum(2**10 * int(re.search(r"Rss: +(\d+) kB", part)[1]) for part in parts if f" {path}\n" in part)


@needs_pages
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_packed_weights_are_not_in_memory_twice(tiny_config, source, tmp_path, quantization):
    config = tiny_config(encoder_ffn_dim=16384, decoder_ffn_dim=16384)
    VanillaTransformerForConditionalGeneration(config).save_pretrained(tmp_path)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    path, rows = tmp_path / "model.safetensors", model.get_encoder().layers[0].fc1.weight
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert resident_bytes(path) > path.stat().st_size * 0.9
    found = model.generate(**source, max_new_tokens=4, num_beams=2, quantization=quantization)
    kept = StepWeights.of(model, quantization=quantization)
    assert resident_bytes(path) < path.stat().st_size * 0.1
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    model.save_pretrained(tmp_path)  # over the file that is mapped
    assert StepWeights.of(model, quantization=quantization) is kept
    assert torch.equal(model.generate(**source, max_new_tokens=4, num_beams=2, quantization=quantization), found)
    rows.data[0, 0] = 3
    assert StepWeights.of(model, quantization=quantization) is not kept
    assert rows[0, 0] == 3 and torch.equal(rows[1:], before["model.encoder.layers.0.fc1.weight"][1:])


def test_weights_that_were_read_as_if_to_write_them_stay_packed(any_model, source, tmp_path):
    kept = StepWeights.of(any_model)
    weight = any_model.get_decoder().layers[0].fc1.weight
    assert weight.detach().numpy()[0, 0] == weight[0, 0].item()  # NumPy could write
    any_model.save_pretrained(tmp_path / "saved")
    assert StepWeights.of(any_model) is kept
    weight.data.mul_(-1)
    assert StepWeights.of(any_model) is not kept


def by_numpy(weight):
    array = weight.detach().numpy()
    return lambda: array.__imul__(-1)


def by_data(weight):
    alias = weight.data
    return lambda: alias.mul_(-1)


# A reference to a weight -> a function that takes it and returns one that changes the weight.
HOLDS = {
    "an array": by_numpy,
    "a tensor": by_data,
    "nothing": lambda weight: lambda: weight.data.mul_(-1),
    "other memory": lambda weight: lambda: setattr(weight, "data", -weight.data),
    "other strides": lambda weight: lambda: setattr(weight, "data", weight.data.t()),
}


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after two calls"])
@pytest.mark.parametrize("hold", HOLDS)
def test_a_write_through_another_reference_is_noticed(any_model, hold, again):
    weight = any_model.get_decoder().layers[0].self_attn.q_proj.weight
    change = HOLDS[hold](weight)
    kept = StepWeights.of(any_model)
    if again:
        assert StepWeights.of(any_model) is kept
        change = HOLDS[hold](weight)
        assert StepWeights.of(any_model) is kept
    change()
    assert StepWeights.of(any_model) is not kept


def test_memory_of_others_is_not_copied(decided_model, source):
    model = decided_model()
    array = torch.randn(32, 32).numpy()
    weight = model.get_decoder().layers[0].self_attn.q_proj.weight
    weight.data = torch.from_numpy(array)
    before = model.generate(**source, max_new_tokens=8, num_beams=2, return_dict_in_generate=True)
    array *= -1
    after = model.generate(**source, max_new_tokens=8, num_beams=2, return_dict_in_generate=True)
    assert not torch.equal(before.sequences_scores, after.sequences_scores)
