"""
fairseq (0.6 to 0.12): `checkpoint*.pt`, beside it `dict.<source>.txt` and `dict.<target>.txt`, and the file that
splits words into pieces: codes of subword-nmt or fastBPE, or a SentencePiece model.

After fairseq/models/transformer/{transformer_config,transformer_legacy,transformer_encoder,transformer_decoder}.py,
fairseq/modules, fairseq/data/dictionary.py and fairseq/sequence_generator.py.
"""

import re
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats import vocabularies
from ..formats.files import named, read_lines
from ..formats.moses import add_moses, note
from ..formats.safe_load import load_torch, plain
from ..key_table import KeyTable, Rule, third, written_out, wrong_types
from ..source import ConversionError, Source, search_settings
from .saved_model import FINAL_NORM_KEYS, STACK_KEYS


# Dictionary.__init__: these come before the tokens of dict.txt.
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
BOS, PAD, EOS = 0, 1, 2
STACKS = ("encoder", "decoder")

# transformer_legacy.base_architecture, TransformerConfig, TranslationConfig, GenerationConfig. None: see `_options`.
OPTIONS: dict[str, Any] = {
    "arch": "transformer",
    "task": "translation",
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_layers": 6,
    "encoder_attention_heads": 8,
    "encoder_normalize_before": False,
    "encoder_learned_pos": False,
    "decoder_embed_dim": None,
    "decoder_ffn_embed_dim": None,
    "decoder_input_dim": None,
    "decoder_output_dim": None,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "decoder_normalize_before": False,
    "decoder_learned_pos": False,
    "no_decoder_final_norm": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "relu_dropout": 0.0,  # the name of activation_dropout before 0.8, still read where that is 0
    "activation_fn": "relu",
    "share_all_embeddings": False,
    "share_decoder_input_output_embed": False,
    "no_token_positional_embeddings": False,
    "no_scale_embedding": False,
    "layernorm_embedding": False,
    "max_source_positions": 1024,
    "max_target_positions": 1024,
    "label_smoothing": 0.0,
    "source_lang": None,
    "target_lang": None,
    "bpe": None,
    "tokenizer": None,
    "moses_no_dash_splits": False,
    "moses_no_escape": False,
    "beam": 5,
    "lenpen": 1.0,
    "unnormalized": False,
    "max_len_a": 0.0,
    "max_len_b": 200,
    "min_len": 1,
    "unkpen": 0.0,
}

# Options that change the model -> the value that leaves it unchanged; None leaves it unchanged, too.
NEUTRAL: dict[str, Any] = {
    "adaptive_input": False,
    "adaptive_softmax_cutoff": None,
    "char_inputs": False,
    "cross_self_attention": False,
    "decoder_layers_to_keep": None,
    "encoder_layers_to_keep": None,
    "no_cross_attention": False,
    "quant_noise_scalar": 0.0,
    "scale_attn": False,
    "scale_fc": False,
    "scale_heads": False,
    "scale_resids": False,
    "xformers_att_config": None,
}

ARCHITECTURES = re.compile(r"transformer(_align|_tiny|_base|_big|_(iwslt|wmt|vaswani_wmt)_.*)?")

# data/encoders: nltk's tokenizer is applied to texts before, and is not part of ours
TOKENIZERS = (None, "space", "moses", "nltk")

# utils.get_activation_fn
ACTIVATIONS = {
    "relu": "relu",
    "relu_squared": "relu2",
    "gelu": "gelu",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "tanh": "tanh",
    "linear": "linear",
    "swish": "silu",
}


def _thirds(attention: str) -> list[str | Rule]:
    return [Rule(f"{attention}.{letter}_proj.{{weight,bias}}", third(number)) for number, letter in enumerate("qkv")]


