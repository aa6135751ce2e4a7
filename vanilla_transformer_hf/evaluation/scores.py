"""Scores of translations: BLEU and chrF of sacreBLEU with signatures, and the share of exact matches. No network."""

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


# What evaluate.load() takes: its own metrics it would have to download first.
EVALUATE_MODULE = str(Path(__file__).with_name("evaluate_module.py"))

# Field of `Scores` -> what it is called.
METRICS = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact match"}


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF (0 to 100) with the signatures that make them comparable, and exact matches in percent."""

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
        target_lang: Language code; sacreBLEU has tokenizers of its own for Chinese, Japanese and Korean.
        tokenize: sacreBLEU's name of a tokenizer for BLEU, such as "13a", "none", "flores200"; if not given, its
            choice for the language.

    Raises:
        ValueError: The two lists differ in length, or are empty; or there is no such tokenizer.
    """
    from sacrebleu.metrics import BLEU, CHRF  # not with this module, which commands import before they score

    if len(translations) != len(references) or not references:
        raise ValueError(
            f"{len(translations)} translations for {len(references)} references; one for each, and at least one."
        )
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"tokenize={tokenize!r}: sacreBLEU has {', '.join(BLEU.TOKENIZERS)}.")
    # With force it does not ask at every evaluation whether tokenized text was meant to be scored.
    bleu = BLEU(trg_lang=target_lang or "", tokenize=tokenize, force=True)
    chrf = CHRF()
    rows = [[row] if isinstance(row, str) else list(row) for row in references]
    streams = [list(stream) for stream in itertools.zip_longest(*rows)]
    bleu_score = bleu.corpus_score(translations, streams).score
    chrf_score = chrf.corpus_score(translations, streams).score
    matches = sum(translation in row for translation, row in zip(translations, rows))
    return Scores(
        bleu=bleu_score,
        chrf=chrf_score,
        exact_match=100 * matches / len(references),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(references),
    )


def write_predictions(path: str | os.PathLike, rows: Iterable[tuple[str, str, str]]):
    """
    Write (source, translation, reference) side by side as TSV with a header.

    Tabs, line breaks and backslashes inside a text are written as \\t, \\n, \\r and \\\\.
    """
    escapes = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
    lines = ["source\ttranslation\treference\n"]
    lines += ["\t".join(text.translate(escapes) for text in row) + "\n" for row in rows]
    Path(path).write_text("".join(lines), encoding="utf-8", newline="\n")
