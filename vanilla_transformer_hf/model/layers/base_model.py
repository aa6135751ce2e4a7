"""What the Transformer and the recurrent models have in common: tied embeddings, shifted labels and the loss."""

import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import nn
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel

from ..config.front_ends import CLASSES_OF_INPUTS, input_name_of, reads_tokens
from ..config.kinds import part
from ..config.sharing import INNER_PROJECTIONS
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..releases.models import keep_logits, tie_skipped
from ..saving.saved_code import ModelSavesCode
from .lora_targets import name_lora_targets
from .parts import look_up


# The names that transformers gives to a file of weights, to the index of several, and to each of them.
WEIGHTS_NAME, INDEX_NAME = "model.safetensors", "model.safetensors.index.json"
SHARD_NAME = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")


def remove_older_weights(folder: str | os.PathLike[str], written: Collection[str]) -> None:
    """Remove files of weights of an earlier save from a folder: all that have such names but are not `written`."""
    # transformers opens model.safetensors in preference to newer weights in several files.
    for path in Path(folder).iterdir():
        is_weights = path.name in (WEIGHTS_NAME, INDEX_NAME) or SHARD_NAME.fullmatch(path.name)
        if is_weights and path.name not in written:
            path.unlink()


def count_of(labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor | int:
    """The divisor of a loss summed over labels: the number of labels other than -100, or the given one; at least 1."""
    count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
    return count.clamp(min=1) if isinstance(count, torch.Tensor) else max(1, count)


def smoothed_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """Cross-entropy in nats with (1 - ε) of the weight on the label and ε spread over all V tokens, section 5.4."""
    # Szegedy et al. 2016, arXiv 1512.00567, of logits (B, T, V) and labels (B, T), of which -100 is ignored. The sum
    # is divided by `num_items_in_batch`, the labels of all accumulated batches, where it is given: then the gradient
    # does not depend on how a batch is split.
    loss = F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), reduction="sum", label_smoothing=label_smoothing
    )
    return loss / count_of(labels, num_items_in_batch)


@torch.compiler.disable  # torch would unroll the loop over the rows
def loss_of_rows(*arguments: Any) -> torch.Tensor:
    """`loss_by_rows` of `loss.py`."""
    found: torch.Tensor = part("layers.loss", "row_loss").loss_by_rows(*arguments)
    return found


