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

import onnxruntime
import torch

from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .comparison import Comparison
from .export import open_configs, save_configs
from .steps import (
    CACHED,
    ENCODER,
    FIRST_STEP,
    NEXT_STEP,
    Past,
    StepwiseModel,
    logits_by_steps,
    problems,
    trace,
)


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
def quiet() -> Iterator[None]:
    """Suppress torch's messages about missing torchvision operations and shared dimensions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def write(
    model: VanillaTransformerForConditionalGeneration, tokenizer: Any, folder: Path, comparison: Comparison
) -> tuple[float, list[str]]:
    """Write the three graphs and the configs into `folder`, and compare in ONNX Runtime."""
    for step, (program, dimensions) in trace(model).items():
        inputs, outputs = names(step, model.config.decoder_layers)
        with quiet():
            made: Any = torch.onnx.export(
                program, input_names=inputs, output_names=outputs, dynamic_shapes=dimensions, verbose=False
            )
        for node in made.model.graph.all_nodes():
            node.metadata_props.clear()  # source locations of each operation
        made.save(folder / f"{step}.onnx")
    notes = save_configs(model, folder)
    return comparison.check(partial(logits_by_steps, open_model(folder))), notes


class Session:
    """One graph in ONNX Runtime: tensors in and out by name, as in the step that it was made from."""

    def __init__(self, folder: Path, step: str, layers: int, options: Any):
        path = str(folder / f"{step}.onnx")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs, self.outputs = names(step, layers)
        self.layers = layers

    def __call__(self, past_key_values: Past | None = None, **tensors: torch.Tensor) -> Any:
        given = [*tensors.values(), *[tensor for layer in past_key_values or [] for tensor in layer]]
        feed = {name: tensor.contiguous().numpy() for name, tensor in zip(self.inputs, given, strict=True)}
        first, *present = [torch.from_numpy(array) for array in self.session.run(self.outputs, feed)]
        if not present:
            return first
        each = len(present) // self.layers
        return first, [present[start : start + each] for start in range(0, len(present), each)]


def open_model(folder: str | Path, options: Any = None) -> StepwiseModel:
    """
    The graphs that `write` left in a folder, in ONNX Runtime under transformers' `generate()`.

    `options` are its `SessionOptions`, for the number of threads and more.
    """
    config, generation_config = open_configs(Path(folder))
    sessions = [
        Session(Path(folder), step, config.decoder_layers, options) for step in (ENCODER, FIRST_STEP, NEXT_STEP)
    ]
    return StepwiseModel(config, generation_config, *sessions)


__all__ = ["open_model", "problems", "write"]
