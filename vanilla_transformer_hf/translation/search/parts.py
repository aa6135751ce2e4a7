"""Translate the parts of texts in batches of similar lengths."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..results import Translation, known_translations, read_translations
from ..text.splitting import Part
from ..text.tally import Tally
from ..text.texts import sorted_batches
from .token_search import TokenSearch


if TYPE_CHECKING:
    from .minimum_risk import MinimumRisk


def translate_parts(
    parts: Sequence[Sequence[Part]],
    search: TokenSearch,
    tokenizer: Any,
    limits: dict[str, int | None],
    tally: Tally,
    return_scores: bool,
    options: dict[str, Any],
    mbr: "MinimumRisk | None" = None,
) -> list[list[list[Translation]]]:
    """For each text the n-best list of each part, or the one of least risk; `tally` counts batches of the `limits`."""
    all_parts = [(line, place, part) for line, each in enumerate(parts) for place, part in enumerate(each)]
    places = [(line, place) for line, place, part in all_parts if part.known is None]
    results: list[list[list[Translation]]] = [[[] for _ in each] for each in parts]
    n_best = search.setting("num_return_sequences", options) or 1
    for line, place, part in all_parts:
        if part.known is not None:
            results[line][place] = known_translations(part.known, n_best)
    left = [sum(part.known is None for part in each) for each in parts]  # number of unfinished parts of each text
    tally.add(sentences=left.count(0))
    lacking = set[int]()
    lengths = [len(parts[line][place].ids) for line, place in places]
    batches = [[places[row] for row in rows] for rows in sorted_batches(lengths, **limits)]
    if mbr is not None:
        for name, limit in limits.items():
            if limit is not None:
                raise ValueError(f"{name}={limit}: minimum risk searches each sentence alone; leave it out")
        batches = [[place] for batch in batches for place in batch]
    grouped = ([parts[line][place] for line, place in batch] for batch in batches)
    inputs = ({"sources": [part.ids for part in each], **constraints_of(each)} for each in grouped)
    if mbr is None:
        outputs = search.stream(inputs, return_scores, options=options)
    else:
        outputs = mbr.stream(inputs, search, tokenizer, return_scores, options)  # type: ignore[arg-type]  # by torch
    ends = search.ends({})
    for batch, found in zip(batches, outputs, strict=True):
        n_best = len(found["sequences"][0])
        sequences = [*chain(*found["sequences"])]
        scores = None if found["scores"] is None else [*chain(*found["scores"])]
        texts = read_translations(tokenizer, sequences, scores=scores, ends=ends)
        counts = {"sentences": 0, "tokens": 0, "lacking": 0, "unfinished": 0}
        for row, (line, place) in enumerate(batch):
            results[line][place] = texts[row * n_best : (row + 1) * n_best]
            counts["tokens"] += len(results[line][place][0].tokens)
            left[line] -= 1
            if left[line] == 0:
                counts["sentences"] += 1
                counts["unfinished"] += not all(n_best_list[0].is_complete for n_best_list in results[line])
            if phrases := parts[line][place].phrases:
                best = found["sequences"][row][0]
                if line not in lacking and not all(_contains(best, phrase) for phrase in phrases):
                    lacking.add(line)
                    counts["lacking"] += 1
        tally.add(**counts)
    return results


def constraints_of(parts: Sequence[Part]) -> dict[str, list[Any]]:
    """The arguments of `generate()` for what the translations of these parts must contain."""
    constraints: dict[str, list[Any]] = {
        "prefixes": [part.prefix for part in parts],
        "required_phrases": [[*part.phrases, *(ids for *_, ids in part.terms if ids)] for part in parts],
    }
    return {name: each for name, each in constraints.items() if any(each)}


def _contains(ids: list[int], phrase: list[int]) -> bool:
    return any(ids[start : start + len(phrase)] == phrase for start in range(len(ids) - len(phrase) + 1))
