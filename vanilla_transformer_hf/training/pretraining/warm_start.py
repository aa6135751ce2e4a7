"""
An encoder–decoder whose stacks begin with the weights of models of one stack, as in Rothe et al. 2020 (arXiv
1907.12461): its config, its vocabulary, and which tensors come from where. Attention to the source is new.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import processors
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ...common.opening import is_own, open_any_config, open_tokenizer, open_weights
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.single_stacks.base import of_one_stack
from ...model.single_stacks.causal_lm import VanillaTransformerDecoderModel, VanillaTransformerForCausalLM
from ...model.single_stacks.encoder_models import VanillaTransformerEncoderModel
from ...publishing.model_card import CardFacts
from ..arguments import ModelArguments
from ..recipe import CHANGEABLE_FIELDS


Side = Literal["encoder", "decoder"]
# Fields that one stack has for itself, beside those that its name begins.
OF_ENCODER = ("activation_function", "position_encoding", "max_position_embeddings", "type_vocab_size")
OF_DECODER = ("d_model", "output_bias")
# Fields that neither decides.
_OTHERS = (
    *("vocab_size", "source_vocab_size", "embedding_sharing", "tie_word_embeddings", "use_cache"),
    *("is_encoder_decoder", "is_decoder", "classifier_dropout", "encoder_d_model"),
)
FIELDS = tuple(
    name
    for name in VanillaTransformerConfig.__annotations__
    if name not in _OTHERS and not name.startswith("cross_") and not name.endswith("_id")
)


@dataclass(frozen=True)
class Origin:
    """A model whose weights a stack begins with."""

    side: Side  # the stack of the new model
    name: str  # folder or Hub id
    kind: str  # its class
    stack: Side  # its own one that is taken: a decoder may begin with an encoder
    config: Any  # of that stack alone
    start: int | None  # the token that its texts begin with; None of an encoder

    @classmethod
    def open(cls, side: Side, name: str) -> "Origin":
        """The origin of a name; `ValueError` if it is no model of this package, or has no such stack."""
        config: Any = open_any_config(name)
        if not is_own(config):
            raise ValueError(
                f"{side}_from={name} is a {config.model_type} model: expected one of this package; "
                "vanilla-transformer convert reads those of BERT, RoBERTa and GPT."
            )
        has_decoder = config.is_decoder or (config.is_encoder_decoder and side == "decoder")
        kind = (config.architectures or [type(config).__name__])[0]
        if side == "encoder" and has_decoder:
            raise ValueError(
                f"encoder_from={name} is a {kind}, which has no encoder: expected a masked language model or another "
                "model with an encoder."
            )
        stack: Side = "decoder" if has_decoder else "encoder"
        end = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
        start = config.decoder_start_token_id if config.is_encoder_decoder else end
        alone = of_one_stack(config, stack, f"{side}_from={name}")
        return cls(side, name, kind, stack, alone, start if has_decoder else None)

    @property
    def about(self) -> str:
        """Its name without a path, and the text that it was trained on if its card says it."""
        is_folder = Path(self.name).is_dir()
        corpus = CardFacts.read(Path(self.name)).corpus if is_folder else None
        return f"{Path(self.name).resolve().name if is_folder else self.name} ({corpus or self.kind})"

    def decides(self, field: str) -> bool:
        """Whether a field of the new model's config is that of this model."""
        other = ("decoder_", OF_DECODER) if self.side == "encoder" else ("encoder_", OF_ENCODER)
        is_free = field.startswith(other[0]) or (field in other[1] and field != "d_model")
        return field in FIELDS and field not in CHANGEABLE_FIELDS and not is_free

    def weights(self) -> dict[str, torch.Tensor]:
        """The tensors of the stack, under the names that they have in an encoder–decoder."""
        kind: Any = VanillaTransformerForCausalLM
        if self.stack == "encoder":
            kind = VanillaTransformerEncoderModel
        elif self.kind == "VanillaTransformerDecoderModel":  # which has no output layer
            kind = VanillaTransformerDecoderModel
        before = logging.get_verbosity()
        logging.set_verbosity_error()  # transformers would list the tensors that are left, such as those of a head
        try:
            model = open_weights(self.name, kind, is_part=True, dtype=torch.float32)
        finally:
            logging.set_verbosity(before)
        found = {}
        for name, tensor in model.state_dict().items():
            name = name.removeprefix("model.")
            if name.startswith(f"{self.stack}."):
                found[name.replace(self.stack, f"model.{self.side}", 1)] = tensor
            elif name.startswith("lm_head."):
                found[name] = tensor
        return found


def find_origins(model: ModelArguments) -> list[Origin]:
    """The models that a run's new model begins with: none, one, or that of the encoder and that of the decoder."""
    origins = [Origin.open("encoder", model.encoder_from)] if model.encoder_from else []
    return origins + ([Origin.open("decoder", model.decoder_from)] if model.decoder_from else [])


