"""Configuration of the Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv 1706.03762)."""

import math
import re
from difflib import get_close_matches
from functools import wraps
from typing import Any, Literal, TypeVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import (
    StrictDataclassClassValidationError,
    StrictDataclassError,
    StrictDataclassFieldValidationError,
)
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

from .config.kept_heads import SCHEMES_BY_HEAD, check_heads_by_layer
from .config.presets import PRESETS
from .config.sharing import check_sharing
from .saved_code import ConfigSavesCode


logger = logging.get_logger(__name__)

# The version of this code, also of the copy that a saved model carries; saved configs record it. A release that adds
# or changes config fields raises one of the first two numbers.
VERSION = "0.1.0"
VERSION_FIELD = "vanilla_transformer_hf_version"

# Stacks of a model -> Auto class -> the class that opens a saved model without the package.
AUTO_MODELS = {
    "encoder_decoder": {
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
        "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
    },
    "encoder": {
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerEncoderModel",
        "AutoModelForMaskedLM": "modeling_vanilla_transformer.VanillaTransformerForMaskedLM",
        "AutoModelForSequenceClassification": (
            "modeling_vanilla_transformer.VanillaTransformerForSequenceClassification"
        ),
        "AutoModelForTokenClassification": ("modeling_vanilla_transformer.VanillaTransformerForTokenClassification"),
    },
    "decoder": {
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerDecoderModel",
        "AutoModelForCausalLM": "modeling_vanilla_transformer.VanillaTransformerForCausalLM",
    },
}

# Field -> the field that gives its default value.
FOLLOWERS = {
    "encoder_d_model": "d_model",
    "decoder_activation_function": "activation_function",
    "decoder_position_encoding": "position_encoding",
    "decoder_max_position_embeddings": "max_position_embeddings",
    "encoder_layer_sets": "encoder_layers",
    "decoder_layer_sets": "decoder_layers",
}

PositionEncodingName = Literal[
    "sinusoidal",
    "sinusoidal_halves",
    "sinusoidal_halves_inclusive",
    "learned",
    "none",
    "rotary",
    "rotary_halves",
    "t5_bias",
    "alibi",
    "shaw",
    "gated_alibi",
    "distance_mlp",
    "hierarchical",
]
# Those that act on pairs of a query and a key.
RELATIVE_ENCODINGS = (*SCHEMES_BY_HEAD, "shaw")
# Scheme -> default of `max_relative_distance`.
RELATIVE_DISTANCES = {"shaw": 20, "t5_bias": 128}
# Field -> the position schemes that use it.
SCHEME_FIELDS = {
    "rotary_base": ("rotary", "rotary_halves"),
    "rotary_fraction": ("rotary", "rotary_halves"),
    "relative_buckets": ("t5_bias",),
    "max_relative_distance": ("shaw", "t5_bias"),
    "hierarchical_alpha": ("hierarchical",),
}
AttentionTypeName = Literal[
    "full",
    "window",
    "window_global",
    "blocks",
    "chunk",
    "linformer",
    "lsh",
    "performer",
    "recurrent",
    "synthesizer_dense",
    "synthesizer_random",
]
# Field -> the kinds of attention that use it.
ATTENTION_FIELDS = {
    "attention_window": ("window", "window_global"),
    "global_tokens": ("window_global",),
    "global_projections": ("window_global",),
    "attention_block": ("blocks", "chunk"),
    "chunk_summary": ("chunk",),
    "linformer_k": ("linformer",),
    "lsh_buckets": ("lsh",),
    "lsh_rounds": ("lsh",),
    "lsh_chunk": ("lsh",),
    "lsh_seed": ("lsh",),
    "performer_features": ("performer",),
    "performer_redraw": ("performer",),
    "memory_length": ("recurrent",),
}
# Kinds whose time grows with the square of the number of positions.
QUADRATIC_KINDS = ("full", "synthesizer_dense", "synthesizer_random")
# Kinds that mix all positions, so that they cannot hide the future.
UNCAUSAL_KINDS = ("linformer",)
# Kinds with a score of each query and key that it sees, to which position encodings may add.
PAIRED_KINDS = ("full", "window", "blocks", "chunk")
# Kinds without products of queries and keys.
SYNTHESIZERS = ("synthesizer_dense", "synthesizer_random")
# Kinds in which queries and keys cannot be turned by their positions: of sums, or where there are none.
UNTURNED_KINDS = ("linformer", *SYNTHESIZERS)
# Kinds that make no keys of their own: queries serve as keys, or there are none.
KEYLESS_KINDS = ("lsh", *SYNTHESIZERS)
# Kinds with parameters of heads beside the projections of queries, keys and values.
UNPRUNED_KINDS = ("window_global", "recurrent", *SYNTHESIZERS)
# Fields of single variants; a saved config omits those that have their default values.
VARIANT_FIELDS = (
    *SCHEME_FIELDS,
    *ATTENTION_FIELDS,
    *("encoder_pooling", "encoder_attention_type", "decoder_attention_type", "cross_attention_type"),
    *("encoder_layer_sets", "decoder_layer_sets", "layer_sharing"),
    *("projection_sharing", "decoder_attention_sharing", "feed_forward_sharing"),
    *("type_vocab_size", "is_decoder", "classifier_dropout"),
    *("encoder_heads_by_layer", "decoder_heads_by_layer", "cross_heads_by_layer"),
)


