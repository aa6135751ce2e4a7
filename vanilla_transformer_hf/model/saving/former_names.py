"""
The names that modules of model/ had while each travelled with a saved model as a file of its own.

Saved folders have such files, which a model that is saved there removes. Pickles of whole models and PEFT's adapters
name such modules, so for one release they are found under both names. Other folders whose modules have moved let
scripts import them likewise, by `alias_modules`.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


# Module as it was in one folder, without "_vanilla_transformer" at its end -> where its classes are.
FORMER_NAMES = {
    "attention": "modeling_vanilla_transformer",
    "attention_types": "attention.types",
    "autocast_maps": "layers.projections",
    "beam_search": "search.beam",
    "candidates": "packing.most_likely",
    "causal_lm": "single_stacks.causal_lm",
    "configuration_recurrent": "predecessors.configuration",
    "constraints": "search.constraints",
    "dropout": "layers.dropout",
    "encoder_models": "single_stacks.encoder_models",
    "encoder_pooling": "attention.pooling",
    "feed_forward": "modeling_vanilla_transformer",
    "generation": "search.generate",
    "generation_causal": "search.generate_causal",
    "generation_config": "config.generation",
    "global_attention": "attention.local_global",
    "greedy_search": "search.greedy",
    "heads": "config.kept_heads",
    "incremental_decoder": "search.incremental_decoder",
    "int8": "packing.int8",
    "int8_products": "packing.int8_products",
    "kernel_masks": "layers.kernel_masks",
    "layer_tensors": "search.layer_tensors",
    "linformer_attention": "attention.linformer",
    "local_attention": "attention.local",
    "logits_processors": "search.logits_processors",
    "loss": "layers.loss",
    "lsh_attention": "attention.lsh",
    "memory_attention": "attention.segment_memory",
    "modeling_recurrent": "predecessors.modeling",
    "norms": "layers.norms",
    "packed_weights": "packing.packed",
    "performer_attention": "attention.performer",
    "position_schemes": "layers.position_hooks",
    "positions": "positions.absolute",
    "presets": "config.presets",
    "quantizer": "packing.int8_quantizer",
    "recurrent_attention": "predecessors.attention",
    "recurrent_cache": "predecessors.cache",
    "relative_positions": "positions.relative",
    "search": "search.search",
    "search_plan": "search.plan",
    "search_rows": "search.rows",
    "segments": "layers.segments",
    "shared_base": "layers.base_model",
    "sharing": "layers.shared_projections",
    "single_stack": "single_stacks.base",
    "synthesizer_attention": "attention.synthesizer",
}
# Modules that there are no more.
REMOVED = ("change_detection", "file_pages")
# Modules of folders as they were before this release, where they are no longer.
MOVED = {
    "attention.full": "modeling_vanilla_transformer",
    "attention.hooks": "layers.attention_hooks",
    "attention.kernel_masks": "layers.kernel_masks",
    "bundle": "saving.bundle",
    "former_names": "saving.former_names",
    "layers.feed_forward": "modeling_vanilla_transformer",
    "listeners": "saving.listeners",
    "parallel_plans": "layers.parallel_plans",
    "positions.base": "layers.position_hooks",
    "pretrained_model": "layers.pretrained_model",
    "saved_code": "saving.saved_code",
    "stand_ins": "layers.stand_ins",
}
FORMER_FILES = {f"{name}_vanilla_transformer.py" for name in (*FORMER_NAMES, *REMOVED)}


class FormerModule(ModuleType):
    """A module under a former name, which is imported when something is taken from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # tools that go through all modules look up such names
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


def alias_modules(package: str, names: Mapping[str, str]) -> None:
    """Let imports, and so pickles, find modules of a package under former names (former name -> name) too."""
    for former, name in names.items():
        sys.modules.setdefault(f"{package}.{former}", FormerModule(f"{package}.{name}"))


def alias_former_modules() -> None:
    """Let each module of model/ be found under its former names too."""
    names = {f"{former}_vanilla_transformer": name for former, name in FORMER_NAMES.items()}
    alias_modules(__package__.rpartition(".")[0], names | MOVED)
