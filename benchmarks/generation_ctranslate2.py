"""CTranslate2 as an engine of the benchmark, without torch in the process."""

import json
import math
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
    limits: dict[str, int] = {}
    translator = ctranslate2.Translator(
        settings["folder"],
        device=settings["device"],
        compute_type=settings["dtype"],
        inter_threads=1,
        intra_threads=settings["threads"],
    )

    def configure(beams: int, new_tokens: int, options: dict[str, Any]) -> None:
        limits.update(beam_size=beams, max_decoding_length=new_tokens)

    def search(batches: list[list[list[str]]]) -> list[Any]:
        most = max(map(len, batches))
        return [translator.translate_batch(list(chain(*batches)), max_batch_size=most, **limits)]

    return Searcher(
        configure=configure,
        prepare=lambda batch: [[source[index] for index in row] for row in batch],
        search=search,
        ids=lambda results: [[target_ids[piece] for piece in result.hypotheses[0]] for result in results],
        forget_peak=forget_peak,
        memory=peak_memory if settings["device"] == "cpu" else lambda: math.nan,  # it does not say what it allocates
    )
