"""The progress of a run: loss, tokens per second and remaining time, as a bar on a terminal and line by line."""

import json
import math
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset
from tqdm.auto import tqdm
from transformers import ProgressCallback, SchedulerType, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import IntervalStrategy, has_length

from ...common.files import write_text
from ...evaluation.scores import is_meaningful


TOKENS_PER_SECOND = "target_tokens_per_second"

# So many updates of the weights, or fewer, are likely a mistake.
FEW_STEPS = 5
# Schedules of transformers that have no warm-up.
WITHOUT_WARMUP = {kind for kind in SchedulerType if kind.value in ("constant", "reduce_lr_on_plateau", "greedy")}
# Key of the Trainer's logs -> its format.
TRAINING_FIELDS = {
    "loss": "loss {:.4f}",
    "grad_norm": "gradient norm {:.3g}",
    "learning_rate": "learning rate {:.3g}",
    TOKENS_PER_SECOND: "{:,.0f} target tokens/s",
}
EVALUATION_FIELDS = {
    "eval_loss": "loss {:.4f}",
    "eval_bleu": "BLEU {:.2f}",
    "eval_chrf": "chrF {:.2f}",
    "eval_exact_match": "exact match {:.2f} %",
    "eval_accuracy": "accuracy {:.2f} %",
    "eval_runtime": "{:.0f} s",
}


EVALUATION_LOSS = re.compile(r"eval_(.+_)?loss")


class Speedometer(TrainerCallback):
    """Measures target tokens per second of training, of all processes; evaluations and checkpoints do not count."""

    def __init__(self) -> None:
        self.tokens_of_step: int | torch.Tensor | None = None
        self._tokens: int | torch.Tensor = 0
        self._began = self._step_ended = time.perf_counter()

    def add(self, tokens: int | torch.Tensor) -> None:
        """Count tokens; a tensor stays on its device until the speed is read."""
        self._tokens = self._tokens + tokens

    def read(self) -> float:
        """Tokens per second since training began or the speed was last read."""
        tokens, now = float(self._tokens), time.perf_counter()
        seconds, self._began, self._tokens = now - self._began, now, 0
        return tokens / max(seconds, 1e-9)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        self._tokens = 0
        self._began = self._step_ended = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        if self.tokens_of_step is not None:
            self.add(self.tokens_of_step)
        self.tokens_of_step = None
        self._step_ended = time.perf_counter()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        now = time.perf_counter()  # the time since the last step was not spent on training
        self._began += now - max(self._began, self._step_ended)
        self._step_ended = now

    on_save = on_evaluate


class Progress(ProgressCallback):
    """transformers' progress bar, with the right remaining time of continued runs, and one line for each log."""

    training_bar: Any
    prediction_bar: Any

    def __init__(self) -> None:
        super().__init__()
        self._began, self._first_step, self._counts_epochs = 0.0, 0, True
        # Seconds and number of the evaluations since training began; how many of them the final scores are worth.
        self._evaluating, self._evaluations, self.final_scores = 0.0, 0, 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._began, self._first_step = time.perf_counter(), state.global_step
        self._evaluating, self._evaluations = 0.0, 0
        # For a stream, transformers' epoch is the fraction of steps that are done.
        data = getattr(kwargs.get("train_dataloader"), "dataset", None)
        self._counts_epochs = not isinstance(data, IterableDataset)
        self.current_step = state.global_step
        if state.is_world_process_zero:
            self.training_bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                unit="step",
                smoothing=0,  # the mean over the whole run includes evaluations
                dynamic_ncols=True,
                disable=args.disable_tqdm or None,
            )

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: Any, eval_dataloader: Any = None, **_: Any
    ) -> None:
        if state.is_world_process_zero and has_length(eval_dataloader):
            if self.prediction_bar is None:
                self.prediction_bar = tqdm(
                    total=len(eval_dataloader),
                    desc="scoring",
                    unit="batch",
                    leave=False,
                    dynamic_ncols=True,
                    disable=args.disable_tqdm or None,
                )
            self.prediction_bar.update(1)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **_: Any) -> None:
        if self.training_bar is None or not logs:
            return
        if "loss" in logs:
            self._write(state, "", logs, TRAINING_FIELDS, [f"{self._time_left(args, state)} left"])
            shown = {"loss": TRAINING_FIELDS["loss"], TOKENS_PER_SECOND: TRAINING_FIELDS[TOKENS_PER_SECOND]}
            self.training_bar.set_postfix_str(", ".join(_fill(logs, shown)))
        elif prefix := next((key.removesuffix("loss") for key in logs if EVALUATION_LOSS.fullmatch(key)), None):
            # Of several texts, the name of each; their mean has none.
            name = prefix.removeprefix("eval_").rstrip("_")
            fields = {key.replace("eval_", prefix, 1): text for key, text in EVALUATION_FIELDS.items()}
            self._write(state, f"validation {name}: " if name else "validation: ", logs, fields, [])

    def _write(
        self, state: TrainerState, title: str, logs: dict[str, Any], fields: dict[str, str], more: list[str]
    ) -> None:
        epoch = f", epoch {state.epoch:.2f}" if self._counts_epochs else ""
        place = f"step {state.global_step:,} of {state.max_steps:,}{epoch}"
        self.training_bar.write(f"{place}: {title}{', '.join(_fill(logs, fields) + more)}")

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        super().on_evaluate(args, state, control, **kwargs)  # type: ignore[no-untyped-call]
        seconds = [value for name, value in (metrics or {}).items() if name.endswith("_runtime")]
        self._evaluating += sum(seconds)
        # Several texts are one evaluation, whose means have no time of their own.
        steps = {entry["step"] for entry in state.log_history if any(name.startswith("eval_") for name in entry)}
        self._evaluations = len([step for step in steps if step > self._first_step])

    def _time_left(self, args: TrainingArguments, state: TrainerState) -> str:
        """Of training, evaluations and final scores; of evaluations before the first one, their number."""
        steps = state.global_step - self._first_step
        seconds = (time.perf_counter() - self._began - self._evaluating) / max(1, steps)
        left = seconds * (state.max_steps - state.global_step)
        # That of this step included, which comes after its log, and that of the last step.
        every, evaluations = float(state.eval_steps), 0
        if args.eval_strategy == IntervalStrategy.EPOCH:
            every = state.global_step / max(float(state.epoch or 0), 1e-9)  # steps
        if args.eval_strategy != IntervalStrategy.NO:
            # Epochs are fractions: of 1e-6 less or more, they are whole.
            done = math.floor((state.global_step - 1) / every + 1e-6)
            evaluations = math.ceil(state.max_steps / every - 1e-6) - done
        if self._evaluations:
            left += self._evaluating / self._evaluations * (evaluations + self.final_scores)
        told = str(tqdm.format_interval(left))
        if evaluations and not self._evaluations:
            return f"{told} and {evaluations:,} evaluation{'s' * (evaluations != 1)}"
        return told


