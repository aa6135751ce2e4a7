"""The tensors between the modules of a model, in the order of the computation, and what its positions add to them."""

from dataclasses import dataclass
from typing import Any

import torch

from ..model.config.stacks import StackSizes
from .interventions import stack_of
from .requests import PositionsRequest, RequestError, TensorRequest, WalkRequest
from .results import Alternative, Box, Lens, Picture, PositionsResult, WalkResult
from .subject import Pass, Recorded, Subject, check_ours
from .translating import alternative


# The module whose output is a sublayer's -> its norm.
SUBLAYERS = {"self_attn": "self_attn_layer_norm", "encoder_attn": "encoder_attn_layer_norm", "fc2": "final_layer_norm"}
# Front end -> how it makes the input of the encoder.
FORMULAS = {
    "tokens": "E[ids]",
    "speech": "Conv(frames)",
    "speech_whisper": "Conv(frames)",
    "speech_stacked": "[frames] W + b",
    "image": "[patch] W + b",
}
NORM_NAMES = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm", "batch_norm": "BatchNorm"}


@dataclass
class Tensor:
    """A tensor (rows, columns), and the residual stream before and after it where it is added to it."""

    name: str
    layer: int | None
    formula: str
    values: torch.Tensor
    before: torch.Tensor | None = None
    after: torch.Tensor | None = None

    def box(self) -> Box:
        """Its statistics."""
        values = self.values
        before, after = (None if one is None else float(one.norm(dim=-1).mean()) for one in (self.before, self.after))
        return Box(
            name=self.name,
            layer=self.layer,
            formula=self.formula,
            shape=list(values.shape),
            mean=float(values.mean()),
            deviation=float(values.std(unbiased=False)),
            least=float(values.min()),
            most=float(values.max()),
            norms=values.norm(dim=-1).tolist(),
            before=before,
            after=after,
        )


def watched(model: Any, layers: dict[str, list[int]]) -> dict[str, Any]:
    """The modules whose inputs or outputs are recorded."""
    modules = {"lm_head": model.get_output_embeddings()}
    for side in layers:
        stack = stack_of(model, side)
        modules[f"{side}.embed_tokens"] = stack.embed_tokens if hasattr(stack, "embed_tokens") else stack.front_end
        for name in ("embed_positions", "layernorm_embedding", "layer_norm"):
            modules[f"{side}.{name}"] = getattr(stack, name)
        for number, layer in zip(layers[side], stack.layers):
            modules[f"{side}.{number}"] = layer
            for name, norm in SUBLAYERS.items():
                for each in (name, norm):
                    if hasattr(layer, each):
                        modules[f"{side}.{number}.{each}"] = getattr(layer, each)
    return modules


@torch.no_grad()
def tensors(found: Pass) -> list[Tensor]:
    """All recorded tensors of a pass, in the order of the computation."""
    copy, config = found.copy, found.copy.model.config
    seen = found.record(watched(copy.model, copy.layers))
    made = []
    for side, numbers in copy.layers.items():
        made += embedding_tensors(seen, config, side)
        for number in numbers:
            made += layer_tensors(seen, config, side, number)
        normed = seen.outputs[f"{side}.layer_norm"]
        if not torch.equal(seen.inputs[f"{side}.layer_norm"], normed):
            made.append(Tensor(f"{side}.norm", None, f"{norm_name(config)}(x)", normed))
    logits = seen.outputs["lm_head"]
    made.append(Tensor("logits", None, "Y Eᵀ", logits))
    made.append(Tensor("probabilities", None, "softmax(logits)", logits.softmax(dim=-1)))
    return made


def embedding_tensors(seen: Recorded, config: Any, side: str) -> list[Tensor]:
    """The tensors before the first layer of a stack; a step that changes nothing has none."""
    embedded = seen.outputs[f"{side}.embed_tokens"]
    scaled, summed = seen.inputs[f"{side}.embed_positions"], seen.outputs[f"{side}.embed_positions"]
    formula = FORMULAS["tokens" if side == "decoder" else config.front_end]
    made = [Tensor(f"{side}.embedding", None, formula, embedded)]
    formula += " · √d_model" if config.scale_embedding else ""
    if not torch.equal(scaled, embedded):
        formula += " + segment" if side == "encoder" and config.type_vocab_size else ""
        made.append(Tensor(f"{side}.scaled", None, formula, scaled))
    if not torch.equal(summed, scaled):
        made.append(Tensor(f"{side}.positions", None, "PE(pos)", summed - scaled))
        formula += " + PE(pos)"
    made.append(Tensor(f"{side}.input", None, formula, summed))
    normed = seen.outputs[f"{side}.layernorm_embedding"]
    if not torch.equal(normed, summed):
        made.append(Tensor(f"{side}.normed", None, f"{norm_name(config)}(x)", normed))
    return made


def norm_name(config: Any) -> str:
    """What the norm of a model is called in formulas."""
    return NORM_NAMES.get(config.norm_type, config.norm_type)


