"""The search loops of ours against transformers' own, on the same model: same sequences, same scores."""

import math
from contextlib import nullcontext

import pytest
import torch
from host_search import forbid_host_loops, host, same
from test_modeling_vanilla_transformer import SWITCHES
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model.config.search_settings import LENGTH_PENALTIES
from vanilla_transformer_hf.model.packing import packed as packed_weights
from vanilla_transformer_hf.model.releases.models import CACHE
from vanilla_transformer_hf.model.search import generate as generation
from vanilla_transformer_hf.model.search import incremental_decoder, search, together
from vanilla_transformer_hf.model.search.incremental_decoder import (
    ROOM,
    IncrementalDecoder,
    attend,
    attend_fused,
    kernel_for,
)
from vanilla_transformer_hf.model.search.plan import why_not
from vanilla_transformer_hf.model.search.search import Search


EOS = 1


SEARCHES = [
    {"max_new_tokens": 30},
    {"max_new_tokens": 45, "min_new_tokens": 40},  # beyond the first room of the caches
    {"num_beams": 4, "max_new_tokens": 45, "min_new_tokens": 40},
    *({"num_beams": beams, "max_new_tokens": 30} for beams in (2, 4, 5, 8)),
    {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 20},
    {"num_beams": 4, "max_new_tokens": 40, "min_length": 35, "early_stopping": True},
    *({"num_beams": 4, "early_stopping": kind, "max_new_tokens": 20} for kind in (True, False, "never")),
    *({"num_beams": 4, "length_penalty": alpha, "max_new_tokens": 20} for alpha in (0.0, 0.6, 2.0, -1.0)),
    {"num_beams": 4, "length_penalty": 0.6, "early_stopping": "never", "max_new_tokens": 20},
    {"num_beams": 4, "max_length": 4},
    {"num_beams": 4, "max_new_tokens": 1},
    {"max_new_tokens": 1},
    {"num_beams": 3, "min_length": 9, "max_new_tokens": 20},
    {"num_beams": 3, "min_new_tokens": 7, "max_new_tokens": 20},
    *({"num_beams": 3, "bad_words_ids": words, "max_new_tokens": 20} for words in ([[EOS + 6], [5, 7]], [[]])),
    {"num_beams": 3, "no_repeat_ngram_size": 2, "max_new_tokens": 20},
    {"no_repeat_ngram_size": 1, "max_new_tokens": 20},
    {"num_beams": 3, "forced_bos_token_id": 17, "max_new_tokens": 20},
    {"num_beams": 3, "forced_eos_token_id": EOS, "max_new_tokens": 6},
    {"num_beams": 3, "suppress_tokens": [4, 5, 6], "begin_suppress_tokens": [EOS], "max_new_tokens": 20},
    {"num_beams": 3, "sequence_bias": [[[8], 3.0]], "renormalize_logits": True, "max_new_tokens": 20},
    {"num_beams": 3, "eos_token_id": [EOS, 20, 21], "max_new_tokens": 20},
    {"num_beams": 3, "pad_token_id": 2, "max_new_tokens": 20},
    {"pad_token_id": 2, "max_new_tokens": 20},
]


@pytest.mark.parametrize("options", SEARCHES, ids=str)
@pytest.mark.parametrize("small", [0, packed_weights.SMALL], ids=["packed", "as they are"])
def test_same_sequences_as_the_hosts_loops(decided_model, source, options, small, monkeypatch):
    monkeypatch.setattr(packed_weights, "SMALL", small)
    found = same(decided_model(), source, **options)
    assert found.shape[1] < 5 or len({tuple(row) for row in found.tolist()}) > 1


RELATIVE = {
    **{name: SWITCHES[name] for name in ("rotary", "rotary_halves", "t5_bias", "alibi", "shaw", "gated_alibi")},
    **{name: SWITCHES[name] for name in ("distance_mlp", "swiglu", "reglu_and_geglu", "segments", "rms_norm")},
    **{name: SWITCHES[name] for name in ("rms_norm_author", "dot_with_a_bias", "universal", "shaw_pre")},
    # Gates are read from the states that queries and keys are read from, normalized ones here.
    **{
        f"{name}_pre": {**SWITCHES[name], "decoder_norm_position": "pre"}
        for name in ("rotary_halves", "distance_mlp", "gated_alibi")
    },
    "hierarchical": {"position_encoding": "hierarchical", "max_position_embeddings": 8},
    "pruned": {
        **{"decoder_layers": 3, "position_encoding": "shaw", "max_relative_distance": 3, "attention_bias": True},
        **{"encoder_heads_by_layer": [2, 4], "decoder_heads_by_layer": [1, 3, 1], "cross_heads_by_layer": [4, 2, 1]},
    },
    "one_layer_for_all": {
        **{"decoder_layers": 3, "decoder_layer_sets": 1, "encoder_layer_sets": 1, "decoder_norm_position": "pre"},
        **{"projection_sharing": "query_key_value", "feed_forward_sharing": "encoder_only"},
    },
    "layers_and_back": {
        **{"decoder_layers": 4, "decoder_layer_sets": 2, "layer_sharing": "cycle_reverse", "attention_bias": True},
        **{"projection_sharing": "key_value", "decoder_attention_sharing": True, "feed_forward_sharing": "all"},
        **{"position_encoding": "rotary"},
    },
}


