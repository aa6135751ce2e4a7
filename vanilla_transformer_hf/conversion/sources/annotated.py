"""
The Annotated Transformer (harvardnlp) and other teaching code of "Attention Is All You Need": a state dict and a small
YAML file with the settings that it does not contain.

```yaml
h: 8                        # heads; also called n_head, n_heads, num_heads
norm: post                  # pre or post, where the norm's place in the names does not show it
activation: relu            # relu or gelu
layer_norm_eps: 1.0e-5
scale_embedding: true       # whether embeddings are multiplied by √d_model
scale_output: false         # whether logits are divided by √d_model
embedding_norm: false       # whether a stack's own norm stands behind its embeddings and not at its end
positions: sinusoidal       # where no table is stored: or sinusoidal_halves, sinusoidal_halves_inclusive, none
position_offset: 0          # position number of the first token
names: {ours: theirs}       # segments of names that are not among SEGMENTS, such as {layers: blocks, self_attn: mixer}
```

state_dicts.py lists the settings that are common to all YAML files. Everything else is read from names and shapes.
They identify these kinds of code:

- harvardnlp/annotated-transformer: pre-norm, x + Sublayer(Norm(x)), with a norm that divides by (std + ε), where std
  is the unbiased one. Ours divides by √(var + ε), so √((d-1)/d) goes into its weight; 5e-6 remain.
- multi-head modules with projections W_Q, W_K, W_V, W_O (or linear, fc) and the norm inside, post-norm, as in
  graykode/nlp-tutorial;
- jadore801120/attention-is-all-you-need-pytorch: the same with w_qs, w_ks, w_vs, fc; a norm behind the embeddings;
  the logits scaled where the matrices are one;
- hyunwoongko/transformer: w_q, w_k, w_v, w_concat; norms with gamma and beta;
- bentrevett/pytorch-seq2seq: fc_q, fc_k, fc_v, fc_o; learned positions.
"""

import re
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..key_table import KeyTable, Rule, unchanged
from ..source import Checkpoint, Source
from . import state_dicts


# The norm's approximation, see above.
TOLERANCE = 2e-5

# Defaults of make_model in the Annotated Transformer, and the common settings. None: it depends on the kind of code.
OPTIONS: dict[str, Any] = {
    **state_dicts.OPTIONS,
    "h": 8,
    "norm": None,
    "activation": "relu",
    "layer_norm_eps": None,
    "scale_embedding": None,
    "scale_output": None,
    "scale_emb_or_prj": "prj",  # jadore801120's: whether embeddings or logits are scaled when the matrices are tied
    "embedding_norm": None,
    "positions": "sinusoidal",
    "position_offset": 0,
}

# The ε of ours, (x - mean) / √(var + ε), that equals (x - mean) / (std + 1e-6) to first order if std is 1.
UNBIASED_EPSILON = 2e-6

# Other names of options, including those that training scripts save beside the weights.
ALIASES = {"n_head": "h", "n_heads": "h", "num_heads": "h", "nhead": "h", "heads": "h"}

# Option -> its values that our model supports.
EXPRESSED: dict[str, tuple] = {
    "norm": ("pre", "post"),
    "activation": ("relu", "gelu"),
    "positions": ("sinusoidal", "sinusoidal_halves", "sinusoidal_halves_inclusive", "none"),
}


def unstated(checkpoint: Checkpoint) -> dict[str, Any]:
    """The options that follow from a reference model, if neither the YAML file nor the training script's settings give
    them."""
    width = checkpoint.tensors.shape(_named(checkpoint, "model.decoder.embed_tokens.weight")[0])[1]
    options = _options(checkpoint)
    values = {
        "norm": sorted(EXPRESSED["norm"], key=lambda place: place != options["norm"]),
        "scale_embedding": sorted((True, False), key=lambda scaled: scaled != options["scale_embedding"]),
        "activation": EXPRESSED["activation"],
        "h": state_dicts.possible_heads(width, OPTIONS["h"]),  # tried first, as the last of these
        "layer_norm_eps": list(dict.fromkeys((options["layer_norm_eps"], *state_dicts.NORM_EPSILONS))),
    }
    given = {ALIASES.get(name, name) for name in checkpoint.options}
    if _has_unbiased_norm(checkpoint):
        given.add("layer_norm_eps")  # of a norm that is approximated
    return {name: choices for name, choices in values.items() if name not in given}


