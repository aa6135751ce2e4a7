"""
The model against the paper's equations, and in everything transformers offers. Beside other implementations it stands
in tests/conversion/sources: torch.nn.Transformer in test_torch_nn.py, MarianMT in test_marianmt.py.
"""

import contextlib
import copy
import json
import sys

import pytest
import torch
from plain_transformer import build
from reference import Reference
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    EncoderDecoderCache,
    GenerationConfig,
    MarianConfig,
    QuantoConfig,
    StaticCache,
    TextStreamer,
)

from vanilla_transformer_hf import (
    RecurrentSeq2SeqConfig,
    RecurrentSeq2SeqForConditionalGeneration,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)
from vanilla_transformer_hf.model.config.position_schemes import POSITION_SCHEMES
from vanilla_transformer_hf.model.config.stacks import StackSizes
from vanilla_transformer_hf.model.modeling_vanilla_transformer import POSITION_ENCODINGS


# One row per switch of the config, and some that meet.
# Those with rows and columns are tested with images, in test_recognition.py.
OF_TEXT = sorted(POSITION_SCHEMES.keys() - {"sinusoidal_grid"})
PRE = {"encoder_norm_position": "pre", "decoder_norm_position": "pre"}
GATED = {"feed_forward_type": "gated"}
LEARNED = {"position_encoding": "learned", "max_position_embeddings": 16}
SWITCHES = {
    "paper": {},
    "pre_norm": PRE,
    "mixed_norm": {"encoder_norm_position": "pre", "encoder_final_norm": False, "decoder_final_norm": True},
    "post_norm_with_final_norms": {"encoder_final_norm": True, "decoder_final_norm": True},
    "embedding_norm": {"layernorm_embedding": True},
    "norm_epsilon": {"layer_norm_eps": 0.01},
    "halves": {"position_encoding": "sinusoidal_halves"},
    "halves_inclusive": {"position_encoding": "sinusoidal_halves_inclusive"},
    "learned": LEARNED,
    "no_positions": {"position_encoding": "none"},
    "position_offset": {"position_offset": 2},
    "learned_with_offset": {**LEARNED, "position_offset": 2},
    "learned_in_the_encoder": {**LEARNED, "decoder_position_encoding": "sinusoidal"},
    "learned_of_two_lengths": {**LEARNED, "decoder_max_position_embeddings": 11},
    "residual_alpha": {"encoder_residual_alpha": 1.63, "decoder_residual_alpha": 2.06},
    "residual_alpha_pre": {"encoder_residual_alpha": 0.5, **PRE},
    "no_residual": {"encoder_residual_alpha": 0},
    "gelu": {"activation_function": "gelu"},
    "swish": {"activation_function": "swish"},
    "two_activations": {"activation_function": "relu", "decoder_activation_function": "gelu"},
    "swiglu": {**GATED, "activation_function": "silu"},
    "glu_pre": {**GATED, "activation_function": "sigmoid", "decoder_norm_position": "pre", "feed_forward_bias": False},
    "bilinear": {**GATED, "activation_function": "linear"},
    "reglu_and_geglu": {**GATED, "activation_function": "relu", "decoder_activation_function": "gelu"},
    "attention_bias": {"attention_bias": True},
    "no_feed_forward_bias": {"feed_forward_bias": False},
    "output_bias": {"output_bias": True},
    "output_bias_untied": {"output_bias": True, "embedding_sharing": "none"},
    "unscaled": {"scale_embedding": False},
    "decoder_sharing": {"embedding_sharing": "decoder"},
    "no_sharing": {"embedding_sharing": "none"},
    "two_vocabularies": {"embedding_sharing": "decoder", "source_vocab_size": 120},
    "free_d_k": {"d_k": 3},
    "free_d_k_and_d_v": {"d_k": 5, "d_v": 12, "encoder_attention_heads": 3, "decoder_attention_heads": 7},
    "unequal_stacks": {
        **{"encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 8},
        **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 16},
    },
    "unequal_widths": {"encoder_d_model": 24, "embedding_sharing": "decoder"},
    "unequal_widths_learned": {
        **{"encoder_d_model": 48, "embedding_sharing": "none", **LEARNED},
        **{"layernorm_embedding": True, "encoder_norm_position": "pre"},
    },
    "start_token": {"decoder_start_token_id": 7},
    "rotary": {"position_encoding": "rotary"},
    "rotary_pre": {"position_encoding": "rotary", "rotary_base": 100.0, "rotary_fraction": 0.6, **PRE},
    "rotary_halves": {"position_encoding": "rotary_halves", "rotary_fraction": 0.5},
    "rotary_in_the_decoder": {"decoder_position_encoding": "rotary_halves"},
    "t5_bias": {"position_encoding": "t5_bias", "relative_buckets": 8, "max_relative_distance": 6},
    "t5_bias_in_the_encoder": {"position_encoding": "t5_bias", "decoder_position_encoding": "sinusoidal"},
    "alibi": {"position_encoding": "alibi"},
    "alibi_of_other_heads": {
        **{"position_encoding": "alibi", "encoder_attention_heads": 3, "decoder_attention_heads": 6, "d_k": 8},
        **{"d_v": 8, "decoder_norm_position": "pre"},
    },
    "shaw": {"position_encoding": "shaw", "max_relative_distance": 2},
    "shaw_pre": {"position_encoding": "shaw", "d_k": 6, "d_v": 10, **PRE},
    "shaw_in_the_decoder": {"decoder_position_encoding": "shaw", "max_relative_distance": 3},
    "gated_alibi": {"position_encoding": "gated_alibi"},
    "gated_alibi_in_the_decoder": {
        **{"decoder_position_encoding": "gated_alibi", "decoder_norm_position": "pre"},
        **{"decoder_attention_heads": 2, "d_k": 6},
    },
    "distance_mlp": {"position_encoding": "distance_mlp"},
    "distance_mlp_in_the_encoder": {
        "position_encoding": "distance_mlp",
        "decoder_position_encoding": "none",
        "encoder_norm_position": "pre",
    },
    "hierarchical": {"position_encoding": "hierarchical", "max_position_embeddings": 3},
    "hierarchical_with_offset": {
        **{"position_encoding": "hierarchical", "max_position_embeddings": 3, "decoder_max_position_embeddings": 4},
        **{"hierarchical_alpha": 0.7, "position_offset": 1},
    },
    "segments": {"type_vocab_size": 2, "layernorm_embedding": True},
    "key_value": {"projection_sharing": "key_value", "position_encoding": "rotary"},
    "query_key": {"projection_sharing": "query_key", "decoder_attention_sharing": True, "attention_bias": True},
    "query_key_value": {"projection_sharing": "query_key_value", "feed_forward_sharing": "stack"},
    "universal": {
        **{"encoder_layer_sets": 1, "decoder_layer_sets": 1, "embedding_sharing": "none"},
        "decoder_position_encoding": "gated_alibi",
    },
    "layers_in_cycles": {
        **{"encoder_layers": 4, "encoder_layer_sets": 2, "layer_sharing": "cycle_reverse"},
        **{"decoder_layers": 3, "decoder_layer_sets": 2, "position_encoding": "shaw", "feed_forward_sharing": "all"},
    },
    "one_wide_feed_forward": {"feed_forward_sharing": "encoder_only", "encoder_ffn_dim": 96},
    "everything_shared": {
        **{"encoder_layer_sets": 1, "decoder_layer_sets": 1, "feed_forward_sharing": "all"},
        **{"projection_sharing": "key_value", "decoder_attention_sharing": True, **GATED, **PRE},
    },
    "rms_norm": {"norm_type": "rms_norm", "layer_norm_eps": 0.01},
    "rms_norm_author": {"norm_type": "rms_norm_author", "layer_norm_eps": 0.01, "decoder_norm_position": "pre"},
    "batch_norm": {"norm_type": "batch_norm", "decoder_norm_position": "pre", "layernorm_embedding": True},
    "dot": {"attention_score": "dot"},
    "dot_with_a_bias": {"attention_score": "dot", "position_encoding": "shaw", "max_relative_distance": 3},
    "additive": {"attention_score": "additive", "d_k": 5, "d_v": 6},
    "additive_shared": {
        **{"attention_score": "additive", "projection_sharing": "query_key", "decoder_attention_sharing": True},
        **{"decoder_layers": 4, "decoder_layer_sets": 2, "layer_sharing": "cycle", "encoder_norm_position": "pre"},
    },
}