@pytest.mark.parametrize("options", SEARCHES[:4], ids=str)
@pytest.mark.parametrize("fields", RELATIVE.values(), ids=RELATIVE)
def test_variants_are_searched_in_steps_as_by_the_hosts_loops(fields, options, decided_model, source):
    model = decided_model(**fields)
    assert why_not(model) is None
    with torch.no_grad():  # gates as they are after training, not nearly open
        for name, parameter in model.named_parameters():
            if name.endswith("gate_bias"):
                parameter.sub_(5)
    if model.config.type_vocab_size:
        source["token_type_ids"] = (torch.arange(11) > 3).long().expand(9, -1)
    same(model, source, **options)


@pytest.fixture
def fused(monkeypatch):
    """Attention of the search by torch's kernel, whatever the processor."""
    monkeypatch.setattr(incremental_decoder, "kernel_for", lambda states, beams: attend_fused)


@pytest.mark.parametrize("options", SEARCHES[:4], ids=str)
@pytest.mark.parametrize("overrides", [{}, {"d_k": 4, "d_v": 12}], ids=str)
def test_same_sequences_with_the_fused_kernel(decided_model, source, options, overrides, fused):
    same(decided_model(**overrides), source, **options)


@pytest.mark.parametrize("has_units, kernel", [(False, attend), (True, attend_fused)])
def test_the_kernel_is_the_processors(monkeypatch, has_units, kernel):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_units)
    states = torch.zeros(1, dtype=torch.bfloat16)
    assert kernel_for(states, beams=1) is kernel
    assert kernel_for(states, beams=4) is kernel_for(states.float(), beams=1) is attend


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize(
    "overrides",
    [
        {"encoder_norm_position": "pre", "decoder_norm_position": "pre"},
        {"position_encoding": "learned", "position_offset": 2},
        {"position_encoding": "sinusoidal_halves", "layernorm_embedding": True, "activation_function": "gelu"},
        {"d_k": 4, "d_v": 12, "attention_bias": False},
        {"feed_forward_type": "gated", "embedding_sharing": "all", "tie_word_embeddings": True},
        {"encoder_d_model": 48, "decoder_layers": 3, "decoder_attention_heads": 2, "source_vocab_size": 91},
        {"decoder_residual_alpha": 1.3, "feed_forward_bias": False, "vocab_size": 9001},
    ],
    ids=str,
)
def test_same_sequences_for_each_switch(decided_model, source, overrides, beams):
    same(decided_model(**overrides), source, num_beams=beams, max_new_tokens=12)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"output_attentions": True}, {"decoder_prompt_ids": [7]}])
def test_padding_without_a_mask_is_no_part_of_a_source(decided_model, source, options):
    model, ids = decided_model(attn_implementation="eager"), source["input_ids"]
    found = [model.generate(ids, **options), model.generate(input_ids=ids, **options)]
    expected = model.generate(**source, **options)
    assert all(torch.equal(each, expected) for each in found)
    (streamed,) = model.generate_stream([{"input_ids": ids}], **options)
    assert torch.equal(streamed, expected)


@pytest.mark.parametrize("beams", [1, 3])
def test_decoder_prompts_and_no_mask(decided_model, source, beams):
    prompts = torch.randint(3, 90, (9, 4))
    prompts[:, 0] = 0
    model = decided_model()
    found = same(model, source, decoder_input_ids=prompts, num_beams=beams, max_new_tokens=9)
    assert torch.equal(found[:, :4], prompts)
    assert torch.equal(
        model.generate(**source, decoder_input_ids=prompts.int(), num_beams=beams),
        same(model, source, decoder_input_ids=prompts, num_beams=beams),
    )
    same(model, {"input_ids": source["input_ids"]}, num_beams=beams, max_new_tokens=9)


@pytest.mark.parametrize("ends", [-1, 99, [-1, EOS]], ids=str)
@pytest.mark.parametrize("options", [{"min_length": 8}, {"min_new_tokens": 8, "num_beams": 3}], ids=str)
def test_ends_outside_the_vocabulary_hide_no_token(decided_model, source, ends, options):
    """Users give -1 so that no sentence ends; it is not the last token."""
    model = decided_model()
    with torch.no_grad():
        model.lm_head.bias[-1] += 20
    found = same(model, source, eos_token_id=ends, max_new_tokens=12, **options)
    assert (found[:, 1:9] == model.config.vocab_size - 1).any()


def test_scores_and_origins_of_beams(decided_model, source):
    model = decided_model()
    options = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 15, "return_dict_in_generate": True}
    ours = model.generate(**source, **options)
    theirs = host(model).generate(**source, **options, output_scores=True)
    assert torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, atol=1e-4, rtol=0)
    assert torch.equal(ours.beam_indices, theirs.beam_indices.long())


def test_half_precision_follows_the_model(decided_model, source):
    model = decided_model().bfloat16()
    found = model.generate(**source, num_beams=4, max_new_tokens=12)
    scored = host(model.float()).generate(**source, num_beams=4, max_new_tokens=12)
    assert (found[:, :2] == scored[:, :2]).float().mean() > 0.7


