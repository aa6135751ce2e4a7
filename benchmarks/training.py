"""
our Trainer against MarianMT with the stock Seq2SeqTrainer and torch.nn.Transformer with a plain loop

On a GPU the engines start side by side, and memory is what torch allocates there. In a minute, once packages are
installed, with TF32 or without it:

    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 python -m benchmarks train --device cuda --presets base --loads step \\
        --against marian --sentences 512 --rounds 5 --block 10 --time_limit 60
"""

import argparse
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from vanilla_transformer_hf import VanillaTransformerConfig
from vanilla_transformer_hf.common.matmul import (
    choose_matmul,
    describe_matmul,
    matmul,
    probe_matmul,
)

from .results import check_outputs, write_json
from .turns import CLOCKS, Engine, OutOfTimeError, TimeLimit, take_turns


# Name -> preset of the config, and the fields that differ. "smoke" is for tests; its speed means nothing.
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("base", {"vocab_size": 37_000}),
    "small": (
        "multi30k_tiny",
        {"d_model": 256, "encoder_layers": 3, "decoder_layers": 3, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024},
    ),
    "tiny": ("multi30k_tiny", {}),  # of the model in model_cards/
    "smoke": ("multi30k_tiny", {"vocab_size": 400, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}),
}


# Instructions, by Linux's names, that decide how fast float32, int8 and bfloat16 are.
INSTRUCTIONS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")

# The environment variables that the command `train` sets before torch allocates memory.
SCRIPT_ENVIRONMENT = {"THP_MEM_ALLOC_ENABLE": "1"}


class Row(NamedTuple):
    """An engine with its settings: name in the table, model class, attention implementation and matmul backend."""

    name: str
    engine: str
    attention: str
    matmul: str


# Ours comes first: ratios are our speed divided by the others'. bfloat16 has no choice of matmul backends.
BFLOAT16_ROWS = [
    Row("ours", "ours", "eager", "default"),
    Row("ours, Seq2SeqTrainer", "stock", "sdpa", "default"),  # as its users run it, too
    Row("MarianMT", "marian", "sdpa", "default"),
    Row("torch.nn.Transformer", "torch", "sdpa", "default"),
    Row("ours with R-Drop", "r_drop", "eager", "default"),
    Row("ours, bfloat16 moment", "bfloat16_moment", "eager", "default"),
]
# Those of our Trainer; of a run there is only the first.
OURS = ("ours", "r_drop", "bfloat16_moment")


def float32_rows(chosen: str) -> list[Row]:
    """The default settings and, if another backend was chosen, pairs with the same backend on both sides."""
    rows = [row._replace(matmul=chosen) if row.engine in OURS else row for row in BFLOAT16_ROWS]
    if chosen != "default":
        rows.append(Row("ours, default matmul", "ours", "eager", "default"))
        rows.append(Row(f"MarianMT, {chosen}", "marian", "eager", chosen))
    return rows


def rows_of(dtype: str, chosen: str, device: str) -> list[Row]:
    """The rows of a type; on a GPU ours has the fused attention that `train` takes there."""
    if device == "cuda":
        return [row._replace(attention="sdpa") for row in BFLOAT16_ROWS]
    return float32_rows(chosen) if dtype == "float32" else BFLOAT16_ROWS


def check_device(arguments: argparse.Namespace) -> None:
    """Set the default of --threads, which depends on the device."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch does not find a CUDA device")
    arguments.threads = arguments.threads or (some_threads() if arguments.device == "cpu" else some_threads()[-1:])


def choose_products(device: str) -> tuple[str, dict[str, Any]]:
    """The library of float32 products on a CPU, and what --json tells of it and the device; both are printed."""
    about = describe_device(device)
    print(about)
    probed = probe_matmul() if device == "cpu" else []
    chosen = choose_matmul("auto", probed) if probed else "default"
    if probed:
        print(describe_matmul(chosen, probed))
    return chosen, {"device": about, "matmul": [row._asdict() for row in probed]}


def describe_device(device: str) -> str:
    """A GPU's name, and whether its float32 products are rounded to TF32; of a CPU the instructions that count."""
    if device == "cpu":
        about = Path("/proc/cpuinfo")
        there = about.read_text().split() if about.exists() else []
        found = [name for name in INSTRUCTIONS if name in there]
        return " ".join([f"cpu, torch's kernels: {torch.backends.cpu.get_cpu_capability()}; has:", *(found or ["?"])])
    return f"{torch.cuda.get_device_name()}, TF32 {'on' if torch.backends.cuda.matmul.allow_tf32 else 'off'}"


