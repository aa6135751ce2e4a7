"""Settings of a search: arguments, options of this package, limits of length. Nothing heavy is imported."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any


# (length, α) -> what the log-probability of a hypothesis of that many tokens is divided by.
LENGTH_PENALTIES: dict[str, Callable[[Any, float], Any]] = {
    "power": lambda length, alpha: length**alpha,  # transformers
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,  # Wu et al. 2016, arXiv 1609.08144, equation 14
}

# Arguments of `generate()` that belong to one call and its source.
REQUESTS = ("ensemble", "prefixes", "quantization", "recorder", "required_phrases", "shortlist")

LENGTH_LIMITS = ("max_length", "max_new_tokens", "max_extra_tokens")
# "We set the maximum output length during inference to input length + 50" (section 6.1).
EXTRA_TARGET_TOKENS = 50
# transformers' default of max_length. Its Seq2SeqTrainer writes this number into the generation config of the model
# that it evaluates, so this value counts as not given.
DEFAULT_MAX_LENGTH = 20


class Settings:
    """The settings of a call of `generate()`: its arguments, its `generation_config` if any, and that of the model."""

    def __init__(self, arguments: dict[str, Any], given: Any, saved: Any) -> None:
        self.layers = [arguments, {} if given is None else vars(given), vars(saved)]

    def get(self, name: str, default: Any = None) -> Any:
        """The value from the first place that has one; as in transformers, None counts as not given."""
        return next((layer[name] for layer in self.layers if layer.get(name) is not None), default)

    @property
    def length_limits(self) -> dict[str, int]:
        """The limits of length by name: of the call if it has any, else of its config, the model, or the paper."""
        # A saved limit never overrides one of the call.
        *call, saved = self.layers
        if saved.get("max_length") == DEFAULT_MAX_LENGTH:
            saved = {**saved, "max_length": None}
        for layer in (*call, saved):
            if limits := {name: layer[name] for name in LENGTH_LIMITS if layer.get(name) is not None}:
                return limits
        return {"max_extra_tokens": EXTRA_TARGET_TOKENS}


@dataclass
class SearchOptions:
    """Options of the search that transformers' loops do not have; a `ValueError` if one is out of range."""

    length_penalty_type: str = "power"
    coverage_penalty: float = 0.0
    max_extra_tokens: int | None = None
    decoder_prompt_ids: Sequence[int] | None = None
    num_beam_groups: int = 1  # this one and the next are fields of transformers' generation config
    diversity_penalty: float = 0.0

    @classmethod
    def of(cls, get: Callable[[str], Any]) -> "SearchOptions":
        """Read the options with a function from names to values; None means the default."""
        given = {name: value for name in cls.__dataclass_fields__ if (value := get(name)) is not None}
        options, beams, penalty = cls(**given), get("num_beams") or 1, get("length_penalty")
        if penalty is not None and not math.isfinite(penalty):
            raise ValueError(f"length_penalty={penalty!r}: must be a finite number")
        for name in ("num_beams", "num_return_sequences"):
            if (count := get(name)) is not None and count < 1:
                raise ValueError(f"{name}={count!r}: must be an integer of at least 1")
        if beams > 1 and options.num_beam_groups > 1:
            if beams % options.num_beam_groups:
                raise ValueError(f"num_beam_groups={options.num_beam_groups}: must divide num_beams, which is {beams}")
            if not options.diversity_penalty:
                raise ValueError("num_beam_groups: needs a diversity_penalty above 0, without which all are the same")
        elif beams > 1 and options.diversity_penalty:
            raise ValueError(f"diversity_penalty={options.diversity_penalty}: needs num_beam_groups of at least 2")
        return options

    def __post_init__(self) -> None:
        kinds, kind, extra = LENGTH_PENALTIES, self.length_penalty_type, self.max_extra_tokens
        if kind not in kinds:
            raise ValueError(f"length_penalty_type={kind!r}: must be one of {', '.join(map(repr, kinds))}")
        for name in ("coverage_penalty", "diversity_penalty"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ValueError(f"{name}={value!r}: must be a number of at least 0")
        if extra is not None and not is_count(extra):
            raise ValueError(f"max_extra_tokens={extra!r}: must be an integer of at least 1, or None")
        prompt = self.decoder_prompt_ids
        if prompt is not None and not (isinstance(prompt, (list, tuple)) and all(map(is_id, prompt))):
            raise ValueError(f"decoder_prompt_ids={prompt!r}: must be a list of token ids, or None")
        if not is_count(self.num_beam_groups):
            raise ValueError(f"num_beam_groups={self.num_beam_groups!r}: must be an integer of at least 1")


# Those that its generation config does not have either: name in generation_config.json and `generate()` -> default.
SEARCH_OPTIONS: dict[str, Any] = {field.name: field.default for field in fields(SearchOptions)[:4]}


def is_id(value: Any) -> bool:
    """Whether it is an integer of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_count(value: Any) -> bool:
    """Whether it is an integer of at least 1."""
    return is_id(value) and value >= 1
