"""
Kinds of attention in the config: a row each, and their options. `attention/` computes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from .kinds import Kind, any_number, option_group, users_of_options
from .position_schemes import POSITION_SCHEMES, stack_fields


@dataclass(frozen=True, kw_only=True)
class AttentionKind(Kind):
    """
    The values that are left out are those of a kind that changes only which keys a query sees, without scores for
    relative positions.

    Attributes:
        has_pairs: Whether it has a score of each query and each key that the query sees, to which relative position
            encodings may add.
        can_rotate: Whether rotary encodings may rotate its queries and keys; not where they are sums, or missing.
        has_keys: Whether it has a projection of keys.
        has_head_parameters: Whether heads have parameters beside the projections, which pruning would have to cut.
        is_quadratic: Whether its time grows with the square of the number of positions.
        has_weights_of_full: Whether a model with full attention has the same weights, so that either can be trained
            from the other.
        not_in: Stack -> why it cannot have this kind, and what to take.
    """

    has_pairs: bool = False
    can_rotate: bool = True
    has_keys: bool = True
    has_head_parameters: bool = False
    is_quadratic: bool = False
    has_weights_of_full: bool = False
    not_in: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------------------------
# Options
# ---------------------------------------------------------------------------------------------------------------------


@option_group
class WindowOptions:
    """
    Args:
        attention_window (`int`): Positions on each side of `"window"` and `"window_global"` attention.
    """

    attention_window: int = 128


@option_group
class GlobalOptions:
    """
    Args:
        global_tokens (`int`): Tokens at the begin of a sequence that all others see, and that see all others, in
            `"window_global"` attention; in the encoder `global_attention_mask` of a call takes their place.
        global_projections (`str`): Projections of global tokens in the encoder: `"separate"`, as in Longformer, or
            `"shared"` with the others.
    """

    global_tokens: int = 1
    global_projections: Literal["separate", "shared"] = "separate"


@option_group
class BlockOptions:
    """
    Args:
        attention_block (`int`): Positions of a block of `"blocks"` and `"chunk"` attention.
    """

    attention_block: int = 128


@option_group
class ChunkOptions:
    """
    Args:
        chunk_summary (`str`): What a query of `"chunk"` attention sees of each earlier chunk: `"none"`, or `"mean"`:
            the mean of its keys, with that of its values.
    """

    chunk_summary: Literal["none", "mean"] = "none"


def check_chunks(config: Any, stack: str) -> None:
    _, encoding, *_ = stack_fields(config, stack)
    if config.chunk_summary != "none" and POSITION_SCHEMES[encoding].is_relative:
        raise ValueError(
            f"chunk_summary={config.chunk_summary!r} with position encoding {encoding!r}: a summary has "
            "no distance; take an encoding that is added to the embeddings, or 'rotary'"
        )


@option_group
class LinformerOptions:
    """
    Args:
        linformer_k (`int`): Sums over the positions in `"linformer"` attention.
    """

    linformer_k: int = 256


@option_group
class LshOptions:
    """
    Args:
        lsh_buckets (`int`): Buckets of `"lsh"` attention, an even number or 1.
        lsh_rounds (`int`): Rounds of `"lsh"` attention, with rotations of their own.
        lsh_chunk (`int`): Tokens of a bucket of `"lsh"` attention that see each other and those just before.
        lsh_seed (`int`): Seed of the rotations of `"lsh"` attention.
    """

    lsh_buckets: int = 32
    lsh_rounds: int = 2
    lsh_chunk: int = 64
    lsh_seed: int = any_number(0)


def check_lsh(config: Any, stack: str) -> None:
    if config.lsh_buckets % 2 and config.lsh_buckets != 1:
        raise ValueError(f"lsh_buckets={config.lsh_buckets}: must be even, or 1")


@option_group
class PerformerOptions:
    """
    Args:
        performer_features (`int`, *optional*): Random features of `"performer"` attention; ⌊d_k ln d_k⌋ if not given.
        performer_redraw (`int`): Passes of training after which the features of `"performer"` attention are drawn
            anew.
    """

    performer_features: int | None = None
    performer_redraw: int = 1000


def check_performer(config: Any, stack: str) -> None:
    if config.attention_dropout:
        raise ValueError(
            f"{stack}_attention_type='performer' with attention_dropout={config.attention_dropout}: its weights are "
            "never computed; set attention_dropout=0"
        )


@option_group
class MemoryOptions:
    """
    Args:
        memory_length (`int`): Positions before a query that it sees in `"recurrent"` attention, and states of each
            layer that a decoder alone keeps for the next segment.
    """

    memory_length: int = 128

    @property
    def sliding_window(self: Any) -> int:
        """What transformers' caches read: `memory_length` and the query itself, in a decoder alone with a memory."""
        self._check_memory()
        return self.memory_length + 1

    @sliding_window.setter
    def sliding_window(self: Any, value: int) -> None:
        self._check_memory()
        self.memory_length = value - 1

    def _check_memory(self: Any) -> None:
        if self.decoder_attention_type != "recurrent" or self.is_encoder_decoder:  # then hasattr() must be False
            raise AttributeError("sliding_window: only a decoder alone with decoder_attention_type='recurrent' has it")


