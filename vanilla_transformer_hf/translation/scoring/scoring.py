"""Forced decoding: the probability of a given target, token by token."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from ...common.matmul import matmul
from ..text.tally import Tally
from ..text.texts import TextEncoder, check_texts, pad_rows, placed, sorted_batches


# Logits in memory at once while scores are computed: 256 MiB in float32.
SCORED_LOGITS = 2**26


@dataclass(frozen=True)
class TextScore:
    """
    The probability of a target text under a model.

    Attributes:
        tokens: Its tokens, the end-of-sentence token included.
        token_log_probabilities: Natural log-probability of each, given the source and the tokens before it.

    Example:

    ```python
    >>> import math
    >>> from vanilla_transformer_hf import TextScore
    >>> score = TextScore(["ĠHund", "</s>"], [math.log(0.5), math.log(0.5)])
    >>> f"{score.log_probability:.3f} nats, perplexity {score.perplexity:.1f}"
    '-1.386 nats, perplexity 2.0'
    ```
    """

    tokens: list[str]
    token_log_probabilities: list[float]

    @property
    def log_probability(self) -> float:
        """Natural log-probability of the text: their sum."""
        return math.fsum(self.token_log_probabilities)

    @property
    def perplexity(self) -> float:
        """exp(-log_probability / number of tokens)."""
        return math.exp(-self.log_probability / max(1, len(self.tokens)))


@dataclass(frozen=True)
class ForcedBatch:
    """A batch of B pairs, with S source and T target positions."""

    places: list[int]  # indices of the pairs
    input_ids: torch.Tensor  # sources (B, S)
    attention_mask: torch.Tensor
    labels: torch.Tensor  # targets (B, T)
    decoder_input_ids: torch.Tensor  # targets after the decoder's start token, their last one included (B, T + 1)


def forced_batches(
    model: PreTrainedModel,
    pad_token_id: int,
    encoded: Sequence[dict[str, list[Any]]],
    tally: Tally,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
) -> Iterator[ForcedBatch]:
    """What `encode_pairs` gives in batches of similar lengths, each counted after the work on it."""
    # `batch_tokens` counts both sides.
    sources, targets = (side["input_ids"] for side in encoded)
    lengths = [len(source) + len(target) for source, target in zip(sources, targets, strict=True)]
    for places in sorted_batches(lengths, batch_size, batch_tokens=batch_tokens):
        pairs = [(sources[place], targets[place]) for place in places]
        source = [tensor.to(model.device) for tensor in pad_rows([pair[0] for pair in pairs], pad_token_id)]
        target = [tensor.to(model.device) for tensor in pad_rows([pair[1] for pair in pairs], pad_token_id)]
        yield ForcedBatch(
            places,
            source[0],
            attention_mask=source[1],
            labels=target[0],
            decoder_input_ids=shift_right(model, target[0]),
        )
        tally.add(sentences=len(places), tokens=int(target[1].sum()))


def shift_right(model: Any, labels: torch.Tensor) -> torch.Tensor:
    """Labels (B, T) after the decoder's start token (B, T + 1)."""
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        first = model.prepare_decoder_input_ids_from_labels(labels)[:, :1]
    else:
        first = torch.full_like(labels[:, :1], model.config.decoder_start_token_id)
    return torch.cat((first, labels), dim=1)


def encode_pairs(
    encoders: tuple[TextEncoder, TextEncoder], pairs: Sequence[tuple[str, str]], tally: Tally, **options: Any
) -> list[dict[str, list[Any]]]:
    """The tokenizer's output for source and target of each pair: `input_ids` and what the options request."""
    encoded, over_long = [], set()
    for side, (side_name, encoder) in enumerate(zip(("source", "target"), encoders, strict=True)):
        texts = [pair[side] for pair in pairs]
        check_texts(texts)
        rows = dict(encoder.ids(texts, **options))
        for place, ids in enumerate(rows["input_ids"]):
            if len(ids) <= encoder.limit:
                continue
            over_long.add(place)
            if encoder.too_long == "truncate":
                kept = encoder.kept(ids)
                for values in rows.values():
                    values[place] = [values[place][token] for token in kept]
            else:
                with placed(place):
                    encoder.check_length(texts[place], len(ids), "truncate", side=f"{side_name} ")
        encoded.append(rows)
    tally.add(too_long=len(over_long))
    return encoded


@torch.no_grad()
def score_pairs(
    model: Any,
    tokenizer: Any,
    encoders: tuple[TextEncoder, TextEncoder],
    pairs: Sequence[tuple[str, str]],
    tally: Tally,
    matmul_backend: str = "default",
    **limits: int | None,
) -> list[TextScore]:
    """The probability of each target, given its source; `tally` counts after every batch of the `limits`."""
    if not pairs:
        return []
    encoded = encode_pairs(encoders, pairs, tally=tally)
    results: list[Any] = [None] * len(pairs)
    for batch in forced_batches(model, tokenizer.pad_token_id, encoded, tally, **limits):
        with matmul(matmul_backend):
            found = token_log_probabilities(
                model,
                batch.input_ids,
                attention_mask=batch.attention_mask,
                decoder_input_ids=batch.decoder_input_ids[:, :-1],
                labels=batch.labels,
            )
        for place, row in zip(batch.places, found.tolist()):
            tokens = cast(list[str], tokenizer.convert_ids_to_tokens(encoded[1]["input_ids"][place]))
            results[place] = TextScore(tokens, row[: len(tokens)])
    return results


@torch.no_grad()
def token_log_probabilities(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    decoder_input_ids: torch.Tensor,
    labels: torch.Tensor,
) -> torch.Tensor:
    """Natural log-probability of each label (B, T), in float32, whatever the dtype of the model."""
    length = decoder_input_ids.shape[1]
    rows = max(1, SCORED_LOGITS // (length * model.get_output_embeddings().weight.shape[0]))
    found = []
    for start in range(0, len(labels), rows):
        part = slice(start, start + rows)
        logits = model(
            input_ids=input_ids[part],
            attention_mask=attention_mask[part],
            decoder_input_ids=decoder_input_ids[part],
            use_cache=False,
        ).logits.float()
        found.append(logits.gather(-1, labels[part, :, None])[..., 0] - logits.logsumexp(dim=-1))
    return torch.cat(found)


def score_sequences(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    sequences: torch.Tensor,
    eos: torch.Tensor,
    pad_token_id: int,
    penalty: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Scores (B, n), as in beam search, of hypotheses (B, n, T); `penalty`: number of tokens -> divisor."""
    n_best = sequences.shape[1]
    tokens = sequences.flatten(0, 1)  # (B n, T)
    ids, mask = (tensor.repeat_interleave(n_best, 0) for tensor in (input_ids, attention_mask))  # (B n, S)
    found = token_log_probabilities(
        model, ids, attention_mask=mask, decoder_input_ids=tokens[:, :-1], labels=tokens[:, 1:]
    )  # (B n, T - 1)
    made = (tokens[:, 1:] != pad_token_id) | torch.isin(tokens[:, 1:], eos)
    is_filling = made.flip(1).cumsum(dim=1).flip(1) == 0  # the pad token may also occur before
    counted = until_end(tokens[:, 1:], eos) & ~is_filling
    total = found.where(counted, 0).sum(dim=1)  # (B n)
    return (total / penalty(counted.sum(dim=1))).view(-1, n_best)


def until_end(tokens: torch.Tensor, eos: torch.Tensor) -> torch.Tensor:
    """Mask (..., T) of the tokens up to and including the first end-of-sentence token."""
    ended = torch.isin(tokens, eos).long()
    return ended.cumsum(dim=-1) - ended == 0
