"""
What the equations of a model are made of: linear layers, dropout and norms, with less time and memory in training than
torch's, look-ups of rows, and the positions of tokens.

Shapes: B sentences, T positions, D = width of the states, O = width of a layer's output.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..config.kinds import NORM_KINDS, Classes
from ..releases.models import CAPTURING


def is_traced() -> bool:
    """Whether `torch.compile` or `torch.func` computes, which take no functions whose backward pass we wrote."""
    return torch.compiler.is_compiling() or bool(getattr(torch._C, "_are_functorch_transforms_active", bool)())


# Linear layers -------------------------------------------------------------------------------------------------------
def is_unchanged(module: nn.Module) -> bool:
    """Whether the module computes what its class defines: no hook, no replaced forward."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def is_hooked(module: nn.Module) -> bool:
    """Whether the module has hooks or a wrapped forward."""
    # Wrappers of transformers that record outputs, and of Accelerate that change the type, are ignored.
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    strange = any(getattr(hook, "__module__", "") != CAPTURING.__name__ for hook in hooks)
    wrapped = "forward" in vars(module) and "_original_forward" not in vars(module)
    return strange or wrapped or hasattr(module, "_hf_hook")


def is_plain(module: nn.Module) -> bool:
    """Whether the module is a linear layer without hooks, adapters or quantized weights."""
    return type(module) in (nn.Linear, Linear) and type(module.weight) is nn.Parameter and is_unchanged(module)


class LastResult:
    """A function of states that is computed once for all that read the same states, as queries, keys and values do."""

    # The last result is kept as long as its states are.

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        self.function = function
        self.kept: tuple[Any, int, Any] | None = None

    def __call__(self, states: torch.Tensor) -> Any:
        version = -1 if states.is_inference() else states._version  # -1: changes in place are not counted
        if (kept := self.kept) is not None and kept[0]() is states and kept[1] == version >= 0:
            return kept[2]
        found = self.function(states)
        self.kept = weakref.ref(states, self.evict), version, found
        return found

    def evict(self, states: Any) -> None:
        """Free the result for these states, a weak reference."""
        if self.kept is not None and self.kept[0] is states:
            self.kept = None


# For one type of autocast; `Linear` looks whether it is that of the call.
ROUNDED = LastResult(lambda states: states.detach().to(torch.get_autocast_dtype("cpu")))


class RoundedLinear(torch.autograd.Function):
    """x Wᵀ + b in a type of fewer bytes."""

    # Rounded weights are not kept: the backward pass rounds them again, which takes a hundredth of its time.

    @staticmethod
    def forward(ctx: Any, low: Any, states: Any, weight: Any, bias: Any) -> torch.Tensor:
        """Rounded states (B, T, D), the states themselves, a weight (O, D) and a bias (O) or None to (B, T, O)."""
        ctx.save_for_backward(low, weight)
        ctx.exact = states.dtype
        return F.linear(low, weight.to(low.dtype), None if bias is None else bias.to(low.dtype))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        low, weight = ctx.saved_tensors
        _, of_states, of_weight, of_bias = ctx.needs_input_grad
        d_output = d_output.flatten(0, -2)  # (B T, O)
        d_states = (d_output @ weight.to(low.dtype)).to(ctx.exact).view(low.shape) if of_states else None
        d_weight = (d_output.t() @ low.flatten(0, -2)).to(weight.dtype) if of_weight else None
        return None, d_states, d_weight, d_output.sum(dim=0).to(weight.dtype) if of_bias else None


class Linear(nn.Linear):
    """x Wᵀ + b, with less in memory than torch's in training under autocast on a CPU, with the same numbers."""

    # Of the states one rounded copy is kept for all layers that read them, and no rounded weights.

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        is_rounded = torch.is_autocast_enabled("cpu") and states.device.type == "cpu" and torch.is_grad_enabled()
        is_rounded = is_rounded and not is_traced() and type(self.weight) is nn.Parameter
        if is_rounded:
            low = ROUNDED(states)
            if low.dtype != torch.get_autocast_dtype("cpu"):
                low = states.detach().to(torch.get_autocast_dtype("cpu"))
            return RoundedLinear.apply(low, states, self.weight, self.bias)
        return F.linear(states, self.weight, self.bias)


class SharesProjections(nn.Module):
    """A module that may use the projections of another module, which owns them (`shared_from`)."""

    shared_from: nn.Module | None = None

    def share_projections_of(self, shared_from: nn.Module | None) -> None:
        """Use the projections of `shared_from`, also after they are replaced there; None: the module has its own."""
        if shared_from is not None:
            object.__setattr__(self, "shared_from", shared_from)  # nn.Module would register it as a submodule

    @property
    def owner(self) -> Any:
        """The module that owns the projections."""
        return self if self.shared_from is None else self.shared_from

    def _replicate_for_data_parallel(self) -> Any:
        if self.shared_from is not None:
            raise NotImplementedError(
                "torch.nn.DataParallel copies each part of a model by itself, so that shared weights stay on the "
                "first device; start one process for each device (torchrun, accelerate launch), or use one device"
            )
        return super()._replicate_for_data_parallel()


