"""The table of all kinds of self-attention, one class a kind."""

from .full import VanillaTransformerAttention
from .linformer import LinformerAttention
from .local import BlockAttention, ChunkAttention, WindowAttention
from .local_global import GlobalWindowAttention
from .lsh import LshAttention
from .performer import PerformerAttention
from .segment_memory import RecurrentAttention
from .synthesizer import DenseSynthesizerAttention, RandomSynthesizerAttention


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
