"""The questions that the page asks, by name, and the models that answer."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..translation.translator import Translator
from . import attending, positions, translating, walk
from .interventions import count_layers
from .requests import (
    AttentionRequest,
    GridRequest,
    HeadRequest,
    ModelsRequest,
    PositionsRequest,
    Request,
    RequestError,
    ScoreRequest,
    TensorRequest,
    TranslateRequest,
    WalkRequest,
)
from .results import ModelInfo, as_json
from .subject import Subject


# Fields of a config that say how the model is built.
SHOWN = (
    "vocab_size", "source_vocab_size", "d_model", "encoder_d_model", "encoder_layers", "decoder_layers",
    "encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "d_k", "d_v",
    "activation_function", "feed_forward_type", "position_encoding", "decoder_position_encoding",
    "encoder_norm_position", "decoder_norm_position", "norm_type", "embedding_sharing",
)  # fmt: skip


def describe(subject: Subject) -> ModelInfo:
    """What the page says of a model."""
    config = subject.model.config
    layers = {part: count_layers(subject.model, part) for part in ("encoder", "decoder", "cross")}
    encoder = getattr(config, "encoder_attention_heads", None) or config.num_attention_heads
    decoder = getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
    return ModelInfo(
        name=subject.name,
        is_ours=subject.is_ours,
        parameters=sum(tensor.numel() for tensor in subject.model.parameters()),
        config={
            "model_type": config.model_type,
            **{name: getattr(config, name) for name in SHOWN if getattr(config, name, None) is not None},
        },
        layers=layers,
        heads={"encoder": encoder, "decoder": decoder, "cross": decoder},
        settings=translating.settings_of(subject),
        target_langs=[*subject.target_langs],
    )


# Name of a question -> its fields, and what answers it.
QUESTIONS: dict[str, tuple[type[Request], Callable[[Subject, Any], Any]]] = {
    "translate": (TranslateRequest, translating.translate),
    "score": (ScoreRequest, translating.score),
    "attention": (AttentionRequest, attending.attention),
    "grid": (GridRequest, attending.grid),
    "head": (HeadRequest, attending.head),
    "positions": (PositionsRequest, positions.positions),
    "walk": (WalkRequest, walk.walk),
    "tensor": (TensorRequest, walk.tensor),
}


class Explorer:
    """
    Models that are looked at.

    Args:
        subjects: The models, each with a name of its own.

    Example:

    ```python
    >>> explorer = Explorer.open(["outputs/quickstart"])
    >>> explorer.answer("translate", {"text": "twenty-one", "num_beams": 4})["hypotheses"][0]["text"]
    'einundzwanzig'
    ```"""

    def __init__(self, subjects: Sequence[Subject]):
        self.subjects = {subject.name: subject for subject in subjects}
        # One question at a time: hooks of two would see each other's passes.
        self._lock = threading.Lock()

    @classmethod
    def open(cls, names: Sequence[str | os.PathLike], **options: Any) -> "Explorer":
        """
        Open saved folders or Hub repositories, on the processor.

        Args:
            names: Folders, or ids of repositories.
            options: Of `Translator.from_pretrained`.

        Raises:
            OSError: A part is missing, damaged or of another model.
            ValueError: A model does not translate.
        """
        subjects: list[Subject] = []
        for name in names:
            translator = Translator.from_pretrained(name, device="cpu", matmul_backend="default", **options)
            label = Path(name).resolve().name if Path(name).exists() else str(name).rsplit("/", 1)[-1]
            taken = [subject.name for subject in subjects]
            unique = label if label not in taken else f"{label} ({len(taken) + 1})"
            subjects.append(Subject(unique, translator.model, translator.tokenizer))
        return cls(subjects)

    def answer(self, question: str, values: Any) -> Any:
        """
        Answer a question of `QUESTIONS`, or "models", as JSON.

        Raises:
            RequestError: There is no such question, or a field of it cannot be answered.
        """
        if question == "models":
            ModelsRequest.read(values)
            return as_json([describe(subject) for subject in self.subjects.values()])
        if question not in QUESTIONS:
            raise RequestError(
                "question", f"{question[:40]!r} is not one: expected {', '.join(['models', *QUESTIONS])}"
            )
        kind, find = QUESTIONS[question]
        request = kind.read(values)
        if request.model and request.model not in self.subjects:
            raise RequestError("model", f"{request.model[:40]!r} is not open: expected {', '.join(self.subjects)}")
        subject = self.subjects[request.model] if request.model else next(iter(self.subjects.values()))
        with self._lock:
            return as_json(find(subject, request))
