"""
Position encodings in the config: a row each, and their options. `positions/` computes them.
"""

from dataclasses import dataclass
from typing import Any

from .kinds import Kind, any_number, option_group, users_of_options


# Default of `max_relative_distance` of each of them.
SHAW_DISTANCE, T5_DISTANCE = 20, 128


@dataclass(frozen=True, kw_only=True)
class PositionScheme(Kind):
    """
    Attributes:
        is_relative: Whether it acts on pairs of a query and a key, as its class says, too.
        has_heads: Whether a relative scheme has something for each head, which all layers share: then no layer can
            have fewer heads.
        rotates: Whether it rotates queries and keys.
        even_width: The least width, an even number, that it can be added to; 1: any width.
    """

    is_relative: bool = False
    has_heads: bool = True
    rotates: bool = False
    even_width: int = 1


def stack_fields(config: Any, stack: str) -> tuple[str, str, int, int]:
    """Of a stack: the field and the value of its position encoding, its heads, and the width of one head."""
    name = "position_encoding" if stack == "encoder" else "decoder_position_encoding"
    width = config.encoder_d_model if stack == "encoder" else config.d_model
    heads = getattr(config, f"{stack}_attention_heads")
    return name, getattr(config, name), heads, config.d_k or width // heads


# ---------------------------------------------------------------------------------------------------------------------
# Options
# ---------------------------------------------------------------------------------------------------------------------


@option_group
class RotaryOptions:
    """
    Args:
        rotary_base (`float`): Base of the angles of rotary encodings.
        rotary_fraction (`float`): Share of each head's features that rotary encodings turn.
    """

    rotary_base: float | int = 10000.0
    rotary_fraction: float | int = 1.0


def check_rotary(config: Any, stack: str) -> None:
    if config.rotary_fraction > 1:
        raise ValueError(f"rotary_fraction={config.rotary_fraction!r}: must be greater than 0 and at most 1")
    name, kind, _, head_width = stack_fields(config, stack)
    if int(head_width * config.rotary_fraction) < 2:
        raise ValueError(
            f"{name}={kind!r}: heads of {head_width} features and rotary_fraction={config.rotary_fraction} "
            "leave no pair of features to turn; take fewer heads"
        )


@option_group
class BucketOptions:
    """
    Args:
        relative_buckets (`int`): Rows of the table of `"t5_bias"`.
    """

    relative_buckets: int = 32


def check_buckets(config: Any, stack: str) -> None:
    if config.relative_buckets % 4:
        raise ValueError(f"relative_buckets={config.relative_buckets}: must be a multiple of 4")
    distance = config.max_relative_distance or T5_DISTANCE
    if distance <= config.relative_buckets // 2:
        raise ValueError(
            f"max_relative_distance={distance}: must be greater than half of "
            f"relative_buckets={config.relative_buckets}"
        )


@option_group
class DistanceOptions:
    """
    Args:
        max_relative_distance (`int`, *optional*): Distance beyond which `"shaw"` and `"t5_bias"` treat all distances
            alike; 20 and 128 if not given.
    """

    max_relative_distance: int | None = None


@option_group
class HierarchyOptions:
    """
    Args:
        hierarchical_alpha (`float`): Weight α of the coarse position in `"hierarchical"` encodings; must not be 0.5.
    """

    hierarchical_alpha: float | int = any_number(0.4)


def check_hierarchy(config: Any, stack: str) -> None:
    if not 0 < config.hierarchical_alpha < 1 or config.hierarchical_alpha == 0.5:
        raise ValueError(
            f"hierarchical_alpha={config.hierarchical_alpha!r}: must be greater than 0, less than 1, and not 0.5, "
            "with which positions n·i + j and n·j + i would be the same"
        )


def check_grid(config: Any, stack: str) -> None:
    name, kind, *_ = stack_fields(config, stack)
    if stack == "decoder" or config.front_end != "image":
        raise ValueError(
            f"{name}={kind!r}: only the encoder of an image has rows and columns; set another {name} or, in a model "
            "of images, another decoder_position_encoding"
        )
    if config.encoder_d_model % 4:
        raise ValueError(f"d_model={config.encoder_d_model}: {name}={kind!r} needs a multiple of 4")


# ---------------------------------------------------------------------------------------------------------------------
# Rows: `position_encoding` or `decoder_position_encoding` -> its row
# ---------------------------------------------------------------------------------------------------------------------