def fields_of_origins(origins: list[Origin], stated: dict[str, Any]) -> dict[str, Any]:
    """Fields of the config of a model that begins with these models, without those that are `stated` and free."""
    first, last = origins[0].config, origins[-1].config
    of_decoder = {*OF_DECODER, *(name for name in FIELDS if name.startswith("decoder_"))}
    fields = {name: getattr(last if name in of_decoder else first, name) for name in FIELDS}
    fields["encoder_d_model"] = first.d_model
    for name, value in fields.items():
        for origin in origins:
            if not origin.decides(name):
                continue
            if (theirs := getattr(origin.config, name)) != value and name != "d_model":
                raise ValueError(
                    f"encoder_from={origins[0].name} has {name}={value!r}, and decoder_from={origin.name} has "
                    f"{theirs!r}: expected models of the same {name}."
                )
            if name in stated and stated[name] != theirs:
                raise ValueError(
                    f"{name}={stated[name]} contradicts {origin.side}_from={origin.name}, which has {theirs}; "
                    "remove it."
                )
    if first.vocab_size != last.vocab_size:
        raise ValueError(_other_vocabulary(origins, f"{first.vocab_size:,} and {last.vocab_size:,} pieces"))
    if (size := stated.get("vocab_size", first.vocab_size)) != first.vocab_size:
        raise ValueError(f"vocab_size={size} contradicts {origins[0].name}, which has {first.vocab_size}; remove it.")
    has_two = origins[0].name != origins[-1].name  # with embeddings of their own
    sharing = "decoder" if has_two and last.embedding_sharing == "all" else last.embedding_sharing
    for stack in ("encoder", "decoder"):  # a stated number of layers is followed
        if fields[f"{stack}_layer_sets"] == fields[f"{stack}_layers"]:
            fields[f"{stack}_layer_sets"] = None
    own = {"vocab_size": first.vocab_size, "embedding_sharing": sharing, "decoder_start_token_id": origins[-1].start}
    return {**own, **fields, **stated}


def _other_vocabulary(origins: list[Origin], how: str) -> str:
    return (
        f"encoder_from={origins[0].name} and decoder_from={origins[-1].name} have different vocabularies ({how}): "
        f"expected one; train the language model with --tokenizer_name_or_path {origins[0].name}."
    )


def open_common_tokenizer(origins: list[Origin]) -> PreTrainedTokenizerBase:
    """The tokenizer of these models, whose texts end with the end token, as those of translation do."""
    tokenizers = [open_tokenizer(origin.name) for origin in origins]
    for tokenizer, origin in zip(tokenizers, origins):
        if tokenizer.eos_token is None and tokenizer.sep_token is not None:
            tokenizer.eos_token = tokenizer.sep_token  # with which BERT's texts end
        if getattr(tokenizer, "source_vocab_size", None) or tokenizer.eos_token is None:
            raise ValueError(
                f"{origin.side}_from={origin.name}: expected a tokenizer with one vocabulary and an end token."
            )
    vocabularies = [tokenizer.get_vocab() for tokenizer in tokenizers]
    if vocabularies[0] != vocabularies[-1]:
        differing = len(vocabularies[0].items() ^ vocabularies[-1].items())
        raise ValueError(_other_vocabulary(origins, f"{differing:,} pieces differ"))
    tokenizer = tokenizers[0]
    end, number = str(tokenizer.eos_token), tokenizer.eos_token_id
    if tokenizer("")["input_ids"][-1:] != [number] or tokenizer("a")["input_ids"][-1] != number:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B:1 {end}:1", special_tokens=[(end, number)]
        )
    return tokenizer


def begin_with(origins: list[Origin], model: PreTrainedModel) -> list[str]:
    """Copy the weights of these models into a new one; returns sentences about where tensors come from."""
    state, taken, told = model.state_dict(), set[int](), []
    is_tied = model.config.embedding_sharing != "none"
    for origin in origins:
        weights = origin.weights()
        if is_tied:  # the output layer has the embeddings
            weights.pop("lm_head.weight", None)
        names = [name for name in weights if name in state]
        for name in names:
            tensor, place = weights[name], state[name]
            # A table of a vocabulary may have more rows here.
            is_table = name.endswith(("embed_tokens.weight", "lm_head.weight", "lm_head.bias"))
            fits = len(tensor) == len(place) or (is_table and len(tensor) < len(place))
            if tensor.shape[1:] != place.shape[1:] or not fits:
                raise ValueError(
                    f"{origin.side}_from={origin.name}: {name} has shape {tuple(tensor.shape)}, expected "
                    f"{tuple(place.shape)}."
                )
            with torch.no_grad():
                place[: len(tensor)].copy_(tensor)
            taken.add(place.data_ptr())
        told.append(f"The {origin.side} begins with {len(names)} tensors of {origin.about}.")
        if left := _modules(set(weights) - set(names)):
            told.append(f"Of these are left out: {left}.")
    if len(origins) > 1 and model.config.embedding_sharing == "all" and origins[0].name != origins[1].name:
        told.append("The embeddings, which both stacks share, are those of the decoder.")
    new = [name for name, tensor in state.items() if tensor.data_ptr() not in taken]
    return [*told, f"Newly drawn are {len(new)} tensors: {_modules(new)}."]


def _modules(names: Any) -> str:
    """The modules of these tensors, those of all layers as one, and of an attention as one."""
    modules = (re.sub(r"\.\d+\.", ".*.", name.removeprefix("model.")).split(".")[:-1] for name in names)
    return ", ".join(sorted({".".join(parts[:4]) for parts in modules}))