def some_threads() -> list[int]:
    """One thread, and as many as torch takes by itself."""
    return sorted({1, torch.get_num_threads()})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source", help="text, one sentence per line, such as Multi30k's (default: a synthetic corpus)"
    )
    parser.add_argument("--target", help="its translation")
    parser.add_argument("--presets", nargs="+", choices=SIZES, default=["base", "tiny"])
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--loads", nargs="+", choices=["step", "run"], default=["step", "run"])
    parser.add_argument(
        "--against",
        nargs="+",
        choices=["marian", "torch", "stock", "r_drop", "bfloat16_moment"],
        default=["marian", "torch"],
        help="stock: our model in transformers' Seq2SeqTrainer, as MarianMT; r_drop: our own step with R-Drop, of as "
        "many sentences; bfloat16_moment: our own with adam_first_moment=bfloat16 (default: marian torch)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine (default: 5)")
    parser.add_argument("--block", type=int, default=2, help="steps of a turn (default: 2)")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a batch of a run (default: 2048)")
    parser.add_argument("--sentences", type=int, default=64, help="of 16 tokens, in a step (default: 64)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--threads", nargs="+", type=int, help="of each engine (default: 1, and all cores; on a GPU, all cores)"
    )
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="processor: CPU time, on a busy machine (default: wall)"
    )
    parser.add_argument(
        "--time_limit", type=float, metavar="SECONDS", help="end then; what was not measured by then is left out"
    )
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")


def matmul_rate(dtype: torch.dtype, backend: str) -> float:
    """GFLOP/s of this machine for matrix products of the size of the base model's feed-forward layers."""
    left, right = torch.randn(1024, 512).to(dtype), torch.randn(512, 2048).to(dtype)
    seconds = []
    with matmul(backend):
        for _ in range(30):
            start = time.perf_counter()
            left @ right
            seconds.append(time.perf_counter() - start)
    return 2e-9 * 1024 * 512 * 2048 / min(seconds)


def gflops_per_token(config: VanillaTransformerConfig) -> float:
    """GFLOP of the products with weights in a training step (forward and backward), per pair of a source and a target
    token."""
    square, width = config.d_model**2, config.d_model
    encoder = config.encoder_layers * (4 * square + 2 * width * config.encoder_ffn_dim)
    decoder = config.decoder_layers * (8 * square + 2 * width * config.decoder_ffn_dim)
    return 6e-9 * (encoder + decoder + width * config.vocab_size)


def start_engine(
    row: Row, settings: dict[str, Any], arguments: argparse.Namespace, threads: int, limit: TimeLimit
) -> Engine:
    """Start the process of an engine."""
    own = {"engine": row.engine, "attention": row.attention, "matmul": row.matmul, "device": arguments.device}
    own |= {"block": arguments.block, "clock": arguments.clock, "step_sentences": arguments.sentences}
    environment = SCRIPT_ENVIRONMENT if row.engine in OURS else {}
    return Engine(row.name, "training_engine", settings | own, threads, environment, limit)


def measure(
    rows: list[Row], settings: dict[str, Any], arguments: argparse.Namespace, threads: int, limit: TimeLimit
) -> list[dict[str, Any]]:
    """Run the engines in turns, with so many threads each; a dictionary of numbers for each that had a turn in
    time."""
    engines: list[Engine] = []
    try:
        for row in rows:
            engines.append(start_engine(row, settings, arguments, threads, limit))
            if arguments.device == "cpu":  # else all start side by side
                engines[-1].warm_up()
        if arguments.device != "cpu":
            for engine in engines:
                engine.warm_up()
        limit.say(f"{settings['size']}, {settings['dtype']}, {settings['load']}: {len(engines)} engines are ready")
        take_turns(engines, arguments.rounds, limit)
    except OutOfTimeError as error:
        limit.say(f"the time limit is reached before {error} is ready")
    finally:
        for engine in engines:
            engine.stop()
    return numbers([(row, engine) for row, engine in zip(rows, engines) if engine.results], settings, threads)


