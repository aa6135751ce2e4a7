"""
The Transformer of "Attention Is All You Need" for Hugging Face transformers.

Importing this package registers its config, models, tokenizer and translation pipeline with transformers.
"""

from . import registration
from .common.version import __version__
from .model.configuration_vanilla_transformer import PRESETS, VanillaTransformerConfig
from .model.modeling_vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
    VanillaTransformerPreTrainedModel,
)
from .model.packing.int8_quantizer import Int8Config
from .model.predecessors.configuration import RecurrentSeq2SeqConfig
from .model.predecessors.modeling import RecurrentSeq2SeqForConditionalGeneration, RecurrentSeq2SeqModel
from .model.single_stacks.causal_lm import VanillaTransformerDecoderModel, VanillaTransformerForCausalLM
from .model.single_stacks.encoder_models import (
    VanillaTransformerEncoderModel,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from .model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from .translation.pipeline import TranslationPipeline
from .translation.scoring.alignment import Alignment
from .translation.scoring.scoring import TextScore
from .translation.text.texts import ConstrainedText
from .translation.translator import Translation, Translator


__all__ = [
    "PRESETS",
    "Alignment",
    "ConstrainedText",
    "Int8Config",
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
    "VanillaTransformerForCausalLM",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForMaskedLM",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerForTokenClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
    "VanillaTransformerTokenizer",
    "__version__",
]

registration.register()
