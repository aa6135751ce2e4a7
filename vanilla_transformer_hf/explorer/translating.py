"""Translations with the probability of every token and the tree of their search, and scores of given targets."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ..model.config.search_settings import LENGTH_PENALTIES, SEARCH_OPTIONS
from ..translation.scoring.scoring import shift_right
from .interventions import Copy
from .requests import RequestError, ScoreRequest, TranslateRequest
from .results import Alternative, Hypothesis, Node, Piece, Step, TranslateResult
from .subject import MOST_PARTS, MOST_PIECES, Subject


# Sums of log-probabilities below this mark empty places.
NOTHING = -1e8
SETTINGS = ("num_beams", "length_penalty", "length_penalty_type", "coverage_penalty")


@dataclass
class Found:
    """A hypothesis: its parent's number, its last token, the sum of its log-probabilities, and its state."""

    parent: int
    step: int
    token: int
    log_probability: float
    state: str


class BeamRecorder:
    """Records the steps of the beam search of one sentence; a `recorder` for `generate()`."""

    def __init__(self, start: int):
        self.found = [Found(-1, 0, start, 0.0, "running")]  # parents first; this is the decoder's start token
        self.running = {0: 0}  # beam -> number of its hypothesis
        self.length = 0

    def __call__(self, step: Any) -> None:
        found, chosen = step.candidates, step.chosen[0].tolist()
        rows = zip(
            found.scores[0].tolist(), found.parents[0].tolist(), found.tokens[0].tolist(), step.ends[0].tolist()
        )
        self.length += 1
        numbers = {}
        for place, (score, parent, token, is_end) in enumerate(rows):
            if score < NOTHING or parent not in self.running:
                continue
            runs_on = place in chosen and not is_end
            state = "running" if runs_on else "finished" if is_end and place < len(chosen) else "dead"
            numbers[place] = len(self.found)
            self.found.append(Found(self.running[parent], self.length, token, score, state))
        self.running = {beam: numbers[place] for beam, place in enumerate(chosen) if place in numbers}

    def before(self, number: int) -> list[int]:
        """The last tokens before that of a hypothesis, as many as a letter may be cut into."""
        tokens: list[int] = []
        while (number := self.found[number].parent) >= 0 and len(tokens) < MOST_PARTS:
            tokens.insert(0, self.found[number].token)
        return tokens

    def nodes(self, subject: Subject, settings: dict[str, Any], given: int) -> list[Node]:
        """The tree; tokens of the prefix, of which so many are `given`, are not scored."""
        has_child = {one.parent for one in self.found}
        went_on = {one.parent for one in self.found if one.state in ("running", "finished")}
        penalty = LENGTH_PENALTIES[settings["length_penalty_type"]]
        last, nodes = max(one.step for one in self.found), []
        for number, one in enumerate(self.found):
            state = one.state
            if state == "running" and number not in went_on:
                state = "open" if one.step == last and number not in has_child else "dead"
            own = max(1, one.step - given)
            score = one.log_probability / float(penalty(own, settings["length_penalty"]))
            is_known = math.isfinite(score) and not settings["coverage_penalty"]
            piece, shown = subject.piece(self.before(number), one.token), score if is_known else None
            nodes.append(Node(one.parent, one.step, piece, one.log_probability, shown, state))
        return nodes


def settings_of(subject: Subject, request: TranslateRequest | None = None) -> dict[str, Any]:
    """The settings of a search: from the request, else from the model, else the defaults."""
    defaults = {"num_beams": 1, "length_penalty": 1.0, **SEARCH_OPTIONS}
    found = {}
    for name in SETTINGS:
        own = getattr(getattr(subject.model, "generation_config", None), name, None)  # masked models have none
        asked = getattr(request, name, None)
        found[name] = asked if asked is not None else own if own is not None else defaults[name]
    return found


@torch.no_grad()
def translate(subject: Subject, request: TranslateRequest) -> TranslateResult:
    """Translate a text; with this package's search, include the tree of the search."""
    source, prefix = subject.read_source(request), subject.check_target(request.prefix, "prefix")
    if subject.ends & {*prefix[:-1]}:
        raise RequestError("prefix", "continues after the end of a sentence: leave the end-of-sentence token out")
    copy, settings = subject.copy(request.off), settings_of(subject, request)
    if prefix and prefix[-1] in subject.ends:  # nothing is left to search
        return result(subject, request, copy, source, settings, [prefix], None, None)
    has_tree = subject.is_ours and settings["num_beams"] > 1 and not request.draws
    recorder = BeamRecorder(subject.before(source)) if has_tree else None
    # transformers' output of several tensors, or the ids alone.
    drawn = draw(subject, copy, source, request) if request.draws else None
    found: Any = generate(subject, copy, source, request, recorder) if drawn is None else drawn
    scores = None if torch.is_tensor(found) else found.sequences_scores.tolist()
    sequences = getattr(found, "sequences", found)
    prompt = source["input_ids"].shape[1] if subject.kind == "causal" else 1
    rows = [until_end(row, subject) for row in sequences[:, prompt:].tolist()]
    return result(subject, request, copy, source, settings, rows, scores, recorder)


def generate(
    subject: Subject, copy: Copy, source: dict[str, torch.Tensor], request: TranslateRequest, recorder: Any = None
) -> Any:
    """The output of `generate()`."""
    settings = settings_of(subject, request)
    options = settings | length_limit(subject, request)
    if not subject.is_ours:
        options = {name: value for name, value in options.items() if name not in SEARCH_OPTIONS}
        if request.prefix:
            labels = torch.tensor([request.prefix], device=subject.model.device)
            options["decoder_input_ids"] = shift_right(subject.model, labels)
    elif request.prefix:
        options["prefixes"] = [request.prefix]
    if subject.kind == "causal":
        del options["coverage_penalty"]
    if recorder is not None:
        options |= {"recorder": recorder, "return_dict_in_generate": subject.kind == "translation"}
    return copy.model.generate(**source, **options, num_return_sequences=settings["num_beams"], do_sample=False)


