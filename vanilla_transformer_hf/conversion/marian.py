"""
Marian (marian-nmt/marian-dev 1.5 to 1.12): `model.npz` with the options inside, and `vocab.yml` or `.spm` beside it.

From src/models/transformer.h and transformer_factory.h, src/layers/{generic,embedding,output}.h,
src/common/config_parser.cpp, src/data/{default_vocab,sentencepiece_vocab}.cpp and src/translator/beam_search.cpp.
Marian has neither a padding token nor a start token: its decoder starts with a zero vector. Here one token, behind all
others, does both: its embedding is zero, and its logit so low that its probability is zero in float32.
"""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from transformers import GenerationConfig

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..tokenization_vanilla_transformer import VanillaTransformerTokenizer
from . import vocabularies
from .mapping import Checkpoint, ConversionError, KeyTable, Rule
from .safe_load import check_archive


SETTINGS = "special:model.yml"

# src/common/config_parser.cpp; an empty string or list means that nothing of the kind is done.
OPTIONS: dict[str, Any] = {
    "type": "amun",
    "dim-vocabs": [0, 0],
    "dim-emb": 512,
    "enc-depth": 1,
    "dec-depth": 1,
    "tied-embeddings": False,
    "tied-embeddings-src": False,
    "tied-embeddings-all": False,
    "transformer-heads": 8,
    "transformer-dim-ffn": 2048,
    "transformer-decoder-dim-ffn": 0,  # 0: as in the encoder
    "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-attention-mask": "default",
    "transformer-disable-position-embeddings": False,
    "transformer-no-projection": False,
    "transformer-pool": False,
    "transformer-tied-layers": [],
    "right-left": False,
    "input-types": [],
    "lemma-dim-emb": 0,
    "ulr": False,
    # Known only where model.npz.yml or decoder.yml lies beside the model.
    "vocabs": [],
    "transformer-dropout": 0.0,
    "transformer-dropout-attention": 0.0,
    "transformer-dropout-ffn": 0.0,
    "label-smoothing": 0.0,
    "beam-size": 12,
    "normalize": 0.0,
    "word-penalty": 0.0,
    "max-length-factor": 3.0,
    "allow-unk": False,
}

# The values of an option that our model expresses. Dropout ("d") is left out of the sequences: it only trains.
EXPRESSED: dict[str, tuple] = {
    "type": ("transformer",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-ffn-activation": ("relu", "swish", "gelu"),
    "transformer-postprocess-emb": ("", "n"),
    "transformer-postprocess-top": ("", "n"),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-attention-mask": ("default",),
    "transformer-no-projection": (False,),
    "transformer-pool": (False,),
    "right-left": (False,),
    "lemma-dim-emb": (0,),
    "ulr": (False,),
}

# (transformer-preprocess, transformer-postprocess) without dropout -> position of the norm.
NORM_POSITIONS = {("", "an"): "post", ("n", "a"): "pre"}

# src/graph/node_operators_unary.h: swish(x) = x σ(x), gelu(x) = x σ(1.702 x).
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "quick_gelu"}

# src/layers/generic.h, layerNorm
NORM_EPSILON = 1e-6

# A logit of our padding token: e^-10000 is 0 in float32, and -10000 is a number in float16 too.
NEVER = -1e4


