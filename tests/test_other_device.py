"""
Models, searches, training and texts on a device that is not the CPU: no tensor is made on the wrong one, and results
are those of the CPU. The device is a GPU where there is one, else a fake one (`other_device.py`) with the kernels of
the CPU.
"""

import contextlib
import copy

import pytest
import torch
from counting_model import SOURCES, TARGETS
from other_device import DEVICE as FAKE
from other_device import MixedDevicesError
from other_device import OtherDevice as FakeDevice

from vanilla_transformer_hf import (
    ConstrainedText,
    RecurrentSeq2SeqConfig,
    RecurrentSeq2SeqForConditionalGeneration,
    Translator,
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForImageTextToText,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForSpeechSeq2Seq,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer_hf.model.config.attention_kinds import ATTENTION_KINDS
from vanilla_transformer_hf.model.config.front_ends import FRONT_ENDS
from vanilla_transformer_hf.model.config.position_schemes import POSITION_SCHEMES
from vanilla_transformer_hf.model.search.search import Search
from vanilla_transformer_hf.training.objectives.head_gates import add_head_gates, expected_open_heads
from vanilla_transformer_hf.translation.pictures.attention_maps import attention_maps


GPU = torch.cuda.is_available()
DEVICE, OtherDevice = (torch.device("cuda:0"), contextlib.nullcontext) if GPU else (FAKE, FakeDevice)
of_the_fake_device = pytest.mark.skipif(GPU, reason="the fake device, tested where there is no GPU")

ENCODER, DECODER = "encoder_attention_type", "decoder_attention_type"
POSITIONS, OF_DECODER = "position_encoding", "decoder_position_encoding"
# Every scheme of positions and kind of attention is in one of them, in either stack.
VARIANTS = {
    "paper": {POSITIONS: "sinusoidal", ENCODER: "full", "encoder_norm_position": "pre"},
    "halves": {POSITIONS: "sinusoidal_halves", OF_DECODER: "learned", ENCODER: "window_global", "attention_window": 2},
    "inclusive": {POSITIONS: "sinusoidal_halves_inclusive", ENCODER: "performer", DECODER: "performer"},
    "rotary": {POSITIONS: "rotary", OF_DECODER: "rotary_halves", ENCODER: "lsh", "lsh_buckets": 2, "lsh_chunk": 3},
    "t5_bias": {POSITIONS: "t5_bias", "relative_buckets": 8, "max_relative_distance": 6},
    "alibi": {POSITIONS: "alibi", OF_DECODER: "gated_alibi", ENCODER: "blocks", "attention_block": 2},
    "shaw": {POSITIONS: "shaw", "max_relative_distance": 3, DECODER: "window", "attention_window": 2},
    "distance_mlp": {POSITIONS: "distance_mlp", "norm_type": "rms_norm", "feed_forward_type": "gated"},
    "hierarchical": {POSITIONS: "hierarchical", "max_position_embeddings": 8, "type_vocab_size": 2},
    "linformer": {ENCODER: "linformer", "linformer_k": 3, "projection_sharing": "query_key"},
    "recurrent": {DECODER: "recurrent", OF_DECODER: "none", "memory_length": 3},
    "synthesizers": {ENCODER: "synthesizer_dense", DECODER: "synthesizer_random", "max_position_embeddings": 12},
    "chunks": {ENCODER: "chunk", DECODER: "chunk", "chunk_summary": "mean", "attention_block": 2},
    "pooling": {"encoder_layers": 2, "encoder_pooling": [1], "output_bias": True, "embedding_sharing": "none"},
    "sharing": {
        **{"decoder_layers": 2, "decoder_layer_sets": 1, "projection_sharing": "key_value", "label_smoothing": 0.1},
        **{"decoder_attention_sharing": True, "feed_forward_sharing": "all"},
    },
}
# Every front end but that of tokens: class, fields, and the shape of two sources.
FILES = {
    "speech": (VanillaTransformerForSpeechSeq2Seq, {"num_mel_bins": 8}, (2, 12, 8)),
    "speech_stacked": (VanillaTransformerForSpeechSeq2Seq, {"num_mel_bins": 8, "stacked_frames": 3}, (2, 12, 8)),
    "speech_whisper": (
        VanillaTransformerForSpeechSeq2Seq,
        {"num_mel_bins": 8, "max_position_embeddings": 6},
        (2, 8, 24),
    ),
    "image": (
        VanillaTransformerForImageTextToText,
        {"num_channels": 1, "image_height": 4, "image_width": 12, "patch_height": 2, "patch_width": 4}
        | {POSITIONS: "sinusoidal_grid", OF_DECODER: "sinusoidal"},
        (2, 1, 4, 12),
    ),
}
every_variant = pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)


