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


def forced_rows(
    run: Callable[[dict[str, torch.Tensor], torch.Tensor], torch.Tensor],
    model: PreTrainedModel,
    tokenizer: Any,
    encoders: tuple[TextEncoder, TextEncoder],
    pairs: Sequence[tuple[str, str]],
    tally: Tally,
    matmul_backend: str = "default",
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    **options: Any,
) -> Iterator[tuple[int, list[dict[str, Any]], torch.Tensor]]:
    """Each pair's index, what `encode_pairs` gives for its sides, and its row (T, …) of what `run` finds."""
    # `run` gets the arguments of the model for a batch of similar lengths, of which `batch_tokens` counts both sides:
    # the sources (B, S), and the targets behind the decoder's start token, their last one included (B, T + 1); and
    # the targets alone (B, T). `tally` counts after the work on each batch.
    if not pairs:
        return
    encoded = encode_pairs(encoders, pairs, tally=tally, **options)
    sides = [side["input_ids"] for side in encoded]
    lengths = [len(source) + len(target) for source, target in zip(*sides, strict=True)]
    for places in sorted_batches(lengths, batch_size, batch_tokens=batch_tokens):
        (ids, mask), (labels, is_token) = (
            [each.to(model.device) for each in pad_rows([side[place] for place in places], tokenizer.pad_token_id)]
            for side in sides
        )
        inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": shift_right(model, labels)}
        with matmul(matmul_backend):
            found = run(inputs, labels)
        for place, row in zip(places, found.cpu()):
            yield place, [{name: values[place] for name, values in side.items()} for side in encoded], row
        tally.add(sentences=len(places), tokens=int(is_token.sum()))


def score_pairs(model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]], **options: Any) -> list[TextScore]:
    """The probability of each target, given its source; arguments of `forced_rows`."""

    def score(inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        read = inputs.pop("decoder_input_ids")[:, :-1]
        return token_log_probabilities(model, **inputs, decoder_input_ids=read, labels=labels)

    results: list[Any] = [None] * len(pairs)
    for place, (_, target), row in forced_rows(score, model, tokenizer, pairs=pairs, **options):
        tokens = cast(list[str], tokenizer.convert_ids_to_tokens(target["input_ids"]))
        results[place] = TextScore(tokens, row[: len(tokens)].tolist())
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
