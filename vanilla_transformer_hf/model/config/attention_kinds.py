"""
Kinds of attention in the config: a row each. `attention/` computes them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from .kinds import Kind


@dataclass(frozen=True, kw_only=True)
class AttentionKind(Kind):
    """A row of a kind of attention."""

    # What is left out is that of a kind that changes only which keys a query sees, without scores for relative
    # positions.

    has_pairs: bool = False  # whether each query has a score of each key it sees, to which relative positions may add
    can_rotate: bool = True  # whether rotary encodings may rotate queries and keys; not if these are sums, or missing
    has_keys: bool = True  # whether it has a projection of keys
    has_head_parameters: bool = False  # whether heads have others beside the projections, which pruning would cut
    is_quadratic: bool = False  # whether its time grows with the square of the number of positions
    has_weights_of_full: bool = False  # whether they are those of full attention: either can be trained from the other
    not_in: Mapping[str, str] = field(default_factory=dict)  # stack -> why it cannot have this kind, and what to take


# `encoder_attention_type` or `decoder_attention_type` -> its row
ATTENTION_KINDS: dict[str, AttentionKind] = {
    "full": AttentionKind(has_pairs=True, is_quadratic=True, has_weights_of_full=True),
    "window": AttentionKind(
        module="attention.local", options=("attention_window",), has_pairs=True, has_weights_of_full=True
    ),
    "window_global": AttentionKind(
        module="attention.local_global",
        options=("attention_window", "global_tokens", "global_projections"),
        has_head_parameters=True,
        has_weights_of_full=True,  # with shared projections
    ),
    "blocks": AttentionKind(
        module="attention.local", options=("attention_block",), has_pairs=True, has_weights_of_full=True
    ),
    "chunk": AttentionKind(
        module="attention.local",
        options=("attention_block", "chunk_summary"),
        has_pairs=True,
        has_weights_of_full=True,
    ),
    "linformer": AttentionKind(
        module="attention.linformer",
        options=("linformer_k",),
        can_rotate=False,
        not_in={
            "decoder": (
                "its sums cover all positions, so that a token would see those after it; take another type, such as "
                "'performer' or 'window'"
            )
        },
    ),
    "lsh": AttentionKind(
        module="attention.lsh",
        options=("lsh_buckets", "lsh_rounds", "lsh_chunk", "lsh_seed"),
        has_keys=False,  # queries serve as keys
    ),
    "performer": AttentionKind(module="attention.performer", options=("performer_features", "performer_redraw")),
    "recurrent": AttentionKind(
        module="attention.segment_memory",
        options=("memory_length",),
        has_head_parameters=True,
        not_in={"encoder": "a memory of what was read before is the decoder's; take another type, such as 'window'"},
    ),
    **dict.fromkeys(
        ("synthesizer_dense", "synthesizer_random"),
        AttentionKind(
            module="attention.synthesizer",
            can_rotate=False,
            has_keys=False,
            has_head_parameters=True,
            is_quadratic=True,
        ),
    ),
}

# The same of `cross_attention_type`, and kinds that no field names by itself.
CROSS_KINDS = {"full": Kind(), "linformer": Kind(module="attention.linformer")}
OTHER_KINDS = {"additive": Kind(module="attention.additive"), "pooling": Kind(module="attention.pooling")}
# `attention_score` -> what a product of a query and a key is multiplied by, from their width d_k; additive scores are
# no products, and `attention/additive.py` computes them.
SCALES: dict[str, Callable[[int], float]] = {
    "scaled_dot": lambda d_k: d_k**-0.5,
    "dot": lambda d_k: 1.0,
    "additive": lambda d_k: 1.0,
}


def attention_kind(config: Any, part: str, place: int) -> str:
    """The kind of a layer's attention: in `part` "encoder" or "decoder", or from one to the other ("cross")."""
    if config.attention_score == "additive":
        return "additive"
    if part == "encoder" and place in pooling_layers(config):
        return "pooling"
    kind: str = getattr(config, f"{part}_attention_type")
    return kind


def pooling_layers(config: Any) -> list[int]:
    """The numbers of the layers before which the sequence is pooled: 2 and 4 with `encoder_pooling=[2, 2]`."""
    return [*accumulate(config.encoder_pooling or [])]


def attends_to_pieces(config: Any, part: str) -> bool:
    """Whether weights of "encoder", "decoder" or "cross" attention are those of tokens."""
    # Linformer's are of sums, and those of an encoder that pools are of means.
    is_pooled = part != "decoder" and bool(getattr(config, "encoder_pooling", None))
    return getattr(config, f"{part}_attention_type", "full") != "linformer" and not is_pooled
