"""Which classes open a saved model without the package: the `auto_map` of its config."""

from typing import Any


# Stacks of a model -> Auto class -> the class that opens a saved model without the package.
AUTO_MODELS = {
    "encoder_decoder": {
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
        "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
    },
    "encoder": {
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerEncoderModel",
        "AutoModelForMaskedLM": "modeling_vanilla_transformer.VanillaTransformerForMaskedLM",
        "AutoModelForSequenceClassification": (
            "modeling_vanilla_transformer.VanillaTransformerForSequenceClassification"
        ),
        "AutoModelForTokenClassification": ("modeling_vanilla_transformer.VanillaTransformerForTokenClassification"),
    },
    "decoder": {
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerDecoderModel",
        "AutoModelForCausalLM": "modeling_vanilla_transformer.VanillaTransformerForCausalLM",
    },
}

# Front end -> the same for a model that reads something else than tokens.
OF_SPEECH = {
    "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
    "AutoModelForSpeechSeq2Seq": "modeling_vanilla_transformer.VanillaTransformerForSpeechSeq2Seq",
}
AUTO_MODELS_OF_FRONT_ENDS = {
    "speech": OF_SPEECH,
    "speech_whisper": OF_SPEECH,
    "speech_stacked": OF_SPEECH,
    "image": {
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
        "AutoModelForImageTextToText": "modeling_vanilla_transformer.VanillaTransformerForImageTextToText",
    },
}


def auto_models(config: Any) -> dict[str, str]:
    """Auto class -> the class that opens a model of this config without the package."""
    return AUTO_MODELS_OF_FRONT_ENDS.get(config.front_end) or AUTO_MODELS[config.stacks]


def whole_auto_map(auto_map: dict[str, Any], models: dict[str, str]) -> dict[str, Any]:
    """
    The `auto_map` entry with all of `models`, the classes that can open the weights; nothing if it names none of them.
    transformers adds only the class that it saves, and keeps the entries of the model that training began with.
    """
    kinds = [*AUTO_MODELS.values(), *AUTO_MODELS_OF_FRONT_ENDS.values()]
    ours = {reference for kind in kinds for reference in kind.values()}
    plain = {name: one.rpartition("--") for name, one in auto_map.items() if isinstance(one, str)}  # not of tokenizers
    for name, (repository, found, reference) in plain.items():
        if reference == models.get(name):
            whole = {other: f"{repository}{found}{model}" for other, model in models.items()}
            former = {each for each, (*_, model) in plain.items() if model in ours and model != models.get(each)}
            kept = {each: one for each, one in auto_map.items() if each not in former}
            return {"auto_map": {**whole, **kept}}
    return {}
