"""Adam with a first moment in bfloat16: its equation, and where it is used."""

import pytest
import torch

from vanilla_transformer_hf.training.objectives.first_moment import AdamWBfloat16Moment


BETAS, RATE, EPSILON = (0.9, 0.98), 0.01, 1e-9
MOMENT = {"adam_first_moment": "bfloat16"}


def moments(optimizer):
    return {value["exp_avg"].dtype for value in optimizer.state.values()}


@pytest.mark.parametrize("fused", [False, True], ids=["loop", "fused"])
def test_the_steps_are_adams_with_a_rounded_first_moment(fused):
    generator = torch.Generator().manual_seed(3)
    weights = [torch.nn.Parameter(torch.randn(*shape, generator=generator)) for shape in ((4, 6), (5,), (3,))]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "lr": 10 * RATE}]
    optimizer = AdamWBfloat16Moment(groups, lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=fused)
    expected = [weight.detach().double() for weight in weights]
    first, second = [torch.zeros_like(each) for each in expected], [torch.zeros_like(each) for each in expected]
    for step in range(1, 9):
        for place, weight in enumerate(weights[:2]):  # the third has no gradient
            weight.grad = torch.randn(weight.shape, generator=generator)
            gradient = weight.grad.double()
            mean = BETAS[0] * first[place] + (1 - BETAS[0]) * gradient
            second[place] = BETAS[1] * second[place] + (1 - BETAS[1]) * gradient**2
            root = (second[place] / (1 - BETAS[1] ** step)).sqrt() + EPSILON
            expected[place] -= (RATE, 10 * RATE)[place] * mean / (1 - BETAS[0] ** step) / root
            first[place] = mean.bfloat16().double()
        optimizer.step()
    for weight, each in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.detach().double(), each, atol=1e-5, rtol=0)
    assert moments(optimizer) == {torch.bfloat16} and len(optimizer.state) == 2
    assert [value["exp_avg_sq"].dtype for value in optimizer.state.values()] == [torch.float32] * 2
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2]


def test_a_closure_is_called_once_with_gradients():
    weight, calls = torch.nn.Parameter(torch.ones(3)), []

    def closure():
        calls.append(1)
        (weight**2).sum().backward()
        return "loss"

    assert AdamWBfloat16Moment([weight]).step(closure) == "loss" and len(calls) == 1
    assert (weight < 1).all()


def test_a_run_trains_with_it_where_it_is_asked_for(prepare, tmp_path):
    for kind, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        trainer = prepare(max_steps=2, adam_first_moment=kind, output_dir=str(tmp_path / kind)).trainer
        trainer.train()
        assert moments(trainer.optimizer.optimizer) == {dtype}


def test_gates_of_heads_are_trained_with_it(prepare):
    trainer = prepare(max_steps=2, head_gates=0.01, **MOMENT).trainer
    trainer.train()
    assert moments(trainer.optimizer.optimizer) == {torch.bfloat16}


def test_other_optimizers_are_refused(prepare):
    told = "adam_first_moment='bfloat16' with optim='adafactor': must be one of 'adamw_torch'"
    with pytest.raises(ValueError, match=told):
        prepare(optim="adafactor", **MOMENT)
