"""
What is wrong with a config beyond the types of its fields: a line for each conflict, in the order of the checks. Those
of models that the paper does not have are in `variants.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from .attention_kinds import ATTENTION_KINDS
from .front_ends import FRONT_ENDS
from .kinds import LARGEST_DEPTH, LARGEST_SIZE, nearest, part, users_of_options
from .position_schemes import POSITION_SCHEMES


# Field -> the field that gives its default value.
FOLLOWERS = {
    "encoder_d_model": "d_model",
    "decoder_activation_function": "activation_function",
    "decoder_position_encoding": "position_encoding",
    "decoder_max_position_embeddings": "max_position_embeddings",
    "encoder_layer_sets": "encoder_layers",
    "decoder_layer_sets": "decoder_layers",
}

# Fields that only some kinds of models have.
OPTIONS = tuple(
    dict.fromkeys(
        name for table in (POSITION_SCHEMES, ATTENTION_KINDS, FRONT_ENDS) for name in users_of_options(table)
    )
)
# Fields that are numbers greater than 0, beside the options; of these, other numbers may be negative.
POSITIVE = (
    *("vocab_size", "source_vocab_size", "d_model", "encoder_d_model", "encoder_layers", "decoder_layers"),
    *("encoder_attention_heads", "decoder_attention_heads", "d_k", "d_v", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("max_position_embeddings", "decoder_max_position_embeddings", "layer_norm_eps"),
)
ANY_NUMBER = ("hierarchical_alpha", "lsh_seed")
# Fields of single variants; a saved config omits those that have their default values.
VARIANT_FIELDS = (
    *("encoder_layer_sets", "decoder_layer_sets", "layer_sharing", "feed_forward_sharing", "projection_sharing"),
    *("decoder_attention_sharing", "encoder_heads_by_layer", "decoder_heads_by_layer", "cross_heads_by_layer"),
    *("encoder_pooling", "encoder_attention_type", "decoder_attention_type", "cross_attention_type"),
    *("type_vocab_size", "is_decoder", "front_end", "attention_score"),
    *OPTIONS,
)
# The checks of `variants.py`, which a saved folder has if its config names a variant.
OF_VARIANTS: list[Callable[[Any], Iterator[str]]] = []


def variant_of(config: Any, paper: Any) -> str | None:
    """A field, and its value, that makes the model another than that of this class of configs; None if none does."""
    for name in (*VARIANT_FIELDS, "position_encoding", "decoder_position_encoding", "norm_type", "encoder_d_model"):
        plain = getattr(config, FOLLOWERS[name]) if name in FOLLOWERS else getattr(paper, name)
        if (value := getattr(config, name)) != plain:
            return f"{name}={value!r}"
    return None


def conflicts(config: Any, paper: Any) -> Iterator[str]:
    """What is wrong, first with single fields; each check may rely on those before it. `paper` has its defaults."""
    if config.is_encoder_decoder and config.is_decoder:
        yield "is_decoder=True with is_encoder_decoder=True: set is_encoder_decoder=False, too"
    for name in (*POSITIVE, *(name for name in OPTIONS if name not in ANY_NUMBER)):
        value = getattr(config, name)
        if isinstance(value, int | float):  # what is no number is left to the type's check
            largest = LARGEST_DEPTH if name.endswith("_layers") else LARGEST_SIZE
            if not 0 < value < float("inf"):
                yield f"{name}={value!r}: must be greater than 0"
            if value > largest:
                yield f"{name}={value!r}: must be at most {largest:,}"
    for name in ("dropout", "attention_dropout", "activation_dropout", "classifier_dropout", "label_smoothing"):
        if (value := getattr(config, name)) is not None and not 0 <= value < 1:
            yield f"{name}={value!r}: must be at least 0 and less than 1"
    for name in ("position_offset", "type_vocab_size", "encoder_residual_alpha", "decoder_residual_alpha"):
        if not 0 <= (value := getattr(config, name)) <= LARGEST_SIZE:
            yield f"{name}={value!r}: must be at least 0 and at most {LARGEST_SIZE:,}"
    from transformers.activations import ACT2FN  # heavy: it brings torch.distributed and torch's compiler

    for name in ("activation_function", "decoder_activation_function"):
        if (value := getattr(config, name)) not in ACT2FN:
            yield f"{name}={value!r}{nearest(value, ACT2FN)}: must be one of {', '.join(sorted(ACT2FN))}"
    encoder_width = "d_model" if config.encoder_d_model == config.d_model else "encoder_d_model"
    for name, width in (("encoder_attention_heads", encoder_width), ("decoder_attention_heads", "d_model")):
        heads, size = getattr(config, name), getattr(config, width)
        if size % heads and (config.d_k is None or config.d_v is None):
            yield f"{name}={heads}: must divide {width}={size}, unless d_k and d_v are given"
    if config.source_vocab_size is not None and config.tied_matrices == "all":
        yield (
            f"embedding_sharing='all' with source_vocab_size={config.source_vocab_size}: one matrix cannot "
            "serve two vocabularies; must be 'decoder' or 'none'"
        )
    for width, name in ((encoder_width, "position_encoding"), ("d_model", "decoder_position_encoding")):
        size, kind = getattr(config, width), getattr(config, name)
        least = POSITION_SCHEMES[kind].even_width
        if least > 1 and (size % 2 or size < least):
            yield f"{width}={size}: {name}={kind!r} needs an even one of at least {least}"
    if (variant := variant_of(config, paper)) is not None:
        if not OF_VARIANTS:
            part("config.variants", variant)
        yield from OF_VARIANTS[0](config)
    for name in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
        ids = getattr(config, name)
        for token_id in ids if isinstance(ids, list) else [ids]:
            if token_id is not None and not 0 <= token_id < config.vocab_size:
                yield f"{name}={ids!r}: must lie within the vocabulary, 0 to {config.vocab_size - 1}"
    if config.source_vocab_size is not None and config.pad_token_id >= config.source_vocab_size:
        yield (
            f"pad_token_id={config.pad_token_id}: must lie within the source vocabulary, 0 to "
            f"{config.source_vocab_size - 1}"
        )
