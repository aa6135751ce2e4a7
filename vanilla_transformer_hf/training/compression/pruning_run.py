"""Pruning of a saved model: reads its folder and sentence pairs, and writes the folder of a smaller model."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...common.files import check_new, new_folder
from ...common.opening import check_fit, is_own, open_model
from ...publishing.model_card import NOT_TRAINED, CardFacts, write_card
from ..console import quiet_libraries
from ..data.collators import TranslationCollator, vocabulary_sizes
from ..data.corpus import load_parallel_text
from ..data.tokenized_corpus import CorpusFilter, tokenize_corpus
from .pruning import Pruned, choose_heads, head_importance, keep_layers, prune


# Maximum number of tokens of a sentence for measuring importance; longer sentences are truncated.
LONGEST = 256


@dataclass(frozen=True)
class PairSample:
    """
    Sentence pairs for measuring the importance of heads.

    Args:
        source, target: As `load_parallel_text` takes them.
        sentences: The number of pairs, taken evenly from the text.
        batch_size: Pairs per batch.
    """

    source: str
    target: str | None = None
    sentences: int = 1000
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("sentences", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    def batches(self, model: Any, tokenizer: Any) -> Iterator[dict[str, torch.Tensor]]:
        """Inputs of the model with labels; sentences of similar lengths share a batch."""
        source_lang, target_lang = (tokenizer.init_kwargs.get(side) for side in ("src_lang", "tgt_lang"))
        corpus: Any = load_parallel_text(self.source, self.target, source_lang=source_lang, target_lang=target_lang)
        step = max(1.0, len(corpus) / self.sentences)
        corpus = corpus.select(np.arange(0, len(corpus), step).astype(int)[: self.sentences])
        data = tokenize_corpus(corpus, tokenizer, CorpusFilter(LONGEST, LONGEST, "truncate")).data
        data = data.select(np.argsort(data["length"], kind="stable"))
        sizes = vocabulary_sizes(model)
        collate = TranslationCollator(tokenizer, source_vocab_size=sizes[0], target_vocab_size=sizes[1])
        for start in range(0, len(data), self.batch_size):
            batch = collate([data[row] for row in range(start, min(start + self.batch_size, len(data)))])
            batch.pop("line", None)
            yield dict(batch)


def prune_folder(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    heads: float = 0.0,
    feed_forward: float = 0.0,
    pairs: PairSample | None = None,
    encoder_layers: int | None = None,
    decoder_layers: int | None = None,
) -> Pruned:
    """Write the folder of a pruned model, with tokenizer and card; removing heads needs `pairs` to measure them."""
    output = Path(output)
    check_new(output)
    if not (heads or feed_forward or encoder_layers is not None or decoder_layers is not None):
        raise ValueError(
            "nothing is to be removed: give heads or feed_forward, a share greater than 0, or encoder_layers or "
            "decoder_layers, the layers to keep"
        )
    if heads and pairs is None:
        raise ValueError(f"heads={heads}: the importance of heads is measured on sentence pairs; name their files")
    with quiet_libraries():
        model, tokenizer = open_model(folder, "cpu")
        if not is_own(model.config):
            raise ValueError(f"{folder}: its model type {model.config.model_type!r} is not a model of this package")
        check_fit(model, tokenizer)
        dtype, kept, full = model.dtype, None, model.num_parameters()
        before = model.config.encoder_layers + model.config.decoder_layers
        model = model.float()
        if encoder_layers is not None or decoder_layers is not None:
            model = keep_layers(model, encoder_layers, decoder_layers)
        if heads and pairs is not None:
            kept = choose_heads(head_importance(model, pairs.batches(model, tokenizer)), heads)
        pruned = prune(model, kept, feed_forward)
        after = model.config.encoder_layers + model.config.decoder_layers
        pruned = replace(pruned, layers=(before, after), parameters=(full, pruned.parameters[1]))
        facts = (
            CardFacts.read(Path(folder)).inherited() if Path(folder).is_dir() else CardFacts(base_model=str(folder))
        )
        about = f"Pruned: {pruned}. {NOT_TRAINED}"
        # Measurements of the full model do not hold for the pruned one.
        facts = replace(facts, name=output.name, scored=[], measured={}, minutes=None, co2=None)
        facts = replace(facts, compression=[*facts.compression, about])
        with new_folder(output) as unfinished:
            pruned.model.to(dtype).save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
            write_card(facts, unfinished)
    return pruned
