"""
Programs of torch.export (`.pt2`): graphs that torch runs, compiles ahead of time, or hands to its other engines.

They need torch to run, and neither transformers nor this package.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .comparison import Comparison
from .export import open_configs, save_configs
from .steps import ENCODER, FIRST_STEP, NEXT_STEP, StepwiseModel, logits_by_steps, problems, trace


def write(
    model: VanillaTransformerForConditionalGeneration, tokenizer: Any, folder: Path, comparison: Comparison
) -> tuple[float, list[str]]:
    """Write the three programs and the configs into `folder`, and compare."""
    for name, (program, _) in trace(model).items():
        torch.export.save(program, folder / f"{name}.pt2")
    notes = save_configs(model, folder)
    return comparison.check(partial(logits_by_steps, open_model(folder))), notes


def open_model(folder: str | Path) -> StepwiseModel:
    """The programs that `write` left in a folder, under transformers' `generate()`."""
    # torch reads them as pickles: open what you exported, alone.
    steps = [torch.export.load(Path(folder) / f"{name}.pt2").module() for name in (ENCODER, FIRST_STEP, NEXT_STEP)]
    return StepwiseModel(*open_configs(Path(folder)), *steps)


__all__ = ["open_model", "problems", "write"]