def check_memory(config: Any, stack: str) -> None:
    name, encoding, *_ = stack_fields(config, stack)
    if encoding != "none":
        raise ValueError(
            f"{stack}_attention_type='recurrent' with {name}={encoding!r}: it has distances of its own, and positions "
            f"would begin anew with each segment; set {name}='none'"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Rows: `encoder_attention_type` or `decoder_attention_type` -> its row
# ---------------------------------------------------------------------------------------------------------------------

ATTENTION_KINDS: dict[str, AttentionKind] = {
    "full": AttentionKind(
        about="all, in the decoder those before it", has_pairs=True, is_quadratic=True, has_weights_of_full=True
    ),
    "window": AttentionKind(
        module="attention.local",
        about="those at most `attention_window` positions away (arXiv 2004.05150)",
        options=(WindowOptions,),
        has_pairs=True,
        has_weights_of_full=True,
    ),
    "window_global": AttentionKind(
        module="attention.local_global",
        about="the same, and global tokens, which attend to all tokens, and all to them",
        options=(WindowOptions, GlobalOptions),
        has_head_parameters=True,
        has_weights_of_full=True,  # with shared projections
    ),
    "blocks": AttentionKind(
        module="attention.local",
        about=("those of its block of `attention_block` positions and of the blocks next to it (arXiv 1802.05751)"),
        options=(BlockOptions,),
        has_pairs=True,
        has_weights_of_full=True,
    ),
    "chunk": AttentionKind(
        module="attention.local",
        about="those of its own block",
        options=(BlockOptions, ChunkOptions),
        check=check_chunks,
        has_pairs=True,
        has_weights_of_full=True,
    ),
    "linformer": AttentionKind(
        module="attention.linformer",
        about="`linformer_k` trained sums over all keys (arXiv 2006.04768; not in the decoder)",
        options=(LinformerOptions,),
        can_rotate=False,
        not_in={
            "decoder": (
                "its sums cover all positions, so that a token would see those after it; take another type, such as "
                "'performer' or 'window'"
            )
        },
    ),
    "lsh": AttentionKind(
        module="attention.lsh",
        about="those that random rotations put into its bucket (arXiv 2001.04451)",
        options=(LshOptions,),
        check=check_lsh,
        has_keys=False,  # queries serve as keys
    ),
    "performer": AttentionKind(
        module="attention.performer",
        about="all, by random features (arXiv 2009.14794)",
        options=(PerformerOptions,),
        check=check_performer,
    ),
    "recurrent": AttentionKind(
        module="attention.segment_memory",
        about=("the `memory_length` positions before it, across segments (arXiv 1901.02860; in the decoder alone)"),
        options=(MemoryOptions,),
        check=check_memory,
        has_head_parameters=True,
        not_in={"encoder": "a memory of what was read before is the decoder's; take another type, such as 'window'"},
    ),
    "synthesizer_dense": AttentionKind(
        module="attention.synthesizer",
        about="all, with weights made of the query's token alone (arXiv 2005.00743)",
        can_rotate=False,
        has_keys=False,
        has_head_parameters=True,
        is_quadratic=True,
    ),
    "synthesizer_random": AttentionKind(
        module="attention.synthesizer",
        about="all, with weights trained for each pair of positions (arXiv 2005.00743)",
        can_rotate=False,
        has_keys=False,
        has_head_parameters=True,
        is_quadratic=True,
    ),
}

# The same of `cross_attention_type`, and kinds that no field names by itself.
CROSS_KINDS = {"full": Kind(about="its positions"), "linformer": Kind(about="sums", module="attention.linformer")}
OTHER_KINDS = {
    "additive": Kind(about="additive scores", module="attention.additive"),
    "pooling": Kind(about="queries of pooled states", module="attention.pooling"),
}


def attention_kind(config: Any, part: str, place: int) -> str:
    """The kind of a layer's attention: in `part` "encoder" or "decoder", or from one to the other ("cross")."""
    if config.attention_score == "additive":
        return "additive"
    if part == "encoder" and place in pooling_layers(config):
        return "pooling"
    kind: str = getattr(config, f"{part}_attention_type")
    return kind


def pooling_layers(config: Any) -> list[int]:
    """The numbers of the layers before which the sequence is pooled: 2 and 4 with `encoder_pooling=[2, 2]`."""
    return [*accumulate(config.encoder_pooling or [])]


# ---------------------------------------------------------------------------------------------------------------------
# Checks
# ---------------------------------------------------------------------------------------------------------------------


def check_attention_of_stacks(config: Any) -> None:
    """
    Raises:
        ValueError: A stack cannot have its kind of attention, the kind cannot be combined with other fields, or an
            option is set that none uses.
    """
    kinds: dict[str, str] = {"encoder": config.encoder_attention_type, "decoder": config.decoder_attention_type}
    used = {*kinds.values(), config.cross_attention_type}
    for name, users in users_of_options(ATTENTION_KINDS).items():
        if getattr(config, name) != getattr(type(config), name) and not {*users} & used:
            raise ValueError(
                f"{name}={getattr(config, name)!r}: only attention of the type {' or '.join(map(repr, users))} has "
                f"it; leave {name} out, or set encoder_attention_type or decoder_attention_type"
            )
    for stack in ("decoder", "encoder"):
        kind = kinds[stack]
        reason = ATTENTION_KINDS[kind].not_in.get(stack)
        # A model of one stack has the kind of that stack in both fields.
        if reason is not None and config.stacks in (stack, "encoder_decoder"):
            raise ValueError(f"{stack}_attention_type={kind!r}: {reason}")
    for stack, kind in kinds.items():
        _check_combinations(config, stack, kind)
    for stack, kind in kinds.items():
        _, encoding, *_ = stack_fields(config, stack)
        if POSITION_SCHEMES[encoding].is_relative and not ATTENTION_KINDS[kind].has_pairs:
            paired = ", ".join(name for name, other in ATTENTION_KINDS.items() if other.has_pairs)
            raise ValueError(
                f"{stack}_attention_type={kind!r} with position encoding {encoding!r}: only "
                f"{paired} attention adds scores of distances; take an encoding that is added to the embeddings"
            )


def _check_combinations(config: Any, stack: str, kind: str) -> None:
    """What a stack's kind of attention cannot be combined with, beside relative positions."""
    row, name = ATTENTION_KINDS[kind], f"{stack}_attention_type={kind!r}"
    encoding_name, encoding, *_ = stack_fields(config, stack)
    if POSITION_SCHEMES[encoding].rotates and not row.can_rotate:
        raise ValueError(
            f"{name} with {encoding_name}={encoding!r}: there are no products of a query and a single key "
            "to turn; take an encoding that is added to the embeddings"
        )
    row.check(config, stack)
    is_shared = config.decoder_attention_sharing and stack == "decoder"
    if not row.has_keys and (is_shared or config.projection_sharing != "none"):
        shared = "decoder_attention_sharing" if is_shared else "projection_sharing"
        raise ValueError(
            f"{name} with {shared}={getattr(config, shared)!r}: it has no projection of keys to share; "
            f"leave {shared} out"
        )
    if row.has_head_parameters and getattr(config, f"{stack}_heads_by_layer"):
        raise ValueError(
            f"{name} with {stack}_heads_by_layer: its parameters belong to heads, which cannot be pruned; "
            f"leave {stack}_heads_by_layer out"
        )


def attends_to_pieces(config: Any, part: str) -> bool:
    """
    Whether weights of "encoder", "decoder" or "cross" attention are those of tokens; Linformer's are of sums, and
    those of an encoder that pools are of means.
    """
    is_pooled = part != "decoder" and bool(getattr(config, "encoder_pooling", None))
    return getattr(config, f"{part}_attention_type", "full") != "linformer" and not is_pooled
