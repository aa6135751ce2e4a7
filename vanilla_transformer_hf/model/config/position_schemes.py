"""
Position encodings in the config: a row each. `positions/` computes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .kinds import Kind


# Default of `max_relative_distance` of each of them.
SHAW_DISTANCE, T5_DISTANCE = 20, 128


@dataclass(frozen=True, kw_only=True)
class PositionScheme(Kind):
    """A row of a position encoding."""

    is_relative: bool = False  # whether it acts on pairs of a query and a key, as its class says, too
    # Whether a relative scheme has something for each head, which all layers share: then none can have fewer heads.
    has_heads: bool = True
    rotates: bool = False  # whether it rotates queries and keys
    even_width: int = 1  # the least width, an even number, that it can be added to; 1: any width


def stack_fields(config: Any, stack: str) -> tuple[str, str, int, int]:
    """Of a stack: the field and the value of its position encoding, its heads, and the width of one head."""
    name = "position_encoding" if stack == "encoder" else "decoder_position_encoding"
    width = config.encoder_d_model if stack == "encoder" else config.d_model
    heads = getattr(config, f"{stack}_attention_heads")
    return name, getattr(config, name), heads, config.d_k or width // heads


def rotary_conflicts(config: Any, stack: str) -> Iterator[str]:
    if config.rotary_fraction > 1:
        yield f"rotary_fraction={config.rotary_fraction!r}: must be greater than 0 and at most 1"
    name, kind, _, head_width = stack_fields(config, stack)
    if int(head_width * config.rotary_fraction) < 2:
        yield (
            f"{name}={kind!r}: heads of {head_width} features and rotary_fraction={config.rotary_fraction} "
            "leave no pair of features to turn; take fewer heads"
        )


def bucket_conflicts(config: Any, stack: str) -> Iterator[str]:
    if config.relative_buckets % 4:
        yield f"relative_buckets={config.relative_buckets}: must be a multiple of 4"
    distance = config.max_relative_distance or T5_DISTANCE
    if distance <= config.relative_buckets // 2:
        yield (
            f"max_relative_distance={distance}: must be greater than half of "
            f"relative_buckets={config.relative_buckets}"
        )


def hierarchy_conflicts(config: Any, stack: str) -> Iterator[str]:
    if not 0 < config.hierarchical_alpha < 1 or config.hierarchical_alpha == 0.5:
        yield (
            f"hierarchical_alpha={config.hierarchical_alpha!r}: must be greater than 0, less than 1, and not 0.5, "
            "with which positions n·i + j and n·j + i would be the same"
        )


def grid_conflicts(config: Any, stack: str) -> Iterator[str]:
    name, kind, *_ = stack_fields(config, stack)
    if stack == "decoder" or config.front_end != "image":
        yield (
            f"{name}={kind!r}: only the encoder of an image has rows and columns; set another {name} or, in a model "
            "of images, another decoder_position_encoding"
        )
    if config.encoder_d_model % 4:
        yield f"d_model={config.encoder_d_model}: {name}={kind!r} needs a multiple of 4"


ROTARY: dict[str, Any] = {"options": ("rotary_base", "rotary_fraction"), "conflicts": rotary_conflicts}
BUCKETS: dict[str, Any] = {"options": ("relative_buckets", "max_relative_distance"), "conflicts": bucket_conflicts}
# `position_encoding` or `decoder_position_encoding` -> its row
POSITION_SCHEMES: dict[str, PositionScheme] = {
    "sinusoidal": PositionScheme(even_width=2),
    "sinusoidal_halves": PositionScheme(module="positions.absolute", even_width=2),
    "sinusoidal_halves_inclusive": PositionScheme(module="positions.absolute", even_width=4),
    "sinusoidal_grid": PositionScheme(module="positions.absolute", conflicts=grid_conflicts, even_width=4),
    "learned": PositionScheme(module="positions.absolute"),
    "none": PositionScheme(),
    "rotary": PositionScheme(module="positions.absolute", **ROTARY, rotates=True),
    "rotary_halves": PositionScheme(module="positions.absolute", **ROTARY, rotates=True),
    "t5_bias": PositionScheme(module="positions.relative", **BUCKETS, is_relative=True),
    "alibi": PositionScheme(module="positions.relative", is_relative=True),
    "shaw": PositionScheme(
        module="positions.relative", options=("max_relative_distance",), is_relative=True, has_heads=False
    ),
    "gated_alibi": PositionScheme(module="positions.relative", is_relative=True),
    "distance_mlp": PositionScheme(module="positions.relative", is_relative=True),
    "hierarchical": PositionScheme(
        module="positions.absolute", options=("hierarchical_alpha",), conflicts=hierarchy_conflicts
    ),
}


def check_kernel_of_positions(config: Any) -> None:
    """A `ValueError` if `attn_implementation` is a fused kernel that cannot add the scores of the positions."""
    name = config._attn_implementation or ""
    for field in ("position_encoding", "decoder_position_encoding"):
        encoding = str(getattr(config, field))
        if name.startswith(("flash", "flex")) and POSITION_SCHEMES[encoding].is_relative:
            raise ValueError(
                f"attn_implementation={name!r} with {field}={encoding!r}: this kernel cannot add the scores of the "
                "position encoding; set attn_implementation to 'eager' or 'sdpa'"
            )