class SharedBase(ModelSavesCode, PreTrainedModel):
    """The base class of both: a `PreTrainedModel` that loads what is saved once, and the loss of its predictions."""

    # The projections that Hu et al. 2021 (arXiv 2106.09685) adapt, as PEFT's default.
    lora_targets: tuple[str, ...] = ()

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        # Not when this file is imported: importing PEFT creates tensors, and `train` must configure torch's allocator
        # first.
        if self.lora_targets:
            name_lora_targets(config.model_type, self.lora_targets)

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        """Some ids that the model takes, as in every model of transformers."""
        inputs: dict[str, torch.Tensor] = super().dummy_inputs
        has_target = self.config.is_encoder_decoder and not isinstance(self, StackEmbeddings)
        return {**inputs, "decoder_input_ids": inputs["input_ids"]} if has_target else inputs

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        """Tie the weights that the config shares, as in every model of transformers."""
        tied = dict(getattr(self, "all_tied_weights_keys", {}))
        super().tie_weights(*args, **kwargs)
        tie_skipped(self, tied)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """
        Open a saved model, as in every transformers model.

        Raises:
            OSError: A weights file is truncated or damaged; safetensors' own message does not name the folder.
        """
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        except SafetensorError as error:
            raise OSError(
                f"{pretrained_model_name_or_path}: the weights are truncated or damaged ({error}); copy them again"
            ) from error

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights in which a shared matrix may occur only once, as `save_pretrained` writes them."""
        aliases = {alias: source for alias, source in self.all_tied_weights_keys.items() if source in state_dict}
        whole = {**{alias: state_dict[source] for alias, source in aliases.items()}, **state_dict}
        result = super().load_state_dict(whole, strict, assign)
        self.tie_weights(recompute_mapping=False)
        return result

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """
        Save the model, as in every transformers model; then remove the weights of an earlier save that transformers
        leaves: those in one file where the new ones are in several, and the index where they are in one.
        """
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        has_other_names = kwargs.get("variant") or kwargs.get("distributed_checkpoint")
        if not is_main_process or has_other_names or getattr(self, "_hf_peft_config_loaded", False):
            return  # of these names, nothing was written; of an adapter, its own file
        if not Path(save_directory).is_dir():
            return  # of a file in the folder's place, transformers only logs
        # transformers has removed the shards of an earlier save, so those that are there were written now.
        shards = {path.name for path in Path(save_directory).iterdir() if SHARD_NAME.fullmatch(path.name)}
        remove_older_weights(save_directory, shards | {INDEX_NAME} if shards else {WEIGHTS_NAME})

    def predict(
        self,
        states: torch.Tensor,
        labels: torch.Tensor | None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool = True,
        logits_to_keep: int | torch.Tensor = 0,
        row_loss: Callable[..., torch.Tensor] | None = None,
        weight: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Last states (B, T, D) to the loss, if labels (B, T) are given, and logits (B, T, V), by the `lm_head`."""
        # In training the loss is smoothed, or `row_loss`, and the logits may be left out; `weight` is then used for
        # that of the `lm_head`, if given.
        smoothing = self.config.label_smoothing if self.training else 0.0
        if self.training and labels is not None and not return_logits and not torch.compiler.is_compiling():
            parts = part("layers.loss", "return_logits=False")
            wanted = row_loss or partial(parts.cross_entropy_rows, smoothing)
            loss = parts.projected_loss(states, self.lm_head, labels, wanted, num_items_in_batch, weight)
            if loss is not None:
                return loss, None
        logits = self.lm_head(keep_logits(states, logits_to_keep))  # (B, T, V)
        if labels is None:
            return None, logits
        if row_loss is not None:
            return loss_of_rows(logits, labels, row_loss, num_items_in_batch), logits
        return smoothed_cross_entropy(logits, labels, smoothing, num_items_in_batch), logits

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the target vocabulary, and the source's if they share one; ties are kept."""
        if self.config.tied_matrices == "all" or not self.config.is_encoder_decoder:
            return super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        has_own = self.config.source_vocab_size or not reads_tokens(self.config)
        stacks = [self.get_decoder()] if has_own else [self.get_encoder(), self.get_decoder()]
        for stack in stacks:
            self._resize_stack(stack, new_num_tokens, pad_to_multiple_of, mean_resizing)
        if (head := self.get_output_embeddings()) is not None:
            requires_grad = head.weight.requires_grad
            rows = stack.embed_tokens.num_embeddings
            self.set_output_embeddings(self._get_resized_lm_head(head, rows, mean_resizing=mean_resizing))
            self.get_output_embeddings().requires_grad_(requires_grad)
        return stack.embed_tokens

    def _resize_stack(self, stack: Any, *size: Any) -> nn.Embedding:
        old = stack.embed_tokens
        stack.embed_tokens = self._get_resized_embeddings(old, *size)
        stack.embed_tokens.requires_grad_(old.weight.requires_grad)
        return stack.embed_tokens

    def resize_source_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """
        Resize the source vocabulary of a model with two; `resize_token_embeddings` resizes the target's.

        Args:
            new_num_tokens: Number of source tokens, the tokenizer's `source_vocab_size`; None: as many as now.
            pad_to_multiple_of, mean_resizing: As in `resize_token_embeddings`.

        Returns:
            The encoder's embeddings.

        Raises:
            ValueError: Source and target share a vocabulary, or the padding token would be lost.
        """
        config = self.config
        if getattr(config, "source_vocab_size", None) is None:
            raise ValueError("source and target share one vocabulary; use the model's resize_token_embeddings()")
        if new_num_tokens is not None and new_num_tokens <= config.pad_token_id:
            raise ValueError(f"new_num_tokens={new_num_tokens}: must be above pad_token_id={config.pad_token_id}")
        found = self._resize_stack(self.get_encoder(), new_num_tokens, pad_to_multiple_of, mean_resizing)
        config.source_vocab_size = found.num_embeddings
        return found


