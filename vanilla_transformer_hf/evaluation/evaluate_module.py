"""
BLEU, chrF and exact matches as a module of the `evaluate` library, which loads this file from the disk:

    evaluate.load(vanilla_transformer_hf.evaluation.EVALUATE_MODULE).compute(predictions=texts, references=texts)

`evaluate` copies the file before it imports it, so nothing else of the package is imported here.
"""

import itertools
import re
import warnings
from collections.abc import Iterable
from typing import Any

import datasets
import evaluate
from sacrebleu.metrics import BLEU, CHRF


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
    target_lang: Language code; scripts without spaces are cut by sacreBLEU's tokenizer for them, or by characters.
    tokenize: Tokenizer of sacreBLEU, such as "none" for text that is tokenized already; its default if not given.

Returns: bleu, chrf (0 to 100) and their signatures, exact_match (percent), sentences.
"""


# Languages, by both of their codes, whose words stand without spaces between them, or for which sacreBLEU has a
# tokenizer -> its name. What has none is cut by characters: 13a would take a sentence for a word.
TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod", "dz", "dzo"), "char"),
}


def find_tokenizer(target_lang: str | None = None, tokenize: str | None = None) -> tuple[str, str | None]:
    """sacreBLEU's tokenizer for a language, such as ja or zh_TW, and a sentence if the usual one is not installed."""
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"tokenize={tokenize!r}: expected one of {', '.join(BLEU.TOKENIZERS)} (sacreBLEU's names).")
    code = re.split("[-_]", target_lang or "")[0].lower()
    name = tokenize or TOKENIZERS.get(code, BLEU.TOKENIZER_DEFAULT)
    try:
        BLEU(tokenize=name, force=True)
    except Exception as error:  # packages, dictionaries or models are missing: each tokenizer raises its own
        install = f"pip install 'sacrebleu[{name[:2]}]'" if name.endswith("-mecab") else " ".join(str(error).split())
        if tokenize is not None:
            raise ValueError(f"tokenize={tokenize!r}: sacreBLEU cannot make this tokenizer: {install}") from error
        return "char", f"BLEU of {target_lang} is computed on characters, because {name} is not installed: {install}."
    return name, None


def checked(predictions: Any, references: Any, name: str = "predictions") -> tuple[list[str], list[list[str]]]:
    """Texts, and a list of references for each; None among several is left out, as sacreBLEU does."""
    for what, given in ((name, predictions), ("references", references)):
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise TypeError(f"{what}: expected a list of texts, got {type(given).__name__}")
    texts, rows = list(predictions), list[list[str]]()
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{place}]: expected a text, got {type(text).__name__}")
    for place, given in enumerate(references):
        if isinstance(given, str):
            given = [given]
        row = [text for text in given if text is not None] if isinstance(given, Iterable) else [given]
        if not row:
            raise ValueError(f"references[{place}]: expected at least one text, got none")
        if wrong := [text for text in row if not isinstance(text, str)]:
            raise TypeError(f"references[{place}]: expected a text or a list of texts, got {type(wrong[0]).__name__}")
        rows.append(row)
    if len(texts) != len(rows) or not rows:
        raise ValueError(f"{len(texts)} {name} for {len(rows)} references: expected equal numbers, at least one.")
    return texts, rows


class TranslationScores(evaluate.Metric):
    """Scores of a corpus, with the signatures that make them comparable."""

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

    def compute(self, *, predictions: Any = None, references: Any = None, **choices: Any) -> dict[str, Any] | None:
        """Scores of these texts, or of those that were added."""
        if predictions is not None or references is not None:
            predictions, references = checked(predictions, references)
        return super().compute(predictions=predictions, references=references, **choices)

    def _compute(
        self,
        predictions: list[str],
        references: list[str] | list[list[str]],
        target_lang: str | None = None,
        tokenize: str | None = None,
    ) -> dict[str, Any]:
        tokenize, note = find_tokenizer(target_lang, tokenize)
        if note:
            warnings.warn(note, stacklevel=2)
        # force: `score_translations` says it if the text looks tokenized, once.
        bleu, chrf = BLEU(tokenize=tokenize, force=True), CHRF()
        predictions, rows = checked(predictions, references)
        streams = [list(stream) for stream in itertools.zip_longest(*rows)]
        matches = sum(prediction in row for prediction, row in zip(predictions, rows))
        return {
            "bleu": bleu.corpus_score(predictions, streams).score,
            "chrf": chrf.corpus_score(predictions, streams).score,
            "exact_match": 100 * matches / len(rows),
            "bleu_signature": str(bleu.get_signature()),
            "chrf_signature": str(chrf.get_signature()),
            "sentences": len(rows),
        }
