"""
Whisper: folders that transformers saved for `WhisperForConditionalGeneration`, with its processor.

After transformers/models/whisper/{configuration,modeling,generation}_whisper.py. Not converted, because `generate()`
has nothing of it: recordings of more than one window, times of words, and finding out the language.
"""

from typing import Any

from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperProcessor, WhisperTokenizer

from ...model.config.generation import VanillaTransformerGenerationConfig
from ...model.config.search_settings import is_id
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..formats.files import read_json
from ..key_table import KeyTable, Rule, no_bias, written_out
from ..source import ConversionError
from .saved_model import FINAL_NORM_KEYS, STACK_KEYS, SavedModel


KEYS: KeyTable = {
    **STACK_KEYS,
    **FINAL_NORM_KEYS,
    # Whisper's keys have no bias; one would change no attention weight.
    **{
        name: [name, Rule(name.replace("weight", "bias"), no_bias)]
        for name in STACK_KEYS
        if name.endswith("k_proj.weight")
    },
    **written_out(
        {"model.encoder.conv{1,2}.{weight,bias}": "model.encoder.front_end.convolutions.{0,1}.{weight,bias}"}
    ),
    "proj_out.weight": "lm_head.weight",
}


def _id_of(settings: dict[str, Any], table: str, option: str, name: str) -> int:
    """The id of a language or a task."""
    known = settings.get(table) or {}
    if name not in known:
        names = ", ".join(sorted(each.strip("<|>") for each in known))
        expected = f"expected one of {names}" if names else f"generation_config.json lacks {table}, the ids"
        raise ConversionError(f"{option}={settings[option]!r}: {expected}")
    return int(known[name])


def decoder_prompt(settings: dict[str, Any]) -> list[int | None]:
    """The ids behind the start token as Whisper's `generate()` has them: language, task, "no timestamps"."""
    # None stands for a language that Whisper would find out.
    language, task = settings.get("language"), settings.get("task")
    ids = []
    if not (language or task):  # an older way to state the prompt: pairs of a position, from 1, and an id
        pairs = settings.get("forced_decoder_ids") or []
        ids = [token for expected, (position, token) in enumerate(pairs, start=1) if position == expected]
    if settings.get("lang_to_id") or language:
        code = f"<|{str(language).lower().strip('<|>')}|>"
        ids[:1] = [_id_of(settings, "lang_to_id", "language", code) if language else (ids or [None])[0]]
    if task or (language and settings.get("task_to_id")):
        settings = {**settings, "task": task or "transcribe"}
        ids.append(_id_of(settings, "task_to_id", "task", settings["task"]))
    without_times = settings.get("no_timestamps_token_id")
    return ids + ([without_times] if without_times is not None and without_times not in ids[-1:] else [])


class Whisper(SavedModel):
    name = "whisper"
    table = KEYS
    hosts = {"whisper": WhisperConfig}
    classes = {"WhisperForConditionalGeneration": "VanillaTransformerForSpeechSeq2Seq"}
    training = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "apply_spec_augment": False}
    settable = ("language", "task")  # of `generate()`
    has_model = True

    def unsupported(self) -> list[str]:
        given = [(name, self.options.get(name) or "") for name in self.settable]
        wrong = [f"{name}: {value!r} (a name is needed)" for name, value in given if not isinstance(value, str)]
        return super().unsupported() + wrong

    def to_config(self) -> VanillaTransformerConfig:
        return self.speech_config(
            front_end="speech_whisper",
            num_mel_bins=self.settings["num_mel_bins"],
            conv_strides=[1, 2],
            scale_embedding=False,  # Whisper has the option and does not use it
            position_encoding="learned",
        )

    def to_processor(self, config: VanillaTransformerConfig) -> Any:
        """transformers' own, which suits the front end as it is."""
        classes = (WhisperProcessor, WhisperFeatureExtractor, WhisperTokenizer)
        names = ("vocab.json", "merges.txt", "normalizer.json")
        return self.processor_of(config, classes, names, needed=names[:2])

    def _of_generation(self) -> dict[str, Any]:
        """The entries of generation_config.json, with language and task of the command."""
        path = self.folder / "generation_config.json"
        found = read_json(self.uses(path)) if path.is_file() else {}
        named = {name: value for name in self.settable if (value := self.options.get(name))}
        forced = {"forced_decoder_ids": self.options.get("forced_decoder_ids")}
        return {**forced, **{name: value for name, value in found.items() if value is not None}, **named}

    def guessed(self) -> dict[str, Any]:
        """The language, if the model has several and the files name none."""
        return {"language": "en"} if None in decoder_prompt(self._of_generation()) else {}

    def to_generation_config(self, config: VanillaTransformerConfig) -> GenerationConfig:
        """What our search has of generation_config.json, or config.json, and the prompt (`decoder_prompt_ids`)."""
        found = super().to_generation_config(config).to_dict()
        known = {name: found[name] for name in GenerationConfig().to_dict().keys() & found.keys()}
        prompt = [token for token in decoder_prompt(self._of_generation()) if token is not None]
        if wrong := [token for token in prompt if not is_id(token) or token >= config.vocab_size]:
            raise ConversionError(
                f"generation_config.json: the prompt has the id {wrong[0]!r}, and there are {config.vocab_size} tokens"
            )
        return VanillaTransformerGenerationConfig(**known, **({"decoder_prompt_ids": prompt} if prompt else {}))

    def decoding_notes(self) -> list[str]:
        notes = ["recordings of more than one window, times of words and finding out the language are not converted"]
        if self._of_generation().get("return_timestamps"):
            notes.append("return_timestamps=True: texts are written without times")
        return notes + super().decoding_notes()
