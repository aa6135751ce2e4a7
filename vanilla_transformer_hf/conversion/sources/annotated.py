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
from functools import cached_property
from typing import Any

import torch

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..key_table import KeyTable, Rule, by_width, no_bias, not_expressed, unchanged, written_out
from . import state_dicts
from .state_dicts import NORM_EPSILONS, StateDict, as_table, possible_heads, settable, sharing


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

EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")

# Option -> its values that our model supports.
EXPRESSED: dict[str, tuple] = {
    "norm": ("pre", "post"),
    "activation": ("relu", "gelu"),
    "positions": ("sinusoidal", "sinusoidal_halves", "sinusoidal_halves_inclusive", "none"),
}


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

# Names in that spelling -> ours. A norm is named after its place around a sublayer (sublayer.0.norm, norm1,
# self_attn_norm), or is part of the sublayer's module.
_PLACES = "norm{0},norm_{0},ln{0},ln_{0},layer_norm{0},layer_norm_{0},layernorm{0}"
KEYS = written_out(
    {
        "{source.0.lut,encoder.source,source}.weight": "{model.encoder.embed_tokens}.weight",
        "{target.0.lut,decoder.target,target}.weight": "{model.decoder.embed_tokens}.weight",
        "{encoder,decoder}.{emb.tok_emb,tok_embedding,embedding,embed,tok_emb,embed_tokens}.weight": (
            "model.{encoder,decoder}.{embed_tokens}.weight"
        ),
        "{generator.proj,generator,out,decoder.out}.{weight,bias}": "{lm_head}.{weight,bias}",
        "{encoder,decoder}.norm.{weight,bias}": "model.{encoder,decoder}.layer_norm.{weight,bias}",
        "{encoder,decoder}.layers.{}.{self,cross}_attn.{q,k,v,out}.{weight,bias}": (
            "model.{encoder,decoder}.layers.{}.{self,encoder}_attn.{q,k,v,out}_proj.{weight,bias}"
        ),
        "{encoder,decoder}.layers.{}.ffn.{inner,outer}.{weight,bias}": (
            "model.{encoder,decoder}.layers.{}.{fc1,fc2}.{weight,bias}"
        ),
        **{
            f"{stack}.layers.{{}}.{{{names},{_PLACES.format(place)}}}.{{weight,bias}}": (
                f"model.{stack}.layers.{{}}.{{{ours}_layer_norm}}.{{weight,bias}}"
            )
            for stack, place, names, ours in (
                ("encoder", 1, "sublayer.0.norm,self_attn.norm,self_attn_norm", "self_attn"),
                ("encoder", 2, "sublayer.1.norm,ffn.norm,ffn_norm", "final"),
                ("decoder", 1, "sublayer.0.norm,self_attn.norm,self_attn_norm", "self_attn"),
                ("decoder", 2, "sublayer.1.norm,cross_attn.norm,cross_attn_norm", "encoder_attn"),
                ("decoder", 3, "sublayer.2.norm,ffn.norm,ffn_norm", "final"),
            )
        },
        "{encoder,decoder}.layers.{}.{self_attn,cross_attn,enc_attn,ffn,ff}_layer_norm.{weight,bias}": (
            "model.{encoder,decoder}.layers.{}.{self_attn,encoder_attn,encoder_attn,final,final}_layer_norm.{weight,bias}"
        ),
    }
)

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
    """The weight of a norm that divides by the unbiased deviation, for our norm, which divides by the biased one."""
    return tensor * ((len(tensor) - 1) / len(tensor)) ** 0.5


