"""
Comparisons of variants of one recipe, read from a file: the plan, with the recipe of each run; and the runs. Each has
its own process, so that a failed or killed run does not affect the others.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from ...common.files import write_text
from ...common.settings import read_object, read_yaml
from ..arguments import DataArguments
from ..checkpoints.resume import changed_names, find_data_sums, kept_settings, lock_folder
from ..data.corpora import load_corpora, size_by_pairs, tokenize
from ..data.parts import refuse_several
from ..process import quiet_libraries, say
from ..recipe import RecipeLoader, RecipeParser, RunArguments
from ..tokenizer import describe_tokenizer, get_tokenizer
from .run import DIVERGED, FAILED, FINISHED, write_result


RECORD_FILE = "comparison.yaml"
# Fields of a new tokenizer. All runs share one, whose vocabulary is that of their models.
TOKENIZER_FIELDS = ("vocab_size", "tokenizer_model", "separate_vocabularies", "target_lang_tags")
# Fields that are the same for all variants.
SHARED_FIELDS = (
    *(argument.name for argument in fields(DataArguments)),
    *TOKENIZER_FIELDS,
    *("tokenizer_name_or_path", "model_name_or_path", "output_dir", "seed", "data_seed", "max_steps"),
    *("num_train_epochs", "resume_from_checkpoint", "push_to_hub"),
)
# Schedules of the learning rate that do not depend on the last step, which is unknown with a budget of seconds.
SCHEDULES_WITHOUT_END = ("inverse_sqrt", "constant", "constant_with_warmup")
# Fields that count steps, or less than 1 are a share of all steps.
FIELDS_OF_SHARES = ("warmup_steps", "eval_steps", "save_steps", "logging_steps")
# `max_steps` of a run with a budget of seconds.
WITHOUT_LIMIT = 10_000_000


@dataclass(frozen=True)
class Variants:
    """The variants of a file, name -> fields that differ from the recipe, and the settings that all of them have."""

    settings: dict[str, Any]
    variants: dict[str, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One training run of a comparison. `place` is its folder; what belongs to it stands beside, with a suffix."""

    variant: str
    seed: int
    place: Path
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.variant}, seed {self.seed}"

    def beside(self, suffix: str) -> Path:
        """Its file with this suffix: `.yaml` for the recipe, `.log` for the output, `.json` for the result."""
        return self.place.with_name(self.place.name + suffix)


@dataclass(frozen=True)
class Plan:
    """A comparison: the arguments of the recipe without variants, the runs, and what `comparison.yaml` records."""

    base: RunArguments
    runs: list[PlannedRun]
    record: dict[str, Any]


def read_variants(path: str) -> Variants:
    """The variants of a YAML file: `variants`, a mapping of names to fields, and optionally `settings` of all."""
    content = read_yaml(path, RecipeLoader)
    if not isinstance(content, dict) or not content.keys() <= {"settings", "variants"}:
        raise ValueError(f"{path} is not a file of variants: expected a mapping with 'variants' and 'settings'.")
    settings, variants = content.get("settings") or {}, content.get("variants")
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: settings is not a mapping of fields to values.")
    if not isinstance(variants, dict) or not variants:
        raise ValueError(
            f"{path}: variants is not a mapping of names to fields, such as 'pre: {{norm_type: rms_norm}}'."
        )
    known = RecipeParser(prog="compare").names
    for name, values in {"settings": settings, **variants}.items():
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", str(name)):
            raise ValueError(f"{path}: {name!r} is not a name: expected letters, digits and . _ + -.")
        if not isinstance(values or {}, dict):
            raise ValueError(f"{path}: {name} is not a mapping of fields to values.")
        for field in values or {}:
            if field not in known:
                raise ValueError(f"{path}: {name} has a field {field!r} that recipes do not have.")
            if name != "settings" and field in SHARED_FIELDS:
                raise ValueError(
                    f"{path}: {name} sets {field}, but text, tokenizer, seed and budget are the same for all "
                    "variants: set it on the command line or in the file's settings."
                )
    return Variants(settings, {str(name): values or {} for name, values in variants.items()})


def plan_comparison(
    recipe: str,
    variants: Variants,
    argv: Sequence[str],
    seeds: int,
    output: Path,
    seconds: float | None = None,
    prog: str = "compare",
) -> Plan:
    """The runs of a comparison, variant by variant, each with every seed from the recipe's on. Nothing is written."""
    # The recipe is overridden by the settings of the file of variants, these by `argv`, and those by the variant. The
    # model of the last step is measured, unless load_best_model_at_end is in the file of variants or in `argv`.
    # `seconds` is the budget of a run, instead of steps.
    parser = RecipeParser(prog=prog)
    _, line, unset = parser.read_line(argv)
    budget = {} if seconds is None else {"max_steps": WITHOUT_LIMIT}
    given = parser.typed(variants.settings, "settings") | budget | line
    unset = [*_without_value(variants.settings), *unset]
    base, settings = parser.run(parser.override(parser.read(recipe), given, unset, told=prog), recipe)
    if "load_best_model_at_end" not in given and settings.get("early_stopping_patience") is None:
        # The last model is measured, since all variants have the same budget: if all scores are 0, the best would be
        # the first.
        settings.pop("load_best_model_at_end", None)
        settings.pop("metric_for_best_model", None)
    for name in ("resume_from_checkpoint", "push_to_hub"):
        if settings.get(name):
            raise ValueError(
                f"{name}={settings[name]}: a comparison neither continues other runs nor publishes its own."
            )
    if base.data.task != "translation":
        raise ValueError(f"task={base.data.task}: a comparison trains models of translation; give such a recipe.")
    runs, shared = [], settings
    settings = {name: value for name, value in settings.items() if name != "output_dir"}
    first = base.training.seed
    for name, values in variants.variants.items():
        try:
            own_fields = parser.typed(values, name), _without_value(values)
            run, own = parser.run(parser.override(settings, *own_fields), recipe)
        except ValueError as error:
            raise ValueError(f"variant {name!r}: {error}") from error
        _check_budget(run, own, seconds)
        for field in TOKENIZER_FIELDS:
            own.pop(field, None)
        for seed in range(first, first + seeds):
            place = output / "runs" / f"{name}-seed-{seed}"
            runs.append(PlannedRun(name, seed, place, {**own, "seed": seed, "output_dir": str(place)}))
    record = {
        "settings": {name: value for name, value in kept_settings(shared).items() if name != "seed"},
        "seconds": seconds,
        "variants": variants.variants,
        "data_sha256": find_data_sums(base.data),
    }
    return Plan(base, runs, record)


