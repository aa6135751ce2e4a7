"""Token ids to train on: from given parallel text or from a synthetic corpus."""

from pathlib import Path

import datasets
import numpy as np

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.common.lines import read_lines


# Multi30k's training captions (tokenized), English and German: mean and standard deviation of the words per sentence,
# their correlation, and the number of distinct words.
MEANS, DEVIATIONS, CORRELATION, WORDS = (13.0, 12.4), (4.0, 4.2), 0.86, (10_200, 18_700)
MADE_UP_PAIRS = 29_000


def made_up_text(pairs: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Synthetic sentences with Multi30k's lengths and a natural distribution of word frequencies."""
    rng = np.random.default_rng(seed)
    shared = CORRELATION * DEVIATIONS[0] * DEVIATIONS[1]
    covariance = [[DEVIATIONS[0] ** 2, shared], [shared, DEVIATIONS[1] ** 2]]
    lengths = np.maximum(rng.multivariate_normal(MEANS, covariance, pairs).round().astype(int), 4)
    sides = []
    for side, letter in enumerate("ab"):
        frequencies = 1 / np.arange(1, WORDS[side] + 1)
        names = np.char.add(letter, np.arange(WORDS[side]).astype(str))
        words = rng.choice(names, lengths[:, side].sum(), p=frequencies / frequencies.sum())
        sides.append([" ".join(part) for part in np.split(words, lengths[:, side].cumsum()[:-1])])
    return sides[0], sides[1]


def write_corpus(folder: Path, source: str | None, target: str | None, vocab_size: int, pairs: int) -> float:
    """Write tokenizer and token ids into `folder`; returns the tokens of a target sentence, on average."""
    if source and target:
        sources, targets = list(read_lines(source)), list(read_lines(target))
        if len(sources) != len(targets):
            raise ValueError(f"{source} has {len(sources):,} lines and {target} {len(targets):,}")
    else:
        sources, targets = made_up_text(pairs)
    datasets.disable_progress_bars()
    tokenizer = VanillaTransformerTokenizer.train(sources, targets, vocab_size=vocab_size, show_progress=False)
    tokenizer.save_pretrained(folder / "tokenizer")
    ids = tokenizer(sources, text_target=targets, truncation=True, max_length=128)
    columns = {"input_ids": ids["input_ids"], "labels": ids["labels"]}
    columns["length"] = [max(map(len, pair)) for pair in zip(*columns.values(), strict=True)]
    datasets.Dataset.from_dict(columns).save_to_disk(folder / "pairs")
    return float(np.mean([len(labels) for labels in ids["labels"]]))
