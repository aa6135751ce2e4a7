"""
One engine that trains, in its own process (see `turns.Engine`).

The load "step" is forward, smoothed loss, backward and Adam on one batch of sentences of 16 tokens on each side. The
load "run" is a whole training run on token ids, with batches, padding, Trainer and schedule.
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from transformers.models.marian.modeling_marian import shift_tokens_right
from transformers.trainer_pt_utils import LabelSmoother

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.common.matmul import set_matmul
from vanilla_transformer_hf.training.data.collators import TranslationCollator
from vanilla_transformer_hf.training.objectives.first_moment import AdamWBfloat16Moment
from vanilla_transformer_hf.training.objectives.losses import r_drop_rows
from vanilla_transformer_hf.training.recipe import TranslationTrainingArguments
from vanilla_transformer_hf.training.trainer.translation import TranslationTrainer

from .turns import Turns, allocated_memory


COLUMNS = 16
STEPS = 10**9  # until the parent sends no more turns


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` as tutorials use it, with one embedding for both sides and the output."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.scale = math.sqrt(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.d_model,
            config.encoder_attention_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.encoder_ffn_dim,
            config.dropout,
            batch_first=True,
        )
        frequencies = 10000.0 ** (-torch.arange(0, config.d_model, 2) / config.d_model)
        angles = torch.arange(512).unsqueeze(1) * frequencies
        self.positions: torch.Tensor
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.shape[1]])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        padding = attention_mask == 0
        targets = shift_tokens_right(labels, 0, 0)
        causal = torch.ones(targets.shape[1], targets.shape[1], dtype=torch.bool, device=targets.device).triu(1)
        states = self.transformer(
            self.embed(input_ids),
            self.embed(targets),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = F.linear(states, self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def build_ours(config: VanillaTransformerConfig, attention: str) -> tuple[nn.Module, Callable[..., torch.Tensor]]:
    config._attn_implementation = attention
    model = VanillaTransformerForConditionalGeneration(config)
    return model, lambda **batch: model(**batch, return_logits=False).loss  # as our Trainer


def build_r_drop(config: VanillaTransformerConfig, attention: str) -> tuple[nn.Module, Callable[..., torch.Tensor]]:
    """Ours with R-Drop: each sentence twice, as in our Trainer."""
    model: Any = build_ours(config, attention)[0]
    row_loss = partial(r_drop_rows, 0.1, 5.0)

    def loss(labels: torch.Tensor, **batch: torch.Tensor) -> torch.Tensor:
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
        twice = {name: torch.cat((value, value)) for name, value in batch.items()}
        return model(**twice, labels=labels, return_logits=False, row_loss=row_loss).loss

    return model, loss


def build_marian(config: VanillaTransformerConfig, attention: str) -> tuple[nn.Module, Callable[..., torch.Tensor]]:
    names = ["vocab_size", "d_model", "dropout", "activation_function"]
    names += [f"{s}_{n}" for s in ("encoder", "decoder") for n in ("layers", "attention_heads", "ffn_dim")]
    same = {name: getattr(config, name) for name in names}
    ids: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1}
    marian = MarianConfig(**same, **ids, scale_embedding=True, max_position_embeddings=512)
    marian._attn_implementation = attention
    model, smoother = MarianMTModel(marian), LabelSmoother(0.1)

    def loss(labels: torch.Tensor, **batch: torch.Tensor) -> torch.Tensor:
        return smoother(model(**batch, decoder_input_ids=shift_tokens_right(labels, 0, 0)), labels)

    return model, loss


def build_torch(config: VanillaTransformerConfig, attention: str) -> tuple[nn.Module, Callable[..., torch.Tensor]]:
    model = TorchTransformer(config)
    return model, model.__call__


# Name -> function of (config, attention) that returns (model, function for the loss of a batch).
ENGINES = {
    "ours": build_ours,
    "stock": build_ours,
    "bfloat16_moment": build_ours,
    "r_drop": build_r_drop,
    "marian": build_marian,
    "torch": build_torch,
}


class Counting(DataCollatorForSeq2Seq):
    """A collator that stores the number of labels for the next step."""

    def __init__(self, collator: Any):
        self.collator = collator
        self.counts: list[int] = []

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        batch = self.collator(features)
        self.counts.append(int((batch["labels"] != -100).sum()))
        return batch


class TurnsCallback(TrainerCallback):
    """Calls `Turns.step` after each step of a Trainer."""

    def __init__(self, turns: Turns, counts: list[int]):
        self.turns, self.counts = turns, counts

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.turns.step(self.counts.pop(0))


def plain_loop(
    settings: dict[str, Any],
    model: nn.Module,
    loss_of: Callable[..., torch.Tensor],
    batches: Iterator[dict[str, torch.Tensor]],
    turns: Turns,
) -> None:
    """Forward, loss, backward and Adam on each batch, without a Trainer."""
    adam: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.98), "eps": 1e-9}
    kind = AdamWBfloat16Moment if settings["engine"] == "bfloat16_moment" else torch.optim.AdamW
    optimizer = kind(model.parameters(), **adam, weight_decay=0.0, fused=settings["engine"] != "torch")
    device = settings["device"]
    for given in batches:
        tokens = int(
            (given["labels"] != -100).sum()
        )  # before the batch is on a GPU, which would have to be waited for
        batch = {name: tensor.to(device) for name, tensor in given.items()}
        with torch.autocast(device, dtype=torch.bfloat16, enabled=settings["dtype"] == "bfloat16"):
            loss = loss_of(**batch)
        loss.backward()
        del loss  # as Trainers do: otherwise the old graph fragments the memory of the next step
        optimizer.step()
        optimizer.zero_grad()
        turns.step(tokens)


def same_batch(vocab_size: int, sentences: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield one batch without padding repeatedly."""
    source, labels = torch.randint(3, vocab_size, (2, sentences, COLUMNS))
    while True:
        yield {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": labels}


def random_batches(data: datasets.Dataset, size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Sentences in random order, padded to the longest of a batch."""
    while True:
        for rows in torch.randperm(len(data)).split(size):
            pairs = data[rows.tolist()]
            batch = {}
            for name, value in (("input_ids", 0), ("labels", -100)):
                tensors = [torch.tensor(ids) for ids in pairs[name]]
                batch[name] = nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
            yield batch | {"attention_mask": (batch["input_ids"] != 0).long()}


def trainer_loop(
    settings: dict[str, Any], model: Any, data: datasets.Dataset, tokenizer: Any, turns: Turns, folder: str
) -> None:
    """Our model in our Trainer with token batches; as "stock", and MarianMT, in transformers' with random ones."""
    common = {
        "output_dir": folder,
        "max_steps": STEPS,
        "use_cpu": settings["device"] == "cpu",
        "bf16": settings["dtype"] == "bfloat16",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    if settings["engine"] == "ours":
        size = model.get_input_embeddings().num_embeddings
        collator = Counting(TranslationCollator(tokenizer, source_vocab_size=size, target_vocab_size=size))
        tokens = {"tokens_per_step": settings["tokens"], "per_device_train_tokens": settings["tokens"]}
        arguments: Seq2SeqTrainingArguments = TranslationTrainingArguments(
            **common, **tokens, learning_rate=1e-4, predict_with_generate=False
        )
        trainer_class: Any = TranslationTrainer
    else:
        collator = Counting(DataCollatorForSeq2Seq(tokenizer, model=model))
        smoothing = 0.1 if settings["engine"] == "marian" else 0.0  # ours has its own, in its config
        arguments = Seq2SeqTrainingArguments(
            **common, per_device_train_batch_size=settings["sentences"], label_smoothing_factor=smoothing
        )
        trainer_class = Seq2SeqTrainer
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=data,
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=[TurnsCallback(turns, collator.counts)],
    )
    trainer.train()


def main(settings: dict[str, Any]) -> None:
    if settings["device"] == "cuda":
        turns = Turns(settings["block"], settings["clock"], torch.cuda.synchronize, allocated_memory)
    else:
        turns = Turns(settings["block"], settings["clock"])
    torch.manual_seed(0)
    set_matmul(settings["matmul"])
    config = VanillaTransformerConfig.from_preset(settings["preset"], **settings["sizes"])
    model, loss_of = ENGINES[settings["engine"]](config, settings["attention"])
    model.train().to(settings["device"])
    if settings["load"] == "step":
        plain_loop(settings, model, loss_of, same_batch(config.vocab_size, settings["step_sentences"]), turns)
        return
    data = datasets.load_from_disk(str(Path(settings["corpus"], "pairs")))
    if settings["engine"] == "torch":
        plain_loop(settings, model, loss_of, random_batches(data, settings["sentences"]), turns)
        return
    tokenizer = VanillaTransformerTokenizer.from_pretrained(Path(settings["corpus"], "tokenizer"))
    with tempfile.TemporaryDirectory() as folder:
        trainer_loop(settings, model, data, tokenizer, turns, folder)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
