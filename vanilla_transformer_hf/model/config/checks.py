"""Checks of sizes, widths and token ids, which a type cannot express."""

from typing import Any

from .kinds import LARGEST_SIZE, check_positive, nearest


# Fields that are numbers greater than 0, beside the options of single kinds.
POSITIVE = (
    *("vocab_size", "source_vocab_size", "d_model", "encoder_d_model", "encoder_layers", "decoder_layers"),
    *("encoder_attention_heads", "decoder_attention_heads", "d_k", "d_v", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("max_position_embeddings", "decoder_max_position_embeddings", "layer_norm_eps"),
)


def check_sizes(config: Any) -> None:
    """
    Raises:
        ValueError: A number is out of range, or an activation function is unknown.
    """
    for name in POSITIVE:
        check_positive(name, getattr(config, name))
    for name in ("dropout", "attention_dropout", "activation_dropout", "classifier_dropout", "label_smoothing"):
        if (value := getattr(config, name)) is not None and not 0 <= value < 1:
            raise ValueError(f"{name}={value!r}: must be at least 0 and less than 1")
    for name in ("position_offset", "type_vocab_size", "encoder_residual_alpha", "decoder_residual_alpha"):
        if not 0 <= (value := getattr(config, name)) <= LARGEST_SIZE:
            raise ValueError(f"{name}={value!r}: must be at least 0 and at most {LARGEST_SIZE:,}")
    from transformers.activations import ACT2FN  # heavy: it brings torch.distributed and torch's compiler

    for name in ("activation_function", "decoder_activation_function"):
        if (value := getattr(config, name)) not in ACT2FN:
            hint = nearest(value, ACT2FN)
            raise ValueError(f"{name}={value!r}{hint}: must be one of {', '.join(sorted(ACT2FN))}")


def check_norms(config: Any) -> None:
    """
    Raises:
        ValueError: A norm over the tokens of a batch cannot know which positions are tokens.
    """
    if config.norm_type != "batch_norm":
        return
    if config.stacks != "encoder_decoder":
        raise ValueError(
            f"norm_type='batch_norm' with {STACK_NAMES[config.stacks]}: only models of encoder and decoder have it; "
            "take 'layer_norm'"
        )
    if config.encoder_pooling is not None:
        raise ValueError(
            f"norm_type='batch_norm' with encoder_pooling={config.encoder_pooling!r}: its statistics are of tokens, "
            "not of means of two; leave encoder_pooling out"
        )


def check_head_widths(config: Any) -> None:
    """
    Raises:
        ValueError: Heads do not divide the width of their stack, and have no width of their own.
    """
    encoder_width = "d_model" if config.encoder_d_model == config.d_model else "encoder_d_model"
    for name, width in (("encoder_attention_heads", encoder_width), ("decoder_attention_heads", "d_model")):
        heads, size = getattr(config, name), getattr(config, width)
        if size % heads and (config.d_k is None or config.d_v is None):
            raise ValueError(f"{name}={heads}: must divide {width}={size}, unless d_k and d_v are given")


def check_tied_embeddings(config: Any) -> None:
    """
    Raises:
        ValueError: One matrix is to serve two vocabularies, or states of two widths.
    """
    if config.source_vocab_size is not None and config.tied_matrices == "all":
        raise ValueError(
            f"embedding_sharing='all' with source_vocab_size={config.source_vocab_size}: one matrix cannot "
            "serve two vocabularies; must be 'decoder' or 'none'"
        )
    if config.encoder_d_model != config.d_model and config.tied_matrices == "all":
        raise ValueError(
            f"embedding_sharing='all' with encoder_d_model={config.encoder_d_model} and d_model={config.d_model}: one "
            "matrix cannot have two widths; must be 'decoder' or 'none'"
        )


def check_special_tokens(config: Any) -> None:
    """
    Raises:
        ValueError: A special token's id lies outside the vocabulary.
    """
    for name in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
        ids = getattr(config, name)
        for token_id in ids if isinstance(ids, list) else [ids]:
            if token_id is not None and not 0 <= token_id < config.vocab_size:
                raise ValueError(f"{name}={ids!r}: must lie within the vocabulary, 0 to {config.vocab_size - 1}")
    if config.source_vocab_size is not None and config.pad_token_id >= config.source_vocab_size:
        raise ValueError(
            f"pad_token_id={config.pad_token_id}: must lie within the source vocabulary, 0 to "
            f"{config.source_vocab_size - 1}"
        )


# Stacks -> their name in messages.
STACK_NAMES = {
    "encoder_decoder": "an encoder and a decoder",
    "encoder": "an encoder alone",
    "decoder": "a decoder alone",
}


def check_stacks(config: Any, needed: str, model: str) -> None:
    """
    Raises:
        ValueError: The config describes a model with other stacks than those of the class `model`.
    """
    if config.stacks != needed:
        raise ValueError(
            f"{model} has {STACK_NAMES[needed]}, and the config (is_encoder_decoder={config.is_encoder_decoder}, "
            f"is_decoder={config.is_decoder}) is of a model with {STACK_NAMES[config.stacks]}; open it with AutoModel"
        )
