"""Whoever replaces or surrounds a part of a model gets what transformers' loops, or a loop of `forward`, give."""

import copy
from types import MethodType

import pytest
import torch
from host_search import HostSearch, host
from torch import nn
from transformers import GenerationMixin
from transformers.generation import logits_process

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model.search import plan
from vanilla_transformer_hf.model.search.plan import LOOP_METHODS, replaced_method, why_not
from vanilla_transformer_hf.model.single_stacks.causal_lm import VanillaTransformerForCausalLM


def same_with_both(model, change, source, **options):
    """Make this change to the model and to its twin with transformers' loops, and compare; returns the sequences."""
    twin, found = host(model), []
    for each in (model, twin):
        change(each)
        torch.manual_seed(1)
        found.append(each.generate(**source, max_new_tokens=8, **options))
    assert torch.equal(*found)
    return found[0]


# ---------------------------------------------------------------------------------------------------------------------
# Methods that transformers' loops call
# ---------------------------------------------------------------------------------------------------------------------


def with_other_start(self, *args, **kwargs):
    """transformers' method, with another token in the decoder's input."""
    inputs = GenerationMixin.prepare_inputs_for_generation(self, *args, **kwargs)
    inputs["decoder_input_ids"] = inputs["decoder_input_ids"] + 1
    return inputs


class Prepares(VanillaTransformerForConditionalGeneration):
    prepare_inputs_for_generation = with_other_start


class HostPrepares(HostSearch):
    prepare_inputs_for_generation = with_other_start


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("where", ["object", "subclass", "class"])
def test_inputs_that_someone_else_prepares(decided_model, source, beams, where, monkeypatch):
    base = decided_model()
    plain = base.generate(**source, num_beams=beams, max_new_tokens=8)
    model, twin = copy.deepcopy(base), host(base)
    if where == "subclass":
        model, twin = Prepares(base.config).eval(), HostPrepares(base.config).eval()
        for each in (model, twin):
            each.load_state_dict(base.state_dict())
    elif where == "object":
        for each in (model, twin):
            each.prepare_inputs_for_generation = MethodType(with_other_start, each)
    else:
        kind = VanillaTransformerForConditionalGeneration
        monkeypatch.setattr(kind, "prepare_inputs_for_generation", with_other_start, raising=False)
    found, expected = (each.generate(**source, num_beams=beams, max_new_tokens=8) for each in (model, twin))
    assert torch.equal(found, expected) and not torch.equal(found, plain)
    with pytest.raises(ValueError, match="shortlist: not possible together with a prepare_inputs_for_generation of"):
        model.generate(**source, num_beams=beams, max_new_tokens=8, shortlist=[1, 5, 6])


def test_methods_that_the_loops_call_are_found_in_their_code():
    assert LOOP_METHODS.keys() >= {
        *("get_encoder", "get_decoder", "prepare_inputs_for_generation", "_prefill", "_has_unfinished_sequences"),
        *("_update_model_kwargs_for_generation", "_get_top_k_continuations", "_update_finished_beams"),
        *("_prepare_text_encoder_decoder_kwargs_for_generation", "_beam_search_has_unfinished_sequences"),
        *("_get_running_beams_for_next_iteration", "_check_early_stop_heuristic", "_expand_inputs_for_generation"),
    }
    assert not LOOP_METHODS.keys() & {"generate", "_sample", "_beam_search"}  # who wraps these calls ours


@pytest.mark.parametrize("name", LOOP_METHODS)
def test_no_method_of_the_loops_is_ignored(decided_model, name):
    model = decided_model()
    assert replaced_method(model) is None
    setattr(model, name, getattr(model, name))  # PEFT puts the method back in this way
    assert replaced_method(model) is None
    setattr(model, name, lambda *args, **kwargs: None)
    assert replaced_method(model) == name


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("loop", ["_sample", "_beam_search"])
def test_a_loop_of_a_subclass_is_run(decided_model, source, loop, beams):
    calls = []

    def counted(self, *args, **kwargs):
        calls.append(loop)
        return getattr(GenerationMixin, loop)(self, *args, **kwargs)

    base = decided_model()
    model = type("WithLoop", (VanillaTransformerForConditionalGeneration,), {loop: counted})(base.config).eval()
    model.load_state_dict(base.state_dict())
    options = {**source, "num_beams": beams, "max_new_tokens": 8, "pad_token_id": 2}
    assert torch.equal(model.generate(**options), base.generate(**options))
    assert calls == ([loop] if (beams > 1) == (loop == "_beam_search") else [])


