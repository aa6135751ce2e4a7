"""What is wrong with a config, in one line."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from huggingface_hub.errors import (
    StrictDataclassClassValidationError,
    StrictDataclassError,
    StrictDataclassFieldValidationError,
)


class ConfigValueError(StrictDataclassClassValidationError, StrictDataclassFieldValidationError, ValueError):
    """An invalid value in a config: an error of transformers and a ValueError; its message is that of the check."""

    def __init__(self, message: str):
        Exception.__init__(self, message)


Config = TypeVar("Config", bound=type)


def refusing_with_value_errors(config_class: Config) -> Config:
    """A class decorator above `@strict`, whose errors become `ConfigValueError`s."""
    # `@strict` turns each ValueError and TypeError of a check, at construction, on assignment and before saving, into
    # an error that is neither, and puts "Class validation error for validator 'validate_architecture'" in front of it.

    def refusing(check: Callable[..., None]) -> Callable[..., None]:
        @wraps(check)  # with the mark by which `@strict` finds its own method in a subclass
        def call(*args: Any) -> None:
            try:
                check(*args)
            except StrictDataclassError as error:
                cause: BaseException = error
                while isinstance(cause, StrictDataclassError) and cause.__cause__ is not None:
                    cause = cause.__cause__
                raise ConfigValueError(str(cause)) from cause

        return call

    for name in ("validate", "__setattr__"):
        setattr(config_class, name, refusing(getattr(config_class, name)))
    return config_class
