"""The state that a recurrent decoder carries from token to token, as a cache of transformers."""

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class RecurrentState(CacheLayerMixin):
    """Tensors by name, the sentence as first dimension; their size does not depend on the number of tokens."""

    def __init__(self):
        super().__init__()
        self.tensors: dict[str, torch.Tensor] = {}
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is prepared: the first step makes the tensors."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Always an error: a recurrent decoder has no keys and values."""
        raise TypeError("a recurrent decoder has no keys and values: its cache is RecurrentCache, not updated by keys")

    def store(self, tensors: dict[str, torch.Tensor], tokens: int) -> None:
        """Replace the state after `tokens` more tokens."""
        self.tensors, self.length, self.is_initialized = tensors, self.length + tokens, True

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """The number of target tokens that the state has read."""
        return self.length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.tensors, self.length, self.is_initialized = {}, 0, False

    def offload(self) -> None:
        """Nothing is moved: the state is small."""

    def prefetch(self) -> None:
        """Nothing was moved."""

    def crop(self, tokens_to_remove: int) -> None:
        """An error for any token: the states before it are not kept."""
        if tokens_to_remove:
            raise ValueError("a recurrent state cannot take tokens back: searches that need it are not possible")

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.tensors = {name: value.repeat_interleave(repeats, dim=0) for name, value in self.tensors.items()}

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.tensors = {name: value[indices.to(value.device)] for name, value in self.tensors.items()}

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.batch_select_indices(beam_idx)


class RecurrentCache(Cache):
    """The cache of a [`RecurrentSeq2SeqModel`]: one [`RecurrentState`] for all layers."""

    def __init__(self):
        super().__init__(layers=[RecurrentState()])

    @property
    def state(self) -> RecurrentState:
        """The state of all layers."""
        found: Any = self.layers[0]
        return found
