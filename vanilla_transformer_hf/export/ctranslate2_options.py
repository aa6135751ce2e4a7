"""The arguments with which CTranslate2 searches like `generate()`. Nothing heavy is imported."""

from typing import Any

from ..model.config.search_settings import SEARCH_OPTIONS


# Generation options -> the arguments of `translate_batch` that do the same, and what stands for an option not given.
SEARCH: dict[str, tuple[str, Any]] = {
    "num_beams": ("beam_size", 1),
    "length_penalty": ("length_penalty", 1.0),
    "max_new_tokens": ("max_decoding_length", 256),
    "min_new_tokens": ("min_decoding_length", 0),
    "num_return_sequences": ("num_hypotheses", 1),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", 0),
    "repetition_penalty": ("repetition_penalty", 1.0),
}

# Generation options that do not affect the search, or that `search_options` reads.
NOT_SEARCH = {"transformers_version", "_from_model_config", "use_cache", "suppress_tokens", "early_stopping"}
NOT_SEARCH |= {"bad_words_ids", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"}


def search_options(settings: dict[str, Any], target: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Arguments with which `translate_batch` searches like `generate()`, and the settings that it lacks."""
    given = {
        name: value
        for name, value in settings.items()
        if value not in (None, SEARCH_OPTIONS.get(name)) and (name in SEARCH or value not in (False, 0))
    }
    options = {theirs: given.pop(name, default) for name, (theirs, default) in SEARCH.items()}
    options["return_end_token"] = True  # because the length penalty counts it
    options["max_input_length"] = 0  # no silent truncation
    left_out = [[index] for index in settings.get("suppress_tokens") or ()] + (settings.get("bad_words_ids") or [])
    if left_out:
        options["suppress_sequences"] = [[target[index] for index in sequence] for sequence in left_out]
    left = {name: value for name, value in given.items() if name not in NOT_SEARCH}
    if options["beam_size"] > 1 and settings.get("early_stopping") is not True:
        # CTranslate2's search ends with as many outputs as beams
        left["early_stopping"] = settings.get("early_stopping") or False
    # It suppresses tokens before the softmax, transformers after it: hypotheses get other scores.
    for name, allowed in (("suppress_tokens", None), ("bad_words_ids", None), ("min_new_tokens", 1)):
        value = settings.get(name)
        if options["beam_size"] > 1 and value and value != allowed:
            left[name] = value
    return options, [f"{name}={value!r}" for name, value in sorted(left.items())]
