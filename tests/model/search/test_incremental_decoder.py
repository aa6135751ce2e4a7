"""The decoder of the search, one token at a time, against whole forward passes."""

from types import SimpleNamespace

import pytest
import torch

from vanilla_transformer_hf.model.packing.packed import StepWeights
from vanilla_transformer_hf.model.search import incremental_decoder
from vanilla_transformer_hf.model.search.incremental_decoder import ROOM, FoldedSource, IncrementalDecoder
from vanilla_transformer_hf.model.search.together import absorb_sources


STEPS = 3 * ROOM + 2


@pytest.mark.parametrize("kernel", [incremental_decoder.attend_fused, None], ids=["fused", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "parents_of",
    [
        lambda step, places: places,
        lambda step, places: torch.zeros_like(places),
        lambda step, places: torch.randint(places.shape[1], places.shape),
        lambda step, places: places if step % 5 else places.flip(1),
    ],
    ids=["each goes on", "all continue the first", "at random", "places change"],
)
@torch.no_grad()
def test_hypotheses_are_what_their_own_tokens_make_them(tiny_model, source, dtype, parents_of, kernel, monkeypatch):
    """Whoever continues whom, and however often room was made; keys as columns in float32, as rows in float64."""
    if kernel is not None:
        monkeypatch.setattr(incremental_decoder, "kernel_for", lambda states, beams: kernel)
    model, beams = tiny_model().to(dtype), 4
    memory = model.get_encoder()(**source)[0]
    decoder = IncrementalDecoder(model, StepWeights.of(model), memory, source["attention_mask"], beams)
    places = torch.arange(beams).expand(len(memory), -1)
    hypotheses = torch.zeros(len(memory), beams, 1, dtype=torch.long)
    for step in range(STEPS):
        found = decoder.step(hypotheses[:, :, -1])
        if step in (0, ROOM, 2 * ROOM, STEPS - 1):
            for place in range(beams):
                expected = model.get_decoder()(
                    input_ids=hypotheses[:, place],
                    encoder_hidden_states=memory,
                    encoder_attention_mask=source["attention_mask"],
                )[0][:, -1]
                torch.testing.assert_close(found[:, place], expected, rtol=0, atol=1e-5)
        parents = parents_of(step, places)
        decoder.follow(parents)
        hypotheses = hypotheses.gather(1, parents[..., None].expand_as(hypotheses))
        hypotheses = torch.cat((hypotheses, torch.randint(3, 90, (len(memory), beams, 1))), dim=2)


@pytest.mark.parametrize("beams", [2, 4])
@torch.no_grad()
def test_what_no_hypothesis_looks_back_at_is_left_out(tiny_model, source, beams):
    """The past that all have in common is there once: some steps, not as many times n."""
    model = tiny_model()
    memory = model.get_encoder()(**source)[0]
    decoder = IncrementalDecoder(model, StepWeights.of(model), memory, source["attention_mask"], beams)
    for _ in range(STEPS):
        decoder.step(torch.randint(3, 90, (len(memory), beams)))
        decoder.follow(torch.zeros(len(memory), beams, dtype=torch.long))
    assert decoder.mask.shape[-1] == decoder.keys[0].shape[-1] == decoder.values[0].shape[-2] <= STEPS + ROOM * beams


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("hidden", [0, 2], ids=["whole", "padded"])
@torch.no_grad()
def test_a_source_with_the_projections_in_it_is_read_as_by_torch(bias, hidden):
    theirs = torch.nn.MultiheadAttention(12, 3, bias=bias, batch_first=True, dtype=torch.float64)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    states, memory = torch.randn(1, 5, 12, dtype=torch.float64), torch.randn(1, 4, 12, dtype=torch.float64)
    is_padding = torch.arange(4)[None] >= 4 - hidden
    expected, _ = theirs(states, memory, memory, key_padding_mask=is_padding)
    query, key, value = (torch.nn.Linear(12, 12, bias=bias, dtype=torch.float64) for _ in range(3))
    for name, whole in theirs.named_parameters():
        if name.startswith("in_proj"):
            for ours, part in zip((query, key, value), whole.chunk(3)):
                getattr(ours, name.removeprefix("in_proj_")).copy_(part)
    keys, values = (map(memory).view(4, 3, 4).transpose(0, 1) for map in (key, value))  # (H, S, d)
    cross = SimpleNamespace(owner=SimpleNamespace(q_proj=query, out_proj=theirs.out_proj), scaling=4**-0.5)
    mask = torch.zeros(1, 1, 1, 4, dtype=torch.float64).masked_fill(is_padding, -torch.inf) if hidden else None
    found = FoldedSource(cross, keys.transpose(1, 2), values, mask)(states)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [5, 9], ids=["short", "long"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cross_heads_by_layer": [1, 2]},
        {"d_k": 4, "d_v": 10},
        {"attention_bias": False, "attention_score": "dot", "projection_sharing": "query_key"},
        {"decoder_attention_sharing": True, "projection_sharing": "key_value"},
    ],
    ids=str,
)
@torch.no_grad()
def test_one_sentence_is_read_as_a_whole_and_may_make_room_for_another(tiny_model, length, fields):
    """A short source has the projections in it as long as its sentence is alone."""
    model, tokens = tiny_model(**fields), torch.randint(3, 90, (1, 12))
    sources = torch.randint(3, 90, (2, length))
    memory, mask = model.get_encoder()(sources)[0], torch.ones(2, length)

    def reading(row):
        return IncrementalDecoder(model, StepWeights.of(model), memory[row : row + 1], mask[row : row + 1], 1)

    decoder = reading(0)
    assert (decoder.folded is not None) == (length == 5), "heads have 7 or 8 features on average"
    whole = model.get_decoder()(input_ids=tokens, encoder_hidden_states=memory[:1])[0]
    for step in range(6):
        torch.testing.assert_close(decoder.step(tokens[:, step, None])[0], whole[:, step], rtol=0, atol=1e-5)
    absorb_sources(decoder, reading(1), slice(0, 1), torch.tensor([0]))
    whole = model.get_decoder()(input_ids=tokens, encoder_hidden_states=memory[1:])[0]
    for step in range(6):
        torch.testing.assert_close(decoder.step(tokens[:, step, None])[0], whole[:, step], rtol=0, atol=1e-5)


