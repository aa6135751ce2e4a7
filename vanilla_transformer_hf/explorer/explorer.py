"""The questions of the page, by name, and the models that answer."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from ..common.opening import is_own, open_any_config, open_tokenizer, open_weights, other_class
from ..model.config.attention_kinds import pooling_layers
from ..model.config.front_ends import reads_tokens
from ..model.config.sharing import FEED_FORWARD_OWNERS
from ..model.config.stacks import StackSizes
from ..model.tokenizer.failures import TokenizerError, failing_in_one_line
from ..translation.recognition import Recognizer
from ..translation.translator import Translator
from . import attending, attributions, file_sources, patching, single_stacks, translating, walk
from .file_sources import FileSubject
from .interventions import count_heads, count_layers, is_recurrent, parts_of, sides_of
from .requests import MomentRequest, Request, RequestError, TranslateRequest
from .results import ModelInfo, StackInfo, TranslateResult, as_json
from .subject import Card, Subject, card_of


# Fields of a config that describe the architecture.
SHOWN = (
    "vocab_size", "source_vocab_size", "d_model", "encoder_d_model", "encoder_layers", "decoder_layers",
    "encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "d_k", "d_v",
    "activation_function", "feed_forward_type", "position_encoding", "decoder_position_encoding",
    "encoder_norm_position", "decoder_norm_position", "norm_type", "embedding_sharing",
)  # fmt: skip


def describe(subject: Subject) -> ModelInfo:
    """The description of a model for the page."""
    config = subject.model.config
    layers = {part: count_layers(subject.model, part) for part in parts_of(subject.model)}
    return ModelInfo(
        name=subject.name,
        kind=subject.kind,
        reads=subject.reads,
        files=[*getattr(subject, "files", ())],
        mask=str(subject.tokenizer.mask_token or ""),
        is_ours=subject.is_ours,
        parameters=sum(tensor.numel() for tensor in subject.model.parameters()),
        config={
            "model_type": config.model_type,
            **{name: getattr(config, name) for name in SHOWN if getattr(config, name, None) is not None},
        },
        layers=layers,
        heads={part: count_heads(subject.model, part) for part in layers},
        settings=translating.settings_of(subject),
        target_langs=[*subject.target_langs],
        example=subject.example,
        languages=[*subject.card.languages],
        corpus=subject.card.corpus,
        pairs=subject.card.pairs,
        stacks={side: describe_stack(config, side) for side in sides_of(subject.model)} if subject.is_ours else {},
    )


def describe_stack(config: Any, side: str) -> StackInfo:
    """How the layers of a stack are made."""
    sizes = StackSizes(config, side)
    return StackInfo(
        norm=sizes.norm_position,
        alpha=sizes.residual_alpha,
        sets=sizes.layer_order,
        pools=pooling_layers(config) if side == "encoder" else [],
        feed_forward=getattr(FEED_FORWARD_OWNERS[config.feed_forward_sharing], side),
        attention=getattr(config, f"{side}_attention_type"),
        positions=sizes.position_encoding,
        width=sizes.width,
        inner=sizes.ffn_dim,
        activation=sizes.activation_function,
    )


def translate(subject: Subject, request: TranslateRequest) -> TranslateResult:
    """Translate, continue or fill a text, depending on the model."""
    return (single_stacks.fill if subject.kind == "masked" else translating.translate)(subject, request)


def open_subject(label: str, name: str | os.PathLike, trust_remote_code: bool) -> Subject:
    """Open a model, with the class for its config, and its tokenizer."""
    config = open_any_config(name, trust_remote_code)
    check_kind(str(name), config)
    if is_own(config) and not reads_tokens(config):
        reader = Recognizer(str(name))
        return subject_of(label, reader.model, reader.processor)
    if config.is_encoder_decoder:
        translator = Translator.from_pretrained(
            name, device="cpu", matmul_backend="default", trust_remote_code=trust_remote_code
        )
        return subject_of(label, translator.model, translator.tokenizer, card_of(name))
    kind: Any = AutoModelForCausalLM if config.is_decoder else AutoModelForMaskedLM
    model = open_weights(name, kind, config=config, dtype="auto", trust_remote_code=trust_remote_code)
    return subject_of(label, model, open_tokenizer(name, trust_remote_code), card_of(name))


def subject_of(label: str, model: Any, tokenizer: Any, card: Card | None = None) -> Subject:
    """An opened model and its tokenizer; of a model that reads recordings or images, its processor."""
    check_kind(label, model.config)
    if model.get_output_embeddings() is None:
        raise ValueError(f"{label}: the explorer shows predictions of tokens, which {type(model).__name__} has not")
    if is_own(model.config) and not reads_tokens(model.config):
        return FileSubject(label, model, tokenizer)
    if not hasattr(tokenizer, "all_special_ids"):
        raise RequestError("tokenizer", f"is a {type(tokenizer).__name__}; {label} reads text: give its tokenizer")
    if model.config.is_encoder_decoder:
        return Subject(label, model, tokenizer, card)
    kind = single_stacks.CausalSubject if model.config.is_decoder else single_stacks.MaskedSubject
    return kind(label, model, tokenizer, card)


def check_kind(name: str, config: Any) -> None:
    if is_recurrent(config) and config.attention == "none":
        raise ValueError(f"{name}: the explorer shows attention, which a recurrent model with attention=none has not")
    what = other_class(config)
    if what is not None and "explore" not in what:
        raise ValueError(f"{name}: the explorer shows predictions of tokens, and this is {what}")
    if not config.is_encoder_decoder and not is_own(config):
        raise ValueError(f"{name}: model type {config.model_type!r} is neither an encoder–decoder nor of this package")


# Name of a question -> its function; its fields are those of the class of the function's `request`.
QUESTIONS: dict[str, Callable[[Subject, Any], Any]] = {
    "translate": translate,
    "score": translating.score,
    "file": file_sources.open_file,
    "source": file_sources.source,
    "diagonality": file_sources.diagonal,
    "attention": attending.attention,
    "grid": attending.grid,
    "mixing": attending.mixing,
    "head": attending.head,
    "positions": walk.positions,
    "walk": walk.walk,
    "tensor": walk.tensor,
    "patch": patching.patch,
    "patch_map": patching.patch_map,
    "attributions": attributions.attributions,
    "ranks": attributions.ranks,
    "neurons": attributions.neurons,
}

# Questions about the run that is watched, which are its methods (`watching.py`).
RUN_QUESTIONS: dict[str, type[Request]] = {"run": Request, "moment": MomentRequest}


class Explorer:
    """
    The opened models, and the answers to the page's questions about them.

    Args:
        subjects: The models; their names differ.

    Example:

    ```python
    >>> from vanilla_transformer_hf.explorer.explorer import Explorer
    >>> explorer = Explorer.open(["model_cards/multi30k_raw_en_de"])
    >>> explorer.answer("translate", {"text": "Two dogs are playing.", "num_beams": 4})["hypotheses"][0]["text"]
    'Zwei Hunde spielen.'

    ```
    """

    def __init__(self, subjects: Sequence[Subject]):
        self.subjects = {subject.name: subject for subject in subjects}
        self.watched: Any = None  # the run whose checkpoints are among the subjects, if there is one
        self._lock = threading.Lock()

    def open_files(self, reads: str, paths: Sequence[str | os.PathLike[str]]) -> list[str]:
        """Open files for all models that read them ("speech" or "image"); their names on the page are returned."""
        readers = [one for one in self.subjects.values() if isinstance(one, FileSubject) and one.reads == reads]
        if not readers:
            found = ", ".join(f"{name} reads {one.reads}" for name, one in self.subjects.items())
            raise ValueError(f"no model reads {reads}: {found}")
        return [reader.open_file(path) for path in paths for reader in readers]

    @classmethod
    def open(cls, names: Sequence[str | os.PathLike], trust_remote_code: bool = False) -> "Explorer":
        """
        Open saved folders or Hub repositories, on the CPU.

        Args:
            names: Folders, or ids of repositories.
            trust_remote_code: Run model code that a repository brings.

        Raises:
            OSError: A part is missing, damaged or of another model.
            ValueError: A model does not predict tokens.
        """
        subjects: list[Subject] = []
        for name in names:
            label = Path(name).resolve().name if Path(name).exists() else str(name).rsplit("/", 1)[-1]
            taken = [subject.name for subject in subjects]
            unique = label if label not in taken else f"{label} ({len(taken) + 1})"
            subjects.append(open_subject(unique, name, trust_remote_code))
        return cls(subjects)

    def answer(self, question: str, values: Any) -> Any:
        """
        Answer a question of `QUESTIONS` or `RUN_QUESTIONS`, or "models", as JSON.

        Raises:
            RequestError: The question is unknown, or a field of it cannot be answered.
        """
        if question == "models":
            Request.read(values)
            return as_json([describe(subject) for subject in self.subjects.values()])
        if question in RUN_QUESTIONS:
            about = RUN_QUESTIONS[question].read(values)
            if self.watched is None and question == "run":
                return None
            if self.watched is None:
                raise RequestError("step", "no run is watched: start the explorer with --watch")
            return as_json(getattr(self.watched, question)(about))
        if question not in QUESTIONS:
            known = ", ".join(["models", *QUESTIONS, *RUN_QUESTIONS])
            raise RequestError("question", f"{question[:40]!r} is not one: expected {known}")
        find = QUESTIONS[question]
        request = get_type_hints(find)["request"].read(values)
        subjects = self.subjects  # a run that is watched replaces them
        if not subjects:
            raise RequestError("model", "none is open: the run has no checkpoint yet")
        if request.model and request.model not in subjects:
            raise RequestError("model", f"{request.model[:40]!r} is not open: expected {', '.join(subjects)}")
        with self.alone():
            return as_json(find(subjects[request.model or next(iter(subjects))], request))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One question at a time: the hooks of two would see each other's passes."""
        try:
            with self._lock, failing_in_one_line("reads this text"):
                yield
        except TokenizerError as error:
            raise RequestError("text", str(error)) from error
