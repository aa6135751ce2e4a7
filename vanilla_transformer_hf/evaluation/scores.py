"""
Scores of translations, computed by this package's module of the `evaluate` library: BLEU and chrF of sacreBLEU with
signatures, and the share of exact matches. No network is used.
"""

import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


# The path that evaluate.load() takes; `evaluate`'s own metrics would have to be downloaded first.
EVALUATE_MODULE = str(Path(__file__).with_name("evaluate_module.py"))

# Number of lines ending in " ." from which a text counts as tokenized, as in sacreBLEU.
TOKENIZED_LINES = 100

# Field of `Scores` -> its heading.
METRICS = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact match"}


@dataclass(frozen=True)
class Scores:
    """
    BLEU and chrF (0 to 100) with the signatures that make them comparable, and exact matches in percent.

    Attributes:
        bleu, chrf: sacreBLEU's scores of the whole text, 0 to 100.
        exact_match: Translations that are equal to a reference, in percent.
        bleu_signature, chrf_signature: sacreBLEU's settings and version, to be published with the scores.
        sentences: Number of translations.

    Example:

    ```python
    >>> from vanilla_transformer_hf.evaluation import Scores
    >>> print(Scores(41.05, 65.89, 2.3, "tok:none", "nc:6", 1000))
    BLEU 41.05 (tok:none), chrF 65.89 (nc:6), exact match 2.30 % of 1000 sentences

    ```
    """

    bleu: float
    chrf: float
    exact_match: float
    bleu_signature: str
    chrf_signature: str
    sentences: int

    def __str__(self) -> str:
        return (
            f"BLEU {self.bleu:.2f} ({self.bleu_signature}), chrF {self.chrf:.2f} ({self.chrf_signature}), "
            f"exact match {self.exact_match:.2f} % of {self.sentences} sentences"
        )


def score_translations(
    translations: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    target_lang: str | None = None,
    tokenize: str | None = None,
) -> Scores:
    """
    Score translations against their references.

    Args:
        translations: Detokenized text, or tokenized as the references are with `tokenize="none"`.
        references: A text, or several, for each translation.
        target_lang: Language code. BLEU of Chinese, Japanese and Korean is computed on the words of sacreBLEU's
            tokenizers, and of other scripts without spaces on characters; also, with a warning, of Japanese and Korean
            where their tokenizers are not installed (the extras `ja` and `ko`).
        tokenize: sacreBLEU's name of a tokenizer for BLEU, such as "13a", "none", "flores200"; if not given, that of
            the language.

    Raises:
        TypeError: Something is not a text.
        ValueError: The two lists differ in length or are empty, a translation has no reference, or sacreBLEU cannot
            make this tokenizer.

    Example:

    ```python
    >>> from vanilla_transformer_hf.evaluation import score_translations
    >>> scores = score_translations(["Zwei Hunde spielen."], ["Zwei Hunde spielen."], target_lang="de")
    >>> f"{scores.bleu:.2f} {scores.exact_match:.2f} {scores.bleu_signature}"
    '100.00 100.00 nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...'

    ```
    """
    from .evaluate_module import TranslationScores, checked  # imports datasets, which only scoring needs

    texts, rows = checked(translations, references, name="translations")
    warn_of_tokenized(texts, tokenize)
    # The class itself: evaluate.load() would first copy its file into the user's cache. With keep_in_memory nothing is
    # written to the folder that `evaluate` makes.
    with tempfile.TemporaryDirectory() as folder:
        module = TranslationScores(keep_in_memory=True, cache_dir=folder)
        found: Any = module.compute(predictions=texts, references=rows, target_lang=target_lang, tokenize=tokenize)
    return Scores(**found)


def warn_of_tokenized(texts: Sequence[str], tokenize: str | None) -> None:
    """Warn if many texts end as tokenized ones do, but BLEU would tokenize them; as sacreBLEU, which prints it."""
    if tokenize is None and sum(text.endswith(" .") for text in texts) >= TOKENIZED_LINES:
        warnings.warn(
            "many translations end in ' .', so the text seems to be tokenized: BLEU of tokenized text is comparable "
            "only with tokenize='none' (--tokenize none; bleu_tokenize: none in a recipe).",
            stacklevel=3,
        )


# Variety below which a score says nothing of the model: chrF of "." for every source can be above that of a model
# which begins to write words. With few references, variety is chance.
LEAST_VARIETY, FEWEST_FOR_VARIETY = 10, 20


def variety(translations: Sequence[str], references: Sequence[str]) -> float | None:
    """Different translations in percent of different references; None of fewer than 20 of these."""
    # Texts are the same if they have the same characters: what repeats itself to another length is not another text.
    found, wanted = ({frozenset(text) - {" "} for text in texts} for texts in (translations, references))
    return 100 * len(found) / len(wanted) if len(wanted) >= FEWEST_FOR_VARIETY else None


def is_meaningful(metrics: Mapping[str, float], name: str) -> bool:
    """Whether the score of this name, such as eval_chrf or eval_law_bleu, is of translations that differ at all."""
    prefix, _, score = name.rpartition("_")
    return score == "loss" or metrics.get(f"{prefix}_variety", 100) >= LEAST_VARIETY


def error_rates(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Word and character error rates of recognised texts, by jiwer, in percent; texts are compared as they are."""
    try:
        import jiwer
    except ImportError as error:
        raise ValueError("error rates need jiwer: pip install 'vanilla_transformer_hf[recognition]'") from error
    if len(texts) != len(references) or not all(references):
        raise ValueError(f"{len(texts):,} texts and {len(references):,} references: expected as many, none empty")
    rates = {"wer": jiwer.wer, "cer": jiwer.cer}
    return {name: 100 * rate(list(references), list(texts)) for name, rate in rates.items()}


def write_predictions(path: str | os.PathLike, rows: Iterable[tuple[str, str, str]]):
    """Write (source, translation, reference) as TSV with a header; tabs and line breaks in texts are escaped."""
    escapes = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
    lines = ["source\ttranslation\treference\n"]
    lines += ["\t".join(text.translate(escapes) for text in row) + "\n" for row in rows]
    Path(path).write_text("".join(lines), encoding="utf-8", newline="\n")


def read_predictions(path: str | os.PathLike) -> list[tuple[str, str, str]]:
    """The rows (source, translation, reference) that `write_predictions` wrote."""
    characters = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\\\": "\\"}
    lines = Path(path).read_text(encoding="utf-8").split("\n")[1:-1]
    whole = [
        [re.sub(r"\\[tnr\\]", lambda found: characters[found[0]], text) for text in line.split("\t")] for line in lines
    ]
    return [(source, translation, reference) for source, translation, reference in whole]
