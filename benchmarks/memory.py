"""
peak memory of a training step, of presets by tokens, on the device at hand

A step is forward, loss, backward and Adam on sentences of 16 tokens; the columns are `per_device_train_tokens`, tokens
of a side. Each cell has a process of its own. On a GPU, memory is what torch allocates there; on a CPU, all that the
process holds, with Python and torch (about 300 MiB).

    python -m benchmarks memory
    python -m benchmarks memory --presets base big --tokens 4096 25000 --dtypes bfloat16
"""

import argparse
from itertools import product
from typing import Any

import torch

from vanilla_transformer_hf import PRESETS, VanillaTransformerConfig

from .results import check_outputs, write_json
from .training import SCRIPT_ENVIRONMENT, describe_device
from .training_engine import COLUMNS
from .turns import Engine


# What a process that found no more memory ends with: torch on a GPU, torch on a CPU, the system.
OUT_OF_MEMORY = ("OutOfMemoryError", "can't allocate memory", "ended with code -9")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = ["multi30k_tiny", "iwslt_de_en", "base", "big"]
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=default, metavar="PRESET")
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 4096, 25000], help="of a side")
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--vocab_size", type=int, help="of all presets (default: their own)")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where torch finds one")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: all cores")
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")


def peak_of_step(preset: str, tokens: int, dtype: str, arguments: argparse.Namespace) -> float | None:
    """MiB at the peak of the second step, which has Adam's moments; None: the device has too little."""
    settings: dict[str, Any] = {"engine": "ours", "load": "step", "preset": preset, "dtype": dtype, "block": 1}
    settings |= {"sizes": {"vocab_size": arguments.vocab_size} if arguments.vocab_size else {}, "clock": "wall"}
    settings |= {"device": arguments.device, "attention": "sdpa" if arguments.device == "cuda" else "eager"}
    settings |= {"matmul": "default", "step_sentences": tokens // COLUMNS}
    engine = Engine(preset, "training_engine", settings, arguments.threads, SCRIPT_ENVIRONMENT)
    try:
        engine.warm_up()
        engine.turn()
    except ChildProcessError as error:
        if not any(text in str(error) for text in OUT_OF_MEMORY):
            raise
        return None
    finally:
        engine.stop()
    return engine.results[0]["peak_mib"]


def run(arguments: argparse.Namespace) -> None:
    """Measure, print a row of a table for each preset and type as it is there, and write the numbers."""
    arguments.device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch does not find a CUDA device")
    if min(arguments.tokens) < COLUMNS or arguments.threads < 1:
        raise ValueError(f"--tokens are {COLUMNS} or more, a sentence; --threads 1 or more")
    check_outputs([arguments.json])
    device = describe_device(arguments.device)
    found: list[dict[str, Any]] = []
    columns = " | ".join(f"{tokens:,}" for tokens in arguments.tokens)
    print(f"MiB at the peak of a training step by tokens of a side, on {device}\n")
    print(f"| preset | parameters | type | {columns} |\n| --- | ---: | --- |{' ---: |' * len(arguments.tokens)}")
    for preset, dtype in product(arguments.presets, arguments.dtypes):
        row = [peak_of_step(preset, tokens, dtype, arguments) for tokens in arguments.tokens]
        cells = " | ".join("out of memory" if peak is None else f"{peak:,.0f}" for peak in row)
        print(f"| `{preset}` | {parameters(preset, arguments.vocab_size)} | {dtype} | {cells} |", flush=True)
        found += [
            {"preset": preset, "dtype": dtype, "tokens": tokens, "peak_mib": peak}
            for tokens, peak in zip(arguments.tokens, row, strict=True)
        ]
    write_json(arguments.json, {"device": device, "torch": torch.__version__, "peaks": found})


def parameters(preset: str, vocab_size: int | None) -> str:
    """The number of weights, in millions, of a model that is not made."""
    from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration  # which takes a second to import

    config = VanillaTransformerConfig.from_preset(preset, **({"vocab_size": vocab_size} if vocab_size else {}))
    with torch.device("meta"):
        return f"{VanillaTransformerForConditionalGeneration(config).num_parameters() / 1e6:.1f} M"
