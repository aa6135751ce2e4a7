"""
The Transformer of "Attention Is All You Need" for Hugging Face transformers.

Importing this package registers its config, models, tokenizer and translation pipeline with transformers. The modules
of its models are imported when they are used.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from .model.config.release import VERSION as __version__  # noqa: N811  # Python's name for it


if TYPE_CHECKING:
    from .explorer.notebook import explore
    from .model.config.presets import PRESETS
    from .model.configuration_vanilla_transformer import VanillaTransformerConfig
    from .model.feature_extraction_vanilla_transformer import VanillaTransformerFeatureExtractor
    from .model.layers.base_model import VanillaTransformerPreTrainedModel
    from .model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
    from .model.packing.int8_quantizer import Int8Config
    from .model.recognition import VanillaTransformerForImageTextToText, VanillaTransformerForSpeechSeq2Seq
    from .model.single_stacks.causal_lm import VanillaTransformerDecoderModel, VanillaTransformerForCausalLM
    from .model.single_stacks.encoder_models import (
        VanillaTransformerEncoderModel,
        VanillaTransformerForMaskedLM,
        VanillaTransformerForSequenceClassification,
        VanillaTransformerForTokenClassification,
    )
    from .model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
    from .recurrent.configuration import RecurrentSeq2SeqConfig
    from .recurrent.modeling import RecurrentSeq2SeqForConditionalGeneration, RecurrentSeq2SeqModel
    from .translation.pipeline import TranslationPipeline
    from .translation.results import Translation
    from .translation.scoring.alignment import Alignment
    from .translation.scoring.scoring import TextScore
    from .translation.search.minimum_risk import MinimumRisk
    from .translation.text.texts import ConstrainedText
    from .translation.translator import Translator


__all__ = [
    "PRESETS",
    "Alignment",
    "ConstrainedText",
    "Int8Config",
    "MinimumRisk",
    "RecurrentSeq2SeqConfig",
    "RecurrentSeq2SeqForConditionalGeneration",
    "RecurrentSeq2SeqModel",
    "TextScore",
    "Translation",
    "TranslationPipeline",
    "Translator",
    "VanillaTransformerConfig",
    "VanillaTransformerDecoderModel",
    "VanillaTransformerEncoderModel",
    "VanillaTransformerFeatureExtractor",
    "VanillaTransformerForCausalLM",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForImageTextToText",
    "VanillaTransformerForMaskedLM",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerForSpeechSeq2Seq",
    "VanillaTransformerForTokenClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
    "VanillaTransformerTokenizer",
    "__version__",
    "explore",
]

# Public name -> its module. Type checkers read the imports above, which a test compares with this table.
_HOMES = {
    "PRESETS": "model.config.presets",
    "Alignment": "translation.scoring.alignment",
    "ConstrainedText": "translation.text.texts",
    "Int8Config": "model.packing.int8_quantizer",
    "MinimumRisk": "translation.search.minimum_risk",
    "RecurrentSeq2SeqConfig": "recurrent.configuration",
    "RecurrentSeq2SeqForConditionalGeneration": "recurrent.modeling",
    "RecurrentSeq2SeqModel": "recurrent.modeling",
    "TextScore": "translation.scoring.scoring",
    "Translation": "translation.results",
    "TranslationPipeline": "translation.pipeline",
    "Translator": "translation.translator",
    "VanillaTransformerConfig": "model.configuration_vanilla_transformer",
    "VanillaTransformerDecoderModel": "model.single_stacks.causal_lm",
    "VanillaTransformerEncoderModel": "model.single_stacks.encoder_models",
    "VanillaTransformerFeatureExtractor": "model.feature_extraction_vanilla_transformer",
    "VanillaTransformerForCausalLM": "model.single_stacks.causal_lm",
    "VanillaTransformerForConditionalGeneration": "model.modeling_vanilla_transformer",
    "VanillaTransformerForImageTextToText": "model.recognition",
    "VanillaTransformerForMaskedLM": "model.single_stacks.encoder_models",
    "VanillaTransformerForSequenceClassification": "model.single_stacks.encoder_models",
    "VanillaTransformerForSpeechSeq2Seq": "model.recognition",
    "VanillaTransformerForTokenClassification": "model.single_stacks.encoder_models",
    "VanillaTransformerModel": "model.modeling_vanilla_transformer",
    "VanillaTransformerPreTrainedModel": "model.layers.base_model",
    "VanillaTransformerTokenizer": "model.tokenization_vanilla_transformer",
    "explore": "explorer.notebook",
}


if not TYPE_CHECKING:  # to whom a misspelt name would else be right

    def __getattr__(name: str):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_command() -> bool:
    """
    Whether this process is a command: `vanilla-transformer`, a file of scripts/, or `python -m` with this package,
    which Python imports before `__main__.py`; until that is found, `sys.argv` begins with "-m".
    """
    runs_this = sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv) :][:1] == [__name__]
    return runs_this or getattr(sys.modules.get("vanilla_transformer_hf_command"), "has_started", False)


# A command registers after it has read its arguments, so that its --help does without transformers.
if not _is_command():
    from . import registration

    registration.register()
