"""
Marian (marian-nmt/marian-dev 1.5 to 1.12): `model.npz` with the options inside, and `vocab.yml` or `.spm` beside it.

From src/models/transformer.h and transformer_factory.h, src/layers/{generic,embedding,output}.h,
src/common/config_parser.cpp, src/data/{default_vocab,sentencepiece_vocab}.cpp and src/translator/beam_search.cpp.
Marian has neither a padding token nor a start token: its decoder starts with a zero vector. Here one token after all
others serves as both: its embedding is zero, and its logit is so low that its probability is zero in float32.
"""

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from tokenizers import pre_tokenizers
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats import vocabularies
from ..formats.files import named, parse_yaml, read_lines, read_yaml, read_yaml_words
from ..formats.npz import GROWTH, Arrays
from ..formats.safe_load import check_archive
from ..formats.sentencepiece_model import UNKNOWN, read_sentencepiece
from ..key_table import KeyTable, Rule, as_vector, filled, transposed, written_out, wrong_types
from ..source import ConversionError, Source, both_stacks, search_settings


SETTINGS = "special:model.yml"
NO_POSITIONS = "transformer-disable-position-embeddings"
SIDES = ("source", "target")

# Options that our model supports with their defaults alone.
FIXED: dict[str, Any] = {
    "transformer-ffn-depth": 2,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-attention-mask": "default",
    "transformer-no-projection": False,
    "transformer-pool": False,
    "right-left": False,
    "lemma-dim-emb": 0,
    "ulr": False,
}

# src/common/config_parser.cpp; an empty string or list turns an option off.
OPTIONS: dict[str, Any] = {
    "version": "v1.0.0",  # in fact in every model
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
    "transformer-decoder-ffn-depth": 0,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    NO_POSITIONS: False,
    "transformer-tied-layers": [],
    "input-types": [],
    # Known only if model.npz.yml or decoder.yml is beside the model.
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
    **FIXED,
}

# Option -> its values that our model supports. Dropout ("d") is left out of the sequences: it only trains.
EXPRESSED: dict[str, tuple] = {
    "type": ("transformer",),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-ffn-activation": ("relu", "swish", "gelu"),
    "transformer-postprocess-emb": ("", "n"),
    "transformer-postprocess-top": ("", "n"),
    **{name: (value,) for name, value in FIXED.items()},
}

# (transformer-preprocess, transformer-postprocess) without dropout -> position of the norm.
NORM_POSITIONS: dict[tuple[str, str], Any] = {("", "an"): "post", ("n", "a"): "pre"}

# src/graph/node_operators_unary.h: swish(x) = x σ(x). Up to version 1.12.0, gelu(x) is x σ(1.702 x) (CHANGELOG.md).
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
LAST_WITH_QUICK_GELU = (1, 12, 0)

# src/graph/node_initializers.cpp: exponents reach 1, other than in transformers' MarianMT
SINUSOIDS = "sinusoidal_halves_inclusive"

# src/layers/generic.h, layerNorm
NORM_EPSILON = 1e-6

LONGEST = 512  # tokens of a translation

# A logit of our padding token: e^-10000 is 0 in float32, and -10000 is a number in float16 too.
NEVER = -1e4


