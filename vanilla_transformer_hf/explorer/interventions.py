"""Copies of a model in which heads or layers are switched off; they share its weights."""

import copy
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..model.config.stacks import heads_of_layers
from ..model.layers.parts import SharesProjections
from ..recurrent.configuration import RecurrentSeq2SeqConfig
from .requests import PARTS, RequestError


@contextmanager
def hooked(*hooks: Any) -> Iterator[None]:
    """A context at whose end these hooks of modules are removed."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass
class Copy:
    """A copy of a model."""

    model: Any  # The copy
    layers: dict[str, list[int]]  # For "encoder" and "decoder" the numbers of the remaining layers, in order

    def place(self, part: str, layer: int) -> int:
        """The index in the copy of a layer of the original model."""
        if part not in parts_of(self.model):
            raise RequestError("part", f"{part!r} is not one of this model: it has {', '.join(parts_of(self.model))}")
        left = self.layers["encoder" if part == "encoder" else "decoder"]
        if layer not in left:
            raise RequestError("layer", f"{layer} is not a layer that is on: expected one of {left}")
        return left.index(layer)


def is_recurrent(config: Any) -> bool:
    return bool(config.model_type == RecurrentSeq2SeqConfig.model_type)


def parts_of(model: Any) -> tuple[str, ...]:
    """The parts of attention that a model has; a model of one stack has one, a recurrent one that to the source."""
    if is_recurrent(model.config):
        return ("cross",)
    if model.config.is_encoder_decoder:
        return PARTS
    return ("decoder",) if model.config.is_decoder else ("encoder",)


def sides_of(model: Any) -> list[str]:
    """The stacks that a model has."""
    return ["encoder", "decoder"] if model.config.is_encoder_decoder else list(parts_of(model))


def stack_of(model: Any, part: str) -> Any:
    """The stack of a part of attention."""
    return model.get_encoder() if part == "encoder" else model.get_decoder()


def count_layers(model: Any, part: str) -> int:
    """Layers of a stack, by transformers' config where the model is not one of this package."""
    stack = stack_of(model, part)
    if is_recurrent(model.config):
        return 1  # of all its layers one attends
    if hasattr(stack, "layer_order"):
        return len(stack.layer_order)
    if hasattr(stack, "layers"):
        return len(stack.layers)
    return len(stack.block)  # T5


def count_heads(model: Any, part: str) -> list[int]:
    """Heads of each layer; by transformers' config where the model is not one of this package."""
    config, stack = model.config, stack_of(model, part)
    if is_recurrent(config):
        return [1]
    if hasattr(stack, "layer_order"):
        heads = heads_of_layers(config, part)
        return [heads[place] for place in stack.layer_order]
    side = "encoder" if part == "encoder" else "decoder"
    heads = getattr(config, f"{side}_attention_heads", None) or config.num_attention_heads
    return [heads] * count_layers(model, part)


NUMBER = re.compile(r"[0-9]{1,4}")


def read_name(name: str, field: str = "off") -> tuple[str, list[int]]:
    """Parse a name: the part, the number of its layer and, optionally, of its head."""
    part, *numbers = name.split(".")
    if part not in PARTS or not 1 <= len(numbers) <= 2 or not all(map(NUMBER.fullmatch, numbers)):
        raise RequestError(field, f"{name[:40]!r} is not a part: expected as 'cross.1.2', 'cross.1' or 'decoder.1'")
    return part, [int(number) for number in numbers]


def copy_without(model: Any, off: Iterable[str]) -> Copy:
    """The model without the parts named by `off` (see `requests.py`). The model is changed in place: pass a copy."""
    # A head that is off adds nothing to its sublayer: its input to W^O is zero. A layer that is off is skipped.
    names = [read_name(name) for name in off]
    left = {side: list(range(count_layers(model, side))) for side in sides_of(model)}
    heads: dict[tuple[str, int], set[int] | None] = {}
    for part, (layer, *head) in names:
        side = "encoder" if part == "encoder" else "decoder"
        if part not in parts_of(model):
            raise RequestError("off", f"{part!r} is not a part of this model: it has {', '.join(parts_of(model))}")
        if layer not in range(count_layers(model, side)):
            raise RequestError(
                "off", f"layer {layer} of the {side} does not exist: it has {count_layers(model, side)}"
            )
        if head:
            known = heads.setdefault((part, layer), set())
            if known is not None:
                known.add(head[0])
        elif part == "cross":
            heads[part, layer] = None  # all
        elif layer in left[side]:
            left[side].remove(layer)
    if not names and not shares_weights(model):
        return Copy(model, left)
    for side, layers in left.items():
        if not layers:
            raise RequestError("off", f"all layers of the {side} are off: leave one on")
        keep_layers(stack_of(model, side), layers, side)
    made = Copy(model, left)
    for (part, layer), which in heads.items():
        if layer in left["encoder" if part == "encoder" else "decoder"]:
            module = stack_of(model, part).layers[made.place(part, layer)]
            silence(module.encoder_attn if part == "cross" else module.self_attn, which)
    return made


def shares_weights(model: Any) -> bool:
    """Whether a module is used for several layers, each of which could be switched off."""
    stacks = [stack for stack in (model.get_encoder(), model.get_decoder()) if hasattr(stack, "layer_order")]
    return any(len(stack.layers) < len(stack.layer_order) for stack in stacks) or any(
        getattr(module, "shared_from", None) is not None for module in model.modules()
    )


def keep_layers(stack: Any, layers: list[int], side: str) -> None:
    """Keep only these layers of a stack, each as its own module with its weights."""
    memo = {id(tensor): tensor for module in (stack, *stack.layers) for tensor in tensors_of(module)}
    modules: list[Any] = [copy.deepcopy(stack.layers_in_order[layer], dict(memo)) for layer in layers]
    for each in (each for module in modules for each in module.modules()):
        if isinstance(each, SharesProjections) and each.shared_from is not None:
            owner = each.shared_from
            for name, projection in owner.named_children():
                if name not in dict(each.named_children()):  # a layer has a dropout of its own
                    each.add_module(name, copy.deepcopy(projection, dict(memo)))
            if hasattr(owner, "activation_dropout"):
                each.activation_dropout = owner.activation_dropout  # type: ignore[assignment]
            del each.__dict__["shared_from"]
    scheme, count = stack.embed_positions, len(stack.layer_order)
    if scheme.is_relative:
        all_biases = scheme.layer_biases
        scheme.layer_biases = lambda *positions: [
            position_bias for number, position_bias in zip(range(count), all_biases(*positions)) if number in layers
        ]
    setattr(stack.config, f"{side}_layers", len(layers))
    setattr(stack.config, f"{side}_layer_sets", len(layers))
    stack.layers, stack.order_of_layers = nn.ModuleList(modules), list(range(len(layers)))


def tensors_of(module: Any) -> list[torch.Tensor]:
    """The tensors of a module, including those that another module owns."""
    shared_from = getattr(module, "shared_from", None)
    return [*module.parameters(), *module.buffers(), *(() if shared_from is None else shared_from.parameters())]


def silence(attention: Any, heads: set[int] | None) -> None:
    """Replace the inputs of W^O from these heads, or from all, by zeros."""
    width, count = attention.d_v, attention.num_heads
    chosen = range(count) if heads is None else heads
    for head in chosen:
        if head >= count:
            raise RequestError("off", f"head {head} does not exist: each layer has {count}")
    columns = [head * width + column for head in chosen for column in range(width)]

    def zero(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        states = arguments[0].clone()
        states[..., columns] = 0
        return (states, *arguments[1:])

    attention.out_proj.register_forward_pre_hook(zero)
