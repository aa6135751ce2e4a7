"""
JoeyNMT 1.x and 2.x (joeynmt/joeynmt): `best.ckpt`, beside it `config.yaml`, `src_vocab.txt`, `trg_vocab.txt` and the
subword model. Configs of 1.x are rewritten as those of 2.x.

From joeynmt/model.py, encoders.py, decoders.py, transformer_layers.py, initialization.py (α), tokenizers.py,
vocabulary.py, config.py and search.py of 2.3; data.py, vocabulary.py, search.py and prediction.py of 1.5.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats import vocabularies
from ..formats.files import named, read_lines, read_yaml
from ..formats.moses import add_moses, note
from ..formats.safe_load import load_torch
from ..key_table import KeyTable, Rule, written_out, wrong_types
from ..source import ConversionError, Source, by_stack, search_settings


_DECODER: dict[str, Any] = {
    "type": "transformer",
    "hidden_size": 512,
    "ff_size": 2048,
    "num_layers": 4,
    "num_heads": 8,
    "dropout": 0.1,
    "alpha": 1.0,
    "activation": "relu",
    "embeddings": {"scale": False},
}
# model.py, encoders.TransformerEncoder, decoders.TransformerDecoder, embeddings.Embeddings, config.py. The options of
# a stack are under the stack's name. `layer_norm` has no default: see NORMS_WITHOUT_OPTION.
OPTIONS: dict[str, Any] = {
    "initializer": "xavier_uniform",
    "tied_embeddings": False,
    "tied_softmax": False,
    "encoder": {**_DECODER, "type": "recurrent", "num_layers": 8, "num_heads": 4},
    "decoder": _DECODER,
    "side": {"level": "word", "lowercase": False, "normalize": False, "lang": None, "tokenizer_cfg": {}},
    "special_symbols": {
        "unk_id": 0,
        "unk_token": "<unk>",
        "pad_id": 1,
        "pad_token": "<pad>",
        "bos_id": 2,
        "bos_token": "<s>",
        "eos_id": 3,
        "eos_token": "</s>",
        "sep_token": None,
        "lang_tags": [],
    },
    "testing": {
        "beam_size": 1,
        "beam_alpha": -1.0,
        "max_output_length": -1,
        "min_output_length": 1,
        "generate_unk": True,
        "repetition_penalty": -1.0,
        "no_repeat_ngram_size": -1,
        "n_best": 1,
    },
    "label_smoothing": 0.0,
}

# Without the option, the layers of the encoder are pre-norm, those of the decoder post-norm, and no stack ends with
# a norm: the code reads the option in two places, with two defaults.
NORMS_WITHOUT_OPTION = {"encoder": "pre", "decoder": "post"}

# tokenizers._build_tokenizer
SUBWORDS = ("sentencepiece", "subword-nmt")
PRETOKENIZERS = ("none", "moses")

# What stands in configs that are rewritten from those of 1.x.
FIRST_VERSION = "1.x"

# JoeyNMT limits an output by the length of its source; generate() needs a number.
LONGEST_OUTPUT = 256

# builders.build_activation
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}

KEYS = written_out(
    {
        "{src,trg}_embed.lut.weight": "model.{encoder,decoder}.embed_tokens.weight",
        "decoder.output_layer.weight": "lm_head.weight",
        "encoder.layers.{}.src_src_att.{q,k,v,output}_layer.{weight,bias}": (
            "model.encoder.layers.{}.self_attn.{q,k,v,out}_proj.{weight,bias}"
        ),
        "decoder.layers.{}.{trg_trg,src_trg}_att.{q,k,v,output}_layer.{weight,bias}": (
            "model.decoder.layers.{}.{self,encoder}_attn.{q,k,v,out}_proj.{weight,bias}"
        ),
        "encoder.layers.{}.layer_norm.{weight,bias}": "model.encoder.layers.{}.self_attn_layer_norm.{weight,bias}",
        "decoder.layers.{}.{x,dec}_layer_norm.{weight,bias}": (
            "model.decoder.layers.{}.{self,encoder}_attn_layer_norm.{weight,bias}"
        ),
        "{encoder,decoder}.layers.{}.feed_forward.{pwff_layer.0,pwff_layer.3,layer_norm}.{weight,bias}": (
            "model.{encoder,decoder}.layers.{}.{fc1,fc2,final_layer_norm}.{weight,bias}"
        ),
        "{encoder,decoder}.layer_norm.{weight,bias}": "model.{encoder,decoder}.layer_norm.{weight,bias}",
        "{encoder,decoder}.pe.pe": None,  # the table of sinusoids, which our model computes
    }
)


def folded(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """A source embedding that one of JoeyNMT and our model multiplies by √d, for the other."""
    return tensor / config.d_model**0.5 if config.scale_embedding else tensor * config.d_model**0.5


def _checkpoints(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".ckpt" else []
    return [path / name for name in ("best.ckpt", "latest.ckpt") if (path / name).is_file()]


def _from_first_version(options: dict[str, Any]) -> dict[str, Any]:
    """A config of 1.x as one of 2.x, with texts as languages, one level of both sides, and nothing banned."""
    # All layers are pre-norm with a final norm there.
    data, model = options["data"], options["model"]
    training, testing = (
        options[name] if isinstance(options.get(name), dict) else {} for name in ("training", "testing")
    )
    sides = {
        side: {
            "lang": data[side],
            "level": data.get("level", OPTIONS["side"]["level"]),
            "lowercase": data.get("lowercase", False),
            "tokenizer_type": testing.get("bpe_type", "subword-nmt"),
            "voc_file": data.get(f"{side}_vocab"),
        }
        for side in ("src", "trg")
    }
    stacks = {
        name: {**model[name], "layer_norm": "pre", "alpha": 1.0}
        for name in ("encoder", "decoder")
        if isinstance(model.get(name), dict)
    }
    search = {"beam_size": testing.get("beam_size", 1), "beam_alpha": testing.get("alpha", -1.0)}
    longest = training.get("max_output_length")
    return {
        "joeynmt_version": FIRST_VERSION,
        "data": sides,
        "model": {**model, **stacks, "initializer": OPTIONS["initializer"]},
        "training": training,
        "testing": {**search, "max_output_length": -1 if longest is None else longest, "min_output_length": 0},
    }


# helpers.unicode_normalize and helpers.remove_extra_spaces
NORMALIZATION = [
    normalizers.NFKC(),
    *(normalizers.Replace(*pair) for pair in (("’", "'"), ("“", '"'), ("”", '"'), ("\u200b", ""))),
    normalizers.Replace(Regex("[ \u3000]+"), " "),
    *(normalizers.Replace(f" {mark}", mark) for mark in "?!,.:"),
    normalizers.Strip(),
]

# The character that SentencePiece and the character level write for a space.
SPACE = "▁"


def _characters(tokens: list[str], unk: str) -> Tokenizer:
    """A backend in which every character is a piece, whose id is its place in the vocabulary."""
    backend = vocabularies.words(tokens, unk)
    if " " not in tokens:  # as in 1.x
        backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(SPACE, " ")])
    return backend


def _known_merges(merges: list[tuple[str, str]], tokens: list[str], separator: str) -> list[tuple[str, str]]:
    """The merges that lead to a piece of the vocabulary: JoeyNMT undoes the others."""
    known = {token.removesuffix(separator) if token.endswith(separator) else f"{token}</w>" for token in tokens}
    kept = []
    for left, right in reversed(merges):  # the result of this merge is used only by later ones
        if left + right in known:
            known |= {left, right}
            kept.append((left, right))
    return kept[::-1]


def _put_before(backend: Tokenizer, steps: list[normalizers.Normalizer]) -> None:
    backend.normalizer = normalizers.Sequence([*steps, *([backend.normalizer] if backend.normalizer else [])])


# Options that the command may give, dots between sections.
_SECTIONS: dict[str, Any] = {
    "model": ("initializer", "tied_embeddings", "tied_softmax"),
    **{f"model.{stack}": (*OPTIONS[stack], "layer_norm") for stack in ("encoder", "decoder")},
    **{f"model.{stack}.embeddings": ("scale",) for stack in ("encoder", "decoder")},
    **{f"data.{side}": (*OPTIONS["side"], "tokenizer_type") for side in ("src", "trg")},
    **{f"data.{side}.tokenizer_cfg": ("pretokenizer", "codes", "model_file", "separator") for side in ("src", "trg")},
    "data.special_symbols": OPTIONS["special_symbols"],
    "testing": OPTIONS["testing"],
}
SETTABLE = [f"{section}.{name}" for section, names in _SECTIONS.items() for name in names]
SETTABLE = [name for name in SETTABLE if name not in _SECTIONS]


class JoeyNMT(Source):
    name = "joeynmt"
    settable = SETTABLE

    def keys(self, config: VanillaTransformerConfig) -> KeyTable:
        """The table. If the scales of the two sides differ, the source's is folded into its embedding."""
        if self._scaled("encoder") == config.scale_embedding:
            return KEYS
        return {**KEYS, "src_embed.lut.weight": [Rule("model.encoder.embed_tokens.weight", folded)]}

    @classmethod
    def recognises(cls, path: Path) -> bool:
        folder = path if path.is_dir() else path.parent
        return bool(_checkpoints(path)) and (folder / "config.yaml").is_file()

    @classmethod
    def read(cls, path: Path, trust: bool = False) -> Self:
        found = _checkpoints(path)
        if not found:
            raise ConversionError(f"{path} holds no best.ckpt; name the file itself")
        settings = found[0].parent / "config.yaml"
        if not settings.is_file():
            raise ConversionError(
                f"{settings} is missing: JoeyNMT's config, copied from the folder of the training run"
            )
        options = read_yaml(settings)
        for section in ("data", "model"):
            if not isinstance(options.get(section), dict):
                raise ConversionError(f"{settings} is not a config of JoeyNMT: it has no section `{section}`")
        if isinstance(options["data"].get("src"), str):
            options = _from_first_version(options)
        content = load_torch(found[0], trust)
        if not isinstance(content, dict) or "model_state" not in content:
            raise ConversionError(f"{found[0]} is not a checkpoint of JoeyNMT: it has no `model_state`")
        return cls(options, content["model_state"], None, found[0].parent, [found[0], settings])

    @cached_property
    def stacks(self) -> dict[str, dict[str, Any]]:
        """The options of the encoder and the decoder, with the defaults."""
        model, made = self.options["model"], {}
        for stack in ("encoder", "decoder"):
            # Tied embeddings are the source's, with its scale.
            tied = model.get("tied_embeddings", OPTIONS["tied_embeddings"])
            embeddings = (model.get("encoder" if tied else stack) or {}).get("embeddings") or {}
            defaults = OPTIONS[stack]
            given = {"embeddings": {**defaults["embeddings"], **embeddings}}
            made[stack] = {**defaults, **(model.get(stack) or {}), **given}
        return made

    @cached_property
    def sides(self) -> dict[str, dict[str, Any]]:
        """The options of the source and the target, with the defaults."""
        return {side: {**OPTIONS["side"], **(self.options["data"].get(side) or {})} for side in ("src", "trg")}

    @cached_property
    def specials(self) -> dict[str, Any]:
        return {**OPTIONS["special_symbols"], **(self.options["data"].get("special_symbols") or {})}

    def _scaled(self, stack: str) -> bool:
        return bool(self.stacks[stack]["embeddings"]["scale"])

    def _alpha(self, stack: str) -> float:
        """α of the residual step: the stack's, unless the initializer is xavier_normal (arXiv 2203.00555)."""
        if self.options["model"].get("initializer", OPTIONS["initializer"]) != "xavier_normal":
            return float(self.stacks[stack]["alpha"])
        encoder, decoder = (options["num_layers"] for options in self.stacks.values())
        return 0.81 * (encoder**4 * decoder) ** (1 / 16) if stack == "encoder" else (3 * decoder) ** (1 / 4)

    def unsupported(self) -> list[str]:
        model, data = self.options["model"], self.options["data"]
        sections = {
            "model.": (model, {name: OPTIONS[name] for name in ("initializer", "tied_embeddings", "tied_softmax")}),
            "model.encoder.": (model.get("encoder") or {}, OPTIONS["encoder"]),
            "model.decoder.": (model.get("decoder") or {}, OPTIONS["decoder"]),
            "data.src.": (data.get("src") or {}, OPTIONS["side"]),
            "data.trg.": (data.get("trg") or {}, OPTIONS["side"]),
            "data.special_symbols.": (data.get("special_symbols") or {}, OPTIONS["special_symbols"]),
            "testing.": (self.options.get("testing") or {}, OPTIONS["testing"]),
            "training.": (self.options.get("training") or {}, {"label_smoothing": OPTIONS["label_smoothing"]}),
        }
        problems = [line for where, given in sections.items() for line in wrong_types(*given, where)]
        if problems:
            return problems
        for stack, options in self.stacks.items():
            if options["type"] != "transformer":
                problems.append(f"model.{stack}.type: {options['type']} (supported: transformer)")
            if options["activation"] not in ACTIVATIONS:
                problems.append(
                    f"model.{stack}.activation: {options['activation']} (supported: {', '.join(ACTIVATIONS)})"
                )
            if options.get("layer_norm", "pre") not in ("pre", "post"):
                problems.append(f"model.{stack}.layer_norm: {options['layer_norm']} (supported: pre, post)")
        if token := self.specials["sep_token"]:
            problems.append(
                f"data.special_symbols.sep_token: {token} (the embedding of a prompt's mask is added "
                "to every position)"
            )
        for side, options in self.sides.items():
            level = options["level"]
            if level not in ("word", "char", "bpe"):
                problems.append(f"data.{side}.level: {level} (supported: word, char, bpe)")
            if level == "bpe" and (kind := self._subword_kind(side)) not in SUBWORDS:
                problems.append(f"data.{side}.tokenizer_type: {kind!r} (supported: {', '.join(SUBWORDS)})")
            if (kind := self._pretokenizer(side)) not in PRETOKENIZERS:
                name = f"data.{side}.tokenizer_cfg.pretokenizer"
                problems.append(f"{name}: {kind!r} (supported: {', '.join(PRETOKENIZERS)})")
            elif kind == "moses" and not isinstance(options["lang"], str):
                problems.append(f"data.{side}.lang: Moses needs the code of the language")
        return problems

    def _subword_kind(self, side: str) -> Any:
        options = self.sides[side]
        return options.get("tokenizer_type", options.get("bpe_type", "sentencepiece"))

    def _pretokenizer(self, side: str) -> str:
        return str(self.sides[side]["tokenizer_cfg"].get("pretokenizer", "none")).lower()

    def to_config(self) -> VanillaTransformerConfig:
        model = {**OPTIONS, **self.options["model"]}
        encoder, decoder = self.stacks.values()
        specials, (source, target) = self.specials, self.tokens.values()
        training = {**OPTIONS, **(self.options.get("training") or {})}
        tied, tied_output = model["tied_embeddings"], model["tied_softmax"]
        return VanillaTransformerConfig(
            vocab_size=len(target),
            source_vocab_size=None if source == target else len(source),
            d_model=decoder["hidden_size"],
            **by_stack(encoder, decoder, layers="num_layers", attention_heads="num_heads", ffn_dim="ff_size"),
            dropout=encoder["dropout"],
            attention_dropout=encoder["dropout"],
            activation_dropout=encoder["dropout"],
            activation_function=ACTIVATIONS[encoder["activation"]],
            decoder_activation_function=ACTIVATIONS[decoder["activation"]],
            scale_embedding=self._scaled("decoder"),
            embedding_sharing=("all" if tied else "decoder") if tied_output else "none",
            encoder_norm_position=encoder.get("layer_norm", NORMS_WITHOUT_OPTION["encoder"]),
            decoder_norm_position=decoder.get("layer_norm", NORMS_WITHOUT_OPTION["decoder"]),
            encoder_final_norm=encoder.get("layer_norm") == "pre",
            decoder_final_norm=decoder.get("layer_norm") == "pre",
            layer_norm_eps=1e-6,
            encoder_residual_alpha=self._alpha("encoder"),
            decoder_residual_alpha=self._alpha("decoder"),
            attention_bias=True,
            label_smoothing=training["label_smoothing"],
            pad_token_id=specials["pad_id"],
            bos_token_id=specials["bos_id"],
            eos_token_id=specials["eos_id"],
            decoder_start_token_id=specials["bos_id"],
        )

    @cached_property
    def tokens(self) -> dict[str, list[str]]:
        """vocabulary.Vocabulary: for each side special symbols, language tags, then the other tokens of the file."""
        made = {}
        first = [self.specials[f"{name}_token"] for name in ("unk", "pad", "bos", "eos")] + self.specials["lang_tags"]
        for side, options in self.sides.items():
            path = self.folder / f"{side}_vocab.txt"
            if not path.is_file():
                what = f"{side}_vocab.txt: the vocabulary that the training run left"
                path = self._beside(options.get("voc_file"), what)
            made[side] = list(dict.fromkeys([*first, *read_lines(self.uses(path))]))
        return made

    def _beside(self, name: str | None, what: str) -> Path:
        """The file beside the checkpoint with the name in the config, whatever its folder was in training."""
        if name and (path := named(self.folder, name)).is_file():
            return self.uses(path)
        where = f" (config.yaml names {name}; copy it there)" if name else ""
        raise ConversionError(f"{self.folder} lacks {what}{where}")

    def _backend(self, side: str) -> Tokenizer:
        """tokenizers.build_tokenizer: the steps that are applied to a text, and the vocabulary's ids."""
        options, specials = self.sides[side], self.specials
        settings, tokens, unk = options["tokenizer_cfg"], self.tokens[side], specials["unk_token"]
        names = [specials[f"{name}_token"] for name in ("unk", "pad", "bos", "eos")] + specials["lang_tags"]
        if options["level"] == "word":
            backend = vocabularies.words(tokens, unk)
            backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
        elif options["level"] == "char":
            backend = _characters(tokens, unk)
        elif self._subword_kind(side) == "sentencepiece":
            model = self._beside(settings.get("model_file"), f"the SentencePiece model of data.{side}")
            backend = vocabularies.sentencepiece(model, tokens, unk, only_listed=True)
        else:
            codes = self._beside(settings.get("codes"), f"the subword-nmt codes of data.{side}")
            separator = settings.get("separator", "@@")
            merges = _known_merges(vocabularies.read_merges(codes), tokens, separator)
            backend = vocabularies.byte_pairs(tokens, merges, unk, names, separator)
        if options["lowercase"]:
            _put_before(backend, [normalizers.Lowercase()])
        if self._pretokenizer(side) == "moses":  # its punctuation is made uniform by English rules
            uniform = "en" if options["normalize"] else None
            add_moses(backend, options["lang"], uniform=uniform, splits_dashes=False)
        if options["normalize"]:
            _put_before(backend, NORMALIZATION)
        return vocabularies.ends_with(backend, specials["eos_token"])

    def to_tokenizer(self, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer:
        """Tokenizer with the ids of the vocabularies; both sides end with the end token."""
        return vocabularies.joined(
            *map(self._backend, self.sides),
            src_lang=self.sides["src"]["lang"],
            tgt_lang=self.sides["trg"]["lang"],
            **{f"{name}_token": self.specials[f"{name}_token"] for name in ("bos", "pad", "eos", "unk")},
        )

    @cached_property
    def testing(self) -> dict[str, Any]:
        """The section `testing`; the older name of beam_alpha takes precedence, as in config.parse_test_args."""
        # Fewer beams than two are greedy search.
        options = {**OPTIONS["testing"], **(self.options.get("testing") or {})}
        alpha = options.get("alpha", options["beam_alpha"])
        return {**options, "beam_alpha": alpha, "beam_size": max(options["beam_size"], 1)}

    def to_generation_config(self, config: VanillaTransformerConfig) -> GenerationConfig:
        """The section `testing` with the defaults of config.parse_test_args, and the tokens that search.py bans."""
        options, specials = self.testing, self.specials
        banned = [specials["bos_id"], *(self.tokens["trg"].index(tag) for tag in specials["lang_tags"])]
        banned += [specials["pad_id"]] if options["beam_size"] > 1 else []
        banned += [] if options["generate_unk"] else [specials["unk_id"]]
        if self.options.get("joeynmt_version") == FIRST_VERSION:
            banned = []
        beams: dict[str, Any] = {}
        if options["beam_size"] > 1:
            alpha = max(float(options["beam_alpha"]), 0.0)
            beams = {"length_penalty": alpha, "length_penalty_type": "gnmt", "early_stopping": False}
        return search_settings(
            config,
            num_beams=options["beam_size"],
            **beams,
            min_new_tokens=max(options["min_output_length"], 0) or None,
            max_new_tokens=options["max_output_length"] if options["max_output_length"] > 0 else LONGEST_OUTPUT,
            suppress_tokens=banned or None,
        )

    def decoding_notes(self) -> list[str]:
        """Steps of search.py and tokenizers.py that `generate()` and the tokenizer do not perform."""
        options, notes = self.testing, []
        if options["max_output_length"] <= 0:
            notes.append(
                "max_output_length: JoeyNMT stops at 1.5 times the longest source of a batch; "
                f"here max_new_tokens is {LONGEST_OUTPUT}"
            )
        if options["beam_size"] > 1:
            notes.append("JoeyNMT stops when all beams have ended, generate() when no other can become better")
        for name in ("repetition_penalty", "no_repeat_ngram_size"):
            if options[name] > 0:
                notes.append(f"{name}: {options[name]} is left out; JoeyNMT applies it to the source's tokens too")
        for side in ("src", "trg"):
            if self._pretokenizer(side) == "moses":
                notes.append(note(f"data.{side}.tokenizer_cfg.pretokenizer"))
        return notes
