"""Which kernels compute an attention."""

from typing import Any


def check_kernel(attention: Any) -> None:
    """
    Raises:
        ValueError: The attention in use (`attn_implementation`) is neither "sdpa" nor "eager".
    """
    if attention.config._attn_implementation not in ("eager", "sdpa"):
        raise ValueError(kernel_refusal(attention))


def kernel_refusal(attention: Any) -> str:
    """The message about a kernel (`attn_implementation`) that cannot compute this attention."""
    kernels = ", ".join(map(repr, ("sdpa", *getattr(attention, "other_kernels", ()))))
    return (
        f"attn_implementation={attention.config._attn_implementation!r} with {type(attention).__name__}: must be "
        f"{kernels}, or 'eager' for the attention weights"
    )
