"""The work on each line of a stream: a table of kinds of work, each with its output formats."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ...common.white_space import LINE_ENDS
from ..results import Translation
from ..text.tally import Tally
from ..text.texts import ConstrainedText, TextError, token_reader


if TYPE_CHECKING:
    from ..scoring.alignment import Alignment
    from ..scoring.scoring import TextScore


# A line of text, or a pair of lines.
Item = Any

# Characters that would end a line, for any reader, or, in TSV, a field.
ONE_LINE = str.maketrans(dict.fromkeys(LINE_ENDS, " "))
ONE_FIELD = str.maketrans(dict.fromkeys([*LINE_ENDS, "\t"], " "))
LINE_SEPARATORS = {ord(character): f"\\u{ord(character):04x}" for character in "\u0085\u2028\u2029"}


def lines_of_translations(form: str, number: int, source: str, translations: Sequence[Translation]) -> Iterable[str]:
    """
    The n-best list of a line in a format.

    - text: the best translation.
    - tsv: line number from 1, score, text, and alignment if there is one; a line for each translation, best first.
    - brief: JSON with `number`, `text`, `score` (null unless requested) and `finished`; a line for each translation.
    - jsonl: `number`, `source` and `translations`, best first, with their attributes where there are any.
    """
    if form == "text":
        yield translations[0].translate(ONE_LINE)
        return
    records = []
    for one in translations:
        if form == "tsv":
            fields = [str(number), f"{one.score:.6f}", one.translate(ONE_FIELD)]
            yield "\t".join(fields if one.alignment is None else [*fields, str(one.alignment)])
        elif form == "brief":
            score = None if one.score is None else round(one.score, 6)
            yield as_json({"number": number, "text": str(one), "score": score, "finished": one.is_complete})
        else:
            record: dict[str, Any] = {"text": str(one), "score": one.score, "finished": one.is_complete}
            record["tokens"] = one.tokens
            if one.is_suspicious:
                record["suspicious"] = True
            if one.missing_terms:
                record["missing_terms"] = [term._asdict() for term in one.missing_terms]
            if one.near_matches:
                record["near_matches"] = [near._asdict() for near in one.near_matches]
            if one.alignment is not None:
                record["alignment"] = str(one.alignment)
            records.append(record)
    if form == "jsonl":
        yield as_json({"number": number, "source": source, "translations": records})


def line_of_score(form: str, number: int, pair: tuple[str, str], score: "TextScore") -> Iterable[str]:
    """The log-probability of a target; tsv: line number from 1, it, number of tokens, perplexity, target; or JSON."""
    if form == "text":
        yield f"{score.log_probability:.6f}"
    elif form == "tsv":
        values = f"{number}\t{score.log_probability:.6f}\t{len(score.tokens)}\t{score.perplexity:.6f}\t"
        yield values + pair[1].translate(ONE_FIELD)
    else:
        both = {"log_probability": score.log_probability, "perplexity": score.perplexity}
        yield as_json({"number": number, "source": pair[0], "target": pair[1], **both, **asdict(score)})


def line_of_alignment(form: str, number: int, pair: tuple[str, str], alignment: "Alignment") -> Iterable[str]:
    """Pharaoh format: "0-0 1-2", source word and target word; or JSON, with `weights` of target by source words."""
    if form == "text":
        yield str(alignment)
        return
    words = {"source_words": alignment.source_words, "target_words": alignment.target_words}
    weights = [[round(weight, 4) for weight in row] for row in alignment.weights.tolist()]
    yield as_json({"number": number, **words, "alignment": str(alignment), "weights": weights})


def as_json(record: dict[str, Any]) -> str:
    """A JSON record on one line, with Unicode line separators escaped."""
    return json.dumps(record, ensure_ascii=False).translate(LINE_SEPARATORS)


# Kind of work -> its formats, and (format, number, line or pair, result) to lines.
WORKS: dict[str, tuple[Sequence[str], Callable[..., Iterable[str]]]] = {
    "translate": (("text", "tsv", "jsonl", "brief"), lines_of_translations),
    "score": (("text", "tsv", "jsonl"), line_of_score),
    "align": (("text", "jsonl"), line_of_alignment),
}


def as_constrained(item: Item, has_phrases: bool) -> ConstrainedText:
    """The constrained text of a line, or of a line and a prefix; `has_phrases`: tabs separate text and phrases."""
    line, prefix = (item, "") if isinstance(item, str) else item
    text, *phrases = line.split("\t") if has_phrases else [line]
    return ConstrainedText(text, prefix, phrases)


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
        formats, _ = WORKS[self.kind]
        if self.format not in formats:
            raise ValueError(f"format={self.format!r}: must be one of {', '.join(map(repr, formats))}")
        several = (self.options.get("num_return_sequences") or 1) > 1
        if self.kind == "translate" and self.format == "text" and (several or self.options.get("return_alignments")):
            raise ValueError("format='text' holds only one translation per line: choose 'tsv' or 'jsonl'")
        if self.constraints and (mbr := self.options.get("mbr")) is not None:
            mbr.check_phrases("constraints")

    @property
    def settings(self) -> dict[str, Any]:
        """All that the output depends on besides the model and the input."""
        constraints = {"constraints": True} if self.constraints else {}
        seed = {} if self.seed is None else {"seed": self.seed}
        options = {
            name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for name, value in self.options.items()
        }
        return {"work": self.kind, "format": self.format, **options, **constraints, **seed}

    def __call__(self, translator: Any, first: int, items: Sequence[Item], tally: Tally) -> Answer:
        """The output of input lines, sorted by length together, or pairs of lines (of line and prefix)."""
        options = {**self.options, "window": len(items), "tally": tally}
        if self.seed is not None:  # which no other pair of a seed and a line's number is likely to have
            digest = blake2b(f"{self.seed} {first}".encode(), digest_size=7).digest()
            import torch

            torch.manual_seed(int.from_bytes(digest, "little"))
        before = tally.to_tell()
        if self.kind == "translate":
            items = [as_constrained(item, self.constraints) for item in items]
            is_one_sample = options.get("do_sample") and (options.get("num_return_sequences") or 1) == 1
            if is_one_sample and translator.search.can_stream:
                from ..search.sampling import SampledToken

                sampler = SampledToken(options.pop("temperature", None), options.pop("top_k", None) or 0)
                options |= {"do_sample": False, "logits_processor": [sampler]}
            results: Any = translator.translate_stream(items, **{"return_scores": self.format != "text", **options})
        elif self.kind == "score":
            results = translator.score_stream(items, **options)
        else:
            results = translator.align_stream(items, **options)
        _, lines_of = WORKS[self.kind]
        read = token_reader(translator.tokenizer) if self.format == "jsonl" and self.kind != "align" else None
        lines = list[str]()
        try:
            for place, result in enumerate(results):
                if read is not None and self.kind == "score":
                    result = replace(result, tokens=read(result.tokens))
                elif read is not None:
                    for translation in result:
                        translation.tokens = read(translation.tokens)
                lines += lines_of(self.format, first + place, items[place], result)
        except TextError as error:
            raise ValueError(f"line {first + error.place}: {error}") from error
        counts = {name: count - before[name] for name, count in tally.to_tell().items()}
        return Answer(b"".join(f"{line}\n".encode() for line in lines), counts)
