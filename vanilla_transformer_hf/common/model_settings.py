"""
Types and bounds of the settings that come with a model, in generation_config.json and tokenizer_config.json.

transformers takes any value from these files and fails, or takes all memory, where it is used: 10⁹ beams, "4" beams.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.tokenizer.limits import LONGEST_PIECE, MOST_ADDED
from .settings import read_json


LARGEST_LENGTH = 2**20  # tokens
MOST_BEAMS = 1_024
LARGEST_ID = 2**24
DEEPEST_IDS = 3
LARGEST_SIDE = 4_096  # pixels


@dataclass(frozen=True)
class Kind:
    """What a field may hold, in words, and the test of it."""

    expected: str
    holds: Callable[[Any], bool]


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _are_ids(value: Any, depth: int = 0) -> bool:
    """Whether it is an id, or a list of ids, or a list of lists."""
    if isinstance(value, list) and depth < DEEPEST_IDS:
        return len(value) <= LARGEST_LENGTH and all(_are_ids(each, depth + 1) for each in value)
    return _is_whole(value, -1, LARGEST_ID) or (depth > 0 and value is None)


def _is_token(value: Any) -> bool:
    content = value.get("content") if isinstance(value, dict) else value
    return isinstance(content, str) and len(content) <= LONGEST_PIECE


def _are_tokens(value: Any) -> bool:
    values = list(value.values()) if isinstance(value, dict) and "content" not in value else value
    return isinstance(values, list) and len(values) <= MOST_ADDED and all(map(_is_token, values))


def _are_classes(value: Any) -> bool:
    """Whether it names classes: one, or that of a slow tokenizer and of a fast one, either of which may be missing."""
    values = value if isinstance(value, list) else [value]
    return 1 <= len(values) <= 2 and all(each is None or isinstance(each, str) for each in values)


def _whole(least: int, most: int) -> Kind:
    return Kind(f"an integer from {least:,} to {most:,}", lambda value: _is_whole(value, least, most))


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a finite number", _is_number)
IDS = Kind(f"ids of at most {LARGEST_ID:,}", _are_ids)
TEXT = Kind("a text", lambda value: isinstance(value, str))
MAPPING = Kind("a JSON object", lambda value: isinstance(value, dict))
CLASSES = Kind(
    "names of classes by Auto class", lambda value: isinstance(value, dict) and all(map(_are_classes, value.values()))
)
CLASSES_OF_TOKENIZER = Kind(
    f"{CLASSES.expected}, or a list of two",
    lambda value: CLASSES.holds(value) or (isinstance(value, list) and _are_classes(value)),
)
# transformers would run attention by a kernel of the Hub, which is somebody's code.
NO_KERNEL = Kind("the name of an implementation, not of code on the Hub", lambda value: "/" not in json.dumps(value))
TEXTS = Kind("a list of texts", lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value))
TOKEN = Kind(f"a text of at most {LONGEST_PIECE:,} characters", _is_token)
TOKENS = Kind(f"at most {MOST_ADDED:,} tokens of at most {LONGEST_PIECE:,} characters", _are_tokens)

GENERATION: dict[str, Kind] = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "num_beam_groups"), _whole(1, MOST_BEAMS)),
    **dict.fromkeys(("max_length", "max_new_tokens", "max_extra_tokens"), _whole(0, LARGEST_LENGTH)),
    **dict.fromkeys(("min_length", "min_new_tokens", "top_k", "prompt_lookup_num_tokens"), _whole(0, LARGEST_LENGTH)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), _whole(0, LARGEST_LENGTH)),
    **dict.fromkeys(("do_sample", "use_cache", "renormalize_logits", "remove_invalid_values"), FLAG),
    **dict.fromkeys(("output_scores", "output_logits", "output_attentions", "output_hidden_states"), FLAG),
    **dict.fromkeys(("return_dict_in_generate", "token_healing"), FLAG),
    **dict.fromkeys(("length_penalty", "repetition_penalty", "encoder_repetition_penalty", "temperature"), NUMBER),
    **dict.fromkeys(("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "diversity_penalty"), NUMBER),
    **dict.fromkeys(("coverage_penalty", "guidance_scale", "penalty_alpha", "max_time"), NUMBER),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), IDS),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"), IDS),
    **dict.fromkeys(("bad_words_ids", "force_words_ids", "decoder_prompt_ids"), IDS),
    "length_penalty_type": TEXT,
    "early_stopping": Kind('true, false or "never"', lambda value: isinstance(value, bool) or value == "never"),
}
TOKENIZER: dict[str, Kind] = {
    "model_max_length": Kind("a number of at least 1", lambda value: _is_number(value) and value >= 1),
    **dict.fromkeys(("listed_pieces", "source_listed_pieces"), _whole(0, LARGEST_ID)),
    **dict.fromkeys(("separate_vocabularies", "split_special_tokens", "clean_up_tokenization_spaces"), FLAG),
    "auto_map": CLASSES_OF_TOKENIZER,
    **dict.fromkeys(("src_lang", "tgt_lang", "tokenizer_class"), TEXT),
    **dict.fromkeys(
        ("pad_token", "eos_token", "bos_token", "unk_token", "mask_token", "sep_token", "cls_token"), TOKEN
    ),
    **dict.fromkeys(("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"), TOKENS),
}
# Of a feature extractor or an image processor: what makes filters and windows, and the sizes of its pictures.
_SIZE = Kind(
    f"at most {LARGEST_SIDE:,} pixels",
    lambda value: all(
        _is_whole(each, 1, LARGEST_SIDE)
        for each in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value])
    ),
)
_SHORT = Kind("a number from 0.01 to 1,000", lambda value: _is_number(value) and 0.01 <= value <= 1000)
PROCESSOR: dict[str, Kind] = {
    **dict.fromkeys(("feature_size", "num_mel_bins"), _whole(1, 1024)),
    **dict.fromkeys(("n_fft", "fft_length", "win_length", "hop_length", "frame_length"), _whole(1, 2**14)),
    **dict.fromkeys(("window_ms", "hop_ms"), _SHORT),
    **dict.fromkeys(("size", "pad_size", "crop_size"), _SIZE),
    "sampling_rate": _whole(1, 2**18),
    "n_samples": _whole(1, 2**25),
    "nb_max_frames": _whole(1, 2**20),
    "chunk_length": Kind("at most 120 seconds", lambda value: _is_number(value) and 0 < value <= 120),
}
FILES = {
    **dict.fromkeys(("preprocessor_config.json", "processor_config.json"), PROCESSOR),
    "generation_config.json": GENERATION,
    "tokenizer_config.json": TOKENIZER,
    "special_tokens_map.json": TOKENIZER,
    "config.json": {
        **{"model_type": TEXT, "architectures": TEXTS, "auto_map": CLASSES, "task_specific_params": MAPPING},
        **dict.fromkeys(("attn_implementation", "_attn_implementation", "experts_implementation"), NO_KERNEL),
    },
}


def check_model_settings(folder: Path) -> None:
    """Check the settings in a model's folder; null is as good as no value, and fields of others are not looked at."""
    for name, kinds in FILES.items():
        if not (folder / name).exists():
            continue
        content = read_json(folder / name)
        if not isinstance(content, dict):
            raise ValueError(f"{folder / name}: expected a JSON object, got {type(content).__name__}")
        parts = [each for each in content.values() if isinstance(each, dict)] if kinds is PROCESSOR else []
        for part in (content, *parts):
            for field, kind in kinds.items():
                value = part.get(field)
                if value is not None and not kind.holds(value):
                    shown = repr(value)
                    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
                    raise ValueError(f"{folder / name}: {field}={shown}: expected {kind.expected}")