# Far beyond any model. A downloaded config may ask for 10⁹ layers or a matrix of 2⁴⁰ columns, which would hang.
LARGEST_DEPTH = 1_024
LARGEST_SIZE = 2**24


class ConfigValueError(StrictDataclassClassValidationError, StrictDataclassFieldValidationError, ValueError):
    """An invalid value in a config: an error of transformers and a ValueError; its message is that of the check."""

    def __init__(self, message: str):
        Exception.__init__(self, message)


Config = TypeVar("Config", bound=type)


def refusing_with_value_errors(config_class: Config) -> Config:
    """
    A class decorator above `@strict`: its errors, at construction, on assignment and before saving, become
    `ConfigValueError`s. `@strict` turns each ValueError and TypeError of a check into an error that is neither, and
    puts "Class validation error for validator 'validate_architecture'" in front of its message.
    """

    def refusing(check: Any) -> Any:
        @wraps(check)  # with the mark by which `@strict` knows its own method again in a subclass
        def call(*args: Any) -> None:
            try:
                check(*args)
            except StrictDataclassError as error:
                cause: BaseException = error
                while isinstance(cause, StrictDataclassError) and cause.__cause__ is not None:
                    cause = cause.__cause__
                raise ConfigValueError(str(cause)) from cause

        return call

    for name in ("validate", "__setattr__"):
        setattr(config_class, name, refusing(getattr(config_class, name)))
    return config_class


