"""Hard-concrete gates against the equations of arXiv 1712.01312; in runs they close heads, which are then removed."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from counting_model import SOURCES, TARGETS
from host_search import same
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer_hf.common.checksums import verify_folder
from vanilla_transformer_hf.model.config.stacks import HEAD_FIELDS
from vanilla_transformer_hf.training.objectives.head_gates import (
    HeadGates,
    add_head_gates,
    expected_open_heads,
    folded,
    gated_projections,
    remove_closed_heads,
)
from vanilla_transformer_hf.training.pruning import attentions
from vanilla_transformer_hf.training.run import run_job


BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1
# Attention with widths of its own and biases; layers that run twice, and cross-attention with borrowed weights.
MODELS = {
    "paper": {},
    "own_widths": {"d_k": 4, "d_v": 12, "attention_bias": True, "position_encoding": "shaw"}
    | {"max_relative_distance": 3},
    "shared": {"encoder_layers": 4, "encoder_layer_sets": 2, "layer_sharing": "cycle"}
    | {"decoder_attention_sharing": True},
}
every_model = pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
STEPS = {"max_steps": 4, "save_steps": 2, "eval_strategy": "no", "eval_steps": None, "load_best_model_at_end": False}
STEPS |= {"metric_for_best_model": None}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gates_of(values):
    gates = HeadGates(len(values)).double()
    gates.log_alpha.data = torch.tensor(values, dtype=torch.double)
    return gates


@torch.no_grad()
def test_samples_have_the_papers_distribution():
    values = [-4.0, -1.0, 0.0, 1.5, 4.0]
    count = 200_000
    gates = gates_of(np.repeat(values, count))
    samples = gates.sample().view(len(values), count)
    for log_alpha, row in zip(values, samples):
        # Equation 11's stretched distribution function, at 0 and 1 too, where the clipped values gather.
        for at in (0.0, 0.25, 0.5, 0.9):
            share = (at - GAMMA) / (ZETA - GAMMA)
            expected = sigmoid(BETA * math.log(share / (1 - share)) - log_alpha)
            deviation = math.sqrt(expected * (1 - expected) / count)
            assert abs(float((row <= at).double().mean()) - expected) < 4 * deviation
        share = (1 - GAMMA) / (ZETA - GAMMA)
        whole = 1 - sigmoid(BETA * math.log(share / (1 - share)) - log_alpha)
        assert abs(float((row == 1).double().mean()) - whole) < 4 * math.sqrt(whole * (1 - whole) / count)
    assert samples.min() == 0 and samples.max() == 1


@torch.no_grad()
def test_the_probability_of_an_open_gate_is_the_share_of_noise_that_opens_it():
    """By equation 10 at a million quantiles of the noise, in float64."""
    values = [-5.0, -2.4, 0.0, 0.7, 2.5, 6.0]
    noise = (np.arange(1_000_000) + 0.5) / 1_000_000
    expected = [
        np.mean(sigmoid((np.log(noise) - np.log(1 - noise) + value) / BETA) * (ZETA - GAMMA) + GAMMA > 0)
        for value in values
    ]
    np.testing.assert_allclose(gates_of(values).open_probability().numpy(), expected, atol=2e-6)
    fixed = np.clip(sigmoid(np.array(values)) * (ZETA - GAMMA) + GAMMA, 0, 1)
    np.testing.assert_allclose(gates_of(values).fixed().numpy(), fixed, rtol=1e-12)
    assert HeadGates(3).fixed().tolist() == [1, 1, 1], "training begins at the given model"


def give_gates(model):
    """Gates of which some are closed, all of one attention among them."""
    add_head_gates(model)
    values = [torch.tensor([3.0, -3.0, 1.0, -2.5]), torch.tensor([-4.0, -3.0, -2.6, -3.5])]
    with torch.no_grad():
        for number, projection in enumerate(gated_projections(model).values()):
            projection.gates.log_alpha.copy_(values[number == 1])
    return model


@every_model
def test_gradients_reach_the_gates_and_are_those_of_differences(fields, tiny_model, batch):
    model = tiny_model(**fields).train()
    add_head_gates(model)
    model.double()
    log_alphas = [projection.gates.log_alpha for projection in gated_projections(model).values()]
    for log_alpha in log_alphas:
        log_alpha.data.zero_()  # most samples lie between 0 and 1, where they have a gradient

    def loss():
        torch.manual_seed(1)  # the same noise and dropout
        scores = model(**batch).logits.log_softmax(dim=-1)
        return -scores[:, :, 7].mean()

    loss().backward()
    for log_alpha in log_alphas:
        assert bool((log_alpha.grad != 0).any())
        for head in (0, 2):
            results = []
            for step in (1e-5, -1e-5):
                log_alpha.data[head] += step
                results.append(loss().detach())  # without a graph, dropout takes other random numbers
                log_alpha.data[head] -= step
            torch.testing.assert_close(log_alpha.grad[head], (results[0] - results[1]) / 2e-5, rtol=1e-5, atol=1e-9)


@every_model
@torch.no_grad()
def test_the_model_without_closed_heads_computes_what_the_gated_one_does(fields, tiny_model, batch, source):
    plain = tiny_model(**fields)
    model = give_gates(copy.deepcopy(plain))
    expected = model(**batch).logits
    assert (expected - plain(**batch).logits).abs().max() > 0.01
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with folded(model):
        torch.testing.assert_close(model(**batch).logits, expected, atol=1e-5, rtol=0)
        found = model.generate(**source, num_beams=3, max_new_tokens=9)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(model(**batch).logits, expected, atol=0, rtol=0)

    pruned = remove_closed_heads(model)
    smaller = pruned.model
    torch.testing.assert_close(smaller(**batch).logits, expected, atol=1e-5, rtol=0)
    assert torch.equal(same(smaller, source, num_beams=3, max_new_tokens=9), found)
    counts = [module.num_heads for module in attentions(smaller).values()]
    assert counts == [1 if number == 1 else 2 for number in range(len(counts))]
    assert smaller.num_parameters() < plain.num_parameters()
    assert smaller.state_dict().keys() == plain.state_dict().keys()


def test_a_larger_penalty_closes_more_heads_of_a_model_that_still_translates(opened_translator):
    tokenizer = opened_translator.tokenizer
    batch = tokenizer(SOURCES, text_target=TARGETS, padding=True, return_tensors="pt")
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    counts, right = [], []
    for penalty in (0.0, 0.1, 0.4):
        torch.manual_seed(0)
        model = copy.deepcopy(opened_translator.model).train()
        add_head_gates(model)
        gates = [projection.gates.log_alpha for projection in gated_projections(model).values()]
        theirs = {id(parameter) for parameter in gates}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in theirs]
        optimizer = torch.optim.Adam([{"params": rest, "lr": 1e-3}, {"params": gates, "lr": 0.1}])
        for _ in range(80):
            optimizer.zero_grad()
            (model(**batch).loss + penalty * expected_open_heads(model)).backward()
            optimizer.step()
        pruned = remove_closed_heads(model.eval())
        counts.append(pruned.heads[1])
        with torch.no_grad():
            hits = pruned.model(**batch).logits.argmax(-1) == batch["labels"]
        right.append(float(hits[batch["labels"] != -100].double().mean()))
    assert 12 == counts[0] > counts[1] > counts[2]
    assert min(right) > 0.97


def test_the_loss_has_the_penalty_once_in_each_step(prepare):
    job = prepare(**STEPS, head_gates=0.25)
    trainer = job.trainer
    assert trainer.args.gradient_accumulation_steps == 2
    batches = iter(trainer.get_train_dataloader())
    samples, count = trainer.get_batch_samples(batches, 2, trainer.args.device)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = len(samples)  # transformers' loop does
    gated, plain = 0.0, 0.0
    for sample in samples:
        inputs = {name: value for name, value in sample.items() if name != "line"}
        torch.manual_seed(0)
        gated += trainer.compute_loss(trainer.model, dict(inputs), num_items_in_batch=count).item()
        torch.manual_seed(0)
        plain += trainer.model(**inputs, num_items_in_batch=count).loss.item()
    heads = 2 * 3  # two in each of three attentions
    expected = 0.25 * heads * sigmoid(2.5 - BETA * math.log(-GAMMA / ZETA))
    torch.testing.assert_close(gated - plain, expected, rtol=1e-5, atol=1e-6)


def test_a_run_leaves_an_ordinary_folder_of_fewer_heads(prepare, tmp_path, capsys):
    steps = STEPS | {"max_steps": 12, "eval_strategy": "steps", "eval_steps": 6}
    job = prepare(**steps, head_gates=5.0, head_gates_learning_rate=1.5)
    run_job(job)
    out, log = tmp_path / "out", job.trainer.state.log_history
    in_training = [entry for entry in log if "eval_loss" in entry][-1]
    afterwards = job.trainer.evaluate()
    assert abs(afterwards["eval_loss"] - in_training["eval_loss"]) < 1e-5
    assert afterwards["eval_chrf"] == in_training["eval_chrf"]
    assert "closed by gates and removed: 3 of 6 attention heads (50%)" in capsys.readouterr().out
    config = json.loads((out / "config.json").read_text())
    assert [config[name] for name in HEAD_FIELDS.values()] == [[1], [1], [1]]
    weights = load_file(out / "model.safetensors")
    assert not any("gates" in name for name in weights)
    assert weights["model.encoder.layers.0.self_attn.out_proj.weight"].shape == (32, 16)
    assert (
        "Pruned by trained gates (hard concrete, penalty 5 per open head): 3 of 6" in (out / "README.md").read_text()
    )
    opened, told = AutoModelForSeq2SeqLM.from_pretrained(out, output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert opened.num_parameters() > 0 and not verify_folder(out).wrong


def test_gates_have_their_own_learning_rate(prepare):
    trainer = prepare(**STEPS, head_gates=0.1, head_gates_learning_rate=0.3).trainer
    trainer.create_optimizer()
    groups = {len(group["params"]): group["lr"] for group in trainer.optimizer.param_groups[-1:]}
    assert groups == {3: 0.3}
    count = sum(len(group["params"]) for group in trainer.optimizer.param_groups)
    assert count == len(list(trainer.model.parameters()))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"position_encoding": "alibi"}, "heads of this model cannot be removed .*position_encoding='alibi'"),
        ({"model_type": "recurrent_seq2seq", "encoder_attention_heads": None, "decoder_attention_heads": None}
         | {"encoder_ffn_dim": None, "decoder_ffn_dim": None}, "type recurrent_seq2seq have no heads"),
        ({"push_to_hub": True}, "set hub_strategy to end"),
    ],
)  # fmt: skip
def test_models_whose_heads_cannot_be_removed_are_refused_before_training(settings, message, prepare):
    with pytest.raises(ValueError, match=f"head_gates=0.1: .*{message}"):
        prepare(**STEPS, head_gates=0.1, **settings)
