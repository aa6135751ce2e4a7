"""The fields of one stack, which the config has under names of their own for the encoder and for the decoder."""

from typing import Any

from .sharing import FEED_FORWARD_OWNERS, layer_order, layers_and_sets


# Attention -> the config's field with the heads that pruning has left in each layer with weights of its own.
HEAD_FIELDS = {attention: f"{attention}_heads_by_layer" for attention in ("encoder", "decoder", "cross")}
# Stacks -> their name in messages.
STACK_NAMES = {
    "encoder_decoder": "an encoder and a decoder",
    "encoder": "an encoder alone",
    "decoder": "a decoder alone",
}


def stack_of(attention: str) -> str:
    """The stack of "encoder", "decoder" or "cross" attention."""
    return "encoder" if attention == "encoder" else "decoder"


def most_heads(config: Any, attention: str) -> int:
    """The number of heads that the width of an attention is divided into, before any pruning."""
    return int(getattr(config, f"{stack_of(attention)}_attention_heads"))


def heads_of_layers(config: Any, attention: str) -> list[int]:
    """The number of heads of an attention, for each layer with its own weights."""
    sets = layers_and_sets(config, stack_of(attention))[1]
    return getattr(config, HEAD_FIELDS[attention]) or [most_heads(config, attention)] * sets


class StackSizes:
    """The fields of one stack, "encoder" or "decoder", of a config."""

    def __init__(self, config: Any, name: str) -> None:
        self.name, self.is_causal = name, name == "decoder"
        self.vocab_size: int = config.vocab_size if self.is_causal else config.source_vocab_size or config.vocab_size
        self.width: int = config.d_model if self.is_causal else config.encoder_d_model  # D
        # H, of which pruning has left `kept_heads` in each layer, or set of a layer's weights.
        self.heads, self.kept_heads = most_heads(config, name), heads_of_layers(config, name)
        self.layer_order = layer_order(config, name)  # for each layer, the index of its set of weights
        self.ffn_dim: int = getattr(config, f"{name}_ffn_dim")
        self.norm_position: str = getattr(config, f"{name}_norm_position")
        self.final_norm: bool = getattr(config, f"{name}_final_norm")
        self.residual_alpha: float = getattr(config, f"{name}_residual_alpha")
        # Of these, the encoder's fields are those without the name of a stack.
        prefix = "decoder_" if self.is_causal else ""
        self.activation_function: str = getattr(config, f"{prefix}activation_function")
        self.position_encoding: str = getattr(config, f"{prefix}position_encoding")
        self.longest: int = getattr(config, f"{prefix}max_position_embeddings")
        # What makes the first layer's input, the number of segments, and whether layers have a feed-forward.
        self.front_end: str = "tokens" if self.is_causal else config.front_end
        self.segments: int = 0 if self.is_causal else config.type_vocab_size
        self.has_feed_forward = getattr(FEED_FORWARD_OWNERS[config.feed_forward_sharing], name) != "nobody"


def check_stacks(config: Any, needed: str, model: str) -> None:
    """A `ValueError` if the config describes a model with other stacks than those of the class `model`."""
    if config.stacks != needed:
        raise ValueError(
            f"{model} has {STACK_NAMES[needed]}, and the config (is_encoder_decoder={config.is_encoder_decoder}, "
            f"is_decoder={config.is_decoder}) is of a model with {STACK_NAMES[config.stacks]}; open it with AutoModel"
        )