def padded(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """Rows (V, D), with rows of zeros appended up to the padding token."""
    return F.pad(tensor, (0, 0, 0, config.vocab_size - len(tensor)))


def padded_bias(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """The bias (1, V) of the logits as a vector, with the bias of the padding token appended."""
    return F.pad(tensor.flatten(), (0, config.vocab_size - tensor.numel()), value=NEVER)


def bias_of_rows(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """A bias of zeros (V) for a model without one ("output-omit-bias"), from its output matrix (V, D)."""
    return padded_bias(tensor.new_zeros(len(tensor)), config)


# A norm before its sublayer has "_pre" in its name; the options allow only one of the two.
_NORM = "ln_{scale,bias,scale_pre,bias_pre}", "{weight,bias,weight,bias}"

# Candidates for the output matrix, of which the first that exists is used, and the function that makes a bias from it.
OUTPUT_MATRICES = {
    "decoder_ff_logit_out_Wt": bias_of_rows,
    "decoder_ff_logit_out_W": lambda matrix, config: bias_of_rows(matrix.T, config),  # (D, V), of old releases
    "decoder_Wemb": bias_of_rows,
    "Wemb": bias_of_rows,
}

# Names inside a layer; layers are counted from 1, and one may be used several times ("transformer-tied-layers").
LAYER_KEYS = written_out(
    {
        "{self,context}_W{q,k,v,o}": Rule("{self,encoder}_attn.{q,k,v,out}_proj.weight", transposed),
        "{self,context}_b{q,k,v,o}": Rule("{self,encoder}_attn.{q,k,v,out}_proj.bias", as_vector),
        f"{{self,context}}_Wo_{_NORM[0]}": Rule(f"{{self,encoder}}_attn_layer_norm.{_NORM[1]}", as_vector),
        "ffn_W{1,2}": Rule("fc{1,2}.weight", transposed),
        "ffn_b{1,2}": Rule("fc{1,2}.bias", as_vector),
        f"ffn_ffn_{_NORM[0]}": Rule(f"final_layer_norm.{_NORM[1]}", as_vector),
    }
)

KEYS = written_out(
    {
        "{encoder,decoder}_Wemb": Rule("model.{encoder,decoder}.embed_tokens.weight", padded),
        "decoder_ff_logit_out_Wt": Rule("lm_head.weight", padded),
        "decoder_ff_logit_out_W": Rule("lm_head.weight", lambda matrix, config: padded(matrix.T, config)),
        "decoder_ff_logit_out_b": Rule("lm_head.bias", padded_bias),
        "Wpos": ["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"],
        f"{{encoder,decoder}}_{{emb,top}}_{_NORM[0]}": Rule(
            f"model.{{encoder,decoder}}.{{layernorm_embedding,layer_norm}}.{_NORM[1]}", as_vector
        ),
    }
)


def _decoder_layers(options: dict[str, Any]) -> Sequence[int]:
    return options["transformer-tied-layers"] or range(1, options["dec-depth"] + 1)


def _models(path: Path) -> list[Path]:
    """The `.npz` files at `path` that hold Marian's settings."""
    return [file for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path]) if _has_settings(file)]


def _has_settings(file: Path) -> bool:
    if file.suffix != ".npz" or not file.is_file() or not zipfile.is_zipfile(file):
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return f"{SETTINGS}.npy" in archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError):  # damaged; `read` reports it if the file is named
        return False


@dataclass(frozen=True)
class Vocabulary:
    """One side's tokens by id, the names of two of them, and the SentencePiece model that splits its text."""

    tokens: list[str]
    eos: str
    unk: str
    sentencepiece: Path | None
    files: tuple[Path, ...]


def _vocabularies(folder: Path, options: dict[str, Any]) -> list[Vocabulary]:
    options = filled(OPTIONS, options)
    found = [named(folder, name) for name in options["vocabs"]]
    if not found:
        found = [file for file in sorted(folder.iterdir()) if file.match("*vocab*.yml") or file.match("*vocab*.spm")]
        found *= 2 if len(found) == 1 else 1
    missing = [file.name for file in found if not file.is_file()]
    if missing or len(found) != 2:
        what = f"lacks {', '.join(missing)}" if missing else "has no decoder.yml that names two vocabularies"
        raise ConversionError(f"{folder} {what}; put the vocabularies beside the model, in Marian's formats")
    sides = [_read_vocabulary(file, folder / f"{side}.spm") for side, file in zip(SIDES, found, strict=True)]
    for file, side, limit in zip(found, sides, options["dim-vocabs"], strict=False):
        if limit:  # later ids are not used (DefaultVocab::load)
            del side.tokens[limit:]
        vocabularies.check_unique(side.tokens, str(file))
    return sides