class AddTen(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores.index_fill(1, torch.tensor([10]), 3.0)


class AfterFive(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.shape[1] >= 5)


class LikeTheFirst(LogitsProcessor):
    """Moves all rows towards the first: no row may leave."""

    def __call__(self, input_ids, scores):
        return scores + 0.3 * scores[:1]


class EvenSums(StoppingCriteria):
    """Ends some sequences, by their tokens and the scores of the last step, if these are kept."""

    def __call__(self, input_ids, scores, **kwargs):
        return (input_ids.sum(dim=1) + (len(scores) if scores else 0)) % 4 == 0


SCORES = {"return_dict_in_generate": True, "output_scores": True}
SAMPLES = {"do_sample": True, "pad_token_id": 2}
WHOLE_ROWS = {
    "samples": SAMPLES,
    "samples of a few": {**SAMPLES, "top_k": 5, "temperature": 0.7},
    "samples by warpers": {
        **SAMPLES,
        "top_k": 0,
        "top_p": 0.9,
        "min_p": 0.01,
        "typical_p": 0.9,
        "epsilon_cutoff": 1e-4,
    },
    "a processor of samples": {**SAMPLES, "logits_processor": [LikeTheFirst()]},
    "scores of samples": {**SAMPLES, **SCORES, "output_logits": True},
    "limits of samples": {**SAMPLES, "max_extra_tokens": 2},
    "prompts of samples": {**SAMPLES, "decoder_input_ids": torch.arange(5, 23).view(9, 2)},
    "a processor": {"logits_processor": LogitsProcessorList([AddTen()])},
    "a processor of all rows": {"logits_processor": [LikeTheFirst()], "length_penalty": 0.6, "pad_token_id": 2},
    "a criterion": {"stopping_criteria": [AfterFive()]},
    "a criterion of rows": {"stopping_criteria": [EvenSums()], "pad_token_id": 2},
    "a criterion that reads scores": {"stopping_criteria": [EvenSums()], "pad_token_id": 2, **SCORES},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda batch, ids: [5, 6 + batch, 7, EOS]},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "max_time": {"max_time": 1000.0},
    "scores": {**SCORES, "pad_token_id": 2},
    "scores of an early end": {**SCORES, "early_stopping": True, "pad_token_id": 2},
    "logits": {"return_dict_in_generate": True, "output_logits": True, "min_new_tokens": 3, "pad_token_id": 2},
    "an empty dictionary": {"return_dict_in_generate": True, "pad_token_id": 2},
}


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", WHOLE_ROWS)
def test_what_reads_whole_rows_is_searched_here(decided_model, source, name, beams, monkeypatch):
    model, found = decided_model(), []
    for each in (host(model), model):
        if each is model:
            forbid_host_loops(monkeypatch)
        torch.manual_seed(3)
        options = {"max_new_tokens": 14, **WHOLE_ROWS[name]}
        found.append(each.generate(**source, num_beams=beams, num_return_sequences=min(beams, 2), **options))
    theirs, ours = found
    assert torch.equal(getattr(ours, "sequences", ours), getattr(theirs, "sequences", theirs))
    for output in ("scores", "logits", "sequences_scores"):
        expected = getattr(theirs, output, None)
        if expected is not None:
            torch.testing.assert_close(getattr(ours, output), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "options", [{"top_k": 0}, {"top_k": 7, "quantization": None}, {"output_scores": True}], ids=str
)
def test_samples_of_a_sentence_are_those_of_transformers(decided_model, source, options, monkeypatch):
    """Also where sentences end at different steps, and leave the batch."""
    model, most, keep = decided_model(), [], Search.keep_rows
    with torch.no_grad():
        model.lm_head.bias[EOS] += 3
    monkeypatch.setattr(Search, "keep_rows", lambda self, rows: (most.append(len(rows)), keep(self, rows))[1])
    options = {
        "do_sample": True,
        "num_return_sequences": 3,
        "max_new_tokens": 25,
        "return_dict_in_generate": True,
        **options,
    }
    found = []
    for each in (model, host(model)):
        torch.manual_seed(7)
        found.append(each.generate(**source, **options).sequences)
    assert torch.equal(*found) and len(found[0]) == 27
    assert (len(most) > 1) == ("output_scores" not in options)
    torch.manual_seed(8)
    assert not torch.equal(model.generate(**source, **options).sequences, found[0])


@pytest.mark.parametrize("beams", [1, 2])
def test_samples_are_the_same_without_known_draws(decided_model, source, beams, monkeypatch):
    """Of a build of torch that makes other numbers of its random bits, which `multinomial` then draws by."""
    model, found = decided_model(), []
    for known in (search.has_known_draws(), False):
        monkeypatch.setattr(search, "has_known_draws", lambda known=known: known)
        torch.manual_seed(5)
        found.append(model.generate(**source, do_sample=True, num_beams=beams, max_new_tokens=25, top_k=9))
    assert torch.equal(*found)


def test_random_bits_are_known(monkeypatch):
    """Only where a build of torch makes the same numbers of them."""
    known = search.has_known_draws.__wrapped__
    first, second = (torch.Generator().manual_seed(3) for _ in range(2))
    expected = torch.empty(500).exponential_(generator=first)
    bits = torch.empty(500, dtype=torch.long).random_(-(2**63), None, generator=second)
    found = search.exponential(bits).float()
    assert known() == torch.equal(found, expected)
    monkeypatch.setattr(search, "exponential", lambda bits: bits.double().exp2())
    assert not known()


def test_samples_have_the_options_of_this_search(decided_model, source, no_loop_of_the_host):
    model = decided_model()
    options = {"do_sample": True, "max_new_tokens": 9, "num_return_sequences": 2, "top_k": 0}
    torch.manual_seed(0)
    found = model.generate(**source, **options, shortlist=[EOS, *range(20, 60)], prefixes=[[7, 8]] * 9)
    assert (found[:, 1:3] == torch.tensor([7, 8])).all() and found[:, 3:].max() < 60
    assert set(found[:, 3:].unique().tolist()) <= {0, EOS, *range(20, 60)}
    torch.manual_seed(0)
    together = model.generate(**source, **options, ensemble=[model])
    torch.manual_seed(0)
    assert torch.equal(model.generate(**source, **options), together)


