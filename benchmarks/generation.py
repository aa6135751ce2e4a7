"""
generate() of ours against MarianMT's and CTranslate2, with the same weights

The load "fixed" is one batch of 32 sentences of 32 tokens and exactly 32 new ones, with random weights. The load
"natural" is your text in batches of 32, sorted by length, the longest first as translate.py and CTranslate2 do it, the
same ones for every engine, with your trained weights. Engines get them all at once: ours goes through
`generate_stream()`, and "batch by batch" through `generate()`.

    python -m benchmarks generate --model outputs/en-de --source test.en

For lengths as they are with weights as large as the base model's, train that for half an hour, not for its scores:

    vanilla-transformer train multi30k_raw --preset base --vocab_size 37000 --max_steps 700 \\
        --bf16 true --dropout 0 --learning_rate 0.0003 --warmup_steps 150 --eval_strategy no --save_strategy no \\
        --load_best_model_at_end false --output_dir outputs/base --train_source train.en.gz …

Multi30k has fewer than 37,000 tokens; `--vocab_size 37000` fills the trained matrices up with zeros for that.

Other sections: "first_token", time to the first token; "sentence", one sentence by itself; "samples", drawn with
transformers' defaults, and "scores", with `output_scores`, without CTranslate2; "batch", "beam" and "length", how time
and memory grow.

On a GPU, each engine has one process for all loads, because torch counts the GPU's memory by load, and they start side
by side; memory is what torch allocates there. In two minutes, once packages are installed:

    python -m benchmarks generate --device cuda --presets base --sections sentence speed --dtypes float32 bfloat16 \\
        --against marian --rounds 3 --seconds 0.3 --time_limit 120
"""

import argparse
import importlib.metadata
import importlib.util
import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import torch
from transformers.utils import logging

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.common.lines import read_lines
from vanilla_transformer_hf.common.matmul import MATMULS

from .generation_models import random_model, write_models
from .generation_torch import DTYPES
from .results import check_outputs, write_json, write_picture
from .training import SIZES, check_device, choose_products
from .turns import CLOCKS, Engine, OutOfTimeError, TimeLimit, take_turns


SENTENCES, TOKENS = 32, 32
# Longer than any sentence of the text should need; each row reports how many reached it.
NATURAL_LIMIT = 128
QUANTIZED = ("int8", "int8_reduced")  # ours on a CPU
CTRANSLATE2_DTYPES = {"cpu": ("float32", "int8"), "cuda": ("float32", "bfloat16", "float16")}


class Load(NamedTuple):
    """The work that all engines do: batches of source ids, beams, and the limit of new tokens."""

    section: str
    name: str
    batches: list[list[list[int]]]
    beams: int
    new_tokens: int


class Row(NamedTuple):
    """An engine with its settings. Rows with `plain` are measured in all sections, the others only in "speed"."""

    name: str
    engine: str
    dtype: str
    matmul: str
    plain: bool


# Section -> its loads: (sentences, tokens of a source, new tokens, beams; None means all requested beams).
SECTIONS: dict[str, list[tuple[int, int, int, int | None]]] = {
    "speed": [(SENTENCES, TOKENS, TOKENS, None)],
    "first_token": [(size, TOKENS, 1, None) for size in (1, SENTENCES)],
    "sentence": [(1, TOKENS, TOKENS, None)],
    "samples": [(size, TOKENS, TOKENS, 1) for size in (1, SENTENCES)],
    "scores": [(SENTENCES, TOKENS, TOKENS, None)],
    "batch": [(size, TOKENS, TOKENS, None) for size in (1, 8, 32, 128)],
    "beam": [(SENTENCES, TOKENS, TOKENS, beams) for beams in (1, 2, 4, 8, 16)],
    "length": [(4, length, length, None) for length in (16, 64, 256, 1024)],
}

# Section -> its settings of `generate()`.
OPTIONS: dict[str, dict[str, Any]] = {
    "samples": {"do_sample": True},
    "scores": {"return_dict_in_generate": True, "output_scores": True},
}

# Section -> the quantity that grows: its key in a measurement, and its name.
GROWTH = {"batch": ("batch", "sentences"), "beam": ("beams", "beams"), "length": ("limit", "tokens, source and new")}


