"""
The Transformer of "Attention Is All You Need" for Hugging Face transformers.

Importing this package registers its config, models, tokenizer and translation pipeline with transformers, and marks
their classes so that `save_pretrained` and `push_to_hub` send their code along. Both happen here and nowhere else.

Nothing heavy is imported for that. transformers keeps tables of class names, resolved when a class is first asked for;
ours join them as soon as transformers has imported the module that holds them, and resolve to this package.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


__version__ = "0.1.0"

_MODEL_TYPE = "vanilla_transformer"

# Public name -> module that defines it.
_MODULES = {
    "PRESETS": "model.configuration_vanilla_transformer",
    "VanillaTransformerConfig": "model.configuration_vanilla_transformer",
    "VanillaTransformerForConditionalGeneration": "model.modeling_vanilla_transformer",
    "VanillaTransformerModel": "model.modeling_vanilla_transformer",
    "VanillaTransformerPreTrainedModel": "model.modeling_vanilla_transformer",
    "VanillaTransformerTokenizer": "model.tokenization_vanilla_transformer",
    "Alignment": "translation.alignment",
    "ConstrainedText": "translation.texts",
    "TextScore": "translation.scoring",
    "Translation": "translation.translator",
    "TranslationPipeline": "translation.pipeline",
    "Translator": "translation.translator",
}

# Hub class -> the Auto class that it is registered with.
_AUTO_CLASSES = {
    "VanillaTransformerConfig": "AutoConfig",
    "VanillaTransformerModel": "AutoModel",
    "VanillaTransformerForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "VanillaTransformerTokenizer": "AutoTokenizer",
}

# Module of transformers -> its tables of class names -> the class that joins them.
_NAME_TABLES = {
    "transformers.models.auto.configuration_auto": {"CONFIG_MAPPING_NAMES": "VanillaTransformerConfig"},
    "transformers.models.auto.modeling_auto": {
        "MODEL_MAPPING_NAMES": "VanillaTransformerModel",
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "VanillaTransformerForConditionalGeneration",
    },
    "transformers.models.auto.tokenization_auto": {"TOKENIZER_MAPPING_NAMES": "VanillaTransformerTokenizer"},
}

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _join_name_tables(module: ModuleType):
    for table, class_name in _NAME_TABLES[module.__name__].items():
        getattr(module, table)[_MODEL_TYPE] = class_name


def _mark_for_shipping(module: ModuleType):
    for class_name, auto_class in _AUTO_CLASSES.items():
        if f"{__name__}.{_MODULES[class_name]}" == module.__name__:
            getattr(module, class_name).register_for_auto_class(auto_class)


def _register_pipeline(module: ModuleType):
    # transformers 5 removed the task, and refuses the tasks of this table before it looks into its registry.
    module.REMOVED_TASKS.pop("translation", None)
    # By name, as transformers enters its own. Its `register_pipeline` wants the class, and would have saved pipelines
    # ask whoever opens them for `trust_remote_code`.
    auto_class = importlib.import_module("transformers.models.auto.modeling_auto").AutoModelForSeq2SeqLM
    entry = {
        "impl": f"{__name__}.translation.pipeline.TranslationPipeline",
        "pt": (auto_class,),
        "default": {},
        "type": "text",
    }
    module.PIPELINE_REGISTRY.supported_tasks.setdefault("translation", entry)


def _name_lora_targets(module: ModuleType):
    # The projections that Hu et al. 2021 (arXiv 2106.09685) adapt, so that LoraConfig() needs no target_modules.
    module.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[_MODEL_TYPE] = ["q_proj", "v_proj"]


def _teach_ctranslate2(module: ModuleType):
    # Its table of the models that it can convert.
    importlib.import_module(f"{__name__}.export.ctranslate2")


# What is done to a module as soon as it has been imported, by whomever.
_AFTER_IMPORT: dict[str, Callable[[ModuleType], None]] = {
    **dict.fromkeys(_NAME_TABLES, _join_name_tables),
    **{f"{__name__}.{_MODULES[class_name]}": _mark_for_shipping for class_name in _AUTO_CLASSES},
    "transformers.pipelines": _register_pipeline,
    "peft.utils.constants": _name_lora_targets,
    "ctranslate2.converters.transformers": _teach_ctranslate2,
}


class _Loader(importlib.abc.Loader):
    """Loads a module as `loader` does, then does what `_AFTER_IMPORT` says."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def __getattr__(self, name: str):
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType):
        self._loader.exec_module(module)
        _AFTER_IMPORT[module.__name__](module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `_AFTER_IMPORT` where the ordinary finder does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in _AFTER_IMPORT else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _register():
    # Where transformers looks for the classes of a model type.
    sys.modules[f"transformers.models.{_MODEL_TYPE}"] = sys.modules[__name__]
    sys.meta_path.insert(0, _Finder())
    for name, action in _AFTER_IMPORT.items():
        if name in sys.modules:
            action(sys.modules[name])
    # An Auto class reads the table of configs once, when it is made: tell those that were made before.
    for module in [sys.modules[name] for name in _NAME_TABLES if name in sys.modules]:
        for class_name, auto_class in _AUTO_CLASSES.items():
            if auto_class != "AutoConfig" and hasattr(module, auto_class):
                config_class = __getattr__("VanillaTransformerConfig")
                getattr(module, auto_class).register(config_class, __getattr__(class_name), exist_ok=True)


_register()
