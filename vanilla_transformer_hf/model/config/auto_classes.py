"""Which classes open a model, with the package and, as the `auto_map` of its config says, without it."""

from typing import Any


SPEECH = {
    "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
    "AutoModelForSpeechSeq2Seq": "recognition.VanillaTransformerForSpeechSeq2Seq",
}
# Stacks of a model, or its front end where its source has no tokens -> Auto class -> module and class.
CLASSES = {
    "encoder_decoder": {
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
        "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
    },
    "encoder": {
        "AutoModel": "single_stacks.encoder_models.VanillaTransformerEncoderModel",
        "AutoModelForMaskedLM": "single_stacks.encoder_models.VanillaTransformerForMaskedLM",
        "AutoModelForSequenceClassification": (
            "single_stacks.encoder_models.VanillaTransformerForSequenceClassification"
        ),
        "AutoModelForTokenClassification": "single_stacks.encoder_models.VanillaTransformerForTokenClassification",
    },
    "decoder": {
        "AutoModel": "single_stacks.causal_lm.VanillaTransformerDecoderModel",
        "AutoModelForCausalLM": "single_stacks.causal_lm.VanillaTransformerForCausalLM",
    },
    "speech": SPEECH,
    "speech_whisper": SPEECH,
    "speech_stacked": SPEECH,
    "image": {
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
        "AutoModelForImageTextToText": "recognition.VanillaTransformerForImageTextToText",
    },
}


def classes_of(config: Any) -> dict[str, str]:
    """Auto class -> module and class of the models of this config."""
    return CLASSES.get(config.front_end) or CLASSES[config.stacks]


def in_folder(models: dict[str, str]) -> dict[str, str]:
    """Auto class -> file of a saved folder, which has the module, and class."""
    return {auto: f"modeling_vanilla_transformer.{name.rpartition('.')[2]}" for auto, name in models.items()}


def auto_models(config: Any) -> dict[str, str]:
    """Auto class -> the class that opens a model of this config without the package."""
    return in_folder(classes_of(config))


def whole_auto_map(auto_map: dict[str, Any], models: dict[str, str]) -> dict[str, Any]:
    """The `auto_map` entry with all `models`, which can open the weights; nothing if it names none of them."""
    # transformers adds only the class that it saves, and keeps the entries of the model that training began with.
    ours = {reference for kind in CLASSES.values() for reference in in_folder(kind).values()}
    plain = {name: one.rpartition("--") for name, one in auto_map.items() if isinstance(one, str)}  # not of tokenizers
    for name, (repository, found, reference) in plain.items():
        if reference == models.get(name):
            whole = {other: f"{repository}{found}{model}" for other, model in models.items()}
            former = {each for each, (*_, model) in plain.items() if model in ours and model != models.get(each)}
            kept = {each: one for each, one in auto_map.items() if each not in former}
            return {"auto_map": {**whole, **kept}}
    return {}
