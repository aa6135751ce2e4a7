"""What the runs of one task do of their own. `prepare_job` and `run_job` are what all runs do, in order."""

from pathlib import Path
from typing import Any

from ..checkpoints.resume import Start
from ..data.parts import Mixture
from ..recipe import RunArguments, TranslationTrainingArguments


class Task:
    """A run's task, which keeps what one of its steps leaves for later ones."""

    is_text_to_text = False  # whether its runs choose the library of matrix products, and have curves and uploads
    translates = False  # whether the translations of its held-out texts are scored; `measure` scores other tasks'
    unit = "texts"  # what its texts consist of

    def __init__(self, run: RunArguments):
        self.run = run
        self.origin: list[str] = []  # where the weights of a new model are from, in sentences for its card
        self.mixture: Mixture | None = None  # what an epoch has of several corpora
        self.processor: Any = None  # what is saved with the model in place of its tokenizer

    def check(self, settings: dict[str, Any]) -> None:
        """Raise `ValueError` if the arguments do not fit together; before any text is read."""
        raise NotImplementedError

    def decide(self, training: TranslationTrainingArguments) -> None:
        """Set what the task decides of the Trainer's arguments."""
        training.predict_with_generate &= self.translates

    def load(self) -> dict[str, Any]:
        """The texts by role."""
        raise NotImplementedError

    def make_tokenizer(self, texts: dict[str, Any], folder: Path, start: Start) -> Any:
        """The tokenizer; a new one is trained once and kept in `folder`."""
        raise NotImplementedError

    def make_data(self, texts: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        """What the Trainer reads, by role."""
        raise NotImplementedError

    def make_model(self, tokenizer: Any, data: dict[str, Any]) -> Any:
        """The model before its first step, whose positions reach all of the data."""
        raise NotImplementedError

    def trainer_options(self, model: Any, tokenizer: Any) -> dict[str, Any]:
        """Arguments of the Trainer, its collators among them."""
        raise NotImplementedError

    def measure(self, trainer: Any, folder: Path, role: str, data: Any) -> dict[str, float]:
        """The scores of the finished model on a held-out text."""
        raise NotImplementedError
