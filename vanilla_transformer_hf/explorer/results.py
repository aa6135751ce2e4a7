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
    """
    How the layers of a stack of this package are made, for their figure.

    Attributes:
        norm: "post" (after the sum, as in the paper) or "pre" (before the sublayer).
        alpha: Factor of the residual stream in each sum.
        sets: For each layer the number of its set of weights; layers with one number share their weights.
        pools: Layers before which the encoder halves the length of its sequence.
        feed_forward: Who owns the feed-forward of a layer: "layer", "stack", "encoder" (of a decoder that uses the
            encoder's), or "nobody", where the layers have none.
        attention: Kind of self-attention, as in the config.
        positions: Position scheme, as in the config.
        width: D.
        inner: Width of the feed-forward.
        activation: Function of the feed-forward, as in the config.
    """

    norm: str
    alpha: float
    sets: list[int]
    pools: list[int]
    feed_forward: str
    attention: str
    positions: str
    width: int
    inner: int
    activation: str


@dataclass
class ModelInfo:
    """
    An opened model.

    Attributes:
        name: The last part of its folder's or repository's name.
        kind: "translation", "causal" (it continues a text) or "masked" (it fills gaps of a text).
        reads: "text", "speech" or "image".
        files: Names of the opened files, of a model that reads them.
        mask: The mask token; empty if there is none.
        is_ours: Whether it is a model of this package; for others only translation and attention are available.
        parameters: Number of its weights.
        config: The fields of its config that describe the architecture.
        layers: Of each part of attention: "encoder", "decoder", "cross".
        heads: Of each of these layers.
        settings: The defaults of its search.
        target_langs: Languages that can be chosen.
        example: A sentence that the page shows first, from the model's card; empty if the card has none.
        stacks: How "encoder" and "decoder" are made; empty for models that are not of this package.
    """

    name: str
    kind: str
    reads: str
    files: list[str]
    mask: str
    is_ours: bool
    parameters: int
    config: dict[str, Any]
    layers: dict[str, int]
    heads: dict[str, list[int]]
    settings: dict[str, Any]
    target_langs: list[str]
    example: str
    stacks: dict[str, StackInfo]


@dataclass
class Piece:
    """
    A token of a vocabulary in a text.

    Attributes:
        id: Token id.
        text: The piece as text, in which "␣" is a blank, "⏎" a line feed, and "U+200B" what cannot be seen. A piece
            that ends within a letter has the whole letter; alone, its bytes, as "<0xD9>".
        special: Whether it is a special token, such as `</s>`.
        continues: Whether it continues the word of the piece before.
        part, parts: It is this one, counted from 1, of so many pieces that make the text together.
    """

    id: int
    text: str
    special: bool
    continues: bool
    part: int
    parts: int


@dataclass
class Alternative(Piece):
    """
    A piece that could follow.

    Attributes:
        probability: The model's.
        drawn: The probability with which sampling takes it, after temperature, top-k and top-p.
    """

    probability: float
    drawn: float


@dataclass
class Step:
    """
    A step of the decoder.

    Attributes:
        piece: What was chosen.
        probability, log_probability: Of this piece, given the source and the pieces before it.
        drawn: As of `Alternative`.
        rank: Number of pieces that are more probable.
        given: Whether it belongs to the given prefix.
        alternatives: The most probable tokens, best first.
    """

    piece: Piece
    probability: float
    log_probability: float
    drawn: float
    rank: int
    given: bool
    alternatives: list[Alternative]


@dataclass
class Hypothesis:
    """
    A translation.

    Attributes:
        text: Without special tokens.
        ids: Token ids after the decoder's start token.
        log_probability: Sum over the steps after the prefix.
        score: The score of the search.
        is_complete: Whether the model has ended it.
        steps: One for each id.
    """

    text: str
    ids: list[int]
    log_probability: float
    score: float
    is_complete: bool
    steps: list[Step]


