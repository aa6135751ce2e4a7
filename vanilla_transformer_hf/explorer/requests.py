"""
The requests, field by field, and how they are read from JSON.

Token ids of a target are those after the decoder's start token, the end-of-sentence token included. Parts are switched
off by a list of names: "encoder.0.3" is head 3 of layer 0 of the encoder, "cross.1.2" and "decoder.1.2" are heads of
the two attentions of the decoder's layer 1, "cross.1" is all of them, "encoder.0" and "decoder.1" are whole layers.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Self, get_args, get_type_hints

from ..common.white_space import as_text


PARTS = ("encoder", "decoder", "cross")
LONGEST_TEXT = 20_000  # characters
LONGEST_FILE = 12 * 2**20  # characters of its base64
LONGEST_LIST = 1_024


class RequestError(ValueError):
    """A field of a request is invalid; the page has a text in its reader's language for a `code` and its `values`."""

    def __init__(self, field: str, message: str, code: str | None = None, values: dict[str, int] | None = None):
        super().__init__(f"{field}: {message}")
        self.field, self.message, self.code, self.values = field, message, code, values


def bounded(default: Any, least: float, most: float) -> Any:
    """A field with a number between two others, both included."""
    return field(default=default, metadata={"least": least, "most": most})


def one_of(default: Any, *values: str) -> Any:
    """A field with one of these values."""
    return field(default=default, metadata={"values": values})


@dataclass
class Request:
    """The fields of all requests; "models", "source" and "run" have no others."""

    model: str = ""  # Name of one of the opened models; the first if empty
    text: str = ""  # The source sentence; of a model that reads recordings or images, the name of an opened file
    off: list[str] = field(default_factory=list)  # What is switched off

    @classmethod
    def read(cls, values: Any) -> Self:
        """Read a request from a JSON object."""
        if not isinstance(values, dict):
            raise RequestError("body", f"expected a JSON object, got {type(values).__name__}")
        hints, known = get_type_hints(cls), {one.name: one for one in fields(cls)}
        for name in values:
            if name not in known:
                raise RequestError(shown(name), f"is not a field: expected one of {', '.join(known)}")
        return cls(**{name: read_value(known[name], hints[name], value) for name, value in values.items()})


def is_of(value: Any, kind: Any) -> bool:
    """Whether a JSON value is of a type; an integer is also a float, a boolean is not a number."""
    if kind in (int, float):
        # Integers may have more digits than a float can have.
        is_finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        return isinstance(value, (int, kind)) and not isinstance(value, bool) and is_finite
    return isinstance(value, kind)


