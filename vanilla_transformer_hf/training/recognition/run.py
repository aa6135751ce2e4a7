"""Training of a model that reads recordings or images: from folders of files to a folder ready to be used."""

import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import Speech2TextProcessor, TrOCRProcessor, set_seed

from ...common.files import new_file
from ...common.recordings import read_recording
from ...evaluation.scores import error_rates, write_predictions
from ...model.config.front_ends import FRONT_ENDS
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.feature_extraction_vanilla_transformer import VanillaTransformerFeatureExtractor
from ...model.recognition.models import VanillaTransformerForImageTextToText, VanillaTransformerForSpeechSeq2Seq
from ...translation.recognition import TEXTS_FILE, check_positions, read_sources, read_texts
from ..beginning import begin_run, refuse_unused
from ..checkpoints.record import find_data_sums, settings_of_all_parts
from ..checks import SCORES, check_callbacks, check_evaluation
from ..console import quiet_libraries, say
from ..data.parts import ROLES
from ..facts import facts_of_run
from ..finishing import LaterParts, train_and_write, write_final_card
from ..model import choose_attention, make_generation_config, new_config, paper_learning_rate
from ..recipe import RunArguments
from ..tokenizer import tokenizer_of_texts
from ..trainer.callbacks import make_callbacks
from ..trainer.translation import TranslationTrainer
from .collator import Masks, RecognitionCollator
from .corpus import SourcesWithTexts


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


def check_recognition(run: RunArguments, settings: dict[str, Any]) -> None:
    """Raise `ValueError` if the corpus or the front end is not named, or a field has no effect in this task."""
    task = run.data.task
    if not run.data.train_source:
        raise ValueError("train_source is not given: name the folder of files and texts.tsv to train on.")
    refuse_unused(run, settings, USED_FIELDS)
    check_evaluation(run, (*SCORES, "wer", "cer"))
    expected, front_end = MODELS[task].main_input_name, run.config.get("front_end", "tokens")
    allowed = [name for name, row in FRONT_ENDS.items() if row.input_name == expected and row.has_padding]
    if front_end not in allowed:
        raise ValueError(f"front_end={front_end} with task={task}: must be {' or '.join(allowed)}.")
    error_rates(["a"], ["a"])  # is jiwer there?


def make_processor(run: RunArguments, config: VanillaTransformerConfig, first: Path, tokenizer: Any) -> Any:
    """What makes the model's input of files such as the first; images are padded to the config's size."""
    if run.data.task == "speech":
        _, rate = read_recording(first)
        return Speech2TextProcessor(VanillaTransformerFeatureExtractor(config.num_mel_bins, rate), tokenizer)
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    size: Any = {"height": config.image_height, "width": config.image_width}
    scale: Any = {"image_mean": [0.5] * config.num_channels, "image_std": [0.5] * config.num_channels}
    return TrOCRProcessor(
        ViTImageProcessorPil(do_resize=False, size=size, do_pad=True, pad_size=size, **scale), tokenizer
    )


def make_model(run: RunArguments, tokenizer: Any) -> Any:
    """A new model of the named size for this tokenizer, with the search of the recipe."""
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    config = new_config(run, vocab_size=len(tokenizer), **ids)
    config._attn_implementation = choose_attention(run, config).get("attn_implementation")
    model = MODELS[run.data.task](config)
    model.generation_config = make_generation_config(run, model.config, None)
    return model


def read_corpora(run: RunArguments, processor: Any, rows: dict[str, Any]) -> dict[str, SourcesWithTexts]:
    """Role -> its files, read, with the ids of their texts."""
    input_name = MODELS[run.data.task].main_input_name
    found = {}
    for role, pairs in rows.items():
        texts = [text for _, text in pairs]
        labels = processor.tokenizer(text_target=texts)["input_ids"]
        found[role] = SourcesWithTexts(
            read_sources(pairs, input_name, processor), labels, texts, is_masked=role == "train"
        )
    return found


