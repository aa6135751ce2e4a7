"""
The encoder alone: its states, and heads that predict masked tokens and classify sequences or tokens.

Shapes: B sequences, S positions, D = d_model, V vocabulary, C classes.
"""

from typing import Any, TypeAlias, Unpack

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..layers.base_model import VanillaTransformerPreTrainedModel, smoothed_cross_entropy, tied_output
from ..layers.parts import NORMS, Dropout
from ..modeling_vanilla_transformer import VanillaTransformerEncoder
from .base import SingleStackModel, of_one_stack


class VanillaTransformerEncoderModel(SingleStackModel):
    """
    The encoder without a head: ids (B, S) to states (B, S, D). `from_pretrained` on an encoder-decoder loads its
    encoder.

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerEncoderModel
    >>> config = VanillaTransformerConfig(vocab_size=99, d_model=32, encoder_layers=1, is_encoder_decoder=False)
    >>> VanillaTransformerEncoderModel(config)(torch.randint(4, 99, (2, 7))).last_hidden_state.shape
    torch.Size([2, 7, 32])
    ```
    """

    stack_name = "encoder"
    stack_class = VanillaTransformerEncoder
    encoder: VanillaTransformerEncoder

    @can_return_tuple
    def forward(  # type: ignore[misc]  # transformers reads from this type that attentions can be returned
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Token ids (B, S), or embeddings (B, S, D), and segments (B, S) to states (B, S, D)."""
        return self.encoder(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            **kwargs,
        )


# The loss if there are labels, and logits unless they are left out.
LossAndLogits: TypeAlias = tuple[torch.Tensor | None, torch.Tensor | None]


class EncoderWithHead(VanillaTransformerPreTrainedModel):
    """The encoder under a head; a `ValueError` if the head reads the states of all tokens and the encoder pools."""

    reads_all_states = True
    # The loss divides by num_items_in_batch itself; the Trainer must not divide again.
    accepts_loss_kwargs = True
    output_type: Any  # of transformers

    def __init__(self, config: VanillaTransformerConfig) -> None:
        name = type(self).__name__
        if self.reads_all_states and config.encoder_pooling:
            raise ValueError(
                f"{name} with encoder_pooling={config.encoder_pooling}: it needs a state of each token; leave "
                "encoder_pooling out"
            )
        super().__init__(of_one_stack(config, "encoder", name))
        self.model = VanillaTransformerEncoderModel(self.config)

    def loss_and_logits(self, states: torch.Tensor, labels: torch.Tensor | None, **options: Any) -> LossAndLogits:
        """What the head makes of the encoder's states (B, S, D); `options` are those of the loss."""
        raise NotImplementedError

    @can_return_tuple
    def forward(  # type: ignore[misc]  # transformers reads from this type that attentions can be returned
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Any:
        """Token ids (B, S) to the logits of the class, and the loss where its labels are given."""
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, token_type_ids, **kwargs)
        loss, logits = self.loss_and_logits(
            outputs[0], labels, num_items_in_batch=num_items_in_batch, return_logits=return_logits
        )
        if self.training and labels is not None and not return_logits:
            logits = None
        return self.output_type(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class VanillaTransformerForMaskedLM(EncoderWithHead):
    """
    The encoder and a head that predicts masked tokens: logits (B, S, V) = norm(activation(x W + b)) Eᵀ + c, with E the
    embeddings, as in BERT (Devlin et al. 2019, arXiv 1810.04805). Labels (B, S) are the original ids of masked tokens,
    and -100 elsewhere. The loss is smoothed in training (`label_smoothing`); `return_logits=False` leaves the logits
    out there.

    Raises:
        ValueError: The encoder shortens the sequence (`encoder_pooling`), so that tokens have no states.

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForMaskedLM
    >>> config = VanillaTransformerConfig(vocab_size=99, d_model=32, encoder_layers=1, is_encoder_decoder=False)
    >>> VanillaTransformerForMaskedLM(config)(torch.randint(4, 99, (2, 7))).logits.shape
    torch.Size([2, 7, 99])
    ```
    """

    output_type = MaskedLMOutput
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        config = self.config
        self.transform = nn.Linear(config.d_model, config.d_model)
        self.transform_activation = ACT2FN[config.activation_function]
        self.transform_norm = NORMS[config.norm_type](config.d_model, config.layer_norm_eps)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size)
        self._tied_weights_keys = tied_output(config, "encoder")
        self.post_init()

    def before_projection(self, states: torch.Tensor) -> torch.Tensor:
        """The states that are projected to the vocabulary (B, S, D), from those of the encoder (B, S, D)."""
        return self.transform_norm(self.transform_activation(self.transform(states)))

    def loss_and_logits(self, states: torch.Tensor, labels: torch.Tensor | None, **options: Any) -> LossAndLogits:
        return self.predict(self.before_projection(states), labels, **options)


class EncoderClassifier(EncoderWithHead):
    """The encoder, a dropout and a linear classifier."""

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        given = self.config.classifier_dropout
        self.num_labels: int = self.config.num_labels
        self.dropout = Dropout(self.config.dropout if given is None else given)
        self.classifier = nn.Linear(self.config.d_model, self.num_labels)


class VanillaTransformerForSequenceClassification(EncoderClassifier):
    """
    The encoder and a classifier of whole sequences: logits (B, C) = tanh(x₁ W + b) Wᶜ + c of the state x₁ of the first
    token, as in BERT; texts are padded on the right. Labels are class numbers (B), or for several classes at once
    (B, C), or numbers for regression (B), as the config's `problem_type` says or, without it, `num_labels` and their
    type.

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForSequenceClassification
    >>> config = VanillaTransformerConfig(vocab_size=99, d_model=32, is_encoder_decoder=False, num_labels=3)
    >>> VanillaTransformerForSequenceClassification(config)(torch.randint(4, 99, (2, 7))).logits.shape
    torch.Size([2, 3])
    ```
    """

    output_type = SequenceClassifierOutput
    reads_all_states = False
    # The loss is the mean over a batch: the Trainer divides it by the batches whose gradients it sums.
    accepts_loss_kwargs = False

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        self.pooler = nn.Linear(self.config.d_model, self.config.d_model)
        self.post_init()

    def loss_and_logits(self, states: torch.Tensor, labels: torch.Tensor | None, **options: Any) -> LossAndLogits:
        pooled = torch.tanh(self.pooler(states[:, 0]))  # (B, D)
        logits = self.classifier(self.dropout(pooled))  # (B, C)
        if labels is None:
            return None, logits
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config), logits


class VanillaTransformerForTokenClassification(EncoderClassifier):
    """
    The encoder and a classifier of each token: logits (B, S, C) = x Wᶜ + c. Labels (B, S) are class numbers, and -100
    for ignored tokens.

    Raises:
        ValueError: The encoder shortens the sequence (`encoder_pooling`), so that tokens have no states.

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForTokenClassification
    >>> config = VanillaTransformerConfig(vocab_size=99, d_model=32, is_encoder_decoder=False, num_labels=3)
    >>> VanillaTransformerForTokenClassification(config)(torch.randint(4, 99, (2, 7))).logits.shape
    torch.Size([2, 7, 3])
    ```
    """

    output_type = TokenClassifierOutput

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        self.post_init()

    def loss_and_logits(self, states: torch.Tensor, labels: torch.Tensor | None, **options: Any) -> LossAndLogits:
        logits = self.classifier(self.dropout(states))  # (B, S, C)
        if labels is None:
            return None, logits
        return smoothed_cross_entropy(logits, labels, 0.0, options["num_items_in_batch"]), logits