every_switch = pytest.mark.parametrize("fields", SWITCHES.values(), ids=SWITCHES)


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def real(batch):
    """Where logits count: the real target positions."""
    return batch["decoder_attention_mask"].bool()


# -------------------------------------------------------------------------------------------------- proof by equations


@every_switch
def test_equals_the_papers_equations(fields, tiny_model, batch):
    model = tiny_model(**fields).double()
    reference = Reference(model.state_dict(), model.config)
    ours = logits_of(model, batch)
    for row in range(2):
        source = batch["input_ids"][row][batch["attention_mask"][row].bool()].tolist()
        target = batch["decoder_input_ids"][row][real(batch)[row]].tolist()
        expected = reference.logits(source, target)
        # The weights and all sums are float64; tables of positions are rounded to float32.
        torch.testing.assert_close(ours[row, : len(target)], expected, atol=1e-6, rtol=0)
    with contextlib.suppress(ValueError):  # the plain model of examples/ refuses what it does not compute
        plain = build(model.config.to_dict(), model.state_dict()).double()
        found = plain(batch["input_ids"], batch["decoder_input_ids"])
        torch.testing.assert_close(found[real(batch)], ours[real(batch)], atol=1e-10, rtol=0)


# ---------------------------------------------------------------------------------------------------------- properties


