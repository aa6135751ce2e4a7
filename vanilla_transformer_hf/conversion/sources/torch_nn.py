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
from functools import cached_property
from pathlib import Path
from typing import Any

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..formats.files import read_text
from ..key_table import KeyTable, Rule, no_bias, not_expressed, third, unchanged, written_out
from . import state_dicts
from .state_dicts import NORM_EPSILONS, SETTINGS, STACKS, StateDict, as_table, possible_heads, settable, sharing


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

# Option -> its values that our model supports.
EXPRESSED: dict[str, tuple] = {
    "norm_first": (True, False),
    "activation": ("relu", "gelu"),
    "positions": ("sinusoidal", "sinusoidal_halves", "sinusoidal_halves_inclusive", "none"),
}


# Stack -> name inside one of its layers -> rows inside one of our layers.
_NORMS = {
    "encoder": {"norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"},
    "decoder": {"norm1": "self_attn_layer_norm", "norm2": "encoder_attn_layer_norm", "norm3": "final_layer_norm"},
}
LAYER_KEYS = written_out(
    {
        "{self,multihead}_attn.in_proj_{weight,bias}": [
            Rule(f"{{self,encoder}}_attn.{letter}_proj.{{weight,bias}}", third(number))
            for number, letter in enumerate("qkv")
        ],
        "{self,multihead}_attn.out_proj.{weight,bias}": "{self,encoder}_attn.out_proj.{weight,bias}",
        "linear{1,2}.{weight,bias}": "fc{1,2}.{weight,bias}",
    }
)


def _side(value: Any, stack: str) -> Any:
    """An option of the encoder or the decoder, which may have one value for both."""
    return value[stack] if isinstance(value, dict) else value


def _speaks_of_this(settings: Path) -> bool:
    return re.search(r"^(nhead|norm_first):", read_text(settings), re.M) is not None


