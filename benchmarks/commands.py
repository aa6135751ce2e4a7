"""
Whole commands that translate a text: start-up, reading and writing included

`vanilla-transformer translate` beside the programs that users of other packages would write, with the same weights,
tokenizer and number of beams: MarianMT as transformers' documentation shows it (`script_marianmt.py`), CTranslate2 as
its own does (`script_ctranslate2.py`), and any other programs, with models of their own that you have trained. Each
command is a process of its own, and they take turns; none runs beside another.

    python -m benchmarks commands --model outputs/en-de --source test.en --lines 1 100 1000
    python -m benchmarks commands --model outputs/en-de --source test.en --beams 5 \\
        --other JoeyNMT "python -m joeynmt translate joey.yaml"
    python -m benchmarks commands --model outputs/en-de --source test.en --preset base   # its tokenizer alone

Of each command: seconds from its start to its end, CPU seconds of it and its processes, peak memory in MiB, of the
largest of its processes, and the share of lines that equal those of the first row. `--busy N` keeps so many other
processes computing meanwhile.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.common.lines import read_lines

from .results import check_outputs, write_json
from .training import SIZES, some_threads
from .turns import FOLDER, ROOT


# Runs a command and writes its wall-clock and CPU seconds and its peak memory in MiB to the file that is named first.
# The peak of a process counts that of the process which started it, so a small one does.
MEASURE = """
import json, os, resource, subprocess, sys, time
start = time.perf_counter()
status = subprocess.run(sys.argv[2:]).returncode
seconds = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
unit = 2**20 if sys.platform == "darwin" else 2**10
found = {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / unit}
open(sys.argv[1], "w").write(json.dumps(found))
sys.exit(status)
"""
LOOP = "while True: pass"
# The console command, which is not installed everywhere the benchmark runs. `python -m vanilla_transformer_hf` would
# import what programs of one's own need, too.
CONSOLE = "import vanilla_transformer_hf_command; vanilla_transformer_hf_command.main()"
# Engines that get the weights of our model.
ENGINES = ("marianmt", "ctranslate2")
# Tokens of a translation by random weights, which do not end by themselves: about those of a caption.
NEW_TOKENS = 20


class Command(NamedTuple):
    """A command line, with files by `--input` and `--output`, or without `has_files` standard input and output."""

    name: str
    arguments: list[str]
    has_files: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a trained model of this package")
    parser.add_argument(
        "--preset",
        choices=SIZES,
        help="take only the tokenizer of --model, with random weights of this size: every translation then has "
        f"{NEW_TOKENS} tokens",
    )
    parser.add_argument("--source", required=True, metavar="FILE", help="text to translate, one sentence per line")
    parser.add_argument("--lines", nargs="+", type=int, default=[1, 100, 1000], help="of it (default: 1 100 1000)")
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5], help="1 is greedy search (default: 1 5)")
    parser.add_argument("--threads", nargs="+", type=int, default=some_threads(), help="(default: 1, and all cores)")
    parser.add_argument(
        "--against",
        nargs="*",
        choices=ENGINES,
        default=installed(),
        help="engines that get the weights, or none (default: installed)",
    )
    parser.add_argument(
        "--other",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "COMMAND"),
        help="another program from standard input to standard output, run by the shell; may be given again",
    )
    parser.add_argument("--processes", nargs="+", type=int, default=[1], help="also ours with so many (default: 1)")
    parser.add_argument("--batch_size", type=int, default=32, help="of MarianMT and CTranslate2 (default: 32)")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="other processes that compute meanwhile")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each command (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")


def installed() -> list[str]:
    """The engines that are installed."""
    return [name for name in ENGINES if name != "ctranslate2" or importlib.util.find_spec("ctranslate2")]


def write_random(preset: str, model: Path, folder: Path) -> None:
    """Write a model of random weights, with the tokenizer of `model`, into `folder`."""
    from .generation_models import random_model

    name, sizes = SIZES[preset]
    tokenizer = VanillaTransformerTokenizer.from_pretrained(model)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    made = random_model(VanillaTransformerConfig.from_preset(name, **sizes | ids | {"vocab_size": len(tokenizer)}))
    made.generation_config.max_new_tokens = NEW_TOKENS
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_peers(model: Path, folder: Path, against: list[str]) -> None:
    """Write the model for the other engines into `folder`."""
    from vanilla_transformer_hf.conversion.targets import export
    from vanilla_transformer_hf.export.export import export_for
    from vanilla_transformer_hf.translation.kept_copy import kept_copy

    from .generation_models import as_marianmt

    if "marianmt" in against:
        ours = VanillaTransformerForConditionalGeneration.from_pretrained(model, dtype="float32")
        as_marianmt(ours).save_pretrained(folder / "twin")
        ours.generation_config.save_pretrained(folder / "twin")
        VanillaTransformerTokenizer.from_pretrained(model).save_pretrained(folder / "twin")
        export("marianmt", folder / "twin", folder / "marianmt")
    if "ctranslate2" in against:
        export_for("ctranslate2", model, folder / "ctranslate2")
        kept_copy(model, None)  # of our own command, which would export it in its first turn
        (folder / "ctranslate2" / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())


def commands(arguments: argparse.Namespace, model: Path, folder: Path, beams: int) -> Iterator[Command]:
    """The commands, ours, which opens `model`, first; the others have theirs in `folder`."""
    python = sys.executable
    ours = [python, "-c", CONSOLE, "translate", str(model), "--num_beams", str(beams)]
    for processes in arguments.processes:
        more = [] if processes == 1 else ["--processes", str(processes)]
        yield Command(f"vanilla-transformer translate {' '.join(more)}".strip(), [*ours, *more], has_files=True)
    yield Command("… --quantization int8", [*ours, "--quantization", "int8"], has_files=True)
    if "ctranslate2" in arguments.against:
        yield Command("… --engine ctranslate2", [*ours, "--engine", "ctranslate2"], has_files=True)
    sizes = [str(beams), str(arguments.batch_size)]
    if "marianmt" in arguments.against:
        yield Command("MarianMT", [python, str(FOLDER / "script_marianmt.py"), str(folder / "marianmt"), *sizes])
    if "ctranslate2" in arguments.against:
        script = [python, str(FOLDER / "script_ctranslate2.py"), str(folder / "ctranslate2"), *sizes]
        limit = [str(NEW_TOKENS)] if arguments.preset else []
        for dtype in ("float32", "int8"):
            yield Command(f"CTranslate2 {dtype}", [*script, dtype, *limit])
    for name, command in arguments.other:
        yield Command(name, ["sh", "-c", command])


def run_once(command: Command, source: Path, threads: int, folder: Path) -> dict[str, Any]:
    """Numbers of a turn, and the lines that it wrote."""
    output, numbers = folder / "output", folder / "numbers.json"
    files = ["--input", str(source), "--output", str(output), "--restart"] if command.has_files else []
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    with open(source, "rb") as stdin, open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr:
        run = [sys.executable, "-S", "-c", MEASURE, str(numbers), *command.arguments, *files]
        status = subprocess.run(run, stdin=stdin, stdout=stdout, stderr=stderr, env=environment).returncode
    if status:
        tail = (folder / "stderr").read_text(errors="replace").splitlines()[-12:]
        raise ChildProcessError(f"{command.name} ended with code {status}:\n" + "\n".join(tail))
    written = (output if command.has_files else folder / "stdout").read_text(encoding="utf-8").splitlines()
    expected = len(source.read_text(encoding="utf-8").splitlines())
    if len(written) != expected:
        raise ChildProcessError(f"{command.name} wrote {len(written):,} lines for the {expected:,} that it read")
    return json.loads(numbers.read_text()) | {"lines": written}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute, until the block ends."""
    others = [subprocess.Popen([sys.executable, "-S", "-c", LOOP]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def summary(results: list[dict[str, Any]], reference: list[str]) -> dict[str, Any]:
    """Medians of the turns, the fastest and slowest, and the share of lines that equal the reference."""
    seconds = [result["seconds"] for result in results]
    lines = results[0]["lines"]
    return {
        "seconds": median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "cpu_seconds": median(result["cpu_seconds"] for result in results),
        "peak_mib": max(result["peak_mib"] for result in results),
        "same": mean(line == other for line, other in zip(lines, reference, strict=True)) if lines else 1.0,
    }


def print_table(title: str, found: list[dict[str, Any]]) -> None:
    heads = ("seconds", "fastest–slowest", "CPU seconds", "peak MiB", "ours is", "same")
    print(f"\n{title}\n{'':44}{heads[0]:>9}{heads[1]:>17}{heads[2]:>13}{heads[3]:>10}{heads[4]:>9}{heads[5]:>6}")
    for row in found:
        spread = f"{row['fastest']:.2f}–{row['slowest']:.2f}"
        print(
            f"{row['name']:44}{row['seconds']:9.2f}{spread:>17}{row['cpu_seconds']:13.2f}{row['peak_mib']:10,.0f}"
            f"{row['ratio']:8.2f}×{row['same']:6.0%}",
            flush=True,
        )


def measure(rows: list[Command], source: Path, threads: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the commands in turns; a dictionary of numbers for each."""
    results: list[list[dict[str, Any]]] = [[] for _ in rows]
    with tempfile.TemporaryDirectory() as folder, busy(arguments.busy):
        for _ in range(arguments.rounds):
            for row, found in zip(rows, results, strict=True):
                found.append(run_once(row, source, threads, Path(folder)))
    reference = results[0][0]["lines"]
    table = [{"name": row.name, **summary(found, reference)} for row, found in zip(rows, results, strict=True)]
    return [row | {"ratio": row["seconds"] / table[0]["seconds"]} for row in table]


def check(arguments: argparse.Namespace, lines: list[str]) -> None:
    """Numbers are neither too small nor too large, and the text has enough lines."""
    if min(*arguments.lines, *arguments.beams, *arguments.threads, *arguments.processes, arguments.rounds) < 1:
        raise ValueError("--lines, --beams, --threads, --processes and --rounds are 1 or more")
    if max(arguments.lines) > len(lines):
        raise ValueError(f"--lines {max(arguments.lines):,}: {arguments.source} has {len(lines):,}")


def run(arguments: argparse.Namespace) -> None:
    """Measure all numbers of lines, beams and threads; after each, print its table and write the numbers."""
    lines = list(read_lines(arguments.source))
    check(arguments, lines)
    check_outputs([arguments.json], [arguments.source])
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), Path(arguments.model).resolve()
        if arguments.preset:
            model = folder / "random"
            write_random(arguments.preset, Path(arguments.model), model)
        write_peers(model, folder, arguments.against)
        for count in arguments.lines:
            (folder / f"{count}.txt").write_text("".join(f"{line}\n" for line in lines[:count]), encoding="utf-8")
        for count, threads, beams in product(arguments.lines, arguments.threads, arguments.beams):
            found = measure(
                list(commands(arguments, model, folder, beams)), folder / f"{count}.txt", threads, arguments
            )
            others = f", {arguments.busy} other processes computing" if arguments.busy else ""
            print_table(f"{count:,} lines, {beams} beams, {threads} threads{others}", found)
            about = {"lines": count, "beams": beams, "threads": threads, "busy": arguments.busy}
            measured += [about | row for row in found]
            write_json(arguments.json, {"measurements": measured})