@every_switch
def test_no_position_sees_a_later_one(fields, tiny_model, batch):
    model = tiny_model(**fields)
    before = logits_of(model, batch)
    for position in range(1, 6):
        changed = copy.deepcopy(batch)
        changed["decoder_input_ids"][0, position] = 95
        after = logits_of(model, changed)
        torch.testing.assert_close(before[0, :position], after[0, :position], atol=1e-6, rtol=0)
        assert not torch.allclose(before[0, position], after[0, position], atol=1e-3)


@every_switch
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(fields, side, tiny_model, batch):
    model = tiny_model(**fields).double()
    if side == "left":
        for key in batch:
            pad = 3
            batch[key][1] = torch.cat((batch[key][1, -pad:], batch[key][1, :-pad]))
    kept_source, kept_target = batch["attention_mask"][1].bool(), real(batch)[1]
    alone = model(
        input_ids=batch["input_ids"][1:, kept_source], decoder_input_ids=batch["decoder_input_ids"][1:, kept_target]
    ).logits
    torch.testing.assert_close(logits_of(model, batch)[1, kept_target], alone[0], atol=1e-10, rtol=0)


@torch.no_grad()
def test_a_ready_made_mask_of_four_dimensions_does_what_padding_does(tiny_model, batch):
    encoder = tiny_model().get_encoder()
    padding = batch["attention_mask"]
    mask = torch.zeros(*padding.shape, padding.shape[1]).masked_fill(padding[:, None] == 0, -torch.inf)[:, None]
    assert (padding == 0).any()
    found = encoder(batch["input_ids"], mask, position_ids=torch.arange(padding.shape[1])[None]).last_hidden_state
    expected = encoder(batch["input_ids"], padding).last_hidden_state
    torch.testing.assert_close(found[padding.bool()], expected[padding.bool()], atol=1e-6, rtol=0)


@every_switch
@pytest.mark.parametrize("cache_class", ["dynamic", "static"])
def test_cache_changes_nothing(fields, cache_class, tiny_model, batch):
    model = tiny_model(**fields).double()
    del batch["decoder_attention_mask"]
    whole = logits_of(model, batch)
    target = batch.pop("decoder_input_ids")
    cache = None
    if cache_class == "static":
        sides = [StaticCache(model.config, max_cache_len=length) for length in (6, 7)]
        cache = EncoderDecoderCache(*sides)
    steps = []
    with torch.no_grad():
        for pieces in target.split([2, 1, 1, 2], dim=1):
            out = model(**batch, decoder_input_ids=pieces, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("encoding", OF_TEXT)
@pytest.mark.parametrize("side", ["right", "left"])
def test_cache_behind_padding_changes_nothing(encoding, side, tiny_model, batch):
    model = tiny_model(position_encoding=encoding, max_position_embeddings=16)
    mask = batch.pop("decoder_attention_mask")
    mask[1] = torch.tensor([0, 0, 1, 1, 1, 1] if side == "left" else [1, 1, 0, 1, 1, 1])
    target, cache, steps = batch.pop("decoder_input_ids"), None, []
    whole = logits_of(model, {**batch, "decoder_input_ids": target, "decoder_attention_mask": mask})
    with torch.no_grad():
        for start, end in ((0, 3), (3, 4), (4, 6)):
            step = {"decoder_input_ids": target[:, start:end], "decoder_attention_mask": mask[:, :end]}
            out = model(**batch, **step, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], atol=1e-5, rtol=0)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("encoding", OF_TEXT)
def test_float64_changes_nothing(encoding, backend, tiny_model, batch):
    """sdpa's masks have another type than the scores: the lowest float64 does not fit into float32."""
    model = tiny_model(position_encoding=encoding, max_position_embeddings=16)
    model.set_attn_implementation(backend)
    single = logits_of(model, batch)[real(batch)]
    torch.testing.assert_close(logits_of(model.double(), batch)[real(batch)].float(), single, atol=1e-5, rtol=0)