def rows_of(dtypes: list[str], against: list[str], chosen: str, device: str) -> list[Row]:
    """The models with their default settings, ours with transformers' search, and all models with the matmul backend
    `chosen`."""
    rows = []
    for dtype in dtypes:
        other = chosen if dtype == "float32" and device == "cpu" else "default"
        if dtype in DTYPES:
            rows.append(Row("ours", "ours", dtype, "default", True))
            rows.append(Row("ours, batch by batch", "batch_by_batch", dtype, "default", False))
            rows.append(Row("ours, transformers' search", "host_search", dtype, "default", False))
            if device == "cuda":
                rows.append(Row("ours, static cache", "static", dtype, "default", True))
            rows.append(Row("MarianMT", "marian", dtype, "default", True))
            if device == "cuda":
                rows.append(Row("MarianMT, static cache", "marian_static", dtype, "default", True))
        if dtype in QUANTIZED and device == "cpu":
            rows.append(Row("ours", "ours", dtype, "default", True))
        if other != "default":
            rows.append(Row(f"ours, {other}", "ours", dtype, other, False))
            rows.append(Row(f"MarianMT, {other}", "marian", dtype, other, False))
        if dtype in CTRANSLATE2_DTYPES[device]:
            rows.append(Row("CTranslate2", "ctranslate2", dtype, "default", True))
    return [row for row in rows if row.engine in ("ours", *against)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    engines = ["batch_by_batch", "host_search", "marian", "ctranslate2", "static", "marian_static"]
    installed = engines[: 4 if importlib.util.find_spec("ctranslate2") else 3]
    dtypes = [*DTYPES, *QUANTIZED]
    parser.add_argument("--presets", nargs="+", choices=SIZES, default=["base", "tiny"], help="of random weights")
    parser.add_argument("--loads", nargs="+", choices=["fixed", "natural"], help="default: all that are possible")
    parser.add_argument("--model", nargs="+", default=[], metavar="FOLDER", help="trained models, for natural lengths")
    parser.add_argument("--source", metavar="FILE", help="text to translate with them, one sentence per line")
    parser.add_argument("--vocab_size", type=int, help="fill up trained models of a smaller vocabulary with zeros")
    parser.add_argument("--order", choices=["length", "file"], default="length", help="of the text (default: length)")
    parser.add_argument("--sentences", type=int, help="number of sentences, taken evenly from the text (default: all)")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=["speed"])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4], help="1 is greedy search (default: 1 4)")
    parser.add_argument("--dtypes", nargs="+", choices=dtypes, help="default: float32 bfloat16, and int8 or float16")
    parser.add_argument(
        "--against",
        nargs="+",
        choices=engines,
        default=installed,
        help="static, marian_static: with transformers' static cache, which compiles the step, on a GPU only "
        "(default: the others that are installed)",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="minimum seconds of a turn (default: 1)")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="processor: CPU time, on a busy machine (default: wall)"
    )
    parser.add_argument(
        "--threads", nargs="+", type=int, help="of each engine (default: 1, and all cores; on a GPU, all cores)"
    )
    parser.add_argument(
        "--time_limit", type=float, metavar="SECONDS", help="end then; what was not measured by then is left out"
    )
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")
    parser.add_argument("--picture", metavar="FILE", help="draw the growth with batch, beam and length here, as PNG")


def random_loads(arguments: argparse.Namespace, vocab_size: int) -> Iterator[Load]:
    """The loads of the requested sections; their sentences have equal lengths, so there is no padding."""
    for section in arguments.sections:
        for sentences, tokens, new_tokens, beams in SECTIONS[section]:
            generator = torch.Generator().manual_seed(0)
            batch = torch.randint(3, vocab_size, (sentences, tokens), generator=generator).tolist()
            of_tokens = f"{sentences} × {tokens} tokens, {new_tokens} new"
            for count in arguments.beams if beams is None else [beams]:
                yield Load(section, of_tokens, [batch], count, new_tokens)


