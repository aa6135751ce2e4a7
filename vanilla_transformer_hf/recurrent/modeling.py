"""
The encoder–decoders that the Transformer replaced: LSTM or GRU layers, without attention (Sutskever et al. 2014, arXiv
1409.3215), with that of Bahdanau et al. 2015 (arXiv 1409.0473) or Luong et al. 2015 (arXiv 1508.04025), and GNMT's
residual layers (Wu et al. 2016, arXiv 1609.08144).

Shapes: B sentences, S source positions, T target positions, D = d_model, L layers, V vocabulary, P parts of a state
(LSTM: state and cell, GRU: state).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import can_return_tuple

from ..model.layers.base_model import (
    SharedBase,
    SharedEmbeddings,
    ShiftedLabels,
    StackEmbeddings,
    missing_target,
    tied_output,
)
from ..model.layers.parts import Dropout, drop_out
from ..model.releases.models import CACHE, given_cache, named
from ..model.search.host_generation import HostGenerationMixin
from .attention import RECURRENT_ATTENTION, Source
from .cache import RecurrentCache
from .configuration import RecurrentSeq2SeqConfig


CELLS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU}
# What positions make: what predicts their next tokens (B, T, D), the output of each layer, weights (B, T, S) or None,
# and what is carried to the next position.
Computed: TypeAlias = tuple[torch.Tensor, list[torch.Tensor], torch.Tensor | None, dict[str, torch.Tensor]]


@dataclass
class RecurrentEncoderOutput(BaseModelOutput):
    """The encoder's output, and the last states of its layers (B, L, P, D), with which the decoder begins."""

    final_states: torch.Tensor | None = None


@dataclass
class RecurrentSeq2SeqOutput(Seq2SeqModelOutput):
    """The output of the model, with the last states of the encoder's layers (B, L, P, D)."""

    encoder_final_states: torch.Tensor | None = None


def pack_state(state: Any) -> torch.Tensor:
    """A state of torch's, of one or two directions, to a tensor (B, P, D)."""
    parts = state if isinstance(state, tuple) else (state,)
    return torch.stack([part.transpose(0, 1).flatten(1) for part in parts], dim=1)


def unpack_state(state: torch.Tensor) -> Any:
    """A state (B, P, D) to torch's of one direction."""
    parts = [part.contiguous() for part in state.transpose(0, 1)[:, None]]  # each (1, B, D)
    return tuple(parts) if len(parts) == 2 else parts[0]


class RecurrentPreTrainedModel(SharedBase):
    """The base class of the recurrent models."""

    config: RecurrentSeq2SeqConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    # A state cannot take tokens back; searches that need this are errors in transformers.
    _is_stateful = True

    def _init_weights(self, module: nn.Module):
        """Embeddings and an untied output with deviation D^-0.5, Xavier-uniform maps, orthogonal recurrence."""
        # The recurrent matrices as Saxe et al. 2014, arXiv 1312.6120; biases 0, but 1 for the forget gates of LSTMs
        # (Jozefowicz et al. 2015).
        if isinstance(module, nn.Embedding) or module is self.get_output_embeddings():
            init.normal_(module.weight, std=module.weight.shape[-1] ** -0.5)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.RNNBase):
            width = module.hidden_size
            for name, values in module.named_parameters():
                if name.startswith("bias"):
                    init.zeros_(values)
                    if isinstance(module, nn.LSTM) and name.startswith("bias_ih"):
                        init.ones_(values[width : 2 * width])
                    continue
                for gate in values.split(width):
                    (init.orthogonal_ if name.startswith("weight_hh") else init.xavier_uniform_)(gate)