ELSEWHERE = {
    "use_cache=False": {"use_cache": False},
    "a cache of its own kind": {"cache_implementation": "static", "disable_compile": True},
    CACHE: {CACHE: EncoderDecoderCache},
    "output_hidden_states": {"return_dict_in_generate": True, "output_hidden_states": True},
    "decoder_attention_mask": {"decoder_attention_mask": torch.ones(9, 1, dtype=torch.long)},
}


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("reason", ELSEWHERE)
def test_what_is_not_plain_search_goes_to_the_host(decided_model, source, reason, beams, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("searched here")

    def found(each, **more):
        options = {**ELSEWHERE[reason], **more}
        if CACHE in options:
            options[CACHE] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        torch.manual_seed(3)
        one = each.generate(**source, num_beams=beams, max_new_tokens=8, **options)
        return getattr(one, "sequences", one)

    model = decided_model()
    theirs = found(host(model))
    monkeypatch.setattr(generation, "IncrementalDecoder", refuse)
    assert torch.equal(found(model), theirs)
    # A penalty of ours cannot be honoured there, and of one hypothesis alone nothing depends on it.
    refused = pytest.raises(ValueError, match=f"length_penalty_type='gnmt': not possible together with {reason}")
    with refused if beams > 1 else nullcontext():
        assert torch.equal(found(model, length_penalty_type="gnmt"), theirs)


@pytest.fixture
def no_loop_of_the_host(monkeypatch):
    forbid_host_loops(monkeypatch)


OWN_OPTIONS = [
    {},
    {"num_beams": 3, "length_penalty_type": "gnmt", "coverage_penalty": 0.2, "max_extra_tokens": 9},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    {"num_beams": 2, "quantization": "int8"},
    {"shortlist": [EOS, *range(5, 60)]},
]


@pytest.mark.parametrize("options", OWN_OPTIONS, ids=str)
@pytest.mark.parametrize("beside", [{}, {"decoder_attention_mask": torch.ones(9, 6, dtype=torch.long)}], ids=str)
def test_labels_change_no_search(decided_model, source, options, beside, no_loop_of_the_host):
    """Evaluation in transformers' Trainer passes whole batches on to generate()."""
    model, labels = decided_model(), torch.randint(3, 90, (9, 6))
    labels[3:, 4:] = -100
    options = {"max_new_tokens": 12, **options}
    expected = model.generate(**source, **options)
    assert torch.equal(model.generate(**source, labels=labels, **beside, **options), expected)


def test_labels_change_no_ensemble_and_no_stream(decided_model, source, no_loop_of_the_host):
    model, labels = decided_model(), torch.full((9, 6), 7)
    options = {"num_beams": 2, "length_penalty_type": "gnmt", "max_new_tokens": 12}
    expected = model.generate(**source, ensemble=[model], **options)
    assert torch.equal(model.generate(**source, labels=labels, ensemble=[model], **options), expected)
    expected = model.generate(**source, **options)
    (found,) = model.generate_stream([{**source, "labels": labels}], **options)
    assert torch.equal(found, expected)


def test_arguments_of_the_source_keep_the_search(decided_model, source, no_loop_of_the_host):
    model = decided_model(type_vocab_size=2)
    given = {"token_type_ids": torch.ones(9, 11, dtype=torch.long), "position_ids": torch.arange(11).expand(9, -1)}
    found = model.generate(**source, **given, num_beams=2, length_penalty_type="gnmt", max_new_tokens=12)
    assert not torch.equal(found, model.generate(**source, num_beams=2, length_penalty_type="gnmt", max_new_tokens=12))


class DoublingModel(VanillaTransformerForConditionalGeneration):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits.roll(1, dims=-1)
        return outputs


def test_a_subclass_with_a_forward_of_its_own_is_obeyed(decided_model, source):
    model = decided_model()
    other = DoublingModel(model.config).eval()
    other.load_state_dict(model.state_dict())
    assert not torch.equal(other.generate(**source, max_new_tokens=5), model.generate(**source, max_new_tokens=5))


def step_by_step_scores(model, source, sequences):
    """Log-probability of each sequence (B, T) behind its first token, up to and with </s>, and its length."""
    logits = model(**source, decoder_input_ids=sequences[:, :-1]).logits.log_softmax(-1)
    found = logits.gather(-1, sequences[:, 1:, None])[..., 0]
    ended = (sequences[:, 1:] == EOS).long()
    counted = ended.cumsum(1) - ended == 0
    return found.where(counted, 0).sum(1), counted.sum(1)


@torch.no_grad()
def test_gnmt_penalty_is_the_papers(decided_model, source):
    model = decided_model()
    options = {"num_beams": 5, "num_return_sequences": 5, "max_new_tokens": 25, "return_dict_in_generate": True}
    found = model.generate(**source, **options, length_penalty_type="gnmt", length_penalty=0.6)
    repeated = {name: tensor.repeat_interleave(5, 0) for name, tensor in source.items()}
    total, length = step_by_step_scores(model, repeated, found.sequences)
    expected = total / ((5 + length) / 6) ** 0.6
    torch.testing.assert_close(found.sequences_scores, expected, atol=1e-4, rtol=0)
    by_power = model.generate(**source, **options, length_penalty=0.6)
    assert not torch.equal(found.sequences_scores, by_power.sequences_scores)
    assert LENGTH_PENALTIES["gnmt"](torch.tensor(7.0), 1.0) == 2


@torch.no_grad()
def test_coverage_penalty_is_wu_et_als(decided_model, source):
    model = decided_model(attn_implementation="eager")
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 12, "return_dict_in_generate": True}
    found = model.generate(**source, **options, length_penalty=1.0, coverage_penalty=0.2)
    repeated = {name: tensor.repeat_interleave(3, 0) for name, tensor in source.items()}
    total, length = step_by_step_scores(model, repeated, found.sequences)
    outputs = model(**repeated, decoder_input_ids=found.sequences[:, :-1], output_attentions=True)
    weights = outputs.cross_attentions[-1].mean(dim=1)  # (B n, T, S)
    steps = torch.arange(weights.shape[1]) < length[:, None]
    covered = (weights * steps[..., None]).sum(dim=1).clamp(max=1).log()
    penalty = 0.2 * covered.masked_fill(repeated["attention_mask"] == 0, 0).sum(dim=1)
    torch.testing.assert_close(found.sequences_scores, total / length + penalty, atol=1e-4, rtol=0)


