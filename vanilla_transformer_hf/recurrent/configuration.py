"""Configuration of the recurrent encoder–decoders that came before the Transformer."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from ..model.config.errors import refusing_with_value_errors
from ..model.config.kinds import LARGEST_DEPTH, LARGEST_SIZE
from ..model.releases.configs import BaseConfig
from ..model.saving.saved_code import ConfigSavesCode


@refusing_with_value_errors
@strict
class RecurrentSeq2SeqConfig(ConfigSavesCode, BaseConfig):
    r"""
    Sizes and switches of a [`RecurrentSeq2SeqModel`]: an encoder–decoder of LSTM or GRU layers, with or without
    attention.

    Args:
        vocab_size (`int`): Size of the target vocabulary, which is also the source's unless `source_vocab_size` is
            given.
        source_vocab_size (`int`, *optional*): Size of the source vocabulary if the source has its own.
        d_model (`int`): Width of embeddings and of every layer's output.
        encoder_layers, decoder_layers (`int`): Number of recurrent layers.
        cell_type (`str`): `"lstm"` (Hochreiter and Schmidhuber 1997) or `"gru"` (Cho et al. 2014, arXiv 1406.1078).
        bidirectional (`bool`): Whether the encoder reads in both directions, each with half the width (Bahdanau et
            al. 2015, arXiv 1409.0473, section 3.2).
        attention (`str`): How the decoder reads the source. `"none"`: only through its first state, the encoder's last
            one (Sutskever et al. 2014, arXiv 1409.3215). `"bahdanau"`: additive attention before each step (arXiv
            1409.0473). `"luong"`: multiplicative attention after each step, its "general" score (Luong et al. 2015,
            arXiv 1508.04025).
        input_feeding (`bool`): With `"luong"`, whether the attentional state of a step is an input of the next one
            (section 3.3 there).
        residual_layers (`bool`): Whether every layer after the first adds its input to its output (GNMT: Wu et al.
            2016, arXiv 1609.08144, section 3.1).
        dropout (`float`): Probability of zeroing a value of the embeddings and of each layer's output.
        embedding_sharing (`str`): Which matrices are one: source and target embeddings and the output map (`"all"`),
            the last two (`"decoder"`), or `"none"`.
        label_smoothing (`float`): Probability mass that the loss of training spreads over the vocabulary.
        pad_token_id, eos_token_id, bos_token_id, decoder_start_token_id (`int`): Ids of special tokens. The decoder
            starts with the padding token if nothing else is given.

    Raises:
        ValueError: A value is out of range, or two exclude each other.

    Example:

    ```python
    >>> from vanilla_transformer_hf import RecurrentSeq2SeqConfig
    >>> RecurrentSeq2SeqConfig(cell_type="gru", bidirectional=True, attention="bahdanau").cell_type
    'gru'
    ```"""

    model_type = "recurrent_seq2seq"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    attribute_map = {"hidden_size": "d_model", "num_hidden_layers": "encoder_layers"}

    vocab_size: int = 37000
    source_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 2
    decoder_layers: int = 2
    cell_type: Literal["lstm", "gru"] = "lstm"
    bidirectional: bool = False
    attention: Literal["none", "bahdanau", "luong"] = "none"
    input_feeding: bool = False
    residual_layers: bool = False
    dropout: float | int = 0.1
    embedding_sharing: Literal["all", "decoder", "none"] = "all"
    label_smoothing: float | int = 0.1
    pad_token_id: int = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any):
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.pad_token_id
        if self.embedding_sharing == "none":
            self.tie_word_embeddings = False
        super().__post_init__(**kwargs)

    modules = ("recurrent.modeling",)  # what travels with a saved model

    @property
    def auto_classes(self) -> dict[str, str]:
        """Auto class -> the class that opens a saved model without the package."""
        models = "modeling_vanilla_transformer"
        return {
            "AutoConfig": "configuration_vanilla_transformer.RecurrentSeq2SeqConfig",
            "AutoModel": f"{models}.RecurrentSeq2SeqModel",
            "AutoModelForSeq2SeqLM": f"{models}.RecurrentSeq2SeqForConditionalGeneration",
        }

    @property
    def tied_matrices(self) -> Literal["all", "decoder", "none"]:
        """Which embedding matrices are tied: `embedding_sharing`, unless `tie_word_embeddings=False` unties all."""
        return self.embedding_sharing if self.tie_word_embeddings else "none"

    def validate_architecture(self):
        """
        Checks of values that a type cannot express; run by `@strict` at construction and before saving.

        Raises:
            ValueError: A value is out of range, or two exclude each other.
        """
        super().validate_architecture()
        for name in ("vocab_size", "source_vocab_size", "d_model", "encoder_layers", "decoder_layers"):
            value = getattr(self, name)
            largest = LARGEST_DEPTH if name.endswith("_layers") else LARGEST_SIZE
            if value is not None and not 0 < value <= largest:
                raise ValueError(f"{name}={value!r}: must be at least 1 and at most {largest:,}")
        for name in ("dropout", "label_smoothing"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value!r}: must be at least 0 and less than 1")
        if self.bidirectional and self.d_model % 2:
            raise ValueError(
                f"bidirectional=True with d_model={self.d_model}: each direction has half the width; "
                "d_model must be even"
            )
        if self.input_feeding and self.attention != "luong":
            raise ValueError(f"input_feeding=True with attention={self.attention!r}: it belongs to 'luong'")
        if self.source_vocab_size is not None and self.tied_matrices == "all":
            raise ValueError(
                f"embedding_sharing='all' with source_vocab_size={self.source_vocab_size}: one matrix cannot serve "
                "two vocabularies; must be 'decoder' or 'none'"
            )
        if not self.is_encoder_decoder:
            raise ValueError("is_encoder_decoder=False: a recurrent model has both stacks")
