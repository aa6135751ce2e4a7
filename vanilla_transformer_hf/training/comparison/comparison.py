"""Comparisons of variants: each run has its own process, so that a failed or killed run does not affect the others."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...common.files import open_output
from ...common.settings import read_object
from ..checkpoints.resume import lock_folder
from ..data.corpora import load_corpora, size_by_pairs, tokenize
from ..data.parts import refuse_several
from ..process import quiet_libraries, say
from ..tokenizer import describe_tokenizer, get_tokenizer
from .plan import Plan, PlannedRun, continue_record
from .run import DIVERGED, FAILED, FINISHED, write_result


PACKAGE = Path(__file__).resolve().parents[2]
# Seconds between two checks of the processes.
PAUSE = 0.2


@dataclass(frozen=True)
class MeasuredRun:
    """A run of a comparison with its result from `measure_run`."""

    run: PlannedRun
    result: dict[str, Any]


def start_process(run: PlannedRun, seconds: float | None, processes: int) -> subprocess.Popen[bytes]:
    """Start a run's process, which writes to the run's log and ends with a checkpoint when this process ends."""
    threads = max(1, (os.cpu_count() or 1) // processes)
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", f"{PACKAGE.name}.training.comparison.run", str(run.beside(".yaml"))]
    with run.beside(".log").open("ab") as log:
        return subprocess.Popen(
            [*command, *([str(seconds)] if seconds is not None else [])],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,  # a Ctrl-C for this process is passed on once, as SIGTERM
        )


def read_result(run: PlannedRun) -> dict[str, Any] | None:
    """The result of a run that has ended, or None."""
    path = run.beside(".json")
    return read_object(path, {"status": str}) if path.is_file() else None


def run_comparison(
    plan: Plan,
    output: Path,
    seconds: float | None = None,
    processes: int = 1,
    tell: Callable[[str], None] = print,
) -> list[MeasuredRun]:
    """Train and measure the unfinished runs of a plan, several at a time; return the results of all runs, in order."""
    # A run that fails is in the results with its error, and is tried again by the next call; finished and diverged
    # ones are not repeated.
    continue_record(plan, output)
    with lock_folder(output):
        waiting = [run for run in plan.runs if (read_result(run) or {}).get("status") not in (FINISHED, DIVERGED)]
        if waiting:  # the tokenizer and the tokenized text of all runs are made, unless they exist
            base = plan.base
            with quiet_libraries():
                refuse_several(base.data, "compare")
                corpora = load_corpora(base.data)
                if "train" not in corpora:
                    raise ValueError("train_source is not given: name the text to train on.")
                base, _ = size_by_pairs(base, corpora)
                tokenizer = get_tokenizer(base, corpora["train"], output / "tokenizer")
                say(base.training, describe_tokenizer(tokenizer, base))
                tokenize(corpora, tokenizer, base)  # datasets keeps it in its cache, where the runs find it
            name = base.model.tokenizer_name_or_path or base.model.model_name_or_path or str(output / "tokenizer")
            for run in waiting:
                shared = {} if "model_name_or_path" in run.settings else {"tokenizer_name_or_path": name}
                run.place.parent.mkdir(parents=True, exist_ok=True)
                with open_output(run.beside(".yaml")) as file:
                    file.write(yaml.safe_dump(run.settings | shared, sort_keys=False, allow_unicode=True).encode())
                run.beside(".json").unlink(missing_ok=True)
        tell(f"{len(plan.runs)} runs, {len(plan.runs) - len(waiting)} of them done before; {processes} at a time.")
        _train(waiting, seconds, processes, tell)
        return [MeasuredRun(run, read_result(run) or {"status": FAILED, "error": "no result"}) for run in plan.runs]


def _train(waiting: list[PlannedRun], seconds: float | None, processes: int, tell: Callable[[str], None]) -> None:
    count, began, done = len(waiting), time.perf_counter(), 0
    active: dict[PlannedRun, subprocess.Popen[bytes]] = {}
    queue = list(waiting)

    def leave(number: int, frame: Any) -> None:  # an exception, so that the signal is passed on to the runs
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        while queue or active:
            while queue and len(active) < processes:
                run = queue.pop(0)
                tell(f"{run}: training (output in {run.beside('.log')})")
                active[run] = start_process(run, seconds, processes)
            ended = [run for run, process in active.items() if process.poll() is not None]
            for run in ended:
                result = _finish(run, active.pop(run).returncode)
                done += 1
                left = (time.perf_counter() - began) / done * (count - done)
                tell(f"{run}: {_in_words(result)} [{done} of {count}, about {left / 60:.0f} min left]")
            if not ended:
                time.sleep(PAUSE)
    finally:
        for process in active.values():
            process.terminate()
        for process in active.values():
            process.wait()
        signal.signal(signal.SIGTERM, before)


def _finish(run: PlannedRun, code: int) -> dict[str, Any]:
    """The result of a run whose process has ended; of one that ended without a result, its last words."""
    result = read_result(run)
    if result is None:
        lines = run.beside(".log").read_text(encoding="utf-8", errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        result = {"status": FAILED, "error": f"{how}; {said}" if said else how}
        write_result(run.beside(".json"), result)
    if result["status"] != FAILED:
        shutil.rmtree(run.place / "checkpoints", ignore_errors=True)  # they are not needed any more
    return result


def _in_words(result: dict[str, Any]) -> str:
    parts = [f"{result['status']}: {result['error']}" if result["error"] else result["status"]]
    for name, text in {"validation_loss": "validation loss {:.3f}", "validation_bleu": "BLEU {:.2f}"}.items():
        if result.get(name) is not None:
            parts.append(text.format(result[name]))
    if result.get("seconds"):
        parts.append(f"{result['seconds']:.0f} s of training")
    return ", ".join(parts)
