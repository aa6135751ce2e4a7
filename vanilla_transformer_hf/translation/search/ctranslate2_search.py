"""The search by CTranslate2, with the arguments of `generate()`. Nothing heavy is imported."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...export import ExportError
from ...export.ctranslate2_options import search_options
from ...model.config.search_settings import LENGTH_LIMITS, REQUESTS
from .token_search import TokenSearch


# CTranslate2 cannot tell whether a running hypothesis may still become the best; with twice the beams, 1,000 of 1,000
# test sentences of the quickstart had the same translation; with the beams alone, 937.
PATIENCE = 2.0

# CTranslate2 divides by length ** α. Of its hypotheses the best by GNMT's ((5 + length) / 6) ** α is taken; with this
# factor on α, GNMT's best was among them for 192 of 192 sentences of two JoeyNMT models (with 1: 183; with 0.4: 192).
GNMT_AS_POWER = 0.6


class CTranslate2Search(TokenSearch):
    """`generate()` by the export of a model in `folder`, for CTranslate2; it computes no scores."""

    # With `early_stopping=True`, a beam search ends with as many finished hypotheses as beams, as here; else with
    # `PATIENCE` times as many, which seldom finds another translation than the search of this package. Hypotheses are
    # ranked here where CTranslate2 lacks the length penalty.

    def __init__(
        self, model: Any, pad_token_id: int, max_positions: int, folder: Path, threads: int, searches: int = 1
    ):
        TokenSearch.__init__(self, model, pad_token_id, max_positions)
        try:
            import ctranslate2
        except ModuleNotFoundError as error:
            message = "engine ctranslate2 is not installed: pip install 'vanilla_transformer_hf[export]'"
            raise ExportError(message) from error
        self._engine = ctranslate2.Translator(
            str(folder), device="auto", intra_threads=threads, inter_threads=searches
        )
        shared = folder / "shared_vocabulary.json"
        self._source, self._target = (
            json.loads((shared if shared.exists() else folder / f"{side}_vocabulary.json").read_text(encoding="utf-8"))
            for side in ("source", "target")
        )
        self._ids = {piece: index for index, piece in enumerate(self._target)}

    def checked(self, source_length: int, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a call, checked as in the base class."""
        options = super().checked(source_length, options)
        self._arguments(options)
        return options

    def stream(
        self, batches: Iterable[dict[str, Any]], return_scores: bool, options: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        options = self.checked(0, options)
        for batch in batches:
            yield {"sequences": self._sequences(batch["sources"], batch.get("prefixes"), options), "scores": None}

    def _sequences(
        self, rows: Sequence[list[int]], given: Sequence[list[int]] | None, options: dict[str, Any]
    ) -> list[list[list[int]]]:
        """For each row of source ids the n-best list of sequences, decoder start token included, within its limit."""
        prefixes = given or [[] for _ in rows]
        arguments, limits = self._arguments(options), [self.most_target_tokens(len(row), options) for row in rows]
        end, n_best = self.setting("forced_eos_token_id", options), arguments["num_hypotheses"]
        has_gnmt = self.setting("length_penalty_type", options) == "gnmt"
        is_ranked = arguments["beam_size"] > 1 and (has_gnmt or end is not None)
        penalty = self.length_penalty(options)
        if is_ranked:
            arguments["num_hypotheses"] = arguments["beam_size"]
            arguments["length_penalty"] *= GNMT_AS_POWER if has_gnmt else 1.0

        def search(places: Sequence[int], limit: int) -> list[list[list[int]]]:
            results = self._engine.translate_batch(
                [[self._source[index] for index in rows[place]] for place in places],
                target_prefix=[[self._target[index] for index in prefixes[place]] for place in places],
                max_decoding_length=limit if end is None else max(limit - 1, 1),  # before a forced end
                return_scores=is_ranked,
                **arguments,
            )
            return [ranked(prefixes[place], result, limit) for place, result in zip(places, results, strict=True)]

        def ranked(prefix: list[int], result: Any, limit: int) -> list[list[int]]:
            found = [[self._ids[piece] for piece in each] for each in result.hypotheses]
            complete = found if end is None else [_ended(ids, len(prefix) + limit, end=end) for ids in found]
            if not is_ranked:
                return complete
            import numpy as np  # as CTranslate2 itself; most models do without

            before, behind = (np.array([float(len(ids) - len(prefix)) for ids in each]) for each in (found, complete))
            log_probabilities = np.array(result.scores) * before ** arguments["length_penalty"]
            order = (-log_probabilities / penalty(behind)).argsort(kind="stable")
            return [complete[place] for place in order[:n_best].tolist()]

        found = search(range(len(rows)), max(limits))
        for place, (limit, prefix) in enumerate(zip(limits, prefixes, strict=True)):
            # A batch has one limit, the longest: a row that went beyond its own is searched again, alone.
            if max(map(len, found[place])) - len(prefix) > limit:
                found[place] = search([place], limit)[0]
        start = self.setting("decoder_start_token_id", options) or 0
        return [[[start, *ids] for ids in lists] for lists in found]

    def _merged(self, options: dict[str, Any]) -> dict[str, Any]:
        """The settings of the model with those of a call, without its requests."""
        given = {name: value for name, value in options.items() if name not in REQUESTS}
        return {**vars(self.model.generation_config), **given}

    def _arguments(self, options: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `translate_batch`, save those of each row."""
        lacking = [name for name in REQUESTS if name != "prefixes" and options.get(name) is not None]
        settings = {name: value for name, value in self._merged(options).items() if name not in LENGTH_LIMITS}
        if settings.pop("logits_processor", None):
            lacking.append("logits processors, which also draw samples (of minimum risk, candidates 'beam' need none)")
        arguments, left = search_options(settings, self._target)
        # What this class does itself; the end that is forced is put behind a translation of one token less.
        expressed = ["early_stopping", "length_penalty_type"]
        expressed += ["forced_eos_token_id"] if isinstance(settings.get("forced_eos_token_id"), int) else []
        # CTranslate2 leaves tokens out before the softmax, generate() behind it. That makes no difference for the
        # control tokens that a model's own settings leave out, which have hardly any probability.
        own = self.model.generation_config
        expressed += [
            name
            for name in ("suppress_tokens", "bad_words_ids")
            if all(each in (getattr(own, name, None) or ()) for each in settings.get(name) or ())
        ]
        lacking += [each for each in left if each.partition("=")[0] not in expressed]
        if lacking:
            raise ValueError(f"engine ctranslate2 does not support {', '.join(lacking)}")
        del arguments["max_decoding_length"]
        if settings.get("early_stopping") is not True:
            arguments["patience"] = PATIENCE
        return arguments


def _ended(ids: list[int], longest: int, end: int) -> list[int]:
    """A hypothesis that was cut before its last token, with the end that `generate()` forces there."""
    return ids if len(ids) < longest - 1 or ids[longest - 2 : longest - 1] == [end] else [*ids[: longest - 1], end]