class TorchNN(StateDict):
    name = "torch_nn"
    known = OPTIONS
    by_stack = ("nhead", "norm_first", "activation", "layer_norm_eps")
    settable = settable(OPTIONS, tuple(NAMES))

    def unstated(self) -> dict[str, Any]:
        width = self.tensors.shape(str(self._parameter("target_embedding")))[1]
        values = {
            "nhead": possible_heads(width, OPTIONS["nhead"]),
            "norm_first": EXPRESSED["norm_first"][::-1],
            "activation": EXPRESSED["activation"],
            "scale_embedding": (True, False),
            "layer_norm_eps": NORM_EPSILONS,
        }
        return {name: choices for name, choices in values.items() if name not in self.options}

    def guessed(self) -> dict[str, Any]:
        names = ["nhead", "norm_first", "activation", "layer_norm_eps", "scale_embedding"]
        names += ["positions"] if self._parameter("target_positions") is None else []
        names += ["position_offset"] if self.settings["positions"] != "none" else []
        return self.not_given(names, set(self.options))

    @cached_property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "names": {**NAMES, **(self.options.get("names") or {})}}

    def _parameter(self, part: str) -> str | None:
        """The tensor of an embedding, an output or a table of positions; the name may be its module's."""
        name = self.settings["names"][part]
        return next((full for full in (name, f"{name}.weight") if full in self.tensors), None)

    def keys(self, config: VanillaTransformerConfig) -> KeyTable:
        """The table with the names that the settings give. Norms without a bias ("bias=False") get zeros."""
        names = self.settings["names"]
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
            own = self._parameter(part if names[part] else "target_embedding")
            if own is None:
                continue
            rows = table.setdefault(own, [])
            if part in targets:
                transform = as_table if part.endswith("positions") else unchanged
                rows.append(Rule(targets[part], transform))
        table[f"{names['output']}.bias"] = "lm_head.bias"
        for stack in STACKS:
            layers, ours = f"{names[stack]}.layers.{{}}", f"model.{stack}.layers.{{}}"
            table |= {
                f"{layers}.{name}": [Rule(f"{ours}.{row.target}", row.transform) for row in rows]
                for name, rows in LAYER_KEYS.items()
            }
            norms = {f"{layers}.{name}": f"{ours}.{target}" for name, target in _NORMS[stack].items()}
            norms[f"{names[stack]}.norm"] = f"model.{stack}.layer_norm"
            has_bias = self._has(stack, "norm1.bias")
            for theirs, target in norms.items():
                table[f"{theirs}.weight"] = [Rule(f"{target}.weight")]
                if has_bias:
                    table[f"{theirs}.bias"] = [Rule(f"{target}.bias")]
                else:
                    table[f"{theirs}.weight"].append(Rule(f"{target}.bias", no_bias))
        return table

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """A YAML file with settings of nn.Transformer, or a folder with one."""
        if path.suffix in SETTINGS:
            return _speaks_of_this(path)
        files = [file for file in path.iterdir() if file.suffix in SETTINGS] if path.is_dir() else []
        return len(files) == 1 and _speaks_of_this(files[0])

    def unsupported(self) -> list[str]:
        """A line for each option that our model does not support, and each name that the state dict lacks."""
        problems = super().unsupported()
        options = self.settings
        for stack in STACKS:
            problems += not_expressed({name: _side(options[name], stack) for name in EXPRESSED}, EXPRESSED)
        problems = list(dict.fromkeys(problems))
        problems += [
            f"names.{name} is not a part of the model: expected one of {', '.join(NAMES)}"
            for name in options["names"]
            if name not in NAMES
        ]
        for part in ("source_embedding", "target_embedding", "output"):
            if options["names"][part] and self._parameter(part) is None:
                problems.append(f"names.{part}: the state dict has no {options['names'][part]}")
        there = [stack for stack in STACKS if self._has(stack, "linear1.weight")]
        for stack in [stack for stack in STACKS if stack not in there]:
            problems.append(f"names.{stack}: the state dict has no {options['names'][stack]}.layers.0.linear1.weight")
        if len({self._has(stack, "self_attn.in_proj_bias") for stack in there}) > 1:
            problems.append("bias: in one stack only (supported: in both or none)")
        if isinstance(options["layer_norm_eps"], dict) and len(set(options["layer_norm_eps"].values())) > 1:
            problems.append(f"layer_norm_eps: {options['layer_norm_eps']} (supported: one value)")
        return problems

    def _has(self, stack: str, name: str) -> bool:
        return f"{self.settings['names'][stack]}.layers.0.{name}" in self.tensors

    def to_config(self) -> VanillaTransformerConfig:
        options, tensors = self.settings, self.tensors
        names = options["names"]
        source, target = (tensors[str(self._parameter(f"{side}_embedding"))] for side in ("source", "target"))
        output = tensors[str(self._parameter("output"))] if names["output"] else None
        places = {"encoder": self._parameter("source_positions"), "decoder": self._parameter("target_positions")}
        tables = {stack: tensors[name] for stack, name in places.items() if name}
        stacks: dict[str, Any] = {}
        for stack in STACKS:
            found = [
                re.fullmatch(rf"{re.escape(names[stack])}\.layers\.(\d+)\.linear1\.weight", name) for name in tensors
            ]
            stacks |= {
                f"{stack}_layers": sum(match is not None for match in found),
                f"{stack}_ffn_dim": len(tensors[f"{names[stack]}.layers.0.linear1.weight"]),
                f"{stack}_attention_heads": _side(options["nhead"], stack),
                f"{stack}_norm_position": "pre" if _side(options["norm_first"], stack) else "post",
                f"{stack}_final_norm": f"{names[stack]}.norm.weight" in tensors,
            }
        return self.config_of(
            source,
            target,
            tables,
            **stacks,
            activation_function=_side(options["activation"], "encoder"),
            decoder_activation_function=_side(options["activation"], "decoder"),
            embedding_sharing=sharing(source, target, output),
            layer_norm_eps=float(_side(options["layer_norm_eps"], "encoder")),
            attention_bias=self._has("encoder", "self_attn.in_proj_bias"),
            feed_forward_bias=self._has("encoder", "linear1.bias"),
            output_bias=f"{names['output']}.bias" in tensors,
        )
