"""
Export to other formats: a folder of MarianMT or BART, which other tools can open, or a checkpoint of fairseq.

Each target lists what it cannot express before anything is written, and the written files are reopened and compared.
Engines that only run the model (CTranslate2, ONNX) are in the package `export` beside this one.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import BartForConditionalGeneration, MarianMTModel, PreTrainedModel

from ..common.files import check_new, new_folder
from ..common.opening import open_by, settings_without_ours
from ..model.config.stacks import HEAD_FIELDS
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..publishing.weight_files import open_config
from .converter import assemble
from .source import TOLERANCE, ConversionError
from .sources import fairseq
from .sources.saved_model import FIELDS
from .verification import example_batch, logits_of


# Fields that every target needs to have one value, and that value.
FIXED: dict[str, Any] = {
    "front_end": "tokens",
    "norm_type": "layer_norm",
    "feed_forward_type": "dense",
    "layer_norm_eps": 1e-5,
    "encoder_residual_alpha": 1.0,
    "decoder_residual_alpha": 1.0,
    "attention_bias": True,
    "feed_forward_bias": True,
    "encoder_attention_type": "full",
    "decoder_attention_type": "full",
    "cross_attention_type": "full",
    "attention_score": "scaled_dot",
}
POST_NORM = {
    "encoder_norm_position": "post",
    "decoder_norm_position": "post",
    "encoder_final_norm": False,
    "decoder_final_norm": False,
}
MARIANMT = {**FIXED, **POST_NORM, "position_encoding": "sinusoidal_halves", "position_offset": 0}
MARIANMT |= {"layernorm_embedding": False}
BART = {**FIXED, **POST_NORM, "position_encoding": "learned", "position_offset": 2, "embedding_sharing": "all"}
BART |= {"layernorm_embedding": True}
FAIRSEQ = {**FIXED, "position_offset": 2, "output_bias": False, "pad_token_id": 1, "eos_token_id": 2}
FAIRSEQ |= {"decoder_start_token_id": 2}


class Exported(NamedTuple):
    """The largest absolute difference of logits in float64, and notes on what could not be written."""

    difference: float
    notes: list[str]


def not_expressible(
    config: VanillaTransformerConfig, needed: Mapping[str, Any], same_stacks: bool = True
) -> list[str]:
    """A line for each field with a wrong value, and for stacks that must not differ."""
    problems = [
        f"{name}={getattr(config, name)!r}: must be {value!r}"
        for name, value in {**needed, **dict.fromkeys(HEAD_FIELDS.values())}.items()
        if getattr(config, name) != value
    ]
    pairs = [("decoder_activation_function", "activation_function")]
    if same_stacks:
        pairs += [
            ("encoder_d_model", "d_model"),
            ("decoder_position_encoding", "position_encoding"),
            ("decoder_max_position_embeddings", "max_position_embeddings"),
        ]
    for name, other in pairs:
        if getattr(config, name) != getattr(config, other):
            problems.append(f"{name}={getattr(config, name)!r}: must be {other}={getattr(config, other)!r}")
    for name, width, heads in (
        ("d_k", "encoder_d_model", "encoder_attention_heads"),
        ("d_v", "d_model", "decoder_attention_heads"),
    ):
        natural = getattr(config, width) // getattr(config, heads)
        if getattr(config, name) not in (None, natural):
            problems.append(f"{name}={getattr(config, name)}: must be {natural}, {width} by {heads}")
    return problems


def to_host(
    model: VanillaTransformerForConditionalGeneration, tokenizer: Any, folder: Path, host: type[PreTrainedModel]
) -> list[str]:
    """Write a folder for `MarianMTModel` or `BartForConditionalGeneration`, and our tokenizer beside it; notes."""
    config, ours = model.config, dict(model.state_dict())
    fields = {name: getattr(config, name) for name in FIELDS} | {
        "vocab_size": config.source_vocab_size or config.vocab_size,
        "forced_eos_token_id": model.generation_config.forced_eos_token_id,
    }
    if host is MarianMTModel:
        fields |= {
            "decoder_vocab_size": config.vocab_size,
            "share_encoder_decoder_embeddings": config.tied_matrices == "all",
            "tie_word_embeddings": config.tied_matrices != "none",
        }
    # Their names differ from ours only in the bias of the logits.
    bias = ours.pop("lm_head.bias", None)
    if bias is None:
        bias = torch.zeros(config.vocab_size, dtype=model.dtype)
    ours["final_logits_bias"] = bias.reshape(1, -1)
    with torch.device("meta"):
        other: Any = host(host.config_class(**fields))  # type: ignore[misc]
    positions = {name for name in other.state_dict() if "embed_positions" in name}
    missing, unexpected = other.load_state_dict(ours, strict=False, assign=True)
    wrong = [name for name in (*(set(missing) - positions), *unexpected) if name not in other.all_tied_weights_keys]
    if wrong:
        raise ConversionError(f"{host.__name__} and our model differ in {', '.join(wrong)}")
    other.tie_weights()
    for name in set(missing) & positions:  # sinusoids: computed when the model is opened, and not saved
        other.get_submodule(name.removesuffix(".weight")).to_empty(device="cpu")
    other.generation_config, notes = settings_without_ours(model)
    other.save_pretrained(folder, max_shard_size=2**62)
    if tokenizer is None:
        return [*notes, "the model has no tokenizer"]
    tokenizer.save_pretrained(folder)
    return notes


def _dictionary(backend: Any, size: int) -> list[str]:
    """The tokens of a backend that `vocabularies` made from a dictionary, as they stood there."""
    ids = {index: token for token, index in backend.get_vocab().items()}
    tokens = [ids[index] for index in range(size)]
    if tokens[: len(fairseq.SPECIAL_TOKENS)] != fairseq.SPECIAL_TOKENS:
        raise ConversionError(f"the vocabulary starts with {tokens[:4]}; fairseq's with {fairseq.SPECIAL_TOKENS}")
    ending = json.loads(backend.to_str())["model"].get("end_of_word_suffix")
    words = []
    for token in tokens[len(fairseq.SPECIAL_TOKENS) :]:
        if token.startswith(" ") or not ending:
            words.append(token.removeprefix(" "))
        else:
            words.append(token.removesuffix(ending) if token.endswith(ending) else f"{token}@@")
    return words


def to_fairseq(model: VanillaTransformerForConditionalGeneration, tokenizer: Any, folder: Path) -> list[str]:
    """Write `checkpoint_best.pt`, the dictionaries, and the codes of subword-nmt if there are any."""
    config = model.config
    if tokenizer is None:
        raise ConversionError("the model has no tokenizer, and fairseq needs its dictionaries")
    languages = (tokenizer.src_lang or "source", tokenizer.tgt_lang or "target")
    backends = (tokenizer.source_backend_tokenizer, tokenizer.backend_tokenizer)
    notes, texts = [], []
    for language, backend, size in zip(
        languages, backends, (config.source_vocab_size or config.vocab_size, config.vocab_size)
    ):
        own = {f"dict.{language}.txt": "".join(f"{word} 1\n" for word in _dictionary(backend, size))}
        kind = json.loads(backend.to_str())["model"]
        if kind.get("end_of_word_suffix"):
            merges = "".join(f"{left} {right}\n" for left, right in kind["merges"])
            own[f"codes.{language}"] = f"#version: 0.2\n{merges}"
        elif kind["type"] != "WordLevel":
            notes.append(f"the SentencePiece model of {language!r} is not written: copy it from where it was")
        texts.append(own)
    if languages[0] == languages[1] and texts[0] != texts[1]:
        raise ConversionError(
            f"src_lang and tgt_lang are both {languages[0]!r}, and the vocabularies differ: fairseq names its "
            "dictionaries after the languages; write two names into tokenizer_config.json"
        )
    for name, text in (texts[0] | texts[1]).items():
        (folder / name).write_text(text, encoding="utf-8")
    tensors = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    tensors.pop("shared.weight", None)
    tensors["decoder.output_projection.weight"] = tensors.pop("lm_head.weight")
    for stack in ("encoder", "decoder"):
        pre = getattr(config, f"{stack}_norm_position") == "pre"
        # A format before the one that has final norms: the loader then makes none.
        dropped = pre and not getattr(config, f"{stack}_final_norm") and stack == "encoder"
        tensors[f"{stack}.version"] = torch.tensor([1.0 if dropped else 3.0])
        if getattr(config, "position_encoding" if stack == "encoder" else "decoder_position_encoding") != "learned":
            tensors[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    checkpoint = {
        "args": _arguments(config, *languages),
        "model": {name: tensors[name].contiguous() for name in tensors},
        "optimizer_history": [{"criterion_name": "LabelSmoothedCrossEntropyCriterion", "num_updates": 0}],
        "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }
    torch.save(checkpoint, folder / "checkpoint_best.pt")
    return notes


def _arguments(config: VanillaTransformerConfig, source_lang: str, target_lang: str) -> argparse.Namespace:
    """The options of fairseq that give this config, each with its value whatever the default."""
    activations = {ours: theirs for theirs, ours in reversed(fairseq.ACTIVATIONS.items())}
    options: dict[str, Any] = {
        "arch": "transformer",
        "task": "translation",
        "criterion": "label_smoothed_cross_entropy",
        "label_smoothing": config.label_smoothing,
        "source_lang": source_lang,
        "target_lang": target_lang,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "activation_fn": activations[config.activation_function],
        "share_all_embeddings": config.tied_matrices == "all",
        "share_decoder_input_output_embed": config.tied_matrices != "none",
        "no_token_positional_embeddings": config.position_encoding == "none",
        "no_scale_embedding": not config.scale_embedding,
        "layernorm_embedding": config.layernorm_embedding,
        "no_decoder_final_norm": config.decoder_norm_position == "pre" and not config.decoder_final_norm,
        "max_source_positions": config.max_position_embeddings,
        "max_target_positions": config.decoder_max_position_embeddings,
        "encoder_embed_dim": config.encoder_d_model,
        "decoder_embed_dim": config.d_model,
        "encoder_learned_pos": config.position_encoding == "learned",
        "decoder_learned_pos": config.decoder_position_encoding == "learned",
    }
    for stack in ("encoder", "decoder"):
        options[f"{stack}_ffn_embed_dim"] = getattr(config, f"{stack}_ffn_dim")
        options[f"{stack}_layers"] = getattr(config, f"{stack}_layers")
        options[f"{stack}_attention_heads"] = getattr(config, f"{stack}_attention_heads")
        options[f"{stack}_normalize_before"] = getattr(config, f"{stack}_norm_position") == "pre"
    return argparse.Namespace(**options)


def _fairseq_problems(config: VanillaTransformerConfig) -> list[str]:
    problems = not_expressible(config, FAIRSEQ, same_stacks=False)
    kinds = ("sinusoidal_halves_inclusive", "learned", "none")
    pair = (config.position_encoding, config.decoder_position_encoding)
    for kind in dict.fromkeys(pair):
        if kind not in kinds or (kind == "none" and pair != ("none", "none")):
            problems.append(f"position_encoding={kind!r}: must be one of {', '.join(kinds)}; none in both stacks")
    if config.activation_function not in fairseq.ACTIVATIONS.values():
        problems.append(f"activation_function={config.activation_function!r}: not one of fairseq's")
    for stack in ("encoder", "decoder"):
        if getattr(config, f"{stack}_norm_position") == "post" and getattr(config, f"{stack}_final_norm"):
            problems.append(f"{stack}_final_norm=True: must be False after post-norm layers")
    return problems


class Target(NamedTuple):
    """A format: what it cannot express, how it is written, and how it is reopened."""

    problems: Callable[[VanillaTransformerConfig], list[str]]
    write: Callable[[VanillaTransformerForConditionalGeneration, Any, Path], list[str]]
    open: Callable[[Path], Any]


TARGETS: dict[str, Target] = {
    **{
        name: Target(partial(not_expressible, needed=needed), partial(to_host, host=host), partial(open_by, host))
        for name, needed, host in (("marianmt", MARIANMT, MarianMTModel), ("bart", BART, BartForConditionalGeneration))
    },
    "fairseq": Target(
        _fairseq_problems,
        to_fairseq,
        lambda folder: assemble(found := fairseq.Fairseq.read(folder), found.to_config()),
    ),
}


def export(target: str, model_folder: str | os.PathLike, output: str | os.PathLike) -> Exported:
    """Write the model in `model_folder` in the format `target` to the new folder `output`, complete or not at all."""
    if target not in TARGETS:
        raise ConversionError(
            f"{target!r} is not a target: expected one of {', '.join(TARGETS)} (engines that only run the model: "
            "vanilla-transformer export)"
        )
    check_new(Path(output))
    config = open_config(Path(model_folder))
    if problems := TARGETS[target].problems(config):
        raise ConversionError(f"{target} cannot express these fields:\n  " + "\n  ".join(problems))
    model = VanillaTransformerForConditionalGeneration.from_pretrained(model_folder, dtype="auto").eval()
    tokenizer = None
    if (Path(model_folder) / "tokenizer.json").is_file():
        tokenizer = VanillaTransformerTokenizer.from_pretrained(model_folder)
    with new_folder(Path(output)) as folder:
        notes = TARGETS[target].write(model, tokenizer, folder)
        batch = example_batch(config)
        real = batch["decoder_attention_mask"].bool()  # models differ after a sentence's end
        # In float64: the larger the model and its logits, the further apart float32 rounds the two.
        exact = logits_of(model.double(), batch)[real]
        del model  # one of the two at a time
        written = TARGETS[target].open(folder).eval().double()
        difference = (logits_of(written, batch)[real] - exact).abs().max().item()
        if not difference <= TOLERANCE:
            raise ConversionError(
                f"what was written gives logits that differ by {difference:.1e}; {TOLERANCE:.0e} is allowed"
            )
    return Exported(difference, notes)