def test_a_loop_of_the_call_is_run(decided_model, source):
    model, loop = decided_model(), GenerationMixin._beam_search
    options = {**source, "num_beams": 3, "max_new_tokens": 8, "pad_token_id": 2}
    theirs = host(model).generate(**options)
    model.generation_config.length_penalty_type = "gnmt"  # which the loop may do without
    assert torch.equal(model.generate(**options, custom_generate=loop), theirs)
    assert torch.equal(
        model.generate(**options, custom_generate=None), model.generate(**options, length_penalty_type="gnmt")
    )
    with pytest.raises(ValueError, match="shortlist: not possible together with custom_generate"):
        model.generate(**options, custom_generate=loop, shortlist=[5])


def test_arguments_by_position_are_those_of_transformers(decided_model, source):
    model, mask = decided_model(), source["attention_mask"]
    allowed = lambda batch, ids: [*range(5, 60), model.config.eos_token_id]  # noqa: E731
    options = {"attention_mask": mask, "max_new_tokens": 8}
    given = (source["input_ids"], None, None, None, allowed)
    expected = model.generate(**source, prefix_allowed_tokens_fn=allowed, max_new_tokens=8)
    assert torch.equal(model.generate(*given, **options), expected)
    assert torch.equal(model.generate(*given, False, **options), expected)  # synced_gpus
    with pytest.raises(ValueError, match="shortlist: not possible together with arguments by position"):
        model.generate(*given, False, **options, shortlist=[5])


def test_names_of_transformers_are_those_of_its_classes():
    names = {*plan.PROCESSORS, *plan.COUNTING_PROCESSORS, *plan.BIASES}
    for name in sorted(names):
        kind = getattr(logits_process, name)
        assert plan.host_name(object.__new__(kind)) == name
        assert not plan.host_name(object.__new__(type(name, (kind,), {})))


def test_an_encoder_of_someone_else_reads_the_source(decided_model, source):
    def change(model):
        encoder = model.get_encoder()

        class Reversed(nn.Module):
            def forward(self, input_ids=None, attention_mask=None, **kwargs):
                return encoder(input_ids.flip(1), attention_mask.flip(1), **kwargs)

        model.get_encoder = Reversed

    same_with_both(decided_model(), change, source)


# ---------------------------------------------------------------------------------------------------------------------
# Modules
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_monte_carlo_dropout(decided_model, source, beams):
    def drop(model):
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.5
                module.train()

    model = decided_model()
    found = same_with_both(model, drop, source, num_beams=beams)
    torch.manual_seed(2)
    assert not torch.equal(found, model.generate(**source, num_beams=beams, max_new_tokens=8))
    with pytest.raises(ValueError, match="shortlist: not possible together with training mode"):
        model.generate(**source, shortlist=[1, 5, 6])


def changed(output):
    """The output of a module, or another where it is numbers that a search would notice."""
    first = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", output)
    if not torch.is_tensor(first) or not first.is_floating_point():
        return output
    other = first.roll(1, -1)
    if isinstance(output, tuple):
        return (other, *output[1:])
    if other.shape == getattr(output, "shape", None):
        return other
    output.last_hidden_state = other
    return output


CHANGES = {
    "hook": lambda module: module.register_forward_hook(lambda module, args, output: changed(output)),
    "training": lambda module: setattr(module, "training", True),
}
PARTS = (
    "lm_head",
    *(f"model.decoder{rest}" for rest in ("", ".dropout", ".embed_tokens", ".layers.1", ".layers.1.dropout")),
    *(f"model.decoder.layers.1.{name}" for name in ("fc1", "activation_fn", "final_layer_norm", "self_attn")),
    "model.decoder.layers.1.self_attn.v_proj",
    *(f"model.decoder.layers.1.encoder_attn{rest}" for rest in ("", ".q_proj", ".k_proj", ".out_proj")),
)


