"""Translation, which learns from pairs, and denoising, which learns from text."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from ...translation.text.texts import TARGET_LANG_TAGS
from ..checkpoints.resume import Start
from ..checks import check_run
from ..data.collators import BpeDropoutCollator, TranslationCollator, vocabulary_sizes
from ..data.corpora import join_corpora, load_corpora, mix, tokenize, training_text
from ..data.parts import new_tags
from ..doubts import find_doubts
from ..model import check_lengths, make_model
from ..pretraining.denoising import load_texts, make_denoising_collators
from ..pretraining.warm_start import begin_with, find_origins
from ..process import say
from ..tokenizer import describe_tokenizer, get_tokenizer, record_longest_source, record_sentences
from ..transfer import describe_transfer
from .task import Task


class Translation(Task):
    """A translation model, from parallel text."""

    is_text_to_text = translates = True
    unit = "pairs"

    def check(self, settings: dict[str, Any]) -> None:
        check_run(self.run, settings)

    def load(self) -> dict[str, Any]:
        return load_corpora(self.run.data)

    def make_tokenizer(self, texts: dict[str, Any], folder: Path, start: Start) -> Any:
        tokenizer = get_tokenizer(self.run, training_text(self.run, texts), folder, start)
        self._tell([describe_tokenizer(tokenizer, self.run)])
        self.origin = describe_transfer(self.run, tokenizer)
        self._tell(self.origin)
        return tokenizer

    def _tell(self, sentences: list[str]) -> None:
        for sentence in sentences:
            say(self.run.training, sentence)

    def make_data(self, texts: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        run = self.run
        with run.training.main_process_first(local=False, desc="data"):  # the others find it in the cache of datasets
            known = tokenizer.init_kwargs.get(TARGET_LANG_TAGS) or {}
            joined = join_corpora(run, texts, {each: known[each].strip() for each in new_tags(run.data)})
            data = tokenize(joined, tokenizer, run)
            self.mixture = mix(run, texts, data["train"])
            if self.translates:  # what translation has to know of the sentences of the training text
                record_longest_source(tokenizer, run, data["train"])
                record_sentences(tokenizer, run, joined["train"])
            self._tell([f"Warning: {doubt}" for doubt in find_doubts(run, tokenizer, joined, data)])
        for role in data.keys() - {"train"}:  # batches of sentences of equal length need little padding
            data[role] = data[role].select(np.argsort(data[role]["length"], kind="stable"))
        return data

    def make_model(self, tokenizer: Any, data: dict[str, Any]) -> Any:
        model = make_model(self.run, tokenizer)
        check_lengths(model, data)
        if origins := find_origins(self.run.model):
            self.origin = begin_with(origins, model)
            self._tell(self.origin)
        return model

    def trainer_options(self, model: Any, tokenizer: Any) -> dict[str, Any]:
        data, sizes = self.run.data, zip(("source_vocab_size", "target_vocab_size"), vocabulary_sizes(model))
        common: dict[str, Any] = {"tokenizer": tokenizer, **dict(sizes)}
        train_collator = None
        if data.bpe_dropout:
            limits = data.max_source_length, data.max_target_length
            options: Any = {"probability": data.bpe_dropout, "limits": limits, "seed": self.run.training.seed}
            train_collator = BpeDropoutCollator(**common, **options)
        return {"data_collator": TranslationCollator(**common), "train_collator": train_collator}


class Denoising(Translation):
    """An encoder–decoder that restores text."""

    translates = False
    unit = "texts"

    def load(self) -> dict[str, Any]:
        return load_texts(self.run)

    def trainer_options(self, model: Any, tokenizer: Any) -> dict[str, Any]:
        return dict(make_denoising_collators(self.run, model, tokenizer))

    def measure(self, trainer: Any, folder: Path, role: str, data: Any) -> dict[str, float]:
        loss = trainer.evaluate(data, metric_key_prefix=role)[f"{role}_loss"]
        return {"loss": loss, "perplexity": math.exp(loss)}
