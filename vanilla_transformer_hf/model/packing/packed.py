"""
Linear maps of the search, for a few rows at a time, with weights packed once in oneDNN's layout.

A packed matrix is a copy; a `WeightSignature` shows whether it is still up to date.
"""

import copy
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from ..config.kinds import PACKAGE, Classes, Kind
from ..layers.parts import is_hooked, is_plain, is_unchanged
from .int8_products import fast_product, onednn_product, product_of_halves
from .most_likely import ScreenedMostLikely, most_likely


# States (..., D) to x Wᵀ + b (..., O).
Projection: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def is_packable(weight: torch.Tensor) -> bool:
    """Whether oneDNN computes products with this matrix."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and not hasattr(weight, "device_mesh")
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def joined(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The rows of all matrices (O, D) as one matrix; a single one is not copied."""
    return weights[0] if len(weights) == 1 else torch.cat([*weights])


@cache
def lacks_bfloat16() -> bool:
    """Whether oneDNN has no instructions for bfloat16 here: torch then takes up to eight times float32's time."""
    is_there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
    return is_there and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


# Float32 matrices with fewer values are not packed for a few rows: oneDNN's overhead is longer than torch's whole
# product (32 rows: 63 against 26 µs for 128 x 128, 259 against 293 for 512 x 512, on one core).
SMALL = 2**17
# Multiplications from which packing them is faster (one core with AVX-512, 384 x 128: 11 and 14 µs for 8 rows, 32 and
# 23 for 32, 550 and 248 for 640; with AVX2 alone 32 and 35, 554 and 478).
MANY_PRODUCTS = 2**20
# Bytes of an output projection from which int8 screening is faster (32 rows, two cores, bfloat16: 5.9 against 4.8 ms
# for 37,000 x 512, 1.8 against 2.5 for 10,000 x 512; float32: 11.3 against 4.8, 3.3 against 2.2).
LARGE_MAP = 2**24
# The same in float32 for so many rows (one core, 10,000 x 128: 0.98 against 0.68 ms for 32 rows, 0.17 against 0.31 for
# one; 10,000 x 256: 2.03 against 0.89, 0.27 against 0.33).
LARGE_FOR_MANY, MANY = 2**22, 16
# Rows up to which it is faster with `product_of_halves` (one core, 37,000 x 512: 0.9 against 6.5 ms for one row, 16.7
# against 21.4 for 32, 43.0 against 33.9 for 64).
MOST_HALVES = 32


# Operation after a product -> its function, where oneDNN does not fuse it.
AFTER: dict[str, Projection] = {"none": lambda states: states, "relu": F.relu}


def plain_map(weight: torch.Tensor, bias: torch.Tensor | None, after: str) -> Projection:
    """x W ᵀ + b as torch computes it, followed by the operation after it."""
    columns, operation = weight.detach().t()[None], AFTER[after]

    def product(states: torch.Tensor) -> torch.Tensor:
        if len(states) > 1 or states.dim() != 3 or not states.is_cpu:
            return F.linear(states, weight, bias)
        # One sentence's products take 2 µs, those of `F.linear`, which calls four others, 3.
        return torch.bmm(states, columns) if bias is None else torch.baddbmm(bias, states, columns)

    return product if after == "none" else lambda states: operation(product(states))


def pack(weights: Sequence[torch.Tensor], bias: torch.Tensor | None, after: str = "none") -> Projection:
    """x W ᵀ + b with W, the rows of all `weights`, packed once where oneDNN is available."""
    # W in bfloat16 is packed as float32 where the CPU has no instructions for bfloat16. Both add up in float32 and
    # round the sum.
    weight = joined(weights)
    if not is_packable(weight):
        return plain_map(weight, bias, after=after)
    linear, dtype = torch.ops.mkldnn._linear_pointwise, weight.dtype
    exact = torch.float32 if dtype == torch.bfloat16 and lacks_bfloat16() else dtype
    own_weight, own_bias = weight.detach().to(exact), None if bias is None else bias.detach().to(exact, copy=True)
    packed = torch.ops.mkldnn._reorder_linear_weight(own_weight)
    if exact != dtype:
        return lambda states: linear(states.to(dtype).to(exact), packed, own_bias, after, [], "").to(dtype)
    return lambda states: linear(states.to(dtype), packed, own_bias, after, [], "")


