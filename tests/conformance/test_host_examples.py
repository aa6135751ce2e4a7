"""`run_translation.py` of transformers' examples, unchanged, on a saved model of ours, as stock_trainer.md has it."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from counting_model import SIZES, SOURCES, TARGETS
from run import ROOT, example_script
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)


PAGE = ROOT / "docs" / "stock_trainer.md"
# The script loads it from the Hub, unless a folder of that name is here; of two words, BLEU is 0.
METRIC = """
import datasets
import evaluate
import sacrebleu


class Metric(evaluate.Metric):
    def _info(self):
        texts = datasets.Value("string")
        features = datasets.Features({"predictions": texts, "references": datasets.Sequence(texts)})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"score": sacrebleu.corpus_chrf(predictions, [list(texts) for texts in zip(*references)]).score}
"""


class RunTranslationTest(unittest.TestCase):
    hosts = (unittest.TestCase,)  # for the rule about skips: this is never skipped

    def test_trains_evaluates_and_translates(self):
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            tokenizer = VanillaTransformerTokenizer.train(SOURCES, TARGETS, vocab_size=300, show_progress=False)
            config = VanillaTransformerConfig(vocab_size=len(tokenizer), **SIZES)
            for part in (VanillaTransformerForConditionalGeneration(config), tokenizer):
                part.save_pretrained(here / "MODEL")
            rows = [{"translation": {"en": one, "de": other}} for one, other in zip(SOURCES, TARGETS, strict=True)]
            for name, its in (("train", rows), ("validation", rows[::5]), ("test", rows[::5])):
                text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in its)
                (here / f"{name}.jsonl").write_text(text, encoding="utf-8")
            (here / "sacrebleu").mkdir()
            (here / "sacrebleu" / "sacrebleu.py").write_text(METRIC, encoding="utf-8")
            (command,) = [
                block
                for block in PAGE.read_text(encoding="utf-8").split("```")
                if block.strip().startswith("python run_translation.py")
            ]
            _, _, *options = shlex.split(command.replace("\\\n", " "))
            done = subprocess.run(
                [sys.executable, example_script(), *options, "--use_cpu", "--report_to", "none"],
                cwd=here,
                env={**os.environ, "HF_HOME": str(here / "cache")},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            results = json.loads((here / "tuned" / "all_results.json").read_text())
            assert results["eval_bleu"] > 80 and results["predict_bleu"] > 80, results
            found = (here / "tuned" / "generated_predictions.txt").read_text(encoding="utf-8").splitlines()
            assert sum(map(str.__eq__, found, TARGETS[::5])) > 0.8 * len(found) == 0.8 * len(TARGETS[::5])
            opened = AutoModelForSeq2SeqLM.from_pretrained(here / "tuned", trust_remote_code=True)
            inputs = AutoTokenizer.from_pretrained(here / "tuned", trust_remote_code=True)(
                "two one", return_tensors="pt"
            )
            assert opened.generate(**inputs, max_new_tokens=20).shape[0] == 1
