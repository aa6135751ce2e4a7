"""Attention weights: of one layer, thumbnails of all layers, and the computation of one head."""

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F

from .interventions import hooked, stack_of
from .requests import AttentionRequest, GridRequest, HeadRequest, MixingRequest, RequestError
from .results import AttentionResult, GridResult, HeadResult, MixingResult
from .subject import Pass, Subject


# Largest allowed difference between shown weights and those of the model.
CLOSE = 1e-6


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
        found.copy.layers["encoder" if request.part == "encoder" else "decoder"], F.adaptive_max_pool2d(weights, small)
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
    found = subject.forced(request, needs_ours=True)
    place = found.copy.place(request.part, request.layer)
    layer = stack_of(found.copy.model, request.part).layers[place]
    module = layer.encoder_attn if request.part == "cross" else layer.self_attn
    inside, output = attention_steps(module, found)
    if request.head >= (heads := inside["query"].shape[1]):
        raise RequestError("head", f"{request.head} is not a head: the layer has {heads}")
    weights, used = inside["weights"], found.attentions(request.part)[place]
    if weights.shape != used.shape or (weights - used).abs().max() > CLOSE:
        raise RequestError("layer", "its weights are not the softmax of products of queries and keys")
    one = request.head
    width = module.d_v
    part_of_output = module.out_proj.weight[:, one * width : (one + 1) * width].float()
    shown: dict[str, Any] = {name: each[0, one].float() for name, each in inside.items()}
    return HeadResult(
        *found.sides(request.part),
        **shown,
        output_weight=part_of_output,
        contribution=shown["mixed"] @ part_of_output.t(),
        output=output[0].float(),
        scale=module.scaling,
    )


def attention_steps(module: Any, found: Pass) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Inside an attention module: each head's tensors (1, H, T, …) of a pass, in order, and the output (1, T, D)."""
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
    (query,) = map(apply_rotary, module.project(asking, module.roles[:1]))
    keys, value = module.project_keys_values(answering)
    keys = apply_rotary(keys) if position_bias is None else position_bias.kept_keys(apply_rotary(keys), answering)
    key = keys[..., : module.d_k]  # followed by the extra features of a position scheme
    inside = {"query": query, "key": key, "value": value, "products": torch.matmul(query, key.transpose(2, 3))}
    scaled = inside["scaled"] = inside["products"] * module.scaling
    mask = given.get("attention_mask")
    mask = torch.zeros_like(scaled) if mask is None else mask.expand_as(scaled)
    if position_bias is not None:
        scores = position_bias.scores(query, keys, mask, module.scaling)
    inside["mask"] = mask if position_bias is None else mask + (scores - scaled)
    weights = inside["weights"] = (scaled + inside["mask"]).softmax(dim=-1)
    plain = torch.matmul(weights, value)
    inside["mixed"] = plain if position_bias is None else position_bias.outputs(weights, value)
    return inside, given["output"]
