"""
One run of a comparison, in its own process: trained as by `vanilla-transformer train`, and measured.

    python -m vanilla_transformer_hf.training.comparison.run RECIPE.yaml [SECONDS]

The result is written beside the recipe, as RECIPE.json. When standard input ends, because the comparing process has
ended, the run saves a checkpoint and ends.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ...common.command_line import errors, message_of
from ...common.files import write_text
from ..checkpoints.files import TrainingInterrupted
from ..recipe import RecipeParser
from ..run import prepare_job, run_job


# How a run ended.
FINISHED, DIVERGED, FAILED = "finished", "diverged", "failed"
# A training loss has diverged if it ends more than this many nats above its lowest value or above a uniform guess.
DIVERGED_BY = 1.0


class Stopwatch(TrainerCallback, ExportableState):
    """Counts the seconds of training steps, and ends a run whose `budget` of seconds is used."""

    # Without evaluations and checkpoints; wall-clock seconds and seconds of CPU time, which other work on the machine
    # affects less. Checkpoints store the counts, so that a continued run has the same budget.

    def __init__(self, budget: float | None = None):
        self.budget, self.seconds, self.cpu_seconds = budget, 0.0, 0.0
        self._start()

    def _start(self) -> None:
        self._mark = time.perf_counter(), time.process_time()

    def state(self) -> dict[str, Any]:
        """The state that is saved in a checkpoint."""
        return {
            "args": {"budget": self.budget},
            "attributes": {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds},
        }

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        states: Any = state.stateful_callbacks or {}
        if state.global_step and type(self).__name__ in states:
            counts = states[type(self).__name__]["attributes"]
            self.seconds, self.cpu_seconds = counts["seconds"], counts["cpu_seconds"]
        control.should_training_stop |= self._is_used()
        self._start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        began, cpu_began = self._mark
        self._start()
        self.seconds += self._mark[0] - began
        self.cpu_seconds += self._mark[1] - cpu_began
        if self._is_used():
            control.should_training_stop = control.should_save = True
            control.should_evaluate = args.eval_strategy != "no"

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._start()

    on_save = on_evaluate

    def _is_used(self) -> bool:
        return self.budget is not None and self.seconds >= self.budget


class FinalScores(TrainerCallback):
    """Keeps the loss and the scores of the finished model on each text, and how fast it generated them."""

    def __init__(self, model: PreTrainedModel):
        self.found: dict[str, float] = {}
        self._tokens, self._seconds = 0, 0.0
        self._generate: Any = model.generate
        self._pad = model.config.pad_token_id
        model.generate = self._timed  # type: ignore[assignment]

    def _timed(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        found = self._generate(*args, **kwargs)
        self._tokens += int((found[:, 1:] != self._pad).sum())  # also waits for the device
        self._seconds += time.perf_counter() - began
        return found

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._tokens, self._seconds = 0, 0.0

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        kept = ("_loss", "_bleu", "_chrf", "_exact_match")
        self.found |= {name: value for name, value in (metrics or {}).items() if name.endswith(kept)}
        if self._seconds:
            self.found.setdefault("generated_tokens_per_second", self._tokens / self._seconds)
        self._tokens, self._seconds = 0, 0.0


def peak_memory() -> float | None:
    """Peak memory of this process in MiB: of the GPU if it uses one, else resident memory."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 2**10  # bytes there, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def find_divergence(losses: list[tuple[int, float]], vocab_size: int) -> str | None:
    """A sentence if the training losses, (step, nats per token), ended far above their minimum; else None."""
    if len(losses) < 2:
        return None
    (step, last), (lowest_step, lowest) = losses[-1], min(losses, key=lambda point: point[1])
    bound = min(lowest, math.log(vocab_size)) + DIVERGED_BY
    if last <= bound:
        return None
    return f"training loss {last:.2f} at step {step}, {lowest:.2f} at step {lowest_step}"


def measure_run(recipe: Path, seconds: float | None = None) -> dict[str, Any]:
    """Train a recipe, for at most `seconds` of training if given, and return the measurements."""
    run, settings = RecipeParser(prog="compare").parse([str(recipe)])
    job = prepare_job(run, settings)
    trainer = job.trainer
    stopwatch, scores = Stopwatch(seconds), FinalScores(trainer.model)
    trainer.add_callback(stopwatch)
    trainer.add_callback(scores)
    status, error = FINISHED, None
    try:
        run_job(job, keep_scores=False)  # how fast they are generated is measured, too
    except FloatingPointError as failure:
        status, error = DIVERGED, str(failure).split(", on sentence pairs")[0]  # the log has them
    finally:
        trainer.accelerator.end_training()
    log = trainer.state.log_history
    curves = {
        name: [(int(entry["step"]), entry[key]) for entry in log if key in entry]
        for name, key in (("training_loss", "loss"), ("validation_loss", "eval_loss"), ("bleu", "eval_bleu"))
    }
    if status == FINISHED and (error := find_divergence(curves["training_loss"], trainer.model.config.vocab_size)):
        status = DIVERGED
    steps = trainer.state.global_step
    return {
        "status": status,
        "error": error,
        "device": trainer.args.device.type,
        "parameters": trainer.model.num_parameters(),
        "steps": steps,
        "seconds": stopwatch.seconds,
        "steps_per_second": steps / stopwatch.seconds if stopwatch.seconds else None,
        "cpu_ms_per_step": 1e3 * stopwatch.cpu_seconds / steps if steps else None,
        "peak_mib": peak_memory(),
        **scores.found,
        "curves": curves,
    }


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON; numbers that are not finite become null."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in result.items()
    }
    write_text(path, json.dumps(finite, indent=1))


def main(argv: list[str]) -> int:
    """Train and measure the named recipe, write its result, and return the exit status."""
    recipe, seconds = Path(argv[0]), float(argv[1]) if len(argv) > 1 else None
    try:
        result = measure_run(recipe, seconds)
    except TrainingInterrupted as interruption:
        print(interruption, file=sys.stderr)
        return 128 + interruption.signal
    except errors(RuntimeError) as error:
        result = {"status": FAILED, "error": " ".join(message_of(error).split())}
        print(result["error"], file=sys.stderr)
    write_result(recipe.with_suffix(".json"), result)
    return 0


def _end_with_parent() -> None:
    """Wait in a thread for the end of standard input, and then tell this process to end."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    _end_with_parent()
    sys.exit(main(sys.argv[1:]))
