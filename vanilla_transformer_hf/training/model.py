"""The model of a run: its config, its weights, its search, and the paper's learning rate for its size."""

import copy
from typing import Any

import datasets
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..common.opening import check_fit, open_any_config, open_config, open_tokenizer, open_weights
from ..model.config.generation import VanillaTransformerGenerationConfig
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerStack
from .data.collators import vocabulary_sizes
from .pretraining.denoising import DENOISING
from .pretraining.warm_start import fields_of_origins, find_origins
from .recipe import CONFIGS, FIELDS_OF_OTHERS, RunArguments
from .transfer import transfer


def paper_learning_rate(d_model: int, warmup_steps: float) -> float:
    """The highest rate of section 5.3, after the warm-up: d_model^-0.5 · min(step^-0.5, step · warmup^-1.5)."""
    if warmup_steps < 1:
        raise ValueError(
            f"warmup_steps={warmup_steps}: the paper's learning rate needs a number of steps; or set learning_rate."
        )
    return float(d_model**-0.5 * warmup_steps**-0.5)


def new_config(run: RunArguments, tokenizer: Any = None, **fields: Any) -> Any:
    """The config of a new model of the run's type, with the tokenizer's and these fields in place of the recipe's."""
    kind = run.model.model_type
    if tokenizer is not None:
        ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
        fields = {"vocab_size": len(tokenizer), **ids, **fields}
    for name in FIELDS_OF_OTHERS[kind]:
        value = run.config.get(name, getattr(run.model, name, None))
        if value is not None:
            raise ValueError(f"{name}={value}: models of type {kind} do not have this field; remove it.")
    if origins := find_origins(run.model):
        return VanillaTransformerConfig(**{**fields_of_origins(origins, run.config), **fields})
    fields = {**run.config, **fields}
    if kind == VanillaTransformerConfig.model_type:
        return VanillaTransformerConfig.from_preset(run.model.preset or "base", **fields)
    return CONFIGS[kind](**fields)


def plan_config(run: RunArguments) -> Any:
    """The config of a new model before its tokenizer is trained: `vocab_size` is the requested one."""
    config = new_config(run)
    if run.model.separate_vocabularies:
        config.source_vocab_size = config.vocab_size
        config.validate_architecture()
    return config


def planned_vocab_size(run: RunArguments) -> int:
    """The requested size of a new vocabulary: the recipe's, else that of the model that is fine-tuned."""
    if run.model.model_name_or_path is None:
        return int(plan_config(run).vocab_size)
    return int(run.config.get("vocab_size") or open_config(run.model.model_name_or_path).vocab_size)


def make_model(run: RunArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The named model, or a new one of the named size for this tokenizer, with a complete generation config."""
    model: Any
    if name := run.model.model_name_or_path:
        fields = {field: value for field, value in run.config.items() if field != "vocab_size"}  # the tokenizer's
        config = open_any_config(name, **fields)
        # A published model may have weights in half precision, which is too coarse for updates.
        model = open_weights(name, config=config, dtype=torch.float32, **choose_attention(run, config))
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(
                f"{name} is an adapter, whose base model is frozen; merge the two first (merge_and_unload of peft)."
            )
    else:
        # A newly trained vocabulary may be smaller than requested.
        wanted = run.config.get("vocab_size") if run.model.tokenizer_name_or_path else None
        if run.model.encoder_from or run.model.decoder_from:
            wanted = max(plan_config(run).vocab_size, len(tokenizer))  # models may have more rows than pieces
        size = getattr(tokenizer, "source_vocab_size", None)
        config = new_config(run, tokenizer, vocab_size=wanted or len(tokenizer), source_vocab_size=size)
        model = AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=False, **choose_attention(run, config))
    if run.model.tokenizer == "new":
        transfer(model, open_tokenizer(str(run.model.model_name_or_path)), tokenizer)
    if run.data.source_tags or run.data.corpora or run.data.task == DENOISING:  # room for tokens that were added
        if model.config.vocab_size < len(tokenizer):
            model.resize_token_embeddings(len(tokenizer))
        if (size := getattr(model.config, "source_vocab_size", None)) and size < vocabulary_sizes(tokenizer)[0]:
            model.resize_source_token_embeddings(vocabulary_sizes(tokenizer)[0])
    check_fit(model, tokenizer)
    base = None if run.model.model_name_or_path is None else model.generation_config
    model.generation_config = make_generation_config(run, model.config, base)
    return model  # type: ignore[no-any-return]


def check_lengths(model: Any, data: dict[str, Any]) -> None:
    """Raise `ValueError` if a tokenized text has more tokens than a stack has positions; streams are not read."""
    for stack in model.modules():
        if not isinstance(stack, VanillaTransformerStack) or (positions := stack.longest) is None:
            continue
        is_target = model.config.is_encoder_decoder and not stack.reads_source
        side, column, owner = ("target", "labels", "decoder_") if is_target else ("source", "input_ids", "")
        for role, texts in data.items():
            if isinstance(texts, datasets.IterableDataset):
                continue
            if isinstance(texts, datasets.Dataset):
                texts = texts.select_columns(column)  # the others, such as the sentences, are not read
            longest = max((len(text[column]) for text in texts), default=0)
            if longest > positions:
                raise ValueError(
                    f"{role}: the longest {side} text has {longest:,} tokens, and the model {positions:,} positions: "
                    f"lower max_{side}_length to {positions}, or raise {owner}max_position_embeddings"
                )


def choose_attention(run: RunArguments, config: Any) -> dict[str, Any]:
    """The argument `attn_implementation` of a model to be trained; empty for transformers' default."""
    # At lengths of sentences a CPU's fused kernel is slower, above all backward; blocks of local attention need it.
    kinds = {getattr(config, f"{stack}_attention_type", "full") for stack in ("encoder", "decoder")}
    is_plain = run.training.device.type == "cpu" and kinds == {"full"}
    chosen = run.model.attn_implementation or ("eager" if is_plain else None)
    return {"attn_implementation": chosen} if chosen else {}


def make_generation_config(
    run: RunArguments, config: PreTrainedConfig, base: GenerationConfig | None
) -> GenerationConfig:
    """The search of the recipe, or that of the model that is fine-tuned (`base`), with a limit of length."""
    # transformers' default would cut every translation at 20 tokens.
    is_ours = config.model_type == VanillaTransformerConfig.model_type
    generation_config = VanillaTransformerGenerationConfig(num_beams=4) if is_ours else GenerationConfig(num_beams=4)
    if base is not None:
        generation_config = copy.deepcopy(base)
        generation_config._from_model_config = False  # otherwise only transformers' own fields are read
    for name in ("num_beams", "length_penalty", "length_penalty_type", "max_extra_tokens"):
        if (value := getattr(run.model, name)) is not None:
            if not hasattr(generation_config, name):
                raise ValueError(f"{name}={value!r}: models of type {config.model_type} do not have this option.")
            setattr(generation_config, name, value)
    if run.training.eval_max_extra_tokens and not hasattr(generation_config, "max_extra_tokens"):
        raise ValueError(f"eval_max_extra_tokens: models of type {config.model_type} do not have this option.")
    limit = None if getattr(generation_config, "max_extra_tokens", None) else run.data.max_target_length
    generation_config.update(
        max_length=None,
        max_new_tokens=run.training.generation_max_length or limit,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )
    if generation_config.num_beams == 1:  # where settings of a beam search are an error in transformers
        generation_config.length_penalty = generation_config.early_stopping = None
    generation_config.validate(strict=True)
    return generation_config