def for_few_rows(weights: Sequence[torch.Tensor], bias: torch.Tensor | None, after: str = "none") -> Projection:
    """x W ᵀ + b, with W packed only where that is faster for the rows of a step."""
    if weights[0].dtype != torch.float32 or sum(one.numel() for one in weights) >= SMALL:
        return pack(weights, bias, after=after)
    weight = joined(weights)
    plain, packed = plain_map(weight, bias, after=after), WhenUsed(partial(pack, [weight], bias, after=after))
    many = -(-MANY_PRODUCTS // len(weight))
    # Autocast rounds the plain product alone: a search's states, whose rows become fewer, must keep their type.
    return lambda states: (plain if states.numel() < many or torch.is_autocast_enabled("cpu") else packed)(states)


# `quantization_method` of models whose folders hold int8; transformers writes it into their config.json.
INT8_METHOD = "vanilla_transformer_int8"
# From matrices whose outputs are concatenated, a bias or None and the operation after it.
MakeProjection: TypeAlias = Callable[[Sequence[torch.Tensor], torch.Tensor | None, str], Projection]
# Quantization of a search -> how it makes a map: of the few rows of a step, and of whole sequences.
MAKERS = Classes({None: Kind(), **dict.fromkeys(("int8", "int8_reduced"), Kind(module="packing.int8"))})
MAKERS[None] = for_few_rows, pack
EXPECTED = "expected 'int8', 'int8_reduced' or None"


def side_by_side(*modules: nn.Module, after: str = "none", make: MakeProjection = for_few_rows) -> Projection:
    """The concatenated outputs of linear modules for one input, then an operation; plain modules become one matrix."""
    if not all(map(is_plain, modules)):
        return lambda states: AFTER[after](torch.cat([module(states) for module in modules], dim=-1))
    weights: list[Any] = [module.weight for module in modules]
    biases: list[Any] = [module.bias for module in modules]
    return make(weights, None if biases[0] is None else joined(biases), after)


class WhenUsed:
    """A map that is made when it is called for the first time."""

    def __init__(self, make: Callable[[], Projection]):
        self.make = make

    @cached_property
    def map(self) -> Projection:
        """The map itself."""
        return self.make()

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        return self.map(states)


# From plain modules to their packed projection, with concatenated outputs; None where they are not packed.
Pack: TypeAlias = Callable[..., Projection | None]


def packed_copy(module: Any, pack: Pack, copies: dict[int, Any]) -> Any:
    """A tree of modules again, whose plain linear layers compute with packed weights."""
    # Weights and all else are shared, so that it costs a few small objects; the modules themselves are as before.
    # `pack` packs a linear layer, and those of attention that read the same states as one; `copies` are those that are
    # made, by the ids of the modules.
    if id(module) not in copies:
        made = module
        if is_plain(module) and (packed := pack(module)) is not None:
            made = copy.copy(module)
            vars(made)["forward"] = packed
        elif not hasattr(module, "weight"):  # an adapter has that of the layer that it changes
            children = {name: packed_copy(child, pack, copies) for name, child in module._modules.items()}
            made = copy.copy(module)
            # Hooks that are added to one of them are not of the other.
            hooks = {name: copy.copy(each) for name, each in vars(module).items() if name.startswith("_forward_")}
            vars(made).update(hooks, _modules=children, _compiled_call_impl=None)
            if getattr(module, "shared_from", None) is not None:
                vars(made)["shared_from"] = packed_copy(module.shared_from, pack, copies)
            if hasattr(module, "joint"):
                vars(made)["joint"] = JointOutputs(module, children, pack)
        copies[id(module)] = made
    return copies[id(module)]


class JointOutputs:
    """The outputs (B, T, O) of several projections of an attention for the same states (B, T, D)."""

    # By one product where `pack` packs them as one; `children` are packed one by one.

    def __init__(self, module: nn.Module, children: dict[str, Any], pack: Pack):
        self.module, self.children, self.pack = module, children, pack
        self.joint: dict[tuple[str, ...], tuple[Projection | None, list[int]]] = {}

    def __call__(self, names: tuple[str, ...], states: torch.Tensor) -> Sequence[torch.Tensor]:
        if names not in self.joint:
            modules = [getattr(self.module, name) for name in names]
            packed = self.pack(*modules) if len(names) > 1 else None
            self.joint[names] = packed, [] if packed is None else [module.out_features for module in modules]
        product, widths = self.joint[names]
        if product is None:
            return [self.children[name](states) for name in names]
        return product(states).split_with_sizes(widths, dim=-1)


class StepProjections(SimpleNamespace):
    """The projections of a decoder layer, as a step uses them, without dropout."""

    # `qkv`, `out`, where there is a source `cross_query` and `cross_out`, and what the layer's `feed_forward` reads:
    # `fc1`, `fc2`, maybe `fc3`, `activation_fn`, `is_gated`, `training`.

    qkv: Projection
    out: Projection
    cross_query: Projection
    cross_out: Projection
    dropout: Projection

    def __init__(self, layer: Any, side_by_side: Callable[..., Projection]):
        own = layer.self_attn
        inner = {name: getattr(layer.owner, name) for name in ("fc1", "fc2", "fc3") if hasattr(layer.owner, name)}
        activation_fn = getattr(layer.owner, "activation_fn", None)
        is_relu = type(activation_fn) is nn.ReLU and is_unchanged(activation_fn)
        after = {"fc1": "relu"} if is_relu else {}
        made: dict[str, Any] = {name: side_by_side(map, after=after.get(name, "none")) for name, map in inner.items()}
        if layer.has_source:
            cross = layer.encoder_attn.owner
            made |= {"cross_query": side_by_side(cross.q_proj), "cross_out": side_by_side(cross.out_proj)}
        super().__init__(
            **made,
            qkv=side_by_side(*(getattr(own.owner, name) for name in dict(own.roles))),
            out=side_by_side(own.out_proj),
            activation_fn=AFTER["none"] if is_relu else activation_fn,
            dropout=AFTER["none"],
            is_gated=layer.is_gated,
            training=False,
            shared_from=None,
        )


# Whether a model still has the weights that its packed copies were made of ------------------------------------------
# torch counts changes in place, but not those through `.data`, as of averages, merged adapters or swapped weights. So
# some rows of every matrix are compared, too: who writes through `.data` changes whole matrices. What is not noticed
# is a change of a few other rows through `.data`; after one, call `model.train()`, which drops them, and `eval()`.

# Rows of a matrix that are compared: the first, the last and others at equal distances.
SAMPLED_ROWS = 4
# The same for the values of a vector; a shorter one is compared whole.
SAMPLED_VALUES = 2**12
# Bytes of a value -> integers of this width: compared bit by bit, NaN equals itself.
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a tensor, which may be distributed over several (DTensor)."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def sampled(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Views of some rows of a matrix (O, D), or of some values of a vector (O); the first and the last among them."""
    rows = local_part(tensor).detach()
    most = SAMPLED_ROWS if rows.dim() > 1 else SAMPLED_VALUES
    step = max(1, -(-(len(rows) - 1) // (most - 1)))
    return [rows[:-1:step], rows[-1:]]


def places_of(tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Which tensors these are, where their values lie, and how often torch saw them change."""
    counts = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
    return [
        (id(one), local_part(one).data_ptr(), one.dtype, one.shape, one.stride(), count)
        for one, count in zip(tensors, counts, strict=True)
    ]


class WeightSignature:
    """What distinguishes the present weights of a model from others."""

    # What identifies its modules, compared with ==, and the weights that are packed, with their biases.

    def __init__(self, modules: Any, tensors: Sequence[torch.Tensor]):
        self.modules, self.places = modules, places_of(tensors)
        # By width, so that each group is read as one matrix. The views keep their memory: no other tensor comes to lie
        # at its address.
        self.views = defaultdict[Any, list[torch.Tensor]](list)
        for view in (view for tensor in tensors for view in sampled(tensor)):
            self.views[view.device, view.dtype, view.shape[1:]].append(view)
        self.values = self._read()

    def _read(self) -> list[torch.Tensor]:
        """The sampled values of each width, as integers."""
        values = [torch.cat(views) for views in self.views.values()]
        return [one.view(INTEGERS[one.itemsize]) for one in values]

    def fits(self, modules: Any, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same modules and tensors, with the same values where they are compared."""
        same = self.modules == modules and self.places == places_of(tensors)
        return same and all(map(torch.equal, self.values, self._read()))


class StepWeights:
    """A model's linear maps for the steps of a search, packed where that is faster."""

    # `quantization` is a key of `MAKERS`; maps that are not plain (hooks, adapters) are never quantized.

    # Model -> its packed maps, and the signature of the weights that they were made of.
    _kept: "weakref.WeakKeyDictionary[Any, tuple[StepWeights, WeightSignature]]" = weakref.WeakKeyDictionary()

    def __init__(self, model: Any, quantization: str | None = None):
        self.model, self.quantization = weakref.proxy(model), quantization
        makers: tuple[MakeProjection, MakeProjection] = MAKERS[quantization]
        self.of_step, self.of_sequence = makers
        self._copies: dict[int, Any] = {}

    @cached_property
    def runs_known_code(self) -> bool:
        """Whether the model runs code of torch, transformers and this package alone, with ordinary weights."""
        modules, known = self.model.modules(), ("torch.nn.", "transformers.activations.", f"{PACKAGE}.")
        are_known = (f"{type(each).__module__}.".startswith(known) and not is_hooked(each) for each in modules)
        return all(are_known) and all(type(weight) is nn.Parameter for weight in self.model.parameters())

    @cached_property
    def layers(self) -> list[StepProjections]:
        """The maps of each decoder layer; layers that share weights share their packed copy."""
        decoder, once = self.model.get_decoder(), cache(self._side_by_side)
        layers = [StepProjections(layer, once) for layer in decoder.layers]
        return [layers[number] for number in decoder.layer_order]

    @cached_property
    def head(self) -> Projection:
        """To the vocabulary."""
        return WhenUsed(partial(self._side_by_side, self.model.lm_head))

    @property
    def _side_by_side(self) -> Callable[..., Projection]:
        return partial(side_by_side, make=self.of_step)

    def head_of(self, rows: torch.Tensor) -> Projection:
        """To some entries of the vocabulary; a plain module computes only these."""
        head = self.model.lm_head
        if not is_plain(head):
            return lambda states: head(states)[..., rows]
        return self.of_step([head.weight[rows]], None if head.bias is None else head.bias[rows], "none")

    @cached_property
    def most_likely(self) -> Projection:
        """States (R, D) to the ids of their highest logits (R)."""
        head, by_all = self.model.lm_head, most_likely(self.head)
        if self.quantization or not (is_plain(head) and head.bias is None and is_packable(head.weight)):
            return by_all
        size, fast = head.weight.nbytes, fast_product()
        if fast is onednn_product and size >= LARGE_MAP:
            # The embedded tokens are read from the same matrix, so a packed copy would be one more.
            return ScreenedMostLikely(head.weight, plain_map(head.weight, None, after="none"))
        if fast is onednn_product and size >= LARGE_FOR_MANY and head.weight.dtype == torch.float32:
            is_faster = range(MANY, sys.maxsize)
        elif fast is product_of_halves and size >= LARGE_MAP:
            is_faster = range(MOST_HALVES + 1)
        else:
            return by_all
        screened = WhenUsed(lambda: ScreenedMostLikely(head.weight, self.head))
        return lambda states: (screened if len(states) in is_faster else by_all)(states)

    @cached_property
    def encoder(self) -> Any:
        """The encoder, with packed maps."""
        return self._packed(self.model.get_encoder())

    @cached_property
    def crosses(self) -> list[Any]:
        """The attention to the source of each set of a decoder layer's weights, with packed maps."""
        return [self._packed(layer.encoder_attn) for layer in self.model.get_decoder().layers]

    @cached_property
    def decoder(self) -> Any:
        """The decoder for a whole prompt, with quantized maps if there are any."""
        decoder = self.model.get_decoder()
        return decoder if self.quantization is None else self._packed(decoder)

    def _packed(self, module: Any) -> Any:
        return packed_copy(module, self._pack, self._copies)

    def _pack(self, *modules: nn.Module) -> Projection | None:
        """Linear layers as one, packed when it is used: queries, keys and values mostly are only used together."""
        for module in modules:
            if not is_plain(module) or (self.quantization is None and not is_packable(module.weight)):  # type: ignore[arg-type]
                return None
        return WhenUsed(partial(side_by_side, *modules, make=self.of_sequence))

    @classmethod
    def whole_model(cls, model: Any, quantization: str) -> Any:
        """The model with quantized maps, for passes through all of it."""
        return cls.of(model, quantization)._packed(model)

    @classmethod
    def of(cls, model: Any, quantization: str | None = None) -> "StepWeights":
        """The maps of this model as it is now."""
        # Packed maps are kept until the weights change (`WeightSignature` lists what is noticed), until `train()` is
        # called, or the model is deleted; other copies are faster to make than to check. Maps of one quantization are
        # kept at a time; None is the model's own.
        if quantization is None and getattr(model, "quantization_method", None) == INT8_METHOD:
            quantization = "int8"
        every = [*model.modules()]
        # By references: what replaces a module may get its address, and so its id.
        modules = [(weakref.ref(module), is_unchanged(module), *module._forward_hooks) for module in every]
        maps: list[Any] = [module for module in every if is_plain(module)]
        if quantization is None and not any(is_packable(module.weight) for module in maps):
            return cls(model)
        tensors = [tensor for module in maps for tensor in (module.weight, module.bias) if tensor is not None]
        if (kept := cls._kept.get(model)) is not None:
            weights, signature = kept
            if weights.quantization == quantization and signature.fits(modules, tensors):
                return weights
            del kept, weights, signature  # the last references to what they hold, before others are made
        cls.evict(model)
        made = cls(model, quantization)
        cls._kept[model] = made, WeightSignature(modules, tensors)
        return made

    @classmethod
    def evict(cls, model: Any) -> None:
        """Free this model's packed maps, which take as much memory as its weights."""
        cls._kept.pop(model, None)
