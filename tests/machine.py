"""How slow this machine is, so that a bound on the time of a test holds on a slow or busy one too."""

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


# Processor time of `work` on the machine where bounds are set: a quiet core of AMD Zen 4.
USUAL = 0.016


def work() -> int:
    """Some of all that Python does when it reads a file: texts to objects, a loop, a sort."""
    content = json.loads(json.dumps([{str(number): [number, str(number)]} for number in range(10_000)]))
    values = sorted((str(value) for entry in content for value in entry.values()), reverse=True)
    return sum(len(value) ^ place for place, value in enumerate(values))


def slowness() -> float:
    """How many times as long as usual the same work takes here and now, but at least 1."""
    start = time.process_time()
    work()
    return max(1.0, (time.process_time() - start) / USUAL)


def is_within(seconds: float, bound: float) -> bool:
    """Whether a call that has just taken these seconds would take less than `bound` where bounds are set."""
    return seconds < bound or seconds < bound * slowness()


def seconds_of(call: Callable[[], object]) -> float:
    """Processor time of a call, without the collector of garbage, whose time grows with all that there is."""
    gc.collect()
    gc.disable()
    start = time.process_time()
    try:
        call()
    finally:
        gc.enable()
    return time.process_time() - start


def is_linear(seconds: Callable[[int], float], size: int) -> bool:
    """Whether twice the size takes twice the time, from 0.05 s on; tried again where other work may be to blame."""
    once = (seconds(size) for _ in range(3))  # before twice as much, which would else be the first that is read
    return any(seconds(2 * size) < max(2.7 * each, 0.05) for each in once)


@contextmanager
def within(bound: float) -> Iterator[None]:
    """A context whose work takes less processor time than `bound`, in seconds, where bounds are set."""
    start = time.process_time()
    yield
    seconds = time.process_time() - start
    assert is_within(seconds, bound), f"{seconds:.2f} s"
