"""
Plans for several devices, which transformers reads from a model's class and from the model: which linear layers are
split by columns or rows (tensor parallelism), and what goes from one part to the next (pipeline parallelism).
"""

import re
from typing import Any

from transformers.modeling_utils import PreTrainedModel

from .shared_feed_forward import INNER_PROJECTIONS


ATTENTION_TP_PLAN = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "out_proj": "rowwise"}
ATTENTION_TP_PLAN |= {f"global_{name}": "colwise" for name in ("q_proj", "k_proj", "v_proj")}

ENCODER_TP_PLAN: dict[str, str] = {
    "embed_tokens": "embedding_rowwise",
    **{f"layers.*.self_attn.{name}": style for name, style in ATTENTION_TP_PLAN.items()},
    "layers.*.fc2": "rowwise",
    "feed_forward.fc2": "rowwise",
}
DECODER_TP_PLAN: dict[str, str] = {
    **ENCODER_TP_PLAN,
    **{f"layers.*.encoder_attn.{name}": style for name, style in ATTENTION_TP_PLAN.items()},
}
ENCODER_PP_PLAN: dict[str, Any] = {
    "embed_tokens": (["input_ids"], ["inputs_embeds"]),
    "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
    "layer_norm": (["hidden_states"], ["hidden_states"]),
}
DECODER_PP_PLAN: dict[str, Any] = {
    **ENCODER_PP_PLAN,
    "layers": (
        ["hidden_states", "attention_mask", "encoder_hidden_states", "encoder_attention_mask"],
        ["hidden_states"],
    ),
}


class StackPlans(PreTrainedModel):
    """A stack whose plan has the weights that it has: its class's has those of every variant."""

    # The embeddings stay with the whole model: tied matrices must be in one FSDP group.
    _fsdp_plan: Any = {"layers.*": "free_full_weight"}

    def post_init(self) -> None:
        super().post_init()
        fit_tensor_parallel_plan(self)


class EncoderPlans(StackPlans):
    """A stack without attention to a source."""

    _tp_plan: Any = ENCODER_TP_PLAN
    _pp_plan: Any = ENCODER_PP_PLAN


class DecoderPlans(StackPlans):
    """A stack with attention to a source."""

    _tp_plan: Any = DECODER_TP_PLAN
    _pp_plan: Any = DECODER_PP_PLAN


class TiedPlans(PreTrainedModel):
    """A model whose stacks may have one matrix of embeddings."""

    def post_init(self) -> None:
        super().post_init()
        if self.config.tied_matrices == "all":
            self.tp_plan["shared"] = "embedding_rowwise"


class HeadPlans(PreTrainedModel):
    """A model with the projection to the vocabulary."""

    _tp_plan: Any = {"lm_head": "colwise_gather_output"}
    _pp_plan: Any = {"lm_head": (["hidden_states"], ["logits"])}


def fit_tensor_parallel_plan(stack: Any) -> None:
    """Make a stack's `tp_plan` that of its own weights: its class's has those of every variant."""
    plan = stack.tp_plan
    for name in INNER_PROJECTIONS[stack.config.feed_forward_type]:
        plan.update({f"layers.*.{name}": "colwise", f"feed_forward.{name}": "colwise"})
    # Scores of all heads: each device computes all.
    if stack.embed_positions.is_relative or not stack.layers[0].self_attn.divides_heads:
        for name in [name for name in plan if ".self_attn." in name]:
            del plan[name]
    # A shared tensor occurs under one of its names.
    there = {re.sub(r"\.\d+\.", ".*.", name.rpartition(".")[0]) for name, _ in stack.named_parameters()}
    for name in plan.keys() - there:
        del plan[name]
