"""
Weights that several parts of a model share.

A shared matrix belongs to one module under one name, and the other modules look it up there. So it is saved, loaded,
counted, averaged, sharded and adapted once, and its gradients are summed, without special code elsewhere. Tied
parameters (transformers' `_tied_weights_keys`) would not do: LoRA puts an adapter around each of their names, FSDP2
finds one parameter in the groups of several layers, and `tie_word_embeddings=False` unties them.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple


# Layers: (sets of weights, layers) -> the set of each layer ----------------------------------------------------------
def in_sequence(sets: int, layers: int) -> list[int]:
    """A A B B C C: SEQUENCE of Takase and Kiyono 2021, arXiv 2104.06022, section 2."""
    return [layer * sets // layers for layer in range(layers)]


def in_cycles(sets: int, layers: int) -> list[int]:
    """A B C A B C: CYCLE of the same. With one set, each layer is the same, as in Universal Transformers."""
    return [layer % sets for layer in range(layers)]


def in_cycles_and_back(sets: int, layers: int) -> list[int]:
    """A B C C B A: CYCLE (REV) of the same, whose last cycle runs backwards."""
    last = max(sets, (layers - 1) // sets * sets)
    return [layer % sets if layer < last else sets - 1 - layer % sets for layer in range(layers)]


LAYER_SHARING: dict[str, Callable[[int, int], list[int]]] = {
    "sequence": in_sequence,
    "cycle": in_cycles,
    "cycle_reverse": in_cycles_and_back,
}


def layers_and_sets(config: Any, stack: str) -> tuple[int, int]:
    """N layers of a stack, "encoder" or "decoder", and its M sets of weights."""
    return getattr(config, f"{stack}_layers"), getattr(config, f"{stack}_layer_sets")


def layer_order(config: Any, stack: str) -> list[int]:
    """For each layer of a stack, the index of its set of weights."""
    layers, sets = layers_and_sets(config, stack)
    return LAYER_SHARING[config.layer_sharing](sets, layers)


# Attention: the projections that make queries, keys and values. The remaining names are LoRA's default targets. ------
# K = V, Q = K and Q = K = V, which arXiv 2606.04032 compares. Q = K is Reformer's (Kitaev et al. 2020, arXiv
# 2001.04451), without its norm of the keys.
PROJECTIONS: dict[str, tuple[str, str, str]] = {
    "none": ("q_proj", "k_proj", "v_proj"),
    "key_value": ("q_proj", "v_proj", "v_proj"),
    "query_key": ("q_proj", "q_proj", "v_proj"),
    "query_key_value": ("q_proj", "q_proj", "q_proj"),
}


# Feed-forward: its owner for the encoder's layers, and for the decoder's ---------------------------------------------
class FeedForwardOwners(NamedTuple):
    """Who has the feed-forward of a stack's layers: they, the stack, or for the decoder the encoder, or "nobody"."""

    encoder: Literal["layer", "stack"]
    decoder: Literal["layer", "stack", "encoder", "nobody"]


# `feed_forward_type` -> the projections from D to d_ff that it has beside `fc2`.
INNER_PROJECTIONS = {"dense": ["fc1"], "gated": ["fc1", "fc3"]}
# "encoder_only" is the one wide feed-forward of Pires et al. 2023, arXiv 2309.01826.
FEED_FORWARD_OWNERS: dict[str, FeedForwardOwners] = {
    "none": FeedForwardOwners(encoder="layer", decoder="layer"),
    "stack": FeedForwardOwners(encoder="stack", decoder="stack"),
    "all": FeedForwardOwners(encoder="stack", decoder="encoder"),
    "encoder_only": FeedForwardOwners(encoder="stack", decoder="nobody"),
}
