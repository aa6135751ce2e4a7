"""
`torch.nn.Transformer` inside a user's model: a state dict and a small YAML file with its settings and the names of its
parts. The defaults are PyTorch's, the names those of its translation tutorial.

```yaml
nhead: 8
norm_first: false
activation: relu            # relu or gelu
layer_norm_eps: 1.0e-5
scale_embedding: true       # whether embeddings are multiplied by √d_model
positions: sinusoidal       # where no table is stored: or sinusoidal_halves, sinusoidal_halves_inclusive, none
position_offset: 0          # position number of the first token
names:
  encoder: transformer.encoder                            # nn.TransformerEncoder
  decoder: transformer.decoder                            # nn.TransformerDecoder
  source_embedding: src_tok_emb.embedding                 # one name twice where one embedding serves both sides
  target_embedding: tgt_tok_emb.embedding
  source_positions: positional_encoding.pos_embedding     # tables of positions, trained or not
  target_positions: positional_encoding.pos_embedding
  output: generator                                       # null where the target embedding serves
  ignored: []                                             # what is not part of the model
```

nhead, norm_first, activation and layer_norm_eps may be one value or {encoder: …, decoder: …}. Depths, widths, biases,
shared embeddings and final norms are read from the tensors. state_dicts.py lists the settings that are common to all
YAML files.
"""

import re
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats.files import read_text
from ..key_table import KeyTable, Rule, third, unchanged
from ..source import Checkpoint, Source
from . import state_dicts


NAMES: dict[str, Any] = {
    "encoder": "transformer.encoder",
    "decoder": "transformer.decoder",
    "source_embedding": "src_tok_emb.embedding",
    "target_embedding": "tgt_tok_emb.embedding",
    "source_positions": "positional_encoding.pos_embedding",
    "target_positions": "positional_encoding.pos_embedding",
    "output": "generator",
    "ignored": [],
}

# Defaults of torch.nn.Transformer, and the common settings.
OPTIONS: dict[str, Any] = {
    **state_dicts.OPTIONS,
    "nhead": 8,
    "norm_first": False,
    "activation": "relu",
    "layer_norm_eps": 1e-5,
    "scale_embedding": True,
    "positions": "sinusoidal",
    "position_offset": 0,
}

# Options that may have one value for each stack.
BY_STACK = ("nhead", "norm_first", "activation", "layer_norm_eps")

# Option -> its values that our model supports.
EXPRESSED: dict[str, tuple] = {
    "norm_first": (True, False),
    "activation": ("relu", "gelu"),
    "positions": ("sinusoidal", "sinusoidal_halves", "sinusoidal_halves_inclusive", "none"),
}


def unstated(checkpoint: Checkpoint) -> dict[str, Any]:
    """The options that follow from a reference model, if the YAML file does not give them."""
    width = checkpoint.tensors.shape(str(_parameter(checkpoint, "target_embedding")))[1]
    values = {
        "nhead": state_dicts.possible_heads(width, OPTIONS["nhead"]),
        "norm_first": EXPRESSED["norm_first"][::-1],
        "activation": EXPRESSED["activation"],
        "scale_embedding": (True, False),
        "layer_norm_eps": state_dicts.NORM_EPSILONS,
    }
    return {name: choices for name, choices in values.items() if name not in checkpoint.options}


def guessed(checkpoint: Checkpoint) -> dict[str, Any]:
    """The options on which the outputs depend and which no file gives."""
    names = ["nhead", "norm_first", "activation", "layer_norm_eps", "scale_embedding"]
    names += ["positions"] if _parameter(checkpoint, "target_positions") is None else []
    names += ["position_offset"] if _options(checkpoint)["positions"] != "none" else []
    names += state_dicts.guessed(checkpoint)
    return {name: OPTIONS[name] for name in names if name not in checkpoint.options}


def _attention(ours: str) -> dict[str, list[Rule]]:
    return {
        **{
            f"in_proj_{kind}": [Rule(f"{ours}.{name}_proj.{kind}", third(number)) for number, name in enumerate("qkv")]
            for kind in ("weight", "bias")
        },
        **{f"out_proj.{kind}": [Rule(f"{ours}.out_proj.{kind}")] for kind in ("weight", "bias")},
    }


_KINDS = ("weight", "bias")
_NORMS = {
    "encoder": {"norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"},
    "decoder": {"norm1": "self_attn_layer_norm", "norm2": "encoder_attn_layer_norm", "norm3": "final_layer_norm"},
}