class RecurrentStack(StackEmbeddings, RecurrentPreTrainedModel):
    """Embeddings and recurrent layers, each with a module of its own, so that residuals and dropout stand between."""

    def __init__(self, config: RecurrentSeq2SeqConfig, vocab_size: int, count: int, fed: int, bidirectional: bool):
        super().__init__(config)
        width = config.d_model
        self.embed_tokens = nn.Embedding(vocab_size, width)
        self.dropout = Dropout(config.dropout)
        hidden = width // 2 if bidirectional else width
        self.layers = nn.ModuleList(
            CELLS[config.cell_type](
                width + (0 if layer else fed), hidden, batch_first=True, bidirectional=bidirectional
            )
            for layer in range(count)
        )

    def look_up(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Token ids (B, T), or embeddings (B, T, D), to embeddings (B, T, D) after dropout."""
        return self.dropout(self.look_up_tokens(input_ids, inputs_embeds))

    def step_in(self, number: int, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """The output of a layer: with dropout, and with its input added where the config sets that."""
        after = drop_out(after, self.config.dropout, self.training)
        return before + after if self.config.residual_layers and number else after


class RecurrentEncoder(RecurrentStack):
    """Source ids to the states of the top layer at each position, and the last states of all layers."""

    reads_source = True

    def __init__(self, config: RecurrentSeq2SeqConfig):
        super().__init__(
            config, config.source_vocab_size or config.vocab_size, config.encoder_layers, 0, config.bidirectional
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> RecurrentEncoderOutput:
        """Source ids (B, S), or embeddings (B, S, D), to states (B, S, D), which are 0 at padding."""
        # Tokens where the mask is 0 are not read, wherever they stand.
        embeddings = self.look_up(input_ids, inputs_embeds)
        rows, length = embeddings.shape[:2]
        if attention_mask is None:
            attention_mask = embeddings.new_ones(rows, length, dtype=torch.long)
        is_token = attention_mask.bool()
        # torch reads sequences that begin at position 0: tokens move there, in their order, and back afterwards.
        order = (~is_token).long().argsort(dim=1, stable=True)[..., None].expand_as(embeddings)  # (B, S, D)
        lengths = is_token.sum(dim=1).clamp(min=1).cpu()
        packed = pack_padded_sequence(embeddings.gather(1, order), lengths, batch_first=True, enforce_sorted=False)

        def whole(sequence: PackedSequence) -> torch.Tensor:
            moved = pad_packed_sequence(sequence, batch_first=True, total_length=length)[0]
            states = torch.zeros_like(moved).scatter(1, order, moved)
            return states * is_token[..., None]

        finals, all_states = [], [embeddings]
        for number, layer in enumerate(self.layers):
            found, final = layer(packed)
            packed = found._replace(data=self.step_in(number, packed.data, found.data))
            finals.append(pack_state(final))
            if output_hidden_states or number == len(self.layers) - 1:
                all_states.append(whole(packed))
        return RecurrentEncoderOutput(
            last_hidden_state=all_states[-1],
            hidden_states=tuple(all_states) if output_hidden_states else None,
            final_states=torch.stack(finals, dim=1),
        )


class RecurrentDecoder(RecurrentStack):
    """Target ids so far, and the encoder's output, to the states that predict the next ids."""

    def __init__(self, config: RecurrentSeq2SeqConfig):
        kind = RECURRENT_ATTENTION[config.attention, config.input_feeding]
        super().__init__(config, config.vocab_size, config.decoder_layers, config.d_model if kind.is_fed else 0, False)
        self.attention = kind(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        encoder_final_states: torch.Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        cache: RecurrentCache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Target ids (B, T), or embeddings (B, T, D), and what the encoder returned to states (B, T, D)."""
        # Those are (B, S, D) and (B, L, P, D); a `ValueError` without. Layers of the decoder beyond the encoder's
        # begin as its last one. `hidden_states` are the embeddings and the outputs of the layers, before attention
        # that looks after each step.
        cache = given_cache(self, cache, past_key_values, kwargs)
        embeddings = self.look_up(input_ids, inputs_embeds)
        if use_cache and cache is None:
            cache = RecurrentCache()
        if encoder_hidden_states is None:
            raise ValueError("RecurrentDecoder: encoder_hidden_states is not given")
        carried = {} if cache is None else dict(cache.state.tensors)
        carried = carried or self._begin(encoder_hidden_states, encoder_final_states)
        is_token = None if encoder_attention_mask is None else encoder_attention_mask.bool()
        source = Source(encoder_hidden_states, carried["keys"], is_token)
        read = None if attention_mask is None else attention_mask[:, -embeddings.shape[1] :].bool()
        # Padding before tokens must not change the state; behind them it changes nothing that is used.
        one_by_one = self.attention.is_fed or (read is not None and not bool(read.all()))
        run = self._step_by_step if one_by_one else self._whole
        states, layers, weights, carried = run(embeddings, read, source, carried)
        if cache is not None:
            cache.state.store(carried, embeddings.shape[1])
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.dropout(states),
            hidden_states=(embeddings, *layers) if output_hidden_states else None,
            cross_attentions=(weights[:, None],) if output_attentions and weights is not None else None,
            **named(cache if use_cache else None),
        )

    def _begin(self, memory: torch.Tensor, final_states: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """What is carried before the first token."""
        if final_states is None:
            raise ValueError(
                "the decoder begins with the last states of the encoder, which encoder_outputs does not hold: give "
                "the RecurrentEncoderOutput of get_encoder(), with return_dict=True"
            )
        layers = [min(layer, final_states.shape[1] - 1) for layer in range(len(self.layers))]
        return {
            "states": final_states[:, layers],  # (B, L, P, D)
            "output": memory.new_zeros(len(memory), 1, memory.shape[-1]),
            "keys": self.attention.keys(memory),
        }

    def _run_layers(self, inputs: torch.Tensor, states: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Inputs (B, T, D) and states (B, L, P, D) to the output of each layer (B, T, D) and the new states."""
        outputs, after = [], []
        for number, layer in enumerate(self.layers):
            found, state = layer(inputs, unpack_state(states[:, number]))
            inputs = self.step_in(number, inputs, found)
            outputs.append(inputs)
            after.append(pack_state(state))
        return outputs, torch.stack(after, dim=1)

    def _whole(
        self, embeddings: torch.Tensor, read: torch.Tensor | None, source: Source, carried: dict[str, torch.Tensor]
    ) -> Computed:
        """All positions of a layer in one call of torch, where no step needs the output of the one before."""
        layers, states = self._run_layers(embeddings, carried["states"])
        outputs, weights = self.attention.after(layers[-1], embeddings, embeddings[..., :0], source)
        return outputs, layers, weights, {**carried, "states": states, "output": outputs[:, -1:]}

    def _step_by_step(
        self, embeddings: torch.Tensor, read: torch.Tensor | None, source: Source, carried: dict[str, torch.Tensor]
    ) -> Computed:
        """One position after the other; a position that is not `read` (B, T) leaves the state as it is."""
        outputs, layers, weights = [], [], []
        states, output = carried["states"], carried["output"]
        for position in range(embeddings.shape[1]):
            embedding = embeddings[:, position : position + 1]
            fed, seen = self.attention.before(states[:, -1, :1], output, source)
            found, new_states = self._run_layers(torch.cat((embedding, fed), dim=-1), states)
            new_output, looked = self.attention.after(found[-1], embedding, fed, source)
            outputs.append(new_output)
            layers.append(found)
            weights.append(seen if looked is None else looked)
            if read is not None:
                is_read = read[:, position, None, None]
                new_states = torch.where(is_read[..., None], new_states, states)
                new_output = torch.where(is_read, new_output, output)
            states, output = new_states, new_output
        seen_at = [each for each in weights if each is not None]
        return (
            torch.cat(outputs, dim=1),
            [torch.cat(layer, dim=1) for layer in zip(*layers)],
            torch.cat(seen_at, dim=1) if seen_at else None,
            {**carried, "states": states, "output": output},
        )


class RecurrentSeq2SeqModel(SharedEmbeddings, RecurrentPreTrainedModel):
    """
    Encoder and decoder of LSTM or GRU layers, without the map to the vocabulary: source ids (B, S), target ids (B, T)
    to states (B, T, D).

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import RecurrentSeq2SeqConfig, RecurrentSeq2SeqModel
    >>> model = RecurrentSeq2SeqModel(RecurrentSeq2SeqConfig(vocab_size=99, d_model=32))
    >>> source, target = torch.randint(4, 99, (2, 7)), torch.randint(4, 99, (2, 5))
    >>> model(source, decoder_input_ids=target).last_hidden_state.shape
    torch.Size([2, 5, 32])
    ```
    """

    def __init__(self, config: RecurrentSeq2SeqConfig):
        super().__init__(config)
        self.encoder, self.decoder = RecurrentEncoder(config), RecurrentDecoder(config)
        self.share_embeddings()
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: RecurrentEncoderOutput | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        cache: RecurrentCache | None = None,
        **kwargs: Any,
    ) -> RecurrentSeq2SeqOutput:
        """
        Source ids (B, S) and target ids (B, T), or embeddings of the same shape by D, to states (B, T, D).

        Raises:
            ValueError: Neither target ids nor target embeddings are given, or `encoder_outputs` lacks the last states.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError(missing_target(type(self).__name__))
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, inputs_embeds, output_hidden_states=output_hidden_states, return_dict=True
            )
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs[0],
            attention_mask,
            getattr(encoder_outputs, "final_states", None),
            cache=given_cache(self, cache, past_key_values, kwargs),
            inputs_embeds=decoder_inputs_embeds,
            use_cache=self.config.use_cache if use_cache is None else use_cache,
            output_attentions=self.config.output_attentions if output_attentions is None else output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        return RecurrentSeq2SeqOutput(
            last_hidden_state=decoded.last_hidden_state,
            decoder_hidden_states=decoded.hidden_states,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoder_outputs[0],
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            encoder_final_states=getattr(encoder_outputs, "final_states", None),
            **named(getattr(decoded, CACHE)),
        )


class RecurrentSeq2SeqForConditionalGeneration(ShiftedLabels, RecurrentPreTrainedModel, HostGenerationMixin):
    """
    Encoder and decoder of LSTM or GRU layers and the map to the vocabulary: source ids (B, S), target ids (B, T) to
    logits (B, T, V). `generate()` is transformers' own and carries the state.

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import RecurrentSeq2SeqConfig, RecurrentSeq2SeqForConditionalGeneration
    >>> config = RecurrentSeq2SeqConfig(vocab_size=99, d_model=32, attention="luong")
    >>> model = RecurrentSeq2SeqForConditionalGeneration(config).eval()
    >>> model(torch.randint(4, 99, (2, 7)), decoder_input_ids=torch.randint(4, 99, (2, 5))).logits.shape
    torch.Size([2, 5, 99])
    ```
    """

    def __init__(self, config: RecurrentSeq2SeqConfig):
        super().__init__(config)
        self.model = RecurrentSeq2SeqModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self._tied_weights_keys = tied_output(config)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Whether transformers makes the cache: no, the decoder makes its own, which holds states."""
        return False

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: RecurrentEncoderOutput | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool = True,
        row_loss: Callable[..., torch.Tensor] | None = None,
        cache: RecurrentCache | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """
        Source ids (B, S) and target ids (B, T) to logits (B, T, V), and the loss if labels (B, T) are given, from
        which target ids are made where none are given. The loss is smoothed in training; with `return_logits=False`
        training with labels does not return logits. `row_loss` is as in the Transformer.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            past_key_values,
            inputs_embeds,
            decoder_inputs_embeds,
            use_cache,
            cache=cache,
            return_dict=True,
            **kwargs,
        )
        loss, logits = self.predict(
            outputs[0],
            labels,
            num_items_in_batch=num_items_in_batch,
            return_logits=return_logits,
            logits_to_keep=logits_to_keep,
            row_loss=row_loss,
        )
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            decoder_hidden_states=outputs.decoder_hidden_states,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            **named(getattr(outputs, CACHE)),
        )
