"""
time and memory of the Transformer and of the recurrent models before it over the length of sentences

The models are those of the variants file `predecessors`, with random weights and a vocabulary of 8,000 tokens; they
take turns in one process. A training step is forward and backward of a batch whose sources and targets have the given
length each. "first token" is greedy search for one token of one sentence with a source of that length, "next token"
what a further one takes. Memory is the peak in a separate process, minus what that process held before the call. The
exponents are fitted to the times of a sentence over the lengths: 1 means that time grows with the length n, 2 with n².

    python -m benchmarks predecessors --json predecessors.json --picture predecessors.png
    python -m benchmarks predecessors --lengths 16 64 --models transformer gru_bahdanau
"""

import argparse
import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM

from .attention import exponent
from .generation_engine import forget_peak
from .results import check_outputs, in_turns, write_json, write_picture
from .turns import peak_memory


VOCABULARY = 8000
STEPS = 16
TASKS = ("training step", "first token", "next token")


def models() -> dict[str, dict[str, Any]]:
    """Name -> fields of the recipe, of the variants file."""
    from vanilla_transformer_hf.commands.compare import VARIANTS
    from vanilla_transformer_hf.training.comparison.comparison import read_variants

    return read_variants(str(VARIANTS["predecessors"])).variants


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", metavar="NAME", help="variants of the file (default: all)")
    lengths = [16, 32, 64, 128, 256, 512]
    parser.add_argument("--lengths", nargs="+", type=int, default=lengths, metavar="N", help="tokens (16 … 512)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help="default: all")
    parser.add_argument("--batch", type=int, default=8, help="sentences of a training step (default: 8)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each model (default: 3)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")
    parser.add_argument("--picture", metavar="FILE", help="draw speed, memory and latency over the length, as PNG")


def model_called(name: str, length: int) -> Any:
    """The model of a variant with random weights; a Transformer has as many positions as it needs."""
    from vanilla_transformer_hf.training.recipe import CONFIGS, ConfigArguments

    fields = dict(models()[name])
    config = CONFIGS[fields.pop("model_type", "vanilla_transformer")]
    fields = {key: value for key, value in fields.items() if key in ConfigArguments.__annotations__}
    if "encoder_ffn_dim" in fields:
        fields |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
        fields |= {"max_position_embeddings": max(1024, length + STEPS + 1)}
    torch.manual_seed(0)
    return AutoModelForSeq2SeqLM.from_config(config(vocab_size=VOCABULARY, **fields), attn_implementation="eager")


def work_of(name: str, task: str, length: int, batch: int) -> Callable[[], float]:
    """A function that runs the task once and returns the seconds."""
    model = model_called(name, length)
    if task == "training step":
        source, target = (torch.randint(3, VOCABULARY, (batch, length)) for _ in range(2))
        model.train()

        def step() -> float:
            start = time.perf_counter()
            model(source, torch.ones_like(source), labels=target, return_logits=False).loss.backward()
            return time.perf_counter() - start

        return step
    model.eval()
    source = torch.randint(3, VOCABULARY, (1, length))

    def search(tokens: int) -> float:
        start = time.perf_counter()
        model.generate(source, num_beams=1, max_new_tokens=tokens, min_new_tokens=tokens)
        return time.perf_counter() - start

    if task == "first token":
        return lambda: search(1)
    return lambda: (search(1 + STEPS) - search(1)) / STEPS


def memory_of(name: str, task: str, length: int, batch: int, threads: int) -> float:
    """Peak memory of a call in MiB, minus what this process held before, after a call of two tokens."""
    torch.set_num_threads(threads)
    work_of(name, task, 2, 1)()
    work = work_of(name, task, length, batch)
    forget_peak()
    before = peak_memory()
    work()
    return peak_memory() - before


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each task, length and model: `seconds`, `tokens_per_second` and `mib` of training steps."""
    rows = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as spawned:
        for task in arguments.tasks:
            for length in arguments.lengths:
                works = {name: work_of(name, task, length, arguments.batch) for name in arguments.models}
                for name, seconds in in_turns(works, arguments.rounds).items():
                    row: dict[str, Any] = {"task": task, "length": length, "model": name}
                    row["seconds"] = median(seconds)
                    if task == "training step":
                        row["tokens_per_second"] = arguments.batch * length / row["seconds"]
                        where = (name, task, length, arguments.batch, arguments.threads)
                        row["mib"] = spawned.submit(memory_of, *where).result()
                    rows.append(row)
                    print(describe(row), flush=True)
    return rows


def describe(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    text = f"{row['task']:14} {row['length']:6,} {row['model']:14} {1e3 * row['seconds']:10.2f} ms"
    if "mib" in row:
        text += f" {row['tokens_per_second']:9,.0f} target tokens/s {row['mib']:8,.0f} MiB"
    return text


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Draw the speed and the memory of training steps, and the time of the first and of a next token."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    every = (
        ("training step", "tokens_per_second", "training: target tokens a second"),
        ("training step", "mib", "training step: MiB"),
        ("first token", "seconds", "first token: seconds"),
        ("next token", "seconds", "next token: seconds"),
    )
    panels = [panel for panel in every if panel[0] in {row["task"] for row in rows}]
    lengths = sorted({row["length"] for row in rows})
    figure = Figure(figsize=(4.2 * len(panels), 3.8), layout="constrained")
    for axes, (task, key, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for name in dict.fromkeys(row["model"] for row in rows):
            points = [(row["length"], row[key]) for row in rows if (row["task"], row["model"]) == (task, name)]
            axes.loglog(*zip(*points), marker="o", markersize=3, label=name)
        axes.set(title=title, xlabel="tokens of source and target" if task == TASKS[0] else "tokens of the source")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    write_picture(path, figure)


def run(arguments: argparse.Namespace) -> None:
    """Measure, print a line for each measurement and the exponents, write the numbers, and draw them."""
    if min(arguments.rounds, arguments.threads, arguments.batch, *arguments.lengths) < 1:
        raise ValueError("--rounds, --threads, --batch and --lengths are 1 or more")
    arguments.models = arguments.models or list(models())
    for name in arguments.models:
        if name not in models():
            raise ValueError(f"--models {name}: expected one of {', '.join(models())}")
    check_outputs((arguments.json, arguments.picture))
    torch.set_num_threads(arguments.threads)
    rows = measure(arguments)
    for task in arguments.tasks:
        for name in arguments.models:
            points = [(row["length"], row["seconds"]) for row in rows if (row["task"], row["model"]) == (task, name)]
            if not math.isnan(slope := exponent(points)):
                print(f"{task:14} {name:14} grows with n^{slope:.2f}")
    write_json(arguments.json, rows)
    if arguments.picture:
        draw(rows, arguments.picture)
