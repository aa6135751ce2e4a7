"""
time and memory of each kind of self-attention over the length of a sequence

One attention module of the base model's width (512, 8 heads), with a batch size of 1. The kinds take turns in one
process. Memory is the peak in a separate process, minus what that process held before the call. "forward" has packed
weights, as an encoder has in generate(). "token" is one step of greedy search in a decoder of one layer after a prompt
of the given length. "layer" is each row of the paper's table of complexity, over the length and, at --layer_length
tokens, over the width. The exponents are fitted to the times: an exponent of 2 over the length means n², of 1 means n.

    python -m benchmarks attention --markdown attention.md --json attention.json --picture attention.png
    python -m benchmarks attention --lengths 512 8192 --window 128 --kinds full window
    python -m benchmarks attention --tasks layer --lengths 512 1024 2048 4096 --widths 256 512 1024
    python -m benchmarks attention --kinds full window --clock processor --threads 1   # on a busy machine

All kinds and peers run alike with the library of float32 products that --matmul chooses, as train chooses it, and in
large pages of memory, as in train. "full" is torch's fused kernel, which keeps no n × n scores; it is
measured with the other library, too, and speeds are relative to the faster of both. "eager" keeps the scores.
"chunk_mean" is `chunk` with chunk_summary="mean"; "recurrent" reads segments of as many positions as --window, with a
memory of as many, and a prompt in one pass. Peers are the local attention of LongT5 in transformers and, if they
are installed, local-attention, linformer and performer-pytorch.
"""

import argparse
import math
import os
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_all_start_methods, get_context
from statistics import median
from typing import Any

import torch

from vanilla_transformer_hf.common.files import write_text
from vanilla_transformer_hf.common.matmul import (
    MATMULS,
    TOLERANCE,
    available_matmuls,
    choose_matmul,
    describe_matmul,
    probe_matmul,
)

from .attention_engines import ENGINES, HEADS, INSTALLED, KINDS, LAYERS, WIDTH, work_of
from .generation_engine import forget_peak
from .results import check_outputs, in_turns, write_json, write_picture
from .turns import CLOCKS, peak_memory


# Large pages on Linux: torch reads this once, at its first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

TASKS = ("forward", "training step", "token", "layer")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Engines with which others are compared.
BASELINES = ("full", "eager")
MOST_LINES = 4  # in a panel of the picture, beside those


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="+", choices=ENGINES, default=INSTALLED, metavar="KIND", help="default: all")
    lengths = [256, 512, 1024, 2048, 4096, 8192, 16384]
    parser.add_argument("--lengths", nargs="+", type=int, default=lengths, metavar="N", help="tokens (256 … 16384)")
    widths = [128, 256, 512, 1024, 2048]
    parser.add_argument("--widths", nargs="+", type=int, default=widths, metavar="D", help="of layers (128 … 2048)")
    parser.add_argument("--layer_length", type=int, default=2048, help="tokens of layers over the width (2048)")
    parser.add_argument("--window", type=int, default=128, help="positions of a window or block (default: 128)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each kind (default: 3)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="wall-clock time (default), or CPU time, which other programs disturb less",
    )
    parser.add_argument(
        "--matmul",
        choices=["auto", *MATMULS],
        default="auto",
        help="library of float32 products: the fastest that does not round (default), torch's own, or oneDNN",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="type of weights and states (float32)")
    parser.add_argument("--markdown", metavar="FILE", help="write a table for each task here, in Markdown")
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")
    parser.add_argument("--picture", metavar="FILE", help="draw time and memory over the length here, as PNG")


def memory_of(name: str, task: str, length: int, window: int, dtype: str, products: str, threads: int) -> float:
    """Peak memory of a call in MiB, minus what this process held before."""
    torch.set_num_threads(threads)
    work = work_of(name, task, length, window, dtype=DTYPES[dtype], products=products)
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


