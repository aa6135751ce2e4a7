"""
Batches of source tokens to tokens of translations, by whatever engine: the settings of a search, and its checks.

Nothing heavy is imported; `token_translator.py` has the searches by torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...model.config.search_settings import (
    EXTRA_TARGET_TOKENS,
    LENGTH_LIMITS,
    LENGTH_PENALTIES,
    SEARCH_OPTIONS,
    Settings,
)


# Arguments that `generate()` does not check itself.
COUNTS = ("num_beams", "num_return_sequences", "max_length", "max_new_tokens")


class TokenSearch(ABC):
    """The base of all searches: of its `model` it reads the `generation_config`."""

    has_own_options = True  # whether the model is one of this package

    def __init__(self, model: Any, pad_token_id: int, max_positions: int):
        self.model, self.pad_token_id, self.max_positions = model, pad_token_id, max_positions

    @abstractmethod
    def stream(
        self, batches: Iterable[dict[str, Any]], return_scores: bool, options: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """The translations of each batch: of `sources`, B rows of some ids each, and of their constraints."""
        # `sequences`: B lists of n sequences of ids, decoder start token included, best first; `scores`: B lists of n
        # numbers, or None.

    def settings(self, options: dict[str, Any]) -> Settings:
        """The settings of `generate()` with these options."""
        return Settings(options, options.get("generation_config"), saved=self.model.generation_config)

    def setting(self, name: str, options: dict[str, Any]) -> Any:
        """The value that `generate()` will use with these options; None if it uses its own default."""
        return self.settings(options).get(name)

    def ends(self, options: dict[str, Any]) -> list[int]:
        """The end-of-sentence tokens."""
        eos = self.setting("eos_token_id", options)
        return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)

    def length_penalty(self, options: dict[str, Any]) -> Callable[[Any], Any]:
        """Number of tokens -> the divisor of a log-probability in beam search."""
        kind = self.setting("length_penalty_type", options) or SEARCH_OPTIONS["length_penalty_type"]
        alpha = self.setting("length_penalty", options)
        return lambda length: LENGTH_PENALTIES[kind](length, 1.0 if alpha is None else alpha)

    def most_target_tokens(self, source_length: int, options: dict[str, Any]) -> int:
        """Most tokens of the translation of a source of this length."""
        limits, most = self.settings(options).length_limits, [self.max_positions]
        if "max_new_tokens" in limits:
            most.append(limits["max_new_tokens"])
        elif "max_length" in limits:
            most.append(limits["max_length"] - 1)
        if "max_extra_tokens" in limits:
            most.append(source_length + limits["max_extra_tokens"])
        return min(most)

    def checked(self, source_length: int, options: dict[str, Any]) -> dict[str, Any]:
        """The arguments for `generate()`: the given options, and a default limit of length."""
        options = {name: value for name, value in options.items() if value is not None}
        options.pop("return_dict_in_generate", None)  # it does not change what is returned here
        for name in COUNTS:
            if options.get(name, 1) < 1:
                raise ValueError(f"{name}={options[name]}: must be at least 1")
        beams, n_best = (self.setting(name, options) or 1 for name in ("num_beams", "num_return_sequences"))
        if n_best > beams and not self.setting("do_sample", options):
            raise ValueError(f"num_return_sequences={n_best}: needs num_beams of at least {n_best}, not {beams}")
        for name in ("coverage_penalty", "diversity_penalty"):
            if beams < 2 and options.get(name):  # a saved one is for searches with beams
                needs = "needs num_beams of at least 2, or mbr's candidates 'beam'"
                raise ValueError(f"{name}={options[name]}: {needs}")
        if not self.has_own_options and not any(self.setting(name, options) for name in LENGTH_LIMITS):
            options["max_new_tokens"] = min(source_length + EXTRA_TARGET_TOKENS, self.max_positions)
        return options