@dataclass
class Node:
    """
    A hypothesis of a beam search after one more token.

    Attributes:
        parent: Number of the node that it continues; -1 of the first, which is the decoder's start token.
        step: Number of tokens after the start token.
        piece: Its last token.
        log_probability: Sum over its tokens after the prefix.
        score: `log_probability` divided by the length penalty, as finished hypotheses are ranked; null with a coverage
            penalty.
        state: "running": it was continued; "finished": it ended among the best; "dead": neither it nor a continuation
            was among the best; "open": it was still running at the end of the search.
    """

    parent: int
    step: int
    piece: Piece
    log_probability: float
    score: float | None
    state: str


@dataclass
class TranslateResult:
    """
    Attributes:
        source: Tokens that the encoder reads.
        start: The token that the decoder begins with.
        hypotheses: The n-best list.
        tree: All hypotheses of the beam search, parents first; null where there was none or the search was
            transformers' own.
        settings: The settings of the search.
    """

    source: list[Piece]
    start: Piece
    hypotheses: list[Hypothesis]
    tree: list[Node] | None
    settings: dict[str, Any]


@dataclass
class FileResult:
    """
    Attributes:
        name: What the file is called in questions.
        files: All opened files.
    """

    name: str
    files: list[str]


@dataclass
class SourceResult:
    """
    A recording or an image as a picture of R rows and C columns, and the part of it that each of the encoder's S
    positions stands for.

    Attributes:
        kind: "speech" or "image".
        picture: Features of frames, the highest mel filter in the first row (R, C); or pixels from 0 to 1, (R, C) or
            (R, C, 3).
        cells: Left, top, right and bottom of each position (S, 4), in columns and rows.
        names: What each position is called.
        seconds: Of a column; null of images.
        seen: Columns that a position is computed from by the front end, around the middle of its cell; 0 of images.
    """

    kind: str
    picture: torch.Tensor
    cells: torch.Tensor
    names: list[str]
    seconds: float | None
    seen: int


@dataclass
class DiagonalityResult:
    """
    How diagonal attention is (`evaluation/diagonality.py`): first of the mean of the heads, then of each head.

    Attributes:
        order: Kendall's τ of steps and expected positions; null of a single step.
        off_diagonal: Share of the weights off the diagonal.
    """

    order: list[float]
    off_diagonal: list[float]


@dataclass
class AttentionResult:
    """
    Attributes:
        rows: Query tokens: for the decoder those that it reads.
        predicted: For the decoder the tokens that its rows predict; else empty.
        columns: Tokens that are attended to.
        weights: (H, rows, columns); each row sums to 1.
    """

    rows: list[Piece]
    predicted: list[Piece]
    columns: list[Piece]
    weights: torch.Tensor


@dataclass
class GridResult:
    """
    Attributes:
        layers: Numbers of the active layers.
        weights: (L, H, rows, columns), made smaller.
    """

    layers: list[int]
    weights: torch.Tensor


@dataclass
class HeadResult:
    """
    softmax(Q Kᵀ / √d_k + mask) V W^O of one head, section 3.2; T queries are rows, S keys are columns.

    Attributes:
        rows, predicted, columns: As of `AttentionResult`.
        query, key, value: (T, d_k), (S, d_k), (S, d_v), after the position scheme.
        products: q · k (T, S).
        scaled: The same times 1 / √d_k (T, S).
        mask: The addend (T, S): 0, the bias of the position scheme, or a very low number at masked positions.
        weights: The softmax (T, S).
        mixed: Sums of the values with these weights (T, d_v).
        output_weight: The part of W^O that belongs to this head (D, d_v).
        contribution: mixed times this part (T, D).
        output: The sum of all heads and the bias (T, D).
        scale: 1 / √d_k.
    """

    rows: list[Piece]
    predicted: list[Piece]
    columns: list[Piece]
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    products: torch.Tensor
    scaled: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor
    mixed: torch.Tensor
    output_weight: torch.Tensor
    contribution: torch.Tensor
    output: torch.Tensor
    scale: float


