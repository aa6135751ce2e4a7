"""
The projections that Hu et al. 2021 (arXiv 2106.09685) adapt, as PEFT's default for our models.
"""

from functools import cache


class LoraTargets:
    """Whether PEFT is imported with the first model, which takes 0.2 s."""

    are_entered = True  # not in processes that make no adapters; `registration.py` decides


@cache
def name_lora_targets(model_type: str, targets: tuple[str, ...]) -> None:
    """Add them to PEFT's table, if PEFT is installed, so that LoraConfig() works without target_modules."""
    # PEFT has no public function for this.
    if not LoraTargets.are_entered:
        return
    try:
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as LORA_TARGETS
    except ImportError:
        return
    LORA_TARGETS[model_type] = [*targets]
