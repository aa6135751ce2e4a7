"""Ensembles, prefixes, phrases and shortlists under `generate()`, against plain loops over whole forward passes."""

import itertools
import math

import pytest
import torch
from accelerate import dispatch_model
from host_search import HostSearch
from machine import is_linear, seconds_of
from transformers import MarianConfig, MarianMTModel

from vanilla_transformer_hf.model.search import incremental_decoder
from vanilla_transformer_hf.model.search.constraints import Phrases


EOS = 1
BEAMS = [1, 4]


def alone(source, row):
    """A sentence of a batch, without its padding."""
    length = int(source["attention_mask"][row].sum())
    return {name: tensor[row : row + 1, :length] for name, tensor in source.items()}


def padded_equal(rows, row, expected):
    """Whether row `row` of `rows` is `expected`, behind which there is only padding, or what ends a sentence."""
    return torch.equal(rows[row, : len(expected)], expected) and bool((rows[row, len(expected) :] <= EOS).all())


@torch.no_grad()
def plain_search(models, source, beams, new_tokens):
    """Beam search of one sentence by whole forward passes and the mean of all probabilities: best score and ids."""
    running, finished = [(0.0, [0])], []
    for _ in range(new_tokens):
        candidates = []
        for score, ids in running:
            probabilities = [
                model(**source, decoder_input_ids=torch.tensor([ids])).logits[0, -1].softmax(-1) for model in models
            ]
            values = (sum(probabilities) / len(models)).log()
            candidates += [(score + value, [*ids, token]) for token, value in enumerate(values.tolist())]
        candidates.sort(reverse=True)
        finished += [(score / (len(ids) - 1), ids) for score, ids in candidates[:beams] if ids[-1] == EOS]
        running = [each for each in candidates[: 2 * beams] if each[1][-1] != EOS][:beams]
        if len(finished) >= beams:
            break
    finished += [(score / new_tokens, ids) for score, ids in running] if len(finished) < beams else []
    return max(finished)


# ---------------------------------------------------------------------------------------------------------------------
# Ensembles
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", BEAMS)
def test_an_ensemble_searches_with_the_mean_of_probabilities(decided_model, source, beams):
    models = [decided_model(), decided_model(d_model=48, decoder_layers=1), decided_model(decoder_norm_position="pre")]
    options = {"num_beams": beams, "max_new_tokens": 8, "early_stopping": beams > 1}
    found = models[0].generate(**source, **options, ensemble=models[1:])
    assert not torch.equal(found, models[0].generate(**source, **options))
    for row in range(9):
        _, expected = plain_search(models, alone(source, row), beams, 8)
        assert padded_equal(found, row, torch.tensor(expected))


def test_no_member_of_an_ensemble_is_left_out(decided_model, source):
    model, member = decided_model(), decided_model()
    dispatch_model(model, {"": "cpu"}, force_hooks=False)
    with pytest.raises(ValueError, match="ensemble: needs input_ids alone, and a model without a map of devices"):
        model.generate(**source, ensemble=[member], num_beams=3, max_new_tokens=6)


@torch.no_grad()
def test_scores_of_an_ensemble(decided_model, source):
    models = [decided_model(), decided_model()]
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 9, "return_dict_in_generate": True}
    found = models[0].generate(**source, **options, ensemble=models[1:])
    repeated = {name: tensor.repeat_interleave(3, 0) for name, tensor in source.items()}
    ids = found.sequences
    mean = sum(model(**repeated, decoder_input_ids=ids[:, :-1]).logits.softmax(-1) for model in models) / 2
    scores = mean.log().gather(-1, ids[:, 1:, None])[..., 0]
    ended = (ids[:, 1:] == EOS).long()
    counted = ended.cumsum(1) - ended == 0
    expected = scores.where(counted, 0).sum(1) / counted.sum(1)
    torch.testing.assert_close(found.sequences_scores, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"num_beams": 3, "coverage_penalty": 0.3}], ids=str)
