"""The base of models with one stack: the config of that stack alone, and its embeddings."""

import copy
from typing import Any, ClassVar, Literal

from ..config.sharing import layers_and_sets
from ..config.stacks import check_stacks
from ..configuration_vanilla_transformer import FOLLOWERS, VanillaTransformerConfig
from ..layers.base_model import SharedEmbeddings, VanillaTransformerPreTrainedModel


def of_one_stack(
    config: VanillaTransformerConfig, stack: Literal["encoder", "decoder"], model: str
) -> VanillaTransformerConfig:
    """The config of one stack: a copy in which the other stack's fields have equal values, or itself."""
    # So common names, such as `num_hidden_layers`, refer to this stack. A `ValueError` if the config describes the
    # other stack only; or the decoder's layers use a feed-forward that belongs to the encoder.
    if not config.is_encoder_decoder:
        check_stacks(config, stack, model)
        return config
    if stack == "decoder" and config.feed_forward_sharing == "all":
        raise ValueError(
            f"{model} with feed_forward_sharing='all': that feed-forward belongs to the encoder; take 'stack', "
            "with which the decoder has one of its own"
        )
    config = copy.deepcopy(config)
    if stack == "encoder":
        width: Any = config.encoder_d_model
        config.d_model, config.vocab_size = width, config.source_vocab_size or config.vocab_size
        config.decoder_start_token_id = config.pad_token_id
    config.encoder_d_model, config.source_vocab_size = config.d_model, None
    other = "decoder" if stack == "encoder" else "encoder"
    for name in type(config).__annotations__:
        prefix, _, rest = name.partition("_")
        if prefix == other and hasattr(config, f"{stack}_{rest}"):
            setattr(config, name, getattr(config, f"{stack}_{rest}"))
    for follower, followed in FOLLOWERS.items():
        if follower == f"decoder_{followed}":
            name, own = (follower, followed) if stack == "encoder" else (followed, follower)
            setattr(config, name, getattr(config, own))
    layers, sets = layers_and_sets(config, stack)
    if layers == sets:  # only the other stack's layers were shared
        config.layer_sharing = "sequence"
    config.is_encoder_decoder, config.is_decoder = False, stack == "decoder"
    return config


class SingleStackModel(SharedEmbeddings, VanillaTransformerPreTrainedModel):
    """One stack and its embeddings, with the names of the encoder-decoder: either loads the other's weights."""

    stack_name: ClassVar[Literal["encoder", "decoder"]]
    stack_class: ClassVar[Any]  # (config) -> VanillaTransformerStack

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(of_one_stack(config, self.stack_name, type(self).__name__))
        self.add_module(self.stack_name, self.stack_class(self.config))
        self.share_embeddings()
        self.post_init()

    @property
    def stack_names(self) -> tuple[str, ...]:
        """The one stack of the model."""
        return (self.stack_name,)
