"""
Activation patching: a tensor of a pass gets the values that it has for another sentence, and the next token is
predicted again. Where the tensor carries what differs between the sentences, the difference of the logits of their
next tokens moves to that of the other sentence (causal tracing, Meng et al. 2022; Wang et al. 2022).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from .interventions import count_heads, hooked, read_name, stack_of
from .requests import PatchMapRequest, PatchRequest, RequestError, TranslateRequest
from .results import Alternative, PatchMapResult, PatchResult, Piece
from .subject import Pass, Subject, check_ours
from .translating import alternative, generate, until_end


# Tokens of the longest sentence that has a map, and of the passes of a batch.
MOST_MAPPED, MOST_IN_A_BATCH = 64, 4096

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Site:
    """Where a tensor is in a copy of a model."""

    module: nn.Module  # A layer, whose output it is, or W^O of an attention, of whose input it is a part
    columns: slice | None  # That part, which is one head or all; None for a layer

    @classmethod
    def of(cls, found: Pass, part: str, layer: int, head: int | None) -> "Site":
        module = stack_of(found.copy.model, part).layers[found.copy.place(part, layer)]
        if head is None and part != "cross":
            return cls(module, None)
        attention = module.encoder_attn if part == "cross" else module.self_attn
        if head is not None and head >= attention.num_heads:
            raise RequestError("tensor", f"head {head} does not exist: the layer has {attention.num_heads}")
        width = attention.d_v
        columns = slice(None) if head is None else slice(head * width, (head + 1) * width)
        return cls(attention.out_proj, columns)

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """A context in which the tensor (B, T, width) is what `change` makes of it."""

        def after(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
            is_tuple = isinstance(output, tuple)
            states = change(output[0] if is_tuple else output)
            return (states, *output[1:]) if is_tuple else states

        def before(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            states = arguments[0].clone()
            states[..., self.columns] = change(states[..., self.columns])
            return (states, *arguments[1:])

        is_output = self.columns is None
        hook = self.module.register_forward_hook(after) if is_output else self.module.register_forward_pre_hook(before)
        with hooked(hook):
            yield


def values_at(found: Pass, sites: Sequence[Site]) -> list[torch.Tensor]:
    """The tensors (T, width) of a pass at these sites."""
    seen = found.record({str(number): site.module for number, site in enumerate(sites)})
    return [
        seen.outputs[str(number)] if site.columns is None else seen.inputs[str(number)][:, site.columns]
        for number, site in enumerate(sites)
    ]


def with_rows(rows: Sequence[int], values: torch.Tensor) -> Change:
    """Puts values (B, width) into the row `rows[b]` of each item of a batch; one row and value are for all items."""

    def change(states: torch.Tensor) -> torch.Tensor:
        count = len(states)
        places = torch.tensor(rows, device=states.device).expand(count)
        states = states.clone()
        states[torch.arange(count, device=states.device), places] = values.to(states.dtype).expand(count, -1)
        return states

    return change


def counterparts(ids: Sequence[int], others: Sequence[int]) -> list[int | None]:
    """For each token of a sentence, its place in the other: of [1, 2, 3, 9] in [1, 4, 9] these are [0, 1, None, 2]."""
    # The same place or, behind the last difference, the place that is as far from the end; None for tokens too many.
    shortest, end = min(len(ids), len(others)), 0
    while end < shortest and ids[-1 - end] == others[-1 - end]:
        end += 1
    middle, more = len(others) - end, len(others) - len(ids)
    return [
        place + more if place >= len(ids) - end else place if place < middle else None for place in range(len(ids))
    ]


class Pair:
    """Two sentences, each with the same target, and the step of the target at which their next tokens are compared."""

    # The step is that of the request, else the first at which the most probable tokens differ, else the first.

    def __init__(self, subject: Subject, request: PatchMapRequest | PatchRequest):
        check_ours(subject, request)
        if subject.kind == "masked":
            raise RequestError("model", f"{subject.name} fills gaps: it has no next token that could be compared")
        if subject.reads != "text":
            raise RequestError("model", f"{subject.name} reads files: tensors are exchanged between sentences")
        if not request.other.strip():
            raise RequestError("other", "is empty: type a second sentence")
        self.subject, self.found = subject, subject.forced(request)
        try:
            self.other = subject.forced(replace(request, text=request.other))
        except RequestError as error:
            raise RequestError("other" if error.field == "text" else error.field, error.message) from error
        count = len(request.target_ids)
        if request.step is not None and request.step >= count:
            raise RequestError("step", f"is {request.step}; the target has the steps 0 to {count - 1}")
        both = [one.outputs.logits[0, len(one.read) - count :].float() for one in (self.found, self.other)]
        best = [logits.argmax(dim=-1) for logits in both]
        differs = (best[0] != best[1]).nonzero().flatten().tolist()
        self.step = request.step if request.step is not None else (differs or [0])[0]
        self.row = len(self.found.read) - count + self.step  # of the logits
        self.other_row = len(self.other.read) - count + self.step
        self.plain, self.others = both[0][self.step], both[1][self.step]
        self.first = int(best[0][self.step])
        gains = self.others.softmax(dim=-1) - self.plain.softmax(dim=-1)
        gains[self.first] = -1
        self.second = int(gains.argmax()) if best[1][self.step] == self.first else int(best[1][self.step])

    def difference(self, logits: torch.Tensor) -> torch.Tensor:
        """How much larger the logit of the first token is than that of the second, of logits (…, V)."""
        return logits[..., self.first] - logits[..., self.second]

    def places(self, part: str) -> tuple[list[Piece], list[Piece]]:
        """The tokens whose tensors can be replaced, and those of the other sentence."""
        if part == "encoder":
            return self.found.source_pieces, self.other.source_pieces
        return self.found.read[: self.row + 1], self.other.read[: self.other_row + 1]

    def counterparts(self, part: str) -> list[int | None]:
        """The place of the other sentence for each place."""
        return counterparts(*([piece.id for piece in pieces] for pieces in self.places(part)))

    def patched(self, site: Site, rows: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """Logits of the step (B, V), with values (B, width) in the row `rows[b]` of item b."""
        inputs = {name: one.expand(len(rows), -1) for name, one in self.found.inputs.items()}
        with site.changed(with_rows(rows, values)):
            logits: torch.Tensor = self.found.copy.model(**inputs, use_cache=False).logits
        return logits[:, self.row].float()

    def best(self, logits: torch.Tensor, count: int) -> list[Alternative]:
        """The most probable tokens, best first, and after them the compared ones that are not among them."""
        context = [piece.id for piece in self.found.read[: self.row + 1]]
        scores = logits.log_softmax(dim=-1)
        ids = scores.topk(min(count, len(scores))).indices.tolist()
        ids += [index for index in (self.first, self.second) if index not in ids]
        return [alternative(self.subject.piece(context, index), float(scores[index])) for index in ids]

    def piece(self, index: int) -> Piece:
        """A token behind those that were read."""
        return self.subject.piece([piece.id for piece in self.found.read[: self.row + 1]], index)


def check_rows(values: torch.Tensor, pieces: list[Piece], part: str) -> None:
    if len(values) < len(pieces):
        raise RequestError(
            "tensor", f"its rows are not the tokens of the {part}: a layer has made the sequence shorter"
        )


@torch.no_grad()
def patch(subject: Subject, request: PatchRequest) -> PatchResult:
    """The next token with one tensor of the other sentence."""
    part, (layer, *head) = read_name(request.tensor, "tensor")
    pair = Pair(subject, request)
    places, others = pair.places(part)
    differs = (
        place
        for place, other in enumerate(pair.counterparts(part))
        if other is not None and places[place].id != others[other].id
    )
    position = next(differs, len(places) - 1) if request.position is None else request.position
    check_place("position", position, places)
    counterpart = pair.counterparts(part)[position]
    taken = request.other_position if request.other_position is not None else counterpart
    if taken is None:
        raise RequestError("other_position", "is missing: the other sentence has no token that stands for this one")
    check_place("other_position", taken, others)
    site = Site.of(pair.found, part, layer, head[0] if head else None)
    (values,) = values_at(pair.other, [site])
    check_rows(values, others, part)
    change = values[taken][None]
    logits = pair.patched(site, [position], change)[0]
    text = None
    if part == "encoder" and subject.kind != "causal":
        text = translation(subject, request, pair, site, with_rows([position], change))
    return PatchResult(
        places=places,
        other_places=others,
        position=position,
        other_position=taken,
        step=pair.step,
        first=pair.piece(pair.first),
        second=pair.piece(pair.second),
        differences=[float(pair.difference(one)) for one in (pair.plain, logits, pair.others)],
        best=[pair.best(one, request.alternatives) for one in (pair.plain, logits, pair.others)],
        translation=text,
    )


def check_place(field: str, place: int, pieces: list[Piece]) -> None:
    if place >= len(pieces):
        raise RequestError(field, f"is {place}; expected 0 to {len(pieces) - 1}")


def translation(subject: Subject, request: PatchRequest, pair: Pair, site: Site, change: Change) -> str:
    """What the model's own search finds with a change in the encoder."""
    copy, source = pair.found.copy, subject.read_source(request)
    plain = TranslateRequest(model=request.model, text=request.text, off=request.off, target_lang=request.target_lang)
    with site.changed(change):
        found = generate(subject, copy, source, plain)
    rows = found if torch.is_tensor(found) else found.sequences
    ids = until_end(rows[0, 1:].tolist(), subject)
    return str(subject.tokenizer.decode(ids, skip_special_tokens=True))