def test_a_model_beside_itself_changes_nothing(decided_model, source, options):
    model = decided_model()
    options = {**options, "max_new_tokens": 20, "no_repeat_ngram_size": 3}
    assert torch.equal(
        model.generate(**source, **options, ensemble=[model, model]), model.generate(**source, **options)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Prefixes
# ---------------------------------------------------------------------------------------------------------------------


PREFIXES = [[], [5], [6, 7], [8, 9, 10], [], [11, 12, 13, 14, 15], [5, 5], [20], [21, 22]]


@pytest.mark.parametrize("beams", BEAMS)
@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 7},
        {},
        {"max_length": 12},
        {"max_extra_tokens": 2},
        {"max_new_tokens": 9, "length_penalty": 2.0, "early_stopping": "never"},
        {"max_new_tokens": 9, "length_penalty_type": "gnmt", "length_penalty": 0.6, "coverage_penalty": 0.2},
        {"max_new_tokens": 9, "no_repeat_ngram_size": 1, "min_length": 4},
        {"max_new_tokens": 9, "shortlist": list(range(4, 60))},
    ],
    ids=str,
)
def test_prefixes_are_decoder_prompts_of_different_lengths(decided_model, source, options, beams):
    model = decided_model()
    ours = {name: value for name, value in options.items() if beams > 1 or "penalty" not in name}
    ours |= {"num_beams": beams} | ({"num_return_sequences": 2, "return_dict_in_generate": True} if beams > 1 else {})
    found = model.generate(**source, **ours, prefixes=PREFIXES)
    for row, prefix in enumerate(PREFIXES):
        prompt = torch.tensor([[0, *prefix]])
        expected = model.generate(**alone(source, row), **ours, decoder_input_ids=prompt)
        if beams == 1:
            assert padded_equal(found, row, expected[0])
            continue
        for place, sequence in enumerate(expected.sequences):
            assert padded_equal(found.sequences, 2 * row + place, sequence)
        scores = found.sequences_scores[2 * row : 2 * row + 2]
        torch.testing.assert_close(scores, expected.sequences_scores, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Phrases
# ---------------------------------------------------------------------------------------------------------------------


PHRASES = [
    [[20]],
    [],
    [[30, 31, 32]],
    [[40, 41], [41, 42]],  # the end of one may be the beginning of the other
    [[50], [51], [52]],
    [],
    [[60, 60, 61], [60, 61]],  # one contains the other, and itself begins as it goes on
    [[70, 71, 70, 72]],
    [[80, 81], [82]],
]


def contains(ids, phrase):
    return any(ids[start : start + len(phrase)] == phrase for start in range(len(ids)))


def contain_all(rows, phrases):
    """Whether each of the rows, as many for each sentence, contains that sentence's phrases before its end."""
    n_best = len(rows) // len(phrases)
    lists = [row[: row.index(EOS)] if EOS in row else row for row in rows.tolist()]
    return [all(contains(ids, phrase) for phrase in phrases[row // n_best]) for row, ids in enumerate(lists)]


OTHER_OPTIONS = [
    {"num_beams": 2},
    {"num_beams": 5, "num_return_sequences": 3},
    {"num_beams": 4, "early_stopping": True, "length_penalty": 0.0},
    {"num_beams": 4, "length_penalty_type": "gnmt", "coverage_penalty": 0.2, "max_extra_tokens": 10},
    {"num_beams": 4, "no_repeat_ngram_size": 3, "min_length": 6},
    {"num_beams": 4, "shortlist": list(range(3, 40))},
    {"num_beams": 4, "prefixes": PREFIXES},
]


@pytest.mark.parametrize("options", OTHER_OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_all_phrases_are_in_all_translations(decided_model, source, options, seed, monkeypatch):
    # One room for all steps: what stays when room is made depends on all sentences, and the order of sums on it.
    monkeypatch.setattr(incremental_decoder, "ROOM", 64)
    torch.manual_seed(seed)
    model = decided_model()
    if "max_extra_tokens" not in options:
        options = {**options, "max_new_tokens": 14}
    found = model.generate(**source, **options, required_phrases=PHRASES, return_dict_in_generate=True)
    assert contain_all(found.sequences, PHRASES) == [True] * len(found.sequences)
    assert found.phrases_met.all()
    plain = model.generate(**source, **options, return_dict_in_generate=True)
    assert plain.phrases_met is None
    n_best = options.get("num_return_sequences", 1)
    if "shortlist" not in options:  # the tokens of phrases join it
        for row in range(9 * n_best):
            if not PHRASES[row // n_best]:
                both = torch.nn.utils.rnn.pad_sequence([found.sequences[row], plain.sequences[row]], True, EOS)
                assert torch.equal(*both.masked_fill(both == 0, EOS)[:, 1:]), "sentences without phrases do not notice"
                assert found.sequences_scores[row] == plain.sequences_scores[row]
    assert all(contains(row, PREFIXES[at // n_best]) for at, row in enumerate(found.sequences.tolist())) or (
        "prefixes" not in options
    )


@torch.no_grad()
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("phrases", [[[3]], [[4, 5]], [[3, 4], [4, 3]], [[5], [3], [4]], [[3, 3, 4]]], ids=str)
def test_nothing_better_than_what_a_wide_beam_finds(decided_model, phrases, alpha):
    model, new_tokens = decided_model(vocab_size=6, source_vocab_size=99), 4
    source = {"input_ids": torch.tensor([[7, 8, 9, 10]])}
    best = (-math.inf, None)
    for ids in itertools.product(range(6), repeat=new_tokens):
        length = ids.index(EOS) + 1 if EOS in ids else new_tokens
        if all(contains(list(ids[: length - (EOS in ids)]), phrase) for phrase in phrases):
            inputs = torch.tensor([[0, *ids]])
            scores = model(**source, decoder_input_ids=inputs[:, :-1]).logits.log_softmax(-1)
            total = scores[0].gather(1, inputs[0, 1:, None])[:length].sum().item()
            best = max(best, (total / length**alpha, ids[:length]))
    options = {"num_beams": 300, "length_penalty": alpha, "early_stopping": "never", "max_new_tokens": new_tokens}
    found = model.generate(**source, **options, required_phrases=[phrases], return_dict_in_generate=True)
    assert found.sequences[0, 1 : 1 + len(best[1])].tolist() == list(best[1])
    assert found.sequences_scores[0].item() == pytest.approx(best[0], abs=1e-5)


def test_an_ensemble_with_phrases(decided_model, source):
    models = [decided_model(), decided_model()]
    found = models[0].generate(**source, num_beams=4, max_new_tokens=12, required_phrases=PHRASES, ensemble=models[1:])
    assert contain_all(found, PHRASES) == [True] * 9


def test_what_cannot_be_met_is_told(decided_model, source):
    model = decided_model()
    phrases = [[[20, 21, 22, 23], [30]], [[30]], *[[]] * 7]
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 3, "return_dict_in_generate": True}
    found = model.generate(**source, **options, required_phrases=phrases)
    assert found.phrases_met.tolist() == contain_all(found.sequences, phrases)
    assert found.phrases_met.tolist() == [False] * 2 + [True] * 16
    assert 30 in found.sequences[0] and 30 in found.sequences[1], "the rest is met"
    forbidden = model.generate(**source, **options, required_phrases=phrases, bad_words_ids=[[30]])
    assert forbidden.phrases_met.tolist() == [False] * 4 + [True] * 14


def test_progress_in_phrases_is_that_of_a_search_for_them():
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        lengths = torch.randint(1, 8, (3,), generator=generator).tolist()
        phrases = Phrases([torch.randint(2, (length,), generator=generator).tolist() for length in lengths])
        ids, state = [], phrases.start
        for token in torch.randint(2, (12,), generator=generator).tolist():
            ids.append(token)
            state = phrases.advance(state, token)
            for phrase, done in zip(phrases.phrases, state):
                ends_with = max(k for k in range(len(phrase) + 1) if tuple(ids[len(ids) - k :]) == phrase[:k])
                assert done == (len(phrase) if contains(ids, list(phrase)) else ends_with)


def test_long_phrases_take_time_that_grows_with_their_length():
    assert is_linear(lambda size: seconds_of(lambda: Phrases([[1] * size])), 1000)


# ---------------------------------------------------------------------------------------------------------------------
# Shortlists
# ---------------------------------------------------------------------------------------------------------------------


class HostWithFewTokens(HostSearch):
    """Our model with the loops of transformers, all logits but those of `tokens` masked."""

    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        hidden = torch.full_like(outputs.logits, -math.inf)
        outputs.logits = hidden.index_copy(-1, self.tokens, outputs.logits[..., self.tokens])
        return outputs


@pytest.mark.parametrize("beams", BEAMS)
@pytest.mark.parametrize("options", [{}, {"no_repeat_ngram_size": 1, "bad_words_ids": [[11], [12, 13]]}], ids=str)
@pytest.mark.parametrize("vocab_size, ids", [(99, [50, 11, 12, 13, 14, 60, 61]), (20_000, list(range(5, 20_000, 2)))])
def test_a_shortlist_masks_all_other_logits(decided_model, source, beams, options, vocab_size, ids):
    model = decided_model(vocab_size=vocab_size, source_vocab_size=99)
    twin = HostWithFewTokens(model.config).eval()
    twin.load_state_dict(model.state_dict())
    twin.tokens = torch.tensor(sorted({EOS, *ids}))
    options = {**options, "num_beams": beams, "max_new_tokens": 10}
    expected = twin.generate(**source, **options)
    for shortlist in (ids, torch.tensor(ids)):
        assert torch.equal(model.generate(**source, **options, shortlist=shortlist), expected)
    assert not torch.equal(model.generate(**source, **options), expected)
    ensemble = model.generate(**source, **options, shortlist=ids, ensemble=[model])
    assert torch.equal(ensemble, expected)


def test_a_shortlist_of_a_head_that_is_not_plain(decided_model, source):
    model = decided_model()
    expected = model.generate(**source, max_new_tokens=8, shortlist=range_ids(5, 40))
    model.lm_head.register_forward_hook(lambda module, args, output: output)
    assert torch.equal(model.generate(**source, max_new_tokens=8, shortlist=range_ids(5, 40)), expected)


def range_ids(*limits):
    return list(range(*limits))


# ---------------------------------------------------------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"ensemble": 3}, "ensemble: must be a list of models, not int"),
        ({"prefixes": [[5]]}, "prefixes: must be a list with an entry for each of the 9 sentences, not 1"),
        ({"prefixes": [[5]] * 8 + [[99]]}, r"prefixes\[8\]: token id 99 lies outside the vocabulary of 99 tokens"),
        ({"prefixes": [[EOS]] * 9}, r"prefixes\[0\]: token id 1 ends a sentence and cannot be required"),
        ({"prefixes": ["no"] * 9}, r"prefixes\[0\]: must be a list of token ids, not no"),
        ({"prefixes": [[5] * 4] * 9, "max_length": 5}, r"prefixes\[0\]: leaves no room for another token"),
        ({"prefixes": [[5]] * 9, "min_new_tokens": 3}, "prefixes: not possible together with MinNewTokensLength"),
        ({"required_phrases": [[[5]]] * 9, "num_beams": 1}, "required_phrases: needs num_beams of at least 2, not 1"),
        ({"required_phrases": [[[5]]] * 8}, "required_phrases: must be a list with an entry for each of the 9"),
        ({"required_phrases": [5] * 9}, r"required_phrases\[0\]: must be a list of phrases, not 5"),
        ({"required_phrases": [[[5], []]] * 9}, r"required_phrases\[0\]: a phrase is empty"),
        ({"required_phrases": [[[5], [99]]] * 9}, r"required_phrases\[0\]\[1\]: token id 99 lies outside"),
        (
            {"required_phrases": [[[5]]] * 9, "do_sample": True},
            "required_phrases: not possible together with sampling",
        ),
        ({"shortlist": [EOS]}, "shortlist: must name a token that does not end a sentence"),
        ({"shortlist": [5, -1]}, "shortlist: token id -1 lies outside the vocabulary"),
        ({"prefixes": [[5]] * 9, "do_sample": True}, "prefixes: not possible together with sampling"),
        ({"shortlist": [5], "custom_generate": lambda *a, **k: 0}, "shortlist: not .* custom_generate"),
        ({"prefixes": [[5]] * 9, "use_cache": False}, "prefixes: not possible together with use_cache=False"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_requests_that_cannot_be_met_are_refused(tiny_model, source, options, message):
    with pytest.raises(ValueError, match=message):
        tiny_model().generate(**source, **{"num_beams": 2, **options})


def test_requests_are_refused_in_assisted_generation(tiny_model, source):
    one = {name: tensor[:1] for name, tensor in source.items()}
    with pytest.raises(ValueError, match="shortlist: not possible together with assisted generation"):
        tiny_model().generate(**one, shortlist=[5], prompt_lookup_num_tokens=3)


def test_models_that_do_not_fit_are_refused(tiny_model, source):
    model = tiny_model()
    sizes = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    marian = MarianMTModel(MarianConfig(vocab_size=99, pad_token_id=0, decoder_start_token_id=0, d_model=16, **sizes))
    tiny_model(source_vocab_size=99, embedding_sharing="none").generate(**source, max_new_tokens=2, ensemble=[model])
    others = {
        "MarianMTModel is not a model of this package": marian,
        "its vocab_size is 101 and the model's is 99": tiny_model(vocab_size=101),
        "its source_vocab_size is 98 and the model's is 99": tiny_model(
            source_vocab_size=98, embedding_sharing="none"
        ),
        "its decoder_start_token_id is 2 and the model's is 0": tiny_model(decoder_start_token_id=2),
        "not possible together with training mode": tiny_model().train(),
        "it is on meta and the model on cpu": tiny_model().to("meta"),
    }
    for message, other in others.items():
        with pytest.raises(ValueError, match=rf"ensemble\[1\]: .*{message}"):
            model.generate(**source, ensemble=[model, other])
    encoded = model.get_encoder()(**source)
    with pytest.raises(ValueError, match="ensemble: needs input_ids"):
        model.generate(encoder_outputs=encoded, attention_mask=source["attention_mask"], ensemble=[model])