# Stack -> name inside one of its layers -> rows inside one of our layers.
LAYER_KEYS: dict[str, dict[str, list[Rule]]] = {
    stack: {
        **{f"self_attn.{name}": rows for name, rows in _attention("self_attn").items()},
        **{f"multihead_attn.{name}": rows for name, rows in _attention("encoder_attn").items()},
        **{
            f"{theirs}.{kind}": [Rule(f"{ours}.{kind}")]
            for theirs, ours in norms.items()
            for kind in ("weight", "bias")
        },
        **{f"linear{number}.{kind}": [Rule(f"fc{number}.{kind}")] for number in (1, 2) for kind in ("weight", "bias")},
    }
    for stack, norms in _NORMS.items()
}


def _options(checkpoint: Checkpoint) -> dict[str, Any]:
    return {**OPTIONS, **checkpoint.options, "names": {**NAMES, **(checkpoint.options.get("names") or {})}}


def _side(value: Any, stack: str) -> Any:
    """An option of the encoder or the decoder, which may have one value for both."""
    return value[stack] if isinstance(value, dict) else value


def _parameter(checkpoint: Checkpoint, part: str) -> str | None:
    """The tensor of an embedding, an output or a table of positions; the name may be its module's."""
    name = _options(checkpoint)["names"][part]
    return next((full for full in (name, f"{name}.weight") if full in checkpoint.tensors), None)


def keys(config: VanillaTransformerConfig, checkpoint: Checkpoint) -> KeyTable:
    """The table with the names that the settings give. Norms without a bias ("bias=False") get zeros."""
    names = _options(checkpoint)["names"]
    table: dict[str, Any] = dict.fromkeys(names["ignored"] or ())
    targets = {
        "source_embedding": "model.encoder.embed_tokens.weight",
        "target_embedding": "model.decoder.embed_tokens.weight",
        "output": "lm_head.weight",
    }
    if config.position_encoding == "learned":
        targets["source_positions"] = "model.encoder.embed_positions.weight"
        targets["target_positions"] = "model.decoder.embed_positions.weight"
    for part in ("source_embedding", "target_embedding", "output", "source_positions", "target_positions"):
        own = _parameter(checkpoint, part if names[part] else "target_embedding")
        if own is None:
            continue
        rows = table.setdefault(own, [])
        if part in targets:
            transform = state_dicts.as_table if part.endswith("positions") else unchanged
            rows.append(Rule(targets[part], transform))
    table[f"{names['output']}.bias"] = "lm_head.bias"
    for stack, layer in LAYER_KEYS.items():
        layers = f"{names[stack]}.layers.{{}}"
        norms = {f"{layers}.{name}": f"model.{stack}.layers.{{}}.{target}" for name, target in _NORMS[stack].items()}
        norms[f"{names[stack]}.norm"] = f"model.{stack}.layer_norm"
        for name, rows in layer.items():
            table[f"{layers}.{name}"] = [
                Rule(f"model.{stack}.layers.{{}}.{row.target}", row.transform) for row in rows
            ]
        table |= {f"{theirs}.{kind}": [Rule(f"{ours}.{kind}")] for theirs, ours in norms.items() for kind in _KINDS}
        if f"{names[stack]}.layers.0.norm1.bias" not in checkpoint.tensors:
            for theirs, ours in norms.items():
                table[f"{theirs}.weight"].append(Rule(f"{ours}.bias", state_dicts.no_bias))
    return table


def recognises(path: Path) -> bool:
    """Whether a folder holds one file with weights and one YAML file with settings of nn.Transformer."""
    if path.suffix in state_dicts.SETTINGS:
        return _speaks_of_this(path)
    files = [file for file in path.iterdir() if file.suffix in state_dicts.SETTINGS] if path.is_dir() else []
    return len(files) == 1 and _speaks_of_this(files[0])


