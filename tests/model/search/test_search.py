"""Diverse beam search against the paper's algorithm, and the limits of length that hold."""

import pytest
import torch
from datasets import Dataset
from host_search import host
from transformers import GenerationConfig, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.activations import ACT2FN

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model.search import together
from vanilla_transformer_hf.model.search.beam import BeamSearch
from vanilla_transformer_hf.model.search.search import GreedySearch, Rows


EOS = 1


def plain_group_step(model, source, beams, said, strength, is_last):
    """
    A step of beam search of one group (Vijayakumar et al. 2016, arXiv 1610.02424, algorithm 1), by a whole forward
    pass: what runs on and what ends, each a list of tokens and score, best first.
    """
    found = []
    for tokens, score in beams:
        logits = model(**source, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
        log_probs = logits.log_softmax(-1)
        for token in range(len(log_probs)):
            diversity = -said.count(token)  # Hamming diversity, section 5.1
            found.append((score + float(log_probs[token]) + strength * diversity, [*tokens, token]))
    found.sort(key=lambda each: -each[0])
    return found[: 2 * len(said.group)] if not is_last else found[: len(said.group)]


class Said(list):
    """Tokens that the groups before have chosen at this step, and the places of this group."""

    def __init__(self, tokens, beams):
        super().__init__(tokens)
        self.group = range(beams)


@torch.no_grad()
def plain_diverse_search(model, source, groups, beams, strength, new_tokens, alpha):
    """The finished hypotheses of all groups, best first: score and tokens behind the start token."""
    running = [[([0], 0.0)] for _ in range(groups)]
    finished, done = [[] for _ in range(groups)], [False] * groups
    for step in range(1, new_tokens + 1):
        said = []
        for group in range(groups):
            if done[group]:
                continue
            is_last = step == new_tokens
            ranked = plain_group_step(model, source, running[group], Said(said, beams), strength, is_last)
            for score, tokens in ranked[:beams]:
                if tokens[-1] == EOS or is_last:
                    finished[group].append((score / step**alpha, tokens[1:]))
            finished[group] = sorted(finished[group], key=lambda each: -each[0])[:beams]
            running[group] = [(tokens, score) for score, tokens in ranked if tokens[-1] != EOS][:beams]
            said += [tokens[-1] for tokens, _ in running[group]]
            full = len(finished[group]) == beams
            done[group] = is_last or (full and running[group][0][1] / step**alpha <= finished[group][-1][0])
    return sorted((each for group in finished for each in group), key=lambda each: -each[0])


@pytest.mark.parametrize(
    "groups, beams, strength, alpha", [(2, 1, 0.7, 1.0), (2, 2, 0.5, 1.0), (3, 2, 1.5, 0.6), (4, 1, 3.0, 0.0)]
)
def test_diverse_beam_search_is_the_papers(decided_model, source, groups, beams, strength, alpha):
    model, count = decided_model(), groups * beams
    options = {
        **{"num_beams": count, "num_beam_groups": groups, "diversity_penalty": strength, "length_penalty": alpha},
        **{"num_return_sequences": count, "max_new_tokens": 8, "return_dict_in_generate": True},
    }
    found = model.generate(**source, **options)
    scores, sequences = found.sequences_scores.view(9, count), found.sequences.view(9, count, -1)
    for row in range(0, 9, 2):
        length = int(source["attention_mask"][row].sum())
        alone = {name: tensor[row : row + 1, :length] for name, tensor in source.items()}
        expected = plain_diverse_search(model, alone, groups, beams, strength, 8, alpha)
        assert scores[row].tolist() == pytest.approx([score for score, _ in expected], abs=1e-4)
        made = [tokens.tolist() for tokens in sequences[row, :, 1:]]
        assert [one[: len(tokens)] for one, (_, tokens) in zip(made, expected, strict=True)] == [
            tokens for _, tokens in expected
        ]


def test_groups_that_lose_nothing_are_beam_searches_of_their_own(decided_model, source):
    model = decided_model()
    options = {"num_beam_groups": 3, "diversity_penalty": 1e-9, "max_new_tokens": 12}
    found = model.generate(**source, num_beams=6, num_return_sequences=6, **options)
    plain = model.generate(**source, num_beams=2, num_return_sequences=2, max_new_tokens=12)
    thrice = plain.view(9, 2, 1, -1).expand(-1, -1, 3, -1).reshape(54, -1)
    assert torch.equal(found, thrice)


def test_beam_indices_and_constraints_of_groups(decided_model, source):
    model = decided_model()
    options = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 2.0, "max_new_tokens": 10}
    best = {"num_return_sequences": 4, "return_dict_in_generate": True}
    found = model.generate(**source, **options, **best)
    parents = found.beam_indices
    for sentence, rows in enumerate(parents.view(9, 4, -1)):
        used = rows[rows >= 0]
        assert ((used // 4) == sentence).all()
        assert {int(group) for group in (used % 4) // 2} == {0, 1}
    prefixes = [[row + 3] for row in range(9)]
    begun = model.generate(**source, **options, prefixes=prefixes, num_return_sequences=4)
    assert begun.view(9, 4, -1)[:, :, 1].tolist() == [prefix * 4 for prefix in prefixes]
    short = model.generate(**source, **options, shortlist=[*range(3, 40)])
    assert set(short.flatten().tolist()) <= {0, EOS, *range(3, 40)}
    batches = [{name: tensor[place : place + 3] for name, tensor in source.items()} for place in (0, 3, 6)]
    for batch, sequences in zip(batches, model.generate_stream(batches, **options), strict=True):
        assert torch.equal(sequences, model.generate(**batch, **options))


def test_groups_are_saved_with_the_model(decided_model, source, tmp_path):
    model = decided_model()
    options = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "max_new_tokens": 9}
    expected = model.generate(**source, **options)
    model.generation_config.update(**options)
    model.save_pretrained(tmp_path)
    opened = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(opened.generate(**source), expected)
    assert torch.equal(opened.generate(**source, generation_config=GenerationConfig(**options)), expected)
    plain = {"num_beams": 1, "max_new_tokens": 9}
    assert torch.equal(opened.generate(**source, **plain), host(model).generate(**source, **plain))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0}, "num_beam_groups=3: must divide num_beams"),
        ({"num_beams": 4, "num_beam_groups": 2}, "num_beam_groups: needs a diversity_penalty above 0"),
        ({"num_beams": 4, "diversity_penalty": 1.0}, "diversity_penalty=1.0: needs num_beam_groups of at least 2"),
        ({"num_beams": 4, "num_beam_groups": 0}, "num_beam_groups=0: must be an integer of at least 1"),
        ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": -1.0}, "diversity_penalty=-1.0: must be"),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "do_sample": True},
            "num_beam_groups=2: not possible together with sampling",
        ),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "required_phrases": [[[5]]] * 9},
            "required_phrases: not possible together with num_beam_groups",
        ),
    ],
)
def test_groups_that_cannot_be_are_refused(tiny_model, source, options, message):
    with pytest.raises(ValueError, match=message):
        tiny_model().generate(**source, **options)


