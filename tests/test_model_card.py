"""Model cards and training curves."""

import re

import pytest
from huggingface_hub import ModelCard

from vanilla_transformer_hf.evaluation import score_translations
from vanilla_transformer_hf.model_card import ScoredSet, TrainingFacts, draw_curves, make_card, plot_curves


LOG = [
    {"step": 1, "epoch": 0.5, "loss": 6.0},
    {"step": 2, "epoch": 1.0, "loss": 4.0},
    {"step": 2, "epoch": 1.0, "eval_loss": 3.5, "eval_bleu": 1.0, "eval_chrf": 9.0, "eval_exact_match": 0.0},
    {"step": 2, "epoch": 1.0, "train_runtime": 90.0},
]


@pytest.fixture
def facts():
    """`facts(**changes)`: a finished run with one scored text."""
    rows = [("one two", "eins zwei", "eins zwei"), ("three", "drei", "vier")]
    scores = score_translations([row[1] for row in rows], [row[2] for row in rows])
    stated = {
        "name": "numbers",
        "corpus": "number words",
        "pairs": 28_500,
        "source_lang": "en",
        "target_lang": "de",
        "license": "cc0-1.0",
        "example": 'one "two"',
        "settings": {"train_source": "/home/somebody/train.en", "dropout": 0.3, "output_dir": "/home/somebody/out"},
        "device": "2 CPU threads",
        "minutes": 1.5,
        "log_history": LOG,
        "scored": [ScoredSet("test", scores, rows)],
    }
    return lambda **changes: TrainingFacts(**(stated | changes))


def test_a_card_states_what_was_measured(facts, tiny_model):
    model = tiny_model()
    model.generation_config.update(num_beams=4, max_new_tokens=30)
    card = ModelCard(str(make_card(facts(), model)))
    data = card.data
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "translation", "cc0-1.0")
    assert (data.language, data.metrics) == (["en", "de"], ["bleu", "chrf", "exact_match"])
    results = {result.metric_type: result for result in data.eval_results}
    scores = facts().scored[0].scores
    assert results["bleu"].metric_value == round(scores.bleu, 2)
    assert results["bleu"].metric_args == {"signature": scores.bleu_signature}
    assert results["exact_match"].metric_value == 50
    assert {result.dataset_split for result in data.eval_results} == {"test"}
    for text in (
        f"{model.num_parameters():,} parameters",
        f"| test | 2 | {scores.bleu:.2f} | {scores.chrf:.2f} | 50.00 % |",
        scores.chrf_signature,
        "28,500 sentence pairs, 2 steps (1.0 epochs) in 2 minutes on 2 CPU threads.",
        "| d_model | 32 |",
        "| dropout | 0.3 |",
        "![Loss and scores over training steps](training_curves.png)",
    ):
        assert text in card.text
    assert "somebody" not in str(card), "a card does not tell where files lay on the training machine"
    assert "Not stated" not in card.text


def test_nothing_is_made_up(facts, tiny_model):
    card = make_card(facts(license=None, source_lang=None, target_lang=None, scored=[], minutes=None), tiny_model())
    data = ModelCard(str(card)).data
    assert data.license is None and data.language is None and not data.eval_results
    assert "No held-out text was scored." in card.text
    assert "(1.0 epochs) on 2 CPU threads." in card.text
    missing = card.text.split("## Not stated")[1]
    assert "- Licence:" in missing and "- Languages:" in missing


def test_tables_have_no_gaps(facts, tiny_model):
    text = make_card(facts(), tiny_model()).text
    tables = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    assert len(tables) == 3 and all(table.split("\n")[1].startswith("| ---") for table in tables)


def test_the_usage_example_runs(facts, tiny_model, tmp_path, capsys):
    from vanilla_transformer_hf import VanillaTransformerTokenizer

    tokenizer = VanillaTransformerTokenizer.train(["one two"], vocab_size=265, show_progress=False)
    model = tiny_model(vocab_size=len(tokenizer))
    model.generation_config.max_new_tokens = 5
    tokenizer.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    code = re.search(r"```python\n(.*?)```", make_card(facts(name=str(tmp_path)), model).text, re.DOTALL)[1]
    exec(compile(code, "card", "exec"), {})
    assert capsys.readouterr().out.startswith("[")


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


def test_a_run_without_scores_has_no_empty_axes():
    loss, rate = draw_curves(LOG[:2]).axes
    assert legend(loss) == ["training (labels smoothed)"] and not len(rate.lines[0].get_xdata())