def numbers(engines: list[tuple[Row, Engine]], settings: dict[str, Any], threads: int) -> list[dict[str, Any]]:
    """Medians of the turns of each engine, and its memory."""
    found = []
    for row, engine in engines:
        speeds = [result["tokens_per_second"] for result in engine.results]
        found.append(
            {key: settings[key] for key in ("size", "dtype", "load")}
            | {"threads": threads}
            | row._asdict()
            | {
                "tokens_per_second": median(speeds),
                "slowest": min(speeds),
                "fastest": max(speeds),
                "seconds_per_step": median(result["seconds"] for result in engine.results),
                "peak_mib": max(result["peak_mib"] for result in engine.results),
                "anonymous_mib": max(result["anonymous_mib"] for result in engine.results),
            }
        )
    return found


def print_table(found: list[dict[str, Any]], gflops: float, rate: float | None) -> None:
    """Compute `ratio`, `memory_ratio` and, if the rate of products is known, `matmul_share`; print the numbers of one
    load."""
    ours = found[0]
    about = ", ".join(str(ours[name]) for name in ("size", "dtype", "load"))
    print(f"\n{about}, threads {ours['threads']}" + (f"; matrix products {rate:.0f} GFLOP/s" if rate else ""))
    heads = ("", "target tokens/s", "slowest–fastest", "ours is", "peak MiB", "ours is", "anonymous", "of matmul rate")
    print(
        f"{heads[0]:24}{heads[1]:>16}{heads[2]:>20}{heads[3]:>9}{heads[4]:>10}{heads[5]:>9}{heads[6]:>11}{heads[7]:>16}"
    )
    for row in found:
        row["ratio"] = ours["tokens_per_second"] / row["tokens_per_second"]
        row["memory_ratio"] = ours["peak_mib"] / row["peak_mib"]
        row["matmul_share"] = row["tokens_per_second"] * gflops / rate if rate else None
        share = "–" if row["matmul_share"] is None else f"{row['matmul_share']:.0%}"
        spread = f"{row['slowest']:,.0f}–{row['fastest']:,.0f}"
        print(
            f"{row['name']:24}{row['tokens_per_second']:16,.0f}{spread:>20}{row['ratio']:8.2f}×{row['peak_mib']:10,.0f}"
            f"{row['memory_ratio']:8.2f}×{row['anonymous_mib']:11,.0f}{share:>16}",
            flush=True,
        )


def run(arguments: argparse.Namespace) -> None:
    """Measure all loads, print a table for each, and write the numbers."""
    from .corpus import MADE_UP_PAIRS, write_corpus  # imports datasets, which --help should not wait for

    if bool(arguments.source) != bool(arguments.target):
        raise ValueError("--source and --target are given together or not at all")
    check_device(arguments)
    if min(arguments.rounds, arguments.block, arguments.tokens, arguments.sentences, *arguments.threads) < 1:
        raise ValueError("--rounds, --block, --tokens, --sentences and --threads are 1 or more")
    limit = TimeLimit(arguments.time_limit)
    check_outputs([arguments.json], [arguments.source, arguments.target])
    torch.set_num_threads(max(arguments.threads))
    chosen, about = choose_products(arguments.device)
    about["torch"] = torch.__version__
    found: list[dict[str, Any]] = []
    for size in arguments.presets:
        preset, sizes = SIZES[size]
        config = VanillaTransformerConfig.from_preset(preset, **sizes)
        with tempfile.TemporaryDirectory() as folder:
            settings = {"size": size, "preset": preset, "sizes": sizes, "corpus": folder, "tokens": arguments.tokens}
            if "run" in arguments.loads:
                pairs = 200 if size == "smoke" else MADE_UP_PAIRS
                mean = write_corpus(Path(folder), arguments.source, arguments.target, config.vocab_size, pairs)
                # About as many target tokens as a batch of ours, which has little padding.
                settings["sentences"] = max(1, round(arguments.tokens / mean))
            for dtype in arguments.dtypes:
                wanted = rows_of(dtype, chosen, arguments.device)
                rows = [row for row in wanted if row.engine in ("ours", *arguments.against)]
                for load, threads in product(arguments.loads, arguments.threads):
                    torch.set_num_threads(threads)
                    rate = matmul_rate(getattr(torch, dtype), chosen) if arguments.device == "cpu" else None
                    left_out = ("stock",) if load == "step" else OURS[1:]  # a step has no Trainer
                    of_load = [row for row in rows if row.engine not in left_out]
                    part = measure(of_load, settings | {"dtype": dtype, "load": load}, arguments, threads, limit)
                    if not part:
                        continue
                    print_table(part, gflops_per_token(config), rate)
                    found += part
                    write_json(arguments.json, about | {"measurements": found})