def as_matrix(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """The matrix of a linear map, which may be stored as a convolution of width 1: (out, in, 1)."""
    return tensor.squeeze(-1) if tensor.dim() == 3 else tensor


def _row(spelled: str) -> str | None:
    """Our name for a name in the common spelling; None if there is none."""
    layer = re.search(r"\.layers\.(\d+)\.", spelled)
    rules = KEYS.get(spelled.replace(layer[0], ".layers.{}.", 1) if layer else spelled)
    return rules[0].target.format(layer[1] if layer else "") if rules else None


class Annotated(StateDict):
    name = "annotated"
    known = {**OPTIONS, **{alias: OPTIONS[name] for alias, name in ALIASES.items()}}
    settable = settable(OPTIONS, tuple(dict.fromkeys(SEGMENTS.values())))
    tolerance = TOLERANCE

    def unstated(self) -> dict[str, Any]:
        width = self.tensors.shape(self.names[EMBEDDINGS[1]])[1]
        options = self.settings
        values = {
            "norm": sorted(EXPRESSED["norm"], key=lambda place: place != options["norm"]),
            "scale_embedding": sorted((True, False), key=lambda scaled: scaled != options["scale_embedding"]),
            "activation": EXPRESSED["activation"],
            "h": possible_heads(width, OPTIONS["h"]),  # tried first, as the last of these
            "layer_norm_eps": list(dict.fromkeys((options["layer_norm_eps"], *NORM_EPSILONS))),
        }
        given = {ALIASES.get(name, name) for name in self.options}
        if self._has_unbiased_norm():
            given.add("layer_norm_eps")  # of a norm that is approximated
        return {name: choices for name, choices in values.items() if name not in given}

    def guessed(self) -> dict[str, Any]:
        """The options on which the outputs depend and that no file has, with the usual values for the kind of code."""
        given = {ALIASES.get(name, name) for name in self.options}
        if "scale_emb_or_prj" in given:  # jadore801120's option, for matrices that are one
            given |= {"scale_embedding", "scale_output"}
        names = ["h", "norm", "activation", "scale_embedding", "scale_output"]
        names += ["layer_norm_eps"] if not self._has_unbiased_norm() else []
        names += ["embedding_norm"] if "model.encoder.layer_norm.weight" in self.names else []
        names += ["positions"] if not any(spelled in TABLES for spelled in self.spelled.values()) else []
        names += ["position_offset"] if self.settings["positions"] != "none" else []
        return self.not_given(names, given)

    def _has_unbiased_norm(self) -> bool:
        return any(name.endswith(".a_2") for name in self.tensors)

    @cached_property
    def spelled(self) -> dict[str, str]:
        """Every name in the state dict -> its common spelling."""
        given = self.options.get("names") or {}
        segments = {**SEGMENTS, **{theirs: ours for ours, theirs in given.items()}}
        spelled = {}
        for name in self.tensors:
            numbered = re.sub(r"\blinears\.([0-3])\b", lambda match: ("q", "k", "v", "out")[int(match[1])], name)
            spelling = ".".join(filter(None, (segments.get(segment, segment) for segment in numbered.split("."))))
            # A feed-forward that is an nn.Sequential: linear, activation, perhaps dropout, linear.
            spelling = re.sub(r"\bffn\.(?:layers\.)?0\b", "ffn.inner", spelling)
            spelled[name] = re.sub(r"\bffn\.(?:layers\.)?[23]\b", "ffn.outer", spelling)
        return spelled

    @cached_property
    def names(self) -> dict[str, str]:
        """Our name -> the first name in the state dict that becomes it."""
        found: dict[str, str] = {}
        for name, spelled in self.spelled.items():
            if row := _row(spelled):
                found.setdefault(row, name)
        return found

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The options. Those that are not given follow from the kind of code, which follows from the names."""
        options = {**OPTIONS, **{ALIASES.get(name, name): value for name, value in self.options.items()}}
        names = " ".join(self.tensors)
        is_harvard, is_jadore, is_bentrevett = ".sublayer." in names, "src_word_emb" in names, "positionwise_" in names
        eps = 1e-6 if is_jadore else 1e-12 if ".gamma" in names else 1e-5
        output, target = self.names.get("lm_head.weight"), self.names.get(EMBEDDINGS[1])
        tied = is_jadore and output and target and torch.equal(self.tensors[output], self.tensors[target])
        kind = {
            "norm": "pre" if is_harvard else "post",
            "scale_embedding": is_harvard or is_bentrevett or (bool(tied) and options["scale_emb_or_prj"] == "emb"),
            "scale_output": bool(tied) and options["scale_emb_or_prj"] == "prj",
            "layer_norm_eps": UNBIASED_EPSILON if ".a_2" in names else eps,
            "embedding_norm": is_jadore,
        }
        return {**options, **{name: value for name, value in kind.items() if options[name] is None}}

    def keys(self, config: VanillaTransformerConfig) -> KeyTable:
        """The table with the names of the state dict. Maps without a bias get zeros if other maps have a bias."""
        options, table = self.settings, dict[str, Any]()
        for name, spelling in self.spelled.items():
            if spelling in TABLES:
                learned = config.position_encoding == "learned"
                rows = [f"model.{stack}.embed_positions.weight" for stack in TABLES[spelling]]
                table[name] = [Rule(row, as_table) for row in rows] if learned else None
            elif row := _row(spelling):
                if options["embedding_norm"]:
                    row = re.sub(r"^(model\.\w+\.)layer_norm\.", r"\1layernorm_embedding.", row)
                is_divided = row == "lm_head.weight" and options["scale_output"]  # its logits, by √d
                transform = by_width(-0.5) if is_divided else unchanged
                transform = unbiased if name.endswith(".a_2") else as_matrix if "layers" in row else transform
                table[name] = [Rule(row, transform)]
        filled = {rule.target for rules in table.values() for rule in rules or ()}
        for rules in [rules for rules in table.values() if rules]:
            target = rules[0].target
            bias = re.sub(r"weight$", "bias", target)
            wanted = config.attention_bias if "_attn." in target else config.feed_forward_bias
            if (
                re.search(r"\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)\.weight$", target)
                and wanted
                and bias not in filled
            ):
                rules.append(Rule(bias, no_bias))
        return table

    def unsupported(self) -> list[str]:
        options = self.settings
        problems = super().unsupported() + not_expressed(options, EXPRESSED)
        if not isinstance(options["h"], int) or options["h"] < 1:
            problems.append(f"h: {options['h']!r} (supported: at least 1)")
        parts = {
            "source embedding": EMBEDDINGS[0],
            "target embedding": EMBEDDINGS[1],
            "output": "lm_head.weight",
            "layers of the encoder": "model.encoder.layers.0.self_attn.q_proj.weight",
            "layers of the decoder": "model.decoder.layers.0.self_attn.q_proj.weight",
        }
        for part, target in parts.items():
            if target not in self.names:
                problems.append(
                    f"names: none is known for the {part}; give it in the YAML file: `names: {{ours: theirs}}`"
                )
        return problems

    def to_config(self) -> VanillaTransformerConfig:
        options, tensors, names = self.settings, self.tensors, self.names
        source, target, output = (tensors[names[name]] for name in (*EMBEDDINGS, "lm_head.weight"))
        width = target.shape[1]
        keys_width, values_width = (
            len(tensors[names[f"model.encoder.layers.0.self_attn.{letter}_proj.weight"]]) for letter in "kv"
        )
        stacks: dict[str, Any] = {}
        for stack in ("encoder", "decoder"):
            layers = {match[1] for row in names if (match := re.match(rf"model\.{stack}\.layers\.(\d+)\.", row))}
            stacks |= {
                f"{stack}_layers": len(layers),
                f"{stack}_attention_heads": options["h"],
                f"{stack}_ffn_dim": len(tensors[names[f"model.{stack}.layers.0.fc1.weight"]]),
                f"{stack}_norm_position": options["norm"],
                f"{stack}_final_norm": f"model.{stack}.layer_norm.weight" in names and not options["embedding_norm"],
            }
        tables = {stack: tensors[name] for name, spelled in self.spelled.items() for stack in TABLES.get(spelled, ())}
        return self.config_of(
            source,
            target,
            tables,
            **stacks,
            d_k=None if keys_width == width else keys_width // options["h"],
            d_v=None if values_width == width else values_width // options["h"],
            activation_function=options["activation"],
            layernorm_embedding=options["embedding_norm"],
            embedding_sharing="none" if options["scale_output"] else sharing(source, target, output),
            layer_norm_eps=float(options["layer_norm_eps"]),
            attention_bias=any(row.endswith("_proj.bias") for row in names),
            feed_forward_bias=any(re.search(r"\.fc[12]\.bias$", row) for row in names),
            output_bias="lm_head.bias" in names,
        )

    def decoding_notes(self) -> list[str]:
        found = super().decoding_notes()
        if self._has_unbiased_norm():
            found.append(
                "the norm's unbiased standard deviation is folded into its weight; logits differ by some 5e-6"
            )
        return found