def test_rows_are_kept_and_put():
    def rows(owners, begins, running):
        count = len(owners)
        places, zeros = torch.arange(count), torch.zeros(count, dtype=torch.long)
        limits = torch.tensor(begins) + 9
        return Rows(7, torch.tensor(owners), places, torch.tensor(begins), limits, zeros > 0, torch.tensor(running))

    old = rows([0, 0, 1], [2, 4, 3], [[7, 7, 0, 5, 6], [7, 7, 7, 7, 0], [7, 7, 7, 0, 8]])
    kept = old.select(torch.tensor([2, 0]))
    assert (kept.places.tolist(), kept.running.tolist()) == ([2, 0], [[7, 7, 7, 0, 8], [7, 7, 0, 5, 6]])
    put = together.put(old, rows([0], [0], [[0]]), torch.tensor([1]), unused=2, prompt_length=1)
    assert put.running.tolist() == [[0, 5, 6], [7, 7, 0], [7, 0, 8]]
    assert (put.begins.tolist(), put.limits.tolist()) == ([0, 2, 1], [9, 11, 10])


# ---------------------------------------------------------------------------------------------------------------------
# Limits of length
# ---------------------------------------------------------------------------------------------------------------------


ENDLESS = {"suppress_tokens": [0, EOS]}


