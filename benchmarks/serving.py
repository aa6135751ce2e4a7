"""
requests per second and latency of `vanilla-transformer serve`

Clients on the same machine send a sentence, wait for the answer, check it, and send the next. Servers take turns:
"together" is `serve`, "one by one" is `serve --batch_size 1`, "plain" a FastAPI application around `generate()` with a
thread for each request, if FastAPI is installed.

    python -m benchmarks serve --model outputs/en-de --source test.en --json serving.json

The CPU time per request compares the servers on a busy machine, too.

The section "long" has short sentences alone and while a text of 5,000 words is translated again and again; "soak" has
clients that cancel, send malformed or oversized requests, or are slow, and measures the server's memory.
"""

import argparse
import statistics
from collections import defaultdict
from importlib.util import find_spec
from typing import Any

from transformers.utils import logging

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.common.lines import read_lines

from .results import check_outputs, write_json
from .serving_load import Load, Server


SERVE = ["-m", "vanilla_transformer_hf", "serve", "--port", "0", "--log", "errors", "--device", "cpu"]
SERVE += ["--max_seconds", "600"]  # the queue is long when requests are answered one by one
# Server -> its arguments, to which the model is appended.
SERVERS = {
    "together": SERVE,
    "one by one": [*SERVE, "--batch_size", "1"],
    "plain": ["-m", f"{__package__}.serving_plain"],
}
INSTALLED = [name for name in SERVERS if name != "plain" or find_spec("fastapi")]
SHORT_WORDS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a trained model")
    parser.add_argument("--source", required=True, metavar="FILE", help="sentences, one a line, also .gz")
    parser.add_argument("--sentences", type=int, default=500, metavar="N", help="of the file (default: 500)")
    parser.add_argument("--sections", nargs="+", default=["load", "long", "soak"], choices=["load", "long", "soak"])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 128], metavar="N")
    parser.add_argument("--lengths", nargs="+", default=["short", "mixed"], choices=["short", "mixed"])
    parser.add_argument("--servers", nargs="+", default=INSTALLED, choices=[*SERVERS])
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each server (default: 3)")
    parser.add_argument("--seconds", type=float, default=10, metavar="S", help="of a turn (default: 10)")
    parser.add_argument("--long_words", type=int, default=5000, metavar="N", help="of the long text (default: 5000)")
    parser.add_argument("--soak_seconds", type=float, default=600, metavar="S", help="of the soak (default: 600)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of a server (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="where to write the numbers")


def summary(load: Load, speeds: list[float], seconds: list[float]) -> dict[str, Any]:
    """Requests per second (the median of the turns) and percentiles of the latency of all requests in milliseconds."""
    marks = statistics.quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
    times = {f"p{mark}_ms": round(1000 * marks[mark - 1], 1) for mark in (50, 95, 99)}
    return {"requests_per_second": round(statistics.median(speeds), 1), **times, "answers": dict(load.counts)}


def measure_load(servers: dict[str, Server], loads: dict[str, dict[str, str]], arguments: Any) -> list[dict[str, Any]]:
    """Measure the servers in turns, with each number of clients and each mix of sentence lengths."""
    rows = []
    for length, expected in loads.items():
        for clients in arguments.clients:
            clocks = {name: Load(server.address, expected) for name, server in servers.items()}
            speeds, seconds = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
            work = defaultdict[str, float](float)
            for number in range(arguments.rounds + 1):  # the first turn is a warm-up
                for name, load in clocks.items():
                    before = servers[name].work()
                    speed = load.run(clients, arguments.seconds if number else arguments.seconds / 4)
                    if number:
                        speeds[name].append(speed)
                        seconds[name] += load.seconds
                        work[name] += servers[name].work() - before
            for name, load in clocks.items():
                about = {"section": "load", "server": name, "sentences": length, "clients": clients}
                busy = {"processor_ms_per_request": round(1000 * work[name] / len(seconds[name]), 1)}
                rows.append(about | summary(load, speeds[name], seconds[name]) | busy)
                show(rows[-1])
    return rows


def measure_long(server: Server, short: dict[str, str], long_text: dict[str, str], arguments: Any) -> list[dict]:
    """Measure the latency of short sentences in turns: alone, and while a long text is translated."""
    rows, (text,) = [], long_text
    for clients in [each for each in arguments.clients if each <= 8] or [1]:
        load = Load(server.address, {**short, **long_text})
        load.texts = list(short)
        speeds, seconds = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for _ in range(arguments.rounds):
            for name, beside in (("alone", None), ("beside a long text", text)):
                speeds[name].append(load.run(clients, arguments.seconds, beside))
                seconds[name] += load.seconds
        for name in speeds:
            about = {"section": "long", "server": "together", "sentences": f"short, {name}", "clients": clients}
            rows.append(about | summary(load, speeds[name], seconds[name]))
            show(rows[-1])
    return rows


def measure_soak(server: Server, expected: dict[str, str], arguments: Any) -> list[dict[str, Any]]:
    """Count the outcomes of all requests, some of which are invalid, and measure the server's memory."""
    load = Load(server.address, expected)
    load.run(16, arguments.soak_seconds / 10, makes_mistakes=True)
    memory = [server.memory()]
    speeds, seconds = [], []
    for _ in range(9):
        speeds.append(load.run(16, arguments.soak_seconds / 10, makes_mistakes=True))
        seconds += load.seconds
        memory.append(server.memory())
    about = {"section": "soak", "server": "together", "sentences": "mixed", "clients": 16}
    row = about | summary(load, speeds, seconds) | {"memory_mib": [round(each, 1) for each in memory]}
    show(row)
    return [row]


def show(row: dict[str, Any]) -> None:
    """A row as a line of text."""
    times = " / ".join(f"{row[f'p{mark}_ms']:,.0f}" for mark in (50, 95, 99))
    print(
        f"{row['section']:5} {row['server']:11} {row['sentences']:26} {row['clients']:4} clients "
        f"{row['requests_per_second']:8.1f} requests/s  p50/95/99 {times} ms  {row['answers']}",
        *([f"CPU {row[busy]} ms/request"] if (busy := "processor_ms_per_request") in row else []),
        *([f"memory {row['memory_mib']} MiB"] if "memory_mib" in row else []),
        flush=True,
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, print a line for each measurement, and write the numbers."""
    check_outputs([arguments.json], [arguments.source])
    logging.disable_progress_bar()
    lines = list(dict.fromkeys(line for line in read_lines(arguments.source) if line.strip()))
    texts = lines[: arguments.sentences]
    words = [word for line in lines * (1 + arguments.long_words // max(1, len(lines))) for word in line.split()]
    long_source = " ".join(words[: arguments.long_words])
    translator = Translator.from_pretrained(arguments.model, device="cpu")
    mixed = dict(zip(texts, map(str, translator.translate(texts))))
    short = {text: found for text, found in mixed.items() if len(text.split()) <= SHORT_WORDS}
    if not short:
        raise ValueError(f"{arguments.source} has no line of at most {SHORT_WORDS} words")
    loads = {"short": short, "mixed": mixed}
    rows: list[dict[str, Any]] = []
    servers: dict[str, Server] = {}
    try:
        for name in arguments.servers if "load" in arguments.sections else ["together"]:
            more = ["--max_body_seconds", "2"] if name == "together" else []
            servers[name] = Server([*SERVERS[name], arguments.model, *more], arguments.threads)
        if "load" in arguments.sections:
            rows += measure_load(servers, {name: loads[name] for name in arguments.lengths}, arguments)
        if "long" in arguments.sections:
            found = {long_source: str(translator.translate(long_source))}
            rows += measure_long(servers["together"], short, found, arguments)
        if "soak" in arguments.sections:
            rows += measure_soak(servers["together"], mixed, arguments)
    finally:
        for server in servers.values():
            server.stop()
        write_json(arguments.json, {"threads": arguments.threads, "measurements": rows})
    allowed = {"right", "long", "malformed", "oversized", "cancelled", "slow"}
    if wrong := {kind: count for row in rows for kind, count in row["answers"].items() if kind not in allowed}:
        raise ValueError(f"wrong answers: {wrong}")
