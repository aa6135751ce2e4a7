"""
time and memory of each kind of self-attention over the length of a sequence

One attention module of the base model's width (512, 8 heads), with a batch size of 1. The kinds take turns in one
process. Memory is the peak in a separate process, minus what that process held before the call. "token" is one step of
greedy search in a decoder of one layer after a prompt of the given length. The exponents are fitted to the times over
the lengths: an exponent of 2 means n², of 1 means n.

    vanilla-transformer benchmark attention --json attention.json --picture attention.png
    vanilla-transformer benchmark attention --lengths 512 8192 --window 128 --kinds full window

It includes peers: the local attention of LongT5 in transformers and, if they are installed, local-attention, linformer
and performer-pytorch.
"""

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from torch import nn

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForCausalLM
from vanilla_transformer_hf.common.files import new_file, open_output, refuse_overwriting
from vanilla_transformer_hf.model.attention_types_vanilla_transformer import ATTENTION_TYPES
from vanilla_transformer_hf.model.configuration_vanilla_transformer import (
    ATTENTION_FIELDS,
    SYNTHESIZERS,
    UNCAUSAL_KINDS,
)

from .generation_engine import forget_peak, peak_memory


WIDTH, HEADS = 512, 8
STEPS = 24
# Positions up to which synthesizers are measured: the table of `synthesizer_random` has 8 n² numbers.
LARGEST_TABLE = 2048
TASKS = ("forward", "training step", "token")


def sizes_of(kind: str, window: int, length: int) -> dict[str, Any]:
    """The fields of a config for the window or block of a kind, if it has one, and for this number of positions."""
    longest = {"max_position_embeddings": max(length, 2)}
    return longest | {
        name: window for name in ("attention_window", "attention_block") if kind in ATTENTION_FIELDS[name]
    }


class Ours(nn.Module):
    """Self-attention of this package, of one kind."""

    def __init__(self, kind: str, window: int, length: int):
        super().__init__()
        sizes = sizes_of(kind, window, length)
        config = VanillaTransformerConfig(d_model=WIDTH, encoder_attention_type=kind, **sizes)  # type: ignore[arg-type]
        config._attn_implementation = "sdpa"
        self.attention = ATTENTION_TYPES[kind](config, WIDTH, WIDTH, HEADS)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        mask = self.attention.mask(states, None, None, False)
        return self.attention(states, self.attention.show_globals(mask, states, None, None))[0]


