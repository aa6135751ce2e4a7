"""
The end of a run: its model is written first, and nothing that follows (scores, card, curves, upload) can cost it. What
has failed or was stopped is made by the same command later; scores that are there already are kept.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..common.checksums import OPENED, SUMS_FILE, digest, write_checksums
from ..common.files import new_file, new_files, write_text
from ..evaluation.scores import METRICS, Scores, read_predictions, write_predictions
from ..model.layers.base_model import remove_older_weights
from ..publishing.model_card import (
    CARD_FILE,
    CURVES_FILE,
    FACTS_FILE,
    CardFacts,
    ScoredText,
    is_edited,
    read_emissions,
    write_card,
)
from .checkpoints.averaging import AverageCheckpointsCallback
from .checkpoints.files import step_of
from .checkpoints.resume import RECORD_FILE, Start
from .data.parts import CORRECTIONS
from .process import of_main_process, say
from .tasks.task import Task
from .trainer.translation import TranslationTrainer, changed


# In the folder of the checkpoints: the scores of the written model, of those texts that are scored already.
SCORES_FILE = "final_scores.json"
# There, too: the scores of the model that a run has begun with.
BEFORE_FILE = "scores_before.json"


class UnfinishedRunError(OSError):
    """The model of a run is trained and written, but something that follows has failed."""


class LaterParts:
    """The parts of a run after its model is written: one that fails does not keep the others from running."""

    # With several processes, the first failure ends the run: the others would wait.

    def __init__(self, folder: Path, processes: int):
        self.folder, self.processes = folder, processes
        self.failed: dict[str, Exception] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Keep the error of what is done in this context; `name` is a participle, such as "published"."""
        try:
            yield
        except Exception as error:
            self.failed.setdefault(name, error)
            if self.processes > 1:
                self.tell()

    def tell(self) -> None:
        """Raise `UnfinishedRunError`, with all parts that have failed and their errors, if there are any."""
        if not self.failed:
            return
        parts = []
        for name, error in self.failed.items():
            kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
            parts.append(f"{name}: {kind}{' '.join(str(error).split())}")
        told = "; nor ".join(parts)
        raise UnfinishedRunError(
            f"{self.folder} is complete but was not {told.rstrip('.')}. Its weights, config and tokenizer are written "
            "and open; the same command continues with what is missing."
        ) from next(iter(self.failed.values()))


def train_and_write(folder: Path, trainer: TranslationTrainer, start: Start, processor: Any = None) -> None:
    """Train, write the model with its tokenizer, or `processor`, in `folder`, and add to the Trainer's facts."""
    earlier, step = CardFacts.read(folder), None if start.checkpoint is None else step_of(start.checkpoint)
    result = trainer.train(resume_from_checkpoint=None if start.checkpoint is None else str(start.checkpoint))
    weights = trainer.gather_weights()
    # The time is known for a run that was already finished, and unknown for a continued one.
    known = earlier.minutes if step == earlier.steps == trainer.state.global_step else None
    averages = (each for each in trainer.callback_handler.callbacks if isinstance(each, AverageCheckpointsCallback))
    trainer.facts = replace(
        trainer.facts,
        average_of=[checkpoint.name for each in averages for checkpoint in each.folders],
        minutes=result.metrics["train_runtime"] / 60 if step is None else known,
    )
    if trainer.is_world_process_zero():
        write_model(folder, trainer, weights, processor)
        say(trainer.args, f"{folder}: model and {'processor' if processor else 'tokenizer'} written.")
    trainer.accelerator.wait_for_everyone()


def write_model(
    folder: Path, trainer: TranslationTrainer, weights: dict[str, torch.Tensor] | None = None, processor: Any = None
) -> None:
    """Write a trained model, complete or not at all, in the main process; `weights` are those of a sharded one."""
    before = sums_of_model(folder)
    with new_files(folder) as unfinished:
        # The Trainer switches the cache off in the config, where generation looks for it.
        trainer.model.config.use_cache = True
        trainer.model.save_pretrained(unfinished, state_dict=weights)
        (processor or trainer.processing_class).save_pretrained(unfinished)
        written = {path.name for path in unfinished.iterdir()}
    remove_older_weights(folder, written)
    write_checksums(folder)
    if before != sums_of_model(folder):
        for path in (folder / CURVES_FILE, *folder.glob("predictions.*.tsv")):
            path.unlink(missing_ok=True)


