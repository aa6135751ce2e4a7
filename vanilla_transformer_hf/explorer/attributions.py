"""
How much each token of the source and of the target so far counts for each token of the output: by gradients, by
integrated gradients, by attention rollout.

Shapes: S source tokens, T tokens that the decoder reads, R rows (tokens of the output), V vocabulary, D = width of the
embeddings.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F

from .interventions import parts_of, read_name, sides_of, stack_of
from .requests import AttributionRequest, RequestError
from .results import AttributionResult, Piece
from .subject import Pass, Subject
from .walk import SIZES


# Products and sums of numbers that one answer may take: a minute on one core. Others wait for it.
MOST_OPERATIONS = 2e12
# Tokens in one pass over several points: more take more memory, and no less time.
TOKENS_AT_ONCE = 1024


def attributions(subject: Subject, request: AttributionRequest) -> AttributionResult:
    """
    A number for each token of the output and each token that it may depend on.

    Raises:
        RequestError: A field is invalid, the method is not for this model, or it takes too long; the error names it.
    """
    found = subject.forced(request)
    rows = Rows(subject, found, request)
    source = [] if subject.kind == "causal" else found.source_pieces
    if request.method == "rollout":
        scores = rollout(subject, found, request.off)[rows.places]
        return AttributionResult(rows.output, rows.numbers, source, found.read, scores, scores.sum(dim=-1), None, None)
    inputs = Inputs(found)
    is_integral = request.method == "integrated_gradients"
    starts = inputs.baselines(request.baseline) if is_integral else [torch.zeros_like(one) for one in inputs.values]
    points = midpoints(request.steps) if is_integral else [1.0]  # else at the embeddings alone
    check_time(subject, inputs, len(rows.ids), len(points))
    with inputs.replaced():  # the gradients of all rows come from the same passes
        gradients = inputs.gradients(rows, starts, points)
        with torch.no_grad():
            baselines = rows.logits(inputs.run([one[None] for one in starts])[0]) if is_integral else None
    score = lengths if request.method == "gradient" else products
    ways = [values - start for values, start in zip(inputs.values, starts)]
    scores = torch.cat([score(*pair) for pair in zip(gradients, ways)], dim=-1)  # (R, S + T)
    logits = rows.logits(found.outputs.logits[0])
    return AttributionResult(
        rows.output, rows.numbers, source, found.read, scores, scores.sum(dim=-1), logits, baselines
    )


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


class Rows:
    """
    The tokens of the output, or the one that the request names.

    Args:
        request: Its `piece` is the number of the one, or None.

    Attributes:
        output: All tokens of the output.
        numbers: Numbers of the rows among them, counted from 0.
        places: Where the model predicts the rows.
        ids: Their ids: those of the target, at mask tokens those that fit best.

    Raises:
        RequestError: There is none, or not the one.
    """

    def __init__(self, subject: Subject, found: Pass, request: AttributionRequest):
        places, ids, self.output = rows_of(subject, found, request.target_ids)
        if request.piece is not None and request.piece >= len(ids):
            raise RequestError("piece", f"is {request.piece}; expected 0 to {len(ids) - 1}, a token of the output")
        self.numbers = list(range(len(ids))) if request.piece is None else [request.piece]
        self.places = [places[number] for number in self.numbers]
        self.ids = [ids[number] for number in self.numbers]

    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Their logits (R), of all (T, V)."""
        return logits[self.places, self.ids].float()


def rows_of(subject: Subject, found: Pass, target_ids: list[int]) -> tuple[list[int], list[int], list[Piece]]:
    """
    Of each token of the output its place, its id and itself.

    Raises:
        RequestError: There is none.
    """
    if subject.kind != "masked":
        if not (count := len(target_ids)):
            raise RequestError("target_ids", "is empty: translate first, or give the ids of a target")
        return list(range(len(found.read)))[-count:], target_ids, found.predicted[-count:]
    read = [piece.id for piece in found.source_pieces]
    places = [place for place, index in enumerate(read) if index == subject.tokenizer.mask_token_id]
    if not places:
        raise RequestError("text", f"has no mask token: write {subject.tokenizer.mask_token} where one is missing")
    best = found.outputs.logits[0, places].argmax(dim=-1).tolist()
    return places, best, [subject.piece(read[:place], index) for place, index in zip(places, best)]