def guessed(checkpoint: Checkpoint) -> dict[str, Any]:
    """The options on which the outputs depend and that no file has, with the usual values for the kind of code."""
    given = {ALIASES.get(name, name) for name in checkpoint.options}
    rows = set(map(_row, _spelled(checkpoint).values()))
    if "scale_emb_or_prj" in given:  # jadore801120's option, for matrices that are one
        given |= {"scale_embedding", "scale_output"}
    names = ["h", "norm", "activation", "scale_embedding", "scale_output"]
    names += ["layer_norm_eps"] if not _has_unbiased_norm(checkpoint) else []
    names += ["embedding_norm"] if "model.encoder.layer_norm.weight" in rows else []
    names += ["positions"] if not any(spelled in TABLES for spelled in _spelled(checkpoint).values()) else []
    options = _options(checkpoint)
    names += ["position_offset"] if options["positions"] != "none" else []
    names += state_dicts.guessed(checkpoint)
    return {name: options[name] for name in names if name not in given}


def _has_unbiased_norm(checkpoint: Checkpoint) -> bool:
    return any(name.endswith(".a_2") for name in checkpoint.tensors)


# Segment of a name in any known spelling -> the spelling used below; "" removes the segment.
SEGMENTS: dict[str, str] = {
    theirs: ours
    for ours, spellings in {
        "": "transformer model net",
        "layers": "layer_stack blocks",
        "self_attn": "slf_attn enc_self_attn dec_self_attn self_attention attention attn mha multi_head_attention"
        " self_mha masked_attention masked_attn",
        "cross_attn": "src_attn enc_attn dec_enc_attn encoder_attn enc_dec_attn enc_dec_attention encoder_attention"
        " cross_attention cross_mha",
        "q": "W_Q W_q w_q w_qs wq q_linear q_proj query fc_q",
        "k": "W_K W_k w_k w_ks wk k_linear k_proj key fc_k",
        "v": "W_V W_v w_v w_vs wv v_linear v_proj value fc_v",
        "out": "W_O W_o w_o wo fc fc_o fc_out linear w_concat out_linear out_proj projection output output_layer"
        " final_linear trg_word_prj tgt_word_prj",
        "ffn": "feed_forward pos_ffn positionwise_feedforward ff mlp",
        "inner": "w_1 W_1 w1 W1 linear1 linear_1 conv1 fc1 fc_1",
        "outer": "w_2 W_2 w2 W2 linear2 linear_2 conv2 fc2 fc_2",
        "norm": "layer_norm layernorm LayerNorm ln",
        "weight": "a_2 gamma",
        "bias": "b_2 beta",
        "source": "src_embed src_emb src_word_emb src_embedding source_embedding",
        "target": "tgt_embed tgt_emb trg_emb tgt_word_emb trg_word_emb tgt_embedding trg_embedding target_embedding",
        "positions": "pos_emb pos_embedding position_enc positional_encoding pos_encoding pos_enc",
        "table": "pe pos_table encoding",
    }.items()
    for theirs in spellings.split()
}

