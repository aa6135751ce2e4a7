"""The table of all kinds of self-attention, one class a kind."""

from .attention_vanilla_transformer import VanillaTransformerAttention
from .global_attention_vanilla_transformer import GlobalWindowAttention
from .linformer_attention_vanilla_transformer import LinformerAttention
from .local_attention_vanilla_transformer import BlockAttention, ChunkAttention, WindowAttention
from .lsh_attention_vanilla_transformer import LshAttention
from .memory_attention_vanilla_transformer import RecurrentAttention
from .performer_attention_vanilla_transformer import PerformerAttention
from .synthesizer_attention_vanilla_transformer import DenseSynthesizerAttention, RandomSynthesizerAttention


# `encoder_attention_type` or `decoder_attention_type` -> the class of the stack's self-attention.
ATTENTION_TYPES: dict[str, type[VanillaTransformerAttention]] = {
    "full": VanillaTransformerAttention,
    "window": WindowAttention,
    "window_global": GlobalWindowAttention,
    "blocks": BlockAttention,
    "chunk": ChunkAttention,
    "linformer": LinformerAttention,
    "lsh": LshAttention,
    "performer": PerformerAttention,
    "recurrent": RecurrentAttention,
    "synthesizer_dense": DenseSynthesizerAttention,
    "synthesizer_random": RandomSynthesizerAttention,
}

__all__ = ["ATTENTION_TYPES"]