# Modules that a step replaces, and whose hooks and mode it would lose.
REPLACED = [part for part in PARTS if part.endswith((".dropout", ".decoder", "layers.1", "_attn"))]


@pytest.mark.parametrize(
    ("part", "change"), [*((part, "hook") for part in PARTS), *((part, "training") for part in REPLACED)]
)
def test_hooks_and_the_mode_of_every_module_of_the_decoder(decided_model, source, part, change):
    few = {name: tensor[:3] for name, tensor in source.items()}
    same_with_both(decided_model(), lambda model: CHANGES[change](model.get_submodule(part)), few, num_beams=2)


@pytest.mark.parametrize("place", ["self_attn", "dropout", "encoder_attn"])
def test_a_module_of_another_kind_is_run(decided_model, source, place):
    def change(model):
        layer = model.get_decoder().layers[0]
        kind = type(getattr(layer, place))
        other = type("Other", (kind,), {"forward": lambda *args, **kwargs: changed(kind.forward(*args, **kwargs))})
        getattr(layer, place).__class__ = other

    model = decided_model()
    plain = model.generate(**source, max_new_tokens=8)
    assert not torch.equal(same_with_both(model, change, source), plain)


@pytest.mark.parametrize("beams", [1, 3])
def test_an_output_without_a_weight_of_its_own_is_called(decided_model, source, beams):
    model, options = decided_model(), {"num_beams": beams, "max_new_tokens": 6}
    expected = model.generate(**source, **options)
    model.lm_head = nn.Sequential(nn.Identity(), model.lm_head)
    assert torch.equal(model.generate(**source, **options), expected)


def test_hooks_that_give_arguments_to_rows_see_the_rows_of_transformers_loops(decided_model, source):
    def change(model):
        rows = []  # of the whole batch with its beams, at each step

        def add(module, args, kwargs):
            rows.append(len(args[0]))
            return args, kwargs

        model.get_decoder().layers[0].fc1.register_forward_pre_hook(add, with_kwargs=True)
        model.rows = rows

    model = decided_model()
    same_with_both(model, change, source, num_beams=3)
    assert {*model.rows} == {27}


def test_hooks_on_all_modules_are_run(decided_model, source):
    seen = set()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: seen.add(id(module)))
    try:
        model = decided_model()
        model.generate(**source, max_new_tokens=2)
    finally:
        handle.remove()
    assert id(model.get_decoder().layers[0].self_attn) in seen


def test_a_plain_model_has_no_obstacle(decided_model, tiny_config):
    for model in (decided_model(), VanillaTransformerForCausalLM(tiny_config()).eval()):
        assert why_not(model) is None


# ---------------------------------------------------------------------------------------------------------------------
# PEFT
# ---------------------------------------------------------------------------------------------------------------------