class LogFile(TrainerCallback):
    """Writes the log beside the checkpoints while it grows, for who watches the run; each checkpoint has its own."""

    def __init__(self) -> None:
        self._next = 0.0

    def on_log(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero or (began := time.perf_counter()) < self._next:
            return
        log = {"global_step": state.global_step, "max_steps": state.max_steps, "log_history": state.log_history}
        # A run does not end for it: of a full disk the next checkpoint speaks.
        with suppress(OSError):
            write_text(Path(args.output_dir, TRAINER_STATE_NAME), json.dumps(log))
        ended = time.perf_counter()
        self._next = ended + 100 * (ended - began)  # a long log takes a hundredth of the time


class ShortRunWarning(TrainerCallback):
    """Warns at the start of a run of too few updates: a handful, less than an epoch, or none after the warm-up."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        loader = kwargs.get("train_dataloader")
        batches = len(loader) if has_length(loader) else 0  # the length of a stream is unknown
        epoch = math.ceil(batches / args.gradient_accumulation_steps)
        warning = find_short_run(args, state.max_steps, epoch)
        text = warning and f"Warning: {warning}"
        if state.global_step >= state.max_steps > 0:  # a run that is continued
            longer = "max_steps" if args.max_steps > 0 else "num_train_epochs"
            text = f"All {state.max_steps:,} updates are done: nothing is trained; raise {longer} for more."
        if state.is_world_process_zero and text:
            print(text, flush=True)


class ZeroScoreWarning(TrainerCallback):
    """Warns at the end of a run whose score could choose no checkpoint: it was always 0, or of one text alone."""

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        if not args.metric_for_best_model or not args.greater_is_better:
            return
        name = args.metric_for_best_model.removeprefix("eval_")
        entries = [entry for entry in state.log_history if f"eval_{name}" in entry]
        told = [entry for entry in entries if is_meaningful(entry, f"eval_{name}")]
        if len(entries) < 2 or any(entry[f"eval_{name}"] for entry in told) or not state.is_world_process_zero:
            return
        why, counts = (
            ("was 0", "the first counts as the best")
            if told
            else ("was of translations that are nearly all the same", "the last one is kept")
        )
        print(
            f"Warning: {name} {why} at all {len(entries)} evaluations, so it tells nothing about the checkpoints, and "
            f"{counts}; choose by another one, such as --metric_for_best_model loss.",
            flush=True,
        )


def find_short_run(args: TrainingArguments, steps: int, epoch: int = 0) -> str | None:
    """A sentence if a run of so many updates is too short to learn, else None; `epoch` is the updates of an epoch."""
    problems, advice = [], [f"raise {'max_steps' if args.max_steps > 0 else 'num_train_epochs'}"]
    if steps <= FEW_STEPS:
        problems.append("which is too few to learn anything")
        is_filled_by_tokens = getattr(args, "tokens_per_step", None) is not None
        advice.append(f"lower {'tokens_per_step' if is_filled_by_tokens else 'per_device_train_batch_size'}")
    if steps < epoch:
        problems.append(f"fewer than the {epoch:,} that see all of its text once")
    warmup = args.get_warmup_steps(steps)
    shorter = max(1, steps // 10)
    if warmup >= steps and warmup > shorter and SchedulerType(args.lr_scheduler_type) not in WITHOUT_WARMUP:
        problems.append(f"all in its warm-up of {warmup:,}: the learning rate never reaches {args.learning_rate:.3g}")
        advice.append(f"lower warmup_steps to, say, {shorter:,}")
    length = steps if args.eval_strategy == IntervalStrategy.STEPS else steps / epoch if epoch else math.inf
    if args.eval_strategy != IntervalStrategy.NO and args.eval_delay > length:
        problems.append(f"which end before eval_delay={args.eval_delay:g}, so nothing is evaluated in training")
        advice.append("lower eval_delay")
    if not problems:
        return None
    updates = f"{steps:,} update{'s' * (steps != 1)}"
    return f"the run makes {updates} of the weights, {', and '.join(problems)}; {' or '.join(advice)}."


def _fill(logs: dict[str, Any], fields: dict[str, str]) -> list[str]:
    return [text.format(logs[name]) for name, text in fields.items() if name in logs]
