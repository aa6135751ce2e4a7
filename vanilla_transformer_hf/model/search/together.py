"""
Searches of several: models (ensembles), groups of beams (diverse beam search), and calls that run as one (continuous
batching), where sentences of one take the places of those of another that are done.

Shapes: B sentences, A rows in the batch, each a sentence or a group of its beams; a rows of one group, r of one
search; n beams of a row, S source positions, V vocabulary.
"""

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F

from ..packing.most_likely import best_candidates, first_highest
from .beam import BeamSearch, Candidates, going_on, take
from .incremental_decoder import IncrementalDecoder, resized
from .layer_tensors import LayerTensors
from .plan import why_not
from .search import LEAVING_SHARE, Rows, Search


# Arguments of `generate` about its sentences; the batches of a stream may differ only in these.
OF_SENTENCES = (
    "inputs", "input_ids", "inputs_embeds", "attention_mask", "encoder_outputs", "decoder_input_ids",
    "decoder_attention_mask", "position_ids", "token_type_ids", "global_attention_mask", "labels", "prefixes",
    "required_phrases", "input_features", "pixel_values",
)  # fmt: skip
# Sentences join a batch as soon as there is room for this share of their own: on GPUs, and on CPUs, where joining
# costs less than empty places (2,000 captions, 5 beams, batches of 128: 9.1 and 9.8 s; of 32 and 64: no difference).
JOINING_SHARE, JOINING_SHARE_OF_CPU = 1 / 8, 1 / 24
# On a CPU, a sentence leaves the others if it needs more than twice the slots for keys and values that all but this
# share of them need, and more than so many slots of theirs would be empty beyond that. Fewer are not worth the steps
# of a batch of one.
WIDE_SHARE, MOST_EMPTY_SLOTS = 1 / 8, 8192