class StackEmbeddings(SharedBase):
    """A stack, whose embeddings a model may share with another stack or with its output."""

    reads_source = False
    embed_tokens: Any

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """
        Resize the source vocabulary, in the encoder of a model with two; or the only one of a single stack.

        Raises:
            ValueError: The embeddings are not this stack's alone.
        """
        size = (new_num_tokens, pad_to_multiple_of, mean_resizing)
        if not self.config.is_encoder_decoder:
            return super().resize_token_embeddings(*size)
        if not self.reads_source or self.config.source_vocab_size is None:
            raise ValueError(
                f"{type(self).__name__}: other parts of the model have its vocabulary, too; use the model's "
                "resize_token_embeddings()"
            )
        return self.resize_source_token_embeddings(*size)

    def look_up_tokens(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Token ids (B, T) to embeddings (B, T, D), unscaled, unless these are given."""
        if input_ids is None and inputs_embeds is not None:
            return inputs_embeds
        if input_ids is None or inputs_embeds is not None:
            raise ValueError(f"{type(self).__name__}: give either token ids or embeddings, exactly one of them")
        # The embedding is called as a module, so that hooks of adapters, quantizers and offloading run.
        try:
            embeddings: torch.Tensor = self.embed_tokens(input_ids)
            return embeddings
        except IndexError:
            return look_up(self.embed_tokens.weight, input_ids, what="token id")


class SharedEmbeddings(SharedBase):
    """A model whose stacks' embeddings are one matrix, `shared`, where the config's `tied_matrices` is "all"."""

    @property
    def stack_names(self) -> tuple[str, ...]:
        """The stacks; the first has the input embeddings."""
        return ("encoder", "decoder") if reads_tokens(self.config) else ("decoder",)

    def share_embeddings(self) -> None:
        """Make the one matrix, of which those of the stacks are other names."""
        if self.config.tied_matrices == "all":
            self.shared = nn.Embedding(self.config.vocab_size, self.config.d_model)
            self._tied_weights_keys = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in self.stack_names}

    def post_init(self) -> None:
        super().post_init()
        if self.config.tied_matrices == "all":
            self.tp_plan["shared"] = "embedding_rowwise"

    def get_input_embeddings(self) -> nn.Embedding:
        return getattr(self, self.stack_names[0]).embed_tokens

    def set_input_embeddings(self, value: Any) -> None:
        is_shared = self.config.tied_matrices == "all"
        if is_shared:
            self.shared = value
        for stack in self.stack_names if is_shared else self.stack_names[:1]:
            getattr(self, stack).embed_tokens = value


class ShiftedLabels(SharedBase):
    """Encoder, decoder and output, trained on labels from which the decoder's input is made."""

    # The loss divides by num_items_in_batch itself; the Trainer must not divide again.
    accepts_loss_kwargs = True

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """
        Labels (B, T) shifted right after the start token, with padding in place of -100: "I love you" to "<pad> I
        love".
        """
        shifted = F.pad(labels[:, :-1], (1, 0), value=self.config.decoder_start_token_id)
        return shifted.masked_fill(shifted == -100, self.config.pad_token_id)


class VanillaTransformerPreTrainedModel(SharedBase):
    """
    The base class: how transformers initialises, opens, splits, quantizes and records every model of this package.

    It is for `isinstance`; make objects of the classes that extend it.

    Example:

    ```python
    >>> from vanilla_transformer_hf import VanillaTransformerModel, VanillaTransformerPreTrainedModel
    >>> issubclass(VanillaTransformerModel, VanillaTransformerPreTrainedModel)
    True
    ```
    """

    config: VanillaTransformerConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    lora_targets = ("q_proj", "v_proj")
    _no_split_modules = ["VanillaTransformerLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        if getattr(self, "reads_source", True):  # all but decoders
            self.main_input_name = input_name_of(config)
        name, kind = input_name_of(config), type(self)
        if isinstance(self, ShiftedLabels) and kind.main_input_name != name:
            raise ValueError(
                f"{kind.__name__} reads {kind.main_input_name}, and the config's front_end={config.front_end!r} reads "
                f"{name}; open it with {CLASSES_OF_INPUTS[name]}"
            )

    def _init_weights(self, module: nn.Module) -> None:
        """
        Xavier-uniform projections (Glorot and Bengio 2010), queries, keys and values as one matrix; embeddings,
        learned positions and an untied output with deviation D^-0.5.
        """
        super()._init_weights(module)
        if (draw := getattr(module, "draw", None)) is not None:  # kinds of positions, attention and norms
            draw()
        elif isinstance(module, nn.Embedding) or module is self.get_output_embeddings():
            init.normal_(module.weight, std=module.weight.shape[-1] ** -0.5)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            init.xavier_uniform_(module.weight, gain=getattr(module, "init_gain", 1.0))


# Which linear layers are split by columns or rows over several devices.
ATTENTION_TP_PLAN = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "out_proj": "rowwise"}
ATTENTION_TP_PLAN |= {f"global_{name}": "colwise" for name in ("q_proj", "k_proj", "v_proj")}
STACK_TP_PLAN = {
    f"layers.*.{attention}.{name}": style
    for attention in ("self_attn", "encoder_attn")
    for name, style in ATTENTION_TP_PLAN.items()
} | {"embed_tokens": "embedding_rowwise", "layers.*.fc2": "rowwise", "feed_forward.fc2": "rowwise"}


# What goes from one part of a stack to the next on several devices.
STACK_PP_PLAN = {
    "embed_tokens": (["input_ids"], ["inputs_embeds"]),
    "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
    "layer_norm": (["hidden_states"], ["hidden_states"]),
}
DECODER_PP_PLAN = STACK_PP_PLAN | {
    "layers": (["hidden_states", "attention_mask", "encoder_hidden_states", "memory_mask"], ["hidden_states"])
}


class StackOfLayers(StackEmbeddings, VanillaTransformerPreTrainedModel):
    """A stack of the Transformer as transformers splits it, and its limit of length."""

    layers: Any
    embed_positions: Any
    # The embeddings stay with the whole model: tied matrices must be in one FSDP group.
    _fsdp_plan: Any = {"layers.*": "free_full_weight"}
    _tp_plan: Any = STACK_TP_PLAN  # of which `post_init` leaves what there is
    _pp_plan: Any = STACK_PP_PLAN

    def post_init(self) -> None:
        super().post_init()
        plan = self.tp_plan
        for name in INNER_PROJECTIONS[self.config.feed_forward_type]:
            plan.update({f"layers.*.{name}": "colwise", f"feed_forward.{name}": "colwise"})
        # Scores of all heads: each device computes all.
        divides = self.layers[0].self_attn.divides_heads and not self.embed_positions.is_relative
        # A shared tensor occurs under one of its names.
        there = {re.sub(r"\.\d+\.", ".*.", name.rpartition(".")[0]) for name, _ in self.named_parameters()}
        for name in [*plan]:
            if name not in there or (".self_attn." in name and not divides):
                del plan[name]

    @property
    def longest(self) -> int | None:
        """The largest number of positions, of the scheme or of an attention to the stack; None without a limit."""
        own: Any = self.layers[0].self_attn
        limits: list[int | None] = [self.embed_positions.longest, own.longest]
        config = self.config
        if self.reads_source and config.is_encoder_decoder and config.cross_attention_type != "full":
            limits.append(config.max_position_embeddings)
        return min((limit for limit in limits if limit is not None), default=None)


def missing_target(name: str) -> str:
    """What to do where a model of this name is given no target: its input is never derived from the source."""
    return (
        f"{name} needs decoder_input_ids, decoder_inputs_embeds or labels. To translate without labels, call "
        "generate(), or give a Seq2SeqTrainer predict_with_generate=True and DataCollatorWithPadding: with "
        "DataCollatorForSeq2Seq it computes a loss. If a Trainer's label_smoothing_factor took labels away, pass "
        "model= to its DataCollatorForSeq2Seq, or set the config's label_smoothing instead."
    )


def tied_output(config: Any, stack: str = "decoder") -> dict[str, str]:
    """The matrix that the output over a stack is another name of, as transformers' `_tied_weights_keys`."""
    sources = {"all": "model.shared.weight", "decoder": f"model.{stack}.embed_tokens.weight"}
    return {"lm_head.weight": sources[config.tied_matrices]} if config.tied_matrices in sources else {}
