"""Configuration of the Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv 1706.03762)."""

import logging
import re
from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from .config.attention_kinds import ATTENTION_KINDS, CROSS_KINDS, OTHER_KINDS, attention_kind
from .config.auto_classes import auto_models, classes_of, whole_auto_map
from .config.conflicts import FOLLOWERS, VARIANT_FIELDS, conflicts, variant_of
from .config.errors import refusing_with_value_errors
from .config.front_ends import FRONT_ENDS, reads_tokens
from .config.kinds import NORM_KINDS, name_in, nearest, part
from .config.position_schemes import POSITION_SCHEMES
from .config.release import VERSION
from .releases.configs import BaseConfig
from .saving.saved_code import ConfigSavesCode


logger = logging.getLogger(__name__)


VERSION_FIELD = "vanilla_transformer_hf_version"


@refusing_with_value_errors
@strict
class VanillaTransformerConfig(ConfigSavesCode, BaseConfig):  # type: ignore[misc]
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
            `"tokens"`: embeddings of token ids (section 3.4); `"speech"`: convolutions over frames of speech, which
            shorten them (arXiv 2212.04356, section 2.2); `"speech_whisper"`: such convolutions over frames that stand
            last, as Whisper's feature extractor makes them: recordings filled up with silence to one length, to which
            the model attends (arXiv 2212.04356, section 2.2); `"speech_stacked"`: a linear map of `stacked_frames`
            neighbouring frames of speech; `"image"`: a linear map of each patch of an image, row by row (arXiv
            2010.11929).
        scale_embedding (`bool`): Multiply embeddings by √d_model (section 3.4).
        layernorm_embedding (`bool`): Normalise the sum of embeddings and positions, before its dropout.
        embedding_sharing (`str`): `"all"`: one matrix serves source, target and output (section 3.4), or target and
            output where the source has no tokens;
            `"decoder"`: target and output share one; `"none"`: three matrices.
        position_encoding (`str`): How the order of tokens enters the model. Sinusoids, learned and hierarchical
            positions are added to the embeddings; all others act in self-attention alone.
            `"sinusoidal"`: sines and cosines interleaved (section 3.5); `"sinusoidal_halves"`: the sines, then the
            cosines; `"sinusoidal_halves_inclusive"`: the same with frequencies 10000^(-i/(d_model/2 - 1)), which reach
            1/10000 itself, as in tensor2tensor and fairseq; `"sinusoidal_grid"`: of an image's patches: sinusoids of
            the row in half of the features, of the column in the others; `"learned"`: a trained vector per position
            (Table 3, row E); `"none"`: no positions; `"rotary"`: queries and keys rotated by their positions,
            neighbouring features together (arXiv 2104.09864); `"rotary_halves"`: the same with the features i and i +
            d_k/2 together, as in Llama; `"t5_bias"`: a trained number for each head and distance added to the scores
            (arXiv 1910.10683); `"alibi"`: the distance times a slope for each head subtracted from the scores (arXiv
            2108.12409); `"shaw"`: trained vectors of each distance added to keys and values (arXiv 1803.02155);
            `"gated_alibi"`: the logarithms of gates, made of the states between query and key, added to the scores
            (arXiv 2503.02130); `"distance_mlp"`: the output of a small network of the distance added to the scores
            (arXiv 2108.00154); `"hierarchical"`: `"learned"` with n² positions from n = max_position_embeddings
            vectors (Su 2020).
        decoder_position_encoding (`str`, *optional*): The decoder's `position_encoding`; the encoder's if not given.
        position_offset (`int`): Position number of the first token, for encodings that are added to the embeddings.
        encoder_attention_type, decoder_attention_type (`str`): The keys that a query of self-attention attends to.
            Time and memory grow with the length, not with its square, of all but `"full"` and the synthesizers.
            `"full"`: all, in the decoder those before it; `"window"`: those at most `attention_window` positions away
            (arXiv 2004.05150); `"window_global"`: the same, and global tokens, which attend to all tokens, and all to
            them; `"blocks"`: those of its block of `attention_block` positions and of the blocks next to it (arXiv
            1802.05751); `"chunk"`: those of its own block; `"linformer"`: `linformer_k` trained sums over all keys
            (arXiv 2006.04768; not in the decoder); `"lsh"`: those that random rotations put into its bucket (arXiv
            2001.04451); `"performer"`: all, by random features (arXiv 2009.14794); `"recurrent"`: the `memory_length`
            positions before it, across segments (arXiv 1901.02860; in the decoder alone); `"synthesizer_dense"`: all,
            with weights made of the query's token alone (arXiv 2005.00743); `"synthesizer_random"`: all, with weights
            trained for each pair of positions (arXiv 2005.00743).
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
        encoder_heads_by_layer, decoder_heads_by_layer, cross_heads_by_layer (`list[int]`, *optional*): The heads that
            pruning (arXiv 1905.10650) has left in each layer, or set of a layer's weights, of self-attention in the
            encoder and in the decoder, and of attention to the source; all of h if not given. Widths of heads follow
            from h.
        encoder_pooling (`list[int]`, *optional*): Layers of the encoder before each pooling, which halves the length:
            `[2, 2]` pools before the third and before the fifth layer (arXiv 2006.03236). The decoder attends to the
            short output.
        rotary_base (`float`): Base of the angles of rotary encodings.
        rotary_fraction (`float`): Share of each head's features that rotary encodings turn.
        relative_buckets (`int`): Rows of the table of `"t5_bias"`.
        max_relative_distance (`int`, *optional*): Distance beyond which `"shaw"` and `"t5_bias"` treat all distances
            alike; 20 and 128 if not given.
        hierarchical_alpha (`float`): Weight α of the coarse position in `"hierarchical"` encodings; must not be 0.5.
        attention_window (`int`): Positions on each side of `"window"` and `"window_global"` attention.
        global_tokens (`int`): Tokens at the begin of a sequence that all others see, and that see all others, in
            `"window_global"` attention; in the encoder `global_attention_mask` of a call takes their place.
        global_projections (`str`): Projections of global tokens in the encoder: `"separate"`, as in Longformer, or
            `"shared"` with the others.
        attention_block (`int`): Positions of a block of `"blocks"` and `"chunk"` attention.
        chunk_summary (`str`): What a query of `"chunk"` attention sees of each earlier chunk: `"none"`, or `"mean"`:
            the mean of its keys, with that of its values.
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
        num_mel_bins (`int`): Features of a frame of speech.
        conv_strides (`list[int]`, *optional*): Strides of the convolutions of `front_end="speech"` or
            `"speech_whisper"`, one each; if not given, two of 2: four frames become one position.
        conv_kernel_size (`int`): Frames that a convolution sees, an odd number.
        conv_channels (`int`, *optional*): Outputs of all convolutions but the last, which has the encoder's width;
            that width if not given.
        conv_activation (`str`): Behind each convolution: a key of transformers' `ACT2FN`, or `"glu"`, a gate in the
            second half of the outputs.
        stacked_frames (`int`): Frames that become one position with `front_end="speech_stacked"`.
        num_channels (`int`): Channels of an image: 1 for grey, 3 for colours.
        image_height, image_width (`int`): Pixels of an image.
        patch_height, patch_width (`int`): Pixels of a patch; they divide those of the image.

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
    encoder_layer_sets: int | None = None
    decoder_layer_sets: int | None = None
    layer_sharing: Literal["sequence", "cycle", "cycle_reverse"] = "sequence"
    feed_forward_sharing: Literal["none", "stack", "all", "encoder_only"] = "none"
    projection_sharing: Literal["none", "key_value", "query_key", "query_key_value"] = "none"
    decoder_attention_sharing: bool = False
    encoder_heads_by_layer: list[int] | None = None
    decoder_heads_by_layer: list[int] | None = None
    cross_heads_by_layer: list[int] | None = None
    encoder_pooling: list[int] | None = None
    rotary_base: float | int = 10000.0
    rotary_fraction: float | int = 1.0
    relative_buckets: int = 32
    max_relative_distance: int | None = None
    hierarchical_alpha: float | int = 0.4
    attention_window: int = 128
    global_tokens: int = 1
    global_projections: Literal["separate", "shared"] = "separate"
    attention_block: int = 128
    chunk_summary: Literal["none", "mean"] = "none"
    linformer_k: int = 256
    lsh_buckets: int = 32
    lsh_rounds: int = 2
    lsh_chunk: int = 64
    lsh_seed: int = 0
    performer_features: int | None = None
    performer_redraw: int = 1000
    memory_length: int = 128
    num_mel_bins: int = 80
    conv_strides: list[int] | None = None
    conv_kernel_size: int = 3
    conv_channels: int | None = None
    conv_activation: str = "gelu"
    stacked_frames: int = 4
    num_channels: int = 3
    image_height: int = 224
    image_width: int = 224
    patch_height: int = 16
    patch_width: int = 16

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "VanillaTransformerConfig":
        """
        A named size: `"base"`, `"big"`, a row of the paper's Table 3 (`"A-h1"` … `"E"`), `"iwslt_de_en"`,
        `"multi30k_tiny"`, `"multi30k_small"` or `"deep_shallow"`; or the base model with gated feed-forwards (`"glu"`,
        `"bilinear"`, `"reglu"`, `"geglu"`, `"swiglu"`); with single fields overridden.

        Raises:
            ValueError: No preset has this name; the message lists them.
        """
        presets = part("config.presets", "presets").PRESETS
        if name not in presets:
            raise ValueError(f"no preset is called {name!r}{nearest(name, presets)}; there are {', '.join(presets)}")
        return cls(**{**presets[name], **overrides})

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
        written = config_dict.pop(VERSION_FIELD, VERSION)
        theirs, ours = (re.match(r"(\d+)\.(\d+)(?!\d)", str(version)) for version in (written, VERSION))
        if theirs is None:
            raise ValueError(f"{VERSION_FIELD}={written!r}: must be a version, such as {VERSION!r}")
        if ours and [*map(int, theirs.groups())] > [*map(int, ours.groups())]:
            raise ValueError(
                f"vanilla_transformer_hf {written} wrote this config, and {VERSION} would not understand all of it: "
                "upgrade the package; or, in a process that does not import it, open the model with "
                "trust_remote_code=True, which takes the code that came with it"
            )
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The fields; one that takes its default from another is None, so that an override of that changes both."""
        fields = super().to_dict()
        for name, other in FOLLOWERS.items():
            if name in fields and fields[name] == fields.get(other):
                fields[name] = None
        for name in (*VARIANT_FIELDS, "classifier_dropout"):
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
        rows += [FRONT_ENDS[self.front_end], NORM_KINDS[self.norm_type]]
        classes = [name.rpartition(".")[0] for name in classes_of(self).values()]
        modules = {row.module for row in rows if row.module}
        modules |= {"config.variants"} if variant_of(self, VanillaTransformerConfig) else set()
        return tuple(dict.fromkeys([*classes, *sorted(modules)]))

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
        if message := next(conflicts(self, VanillaTransformerConfig), None):
            raise ValueError(message)

    @property
    def sliding_window(self) -> int:
        """What transformers' caches read: `memory_length` and the query itself, in a decoder alone with a memory."""
        self._check_memory()
        return self.memory_length + 1

    @sliding_window.setter
    def sliding_window(self, value: int) -> None:
        self._check_memory()
        self.memory_length = value - 1

    def _check_memory(self) -> None:
        if self.decoder_attention_type != "recurrent" or self.is_encoder_decoder:  # then hasattr() must be False
            raise AttributeError("sliding_window: only a decoder alone with decoder_attention_type='recurrent' has it")


# The values that a command line offers. `name_in` checks them, so that a program may add rows of its own.
VanillaTransformerConfig.__annotations__ |= {
    "front_end": Literal[(*FRONT_ENDS,)],
    "position_encoding": Literal[(*POSITION_SCHEMES,)],
    "decoder_position_encoding": Literal[(*POSITION_SCHEMES,)] | None,
    **dict.fromkeys(("encoder_attention_type", "decoder_attention_type"), Literal[(*ATTENTION_KINDS,)]),
}