@pytest.mark.parametrize("beams", [1, 4])
def test_each_sentence_has_a_limit_of_its_own(decided_model, source, beams):
    model = decided_model()
    options = {"num_beams": beams, "bad_words_ids": [[EOS]], "pad_token_id": 2, "max_extra_tokens": 2}
    found = model.generate(**source, **options)
    lengths = source["attention_mask"].sum(1)
    assert ((found != 2).sum(1) == 1 + lengths + 2).all() and found.shape[1] == 1 + 11 + 2
    for row in range(9):  # as if it were alone
        alone = {name: tensor[row : row + 1, : lengths[row]] for name, tensor in source.items()}
        single = model.generate(**alone, **options)[0]
        assert torch.equal(found[row, : len(single)], single)
    assert torch.equal(found, host(model).generate(**source, **options))
    shorter = model.generate(**source, **options, max_new_tokens=6)
    assert shorter.shape[1] == 7
    without_mask = model.generate(source["input_ids"].clamp(min=3), **options)
    assert ((without_mask != 2).sum(1) == 1 + 11 + 2).all()


def test_options_are_saved_with_the_model(decided_model, source, tmp_path):
    model = decided_model()
    model.generation_config.update(num_beams=4, max_new_tokens=20)
    plain = model.generate(**source)
    ours = {"length_penalty_type": "gnmt", "length_penalty": 0.6, "coverage_penalty": 0.3, "max_extra_tokens": 5}
    model.generation_config.update(**ours)
    model.save_pretrained(tmp_path)
    opened = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert all(getattr(opened.generation_config, name) == value for name, value in ours.items())
    expected = model.generate(**source, **ours)
    assert torch.equal(opened.generate(**source), expected)
    assert torch.equal(opened.generate(**source, generation_config=GenerationConfig(**ours, num_beams=4)), expected)
    assert not torch.equal(expected[:, :6], plain[:, :6])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"length_penalty_type": "wu"}, "length_penalty_type='wu': must be one of 'power', 'gnmt'"),
        ({"coverage_penalty": -1}, "coverage_penalty=-1: must be a number of at least 0"),
        ({"coverage_penalty": "much"}, "coverage_penalty='much'"),
        ({"max_extra_tokens": 0}, "max_extra_tokens=0: must be an integer of at least 1"),
        ({"max_extra_tokens": True}, "max_extra_tokens=True"),
        ({"num_beams": 0}, "num_beams=0: must be an integer of at least 1"),
        ({"num_return_sequences": 0}, "num_return_sequences=0: must be an integer of at least 1"),
    ],
)
def test_options_out_of_range_are_refused(tiny_model, source, options, message):
    with pytest.raises(ValueError, match=message):
        tiny_model().generate(**source, **{"num_beams": 2, **options})


def test_finished_sentences_leave_the_batch(decided_model, source, monkeypatch):
    sizes = counting_steps(monkeypatch)
    decided_model().generate(**source, num_beams=4, bad_words_ids=[[EOS]], max_extra_tokens=1)  # 4 to 12 new tokens
    assert sizes == [9, 9, 9, 9, 9, 7, 6, 5, 4, 3, 2, 1]


def batches_of(source, *sizes):
    """The sentences in batches of these sizes, each no wider than its longest sentence."""
    batches = []
    for ids, mask in zip(source["input_ids"].split(sizes), source["attention_mask"].split(sizes)):
        width = int(mask.sum(dim=1).max())
        batches.append({"input_ids": ids[:, :width], "attention_mask": mask[:, :width]})
    return batches


def counting_steps(monkeypatch):
    """The numbers of sentences in all steps from now on."""
    sizes, step = [], IncrementalDecoder.step
    monkeypatch.setattr(IncrementalDecoder, "step", lambda self, ids: sizes.append(len(ids)) or step(self, ids))
    return sizes


@pytest.fixture
def many():
    """60 sentences of 12 to 2 tokens, longest first."""
    lengths = torch.arange(60).flip(0) // 6 + 3
    mask = (torch.arange(12) < lengths[:, None]).long()
    return {"input_ids": torch.randint(3, 90, (60, 12)) * mask, "attention_mask": mask}