@every_switch
@torch.compiler.set_stance("force_eager")  # the compiler of flex attention takes seconds for each shape
def test_attention_backends_agree(fields, tiny_model, batch):
    model = tiny_model(**fields).double()
    expected = None
    is_relative = any(stack.embed_positions.is_relative for stack in (model.model.encoder, model.model.decoder))
    for backend in ("eager", "sdpa", "flex_attention"):
        model.set_attn_implementation(backend)
        needs_scores = is_relative or model.config.attention_score == "additive"
        if needs_scores and backend == "flex_attention":  # set after the model was made
            with pytest.raises(ValueError, match="set attn_implementation to 'eager' or 'sdpa'"):
                logits_of(model, batch)
            continue
        ours = logits_of(model, batch)[real(batch)]
        expected = ours if expected is None else expected
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "free_d_k"])
def test_compiled_flex_attention_agrees(name, tiny_model, batch):
    model = tiny_model(**SWITCHES[name])
    expected = logits_of(model, batch)[real(batch)]
    model.set_attn_implementation("flex_attention")
    torch.testing.assert_close(logits_of(model, batch)[real(batch)], expected, atol=1e-5, rtol=0)


@every_switch
def test_save_load_save_is_byte_identical(fields, tiny_model, batch, tmp_path):
    model = tiny_model(**fields)
    model.save_pretrained(tmp_path / "first")
    loaded, report = VanillaTransformerForConditionalGeneration.from_pretrained(
        tmp_path / "first", output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(logits_of(loaded, batch), logits_of(model, batch))
    loaded.save_pretrained(tmp_path / "second")
    for file in ("model.safetensors", "config.json", "generation_config.json"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes(), file


@pytest.mark.parametrize(("sharing", "matrices"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_shared_matrices_are_one_in_memory_and_in_the_file(sharing, matrices, tiny_model, tmp_path):
    tiny_model(embedding_sharing=sharing).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    weights = [model.model.encoder.embed_tokens, model.model.decoder.embed_tokens, model.lm_head]
    assert len({module.weight.data_ptr() for module in weights}) == matrices
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = list(file.keys())
    stored = [name for name in names if "embed_tokens" in name or "shared" in name or "lm_head" in name]
    assert len(stored) == matrices
    assert (sharing == "all") == ("model.shared.weight" in stored)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("sharing", ["all", "decoder", "none"])
def test_weights_in_which_a_shared_matrix_stands_once_are_complete(sharing, assign, tiny_model, tmp_path):
    """As the Trainer loads its checkpoints: by `load_state_dict`, and a missing key would be reported."""
    model, other = tiny_model(embedding_sharing=sharing), tiny_model(embedding_sharing=sharing)
    other.save_pretrained(tmp_path)
    result = model.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False, assign=assign)
    assert not result.missing_keys and not result.unexpected_keys
    for name, parameter in other.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)
    assert (model.lm_head.weight is model.model.decoder.embed_tokens.weight) == (sharing != "none")
    incomplete = {
        name: tensor for name, tensor in load_file(tmp_path / "model.safetensors").items() if "fc1" not in name
    }
    assert len(model.load_state_dict(incomplete, strict=False).missing_keys) == 8


def test_tie_word_embeddings_false_survives_saving(tiny_config, tmp_path):
    config = tiny_config()
    config.tie_word_embeddings = False
    VanillaTransformerForConditionalGeneration(config).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert model.lm_head.weight.data_ptr() != model.model.encoder.embed_tokens.weight.data_ptr()


# ----------------------------------------------------------------------------------------------------------- positions


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sinusoids_are_float32_at_any_length_and_survive_loading(dtype, tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype)
    encoding = model.model.encoder.embed_positions
    assert not list(encoding.buffers())
    row = torch.tensor([[20_000]])
    computed = encoding(torch.zeros(1, 1, 32, dtype=torch.float32), row)[0, 0]
    exponents = torch.arange(0, 32, 2, dtype=torch.float64) / 32
    angles = 20_000 / 10_000**exponents
    expected = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten().float()
    # Float32 keeps an angle of 20,000 to 2e-3.
    torch.testing.assert_close(computed, expected, atol=2e-3, rtol=0)
    assert encoding(torch.zeros(1, 1, 32, dtype=dtype), row).dtype == dtype


def test_learned_positions_end_with_a_clear_error(tiny_model, batch):
    model = tiny_model(position_encoding="learned", max_position_embeddings=5)
    with pytest.raises(IndexError, match="position 5 lies outside 0 to 4"):
        model(**batch)


@torch.no_grad()
def test_layers_that_are_taken_out_of_a_stack_do_not_run(tiny_model, batch):
    """As people shorten a model before they train it on."""
    model = tiny_model(encoder_layers=3, decoder_layers=3)
    for stack in ("encoder", "decoder"):
        part = getattr(model.model, stack)
        part.layers = part.layers[:2]
        setattr(model.config, f"{stack}_layers", 2)
    small = VanillaTransformerForConditionalGeneration(
        VanillaTransformerConfig.from_dict(model.config.to_dict())
    ).eval()
    small.load_state_dict(model.state_dict())
    assert torch.equal(model(**batch).logits, small(**batch).logits)
    ids = batch["input_ids"]
    assert torch.equal(model.generate(ids, max_new_tokens=5), small.generate(ids, max_new_tokens=5))


@torch.no_grad()
def test_few_calls_lead_to_a_product(tiny_config):
    """Seven functions of this package to the first one, and 330 calls of them in a pass through 6 + 6 layers."""
    model = VanillaTransformerForConditionalGeneration(tiny_config(encoder_layers=6, decoder_layers=6)).eval()
    ids, calls, first = torch.randint(3, 90, (2, 5)), [], []

    def is_ours(frame):
        return "vanilla_transformer_hf" in frame.f_globals.get("__name__", "")

    def count(frame, event, argument):
        if event == "call" and is_ours(frame):
            calls.append(frame.f_code.co_name)
        if event == "c_call" and argument.__name__ == "linear" and not first:
            while frame is not None:
                first.extend([frame.f_code.co_name] if is_ours(frame) else [])
                frame = frame.f_back

    model(ids, decoder_input_ids=ids, use_cache=False)
    sys.setprofile(count)
    try:
        model(ids, decoder_input_ids=ids, use_cache=False)
    finally:
        sys.setprofile(None)
    assert len(first) <= 7 and len(calls) <= 330, (first, len(calls))


def test_position_encodings_have_no_weights_but_the_trained_ones(tiny_config):
    trained = {"learned", "hierarchical", "t5_bias", "shaw", "gated_alibi", "distance_mlp"}
    for name in POSITION_SCHEMES.keys() - {"sinusoidal_grid"}:
        config = tiny_config(position_encoding=name)
        module = POSITION_ENCODINGS[name](config, StackSizes(config, "encoder"))
        assert bool(list(module.parameters())) == (name in trained), name
        assert not list(module.buffers())


# ----------------------------------------------------------------------------------------------------- inputs and loss


@every_switch
def test_embeddings_give_what_ids_give(fields, tiny_model, batch):
    model = tiny_model(**fields)
    expected = logits_of(model, batch)
    embedded = {
        "inputs_embeds": model.model.encoder.embed_tokens(batch.pop("input_ids")),
        "decoder_inputs_embeds": model.model.decoder.embed_tokens(batch.pop("decoder_input_ids")),
    }
    torch.testing.assert_close(logits_of(model, {**batch, **embedded}), expected)


def test_dummy_inputs_are_taken(tiny_model):
    model = tiny_model()
    for part in (model, model.model, model.get_encoder()):
        assert part(**part.dummy_inputs)[0].shape[:2] == (3, 5)


def test_labels_are_shifted_behind_the_start_token(tiny_model):
    model = tiny_model(decoder_start_token_id=7)
    labels = torch.tensor([[11, 12, 1], [13, 1, -100]])
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    assert shifted.tolist() == [[7, 11, 12], [7, 13, 1]]
    source = torch.randint(3, 90, (2, 5))
    torch.testing.assert_close(
        model(input_ids=source, labels=labels).logits, model(input_ids=source, decoder_input_ids=shifted).logits
    )


def test_nothing_is_guessed_where_the_target_is_missing(tiny_model, batch):
    with pytest.raises(ValueError, match=r"needs decoder_input_ids, .* or labels.*pass model= to its DataCollator"):
        tiny_model()(input_ids=batch["input_ids"])
    with pytest.raises(
        ValueError, match=r"To translate without labels, call generate\(\), or .*DataCollatorWithPadding"
    ):
        tiny_model()(input_ids=batch["input_ids"], labels=None)
    with pytest.raises(ValueError, match="either token ids or embeddings"):
        tiny_model()(decoder_input_ids=batch["decoder_input_ids"])
    with pytest.raises(ValueError, match="VanillaTransformerDecoder: encoder_hidden_states: must be given"):
        tiny_model().get_decoder()(batch["decoder_input_ids"])


@pytest.mark.parametrize("sharing", ["all", "decoder"])
def test_ids_outside_the_vocabulary_are_named(sharing, tiny_model, batch):
    model = tiny_model(embedding_sharing=sharing, source_vocab_size=None if sharing == "all" else 50)
    batch["input_ids"].clamp_(max=49)
    source_size = 99 if sharing == "all" else 50
    for name, size in (("input_ids", source_size), ("decoder_input_ids", 99)):
        wrong = copy.deepcopy(batch)
        wrong[name][1, 2] = size + 4
        with pytest.raises(IndexError, match=f"token id {size + 4} lies outside 0 to {size - 1}"):
            model(**wrong)
        with pytest.raises(ValueError, match=f"{name}: token id {size + 4} lies outside the vocabulary of {size}"):
            model.generate(**wrong, max_new_tokens=2)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_accumulated_batches_give_the_gradients_of_one(label_smoothing, tiny_config):
    source = torch.randint(3, 90, (64, 9))
    labels = torch.randint(3, 90, (64, 8))
    lengths = torch.randint(1, 9, (64, 1))
    labels[torch.arange(8) >= lengths] = -100
    model = VanillaTransformerForConditionalGeneration(tiny_config(dropout=0.0, label_smoothing=label_smoothing))
    model.train()
    tokens = (labels != -100).sum()
    gradients = []
    for size in (64, 4):
        model.zero_grad()
        for rows in torch.arange(64).split(size):
            model(input_ids=source[rows], labels=labels[rows], num_items_in_batch=tokens).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for whole, accumulated in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, accumulated, atol=1e-6, rtol=1e-4)


def test_initialisation(tiny_config):
    model = VanillaTransformerForConditionalGeneration(
        tiny_config(vocab_size=5000, d_model=64, attention_bias=True, embedding_sharing="none")
    )
    for weight in (model.model.encoder.embed_tokens.weight, model.lm_head.weight):
        assert weight.std().item() == pytest.approx(64**-0.5, rel=0.02)
    attention = model.model.decoder.layers[1].encoder_attn
    bound = (6 / (64 + 64)) ** 0.5  # Glorot and Bengio 2010
    assert bound * 0.98 < attention.out_proj.weight.abs().max().item() <= bound
    packed = (6 / (64 + 3 * 64)) ** 0.5  # queries, keys and values as one matrix, as in torch.nn.MultiheadAttention
    theirs = nn.MultiheadAttention(64, 4).in_proj_weight.abs().max().item()
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        assert packed * 0.98 < projection.weight.abs().max().item() <= packed
        assert projection.weight.abs().max().item() == pytest.approx(theirs, rel=0.02)
    assert not attention.q_proj.bias.any()


def test_a_fresh_encoder_keeps_its_positions_apart():
    """Variance over positions, of that over features: it was 3 % with queries, keys and values as three matrices."""
    config = VanillaTransformerConfig.from_preset("base", vocab_size=500)
    model = VanillaTransformerModel(config).eval()
    with torch.no_grad():
        states = model.encoder(torch.randint(3, 500, (4, 20))).last_hidden_state
    assert (states.var(dim=1).mean() / states.var(dim=2).mean()).item() > 0.1


# -------------------------------------------------------------------------------------------- what transformers offers


@every_switch
def test_attentions_and_hidden_states(fields, tiny_model, batch):
    model = tiny_model(**fields)
    model.set_attn_implementation("eager")
    out = model(**batch, output_attentions=True, output_hidden_states=True)
    config = model.config
    assert len(out.encoder_hidden_states) == config.encoder_layers + 1
    assert len(out.decoder_hidden_states) == config.decoder_layers + 1
    shapes = {
        "encoder_attentions": (config.encoder_layers, (2, config.encoder_attention_heads, 7, 7)),
        "decoder_attentions": (config.decoder_layers, (2, config.decoder_attention_heads, 6, 6)),
        "cross_attentions": (config.decoder_layers, (2, config.decoder_attention_heads, 6, 7)),
    }
    for name, (layers, shape) in shapes.items():
        assert [tuple(weights.shape) for weights in out[name]] == [shape] * layers
        for weights in out[name]:
            torch.testing.assert_close(weights[0].sum(-1), torch.ones(shape[1:3]))
    assert not out.cross_attentions[0][1, :, :, 4:].any(), "padding of the source must get no weight"


def test_assisted_generation_and_streaming(tiny_model, batch, capsys):
    model, assistant = tiny_model(), tiny_model(encoder_layers=1, decoder_layers=1)
    source = batch["input_ids"][:1]
    expected = model.generate(source, max_new_tokens=9)
    for settings in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 2}):
        assert torch.equal(model.generate(source, max_new_tokens=9, **settings), expected)

    class Ids:
        def decode(self, ids, **kwargs):
            return " ".join(str(token) for token in ids)

    model.generate(source, max_new_tokens=9, streamer=TextStreamer(Ids()))
    assert capsys.readouterr().out.split() == [str(token) for token in expected[0].tolist()]


