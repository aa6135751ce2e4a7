"""
The answers, field by field. In JSON a dataclass is an object with its fields, and a tensor an object with `shape` and
`data`: its float32 values, little-endian, row by row, as base64 text.

Shapes: S source tokens, T steps of the decoder, L layers, H heads, D = d_model.
"""

import base64
import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch


def as_json(value: Any) -> Any:
    """Dataclasses and tensors as JSON values; NaN and infinity become null."""
    if torch.is_tensor(value):
        values = value.detach().to("cpu", torch.float32).contiguous()
        return {"shape": list(values.shape), "data": base64.b64encode(values.numpy().astype("<f4").tobytes()).decode()}
    if is_dataclass(value):
        return {one.name: as_json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_json(value: dict[str, Any]) -> torch.Tensor:
    """The tensor of a JSON object with `shape` and `data`."""
    return torch.frombuffer(bytearray(base64.b64decode(value["data"])), dtype=torch.float32).view(value["shape"])


@dataclass
class StackInfo:
    """How the layers of a stack of this package are made, for their figure."""

    norm: str  # "post" (after the sum, as in the paper) or "pre" (before the sublayer)
    alpha: float  # Factor of the residual stream in each sum
    sets: list[int]  # For each layer the number of its set of weights; layers with one number share their weights
    pools: list[int]  # Layers before which the encoder halves the length of its sequence
    # Who owns the feed-forward of a layer: "layer", "stack", "encoder" (of a decoder that uses the encoder's), or
    # "nobody", where the layers have none
    feed_forward: str
    attention: str  # Kind of self-attention, as in the config
    positions: str  # Position scheme, as in the config
    width: int  # D
    inner: int  # Width of the feed-forward
    activation: str  # Function of the feed-forward, as in the config


@dataclass
class ModelInfo:
    """An opened model."""

    name: str  # The last part of its folder's or repository's name
    kind: str  # "translation", "causal" (it continues a text) or "masked" (it fills gaps of a text)
    reads: str  # "text", "speech" or "image"
    files: list[str]  # Names of the opened files, of a model that reads them
    mask: str  # The mask token; empty if there is none
    is_ours: bool  # Whether it is a model of this package; for others only translation and attention are available
    parameters: int  # Number of its weights
    config: dict[str, Any]  # The fields of its config that describe the architecture
    layers: dict[str, int]  # Of each part of attention: "encoder", "decoder", "cross"
    heads: dict[str, list[int]]  # Of each of these layers
    settings: dict[str, Any]  # The defaults of its search
    target_langs: list[str]  # Languages that can be chosen
    example: str  # A sentence that the page shows first, from the model's card; empty if the card has none
    languages: list[str]  # What it translates from and to, or was trained on, as codes; from the card
    corpus: str  # The name of its corpus, from the card
    pairs: int | None  # Of that corpus
    stacks: dict[str, StackInfo]  # How "encoder" and "decoder" are made; empty for models that are not of this package


@dataclass
class Piece:
    """A token of a vocabulary in a text."""

    id: int  # Token id
    # The piece as text, in which "␣" is a blank, "⏎" a line feed, and "U+200B" what cannot be seen. A piece that ends
    # within a letter has the whole letter; alone, its bytes, as "<0xD9>".
    text: str
    special: bool  # Whether it is a special token, such as `</s>`
    continues: bool  # Whether it continues the word of the piece before
    # part, parts: It is this one, counted from 1, of so many pieces that make the text together
    part: int
    parts: int


@dataclass
class Alternative(Piece):
    """A piece that could follow."""

    probability: float  # The model's
    drawn: float  # The probability with which sampling takes it, after temperature, top-k and top-p


@dataclass
class Step:
    """A step of the decoder."""

    piece: Piece  # What was chosen
    # probability, log_probability: Of this piece, given the source and the pieces before it
    probability: float
    log_probability: float
    drawn: float  # As of `Alternative`
    rank: int  # Number of pieces that are more probable
    given: bool  # Whether it belongs to the given prefix
    alternatives: list[Alternative]  # The most probable tokens, best first


@dataclass
class Hypothesis:
    """A translation."""

    text: str  # Without special tokens
    ids: list[int]  # Token ids after the decoder's start token
    log_probability: float  # Sum over the steps after the prefix
    score: float  # The score of the search
    is_complete: bool  # Whether the model has ended it
    steps: list[Step]  # One for each id


@dataclass
class Node:
    """A hypothesis of a beam search after one more token."""

    parent: int  # Number of the node that it continues; -1 of the first, which is the decoder's start token
    step: int  # Number of tokens after the start token
    piece: Piece  # Its last token
    log_probability: float  # Sum over its tokens after the prefix
    # `log_probability` divided by the length penalty, as finished hypotheses are ranked; null with a coverage penalty
    score: float | None
    # "running": it was continued; "finished": it ended among the best; "dead": neither it nor a continuation was among
    # the best; "open": it was still running at the end of the search
    state: str


@dataclass
class TranslateResult:
    source: list[Piece]  # Tokens that the encoder reads
    start: Piece  # The token that the decoder begins with
    hypotheses: list[Hypothesis]  # The n-best list
    # All hypotheses of the beam search, parents first; null where there was none or the search was transformers' own
    tree: list[Node] | None
    settings: dict[str, Any]  # The settings of the search


@dataclass
class FileResult:
    name: str  # What the file is called in questions
    files: list[str]  # All opened files


@dataclass
class SourceResult:
    """A recording or an image as a picture (R, C), and the part of it that each of the encoder's S positions is."""

    kind: str  # "speech" or "image"
    # Features of frames, the highest mel filter in the first row (R, C); or pixels from 0 to 1, (R, C) or (R, C, 3)
    picture: torch.Tensor
    cells: torch.Tensor  # Left, top, right and bottom of each position (S, 4), in columns and rows
    names: list[str]  # What each position is called
    seconds: float | None  # Of a column; null of images
    seen: int  # Columns that a position is computed from by the front end, around the middle of its cell; 0 of images


@dataclass
class DiagonalityResult:
    """How diagonal attention is (`evaluation/diagonality.py`): first of the mean of the heads, then of each head."""

    order: list[float]  # Kendall's τ of steps and expected positions; null of a single step
    off_diagonal: list[float]  # Share of the weights off the diagonal


@dataclass
class Sides:
    """The two sides of an attention."""

    rows: list[Piece]  # Query tokens: for the decoder those that it reads
    predicted: list[Piece]  # For the decoder the tokens that its rows predict; else empty
    columns: list[Piece]  # Tokens that are attended to


@dataclass
class AttentionResult(Sides):
    weights: torch.Tensor  # (H, rows, columns); each row sums to 1


@dataclass
class GridResult:
    layers: list[int]  # Numbers of the active layers
    weights: torch.Tensor  # (L, H, rows, columns), made smaller


@dataclass
class MixingResult:
    # layers, heads: Of each row, both counted from 0
    layers: list[int]
    heads: list[int]


@dataclass
class HeadResult(Sides):
    """softmax(Q Kᵀ / √d_k + mask) V W^O of one head, section 3.2; T queries are rows, S keys are columns."""

    # query, key, value: (T, d_k), (S, d_k), (S, d_v), after the position scheme
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    products: torch.Tensor  # q · k (T, S)
    scaled: torch.Tensor  # The same times 1 / √d_k (T, S)
    # The addend (T, S): 0, the bias of the position scheme, or a very low number at masked positions
    mask: torch.Tensor
    weights: torch.Tensor  # The softmax (T, S)
    mixed: torch.Tensor  # Sums of the values with these weights (T, d_v)
    output_weight: torch.Tensor  # The part of W^O that belongs to this head (D, d_v)
    contribution: torch.Tensor  # mixed times this part (T, D)
    output: torch.Tensor  # The sum of all heads and the bias (T, D)
    scale: float  # 1 / √d_k


@dataclass
class Picture:
    """One picture of a position scheme."""

    # "added" to the embeddings, or "rotated", a query of ones: (position, feature); added to the "scores" of a head:
    # (query, key); to the "keys" or "values" of a layer: (distance, feature)
    kind: str
    number: int | None  # Of the head or the layer
    values: torch.Tensor


@dataclass
class PositionsResult:
    scheme: str  # Its name in the config
    pictures: list[Picture]  # Its pictures; empty if it has no effect, or if the effect depends on the sentence


@dataclass
class Box:
    """A tensor of the computation from the source to the probabilities."""

    name: str  # The name in `TensorRequest`, as "encoder.0.fc2.norm", which the page has words for
    layer: int | None  # Number of its layer; null for tensors outside layers
    formula: str  # How it is computed, in the paper's terms
    shape: list[int]  # Its shape, without the batch
    # mean, deviation, least, most: Over all of its values
    mean: float
    deviation: float
    least: float
    most: float
    norms: list[float]  # Length of each row
    # before, after: Mean length of the rows of the residual stream before and after the sublayer; null if the box is
    # not the output of a sublayer
    before: float | None
    after: float | None


@dataclass
class Lens:
    """The predictions of a decoder layer, or of a masked language model's encoder layer, as if it were the last."""

    # The logit lens: its output through the final norm and the output matrix.

    layer: int  # Its number
    steps: list[list[Alternative]]  # For each step, or token of the text, the most probable tokens, best first


@dataclass
class WalkResult:
    source: list[Piece]  # Tokens that the encoder reads
    # read, predicted: Tokens that the decoder reads, and those that it predicts
    read: list[Piece]
    predicted: list[Piece]
    boxes: list[Box]  # In the order of the computation
    lenses: list[Lens]  # One for each layer of the stack that predicts


@dataclass
class PatchResult:
    """
    The next token with one tensor of another sentence. Of each triple, the first belongs to the sentence as it is, the
    second to the sentence with the tensor of the other, the third to the other sentence.
    """

    # places, other_places: Tokens whose rows can be replaced, and those of the other sentence
    places: list[Piece]
    other_places: list[Piece]
    # position, other_position: The row that is replaced, and where it came from
    position: int
    other_position: int
    step: int  # The step that is compared
    # first, second: The most probable next token after each sentence; where that is the same token, the second is the
    # one whose probability is larger by the most after the other sentence
    first: Piece
    second: Piece
    differences: list[float]  # Logit of the first less that of the second
    best: list[list[Alternative]]  # The most probable tokens, best first, with the two compared ones
    translation: str | None  # What the model's own search finds with the tensor of an encoder; null for others


@dataclass
class PatchMapResult:
    layers: list[int]  # Numbers of the active layers
    places: list[Piece]  # Tokens whose rows are replaced
    # step, first, second: As of `PatchResult`
    step: int
    first: Piece
    second: Piece
    # plain, other: Logit of the first token less that of the second, after each sentence as it is
    plain: float
    other: float
    # That with the tensor of the other sentence, (L, places) or, for one token, (L, H); NaN where the other sentence
    # has no token that stands for this one
    differences: torch.Tensor


@dataclass
class AttributionResult:
    """R tokens of the output are rows; the columns are S tokens of the source and T that the decoder reads."""

    # A model of one stack has those of its stack alone. A token that comes after what a row may read has 0.

    output: list[Piece]  # All tokens of the output; at mask tokens those that fit best
    numbers: list[int]  # Numbers of the rows among them, counted from 0
    # source, read: Tokens that the encoder reads, and those that the decoder reads
    source: list[Piece]
    read: list[Piece]
    scores: torch.Tensor  # (R, S + T)
    totals: torch.Tensor  # Sum of each row
    logits: torch.Tensor | None  # Logit of each row's token; null for rollout, which explains no logit
    # The same at the baseline; null for other methods than integrated gradients, whose `totals` are `logits` less
    # `baselines`, but for what the points of the integral miss
    baselines: torch.Tensor | None


@dataclass
class RanksResult:
    """Each layer's output through the final norm, if the model has one, and the output matrix (logit lens)."""

    output: list[Piece]  # The tokens of the output (R), as in `AttributionResult`
    layers: list[int]  # Numbers of the layers that are on; the last one's numbers are those of the model
    ranks: torch.Tensor  # (L, R); number of tokens that are more probable
    probabilities: torch.Tensor  # (L, R)
    norm: str  # What the final norm is called; empty if there is none, as in the paper


@dataclass
class NeuronsResult:
    pieces: list[Piece]  # Tokens that the stack reads; an encoder that pools has fewer rows than these
    neurons: list[int]  # Numbers of those that fire most at one of them: whose activation is largest, or least below 0
    # (neurons, rows): what the activation function gives, with gates times the gate, at all of them
    activations: torch.Tensor
    writes: list[list[Piece]]  # Tokens whose embeddings are most like what each adds here; of a silent one none
    width: int  # Number of neurons of the layer


@dataclass
class RunResult:
    """A run that is watched."""

    name: str  # The last part of its folder's name
    step: int  # The last one whose log is written
    steps: int  # Of the whole run
    curves: dict[str, list[list[float]]]  # Of losses and scores, by their names in the log, pairs of step and value
    checkpoints: list[int]  # Steps of those that were seen
    problem: str  # What cannot be shown, and why; empty if there is nothing


@dataclass
class MomentResult:
    """The translation of a checkpoint, with attention between R rows and C columns, as in `AttentionResult`."""

    step: int  # Of the checkpoint
    model: str  # Its name, while it is one of the opened models
    text: str  # Without special tokens
    score: float  # As of `Hypothesis`
    part: str  # Of attention: "cross", of a model of one stack its own
    rows: list[Piece]
    columns: list[Piece]
    weights: torch.Tensor | None  # (L, R, C), the mean of the heads; null where they are not those of tokens
    layer: int  # Whose rows differ most: what a view shows first