def shown(value: Any) -> str:
    """The beginning of a value in a message."""
    try:
        text = str(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number with too many digits
        text = f"a {type(value).__name__}"
    return as_text(text if len(text) <= 40 else f"{text[:40]}…")


def check_characters(name: str, value: Any) -> None:
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and as_text(text) != text:
            raise RequestError(name, f"has a lone surrogate, which is not a character: {shown(text)!r}")


def read_value(one: Any, hint: Any, value: Any) -> Any:
    """The value of a field."""
    options = get_args(hint) or (hint,)
    if getattr(hint, "__origin__", None) is list:
        (kind,) = get_args(hint)
        if not isinstance(value, list) or not all(is_of(each, kind) for each in value):
            raise RequestError(one.name, f"expected a list of {kind.__name__}, got {shown(value)!r}")
        if len(value) > LONGEST_LIST:
            raise RequestError(one.name, f"has {len(value)} entries; expected at most {LONGEST_LIST}")
        check_characters(one.name, value)
        return value
    if value is None and type(None) in options:
        return None
    kind = next(kind for kind in options if kind is not type(None))
    if not is_of(value, kind):
        raise RequestError(one.name, f"expected {kind.__name__}, got {shown(value)!r}")
    limits = one.metadata
    if "least" in limits and not limits["least"] <= value <= limits["most"]:
        raise RequestError(one.name, f"is {shown(value)}; expected {limits['least']} to {limits['most']}")
    if "values" in limits and value not in limits["values"]:
        raise RequestError(one.name, f"is {shown(value)!r}; expected one of {', '.join(limits['values'])}")
    check_characters(one.name, value)
    if isinstance(value, str) and len(value) > (longest := limits.get("longest", LONGEST_TEXT)):
        raise RequestError(one.name, f"has {len(value)} characters; expected at most {longest}")
    return value


@dataclass
class FileRequest(Request):
    """Open a recording or an image for a model that reads them."""

    name: str = ""  # The file's name
    data: str = field(default="", metadata={"longest": LONGEST_FILE})  # Its bytes as base64


@dataclass
class TranslateRequest(Request):
    """Translate the text."""

    target_lang: str = ""  # Language to translate to, of a multilingual model; empty: none is named
    prefix: list[int] = field(default_factory=list)  # Token ids that the translation begins with
    # num_beams, length_penalty, length_penalty_type, coverage_penalty, max_new_tokens: As of `generate()`; null takes
    # the model's own
    num_beams: int | None = bounded(None, 1, 32)
    length_penalty: float | None = bounded(None, -10, 10)
    length_penalty_type: str | None = one_of(None, "power", "gnmt")
    coverage_penalty: float | None = bounded(None, 0, 10)
    max_new_tokens: int | None = bounded(None, 1, 512)
    alternatives: int = bounded(8, 1, 50)  # Number of the most probable tokens listed at each step
    # Number of translations that are drawn piece by piece, in place of a search; null searches
    draws: int | None = bounded(None, 1, 32)
    seed: int = bounded(0, 0, 2**31 - 1)  # Of the draws
    # temperature, top_k, top_p: Of the draws, as of `generate()`; 0 keeps all pieces for `top_k`
    temperature: float = bounded(1.0, 0.01, 100)
    top_k: int = bounded(0, 0, 1000)
    top_p: float = bounded(1.0, 0.01, 1)


@dataclass
class ScoreRequest(TranslateRequest):
    """The probabilities of a given target; it is scored as in a search with the same settings."""

    target: str = ""  # The target sentence


@dataclass
class PairRequest(Request):
    """A source and a target for a forward pass; "ranks" has no other fields."""

    target_lang: str = ""  # As of `TranslateRequest`
    target_ids: list[int] = field(default_factory=list)  # Token ids of the target


@dataclass
class AttentionRequest(PairRequest):
    """The attention weights of all heads of one layer."""

    # Self-attention of the encoder or of the decoder, or attention of the decoder to the source
    part: str = one_of("cross", *PARTS)
    layer: int = bounded(0, 0, 1023)  # Counted from 0


@dataclass
class DiagonalityRequest(PairRequest):
    """How diagonal the cross-attention of a layer is."""

    layer: int = bounded(0, 0, 1023)  # Counted from 0


@dataclass
class GridRequest(PairRequest):
    """Small pictures of all heads of all layers."""

    part: str = one_of("cross", *PARTS)  # As of `AttentionRequest`
    size: int = bounded(32, 4, 128)  # Longest side of a picture; merged cells show their largest weight


@dataclass
class MixingRequest(PairRequest):
    """For each row of an attention, a head that mixes several tokens."""

    part: str = one_of("cross", *PARTS)  # As of `AttentionRequest`


@dataclass
class HeadRequest(AttentionRequest):
    """The computation of one head."""

    head: int = bounded(0, 0, 1023)  # Counted from 0


@dataclass
class WalkRequest(PairRequest):
    """The tensors between the modules, in the order of the computation."""

    # Number of tokens that each decoder layer predicts at each step, if it were the last layer
    best: int = bounded(5, 1, 50)


@dataclass
class TensorRequest(PairRequest):
    """All values of one tensor."""

    box: str = ""  # Its name, as in the answer to `WalkRequest`


@dataclass
class OtherRequest(PairRequest):
    """Another sentence that the same target is given to."""

    other: str = ""  # The sentence
    # Of the target, counted from 0, whose next tokens are compared; null takes the first at which the most probable
    # tokens after the two sentences differ
    step: int | None = bounded(None, 0, 511)


@dataclass
class PatchRequest(OtherRequest):
    """Predict the next token with one tensor of the other sentence."""

    # Its name: "encoder.1" or "decoder.1" is the output of a layer, "encoder.1.3", "decoder.1.3" and "cross.1.3" are
    # those of a head before W^O, "cross.1" those of all heads that look at the source
    tensor: str = "encoder.0"
    # Token whose row of the tensor is replaced, counted from 0: of the source for "encoder", else of what the decoder
    # reads. Null takes the first source token in which the sentences differ, or the token that is read at the step.
    position: int | None = bounded(None, 0, 1023)
    # Token of the other sentence whose row it is replaced by; null takes the one that stands for it
    other_position: int | None = bounded(None, 0, 1023)
    alternatives: int = bounded(5, 1, 50)  # Number of the most probable tokens


@dataclass
class PatchMapRequest(OtherRequest):
    """Compare the next tokens with each tensor of the other sentence in turn, of all layers."""

    # Outputs of the encoder's or the decoder's layers, or of the heads that look at the source
    part: str = one_of("encoder", *PARTS)
    # Null: each token; else the token whose rows are replaced, head by head
    position: int | None = bounded(None, 0, 1023)


@dataclass
class AttributionRequest(PairRequest):
    """How much each token that is read counts for each token of the output."""

    # How much the token's logit falls with zeros for an embedding, the length of the logit's gradient by each
    # embedding, gradient times embedding, its integral from a baseline to the embeddings, or the product of the
    # attention of all layers
    method: str = one_of("left_out", "left_out", "gradient", "gradient_x_input", "integrated_gradients", "rollout")
    piece: int | None = bounded(None, 0, 511)  # Number of the token of the output, counted from 0; null takes all
    steps: int = bounded(256, 8, 1024)  # Most points of the integral
    # Where the integral begins: "zero" for all tokens but special ones, or "mean", the mean of the rows of the
    # embeddings. Special tokens, such as the end of the sentence, keep their own.
    baseline: str = one_of("zero", "zero", "mean")


@dataclass
class NeuronsRequest(PairRequest):
    """The neurons of a feed-forward that fire most."""

    stack: str = one_of("decoder", "encoder", "decoder")  # Whose layer
    layer: int = bounded(0, 0, 1023)  # Counted from 0
    piece: int = bounded(0, 0, 511)  # Number of the token that the stack reads, counted from 0
    top: int = bounded(10, 1, 50)  # Number of neurons


@dataclass
class PositionsRequest(Request):
    """What a position scheme does."""

    stack: str = one_of("encoder", "encoder", "decoder")  # Whose scheme
    length: int = bounded(32, 1, 512)  # Number of positions


@dataclass
class MomentRequest(Request):
    """What one checkpoint of the run makes of a text."""

    step: int = bounded(0, 0, 2**53)  # After which the checkpoint was saved
    target_lang: str = ""  # As of `TranslateRequest`