@pytest.mark.slow  # a C++ compiler makes quanto's kernels
def test_quantized_cache(tiny_model, batch):
    pytest.importorskip("optimum.quanto", reason="the package that quantizes the cache")
    model = tiny_model()
    source = batch["input_ids"]
    settings = {"backend": "quanto", "nbits": 4, "q_group_size": 8, "residual_length": 4}
    out = model.generate(source, max_new_tokens=9, cache_implementation="quantized", cache_config=settings)
    exact = model.generate(source, max_new_tokens=9)
    # The first tokens come before anything is quantized.
    assert torch.equal(out[:, :4], exact[:, :4])


def test_without_a_cache_nothing_is_quantized(tiny_model, batch):
    model, source = tiny_model(), batch["input_ids"]
    found = model.generate(source, max_new_tokens=9, cache_implementation="quantized", use_cache=False)
    assert torch.equal(found, model.generate(source, max_new_tokens=9))


def test_a_generation_config_is_saved_apart(tiny_model, tmp_path):
    model = tiny_model()
    model.generation_config = GenerationConfig(
        num_beams=4, length_penalty=0.6, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0
    )
    model.save_pretrained(tmp_path)
    assert "num_beams" not in json.loads((tmp_path / "config.json").read_text())
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config.num_beams == 4


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"output_bias": True},
        {"embedding_sharing": "decoder"},
        {"embedding_sharing": "none", "output_bias": True},
        {"embedding_sharing": "decoder", "source_vocab_size": 50},
        {"embedding_sharing": "none", "source_vocab_size": 50},
    ],
    ids=str,
)
def test_resizing_keeps_ties_bias_and_config_in_step(fields, tiny_model, batch, tmp_path):
    model = tiny_model(**fields)
    batch["input_ids"].clamp_(max=49)
    before = logits_of(model, batch)
    for size in (110, 95):
        returned = model.resize_token_embeddings(size)
        assert returned.num_embeddings == size
        assert model.config.vocab_size == model.lm_head.out_features == size
        assert len(model.lm_head.weight) == len(model.model.decoder.embed_tokens.weight) == size
        assert model.model.encoder.embed_tokens.num_embeddings == fields.get("source_vocab_size", size)
        tied = model.lm_head.weight is model.model.decoder.embed_tokens.weight
        assert tied == (fields.get("embedding_sharing") != "none")
        if model.lm_head.bias is not None:
            assert len(model.lm_head.bias) == size
        torch.testing.assert_close(logits_of(model, batch)[..., :95], before[..., :95])
    model.save_pretrained(tmp_path)
    reloaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits_of(reloaded, batch), logits_of(model, batch))


