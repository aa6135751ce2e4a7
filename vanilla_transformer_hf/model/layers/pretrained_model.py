"""
The base class of every model of this package: how transformers initialises, opens, splits and quantizes them.
"""

from collections import ChainMap
from collections.abc import Callable
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers import initialization as init

from ..config.front_ends import check_class_of_front_end, input_name_of
from ..config.position_schemes import POSITION_SCHEMES
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from .attention_hooks import ATTENTION_FORWARDS, AttentionHooks
from .base_model import SharedBase, ShiftedLabels
from .dropout import Dropout
from .lora_targets import name_lora_targets
from .norms import TokenBatchNorm
from .position_hooks import TrainedPositionEncoding
from .shared_feed_forward import SharedFeedForward


def check_attention(config: VanillaTransformerConfig) -> None:
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


class VanillaTransformerPreTrainedModel(SharedBase):
    """
    The base class: how transformers initialises, splits, quantizes and records every model of this package.

    It is for `isinstance`; make objects of the classes that extend it.

    Example:

    ```python
    >>> from vanilla_transformer_hf import VanillaTransformerModel, VanillaTransformerPreTrainedModel
    >>> issubclass(VanillaTransformerModel, VanillaTransformerPreTrainedModel)
    True
    ```
    """

    config: VanillaTransformerConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = [
        "VanillaTransformerEncoderLayer",
        "VanillaTransformerDecoderLayer",
        "VanillaTransformerCausalLayer",
    ]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        if getattr(self, "reads_source", True):  # all but decoders
            self.main_input_name = input_name_of(config)
        if isinstance(self, ShiftedLabels):
            check_class_of_front_end(config, type(self))
        check_attention(config)
        # Not when this file is imported: importing PEFT creates tensors, and `train` must configure torch's allocator
        # first.
        name_lora_targets(config.model_type)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """
        Open a saved model, as in every transformers model.

        Raises:
            OSError: A weights file is truncated or damaged; safetensors' own message does not name the folder.
        """
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        except SafetensorError as error:
            raise OSError(
                f"{pretrained_model_name_or_path}: the weights are truncated or damaged ({error}); copy them again"
            ) from error

    def _init_weights(self, module: nn.Module) -> None:
        """
        Xavier-uniform projections (Glorot and Bengio 2010), queries, keys and values as one matrix; embeddings,
        learned positions and an untied output with deviation D^-0.5.
        """
        super()._init_weights(module)
        if isinstance(module, (TrainedPositionEncoding, AttentionHooks, TokenBatchNorm)):
            module.draw()
        elif isinstance(module, nn.Embedding) or module is self.get_output_embeddings():
            init.normal_(module.weight, std=module.weight.shape[-1] ** -0.5)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            init.xavier_uniform_(module.weight, gain=getattr(module, "init_gain", 1.0))


def forwards(*kinds: type[nn.Module]) -> ChainMap[type[nn.Module], Callable[..., Any]]:
    """
    The modules that a step of the search may replace, and their `forward`, for those of one kind of model; of
    attention also what is added to the table later.
    """
    others: tuple[type[nn.Module], ...] = (SharedFeedForward, Dropout, nn.Dropout)
    return ChainMap({kind: kind.forward for kind in (*kinds, *others)}, ATTENTION_FORWARDS)