# ---------------------------------------------------------------------------------------------------------------------
# Gradients
# ---------------------------------------------------------------------------------------------------------------------


def midpoints(steps: int) -> list[float]:
    """The middles of equal parts of the way from 0 to 1."""
    return [(step + 0.5) / steps for step in range(steps)]


def lengths(gradients: torch.Tensor, way: torch.Tensor) -> torch.Tensor:
    """The length of each token's gradient: (R, S, D) to (R, S)."""
    return gradients.norm(dim=-1)


def products(gradients: torch.Tensor, way: torch.Tensor) -> torch.Tensor:
    """The sum over the features of gradient (R, S, D) times the way from the baseline (S, D), as (R, S)."""
    return (gradients * way.float()).sum(dim=-1)


def embedding_of(stack: Any) -> Any:
    """The module that makes the first vectors of what a stack reads."""
    return getattr(stack, "front_end", None) or stack.get_input_embeddings()


class Inputs:
    """
    The embeddings of a pass, which other values may take the place of; those of the source come first.

    Attributes:
        values: The embeddings of each stack, (S, D) and (T, D), as the module of the embeddings gives them: before the
            factor √D, positions and norms.
        is_special: Which of them are those of special tokens, (S) and (T).
    """

    def __init__(self, found: Pass):
        self.found = found
        model = found.copy.model
        self._modules = [embedding_of(stack_of(model, side)) for side in sides_of(model)]
        self._given: Iterator[torch.Tensor] | None = None
        self.values: list[torch.Tensor] = []
        with self.replaced():
            found.again()
        pieces = [found.sides(side)[0] for side in sides_of(model)]
        self.is_special = [torch.tensor([piece.special for piece in one]) for one in pieces]

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """A context in which passes read what `run` is given; another pass is one whose embeddings are kept."""

        def replace(module: Any, arguments: tuple, output: torch.Tensor) -> torch.Tensor:
            if self._given is not None:
                return next(self._given)
            self.values.append(output[0].detach())
            return output

        # Stacks may have one module together; the encoder's call is the first.
        hooks = [module.register_forward_hook(replace) for module in {*self._modules}]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def baselines(self, kind: str) -> list[torch.Tensor]:
        """What takes the place of the embeddings, (S, D) and (T, D); special tokens keep their own."""
        made = []
        for module, values, is_special in zip(self._modules, self.values, self.is_special):
            other = torch.zeros_like(values) if kind == "zero" else mean_embedding(module, values).expand_as(values)
            made.append(torch.where(is_special.to(values.device)[:, None], values, other))
        return made

    def run(self, values: list[torch.Tensor]) -> torch.Tensor:
        """The logits (N, T, V) with these embeddings, (N, S, D) and (N, T, D), in the place of the model's own."""
        inputs = {name: one.expand(len(values[0]), *one.shape[1:]) for name, one in self.found.inputs.items()}
        options = {"use_cache": False} if self.found.copy.model.config.is_encoder_decoder else {}
        self._given = iter(values)
        try:
            logits: torch.Tensor = self.found.copy.model(**inputs, return_dict=True, **options).logits
        finally:
            self._given = None
        return logits

    def gradients(self, rows: Rows, starts: list[torch.Tensor], points: list[float]) -> list[torch.Tensor]:
        """
        For each stack the gradients (R, S, D) of the rows' logits by its embeddings: their mean over points on the
        straight way from `starts` (0) to the embeddings (1).
        """
        sums = [one.new_zeros(len(rows.ids), *one.shape, dtype=torch.float32) for one in self.values]
        count = max(1, TOKENS_AT_ONCE // sum(len(one) for one in self.values))
        for first in range(0, len(points), count):
            shares = self.values[0].new_tensor(points[first : first + count])[:, None, None]
            given = [torch.lerp(*pair, shares).requires_grad_() for pair in zip(starts, self.values)]
            with torch.enable_grad():
                logits = self.run(given)
                for row, (place, index) in enumerate(zip(rows.places, rows.ids)):
                    total = logits[:, place, index].sum()
                    found = torch.autograd.grad(total, given, retain_graph=True, materialize_grads=True)
                    for whole, one in zip(sums, found):
                        whole[row] += one.float().sum(dim=0) / len(points)
        return sums


def mean_embedding(module: Any, values: torch.Tensor) -> torch.Tensor:
    """The mean of all rows of the embeddings (D); of a source without tokens that of its own parts."""
    if not hasattr(module, "num_embeddings"):
        return values.mean(dim=0)
    ids = torch.arange(module.num_embeddings, device=values.device)
    sums = [module(some).sum(dim=0) for some in ids.split(TOKENS_AT_ONCE)]
    return torch.stack(sums).sum(dim=0) / len(ids)


def check_time(subject: Subject, inputs: Inputs, rows: int, points: int) -> None:
    """
    Raises:
        RequestError: The gradients take longer than an answer may.
    """
    weights = sum(parameter.numel() for parameter in subject.model.parameters())
    tokens = sum(len(one) for one in inputs.values)
    # A token takes a product and a sum for each weight; the way back takes as long for each row.
    operations = 2 * weights * tokens * points * (1 + rows)
    if operations > MOST_OPERATIONS:
        raise RequestError(
            "steps",
            f"{points} steps of {rows} rows take {operations / MOST_OPERATIONS:.1f} times as long as an answer may: "
            "ask for one row (piece), or for fewer steps",
        )


# ---------------------------------------------------------------------------------------------------------------------
# Rollout
# ---------------------------------------------------------------------------------------------------------------------


def rollout(subject: Subject, found: Pass, off: list[str]) -> torch.Tensor:
    """
    Attention rollout (Abnar and Zuidema 2020, arXiv 2005.00928), through the encoder and the decoder's two
    attentions: for each place of the output the shares of what is read (S + T), which sum to 1.

    Each attention mixes what its layer is given: (α I + A) / (α + 1), with the mean A of the heads that are on and the
    residual's factor α, which is 1 in the paper. Values, norms and feed-forwards are left out.

    Raises:
        RequestError: The model does not attend to tokens, or does not return its weights.
    """
    parts = parts_of(found.copy.model)
    source = torch.eye(len(found.source_pieces) if "encoder" in parts else 0)  # (S, S)
    if "encoder" in parts:
        alpha = residual_factor(subject, "encoder")
        for own in means(found, "encoder", off):
            source = mix(source, alpha, own, source)
    if "decoder" not in parts:
        return source
    count = len(found.read)
    memory = F.pad(source, (0, count))  # (S, S + T)
    states = F.pad(torch.eye(count), (len(source), 0))  # (T, S + T)
    alpha = residual_factor(subject, "decoder")
    crosses = means(found, "cross", off) if "cross" in parts else repeat(None)
    for own, cross in zip(means(found, "decoder", off), crosses):
        states = mix(states, alpha, own, states)
        states = mix(states, alpha, cross, memory)
    return states


def mix(states: torch.Tensor, alpha: float, weights: torch.Tensor | None, read: torch.Tensor) -> torch.Tensor:
    """The shares after a step with a residual: where no head is on, they stay."""
    return states if weights is None else (alpha * states + weights @ read) / (alpha + 1)


def residual_factor(subject: Subject, side: str) -> float:
    """α of αx + Sublayer(x)."""
    return float(SIZES[side](subject.model.config).residual_alpha) if subject.is_ours else 1.0


def means(found: Pass, part: str, off: list[str]) -> Iterator[torch.Tensor | None]:
    """For each layer that is on the mean weights (rows, columns) of its heads that are on; None where none is."""
    rows, _, columns = found.sides(part)
    numbers = found.copy.layers["encoder" if part == "encoder" else "decoder"]
    names = [read_name(name) for name in off]
    for layer, weights in zip(numbers, found.attentions(part), strict=True):
        if weights.shape[-2:] != (len(rows), len(columns)):
            raise RequestError("method", f"the {part} part attends to other things than tokens: rollout has no rows")
        silent = {head[0] for name, (number, *head) in names if (name, number) == (part, layer) and head}
        if (part, [layer]) in names:
            silent = {*range(weights.shape[1])}
        heads = [head for head in range(weights.shape[1]) if head not in silent]
        yield weights[0, heads].float().mean(dim=0) if heads else None
