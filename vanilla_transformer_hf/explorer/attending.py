"""Attention weights: of one layer, thumbnails of all layers, and the computation of one head."""

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F

from .interventions import hooked, stack_of
from .requests import AttentionRequest, GridRequest, HeadRequest, MixingRequest, RequestError
from .results import AttentionResult, GridResult, HeadResult, MixingResult
from .subject import Pass, Subject, check_ours


# Largest allowed difference between shown weights and those of the model.
CLOSE = 1e-6
# Tensors of each head, in the order of the computation.
INSIDE = ("query", "key", "value", "products", "scaled", "mask", "weights", "mixed")


def attention(subject: Subject, request: AttentionRequest) -> AttentionResult:
    """The weights of all heads of a layer."""
    found = subject.forced(request)
    weights = found.attentions(request.part)[found.copy.place(request.part, request.layer)][0].float()
    return AttentionResult(*found.sides(request.part), weights)


def grid(subject: Subject, request: GridRequest) -> GridResult:
    """Thumbnails of the weights of all heads of all layers."""
    found = subject.forced(request)
    layers = [one.float() for one in found.attentions(request.part)]  # (1, H, rows, columns)
    most = max(one.shape[1] for one in layers)
    # Layers of a pruned model may have fewer heads: nothing is attended to where there is none.
    weights = torch.cat([F.pad(one, (0, 0, 0, 0, 0, most - one.shape[1])) for one in layers])  # (L, H, rows, columns)
    small = [min(request.size, side) for side in weights.shape[2:]]
    return GridResult(
        found.copy.layers["encoder" if request.part == "encoder" else "decoder"],
        F.adaptive_max_pool2d(weights, small),
    )


def mixing(subject: Subject, request: MixingRequest) -> MixingResult:
    """For each row the head that shows best what attention is: it mixes some three tokens, none of them special."""
    found = subject.forced(request)
    _, _, columns = found.sides(request.part)
    words = torch.tensor([not piece.special for piece in columns])
    numbers = found.copy.layers["encoder" if request.part == "encoder" else "decoder"]
    places, scores = [], []
    for layer, (weights,) in zip(numbers, found.attentions(request.part)):  # (H, rows, columns)
        if weights.shape[-1] != len(columns):
            raise RequestError("part", f"the {request.part} part attends to other things than tokens")
        shares = weights.float().cpu()
        entropy = -torch.xlogy(shares, shares).sum(dim=-1)
        scores.append(shares[..., words].sum(dim=-1) - (entropy - math.log(3)).abs())
        places += [(layer, head) for head in range(len(shares))]
    best = [places[at] for at in torch.cat(scores).argmax(dim=0).tolist()]
    return MixingResult(layers=[layer for layer, _ in best], heads=[head for _, head in best])


@torch.no_grad()
def head(subject: Subject, request: HeadRequest) -> HeadResult:
    """What one head computes."""
    check_ours(subject, request)
    found = subject.forced(request)
    place = found.copy.place(request.part, request.layer)
    layer = stack_of(found.copy.model, request.part).layers[place]
    module = layer.encoder_attn if request.part == "cross" else layer.self_attn
    steps = AttentionSteps(module, found)
    if request.head >= steps.query.shape[1]:
        raise RequestError("head", f"{request.head} is not a head: the layer has {steps.query.shape[1]}")
    used = found.attentions(request.part)[place]
    if steps.weights.shape != used.shape or (steps.weights - used).abs().max() > CLOSE:
        raise RequestError("layer", "its weights are not the softmax of products of queries and keys")
    one = request.head
    width = module.d_v
    part_of_output = module.out_proj.weight[:, one * width : (one + 1) * width].float()
    shown: dict[str, Any] = {name: getattr(steps, name)[0, one].float() for name in INSIDE}
    return HeadResult(
        *found.sides(request.part),
        **shown,
        output_weight=part_of_output,
        contribution=shown["mixed"] @ part_of_output.t(),
        output=steps.output[0].float(),
        scale=module.scaling,
    )


class AttentionSteps:
    """The tensors inside an attention module, computed from what it was given in a pass."""

    # `query`, `key`, `value`, `products`, `scaled`, `mask`, `weights`, `mixed`, each (1, H, T, …), and its `output`
    # (1, T, D).

    def __init__(self, module: Any, found: Pass):
        given: dict[str, Any] = {}

        def before(module: Any, arguments: tuple, options: dict) -> None:
            names = inspect.signature(module.forward).parameters
            given.update({**dict(zip(names, arguments)), **options})

        def after(module: Any, arguments: tuple, output: Any) -> None:
            given["output"] = output[0]

        with hooked(module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)):
            found.again()
        asking, position_bias = given["hidden_states"], given.get("position_bias")
        apply_rotary = given.get("apply_rotary") or (lambda states: states)
        answering = given.get("key_value_states", asking)
        (self.query,) = map(apply_rotary, module.project(asking, module.roles[:1]))
        keys, self.value = module.project_keys_values(answering)
        keys = apply_rotary(keys) if position_bias is None else position_bias.kept_keys(apply_rotary(keys), answering)
        self.key = keys[..., : module.d_k]  # followed by the extra features of a position scheme
        self.products = torch.matmul(self.query, self.key.transpose(2, 3))
        self.scaled = self.products * module.scaling
        mask = given.get("attention_mask")
        mask = torch.zeros_like(self.scaled) if mask is None else mask.expand_as(self.scaled)
        self.mask = mask
        if position_bias is not None:
            self.mask = mask + (position_bias.scores(self.query, keys, mask, module.scaling) - self.scaled)
        self.weights = (self.scaled + self.mask).softmax(dim=-1)
        plain = torch.matmul(self.weights, self.value)
        self.mixed = plain if position_bias is None else position_bias.outputs(self.weights, self.value)
        self.output = given["output"]
