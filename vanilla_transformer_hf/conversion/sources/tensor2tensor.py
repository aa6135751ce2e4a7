"""
tensor2tensor (1.0 to 1.15): `model.ckpt-*.index` and `.data-*`, beside them hparams.json and `vocab.*`.

From tensor2tensor/models/transformer.py, layers/{transformer_layers,common_attention,common_layers,modalities}.py,
data_generators/{text_encoder,tokenizer,problem}.py and utils/{decoding,beam_search}.py. No TensorFlow is needed.

The three uses of a shared matrix differ: id 0 enters both stacks as a zero vector but has a row in the output, and a
vector for the kind of the target is added to every source embedding. So they become three matrices here.
"""

import math
import re
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import torch
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats import vocabularies
from ..formats.files import named, read_json, read_lines, read_text
from ..formats.subword_text import subwords
from ..formats.tensor_bundle import TensorBundle
from ..key_table import KeyTable, Rule, filled, not_expressed, transposed, written_out, wrong_types
from ..source import ConversionError, Source, Tensors, both_stacks, search_settings


SETTINGS = "hparams.json"

# Options that our model supports with their defaults alone.
FIXED: dict[str, Any] = {
    "norm_type": "layer",
    "self_attention_type": "dot_product",
    "attention_variables_3d": False,
    "causal_decoder_self_attention": True,
    "unidirectional_encoder": False,
    "proximity_bias": False,
    "prepend_mode": "none",
    "num_area_layers": 0,
    "hard_attention_k": 0,
}

# basic_params1 in layers/common_hparams.py and transformer_base_v1 in models/transformer.py
OPTIONS: dict[str, Any] = {
    "model": "transformer",  # of flags_t2t.txt
    "problem": None,  # of flags_t2t.txt
    "hidden_size": 512,
    "filter_size": 2048,
    "num_hidden_layers": 6,
    "num_encoder_layers": 0,  # 0: num_hidden_layers
    "num_decoder_layers": 0,
    "num_heads": 8,
    "attention_key_channels": 0,  # 0: hidden_size
    "attention_value_channels": 0,
    "layer_preprocess_sequence": "none",
    "layer_postprocess_sequence": "dan",
    "norm_epsilon": 1e-6,
    "layer_prepostprocess_dropout": 0.1,
    "attention_dropout": 0.0,
    "relu_dropout": 0.0,
    "label_smoothing": 0.1,
    "ffn_layer": "dense_relu_dense",
    "pos": "timing",
    "multiply_embedding_mode": "sqrt_depth",
    "vocab_divisor": 1,
    "use_target_space_embedding": True,
    # A property of the problem that no file contains. All translation problems of 1.15 have SpaceID.GENERIC; for
    # another one, add it to hparams.json.
    "target_space_id": 0,
    "max_length": 256,
    **FIXED,
}

# Option -> its values that our model supports.
EXPRESSED: dict[str, tuple] = {
    "model": ("transformer",),
    "ffn_layer": ("dense_relu_dense", "conv_hidden_relu"),  # the same; the second is its old name
    "pos": ("timing", "emb", "none"),
    **{name: (value,) for name, value in FIXED.items()},
}

POSITIONS: dict[str, Any] = {"timing": "sinusoidal_halves_inclusive", "emb": "learned", "none": "none"}

# (layer_preprocess_sequence, layer_postprocess_sequence) without dropout, "none" as nothing -> position of the norm
NORM_POSITIONS: dict[tuple[str, str], Any] = {("n", "a"): "pre", ("", "an"): "post"}

# Variables of the optimizer and of training's counters.
NO_WEIGHTS = re.compile(
    r"(training|losses_avg|train_stats|optimizer)/.*|(.*/)?(global_step|beta\d_power|loss_scale.*)"
    r"|.*/(Adam(_\d)?|Adafactor(_\d)?|Momentum|Adagrad|RMSProp(_\d)?|vr|vc|v|m)"
)

UNKNOWN = ("UNK", "<UNK>")  # oov_token of problems that have one; tensor2tensor fails on a new word without it
RESERVED = ["<pad>", "<EOS>"]  # ids 0 and 1; subword vocabularies end every token, including these, with "_"
PAD, EOS = 0, 1


def input_rows(
    tensor: torch.Tensor, config: VanillaTransformerConfig, space: torch.Tensor | None = None
) -> torch.Tensor:
    """Rows (V, D) as they enter a stack: zeros for id 0, plus `space` (D), which is added after scaling."""
    rows = tensor.clone()
    rows[PAD] = 0
    if space is not None:
        rows += space / (math.sqrt(config.d_model) if config.scale_embedding else 1.0)
    return rows