def fresh_processes() -> ProcessPoolExecutor:
    """Processes that run one task each; where the system can, they are copies of one that has only imported torch."""
    context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload([work_of.__module__])
    return ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1)


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """
    A row for each task, length, width and kind: `over` is which of length and width is varied; `seconds`; `mib`
    unless it is a layer; relative to those of `BASELINES` that were measured, `speed` and `memory` by the baseline's
    name.
    """
    rows = []
    with fresh_processes() as processes:
        for task in arguments.tasks:
            places = [("length", length, WIDTH) for length in arguments.lengths]
            if task == "layer":
                places += [("width", arguments.layer_length, width) for width in arguments.widths]
            for over, length, width in places:
                for row in take_turns(task, length, width, arguments, processes):
                    rows.append({"over": over} | row)
                    print(describe(row), flush=True)
    return rows


def kind_of(name: str) -> str:
    """The kind of a row: `full` of "full, onednn", which is `full` with another library of products than others."""
    return name.partition(", ")[0]


def take_turns(
    task: str, length: int, width: int, arguments: argparse.Namespace, processes: Executor
) -> list[dict[str, Any]]:
    """The rows of one task at one length and width."""
    kinds = {}
    for name in LAYERS if task == "layer" else arguments.kinds:
        kinds[name] = arguments.matmul
        if name == "full":
            kinds |= {f"{name}, {other}": other for other in arguments.other_matmuls}
    places = (task, length, arguments.window)
    works = {
        name: work_of(kind_of(name), *places, width, arguments.clock, DTYPES[arguments.dtype], products)
        for name, products in kinds.items()
    }
    turns = in_turns({name: work for name, work in works.items() if work is not None}, arguments.rounds)
    found: dict[str, dict[str, Any]] = {}
    for name, seconds in turns.items():
        found[name] = {"task": task, "length": length, "width": width, "kind": name, "seconds": median(seconds)}
        if task != "layer":
            where = (kind_of(name), *places, arguments.dtype, kinds[name], arguments.threads)
            found[name]["mib"] = processes.submit(memory_of, *where).result()
    for name, row in found.items():
        row["speed"], row["memory"] = {}, {}
        for base in BASELINES:
            same = [other for other in found if kind_of(other) == base]
            if same:
                fastest = min(same, key=lambda other: found[other]["seconds"])
                row["speed"][base] = median(a / b for a, b in zip(turns[fastest], turns[name]))
                if found[base].get("mib"):
                    row["memory"][base] = row["mib"] / found[base]["mib"]
    return list(found.values())