def check_same_result(one, other):
    """Of two searches: token ids, or dictionaries, whose scores may have been added up in another order."""
    if torch.is_tensor(one):
        assert torch.equal(one, other)
        return
    assert torch.equal(one.sequences, other.sequences)
    assert torch.equal(one.beam_indices, other.beam_indices)
    torch.testing.assert_close(one.sequences_scores, other.sequences_scores, rtol=1e-6, atol=1e-6)


STREAMS = [
    {"max_new_tokens": 40},
    {"pad_token_id": 2, "max_extra_tokens": 9},
    *({"num_beams": beams, "max_new_tokens": 40} for beams in (2, 4, 5)),
    *({"num_beams": 4, "early_stopping": kind, "max_new_tokens": 20} for kind in (True, "never")),
    {"num_beams": 3, "num_return_sequences": 3, "length_penalty_type": "gnmt", "coverage_penalty": 0.4},
    *({"num_beams": beams, "eos_token_id": [*range(4, 90, 12)], "max_new_tokens": 40} for beams in (1, 4)),
    {"num_beams": 3, "length_penalty": 0.0, "eos_token_id": [EOS, 20, 21], "max_extra_tokens": 5},
    {"num_beams": 3, "shortlist": [*range(3, 60)], "max_new_tokens": 12},
    {"shortlist": [*range(3, 60)], "max_new_tokens": 12},
    {"num_beams": 3, "max_length": 2},
    # Logits processors see each sentence's own tokens and limits.
    *({"num_beams": beams, "no_repeat_ngram_size": 2, "max_new_tokens": 20} for beams in (1, 3)),
    *({"num_beams": beams, "min_new_tokens": 6, "forced_bos_token_id": 7, "max_extra_tokens": 9} for beams in (1, 3)),
    *({"num_beams": beams, "min_length": 6, "forced_eos_token_id": EOS, "max_extra_tokens": 5} for beams in (1, 3)),
    *({"num_beams": beams, "bad_words_ids": [[0], [9], [17]], "max_new_tokens": 20} for beams in (1, 3)),
    *({"num_beams": beams, "bad_words_ids": [[9, 17], [12]], "max_new_tokens": 20} for beams in (1, 3)),
    {"sequence_bias": [[[7], 1.5], [[40], -2.0]], "suppress_tokens": [9], "max_new_tokens": 20},
    {"num_beams": 3, "begin_suppress_tokens": [*range(30, 60)], "shortlist": [*range(3, 80)], "max_new_tokens": 20},
    {"num_beams": 3, "exponential_decay_length_penalty": (3, 1.5), "remove_invalid_values": True, "max_length": 30},
]


@pytest.mark.parametrize("options", STREAMS, ids=str)
@pytest.mark.parametrize("sizes", [(12, 12, 12, 12, 12), (3, 5, 20, 30, 2), (30, 29, 1)], ids=str)
def test_a_stream_finds_what_each_batch_finds(decided_model, many, options, sizes, monkeypatch):
    """Sentences at different steps share the search; only the order of sums changes, never what is found."""
    model, batches = decided_model(), batches_of(many, *sizes)
    if "eos_token_id" in options:  # some end at once, some never
        model.lm_head.bias.data[EOS] -= 5.5
    settings = {**options, "return_dict_in_generate": options.get("num_beams", 1) > 1}
    alone = [model.generate(**batch, **settings) for batch in batches]
    steps = counting_steps(monkeypatch)
    together = list(model.generate_stream(batches, **settings))
    assert max(steps) <= max(sizes), "never more at once than a batch has"
    for one, other in zip(alone, together, strict=True):
        check_same_result(one, other)


@pytest.mark.parametrize("options", STREAMS, ids=str)
def test_wide_sentences_that_are_searched_alone_find_the_same(decided_model, many, options, monkeypatch):
    """Those whose hypotheses need more than twice the keys and values that most others need."""
    monkeypatch.setattr(together, "MOST_EMPTY_SLOTS", 0)
    model, batches = decided_model(), batches_of(many, 30, 29, 1)
    if "eos_token_id" in options:
        model.lm_head.bias.data[EOS] -= 5.5
    settings = {**options, "return_dict_in_generate": options.get("num_beams", 1) > 1}
    for batch, found in zip(batches, model.generate_stream(batches, **settings), strict=True):
        check_same_result(found, model.generate(**batch, **settings))


@pytest.mark.parametrize("ensemble", [False, True], ids=["one model", "an ensemble"])
@pytest.mark.parametrize("beams, coverage_penalty, most", [(1, 0.0, 16), (4, 0.0, 56), (4, 0.4, 56)])
def test_a_sentence_that_goes_on_and_on_makes_no_room_in_the_others(
    decided_model, beams, coverage_penalty, most, ensemble, monkeypatch
):
    """It leaves them when it is wide, and finds what it would find among them."""
    models, rooms, make = [decided_model() for _ in range(1 + ensemble)], [], IncrementalDecoder._make_room
    for model in models:
        model.lm_head.bias.data[EOS] -= 20  # all run to their limits, one more than their tokens
    ids = torch.randint(3, 90, (112, 60))
    mask = torch.zeros_like(ids)
    mask[0], mask[1:, :4] = 1, 1
    batches = batches_of({"input_ids": ids * mask, "attention_mask": mask}, *[16] * 7)
    options = {"num_beams": beams, "max_extra_tokens": 1, "coverage_penalty": coverage_penalty, "ensemble": models[1:]}
    alone = [models[0].generate(**batch, **options) for batch in batches]
    monkeypatch.setattr(together, "MOST_EMPTY_SLOTS", 64)
    monkeypatch.setattr(IncrementalDecoder, "_make_room", lambda self: make(self) or rooms.append(self.mask.shape))
    assert all(map(torch.equal, alone, models[0].generate_stream(batches, **options)))
    assert max(slots for sentences, _, slots in rooms if sentences == 1) > 60
    assert max(slots for sentences, _, slots in rooms if sentences > 1) <= most