def write_final_card(folder: Path, trainer: TranslationTrainer, facts: CardFacts, is_last: bool = True) -> None:
    """Write the card of a written model, unless it was edited, and checksums; `is_last`: no more will be known."""
    try:
        if not is_edited(folder):
            # A process that is killed here leaves no checksums rather than wrong ones.
            (folder / SUMS_FILE).unlink(missing_ok=True)
            write_card(facts, folder)
        elif is_last:
            say(trainer.args, f"{folder / CARD_FILE} is kept, because it was edited.")
    finally:
        write_checksums(folder)


def sums_of_model(folder: Path) -> dict[str, str]:
    """File -> SHA-256, of those files that a model and its tokenizer are opened from."""
    paths = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return {path.name: digest(path) for path in paths if path.name.endswith(OPENED) and path.name != FACTS_FILE}


class FinalScores:
    """What an earlier call of the same run measured of the same files, settings and data, byte by byte, if kept."""

    def __init__(self, folder: Path, checkpoints: Path, keep: bool):
        self.folder, self.path = folder, checkpoints / SCORES_FILE
        self.model = {**sums_of_model(folder), RECORD_FILE: digest(checkpoints / RECORD_FILE)}
        self.scores: dict[str, Any] = {}
        with suppress(OSError, ValueError, TypeError, KeyError):  # there are none, or they are damaged
            if keep and (known := json.loads(self.path.read_bytes()))["model"] == self.model:
                self.scores = dict(known["scores"])

    def predictions(self, role: str) -> Path:
        """The file of the translations of a text."""
        return self.folder / f"predictions.{role}.tsv"

    def find(self, role: str) -> tuple[Scores, list[tuple[str, str, str]]] | None:
        """The scores and the (source, translation, reference) rows of a text, if both are there."""
        path = self.predictions(role)
        try:
            known = self.scores[role]
            if digest(path) != known["predictions_sha256"]:
                return None
            return Scores(**known["scores"]), read_predictions(path)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def add(self, role: str, scores: Scores, rows: list[tuple[str, str, str]]) -> None:
        """Write the translations and the scores of a text."""
        path = self.predictions(role)
        with new_file(path) as partial:
            write_predictions(partial, rows)
        self.scores[role] = {"scores": asdict(scores), "predictions_sha256": digest(path)}
        write_text(self.path, json.dumps({"model": self.model, "scores": self.scores}, indent=1))


@dataclass
class ScoredSet:
    """A held-out text with its scores and its (source, translation, reference) rows in order."""

    role: str
    scores: Scores
    rows: list[tuple[str, str, str]]


def score_corpus(trainer: TranslationTrainer, role: str, corpus: Any, when: str = "") -> ScoredSet:
    """Translate a tokenized corpus with the model's own search, and score it; `when` begins the printed line."""
    num_beams = trainer.model.generation_config.num_beams or 1
    language = trainer.target_langs.get(role.partition(".")[2], trainer.target_lang)
    with changed(trainer, target_lang=language):
        found = trainer.predict(corpus, metric_key_prefix=role, num_beams=num_beams)
    if not when:
        trainer.track(found.metrics or {})
    say(trainer.args, f"{when}{role}, {num_beams} beams: {trainer.scores}")
    rows = sorted(zip(corpus["line"], corpus["source"], trainer.translations, corpus["target"]))
    return ScoredSet(role, trainer.scores, [(source, text, reference) for _, source, text, reference in rows])


def score_all(
    folder: Path, trainer: TranslationTrainer, data: dict[str, Any], parts: LaterParts, keep: bool
) -> list[ScoredSet]:
    """The scores of all held-out texts, of which with `keep` those that the run has measured before are kept."""
    scored = []
    known, kept = None, dict[str, Any]()
    if trainer.is_world_process_zero():
        known = FinalScores(folder, Path(str(trainer.args.output_dir)), keep)
        kept = {role: known.find(role) for role in data}
    kept = of_main_process(kept)
    for role, corpus in data.items():
        with parts.part(f"scored on the {role} text"):
            if kept[role] is not None:
                scored.append(ScoredSet(role, *kept[role]))
                say(trainer.args, f"{role}: {scored[-1].scores}; measured before.")
                continue
            scored.append(score_corpus(trainer, role, corpus))
            if known is not None:
                known.add(role, scored[-1].scores, scored[-1].rows)
    return scored