POSITION_SCHEMES: dict[str, PositionScheme] = {
    "sinusoidal": PositionScheme(about="sines and cosines interleaved (section 3.5)", even_width=2),
    "sinusoidal_halves": PositionScheme(
        module="positions.absolute", about="the sines, then the cosines", even_width=2
    ),
    "sinusoidal_halves_inclusive": PositionScheme(
        module="positions.absolute",
        about=(
            "the same with frequencies 10000^(-i/(d_model/2 - 1)), which reach 1/10000 itself, as in tensor2tensor "
            "and fairseq"
        ),
        even_width=4,
    ),
    "sinusoidal_grid": PositionScheme(
        module="positions.grid",
        about="of an image's patches: sinusoids of the row in half of the features, of the column in the others",
        check=check_grid,
        even_width=4,
    ),
    "learned": PositionScheme(module="positions.absolute", about="a trained vector per position (Table 3, row E)"),
    "none": PositionScheme(about="no positions"),
    "rotary": PositionScheme(
        module="positions.absolute",
        about="queries and keys rotated by their positions, neighbouring features together (arXiv 2104.09864)",
        options=(RotaryOptions,),
        check=check_rotary,
        rotates=True,
    ),
    "rotary_halves": PositionScheme(
        module="positions.absolute",
        about="the same with the features i and i + d_k/2 together, as in Llama",
        options=(RotaryOptions,),
        check=check_rotary,
        rotates=True,
    ),
    "t5_bias": PositionScheme(
        module="positions.relative",
        about="a trained number for each head and distance added to the scores (arXiv 1910.10683)",
        options=(BucketOptions, DistanceOptions),
        check=check_buckets,
        is_relative=True,
    ),
    "alibi": PositionScheme(
        module="positions.relative",
        about="the distance times a slope for each head subtracted from the scores (arXiv 2108.12409)",
        is_relative=True,
    ),
    "shaw": PositionScheme(
        module="positions.relative",
        about="trained vectors of each distance added to keys and values (arXiv 1803.02155)",
        options=(DistanceOptions,),
        is_relative=True,
        has_heads=False,
    ),
    "gated_alibi": PositionScheme(
        module="positions.relative",
        about=(
            "the logarithms of gates, made of the states between query and key, added to the scores (arXiv 2503.02130)"
        ),
        is_relative=True,
    ),
    "distance_mlp": PositionScheme(
        module="positions.relative",
        about="the output of a small network of the distance added to the scores (arXiv 2108.00154)",
        is_relative=True,
    ),
    "hierarchical": PositionScheme(
        module="positions.absolute",
        about='`"learned"` with n² positions from n = max_position_embeddings vectors (Su 2020)',
        options=(HierarchyOptions,),
        check=check_hierarchy,
    ),
}


def check_positions_of_stacks(config: Any) -> None:
    """
    Raises:
        ValueError: A position encoding does not fit the sizes of its stack, or an option is set that none uses.
    """
    used = config.position_encoding, config.decoder_position_encoding
    for name, schemes in users_of_options(POSITION_SCHEMES).items():
        value, default = getattr(config, name), getattr(type(config), name)
        if value != default and not {*schemes} & {*used}:
            raise ValueError(
                f"{name}={value!r}: only position_encoding={' or '.join(map(repr, schemes))} has it, and here it "
                f"is {used[0]!r}, in the decoder {used[1]!r}; leave {name} out, or set such a scheme"
            )
    for stack, kind in zip(("encoder", "decoder"), used):
        POSITION_SCHEMES[kind].check(config, stack)


def check_width_of_positions(config: Any) -> None:
    """
    Raises:
        ValueError: Sinusoids are added to embeddings of an odd width, or one that is too small.
    """
    encoder_width = "d_model" if config.encoder_d_model == config.d_model else "encoder_d_model"
    for width, name in ((encoder_width, "position_encoding"), ("d_model", "decoder_position_encoding")):
        size, kind = getattr(config, width), getattr(config, name)
        least = POSITION_SCHEMES[kind].even_width
        if least > 1 and (size % 2 or size < least):
            raise ValueError(f"{width}={size}: {name}={kind!r} needs an even one of at least {least}")


def check_kernel_of_positions(config: Any) -> None:
    """
    Raises:
        ValueError: The attention implementation is a fused kernel that cannot add the scores of the position encoding.
    """
    name = config._attn_implementation or ""
    for field in ("position_encoding", "decoder_position_encoding"):
        encoding = str(getattr(config, field))
        if name.startswith(("flash", "flex")) and POSITION_SCHEMES[encoding].is_relative:
            raise ValueError(
                f"attn_implementation={name!r} with {field}={encoding!r}: this kernel cannot add the scores of the "
                "position encoding; set attn_implementation to 'eager' or 'sdpa'"
            )