@pytest.mark.parametrize("way", ["model", "encoder"])
@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_tokens_added_to_two_vocabularies_are_used_on_both_sides(kind, way, tiny_model, tmp_path):
    if kind == "transformer":
        model = tiny_model(embedding_sharing="decoder", source_vocab_size=50)
    else:
        sizes = {"vocab_size": 100, "source_vocab_size": 50, "d_model": 8, "embedding_sharing": "decoder"}
        model = RecurrentSeq2SeqForConditionalGeneration(RecurrentSeq2SeqConfig(**sizes)).eval()
    old = [stack.embed_tokens.weight.clone() for stack in (model.get_encoder(), model.get_decoder())]
    part = model if way == "model" else model.get_encoder()
    resize = part.resize_source_token_embeddings if way == "model" else part.resize_token_embeddings
    found = resize(57, pad_to_multiple_of=4)
    assert found is model.get_encoder().embed_tokens and found.num_embeddings == 60
    assert resize() is model.get_encoder().embed_tokens
    model.resize_token_embeddings(105)
    assert (model.config.source_vocab_size, model.config.vocab_size, model.lm_head.out_features) == (60, 105, 105)
    for stack, rows in zip((model.get_encoder(), model.get_decoder()), old):
        assert torch.equal(stack.embed_tokens.weight[: len(rows)], rows)
    batch = {"input_ids": torch.tensor([[59, 1]]), "decoder_input_ids": torch.tensor([[0, 104]])}
    model.save_pretrained(tmp_path)
    reloaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(reloaded(**batch).logits, model(**batch).logits)
        model.generate(batch["input_ids"], max_new_tokens=2)


