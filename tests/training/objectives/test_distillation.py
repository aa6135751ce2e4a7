"""Word-level distillation against its equation, and in runs."""

from functools import partial

import pytest
import torch

from vanilla_transformer_hf.model.layers.loss import loss_by_rows
from vanilla_transformer_hf.training.objectives.losses import distillation_rows
from vanilla_transformer_hf.training.recipe import RecipeParser
from vanilla_transformer_hf.training.run import run_job


def by_the_equations(student, teacher, labels, smoothing, weight, temperature):
    """A position at a time, in float64."""
    total, count = 0.0, 0
    for ours, theirs, row in zip(student.double(), teacher.double(), labels):
        for one, other, label in zip(ours, theirs, row):
            if label == -100:
                continue
            wanted = torch.full_like(one, smoothing / len(one))
            wanted[label] += 1 - smoothing
            p, q = (other / temperature).softmax(-1), (one / temperature).softmax(-1)
            divergence = (p * (p / q).log()).sum()
            total += (1 - weight) * -(wanted * one.softmax(-1).log()).sum() + weight * temperature**2 * divergence
            count += 1
    return total / count


@pytest.mark.parametrize("rows_at_once", [5, 100])
@pytest.mark.parametrize("smoothing, weight, temperature", [(0.0, 1.0, 1.0), (0.1, 0.3, 1.0), (0.1, 0.3, 2.0)])
def test_the_loss_and_its_gradient_are_those_of_the_equations(
    smoothing, weight, temperature, rows_at_once, monkeypatch
):
    monkeypatch.setattr("vanilla_transformer_hf.model.layers.loss.VALUES_AT_ONCE", 11 * rows_at_once)
    student, teacher = torch.randn(2, 3, 4, 11, dtype=torch.double).unbind()
    labels = torch.randint(0, 11, (3, 4))
    labels[0, 2:] = -100
    found, expected = student.clone().requires_grad_(), student.clone().requires_grad_()
    row_loss = partial(distillation_rows, smoothing, weight, temperature, teacher.flatten(0, 1))
    loss = loss_by_rows(found, labels, row_loss)
    wanted = by_the_equations(expected, teacher, labels, smoothing, weight, temperature)
    torch.testing.assert_close(loss, wanted, check_dtype=False)
    for one, other in zip(torch.autograd.grad(loss, found), torch.autograd.grad(wanted, expected)):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    shared = loss_by_rows(student, labels, row_loss, 20)
    torch.testing.assert_close(shared, loss.detach() * 10 / 20)


STEPS = {"max_steps": 4, "save_steps": 2, "eval_strategy": "no", "eval_steps": None, "load_best_model_at_end": False}
STEPS |= {"metric_for_best_model": None}


@pytest.fixture
def taught(prepare, tmp_path):
    """`taught(out, **settings)`: a job of a student whose teacher is a model with its own tokenizer."""
    teacher = tmp_path / "teacher"
    run_job(prepare(**STEPS, output_dir=str(teacher), test_source=None, test_target=None))
    size = {"vocab_size": None, "preset": "multi30k_tiny", "seed": 5}

    def taught(out, **settings):
        return prepare(**{**STEPS, **size, "teacher": str(teacher), "output_dir": str(tmp_path / out), **settings})

    return taught


@pytest.mark.slow
def test_a_run_with_a_teacher_learns_from_it(taught, tmp_path):
    trainer = taught("out").trainer
    assert trainer.teacher.config.vocab_size == trainer.model.config.vocab_size
    before = [tensor.clone() for tensor in trainer.teacher.parameters()]
    trainer.train()
    assert all(map(torch.equal, before, trainer.teacher.parameters())), "the teacher does not learn"
    assert not any(name.startswith("teacher") for name in trainer.model.state_dict())
    assert taught("low", bf16=True).trainer.teacher.config._attn_implementation == "eager", "what is fast on a CPU"
    config = tmp_path / "teacher" / "config.json"
    config.write_text(config.read_text() + "\n")
    (tmp_path / "teacher" / "SHA256SUMS").unlink()
    with pytest.raises(ValueError, match="teacher has other content"):
        taught("out")


@pytest.mark.slow
def test_a_teacher_of_another_vocabulary_is_refused_by_name(taught, prepare, tmp_path):
    other = tmp_path / "other"
    run_job(prepare(**STEPS, output_dir=str(other), test_source=None, test_target=None, vocab_size=270))
    with pytest.raises(ValueError, match=r"teacher=.*/teacher: its vocabulary is not the student's"):
        taught("out", tokenizer_name_or_path=str(other))
    with pytest.raises(ValueError, match=r"set vocab_size=\d+"):
        taught("out", vocab_size=320)


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--teacher", "x", "--distillation_weight", "0"], "distillation_weight=0.0: must be greater than 0"),
        (["--teacher", "x", "--distillation_temperature", "0"], "distillation_temperature=0.0: must be greater"),
    ],
)
def test_what_cannot_be_distilled_is_refused(argv, message, capsys):
    with pytest.raises(SystemExit):
        RecipeParser().parse(argv)
    assert message in capsys.readouterr().err