def test_every_kind_is_among_the_variants():
    models = [*VARIANTS.values(), *(fields for _, fields, _ in FILES.values())]
    used = {value for fields in models for value in fields.values() if isinstance(value, str)}
    assert set(POSITION_SCHEMES) | set(ATTENTION_KINDS) <= used
    assert FRONT_ENDS.keys() == {"tokens", *FILES}


def moved(model):
    """The model on the other device, whose weights are shared as before."""
    model.to(DEVICE)
    model.tie_weights()
    return model


def on_device(batch):
    return {name: tensor.to(DEVICE) for name, tensor in batch.items()}


def check_same(found, expected):
    assert found.device == DEVICE
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def check_training(model, batch):
    """The loss, and after it the gradient of each weight."""
    expected = model(**batch).loss.detach()
    with OtherDevice():
        loss = moved(model)(**on_device(batch)).loss
        loss.backward()
    check_same(loss.detach(), expected)
    assert {tensor.device for tensor in model.state_dict().values()} == {DEVICE}
    assert {parameter.grad.device for parameter in model.parameters() if parameter.grad is not None} == {DEVICE}


def check_searches(model, batch, searches):
    """Each search finds what it finds on the CPU."""
    expected = [model.generate(**batch, **options) for options in searches]
    with OtherDevice():
        model, batch = moved(model), on_device(batch)
        found = [model.generate(**batch, **options) for options in searches]
    for one, other in zip(found, expected, strict=True):
        check_same(one, other)


@pytest.fixture
def small(tiny_model):
    """`small(**fields)`: a model of one layer in each stack."""
    return lambda **fields: tiny_model(**{"encoder_layers": 1, "decoder_layers": 1, **fields})


@pytest.fixture
def source(batch):
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@every_variant
def test_the_loss_its_gradients_and_a_search(fields, small, source):
    model = small(**fields)
    if model.config.type_vocab_size:
        source["token_type_ids"] = (torch.arange(7) > 2).long().expand(2, -1)
    check_searches(copy.deepcopy(model), source, [{"max_new_tokens": 2, "num_beams": 2}])
    check_training(model, {**source, "labels": torch.tensor([[5, 6, 1], [7, 1, -100]])})


@pytest.mark.parametrize("front_end", FILES)
def test_a_model_of_files(front_end):
    kind, fields, shape = FILES[front_end]
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 20, "dropout": 0}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    torch.manual_seed(0)
    model = kind(VanillaTransformerConfig(front_end=front_end, **fields, **sizes, **heads)).eval()
    source = {model.main_input_name: torch.randn(shape)}
    if shape == (2, 12, 8):
        source["attention_mask"] = (torch.arange(12) < torch.tensor([[12], [9]])).long()
    check_searches(copy.deepcopy(model), source, [{"max_new_tokens": 2, "num_beams": 2}])
    check_training(model, {**source, "labels": torch.tensor([[5, 6, 1], [7, 1, -100]])})


SEARCHES = {
    "greedy": {},
    "processors": {"num_beams": 2, "no_repeat_ngram_size": 1, "bad_words_ids": [[5, 6]], "repetition_penalty": 1.2},
    "penalties": {"num_beams": 3, "length_penalty_type": "gnmt", "coverage_penalty": 0.2, "num_return_sequences": 2},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "phrases": {"num_beams": 2, "required_phrases": [[[8, 9]], []]},
    "prefixes": {"prefixes": [[8, 9], [7]]},
    "extra_tokens": {"max_extra_tokens": 1, "max_new_tokens": None},
    "host": {"use_cache": False},
    "static": {"cache_implementation": "static", "disable_compile": True},
}


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_options_of_searches(options, small, source):
    check_searches(small(), source, [{"max_new_tokens": 4, **options}])