def check_lengths(model: Any, data: dict[str, SourcesWithTexts], rows: dict[str, Any]) -> None:
    """Raise `ValueError` if a file or its text needs more positions than the model has."""
    longest = model.get_decoder().longest
    for role, corpus in data.items():
        pairs = zip(rows[role], corpus["source"], corpus["labels"], strict=True)
        for number, ((path, _), source, labels) in enumerate(pairs, start=1):
            place = f"{role}, line {number:,} of {TEXTS_FILE}"
            check_positions(model, source, f"{place}: {path}")
            if longest is not None and len(labels) > longest:
                raise ValueError(f"{place}: the text has {len(labels):,} tokens; expected at most {longest:,}: cut it")


def run_recognition(run: RunArguments, settings: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Train a model that reads recordings or images, write it with its processor, and measure its error rates."""
    check_recognition(run, settings)
    training, folder = copy.copy(run.training), Path(str(run.training.output_dir))
    checkpoints = folder / "checkpoints"
    training.output_dir, training.resume_from_checkpoint = str(checkpoints), None
    training.predict_with_generate, training.generation_max_length = True, None
    training.remove_unused_columns = False
    check_callbacks(training)
    with quiet_libraries():
        named = {role: getattr(run.data, f"{role}_source") for role in ROLES}
        rows = {role: read_texts(Path(name)) for role, name in named.items() if name}
        with training.main_process_first(local=False, desc="tokenizer"):
            start, lock = begin_run(run, settings, checkpoints, find_data_sums(run.data))
            tokenizer = tokenizer_of_texts(run, [text for _, text in rows["train"]], checkpoints / "tokenizer")
        set_seed(training.seed)
        model = make_model(run, tokenizer)
        processor = make_processor(run, model.config, rows["train"][0][0], tokenizer)
        data = read_corpora(run, processor, rows)
        check_lengths(model, data, rows)
        if training.learning_rate is None:
            training.learning_rate = paper_learning_rate(model.config.d_model, training.warmup_steps)
        masks = Masks(**{each.name: getattr(run.data, each.name) for each in fields(Masks)})
        trainer = TranslationTrainer(
            model=model,
            args=training,
            train_dataset=data["train"],
            eval_dataset=data.get("validation"),
            processing_class=tokenizer,
            target_lang=run.data.target_lang,
            data_collator=RecognitionCollator(model.main_input_name, masks, training.seed),
            callbacks=make_callbacks(training, start.checkpoint),
            facts=facts_of_run(run, settings_of_all_parts(settings, start.earlier), folder, pairs=len(data["train"])),
        )
    say(training, f"{run.data.task}: {model.num_parameters():,} parameters, {len(data['train']):,} files.")
    with lock, quiet_libraries(), trainer.signals.listening(), trainer.one_tracked_run():
        train_and_write(folder, trainer, start, processor)
        with trainer.stopping_at_once(f"its model is written in {folder}, but not all that belongs to it."):
            return _finish(folder, trainer, {role: data[role] for role in data if role != "train"}, rows)


def _finish(
    folder: Path, trainer: TranslationTrainer, data: dict[str, Any], rows: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """The error rates of the held-out files, and the card of the model that is written already."""
    parts, facts = LaterParts(folder, trainer.args.world_size), trainer.current_facts()
    for role, sources in data.items():
        with parts.part(f"scored on the {role} files"):
            found = trainer.predict(
                sources, metric_key_prefix=role, num_beams=trainer.model.generation_config.num_beams
            )
            metrics = found.metrics or {}
            trainer.track(metrics)
            scores = {name: metrics[f"{role}_{name}"] for name in ("wer", "cer", "bleu", "chrf", "exact_match")}
            facts.measured[role] = scores
            say(
                trainer.args,
                f"{role}: wer {scores['wer']:.2f} %, cer {scores['cer']:.2f} %, BLEU {scores['bleu']:.2f}, chrF "
                f"{scores['chrf']:.2f}, exact match {scores['exact_match']:.2f} %",
            )
            if trainer.is_world_process_zero():
                names = [str(path.name) for path, _ in rows[role]]
                with new_file(folder / f"predictions.{role}.tsv") as unfinished:
                    write_predictions(unfinished, zip(names, trainer.translations, sources["target"], strict=True))
    if trainer.is_world_process_zero():
        with parts.part("given a model card"):
            write_final_card(folder, trainer, facts)
            say(trainer.args, f"{folder}: model card written.")
    parts.tell()
    return facts.measured