def _read_vocabulary(file: Path, beside: Path) -> Vocabulary:
    """A SentencePiece model (`.spm`), tokens with their ids in YAML or JSON, or one token per line."""
    if file.suffix == ".spm":
        pieces = read_sentencepiece(file).pieces
        unk = next((piece.text for piece in pieces if piece.kind == UNKNOWN), "<unk>")
        return Vocabulary([piece.text for piece in pieces], "</s>", unk, file, (file,))
    if file.suffix in (".yml", ".yaml", ".json"):
        content = read_yaml_words(file)
        try:
            ids = {int(number): token for token, number in content.items()}
        except (TypeError, ValueError) as error:
            raise ConversionError(f"{file} has a token whose id is not a number: {error}") from error
        if not ids or len(ids) < len(content) or not 0 <= min(ids) <= max(ids) < 2 * len(ids) + 100:
            raise ConversionError(f"{file} has one id for several tokens, or ids far beyond its {len(ids)} tokens")
        tokens = [ids.get(number) or f"<unused{number}>" for number in range(max(ids) + 1)]
    else:
        tokens = list(read_lines(file))
    # Nematus has other names for the first two.
    eos, unk = ("</s>" if "</s>" in tokens else tokens[0]), ("<unk>" if "<unk>" in tokens else tokens[1])
    # OPUS-MT splits texts before Marian reads them, with models of these names.
    spm = beside if beside.is_file() else None
    return Vocabulary(tokens, eos, unk, spm, (file, spm) if spm else (file,))


def _without_dropout(options: dict[str, Any], name: str) -> str:
    return options[f"transformer-{name}"].replace("d", "")


