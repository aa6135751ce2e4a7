"""The picture of a training."""

import pytest

from vanilla_transformer_hf.training.trainer.publishing import draw_curves, plot_curves


LOG = [
    {"step": 1, "epoch": 0.5, "loss": 6.0},
    {"step": 2, "epoch": 1.0, "loss": 4.0},
    {"step": 2, "epoch": 1.0, "eval_loss": 3.5, "eval_bleu": 1.0, "eval_chrf": 9.0, "eval_exact_match": 0.0},
    {"step": 2, "epoch": 1.0, "train_runtime": 90.0},
]


@pytest.mark.parametrize("log", [LOG, LOG[:2], []])
def test_curves_are_a_png(log, tmp_path):
    plot_curves(log, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def legend(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_curves_show_losses_scores_learning_rate_and_the_best_checkpoint():
    log = [
        {"step": 1, "epoch": 1.0, "loss": 6.0, "learning_rate": 1e-3},
        {"step": 1, "epoch": 1.0, "eval_loss": 3.5, "eval_bleu": 11.0, "eval_chrf": 9.0, "eval_exact_match": 0.0},
        {"step": 2, "epoch": 2.0, "loss": 4.0, "learning_rate": 2e-3},
        {"step": 2, "epoch": 2.0, "eval_loss": 2.25, "eval_bleu": 10.0, "eval_chrf": 12.0, "eval_exact_match": 1.0},
    ]
    loss, bleu, rate, others = draw_curves(log, published=12.5).axes
    assert legend(loss) == ["training (labels smoothed)", "validation (not smoothed)", "best checkpoint: 3.500"]
    assert legend(bleu) == ["during training", "best checkpoint: 11.00", "published model: 12.50"]
    assert legend(others) == ["chrF", "exact match"]
    curves = [loss.lines[0], loss.lines[1], bleu.lines[0], rate.lines[0], others.lines[0], others.lines[1]]
    values = ([6, 4], [3.5, 2.25], [11, 10], [1e-3, 2e-3], [9, 12], [0, 1])
    for curve, expected in zip(curves, values):
        assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([1, 2], expected)
    assert rate.get_xlabel() == others.get_xlabel() == "step (2.0 epochs)"
    loss, bleu, *_ = draw_curves(log, best_step=2).axes
    assert legend(loss)[-1] == "best checkpoint: 2.250" and legend(bleu)[-1] == "best checkpoint: 10.00"


def test_scores_of_nothing_and_epochs_that_are_named():
    log = [{"step": step, "eval_bleu": 0.0, "eval_loss": 5.0, "epoch": 1.0} for step in (1, 2)]
    axes = draw_curves(log, epochs=0.0).axes
    assert axes[1].get_ylim() == (0, 1)
    assert axes[2].get_xlabel() == "step" and draw_curves(log).axes[2].get_xlabel() == "step (1.0 epochs)"


def test_a_run_without_scores_has_no_empty_axes():
    loss, rate = draw_curves(LOG[:2]).axes
    assert legend(loss) == ["training (labels smoothed)"] and not len(rate.lines[0].get_xdata())
