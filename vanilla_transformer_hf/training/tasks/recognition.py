"""
Training of a model that reads recordings or images, from folders of files to a folder ready to be used; their batches,
and the masks of SpecAugment.

Shapes: B sources, F frames, M mel bins, T target positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import Speech2TextProcessor, TrOCRProcessor

from ...common.files import new_file
from ...common.recordings import read_recording
from ...evaluation.scores import error_rates, write_predictions
from ...model.config.front_ends import FRONT_ENDS
from ...model.feature_extraction_vanilla_transformer import VanillaTransformerFeatureExtractor
from ...model.recognition import VanillaTransformerForImageTextToText, VanillaTransformerForSpeechSeq2Seq
from ...translation.recognition import TEXTS_FILE, batch_of, check_positions, read_sources, read_texts
from ..checkpoints.resume import Start
from ..checks import SCORES, check_callbacks, check_evaluation, refuse_unused
from ..data.collators import IGNORED_LABEL
from ..data.parts import ROLES
from ..model import choose_attention, make_generation_config, new_config
from ..recipe import TranslationTrainingArguments
from ..tokenizer import tokenizer_of_texts
from .task import Task


@dataclass(frozen=True)
class Masks:
    """SpecAugment (Park et al. 2019, arXiv 1904.08779) without warping: bands of frames and mel bins become 0."""

    time_masks: int = 0  # bands of each recording
    longest_time_mask: int = 20  # a band has a random number of frames or bins up to this
    frequency_masks: int = 0
    widest_frequency_mask: int = 8

    def apply(self, frames: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """Frames (F, M) with bands set to zero."""
        frames = frames.clone()
        for count, widest, axis in (
            (self.time_masks, self.longest_time_mask, 0),
            (self.frequency_masks, self.widest_frequency_mask, 1),
        ):
            size = frames.shape[axis]
            for _ in range(count):
                width = int(rng.integers(0, min(widest, size) + 1))
                frames.narrow(axis, int(rng.integers(0, size - width + 1)), width).zero_()
        return frames


@dataclass
class RecognitionCollator:
    """Rows of `SourcesWithTexts` to the model's arguments, padded with zeros on the right; labels with -100."""

    # `input_features` (B, F, M) and `attention_mask` (B, F), or `pixel_values` (B, C, H, W); and `labels` (B, T).
    # Masks depend on the seed and on the rows of a batch alone, so that a run continues exactly.

    input_name: str
    masks: Masks = Masks()
    seed: int = 0

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        lines = [row["line"] for row in rows]
        labels = [torch.tensor(row["labels"]) for row in rows]
        batch = {"labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED_LABEL)}
        batch["line"] = torch.tensor(lines)
        rng = np.random.default_rng([self.seed, *lines])
        sources = [self.masks.apply(row["source"], rng) if row["is_masked"] else row["source"] for row in rows]
        return {**batch, **batch_of(self.input_name, sources)}


class SourcesWithTexts(Dataset[dict[str, Any]]):
    """Sources, frames (F, M) or pixels (C, H, W), with labels; as in `datasets`, a name gives a column."""

    column_names = ("source", "labels", "length", "target", "line", "is_masked")

    def __init__(
        self,
        sources: Sequence[torch.Tensor],
        labels: Sequence[list[int]],
        texts: Sequence[str],
        is_masked: bool = False,
    ):
        self.columns: dict[str, Sequence[Any]] = {
            "source": sources,
            "labels": labels,
            # Of recordings; images have one size, and their texts differ in length.
            "length": [
                each.shape[0] if each.dim() == 2 else len(ids) for each, ids in zip(sources, labels, strict=True)
            ],
            "target": texts,
            "line": range(len(texts)),
            "is_masked": [is_masked] * len(texts),
        }

    def __len__(self) -> int:
        return len(self.columns["target"])

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            return self.columns[place]
        return {name: values[place] for name, values in self.columns.items()}


# Task -> the class of its model, which says what it reads.
MODELS: dict[str, Any] = {"speech": VanillaTransformerForSpeechSeq2Seq, "image": VanillaTransformerForImageTextToText}
# Fields that these tasks use, of those that not all do.
USED_FIELDS = (
    *(each.name for each in fields(Masks)),
    *("target_lang", "max_target_length", "num_beams", "length_penalty", "length_penalty_type", "max_extra_tokens"),
    *("bleu_tokenize", "generation_num_beams", "curriculum_steps"),
    *("average_last", "average_best", "moving_average", "early_stopping_patience"),
)


class Recognition(Task):
    """A model that reads recordings or images."""

    unit = "files"

    def __init__(self, run: Any):
        super().__init__(run)
        self.kind = MODELS[run.data.task]
        self.rows: dict[str, list[tuple[Path, str]]] = {}  # role -> files and their texts
        self.config: Any = None

    def check(self, settings: dict[str, Any]) -> None:
        task = self.run.data.task
        if not self.run.data.train_source:
            raise ValueError("train_source is not given: name the folder of files and texts.tsv to train on.")
        refuse_unused(self.run, settings, USED_FIELDS)
        check_evaluation(self.run, (*SCORES, "wer", "cer"))
        expected, front_end = self.kind.main_input_name, self.run.config.get("front_end", "tokens")
        allowed = [name for name, row in FRONT_ENDS.items() if row.input_name == expected and row.has_padding]
        if front_end not in allowed:
            raise ValueError(f"front_end={front_end} with task={task}: must be {' or '.join(allowed)}.")
        error_rates(["a"], ["a"])  # is jiwer there?
        check_callbacks(self.run.training)

    def decide(self, training: TranslationTrainingArguments) -> None:
        training.predict_with_generate, training.remove_unused_columns = True, False

    def load(self) -> dict[str, Any]:
        named = {role: getattr(self.run.data, f"{role}_source") for role in ROLES}
        self.rows = {role: read_texts(Path(name)) for role, name in named.items() if name}
        return self.rows

    def make_tokenizer(self, texts: dict[str, Any], folder: Path, start: Start) -> Any:
        return tokenizer_of_texts(self.run, [text for _, text in texts["train"]], folder)

    def make_data(self, texts: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        self.config = new_config(self.run, tokenizer)
        if self.run.data.task == "speech":
            _, rate = read_recording(texts["train"][0][0])
            extractor = VanillaTransformerFeatureExtractor(self.config.num_mel_bins, rate)
            self.processor = Speech2TextProcessor(extractor, tokenizer)
        else:
            from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

            size: Any = {"height": self.config.image_height, "width": self.config.image_width}
            scale: Any = {name: [0.5] * self.config.num_channels for name in ("image_mean", "image_std")}
            images = ViTImageProcessorPil(do_resize=False, size=size, do_pad=True, pad_size=size, **scale)
            self.processor = TrOCRProcessor(images, tokenizer)
        data = {}
        for role, pairs in texts.items():
            lines = [text for _, text in pairs]
            sources = read_sources(pairs, self.kind.main_input_name, self.processor)
            labels = tokenizer(text_target=lines)["input_ids"]
            data[role] = SourcesWithTexts(sources, labels, lines, is_masked=role == "train")
        return data

    def make_model(self, tokenizer: Any, data: dict[str, Any]) -> Any:
        self.config._attn_implementation = choose_attention(self.run, self.config).get("attn_implementation")
        model = self.kind(self.config)
        model.generation_config = make_generation_config(self.run, model.config, None)
        longest = model.get_decoder().longest
        for role, corpus in data.items():
            pairs = zip(self.rows[role], corpus["source"], corpus["labels"], strict=True)
            for number, ((path, _), source, labels) in enumerate(pairs, start=1):
                place = f"{role}, line {number:,} of {TEXTS_FILE}"
                check_positions(model, source, f"{place}: {path}")
                if longest is not None and len(labels) > longest:
                    raise ValueError(
                        f"{place}: the text has {len(labels):,} tokens; expected at most {longest:,}: cut it"
                    )
        return model

    def trainer_options(self, model: Any, tokenizer: Any) -> dict[str, Any]:
        masks = Masks(**{each.name: getattr(self.run.data, each.name) for each in fields(Masks)})
        return {"data_collator": RecognitionCollator(self.kind.main_input_name, masks, self.run.training.seed)}

    def measure(self, trainer: Any, folder: Path, role: str, data: Any) -> dict[str, float]:
        beams = trainer.model.generation_config.num_beams
        metrics = trainer.predict(data, metric_key_prefix=role, num_beams=beams).metrics or {}
        trainer.track(metrics)
        if trainer.is_world_process_zero():
            names = [str(path.name) for path, _ in self.rows[role]]
            with new_file(folder / f"predictions.{role}.tsv") as unfinished:
                write_predictions(unfinished, zip(names, trainer.translations, data["target"], strict=True))
        return {name: metrics[f"{role}_{name}"] for name in ("wer", "cer", "bleu", "chrf", "exact_match")}
