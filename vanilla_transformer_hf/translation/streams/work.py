"""The work on each line of a stream: a table of kinds of work, each with its output formats."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import torch

from ...common.white_space import LINE_ENDS
from ..results import Translation
from ..scoring.alignment import Alignment
from ..scoring.scoring import TextScore
from ..search.sampling import SampledToken
from ..text.tally import Tally
from ..text.texts import ConstrainedText, TextError, token_reader
from ..translator import Translator


# A line of text, or a pair of lines.
Item = Any

# Characters that would end a line, for any reader, or, in TSV, a field.
ONE_LINE = str.maketrans(dict.fromkeys(LINE_ENDS, " "))
ONE_FIELD = str.maketrans(dict.fromkeys([*LINE_ENDS, "\t"], " "))
LINE_SEPARATORS = {ord(character): f"\\u{ord(character):04x}" for character in "\u0085\u2028\u2029"}


def translation_as_text(number: int, source: str, translations: Sequence[Translation]) -> Iterable[str]:
    """The best translation."""
    yield translations[0].translate(ONE_LINE)


def translation_as_tsv(number: int, source: str, translations: Sequence[Translation]) -> Iterable[str]:
    """Line number from 1, score, text, and alignment if there is one; a line for each translation, best first."""
    for translation in translations:
        fields = [str(number), f"{translation.score:.6f}", translation.translate(ONE_FIELD)]
        yield "\t".join(fields if translation.alignment is None else [*fields, str(translation.alignment)])


def translation_as_jsonl(number: int, source: str, translations: Sequence[Translation]) -> Iterable[str]:
    """`number`, `source` and `translations`, best first, with their attributes where there are any."""
    records = []
    for translation in translations:
        values = {"score": translation.score, "finished": translation.is_complete, "tokens": translation.tokens}
        records.append({"text": str(translation), **values})
        if translation.is_suspicious:
            records[-1]["suspicious"] = True
        if translation.alignment is not None:
            records[-1]["alignment"] = str(translation.alignment)
    yield as_json({"number": number, "source": source, "translations": records})


def translation_as_brief(number: int, source: str, translations: Sequence[Translation]) -> Iterable[str]:
    """`number`, `text`, `score` (null unless requested) and `finished`; a line for each translation, best first."""
    for one in translations:
        score = None if one.score is None else round(one.score, 6)
        yield as_json({"number": number, "text": str(one), "score": score, "finished": one.is_complete})


def score_as_text(number: int, pair: tuple[str, str], score: TextScore) -> Iterable[str]:
    """The log-probability of the target."""
    yield f"{score.log_probability:.6f}"


def score_as_tsv(number: int, pair: tuple[str, str], score: TextScore) -> Iterable[str]:
    """Line number from 1, log-probability, number of tokens, perplexity, target."""
    values = f"{number}\t{score.log_probability:.6f}\t{len(score.tokens)}\t{score.perplexity:.6f}\t"
    yield values + pair[1].translate(ONE_FIELD)


def score_as_jsonl(number: int, pair: tuple[str, str], score: TextScore) -> Iterable[str]:
    """`number`, `source`, `target`, `log_probability`, `perplexity`, `tokens` and `token_log_probabilities`."""
    values = {"log_probability": score.log_probability, "perplexity": score.perplexity}
    yield as_json({"number": number, "source": pair[0], "target": pair[1], **values, **asdict(score)})


def alignment_as_text(number: int, pair: tuple[str, str], alignment: Alignment) -> Iterable[str]:
    """Pharaoh format: "0-0 1-2", source word and target word."""
    yield str(alignment)


def alignment_as_jsonl(number: int, pair: tuple[str, str], alignment: Alignment) -> Iterable[str]:
    """`number`, `source_words`, `target_words`, `alignment`, and `weights`: target words by source words."""
    words = {"source_words": alignment.source_words, "target_words": alignment.target_words}
    weights = [[round(weight, 4) for weight in row] for row in alignment.weights.tolist()]
    yield as_json({"number": number, **words, "alignment": str(alignment), "weights": weights})


def as_json(record: dict[str, Any]) -> str:
    """A JSON record on one line, with Unicode line separators escaped."""
    return json.dumps(record, ensure_ascii=False).translate(LINE_SEPARATORS)


def _translate(translator: Translator, items: Sequence[str], options: dict[str, Any], format: str) -> Iterable[Any]:
    if options.get("do_sample") and (options.get("num_return_sequences") or 1) == 1 and translator.can_stream:
        options = dict(options)
        sampler = SampledToken(options.pop("temperature", None), options.pop("top_k", None) or 0)
        options |= {"do_sample": False, "logits_processor": [sampler]}
    return translator.translate_stream(items, **{"return_scores": format != "text", **options})


def _score(translator: Translator, items: Sequence[Any], options: dict[str, Any], format: str) -> Iterable[Any]:
    return translator.score_stream(items, **options)


def _align(translator: Translator, items: Sequence[Any], options: dict[str, Any], format: str) -> Iterable[Any]:
    return translator.align_stream(items, **options)


# Kind of work -> its function, and name of a format -> (number, line or pair, result) to lines.
WORKS: dict[str, tuple[Callable[..., Iterable[Any]], dict[str, Callable[..., Iterable[str]]]]] = {
    "translate": (
        _translate,
        {
            "text": translation_as_text,
            "tsv": translation_as_tsv,
            "jsonl": translation_as_jsonl,
            "brief": translation_as_brief,
        },
    ),
    "score": (_score, {"text": score_as_text, "tsv": score_as_tsv, "jsonl": score_as_jsonl}),
    "align": (_align, {"text": alignment_as_text, "jsonl": alignment_as_jsonl}),
}


def _read_tokens(result: Any, read: Callable[[Sequence[str]], list[str]]) -> Any:
    """An n-best list or a score whose tokens are readable text."""
    if isinstance(result, TextScore):
        return replace(result, tokens=read(result.tokens))
    for translation in result:
        translation.tokens = read(translation.tokens)
    return result


def as_constrained(item: Item, has_phrases: bool) -> ConstrainedText:
    """The constrained text of a line, or of a line and a prefix; `has_phrases`: tabs separate text and phrases."""
    line, prefix = (item, "") if isinstance(item, str) else item
    text, *phrases = line.split("\t") if has_phrases else [line]
    return ConstrainedText(text, prefix, phrases)


def seed_of(seed: int, number: int) -> int:
    """A seed for the line of this number, which no other pair of a seed and a number is likely to have."""
    return int.from_bytes(blake2b(f"{seed} {number}".encode(), digest_size=7).digest(), "little")


class Answer(NamedTuple):
    """The output lines of some input lines, and the counts that are reported at the end."""

    content: bytes
    counts: dict[str, int]


@dataclass(frozen=True)
class LineWork:
    """
    The work on each line, a row of `WORKS`, and the format of the results. With `constraints`, tabs separate the text
    from phrases. The random numbers of lines that are sorted together are those of `seed` and their place in the
    input, so that a run that is continued, or has several processes, draws what another one would.
    """

    kind: str
    format: str = "text"
    options: dict[str, Any] = field(default_factory=dict)
    constraints: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        formats = WORKS[self.kind][1]
        if self.format not in formats:
            raise ValueError(f"format={self.format!r}: must be one of {', '.join(map(repr, formats))}")
        several = (self.options.get("num_return_sequences") or 1) > 1
        if self.kind == "translate" and self.format == "text" and (several or self.options.get("return_alignments")):
            raise ValueError("format='text' holds only one translation per line: choose 'tsv' or 'jsonl'")

    @property
    def settings(self) -> dict[str, Any]:
        """All that the output depends on besides the model and the input."""
        constraints = {"constraints": True} if self.constraints else {}
        seed = {} if self.seed is None else {"seed": self.seed}
        return {"work": self.kind, "format": self.format, **self.options, **constraints, **seed}

    def __call__(self, translator: Translator, first: int, items: Sequence[Item], tally: Tally) -> Answer:
        """The output of input lines, sorted by length together, or pairs of lines (of line and prefix)."""
        work, formats = WORKS[self.kind]
        if self.kind == "translate":
            items = [as_constrained(item, self.constraints) for item in items]
        if self.seed is not None:
            torch.manual_seed(seed_of(self.seed, first))
        before = tally.to_tell()
        results = work(translator, items, {**self.options, "window": len(items), "tally": tally}, self.format)
        if self.format == "jsonl" and self.kind != "align":
            results = map(partial(_read_tokens, read=token_reader(translator.tokenizer)), results)
        lines = (formats[self.format](first + place, items[place], result) for place, result in enumerate(results))
        try:
            content = b"".join(f"{line}\n".encode() for some in lines for line in some)
            return Answer(content, {name: count - before[name] for name, count in tally.to_tell().items()})
        except TextError as error:
            raise ValueError(f"line {first + error.place}: {error}") from error
