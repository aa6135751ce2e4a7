"""
Saved configs, models and tokenizers bring the code that opens them without this package.

transformers copies the file of a class and the files beside it, where the class is marked (`register_for_auto_class`);
ours are in several folders, and `bundle` joins them into the files that are written here instead.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..releases.configs import saves_here
from ..tokenizer.limits import check_files
from .bundle import INT8_QUANTIZER, file_of, join_modules, modules_in


# `custom_pipelines` of the config of a translation model: transformers 5 has no such task of its own.
PIPELINES = {
    "translation": {
        "impl": "pipeline_vanilla_transformer.SavedTranslationPipeline",
        "pt": ["AutoModelForSeq2SeqLM"],
        "default": {},
        "type": "text",
    }
}
PACKAGE = __package__.split(".")[0]
# Called when one of our configs is made, and when one of our model classes is defined: what is heavy to import is
# registered no sooner (see `registration.py`).
CONFIG_MADE: list[Callable[[], None]] = []
MODEL_DEFINED: list[Callable[[], None]] = []


class SavesCode:
    """What writes code beside a config, model or tokenizer that is saved or pushed."""

    # Subclasses that others define do as transformers has it: `register_for_auto_class` makes their file travel.

    @property
    def is_ours(self) -> bool:
        """Whether the class is of this package."""
        return self.module_of_class is not None

    @property
    def module_of_class(self) -> str | None:
        """The module that has the class, as `bundle` names it; None if it is another's."""
        # FSDP2 makes classes of its own out of ours.
        owner = next(each for each in type(self).__mro__ if not each.__module__.startswith("torch."))
        package, _, module = owner.__module__.partition(".")
        is_ours = package == PACKAGE and module.startswith(("model.", "recurrent."))
        return module.removeprefix("model.") if is_ours else None

    @property
    def modules_that_travel(self) -> tuple[str, ...]:
        """The modules that open it."""
        return (str(self.module_of_class),)

    def bring_code(self, folder: str | os.PathLike[str]) -> None:
        """Write the files of a class of ours. Of a file in the folder's place, transformers only logs."""
        files = join_modules(self.modules_that_travel) if self.is_ours and Path(folder).is_dir() else {}
        for name, text in files.items():  # each beside its place first, so that none is ever half-written
            unfinished = Path(folder, f".{name}.{os.getpid()}.unfinished")
            unfinished.write_bytes(text.encode())
            unfinished.replace(Path(folder, name))

    def _upload_modified_files(self, working_dir: Any, *args: Any, **kwargs: Any) -> Any:
        # `save_pretrained(push_to_hub=True)` uploads before it returns, and only what is new.
        self.bring_code(working_dir)
        return super()._upload_modified_files(working_dir, *args, **kwargs)  # type: ignore[misc]


class ConfigSavesCode(SavesCode):
    """A config that names the class that opens it, and brings the file of that."""

    def __post_init__(self, **kwargs: Any) -> None:
        for tell in CONFIG_MADE:
            tell()
        kwargs.pop("custom_pipelines", None)  # this package has a better one, for which no code of the folder is run
        super().__post_init__(**kwargs)  # type: ignore[misc]

    @property
    def modules_that_travel(self) -> tuple[str, ...]:
        """All modules that its file has beside a model, too: the model may lie in the folder."""
        config: Any = self
        return modules_in(join_modules(config.modules)[f"{file_of(str(self.module_of_class))}.py"])

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save the config, as in every config of transformers, with the code that opens it."""
        if self.is_ours:
            config: Any = self
            config.auto_map = (getattr(self, "auto_map", None) or {}) | {
                "AutoConfig": config.auto_classes["AutoConfig"]
            }
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        self.bring_code(save_directory)


class TokenizerSavesCode(SavesCode):
    """A tokenizer that names the class that opens it, and brings the file of that; its files have limits."""

    check_files = staticmethod(check_files)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """Save the tokenizer, as in every tokenizer of transformers, with its code; the paths of the files."""
        if self.is_ours:
            tokenizer: Any = self
            name = f"{self.module_of_class}.{type(self).__name__}"
            tokenizer.init_kwargs["auto_map"] = {"AutoTokenizer": [name, None]}
        saved = super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        self.bring_code(save_directory)
        return saved


class ModelSavesCode(SavesCode):
    """A model whose config names all classes that open it, and that brings their files, on the rank that saves."""

    @property
    def translates(self) -> bool:
        """Whether the model is one of the pipeline "translation"."""
        return "AutoModelForSeq2SeqLM" in self.config.auto_classes  # type: ignore[attr-defined]

    @property
    def modules_that_travel(self) -> tuple[str, ...]:
        """The modules of the config, that of the class, the quantizer of one in int8, and a translation pipeline."""
        model: Any = self
        quantizer = (
            [INT8_QUANTIZER] if getattr(self, "quantization_method", None) == "vanilla_transformer_int8" else []
        )
        pipeline = ["pipeline_vanilla_transformer"] if self.translates else []
        saved = getattr(self, "generation_config", None)  # whose groups of beams each call has
        groups = ["search.together"] if (getattr(saved, "num_beam_groups", None) or 1) > 1 else []
        return tuple(dict.fromkeys([*model.config.modules, str(self.module_of_class), *quantizer, *groups, *pipeline]))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for tell in MODEL_DEFINED:
            tell()

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """Save the model, as in every model of transformers, with its code."""
        model: Any = self
        if self.is_ours:
            model.config.auto_map = (getattr(model.config, "auto_map", None) or {}) | model.config.auto_classes
            if self.translates:
                model.config.custom_pipelines = PIPELINES
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)  # type: ignore[misc]
        if saves_here(model, is_main_process):
            self.bring_code(save_directory)