@torch.no_grad()
def test_sentences_that_join_later_count_from_their_own_begin(tiny_model, source):
    model, tokens = tiny_model(decoder_heads_by_layer=[1, 3]), torch.randint(3, 90, (9, STEPS))
    memory, mask = model.get_encoder()(**source)[0], source["attention_mask"]

    def reading(rows):
        return IncrementalDecoder(model, StepWeights.of(model), memory[rows], mask[rows], 1)

    decoder, late = reading(slice(0, 5)), reading(slice(5, 9))
    for step in range(ROOM + 3):
        decoder.step(tokens[:5, step, None])
    absorb_sources(decoder, late, slice(0, 2), torch.tensor([3, 1]))
    alone = reading(slice(5, 7))
    for step in range(2 * ROOM):
        found = decoder.step(tokens[[0, 6, 2, 5, 4], step, None])
        torch.testing.assert_close(found[[3, 1]], alone.step(tokens[5:7, step, None]), rtol=0, atol=1e-5)
    assert decoder.mask.shape[-1] <= 4 * ROOM + 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_the_best_continuations_are_those_of_all_logits_with_few_in_memory(tiny_model, source, dtype, monkeypatch):
    model, beams = tiny_model().to(dtype), 3
    memory = model.get_encoder()(**source)[0]

    def reading():
        return IncrementalDecoder(model, StepWeights.of(model), memory, source["attention_mask"], beams)

    whole, parts, sizes = reading(), reading(), []
    head = parts.head
    parts.head = lambda states: sizes.append(states.shape[:2].numel()) or head(states)
    monkeypatch.setattr(incremental_decoder, "ROWS_OF_LOGITS", 2 * beams)
    tokens = torch.randint(3, 90, (len(memory), beams))
    for share_alone in (0, 0.4, 1):
        log_probs, scores = whole.log_probs(tokens), torch.randn(tokens.shape)
        alone = torch.arange(len(memory)) < share_alone * len(memory)
        alone = alone[torch.randperm(len(memory))]
        scores[:, 1:].masked_fill_(alone[:, None], -1e9)
        sums = (log_probs + scores[..., None]).flatten(1)
        values, parents, found = parts.best_continuations(tokens, scores, 4, alone)
        places = parents * log_probs.shape[-1] + found
        # Products of few rows may add up in another order; logits in bfloat16 may be equal.
        torch.testing.assert_close(values, sums.topk(4).values, rtol=0, atol=1e-5)
        torch.testing.assert_close(sums.gather(1, places), values, rtol=0, atol=1e-5)
        assert (places.sort().values.diff() > 0).all()
        assert not parents[alone].any() and max(sizes) == 2 * beams < len(memory) * beams
        tokens = found[:, :beams]