PEFT = pytest.importorskip("peft")
MAPS = ["q_proj", "v_proj", "fc1", "out_proj"]
# Each adds something of its own kind: to linear maps, norms, embeddings, keys and values, or in front of the source.
TYPES = {
    "lora": ("LoraConfig", {"target_modules": MAPS, "init_lora_weights": False}),
    "prefix": ("PrefixTuningConfig", {"num_virtual_tokens": 4}),
    "prompt": ("PromptTuningConfig", {"num_virtual_tokens": 4}),
}
MORE_TYPES = {
    "p-tuning": ("PromptEncoderConfig", {"num_virtual_tokens": 4, "encoder_hidden_size": 16}),
    "dora": ("LoraConfig", {"target_modules": MAPS, "use_dora": True, "init_lora_weights": False}),
    "lora of the output": ("LoraConfig", {"target_modules": ["lm_head", "q_proj"], "init_lora_weights": False}),
    "trainable tokens": ("LoraConfig", {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6, 7]}),
    "saved modules": ("LoraConfig", {"target_modules": ["q_proj"], "modules_to_save": ["final_layer_norm"]}),
    "adalora": ("AdaLoraConfig", {"target_modules": MAPS, "total_step": 10, "tinit": 1, "tfinal": 1}),
    "ia3": ("IA3Config", {"target_modules": ["k_proj", "fc2"], "feedforward_modules": ["fc2"]}),
    "vera": ("VeraConfig", {"target_modules": ["q_proj"], "init_weights": False}),
    "loha": ("LoHaConfig", {"target_modules": MAPS, "init_weights": False}),
    "lokr": ("LoKrConfig", {"target_modules": MAPS, "init_weights": False}),
    "oft": ("OFTConfig", {"target_modules": MAPS, "oft_block_size": 4, "init_weights": False}),
    "boft": ("BOFTConfig", {"target_modules": MAPS, "boft_block_size": 4, "init_weights": False}),
    "norms": ("LNTuningConfig", {"target_modules": ["self_attn_layer_norm", "final_layer_norm"]}),
    "fourier": ("FourierFTConfig", {"target_modules": ["q_proj"], "n_frequency": 50, "init_weights": False}),
    "hra": ("HRAConfig", {"target_modules": MAPS, "init_weights": False}),
    "vblora": ("VBLoRAConfig", {"target_modules": ["q_proj"], "vector_length": 8, "num_vectors": 16}),
    "road": ("RoadConfig", {"target_modules": ["q_proj"], "group_size": 8, "init_weights": False}),
    "randlora": ("RandLoraConfig", {"target_modules": ["q_proj"], "init_weights": False}),
    "poly": ("PolyConfig", {"target_modules": MAPS, "r": 4, "n_tasks": 3, "n_skills": 2, "n_splits": 2}),
    "prefix of an MLP": (
        "PrefixTuningConfig",
        {"num_virtual_tokens": 4, "prefix_projection": True, "encoder_hidden_size": 16},
    ),
    "prompts of both stacks": ("PromptTuningConfig", {"num_virtual_tokens": 4, "num_transformer_submodules": 2}),
    "cartridge": ("CartridgeConfig", {"num_virtual_tokens": 4}),
    "shadow": ("ShadowConfig", {}),
}


def adapted(model, kind, settings):
    """The model with an adapter of this type that has an effect."""
    task = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    tuned = PEFT.get_peft_model(model, getattr(PEFT, kind)(task_type=task, **settings)).eval()
    with torch.no_grad():
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                parameter.add_(2 * torch.randn_like(parameter))
    return tuned


