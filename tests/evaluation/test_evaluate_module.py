"""The module for the `evaluate` library: loaded without a network, it scores as the package does."""

import json
import os
import subprocess
import sys

import pytest

from vanilla_transformer_hf.evaluation.scores import EVALUATE_MODULE, score_translations


pytest.importorskip("evaluate")

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
print(json.dumps([
    metric.compute(predictions=translations, references=references, **{choices!r}),
    metric.compute(predictions=translations, references=[[text] for text in references], **{choices!r}),
]))
"""


@pytest.mark.parametrize("choices", [{}, {"tokenize": "none"}, {"target_lang": "zh"}])
def test_a_fresh_process_loads_it_without_a_network_and_gets_our_scores(choices, tmp_path):
    code = CODE.format(texts=json.dumps([TRANSLATIONS, REFERENCES]), choices=choices)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    one, several = json.loads(done.stdout.splitlines()[-1])
    scores = score_translations(TRANSLATIONS, REFERENCES, **choices)
    assert one == several == vars(scores)


def test_batches_are_collected_into_one_corpus(tmp_path):
    import evaluate

    metric = evaluate.load(EVALUATE_MODULE, cache_dir=str(tmp_path))
    for translation, reference in zip(TRANSLATIONS, REFERENCES):
        metric.add(prediction=translation, reference=reference)
    assert metric.compute() == vars(score_translations(TRANSLATIONS, REFERENCES))
    with pytest.raises(ValueError, match="tokenize='moses': sacreBLEU has"):
        metric.compute(predictions=TRANSLATIONS, references=REFERENCES, tokenize="moses")
