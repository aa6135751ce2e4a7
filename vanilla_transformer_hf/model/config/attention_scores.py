"""How the score of a query and a key is computed, as far as the config needs to know it."""

from collections.abc import Callable
from typing import Any

from .attention_kinds import ATTENTION_KINDS
from .kept_heads import HEAD_FIELDS
from .position_schemes import POSITION_SCHEMES


# `attention_score` -> what a product of a query and a key is multiplied by, from their width d_k; additive scores are
# no products, and `attention/additive.py` computes them.
SCALES: dict[str, Callable[[int], float]] = {
    "scaled_dot": lambda d_k: d_k**-0.5,
    "dot": lambda d_k: 1.0,
    "additive": lambda d_k: 1.0,
}


def check_attention_score(config: Any) -> None:
    """
    Raises:
        ValueError: The score is of no product, or not of this product, and something else in the config needs one.
    """
    name = f"attention_score={config.attention_score!r}"
    kinds = {f"{stack}_attention_type": getattr(config, f"{stack}_attention_type") for stack in ("encoder", "decoder")}
    for field, kind in kinds.items():
        if config.attention_score != "scaled_dot" and not ATTENTION_KINDS[kind].has_keys:
            raise ValueError(
                f"{name} with {field}={kind!r}: its scores are not products of queries and keys; leave it out"
            )
    if config.attention_score == "additive":
        _check_additive(config, name, {**kinds, "cross_attention_type": config.cross_attention_type})


def _check_additive(config: Any, name: str, kinds: dict[str, str]) -> None:
    for field, kind in kinds.items():
        if kind != "full":
            raise ValueError(f"{name} with {field}={kind!r}: only full attention has it; leave one of them out")
    for field in ("position_encoding", "decoder_position_encoding"):
        scheme = POSITION_SCHEMES[encoding := getattr(config, field)]
        if scheme.is_relative or scheme.rotates:
            raise ValueError(
                f"{name} with {field}={encoding!r}: there are no products of queries and keys that it could change; "
                "take an encoding that is added to the embeddings"
            )
    if config.encoder_pooling is not None:
        raise ValueError(f"{name} with encoder_pooling: only encoders that do not pool have it; leave one of them out")
    for field in HEAD_FIELDS.values():
        if getattr(config, field) is not None:
            raise ValueError(f"{name} with {field}: each head has a vector of its own; leave {field} out")