def _speaks_of_this(settings: Path) -> bool:
    return re.search(r"^(nhead|norm_first):", read_text(settings), re.M) is not None


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: A file is missing, cannot be read safely, or has another content.
    """
    return state_dicts.read(path, trust, OPTIONS, BY_STACK)


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support, and each name that the state dict lacks."""
    problems = state_dicts.unsupported(checkpoint, OPTIONS, BY_STACK)
    options = _options(checkpoint)
    for name, expressed in EXPRESSED.items():
        for value in options[name].values() if isinstance(options[name], dict) else [options[name]]:
            if value not in expressed:
                problems.append(f"{name}: {value!r} (supported: {', '.join(map(repr, expressed))})")
    problems += [
        f"names.{name} is not a part of the model: expected one of {', '.join(NAMES)}"
        for name in options["names"]
        if name not in NAMES
    ]
    for part in ("source_embedding", "target_embedding", "output"):
        if options["names"][part] and _parameter(checkpoint, part) is None:
            problems.append(f"names.{part}: the state dict has no {options['names'][part]}")
    there = [stack for stack in LAYER_KEYS if _has(checkpoint, stack, "linear1.weight")]
    for stack in [stack for stack in LAYER_KEYS if stack not in there]:
        problems.append(f"names.{stack}: the state dict has no {options['names'][stack]}.layers.0.linear1.weight")
    if len({_has(checkpoint, stack, "self_attn.in_proj_bias") for stack in there}) > 1:
        problems.append("bias: in one stack only (supported: in both or none)")
    if isinstance(options["layer_norm_eps"], dict) and len(set(options["layer_norm_eps"].values())) > 1:
        problems.append(f"layer_norm_eps: {options['layer_norm_eps']} (supported: one value)")
    return problems


def _has(checkpoint: Checkpoint, stack: str, name: str) -> bool:
    return f"{_options(checkpoint)['names'][stack]}.layers.0.{name}" in checkpoint.tensors


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options and the shapes describe."""
    options, tensors = _options(checkpoint), checkpoint.tensors
    names, ids = options["names"], state_dicts.special_ids(checkpoint)
    source, target = (tensors[str(_parameter(checkpoint, f"{side}_embedding"))] for side in ("source", "target"))
    output = tensors[str(_parameter(checkpoint, "output"))] if names["output"] else None
    tables = [name for side in ("source", "target") if (name := _parameter(checkpoint, f"{side}_positions"))]
    positions = state_dicts.position_encoding([tensors[name] for name in tables]) if tables else options["positions"]
    stacks: dict[str, Any] = {}
    for stack in LAYER_KEYS:
        found = [re.fullmatch(rf"{re.escape(names[stack])}\.layers\.(\d+)\.linear1\.weight", name) for name in tensors]
        stacks |= {
            f"{stack}_layers": sum(match is not None for match in found),
            f"{stack}_ffn_dim": len(tensors[f"{names[stack]}.layers.0.linear1.weight"]),
            f"{stack}_attention_heads": _side(options["nhead"], stack),
            f"{stack}_norm_position": "pre" if _side(options["norm_first"], stack) else "post",
            f"{stack}_final_norm": f"{names[stack]}.norm.weight" in tensors,
        }
    longest = {
        f"{prefix}max_position_embeddings": tensors[name].numel() // target.shape[1] - options["position_offset"]
        for prefix, name in zip(("", "decoder_"), tables, strict=False)
    }
    return VanillaTransformerConfig(
        vocab_size=len(target),
        source_vocab_size=len(source) if len(source) != len(target) or _two_vocabularies(checkpoint) else None,
        d_model=target.shape[1],
        **stacks,
        dropout=options["dropout"],
        attention_dropout=options["dropout"],
        activation_dropout=options["dropout"],
        activation_function=_side(options["activation"], "encoder"),
        decoder_activation_function=_side(options["activation"], "decoder"),
        scale_embedding=options["scale_embedding"],
        embedding_sharing=state_dicts.sharing(source, target, output),
        position_encoding=positions,
        position_offset=options["position_offset"],
        **(longest if positions == "learned" else {}),
        layer_norm_eps=float(_side(options["layer_norm_eps"], "encoder")),
        attention_bias=_has(checkpoint, "encoder", "self_attn.in_proj_bias"),
        feed_forward_bias=_has(checkpoint, "encoder", "linear1.bias"),
        output_bias=f"{names['output']}.bias" in tensors,
        label_smoothing=options["label_smoothing"],
        pad_token_id=ids["pad"],
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        decoder_start_token_id=ids["bos"],
    )


def _two_vocabularies(checkpoint: Checkpoint) -> bool:
    vocabulary = checkpoint.vocabulary
    return vocabulary is not None and vocabulary["src"] != vocabulary["tgt"]


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
    """Tokenizer with the ids of the vocabularies, or None without any."""
    return state_dicts.to_tokenizer(checkpoint)


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """Greedy search, as in the tutorial."""
    return state_dicts.to_generation_config(checkpoint, config)


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """A note on a missing vocabulary."""
    return state_dicts.notes(checkpoint)


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
    settable=state_dicts.settable(OPTIONS, NAMES),
)
