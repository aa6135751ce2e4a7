"""Configuration of the Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv 1706.03762)."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.utils import logging

from .config.attention_kinds import (
    ATTENTION_KINDS,
    CROSS_KINDS,
    OTHER_KINDS,
    attention_kind,
    check_attention_of_stacks,
)
from .config.attention_scores import check_attention_score
from .config.auto_classes import auto_models, classes_of, whole_auto_map
from .config.checks import check_head_widths, check_norms, check_sizes, check_special_tokens, check_tied_embeddings
from .config.errors import refusing_with_value_errors
from .config.front_ends import FRONT_ENDS, check_front_end, reads_tokens
from .config.kept_heads import HeadOptions, check_heads_by_layer
from .config.kinds import check_sizes_of_options, documented, groups_of, name_in, nearest, options_of
from .config.pooling import PoolingOptions, check_pooling
from .config.position_schemes import POSITION_SCHEMES, check_positions_of_stacks, check_width_of_positions
from .config.presets import PRESETS
from .config.release import VERSION
from .config.sharing import SharingOptions, check_sharing
from .config.version import VERSION_FIELD, check_version
from .releases.configs import BaseConfig
from .saving.saved_code import ConfigSavesCode


logger = logging.get_logger(__name__)


# Field -> the field that gives its default value.
FOLLOWERS = {
    "encoder_d_model": "d_model",
    "decoder_activation_function": "activation_function",
    "decoder_position_encoding": "position_encoding",
    "decoder_max_position_embeddings": "max_position_embeddings",
    "encoder_layer_sets": "encoder_layers",
    "decoder_layer_sets": "decoder_layers",
}

# Fields that only some kinds of models have: each group is a class beside what it belongs to.
OPTION_GROUPS = (
    *(SharingOptions, HeadOptions, PoolingOptions),
    *groups_of(POSITION_SCHEMES, ATTENTION_KINDS, FRONT_ENDS),
)
# Fields of single variants; a saved config omits those that have their default values.
VARIANT_FIELDS = (
    *(option.name for option in options_of(*OPTION_GROUPS)),
    *("encoder_attention_type", "decoder_attention_type", "cross_attention_type"),
    *("type_vocab_size", "is_decoder", "classifier_dropout", "front_end", "attention_score"),
)


@refusing_with_value_errors
@strict
class VanillaTransformerConfig(*OPTION_GROUPS, ConfigSavesCode, BaseConfig):  # type: ignore[misc]
    r"""
    Sizes and switches of a [`VanillaTransformerModel`]. The defaults are the paper's base model (Table 3).

    Args:
        vocab_size (`int`): Size of the target vocabulary, which is also the source's unless `source_vocab_size` is
            given.
        source_vocab_size (`int`, *optional*): Size of the source vocabulary if the source has its own.
        d_model (`int`): Width of embeddings and of every sub-layer's output.
        encoder_d_model (`int`, *optional*): Width of the encoder; `d_model` if not given.
        encoder_layers, decoder_layers (`int`): N, the layers of each stack.
        encoder_attention_heads, decoder_attention_heads (`int`): h, the parallel heads of each attention.
        encoder_ffn_dim, decoder_ffn_dim (`int`): d_ff, the inner width of the feed-forward sub-layer.
        d_k (`int`, *optional*): Width of one head's queries and keys; d_model / heads if not given.
        d_v (`int`, *optional*): Width of one head's values; d_model / heads if not given.
        dropout (`float`): P_drop on sub-layer outputs and on the sums of embeddings and positions.
        attention_dropout (`float`): Dropout on attention weights.
        activation_dropout (`float`): Dropout between the two feed-forward maps.
        activation_function (`str`): Activation between the two feed-forward maps, a key of transformers' `ACT2FN`
            such as `"relu"`, `"gelu"` or `"silu"`.
        decoder_activation_function (`str`, *optional*): The decoder's `activation_function`; the encoder's if not
            given.
        feed_forward_type (`str`): `"dense"`: activation(x W₁ + b₁) W₂ + b₂;
            `"gated"`: (activation(x W₁ + b₁) ⊙ (x W₃ + b₃)) W₂ + b₂ (arXiv 2002.05202), with an activation of
            `"sigmoid"` GLU, `"linear"` bilinear, `"relu"` ReGLU, `"gelu"` GEGLU, `"silu"` SwiGLU.
        type_vocab_size (`int`): Number of segments in `token_type_ids` of the source, as in pairs of sentences: a
            trained vector of each is added to the embeddings (arXiv 1810.04805, section 3.2). 0: none.
        front_end (`str`): What a source is, and how it becomes the input of the encoder's first layer.
        scale_embedding (`bool`): Multiply embeddings by √d_model (section 3.4).
        layernorm_embedding (`bool`): Normalise the sum of embeddings and positions, before its dropout.
        embedding_sharing (`str`): `"all"`: one matrix serves source, target and output (section 3.4), or target and
            output where the source has no tokens;
            `"decoder"`: target and output share one; `"none"`: three matrices.
        position_encoding (`str`): How the order of tokens enters the model. Sinusoids, learned and hierarchical
            positions are added to the embeddings; all others act in self-attention alone.
        decoder_position_encoding (`str`, *optional*): The decoder's `position_encoding`; the encoder's if not given.
        position_offset (`int`): Position number of the first token, for encodings that are added to the embeddings.
        encoder_attention_type, decoder_attention_type (`str`): The keys that a query of self-attention attends to.
            Time and memory grow with the length, not with its square, of all but `"full"` and the synthesizers.
        cross_attention_type (`str`): What the decoder attends to in the source: `"full"`: its positions;
            `"linformer"`: `linformer_k` trained sums over them.
        attention_score (`str`): The score of a query q and a key k: `"scaled_dot"`: q·k / √d_k (section 3.2.1);
            `"dot"`: q·k; `"additive"`: vᵀ tanh(q + k), with a trained v for each head (arXiv 1409.0473).
        max_position_embeddings (`int`): Longest sequence for learned positions, linformer and synthesizer attention.
            Sinusoids have no limit.
        decoder_max_position_embeddings (`int`, *optional*): The decoder's `max_position_embeddings`; the encoder's if
            not given.
        encoder_norm_position, decoder_norm_position (`str`): `"post"`: LayerNorm(x + Sublayer(x)), as in the paper;
            `"pre"`: x + Sublayer(LayerNorm(x)).
        encoder_final_norm, decoder_final_norm (`bool`, *optional*): Whether the stack ends with a norm of its own; if
            not given, a pre-norm stack does and a post-norm stack does not.
        norm_type (`str`): `"layer_norm"`; `"rms_norm"`: x / √(mean(x²) + ε) · γ (arXiv 1910.07467, as in T5 and
            Llama); `"rms_norm_author"`: x / (√mean(x²) + ε) · γ, as in the code of that paper; `"batch_norm"`: the
            mean and the variance of each feature over the tokens of a batch, in evaluation those that training has
            averaged (arXiv 1502.03167).
        layer_norm_eps (`float`): ε of the norms, which keeps them from dividing by zero.
        encoder_residual_alpha, decoder_residual_alpha (`float`): α of the residual step αx + Sublayer(x); with 0
            there are no residual connections.
        attention_bias (`bool`): Bias in the four attention projections; the paper writes none.
        feed_forward_bias (`bool`): Bias in the two feed-forward maps.
        output_bias (`bool`): Bias on the logits.
        label_smoothing (`float`): ε_ls of the training loss, spread evenly over the vocabulary (section 5.4).
        decoder_start_token_id (`int`, *optional*): First token of the decoder; the pad token if not given.
        tie_word_embeddings (`bool`): transformers' own switch; `False` is `embedding_sharing="none"`.
        is_encoder_decoder (`bool`): Whether the model has both stacks. The classes of one stack set it to `False`.
        is_decoder (`bool`): Whether a model of one stack has the decoder; else it has the encoder.
        classifier_dropout (`float`, *optional*): Dropout before the classifier of an encoder; `dropout` if not given.

    Raises:
        ConfigValueError: A value has the wrong type or is out of range, or two fields exclude each other; the message
            names the field, its value and the allowed values. It is a ValueError.
        ValueError: A keyword is not a field, probably a misspelling. Unknown fields in a saved config are only
        reported.

    Example:

    ```python
    >>> from vanilla_transformer_hf import VanillaTransformerConfig
    >>> VanillaTransformerConfig().d_model  # the paper's base model
    512
    >>> VanillaTransformerConfig.from_preset("big", vocab_size=32000).d_model
    1024
    ```"""

    model_type = "vanilla_transformer"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    # The plans stand at the stacks: from here, each stack would receive one meant for the whole model.
    base_model_tp_plan = dict[str, Any]()
    base_model_fsdp_plan = dict[str, Any]()

    vocab_size: int = 37000
    source_vocab_size: int | None = None
    d_model: int = 512
    encoder_d_model: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    d_k: int | None = None
    d_v: int | None = None
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    decoder_activation_function: str | None = None
    feed_forward_type: Literal["dense", "gated"] = "dense"
    type_vocab_size: int = 0
    front_end: str = name_in(FRONT_ENDS, "front_end", default="tokens")
    scale_embedding: bool = True
    layernorm_embedding: bool = False
    embedding_sharing: Literal["all", "decoder", "none"] = "all"
    position_encoding: str = name_in(POSITION_SCHEMES, "position_encoding", default="sinusoidal")
    decoder_position_encoding: str | None = name_in(POSITION_SCHEMES, "decoder_position_encoding", default=None)
    position_offset: int = 0
    max_position_embeddings: int = 1024
    decoder_max_position_embeddings: int | None = None
    encoder_attention_type: str = name_in(ATTENTION_KINDS, "encoder_attention_type", default="full")
    decoder_attention_type: str = name_in(ATTENTION_KINDS, "decoder_attention_type", default="full")
    cross_attention_type: Literal["full", "linformer"] = "full"
    attention_score: Literal["scaled_dot", "dot", "additive"] = "scaled_dot"
    encoder_norm_position: Literal["post", "pre"] = "post"
    decoder_norm_position: Literal["post", "pre"] = "post"
    encoder_final_norm: bool | None = None
    decoder_final_norm: bool | None = None
    norm_type: Literal["layer_norm", "rms_norm", "rms_norm_author", "batch_norm"] = "layer_norm"
    layer_norm_eps: float = 1e-5
    encoder_residual_alpha: float | int = 1.0
    decoder_residual_alpha: float | int = 1.0
    attention_bias: bool = False
    feed_forward_bias: bool = True
    output_bias: bool = False
    label_smoothing: float | int = 0.1
    pad_token_id: int = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    is_decoder: bool = False
    classifier_dropout: float | int | None = None
    use_cache: bool = True

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "VanillaTransformerConfig":
        """
        A named size: `"base"`, `"big"`, a row of the paper's Table 3 (`"A-h1"` … `"E"`), `"iwslt_de_en"`,
        `"multi30k_tiny"`, `"multi30k_small"` or `"deep_shallow"`; or the base model with gated feed-forwards (`"glu"`,
        `"bilinear"`, `"reglu"`, `"geglu"`, `"swiglu"`); with single fields overridden.

        Raises:
            ValueError: No preset has this name; the message lists them.
        """
        if name not in PRESETS:
            raise ValueError(f"no preset is called {name!r}{nearest(name, PRESETS)}; there are {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **overrides})

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: Any, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        The contents of config.json, as in every config.

        Raises:
            ValueError: The file describes a model of another type, of which transformers would only warn.
        """
        config_dict, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        model_type = config_dict.get("model_type", cls.model_type)
        if model_type != cls.model_type:
            raise ValueError(
                f"{pretrained_model_name_or_path}: config.json describes a {model_type!r} model, "
                f"not a {cls.model_type!r} one"
            )
        return config_dict, kwargs

    def __post_init__(self, **kwargs: Any) -> None:
        own_names = [*type(self).__annotations__, *self.attribute_map]
        for name in kwargs:
            known = name in own_names or hasattr(BaseConfig, name)
            if not known and (hint := nearest(name, own_names)):
                message = f"{type(self).__name__} has no field {name!r}{hint}"
                if self.transformers_version is None:
                    raise ValueError(message)
                # A saved config may hold what a later version or another program added to it.
                logger.warning(message)
        if self.encoder_final_norm is None:
            self.encoder_final_norm = self.encoder_norm_position == "pre"
        if self.decoder_final_norm is None:
            self.decoder_final_norm = self.decoder_norm_position == "pre"
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.pad_token_id
        if self.embedding_sharing == "none":
            self.tie_word_embeddings = False
        super().__post_init__(**kwargs)
        # After super().__init__(), because d_model may have been given as hidden_size.
        for name, other in FOLLOWERS.items():
            if getattr(self, name) is None:
                setattr(self, name, getattr(self, other))

    def __setattr__(self, name: str, value: Any) -> None:
        # A field that takes its default from another one follows it when that one is assigned.
        is_common, name = name in self.attribute_map, self.attribute_map.get(name, name)
        before = getattr(self, name, None)
        super().__setattr__(name, value)
        # A config of one stack has the same in the fields of both, and a common name stands for this one stack.
        if is_common and name.startswith("encoder_") and not self.is_encoder_decoder:
            super().__setattr__(name.replace("encoder", "decoder", 1), value)
        for follower, followed in FOLLOWERS.items():
            if followed == name and before is not None and getattr(self, follower, None) == before:
                super().__setattr__(follower, value)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """
        Make a config from the contents of config.json. Overrides are applied before the defaults that depend on them.

        Raises:
            ValueError: A newer version of this code wrote it. Later releases with the same first two numbers are not
                newer; a config without a version is older.
        """
        fields = {name: kwargs.pop(name) for name in list(kwargs) if name in cls.__annotations__}
        config_dict = {**config_dict, **fields}
        check_version(config_dict.pop(VERSION_FIELD, VERSION), current=VERSION)
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The fields; one that takes its default from another is None, so that an override of that changes both."""
        fields = super().to_dict()
        for name, other in FOLLOWERS.items():
            if name in fields and fields[name] == fields.get(other):
                fields[name] = None
        for name in VARIANT_FIELDS:
            if fields.get(name) == getattr(type(self), name):
                fields.pop(name, None)
        fields[VERSION_FIELD] = VERSION
        fields.update(whole_auto_map(fields.get("auto_map") or {}, auto_models(self)))
        return fields

    @property
    def stacks(self) -> Literal["encoder_decoder", "encoder", "decoder"]:
        """Which stacks the model has, from `is_encoder_decoder` and `is_decoder`."""
        if self.is_encoder_decoder:
            return "encoder_decoder"
        return "decoder" if self.is_decoder else "encoder"

    @property
    def auto_classes(self) -> dict[str, str]:
        """Auto class -> the class that opens a saved model without the package."""
        return {"AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig", **auto_models(self)}

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of the model's classes, and of the kinds that it has: what travels with a saved model."""
        parts = [("encoder", place) for place in range(self.encoder_layers)] + [("decoder", 0), ("cross", 0)]
        kinds = {attention_kind(self, part, place) for part, place in parts}
        tables = {**ATTENTION_KINDS, **CROSS_KINDS, **OTHER_KINDS}
        rows: list[Any] = [tables[kind] for kind in kinds]
        rows += [POSITION_SCHEMES[self.position_encoding], POSITION_SCHEMES[str(self.decoder_position_encoding)]]
        rows.append(FRONT_ENDS[self.front_end])
        classes = [name.rpartition(".")[0] for name in classes_of(self).values()]
        return tuple(dict.fromkeys([*classes, *sorted({row.module for row in rows if row.module})]))

    @property
    def has_local_attention(self) -> bool:
        """Whether a stack's self-attention is of another kind than full."""
        return (self.encoder_attention_type, self.decoder_attention_type) != ("full", "full")

    @property
    def tied_matrices(self) -> Literal["all", "decoder", "none"]:
        """
        Which embedding matrices are tied: `embedding_sharing`, unless `tie_word_embeddings=False` unties all. Where
        the source has no tokens, all are those of target and output.
        """
        if not self.tie_word_embeddings:
            return "none"
        return self.embedding_sharing if self.embedding_sharing != "all" or reads_tokens(self) else "decoder"

    def validate_architecture(self) -> None:
        """
        Checks of values that a type cannot express; run by `@strict` at construction and before saving.

        Raises:
            ValueError: A value is out of range, or two exclude each other.
        """
        super().validate_architecture()
        if self.is_encoder_decoder and self.is_decoder:
            raise ValueError("is_decoder=True with is_encoder_decoder=True: set is_encoder_decoder=False, too")
        check_sizes(self)
        check_sizes_of_options(self, *groups_of(POSITION_SCHEMES, ATTENTION_KINDS, FRONT_ENDS))
        check_head_widths(self)
        check_sharing(self)
        check_heads_by_layer(self)
        check_tied_embeddings(self)
        check_width_of_positions(self)
        check_positions_of_stacks(self)
        check_attention_of_stacks(self)
        check_attention_score(self)
        check_pooling(self)
        check_norms(self)
        check_front_end(self)
        check_special_tokens(self)


# What belongs to single kinds is said beside them. Values that the command line offers are the rows of the tables.
VanillaTransformerConfig.__doc__ = documented(
    VanillaTransformerConfig.__doc__ or "",
    {
        "front_end": FRONT_ENDS,
        "position_encoding": POSITION_SCHEMES,
        "encoder_attention_type, decoder_attention_type": ATTENTION_KINDS,
    },
    OPTION_GROUPS,
)
VanillaTransformerConfig.__annotations__ |= {
    "front_end": Literal[(*FRONT_ENDS,)],
    "position_encoding": Literal[(*POSITION_SCHEMES,)],
    "decoder_position_encoding": Literal[(*POSITION_SCHEMES,)] | None,
    "encoder_attention_type": Literal[(*ATTENTION_KINDS,)],
    "decoder_attention_type": Literal[(*ATTENTION_KINDS,)],
    **{option.name: option.type for option in options_of(*OPTION_GROUPS)},
}


__all__ = ["PRESETS", "VanillaTransformerConfig"]
