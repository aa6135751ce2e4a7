"""
Kinds of attention in whole models: blind to the future and to padding, equal in steps, saved, and what is refused.
The equations of each are tested in its own file.
"""

import pytest
import torch
import torch.nn.functional as F
from host_search import same

from vanilla_transformer_hf import VanillaTransformerForCausalLM, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.export import ctranslate2, onnx, torch_export
from vanilla_transformer_hf.model.attention import performer
from vanilla_transformer_hf.model.attention.lsh import LshAttention


def both(kind, **fields):
    """Of both stacks."""
    return {"encoder_attention_type": kind, "decoder_attention_type": kind, **fields}


LINFORMER = {"encoder_attention_type": "linformer", "linformer_k": 5, "max_position_embeddings": 64}
RECURRENT = {"decoder_attention_type": "recurrent", "memory_length": 4, "decoder_position_encoding": "none"}
KINDS = {
    "window": both("window", attention_window=3, position_encoding="rotary"),
    "window_global": both("window_global", attention_window=3, global_tokens=2, position_encoding="rotary"),
    "blocks": both("blocks", attention_block=4, position_encoding="rotary"),
    "chunk": both("chunk", attention_block=5, position_encoding="rotary"),
    "summaries": both("chunk", attention_block=5, chunk_summary="mean"),
    "lsh": both("lsh", lsh_buckets=4, lsh_rounds=2, lsh_chunk=3),
    "performer": both("performer", performer_features=12, position_encoding="rotary"),
    "synthesizer_dense": both("synthesizer_dense", max_position_embeddings=64),
    "synthesizer_random": both("synthesizer_random", max_position_embeddings=64),
    "linformer": LINFORMER,
    "linformer_cross": {**LINFORMER, "cross_attention_type": "linformer"},
    "pooling": {"encoder_layers": 4, "encoder_pooling": [1, 2]},
    "recurrent": RECURRENT,
    "two_kinds": {"encoder_attention_type": "blocks", "attention_block": 4, "decoder_attention_type": "window"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def in_parts(monkeypatch, small_blocks):
    """Blocks and chunks also for short sequences."""
    monkeypatch.setattr(performer, "POSITIONS_AT_ONCE", 4)
    monkeypatch.setattr(LshAttention, "_is_short", lambda self, length: False)


def padded(ids, lengths):
    """Arguments of a model for ids (B, S): the last `lengths` of each row are tokens, what is before them padding."""
    mask = (torch.arange(ids.shape[1]) >= ids.shape[1] - torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


@every_kind
@torch.no_grad()
def test_the_future_padding_and_the_kernel_change_nothing(kind, tiny_model, tmp_path):
    model = tiny_model(**KINDS[kind])
    source, target = torch.randint(4, 99, (1, 19)), torch.randint(4, 99, (1, 17))
    model.save_pretrained(tmp_path)
    again = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(*(each(source, decoder_input_ids=target).logits for each in (model, again)))
    expected = model.double()(source, decoder_input_ids=target).logits
    for changed in (1, 6, 8, 12, 16):
        other = torch.cat((target[:, :changed], torch.randint(4, 99, (1, 20 - changed))), dim=1)
        found = model(source, decoder_input_ids=other).logits[:, :changed]
        torch.testing.assert_close(found, expected[:, :changed], atol=1e-9, rtol=0)
    for left, right in ((1, 0), (4, 0), (0, 5), (3, 2)):
        real, own = (F.pad(torch.ones_like(ids), (left, right)) for ids in (source, target))
        targets = {"decoder_input_ids": F.pad(target, (left, right)), "decoder_attention_mask": own}
        found = model(F.pad(source, (left, right)), real, **targets).logits[:, left : left + 17]
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    model.set_attn_implementation("eager")
    eager = model(source, decoder_input_ids=target, output_attentions=True)
    torch.testing.assert_close(eager.logits, expected, atol=1e-9, rtol=0)
    keys = {"linformer": 5, "linformer_cross": 5, "summaries": 19 + 4}.get(kind, 19)
    assert eager.encoder_attentions[0].shape[2:] == (19, keys)
    if kind not in ("summaries", "recurrent"):  # whose keys are not those of the tokens alone
        own = eager.decoder_attentions[0]
        assert own.shape == (1, 4, 17, 17) and torch.equal(own, own.tril())


@every_kind
@torch.no_grad()
def test_search_in_steps(kind, tiny_model):
    """Searches find what transformers' loops and whole passes find; sentences that join it, what they find alone."""
    model, ids = tiny_model(**KINDS[kind]), torch.randint(4, 99, (3, 19))
    source = padded(ids, [19, 12, 15])
    found = same(model, source, num_beams=1, max_new_tokens=40, min_new_tokens=40)
    whole = model(**source, decoder_input_ids=found[:, :-1]).logits
    whole[..., model.config.eos_token_id] = -torch.inf
    assert torch.equal(found[:, 1:], whole.argmax(dim=-1))
    options = {"num_beams": 3, "max_new_tokens": 16, "min_new_tokens": 14}
    beams = same(model, source, **options)
    assert torch.equal(beams, model.generate(**source, **options, use_cache=False))
    batches = [{name: each[rows] for name, each in source.items()} for rows in (slice(0, 1), slice(1, 3))]
    streamed = torch.cat(list(model.generate_stream(batches, **options)))
    assert torch.equal(streamed, beams)


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("kind", [kind for kind, fields in KINDS.items() if "decoder_attention_type" in fields])
@torch.no_grad()
def test_a_decoder_alone(kind, beams, tiny_config):
    config = tiny_config(**KINDS[kind], is_encoder_decoder=False, is_decoder=True)
    model = VanillaTransformerForCausalLM(config).eval()
    prompts = padded(torch.randint(4, 99, (2, 14)), [14, 9])
    options = {**prompts, "num_beams": beams, "max_new_tokens": 12, "min_new_tokens": 12}
    found = model.generate(**options)
    assert torch.equal(found, model.generate(**options, return_dict_in_generate=True).sequences)  # transformers' loop
    assert torch.equal(found, model.generate(**options, use_cache=False))


def test_masks_caches_and_kernels_that_cannot_be_are_refused(tiny_model):
    ids = torch.ones(1, 3, dtype=torch.long)
    for kind in ("window_global", "performer", "synthesizer_dense", "linformer", "pooling", "recurrent"):
        model = tiny_model(**KINDS[kind])
        masks = {"attention_mask": torch.ones(1, 1, 3, 3)}
        if kind == "recurrent":
            masks = {"decoder_attention_mask": torch.ones(1, 1, 3, 3)}
        with pytest.raises(ValueError, match=r"takes one of shape \(B, S\)"):
            model(ids, decoder_input_ids=ids, **masks)
    for kind, message in (
        ("performer", "leave cache_implementation out"),
        ("synthesizer_dense", "leave cache_implementation out"),
        ("lsh", "static caches"),
        ("summaries", "summaries cannot hide single keys, nor use a static cache"),
    ):
        with pytest.raises(ValueError, match=message):
            tiny_model(**KINDS[kind]).generate(
                ids, num_beams=1, max_new_tokens=9, cache_implementation="static", disable_compile=True
            )
    for kind, kernel, message in (
        (
            "performer",
            "flex_attention",
            "attn_implementation='flex_attention' with PerformerAttention: must be 'sdpa'",
        ),
        ("window", "a_kernel", "attn_implementation='a_kernel' with WindowAttention: must be 'sdpa', 'flex_"),
    ):
        model = tiny_model(**KINDS[kind])
        model.config._attn_implementation = kernel
        with pytest.raises(ValueError, match=message):
            model(torch.ones(1, 19, dtype=torch.long), decoder_input_ids=ids)


@every_kind
def test_exports_refuse_it_by_name(kind, tiny_config):
    name, value = next((name, each) for name, each in KINDS[kind].items() if name.endswith(("_type", "_pooling")))
    for target in (ctranslate2, onnx, torch_export) if kind in ("pooling", "recurrent") else (ctranslate2,):
        assert f"{name}={value!r}: must be " in "\n".join(target.problems(tiny_config(**KINDS[kind])))


REFUSALS = [
    ({"attention_window": 4}, "attention_window=4: only attention of the type 'window'"),
    ({"encoder_attention_type": "window", "attention_window": 0}, "attention_window=0: must be greater than 0"),
    (
        {"encoder_attention_type": "blocks", "chunk_summary": "mean"},
        "chunk_summary='mean': only attention of the type",
    ),
    (
        {"encoder_attention_type": "chunk", "chunk_summary": "mean", "position_encoding": "shaw"},
        "chunk_summary='mean' with position encoding 'shaw': a summary has no distance",
    ),
    (
        {"decoder_attention_type": "performer", "position_encoding": "alibi"},
        "decoder_attention_type='performer' with position encoding 'alibi': only full, window, blocks, chunk",
    ),
    ({"global_tokens": 4}, "global_tokens=4: only attention of the type 'window_global'"),
    ({**KINDS["window_global"], "global_tokens": 0}, "global_tokens=0: must be greater than 0"),
    (
        {**KINDS["window_global"], "encoder_heads_by_layer": [2] * 2},
        "with encoder_heads_by_layer: its parameters belong to heads",
    ),
    ({"encoder_attention_type": "window_global", "position_encoding": "shaw"}, "with position encoding 'shaw'"),
    ({"decoder_attention_type": "linformer"}, "decoder_attention_type='linformer': its sums cover all positions"),
    ({"linformer_k": 8}, "linformer_k=8: only attention of the type 'linformer'"),
    (
        {**KINDS["linformer_cross"], "position_encoding": "rotary"},
        "with position_encoding='rotary': there are no products",
    ),
    ({**LINFORMER, "position_encoding": "alibi"}, "encoder_attention_type='linformer' with position encoding 'alibi'"),
    (
        {**KINDS["performer"], "attention_dropout": 0.1},
        r"encoder_attention_type='performer' with attention_dropout=0\.1",
    ),
    ({**KINDS["lsh"], "lsh_buckets": 3}, "must be even, or 1"),
    ({**KINDS["lsh"], "lsh_chunk": 0}, "must be greater than 0"),
    ({**KINDS["lsh"], "projection_sharing": "key_value"}, "it has no projection of keys to share"),
    ({**KINDS["lsh"], "decoder_attention_sharing": True}, "it has no projection of keys to share"),
    ({**KINDS["lsh"], "position_encoding": "alibi"}, "adds scores of distances"),
    ({"lsh_buckets": 4}, "only attention of the type 'lsh'"),
    ({"encoder_pooling": []}, "must be numbers of layers before each pooling"),
    ({**KINDS["pooling"], "encoder_pooling": [2, 2]}, "together fewer than encoder_layers=4"),
    ({**KINDS["pooling"], "encoder_pooling": [0, 2]}, "at least 1 each"),
    ({**KINDS["pooling"], "encoder_attention_type": "window"}, "only full attention pools"),
    ({**KINDS["pooling"], "position_encoding": "rotary"}, "a mean of two tokens has no position"),
    ({**KINDS["pooling"], "encoder_layer_sets": 2}, "have weights of their own"),
    ({**RECURRENT, "encoder_attention_type": "recurrent"}, "is the decoder's"),
    ({**RECURRENT, "decoder_position_encoding": "sinusoidal"}, "decoder_position_encoding='none'"),
    ({**RECURRENT, "memory_length": 0}, "must be greater than 0"),
    ({"memory_length": 4}, "only attention of the type 'recurrent' has it"),
    ({**RECURRENT, "decoder_heads_by_layer": [2, 4]}, "cannot be pruned"),
    *(
        ({**KINDS[kind], **fields}, message)
        for kind in ("synthesizer_dense", "synthesizer_random")
        for fields, message in (
            ({"projection_sharing": "key_value"}, "projection_sharing='key_value': it has no projection of keys"),
            ({"decoder_attention_sharing": True}, "with decoder_attention_sharing=True: it has no projection"),
            ({"decoder_heads_by_layer": [2, 2]}, "with decoder_heads_by_layer: its parameters belong to heads"),
        )
    ),
    *(
        ({"attention_score": "additive", **fields}, message)
        for fields, message in (
            ({"encoder_attention_type": "window"}, "encoder_attention_type='window': only full attention has it"),
            ({"cross_attention_type": "linformer"}, "cross_attention_type='linformer': only full attention has it"),
            ({"position_encoding": "rotary"}, "with position_encoding='rotary': there are no products of queries and"),
            ({"decoder_position_encoding": "alibi"}, "with decoder_position_encoding='alibi': there are no products"),
            ({"cross_heads_by_layer": [4, 3]}, "with cross_heads_by_layer: each head has a vector of its own"),
            ({"encoder_pooling": [1]}, "with encoder_pooling: only encoders"),
        )
    ),
    ({"attention_score": "dot", "decoder_attention_type": "lsh"}, "attention_score='dot' with decoder_attention"),
    ({"attention_score": "product"}, "attention_score"),
]


@pytest.mark.parametrize("fields, message", REFUSALS, ids=str)
def test_configs_that_cannot_be_are_refused(fields, message, tiny_config):
    with pytest.raises(ValueError, match=message):
        tiny_config(**fields)
