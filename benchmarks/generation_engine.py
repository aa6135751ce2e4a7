"""
One engine that searches, in its own process (see `turns.Engine`).

It translates the batches of a file repeatedly. Inputs and outputs are token ids; each engine converts its inputs
beforehand.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from .turns import CLOCKS, Turns, memory_now


class Searcher(NamedTuple):
    """
    An opened engine: functions that take the number of beams and of new tokens and other settings of `generate()`,
    convert the source ids of a batch to its input, the inputs of all batches to outputs, and an output to target ids
    without start, end and padding. All work is done when `search` returns. `memory` is the peak in MiB since
    `forget_peak`.
    """

    configure: Callable[[int, int, dict[str, Any]], None]
    prepare: Callable[[list[list[int]]], Any]
    search: Callable[[list[Any]], list[Any]]
    ids: Callable[[Any], list[list[int]]]
    forget_peak: Callable[[], None]
    memory: Callable[[], float]


# Name -> module with `open_NAME(settings)`. A module imports only its own engine, so that memory is measured
# separately.
OF_TORCH = ("ours", "batch_by_batch", "host_search", "static", "marian", "marian_static")
ENGINES = dict.fromkeys(OF_TORCH, ".generation_torch") | {"ctranslate2": ".generation_ctranslate2"}


def forget_peak() -> None:
    """Reset the peak of the process's memory, on systems that support it."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def one_turn(
    searcher: Searcher, inputs: list[Any], least_seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """Repeat whole passes over all batches until `least_seconds` of this clock have passed."""
    passes, start = 0, clock()
    seconds = 0.0
    while not passes or seconds < least_seconds:
        outputs = searcher.search(inputs)
        passes += 1
        seconds = clock() - start
    return {"seconds": seconds / passes, "outputs": [ids for output in outputs for ids in searcher.ids(output)]}


def work(
    searcher: Searcher, load: dict[str, Any], turns: Turns, least_seconds: float, clock: Callable[[], float]
) -> dict[str, Any]:
    """Take turns at a load until the parent sends another one, which is returned."""
    searcher.configure(load["beams"], load["new_tokens"], load["options"])
    inputs = [searcher.prepare(batch) for batch in json.loads(Path(load["batches"]).read_text())]
    searcher.forget_peak()
    opened = searcher.memory()
    searcher.search(inputs[:1])
    following = turns.report({})
    while not following:
        result = one_turn(searcher, inputs, least_seconds, clock)
        result["peak_mib"] = searcher.memory()
        result["search_mib"] = result["peak_mib"] - opened
        result["anonymous_mib"] = memory_now("RssAnon")
        following = turns.report(result)
    return following


def main(settings: dict[str, Any]) -> None:
    turns = Turns()
    searcher = getattr(import_module(ENGINES[settings["engine"]], __package__), f"open_{settings['engine']}")(settings)
    load = settings["load"]
    while True:
        load = work(searcher, load, turns, settings["seconds"], CLOCKS[settings["clock"]])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
