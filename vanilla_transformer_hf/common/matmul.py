"""
The library that computes float32 matrix products on this machine's CPU: measured once, cached, and replaced only
if another is clearly faster.

torch's default is one library, and oneDNN is another that it also ships; on some CPUs the second is two to three
times as fast. The switch that selects it also allows it to round to bfloat16, which it does on CPUs with matrix
units for bfloat16. So its error is measured each time, and it is not used if it rounds. The two libraries add in
different orders, so the choice changes the last bits of a training: it must not depend on how busy the machine is.
Nothing happens on import; accelerators are not touched.
"""

import json
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from huggingface_hub import cached_assets_path

from .files import write_text


# Name -> value of `torch.backends.mkldnn.matmul.fp32_precision`. "tf32" is left out: where it differs, it rounds.
MATMULS = {"default": "none", "onednn": "bf16"}
# Largest error of sums of 512 products of standard normal numbers. Computed in float32 it is about 1e-4, with factors
# rounded to TF32 about 3e-2, rounded to bfloat16 about 3e-1.
TOLERANCE = 1e-3
# A backend has to be faster by this factor to replace the default. Where oneDNN helps, it is 2 to 3 times as fast;
# elsewhere 1.0 to 1.25 was measured on a busy machine: noise does not cross this margin.
MARGIN = 1.5

ROWS, INNER, COLUMNS, REPEATS = 256, 512, 1024, 15


class MatmulRow(NamedTuple):
    """Measurements of one backend: its name, most GFLOP/s, and the largest error against float64."""

    name: str
    gflops: float
    error: float


def _switch() -> Any:
    """What holds the switch, None in a torch without it."""
    return getattr(torch.backends.mkldnn, "matmul", None) if torch.backends.mkldnn.is_available() else None


def available_matmuls() -> list[str]:
    """The backends of this build of torch, the default first."""
    return list(MATMULS) if _switch() is not None else ["default"]


def set_matmul(name: str) -> None:
    """Compute float32 matrix products on the CPU with this backend from now on, in the whole process."""
    if name not in available_matmuls():
        raise ValueError(f"matmul={name!r}: must be one of {', '.join(map(repr, available_matmuls()))} here")
    if (switch := _switch()) is not None:
        switch.fp32_precision = MATMULS[name]


# The switch applies to the whole process. The stack of active `matmul` contexts of all threads: their names, and below
# them the original value of the switch.
_lock, _active = threading.Lock(), list[Any]()


@contextmanager
def matmul(name: str) -> Iterator[None]:
    """Inside `with matmul(name):`, float32 products are computed with this backend; afterwards as before."""
    switch, entry = _switch(), [name]  # a list, because equal names are different entries
    with _lock:
        before = getattr(switch, "fp32_precision", None)
        set_matmul(name)
        _active.extend([entry] if _active else [before, entry])
    try:
        yield
    finally:
        with _lock:
            _active[:] = [other for other in _active if other is not entry]
            if len(_active) > 1:
                set_matmul(_active[-1][0])
            else:
                before = _active.pop()
                if switch is not None:
                    switch.fp32_precision = before


