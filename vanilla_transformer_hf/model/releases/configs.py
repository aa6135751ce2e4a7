"""What differs for configs between releases of transformers 5, found by what is there."""

from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from transformers.configuration_utils import PreTrainedConfig


def config_as_dataclass() -> Any:
    """transformers' config with its common fields as the dataclass that it is since 5.4."""

    @dataclass(repr=False)
    class DataclassConfig(PreTrainedConfig):
        transformers_version: str | None = None
        architectures: list[str] | None = None
        output_hidden_states: bool | None = False
        return_dict: bool | None = True
        dtype: Any = None
        chunk_size_feed_forward: int = 0
        is_encoder_decoder: bool = False
        id2label: dict[Any, str] | None = None
        label2id: dict[str, Any] | None = None
        problem_type: Any = None

        def __init_subclass__(cls, **kwargs: Any):
            super().__init_subclass__(**kwargs)
            dataclass(cls, repr=False)

            def init(self: Any, **given: Any) -> None:
                for one in fields(cls):
                    default = one.default if one.default_factory is MISSING else one.default_factory()
                    setattr(self, one.name, given.pop(one.name, default))
                self.__post_init__(**given)

            cls.__init__ = init  # type: ignore[method-assign, assignment]

        def __post_init__(self, **kwargs: Any) -> None:
            common = {one.name: getattr(self, one.name) for one in fields(DataclassConfig)}
            PreTrainedConfig.__init__(self, **common, **kwargs)

        def validate_rope(self) -> None:
            """Nothing: rotary positions have fields of their own. huggingface_hub allows it no second argument."""

        def validate_architecture(self) -> None:
            """Nothing: before 5.4 transformers checked no sizes."""

    return DataclassConfig


def saves_here(model: Any, is_main_process: bool) -> bool:
    """Whether this process writes a model's files; newer releases look at how its weights are spread, too."""
    decide = getattr(model, "should_save_on_this_rank", bool)
    return bool(decide(is_main_process))


BaseConfig: Any = PreTrainedConfig if is_dataclass(PreTrainedConfig) else config_as_dataclass()