@torch.no_grad()
def by_forward(model, source, beams, steps, **extra):
    """A beam search, or greedy search, by whole passes of `forward`, one sentence after the other, without </s>."""
    best = []
    for row, (ids, mask) in enumerate(zip(source["input_ids"], source["attention_mask"])):
        ids, mask, own = ids[None], mask[None], {name: value[row : row + 1] for name, value in extra.items()}
        is_causal = not model.config.is_encoder_decoder
        found, scores = (
            (ids if is_causal else ids.new_full((1, 1), model.config.decoder_start_token_id)),
            torch.zeros(1),
        )
        for step in range(steps):
            inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": found}
            if is_causal:
                inputs = {"input_ids": found, "attention_mask": torch.cat((mask, mask.new_ones(1, step)), dim=1)}
            inputs = {name: one.expand(len(found), -1) for name, one in inputs.items()}
            own = {name: one[:1].expand(len(found)) for name, one in own.items()}
            logits = model(**inputs, **own, use_cache=False).logits[:, -1].log_softmax(-1)
            logits[:, model.config.eos_token_id] = -1e9
            scores, places = (scores[:, None] + logits).flatten().topk(beams)
            vocabulary = logits.shape[1]
            found = torch.cat((found[places // vocabulary], (places % vocabulary)[:, None]), dim=1)
        best.append(found[0, -steps:])
    return torch.stack(best)


def check_type(base, kind, settings, all_beams=(1, 3)):
    """Compares `generate` with a loop of `forward` for a draw of the adapter that has an effect."""
    ids, steps = torch.randint(4, 90, (3, 6)), 5
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    extra = {"task_ids": torch.tensor([0, 1, 2])} if kind == "PolyConfig" else {}
    changed = set()
    for _draw in range(20):
        model = adapted(copy.deepcopy(base), kind, settings)
        for beams in all_beams:
            options = {"num_beams": beams, "min_new_tokens": steps, "max_new_tokens": steps}
            found = model.generate(**source, **options, **extra)[:, -steps:]
            assert torch.equal(found, by_forward(model, source, beams, steps, **extra)), beams
            if not torch.equal(found, base.generate(**source, **options)[:, -steps:]):
                changed.add(beams)
        if changed == set(all_beams):
            return
    pytest.fail(f"no effect in 20 draws with {set(all_beams) - changed} beams")


@pytest.fixture(params=["encoder-decoder", "decoder"])
def base(request, tiny_config, decided_model):
    """A model with clear differences; the matrices of most real ones are tied, which PEFT treats by itself."""
    if request.param == "encoder-decoder":
        return decided_model(embedding_sharing="all")
    model = VanillaTransformerForCausalLM(tiny_config(embedding_sharing="all")).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(2.5)
    return model


@pytest.mark.parametrize("name", TYPES)
def test_adapters_of_peft_give_what_a_loop_of_forward_gives(base, name):
    check_type(base, *TYPES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_TYPES)
def test_more_adapters_of_peft(base, name):
    if name == "prompts of both stacks" and not base.config.is_encoder_decoder:
        pytest.skip("a language model has one stack, and PEFT's own forward fails with prompts for two")
    if name == "shadow" and base.config.is_encoder_decoder:
        pytest.skip("PEFT has it for language models alone")
    # PEFT does not repeat `task_ids` for beams.
    check_type(base, *MORE_TYPES[name], all_beams=(1,) if name == "poly" else (1, 3))


def test_an_adapter_that_mixes_rows_goes_to_the_loop_of_transformers(base):
    """PEFT's Lily weighs its experts by a mean over all rows of a call, so each step needs all of them."""
    settings = {"target_modules": MAPS, "r": 4, "stride_A": 1, "num_B": 2, "init_weights": False}
    ids = torch.randint(4, 90, (4, 6))
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 8}
    for _draw in range(4):
        model = adapted(copy.deepcopy(base), "LilyConfig", settings)
        for beams in (1, 3):
            theirs = model.generate(**source, num_beams=beams, output_hidden_states=True, return_dict_in_generate=True)
            assert torch.equal(model.generate(**source, num_beams=beams), theirs.sequences)


def test_adapters_that_are_switched_merged_and_mixed(decided_model, source):
    base = decided_model()
    settings = {"target_modules": MAPS, "init_lora_weights": False}
    model = adapted(copy.deepcopy(base), "LoraConfig", settings)
    model.add_adapter("other", PEFT.LoraConfig(task_type="SEQ_2_SEQ_LM", **settings))

    def found(**options):
        """What both loops give."""
        sequences = model.generate(**source, num_beams=2, max_new_tokens=8, **options)
        logged = {"output_hidden_states": True, "return_dict_in_generate": True}
        theirs = model.generate(**source, num_beams=2, max_new_tokens=8, **logged, **options).sequences
        assert torch.equal(sequences, theirs)
        return sequences

    first = found()
    model.set_adapter("other")
    other = found()
    assert not torch.equal(first, other)
    with model.disable_adapter():
        assert torch.equal(found(), base.generate(**source, num_beams=2, max_new_tokens=8))
    model.set_adapter("default")
    model.merge_adapter()
    assert torch.equal(found(), first)
    model.unmerge_adapter()
    assert torch.equal(found(), first)
    mixed = found(adapter_names=["default", "other", "__base__"] * 3)
    for row, expected in ((0, first), (1, other)):
        width = min(mixed.shape[1], expected.shape[1])
        assert torch.equal(mixed[row, :width], expected[row, :width])


class WithForward(VanillaTransformerForConditionalGeneration):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Plain(VanillaTransformerForConditionalGeneration):
    """A model of a user's with one more method."""


def test_a_subclass_without_a_forward_of_its_own_is_searched_here(tiny_config, source):
    options = {**source, "num_beams": 2, "max_new_tokens": 4, "length_penalty_type": "gnmt"}
    assert Plain(tiny_config()).eval().generate(**options).shape[0] == 9
    with pytest.raises(ValueError, match="not possible together with modules of another kind"):
        WithForward(tiny_config()).eval().generate(**options)