def test_resizing_that_would_part_a_vocabulary_is_refused(tiny_model):
    model, two = tiny_model(), tiny_model(embedding_sharing="decoder", source_vocab_size=50)
    before = model.config.to_dict(), two.config.to_dict()
    for resize in (
        model.resize_source_token_embeddings,
        model.get_encoder().resize_token_embeddings,
        model.get_decoder().resize_token_embeddings,
        two.get_decoder().resize_token_embeddings,
    ):
        with pytest.raises(ValueError, match=r"use the model's resize_token_embeddings\(\)"):
            resize(110)
    with pytest.raises(ValueError, match="new_num_tokens=0: must be above pad_token_id=0"):
        two.resize_source_token_embeddings(0)
    assert (model.config.to_dict(), two.config.to_dict()) == before


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_into_one_graph(backend, tiny_model, batch):
    model = tiny_model()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(**batch).logits, logits_of(model, batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [None, "static"])
def test_transformers_exports_a_step_of_generate(tiny_model, batch, kind):
    """transformers' exporter records what `generate()` calls the model with, and exports a step with that."""
    exporters = pytest.importorskip("transformers.exporters")
    decompose = pytest.importorskip("transformers.exporters.utils").decompose_for_generation
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    search = GenerationConfig(cache_implementation=kind, pad_token_id=0, decoder_start_token_id=0)
    model, given = decompose(tiny_model(encoder_layers=1, decoder_layers=1), source, search)["decode"]
    step = exporters.DynamoExporter().export(model, given, exporters.DynamoConfig()).program.module()
    expected = model(**copy.deepcopy(given)).logits
    given = {name: value for name, value in given.items() if name not in ("use_cache", "return_dict")}
    torch.testing.assert_close(step(**given).logits, expected, atol=1e-5, rtol=0)


