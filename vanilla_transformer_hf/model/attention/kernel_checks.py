"""Which kernels and masks a kind of attention takes."""

from typing import Any

import torch

from ..layers.parts import check_padding_mask


STATIC_CACHES = "; static caches of transformers come with another: leave cache_implementation out"


def check_inputs(attention: Any, padding: torch.Tensor | None, kind: str, note: str = "") -> None:
    """A `ValueError` if the mask is not one of padding, or the kernel is neither "sdpa" nor "eager"."""
    check_padding_mask(padding, kind, note)
    check_kernel(attention)


def check_kernel(attention: Any) -> None:
    """A `ValueError` if the attention in use (`attn_implementation`) is neither "sdpa" nor "eager"."""
    if attention.config._attn_implementation not in ("eager", "sdpa"):
        raise ValueError(kernel_refusal(attention))


def kernel_refusal(attention: Any) -> str:
    """The message about a kernel (`attn_implementation`) that cannot compute this attention."""
    kernels = ", ".join(map(repr, ("sdpa", *getattr(attention, "other_kernels", ()))))
    return (
        f"attn_implementation={attention.config._attn_implementation!r} with {type(attention).__name__}: must be "
        f"{kernels}, or 'eager' for the attention weights"
    )


def check_positions(count: int, longest: int, kind: str, field: str) -> None:
    """A `ValueError` if there are more positions than parameters for them, the config's field of this name."""
    if count > longest:
        raise ValueError(
            f"{count:,} positions, and {kind} attention has {field}={longest:,}: cut the text, or train a model with "
            "more positions"
        )
