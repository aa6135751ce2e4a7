"""
BERT and RoBERTa: folders that transformers saved, without a head or for masked language modelling, classification of
sequences and of tokens, with their tokenizers.

After transformers/models/{bert,roberta}/{configuration,modeling,tokenization}_*.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import BertTokenizer, GenerationConfig, RobertaTokenizer

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..key_table import KeyTable, wrong_types
from ..source import Checkpoint, Source
from .saved_model import architecture, is_saved_model, of_one_stack, read_saved_model, tokenizer_of, toolkit_model


# BertConfig; RobertaConfig has other token ids
OPTIONS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "classifier_dropout": None,
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": True,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "bert": OPTIONS,
    "roberta": OPTIONS | {"vocab_size": 50265, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
}

# Class of transformers -> ours
CLASSES = {
    f"{name}{head}": ours
    for name in ("Bert", "Roberta")
    for head, ours in {
        "Model": "VanillaTransformerEncoderModel",
        "ForMaskedLM": "VanillaTransformerForMaskedLM",
        "ForSequenceClassification": "VanillaTransformerForSequenceClassification",
        "ForTokenClassification": "VanillaTransformerForTokenClassification",
    }.items()
} | {"BertForPreTraining": "VanillaTransformerForMaskedLM"}

# Of a layer: transformers' name -> ours
LAYER = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
ENCODER = {
    "embeddings.word_embeddings.weight": "embed_tokens.weight",
    "embeddings.position_embeddings.weight": "embed_positions.weight",
    "embeddings.token_type_embeddings.weight": "embed_segments.weight",
    **{f"embeddings.LayerNorm.{kind}": f"layernorm_embedding.{kind}" for kind in ("weight", "bias")},
    **{
        f"encoder.layer.{{}}.{theirs}.{kind}": f"layers.{{}}.{ours}.{kind}"
        for theirs, ours in LAYER.items()
        for kind in ("weight", "bias")
    },
}
# The names of the norms' weights in checkpoints from before 2019.
OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

HEADS: dict[str, dict[str, Any]] = {
    "bert": {
        "cls.predictions.transform.dense": "transform",
        "cls.predictions.transform.LayerNorm": "transform_norm",
        "cls.predictions.decoder": "lm_head",
        "cls.seq_relationship": None,  # the head of next sentence prediction, which our models do not have
        "classifier": "classifier",
        "bert.pooler.dense": "pooler",
        "pooler.dense": None,  # the pooler of a model without a head, of which we keep the states
    },
    "roberta": {
        "lm_head.dense": "transform",
        "lm_head.layer_norm": "transform_norm",
        "lm_head.decoder": "lm_head",
        "classifier.dense": "pooler",
        "classifier.out_proj": "classifier",
        "classifier": "classifier",
        "roberta.pooler.dense": None,  # likewise
        "pooler.dense": None,
    },
}
BIASES = {"bert": "cls.predictions.bias", "roberta": "lm_head.bias"}


def keys(config: VanillaTransformerConfig, checkpoint: Checkpoint) -> KeyTable:
    """The table. A model without a head has the encoder's names without a prefix."""
    kind = checkpoint.options["model_type"]
    bare = checkpoint.options["architectures"][0].endswith("Model")
    ours, theirs = ("encoder.", "") if bare else ("model.encoder.", f"{kind}.")
    table: dict[str, Any] = {f"{theirs}{name}": f"{ours}{target}" for name, target in ENCODER.items()}
    for name, target in HEADS[kind].items():
        for part in ("weight", "bias"):
            table[f"{name}.{part}"] = None if target is None else f"{target}.{part}"
    if "VanillaTransformerForSequenceClassification" not in (config.architectures or []):
        table |= {f"bert.pooler.dense.{part}": None for part in ("weight", "bias")}
    # The same tensor as the bias of the map if the matrices are tied; otherwise unused.
    table[BIASES[kind]] = "lm_head.bias" if config.tie_word_embeddings else None
    for buffer in ("position_ids", "token_type_ids"):  # a buffer of position numbers, not trained
        table[f"{theirs}embeddings.{buffer}"] = None
    for name, target in [*table.items()]:
        for new, old in OLD_NAMES.items():
            if name.endswith(new):
                table[name.removesuffix(new) + old] = target
    return table


