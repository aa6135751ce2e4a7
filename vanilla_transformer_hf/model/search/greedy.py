"""Greedy search: the most likely token at each step. Shapes: A rows in the batch, V vocabulary."""

import torch

from ..packing.most_likely import first_highest
from .incremental_decoder import resized
from .rows import GreedyRows
from .search import Search


class GreedySearch(Search):
    """The most likely token at each step, as in transformers' `_sample` without sampling. `decoder` has one beam."""

    def first_rows(self) -> GreedyRows:
        padding = 0 if self.plan.pad is None else self.plan.pad
        return GreedyRows(**self.common_fields(padding), running=self.plan.prompt)

    def first_results(self) -> dict[str, torch.Tensor]:
        longest = max(int(self.plan.limits.max()), self.prompt_length + 1)
        return {"running": resized(self.plan.prompt, -1, size=longest, value=self.rows.padding)}

    def n_best(self, rows: torch.Tensor) -> torch.Tensor:
        return self.results["running"][rows, None]

    def has_nan(self) -> torch.Tensor:
        states: torch.Tensor = self.decoder.states
        return states.flatten(1).isnan().any(dim=1)

    def step(self) -> None:
        shortlist, prefixes, rows = self.constraints.shortlist, self.constraints.prefixes, self.rows
        if self.plan.processors:
            logits = self.decoder.next_logits(rows.running[:, -1:])[:, 0]  # (A, V)
            logits = logits if shortlist is None else shortlist.spread(logits)
            tokens = first_highest(self._process(logits.float()))  # (A)
        else:
            tokens = self.decoder.next_tokens(rows.running[:, -1:])  # (A)
            tokens = tokens if shortlist is None else shortlist.ids[tokens]
        if prefixes is not None:
            tokens = prefixes.instead_of(tokens, rows.places, step=rows.running.shape[1] - self.prompt_length)
        tokens = tokens.masked_fill(rows.written, rows.padding)
        rows.running = torch.cat((rows.running, tokens[:, None]), dim=1)
        self._dismiss((rows.running.shape[1] >= rows.limits) | self.plan.ends(tokens))
