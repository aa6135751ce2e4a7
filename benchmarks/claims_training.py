"""
The task on which docs/claims.md measures variants: digits, backwards. It is small enough that a model learns it in
seconds on one core, and it needs the order of the source, attention to it, and a memory of all of it.

Shapes: B sequences, S source positions, T target positions.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sacrebleu
import torch
import torch.nn.functional as F
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer_hf import RecurrentSeq2SeqConfig, VanillaTransformerConfig


PAD, END, FIRST = 0, 1, 3
VOCABULARY = FIRST + 10
SIZES = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0, "label_smoothing": 0.1}
TRANSFORMER = {
    f"{stack}_{name}": size
    for stack in ("encoder", "decoder")
    for name, size in (("ffn_dim", 256), ("attention_heads", 4))
}
SENTENCES = 1000  # of the test


def draw_batch(count: int, lengths: tuple[int, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    """`count` sequences of digits with an end token (B, S), their mask, and the digits backwards as labels (B, T)."""
    sizes = torch.randint(lengths[0], lengths[1] + 1, (count, 1), generator=generator)
    places = torch.arange(int(sizes.max()) + 1)
    digits = torch.randint(FIRST, VOCABULARY, (count, len(places)), generator=generator)
    source = digits.masked_fill(places > sizes, PAD).masked_fill(places == sizes, END)
    backwards = digits.gather(1, (sizes - 1 - places).clamp(min=0))
    labels = backwards.masked_fill(places > sizes, -100).masked_fill(places == sizes, END)
    return {"input_ids": source, "attention_mask": (places <= sizes).long(), "labels": labels}


def make_model(fields: dict[str, Any]) -> Any:
    """A fresh model of a variant."""
    if fields.get("model_type"):
        fields = {name: value for name, value in fields.items() if name not in ("model_type", "max_grad_norm")}
        config: Any = RecurrentSeq2SeqConfig(**{**SIZES, **fields}, vocab_size=VOCABULARY)
    else:
        config = VanillaTransformerConfig(**{**SIZES, **TRANSFORMER, **fields}, vocab_size=VOCABULARY)
    return AutoModelForSeq2SeqLM.from_config(config)


def train(fields: dict[str, Any], seed: int, arguments: Any) -> tuple[Any, list[float]]:
    """A trained model, and the training loss of each step: Adam as in the paper, warm-up and linear decay to 0."""
    fields = dict(fields)
    warmup, rate = fields.pop("warmup_steps", arguments.warmup), fields.pop("learning_rate", arguments.rate)
    steps = arguments.steps
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = make_model(fields).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / max(warmup, 1), (steps - step) / max(steps - warmup, 1), 1.0)
    )
    losses = []
    for _ in range(steps):
        loss = model(**draw_batch(arguments.sentences, arguments.digits, generator), return_logits=False).loss
        loss.backward()
        if fields.get("model_type"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(round(loss.item(), 4))
    return model.eval(), losses


def words_of(ids: list[int]) -> str:
    """The digits of a sequence, as words."""
    return " ".join(str(token - FIRST) for token in ids if token > END)


@torch.no_grad()
def test_model(model: Any, lengths: tuple[int, int]) -> dict[str, Any]:
    """Loss in nats a token, BLEU, and of each length the part of sequences without an error, of unseen sequences."""
    batch = draw_batch(SENTENCES, lengths, torch.Generator().manual_seed(0))
    loss = model(**batch).loss.item()
    labels = batch.pop("labels")
    longest = labels.shape[1]
    found = model.generate(**batch, num_beams=1, max_new_tokens=longest + 2)[:, 1:]
    expected = labels.masked_fill(labels == -100, PAD)
    width = max(found.shape[1], longest)
    found, expected = (F.pad(each, (0, width - each.shape[1])) for each in (found, expected))
    right = (found == expected).all(dim=1)
    sizes = (labels != -100).sum(dim=1) - 1
    by_length = {int(size): right[sizes == size].double().mean().item() for size in sizes.unique()}
    texts = [[words_of(row) for row in ids.tolist()] for ids in (found, expected)]
    bleu = sacrebleu.corpus_bleu(texts[0], [texts[1]], tokenize="none", force=True).score
    return {"loss": loss, "exact": right.double().mean().item(), "bleu": bleu, "by_length": by_length}


def measure_runs(variants: dict[str, dict[str, Any]], arguments: Any) -> Iterator[dict[str, Any]]:
    """
    A row for each variant and seed. Rows are kept in the file `--runs`, one JSON object a line, as they are finished;
    those that are there are not repeated.
    """
    kept = Path(arguments.runs)
    settings = {name: getattr(arguments, name) for name in ("steps", "sentences", "digits", "warmup", "rate")}
    for seed in range(1, arguments.seeds + 1):
        for name in arguments.only or variants:
            done = read_runs(kept, settings)  # several processes may share the file
            if (name, seed) not in done:
                row = {"variant": name, "seed": seed, "settings": settings, **run_of(variants[name], seed, arguments)}
                with open(kept, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                done[name, seed] = row
            yield {key: value for key, value in done[name, seed].items() if key != "settings"}


def read_runs(kept: Path, settings: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """The finished runs of a file by their variant and seed."""
    rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()] if kept.exists() else []
    if any(row["settings"] != settings for row in rows):
        raise ValueError(f"{kept}: runs with other settings than {settings}; give another --runs")
    return {(row["variant"], row["seed"]): row for row in rows}


def run_of(fields: dict[str, Any], seed: int, arguments: Any) -> dict[str, Any]:
    """Train and test one model."""
    began = time.process_time()
    model, losses = train(fields, seed, arguments)
    seconds = time.process_time() - began
    low, high = arguments.digits
    longer = test_model(model, (high + 1, high + 4))
    return {
        "parameters": model.num_parameters(),
        "cpu_seconds": seconds,
        "training_loss": losses,
        **test_model(model, (low, high)),
        "longer": {key: longer[key] for key in ("loss", "exact", "bleu")},
    }