def _products(generator: torch.Generator) -> list[tuple[Callable[..., torch.Tensor], list[torch.Tensor]]]:
    """One product of each kind of a training step, with its factors."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return [
        (F.linear, [draw(ROWS, INNER), draw(COLUMNS, INNER), draw(COLUMNS)]),  # a layer
        (lambda left, right: left.t() @ right, [draw(INNER, 64), draw(INNER, COLUMNS)]),  # the gradient of its weights
        (lambda left, right: left @ right.transpose(2, 3), [draw(2, 4, 32, INNER), draw(2, 4, 32, INNER)]),  # heads
    ]


def probe_matmul() -> list[MatmulRow]:
    """Rows of the backends, the default first: speeds, measured once on this machine, and errors, measured now."""
    names, errors = available_matmuls(), measure_errors()
    speeds = known_speeds(*names) if len(names) > 1 else {}
    return [MatmulRow(name, speeds.get(name, 0.0), errors[name]) for name in names]


def known_speeds(*names: str) -> dict[str, float]:
    """GFLOP/s of these at least, each a backend or "bfloat16", measured once on this machine."""
    speeds = _recall().get(machine := _machine(), {})
    if unknown := [name for name in names if name not in speeds]:
        speeds |= measure_speeds(*unknown)
        with suppress(OSError):  # else they are measured each time
            write_text(_memory(), json.dumps(_recall() | {machine: speeds}, indent=2))
    return speeds


def _memory() -> Path:
    """The file of the measured speeds, in the assets cache of the Hugging Face libraries (HF_ASSETS_CACHE)."""
    return cached_assets_path("vanilla_transformer_hf", "matmul", "speeds") / "gflops.json"


def _machine() -> str:
    """The key of the measured speeds: CPU, threads and torch."""
    build = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        fields = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
        described = {name.strip(): value.strip() for name, value in fields.items()}
        names = ("vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer", "CPU part")
        processor = " ".join(described[name] for name in names if name in described)
        if processor:
            return f"{processor}, {build}"
    return f"{platform.processor() or platform.machine()}, {build}"


def _recall() -> dict[str, dict[str, float]]:
    """Machine -> backend -> GFLOP/s."""
    try:
        known = json.loads(_memory().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


@torch.no_grad()
def measure_errors() -> dict[str, float]:
    """Backend -> the largest error against float64, of one product of each kind of a training step."""
    products = _products(torch.Generator().manual_seed(0))
    exact = [product(*(factor.double() for factor in factors)) for product, factors in products]
    errors = dict.fromkeys(available_matmuls(), 0.0)
    for name in errors:
        with matmul(name):
            for (product, factors), reference in zip(products, exact):
                error = (product(*factors) - reference).abs().max().item()
                errors[name] = max(errors[name], error)
    return errors


@torch.no_grad()
def measure_speeds(*names: str) -> dict[str, float]:
    """Backend, or "bfloat16" -> most GFLOP/s on this process's threads, of products that are computed in turns."""
    # The fastest, because the choice is kept: on two cores, one of which another program used, medians were 15 and 15
    # GFLOP/s and the fastest 216 and 443, as when nothing else runs. The first call of each prepares its kernels.
    layer, factors = _products(torch.Generator().manual_seed(0))[0]
    rounded = [factor.bfloat16() for factor in factors]
    turns = {name: ("default", rounded) if name == "bfloat16" else (name, factors) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(1 + REPEATS):
        for name, (backend, own) in turns.items():
            with matmul(backend):
                start = time.perf_counter()
                layer(*own)
                seconds[name].append(time.perf_counter() - start)
    return {name: 2e-9 * ROWS * INNER * COLUMNS / min(times) for name, times in seconds.items()}


def choose_matmul(name: str = "auto", rows: list[MatmulRow] | None = None) -> str:
    """The backend of this name, or for "auto" the default, unless another is faster by `MARGIN`; none that rounds."""
    if name == "default":
        return name
    measured = {row.name: row for row in (probe_matmul() if rows is None else rows)}
    if name == "auto":
        default = measured["default"]
        faster = [row for row in measured.values() if row.error <= TOLERANCE and row.gflops > MARGIN * default.gflops]
        return max(faster, key=lambda row: row.gflops, default=default).name
    if name not in measured:
        raise ValueError(f"matmul={name!r}: must be one of {', '.join(map(repr, ['auto', *measured]))} here")
    if measured[name].error > TOLERANCE:
        raise ValueError(
            f"matmul={name!r}: on this CPU it rounds (largest error {measured[name].error:.0e}, allowed "
            f"{TOLERANCE:.0e}); use 'default'"
        )
    return name


def describe_matmul(name: str, rows: list[MatmulRow]) -> str:
    """One line for users: the backend in use and the measurements of each."""
    measured = ", ".join(f"{row.name} {row.gflops:.0f} GFLOP/s with error {row.error:.0e}" for row in rows)
    return f"float32 matrix products: {name} ({measured})"