def score_before(trainer: TranslationTrainer, data: dict[str, Any], is_new: bool) -> list[ScoredText]:
    """The scores, on held-out texts, of the model that a run begins with, so that forgetting is seen."""
    path = Path(str(trainer.args.output_dir), BEFORE_FILE)
    found = list[ScoredText]()
    if is_new:
        for role, corpus in data.items():
            found.append(ScoredText(role, score_corpus(trainer, role, corpus, "before training: ").scores))
        if trainer.is_world_process_zero():
            write_text(path, json.dumps([asdict(part) for part in found], indent=1))
    elif path.is_file():
        try:
            found = [ScoredText(part["role"], Scores(**part["scores"])) for part in json.loads(path.read_bytes())]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error}); without it, the run continues") from error
    return found


def say_changes(trainer: TranslationTrainer, before: list[ScoredText], scored: list[ScoredSet]) -> None:
    """A line for each text that was scored before training and after it."""
    after = {part.role: part.scores for part in scored}
    for part in before:
        if (now := after.get(part.role)) is not None:
            pairs = {name: [round(getattr(scores, name), 2) for scores in (part.scores, now)] for name in METRICS}
            changes = [
                f"{METRICS[name]} {old:.2f} before, {new:.2f} after ({new - old:+.2f})"
                for name, (old, new) in list(pairs.items())[:2]
            ]
            lost = " The model has forgotten some of it." if pairs["bleu"][1] < pairs["bleu"][0] else ""
            if part.role == f"validation.{CORRECTIONS}":
                right, was = (round(each.exact_match * each.sentences / 100) for each in (now, part.scores))
                lost = f" {right:,} of {now.sentences:,} corrections are right now, {was:,} were before."
            say(trainer.args, f"{part.role}: {', '.join(changes)}.{lost}")


def finish(
    folder: Path, trainer: TranslationTrainer, task: Task, data: dict[str, Any], keep_scores: bool
) -> list[ScoredSet]:
    """All that follows when a model is written: scores of `data` by role, card, curves, upload."""
    parts, is_main = LaterParts(folder, trainer.args.world_size), trainer.is_world_process_zero()
    if is_main:
        with parts.part("given a model card"):  # before the scores are known, which takes time
            write_final_card(folder, trainer, trainer.current_facts(), is_last=False)
    scored, measured = list[ScoredSet](), dict[str, dict[str, float]]()
    if task.translates:
        scored = score_all(folder, trainer, data, parts, keep_scores)
        say_changes(trainer, trainer.facts.before, scored)
    else:
        for role, corpus in data.items():
            with parts.part(f"scored on the {role} {task.unit}"):
                measured[role] = task.measure(trainer, folder, role, corpus)
                told = ", ".join(f"{name} {value:.4g}" for name, value in measured[role].items())
                say(trainer.args, f"{role}: {told}")
    found = [ScoredText(part.role, part.scores) for part in scored]
    trainer.facts = replace(trainer.facts, scored=found, measured=measured)
    if is_main:
        if task.is_text_to_text:
            with parts.part("given its training curves"):
                if any("loss" in entry or "eval_loss" in entry for entry in trainer.state.log_history):
                    with new_files(folder) as unfinished:
                        trainer.plot_curves(unfinished / CURVES_FILE)
        with parts.part("given a model card"):
            co2 = read_emissions(str(trainer.args.output_dir), trainer.facts.further, trainer.facts.device)
            trainer.facts = replace(trainer.facts, co2=co2)
            write_final_card(folder, trainer, trainer.current_facts())
        if not parts.failed:
            what = "model card, curves and translations" if task.translates else "model card and scores"
            say(trainer.args, f"{folder}: {what} written.")
        if trainer.args.push_to_hub and not parts.failed:  # what is published has its scores
            with parts.part("published"):
                say(trainer.args, f"published: {trainer.upload(folder, 'End of training').url}")
    parts.tell()
    return scored
