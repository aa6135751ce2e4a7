"""
BLEU and chrF as a module of the `evaluate` library, which loads a file of this machine where its own metrics would
first have to be downloaded:

    evaluate.load(vanilla_transformer_hf.evaluation.EVALUATE_MODULE).compute(predictions=texts, references=texts)
"""

from dataclasses import asdict
from typing import Any

import datasets
import evaluate

from vanilla_transformer_hf.evaluation.scores import score_translations


CITATION = """\
@inproceedings{post-2018-call,
    title = "A Call for Clarity in Reporting {BLEU} Scores",
    author = "Post, Matt",
    booktitle = "Proceedings of the Third Conference on Machine Translation",
    year = "2018",
    url = "https://aclanthology.org/W18-6319",
}
"""

ARGUMENTS = """
Args:
    predictions: Translations, detokenized.
    references: A text, or several, for each translation.
    target_lang: Language code; sacreBLEU has tokenizers of its own for Chinese, Japanese and Korean.
    tokenize: Tokenizer of sacreBLEU, such as "none" for text that is tokenized already; its default if not given.

Returns: bleu, chrf (0 to 100) and their signatures, exact_match (percent), sentences.
"""


class TranslationScores(evaluate.Metric):
    """Scores of a corpus as `vanilla_transformer_hf.evaluation.scores.score_translations` gives them."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="sacreBLEU's BLEU and chrF, and exact matches.",
            citation=CITATION,
            inputs_description=ARGUMENTS,
            features=[
                datasets.Features({"predictions": text, "references": text}),
                datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
            ],
        )

    def _compute(
        self, predictions: list[str], references: list[str] | list[list[str]], **choices: str | None
    ) -> dict[str, Any]:
        return asdict(score_translations(predictions, references, **choices))
