"""Weights packed for the search are those of the model, whatever is done to it."""

import copy

import pytest
import torch
from host_search import same
from peft import LoraConfig, get_peft_model
from torch import nn

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model.layers.parts import Linear
from vanilla_transformer_hf.model.packing import packed as packed_weights
from vanilla_transformer_hf.model.packing.packed import StepWeights


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    """The models of these tests have none that are large."""
    monkeypatch.setattr(packed_weights, "SMALL", 0)


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
    kept = StepWeights.of(model)
    assert StepWeights.of(model.eval()) is kept  # it was in evaluation already: nothing is packed again
    model.train()
    assert model not in StepWeights._kept


@pytest.mark.parametrize("after", ["none", "relu"])
def test_bfloat16_without_instructions_is_computed_in_float32_and_rounded_once(monkeypatch, after):
    weight, bias, states = torch.randn(48, 512).bfloat16(), torch.randn(48).bfloat16(), torch.randn(2, 5, 512)
    exact = states.bfloat16().double() @ weight.double().T + bias.double()
    exact = exact.relu() if after == "relu" else exact
    monkeypatch.setattr(packed_weights, "lacks_bfloat16", lambda: True)
    found = packed_weights.pack([weight], bias, after)(states)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-4)


def test_small_matrices_are_packed_for_many_rows_alone(monkeypatch):
    monkeypatch.setattr(packed_weights, "SMALL", 2**17)
    weights, bias, packed = [torch.randn(64, 128), torch.randn(64, 128)], torch.randn(128), []
    pack = packed_weights.pack
    monkeypatch.setattr(packed_weights, "pack", lambda *args, **after: packed.append(args) or pack(*args, **after))
    product = packed_weights.for_few_rows(weights, bias, "relu")
    for rows, count in ((1, 0), (63, 0), (64, 1), (640, 1), (2, 1)):
        states = torch.randn(rows, 1, 128)
        expected = torch.nn.functional.linear(states, torch.cat(weights), bias).relu()
        torch.testing.assert_close(product(states), expected, rtol=0, atol=1e-4)
        assert len(packed) == count
    with torch.autocast("cpu", torch.bfloat16):
        assert {product(torch.randn(rows, 1, 128)).dtype for rows in (1, 640)} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["activation_fn", "encoder_attn_layer_norm"])
def test_what_is_computed_without_its_module_still_has_its_hooks(decided_model, source, name):
    """An activation with the product before it, a norm as a function."""
    model, options = decided_model(), {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True}
    plain = model.generate(**source, **options)
    module = getattr(model.get_decoder().layers[1], name)
    module.register_forward_hook(lambda module, args, output: 3 - output)
    hooked, fresh = model.generate(**source, **options), copy.deepcopy(model).generate(**source, **options)
    assert torch.equal(hooked.sequences_scores, fresh.sequences_scores)
    assert not torch.equal(hooked.sequences_scores, plain.sequences_scores)


def test_what_replaces_a_module_at_its_address_is_noticed(decided_model, source, monkeypatch):
    """Of two replacements one after the other, the second often gets the address that the first one has freed."""
    # As if all activations were at one address.
    monkeypatch.setattr(
        packed_weights, "id", lambda one: 0 if type(one) in (nn.ReLU, nn.Tanh) else id(one), raising=False
    )
    model, options = decided_model(), {"num_beams": 3, "max_new_tokens": 8}
    before = model.generate(**source, **options)
    model.get_decoder().layers[0].activation_fn = nn.Tanh()
    found = model.generate(**source, **options)
    assert torch.equal(found, copy.deepcopy(model).generate(**source, **options)) and not torch.equal(found, before)


def test_models_opened_in_inference_mode(decided_model, source):
    expected = decided_model()
    with torch.inference_mode():
        model = VanillaTransformerForConditionalGeneration(expected.config).eval()
        model.load_state_dict(expected.state_dict())
        found = model.generate(**source, num_beams=3, max_new_tokens=8)
    assert torch.equal(found, expected.generate(**source, num_beams=3, max_new_tokens=8))


