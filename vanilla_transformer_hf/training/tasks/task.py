"""What the runs of one task do of their own. `prepare_job` and `run_job` are what all runs do, in order."""

from pathlib import Path
from typing import Any

from ..checkpoints.resume import Start
from ..data.parts import Mixture
from ..recipe import RunArguments, TranslationTrainingArguments


class Task:
    """
    A run's task, which keeps what one of its steps leaves for later ones.

    Attributes:
        is_text_to_text: Whether its runs choose the library of matrix products, and have curves and uploads.
        translates: Whether the translations of its held-out texts are scored; `measure` scores those of other tasks.
        unit: What its texts consist of.
        origin: Where the weights of a new model are from, in sentences for its card.
        mixture: What an epoch has of several corpora.
        processor: What is saved with the model in place of its tokenizer.
    """

    is_text_to_text = translates = False
    unit = "texts"

    def __init__(self, run: RunArguments):
        self.run = run
        self.origin: list[str] = []
        self.mixture: Mixture | None = None
        self.processor: Any = None

    def check(self, settings: dict[str, Any]) -> None:
        """Raise `ValueError` if the arguments do not fit together; before any text is read."""
        raise NotImplementedError

    def decide(self, training: TranslationTrainingArguments) -> None:
        """Set what the task decides of the Trainer's arguments."""
        training.predict_with_generate = False

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