def test_an_ensemble_and_a_shortlist(small, source):
    models = small(), small()
    options = {"num_beams": 2, "max_new_tokens": 4, "shortlist": [*range(1, 40)]}
    expected = models[0].generate(**source, ensemble=models[1:], **options)
    with OtherDevice():
        one, other = map(moved, models)
        found = one.generate(**on_device(source), ensemble=[other], **options)
    check_same(found, expected)


def test_sentences_that_join_a_search(decided_model, source):
    """And leave it, when others are done."""
    model = decided_model(encoder_layers=1, decoder_layers=1)
    batches = [{name: tensor[:, : 7 - cut] for name, tensor in source.items()} for cut in range(3)]
    for options in ({"max_new_tokens": 8}, {"max_new_tokens": 8, "num_beams": 2}):
        expected, other = [*model.generate_stream(batches, **options)], copy.deepcopy(model)
        with OtherDevice():
            found = [*moved(other).generate_stream(map(on_device, batches), **options)]
        for ids, wanted in zip(found, expected, strict=True):
            check_same(ids, wanted)


def test_sampling(small, source):
    model = small()
    with OtherDevice():
        found = moved(model).generate(**on_device(source), max_new_tokens=4, do_sample=True, top_k=5)
    assert found.device == DEVICE


STACKS = {
    VanillaTransformerForMaskedLM: (2, 7),
    VanillaTransformerForSequenceClassification: (2,),
    VanillaTransformerForTokenClassification: (2, 7),
    VanillaTransformerForCausalLM: (2, 7),
}


@pytest.mark.parametrize(("kind", "shape"), STACKS.items(), ids=[kind.__name__ for kind in STACKS])
def test_models_of_one_stack(kind, shape, tiny_config, source):
    decoder = {"decoder_attention_type": "recurrent", "decoder_position_encoding": "none", "memory_length": 3}
    for fields in ({}, decoder) if kind is VanillaTransformerForCausalLM else ({},):
        model = kind(tiny_config(encoder_layers=1, decoder_layers=1, num_labels=3, **fields)).eval()
        if kind is VanillaTransformerForCausalLM:
            prompts = {name: tensor[:, :4] for name, tensor in source.items()}
            check_searches(copy.deepcopy(model), prompts, [{"max_new_tokens": 3, "num_beams": n} for n in (1, 2)])
        check_training(model, {**source, "labels": torch.randint(0, 3, shape)})


RECURRENT = {
    "sutskever": {"cell_type": "lstm"},
    "bahdanau": {"cell_type": "gru", "bidirectional": True, "attention": "bahdanau", "encoder_layers": 1},
    "luong": {"attention": "luong", "input_feeding": True, "decoder_layers": 1, "embedding_sharing": "decoder"},
}


@pytest.mark.parametrize("fields", RECURRENT.values(), ids=RECURRENT)
def test_recurrent_predecessors(fields, source):
    model = RecurrentSeq2SeqForConditionalGeneration(
        RecurrentSeq2SeqConfig(vocab_size=99, d_model=16, dropout=0.0, **fields)
    )
    check_searches(copy.deepcopy(model.eval()), source, [{"max_new_tokens": 3, "num_beams": n} for n in (1, 2)])
    # cuDNN computes no gradients of recurrent layers in evaluation mode; there is no dropout to differ by.
    check_training(model.train(), {**source, "labels": torch.tensor([[5, 6, 1], [7, 1, -100]])})


def test_steps_of_a_run_and_an_evaluation(prepare, monkeypatch):
    """Plain ones, of R-Drop and of distillation, with the Trainer's own batches, losses and Adam."""
    trainer = prepare(label_smoothing=0.1, adam_first_moment="bfloat16", optim="adamw_torch").trainer
    teacher = copy.deepcopy(trainer.model).eval().requires_grad_(False)
    batch = next(iter(trainer.get_train_dataloader()))
    monkeypatch.setattr(type(trainer.args), "device", DEVICE)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # torch has none for this device
    with OtherDevice():
        model, teacher = moved(trainer.model), moved(teacher)
        optimizer = trainer.create_optimizer()
        for r_drop, trainer.teacher in ((0.0, None), (1.0, None), (0.0, teacher)):
            trainer.args.r_drop = r_drop
            loss = trainer.training_step(model, dict(batch), torch.tensor(20).to(DEVICE))
            assert loss.device == DEVICE and loss.isfinite()
        before = model.lm_head.weight.clone()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert not torch.equal(model.lm_head.weight, before)
        loss, found, labels = trainer.prediction_step(model.eval(), dict(batch), False, max_new_tokens=3)
    assert {loss.device, found.device, labels.device} == {DEVICE}
    state = optimizer.state[model.lm_head.weight]
    assert {state[name].device for name in ("exp_avg", "exp_avg_sq")} == {DEVICE}