def test_packed_maps_are_in_a_copy_that_shares_all_else(decided_model, batch):
    model = decided_model(feed_forward_sharing="all", decoder_attention_sharing=True)
    model.set_attn_implementation("eager")  # which returns weights
    before = {name: {**vars(module)} for name, module in model.named_modules()}
    copied = StepWeights.whole_model(model, "int8")
    for name, module in model.named_modules():
        assert vars(module) == before[name]
    for (name, weight), (other, its) in zip(model.named_parameters(), copied.named_parameters(), strict=True):
        assert name == other and weight is its
    decoder = copied.get_decoder()
    assert decoder.layers[0].shared_from is copied.get_encoder().feed_forward
    assert decoder.layers[1].encoder_attn.shared_from is decoder.layers[1].self_attn
    # Recorders that transformers adds to the one do not record the other twice.
    with torch.no_grad():
        for each in (copied, model, copied):
            assert len(each(**batch, output_attentions=True).cross_attentions) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"position_encoding": "distance_mlp"},
        {"feed_forward_type": "gated", "output_bias": True, "embedding_sharing": "none"},
        {"encoder_attention_type": "window_global", "attention_window": 4},
        {"encoder_attention_type": "performer", "decoder_attention_type": "synthesizer_dense"},
        {"encoder_attention_type": "linformer", "cross_attention_type": "linformer"},
        {"decoder_attention_sharing": True, "feed_forward_sharing": "all"},
    ],
)
def test_no_projection_is_computed_by_itself(tiny_config, options, batch, monkeypatch):
    model = VanillaTransformerForConditionalGeneration(tiny_config(**options)).eval()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "decoder_input_ids")}
    plain = model(**inputs).logits
    for kind in (nn.Linear, Linear):
        monkeypatch.setattr(kind, "forward", lambda module, states: pytest.fail(f"{module} was called"))
    with torch.no_grad():
        found = StepWeights.whole_model(model, "int8")(**inputs).logits
    torch.testing.assert_close(found, plain, atol=0.2, rtol=0)


def swap(tensor, dim, size):
    """Move values of a tensor, in pieces of `size` side by side, without a change that torch counts."""
    order = torch.arange(tensor.shape[dim]).view(-1, size).flip(0).flatten()
    tensor.data.copy_(tensor.data.index_select(dim, order))


CHANGES = {
    "signs": lambda model: model.get_decoder().layers[0].fc1.weight.data.mul_(-1),
    "the last row": lambda model: model.lm_head.weight.data[-1].fill_(3),
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


def test_after_a_change_that_is_not_noticed_training_mode_drops_the_copies(decided_model, source):
    model, options = decided_model(), {"num_beams": 3, "max_new_tokens": 12}
    kept, before = StepWeights.of(model), model.generate(**source, **options)
    compared = {0, 33, 66, 98}  # of 99 rows
    row = next(token for token in before.flatten().tolist() if token not in compared)
    model.lm_head.weight.data[row].fill_(-9)
    assert StepWeights.of(model) is kept
    after = model.train().eval().generate(**source, **options)
    assert torch.equal(after, copy.deepcopy(model).generate(**source, **options))
    assert not torch.equal(after, before)


@pytest.fixture
def loaded(decided_model, tmp_path):
    """A model whose weights are in memory of safetensors."""
    decided_model().save_pretrained(tmp_path)
    return VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)


@pytest.fixture(params=["made", "loaded"])
def any_model(request, decided_model):
    return decided_model() if request.param == "made" else request.getfixturevalue("loaded")


def test_they_stay_while_nothing_changes(any_model, source, tmp_path):
    kept, before = StepWeights.of(any_model), any_model.generate(**source, num_beams=3, max_new_tokens=8)
    any_model(**source, decoder_input_ids=before)
    any_model.requires_grad_(False)
    any_model.save_pretrained(tmp_path / "saved")
    any_model.load_adapter = None  # an attribute that is no weight
    assert torch.equal(any_model.generate(**source, num_beams=3, max_new_tokens=8), before)
    assert StepWeights.of(any_model) is kept


def with_average(model):
    """An average of weights takes their place, as `EMA.copy_to` writes it."""
    for weight in model.parameters():
        weight.data.copy_(0.9 * weight.data + 0.1 * torch.randn_like(weight))


def with_swapped_memory(model):
    """Other memory takes the place of all weights, as in FSDP and DeepSpeed."""
    for weight in model.parameters():
        weight.data = -weight.data


def with_loaded_state(model):
    model.load_state_dict({name: -value for name, value in model.state_dict().items()})


@pytest.mark.parametrize(
    "change", [with_average, with_swapped_memory, with_loaded_state, lambda model: model.double()]
)
def test_what_training_code_does_to_weights_is_noticed(any_model, source, change):
    kept = StepWeights.of(any_model)
    change(any_model)
    assert StepWeights.of(any_model) is not kept
    same(any_model, source, num_beams=3, max_new_tokens=8)


def test_an_adapter_merged_between_two_calls_is_noticed(decided_model, source):
    model, options = decided_model(), {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True}
    plain = model.generate(**source, **options)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "fc1"], init_lora_weights=False)
    peft = get_peft_model(model, config).eval()
    adapted = peft.generate(**source, **options)
    peft.merge_adapter()
    merged = peft.generate(**source, **options)
    peft.unmerge_adapter()
    unmerged = peft.generate(**source, **options)
    with peft.disable_adapter():
        disabled = peft.generate(**source, **options)
    for found, expected in ((merged, adapted), (unmerged, adapted), (disabled, plain)):
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(adapted.sequences_scores, plain.sequences_scores, atol=1e-3)


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
