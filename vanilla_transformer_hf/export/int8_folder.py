"""The folder of a model with int8 weights, written from another folder of it."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from ..common.files import check_new, new_folder
from ..common.opening import check_fit, is_own, open_config, open_processor, open_tokenizer, open_weights
from ..model.config.front_ends import CLASSES_OF_INPUTS, input_name_of, reads_tokens
from ..model.packing.int8_quantizer import Int8Config
from ..publishing.model_card import CardFacts, write_card


ABOUT = (
    "Quantized: matrices are int8 with one step for each output, and searches compute in int8. "
    "The scores of the model before quantization do not hold for it."
)


class Sizes(NamedTuple):
    """Bytes of the weights of the model as it was opened, and of the files that hold them in int8."""

    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.after / 1e6:.1f} MB of weights instead of {self.before / 1e6:.1f}"


def quantize_folder(folder: str | os.PathLike, output: str | os.PathLike) -> Sizes:
    """Write a model of a folder or the Hub with int8 weights, its tokenizer or processor, card and checksums."""
    output = Path(output)
    check_new(output)
    config = open_config(folder)
    if not is_own(config):
        raise ValueError(f"{folder}: its model type {config.model_type!r} is not a model of this package")
    if getattr(config, "quantization_config", None):
        raise ValueError(f"{folder}: its weights are quantized already")
    # What makes ids of texts; of a model of speech or images, and frames or pixels of files.
    processor: Any = open_tokenizer(folder) if reads_tokens(config) else open_processor(folder)
    kind = getattr(transformers, CLASSES_OF_INPUTS[input_name_of(config)])
    model = open_weights(folder, kind, config=config, dtype=torch.float32, quantization_config=Int8Config())
    check_fit(model, getattr(processor, "tokenizer", processor))
    if Path(folder).is_dir():
        facts, before = CardFacts.read(Path(folder)).inherited(), size_of(Path(folder).glob("*.safetensors"))
    else:
        facts = CardFacts(base_model=str(folder), base_model_relation="quantized")
        before = sum(parameter.nbytes for parameter in model.parameters())
    facts = replace(facts, name=output.name, scored=[], measured={}, compression=[*facts.compression, ABOUT])
    with new_folder(output) as unfinished:
        model.save_pretrained(unfinished)
        processor.save_pretrained(unfinished)
        write_card(facts, unfinished)
        after = size_of(unfinished.glob("*.safetensors"))
    return Sizes(before, after)


def size_of(files: Iterable[Path]) -> int:
    """Their bytes."""
    return sum(path.stat().st_size for path in files)