@torch.no_grad()
def test_a_hook_on_the_output_may_keep_the_logits(tiny_model, source):
    model, kept = tiny_model(), []
    model.lm_head.register_forward_hook(lambda module, args, output: kept.append(output))
    model.generate(**source, num_beams=2, do_sample=False, max_new_tokens=3)
    logits = kept[0].clone()
    start = torch.full((len(logits), 1), model.config.decoder_start_token_id)
    expected = model(**source, decoder_input_ids=start).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_who_joins_others_has_no_room_of_its_own(tiny_model, source):
    model = tiny_model()
    memory, mask = model.get_encoder()(**source)[0], source["attention_mask"]
    decoder = IncrementalDecoder(model, StepWeights.of(model), memory, mask, 4)
    assert not any(layer.numel() for tensors in (decoder.keys, decoder.values) for layer in tensors.layers)


@pytest.mark.parametrize("dim, size", [(-1, 7), (-1, 2), (-2, 5), (-2, 3), (-2, 1)])
def test_room_is_cut_or_filled(dim, size):
    tensor = torch.randn(2, 3, 4)
    found = incremental_decoder.resized(tensor, dim, size, 1.5)
    missing = size - tensor.shape[dim]
    assert found.is_contiguous()
    assert torch.equal(found, torch.nn.functional.pad(tensor, [0, 0] * (-dim - 1) + [0, missing], value=1.5))


IN_BFLOAT16 = {
    "plain": {},
    "rotary": {"position_encoding": "rotary"},
    "t5_bias": {"position_encoding": "t5_bias", "relative_buckets": 8, "max_relative_distance": 6},
    "shaw": {"position_encoding": "shaw", "max_relative_distance": 3},
    "gated_alibi": {"position_encoding": "gated_alibi"},
    "sums": {"decoder_attention_type": "performer"},
}


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("fields", IN_BFLOAT16.values(), ids=IN_BFLOAT16)
@torch.no_grad()
def test_attention_of_bfloat16_is_in_float32_where_that_is_faster(tiny_model, source, fields, beams, monkeypatch):
    model = tiny_model(**fields).bfloat16()
    memory, tokens = model.get_encoder()(**source)[0], torch.randint(3, 90, (STEPS, 9, beams))
    types, found = [], []
    for lacks in (False, True):
        monkeypatch.setattr(incremental_decoder, "lacks_bfloat16", lambda lacks=lacks: lacks)
        decoder = IncrementalDecoder(model, StepWeights.of(model), memory, source["attention_mask"], beams)
        found.append(torch.stack([decoder.step(each) for each in tokens]))
        types.append((decoder.keys[0].dtype, decoder.source_values[0].dtype))
    assert types == [(torch.bfloat16,) * 2, (torch.float32,) * 2]
    assert found[1].dtype == torch.bfloat16
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0.05)
