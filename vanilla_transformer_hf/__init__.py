"""
The Transformer of "Attention Is All You Need" for Hugging Face transformers.

Importing this package registers its config, models, tokenizer and translation pipeline with transformers, and marks
them so that `save_pretrained` and `push_to_hub` send their code along. Both happen here and nowhere else.

Nothing heavy is imported before it is used: each registration waits until transformers imports the module that it goes
into, which takes no time if that never happens.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


__version__ = "0.1.0"

# Public name -> module that defines it.
_MODULES = {
    "PRESETS": "configuration_vanilla_transformer",
    "VanillaTransformerConfig": "configuration_vanilla_transformer",
    "VanillaTransformerForConditionalGeneration": "modeling_vanilla_transformer",
    "VanillaTransformerModel": "modeling_vanilla_transformer",
    "VanillaTransformerPreTrainedModel": "modeling_vanilla_transformer",
    "VanillaTransformerTokenizer": "tokenization_vanilla_transformer",
    "TranslationPipeline": "translation",
    "Translator": "translation",
}

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _register_config():
    from transformers.models.auto.configuration_auto import AutoConfig

    from .configuration_vanilla_transformer import VanillaTransformerConfig

    AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
    VanillaTransformerConfig.register_for_auto_class()


def _register_models():
    from transformers.models.auto.modeling_auto import AutoModel, AutoModelForSeq2SeqLM

    from .modeling_vanilla_transformer import (
        VanillaTransformerConfig,
        VanillaTransformerForConditionalGeneration,
        VanillaTransformerModel,
    )

    AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(
        VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True
    )
    VanillaTransformerModel.register_for_auto_class("AutoModel")
    VanillaTransformerForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")


def _register_tokenizer():
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    from .configuration_vanilla_transformer import VanillaTransformerConfig
    from .tokenization_vanilla_transformer import VanillaTransformerTokenizer

    AutoTokenizer.register(VanillaTransformerConfig, VanillaTransformerTokenizer, exist_ok=True)
    VanillaTransformerTokenizer.register_for_auto_class()


def _register_pipeline():
    from .translation import register

    register()


# What runs as soon as one of these modules has been imported, by whomever. Our own modules stand here too, so that a
# class is registered and marked also where somebody imports it before any Auto class.
_REGISTRATIONS: dict[str, Callable[[], None]] = {
    "transformers.models.auto.configuration_auto": _register_config,
    "transformers.models.auto.modeling_auto": _register_models,
    "transformers.models.auto.tokenization_auto": _register_tokenizer,
    "transformers.pipelines": _register_pipeline,
    f"{__name__}.configuration_vanilla_transformer": _register_config,
    f"{__name__}.modeling_vanilla_transformer": _register_models,
    f"{__name__}.tokenization_vanilla_transformer": _register_tokenizer,
}


class _RegisteringLoader(importlib.abc.Loader):
    """Loads a module as `loader` does, then registers what goes with it."""

    def __init__(self, loader: importlib.abc.Loader, register: Callable[[], None]):
        self._loader = loader
        self._register = register

    def __getattr__(self, name: str):
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType):
        self._loader.exec_module(module)
        self._register()


class _RegisteringFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of `_REGISTRATIONS` where the ordinary finder does, and gives them a registering loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        register = _REGISTRATIONS.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if register else None
        if spec is not None and spec.loader is not None and register is not None:
            spec.loader = _RegisteringLoader(spec.loader, register)
        return spec


sys.meta_path.insert(0, _RegisteringFinder())
for _name, _register in _REGISTRATIONS.items():
    if _name in sys.modules:
        _register()
