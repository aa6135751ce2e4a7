"""
Registration with transformers: Auto classes, the "translation" pipeline; and what CTranslate2 knows of our models,
where it is installed. What PEFT knows of them comes with the first model.
"""

import re
from contextlib import suppress
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)
from transformers.pipelines import PIPELINE_REGISTRY, REMOVED_TASKS

from .model.configuration_vanilla_transformer import VanillaTransformerConfig
from .model.former_names import alias_former_modules
from .model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
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


# Auto class -> what it opens. AutoModel has three, of which the config names one.
MODELS: dict[Any, Any] = {
    AutoModelForSeq2SeqLM: VanillaTransformerForConditionalGeneration,
    AutoModelForMaskedLM: VanillaTransformerForMaskedLM,
    AutoModelForSequenceClassification: VanillaTransformerForSequenceClassification,
    AutoModelForTokenClassification: VanillaTransformerForTokenClassification,
    AutoModelForCausalLM: VanillaTransformerForCausalLM,
}
BARE_MODELS: dict[str, Any] = {
    "encoder_decoder": VanillaTransformerModel,
    "encoder": VanillaTransformerEncoderModel,
    "decoder": VanillaTransformerDecoderModel,
}


class BareModel:
    """What AutoModel opens: the model without a head that has the stacks of the config."""

    @staticmethod
    def from_pretrained(name: Any, *args: Any, config: VanillaTransformerConfig, **kwargs: Any) -> Any:
        return BARE_MODELS[config.stacks].from_pretrained(name, *args, config=config, **kwargs)

    @staticmethod
    def _from_config(config: VanillaTransformerConfig, **kwargs: Any) -> Any:
        return BARE_MODELS[config.stacks]._from_config(config, **kwargs)


class TranslationTasks(dict):
    """Aliases of tasks, among them every "translation_XX_to_YY", as transformers 4 had it."""

    def __missing__(self, task: str) -> str:
        if task in self:
            return "translation"
        raise KeyError(task)

    def __contains__(self, task: Any) -> bool:
        return super().__contains__(task) or re.fullmatch(r"translation_\w+_to_\w+", str(task)) is not None


class CTranslate2Loader:
    """Our entry in CTranslate2's table of converters, which imports what it needs when it is asked."""

    def __getattr__(self, name: str) -> Any:
        from .export.ctranslate2 import VanillaTransformerLoader

        return getattr(VanillaTransformerLoader(), name)

    def __call__(self, model: Any, tokenizer: Any) -> Any:
        return self.__getattr__("__call__")(model, tokenizer)


def register_pipeline() -> None:
    """Bring the "translation" task back, unless another package has done so."""
    # transformers 5 refuses the tasks in this table before it looks into its registry.
    REMOVED_TASKS.pop("translation", None)
    if "translation" not in PIPELINE_REGISTRY.get_supported_tasks():
        PIPELINE_REGISTRY.register_pipeline(
            "translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
        )
        # No default model: a pipeline without one is refused. `register_pipeline(default={})` would look for one.
        PIPELINE_REGISTRY.supported_tasks["translation"]["default"] = {}
        PIPELINE_REGISTRY.task_aliases = TranslationTasks(PIPELINE_REGISTRY.task_aliases)
        # Set by `register_pipeline`, it would have saved pipelines require `trust_remote_code`.
        del TranslationPipeline._registered_impl  # type: ignore[attr-defined]


def register_recurrent() -> None:
    """The recurrent models, which have a config of their own and the same tokenizer."""
    AutoConfig.register(RecurrentSeq2SeqConfig.model_type, RecurrentSeq2SeqConfig, exist_ok=True)
    AutoTokenizer.register(RecurrentSeq2SeqConfig, VanillaTransformerTokenizer, exist_ok=True)
    for auto, model in (
        (AutoModel, RecurrentSeq2SeqModel),
        (AutoModelForSeq2SeqLM, RecurrentSeq2SeqForConditionalGeneration),
    ):
        auto.register(RecurrentSeq2SeqConfig, model, exist_ok=True)


def register_names() -> None:
    """
    Enter the names of our models in transformers' tables, which the Auto classes' `register` leaves as they are. The
    Trainer shifts the labels of a language model for its `label_smoothing_factor` if its class stands in the one;
    tools such as lm-evaluation-harness look into the other first for what an encoder-decoder is.
    """
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[VanillaTransformerConfig.model_type] = VanillaTransformerForCausalLM.__name__
    for config, model in (
        (VanillaTransformerConfig, VanillaTransformerForConditionalGeneration),
        (RecurrentSeq2SeqConfig, RecurrentSeq2SeqForConditionalGeneration),
    ):
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[config.model_type] = model.__name__


def register() -> None:
    """Register all that there is; a second time changes nothing."""
    AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
    AutoModel.register(VanillaTransformerConfig, BareModel, exist_ok=True)
    AutoTokenizer.register(VanillaTransformerConfig, VanillaTransformerTokenizer, exist_ok=True)
    for auto, model in MODELS.items():
        auto.register(VanillaTransformerConfig, model, exist_ok=True)
    register_recurrent()
    register_names()
    register_pipeline()
    alias_former_modules()
    with suppress(ImportError):
        from ctranslate2.converters.transformers import register_loader

        register_loader(VanillaTransformerConfig.__name__)(CTranslate2Loader)