class Marian(Source):
    name = "marian"

    def keys(self, config: VanillaTransformerConfig) -> KeyTable:
        """The table. The options determine which layers share a name and which matrices are tied."""
        options = self.settings
        embeddings = [f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")]
        shared = ["model.shared.weight"] if config.embedding_sharing == "all" else embeddings
        table = {name: [*rules] for name, rules in KEYS.items()}
        table["Wemb"] = [Rule(name, padded) for name in shared]
        if "decoder_ff_logit_out_b" not in self.tensors:
            output, bias = next(pair for pair in OUTPUT_MATRICES.items() if pair[0] in (*self.tensors, "Wemb"))
            table[output].append(Rule("lm_head.bias", bias))
        numbers = {"encoder": range(1, options["enc-depth"] + 1), "decoder": _decoder_layers(options)}
        for stack in numbers:
            for layer, number in enumerate(numbers[stack]):
                for name, (rule,) in LAYER_KEYS.items():
                    target = Rule(f"model.{stack}.layers.{layer}.{rule.target}", rule.transform)
                    table.setdefault(f"{stack}_l{number}_{name}", []).append(target)
        return table

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether a file, or a file in a folder, has Marian's settings inside."""
        return bool(_models(path))

    @classmethod
    def read(cls, path: Path, trust: bool = False) -> Self:
        models = _models(path)
        if not models and path.suffix == ".npz":
            check_archive(path, GROWTH)
        if len(models) != 1:
            found = ", ".join(file.name for file in models) or f"no .npz file with {SETTINGS} inside"
            raise ConversionError(f"{path} should hold one model of Marian, and holds {found}; name the file itself")
        try:
            tensors = Arrays(models[0])
            text = tensors.pop(SETTINGS).numpy().tobytes().rstrip(b"\0").decode()
        except (UnicodeDecodeError, ConversionError) as error:
            raise ConversionError(f"{models[0]} is not a complete model of Marian: {error}") from error
        # What training and decoding saved beside the model: vocabularies, dropout and options of decoding.
        beside = [Path(f"{models[0]}.yml"), models[0].parent / "decoder.yml", Path(f"{models[0]}.decoder.yml")]
        beside, options = [file for file in beside if file.is_file()], dict[str, Any]()
        for settings in beside:
            options |= read_yaml(settings)
        options |= parse_yaml(text, f"{SETTINGS} in {models[0]}")
        if problems := wrong_types(filled(OPTIONS, options), OPTIONS):  # checked first: they name the vocabularies
            raise ConversionError("\n  ".join([f"{models[0]} has options that cannot be used:", *problems]))
        vocabulary = dict(zip(SIDES, _vocabularies(models[0].parent, options), strict=True))
        files = [file for side in vocabulary.values() for file in side.files]
        return cls(options, tensors, vocabulary, models[0].parent, [models[0], *beside, *files])

    @cached_property
    def settings(self) -> dict[str, Any]:
        return filled(OPTIONS, self.options)

    def unsupported(self) -> list[str]:
        options = self.settings
        problems = []
        for name, expressed in EXPRESSED.items():
            value = options[name]
            if (value.replace("d", "") if name.startswith("transformer-postprocess") else value) not in expressed:
                problems.append(f"{name}: {value!r} (supported: {', '.join(map(repr, expressed))})")
        if (_without_dropout(options, "preprocess"), _without_dropout(options, "postprocess")) not in NORM_POSITIONS:
            problems.append(
                f"transformer-preprocess: {options['transformer-preprocess']!r} with transformer-postprocess: "
                f"{options['transformer-postprocess']!r} (supported: 'n' with 'da', '' with 'dan')"
            )
        if len(options["dim-vocabs"]) != 2:
            problems.append(f"dim-vocabs: {options['dim-vocabs']} (supported: one source and one target)")
        if not set(options["input-types"]) <= {"sequence"}:
            problems.append(f"input-types: {options['input-types']} (supported: sequence)")
        if len(_decoder_layers(options)) != options["dec-depth"]:
            problems.append(f"transformer-tied-layers: {options['transformer-tied-layers']} (not one for each layer)")
        return problems

    def _are_separate(self) -> bool:
        source, target = (self.vocabulary[side] for side in SIDES)
        return (source.tokens, source.sentencepiece) != (target.tokens, target.sentencepiece)

    def _rows(self) -> dict[str, int]:
        """Numbers of rows of the embeddings of a side; Marian has more rows than tokens if dim-vocabs says so."""
        rows = {}
        for side, own in zip(SIDES, ("encoder_Wemb", "decoder_Wemb"), strict=True):
            name = own if own in self.tensors else "Wemb"
            if name not in self.tensors:
                raise ConversionError(f"the model has no embeddings of the {side}: neither {own} nor Wemb")
            rows[side], tokens = len(self.tensors[name]), len(self.vocabulary[side].tokens)
            if tokens > rows[side]:
                raise ConversionError(f"the {side} vocabulary has {tokens} tokens, and {name} has {rows[side]} rows")
        return rows

    def to_config(self) -> VanillaTransformerConfig:
        """Config of the model that the options describe, with one piece more than the larger vocabulary."""
        options, tensors = self.settings, self.tensors
        padding = max(self._rows().values())
        tied = options["tied-embeddings"] or options["tied-embeddings-all"]
        shared = options["tied-embeddings-src"] or options["tied-embeddings-all"]
        norm_position = NORM_POSITIONS[
            _without_dropout(options, "preprocess"), _without_dropout(options, "postprocess")
        ]
        version = tuple(int(part) for part in re.findall(r"\d+", options["version"])[:3])
        activation, is_old = ACTIVATIONS[options["transformer-ffn-activation"]], version <= LAST_WITH_QUICK_GELU
        target, learned = self.vocabulary["target"], "Wpos" in tensors
        positions: Any = "learned" if learned else "none" if options[NO_POSITIONS] else SINUSOIDS
        return VanillaTransformerConfig(
            vocab_size=padding + 1,
            source_vocab_size=padding + 1 if self._are_separate() else None,
            d_model=options["dim-emb"],
            encoder_layers=options["enc-depth"],
            decoder_layers=options["dec-depth"],
            **both_stacks(attention_heads=options["transformer-heads"], norm_position=norm_position),
            **both_stacks(final_norm=_without_dropout(options, "postprocess-top") == "n"),
            encoder_ffn_dim=options["transformer-dim-ffn"],
            decoder_ffn_dim=options["transformer-decoder-dim-ffn"] or options["transformer-dim-ffn"],
            dropout=options["transformer-dropout"],
            attention_dropout=options["transformer-dropout-attention"],
            activation_dropout=options["transformer-dropout-ffn"],
            activation_function="quick_gelu" if activation == "gelu" and is_old else activation,
            scale_embedding=positions
            == SINUSOIDS,  # addPositionalEmbeddings scales embeddings only if it adds positions
            layernorm_embedding=_without_dropout(options, "postprocess-emb") == "n",
            embedding_sharing="none" if not tied else "all" if shared else "decoder",
            position_encoding=positions,
            max_position_embeddings=len(tensors["Wpos"]) if learned else 1024,
            layer_norm_eps=NORM_EPSILON,
            attention_bias=True,
            output_bias=True,
            label_smoothing=options["label-smoothing"],
            pad_token_id=padding,
            eos_token_id=target.tokens.index(target.eos),
        )

    def to_tokenizer(self, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer:
        """Tokenizer with the ids of the vocabularies, followed by a padding token with the same id in both."""
        backends, names = [], []
        for side in (self.vocabulary[side] for side in SIDES):
            tokens = side.tokens + [f"<unused{number}>" for number in range(len(side.tokens), config.pad_token_id)]
            padding = "<pad>" if "<pad>" not in tokens else f"<pad{config.pad_token_id}>"
            if side.sentencepiece:
                backend = vocabularies.sentencepiece(side.sentencepiece, [*tokens, padding], side.unk)
            else:
                backend = vocabularies.words([*tokens, padding], side.unk)
                backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="removed")
            backends.append(vocabularies.ends_with(backend, side.eos))
            names.append({"pad_token": padding, "eos_token": side.eos, "unk_token": side.unk})
        if names[0] != names[1]:
            raise ConversionError(f"the vocabularies call their special tokens differently: {names[0]} and {names[1]}")
        return vocabularies.joined(*backends, is_separate=self._are_separate(), **names[1])

    def to_generation_config(self, config: VanillaTransformerConfig) -> GenerationConfig:
        """decoder.yml's, otherwise marian-decoder's defaults: config_parser.cpp and translator/history.h."""
        options, target = self.settings, self.vocabulary["target"]
        unknown = [] if options["allow-unk"] else [target.tokens.index(target.unk)]
        return search_settings(
            config,
            num_beams=options["beam-size"],
            length_penalty=float(options["normalize"]),  # score / length^normalize, including the end token
            early_stopping="never",
            max_new_tokens=LONGEST,
            suppress_tokens=[*unknown, config.pad_token_id],
        )

    def decoding_notes(self) -> list[str]:
        """Steps of marian-decoder that `generate()` does not perform."""
        options = self.settings
        notes = [
            "marian-decoder narrows its beam by one with each finished translation, generate() keeps its width",
            f"marian-decoder stops at {options['max-length-factor']:g} times the source's length, generate() after "
            f"{LONGEST} tokens",
        ]
        if _without_dropout(options, "preprocess"):
            # Seen in 1.12.42: other scores for the same translations of the same model, from the second token on.
            notes.append(
                "marian-decoder disagrees with its own scorer on pre-norm models; generate() follows the scorer"
            )
        for side, rows in self._rows().items():
            if rows > (tokens := len(self.vocabulary[side].tokens)):
                notes.append(
                    f"the {side} vocabulary names {tokens} of {rows} tokens; the others are called <unused...>"
                )
        if options["word-penalty"]:
            notes.append(f"word-penalty: {options['word-penalty']:g} for every token is not subtracted")
        if "Wpos" in self.tensors:
            notes.append("marian uses its last trained position for all positions after it; here these are an error")
        return notes