_KINDS = ("weight", "bias")
_SUBLAYERS = {
    "encoder": {"self_attn": "self_attn_layer_norm", "ffn": "final_layer_norm"},
    "decoder": {
        "self_attn": "self_attn_layer_norm",
        "cross_attn": "encoder_attn_layer_norm",
        "ffn": "final_layer_norm",
    },
}
_MAPS = {
    **{f"self_attn.{name}": f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")},
    **{f"cross_attn.{name}": f"encoder_attn.{name}_proj" for name in ("q", "k", "v", "out")},
    "ffn.inner": "fc1",
    "ffn.outer": "fc2",
}

# Names in that spelling -> ours. A norm is named after its place around a sublayer (sublayer.0.norm, norm1,
# self_attn_norm), or is part of the sublayer's module.
KEYS: dict[str, str] = {
    **{f"{name}.weight": "model.encoder.embed_tokens.weight" for name in ("source.0.lut", "encoder.source", "source")},
    **{f"{name}.weight": "model.decoder.embed_tokens.weight" for name in ("target.0.lut", "decoder.target", "target")},
    **{
        f"{stack}.{name}.weight": f"model.{stack}.embed_tokens.weight"
        for stack in _SUBLAYERS
        for name in ("emb.tok_emb", "tok_embedding", "embedding", "embed", "tok_emb", "embed_tokens")
    },
    **{
        f"{name}.{kind}": f"lm_head.{kind}"
        for name in ("generator.proj", "generator", "out", "decoder.out")
        for kind in _KINDS
    },
    **{f"{stack}.norm.{kind}": f"model.{stack}.layer_norm.{kind}" for stack in _SUBLAYERS for kind in _KINDS},
    **{
        f"{stack}.layers.{{}}.{name}.{kind}": f"model.{stack}.layers.{{}}.{target}.{kind}"
        for stack in _SUBLAYERS
        for name, target in _MAPS.items()
        for kind in _KINDS
    },
    **{
        f"{stack}.layers.{{}}.{name}.{kind}": f"model.{stack}.layers.{{}}.{target}.{kind}"
        for stack, norms in _SUBLAYERS.items()
        for number, (sublayer, target) in enumerate(norms.items())
        for name in (
            *(f"sublayer.{number}.norm", f"{sublayer}.norm", f"{sublayer}_norm"),
            *(
                f"{norm}{number + 1}"
                for norm in ("norm", "norm_", "ln", "ln_", "layer_norm", "layer_norm_", "layernorm")
            ),
        )
        for kind in _KINDS
    },
    **{
        f"{stack}.layers.{{}}.{name}_layer_norm.{kind}": f"model.{stack}.layers.{{}}.{target}.{kind}"
        for stack in _SUBLAYERS
        for name, target in {
            **_SUBLAYERS["decoder"],
            "enc_attn": "encoder_attn_layer_norm",
            "ff": "final_layer_norm",
        }.items()
        for kind in _KINDS
    },
}

# Tables of positions in that spelling -> the stack that they belong to.
TABLES: dict[str, tuple[str, ...]] = {
    **{
        f"{owner}.{name}": (stack,)
        for stack, owners in {"encoder": ("encoder", "source.1"), "decoder": ("decoder", "target.1")}.items()
        for owner in owners
        for name in ("table", "positions.table", "positions.weight", "emb.positions.table")
    },
    **dict.fromkeys(("positions.table", "positions.weight"), ("encoder", "decoder")),
}


def unbiased(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """The weight of a norm that divides by the unbiased standard deviation, for our norm, which divides by the biased
    one."""
    return tensor * ((len(tensor) - 1) / len(tensor)) ** 0.5


def scaled_output(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """The output matrix of a model that divides its logits by √d."""
    return tensor * config.d_model**-0.5


def as_matrix(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """The matrix of a linear map, which may be stored as a convolution of width 1: (out, in, 1)."""
    return tensor.squeeze(-1) if tensor.dim() == 3 else tensor


def _spelled(checkpoint: Checkpoint) -> dict[str, str]:
    """Every name in the state dict -> its common spelling, with "{}" in place of the layer's index."""
    given = checkpoint.options.get("names") or {}
    segments = {**SEGMENTS, **{theirs: ours for ours, theirs in given.items()}}
    spelled = {}
    for name in checkpoint.tensors:
        numbered = re.sub(r"\blinears\.([0-3])\b", lambda match: ("q", "k", "v", "out")[int(match[1])], name)
        spelling = ".".join(filter(None, (segments.get(segment, segment) for segment in numbered.split("."))))
        # A feed-forward that is an nn.Sequential: linear, activation, perhaps dropout, linear.
        spelling = re.sub(r"\bffn\.(?:layers\.)?0\b", "ffn.inner", spelling)
        spelled[name] = re.sub(r"\bffn\.(?:layers\.)?[23]\b", "ffn.outer", spelling)
    return spelled


def _row(spelled: str) -> str | None:
    """Our name for a name in the common spelling; None if there is none."""
    layer = re.search(r"\.layers\.(\d+)\.", spelled)
    if layer is None:
        return KEYS.get(spelled)
    row = KEYS.get(spelled.replace(layer[0], ".layers.{}.", 1))
    return row and row.format(layer[1])


def _options(checkpoint: Checkpoint) -> dict[str, Any]:
    """The options. Those that are not given follow from the kind of code, which follows from the names."""
    options = {**OPTIONS, **{ALIASES.get(name, name): value for name, value in checkpoint.options.items()}}
    names = " ".join(checkpoint.tensors)
    is_harvard, is_jadore, is_bentrevett = ".sublayer." in names, "src_word_emb" in names, "positionwise_" in names
    eps = 1e-6 if is_jadore else 1e-12 if ".gamma" in names else 1e-5
    tied = is_jadore and _tied_output(checkpoint)
    kind = {
        "norm": "pre" if is_harvard else "post",
        "scale_embedding": is_harvard or is_bentrevett or (tied and options["scale_emb_or_prj"] == "emb"),
        "scale_output": tied and options["scale_emb_or_prj"] == "prj",
        "layer_norm_eps": UNBIASED_EPSILON if ".a_2" in names else eps,
        "embedding_norm": is_jadore,
    }
    return {**options, **{name: value for name, value in kind.items() if options[name] is None}}


def _named(checkpoint: Checkpoint, target: str) -> list[str]:
    """The names in the state dict that become `target`."""
    return [name for name, spelled in _spelled(checkpoint).items() if _row(spelled) == target]


def _tied_output(checkpoint: Checkpoint) -> bool:
    output, target = _named(checkpoint, "lm_head.weight"), _named(checkpoint, "model.decoder.embed_tokens.weight")
    return bool(output and target) and torch.equal(checkpoint.tensors[output[0]], checkpoint.tensors[target[0]])


def keys(config: VanillaTransformerConfig, checkpoint: Checkpoint) -> KeyTable:
    """The table with the names of the state dict. Maps without a bias get zeros if other maps have a bias."""
    options, spelled = _options(checkpoint), _spelled(checkpoint)
    table: dict[str, Any] = {}
    for name, spelling in spelled.items():
        if spelling in TABLES:
            learned = config.position_encoding == "learned"
            rows = [f"model.{stack}.embed_positions.weight" for stack in TABLES[spelling]]
            table[name] = [Rule(row, state_dicts.as_table) for row in rows] if learned else None
        elif row := _row(spelling):
            if options["embedding_norm"]:
                row = re.sub(r"^(model\.\w+\.)layer_norm\.", r"\1layernorm_embedding.", row)
            transform = scaled_output if row == "lm_head.weight" and options["scale_output"] else unchanged
            transform = unbiased if name.endswith(".a_2") else as_matrix if "layers" in row else transform
            table[name] = [Rule(row, transform)]
    filled = {rule.target for rules in table.values() for rule in rules or ()}
    for rules in [rules for rules in table.values() if rules]:
        target = rules[0].target
        bias = re.sub(r"weight$", "bias", target)
        wanted = config.attention_bias if "_attn." in target else config.feed_forward_bias
        if re.search(r"\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)\.weight$", target) and wanted and bias not in filled:
            rules.append(Rule(bias, state_dicts.no_bias))
    return table


def recognises(path: Path) -> bool:
    """Always False: only the content of the file would show it."""
    return False


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: A file is missing, cannot be read safely, or has another content.
    """
    return state_dicts.read(path, trust, {**OPTIONS, **{alias: OPTIONS[name] for alias, name in ALIASES.items()}})


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support."""
    known = {**OPTIONS, **{alias: OPTIONS[name] for alias, name in ALIASES.items()}}
    problems = state_dicts.unsupported(checkpoint, known)
    options = _options(checkpoint)
    problems += [
        f"{name}: {options[name]!r} (supported: {', '.join(map(repr, expressed))})"
        for name, expressed in EXPRESSED.items()
        if options[name] not in expressed
    ]
    if not isinstance(options["h"], int) or options["h"] < 1:
        problems.append(f"h: {options['h']!r} (supported: at least 1)")
    parts = {
        "source embedding": "model.encoder.embed_tokens.weight",
        "target embedding": "model.decoder.embed_tokens.weight",
    }
    parts |= {"output": "lm_head.weight", "layers of the encoder": "model.encoder.layers.0.self_attn.q_proj.weight"}
    parts |= {"layers of the decoder": "model.decoder.layers.0.self_attn.q_proj.weight"}
    for part, target in parts.items():
        if not _named(checkpoint, target):
            problems.append(
                f"names: none is known for the {part}; give it in the YAML file: `names: {{ours: theirs}}`"
            )
    return problems


def _stack_config(checkpoint: Checkpoint, stack: str) -> dict[str, Any]:
    """Number of layers, feed-forward width and final norm of a stack, from its names and shapes."""
    options = _options(checkpoint)
    rows = {row: name for name, spelled in _spelled(checkpoint).items() if (row := _row(spelled))}
    layers = {match[1] for row in rows if (match := re.match(rf"model\.{stack}\.layers\.(\d+)\.", row))}
    return {
        f"{stack}_layers": len(layers),
        f"{stack}_attention_heads": options["h"],
        f"{stack}_ffn_dim": len(checkpoint.tensors[rows[f"model.{stack}.layers.0.fc1.weight"]]),
        f"{stack}_norm_position": options["norm"],
        f"{stack}_final_norm": f"model.{stack}.layer_norm.weight" in rows and not options["embedding_norm"],
    }


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options, the names and the shapes describe."""
    options, tensors, ids = _options(checkpoint), checkpoint.tensors, state_dicts.special_ids(checkpoint)
    matrices = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    source, target, output = (tensors[_named(checkpoint, name)[0]] for name in matrices)
    width, rows = target.shape[1], {_row(spelled) for spelled in _spelled(checkpoint).values()}
    keys_width, values_width = (
        len(tensors[_named(checkpoint, f"model.encoder.layers.0.self_attn.{name}_proj.weight")[0]]) for name in "kv"
    )
    tables = {
        stack: tensors[name] for name, spelled in _spelled(checkpoint).items() for stack in TABLES.get(spelled, ())
    }
    positions = state_dicts.position_encoding(list(tables.values())) if tables else options["positions"]
    longest = {
        f"{prefix}max_position_embeddings": tables[stack].numel() // width - options["position_offset"]
        for prefix, stack in (("", "encoder"), ("decoder_", "decoder"))
        if positions == "learned"
    }
    vocabulary = checkpoint.vocabulary
    two = len(source) != len(target) or (vocabulary is not None and vocabulary["src"] != vocabulary["tgt"])
    return VanillaTransformerConfig(
        vocab_size=len(target),
        source_vocab_size=len(source) if two else None,
        d_model=width,
        **_stack_config(checkpoint, "encoder"),
        **_stack_config(checkpoint, "decoder"),
        d_k=None if keys_width == width else keys_width // options["h"],
        d_v=None if values_width == width else values_width // options["h"],
        dropout=options["dropout"],
        attention_dropout=options["dropout"],
        activation_dropout=options["dropout"],
        activation_function=options["activation"],
        scale_embedding=options["scale_embedding"],
        layernorm_embedding=options["embedding_norm"],
        embedding_sharing="none" if options["scale_output"] else state_dicts.sharing(source, target, output),
        position_encoding=positions,
        position_offset=options["position_offset"],
        **longest,
        layer_norm_eps=float(options["layer_norm_eps"]),
        attention_bias=any(row is not None and row.endswith("_proj.bias") for row in rows),
        feed_forward_bias=any(row is not None and re.search(r"\.fc[12]\.bias$", row) for row in rows),
        output_bias="lm_head.bias" in rows,
        label_smoothing=options["label_smoothing"],
        pad_token_id=ids["pad"],
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        decoder_start_token_id=ids["bos"],
    )


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
    """Tokenizer with the ids of the vocabularies, or None without any."""
    return state_dicts.to_tokenizer(checkpoint)


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """Greedy search, as in the Annotated Transformer."""
    return state_dicts.to_generation_config(checkpoint, config)


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """Notes on a missing vocabulary, and on the norm's approximation."""
    found = state_dicts.notes(checkpoint)
    if _has_unbiased_norm(checkpoint):
        found.append("the norm's unbiased standard deviation is folded into its weight; logits differ by some 5e-6")
    return found


SOURCE = Source(
    options=OPTIONS,
    recognises=recognises,
    read=read,
    unsupported=unsupported,
    to_config=to_config,
    keys=keys,
    to_tokenizer=to_tokenizer,
    to_generation_config=to_generation_config,
    decoding_notes=decoding_notes,
    unstated=unstated,
    guessed=guessed,
    defaulted=state_dicts.defaulted,
    settable=state_dicts.settable(OPTIONS, dict.fromkeys(SEGMENTS.values())),
    tolerance=TOLERANCE,
)