def longest(model, source, **options):
    """Tokens of the longest translation behind the start token, where nothing else ends one."""
    return model.generate(**source, **ENDLESS, **options).shape[1] - 1


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("saved", [{}, {"max_new_tokens": 4}, {"max_extra_tokens": 3}, {"max_length": 6}], ids=str)
def test_limits_of_a_call_replace_saved_ones(decided_model, source, saved, beams):
    model = decided_model()
    model.generation_config.update(**saved, num_beams=beams)
    expected = {"max_new_tokens": 4, "max_extra_tokens": 11 + 3, "max_length": 5}
    assert longest(model, source) == next((expected[name] for name in saved), 11 + 50)
    for given in (lambda **limits: limits, lambda **limits: {"generation_config": GenerationConfig(**limits)}):
        assert longest(model, source, **given(max_length=30)) == 29
        assert longest(model, source, **given(max_new_tokens=25)) == 25
        assert longest(model, source, **given(max_extra_tokens=9)) == 20
    assert longest(model, source, max_length=30, generation_config=GenerationConfig(max_new_tokens=9)) == 29
    assert longest(model, source, max_length=30, max_extra_tokens=2) == 13
    prompt = torch.full((9, 3), 5)  # transformers puts the start token in front
    assert longest(model, source, decoder_input_ids=prompt, max_length=10) == 9


def test_a_prompt_without_room_is_refused(decided_model, source):
    with pytest.raises(ValueError, match="max_length=3: leaves no room behind a decoder prompt of 4 tokens"):
        decided_model().generate(**source, decoder_input_ids=torch.full((9, 3), 5), max_length=3)
    with pytest.raises(ValueError, match="decoder_input_ids: 4 tokens, and the model has 2 positions"):
        short = decided_model(position_encoding="learned", max_position_embeddings=2)
        short.generate(source["input_ids"][:, :2], decoder_input_ids=torch.full((9, 3), 5))


def test_sampling_and_the_hosts_loops_have_the_limit_too(decided_model, source):
    torch.manual_seed(0)
    assert longest(decided_model(), source, do_sample=True) == 61
    assert longest(decided_model(), source, num_beams=2, use_cache=False) == 61


@pytest.mark.parametrize("given, expected", [({}, 11 + 50), ({"generation_max_length": 33}, 32)])
def test_a_seq2seq_trainer_generates_up_to_its_limit(decided_model, source, tmp_path, given, expected):
    """Batch after batch, though the Trainer writes a max_length of 20 into the model's generation config."""
    model = decided_model()
    model.generation_config.update(**ENDLESS)
    options = {"predict_with_generate": True, "per_device_eval_batch_size": 3, "report_to": [], "use_cpu": True}
    arguments = Seq2SeqTrainingArguments(str(tmp_path), disable_tqdm=True, **options, **given)
    columns = {name: tensor.tolist() for name, tensor in source.items()}
    data = Dataset.from_dict({**columns, "labels": source["input_ids"].tolist()}).with_format("torch")
    found = Seq2SeqTrainer(model, arguments).predict(data).predictions
    assert found.shape == (9, 1 + expected)
    lengths = (torch.tensor(found) > 0).sum(dim=1)
    own = source["attention_mask"].sum(dim=1) + 50 if not given else torch.full((9,), expected)
    assert lengths.tolist() == own.tolist()