# Models --------------------------------------------------------------------------------------------------------------
class Ensemble:
    """Decoders of the same vocabulary and number of beams whose probabilities are averaged; names are those of one."""

    def __init__(self, decoders: Sequence[IncrementalDecoder]):
        self.decoders = decoders  # each has read the same source with its own encoder

    @property
    def can_absorb(self) -> bool:
        return all(decoder.can_absorb for decoder in self.decoders)

    def read(self, prompt: torch.Tensor) -> None:
        for decoder in self.decoders:
            decoder.read(prompt)

    @property
    def states(self) -> torch.Tensor:
        """The last states of all decoders, concatenated (B, n, sum of D)."""
        return torch.cat([decoder.states for decoder in self.decoders], dim=-1)

    @property
    def attention(self) -> torch.Tensor:
        """The mean of their attention (B, n, S)."""
        return torch.stack([decoder.attention for decoder in self.decoders]).mean(dim=0)

    @property
    def source_mask(self) -> torch.Tensor | None:
        return self.decoders[0].source_mask

    @property
    def source_length(self) -> int:
        return self.decoders[0].source_length

    def log_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """The next tokens (B, n) to the logarithm of the mean of their probabilities (B, n, V), in float32."""
        total, *others = [decoder.log_probs(tokens) for decoder in self.decoders]
        for each in others:  # in its memory: fresh memory takes a seventh of a search
            torch.logaddexp(total, each, out=total)
        return total.sub_(math.log(len(self.decoders)))

    next_logits = log_probs

    def best_continuations(
        self, tokens: torch.Tensor, scores: torch.Tensor, count: int, alone: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        log_probs = self.log_probs(tokens)
        values, places = best_candidates(log_probs, count, scores)
        return values, places // log_probs.shape[-1], places % log_probs.shape[-1]

    def next_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        return first_highest(self.log_probs(tokens)[:, 0])

    def follow(self, parents: torch.Tensor) -> None:
        for decoder in self.decoders:
            decoder.follow(parents)

    def keep_rows(self, rows: torch.Tensor) -> None:
        for decoder in self.decoders:
            decoder.keep_rows(rows)

    @property
    def is_full(self) -> bool:
        return self.decoders[0].is_full

    def used_slots(self) -> torch.Tensor:
        return self.decoders[0].used_slots()


def check_ensemble(model: Any, members: Any, has_source: bool) -> None:
    """A `ValueError` if a member of the ensemble does not fit the model, or needs transformers' loop."""
    if not isinstance(members, (list, tuple)):
        raise ValueError(f"ensemble: must be a list of models, not {type(members).__name__}")
    if members and not has_source:
        raise ValueError(f"ensemble: needs {model.main_input_name}, so that each model reads the source itself")
    for number, member in enumerate(members):
        name = f"ensemble[{number}]"
        if not hasattr(member, "generate_stream"):
            raise ValueError(f"{name}: {type(member).__name__} is not a model of this package")
        own, other = model.config, member.config
        for key in ("vocab_size", "source_vocab_size", "decoder_start_token_id", "front_end"):
            found, expected = (getattr(each, key) for each in (other, own))
            if key == "source_vocab_size":
                found, expected = found or other.vocab_size, expected or own.vocab_size
            if found != expected:
                raise ValueError(f"{name}: its {key} is {found} and the model's is {expected}")
        if member.device != model.device:
            raise ValueError(f"{name}: it is on {member.device} and the model on {model.device}")
        if (reason := why_not(member)) is not None:
            raise ValueError(f"{name}: not possible together with {reason}")


# Groups of beams -----------------------------------------------------------------------------------------------------
class DiverseBeamSearch(BeamSearch):
    """Diverse beam search with the Hamming diversity: Vijayakumar et al. 2016, arXiv 1610.02424, algorithm 1."""

    # Section 5.1. Beams in groups, each a row with a beam search of its own. The groups of a sentence take turns at
    # each step; a token's score is lowered by `diversity_penalty` for each hypothesis of earlier groups that continues
    # with it. Scores include the penalties, as those of transformers 4 and of the authors' code do. The rows of a
    # sentence follow each other.

    def best(self) -> dict[str, torch.Tensor]:
        groups, n_best = self.plan.groups, self.plan.config.num_return_sequences
        lists = {name: tensor.unflatten(0, (-1, groups)).flatten(1, 2) for name, tensor in self.results.items()}
        order = lists["finished_scores"].argsort(dim=1, descending=True, stable=True)[:, :n_best]  # (B, n_best)
        return {name: take(tensor, order).flatten(0, 1) for name, tensor in lists.items()}

    def _candidates(self, log_probs: torch.Tensor) -> Candidates:
        rows, plan = self.rows, self.plan
        sentences, groups = rows.places // plan.groups, rows.places % plan.groups
        count = len(rows), self.count
        found = Candidates(
            scores=torch.empty(count, dtype=log_probs.dtype, device=log_probs.device),
            parents=rows.places.new_empty(count),
            tokens=rows.places.new_empty(count),
        )
        # Tokens that continue the hypotheses of earlier groups (B, n of all groups); -1 where a place is empty.
        taken = rows.places.new_full((len(plan.prompt) // plan.groups, plan.groups * plan.beams), -1)
        for group in range(plan.groups):
            its = (groups == group).nonzero()[:, 0]  # (a)
            before = taken[sentences[its], None].expand(-1, plan.beams, -1)
            penalties = (before >= 0).to(log_probs.dtype) * -plan.options.diversity_penalty
            own = log_probs[its].scatter_add(2, before.clamp(min=0), penalties)  # (a, n, V)
            part = self._best(own, rows.running_scores[its], places=rows.places[its])
            _, chosen = going_on(part.scores, plan.ends(part.tokens), beams=plan.beams)
            columns = slice(group * plan.beams, (group + 1) * plan.beams)
            # Groups that are done have no hypotheses any more.
            taken[sentences[its], columns] = part.tokens.gather(1, chosen).masked_fill(rows.written[its, None], -1)
            found.scores[its], found.parents[its], found.tokens[its] = part.scores, part.parents, part.tokens
        return found


# Calls ---------------------------------------------------------------------------------------------------------------
class StepHook:
    """A stopping criterion: a function that is called after each step of a search that runs to its end."""

    # `generate()` runs it. It may wait, and ends the search by an exception. It does not decide which loop runs.

    def __init__(self, function: Callable[[], None]):
        self.after_step = function

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.after_step()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def run_together(model: Any, batches: Iterable[dict[str, Any]], settings: dict[str, Any]) -> Iterator[Any]:
    """Yield the searches for the batches when they are finished, in their order."""
    # Sentences of the next one take the places of those that are done (Yu et al. 2022,
    # usenix.org/conference/osdi22/presentation/yu). The batch never has more sentences or padded source tokens than
    # the largest single search. The searches `can_join`, have the same settings, and are read one ahead; other objects
    # are yielded unchanged.
    together: Any = None
    begun, most_rows, most_tokens = deque[Any](), 0, 0
    share = JOINING_SHARE_OF_CPU if model.device.type == "cpu" else JOINING_SHARE

    def those_done() -> Iterator[Any]:
        while begun and not (isinstance(begun[0], Search) and begun[0].unfinished):
            yield begun.popleft()

    def all_begun() -> Iterator[Any]:
        while begun:
            yield from those_done()
            if begun:
                together.step()

    for place, batch in enumerate(batches):
        for name in batch:
            if name not in OF_SENTENCES:
                raise ValueError(f"batch {place}: {name} has to be the same for all batches; give it beside them")
        # Before its first step; or what `generate()` returns, if it cannot join others.
        following = model.generate(**batch, **settings, place_in_stream=place)
        begun.append(following)
        if not isinstance(following, Search):
            yield from all_begun()
            continue
        size, length, entered = len(following.rows), following.decoder.source_length, 0
        most_rows, most_tokens = max(most_rows, size), max(most_tokens, size * length)
        if together is None:
            together, entered = following, size
            together.waits = True
        while entered < size:
            longest, left = max(together.decoder.source_length, length), size - entered
            running = int((~together.rows.written).sum())
            room = min(left, min(most_rows, most_tokens // longest) - running) if running else left
            if room >= min(left, size * share):
                absorb(together, following, slice(entered, entered + room))
                entered += room
            else:
                together.step()
                alone = take_wide_rows(together)
                while alone is not None and len(alone.rows):  # to their end
                    alone.step()
                together.drop_finished_searches()
                yield from those_done()
        if following is not together:
            following.decoder = None  # copied, and its last sentence may take long
    if together is not None:
        together.waits = False
    yield from all_begun()


def can_join(search: Search) -> bool:
    """Whether sentences may be at different steps."""
    plan = search.plan
    is_free = plan.prefixes is None and plan.phrases is None and "recorder" not in plan.request.requests
    # Samples depend on how many are drawn at once.
    is_free = is_free and not (plan.config.do_sample or plan.keeps_rows)
    return search.decoder.can_absorb and search.prompt_length == 1 and is_free and plan.groups == 1


def absorb(search: Any, other: Search, rows: slice) -> None:
    """Let these sentences of `other` take the places of some that are done."""
    # `other` must not have begun and must have the same settings.
    newcomers = other.rows.select(rows)
    places = make_places(search, len(newcomers))
    if search.searches.get(search.joined) is not other:
        search.joined += 1
        search.searches[search.joined] = other
    with search.mode():
        absorb_sources(search.decoder, other.decoder, rows, places)
        # Columns in front of the sentence that began first are not needed any more.
        unused = int(search.rows.begins.min())
        search.rows = put(search.rows, newcomers, places, unused=unused, prompt_length=search.prompt_length)
        search.rows.owners[places] = search.joined
        if isinstance(search, BeamSearch) and isinstance(other, BeamSearch):
            search.penalties = max(search.penalties, other.penalties, key=len)
            if search.coverage_penalty:
                search.rows.coverage = resized(search.rows.coverage, -1, size=search.decoder.source_length)


def make_places(search: Search, count: int) -> torch.Tensor:
    """So many rows that are done (count), those that began first before the others."""
    done = search.rows.written.nonzero()[:, 0]
    if len(done) < count or len(done) - count >= LEAVING_SHARE * len(search.rows):
        # Too few, or far more: the batch becomes as large as needed. What stands at new places is overwritten.
        running = (~search.rows.written).nonzero()[:, 0]
        search.keep_rows(torch.cat((running, running.new_zeros(count))))
        done = torch.arange(len(running), len(running) + count, device=running.device)
    places: torch.Tensor = done[search.rows.begins[done].argsort()[:count]]
    return places


def put(rows: Rows, others: Rows, places: torch.Tensor, unused: int, prompt_length: int) -> Rows:
    """Replace the rows at `places` by others, which have not begun: they have `prompt_length` columns."""
    # So many `unused` columns in front, which no row needs any more, are dropped.
    ahead = rows.running.shape[-1] - unused - prompt_length
    made: dict[str, Any] = {}
    for name, old, kind in rows.tensors():
        new = getattr(others, name)
        filler = 0
        if kind.get("is_columns"):
            filler = rows.padding if kind["filler"] is None else kind["filler"]
            old, new = old[..., unused:], F.pad(new, (ahead, 0), value=filler)
        elif kind.get("is_number"):
            old, new = old - unused, new + ahead
        if old.dim() > 1:
            longest = max(old.shape[-1], new.shape[-1])
            old, new = resized(old, -1, size=longest, value=filler), resized(new, -1, size=longest, value=filler)
        made[name] = old.index_copy(0, places, new)
    return replace(rows, **made)


def absorb_sources(decoder: Any, other: Any, rows: slice, places: torch.Tensor) -> None:
    """Replace the sentences at `places` by these sentences of `other`, which has not taken a token yet."""
    if not isinstance(decoder, IncrementalDecoder):  # of an ensemble
        for each, its in zip(decoder.decoders, other.decoders):
            absorb_sources(each, its, rows, places)
        return
    decoder.folded = None
    decoder.begins = decoder.begins.repeat(len(decoder.mask) // len(decoder.begins), 1)
    decoder.begins[places], decoder.mask[places] = decoder.length, -math.inf
    if decoder.key_positions is not None:
        decoder.key_positions = decoder.key_positions.repeat(len(decoder.mask) // len(decoder.key_positions), 1)
    for tensors in filter(None, (decoder.keys, decoder.values, decoder.sums)):
        tensors.put(places, repeat(0.0))  # a mask does not hide NaN
    # 0 for a source token, -∞ for padding (B, 1, 1, S)
    mask, its = (
        each.source_keys[0].new_zeros(len(each.mask), 1, 1, each.source_length)
        if each.source_mask is None
        else each.source_mask
        for each in (decoder, other)
    )
    its = its[rows]
    mask[places] = -math.inf
    longest = max(used_length(mask), used_length(its))
    mask = resized(mask, -1, size=longest, value=-math.inf)
    mask[places] = resized(its, -1, size=longest, value=-math.inf)
    decoder.source_mask = mask if mask.any() else None
    decoder.resize(decoder.source_keys, decoder.source_values, size=longest)
    for tensors, new, dim in (
        (decoder.source_keys, other.source_keys, decoder.key_dim),
        (decoder.source_values, other.source_values, -2),
    ):
        tensors.put(places, (resized(layer[rows], dim, size=longest) for layer in new.layers))


def used_length(mask: torch.Tensor) -> int:
    """Number of source positions up to the last one that some sentence uses, from the mask (B, 1, 1, S)."""
    shown = (mask == 0).flatten(0, 2).any(dim=0)  # (S)
    return max(1, int((shown * torch.arange(1, len(shown) + 1, device=shown.device)).max()))


def take_wide_rows(search: Search) -> Search | None:
    """A search of the sentences that need far more keys and values than the others; None: there are none."""
    # Such as one whose hypotheses repeat different phrases up to the limit of tokens; they leave this one, where there
    # is as much room for each sentence as for the widest, in memory and in each product.
    decoder = search.decoder
    if not len(search.rows) or not decoder.is_full or search.rows.written.device.type != "cpu":
        return None
    used = decoder.used_slots().sum(dim=1)  # (A)
    most = 2 * int(used.kthvalue(max(1, len(used) - int(WIDE_SHARE * len(used)))).values)
    if (int(used.max()) - most) * len(used) <= MOST_EMPTY_SLOTS:
        return None
    wide = used > most
    alone, running = copy.copy(search), (wide & ~search.rows.written).nonzero()[:, 0]
    alone.rows, alone.decoder, alone.waits = search.rows.select(running), part_of(decoder, running), False
    search.keep_rows((~wide).nonzero()[:, 0])
    return alone if len(running) else None


def part_of(decoder: Any, rows: torch.Tensor) -> Any:
    """A decoder of these sentences alone, which continues where this one is."""
    made = copy.copy(decoder)
    if not isinstance(decoder, IncrementalDecoder):  # an ensemble
        made.decoders = [part_of(each, rows) for each in decoder.decoders]
        return made
    for name, tensors in vars(decoder).items():
        if isinstance(tensors, LayerTensors):
            setattr(made, name, LayerTensors([layer[rows] for layer in tensors.layers]))
    made.keep_masks(rows)
    return made


def evict(search: Search, other: Search, rows: torch.Tensor) -> None:
    """Drop these rows (r) of `other`, a search that has joined or this one; their results are not needed."""
    owner = next((owner for owner, each in search.searches.items() if each is other), -1)
    evicted = (search.rows.owners == owner) & torch.isin(search.rows.places, rows) & ~search.rows.written
    if evicted.any():
        other.unfinished -= int(evicted.sum())
        search.drop_finished_searches()
        search.rows.written = search.rows.written | evicted
        search.keep_rows((~search.rows.written).nonzero()[:, 0])
