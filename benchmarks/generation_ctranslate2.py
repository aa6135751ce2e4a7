"""CTranslate2 as an engine of the benchmark, without torch in the process."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import ctranslate2

from .generation_engine import Searcher, forget_peak
from .turns import peak_memory


def read_vocabulary(folder: Path, side: str) -> list[str]:
    """The tokens of one side of a converted model."""
    own = folder / f"{side}_vocabulary.json"
    return json.loads((own if own.exists() else folder / "shared_vocabulary.json").read_text(encoding="utf-8"))


def open_ctranslate2(settings: dict[str, Any]) -> Searcher:
    source, target = (read_vocabulary(Path(settings["folder"]), side) for side in ("source", "target"))
    target_ids = {piece: index for index, piece in enumerate(target)}
    translator = ctranslate2.Translator(
        settings["folder"],
        device="cpu",
        compute_type=settings["dtype"],
        inter_threads=1,
        intra_threads=settings["threads"],
    )

    def search(batches: list[list[list[str]]]) -> list[Any]:
        limits = {"max_decoding_length": settings["new_tokens"], "max_batch_size": max(map(len, batches))}
        return [translator.translate_batch(list(chain(*batches)), beam_size=settings["beams"], **limits)]

    return Searcher(
        prepare=lambda batch: [[source[index] for index in row] for row in batch],
        search=search,
        ids=lambda results: [[target_ids[piece] for piece in result.hypotheses[0]] for result in results],
        forget_peak=forget_peak,
        memory=peak_memory,
    )
