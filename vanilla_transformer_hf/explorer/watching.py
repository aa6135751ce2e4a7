"""
A training run that is watched: its log, and what its checkpoints make of one sentence.

Runs remove old checkpoints. So each one is opened as soon as it is there, and translates the sentence that the page
shows; this is kept, and so are the weights, while those of all are few.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers.trainer import TRAINER_STATE_NAME

from ..common.opening import DAMAGE
from ..common.settings import LARGEST_LOG, read_object
from ..training.checkpoints.files import checkpoints_in
from .explorer import Explorer, open_subject, translate
from .interventions import parts_of
from .requests import MomentRequest, PairRequest, Request, RequestError, TranslateRequest
from .results import MomentResult, RunResult, as_json
from .subject import Recent, Subject


MOST_WEIGHTS = 500_000_000  # numbers of all checkpoints that stay opened: 2 GB in float32
MOST_MOMENTS = 4096
# What is drawn of a log.
CURVES = ("loss", "eval_loss", "eval_bleu", "eval_chrf", "eval_exact_match", "eval_accuracy")


class Watched:
    """
    The run of a training in `folder`, its `output_dir`, in progress or finished. Its checkpoints become models of the
    explorer, the newest first, behind those that are open.
    """

    def __init__(self, explorer: Explorer, folder: str | os.PathLike, trust_remote_code: bool = False):
        self.name = Path(folder).resolve().name
        inner = Path(folder, "checkpoints")  # `train` has them there, transformers' Trainer in `output_dir` itself
        self.folder = inner if inner.is_dir() else Path(folder)
        if not inner.is_dir() and not checkpoints_in(self.folder):
            raise ValueError(
                f"{folder} is not the folder of a training: expected checkpoints in it, got none; name the output_dir "
                "of a training that has begun."
            )
        self.explorer, self.given, self.trust_remote_code = explorer, explorer.subjects, trust_remote_code
        self._seen: dict[int, int] = {}  # step of a checkpoint -> when its log was written
        self._problems: dict[int, str] = {}  # step of a checkpoint, -1 for the log -> why it cannot be shown
        self._opened: dict[int, Subject] = {}
        self._log: dict[str, Any] = {"global_step": 0, "max_steps": 0, "log_history": []}
        self._asked: dict[str, Any] = {}  # the sentence that new checkpoints translate
        self._moments, self._lock = Recent(MOST_MOMENTS), threading.Lock()

    def keep_looking(self, seconds: float = 1.0) -> None:
        """Look for what is new until the process ends."""
        while True:
            began = time.monotonic()
            self.look()
            time.sleep(max(seconds, 3 * (time.monotonic() - began)))  # most of the time is the training's

    def look(self) -> None:
        """Read the log, and open the checkpoints that are new: each once, when it is whole."""
        states = {step: path / TRAINER_STATE_NAME for step, path in checkpoints_in(self.folder).items()}
        logs = [self.folder / TRAINER_STATE_NAME, *list(states.values())[-1:]]
        found = []
        self._problems.pop(-1, None)
        for path in logs:
            try:
                fields = {"global_step": int, "max_steps": int, "log_history": list}
                found.append(read_object(path, fields, LARGEST_LOG))
            except FileNotFoundError:
                pass  # not yet written, or removed since it was listed
            except (OSError, ValueError) as error:
                self._problems[-1] = " ".join(str(error).split())
        self._log = max(found, key=lambda log: log["global_step"], default=self._log)
        for step, path in states.items():
            # The log is written last; a checkpoint of `train` is renamed when it is whole.
            try:
                written = path.stat().st_mtime_ns
            except OSError:
                continue
            if self._seen.get(step) != written:
                self._forget_from(step)
                if self._open(step, path.parent):
                    self._seen[step] = written

    def _forget_from(self, step: int) -> None:
        """The run continues from an earlier step: what was seen of later ones is not its own."""
        later = [one for one in self._seen if one >= step]
        for one in later:
            del self._seen[one]
            self._opened.pop(one, None)
            self._problems.pop(one, None)
        if later:
            with self._lock:
                self._moments = Recent(MOST_MOMENTS)

    def _open(self, step: int, path: Path) -> bool:
        """Open a checkpoint, or say why it cannot be shown; False if it was removed in the meantime."""
        try:
            with self.explorer.alone():
                subject = open_subject(path.name, path, self.trust_remote_code)
            if subject.reads != "text":
                raise ValueError(f"{path.name} reads {subject.reads}; expected a model that reads text")
        except DAMAGE as error:
            if is_there := path.is_dir():
                self._problems[step] = f"{path.name} cannot be shown: {' '.join(str(error).split())}"
            return is_there
        for parameter in subject.model.parameters():  # the file may go: Windows removes none that is mapped
            parameter.data = parameter.data.clone()
        self._opened[step] = subject
        with suppress(*DAMAGE):  # the page, which asks too, says what is wrong
            self._translated(MomentRequest(step=step, **(self._asked or {"text": subject.example})))
        sizes = {one: kept.model.num_parameters() for one, kept in self._opened.items()}
        while sum(sizes.values()) > MOST_WEIGHTS and len(sizes) > 1:
            oldest = min(sizes)
            del sizes[oldest], self._opened[oldest]
        newest = [self._opened[one] for one in sorted(self._opened, reverse=True)]
        self.explorer.subjects = self.given | {one.name: one for one in newest}
        return True

    def run(self, request: Request) -> RunResult:
        """How far the run is, and its curves."""
        curves: dict[str, list[list[float]]] = {}
        for entry in self._log["log_history"]:
            for name in CURVES:
                if isinstance(entry, dict) and isinstance(entry.get(name), (int, float)) and "step" in entry:
                    curves.setdefault(name, []).append([entry["step"], entry[name]])
        step, steps = self._log["global_step"], self._log["max_steps"]
        seen = sorted(self._seen.keys() - self._problems.keys())
        return RunResult(self.name, step, max(step, steps), curves, seen, "; ".join(self._problems.values()))

    def moment(self, request: MomentRequest) -> Any:
        """What one checkpoint makes of a sentence, as JSON."""
        self._asked = {"text": request.text, "target_lang": request.target_lang}
        return self._translated(request)

    def _translated(self, request: MomentRequest) -> Any:
        """What is kept, or is now, of a checkpoint and a sentence."""
        key = (request.step, request.text, request.target_lang)
        with self._lock:
            return self._moments.get(key, lambda: as_json(self._translate(request)))

    def _translate(self, request: MomentRequest) -> MomentResult:
        subject, step = self._opened.get(request.step), request.step
        if subject is None:
            message = f"checkpoint {step} is no longer there, or never was: choose another"
            raise RequestError("step", message, "removed", {"step": step})
        asked: dict[str, Any] = {"text": request.text, "target_lang": request.target_lang}
        part, weights, layer = parts_of(subject.model)[-1], None, 0
        with self.explorer.alone():
            best = translate(subject, TranslateRequest(**asked)).hypotheses[0]
            found = subject.forced(PairRequest(target_ids=best.ids, **asked))
            rows, _, columns = found.sides(part)
            with suppress(RequestError):  # weights that are not those of tokens
                weights = torch.stack([one[0].float().mean(dim=0) for one in found.attentions(part)])  # (L, R, C)
                layer = int(weights.std(dim=1, correction=0).mean(dim=1).argmax())
        return MomentResult(step, subject.name, best.text, best.score, part, rows, columns, weights, layer)