def test_gates_of_heads(small, source):
    model = small()
    add_head_gates(model.train())
    with OtherDevice():
        loss = moved(model)(**on_device({**source, "labels": source["input_ids"]})).loss + expected_open_heads(model)
        loss.backward()
    assert {model.get_decoder().layers[0].encoder_attn.out_proj.gates.log_alpha.grad.device} == {DEVICE}


def test_texts(counting_folder):
    """Translations, their scores and alignments, pictures of attention: what a user reads."""
    here = Translator.from_pretrained(counting_folder, device="cpu")

    def results(translator):
        best = translator.translate(SOURCES[40:43], num_beams=2, return_scores=True, return_alignments=True)
        phrase = translator.translate(ConstrainedText(SOURCES[40], prefix="drei"), num_beams=2)
        scores, links = translator.score(SOURCES[40:43], TARGETS[40:43]), translator.align(SOURCES[40], TARGETS[40])
        maps = attention_maps(translator.model, translator.tokenizer, SOURCES[40])
        numbers = [each.score for each in best] + [each.log_probability for each in scores]
        words = [(str(each), str(each.alignment)) for each in best], phrase, str(links)
        return words, numbers, maps.cross.tolist()

    expected = results(here)
    with OtherDevice():
        found = results(Translator(moved(here.model), here.tokenizer))
    assert found[0] == expected[0] and found[1] == pytest.approx(expected[1], abs=1e-4)
    torch.testing.assert_close(torch.tensor(found[2]), torch.tensor(expected[2]))


# ----------------------------------------------------------------------------------------------------- the test itself


def begins_on_the_cpu(search, padding, common_fields=Search.common_fields):
    return common_fields(search, padding) | {"begins": torch.zeros(len(search.plan.prompt), dtype=torch.long)}


def count_on_the_cpu(labels, num_items_in_batch):
    return torch.ones(1)


@of_the_fake_device
@pytest.mark.parametrize(
    ("target", "planted"),
    [("search.search.Search.common_fields", begins_on_the_cpu), ("layers.base_model.count_of", count_on_the_cpu)],
)
def test_a_tensor_on_the_wrong_device_is_found(target, planted, small, source, monkeypatch):
    monkeypatch.setattr(f"vanilla_transformer_hf.model.{target}", planted)
    model = small()
    with OtherDevice():
        model, batch = moved(model), on_device(source)
        with pytest.raises(MixedDevicesError, match="lazy:0 and cpu"):
            model(**batch, labels=batch["input_ids"])
            model.generate(**batch, max_new_tokens=3)


@of_the_fake_device
def test_values_are_those_of_the_cpu():
    """Also behind operations whose results have a shape that depends on values, or change a tensor in place."""
    numbers = torch.tensor([[3.0, -1.0], [-2.0, 5.0]])
    with OtherDevice():
        there = numbers.to(DEVICE)
        there[:, 0].mul_(2)
        assert there[there > 0].tolist() == [6.0, 5.0] and there.nonzero().device == DEVICE
        assert there.sum().item() == 6.0 and int(there.argmax()) == 0 and bool((there == 5).any())
        assert torch.equal(there.cpu(), torch.tensor([[6.0, -1.0], [-4.0, 5.0]]))
        assert there.new_zeros(2).device == torch.ones(1, device=DEVICE).device == DEVICE
        here = torch.ones(2, 2)
        here.copy_(there)
        assert torch.equal(here, there.cpu()) and there[torch.tensor([1, 0])].device == DEVICE
        for mix in (lambda: there + here, lambda: here[there.long().clamp(0, 1)], lambda: there.index_put_((), here)):
            with pytest.raises(MixedDevicesError):
                mix()
    assert numbers[0, 0] == 3.0