def test_a_stream_with_the_fused_kernel(decided_model, many, fused):
    model, batches = decided_model(), batches_of(many, 3, 5, 20, 30, 2)
    alone = [model.generate(**batch, max_new_tokens=40) for batch in batches]
    for one, other in zip(alone, model.generate_stream(batches, max_new_tokens=40), strict=True):
        assert torch.equal(one, other)


def test_many_short_sentences_behind_a_long_one(decided_model, many):
    """So long that, with as much padding, only a few of them would be as many tokens as a batch has had."""
    ids = torch.randint(3, 90, (1, 60))
    batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}, *batches_of(many, 50, 10)[1:]]
    batches.append({name: tensor[:, :3].repeat(2, 1) for name, tensor in batches[-1].items()})
    model = decided_model()
    found = list(model.generate_stream(batches, max_new_tokens=20))
    for batch, sequences in zip(batches, found, strict=True):
        assert torch.equal(model.generate(**batch, max_new_tokens=20), sequences)


@pytest.mark.parametrize("encoding", ["learned", "sinusoidal", "none"])
def test_positions_in_a_stream_are_those_of_each_sentence(decided_model, many, encoding):
    model, batches = decided_model(position_encoding=encoding), batches_of(many, 20, 20, 20)
    found = list(model.generate_stream(batches, max_new_tokens=30))
    for batch, sequences in zip(batches, found, strict=True):
        assert torch.equal(host(model).generate(**batch, max_new_tokens=30), sequences)


@pytest.mark.parametrize("coverage_penalty", [0.0, 0.4])
def test_an_ensemble_in_a_stream(decided_model, many, coverage_penalty):
    model, batches = decided_model(), batches_of(many, 20, 20, 20)
    options = {"ensemble": [decided_model()], "num_beams": 2, "max_new_tokens": 20}
    options["coverage_penalty"] = coverage_penalty
    for batch, sequences in zip(batches, model.generate_stream(batches, **options), strict=True):
        assert torch.equal(model.generate(**batch, **options), sequences)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_stream_waits_for_no_straggler(decided_model, many, beams, monkeypatch):
    order = torch.arange(60).view(10, 6).T.flatten()  # sentences of all lengths in each batch
    model, batches = decided_model(), batches_of({name: tensor[order] for name, tensor in many.items()}, *[10] * 6)
    model.lm_head.bias.data[EOS] -= 20  # all run to their limits, 4 to 13 tokens
    options, steps = {"num_beams": beams, "max_extra_tokens": 1}, counting_steps(monkeypatch)
    alone = [model.generate(**batch, **options) for batch in batches]
    assert len(steps) == 6 * 13 and sum(steps) < 0.75 * 10 * len(steps)
    steps.clear()
    together = list(model.generate_stream(batches, **options))
    assert all(map(torch.equal, alone, together))
    assert 10 * len(steps) < 1.25 * sum(batch["attention_mask"].sum() + 10 for batch in batches)


def test_a_long_stream_needs_no_more_room_than_its_sentences(decided_model, many, monkeypatch):
    model, batches, rooms = decided_model(), 10 * batches_of(many, *[6] * 10), []
    make = IncrementalDecoder._make_room
    monkeypatch.setattr(IncrementalDecoder, "_make_room", lambda self: make(self) or rooms.append(self.mask.shape[-1]))
    list(model.generate_stream(batches, max_new_tokens=12))
    assert len(rooms) > 10 and max(rooms) <= 12 + 2 * ROOM


@pytest.mark.parametrize(
    "options, own",
    [
        ({"do_sample": True, "top_k": 1}, {}),
        ({"num_beams": 2}, {"prefixes": [[7]] * 20}),
        ({"num_beams": 2}, {"required_phrases": [[[7]]] * 20}),
        ({"num_beams": 2}, {"decoder_input_ids": torch.full((20, 2), 5)}),
    ],
    ids=str,
)
def test_what_cannot_share_a_search_keeps_its_place_in_the_stream(decided_model, many, options, own):
    model, batches = decided_model(), batches_of(many, 20, 20, 20)
    batches[1].update(own)
    read, found = [], []
    for sequences in model.generate_stream(
        (read.append(1) or batch for batch in batches), max_new_tokens=20, **options
    ):
        found.append(sequences)
        assert len(read) <= len(found) + 1, "nothing piles up behind it"
    for batch, sequences in zip(batches, found, strict=True):
        assert torch.equal(model.generate(**batch, max_new_tokens=20, **options), sequences)


def test_a_stream_reads_one_batch_ahead(decided_model, many):
    model, read = decided_model(), []
    batches = (read.append(1) or batch for batch in batches_of(many, *[10] * 6))
    stream = model.generate_stream(batches, max_new_tokens=20)
    assert not read
    next(stream)
    assert len(read) in (2, 3), "the next, and the one after it if that has begun"
    assert len(list(stream)) == 5
    assert list(model.generate_stream([], max_new_tokens=20)) == []


