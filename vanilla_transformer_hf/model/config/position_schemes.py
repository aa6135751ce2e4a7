"""
Position encodings in the config: a row each. `positions/` computes them.
"""

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


ROTARY: dict[str, Any] = {"options": ("rotary_base", "rotary_fraction")}
BUCKETS: dict[str, Any] = {"options": ("relative_buckets", "max_relative_distance")}
# `position_encoding` or `decoder_position_encoding` -> its row
POSITION_SCHEMES: dict[str, PositionScheme] = {
    "sinusoidal": PositionScheme(even_width=2),
    "sinusoidal_halves": PositionScheme(module="positions.absolute", even_width=2),
    "sinusoidal_halves_inclusive": PositionScheme(module="positions.absolute", even_width=4),
    "sinusoidal_grid": PositionScheme(module="positions.absolute", even_width=4),
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
    "hierarchical": PositionScheme(module="positions.absolute", options=("hierarchical_alpha",)),
}
