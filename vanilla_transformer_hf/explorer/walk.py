"""The tensors between the modules of a model, in the order of the computation; hooks collect them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..model.config.stacks import decoder_sizes, encoder_sizes
from .interventions import stack_of
from .requests import RequestError, TensorRequest, WalkRequest
from .results import Alternative, Box, Lens, WalkResult
from .subject import Pass, Subject, check_ours
from .translating import alternative


# Sublayer -> title, formula, its norm, and the module whose output is the sublayer's.
SUBLAYERS = {
    "self_attn": ("self-attention", "Concat(head₁ … head_h) W^O", "self_attn_layer_norm"),
    "encoder_attn": ("attention to the source", "Concat(head₁ … head_h) W^O", "encoder_attn_layer_norm"),
    "fc2": ("feed-forward", "max(0, x W₁ + b₁) W₂ + b₂", "final_layer_norm"),
}
STACKS = {"encoder": (1, 2, "source"), "decoder": (3, 4, "shifted target")}
SIZES = {"encoder": encoder_sizes, "decoder": decoder_sizes}
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
    stage: int
    layer: int | None
    title: str
    formula: str
    values: torch.Tensor
    before: torch.Tensor | None = None
    after: torch.Tensor | None = None

    def box(self) -> Box:
        """Its statistics."""
        values = self.values
        norms = [None if stream is None else float(stream.norm(dim=-1).mean()) for stream in (self.before, self.after)]
        return Box(
            self.name,
            self.stage,
            self.layer,
            self.title,
            self.formula,
            list(values.shape),
            float(values.mean()),
            float(values.std(unbiased=False)),
            float(values.min()),
            float(values.max()),
            values.norm(dim=-1).tolist(),
            *norms,
        )


class Recorder:
    """Inputs and outputs of modules in one pass, without the batch."""

    def __init__(self) -> None:
        self.inputs: dict[str, torch.Tensor] = {}
        self.outputs: dict[str, torch.Tensor] = {}

    @contextmanager
    def watching(self, modules: dict[str, Any]) -> Iterator["Recorder"]:
        """A context in which the inputs and outputs of these modules are recorded by name."""

        def watch(name: str) -> Any:
            def record(module: Any, arguments: tuple, options: dict, output: Any) -> None:
                states = arguments[0] if arguments else next(iter(options.values()))
                self.inputs[name] = states[0].detach().float()
                self.outputs[name] = (output[0] if isinstance(output, tuple) else output)[0].detach().float()

            return record

        hooks = [module.register_forward_hook(watch(name), with_kwargs=True) for name, module in modules.items()]
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()


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
            for name, (*_, norm) in SUBLAYERS.items():
                for each in (name, norm):
                    if hasattr(layer, each):
                        modules[f"{side}.{number}.{each}"] = getattr(layer, each)
    return modules


@torch.no_grad()
def tensors(found: Pass) -> list[Tensor]:
    """All recorded tensors of a pass, in the order of the computation."""
    copy = found.copy
    with Recorder().watching(watched(copy.model, copy.layers)) as seen:
        found.again()
    made = []
    for side, numbers in copy.layers.items():
        embedding_stage, layer_stage, what = STACKS[side]
        what = what if copy.model.config.is_encoder_decoder else "text"
        made += embedding_tensors(seen, copy.model.config, side, embedding_stage, what)
        for number in numbers:
            made += layer_tensors(seen, copy.model.config, side, number, layer_stage)
        is_normed = not torch.equal(seen.inputs[f"{side}.layer_norm"], seen.outputs[f"{side}.layer_norm"])
        if is_normed:
            values = seen.outputs[f"{side}.layer_norm"]
            made.append(
                Tensor(
                    f"{side}.norm",
                    layer_stage,
                    None,
                    f"final norm of the {side}",
                    f"{norm_name(copy.model.config)}(x)",
                    values,
                )
            )
    logits = seen.outputs["lm_head"]
    made.append(Tensor("logits", 5, None, "logits", "Y Eᵀ", logits))
    made.append(Tensor("probabilities", 5, None, "probabilities", "softmax(logits)", logits.softmax(dim=-1)))
    return made


def embedding_tensors(seen: Recorder, config: Any, side: str, stage: int, what: str) -> list[Tensor]:
    """The tensors before the first layer of a stack; a step that changes nothing has none."""
    embedded = seen.outputs[f"{side}.embed_tokens"]
    scaled, summed = seen.inputs[f"{side}.embed_positions"], seen.outputs[f"{side}.embed_positions"]
    formula = FORMULAS["tokens" if side == "decoder" else config.front_end]
    made = [Tensor(f"{side}.embedding", stage, None, f"embeddings of the {what}", formula, embedded)]
    formula += " · √d_model" if config.scale_embedding else ""
    if not torch.equal(scaled, embedded):
        segments = " + segment" if side == "encoder" and config.type_vocab_size else ""
        title = "times √d_model" if config.scale_embedding else "with segments"
        formula += segments
        made.append(Tensor(f"{side}.scaled", stage, None, title, formula, scaled))
    if not torch.equal(summed, scaled):
        made.append(Tensor(f"{side}.positions", stage, None, "positions", "PE(pos)", summed - scaled))
        formula += " + PE(pos)"
    made.append(Tensor(f"{side}.input", stage, None, "input of the first layer", formula, summed))
    normed = seen.outputs[f"{side}.layernorm_embedding"]
    if not torch.equal(normed, summed):
        rule = f"{norm_name(config)}(x)"
        made.append(Tensor(f"{side}.normed", stage, None, "norm of the input", rule, normed))
    return made


def norm_name(config: Any) -> str:
    """What the norm of a model is called in formulas."""
    return NORM_NAMES.get(config.norm_type, config.norm_type)


def layer_tensors(seen: Recorder, config: Any, side: str, number: int, stage: int) -> list[Tensor]:
    """
    The outputs of a layer's sublayers, with the residual stream around them, in the order of the computation: with
    post-norm a sublayer and the normed sum, with pre-norm the norm, the sublayer and the sum. The last is the layer's
    output.
    """
    prefix, sizes = f"{side}.{number}", SIZES[side](config)
    is_post, alpha = sizes.norm_position == "post", sizes.residual_alpha
    present = [name for name in SUBLAYERS if f"{prefix}.{name}" in seen.outputs]
    norms = [f"{prefix}.{SUBLAYERS[name][2]}" for name in present]
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
        title, formula, _ = SUBLAYERS[name]
        if name == "fc2":
            gate = " ⊙ (x W₃ + b₃)" if config.feed_forward_type == "gated" else ""
            formula = f"({sizes.activation_function}(x W₁ + b₁){gate}) W₂ + b₂"
        if not is_post:
            values = seen.outputs[norm]
            made.append(Tensor(f"{prefix}.{name}.norm", stage, number, f"norm before {title}", norm_rule, values))
        values = seen.outputs[f"{prefix}.{name}"]
        made.append(Tensor(f"{prefix}.{name}", stage, number, title, formula, values, before, after))
        if name != present[-1]:
            title = f"add and norm after {title}" if is_post else f"sum after {title}"
            made.append(Tensor(f"{prefix}.{name}.stream", stage, number, title, rule, after))
    made.append(Tensor(f"{prefix}.output", stage, number, "output of the layer", rule, seen.outputs[prefix]))
    return made


def walk(subject: Subject, request: WalkRequest) -> WalkResult:
    check_ours(subject, request)
    found = subject.forced(request)
    made = tensors(found)
    stage = STACKS[subject.lens_stack][1]
    layers = {one.layer: one.values for one in made if one.stage == stage and one.name.endswith(".output")}
    lenses = [Lens(int(layer or 0), lens(subject, found, states, request.best)) for layer, states in layers.items()]
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
    """All values of one tensor."""
    check_ours(subject, request)
    made = {one.name: one.values for one in tensors(subject.forced(request))}
    if request.box not in made:
        raise RequestError("box", f"{request.box[:40]!r} is not a tensor: expected one of {', '.join(made)}")
    return made[request.box]