# Names without the scopes around them (see `_plain_name`).
_NORM = "{layer_prepostprocess,layer_postprocess}/layer_norm/layer_norm_{scale,bias}"
_LAYER, _OURS = "body/{encoder,decoder}/layer_{}", "model.{encoder,decoder}.layers.{}"
KEYS = written_out(
    {
        f"{_LAYER}/self_attention/{_NORM}": f"{_OURS}.{{self_attn_layer_norm}}.{{weight,bias}}",
        f"{_LAYER}/encdec_attention/{_NORM}": f"{_OURS}.{{encoder_attn_layer_norm}}.{{weight,bias}}",
        f"{_LAYER}/ffn/{_NORM}": f"{_OURS}.{{final_layer_norm}}.{{weight,bias}}",
        f"{_LAYER}/{{self,encdec}}_attention/multihead_attention/{{q,k,v,output_transform}}/kernel": Rule(
            f"{_OURS}.{{self,encoder}}_attn.{{q,k,v,out}}_proj.weight", transposed
        ),
        f"{_LAYER}/ffn/conv{{1,2}}/kernel": Rule(f"{_OURS}.fc{{1,2}}.weight", transposed),
        f"{_LAYER}/ffn/conv{{1,2}}/bias": f"{_OURS}.fc{{1,2}}.bias",
        "body/{encoder,decoder}/layer_prepostprocess/layer_norm/layer_norm_{scale,bias}": (
            "model.{encoder,decoder}.layer_norm.{weight,bias}"
        ),
        "body/{inputs,targets}_positional_embedding": "model.{encoder,decoder}.embed_positions.weight",
        "body/target_space_embedding/kernel": None,  # the only row in use is already part of the source embeddings
    }
)


def _plain_name(name: str) -> str:
    """A variable's name without the scopes around it, and without the number of a layer's use ("layer_3_1")."""
    # Layers named as in TensorFlow 2 stand in "transformer/parallel_0_5/transformer/transformer/".
    inner = re.match(r"(?:.*/)?((?:body|symbol_modality_\d+_\d+)/.*)", name)
    if name.endswith("/target_space_embedding/kernel"):
        return "body/target_space_embedding/kernel"
    return re.sub(r"/layer_(\d+)_\d+/", r"/layer_\1/", inner[1]) if inner else name


