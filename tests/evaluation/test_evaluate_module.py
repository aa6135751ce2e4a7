"""The module for the `evaluate` library: loaded without a network, it scores as the package does."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from vanilla_transformer_hf.evaluation.scores import EVALUATE_MODULE, score_translations


TRANSLATIONS = ["ein roter Hund läuft", "zwei kleine Katzen laufen im Park"]
REFERENCES = ["ein roter Hund läuft", "zwei kleine Hunde laufen im Park"]

CODE = """
import json, socket

def refuse(*arguments):
    raise AssertionError("the network was asked for")

socket.socket.connect = socket.getaddrinfo = refuse

import evaluate
from vanilla_transformer_hf.evaluation import EVALUATE_MODULE

metric = evaluate.load(EVALUATE_MODULE)
translations, references = json.loads({texts!r})
for choices in {choices!r}:
    print(json.dumps([
        metric.compute(predictions=translations, references=references, **choices),
        metric.compute(predictions=translations, references=[[text] for text in references], **choices),
    ]))
"""
CHOICES = [{}, {"tokenize": "none"}, {"target_lang": "zh"}]


@pytest.mark.slow
def test_a_fresh_process_loads_it_without_a_network_and_gets_our_scores(tmp_path):
    code = CODE.format(texts=json.dumps([TRANSLATIONS, REFERENCES]), choices=CHOICES)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for choices, line in zip(CHOICES, done.stdout.splitlines()[-3:], strict=True):
        one, several = json.loads(line)
        assert one == several == vars(score_translations(TRANSLATIONS, REFERENCES, **choices)), choices


def test_batches_are_collected_into_one_corpus(tmp_path):
    import evaluate

    metric = evaluate.load(EVALUATE_MODULE, cache_dir=str(tmp_path))
    for translation, reference in zip(TRANSLATIONS, REFERENCES):
        metric.add(prediction=translation, reference=reference)
    assert metric.compute() == vars(score_translations(TRANSLATIONS, REFERENCES))
    with pytest.raises(ValueError, match="tokenize='moses': expected one of none, zh, 13a"):
        metric.compute(predictions=TRANSLATIONS, references=REFERENCES, tokenize="moses")


QUIETLY = """
import sys
from vanilla_transformer_hf.evaluation import score_translations
assert "evaluate" not in sys.modules and "datasets" not in sys.modules and "sacrebleu" not in sys.modules
score_translations(["a"], ["a"])
assert "evaluate" in sys.modules
"""


@pytest.mark.slow
def test_scores_go_through_it_and_leave_nothing_in_the_users_folders(tmp_path):
    folders = {name: str(tmp_path / name) for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME", "TMPDIR")}
    (tmp_path / "TMPDIR").mkdir()
    environment = {**os.environ, **folders, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", QUIETLY]
    both = [subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    assert [(process.communicate(), process.returncode) for process in both] == [(("", ""), 0)] * 2
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert list((tmp_path / "TMPDIR").iterdir()) == []


def test_scoring_does_not_touch_the_random_numbers_of_a_training():
    np.random.seed(3)
    expected = np.random.rand(2)
    np.random.seed(3)
    score_translations(TRANSLATIONS, REFERENCES)
    assert np.random.rand(2).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("predictions", "references", "kind", "message"),
    [
        ([], [], ValueError, "0 predictions for 0 references: expected equal numbers, at least one"),
        (["a", "b"], ["a"], ValueError, "2 predictions for 1 references: expected equal numbers"),
        (None, ["a"], TypeError, "predictions: expected a list of texts, got NoneType"),
        ("a", ["a"], TypeError, "predictions: expected a list of texts, got str"),
        (["a", None], ["a", "b"], TypeError, r"predictions\[1\]: expected a text, got NoneType"),
        ([["a"]], ["a"], TypeError, r"predictions\[0\]: expected a text, got list"),
        (["a"], [None], TypeError, r"references\[0\]: expected a text or a list of texts, got NoneType"),
        (["a", "b"], ["a", [1]], TypeError, r"references\[1\]: expected a text or a list of texts, got int"),
        (["a", "b"], [["a"], []], ValueError, r"references\[1\]: expected at least one text, got none"),
    ],
)
def test_what_cannot_be_scored_is_said_in_one_line(predictions, references, kind, message, tmp_path):
    import evaluate

    with pytest.raises(kind, match=message) as caught:
        evaluate.load(EVALUATE_MODULE, cache_dir=str(tmp_path)).compute(predictions=predictions, references=references)
    assert "\n" not in str(caught.value)
    with pytest.raises(kind, match=message.replace("predictions", "translations")):
        score_translations(predictions, references)


@pytest.mark.parametrize("make", [iter, tuple, np.array, lambda texts: np.array(texts, dtype=object)])
def test_texts_in_any_iterable(make, tmp_path):
    import evaluate

    metric = evaluate.load(EVALUATE_MODULE, cache_dir=str(tmp_path))
    scores = vars(score_translations(TRANSLATIONS, REFERENCES))
    assert metric.compute(predictions=make(TRANSLATIONS), references=make(REFERENCES)) == scores
    assert vars(score_translations(make(TRANSLATIONS), make(REFERENCES))) == scores