def transposed(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """Marian multiplies from the right: its matrices are (in, out)."""
    return tensor.T.contiguous()


def as_vector(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """A matrix of one row as a vector."""
    return tensor.flatten()


def padded(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """Rows (V, D) with zero rows behind, up to the padding token's."""
    return F.pad(tensor, (0, 0, 0, config.vocab_size - len(tensor)))


def padded_transposed(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """The output matrix (D, V) of releases before 1.9 as rows, with zero rows behind."""
    return padded(tensor.T, config)


def padded_bias(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """The bias (1, V) of the logits as a vector, behind it the bias of what Marian does not have."""
    return F.pad(tensor.flatten(), (0, config.vocab_size - tensor.numel()), value=NEVER)


def bias_for_rows(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """The same for a model without bias, from its output matrix (V, D)."""
    return padded_bias(tensor.new_zeros(len(tensor)), config)


def _projections(ours: str) -> dict[str, Rule]:
    pairs = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    return {f"W{letter}": Rule(f"{ours}.{name}.weight", transposed) for letter, name in pairs.items()} | {
        f"b{letter}": Rule(f"{ours}.{name}.bias", as_vector) for letter, name in pairs.items()
    }


def _norm(ours: str) -> dict[str, Rule]:
    """A norm before its sublayer has "_pre" in its name; of the two, the options allow one."""
    pairs = {"scale": "weight", "bias": "bias"}
    return {
        f"ln_{theirs}{when}": Rule(f"{ours}.{kind}", as_vector)
        for theirs, kind in pairs.items()
        for when in ("", "_pre")
    }


# Names inside a layer; layers are counted from 1, and one may serve several times ("transformer-tied-layers").
LAYER_KEYS: dict[str, Rule] = {
    **{f"self_{name}": rule for name, rule in _projections("self_attn").items()},
    **{f"context_{name}": rule for name, rule in _projections("encoder_attn").items()},
    **{f"self_Wo_{name}": rule for name, rule in _norm("self_attn_layer_norm").items()},
    **{f"context_Wo_{name}": rule for name, rule in _norm("encoder_attn_layer_norm").items()},
    **{f"ffn_W{number}": Rule(f"fc{number}.weight", transposed) for number in (1, 2)},
    **{f"ffn_b{number}": Rule(f"fc{number}.bias", as_vector) for number in (1, 2)},
    **{f"ffn_ffn_{name}": rule for name, rule in _norm("final_layer_norm").items()},
}

KEYS: dict[str, Any] = {
    "encoder_Wemb": Rule("model.encoder.embed_tokens.weight", padded),
    "decoder_Wemb": Rule("model.decoder.embed_tokens.weight", padded),
    "decoder_ff_logit_out_Wt": Rule("lm_head.weight", padded),
    "decoder_ff_logit_out_W": Rule("lm_head.weight", padded_transposed),
    "decoder_ff_logit_out_b": Rule("lm_head.bias", padded_bias),
    "Wpos": ["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"],
    **{
        f"{stack}_{theirs}_{name}": Rule(f"model.{stack}.{rule.target}", rule.transform)
        for stack in ("encoder", "decoder")
        for theirs, ours in (("emb", "layernorm_embedding"), ("top", "layer_norm"))
        for name, rule in _norm(ours).items()
    },
}


def keys(config: VanillaTransformerConfig, checkpoint: Checkpoint) -> KeyTable:
    """The table of a checkpoint: which layer a name serves, and what else `Wemb` is, depend on the options."""
    options = _options(checkpoint)
    if config.embedding_sharing == "all":
        table = {**KEYS, "Wemb": [Rule("model.shared.weight", padded)]}
    else:
        stacks = ("encoder", "decoder")
        table = {**KEYS, "Wemb": [Rule(f"model.{stack}.embed_tokens.weight", padded) for stack in stacks]}
    if "decoder_ff_logit_out_b" not in checkpoint.tensors:  # output-omit-bias
        output = next(name for name in (*KEYS, "Wemb") if "logit_out_W" in name and name in checkpoint.tensors)
        table[output] = [KEYS[output], Rule("lm_head.bias", bias_for_rows)]
    numbers = {"encoder": range(1, options["enc-depth"] + 1), "decoder": _decoder_layers(options)}
    for stack in numbers:
        for layer, number in enumerate(numbers[stack]):
            for name, rule in LAYER_KEYS.items():
                target = Rule(f"model.{stack}.layers.{layer}.{rule.target}", rule.transform)
                table.setdefault(f"{stack}_l{number}_{name}", []).append(target)
    return table