class Variables(Tensors):
    """The weights of a checkpoint by their plain names; matrices that are stored in parts are joined."""

    def __init__(self, bundle: TensorBundle):
        self.bundle = bundle
        self.entries: dict[str, list[str]] = {}
        parts: dict[str, dict[int, str]] = {}
        for stored in bundle:
            name = _plain_name(stored)
            if not stored or NO_WEIGHTS.fullmatch(stored):
                continue
            if match := re.fullmatch(r"(symbol_modality_.*)/weights_(\d+)", name):
                parts.setdefault(match[1], {})[int(match[2])] = stored
            elif name in self.entries:
                raise ConversionError(f"{bundle.prefix} holds both {self.entries[name][0]} and {stored}")
            else:
                self.entries[name] = [stored]
        for name, numbered in parts.items():
            if sorted(numbered) != list(range(len(numbered))):
                raise ConversionError(f"{bundle.prefix} lacks parts of {name}: there are {sorted(numbered)}")
            self.entries[name] = [numbered[number] for number in range(len(numbered))]  # 10 comes behind 9

    def shape(self, name: str) -> tuple[int, ...]:
        shapes = [self.bundle.shape(stored) for stored in self.entries[name]]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]

    def __getitem__(self, name: str) -> torch.Tensor:
        parts = [self.bundle[stored] for stored in self.entries[name]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _prefixes(path: Path) -> list[Path]:
    """The checkpoint at a path: the latest of a folder, or the one that a file belongs to."""
    if not path.is_dir():
        match = re.fullmatch(r"(.+?)\.(index|data-\d+-of-\d+|meta)", path.name)
        return [path.with_name(match[1])] if match else []
    state = path / "checkpoint"
    if state.is_file() and (match := re.search(r'^model_checkpoint_path: "(.*)"', read_text(state), re.M)):
        prefix = named(path, match[1])
        if Path(f"{prefix}.index").is_file():
            return [prefix]
    return sorted(file.with_suffix("") for file in path.glob("*.index"))


def _vocabularies(folder: Path, problem: str | None) -> dict[str, list[str]]:
    """The lines of the vocabularies of "source" and "target"; a problem has a name like "translate_ende_wmt32k"."""
    files = sorted(folder.glob("vocab.*"))
    if len(files) == 1:
        files *= 2
    elif len(files) == 2:
        match = re.search(r"_([a-z]{2})([a-z]{2})_", f"{problem}_")
        languages = [match[1], match[2]] if match else []
        names = [languages[:: -1 if str(problem).endswith("_rev") else 1], ["source", "target"], ["inputs", "targets"]]
        by_name = {re.split(r"[.-]", file.name)[-1]: file for file in files}
        files = next(([by_name[name] for name in pair] for pair in names if pair and set(pair) == set(by_name)), [])
    if len(files) != 2:
        raise ConversionError(
            f"{folder} should hold the file vocab.* of the problem {problem}, or two whose names end with the source "
            "and the target language, or with .source and .target; copy them from tensor2tensor's data_dir"
        )
    return {side: _read_vocabulary(file) for side, file in zip(("source", "target"), files, strict=True)}


def _read_vocabulary(file: Path) -> list[str]:
    """Tokens, one per line; some files have them in quotes (SubwordTextEncoder._load_from_file_object)."""
    tokens = []
    for line in read_lines(file):
        token = line.rstrip()
        in_quotes = len(token) > 1 and token[0] == token[-1] and token[0] in "'\""
        tokens.append(token[1:-1] if in_quotes else token)
    if tokens[:2] not in (RESERVED, [f"{token}_" for token in RESERVED]):
        raise ConversionError(f"{file} does not begin with {' and '.join(RESERVED)}, as tensor2tensor's do")
    vocabularies.check_unique(tokens, str(file))
    return tokens


def _norms(options: dict[str, Any]) -> tuple[str, str]:
    sequences = (options["layer_preprocess_sequence"], options["layer_postprocess_sequence"])
    before, after = ("" if sequence == "none" else sequence.replace("d", "") for sequence in sequences)
    return before, after


class Tensor2Tensor(Source):
    name = "tensor2tensor"
    settable = tuple(OPTIONS)

    def keys(self, config: VanillaTransformerConfig) -> KeyTable:
        """The table, by the options, which determine the matrices' roles and the vector added to the source's."""
        options, tensors = self.settings, self.tensors
        space = None
        if options["use_target_space_embedding"] and "body/target_space_embedding/kernel" in tensors:
            space = tensors["body/target_space_embedding/kernel"][options["target_space_id"]]
        source, target, output = self._matrices()
        table = {**KEYS, **{name: [] for name in (source, target, output)}}
        table[source].append(Rule("model.encoder.embed_tokens.weight", partial(input_rows, space=space)))
        table[target].append(Rule("model.decoder.embed_tokens.weight", input_rows))
        table[output].append(Rule("lm_head.weight"))
        return table

    def _matrices(self) -> tuple[str, str, str]:
        """Names of the matrices of source, target and output, which may be the same matrix."""
        tables = {name: len(self.tensors[name]) for name in self.tensors if name.startswith("symbol_modality")}
        found = []
        for side, leaf in (("source", "input_emb"), ("target", "target_emb"), ("target", "softmax")):
            pieces = len(self.vocabulary[side])
            own = [name for name in tables if name.endswith(f"/{leaf}")]
            shared = [name for name in tables if name.endswith("/shared")]
            # One matrix for each vocabulary, with its number of rows rounded up.
            divisor = self.settings["vocab_divisor"]
            names = [name for name in own or shared if tables[name] == pieces + -pieces % divisor]
            if len(names) != 1:
                sizes = ", ".join(f"{name} with {size} rows" for name, size in tables.items()) or "none"
                raise ConversionError(f"expected one matrix for the {side} vocabulary of {pieces} pieces, got {sizes}")
            found.append(names[0])
        return found[0], found[1], found[2]

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether the path has an index of a TensorFlow checkpoint, or is part of one."""
        return any(Path(f"{prefix}.index").is_file() for prefix in _prefixes(path))

    @classmethod
    def read(cls, path: Path, trust: bool = False) -> Self:
        prefixes = _prefixes(path)
        if len(prefixes) != 1 or not Path(f"{prefixes[0]}.index").is_file():
            found = ", ".join(prefix.name for prefix in prefixes) or "no .index file"
            raise ConversionError(
                f"{path} should hold one checkpoint of TensorFlow, and holds {found}; name its .index"
            )
        folder = prefixes[0].parent
        bundle = TensorBundle(prefixes[0])
        settings = folder / SETTINGS
        if not settings.is_file():
            raise ConversionError(f"{settings} is missing: tensor2tensor writes it into the folder of every training")
        options = read_json(settings)
        files = [*bundle.files(), settings, *sorted(folder.glob("vocab.*"))]
        flags = folder / "flags_t2t.txt"
        if flags.is_file():
            files.append(flags)
            for line in read_lines(flags):
                name, _, value = line.removeprefix("--").partition("=")
                if name in ("model", "problem") and value:
                    options.setdefault(name, value)
        vocabulary = _vocabularies(folder, options.get("problem"))
        return cls(options, Variables(bundle), vocabulary, folder, files)

    @cached_property
    def settings(self) -> dict[str, Any]:
        options = filled(OPTIONS, self.options)
        for stack in ("encoder", "decoder"):
            options[f"num_{stack}_layers"] = options[f"num_{stack}_layers"] or options["num_hidden_layers"]
        return options

    def unsupported(self) -> list[str]:
        options = self.settings
        if problems := wrong_types(options, OPTIONS):
            return problems
        problems = not_expressed(options, EXPRESSED)
        if options["num_heads"] < 1:
            problems.append(f"num_heads: {options['num_heads']} (supported: at least 1)")
        if _norms(options) not in NORM_POSITIONS:
            problems.append(
                f"layer_preprocess_sequence: {options['layer_preprocess_sequence']!r} with "
                f"layer_postprocess_sequence: {options['layer_postprocess_sequence']!r} "
                "(supported: 'n' with 'da', 'none' with 'dan')"
            )
        return problems

    def to_config(self) -> VanillaTransformerConfig:
        options = self.settings
        heads, width = options["num_heads"], options["hidden_size"]
        source, target, _ = (len(self.tensors[name]) for name in self._matrices())
        shared = self.vocabulary["source"] == self.vocabulary["target"]
        return VanillaTransformerConfig(
            vocab_size=target,
            source_vocab_size=None if shared and source == target else source,
            d_model=width,
            encoder_layers=options["num_encoder_layers"],
            decoder_layers=options["num_decoder_layers"],
            **both_stacks(attention_heads=heads, ffn_dim=options["filter_size"]),
            **both_stacks(norm_position=NORM_POSITIONS[_norms(options)]),
            d_k=options["attention_key_channels"] // heads or None,
            d_v=options["attention_value_channels"] // heads or None,
            dropout=options["layer_prepostprocess_dropout"],
            attention_dropout=options["attention_dropout"],
            activation_dropout=options["relu_dropout"],
            scale_embedding=options["multiply_embedding_mode"] == "sqrt_depth",
            embedding_sharing="none",
            position_encoding=POSITIONS[options["pos"]],
            max_position_embeddings=options["max_length"] if options["pos"] == "emb" else 1024,
            layer_norm_eps=options["norm_epsilon"],
            label_smoothing=options["label_smoothing"],
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=PAD,
        )

    def to_tokenizer(self, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer:
        """Tokenizer with the ids of the vocabularies: subwords, or the words of a text that is tokenized already."""
        backends = {}
        for side, tokens in self.vocabulary.items():
            if tokens[PAD].endswith("_"):
                backend = subwords(tokens)
            else:
                backend = vocabularies.words(tokens, next((token for token in UNKNOWN if token in tokens), ""))
            backends[side] = vocabularies.ends_with(backend, tokens[EOS])
        return vocabularies.joined(
            *backends.values(),
            is_separate=self.vocabulary["source"] != self.vocabulary["target"],
            pad_token=self.vocabulary["target"][PAD],
            eos_token=self.vocabulary["target"][EOS],
        )

    def to_generation_config(self, config: VanillaTransformerConfig) -> GenerationConfig:
        """The defaults of t2t_decoder: decode_hparams in utils/decoding.py, beam_search in utils/beam_search.py."""
        return search_settings(
            config,
            num_beams=4,
            length_penalty=0.6,
            length_penalty_type="gnmt",
            early_stopping=False,
            max_extra_tokens=100,
        )

    def guessed(self) -> dict[str, Any]:
        """The target space of a problem that is not one of tensor2tensor's own translation problems."""
        options = self.settings
        told = "target_space_id" in self.options or str(options["problem"]).startswith("translate_")
        return (
            {}
            if told or not options["use_target_space_embedding"]
            else {"target_space_id": options["target_space_id"]}
        )
