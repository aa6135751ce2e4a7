"""
Weights that several parts of a model share.

A shared matrix belongs to one module under one name, and the other modules look it up there. So it is saved, loaded,
counted, averaged, sharded and adapted once, and its gradients are summed, without special code elsewhere. Tied
parameters (transformers' `_tied_weights_keys`) would not do: LoRA puts an adapter around each of their names, FSDP2
finds one parameter in the groups of several layers, and `tie_word_embeddings=False` unties them.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from .kinds import option_group


@option_group
class SharingOptions:
    """
    Args:
        encoder_layer_sets, decoder_layer_sets (`int`, *optional*): M, the sets of weights of each stack's layers; as
            many as layers if not given. With one set, all layers are the same, as in Universal Transformers.
        layer_sharing (`str`): Which layers share a set, with fewer sets than layers (arXiv 2104.06022): `"sequence"`:
            A A B B C C; `"cycle"`: A B C A B C; `"cycle_reverse"`: A B C C B A.
        feed_forward_sharing (`str`): `"none"`: each set of a layer's weights has a feed-forward; `"stack"`: one for
            all layers of a stack; `"all"`: one for all layers of both; `"encoder_only"`: one for all layers of the
            encoder, none in the decoder (arXiv 2309.01826).
        projection_sharing (`str`): `"none"`: W^Q, W^K and W^V; `"key_value"`: W^K = W^V; `"query_key"`: W^Q = W^K;
            `"query_key_value"`: one matrix for all three. In each attention of both stacks.
        decoder_attention_sharing (`bool`): Whether self-attention and cross-attention of a decoder layer share their
            weights (but not their norms).
    """

    encoder_layer_sets: int | None = None
    decoder_layer_sets: int | None = None
    layer_sharing: Literal["sequence", "cycle", "cycle_reverse"] = "sequence"
    feed_forward_sharing: Literal["none", "stack", "all", "encoder_only"] = "none"
    projection_sharing: Literal["none", "key_value", "query_key", "query_key_value"] = "none"
    decoder_attention_sharing: bool = False


# ---------------------------------------------------------------------------------------------------------------------
# Layers: (sets of weights, layers) -> the set of each layer
# ---------------------------------------------------------------------------------------------------------------------


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
    if stack == "encoder":
        return config.encoder_layers, config.encoder_layer_sets
    return config.decoder_layers, config.decoder_layer_sets


def layer_order(config: Any, stack: str) -> list[int]:
    """For each layer of a stack, the index of its set of weights."""
    layers, sets = layers_and_sets(config, stack)
    return LAYER_SHARING[config.layer_sharing](sets, layers)


# ---------------------------------------------------------------------------------------------------------------------
# Attention: the projections that make queries, keys and values. The remaining names are LoRA's default targets.
# ---------------------------------------------------------------------------------------------------------------------

# K = V, Q = K and Q = K = V, which arXiv 2606.04032 compares. Q = K is Reformer's (Kitaev et al. 2020, arXiv
# 2001.04451), without its norm of the keys.
PROJECTIONS: dict[str, tuple[str, str, str]] = {
    "none": ("q_proj", "k_proj", "v_proj"),
    "key_value": ("q_proj", "v_proj", "v_proj"),
    "query_key": ("q_proj", "q_proj", "v_proj"),
    "query_key_value": ("q_proj", "q_proj", "q_proj"),
}

# `global_projections` -> what precedes the names of projections for global tokens.
GLOBAL_PROJECTIONS: dict[str, str] = {"separate": "global_", "shared": ""}


# ---------------------------------------------------------------------------------------------------------------------
# Feed-forward: its owner for the encoder's layers, and for the decoder's
# ---------------------------------------------------------------------------------------------------------------------


class FeedForwardOwners(NamedTuple):
    """
    What owns the feed-forward of each stack's layers: the layer itself, the stack, or, for the decoder's, the encoder.
    With "nobody" the decoder's layers have none.
    """

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


# ---------------------------------------------------------------------------------------------------------------------
# Checks
# ---------------------------------------------------------------------------------------------------------------------


def check_sharing(config: Any) -> None:
    """
    Raises:
        ValueError: The config's sharing is impossible or has no effect.
    """
    fewer = False
    for stack in ("encoder", "decoder"):
        layers, sets = layers_and_sets(config, stack)
        if not 0 < sets <= layers:
            raise ValueError(f"{stack}_layer_sets={sets}: must be at least 1 and at most {stack}_layers={layers}")
        fewer |= sets < layers
    if config.layer_sharing != "sequence" and not fewer:
        raise ValueError(
            f"layer_sharing={config.layer_sharing!r} shares nothing while each layer has weights of its own: set "
            f"encoder_layer_sets to less than {config.encoder_layers} or decoder_layer_sets to less than "
            f"{config.decoder_layers}"
        )
    kind = config.projection_sharing
    _, key, value = PROJECTIONS[kind]
    for stack, width in (("encoder", config.encoder_d_model), ("decoder", config.d_model)):
        heads = getattr(config, f"{stack}_attention_heads")
        d_k, d_v = config.d_k or width // heads, config.d_v or width // heads
        if key == value and d_k != d_v:
            raise ValueError(
                f"projection_sharing={kind!r} with keys of width {d_k} and values of width {d_v} in the {stack}: one "
                "projection cannot make both; set d_k and d_v to one width"
            )
    if config.encoder_d_model != config.d_model:
        _check_widths(config)
    activations = config.activation_function, config.decoder_activation_function
    if config.feed_forward_sharing == "all" and activations[0] != activations[1]:
        raise ValueError(
            f"feed_forward_sharing='all' with activation_function={activations[0]!r} and "
            f"decoder_activation_function={activations[1]!r}: one feed-forward has only one; take one, or 'stack'"
        )
    if config.feed_forward_sharing == "all" and config.encoder_ffn_dim != config.decoder_ffn_dim:
        raise ValueError(
            f"feed_forward_sharing='all' with encoder_ffn_dim={config.encoder_ffn_dim} and "
            f"decoder_ffn_dim={config.decoder_ffn_dim}: one feed-forward cannot have two widths; set them to one "
            "width, or take 'stack'"
        )


def _check_widths(config: Any) -> None:
    query, key, _ = PROJECTIONS[config.projection_sharing]
    for is_shared, name, instead in (
        (query == key, "projection_sharing", "'none' or 'key_value'"),
        (config.decoder_attention_sharing, "decoder_attention_sharing", "False"),
        (config.feed_forward_sharing == "all", "feed_forward_sharing", "'stack'"),
    ):
        if is_shared:
            raise ValueError(
                f"{name}={getattr(config, name)!r} with encoder_d_model={config.encoder_d_model} and "
                f"d_model={config.d_model}: one matrix cannot read states of two widths; take {instead}, or one width"
            )
