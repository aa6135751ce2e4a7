"""What is wrong with a config beyond the types of its fields: a line for each conflict, in the order of the checks."""

from collections.abc import Iterator, Mapping
from typing import Any

from .attention_kinds import ATTENTION_KINDS
from .front_ends import FRONT_ENDS
from .kinds import LARGEST_DEPTH, LARGEST_SIZE, Kind, nearest, users_of_options
from .position_schemes import POSITION_SCHEMES, stack_fields
from .sharing import PROJECTIONS, layers_and_sets
from .stacks import HEAD_FIELDS, HEADS, STACK_NAMES, heads_of_layers, stack_of


# Table of kinds -> the fields that name its rows, and how a message says that one of them must.
TABLES: tuple[tuple[Mapping[str, Kind], tuple[str, ...], str], ...] = (
    (POSITION_SCHEMES, ("position_encoding", "decoder_position_encoding"), "position_encoding="),
    (
        ATTENTION_KINDS,
        ("encoder_attention_type", "decoder_attention_type", "cross_attention_type"),
        "attention of the type ",
    ),
    (FRONT_ENDS, ("front_end",), "front_end="),
)
# Fields that only some kinds of models have.
OPTIONS = tuple(dict.fromkeys(name for table, *_ in TABLES for name in users_of_options(table)))
# Fields that are numbers greater than 0, beside the options; of these, other numbers may be negative.
POSITIVE = (
    *("vocab_size", "source_vocab_size", "d_model", "encoder_d_model", "encoder_layers", "decoder_layers"),
    *("encoder_attention_heads", "decoder_attention_heads", "d_k", "d_v", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("max_position_embeddings", "decoder_max_position_embeddings", "layer_norm_eps"),
)
ANY_NUMBER = ("hierarchical_alpha", "lsh_seed")


def conflicts(config: Any) -> Iterator[str]:
    """What is wrong, first with single fields; each check may rely on those before it."""
    if config.is_encoder_decoder and config.is_decoder:
        yield "is_decoder=True with is_encoder_decoder=True: set is_encoder_decoder=False, too"
    yield from wrong_numbers(config)
    yield from conflicts_of_widths(config)
    yield from conflicts_of_sharing(config)
    yield from conflicts_of_heads(config)
    yield from conflicts_of_positions(config)
    yield from conflicts_of_attention(config)
    yield from conflicts_of_encoder(config)
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


def wrong_numbers(config: Any) -> Iterator[str]:
    """Numbers out of range, and unknown activation functions."""
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


def conflicts_of_widths(config: Any) -> Iterator[str]:
    """Heads that do not divide the width of their stack and have none of their own; one matrix of two widths."""
    encoder_width = "d_model" if config.encoder_d_model == config.d_model else "encoder_d_model"
    for name, width in (("encoder_attention_heads", encoder_width), ("decoder_attention_heads", "d_model")):
        heads, size = getattr(config, name), getattr(config, width)
        if size % heads and (config.d_k is None or config.d_v is None):
            yield f"{name}={heads}: must divide {width}={size}, unless d_k and d_v are given"
    query, key, value = PROJECTIONS[kind := config.projection_sharing]
    for stack, size in (("encoder", config.encoder_d_model), ("decoder", config.d_model)):
        heads = getattr(config, f"{stack}_attention_heads")
        d_k, d_v = config.d_k or size // heads, config.d_v or size // heads
        if key == value and d_k != d_v:
            yield (
                f"projection_sharing={kind!r} with keys of width {d_k} and values of width {d_v} in the {stack}: one "
                "projection cannot make both; set d_k and d_v to one width"
            )
    if config.encoder_d_model == config.d_model:
        return
    widths = f"encoder_d_model={config.encoder_d_model} and d_model={config.d_model}"
    for is_shared, name, instead in (
        (query == key, "projection_sharing", "'none' or 'key_value'"),
        (config.decoder_attention_sharing, "decoder_attention_sharing", "False"),
        (config.feed_forward_sharing == "all", "feed_forward_sharing", "'stack'"),
    ):
        if is_shared:
            yield (
                f"{name}={getattr(config, name)!r} with {widths}: one matrix cannot read states of two widths; take "
                f"{instead}, or one width"
            )
    if config.tied_matrices == "all":
        yield (
            f"embedding_sharing='all' with {widths}: one matrix cannot have two widths; must be 'decoder' or 'none'"
        )


def conflicts_of_sharing(config: Any) -> Iterator[str]:
    """Sharing that is impossible or has no effect."""
    if config.source_vocab_size is not None and config.tied_matrices == "all":
        yield (
            f"embedding_sharing='all' with source_vocab_size={config.source_vocab_size}: one matrix cannot "
            "serve two vocabularies; must be 'decoder' or 'none'"
        )
    fewer = False
    for stack in ("encoder", "decoder"):
        layers, sets = layers_and_sets(config, stack)
        if not 0 < sets <= layers:
            yield f"{stack}_layer_sets={sets}: must be at least 1 and at most {stack}_layers={layers}"
        fewer |= sets < layers
    if config.layer_sharing != "sequence" and not fewer:
        yield (
            f"layer_sharing={config.layer_sharing!r} shares nothing while each layer has weights of its own: set "
            f"encoder_layer_sets to less than {config.encoder_layers} or decoder_layer_sets to less than "
            f"{config.decoder_layers}"
        )
    for one, other, few in (
        ("activation_function", "decoder_activation_function", "has only one; take one, or 'stack'"),
        ("encoder_ffn_dim", "decoder_ffn_dim", "cannot have two widths; set them to one width, or take 'stack'"),
    ):
        values = getattr(config, one), getattr(config, other)
        if config.feed_forward_sharing == "all" and values[0] != values[1]:
            yield (
                f"feed_forward_sharing='all' with {one}={values[0]!r} and {other}={values[1]!r}: one feed-forward "
                f"{few}"
            )


def conflicts_of_heads(config: Any) -> Iterator[str]:
    """Not as many numbers of heads as layers, numbers out of range, or heads that all layers must have."""
    for attention, name in HEAD_FIELDS.items():
        stack = stack_of(attention)
        (most, heads), sets = HEADS[attention](config), layers_and_sets(config, stack)[1]
        if heads is None:
            continue
        if len(heads) != sets or not all(1 <= count <= most for count in heads):
            yield (
                f"{name}={heads}: must be {sets} numbers, one for each layer with weights of its own, from 1 to "
                f"{stack}_attention_heads={most}"
            )
        encoding, kind, *_ = stack_fields(config, stack)
        scheme = POSITION_SCHEMES[kind]
        if attention != "cross" and scheme.is_relative and scheme.has_heads and min(heads) < most:
            yield (
                f"{name}={heads} with {encoding}={kind!r}, which has a bias for each of {most} heads that all layers "
                f"share: leave {name} out, or take another encoding"
            )
    if config.decoder_attention_sharing and heads_of_layers(config, "decoder") != heads_of_layers(config, "cross"):
        yield (
            f"decoder_heads_by_layer={config.decoder_heads_by_layer} and "
            f"cross_heads_by_layer={config.cross_heads_by_layer}: must be equal with decoder_attention_sharing=True"
        )


def conflicts_of_positions(config: Any) -> Iterator[str]:
    """Sinusoids of an odd or too small width, what the rows of the schemes say, and options that no kind uses."""
    encoder_width = "d_model" if config.encoder_d_model == config.d_model else "encoder_d_model"
    for width, name in ((encoder_width, "position_encoding"), ("d_model", "decoder_position_encoding")):
        size, kind = getattr(config, width), getattr(config, name)
        least = POSITION_SCHEMES[kind].even_width
        if least > 1 and (size % 2 or size < least):
            yield f"{width}={size}: {name}={kind!r} needs an even one of at least {least}"
    for table, fields, said in TABLES:
        used = {getattr(config, field) for field in fields}
        for name, users in users_of_options(table).items():
            if (value := getattr(config, name)) != getattr(type(config), name) and used.isdisjoint(users):
                places = [field for field in fields if any(can_name(field, user, table) for user in users)]
                yield (
                    f"{name}={value!r}: only {said}{' or '.join(map(repr, users))} has it; leave {name} out, or set "
                    f"{' or '.join(places)}"
                )
    for stack in ("encoder", "decoder"):
        yield from POSITION_SCHEMES[stack_fields(config, stack)[1]].conflicts(config, stack)


def can_name(field: str, kind: str, table: Mapping[str, Any]) -> bool:
    """Whether a field of a config may have a kind as its value."""
    if field == "cross_attention_type":
        return kind == "linformer"
    return field.split("_")[0] not in getattr(table[kind], "not_in", ())  # "encoder" or "decoder"


def conflicts_of_attention(config: Any) -> Iterator[str]:
    """What a stack's kind of attention, and its score, cannot be combined with."""
    stacks: dict[str, str] = {"encoder": config.encoder_attention_type, "decoder": config.decoder_attention_type}
    for stack, kind in stacks.items():
        reason = ATTENTION_KINDS[kind].not_in.get(stack)
        # A model of one stack has the kind of that stack in both fields.
        if reason is not None and config.stacks in (stack, "encoder_decoder"):
            yield f"{stack}_attention_type={kind!r}: {reason}"
    score = f"attention_score={config.attention_score!r}"
    for stack, kind in stacks.items():
        row, name = ATTENTION_KINDS[kind], f"{stack}_attention_type={kind!r}"
        encoding_name, encoding, *_ = stack_fields(config, stack)
        scheme = POSITION_SCHEMES[encoding]
        if scheme.rotates and not row.can_rotate:
            yield (
                f"{name} with {encoding_name}={encoding!r}: there are no products of a query and a single key "
                "to turn; take an encoding that is added to the embeddings"
            )
        yield from row.conflicts(config, stack)
        is_shared = config.decoder_attention_sharing and stack == "decoder"
        if not row.has_keys and (is_shared or config.projection_sharing != "none"):
            shared = "decoder_attention_sharing" if is_shared else "projection_sharing"
            yield (
                f"{name} with {shared}={getattr(config, shared)!r}: it has no projection of keys to share; "
                f"leave {shared} out"
            )
        if row.has_head_parameters and getattr(config, f"{stack}_heads_by_layer"):
            yield (
                f"{name} with {stack}_heads_by_layer: its parameters belong to heads, which cannot be pruned; "
                f"leave {stack}_heads_by_layer out"
            )
        if scheme.is_relative and not row.has_pairs:
            paired = ", ".join(other for other, each in ATTENTION_KINDS.items() if each.has_pairs)
            yield (
                f"{name} with position encoding {encoding!r}: only {paired} attention adds scores of distances; take "
                "an encoding that is added to the embeddings"
            )
        if config.attention_score != "scaled_dot" and not row.has_keys:
            yield f"{score} with {name}: its scores are not products of queries and keys; leave it out"
        if config.attention_score == "additive" and (scheme.is_relative or scheme.rotates):
            yield (
                f"{score} with {encoding_name}={encoding!r}: there are no products of queries and keys that it could "
                "change; take an encoding that is added to the embeddings"
            )
    if config.attention_score != "additive":
        return
    for part, kind in {**stacks, "cross": config.cross_attention_type}.items():
        if kind != "full":
            yield f"{score} with {part}_attention_type={kind!r}: only full attention has it; leave one of them out"
    if config.encoder_pooling is not None:
        yield f"{score} with encoder_pooling: only encoders that do not pool have it; leave one of them out"
    for name in HEAD_FIELDS.values():
        if getattr(config, name) is not None:
            yield f"{score} with {name}: each head has a vector of its own; leave {name} out"


def conflicts_of_encoder(config: Any) -> Iterator[str]:
    """What pooling, norms over a batch, and sources that are no tokens cannot be combined with."""
    if (blocks := config.encoder_pooling) is not None:
        name = f"encoder_pooling={blocks!r}"
        if not blocks or min(blocks) < 1 or sum(blocks) >= config.encoder_layers:
            yield (
                f"{name}: must be numbers of layers before each pooling, at least 1 each, together fewer than "
                f"encoder_layers={config.encoder_layers}"
            )
        if config.encoder_attention_type != "full":
            yield f"{name} with encoder_attention_type={config.encoder_attention_type!r}: only full attention pools"
        scheme = POSITION_SCHEMES[config.position_encoding]
        if scheme.is_relative or scheme.rotates:
            yield (
                f"{name} with position_encoding={config.position_encoding!r}: a mean of two tokens has no position; "
                "take an encoding that is added to the embeddings"
            )
        if config.encoder_layer_sets != config.encoder_layers:
            yield (
                f"{name} with encoder_layer_sets={config.encoder_layer_sets}: layers that pool have weights of their "
                "own"
            )
    # A norm over the tokens of a batch cannot know which positions are tokens.
    if config.norm_type == "batch_norm" and config.stacks != "encoder_decoder":
        yield (
            f"norm_type='batch_norm' with {STACK_NAMES[config.stacks]}: only models of encoder and decoder have it; "
            "take 'layer_norm'"
        )
    if config.norm_type == "batch_norm" and blocks is not None:
        yield (
            f"norm_type='batch_norm' with encoder_pooling={blocks!r}: its statistics are of tokens, not of means of "
            "two; leave encoder_pooling out"
        )
    if (kind := config.front_end) == "tokens":
        return
    if config.stacks != "encoder_decoder":
        yield f"front_end={kind!r} with is_encoder_decoder=False: only models with an encoder and a decoder have it"
    for field, value in {"source_vocab_size": None, "type_vocab_size": 0}.items():
        if (found := getattr(config, field)) != value:
            yield f"front_end={kind!r} with {field}={found!r}: its source has no tokens; leave {field} out"
    yield from FRONT_ENDS[kind].conflicts(config, "encoder")
