"""
Folders with int8 weights, by transformers' own mechanism for quantized models: `Int8Config` in config.json, and in
model.safetensors for each matrix `weight` in int8 and `weight_scale`, the step of each row, in float32.

An opened model holds their product, in float32, which is exact. So it is an ordinary model in all respects but two:
its `generate()` computes in int8 by itself, and it cannot be trained.
"""

from contextlib import suppress
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..layers.parts import Linear
from .int8 import dequantize_rows, quantize_rows
from .packed import INT8_METHOD


WEIGHT, SCALE = "weight", "weight_scale"


class Int8Config(QuantizationConfigMixin):
    """
    For `from_pretrained(..., quantization_config=Int8Config())`: matrices and token embeddings are rounded to int8,
    with one step for each output or token, and `save_pretrained` writes them in this type. Such a model cannot be
    trained.

    Example:

    ```python
    >>> from vanilla_transformer_hf import Int8Config, VanillaTransformerForConditionalGeneration
    >>> folder = "model_cards/multi30k_raw_en_de"
    >>> model = VanillaTransformerForConditionalGeneration.from_pretrained(folder, quantization_config=Int8Config())
    >>> model.config.quantization_config.quant_method
    'vanilla_transformer_int8'
    ```
    """

    def __init__(self, quant_method: str = INT8_METHOD):
        self.quant_method = quant_method  # type: ignore[assignment]


class Rounding(ConversionOps):
    """From a file to the model: the product of both tensors, or a matrix of floats, rounded."""

    def __init__(self, hf_quantizer: Any):
        self.hf_quantizer = hf_quantizer

    def convert(  # type: ignore[override]  # transformers passes these by name
        self, input_dict: dict[str, Any], full_layer_name: str, model: Any, **kwargs: Any
    ) -> dict[str, Any]:
        found = {name.removesuffix("$"): first_of(tensors) for name, tensors in input_dict.items()}
        weight = found[WEIGHT]
        if SCALE in found:
            weight = dequantize_rows(weight, found[SCALE])
        elif is_quantized(model, full_layer_name):
            weight = dequantize_rows(*quantize_rows(weight))
        return {full_layer_name: weight}

    @property
    def reverse_op(self) -> ConversionOps:
        return Storing(self.hf_quantizer)


class Storing(Rounding):
    """From the model to a file."""

    def convert(  # type: ignore[override]  # transformers passes these by name
        self, input_dict: dict[str, Any], full_layer_name: str, model: Any, **kwargs: Any
    ) -> dict[str, Any]:
        (weight,) = map(first_of, input_dict.values())
        if not is_quantized(model, full_layer_name):
            return {full_layer_name: weight}
        whole, steps = quantize_rows(weight)
        return {full_layer_name: whole, full_layer_name.removesuffix(WEIGHT) + SCALE: steps}

    @property
    def reverse_op(self) -> ConversionOps:
        return Rounding(self.hf_quantizer)


def first_of(tensors: Any) -> torch.Tensor:
    """The tensor that transformers passes, by itself or in a list."""
    tensor: torch.Tensor = tensors[0] if isinstance(tensors, list) else tensors
    return tensor


def is_quantized(model: Any, name: str) -> bool:
    """Whether the tensor of this name is a matrix of a linear map or of token embeddings."""
    place, _, own_name = name.rpartition(".")
    return type(model.get_submodule(place)) in (Linear, nn.Linear, nn.Embedding) and own_name == WEIGHT


class Int8Quantizer(HfQuantizer):
    """The methods that transformers calls while it opens and saves such a model."""

    serialized_names = {WEIGHT: [WEIGHT, SCALE]}

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        # In another type, the products of integers and steps would not be exact.
        return torch.float32

    def get_weight_conversions(self) -> list[WeightConverter]:
        return [WeightConverter([WEIGHT, SCALE], WEIGHT, [Rounding(self)])]

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


with suppress(ValueError):  # the installed package and the code in a saved folder may both be in use
    register_quantization_config(INT8_METHOD)(Int8Config)
    register_quantizer(INT8_METHOD)(Int8Quantizer)
