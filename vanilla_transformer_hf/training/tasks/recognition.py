"""Training of a model that reads recordings or images: from folders of files to a folder ready to be used."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import Speech2TextProcessor, TrOCRProcessor

from ...common.files import new_file
from ...common.recordings import read_recording
from ...evaluation.scores import error_rates, write_predictions
from ...model.config.front_ends import FRONT_ENDS
from ...model.feature_extraction_vanilla_transformer import VanillaTransformerFeatureExtractor
from ...model.recognition import VanillaTransformerForImageTextToText, VanillaTransformerForSpeechSeq2Seq
from ...translation.recognition import TEXTS_FILE, check_positions, read_sources, read_texts
from ..checkpoints.resume import Start
from ..checks import SCORES, check_callbacks, check_evaluation, refuse_unused
from ..data.parts import ROLES
from ..model import choose_attention, make_generation_config, new_config
from ..recipe import TranslationTrainingArguments
from ..tokenizer import tokenizer_of_texts
from .recognition_data import Masks, RecognitionCollator, SourcesWithTexts
from .task import Task


# Task -> the class of its model, which says what it reads.
MODELS: dict[str, Any] = {"speech": VanillaTransformerForSpeechSeq2Seq, "image": VanillaTransformerForImageTextToText}
# Fields that these tasks use, of those that not all do.
USED_FIELDS = (
    *("task", *(f"{role}_source" for role in ROLES), "source_lang", "target_lang", "corpus_name", "max_target_length"),
    *(each.name for each in fields(Masks)),
    *("preset", "tokenizer_name_or_path", "tokenizer_model", "unicode_normalization", "attn_implementation"),
    *(
        "num_beams",
        "length_penalty",
        "length_penalty_type",
        "max_extra_tokens",
        "bleu_tokenize",
        "generation_num_beams",
    ),
    *("license", "card_example", "project_url", "adam_first_moment", "curriculum_steps", "threads"),
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
        ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
        self.config = new_config(self.run, vocab_size=len(tokenizer), **ids)
        self.processor = self._make_processor(texts["train"][0][0], tokenizer)
        data = {}
        for role, pairs in texts.items():
            lines = [text for _, text in pairs]
            sources = read_sources(pairs, self.kind.main_input_name, self.processor)
            labels = tokenizer(text_target=lines)["input_ids"]
            data[role] = SourcesWithTexts(sources, labels, lines, is_masked=role == "train")
        return data

    def _make_processor(self, first: Path, tokenizer: Any) -> Any:
        """What makes the model's input of files such as the first; images are padded to the config's size."""
        config = self.config
        if self.run.data.task == "speech":
            _, rate = read_recording(first)
            return Speech2TextProcessor(VanillaTransformerFeatureExtractor(config.num_mel_bins, rate), tokenizer)
        from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

        size: Any = {"height": config.image_height, "width": config.image_width}
        scale: Any = {"image_mean": [0.5] * config.num_channels, "image_std": [0.5] * config.num_channels}
        return TrOCRProcessor(
            ViTImageProcessorPil(do_resize=False, size=size, do_pad=True, pad_size=size, **scale), tokenizer
        )

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
