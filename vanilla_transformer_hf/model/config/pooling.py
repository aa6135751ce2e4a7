"""The config of an encoder that halves the length of its sequence between blocks of layers."""

from typing import Any

from .kinds import option_group
from .position_schemes import POSITION_SCHEMES


@option_group
class PoolingOptions:
    """
    Args:
        encoder_pooling (`list[int]`, *optional*): Layers of the encoder before each pooling, which halves the length:
            `[2, 2]` pools before the third and before the fifth layer (arXiv 2006.03236). The decoder attends to the
            short output.
    """

    encoder_pooling: list[int] | None = None


def check_pooling(config: Any) -> None:
    """
    Raises:
        ValueError: The encoder cannot pool at the layers of `encoder_pooling`, or not with its other fields.
    """
    if (blocks := config.encoder_pooling) is None:
        return
    name = f"encoder_pooling={blocks!r}"
    if not blocks or min(blocks) < 1 or sum(blocks) >= config.encoder_layers:
        raise ValueError(
            f"{name}: must be numbers of layers before each pooling, at least 1 each, together fewer than "
            f"encoder_layers={config.encoder_layers}"
        )
    if config.encoder_attention_type != "full":
        raise ValueError(
            f"{name} with encoder_attention_type={config.encoder_attention_type!r}: only full attention pools"
        )
    scheme = POSITION_SCHEMES[config.position_encoding]
    if scheme.is_relative or scheme.rotates:
        raise ValueError(
            f"{name} with position_encoding={config.position_encoding!r}: a mean of two tokens has no position; "
            "take an encoding that is added to the embeddings"
        )
    if config.encoder_layer_sets != config.encoder_layers:
        raise ValueError(
            f"{name} with encoder_layer_sets={config.encoder_layer_sets}: layers that pool have weights of their own"
        )
