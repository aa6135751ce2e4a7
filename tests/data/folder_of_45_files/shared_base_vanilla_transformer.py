"""What the Transformer and the recurrent models have in common: tied embeddings, shifted labels and the loss."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_utils import PreTrainedModel, slice_logits_to_keep

from .loss_vanilla_transformer import (
    RowLoss,
    cross_entropy_rows,
    loss_by_rows,
    projected_loss,
    smoothed_cross_entropy,
)
from .packed_weights_vanilla_transformer import is_plain, is_unchanged


class SharedBase(PreTrainedModel):
    """The base class of both: a `PreTrainedModel` that loads what is saved once, and the loss of its predictions."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False):
        """Load weights in which a shared matrix may occur only once, as `save_pretrained` writes them."""
        aliases = {alias: source for alias, source in self.all_tied_weights_keys.items() if source in state_dict}
        whole = {**{alias: state_dict[source] for alias, source in aliases.items()}, **state_dict}
        result = super().load_state_dict(whole, strict, assign)
        self.tie_weights(recompute_mapping=False)
        return result

    def predict(
        self,
        states: torch.Tensor,
        labels: torch.Tensor | None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool = True,
        logits_to_keep: int | torch.Tensor = 0,
        row_loss: RowLoss | None = None,
        weight: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """
        Last states (B, T, D) to the loss, if labels (B, T) are given, and logits (B, T, V), for models with an
        `lm_head`. In training the loss is smoothed, or `row_loss`, and the logits may be left out; `weight` is then
        used for that of the `lm_head`, if given.
        """
        smoothing = self.config.label_smoothing if self.training else 0.0
        if self.training and labels is not None and not return_logits:
            wanted = row_loss or partial(cross_entropy_rows, smoothing)
            loss = projected_loss(states, self.lm_head, labels, wanted, num_items_in_batch, weight)
            if loss is not None:
                return loss, None
        logits = self.lm_head(slice_logits_to_keep(states, logits_to_keep))  # (B, T, V)
        if labels is None:
            return None, logits
        if row_loss is not None:
            return loss_by_rows(logits, labels, row_loss, num_items_in_batch), logits
        return smoothed_cross_entropy(logits, labels, smoothing, num_items_in_batch), logits

    def tied_rows(
        self, stack: Any, ids: torch.Tensor | None, embeddings: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """
        Ids (B, T) or embeddings (B, T, D) of a stack as they are, or the embeddings in place of the ids where their
        gradient can be added to rows of the output's: where both are one matrix, and the loss needs its product.
        torch would make another matrix of that size for each look-up, almost all of it zeros.
        """
        embedding, head = stack.embed_tokens, self.lm_head
        plain = type(embedding) is nn.Embedding and is_unchanged(embedding) and is_plain(head)
        if ids is None or not (self.training and plain and embedding.weight is head.weight):
            return ids, embeddings
        # Accelerators add sparse gradients in any order. Ids out of range are left to the message about them.
        if ids.device.type != "cpu" or torch.compiler.is_compiling() or ids.max() >= len(head.weight) or ids.min() < 0:
            return ids, embeddings
        return None, F.embedding(ids, embedding.weight, sparse=True)


class SharedEmbeddings(SharedBase):
    """A model whose stacks' embeddings are one matrix, `shared`, where the config's `tied_matrices` is "all"."""

    @property
    def stack_names(self) -> tuple[str, ...]:
        """The stacks; the first has the input embeddings."""
        return "encoder", "decoder"

    def share_embeddings(self):
        """Make the one matrix, of which those of the stacks are other names."""
        if self.config.tied_matrices == "all":
            self.shared = nn.Embedding(self.config.vocab_size, self.config.d_model)
            self._tied_weights_keys = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in self.stack_names}

    def get_input_embeddings(self) -> nn.Embedding:
        return getattr(self, self.stack_names[0]).embed_tokens

    def set_input_embeddings(self, value: Any):
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


def tied_output(config: Any, stack: str = "decoder") -> dict[str, str]:
    """The matrix that the output over a stack is another name of, as transformers' `_tied_weights_keys`."""
    sources = {"all": "model.shared.weight", "decoder": f"model.{stack}.embed_tokens.weight"}
    return {"lm_head.weight": sources[config.tied_matrices]} if config.tied_matrices in sources else {}
