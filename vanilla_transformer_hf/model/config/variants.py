"""What is wrong with a config of a model that the paper does not have: kinds, sharing, pruned heads, sources."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .attention_kinds import ATTENTION_KINDS
from .conflicts import OF_VARIANTS
from .front_ends import FRONT_ENDS, strides_of_convolutions
from .kinds import Kind, nearest, users_of_options
from .position_schemes import POSITION_SCHEMES, T5_DISTANCE
from .sharing import PROJECTIONS, layers_and_sets
from .stacks import HEAD_FIELDS, STACK_NAMES, heads_of_layers, most_heads, stack_of


def stack_fields(config: Any, stack: str) -> tuple[str, str, int, int]:
    """Of a stack: the field and the value of its position encoding, its heads, and the width of one head."""
    name = "position_encoding" if stack == "encoder" else "decoder_position_encoding"
    width = config.encoder_d_model if stack == "encoder" else config.d_model
    heads = getattr(config, f"{stack}_attention_heads")
    return name, getattr(config, name), heads, config.d_k or width // heads


def rotary_conflicts(config: Any, stack: str) -> Iterator[str]:
    if config.rotary_fraction > 1:
        yield f"rotary_fraction={config.rotary_fraction!r}: must be greater than 0 and at most 1"
    name, kind, _, head_width = stack_fields(config, stack)
    if int(head_width * config.rotary_fraction) < 2:
        yield (
            f"{name}={kind!r}: heads of {head_width} features and rotary_fraction={config.rotary_fraction} "
            "leave no pair of features to turn; take fewer heads"
        )


def bucket_conflicts(config: Any, stack: str) -> Iterator[str]:
    if config.relative_buckets % 4:
        yield f"relative_buckets={config.relative_buckets}: must be a multiple of 4"
    distance = config.max_relative_distance or T5_DISTANCE
    if distance <= config.relative_buckets // 2:
        yield (
            f"max_relative_distance={distance}: must be greater than half of "
            f"relative_buckets={config.relative_buckets}"
        )


def hierarchy_conflicts(config: Any, stack: str) -> Iterator[str]:
    if not 0 < config.hierarchical_alpha < 1 or config.hierarchical_alpha == 0.5:
        yield (
            f"hierarchical_alpha={config.hierarchical_alpha!r}: must be greater than 0, less than 1, and not 0.5, "
            "with which positions n·i + j and n·j + i would be the same"
        )


def grid_conflicts(config: Any, stack: str) -> Iterator[str]:
    name, kind, *_ = stack_fields(config, stack)
    if stack == "decoder" or config.front_end != "image":
        yield (
            f"{name}={kind!r}: only the encoder of an image has rows and columns; set another {name} or, in a model "
            "of images, another decoder_position_encoding"
        )
    if config.encoder_d_model % 4:
        yield f"d_model={config.encoder_d_model}: {name}={kind!r} needs a multiple of 4"


def chunk_conflicts(config: Any, stack: str) -> Iterator[str]:
    _, encoding, *_ = stack_fields(config, stack)
    if config.chunk_summary != "none" and POSITION_SCHEMES[encoding].is_relative:
        yield (
            f"chunk_summary={config.chunk_summary!r} with position encoding {encoding!r}: a summary has "
            "no distance; take an encoding that is added to the embeddings, or 'rotary'"
        )


def lsh_conflicts(config: Any, stack: str) -> Iterator[str]:
    if config.lsh_buckets % 2 and config.lsh_buckets != 1:
        yield f"lsh_buckets={config.lsh_buckets}: must be even, or 1"


def performer_conflicts(config: Any, stack: str) -> Iterator[str]:
    if config.attention_dropout:
        yield (
            f"{stack}_attention_type='performer' with attention_dropout={config.attention_dropout}: its weights are "
            "never computed; set attention_dropout=0"
        )


def memory_conflicts(config: Any, stack: str) -> Iterator[str]:
    name, encoding, *_ = stack_fields(config, stack)
    if encoding != "none":
        yield (
            f"{stack}_attention_type='recurrent' with {name}={encoding!r}: it has distances of its own, and positions "
            f"would begin anew with each segment; set {name}='none'"
        )


def convolution_conflicts(config: Any, stack: str) -> Iterator[str]:
    strides = strides_of_convolutions(config)
    if not strides or not all(0 < stride <= 8 for stride in strides) or len(strides) > 8:
        yield f"conv_strides={strides!r}: must be one to eight numbers from 1 to 8, one for a convolution"
    if config.conv_kernel_size % 2 == 0:
        yield f"conv_kernel_size={config.conv_kernel_size}: must be odd, so that it has a frame in its middle"
    if (name := config.conv_activation) == "glu":
        if config.conv_channels is not None and config.conv_channels % 2:
            yield f"conv_channels={config.conv_channels}: must be even with conv_activation='glu'"
        return
    from transformers.activations import ACT2FN  # heavy: it brings torch.distributed and torch's compiler

    if name not in ACT2FN:
        yield f"conv_activation={name!r}{nearest(name, ACT2FN)}: must be 'glu' or one of {', '.join(sorted(ACT2FN))}"


def patch_conflicts(config: Any, stack: str) -> Iterator[str]:
    for side in ("height", "width"):
        image, patch = getattr(config, f"image_{side}"), getattr(config, f"patch_{side}")
        if image % patch:
            yield f"patch_{side}={patch}: must divide image_{side}={image}"


# Kind -> what its fields, and others, cannot be together: the config and "encoder" or "decoder", the stack that has
# this kind, to a message for each conflict.
CONFLICTS: dict[str, Callable[[Any, str], Iterator[str]]] = {
    **dict.fromkeys(("rotary", "rotary_halves"), rotary_conflicts),
    "t5_bias": bucket_conflicts,
    "hierarchical": hierarchy_conflicts,
    "sinusoidal_grid": grid_conflicts,
    "chunk": chunk_conflicts,
    "lsh": lsh_conflicts,
    "performer": performer_conflicts,
    "recurrent": memory_conflicts,
    **dict.fromkeys(("speech", "speech_whisper"), convolution_conflicts),
    "image": patch_conflicts,
}
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


def conflicts_of_variants(config: Any) -> Iterator[str]:
    """Each check may rely on those before it."""
    yield from conflicts_of_widths(config)
    yield from conflicts_of_sharing(config)
    yield from conflicts_of_heads(config)
    for table, fields, said in TABLES:
        used = {getattr(config, field) for field in fields}
        for name, users in users_of_options(table).items():
            if (value := getattr(config, name)) != getattr(type(config), name) and used.isdisjoint(users):
                places = [field for field in fields if any(can_name(field, user, table) for user in users)]
                yield (
                    f"{name}={value!r}: only {said}{' or '.join(map(repr, users))} has it; leave {name} out, or set "
                    f"{' or '.join(places)}"
                )
    yield from conflicts_of_attention(config)
    yield from conflicts_of_encoder(config)
    for stack in ("encoder", "decoder"):
        kinds = stack_fields(config, stack)[1], getattr(config, f"{stack}_attention_type"), config.front_end
        for kind in kinds if stack == "encoder" else kinds[:2]:
            if kind in CONFLICTS:
                yield from CONFLICTS[kind](config, stack)


OF_VARIANTS.append(conflicts_of_variants)


def conflicts_of_widths(config: Any) -> Iterator[str]:
    """One matrix of two widths."""
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
        stack, most = stack_of(attention), most_heads(config, attention)
        heads, sets = getattr(config, name), layers_and_sets(config, stack)[1]
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
