"""
Registration with transformers: Auto classes, the "translation" pipeline; and with CTranslate2's converters,
where it is installed. PEFT's defaults for our models are entered with the first model.

Importing the package costs little more than importing transformers' Auto classes. So the models stand in their tables
by name, and a table that is heavy to import is filled only if it has been imported: at once, or as soon as a
config of ours is made, with which every opening of a folder begins.
"""

import re
import sys
from importlib import import_module
from typing import Any

import transformers
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from .model.config.auto_classes import CLASSES
from .model.configuration_vanilla_transformer import VanillaTransformerConfig
from .model.layers.lora_targets import LoraTargets
from .model.saving.saved_code import CONFIG_MADE, MODEL_DEFINED
from .model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from .recurrent.configuration import RecurrentSeq2SeqConfig


class ModelByName:
    """A class in the tables of the Auto classes, which is imported when something is taken from it."""

    def __init__(self, config_class: Any, name: str):
        module, self.__name__ = name.rsplit(".", 1)
        self.__module__ = f"{__package__}.{module}"
        self.config_class = config_class

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself looks up in objects: copies, pickles
            raise AttributeError(name)
        return getattr(self.load(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.load()(*args, **kwargs)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.load(),)  # a subclass of this name is a subclass of the class

    def load(self) -> Any:
        return getattr(import_module(self.__module__), self.__name__)


# Auto class -> what it opens. AutoModel has three, of which the config names one.
MODELS: dict[Any, ModelByName] = {
    getattr(transformers, auto): ModelByName(VanillaTransformerConfig, f"model.{name}")
    for models in CLASSES.values()
    for auto, name in models.items()
    if auto != "AutoModel"
}
BARE_MODELS: dict[str, ModelByName] = {
    stacks: ModelByName(VanillaTransformerConfig, f"model.{CLASSES[stacks]['AutoModel']}")
    for stacks in ("encoder_decoder", "encoder", "decoder")
}
FEATURE_EXTRACTOR = ModelByName(
    VanillaTransformerConfig, "model.feature_extraction_vanilla_transformer.VanillaTransformerFeatureExtractor"
)
RECURRENT_MODELS: dict[Any, ModelByName] = {
    AutoModel: ModelByName(RecurrentSeq2SeqConfig, "recurrent.modeling.RecurrentSeq2SeqModel"),
    AutoModelForSeq2SeqLM: ModelByName(
        RecurrentSeq2SeqConfig, "recurrent.modeling.RecurrentSeq2SeqForConditionalGeneration"
    ),
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
    """Our entry in CTranslate2's table of converters, which imports what it needs when it is called."""

    def __getattr__(self, name: str) -> Any:
        from .export.ctranslate2 import VanillaTransformerLoader

        return getattr(VanillaTransformerLoader(), name)

    def __call__(self, model: Any, tokenizer: Any) -> Any:
        return self.__getattr__("__call__")(model, tokenizer)


def register_pipeline() -> None:
    """Bring the "translation" task back, unless another package has done so. Imports transformers' pipelines."""
    from transformers.pipelines import PIPELINE_REGISTRY

    from .common.releases import pipeline_class, removed_tasks

    # transformers 5 raises an error for the tasks in this table before it looks into its registry.
    removed_tasks().pop("translation", None)
    if "translation" not in PIPELINE_REGISTRY.get_supported_tasks():
        # No default model: a pipeline without one is an error.
        PIPELINE_REGISTRY.supported_tasks["translation"] = {
            "impl": pipeline_class(f"{__package__}.translation.pipeline", "TranslationPipeline"),
            "pt": (AutoModelForSeq2SeqLM,),
            "default": {},
            "type": "text",
        }
        PIPELINE_REGISTRY.task_aliases = TranslationTasks(PIPELINE_REGISTRY.task_aliases)


def register_ctranslate2() -> None:
    """Register our models with CTranslate2's converter, which this imports."""
    from ctranslate2.converters.transformers import register_loader

    register_loader(VanillaTransformerConfig.__name__)(CTranslate2Loader)


# Module of a table that is heavy to import -> what fills it.
HEAVY = {
    "transformers.pipelines": register_pipeline,
    "ctranslate2.converters.transformers": register_ctranslate2,
}
_filled: set[str] = set()


def register_heavy() -> None:
    """Fill, once, the heavy tables that are imported already."""
    for module, fill in HEAVY.items():
        if module not in _filled and module in sys.modules:
            _filled.add(module)
            fill()


def offer_pipeline() -> None:
    """Register the pipeline with the first model class: pipelines may be imported later, and be given a model."""
    if "transformers.pipelines" not in _filled:
        import_module("transformers.pipelines")  # which takes little where models are imported
        register_heavy()


def register(for_programs: bool = True) -> None:
    """Register all that there is; a second time changes nothing."""
    # `for_programs`: whether the first model brings what a program may do with it next: transformers' pipelines, and
    # adapters of PEFT. Commands do without, and start sooner.
    for config_class in (VanillaTransformerConfig, RecurrentSeq2SeqConfig):
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        AutoTokenizer.register(config_class, VanillaTransformerTokenizer, exist_ok=True)
    AutoFeatureExtractor.register(VanillaTransformerConfig, FEATURE_EXTRACTOR, exist_ok=True)
    AutoModel.register(VanillaTransformerConfig, BareModel, exist_ok=True)
    for models in (MODELS, RECURRENT_MODELS):
        for auto, named in models.items():
            auto.register(named.config_class, named, exist_ok=True)
    # The Auto classes' `register` leaves transformers' tables of names as they are. The Trainer shifts the labels of a
    # language model for its `label_smoothing_factor` if its class stands in the one; tools such as
    # lm-evaluation-harness look into the other first for what an encoder-decoder is.
    causal, seq2seq = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    causal[VanillaTransformerConfig.model_type] = MODELS[AutoModelForCausalLM].__name__
    for models in (MODELS, RECURRENT_MODELS):
        named = models[AutoModelForSeq2SeqLM]
        seq2seq[named.config_class.model_type] = named.__name__
    if register_heavy not in CONFIG_MADE:
        CONFIG_MADE.append(register_heavy)
    if for_programs and offer_pipeline not in MODEL_DEFINED:
        MODEL_DEFINED.append(offer_pipeline)
    LoraTargets.are_entered = offer_pipeline in MODEL_DEFINED
    register_heavy()


def leave_out_programs() -> None:
    """Register nothing for programs from now on: for processes that a command starts, before they import a model."""
    if offer_pipeline in MODEL_DEFINED:
        MODEL_DEFINED.remove(offer_pipeline)
    LoraTargets.are_entered = False
