"""transformers' generation config with the options of this package."""

from typing import Any

from transformers.generation import GenerationConfig

from .search_settings import SEARCH_OPTIONS, SearchOptions


class VanillaTransformerGenerationConfig(GenerationConfig):
    """transformers' generation config, with the options of this package as checked fields; None: not given."""

    length_penalty_type: str | None = None
    coverage_penalty: float | None = None
    max_extra_tokens: int | None = None
    decoder_prompt_ids: list[int] | None = None

    def __init__(self, **kwargs: Any) -> None:
        for name in SEARCH_OPTIONS.keys() & kwargs.keys():
            setattr(self, name, kwargs.pop(name))
        super().__init__(**kwargs)

    @classmethod
    def of(cls, config: GenerationConfig) -> "VanillaTransformerGenerationConfig":
        """A generation config of transformers with the same settings, in this class."""
        made = cls.__new__(cls)
        vars(made).update(vars(config))
        return made

    def validate(self, *args: Any, **kwargs: Any) -> None:
        SearchOptions.of(lambda name: getattr(self, name, None))
        super().validate(*args, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        settings = super().to_dict()
        # In a file with this field, transformers reads only its own fields, but users may add one of ours.
        settings.pop("_from_model_config", None)
        return settings