PATTERNS: KeyTable = {
    # Ours, with "model." in front.
    **{name.removeprefix("model."): name for name in (*STACK_KEYS, *FINAL_NORM_KEYS)},
    "{encoder,decoder}.layernorm_embedding.{weight,bias}": "model.{encoder,decoder}.layernorm_embedding.{weight,bias}",
    "decoder.output_projection.weight": "lm_head.weight",
    "decoder.embed_out": "lm_head.weight",  # before 0.10
    # Before 0.9 one matrix for queries, keys and values; in 0.7 and 0.8 three where their widths differ.
    "encoder.layers.{}.self_attn.in_proj_{weight,bias}": _thirds("model.encoder.layers.{}.self_attn"),
    "decoder.layers.{}.self_attn.in_proj_{weight,bias}": _thirds("model.decoder.layers.{}.self_attn"),
    "decoder.layers.{}.encoder_attn.in_proj_{weight,bias}": _thirds("model.decoder.layers.{}.encoder_attn"),
    "decoder.layers.{}.encoder_attn.{q,k,v}_proj_weight": "model.decoder.layers.{}.encoder_attn.{q,k,v}_proj.weight",
    # Norms before 0.6.
    "encoder.layers.{}.layer_norms.{0,1}.{weight,bias}": (
        "model.encoder.layers.{}.{self_attn,final}_layer_norm.{weight,bias}"
    ),
    "decoder.layers.{}.layer_norms.{0,1,2}.{weight,bias}": (
        "model.decoder.layers.{}.{self_attn,encoder_attn,final}_layer_norm.{weight,bias}"
    ),
    # The number of the format, and buffers of sinusoids.
    "{encoder,decoder}.version": None,
    "{encoder,decoder}.embed_positions.{_float_tensor,weights}": None,
    # Copies for 0.12's fast path, stale since the first training step.
    "encoder.layers.{}.{in_proj,out_proj,fc1,fc2}_{weight,bias}": None,
}
KEYS = written_out(PATTERNS)


def _checkpoint(path: Path) -> Path | None:
    """The checkpoint of a path: the best, the last or the only one of a folder or of its `checkpoints`."""
    if path.is_file():
        return path if path.suffix == ".pt" else None
    for folder in (path, path / "checkpoints"):
        files = {file.name: file for file in folder.glob("*.pt")}
        for name in ("checkpoint_best.pt", "checkpoint_last.pt", *([*files] if len(files) == 1 else [])):
            if name in files:
                return files[name]
    return None


def _folders(checkpoint: Path, data: str = "") -> list[Path]:
    """Folders that may hold the dictionaries: the checkpoint's, that of the data beside it, or the parent."""
    folder, name = checkpoint.parent, Path(data.split(":")[0]).name
    own = [named(folder, name), named(folder.parent, name)] if name not in ("", "..") else []
    return [folder, *own, folder.parent]


def _flatten(settings: dict[str, Any]) -> dict[str, Any]:
    """One level of options, as fairseq 0.9 has them, from the groups of 0.10 to 0.12."""
    if not isinstance(settings.get("model"), dict):
        return {name: value for name, value in settings.items() if value is not None}
    options: dict[str, Any] = {}
    for name in ("generation", "criterion", "task", "model"):
        options.update(settings.get(name) or {})
    for stack in ("encoder", "decoder"):  # TransformerConfig keeps them one level further down
        if isinstance(options.get(stack), dict):
            options.update({f"{stack}_{name}": value for name, value in options.pop(stack).items()})
    for name in ("model", "task", "bpe", "tokenizer"):
        group = settings.get(name)
        if name == "tokenizer" and isinstance(group, dict):
            options |= {part: value for part, value in group.items() if part.startswith("moses_")}
        options["arch" if name == "model" else name] = group.get("_name") if isinstance(group, dict) else group
    if isinstance(settings.get("model"), dict) and settings["model"].get("arch"):
        options["arch"] = settings["model"]["arch"]
    return {name: value for name, value in options.items() if value is not None}


def _positions(options: dict[str, Any], stack: str) -> Any:
    if options["no_token_positional_embeddings"]:
        return "none"
    return "learned" if options[f"{stack}_learned_pos"] else "sinusoidal_halves_inclusive"


def _dictionary(path: Path) -> list[str]:
    tokens = list(SPECIAL_TOKENS)
    for number, line in enumerate(read_lines(path), 1):
        overwrite = line.endswith(" #fairseq:overwrite")
        token, space, count = line.removesuffix(" #fairseq:overwrite").rstrip().rpartition(" ")
        if not space or not count.lstrip("-").isdigit():
            raise ConversionError(f"{path}, line {number}: {line!r} is not a token with its count")
        if overwrite and token in tokens:
            # fairseq looks up the later of two equal tokens, unless it is a special token; one with a space is never
            # looked up.
            place = tokens.index(token)
            tokens[place], token = (token, f" {token}") if token in SPECIAL_TOKENS else (f" {token}", token)
        tokens.append(token)
    vocabularies.check_unique(tokens, str(path))
    return tokens


def _backend(tokens: list[str], cutting: Path | None) -> Tokenizer:
    if cutting is None:
        joined = any(token.endswith("@@") for token in tokens)
        backend = vocabularies.words(tokens, "<unk>", joiner="@@" if joined else None)
    elif "code" in cutting.name.lower():
        backend = vocabularies.byte_pairs(
            tokens, vocabularies.read_merges(cutting), unk="<unk>", specials=SPECIAL_TOKENS
        )
    else:
        backend = vocabularies.sentencepiece(cutting, tokens, unk="<unk>")
    return vocabularies.ends_with(backend, "</s>")