def tensors_in(found):
    """The tensors of an output of `generate()`, of which some are in tuples."""
    values = [found] if torch.is_tensor(found) else found.values()
    return [one for value in values for one in (value if isinstance(value, tuple) else (value,))]


@pytest.mark.parametrize("beams", [1, 3])
def test_results_are_ordinary_tensors(decided_model, source, beams):
    """A model may train on what it has found: autograd takes no inference tensors, which a search computes with."""
    model, options = decided_model(), {"num_beams": beams, "max_new_tokens": 5}
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    found = [model.generate(**source, **options), *model.generate_stream([source, source], **options)]
    found.append(model.generate(**source, **options, **asked))
    assert not any(one.is_inference() for each in found for one in tensors_in(each))
    for each in (*found[:3], found[3].sequences):
        model(**source, labels=each).loss.backward()


class Keeping(torch.nn.Module):
    """An activation of a user's own that keeps what it is given."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def forward(self, states):
        self.kept.append(states)
        return states.relu()


def keep_by_processor(kept):
    def process(ids, scores):
        kept.append(scores)
        return scores

    process.treats_rows_alone = True
    return process


def keep_by_criterion(kept):
    def stop(ids, scores, **kwargs):
        kept.append(ids)
        return torch.zeros(len(ids), dtype=torch.bool)

    return stop


# What changes a model, and what changes a call.
WATCHED = {
    "a hook": lambda fc1, kept: fc1.register_forward_hook(lambda module, args, output: kept.append(output)),
    "a hook before": lambda fc1, kept: fc1.register_forward_pre_hook(lambda module, args: kept.append(args[0])),
}
WATCHING = {
    "a processor": lambda kept: {"logits_processor": [keep_by_processor(kept)]},
    "a criterion": lambda kept: {"stopping_criteria": [keep_by_criterion(kept)]},
    "a recorder": lambda kept: {"recorder": lambda step: kept.append(step.candidates.scores)},
}


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("by", ["nobody", "a host's module", "a module", *WATCHED, *WATCHING])
def test_what_others_see_of_a_search_are_ordinary_tensors(decided_model, source, monkeypatch, by, beams):
    model, kept, modes = decided_model(), [], set()
    layer, options = model.model.decoder.layers[0], {"num_beams": 3 if by == "a recorder" else beams}
    model.generate(**source)  # packs the weights
    if by in ("a module", "a host's module"):
        layer.activation_fn = Keeping(kept) if by == "a module" else ACT2FN["gelu"]
    elif by in WATCHED:
        WATCHED[by](layer.fc1, kept)
    elif by in WATCHING:
        options |= WATCHING[by](kept)
    for kind in (GreedySearch, BeamSearch):
        choose = kind.choose

        def noted(search, choose=choose):
            modes.add(torch.is_inference_mode_enabled())
            choose(search)

        monkeypatch.setattr(kind, "choose", noted)
    found = [model.generate(**source, **options, max_new_tokens=5)]
    if by not in WATCHING:
        found += model.generate_stream([source, source], **options, max_new_tokens=5)
    is_seen = by not in ("nobody", "a host's module")
    assert modes == {not is_seen} and bool(kept) == is_seen
    assert not any(one.is_inference() for one in kept)
    assert all(torch.equal(each, found[0]) for each in found)


def test_hooks_on_every_module_get_ordinary_tensors(decided_model, source):
    """With options that transformers' loops, which such hooks choose otherwise, do not have."""
    model, kept = decided_model(norm_type="rms_norm"), []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: kept.append(output))
    try:
        model.generate(**source, num_beams=3, length_penalty_type="gnmt", max_new_tokens=5)
    finally:
        hook.remove()
    assert not any(one.is_inference() for one in kept if torch.is_tensor(one))