class LongT5(nn.Module):
    """Local attention of LongT5 in transformers, without its table of positions."""

    def __init__(self, window: int, length: int):
        super().__init__()
        from transformers.models.longt5.modeling_longt5 import LongT5Config, LongT5LocalAttention

        self.attention = LongT5LocalAttention(
            LongT5Config(d_model=WIDTH, d_kv=WIDTH // HEADS, num_heads=HEADS, local_radius=window - 1),
            has_relative_attention_bias=False,
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.attention(states)[0]


class LocalAttentionPeer(nn.Module):
    """The package local-attention with projections: each block of `window` positions also sees its neighbours."""

    def __init__(self, window: int, length: int):
        super().__init__()
        from local_attention import LocalAttention

        self.maps = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.attention = LocalAttention(
            dim=WIDTH // HEADS,
            window_size=window,
            look_backward=1,
            look_forward=1,
            autopad=True,
            use_rotary_pos_emb=False,
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        query, key, value = (one(states).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.maps[:3])
        return self.maps[3](self.attention(query, key, value).transpose(1, 2).flatten(-2))


def linformer_peer(window: int, length: int) -> nn.Module:
    """The package linformer, with 256 sums of keys and of values."""
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(WIDTH, length, k=256, heads=HEADS)


def performer_peer(window: int, length: int) -> nn.Module:
    """The package performer-pytorch, with as many random features as ours."""
    from performer_pytorch import SelfAttention

    return SelfAttention(WIDTH, heads=HEADS, dim_head=WIDTH // HEADS)


# Name -> function that makes the module for a window size and a length.
ENGINES: dict[str, Callable[[int, int], nn.Module]] = {
    **{kind: partial(Ours, kind) for kind in ATTENTION_TYPES},
    "LongT5": LongT5,
    "local-attention": LocalAttentionPeer,
    "linformer-package": linformer_peer,
    "performer-pytorch": performer_peer,
}
PACKAGES = {
    "local-attention": "local_attention",
    "linformer-package": "linformer",
    "performer-pytorch": "performer_pytorch",
}
INSTALLED = [name for name in ENGINES if name not in PACKAGES or importlib.util.find_spec(PACKAGES[name])]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="+", choices=ENGINES, default=INSTALLED, metavar="KIND", help="default: all")
    lengths = [256, 512, 1024, 2048, 4096, 8192, 16384]
    parser.add_argument("--lengths", nargs="+", type=int, default=lengths, metavar="N", help="tokens (256 … 16384)")
    parser.add_argument("--window", type=int, default=128, help="positions of a window or block (default: 128)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each kind (default: 3)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")
    parser.add_argument("--picture", metavar="FILE", help="draw time and memory over the length here, as PNG")


def work_of(name: str, task: str, length: int, window: int) -> Callable[[], float] | None:
    """A function that runs the task once and returns the seconds; None if the engine does not support the task."""
    torch.manual_seed(0)
    if name in SYNTHESIZERS and length > LARGEST_TABLE:
        return None
    if task == "token":
        return token_of(name, length, window) if name in {*ATTENTION_TYPES} - {*UNCAUSAL_KINDS} else None
    module, states = ENGINES[name](window, length), torch.randn(1, length, WIDTH)

    def forward() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            module(states)
        return time.perf_counter() - start

    def step() -> float:
        start = time.perf_counter()
        module(states.requires_grad_()).sum().backward()
        return time.perf_counter() - start

    return forward if task == "forward" else step


def token_of(kind: str, length: int, window: int) -> Callable[[], float]:
    """The time of one token of greedy search after a prompt: a search of several tokens minus a search of one
    token."""
    config = VanillaTransformerConfig(
        vocab_size=1000,
        decoder_layers=1,
        is_encoder_decoder=False,
        is_decoder=True,
        decoder_attention_type=kind,  # type: ignore[arg-type]
        **sizes_of(kind, window, length + 1 + STEPS),
    )
    model = VanillaTransformerForCausalLM(config).eval()
    prompt = torch.randint(3, 1000, (1, length))

    def token() -> float:
        seconds = []
        for tokens in (1, 1 + STEPS):
            start = time.perf_counter()
            model.generate(prompt, num_beams=1, max_new_tokens=tokens, min_new_tokens=tokens)
            seconds.append(time.perf_counter() - start)
        return (seconds[1] - seconds[0]) / STEPS

    return token


def memory_of(name: str, task: str, length: int, window: int, threads: int) -> float:
    """Peak memory of a call in MiB, minus what this process held before."""
    torch.set_num_threads(threads)
    work = work_of(name, task, length, window)
    if work is None:
        return math.nan
    forget_peak()
    before = peak_memory()
    work()
    return peak_memory() - before


def exponent(points: list[tuple[int, float]]) -> float:
    """The slope of a line through the logarithms of lengths and times; NaN for a single point."""
    pairs = [(math.log(length), math.log(value)) for length, value in points if value > 0]
    if len(pairs) < 2:
        return math.nan
    x, y = (sum(column) / len(pairs) for column in zip(*pairs))
    return sum((a - x) * (b - y) for a, b in pairs) / sum((a - x) ** 2 for a, _ in pairs)


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each task, length and kind: `seconds`, `mib` and, if full attention was measured, `speed` relative to
    it."""
    rows = []
    spawned = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with spawned:
        for task in arguments.tasks:
            for length in arguments.lengths:
                works = {name: work_of(name, task, length, arguments.window) for name in arguments.kinds}
                turns: dict[str, list[float]] = {name: [] for name, work in works.items() if work is not None}
                for _ in range(arguments.rounds + 1):
                    for name, seconds in turns.items():
                        seconds.append(works[name]())  # type: ignore[misc]
                for name, seconds in turns.items():
                    row = {"task": task, "length": length, "kind": name, "seconds": median(seconds[1:])}
                    where = (name, task, length, arguments.window, arguments.threads)
                    row["mib"] = spawned.submit(memory_of, *where).result()
                    if "full" in turns:
                        row["speed"] = median(a / b for a, b in zip(turns["full"][1:], seconds[1:]))
                    rows.append(row)
                    print(describe(row), flush=True)
    return rows


def describe(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    speed = f"{row['speed']:7.2f} × full" if "speed" in row else ""
    return (
        f"{row['task']:14} {row['length']:6,} {row['kind']:16} {1e3 * row['seconds']:10.2f} ms {speed} "
        f"{row['mib']:8,.0f} MiB"
    )


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Draw one panel for the time of each task, and one for the memory of a training step."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    tasks = [task for task in TASKS if any(row["task"] == task for row in rows)]
    lengths = sorted({row["length"] for row in rows})
    panels = [(task, "seconds", f"{task}: seconds") for task in tasks]
    panels += [("training step", "mib", "training step: MiB")] * ("training step" in tasks)
    figure = Figure(figsize=(4.2 * len(panels), 3.8), layout="constrained")
    for axes, (task, key, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for kind in dict.fromkeys(row["kind"] for row in rows):
            points = [(row["length"], row[key]) for row in rows if (row["task"], row["kind"]) == (task, kind)]
            if points:
                slope = f" n^{exponent(points):.2f}" if key == "seconds" and len(points) > 1 else ""
                axes.loglog(*zip(*points), marker="o", markersize=3, label=kind + slope)
        axes.set(title=title, xlabel="tokens")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=30)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    with new_file(path) as place:
        figure.savefig(place, format="png", dpi=120)


def run(arguments: argparse.Namespace) -> None:
    """
    Measure, print a line for each measurement and the exponents, write the numbers, and draw them.

    Raises:
        ValueError: A number is too small.
    """
    if min(arguments.rounds, arguments.threads, arguments.window, *arguments.lengths) < 1:
        raise ValueError("--rounds, --threads, --window and --lengths are 1 or more")
    for path in (arguments.json, arguments.picture):
        if path:
            refuse_overwriting(path, [])
    torch.set_num_threads(arguments.threads)
    rows = measure(arguments)
    for task in arguments.tasks:
        for kind in arguments.kinds:
            points = [(row["length"], row["seconds"]) for row in rows if (row["task"], row["kind"]) == (task, kind)]
            if len(points) > 1:
                print(f"{task:14} {kind:16} grows with n^{exponent(points):.2f}")
    if arguments.json:
        with open_output(arguments.json) as file:
            file.write((json.dumps(rows, indent=2) + "\n").encode())
    if arguments.picture:
        draw(rows, arguments.picture)
