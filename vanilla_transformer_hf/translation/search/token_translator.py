"""
Batches of source tokens to tokens of translations and their scores, with any encoder–decoder that has `generate()`.

Shapes: B sources, S source tokens, n translations of each, T target tokens.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from ...common.matmul import matmul
from ...common.opening import is_own
from ...model.config.search_settings import REQUESTS
from ...model.packing.packed import StepWeights
from ...model.search.search import Search
from ..scoring.scoring import score_sequences
from ..text.texts import pad_rows
from .token_search import TokenSearch


def quantized(model: Any, quantization: str | None) -> Any:
    """The model, whose passes through all of it compute with this quantization, as a search does."""
    return model if quantization is None else StepWeights.whole_model(model, quantization)


class TokenTranslator(TokenSearch):
    """`generate()` as a [`Translator`] uses it: checked arguments, a default limit of length, always scores."""

    can_pause = True  # whether searches take stopping criteria, which are called after each step

    def __init__(self, model: Any, pad_token_id: int, max_positions: int, matmul_backend: str = "default"):
        TokenSearch.__init__(self, model, pad_token_id, max_positions)
        self.matmul = matmul_backend
        self.has_own_options = is_own(model.config)

    @property
    def can_stream(self) -> bool:
        """Whether sentences may join a running search."""
        return self.has_own_options and hasattr(self.model, "generate_stream")

    @torch.no_grad()
    def batch(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, return_scores: bool, options: dict[str, Any]
    ) -> dict[str, Any]:
        """The translations of source ids (B, S), as `Translator.generate` gives them; options are `generate()`'s."""
        options = self.checked(input_ids.shape[1], options)
        n_best = self.setting("num_return_sequences", options) or 1
        filled = attention_mask.any(dim=1)  # (B)
        sequences = torch.full((len(filled), n_best, 1), self.pad_token_id, device=input_ids.device)
        scores = torch.zeros(len(filled), n_best, device=input_ids.device) if return_scores else None
        if filled.any():
            source = {"input_ids": input_ids[filled], "attention_mask": attention_mask[filled]}
            for name in ("prefixes", "required_phrases"):
                if name in options:
                    options[name] = [each for each, fill in zip(options[name], filled.tolist()) if fill]
            found, found_scores = self._search(source, return_scores, options)
            sequences = sequences.repeat(1, 1, found.shape[-1])  # (B, n, T)
            sequences[filled] = found
            if scores is not None and found_scores is not None:
                scores[filled] = found_scores
        return {"sequences": sequences, "scores": scores}

    def _search(
        self, source: dict[str, torch.Tensor], return_scores: bool, options: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sequences (B, n, T) and, if requested, scores (B, n) of a source of which every row has tokens."""
        tells = self._tells_scores(options, return_scores)
        # Our search has its own products; the other library would compile code for the shapes of each step.
        with nullcontext() if self.has_own_options else matmul(self.matmul):
            output = self.model.generate(**source, **options, return_dict_in_generate=tells)
            return self._read_output(output, source, options=options, return_scores=return_scores)

    @torch.no_grad()
    def stream(
        self, batches: Iterable[dict[str, Any]], return_scores: bool, options: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        batches = map(self.padded, batches)
        if not self.can_stream:
            for batch in batches:
                source = {name: batch.pop(name) for name in ("input_ids", "attention_mask")}
                found = self.batch(**source, return_scores=return_scores, options={**options, **batch})
                yield self.as_lists(**found)
            return
        options, sources = self.checked(0, options), deque[dict[str, torch.Tensor]]()
        tells = self._tells_scores(options, return_scores)

        def remembered(batch: dict[str, Any]) -> dict[str, Any]:
            self._tells_scores({**options, **batch}, return_scores)  # or raises
            sources.append({name: batch[name] for name in ("input_ids", "attention_mask")})
            return batch

        for output in self.model.generate_stream(map(remembered, batches), **options, return_dict_in_generate=tells):
            sequences, scores = self._read_output(
                output, sources.popleft(), options=options, return_scores=return_scores
            )
            yield self.as_lists(sequences, scores)

    def padded(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `generate()` for a batch with its `sources`."""
        constraints = {**batch}
        padded = pad_rows(constraints.pop("sources"), self.pad_token_id)
        input_ids, attention_mask = (tensor.to(self.model.device) for tensor in padded)
        return {"input_ids": input_ids, "attention_mask": attention_mask, **constraints}

    def as_lists(self, sequences: torch.Tensor, scores: torch.Tensor | None) -> dict[str, Any]:
        """What `stream` gives of sequences (B, n, T) and scores (B, n)."""
        return {"sequences": sequences.tolist(), "scores": None if scores is None else scores.tolist()}

    @torch.no_grad()
    def score(self, batch: dict[str, Any], sequences: torch.Tensor, options: dict[str, Any]) -> torch.Tensor | None:
        """The scores (B, n) of sequences (B, n, T) that were found for a batch without a beam search."""
        self._tells_scores({**options, **batch, "num_beams": 1}, True)  # or raises
        source = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with nullcontext() if self.has_own_options else matmul(self.matmul):
            return self._read_output(sequences, source, options=options, return_scores=True)[1]

    @torch.no_grad()
    def begin(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, options: dict[str, Any]
    ) -> Search | torch.Tensor:
        """The search, before its first step, for ids (B, S) with tokens in each row; or its sequences (B, n, T)."""
        if not self.can_stream:
            found = self.batch(input_ids, attention_mask, return_scores=False, options=options)
            sequences: torch.Tensor = found["sequences"]
            return sequences
        source = {"input_ids": input_ids, "attention_mask": attention_mask}
        begun = self.model.generate(**source, **self.checked(0, options), place_in_stream=0)
        if isinstance(begun, Search):
            return begun
        return self._read_output(begun, source, options=options, return_scores=False)[0]

    def _tells_scores(self, options: dict[str, Any], return_scores: bool) -> bool:
        """Whether the search computes the scores itself."""
        # Our model returns the scores of a beam search without `output_scores`, which would keep every step's logits.
        tells = return_scores and (self.setting("num_beams", options) or 1) > 1
        requested = [name for name in REQUESTS if options.get(name) is not None]
        if requested and not self.has_own_options:
            raise ValueError(f"{requested[0]}: not supported by {type(self.model).__name__}")
        lacking = [name for name in requested if name != "quantization"]  # which a second pass can use, too
        if lacking and return_scores and not tells:
            needs = "need num_beams of at least 2, or mbr's candidates 'beam'"
            raise ValueError(f"{lacking[0]}: scores of such translations {needs}")
        return tells

    def _read_output(
        self, output: Any, source: dict[str, torch.Tensor], options: dict[str, Any], return_scores: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sequences (B, n, T) that `generate()` has found for a source and, if requested, their scores (B, n)."""
        sequences, scores = getattr(output, "sequences", output), getattr(output, "sequences_scores", None)
        sequences = sequences.view(len(source["input_ids"]), -1, sequences.shape[-1])
        if not return_scores:
            return sequences, None
        if scores is None:
            eos = torch.tensor(self.ends(options), dtype=torch.long, device=self.model.device)
            penalty = self.length_penalty(options)
            model = quantized(self.model, options.get("quantization"))
            scores = score_sequences(
                model, **source, sequences=sequences, eos=eos, pad_token_id=self.pad_token_id, penalty=penalty
            )
        return sequences, scores.view(sequences.shape[:2])