def length_limit(subject: Subject, request: TranslateRequest) -> dict[str, int]:
    """The option of `generate()` for the number of tokens, if the request has one."""
    if request.max_new_tokens is None:
        return {}
    longest = getattr(subject.model.config, "decoder_max_position_embeddings", None) or MOST_PIECES
    return {"max_new_tokens": max(1, min(request.max_new_tokens, longest - len(request.prefix)))}


def draw(subject: Subject, copy: Copy, source: dict[str, torch.Tensor], request: TranslateRequest) -> torch.Tensor:
    """Translations that are drawn; the same seed draws the same ones, and no other random numbers change."""
    # 2 is a number of JSON, but not a temperature of transformers.
    options: dict[str, Any] = {"temperature": float(request.temperature), "top_p": float(request.top_p)}
    options |= {"top_k": request.top_k, **length_limit(subject, request)}
    given = torch.tensor([request.prefix], dtype=torch.long, device=subject.model.device)
    if subject.kind == "causal":
        ids = torch.cat((source["input_ids"], given), dim=1)
        source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    elif request.prefix:
        options["decoder_input_ids"] = torch.cat((given.new_tensor([[subject.start]]), given), dim=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(request.seed)
        found: torch.Tensor = copy.model.generate(
            **source, **options, num_beams=1, num_return_sequences=request.draws, do_sample=True
        )
    return found


def as_drawn(log_probabilities: torch.Tensor, request: TranslateRequest) -> torch.Tensor:
    """Probabilities (T, V) with which sampling takes each piece, from those of the model."""
    processors = LogitsProcessorList()
    if request.temperature != 1:
        processors.append(TemperatureLogitsWarper(float(request.temperature)))
    if request.top_k:
        processors.append(TopKLogitsWarper(request.top_k))
    if request.top_p < 1:
        processors.append(TopPLogitsWarper(float(request.top_p)))
    no_ids: Any = torch.empty(len(log_probabilities), 0, dtype=torch.long)  # these processors do not read them
    return processors(no_ids, log_probabilities).softmax(dim=-1)


def until_end(ids: list[int], subject: Subject) -> list[int]:
    """The ids of a hypothesis with its end token; one that has not ended has no padding, but what the model chose."""
    return next((ids[: place + 1] for place, index in enumerate(ids) if index in subject.ends), ids)


@torch.no_grad()
def score(subject: Subject, request: ScoreRequest) -> TranslateResult:
    """The probabilities of a given target."""
    if subject.kind == "masked":
        raise RequestError("target", "cannot be scored: this model fills gaps")
    source, ids = subject.read_source(request), subject.read_target(request.target)
    copy, settings = subject.copy(request.off), settings_of(subject, request)
    return result(subject, request, copy, source, settings, [ids], None, None)


def result(
    subject: Subject,
    request: TranslateRequest,
    copy: Copy,
    source: dict[str, torch.Tensor],
    settings: dict[str, Any],
    rows: list[list[int]],
    scores: list[float] | None,
    recorder: BeamRecorder | None,
) -> TranslateResult:
    """The hypotheses with the model's probabilities."""
    before = subject.before(source)
    penalty = LENGTH_PENALTIES[settings["length_penalty_type"]]
    hypotheses, given = [], len(request.prefix)
    for place, (ids, logits) in enumerate(zip(rows, subject.logits(copy, source, rows))):
        steps = forced_steps(subject, before, logits, ids, request) if ids else []
        total = math.fsum(step.log_probability for step in steps[given:])
        own = total / float(penalty(max(1, len(ids) - given), settings["length_penalty"]))
        text = subject.tokenizer.decode(ids, skip_special_tokens=True)
        is_complete = bool(ids) and ids[-1] in subject.ends
        hypotheses.append(Hypothesis(text, ids, total, own if scores is None else scores[place], is_complete, steps))
    return TranslateResult(
        subject.source_pieces(source),
        subject.piece((), before),
        hypotheses,
        None if recorder is None else recorder.nodes(subject, settings, given),
        settings,
    )


def forced_steps(
    subject: Subject, start: int, logits: torch.Tensor, ids: list[int], request: TranslateRequest
) -> list[Step]:
    """The probability of each id, and of the best alternatives, by the logits (T, V) behind the first token."""
    found = logits.log_softmax(dim=-1)
    own = found.gather(1, torch.tensor(ids, device=found.device)[:, None])  # (T, 1)
    ranks, drawn = (found > own).sum(dim=1).tolist(), as_drawn(found, request)
    best, places = found.topk(min(request.alternatives, found.shape[1]), dim=1)
    steps = []
    for place, piece in enumerate(subject.pieces(ids, context=[start])):
        value = float(own[place])
        listed = zip(best[place].tolist(), places[place].tolist())
        context, taken = [start, *ids[:place]], drawn[place].tolist()
        others = [alternative(subject.piece(context, index), value, taken[index]) for value, index in listed]
        is_given = place < len(request.prefix)
        steps.append(Step(piece, math.exp(value), value, taken[piece.id], ranks[place], is_given, others))
    return steps


def alternative(piece: Piece, log_probability: float, drawn: float | None = None) -> Alternative:
    """A piece with its probability, which is also that of drawing it, if none is given."""
    probability = math.exp(log_probability)
    return Alternative(**vars(piece), probability=probability, drawn=probability if drawn is None else drawn)