@torch.no_grad()
def patch_map(subject: Subject, request: PatchMapRequest) -> PatchMapResult:
    """The difference of the logits with the tensor of each layer at each token or, for one token, of each head."""
    pair, part = Pair(subject, request), request.part
    layers = pair.found.copy.layers["encoder" if part == "encoder" else "decoder"]
    places, others = pair.places(part)
    if len(places) > MOST_MAPPED:
        raise RequestError("text", f"has {len(places)} tokens; a map has at most {MOST_MAPPED}")
    if request.position is not None:
        check_place("position", request.position, places)
    rows = [*range(len(places))] if request.position is None else [request.position]
    counterpart = pair.counterparts(part)
    pairs = [(row, other) for row in rows if (other := counterpart[row]) is not None]
    most = max(count_heads(subject.model, part))
    found = torch.full((len(layers), len(places) if request.position is None else most), torch.nan)
    heads: list[list[int | None]] = [
        [None] if request.position is None else [*range(count_heads(subject.model, part)[layer])] for layer in layers
    ]
    asked = [(index, layer, head) for index, layer in enumerate(layers) for head in heads[index]]
    sites = [Site.of(pair.found, part, layer, head) for _, layer, head in asked]
    size = max(1, MOST_IN_A_BATCH // (len(pair.found.read) + len(pair.found.source_pieces)))
    for (index, _, head), site, values in zip(asked, sites, values_at(pair.other, sites)):
        check_rows(values, others, part)
        for start in range(0, len(pairs), size):
            into, taken = zip(*pairs[start : start + size])
            differences = pair.difference(pair.patched(site, into, values[[*taken]])).cpu()
            found[index, [*into] if head is None else [head]] = differences
    return PatchMapResult(
        layers=layers,
        places=places,
        step=pair.step,
        first=pair.piece(pair.first),
        second=pair.piece(pair.second),
        plain=float(pair.difference(pair.plain)),
        other=float(pair.difference(pair.others)),
        differences=found,
    )
