"""What differs between releases of transformers 5 for the package; model/releases/ has what travels with a model."""

from importlib import import_module
from typing import Any

import transformers


def removed_tasks() -> dict[str, Any]:
    """The tasks that `pipeline()` says are removed; early releases have no such table."""
    from transformers import pipelines

    tasks: dict[str, Any] = getattr(pipelines, "REMOVED_TASKS", {})
    return tasks


def pipeline_class(module: str, name: str) -> Any:
    """A pipeline as transformers' registry has its own: by name, so that nothing is imported, or the class itself."""
    from transformers.pipelines import PIPELINE_REGISTRY

    own = next(iter(PIPELINE_REGISTRY.supported_tasks.values()))["impl"]
    return f"{module}.{name}" if isinstance(own, str) else getattr(import_module(module), name)


def check_trainer() -> None:
    """Raise `ValueError` if the Trainer has no epoch to continue in the middle of, as transformers' before 5.3."""
    if not hasattr(transformers.Trainer, "_run_epoch"):
        raise ValueError(
            f"transformers {transformers.__version__} is too old for training from recipes: expected 5.3 or newer; "
            "upgrade it, or train with its own Seq2SeqTrainer"
        )