class Fairseq(Source):
    name = "fairseq"
    table = KEYS
    settable = tuple(OPTIONS)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether there is a `.pt` file and a dictionary beside it."""
        found = _checkpoint(path)
        return found is not None and any(file for folder in _folders(found) for file in folder.glob("dict.*.txt"))

    @classmethod
    def read(cls, path: Path, trust: bool = False) -> Self:
        found = _checkpoint(path)
        if found is None:
            raise ConversionError(
                f"{path} holds no checkpoint_best.pt and no checkpoint_last.pt; name the file itself"
            )
        content = load_torch(found, trust)
        if not isinstance(content, dict) or "model" not in content or not ({"cfg", "args"} & content.keys()):
            raise ConversionError(f"{found} is not a checkpoint of fairseq: it has no `model` beside `cfg` or `args`")
        options = _flatten(plain(content.get("cfg") or content["args"]))
        languages = {side: str(options.get(f"{side}_lang")) for side in ("source", "target")}
        names = [f"dict.{language}.txt" for language in languages.values()]
        if odd := [name for name in names if Path(name).name != name]:
            raise ConversionError(
                f"{found}: {odd[0]!r} is not the name of a dictionary: a language has the wrong name"
            )
        for folder in _folders(found, str(options.get("data", ""))):
            if all((folder / name).is_file() for name in names):
                checkpoint = cls(options, content["model"], vocabulary={}, folder=folder, files=[found])
                for side, name in zip(languages, names, strict=True):
                    checkpoint.vocabulary[side] = _dictionary(checkpoint.uses(folder / name))
                return checkpoint
        missing = " and ".join(dict.fromkeys(names))
        raise ConversionError(f"{missing} are missing beside {found}: they lie with the preprocessed data")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The options with fairseq's defaults for those that are absent."""
        options = {**OPTIONS, **self.options}
        for name, other in (
            ("decoder_embed_dim", "encoder_embed_dim"),
            ("decoder_ffn_embed_dim", "encoder_ffn_embed_dim"),
            ("decoder_input_dim", "decoder_embed_dim"),
            ("decoder_output_dim", "decoder_embed_dim"),
            ("activation_dropout", "relu_dropout"),
        ):
            options[name] = options[name] or options[other]
        return options

    def unsupported(self) -> list[str]:
        if problems := wrong_types(self.options, OPTIONS):
            return problems
        options = self.settings
        problems = [
            f"{name}={options[name]!r}: only {neutral!r} can be converted"
            for name, neutral in NEUTRAL.items()
            if options.get(name) not in (None, neutral)
        ]
        if not ARCHITECTURES.fullmatch(options["arch"]):
            problems.append(
                f"arch={options['arch']!r}: not one of fairseq's encoder-decoder transformer architectures"
            )
        if options["task"] != "translation":
            problems.append(
                f"task={options['task']!r}: only 'translation' can be converted; others add tokens of their own"
            )
        if options["activation_fn"] not in ACTIVATIONS:
            problems.append(f"activation_fn={options['activation_fn']!r}: must be one of {', '.join(ACTIVATIONS)}")
        for name in ("decoder_input_dim", "decoder_output_dim"):
            if options[name] != options["decoder_embed_dim"]:
                problems.append(f"{name}={options[name]}: must be decoder_embed_dim={options['decoder_embed_dim']}")
        if options["bpe"] not in (None, "subword_nmt", "fastbpe", "sentencepiece"):
            problems.append(f"bpe={options['bpe']!r}: must be subword_nmt, fastbpe or sentencepiece")
        if options["tokenizer"] not in TOKENIZERS:
            known = ", ".join(map(str, TOKENIZERS))
            problems.append(f"tokenizer={options['tokenizer']!r}: must be one of {known}")
        return problems

    def _version(self, stack: str) -> float:
        """The version of a stack's format; without one it is the first (upgrade_state_dict_named)."""
        version = self.tensors.get(f"{stack}.version")
        return 1 if version is None else float(version[0])

    def to_config(self) -> VanillaTransformerConfig:
        options = self.settings
        sharing: Any = "decoder" if options["share_decoder_input_output_embed"] else "none"
        if options["share_all_embeddings"]:
            sharing = "all"
        source, target = self.vocabulary["source"], self.vocabulary["target"]
        return VanillaTransformerConfig(
            vocab_size=len(target),
            source_vocab_size=None if source == target else len(source),
            d_model=options["decoder_embed_dim"],
            encoder_d_model=options["encoder_embed_dim"],
            **{
                f"{stack}_{name}": options[f"{stack}_{name}"]
                for stack in STACKS
                for name in ("layers", "attention_heads")
            },
            **{f"{stack}_ffn_dim": options[f"{stack}_ffn_embed_dim"] for stack in STACKS},
            dropout=options["dropout"],
            attention_dropout=options["attention_dropout"],
            activation_dropout=options["activation_dropout"],
            activation_function=ACTIVATIONS[options["activation_fn"]],
            scale_embedding=not options["no_scale_embedding"],
            layernorm_embedding=options["layernorm_embedding"],
            embedding_sharing=sharing,
            position_encoding=_positions(options, "encoder"),
            decoder_position_encoding=_positions(options, "decoder"),
            position_offset=PAD + 1,
            max_position_embeddings=options["max_source_positions"],
            decoder_max_position_embeddings=options["max_target_positions"],
            **{
                f"{stack}_norm_position": "pre" if options[f"{stack}_normalize_before"] else "post" for stack in STACKS
            },
            # The loader drops the final norms of earlier formats.
            encoder_final_norm=bool(options["encoder_normalize_before"]) and self._version("encoder") >= 2,
            decoder_final_norm=bool(options["decoder_normalize_before"])
            and not options["no_decoder_final_norm"]
            and self._version("decoder") > 2,
            attention_bias=True,
            label_smoothing=options["label_smoothing"],
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=EOS,
        )

    def _cutting_file(self, language: str) -> Path | None:
        """The file that splits the words of a language: its codes or SentencePiece model, or one for both."""
        files = [
            path
            for folder in dict.fromkeys((self.folder, self.files[0].parent))
            for path in sorted(folder.iterdir())
            if re.search(r"code|\.(spm|model)$|\.(spm|model)\.", path.name.lower()) and path.is_file()
        ]
        own = [path for path in files if language in re.split(r"[._-]", path.name)]
        shared = [path for path in files if not own]
        if len(found := own or shared) > 1:
            names = ", ".join(path.name for path in found)
            raise ConversionError(f"{self.folder}: {names} could each cut the words of {language!r}; leave one")
        return self.uses(found[0]) if found else None

    def to_tokenizer(self, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer:
        """Tokenizer with the ids of the dictionaries."""
        options = self.settings
        backends = {
            side: _backend(tokens, self._cutting_file(options[f"{side}_lang"]))
            for side, tokens in self.vocabulary.items()
        }
        if options["tokenizer"] == "moses":
            settings = {
                "splits_dashes": not options["moses_no_dash_splits"],
                "escapes": not options["moses_no_escape"],
            }
            for side, backend in backends.items():
                add_moses(backend, options[f"{side}_lang"], uniform=None, **settings)
        return vocabularies.joined(
            *backends.values(),
            src_lang=options["source_lang"],
            tgt_lang=options["target_lang"],
            bos_token="<s>",
            pad_token="<pad>",
            eos_token="</s>",
            unk_token="<unk>",
        )

    def to_generation_config(self, config: VanillaTransformerConfig) -> GenerationConfig:
        """The defaults of fairseq-generate (dataclass/configs.py, sequence_generator.py)."""
        options = self.settings
        longest = min(options["max_len_b"], options["max_target_positions"] - 1)
        # sum / length^lenpen, with the end
        length_penalty = 0.0 if options["unnormalized"] else float(options["lenpen"])
        return search_settings(
            config,
            num_beams=options["beam"],
            length_penalty=length_penalty,
            early_stopping=True,  # a sentence is done when as many hypotheses have ended as there are beams
            min_new_tokens=options["min_len"],
            max_new_tokens=longest + 1,  # and the end token, which is then forced
            forced_eos_token_id=EOS,
            suppress_tokens=[PAD],
        )

    def decoding_notes(self) -> list[str]:
        """Steps of fairseq's translation that `generate()` and the tokenizer do not perform."""
        options = self.settings
        notes = []
        if options["max_len_a"]:
            notes.append(f"max_len_a={options['max_len_a']}: the longest translation does not grow with the source")
        if options["unkpen"]:
            notes.append(f"unkpen={options['unkpen']}: the unknown token is not penalised")
        if options["tokenizer"] == "moses":
            notes.append(note("tokenizer"))
        elif options["tokenizer"]:
            notes.append(
                f"tokenizer={options['tokenizer']!r}: texts are expected, and translations come out, tokenized so"
            )
        else:
            notes.append(
                "the checkpoint names no tokenizer: if texts were tokenized by Moses, convert with "
                "--set tokenizer=moses"
            )
        if any(self._cutting_file(options[f"{side}_lang"]) is None for side in self.vocabulary):
            notes.append(
                "the codes or the SentencePiece model are missing beside the checkpoint: whole words are looked up"
            )
        return notes