@dataclass
class Picture:
    """
    One picture of a position scheme.

    Attributes:
        title: What it is.
        rows, columns: Meaning of its rows and columns.
        values: (rows, columns).
    """

    title: str
    rows: str
    columns: str
    values: torch.Tensor


@dataclass
class PositionsResult:
    """
    Attributes:
        scheme: Its name in the config.
        pictures: Its pictures; empty if it has no effect, or if the effect depends on the sentence.
    """

    scheme: str
    pictures: list[Picture]


@dataclass
class Box:
    """
    A tensor of the computation from the source to the probabilities.

    Attributes:
        name: The name in `TensorRequest`.
        stage: 1: input embedding and positions; 2: encoder layers; 3: shifted target; 4: decoder layers; 5: logits
            and softmax.
        layer: Number of its layer; null for tensors outside layers.
        title: What it is.
        formula: How it is computed, in the paper's terms.
        shape: Its shape, without the batch.
        mean, deviation, least, most: Over all of its values.
        norms: Length of each row.
        before, after: Mean length of the rows of the residual stream before and after the sublayer; null if the box is
            not the output of a sublayer.
    """

    name: str
    stage: int
    layer: int | None
    title: str
    formula: str
    shape: list[int]
    mean: float
    deviation: float
    least: float
    most: float
    norms: list[float]
    before: float | None
    after: float | None


@dataclass
class Lens:
    """
    The predictions of a decoder layer, or of a masked language model's encoder layer, as if it were the last one
    (logit lens): its output through the final norm and the output matrix.

    Attributes:
        layer: Its number.
        steps: For each step, or token of the text, the most probable tokens, best first.
    """

    layer: int
    steps: list[list[Alternative]]


@dataclass
class WalkResult:
    """
    Attributes:
        source: Tokens that the encoder reads.
        read, predicted: Tokens that the decoder reads, and those that it predicts.
        boxes: In the order of the computation.
        lenses: One for each layer of the stack that predicts.
    """

    source: list[Piece]
    read: list[Piece]
    predicted: list[Piece]
    boxes: list[Box]
    lenses: list[Lens]


@dataclass
class AttributionResult:
    """
    R tokens of the output are rows; the columns are S tokens of the source and T that the decoder reads. A model of
    one stack has those of its stack alone. A token that comes after what a row may read has 0.

    Attributes:
        output: All tokens of the output; at mask tokens those that fit best.
        numbers: Numbers of the rows among them, counted from 0.
        source, read: Tokens that the encoder reads, and those that the decoder reads.
        scores: (R, S + T).
        totals: Sum of each row.
        logits: Logit of each row's token; null for rollout, which explains no logit.
        baselines: The same at the baseline; null for other methods than integrated gradients, whose
            `totals` are `logits` less `baselines`, but for what the steps of the integral miss.
    """

    output: list[Piece]
    numbers: list[int]
    source: list[Piece]
    read: list[Piece]
    scores: torch.Tensor
    totals: torch.Tensor
    logits: torch.Tensor | None
    baselines: torch.Tensor | None


@dataclass
class RanksResult:
    """
    Each layer's output through the final norm, if the model has one, and the output matrix (logit lens).

    Attributes:
        output: The tokens of the output (R), as in `AttributionResult`.
        layers: Numbers of the layers that are on; the last one's numbers are those of the model.
        ranks: (L, R); number of tokens that are more probable.
        probabilities: (L, R).
        norm: What the final norm is called; empty if there is none, as in the paper.
    """

    output: list[Piece]
    layers: list[int]
    ranks: torch.Tensor
    probabilities: torch.Tensor
    norm: str


@dataclass
class NeuronsResult:
    """
    Attributes:
        pieces: Tokens that the stack reads; an encoder that pools has fewer rows than these.
        neurons: Numbers of those that fire most at one of them: whose activation is largest, or least below 0.
        activations: (neurons, rows): what the activation function gives, with gates times the gate, at all of them.
        width: Number of neurons of the layer.
    """

    pieces: list[Piece]
    neurons: list[int]
    activations: torch.Tensor
    width: int