@refusing_with_value_errors
@strict
class VanillaTransformerConfig(ConfigSavesCode, PreTrainedConfig):
    r"""
    Sizes and switches of a [`VanillaTransformerModel`]. The defaults are the paper's base model (Table 3).

    Args:
        vocab_size (`int`): Size of the target vocabulary, which is also the source's unless `source_vocab_size` is
            given.
        source_vocab_size (`int`, *optional*): Size of the source vocabulary if the source has its own.
        d_model (`int`): Width of embeddings and of every sub-layer's output.
        encoder_d_model (`int`, *optional*): Width of the encoder; `d_model` if not given.
        encoder_layers, decoder_layers (`int`): N, the layers of each stack.
        encoder_layer_sets, decoder_layer_sets (`int`, *optional*): M, the sets of weights of each stack's layers; as
            many as layers if not given. With one set, all layers are the same, as in Universal Transformers.
        layer_sharing (`str`): Which layers share a set, with fewer sets than layers (arXiv 2104.06022): `"sequence"`:
            A A B B C C; `"cycle"`: A B C A B C; `"cycle_reverse"`: A B C C B A.
        encoder_attention_heads, decoder_attention_heads (`int`): h, the parallel heads of each attention.
        encoder_heads_by_layer, decoder_heads_by_layer, cross_heads_by_layer (`list[int]`, *optional*): The heads that
            pruning (arXiv 1905.10650) has left in each layer, or set of a layer's weights, of self-attention in the
            encoder and in the decoder, and of attention to the source; all of h if not given. Widths of heads follow
            from h.
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
        type_vocab_size (`int`): Segments that `token_type_ids` of the source tell apart, as in pairs of sentences: a
            trained vector of each is added to the embeddings (arXiv 1810.04805, section 3.2). 0: none.
        feed_forward_sharing (`str`): `"none"`: each set of a layer's weights has a feed-forward; `"stack"`: one for
            all layers of a stack; `"all"`: one for all layers of both; `"encoder_only"`: one for all layers of the
            encoder, none in the decoder (arXiv 2309.01826).
        projection_sharing (`str`): `"none"`: W^Q, W^K and W^V; `"key_value"`: W^K = W^V; `"query_key"`: W^Q = W^K;
            `"query_key_value"`: one matrix for all three. In each attention of both stacks.
        decoder_attention_sharing (`bool`): Whether self-attention and cross-attention of a decoder layer share their
            weights (but not their norms).
        scale_embedding (`bool`): Multiply embeddings by √d_model (section 3.4).
        layernorm_embedding (`bool`): Normalise the sum of embeddings and positions, before its dropout.
        embedding_sharing (`str`): `"all"`: one matrix serves source, target and output (section 3.4);
            `"decoder"`: target and output share one; `"none"`: three matrices.
        position_encoding (`str`): `"sinusoidal"`: sines and cosines interleaved (section 3.5);
            `"sinusoidal_halves"`: the sines, then the cosines;
            `"sinusoidal_halves_inclusive"`: the same with frequencies 10000^(-i/(d_model/2 - 1)), which reach
            1/10000 itself, as in tensor2tensor and fairseq;
            `"learned"`: a trained vector per position (Table 3, row E); `"none"`;
            `"rotary"`: queries and keys turned by their positions, neighbouring features together (arXiv 2104.09864);
            `"rotary_halves"`: the same with the features i and i + d_k/2 together, as in Llama;
            `"t5_bias"`: a trained number for each head and distance added to the scores (arXiv 1910.10683);
            `"alibi"`: the distance times a slope for each head subtracted from the scores (arXiv 2108.12409);
            `"shaw"`: trained vectors of each distance added to keys and values (arXiv 1803.02155);
            `"gated_alibi"`: the logarithms of gates, made of the states between query and key, added to the scores
            (arXiv 2503.02130);
            `"distance_mlp"`: the output of a small network of the distance added to the scores (arXiv 2108.00154);
            `"hierarchical"`: `"learned"` with n² positions from n = max_position_embeddings vectors (Su 2020). All but
            those that are added to the embeddings (sinusoids, learned, hierarchical) act in self-attention alone.
        decoder_position_encoding (`str`, *optional*): The decoder's `position_encoding`; the encoder's if not given.
        position_offset (`int`): Position number of the first token, for encodings that are added to the embeddings.
        rotary_base (`float`): Base of the angles of rotary encodings.
        rotary_fraction (`float`): Share of each head's features that rotary encodings turn.
        relative_buckets (`int`): Rows of the table of `"t5_bias"`.
        max_relative_distance (`int`, *optional*): Distance beyond which `"shaw"` and `"t5_bias"` treat all distances
            alike; 20 and 128 if not given.
        hierarchical_alpha (`float`): Weight α of the coarse position in `"hierarchical"` encodings; must not be 0.5.
        encoder_pooling (`list[int]`, *optional*): Layers of the encoder before each pooling, which halves the length:
            `[2, 2]` pools before the third and before the fifth layer (arXiv 2006.03236). The decoder attends to the
            short output.
        encoder_attention_type, decoder_attention_type (`str`): The keys that a query of self-attention sees: `"full"`:
            all, in the decoder those before it; `"window"`: those at most `attention_window` positions away
            (arXiv 2004.05150); `"window_global"`: the same, and global tokens, which see all and are seen by all;
            `"blocks"`: those of its block of `attention_block` positions and of the blocks next to it
            (arXiv 1802.05751); `"chunk"`: those of its own block; `"linformer"`: `linformer_k` trained sums over
            all keys (arXiv 2006.04768; not in the decoder); `"lsh"`: those that random rotations put into its bucket
            (arXiv 2001.04451); `"performer"`: all, by random features (arXiv 2009.14794); `"recurrent"`: the
            `memory_length` positions before it, across segments (arXiv 1901.02860; in the decoder alone);
            `"synthesizer_dense"`, `"synthesizer_random"`: all, with weights made of the query's token alone, or
            trained for each pair of positions (arXiv 2005.00743). Time and memory grow with the length, not with its
            square, of all but `"full"` and the synthesizers.
        cross_attention_type (`str`): What the decoder attends to in the source: `"full"`: its positions;
            `"linformer"`: `linformer_k` trained sums over them.
        linformer_k (`int`): Sums over the positions in `"linformer"` attention.
        lsh_buckets (`int`): Buckets of `"lsh"` attention, an even number or 1.
        lsh_rounds (`int`): Rounds of `"lsh"` attention, with rotations of their own.
        lsh_chunk (`int`): Tokens of a bucket of `"lsh"` attention that see each other and those just before.
        lsh_seed (`int`): Seed of the rotations of `"lsh"` attention.
        performer_features (`int`, *optional*): Random features of `"performer"` attention; ⌊d_k ln d_k⌋ if not given.
        performer_redraw (`int`): Passes of training after which the features of `"performer"` attention are drawn
            anew.
        memory_length (`int`): Positions before a query that it sees in `"recurrent"` attention, and states of each
            layer that a decoder alone keeps for the next segment.
        attention_window (`int`): Positions on each side of `"window"` and `"window_global"` attention.
        global_tokens (`int`): Tokens at the begin of a sequence that all others see, and that see all others, in
            `"window_global"` attention; in the encoder `global_attention_mask` of a call takes their place.
        global_projections (`str`): Projections of global tokens in the encoder: `"separate"`, as in Longformer, or
            `"shared"` with the others.
        attention_block (`int`): Positions of a block of `"blocks"` and `"chunk"` attention.
        chunk_summary (`str`): What a query of `"chunk"` attention sees of each earlier chunk: `"none"`, or `"mean"`:
            the mean of its keys, with that of its values.
        max_position_embeddings (`int`): Longest sequence for learned positions, linformer and synthesizer attention.
            Sinusoids have no limit.
        decoder_max_position_embeddings (`int`, *optional*): The decoder's `max_position_embeddings`; the encoder's if
            not given.
        encoder_norm_position, decoder_norm_position (`str`): `"post"`: LayerNorm(x + Sublayer(x)), as in the paper;
            `"pre"`: x + Sublayer(LayerNorm(x)).
        encoder_final_norm, decoder_final_norm (`bool`, *optional*): Whether the stack ends with a norm of its own; if
            not given, a pre-norm stack does and a post-norm stack does not.
        norm_type (`str`): `"layer_norm"`; `"rms_norm"`: x / √(mean(x²) + ε) · γ (arXiv 1910.07467, as in T5 and
            Llama); `"rms_norm_author"`: x / (√mean(x²) + ε) · γ, as in the code of that paper.
        layer_norm_eps (`float`): ε of the norms, which keeps them from dividing by zero.
        encoder_residual_alpha, decoder_residual_alpha (`float`): α of the residual step αx + Sublayer(x).
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
    >>> config = VanillaTransformerConfig()  # the paper's base model
    >>> config = VanillaTransformerConfig.from_preset("big", vocab_size=32000)
    ```"""

    model_type = "vanilla_transformer"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    # The plans stand at the stacks: from here, each stack would receive one meant for the whole model.
    base_model_tp_plan = {}
    base_model_fsdp_plan = {}

    vocab_size: int = 37000
    source_vocab_size: int | None = None
    d_model: int = 512
    encoder_d_model: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_layer_sets: int | None = None
    decoder_layer_sets: int | None = None
    layer_sharing: Literal["sequence", "cycle", "cycle_reverse"] = "sequence"
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_heads_by_layer: list[int] | None = None
    decoder_heads_by_layer: list[int] | None = None
    cross_heads_by_layer: list[int] | None = None
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
    feed_forward_sharing: Literal["none", "stack", "all", "encoder_only"] = "none"
    projection_sharing: Literal["none", "key_value", "query_key", "query_key_value"] = "none"
    decoder_attention_sharing: bool = False
    scale_embedding: bool = True
    layernorm_embedding: bool = False
    embedding_sharing: Literal["all", "decoder", "none"] = "all"
    position_encoding: PositionEncodingName = "sinusoidal"
    decoder_position_encoding: PositionEncodingName | None = None
    position_offset: int = 0
    rotary_base: float | int = 10000.0
    rotary_fraction: float | int = 1.0
    relative_buckets: int = 32
    max_relative_distance: int | None = None
    hierarchical_alpha: float | int = 0.4
    max_position_embeddings: int = 1024
    decoder_max_position_embeddings: int | None = None
    encoder_pooling: list[int] | None = None
    encoder_attention_type: AttentionTypeName = "full"
    decoder_attention_type: AttentionTypeName = "full"
    attention_window: int = 128
    global_tokens: int = 1
    global_projections: Literal["separate", "shared"] = "separate"
    attention_block: int = 128
    chunk_summary: Literal["none", "mean"] = "none"
    cross_attention_type: Literal["full", "linformer"] = "full"
    linformer_k: int = 256
    lsh_buckets: int = 32
    lsh_rounds: int = 2
    lsh_chunk: int = 64
    lsh_seed: int = 0
    performer_features: int | None = None
    performer_redraw: int = 1000
    memory_length: int = 128
    encoder_norm_position: Literal["post", "pre"] = "post"
    decoder_norm_position: Literal["post", "pre"] = "post"
    encoder_final_norm: bool | None = None
    decoder_final_norm: bool | None = None
    norm_type: Literal["layer_norm", "rms_norm", "rms_norm_author"] = "layer_norm"
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
            raise ValueError(f"no preset is called {name!r}{_nearest(name, PRESETS)}; there are {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **overrides})

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
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

    def __post_init__(self, **kwargs: Any):
        own_names = [*type(self).__annotations__, *self.attribute_map]
        for name in kwargs:
            known = name in own_names or hasattr(PreTrainedConfig, name)
            if not known and (hint := _nearest(name, own_names)):
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

    def __setattr__(self, name: str, value: Any):
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
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any):
        """
        As in every config; overrides are applied before the defaults that depend on them.

        Raises:
            ValueError: A newer version of this code wrote it. Later releases with the same first two numbers are not
                newer; a config without a version is older.
        """
        fields = {name: kwargs.pop(name) for name in list(kwargs) if name in cls.__annotations__}
        config_dict = {**config_dict, **fields}
        _check_version(config_dict.pop(VERSION_FIELD, VERSION))
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
        fields.update(self._auto_map(fields.get("auto_map") or {}))
        return fields

    def _auto_map(self, auto_map: dict[str, str]) -> dict[str, Any]:
        """
        The `auto_map` entry with all classes that can open the weights. transformers adds only the class that it saves
        and keeps the entries of the model that training began with.
        """
        models = AUTO_MODELS[self.stacks]
        classes = {reference.split(".")[1] for kind in AUTO_MODELS.values() for reference in kind.values()}
        # Folders of earlier versions name the models of one stack in files of their own.
        files = [f"{name}_vanilla_transformer" for name in ("modeling", "causal_lm", "encoder_models")]
        ours = {f"{file}.{each}" for file in files for each in classes}
        plain = {name: reference.rpartition("--") for name, reference in auto_map.items()}
        for name, (repository, found, reference) in plain.items():
            if reference == models.get(name):
                whole = {other: f"{repository}{found}{model}" for other, model in models.items()}
                kept = {
                    other: auto_map[other]
                    for other, (*_, model) in plain.items()
                    if model not in ours or model == models.get(other)
                }
                return {"auto_map": {**whole, **kept}}
        return {}

    @property
    def stacks(self) -> Literal["encoder_decoder", "encoder", "decoder"]:
        """Which stacks the model has, from `is_encoder_decoder` and `is_decoder`."""
        if self.is_encoder_decoder:
            return "encoder_decoder"
        return "decoder" if self.is_decoder else "encoder"

    @property
    def auto_classes(self) -> dict[str, str]:
        """Auto class -> the class that opens a saved model without the package."""
        return {"AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig", **AUTO_MODELS[self.stacks]}

    @property
    def has_local_attention(self) -> bool:
        """Whether a stack's self-attention is of another kind than full."""
        return (self.encoder_attention_type, self.decoder_attention_type) != ("full", "full")

    @property
    def sliding_window(self) -> int:
        """What transformers' caches read: `memory_length` and the query itself, in a decoder alone with a memory."""
        self._check_memory()
        return self.memory_length + 1

    @sliding_window.setter
    def sliding_window(self, value: int):
        self._check_memory()
        self.memory_length = value - 1

    def _check_memory(self):
        if self.decoder_attention_type != "recurrent" or self.is_encoder_decoder:  # then hasattr() must be False
            raise AttributeError("sliding_window: only a decoder alone with decoder_attention_type='recurrent' has it")

    @property
    def tied_matrices(self) -> Literal["all", "decoder", "none"]:
        """Which embedding matrices are tied: `embedding_sharing`, unless `tie_word_embeddings=False` unties all."""
        return self.embedding_sharing if self.tie_word_embeddings else "none"

    def validate_architecture(self):
        """
        Checks of values that a type cannot express; run by `@strict` at construction and before saving.

        Raises:
            ValueError: A value is out of range, or two exclude each other.
        """
        super().validate_architecture()
        if self.is_encoder_decoder and self.is_decoder:
            raise ValueError("is_decoder=True with is_encoder_decoder=True: set is_encoder_decoder=False, too")
        self._check_sizes()
        self._check_heads()
        check_sharing(self)
        check_heads_by_layer(self)
        self._check_embeddings()
        self._check_relative_positions()
        self._check_attention_types()
        self._check_pooling()
        self._check_token_ids()

    def _check_sizes(self):
        positive = (
            "vocab_size source_vocab_size d_model encoder_d_model encoder_layers decoder_layers "
            "encoder_attention_heads decoder_attention_heads d_k d_v encoder_ffn_dim decoder_ffn_dim "
            "max_position_embeddings decoder_max_position_embeddings layer_norm_eps encoder_residual_alpha "
            "decoder_residual_alpha rotary_base rotary_fraction relative_buckets max_relative_distance "
            "attention_window global_tokens attention_block linformer_k lsh_buckets lsh_rounds lsh_chunk "
            "performer_features performer_redraw memory_length"
        )
        for name in positive.split():
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r}: must be greater than 0")
            largest = LARGEST_DEPTH if name.endswith("_layers") else LARGEST_SIZE
            if value is not None and value > largest:
                raise ValueError(f"{name}={value!r}: must be at most {largest:,}")
        for name in ("dropout", "attention_dropout", "activation_dropout", "classifier_dropout", "label_smoothing"):
            if (value := getattr(self, name)) is not None and not 0 <= value < 1:
                raise ValueError(f"{name}={value!r}: must be at least 0 and less than 1")
        for name in ("position_offset", "type_vocab_size"):
            if not 0 <= (value := getattr(self, name)) <= LARGEST_SIZE:
                raise ValueError(f"{name}={value!r}: must be at least 0 and at most {LARGEST_SIZE:,}")
        from transformers.activations import ACT2FN  # heavy: it brings torch.distributed and torch's compiler

        for name in ("activation_function", "decoder_activation_function"):
            if (value := getattr(self, name)) not in ACT2FN:
                hint = _nearest(value, ACT2FN)
                raise ValueError(f"{name}={value!r}{hint}: must be one of {', '.join(sorted(ACT2FN))}")

    def _check_heads(self):
        encoder_width = "d_model" if self.encoder_d_model == self.d_model else "encoder_d_model"
        for name, width in (("encoder_attention_heads", encoder_width), ("decoder_attention_heads", "d_model")):
            heads, size = getattr(self, name), getattr(self, width)
            if size % heads and (self.d_k is None or self.d_v is None):
                raise ValueError(f"{name}={heads}: must divide {width}={size}, unless d_k and d_v are given")

    def _check_embeddings(self):
        if self.source_vocab_size is not None and self.tied_matrices == "all":
            raise ValueError(
                f"embedding_sharing='all' with source_vocab_size={self.source_vocab_size}: one matrix cannot "
                "serve two vocabularies; must be 'decoder' or 'none'"
            )
        if self.encoder_d_model != self.d_model and self.tied_matrices == "all":
            raise ValueError(
                f"embedding_sharing='all' with encoder_d_model={self.encoder_d_model} and d_model={self.d_model}: one "
                "matrix cannot have two widths; must be 'decoder' or 'none'"
            )
        smallest = {"sinusoidal": 2, "sinusoidal_halves": 2, "sinusoidal_halves_inclusive": 4}
        encoder_width = "d_model" if self.encoder_d_model == self.d_model else "encoder_d_model"
        for width, encoding in ((encoder_width, "position_encoding"), ("d_model", "decoder_position_encoding")):
            size, kind = getattr(self, width), getattr(self, encoding)
            least = smallest.get(kind, 1)
            if least > 1 and (size % 2 or size < least):
                raise ValueError(f"{width}={size}: {encoding}={kind!r} needs an even one of at least {least}")

    def _check_relative_positions(self):
        used = (self.position_encoding, self.decoder_position_encoding)
        for name, schemes in SCHEME_FIELDS.items():
            value, default = getattr(self, name), getattr(type(self), name)
            if value != default and not {*schemes} & {*used}:
                raise ValueError(
                    f"{name}={value!r}: only position_encoding={' or '.join(map(repr, schemes))} has it, and here it "
                    f"is {used[0]!r}, in the decoder {used[1]!r}; leave {name} out, or set such a scheme"
                )
        if not 0 < self.hierarchical_alpha < 1 or self.hierarchical_alpha == 0.5:
            raise ValueError(
                f"hierarchical_alpha={self.hierarchical_alpha!r}: must be greater than 0, less than 1, and not 0.5, "
                "with which positions n·i + j and n·j + i would be the same"
            )
        if self.rotary_fraction > 1:
            raise ValueError(f"rotary_fraction={self.rotary_fraction!r}: must be greater than 0 and at most 1")
        for stack, encoding in (("encoder", "position_encoding"), ("decoder", "decoder_position_encoding")):
            kind, heads = getattr(self, encoding), getattr(self, f"{stack}_attention_heads")
            width: int = self.encoder_d_model if stack == "encoder" else self.d_model  # type: ignore[assignment]
            head_width = self.d_k or width // heads
            if kind in ("rotary", "rotary_halves") and int(head_width * self.rotary_fraction) < 2:
                raise ValueError(
                    f"{encoding}={kind!r}: heads of {head_width} features and rotary_fraction={self.rotary_fraction} "
                    "leave no pair of features to turn; take fewer heads"
                )
        if "t5_bias" in (self.position_encoding, self.decoder_position_encoding):
            if self.relative_buckets % 4:
                raise ValueError(f"relative_buckets={self.relative_buckets}: must be a multiple of 4")
            distance = self.max_relative_distance or RELATIVE_DISTANCES["t5_bias"]
            if distance <= self.relative_buckets // 2:
                raise ValueError(
                    f"max_relative_distance={distance}: must be greater than half of "
                    f"relative_buckets={self.relative_buckets}"
                )

    def _check_attention_types(self):
        kinds: dict[str, str] = {"encoder": self.encoder_attention_type, "decoder": self.decoder_attention_type}
        for name, users in ATTENTION_FIELDS.items():
            is_used = {*users} & {*kinds.values(), self.cross_attention_type}
            if getattr(self, name) != getattr(type(self), name) and not is_used:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: only attention of the type {' or '.join(map(repr, users))} has "
                    f"it; leave {name} out, or set encoder_attention_type or decoder_attention_type"
                )
        # A model of one stack has the kind of that stack in both fields.
        if self.stacks != "encoder" and kinds["decoder"] in UNCAUSAL_KINDS:
            raise ValueError(
                f"decoder_attention_type={kinds['decoder']!r}: its sums cover all positions, so that a token would "
                "see those after it; take another type, such as 'performer' or 'window'"
            )
        if self.stacks != "decoder" and kinds["encoder"] == "recurrent":
            raise ValueError(
                "encoder_attention_type='recurrent': a memory of what was read before is the decoder's; take another "
                "type, such as 'window'"
            )
        self._check_kinds(kinds)
        encodings = {"encoder": self.position_encoding, "decoder": self.decoder_position_encoding}
        for stack, kind in kinds.items():
            if kind not in PAIRED_KINDS and encodings[stack] in RELATIVE_ENCODINGS:
                raise ValueError(
                    f"{stack}_attention_type={kind!r} with position encoding {encodings[stack]!r}: only "
                    f"{', '.join(PAIRED_KINDS)} attention adds scores of distances; take an encoding that is added to "
                    "the embeddings"
                )
            if kind == "chunk" and self.chunk_summary != "none" and encodings[stack] in RELATIVE_ENCODINGS:
                raise ValueError(
                    f"chunk_summary={self.chunk_summary!r} with position encoding {encodings[stack]!r}: a summary has "
                    "no distance; take an encoding that is added to the embeddings, or 'rotary'"
                )

    def _check_pooling(self):
        if (blocks := self.encoder_pooling) is None:
            return
        name = f"encoder_pooling={blocks!r}"
        if not blocks or min(blocks) < 1 or sum(blocks) >= self.encoder_layers:
            raise ValueError(
                f"{name}: must be numbers of layers before each pooling, at least 1 each, together fewer than "
                f"encoder_layers={self.encoder_layers}"
            )
        if self.encoder_attention_type != "full":
            raise ValueError(
                f"{name} with encoder_attention_type={self.encoder_attention_type!r}: only full attention pools"
            )
        if self.position_encoding in (*RELATIVE_ENCODINGS, "rotary", "rotary_halves"):
            raise ValueError(
                f"{name} with position_encoding={self.position_encoding!r}: a mean of two tokens has no position; "
                "take an encoding that is added to the embeddings"
            )
        if self.encoder_layer_sets != self.encoder_layers:
            raise ValueError(
                f"{name} with encoder_layer_sets={self.encoder_layer_sets}: layers that pool have weights of their own"
            )

    def _check_kinds(self, kinds: dict[str, str]):
        """What single kinds of attention, by their stacks, cannot be combined with."""
        encodings = {"encoder": "position_encoding", "decoder": "decoder_position_encoding"}
        for stack, kind in kinds.items():
            encoding = getattr(self, encodings[stack])
            name = f"{stack}_attention_type={kind!r}"
            if kind in UNTURNED_KINDS and encoding in ("rotary", "rotary_halves"):
                raise ValueError(
                    f"{name} with {encodings[stack]}={encoding!r}: there are no products of a query and a single key "
                    "to turn; take an encoding that is added to the embeddings"
                )
            if kind == "lsh" and self.lsh_buckets % 2 and self.lsh_buckets != 1:
                raise ValueError(f"lsh_buckets={self.lsh_buckets}: must be even, or 1")
            if kind == "performer" and self.attention_dropout:
                raise ValueError(
                    f"{name} with attention_dropout={self.attention_dropout}: its weights are never computed; set "
                    "attention_dropout=0"
                )
            if kind == "recurrent" and encoding != "none":
                raise ValueError(
                    f"{name} with {encodings[stack]}={encoding!r}: it has distances of its own, and positions would "
                    f"begin anew with each segment; set {encodings[stack]}='none'"
                )
            shared = self.decoder_attention_sharing and stack == "decoder"
            if kind in KEYLESS_KINDS and (shared or self.projection_sharing != "none"):
                field = "decoder_attention_sharing" if shared else "projection_sharing"
                raise ValueError(
                    f"{name} with {field}={getattr(self, field)!r}: it has no projection of keys to share; "
                    f"leave {field} out"
                )
            if kind in UNPRUNED_KINDS and getattr(self, f"{stack}_heads_by_layer"):
                raise ValueError(
                    f"{name} with {stack}_heads_by_layer: its parameters belong to heads, which cannot be pruned; "
                    f"leave {stack}_heads_by_layer out"
                )

    def _check_token_ids(self):
        for name in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
            ids = getattr(self, name)
            for token_id in ids if isinstance(ids, list) else [ids]:
                if token_id is not None and not 0 <= token_id < self.vocab_size:
                    raise ValueError(f"{name}={ids!r}: must lie within the vocabulary, 0 to {self.vocab_size - 1}")
        if self.source_vocab_size is not None and self.pad_token_id >= self.source_vocab_size:
            raise ValueError(
                f"pad_token_id={self.pad_token_id}: must lie within the source vocabulary, 0 to "
                f"{self.source_vocab_size - 1}"
            )