# Dropout, section 5.4 ------------------------------------------------------------------------------------------------
def factors(states: torch.Tensor, dropped: int, seed: int) -> torch.Tensor:
    """The factors of these states, of their shape and type: 0 for `dropped` of 2^16, 1 / (1 - p) for the others."""
    # They depend on the seed alone.
    count = states.numel()
    words = torch.empty(-(-count // 4), dtype=torch.long, device="cpu")
    words.random_(-(2**63), None, generator=torch.Generator().manual_seed(seed))
    kept = words.view(torch.int16)[:count].ge_(dropped - 2**15).view(states.shape)  # 1 or 0
    scale = 2**16 / (2**16 - dropped)
    if states.element_size() != 2:
        return kept.to(states.dtype).mul_(scale)
    bits = torch.tensor(scale, dtype=states.dtype, device="cpu").view(torch.int16)
    return kept.mul_(bits).view(states.dtype)  # torch converts whole numbers of two bytes one by one


class SeededDropout(torch.autograd.Function):
    """Dropout that keeps a seed instead of its mask, and draws the mask again on the way back."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, dropped: int, seed: int) -> torch.Tensor:
        """Zero `dropped` of 2^16 of the states, of any shape."""
        ctx.dropped, ctx.seed = dropped, seed
        return states * factors(states, dropped, seed)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return SeededDropout.apply(gradient, ctx.dropped, ctx.seed), None, None


def drop_out(states: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Zeros in place of a share p of `states`, the rest divided by 1 - p; on a CPU p is a multiple of 2^-16."""
    # torch draws its masks there with one call of the generator per value, and keeps them: an eighth of a training
    # step of a small model, and an eighth of its memory. Sixteen random bits per value take a sixth of that time.
    if not training:
        return states
    if not 0 < p < 1 or states.device.type != "cpu" or is_traced():
        return F.dropout(states, p, training)
    seed = int(torch.randint(2**32, (), device="cpu"))
    return SeededDropout.apply(states, min(round(p * 2**16), 2**16 - 1), seed)


class Dropout(nn.Dropout):
    """`drop_out` as a module."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return drop_out(input, self.p, self.training) if self.training else input


# Norms: (width, eps) -> module ---------------------------------------------------------------------------------------
# x / √(mean(x²) + ε) · γ is torch's RMSNorm.
NORMS = Classes(NORM_KINDS)
NORMS |= {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}


# Rows of tables, and the positions of tokens -------------------------------------------------------------------------
def look_up(weight: torch.Tensor, ids: torch.Tensor, what: str) -> torch.Tensor:
    """Rows `ids` (B, T) of `weight` (V, D), as (B, T, D); on a CPU an `IndexError` for an id without a row."""
    # On an accelerator the check would force a synchronisation.
    try:
        return F.embedding(ids, weight)
    except IndexError as error:
        found = error
    check_rows(ids, len(weight), what)
    raise found


def check_rows(ids: torch.Tensor, count: int, what: str) -> None:
    """On a CPU, an `IndexError` if an id lies outside 0 to `count` - 1."""
    # While a graph is traced, ids have no values to check.
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = ids[(ids < 0) | (ids >= count)]
    if len(wrong):
        advice = ": cut the text, or train a model with more positions" if what == "position" else ""
        raise IndexError(f"{what} {wrong[0].item()} lies outside 0 to {count - 1}, the {count} of this model{advice}")


def counted(padding: torch.Tensor) -> torch.Tensor:
    """Position of each token (B, T), from a mask with 1 for tokens and 0 for padding, which is not counted."""
    return (padding.long().cumsum(dim=-1) - 1).clamp(min=0)


def check_padding_mask(padding: torch.Tensor | None, kind: str, note: str) -> None:
    """A `ValueError` if it is not a mask of padding, (B, S)."""
    if padding is not None and padding.dim() != 2:
        raise ValueError(
            f"attention_mask of shape {tuple(padding.shape)}: {kind} attention takes one of shape (B, S), with 1 for "
            f"a token and 0 for padding{note}"
        )


# Attention to a source by flash attention ----------------------------------------------------------------------------
@dataclass
class FlashMemory:
    """What flash attention hides of a source with padding; made once for all layers."""

    # transformers would take the padding of the source for that of the target, too, and is therefore given the tokens
    # alone, one sequence behind the other.

    size: int  # S; a static cache may have more room
    tokens: torch.Tensor  # their places among the B S positions of the source (tokens)
    ends: torch.Tensor  # where sources begin, and where the last ends, among the tokens (B + 1)
    longest: int  # tokens of the longest source

    @classmethod
    def of(cls, mask: torch.Tensor, padding: torch.Tensor | None) -> "FlashMemory":
        """From transformers' mask, 1 for a token, 0 for padding (B, S), of what should be such a mask already."""
        check_padding_mask(padding, "flash", "; choose attn_implementation='sdpa' or 'eager'")
        counts = mask.bool().sum(dim=1, dtype=torch.int32)
        ends = F.pad(counts.cumsum(dim=0, dtype=torch.int32), (1, 0))
        return cls(mask.shape[1], mask.flatten().nonzero().flatten(), ends, int(counts.max()))

    def attend(
        self, attention: Any, query: torch.Tensor, *memory: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What `attention.attend` returns for queries (B, H, T, d), keys and values (B, H, S, d), without padding."""
        batch, _, length, _ = query.shape
        query, *others = (  # (1, H, B T or B S, d)
            states.transpose(0, 1).flatten(1, 2)[None]
            for states in (query, *(states[:, :, : self.size] for states in memory))
        )
        # transformers' arguments with the places where sequences begin.
        places = {
            "cu_seq_lens_q": torch.arange(batch + 1, dtype=torch.int32, device=query.device) * length,
            "cu_seq_lens_k": self.ends,
            "max_length_q": length,
            "max_length_k": self.longest,
        }
        tokens = (states[:, :, self.tokens] for states in others)  # (1, H, tokens, d)
        output, weights = attention.attend(query, *tokens, None, **places, **kwargs)  # (1, B T, D)
        return output.unflatten(1, (batch, -1))[0], weights