def _check_budget(run: RunArguments, settings: dict[str, Any], seconds: float | None) -> None:
    """Nothing in a run with a budget of seconds may depend on the number of its steps, which is not known before."""
    if seconds is None:
        return
    if settings["max_steps"] != WITHOUT_LIMIT:
        raise ValueError(f"--seconds {seconds:g} and max_steps={settings['max_steps']} exclude each other: give one.")
    schedule = getattr(run.training.lr_scheduler_type, "value", run.training.lr_scheduler_type)
    if schedule not in SCHEDULES_WITHOUT_END:
        raise ValueError(
            f"--seconds {seconds:g}: lr_scheduler_type={schedule} depends on the last step, which is not known "
            f"before; give --lr_scheduler_type and one of {', '.join(SCHEDULES_WITHOUT_END)}."
        )
    for name in FIELDS_OF_SHARES:
        if 0 < (share := getattr(run.training, name) or 0) < 1:
            raise ValueError(
                f"--seconds {seconds:g}: {name}={share:g} is a share of all steps, whose number is not known before; "
                f"give --{name} and a number of steps."
            )


def _without_value(values: dict[str, Any]) -> list[str]:
    """The fields that remove the recipe's value."""
    return [name for name, value in values.items() if value is None]


def continue_record(plan: Plan, output: Path) -> None:
    """Write `comparison.yaml`, or check that the existing one is of this comparison, perhaps with fewer variants."""
    path = output / RECORD_FILE
    known = read_yaml(path) if path.is_file() else {}
    groups = ("variants", "settings", "data_sha256")
    is_whole = isinstance(known, dict) and known.keys() >= plan.record.keys()
    if known != {} and not (is_whole and all(isinstance(known[name], dict) for name in groups)):
        raise ValueError(f"{path} is damaged; choose another --output.")
    if known:
        variants = known["variants"]
        same = {name: values for name, values in plan.record["variants"].items() if name in variants}
        changes = [
            *_changes("", known["settings"], plan.record["settings"]),
            *_changes("", {"seconds": known["seconds"]}, {"seconds": plan.record["seconds"]}),
            *(f"{name} has other content" for name in changed_names(known["data_sha256"], plan.record["data_sha256"])),
            *(each for name, values in same.items() for each in _changes(f"{name}: ", variants[name], values)),
        ]
        if changes:
            raise ValueError(
                f"{output} belongs to a comparison with other settings ({'; '.join(changes)}): choose another "
                f"--output, or delete {output}. Variants and seeds can be added."
            )
    record = {**plan.record, "variants": {**known.get("variants", {}), **plan.record["variants"]}}
    output.mkdir(parents=True, exist_ok=True)
    write_text(path, yaml.safe_dump(record, sort_keys=False, allow_unicode=True))


def _changes(of: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """In words, which fields differ."""
    return [
        f"{of}{name} was {before.get(name, 'the default')}, is {now.get(name, 'the default')}"
        for name in changed_names(before, now)
    ]


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
    plan: Plan, output: Path, seconds: float | None = None, processes: int = 1, tell: Callable[[str], None] = print
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
                recipe = yaml.safe_dump(run.settings | shared, sort_keys=False, allow_unicode=True)
                write_text(run.beside(".yaml"), recipe)
                run.beside(".json").unlink(missing_ok=True)
        tell(f"{len(plan.runs)} runs, {len(plan.runs) - len(waiting)} of them done before; {processes} at a time.")
        _train(waiting, seconds, processes, tell)
        return [MeasuredRun(run, read_result(run) or {"status": FAILED, "error": "no result"}) for run in plan.runs]


# Fields of a result -> what is printed of them.
TOLD = {
    "validation_loss": "validation loss {:.3f}",
    "validation_bleu": "BLEU {:.2f}",
    "seconds": "{:.0f} s of training",
}


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
                parts = [result["status"] + (f": {result['error']}" if result["error"] else "")]
                parts += [text.format(result[name]) for name, text in TOLD.items() if result.get(name) is not None]
                tell(f"{run}: {', '.join(parts)} [{done} of {count}, about {left / 60:.0f} min left]")
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