def recognises(path: Path) -> bool:
    """Whether config.json names this model type."""
    return is_saved_model(path, "bert", "roberta")


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: A file is missing or damaged, or config.json is another model's.
    """
    return read_saved_model(path, ("bert", "roberta"), trust)


def _options(checkpoint: Checkpoint) -> Mapping[str, Any]:
    return {**DEFAULTS[checkpoint.options["model_type"]], **checkpoint.options}


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support."""
    kind = checkpoint.options["model_type"]
    if problems := wrong_types(checkpoint.options, DEFAULTS[kind]):
        return problems
    options, problems = _options(checkpoint), architecture(checkpoint, CLASSES)
    for name, needed in {"is_decoder": False, "add_cross_attention": False}.items():
        if options[name] != needed:
            problems.append(f"{name}={options[name]!r}: must be {needed!r}")
    if options["position_embedding_type"] != "absolute":
        problems.append(f"position_embedding_type={options['position_embedding_type']!r}: must be 'absolute'")
    masked = "RobertaForMaskedLM" in (options.get("architectures") or [])
    if masked and options["hidden_act"] != "gelu":
        problems.append(f"hidden_act={options['hidden_act']!r}: must be 'gelu', which RoBERTa's head always has")
    return problems


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options describe."""
    options = _options(checkpoint)
    # RoBERTa's first position is pad_token_id + 1.
    offset = options["pad_token_id"] + 1 if options["model_type"] == "roberta" else 0
    sizes = {
        "layers": options["num_hidden_layers"],
        "attention_heads": options["num_attention_heads"],
        "ffn_dim": options["intermediate_size"],
    }
    return of_one_stack(
        checkpoint,
        sizes,
        architectures=[CLASSES[options["architectures"][0]]],
        vocab_size=options["vocab_size"],
        d_model=options["hidden_size"],
        activation_function=options["hidden_act"],
        dropout=options["hidden_dropout_prob"],
        attention_dropout=options["attention_probs_dropout_prob"],
        classifier_dropout=options["classifier_dropout"],
        max_position_embeddings=options["max_position_embeddings"] - offset,
        position_offset=offset,
        type_vocab_size=options["type_vocab_size"],
        layernorm_embedding=True,
        layer_norm_eps=options["layer_norm_eps"],
        embedding_sharing="all" if options["tie_word_embeddings"] else "none",
        **{name: options[name] for name in ("pad_token_id", "eos_token_id", "bos_token_id")},
    )


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
    """WordPiece of BERT or byte-level BPE of RoBERTa; None where the folder has none."""
    if checkpoint.options["model_type"] == "bert":
        return tokenizer_of(checkpoint, BertTokenizer, ("vocab.txt",))
    return tokenizer_of(checkpoint, RobertaTokenizer, ("vocab.json", "merges.txt"))


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """Notes about parts of the checkpoint that are left out."""
    notes = []
    if "BertForPreTraining" in checkpoint.options["architectures"]:
        notes.append("the head of next-sentence prediction is left out")
    if checkpoint.options["architectures"][0].endswith("Model"):
        notes.append("the pooler is left out: the model returns the states of the tokens")
    if checkpoint.options["model_type"] == "roberta":
        notes.append("positions count the tokens of the attention mask; RoBERTa counts those that are not padding")
    return notes


SOURCE = Source(
    options=OPTIONS,
    recognises=recognises,
    read=read,
    unsupported=unsupported,
    to_config=to_config,
    keys=keys,
    to_tokenizer=to_tokenizer,
    to_generation_config=lambda checkpoint, config: GenerationConfig(),
    decoding_notes=decoding_notes,
    toolkit_model=lambda checkpoint: toolkit_model(checkpoint, DEFAULTS[checkpoint.options["model_type"]]),
)
