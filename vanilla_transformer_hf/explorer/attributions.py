"""
How much each token of the source and of the target so far counts for each token of the output: by leaving it out, by
gradients, by integrated gradients, by attention rollout; what each layer predicts already, and what neurons fire.

Shapes: S source tokens, T tokens that the decoder reads, R rows (tokens of the output), V vocabulary, D = width of the
embeddings, N points.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..model.config.stacks import StackSizes
from .interventions import hooked, parts_of, read_name, sides_of, stack_of
from .requests import AttributionRequest, NeuronsRequest, PairRequest, RequestError
from .results import AttributionResult, NeuronsResult, Piece, RanksResult
from .subject import Pass, Subject
from .walk import norm_name


# Products and sums of numbers that one answer may take: a minute on one core. Others wait for it.
MOST_OPERATIONS = 2e12
# Tokens in one pass over several points: more take more memory, and no less time.
TOKENS_AT_ONCE = 1024
# Of an integral: parts that it begins with, and the share of the logit's difference that it may miss.
FIRST_PARTS = 8
MISSED = 0.01


def attributions(subject: Subject, request: AttributionRequest) -> AttributionResult:
    """A number for each token of the output and each token that it may depend on."""
    found = subject.forced(request)
    rows = Rows(subject, found, request)
    source = [] if subject.kind == "causal" else found.source_pieces
    if request.method == "rollout":
        scores = rollout(subject, found, request.off)[rows.places]
        return AttributionResult(rows.output, rows.numbers, source, found.read, scores, scores.sum(dim=-1), None, None)
    inputs = Inputs(found)
    logits = rows.logits(found.outputs.logits[:1])[0]  # (R)
    baselines = None
    with inputs.replaced():  # the gradients of all rows come from the same passes
        if request.method == "left_out":
            check_time(subject, inputs, 0, sum(map(len, inputs.values)))
            scores = logits[:, None] - without_each(inputs, rows)
        elif request.method == "integrated_gradients":
            check_time(subject, inputs, len(rows.ids), request.steps)
            baselines, scores = integral(inputs, rows, inputs.baselines(request.baseline), request.steps)
        else:
            check_time(subject, inputs, len(rows.ids), 1)
            zeros = [torch.zeros_like(one) for one in inputs.values]
            score = lengths if request.method == "gradient" else products
            scores = inputs.scores(rows, zeros, torch.ones(1), score)[1][0]
    return AttributionResult(
        rows.output, rows.numbers, source, found.read, scores, scores.sum(dim=-1), logits, baselines
    )


# ---------------------------------------------------------------------------------------------------------------- rows


class Rows:
    """The tokens of the output, or the one that the request names by its number."""

    def __init__(self, subject: Subject, found: Pass, request: AttributionRequest):
        places, ids, self.output = rows_of(subject, found, request.target_ids)
        if request.piece is not None and request.piece >= len(ids):
            raise RequestError("piece", f"is {request.piece}; expected 0 to {len(ids) - 1}, a token of the output")
        self.numbers = list(range(len(ids))) if request.piece is None else [request.piece]
        self.places = [places[number] for number in self.numbers]
        self.ids = [ids[number] for number in self.numbers]

    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Their logits (N, R), of all (N, T, V)."""
        return logits[:, self.places, self.ids].float()


def rows_of(subject: Subject, found: Pass, target_ids: list[int]) -> tuple[list[int], list[int], list[Piece]]:
    """Of each token of the output its place, its id and itself."""
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


# ----------------------------------------------------------------------------------------------------------- gradients


def lengths(gradients: torch.Tensor, way: torch.Tensor) -> torch.Tensor:
    """The length of each token's gradient: (N, S, D) to (N, S)."""
    return gradients.norm(dim=-1)


def products(gradients: torch.Tensor, way: torch.Tensor) -> torch.Tensor:
    """The sum over the features of gradient (N, S, D) times the way from the baseline (S, D), as (N, S)."""
    return (gradients * way.float()).sum(dim=-1)