@pytest.mark.parametrize("beams", [1, 3])
def test_nan_in_a_stream_stays_in_its_sentence(decided_model, many, beams, monkeypatch):
    """A sentence whose states overflow, as they can in float16, leaves its place to others."""
    model, batches = decided_model(source_vocab_size=95), batches_of(many, 20, 20, 20)
    options = {"num_beams": beams, "max_new_tokens": 20}
    alone = [model.generate(**batch, **options) for batch in batches[1:]]
    with torch.no_grad():
        model.model.encoder.embed_tokens.weight[94] = math.inf
    batches[0]["input_ids"][3, 0] = 94
    monkeypatch.setattr(Search, "check_scores", lambda self: None)
    for one, other in zip(alone, [*model.generate_stream(batches, **options)][1:], strict=True):
        assert torch.equal(one, other)


def nan_in_a_source(model):
    model.model.encoder.embed_tokens.weight[94] = math.nan


def nan_in_a_decoder_layer(model):
    model.get_decoder().layers[1].fc2.weight[0, 0] = math.nan


def infinity_in_a_norm(model):
    model.get_decoder().layers[0].final_layer_norm.weight[0] = math.inf


@pytest.mark.parametrize("damage, rows", [(nan_in_a_source, 3), (nan_in_a_decoder_layer, 0), (infinity_in_a_norm, 0)])
@pytest.mark.parametrize(
    "options",
    [
        *({**beams, **kind} for beams in ({}, {"num_beams": 3}) for kind in ({}, {"do_sample": True})),
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    ],
    ids=str,
)
@torch.no_grad()
def test_nan_scores_are_an_error(decided_model, many, damage, rows, options):
    model, batches = decided_model(source_vocab_size=95), batches_of(many, 20, 40)
    damage(model)
    batches[1]["input_ids"][rows, 0] = 94
    with pytest.raises(ValueError, match=f"sentence {rows} of the batch: the model's scores are NaN"):
        model.generate(**batches[1], max_new_tokens=20, **options)
    with pytest.raises(ValueError, match="the model's scores are NaN"):
        list(model.generate_stream(batches, max_new_tokens=20, **options))


@torch.no_grad()
def test_nan_in_the_output_matrix_is_an_error_of_beam_search(decided_model, source):
    model = decided_model()
    model.lm_head.weight[50, 3] = math.nan
    steps = []
    with pytest.raises(ValueError, match="sentence 0 of the batch: the model's scores are NaN"):
        model.generate(**source, max_new_tokens=9, num_beams=3, recorder=steps.append)
    assert len(steps) == 1, "no further ones, up to the limit"


@pytest.mark.parametrize("beams", [1, 3])
def test_a_sentence_of_padding_alone_leaves_the_others_alone(decided_model, many, beams):
    model, batch = decided_model(), batches_of(many, 8, 52)[0]
    options = {"num_beams": beams, "max_new_tokens": 20, "output_scores": True, "return_dict_in_generate": beams > 1}
    hidden = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"].clone()}
    hidden["attention_mask"][2] = 0
    found, expected = (model.generate(**each, **options) for each in (hidden, batch))
    if beams > 1:
        assert found.sequences_scores.isfinite().all()
        found, expected = found.sequences, expected.sequences
    width = min(found.shape[1], expected.shape[1])
    others = [0, 1, *range(3, 8)]
    assert torch.equal(found[others, :width], expected[others, :width])


@pytest.mark.parametrize("name, value", [("num_beams", 3), ("shortlist", [5, 6]), ("bad_words_ids", [[5]])])
def test_batches_of_a_stream_differ_in_their_sentences_alone(decided_model, many, name, value):
    first, second = batches_of(many, 4, 56)
    with pytest.raises(ValueError, match=f"batch 1: {name} has to be the same for all batches"):
        list(decided_model().generate_stream([first, {**second, name: value}], max_new_tokens=4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("beams", [1, 3])
def test_another_default_dtype_changes_nothing(decided_model, many, dtype, beams):
    model, batch = decided_model(), batches_of(many, 6, 54)[0]
    options = {"num_beams": beams, "max_new_tokens": 10}
    expected = model.generate(**batch, **options)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(model.generate(**batch, **options), expected)
    finally:
        torch.set_default_dtype(before)


class NoFloat64(TorchDispatchMode):
    """A device without float64, such as Apple's GPUs; what stays on the processor may have it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64:
                assert (kwargs or {}).get("device") == torch.device("cpu") or on_the_processor(args), func
        return made


def on_the_processor(args):
    """Whether all that went in was float64 before."""
    return any(isinstance(arg, torch.Tensor) and arg.dtype == torch.float64 for arg in args)


@pytest.mark.parametrize(
    "options", [{}, {"length_penalty_type": "gnmt"}, {"required_phrases": [[[7, 8]]] * 6}], ids=str
)
def test_beam_search_makes_no_float64(decided_model, many, options):
    batch = batches_of(many, 6, 54)[0]
    with NoFloat64():
        decided_model().generate(**batch, num_beams=3, max_new_tokens=8, early_stopping="never", **options)


def test_an_error_in_a_stream_is_that_of_generate(decided_model, many):
    batches = batches_of(many, 30, 30)
    batches[1]["input_ids"] = batches[1]["input_ids"] + 90
    with pytest.raises(ValueError, match=r"input_ids: token id \d+ lies outside the vocabulary"):
        list(decided_model().generate_stream(batches, max_new_tokens=4))