def layer_tensors(seen: Recorded, config: Any, side: str, number: int) -> list[Tensor]:
    """The outputs of a layer's sublayers, with the residual stream around them, in the order of the computation."""
    # With post-norm a sublayer and the normed sum, with pre-norm the norm, the sublayer and the sum; the output last.
    prefix, sizes = f"{side}.{number}", StackSizes(config, side)
    is_post, alpha = sizes.norm_position == "post", sizes.residual_alpha
    present = [name for name in SUBLAYERS if f"{prefix}.{name}" in seen.outputs]
    norms = [f"{prefix}.{SUBLAYERS[name]}" for name in present]
    # The residual stream before each sublayer and after the last.
    if is_post:
        streams = [seen.inputs[prefix], *(seen.outputs[norm] for norm in norms)]
    else:
        streams = [*(seen.inputs[norm] for norm in norms), seen.outputs[prefix]]
    residual = "x" if alpha == 1 else f"{alpha:.4g} x"
    norm_rule = f"{norm_name(config)}(x)"
    rule = f"{norm_name(config)}({residual} + Sublayer(x))" if is_post else f"{residual} + Sublayer({norm_rule})"
    made = []
    for name, norm, before, after in zip(present, norms, streams, streams[1:]):
        formula = "Concat(head₀, head₁, …) W^O"
        if name == "fc2":
            gate = " ⊙ (x W₃ + b₃)" if config.feed_forward_type == "gated" else ""
            formula = f"({sizes.activation_function}(x W₁ + b₁){gate}) W₂ + b₂"
        if not is_post:
            made.append(Tensor(f"{prefix}.{name}.norm", number, norm_rule, seen.outputs[norm]))
        values = seen.outputs[f"{prefix}.{name}"]
        made.append(Tensor(f"{prefix}.{name}", number, formula, values, before, after))
        if name != present[-1]:
            made.append(Tensor(f"{prefix}.{name}.stream", number, rule, after))
    made.append(Tensor(f"{prefix}.output", number, rule, seen.outputs[prefix]))
    return made


def walk(subject: Subject, request: WalkRequest) -> WalkResult:
    found = subject.forced(request, needs_ours=True)
    made = tensors(found)
    outputs = [one for one in made if one.name.startswith(f"{subject.lens_stack}.") and one.name.endswith(".output")]
    lenses = [Lens(int(one.layer or 0), lens(subject, found, one.values, request.best)) for one in outputs]
    return WalkResult(found.source_pieces, found.read, found.predicted, [one.box() for one in made], lenses)


@torch.no_grad()
def lens(subject: Subject, found: Pass, states: torch.Tensor, best: int) -> list[list[Alternative]]:
    """The most probable tokens of each step, as if these states (T, D) were those of the last layer."""
    dtype = found.copy.model.get_output_embeddings().weight.dtype
    logits = subject.as_last_layer(found.copy, states.to(dtype)[None])[0].float()
    values, ids = logits.log_softmax(dim=-1).topk(min(best, logits.shape[-1]), dim=-1)
    read = [piece.id for piece in found.read or found.source_pieces]
    return [
        [alternative(subject.piece(read[: row + 1], index), value) for value, index in zip(row_values, row_ids)]
        for row, (row_values, row_ids) in enumerate(zip(values.tolist(), ids.tolist()))
    ]


def tensor(subject: Subject, request: TensorRequest) -> torch.Tensor:
    """All values of one tensor, or those that a norm has learned (1, D): `encoder.0.self_attn.gain` and `.bias`."""
    found = subject.forced(request, needs_ours=True)
    learned = {}
    for side, numbers in found.copy.layers.items():
        for number, layer in zip(numbers, stack_of(found.copy.model, side).layers):
            for name, norm in SUBLAYERS.items():
                for what, key in (("gain", "weight"), ("bias", "bias")):
                    vector = getattr(getattr(layer, norm, None), key, None)
                    if vector is not None:
                        learned[f"{side}.{number}.{name}.{what}"] = vector.detach()[None]
    if request.box in learned:
        return learned[request.box]
    made = {one.name: one.values for one in tensors(found)}
    if request.box not in made:
        names = ", ".join([*made, *learned])
        raise RequestError("box", f"{request.box[:40]!r} is not a tensor: expected one of {names}")
    return made[request.box]


# Maximum number of pictures of heads and layers.
MOST_PICTURES = 32


@torch.no_grad()
def positions(subject: Subject, request: PositionsRequest) -> PositionsResult:
    check_ours(subject, request)
    stack = stack_of(subject.copy(request.off).model, request.stack)
    scheme, config = stack.embed_positions, subject.model.config
    name = config.position_encoding if request.stack == "encoder" else config.decoder_position_encoding
    length = min(request.length, scheme.longest or request.length)
    places = torch.arange(length)[None]
    width = StackSizes(config, request.stack).width
    pictures = []
    added = scheme(torch.zeros(1, length, width), places)[0]
    if added.any():
        pictures.append(Picture("added", None, added))
    apply_rotary = scheme.rotary_at(places)
    if apply_rotary is not None:
        d_k = stack.layers[0].self_attn.d_k
        rotated = apply_rotary(torch.ones(1, 1, length, d_k))[0, 0]
        pictures.append(Picture("rotated", None, rotated))
    if scheme.is_relative:
        bias = scheme.bias(places, places)
        if bias.dim() == 4:
            pictures += [Picture("scores", head, values) for head, values in enumerate(bias[0][:MOST_PICTURES])]
        for layer, (_, position_bias) in enumerate(zip(stack.layer_order, scheme.layer_biases(places, places))):
            for what, name in (("keys", "key_vectors"), ("values", "value_vectors")):
                table = getattr(position_bias, name, None)
                if table is not None and len(pictures) < MOST_PICTURES:
                    pictures.append(Picture(what, layer, table))
    return PositionsResult(str(name), pictures)