# Stacks -> their name in messages.
STACK_NAMES = {
    "encoder_decoder": "an encoder and a decoder",
    "encoder": "an encoder alone",
    "decoder": "a decoder alone",
}


def check_stacks(config: VanillaTransformerConfig, needed: str, model: str):
    """
    Raises:
        ValueError: The config describes a model with other stacks than those of the class `model`.
    """
    if config.stacks != needed:
        raise ValueError(
            f"{model} has {STACK_NAMES[needed]}, and the config (is_encoder_decoder={config.is_encoder_decoder}, "
            f"is_decoder={config.is_decoder}) is of a model with {STACK_NAMES[config.stacks]}; open it with AutoModel"
        )


def _check_version(written: Any):
    """
    Raises:
        ValueError: It is not a valid version, or its first two numbers are newer than those of `VERSION`.
    """
    numbers = [re.match(r"(\d+)\.(\d+)(?!\d)", str(version)) for version in (written, VERSION)]
    theirs, ours = [tuple(map(int, found.groups())) if found else None for found in numbers]
    if theirs is None:
        raise ValueError(f"{VERSION_FIELD}={written!r}: must be a version, such as {VERSION!r}")
    if ours is not None and theirs > ours:
        raise ValueError(
            f"vanilla_transformer_hf {written} wrote this config, and {VERSION} would not understand all of it: "
            "upgrade the package; or, in a process that does not import it, open the model with "
            "trust_remote_code=True, which takes the code that came with it"
        )


def _nearest(name: str, allowed) -> str:
    """A hint with the names closest to `name`, or an empty string where none is near enough to be a misspelling."""
    near = get_close_matches(name, list(allowed), n=2, cutoff=0.75)
    return f" (did you mean {' or '.join(repr(other) for other in near)}?)" if near else ""


__all__ = ["PRESETS", "VanillaTransformerConfig", "check_stacks"]
