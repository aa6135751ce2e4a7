"""
ONNX, a file format of graphs: for ONNX Runtime and other engines, in many languages and on many CPUs.

Files, inputs and outputs have the names of optimum, so that tools made for its exports find them.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from transformers import GenerationConfig
from transformers.utils import CONFIG_NAME

from ..common.settings import read_json
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from . import ExportError
from .comparison import Comparison
from .export import open_configs, save_configs
from .steps import CACHED, ENCODER, FIRST_STEP, NEXT_STEP, Past, StepwiseModel, logits_by_steps, problems, trace
from .transformers_js import MERGED, PLACE, QUANTIZED, SWITCH, arrange


def names(step: str, layers: int) -> tuple[list[str], list[str]]:
    """Names of a step's inputs and outputs, in order."""
    grown = CACHED if step == FIRST_STEP else CACHED[:2]
    present = [f"present.{layer}.{cached}" for layer in range(layers) for cached in grown]
    past = [f"past_key_values.{layer}.{cached}" for layer in range(layers) for cached in CACHED]
    return {
        ENCODER: (["input_ids", "attention_mask"], ["last_hidden_state"]),
        FIRST_STEP: (["input_ids", "encoder_attention_mask", "encoder_hidden_states"], ["logits", *present]),
        NEXT_STEP: (["input_ids", "encoder_attention_mask", *past], ["logits", *present]),
    }[step]


@contextmanager
def quiet(name: str | None) -> Iterator[None]:
    """Suppress torch's messages about missing torchvision operations and shared dimensions, and advice on rounding."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def write(
    model: VanillaTransformerForConditionalGeneration,
    tokenizer: Any,
    folder: Path,
    comparison: Comparison,
    layout: str | None = None,
) -> tuple[float, list[str]]:
    """Write the three graphs and the configs into `folder`, and compare in ONNX Runtime."""
    # With the `layout` "transformers.js" it becomes a folder that this library opens, with quantized graphs as well.
    if layout not in (None, "transformers.js"):
        raise ExportError(f"layout={layout!r} is not a layout of files: expected 'transformers.js' or None")
    if layout and getattr(tokenizer, "separate_vocabularies", False):
        raise ExportError("the tokenizer has a vocabulary for each side: transformers.js reads one; train with one")
    for step, (program, dimensions) in trace(model).items():
        inputs, outputs = names(step, model.config.decoder_layers)
        with quiet("torch.onnx"):
            made: Any = torch.onnx.export(
                program, input_names=inputs, output_names=outputs, dynamic_shapes=dimensions, verbose=False
            )
        for node in made.model.graph.all_nodes():
            node.metadata_props.clear()  # source locations of each operation
        made.save(folder / f"{step}.onnx")
    notes = save_configs(model, folder)
    if layout:
        with quiet(None):  # onnxruntime's advice goes to the root logger
            notes += arrange(folder)
    difference = comparison.check(partial(logits_by_steps, open_model(folder)))
    if layout:
        rounded = partial(logits_by_steps, open_model(folder, quantized=True))
        notes.append(f"weights in uint8 change logits by {comparison.rounding(rounded)}")
    return difference, notes


class Session:
    """One graph in ONNX Runtime: tensors in and out by name, as in the step that it was made from."""

    def __init__(self, runtime: onnxruntime.InferenceSession, step: str, layers: int):
        self.runtime, self.step, self.layers = runtime, step, layers
        self.inputs, self.outputs = names(step, layers)

    def __call__(self, past_key_values: Past | None = None, **tensors: torch.Tensor) -> Any:
        given = [*tensors.values(), *[tensor for layer in past_key_values or [] for tensor in layer]]
        feed = {name: tensor.contiguous().numpy() for name, tensor in zip(self.inputs, given, strict=True)}
        # Those of the other step, where both are one graph, are empty, as in JavaScript.
        for unused in self.runtime.get_inputs():
            if unused.name == SWITCH:
                feed[unused.name] = np.array([self.step == NEXT_STEP])
            elif unused.name not in feed:
                sizes = {"batch_size": len(given[0])}
                shape = [size if isinstance(size, int) else sizes.get(size, 0) for size in unused.shape]
                feed[unused.name] = np.zeros(shape, np.float32)
        first, *present = [torch.from_numpy(array) for array in self.runtime.run(self.outputs, feed)]
        if not present:
            return first
        each = len(present) // self.layers
        return first, [present[start : start + each] for start in range(0, len(present), each)]


def open_model(folder: str | Path, options: Any = None, quantized: bool = False) -> StepwiseModel:
    """The graphs that `write` left in a folder, in ONNX Runtime under transformers' `generate()`."""
    # `options` are its `SessionOptions`, for the number of threads and more; `quantized` opens the smaller graphs that
    # stand in a folder for transformers.js.
    place, files = Path(folder), {step: step for step in (ENCODER, FIRST_STEP, NEXT_STEP)}
    if (place / PLACE).is_dir():
        own = {"model_type": VanillaTransformerConfig.model_type}  # it is called another there
        config = VanillaTransformerConfig.from_dict(read_json(place / CONFIG_NAME) | own)
        generation_config = GenerationConfig.from_pretrained(place)
        place, files = place / PLACE, {ENCODER: ENCODER, FIRST_STEP: MERGED, NEXT_STEP: MERGED}
    else:
        config, generation_config = open_configs(place)
    opened = {
        name: onnxruntime.InferenceSession(
            str(place / f"{name}{QUANTIZED if quantized else ''}.onnx"), options, providers=["CPUExecutionProvider"]
        )
        for name in dict.fromkeys(files.values())
    }
    sessions = [Session(opened[file], step, config.decoder_layers) for step, file in files.items()]
    return StepwiseModel(config, generation_config, *sessions)


__all__ = ["open_model", "problems", "write"]