class Inputs:
    """The embeddings of a pass, which other values may take the place of; those of the source come first."""

    def __init__(self, found: Pass):
        self.found = found
        model = found.copy.model
        stacks = [stack_of(model, side) for side in sides_of(model)]
        # What makes the first vectors of what a stack reads.
        self._modules = [getattr(stack, "front_end", None) or stack.get_input_embeddings() for stack in stacks]
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
        with hooked(*(module.register_forward_hook(replace) for module in {*self._modules})):
            yield

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

    def scores(
        self,
        rows: Rows,
        starts: Sequence[torch.Tensor],
        points: torch.Tensor,
        score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows' logits (N, R) at points on the way from `starts` (0) to the embeddings (1), and scores."""
        # The way is straight; the scores (N, R, S + T) are what `score` makes of a gradient and the way.
        ways = [values - start for values, start in zip(self.values, starts)]
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for some in points.to(self.values[0]).split(max(1, TOKENS_AT_ONCE // sum(map(len, self.values)))):
            given = [torch.lerp(*pair, some[:, None, None]).requires_grad_() for pair in zip(starts, self.values)]
            with torch.enable_grad():
                logits = rows.logits(self.run(given))
                gradients = [
                    torch.autograd.grad(row.sum(), given, retain_graph=True, materialize_grads=True)
                    for row in logits.unbind(dim=1)
                ]
            made = [torch.cat([score(*pair) for pair in zip(row, ways)], dim=-1) for row in gradients]
            found.append((logits.detach(), torch.stack(made, dim=1).float()))
        logits, scores = (torch.cat(parts) for parts in zip(*found))
        return logits, scores


@torch.no_grad()
def without_each(inputs: Inputs, rows: Rows) -> torch.Tensor:
    """The rows' logits (R, S + T) with zeros for each token alone in turn; special tokens keep their embeddings."""
    starts, found = inputs.baselines("zero"), []
    for stack, values in enumerate(inputs.values):
        for places in torch.arange(len(values)).split(max(1, TOKENS_AT_ONCE // sum(map(len, inputs.values)))):
            given = [one.repeat(len(places), 1, 1) for one in inputs.values]
            given[stack][torch.arange(len(places)), places] = starts[stack][places]
            found.append(rows.logits(inputs.run(given)))
    return torch.cat(found).T


def integral(
    inputs: Inputs, rows: Rows, starts: Sequence[torch.Tensor], steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows' logits at `starts` (R), and the integrals (R, S + T) of the gradients from there to the embeddings."""
    # A gradient stands for a part of the way, in whose middle it is. Where heads look at one token alone a logit
    # jumps, and parts of equal size miss most of it. What a part should sum to is known: the difference of the logits
    # at its ends. So the parts that miss most are halved, until a row misses little or there are as many points as
    # `steps`.
    edges = torch.linspace(0, 1, FIRST_PARTS + 1)
    with torch.no_grad():
        shares = edges.to(inputs.values[0])[:, None, None]
        ends = rows.logits(inputs.run([torch.lerp(*pair, shares) for pair in zip(starts, inputs.values)]))  # (N, R)
    begin, end, first, last = edges[:-1], edges[1:], ends[:-1], ends[1:]
    whole = (ends[-1] - ends[0]).abs()
    whole = whole.clamp(min=float(whole.max()) / 10 + 1e-6)  # of a row that changes little, little counts
    middle, scores = inputs.scores(rows, starts, (begin + end) / 2, products)
    points = FIRST_PARTS
    while True:
        width = (end - begin).to(scores)
        missed = (last - first - scores.sum(dim=-1) * width[:, None]).abs() / whole  # (N, R)
        count = min(FIRST_PARTS, (steps - points) // 2)
        if count < 1 or missed.sum(dim=0).max() < MISSED:
            return ends[0], (scores * width[:, None, None]).sum(dim=0)
        halved = torch.zeros(len(begin), dtype=torch.bool)
        halved[missed.amax(dim=1).topk(count).indices.cpu()] = True
        center = (begin + end) / 2
        begin = torch.cat([begin[~halved], begin[halved], center[halved]])
        end = torch.cat([end[~halved], center[halved], end[halved]])
        first = torch.cat([first[~halved], first[halved], middle[halved]])
        last = torch.cat([last[~halved], middle[halved], last[halved]])
        new, more = inputs.scores(rows, starts, (begin + end)[-2 * count :] / 2, products)
        middle, scores = torch.cat([middle[~halved], new]), torch.cat([scores[~halved], more])
        points += 2 * count


def mean_embedding(module: Any, values: torch.Tensor) -> torch.Tensor:
    """The mean of all rows of the embeddings (D); of a source without tokens that of its own parts."""
    if not hasattr(module, "num_embeddings"):
        return values.mean(dim=0)
    ids = torch.arange(module.num_embeddings, device=values.device)
    sums = [module(some).sum(dim=0) for some in ids.split(TOKENS_AT_ONCE)]
    return torch.stack(sums).sum(dim=0) / len(ids)


def check_time(subject: Subject, inputs: Inputs, rows: int, points: int) -> None:
    """An error if the passes and the ways back of so many rows take longer than an answer may."""
    weights = sum(parameter.numel() for parameter in subject.model.parameters())
    tokens = sum(len(one) for one in inputs.values)
    # A token takes a product and a sum for each weight; the way back takes as long for each row.
    operations = 2 * weights * tokens * points * (1 + rows)
    if operations > MOST_OPERATIONS and not rows:
        raise RequestError("method", f"{points} tokens take too many passes: choose another method")
    if operations > MOST_OPERATIONS:
        raise RequestError(
            "steps",
            f"{points} steps of {rows} rows take {operations / MOST_OPERATIONS:.1f} times as long as an answer may: "
            "ask for one row (piece), or for fewer steps",
        )


# ------------------------------------------------------------------------------------------------------------- rollout


def rollout(subject: Subject, found: Pass, off: list[str]) -> torch.Tensor:
    """Attention rollout (Abnar and Zuidema 2020, arXiv 2005.00928): shares (S + T), which sum to 1, of each place."""
    # Through the encoder and the decoder's two attentions; the shares are of what is read. Each attention mixes what
    # its layer is given: (α I + A) / (α + 1), with the mean A of the heads that are on and the residual's factor α,
    # which is 1 in the paper. Values, norms and feed-forwards are left out.
    parts = parts_of(found.copy.model)
    if parts == ("cross",):
        raise RequestError("method", "rollout follows attention through all layers, and recurrent layers have none")
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
    return float(StackSizes(subject.model.config, side).residual_alpha) if subject.is_ours else 1.0


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


def ranks(subject: Subject, request: PairRequest) -> RanksResult:
    """The rank and the probability of each token of the output, as if each layer were the last (logit lens)."""
    found = subject.forced(request, needs_ours=True)
    places, ids, pieces = rows_of(subject, found, request.target_ids)
    stack, numbers = stack_of(found.copy.model, subject.lens_stack), found.copy.layers[subject.lens_stack]
    seen = found.record({str(number): layer for number, layer in zip(numbers, stack.layers)})
    dtype = found.copy.model.get_output_embeddings().weight.dtype
    found_ranks, probabilities = [], []
    for number in numbers:
        states = seen.outputs[str(number)][places].to(dtype)  # (R, D)
        with torch.no_grad():
            logits = subject.as_last_layer(found.copy, states[None])[0].float()  # (R, V)
        own = torch.tensor(ids, device=logits.device)[:, None]
        found_ranks.append((logits > logits.gather(1, own)).sum(dim=1))
        probabilities.append(logits.softmax(dim=-1).gather(1, own)[:, 0])
    has_norm = not isinstance(stack.layer_norm, nn.Identity)
    name = norm_name(subject.model.config) if has_norm else ""
    return RanksResult(pieces, numbers, torch.stack(found_ranks), torch.stack(probabilities), name)


def neurons(subject: Subject, request: NeuronsRequest) -> NeuronsResult:
    """The neurons of a feed-forward that fire most at a token, how they fire elsewhere, and what they write for."""
    found = subject.forced(request, needs_ours=True)
    stack = stack_of(found.copy.model, request.stack)
    layer = stack.layers[found.copy.place(request.stack, request.layer)]
    if not hasattr(layer, "fc2"):
        raise RequestError("layer", f"{request.layer} of the {request.stack} has no feed-forward")
    fired = found.record({"fc2": layer.fc2}).inputs["fc2"]  # (rows, d_ff)
    if request.piece >= len(fired):
        raise RequestError("piece", f"is {request.piece}; expected 0 to {len(fired) - 1}, a row of this layer")
    # With a gate, and with some functions, a neuron may also say much by a number below 0.
    best = fired[request.piece].abs().topk(min(request.top, fired.shape[1])).indices
    is_last = request.stack == subject.lens_stack
    rows = found.copy.model.get_output_embeddings() if is_last else getattr(stack, "embed_tokens", None)
    writes: list[list[Piece]] = []
    if rows is not None:
        signs = fired[request.piece, best].sign()
        most = (rows.weight @ (layer.fc2.weight[:, best] * signs)).topk(3, dim=0).indices  # (3, neurons)
        writes = [
            [subject.piece((), one) for one in own] if sign else [] for sign, own in zip(signs, most.t().tolist())
        ]
    return NeuronsResult(found.sides(request.stack)[0], best.tolist(), fired[:, best].t(), writes, fired.shape[1])
