"""Models of one stack: a decoder that continues a text, an encoder that fills the gaps of a text."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from .interventions import Copy
from .requests import RequestError, TranslateRequest
from .results import Hypothesis, Step, TranslateResult
from .subject import Card, Pass, Subject
from .translating import alternative, as_drawn, settings_of


class CausalSubject(Subject):
    """A language model: the text of a request is the prompt, a target is its continuation."""

    kind = "causal"

    def read_source(self, request: Any) -> dict[str, torch.Tensor]:
        """The text without the end token that the tokenizer adds."""
        source = super().read_source(request)
        if int(source["input_ids"][0, -1]) in self.ends and source["input_ids"].shape[1] > 1:
            source = {name: tensor[:, :-1] for name, tensor in source.items()}
        return source

    def before(self, source: dict[str, torch.Tensor]) -> int:
        return int(source["input_ids"][0, -1])

    def logits(self, copy: Copy, source: dict[str, torch.Tensor], rows: list[list[int]]) -> Iterator[torch.Tensor]:
        prompt = source["input_ids"]
        for ids in rows:
            read = torch.cat((prompt, prompt.new_tensor([ids[:-1]])), dim=1)
            yield copy.model(input_ids=read).logits[0, prompt.shape[1] - 1 :].float()

    def _run(self, copy: Copy, source: dict[str, torch.Tensor], ids: list[int]) -> Pass:
        prompt = source["input_ids"][0].tolist()
        whole = [*prompt, *ids]
        pieces = self.pieces(whole)
        inputs = {"input_ids": torch.tensor([whole[:-1] or whole], device=self.model.device)}
        return Pass.of(copy, inputs, [], pieces[:-1], pieces[1:])


class MaskedSubject(Subject):
    """A masked language model: it predicts the tokens at the mask tokens of a text."""

    kind = "masked"
    lens_stack = "encoder"

    def __init__(self, name: str, model: Any, tokenizer: Any, card: Card | None = None):
        super().__init__(name, model, tokenizer, card)
        # Cards of such models ask for what follows their example, too.
        mask = tokenizer.mask_token
        self.example = f"{self.example} {mask}" if self.example and mask else ""

    def as_last_layer(self, copy: Copy, states: torch.Tensor) -> torch.Tensor:
        model = copy.model
        return model.lm_head(model.before_projection(model.model.encoder.layer_norm(states)))

    def _run(self, copy: Copy, source: dict[str, torch.Tensor], ids: list[int]) -> Pass:
        return Pass.of(copy, source, self.pieces(source["input_ids"][0].tolist(), True), [], [])


@torch.no_grad()
def fill(subject: Subject, request: TranslateRequest) -> TranslateResult:
    """The most probable tokens for each mask token of the text."""
    source, copy = subject.read_source(request), subject.copy(request.off)
    if (mask := subject.tokenizer.mask_token_id) is None:
        raise RequestError("model", f"{subject.name}: its tokenizer has no mask token, so there is nothing to fill")
    ids = source["input_ids"][0].tolist()
    found = copy.model(**source).logits[0].float().log_softmax(dim=-1)  # (S, V)
    steps, filled = [], list(ids)
    for place in [place for place, index in enumerate(ids) if index == mask]:
        values, best = found[place].topk(min(request.alternatives, found.shape[1]))
        pieces = [subject.piece(ids[:place], index) for index in best.tolist()]
        taken = as_drawn(found[place : place + 1], request)[0, best].tolist()
        others = [alternative(*one) for one in zip(pieces, values.tolist(), taken)]
        steps.append(Step(pieces[0], others[0].probability, float(values[0]), taken[0], 0, False, others))
        filled[place] = pieces[0].id
    total = math.fsum(step.log_probability for step in steps)
    text = subject.tokenizer.decode(filled, skip_special_tokens=True)
    only = Hypothesis(text, [], total, total / max(1, len(steps)), True, steps)
    settings = settings_of(subject, request)
    return TranslateResult(subject.pieces(ids, True), subject.piece((), ids[0]), [only], None, settings)