def describe(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    text = f"{row['task']:14} {row['length']:6,} {row['kind']:18} {1e3 * row['seconds']:10.2f} ms"
    if row["task"] == "layer":
        return f"{text} of width {row['width']:,}"
    speed = "".join(f" {value:7.2f} × {base}" for base, value in row["speed"].items())
    memory = ", ".join(f"{value:.2f} × {base}" for base, value in row["memory"].items())
    return f"{text}{speed} {row['mib']:8,.0f} MiB" + (f" ({memory})" if memory else "")


def curves(rows: list[dict[str, Any]], task: str, over: str, key: str) -> dict[str, list[tuple[int, float]]]:
    """For each kind the points of a task over `length` or `width`."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if (row["task"], row["over"]) == (task, over):
            found.setdefault(row["kind"], []).append((row[over], row[key]))
    return found


def describe_growth(rows: list[dict[str, Any]]) -> list[str]:
    """For each task and kind the exponent of the time, as a line of text."""
    found = []
    for task in TASKS:
        for over, letter in (("length", "n"), ("width", "d")):
            for kind, points in curves(rows, task, over, "seconds").items():
                if len(points) > 1:
                    note = f" (operations: {LAYERS[kind][1]})" if task == "layer" else ""
                    found.append(f"{task:14} {kind:18} grows with {letter}^{exponent(points):.2f}{note}")
    return found


def tables(rows: list[dict[str, Any]], about: str) -> str:
    """
    In Markdown, a table for each task, with a column for each length or width: the speed relative to the faster
    `full`, whose row has milliseconds; the memory of a training step; the milliseconds of a token and of a layer.
    """
    found = [about]
    panels = [(task, "length", "seconds") for task in TASKS] + [("layer", "width", "seconds")]
    panels.insert(2, ("training step", "length", "mib"))
    for task, over, key in panels:
        lines = curves(rows, task, over, key)
        if not lines:
            continue
        places = sorted({place for points in lines.values() for place, _ in points})
        fastest = {
            place: min((dict(lines[name])[place] for name in lines if kind_of(name) == "full"), default=0.0)
            for place in places
        }
        is_speed = key == "seconds" and task in TASKS[:2] and all(fastest.values())
        unit = "ms" if over == "length" else "over the width, ms"
        title = f"{task}, MiB" if key == "mib" else f"{task}, speed (`full`: ms)" if is_speed else f"{task}, {unit}"
        heads = [f"{place:,}" for place in places] + (["grows with"] if key == "seconds" else [])
        found += ["", f"| {title} | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(heads)]
        for name, points in lines.items():
            own, cells = dict(points), []
            for place in places:
                if place not in own:
                    cells.append("–")
                elif key == "mib":
                    cells.append(f"{own[place]:,.0f}")
                elif is_speed and kind_of(name) != "full":
                    row = next(row for row in rows if (row["task"], row["kind"], row["length"]) == (task, name, place))
                    cells.append(f"{row['speed']['full']:.2f}")
                else:
                    cells.append(f"{1e3 * own[place]:,.{0 if own[place] >= 0.1 else 2}f}")
            if key == "seconds":
                cells.append(f"{'n' if over == 'length' else 'd'}^{exponent(points):.2f}" if len(points) > 1 else "–")
            found.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(found) + "\n"


def figure_of(rows: list[dict[str, Any]]) -> Any:
    """
    Small multiples of `full` with one library of products, and of the other kinds: a column for the seconds of each
    task and for the memory of a step, a row for each few kinds, against the gray lines of `BASELINES`. Below them are
    the layers, over the length and over the width.
    """
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["kind"] == kind_of(row["kind"])]
    measures = [(task, "seconds") for task in TASKS if task != "layer"]
    measures.insert(2, ("training step", "mib"))
    measures = [(task, key) for task, key in measures if curves(rows, task, "length", key)]
    layers = [over for over in ("length", "width") if curves(rows, "layer", over, "seconds")]
    kinds = list(dict.fromkeys(row["kind"] for row in rows if row["task"] != "layer"))
    groups = groups_of(kinds)
    down, across = len(groups) + bool(layers), max(len(measures), 2 * len(layers))
    figure = Figure(figsize=(2.8 * across + 1.7, 2.3 * down + 0.4), layout="constrained")
    grid = figure.add_gridspec(down, across + 1, width_ratios=[1] * across + [0.55])
    for row, group in enumerate(groups):
        add_legend(figure.add_subplot(grid[row, across]), [kind for kind in [*BASELINES, *group] if kind in kinds])
    for column, (task, key) in enumerate(measures):
        found, above = curves(rows, task, "length", key), None
        for row, group in enumerate(groups):
            if group and not found.keys() & {*group}:
                continue  # others have no token
            above = figure.add_subplot(grid[row, column], sharex=above, sharey=above)
            draw_lines(above, found, [*BASELINES, *group], "length")
            above.set_title(f"{task}: {'MiB' if key == 'mib' else 'seconds'}" if row == 0 else "", fontsize=11)
            above.set_xlabel("tokens" if row == len(groups) - 1 else "")
    for place, over in enumerate(layers):
        axes = figure.add_subplot(grid[down - 1, 2 * place : 2 * place + 2])
        draw_lines(axes, curves(rows, "layer", over, "seconds"), list(LAYERS), over)
        axes.set_title("layer: seconds", fontsize=11)
    if layers:
        add_legend(figure.add_subplot(grid[down - 1, across]), list(LAYERS))
    return figure


def groups_of(kinds: list[str]) -> list[list[str]]:
    """Kinds beside `BASELINES` by `MOST_LINES`, of this package and then of others."""
    others = [kind for kind in kinds if kind not in BASELINES]
    found = []
    for names in ([kind for kind in others if kind in KINDS], [kind for kind in others if kind not in KINDS]):
        found += [names[place : place + MOST_LINES] for place in range(0, len(names), MOST_LINES)]
    return found or [[]]


def style_of(kind: str, place: int) -> dict[str, Any]:
    """How a line is drawn; `place` counts the kinds of a panel other than its baselines."""
    if kind in BASELINES:
        return {"color": "0.55", "linestyle": ("-", "--")[BASELINES.index(kind)], "linewidth": 1.2}
    return {"color": f"C{place}", "marker": "osD^"[place % MOST_LINES], "markersize": 4}


def styles_of(kinds: list[str]) -> dict[str, dict[str, Any]]:
    """How the lines of a panel are drawn, by kind."""
    others = [kind for kind in kinds if kind not in BASELINES]
    return {kind: style_of(kind, others.index(kind) if kind in others else 0) for kind in kinds}


def draw_lines(axes: Any, found: dict[str, list[tuple[int, float]]], kinds: list[str], over: str) -> None:
    """The lines of some kinds in a panel, over "length" or "width"."""
    from matplotlib.ticker import NullLocator

    for kind, style in styles_of(kinds).items():
        if kind in found:
            axes.loglog(*zip(*found[kind]), **style)
    places = sorted({place for points in found.values() for place, _ in points})
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(places, [f"{place // 1024}k" if place >= 1024 else str(place) for place in places])
    axes.set_xlabel("tokens" if over == "length" else "width")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(alpha=0.3)


def add_legend(axes: Any, kinds: list[str]) -> None:
    """The names of the lines of a row, in a panel of their own."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=kind, **style) for kind, style in styles_of(kinds).items()]
    axes.legend(handles=handles, fontsize=9, loc="center left", frameon=False)
    axes.set_axis_off()


def run(arguments: argparse.Namespace) -> None:
    """Measure, print a line for each measurement and the exponents, write the numbers, and draw them."""
    numbers = (arguments.rounds, arguments.threads, arguments.window, arguments.layer_length, *arguments.lengths)
    if min(numbers) < 1:
        raise ValueError("--rounds, --threads, --window, --layer_length and --lengths are 1 or more")
    wrong = [width for width in arguments.widths if width < HEADS or width % HEADS]
    if wrong:
        raise ValueError(f"--widths {wrong[0]}: must be a multiple of {HEADS}, the number of heads")
    check_outputs((arguments.markdown, arguments.json, arguments.picture))
    torch.set_num_threads(arguments.threads)
    about = f"{arguments.dtype}, {arguments.threads} threads, window {arguments.window}, {arguments.rounds} rounds"
    arguments.other_matmuls = []
    if arguments.dtype == "float32":  # bfloat16 has no choice
        measured = probe_matmul()
        arguments.matmul = choose_matmul(arguments.matmul, measured)
        exact = {row.name for row in measured if row.error <= TOLERANCE}
        arguments.other_matmuls = [name for name in available_matmuls() if name in exact - {arguments.matmul}]
        about += f"; {describe_matmul(arguments.matmul, measured)}"
    else:
        arguments.matmul = "default"
    print(about, flush=True)
    rows = measure(arguments)
    print("\n".join(describe_growth(rows)))
    if arguments.markdown:
        write_text(arguments.markdown, tables(rows, about))
    write_json(arguments.json, rows)
    if arguments.picture:
        write_picture(arguments.picture, figure_of(rows))