def test_exports_encoder_and_decoder_step(tiny_model, batch):
    model = tiny_model()
    length = {1: torch.export.Dim("length", min=2, max=512)}
    encoder = torch.export.export(
        model.model.encoder,
        (batch["input_ids"], batch["attention_mask"]),
        dynamic_shapes={"input_ids": length, "attention_mask": length},
    ).module()
    longer = torch.randint(3, 90, (2, 11))
    expected = model.model.encoder(longer, torch.ones_like(longer)).last_hidden_state
    exported = encoder(longer, torch.ones_like(longer)).last_hidden_state
    torch.testing.assert_close(exported, expected, atol=1e-5, rtol=0)

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, memory, mask):
            return self.model(
                decoder_input_ids=ids,
                encoder_outputs=(memory,),
                attention_mask=mask,
                use_cache=False,
                logits_to_keep=1,
            ).logits

    ids = batch["decoder_input_ids"]
    step = torch.export.export(
        Step(),
        (ids, exported, torch.ones_like(longer)),
        dynamic_shapes={"ids": {1: torch.export.Dim("target", min=2, max=512)}, "memory": None, "mask": None},
    ).module()
    expected = model(input_ids=longer, decoder_input_ids=ids[:, :4]).logits[:, -1:]
    torch.testing.assert_close(step(ids[:, :4], exported, torch.ones_like(longer)), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_loads_by_dtype_and_device_map(dtype, tiny_model, batch, tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=dtype, device_map="auto")
    assert {str(parameter.dtype) for parameter in loaded.parameters()} == {f"torch.{dtype}"}
    # Where there is a GPU, it is there, and rounds differently.
    difference = (logits_of(loaded.cpu(), batch).float() - logits_of(model, batch))[real(batch)].abs().max()
    assert difference < {"float32": 1e-6, "bfloat16": 0.15, "float16": 0.02}[dtype]


# For int4, a C++ compiler makes quanto's kernels.
@pytest.mark.parametrize("weights", ["int8", pytest.param("int4", marks=pytest.mark.slow)])
def test_loads_quantized(weights, tiny_model, batch, tmp_path):
    pytest.importorskip("optimum.quanto", reason="one of transformers' quantizers that run on a CPU")
    model = tiny_model(d_model=64)
    model.save_pretrained(tmp_path)
    settings = QuantoConfig(weights=weights, modules_to_not_convert=["lm_head"])
    quantized = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, quantization_config=settings)
    changed, plain = (each.model.decoder.layers[1].encoder_attn.q_proj for each in (quantized, model))
    assert type(changed) is not type(plain)
    exact = logits_of(model, batch)[real(batch)]
    error = (logits_of(quantized, batch)[real(batch)] - exact).std() / exact.std()
    assert error < {"int8": 0.02, "int4": 0.3}[weights]
    assert quantized.generate(batch["input_ids"], max_new_tokens=3).shape == (2, 4)


def test_base_model_opens_from_the_same_folder(tiny_model, batch, tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path)
    assert isinstance(base, VanillaTransformerModel)
    torch.testing.assert_close(
        base(**batch).last_hidden_state, model(**batch, output_hidden_states=True).decoder_hidden_states[-1]
    )


def test_lora_finds_its_targets(tiny_model, batch):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny_model(), peft.LoraConfig(task_type="SEQ_2_SEQ_LM"))
    adapted = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
    assert len(adapted) == 2 * (2 + 2 * 2)  # queries and values of two encoder and two decoder layers
    model(**batch, labels=torch.randint(3, 90, (2, 6))).loss.backward()
    assert model.generate(input_ids=batch["input_ids"], max_new_tokens=3).shape[0] == 2


# ----------------------------------------------------------------------------------------------------------- bad files


def test_broken_files_are_refused_by_name(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    content = weights.read_bytes()
    for broken in (content[:-100], content[:20], b"", b"not tensors at all"):
        weights.write_bytes(broken)
        with pytest.raises(OSError, match=f"{tmp_path}: the weights are truncated or damaged"):
            AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    weights.write_bytes(content)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "d_model": 64}))
    with pytest.raises(RuntimeError, match="mismatch"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_a_config_of_another_model_type_is_refused(tmp_path):
    MarianConfig(vocab_size=99, pad_token_id=0, decoder_start_token_id=0).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path}: config.json describes a 'marian' model"):
        VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
