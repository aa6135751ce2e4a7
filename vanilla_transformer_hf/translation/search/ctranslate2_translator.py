"""The search of a [`Translator`] by CTranslate2: its scores are those of the model, by torch."""

import copy
from pathlib import Path
from typing import Any

import torch

from ...model.config.search_settings import REQUESTS
from ..text.texts import pad_rows
from .ctranslate2_search import CTranslate2Search
from .token_translator import TokenTranslator


# Searches that may run at the same time, for callers with several threads: a long one does not hold up the others.
PARALLEL_SEARCHES = 2


class CTranslate2Translator(TokenTranslator, CTranslate2Search):
    """`CTranslate2Search` with tensors, and with the scores that the model of this package computes."""

    can_stream = can_pause = False

    def __init__(self, model: Any, pad_token_id: int, max_positions: int, folder: Path, threads: int):
        TokenTranslator.__init__(self, model, pad_token_id, max_positions)
        CTranslate2Search.__init__(self, model, pad_token_id, max_positions, folder, threads, PARALLEL_SEARCHES)

    def _search(
        self, source: dict[str, torch.Tensor], return_scores: bool, options: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows = [ids[mask.bool()].tolist() for ids, mask in zip(*source.values())]
        found = self._sequences(rows, options.pop("prefixes", None), options)
        sequences, _ = pad_rows([each for lists in found for each in lists], self.pad_token_id)
        return self._read_output(
            sequences.to(source["input_ids"].device), source, options=options, return_scores=return_scores
        )

    def _merged(self, options: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in options.items() if name not in (*REQUESTS, "generation_config")}
        config = copy.deepcopy(options.get("generation_config") or self.model.generation_config)
        unknown = config.update(**given)
        return {**config.to_diff_dict(), **unknown}