def natural_batches(folder: str, arguments: argparse.Namespace) -> list[list[list[int]]]:
    """Source ids of the text, in batches."""
    lines = [line for line in read_lines(arguments.source) if line.strip()]
    if not lines:
        raise ValueError(f"{arguments.source}: no text")
    wanted = min(arguments.sentences or len(lines), len(lines))
    lines = [lines[index * len(lines) // wanted] for index in range(wanted)]
    tokenizer = VanillaTransformerTokenizer.from_pretrained(folder)
    ids = tokenizer(lines, truncation=True, max_length=NATURAL_LIMIT)["input_ids"]
    if arguments.order == "length":
        ids.sort(key=len, reverse=True)
    return [ids[at : at + SENTENCES] for at in range(0, len(ids), SENTENCES)]


def trained_model(folder: str, vocab_size: int | None) -> VanillaTransformerForConditionalGeneration:
    """The model in a folder, with its vocabulary padded with zeros to `vocab_size`."""
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    pieces = model.config.vocab_size
    if vocab_size is not None and vocab_size > pieces:
        model.resize_token_embeddings(vocab_size, mean_resizing=False)
        with torch.no_grad():
            model.lm_head.weight[pieces:] = 0.0
    return model


def write_load(load: Load, folder: Path) -> dict[str, Any]:
    """Write the batches of a load; what an engine has to know of it."""
    batches = folder / "batches.json"
    batches.write_text(json.dumps(load.batches))
    about = {"beams": load.beams, "new_tokens": load.new_tokens, "options": OPTIONS.get(load.section, {})}
    return {"batches": str(batches), **about}


def start_engine(
    row: Row, work: dict[str, Any], folder: Path, arguments: argparse.Namespace, threads: int, limit: TimeLimit
) -> Engine:
    """Start the process of an engine, with its first work."""
    kind = {"marian_static": "marian"}.get(row.engine, row.engine)
    is_float32 = DTYPES.get(row.dtype, torch.float32) == torch.float32 or kind == "ctranslate2"
    place = folder if is_float32 else folder / row.dtype
    settings = {
        "engine": row.engine,
        "dtype": row.dtype,
        "fp32_precision": None if row.matmul == "default" else MATMULS[row.matmul],
        "folder": str(place / (kind if kind in ("marian", "ctranslate2") else "ours")),
        "load": work,
        "device": arguments.device,
        "threads": threads,
        "seconds": arguments.seconds,
        "clock": arguments.clock,
    }
    return Engine(f"{row.name} {row.dtype}", "generation_engine", settings, threads, limit=limit)


def measure(rows: list[Row], engines: list[Engine], load: Load, rounds: int, limit: TimeLimit) -> list[dict[str, Any]]:
    """Let engines that are ready for this load take turns; a dictionary of numbers for each that had one in time."""
    take_turns(engines, rounds, limit)
    done = [(row, engine.results) for row, engine in zip(rows, engines, strict=True) if engine.results]
    return [row._asdict() | numbers(results, done[0][1][0]["outputs"], load.new_tokens) for row, results in done]


def numbers(results: list[dict[str, Any]], reference: list[list[int]], limit: int) -> dict[str, float | None]:
    """
    Medians of an engine's turns, and facts on its outputs: mean length, share at the limit, share of equal
    outputs.
    """
    outputs = results[0]["outputs"]
    speeds = [len(outputs) / result["seconds"] for result in results]
    new_tokens = mean(len(ids) for ids in outputs)
    return {
        "sentences_per_second": median(speeds),
        "slowest": min(speeds),
        "fastest": max(speeds),
        "tokens_per_second": median(speeds) * new_tokens,
        "seconds": median(result["seconds"] for result in results),
        "new_tokens": new_tokens,
        "at_limit": mean(len(ids) >= limit for ids in outputs),
        "same_outputs": mean(ids == other for ids, other in zip(outputs, reference, strict=True)),
        "peak_mib": largest(results, "peak_mib"),
        "search_mib": largest(results, "search_mib"),
        "anonymous_mib": largest(results, "anonymous_mib"),
    }


def largest(results: list[dict[str, Any]], key: str) -> float | None:
    """The largest number of this name; None if it is not known."""
    found = max(result[key] for result in results)
    return None if math.isnan(found) else found


def add_ratios(found: list[dict[str, Any]]) -> None:
    """Set `ratio` of each row: our speed divided by the row's, ours in the same dtype if it was measured, else in our
    fastest."""
    ours: dict[str, float] = {}
    for row in found:
        if row["engine"] == "ours":
            ours.setdefault(row["dtype"], row["sentences_per_second"])
    for row in found:
        compared = ours.get(row["dtype"], max(ours.values(), default=None))
        row["ratio"] = None if compared is None else compared / row["sentences_per_second"]


def print_table(title: str, found: list[dict[str, Any]]) -> None:
    """Print the numbers of one load. "same" is the share of outputs that equal those of the first row;
    "anonymous" what the process holds after a turn, without pages of files."""
    heads = ("sentences/s", "slowest–fastest", "tokens/s", "ms", "ours is", "new tokens", "cut", "same", "peak MiB")
    widths = (12, 18, 10, 9, 9, 11, 6, 6, 9)
    print(f"\n{title}")
    print(f"{'':37}" + "".join(f"{head:>{width}}" for head, width in zip(heads, widths)) + "  in search  anonymous")
    for row in found:
        spread, milliseconds = f"{row['slowest']:,.1f}–{row['fastest']:,.1f}", 1e3 * row["seconds"]
        memory = [
            "–" if row[name] is None else f"{row[name]:,.0f}" for name in ("peak_mib", "search_mib", "anonymous_mib")
        ]
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}×"
        print(
            f"{row['name']:23}{row['dtype']:14}{row['sentences_per_second']:12,.1f}{spread:>18}"
            f"{row['tokens_per_second']:10,.0f}{milliseconds:9,.1f}{ratio:>9}{row['new_tokens']:11.1f}"
            f"{row['at_limit']:6.0%}{row['same_outputs']:6.0%}{memory[0]:>9}{memory[1]:>11}{memory[2]:>11}",
            flush=True,
        )


class Engines:
    """
    The running engines of a model. On a GPU they run from the first load to the last; on a CPU, where the memory of a
    process cannot be measured anew, each load has new ones.
    """

    def __init__(self, folder: Path, arguments: argparse.Namespace, limit: TimeLimit):
        self.folder, self.arguments, self.limit = folder, arguments, limit
        self.running: dict[tuple[Row, int], Engine] = {}

    def stop(self) -> None:
        """End all processes."""
        for engine in self.running.values():
            engine.stop()
        self.running = {}

    def ready(self, rows: list[Row], load: Load, threads: int) -> list[Engine]:
        """The engines of these rows with so many threads, after a warm-up with the load."""
        if self.arguments.device == "cpu":
            self.stop()
        work, engines = write_load(load, self.folder), []
        for row in rows:
            engine = self.running.get((row, threads))
            if engine is not None:
                engine.send(work)
            else:
                engine = start_engine(row, work, self.folder, self.arguments, threads, self.limit)
                self.running[row, threads] = engine
            if self.arguments.device == "cpu":
                engine.warm_up()
            engines.append(engine)
        if self.arguments.device != "cpu":
            for engine in engines:
                engine.warm_up()
        self.limit.say(f"{load.section}, {load.name}, beams {load.beams}: {len(engines)} engines are ready")
        return engines


def measure_all(
    name: str,
    model: VanillaTransformerForConditionalGeneration,
    loads: Iterator[Load],
    rows: list[Row],
    arguments: argparse.Namespace,
    limit: TimeLimit,
) -> Iterator[list[dict[str, Any]]]:
    """Write a model for all engines, and print a table for each load and number of threads; yield its numbers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dtypes = {DTYPES[row.dtype] for row in rows if row.dtype in DTYPES}
        write_models(model, folder, {row.engine for row in rows}, dtypes)
        limit.say(f"{name}: the model is written for all engines")
        engines = Engines(folder, arguments, limit)
        stack.callback(engines.stop)
        for load, threads in product(loads, arguments.threads):
            part = [row for row in rows if row.plain or load.section in ("speed", *OPTIONS)]
            if load.section in OPTIONS:
                part = [row for row in part if row.engine != "ctranslate2"]
            if len(load.batches) == 1:
                part = [row for row in part if row.engine != "batch_by_batch"]
            search = "greedy" if load.beams == 1 else f"beam {load.beams}"
            sizes: dict[str, float] = {"sentences": sum(map(len, load.batches)), "batch": len(load.batches[0])}
            sizes["source_tokens"] = mean(len(ids) for batch in load.batches for ids in batch)
            about = {"model": name, "section": load.section, "load": load.name, "beams": load.beams, **sizes}
            measured = measure(part, engines.ready(part, load, threads), load, arguments.rounds, limit)
            if not measured:
                continue
            add_ratios(measured)
            print_table(f"{name}, {load.section}: {load.name}, {search}, threads {threads}", measured)
            yield [about | {"limit": load.new_tokens, "threads": threads} | row for row in measured]


def check(arguments: argparse.Namespace) -> None:
    """Set the defaults of arguments that depend on others."""
    if bool(arguments.model) != bool(arguments.source):
        raise ValueError("--model and --source are given together or not at all")
    arguments.loads = arguments.loads or (["fixed", "natural"] if arguments.model else ["fixed"])
    if "natural" in arguments.loads and not arguments.model:
        raise ValueError("--loads natural needs --model and --source")
    check_device(arguments)
    if min(arguments.rounds, *arguments.threads, *arguments.beams, arguments.sentences or 1) < 1:
        raise ValueError("--rounds, --threads, --beams and --sentences are 1 or more")
    if arguments.picture and not GROWTH.keys() & set(arguments.sections):
        raise ValueError(f"--picture needs one of the sections {', '.join(GROWTH)}")
    if "ctranslate2" in arguments.against and not importlib.util.find_spec("ctranslate2"):
        raise ValueError("--against ctranslate2: pip install ctranslate2")
    if arguments.device == "cpu" and {"static", "marian_static"} & {*arguments.against}:
        raise ValueError("--against static and marian_static need --device cuda")
    last = "int8" if arguments.device == "cpu" else "float16"
    arguments.dtypes = arguments.dtypes or ["float32", "bfloat16", last]
    if not rows_of(arguments.dtypes, [], "default", arguments.device):
        raise ValueError(f"--dtypes: one of {', '.join(DTYPES)} is needed, for ours")


def measurements(arguments: argparse.Namespace, rows: list[Row], limit: TimeLimit) -> Iterator[list[dict[str, Any]]]:
    """Yield the numbers of each load, with random and with trained weights."""
    for size in arguments.presets if "fixed" in arguments.loads else []:
        preset, sizes = SIZES[size]
        config = VanillaTransformerConfig.from_preset(preset, **sizes)
        model, loads = random_model(config), random_loads(arguments, config.vocab_size)
        yield from measure_all(size, model, loads, rows, arguments, limit)
    for folder in arguments.model if "natural" in arguments.loads else []:
        batches = natural_batches(folder, arguments)
        load = f"text in batches of {SENTENCES}, in the order of {arguments.order}"
        loads = (Load("speed", load, batches, beams, NATURAL_LIMIT) for beams in arguments.beams)
        name, model = Path(folder).resolve().name, trained_model(folder, arguments.vocab_size)
        yield from measure_all(name, model, loads, rows, arguments, limit)


def run(arguments: argparse.Namespace) -> None:
    """Measure all loads. After each load, print its table and write the numbers; draw the picture at the end."""
    check(arguments)
    limit = TimeLimit(arguments.time_limit)
    check_outputs((arguments.json, arguments.picture), [arguments.source])
    logging.disable_progress_bar()  # progress bars of writing and loading weights
    torch.set_num_threads(max(arguments.threads))
    chosen, about = choose_products(arguments.device)
    rows = rows_of(arguments.dtypes, arguments.against, chosen, arguments.device)
    packages = ["torch", "transformers", *(["ctranslate2"] if "ctranslate2" in arguments.against else [])]
    about["versions"] = {name: importlib.metadata.version(name) for name in packages}
    found: list[dict[str, Any]] = []
    try:
        for part in measurements(arguments, rows, limit):
            found += part
            write_json(arguments.json, about | {"measurements": found})
    except OutOfTimeError as error:
        limit.say(f"the time limit is reached before {error} is ready; what follows is left out")
    if arguments.picture:
        from .generation_picture import draw_growth  # matplotlib

        drawn = [row for row in found if row["threads"] == max(arguments.threads)]
        write_picture(arguments.picture, draw_growth(drawn, GROWTH), dpi=120)
