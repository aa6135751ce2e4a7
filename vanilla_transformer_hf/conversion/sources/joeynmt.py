"""
JoeyNMT 1.x and 2.x (joeynmt/joeynmt): `best.ckpt`, beside it `config.yaml`, `src_vocab.txt`, `trg_vocab.txt` and the
subword model. Configs of 1.x are rewritten as those of 2.x.

From joeynmt/model.py, encoders.py, decoders.py, transformer_layers.py, initialization.py (α), tokenizers.py,
vocabulary.py, config.py and search.py of 2.3; data.py, vocabulary.py, search.py and prediction.py of 1.5.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats import vocabularies
from ..formats.files import named, read_lines, read_yaml
from ..formats.moses import add_moses, note
from ..formats.safe_load import load_torch
from ..key_table import KeyTable, Rule, wrong_types
from ..source import Checkpoint, ConversionError, Source


# model.py, encoders.TransformerEncoder, decoders.TransformerDecoder, embeddings.Embeddings, config.py. The options of
# a stack are under the stack's name. `layer_norm` has no default: see NORMS_WITHOUT_OPTION.
OPTIONS: dict[str, Any] = {
    "initializer": "xavier_uniform",
    "tied_embeddings": False,
    "tied_softmax": False,
    "encoder": {
        "type": "recurrent",
        "hidden_size": 512,
        "ff_size": 2048,
        "num_layers": 8,
        "num_heads": 4,
        "dropout": 0.1,
        "alpha": 1.0,
        "activation": "relu",
        "embeddings": {"scale": False},
    },
    "decoder": {
        "type": "transformer",
        "hidden_size": 512,
        "ff_size": 2048,
        "num_layers": 4,
        "num_heads": 8,
        "dropout": 0.1,
        "alpha": 1.0,
        "activation": "relu",
        "embeddings": {"scale": False},
    },
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

_ATTENTION = {"q_layer": "q_proj", "k_layer": "k_proj", "v_layer": "v_proj", "output_layer": "out_proj"}
_LAYERS = {
    "encoder": {
        **{f"src_src_att.{name}": f"self_attn.{target}" for name, target in _ATTENTION.items()},
        "layer_norm": "self_attn_layer_norm",
    },
    "decoder": {
        **{f"trg_trg_att.{name}": f"self_attn.{target}" for name, target in _ATTENTION.items()},
        **{f"src_trg_att.{name}": f"encoder_attn.{target}" for name, target in _ATTENTION.items()},
        "x_layer_norm": "self_attn_layer_norm",
        "dec_layer_norm": "encoder_attn_layer_norm",
    },
}
_FEED_FORWARD = {
    "feed_forward.pwff_layer.0": "fc1",
    "feed_forward.pwff_layer.3": "fc2",
    "feed_forward.layer_norm": "final_layer_norm",
}

KEYS: KeyTable = {
    "src_embed.lut.weight": "model.encoder.embed_tokens.weight",
    "trg_embed.lut.weight": "model.decoder.embed_tokens.weight",
    "decoder.output_layer.weight": "lm_head.weight",
    **{
        f"{stack}.layers.{{}}.{name}.{kind}": f"model.{stack}.layers.{{}}.{target}.{kind}"
        for stack, names in _LAYERS.items()
        for name, target in (names | _FEED_FORWARD).items()
        for kind in ("weight", "bias")
    },
    **{
        f"{stack}.layer_norm.{kind}": f"model.{stack}.layer_norm.{kind}"
        for stack in _LAYERS
        for kind in ("weight", "bias")
    },
    "encoder.pe.pe": None,  # the table of sinusoids, which our model computes
    "decoder.pe.pe": None,
}


def scale_up(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """A source embedding that JoeyNMT multiplies by √d, for a model that does not multiply it."""
    return tensor * config.d_model**0.5


def scale_down(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """A source embedding that JoeyNMT does not multiply by √d, for a model that multiplies it."""
    return tensor / config.d_model**0.5


def keys(config: VanillaTransformerConfig, checkpoint: Checkpoint) -> KeyTable:
    """The table. If the scales of the two sides differ, the source's is folded into its embedding."""
    source = _scaled(checkpoint, "encoder")
    if source == config.scale_embedding:
        return KEYS
    fold = scale_up if source else scale_down
    return {**KEYS, "src_embed.lut.weight": Rule("model.encoder.embed_tokens.weight", fold)}


def recognises(path: Path) -> bool:
    """Whether a file or folder looks like this source's, by its names."""
    folder = path if path.is_dir() else path.parent
    return bool(_checkpoints(path)) and (folder / "config.yaml").is_file()


def _checkpoints(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".ckpt" else []
    return [path / name for name in ("best.ckpt", "latest.ckpt") if (path / name).is_file()]


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: The checkpoint or its config does not exist, cannot be read safely or is not one of JoeyNMT's.
    """
    found = _checkpoints(path)
    if not found:
        raise ConversionError(f"{path} holds no best.ckpt; name the file itself")
    settings = found[0].parent / "config.yaml"
    if not settings.is_file():
        raise ConversionError(f"{settings} is missing: JoeyNMT's config, copied from the folder of the training run")
    options = read_yaml(settings)
    for section in ("data", "model"):
        if not isinstance(options.get(section), dict):
            raise ConversionError(f"{settings} is not a config of JoeyNMT: it has no section `{section}`")
    if isinstance(options["data"].get("src"), str):
        options = _from_first_version(options)
    content = load_torch(found[0], trust)
    if not isinstance(content, dict) or "model_state" not in content:
        raise ConversionError(f"{found[0]} is not a checkpoint of JoeyNMT: it has no `model_state`")
    return Checkpoint(options, content["model_state"], None, found[0].parent, [found[0], settings])


def _from_first_version(options: dict[str, Any]) -> dict[str, Any]:
    """
    A config of 1.x as one of 2.x: the languages are texts there, both sides have one level, all layers are pre-norm
    with a final norm, and nothing is banned in the search.
    """
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


def _stack(checkpoint: Checkpoint, stack: str) -> dict[str, Any]:
    """The options of the encoder or the decoder, with the defaults."""
    given = {**(checkpoint.options["model"].get(stack) or {})}
    # Tied embeddings are the source's, with its scale.
    tied = checkpoint.options["model"].get("tied_embeddings", OPTIONS["tied_embeddings"])
    embeddings = (checkpoint.options["model"].get("encoder" if tied else stack) or {}).get("embeddings") or {}
    defaults = OPTIONS[stack]
    return {**defaults, **given, "embeddings": {**defaults["embeddings"], **embeddings}}


def _section(checkpoint: Checkpoint, *path: str, defaults: str) -> dict[str, Any]:
    """A section of the config, with the defaults."""
    found: Any = checkpoint.options
    for name in path:
        found = (found or {}).get(name)
    return {**OPTIONS[defaults], **(found or {})}


def _specials(checkpoint: Checkpoint) -> dict[str, Any]:
    return _section(checkpoint, "data", "special_symbols", defaults="special_symbols")


def _scaled(checkpoint: Checkpoint, stack: str) -> bool:
    return bool(_stack(checkpoint, stack)["embeddings"]["scale"])


def _alpha(checkpoint: Checkpoint, stack: str) -> float:
    """α of the residual step: an option of the stack, unless the initializer is xavier_normal (arXiv 2203.00555)."""
    if checkpoint.options["model"].get("initializer", OPTIONS["initializer"]) != "xavier_normal":
        return float(_stack(checkpoint, stack)["alpha"])
    encoder, decoder = (_stack(checkpoint, side)["num_layers"] for side in ("encoder", "decoder"))
    return 0.81 * (encoder**4 * decoder) ** (1 / 16) if stack == "encoder" else (3 * decoder) ** (1 / 4)


def _wrong_types(checkpoint: Checkpoint) -> list[str]:
    """A line for each option whose type is not JoeyNMT's."""
    model, data = checkpoint.options["model"], checkpoint.options["data"]
    sections = {
        "model.": (model, {name: OPTIONS[name] for name in ("initializer", "tied_embeddings", "tied_softmax")}),
        "model.encoder.": (model.get("encoder") or {}, OPTIONS["encoder"]),
        "model.decoder.": (model.get("decoder") or {}, OPTIONS["decoder"]),
        "data.src.": (data.get("src") or {}, OPTIONS["side"]),
        "data.trg.": (data.get("trg") or {}, OPTIONS["side"]),
        "data.special_symbols.": (data.get("special_symbols") or {}, OPTIONS["special_symbols"]),
        "testing.": (checkpoint.options.get("testing") or {}, OPTIONS["testing"]),
        "training.": (checkpoint.options.get("training") or {}, {"label_smoothing": OPTIONS["label_smoothing"]}),
    }
    return [line for where, (given, defaults) in sections.items() for line in wrong_types(given, defaults, where)]


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support."""
    if problems := _wrong_types(checkpoint):
        return problems
    for stack in ("encoder", "decoder"):
        options = _stack(checkpoint, stack)
        if options["type"] != "transformer":
            problems.append(f"model.{stack}.type: {options['type']} (supported: transformer)")
        if options["activation"] not in ACTIVATIONS:
            problems.append(f"model.{stack}.activation: {options['activation']} (supported: {', '.join(ACTIVATIONS)})")
        if options.get("layer_norm", "pre") not in ("pre", "post"):
            problems.append(f"model.{stack}.layer_norm: {options['layer_norm']} (supported: pre, post)")
    specials = _specials(checkpoint)
    if specials["sep_token"]:
        problems.append(
            f"data.special_symbols.sep_token: {specials['sep_token']} (the embedding of a prompt's mask is added to "
            "every position)"
        )
    for side in ("src", "trg"):
        level = _section(checkpoint, "data", side, defaults="side")["level"]
        if level not in ("word", "char", "bpe"):
            problems.append(f"data.{side}.level: {level} (supported: word, char, bpe)")
        if level == "bpe" and (kind := _subword_kind(checkpoint, side)) not in SUBWORDS:
            problems.append(f"data.{side}.tokenizer_type: {kind!r} (supported: {', '.join(SUBWORDS)})")
        if (kind := _pretokenizer(checkpoint, side)) not in PRETOKENIZERS:
            name = f"data.{side}.tokenizer_cfg.pretokenizer"
            problems.append(f"{name}: {kind!r} (supported: {', '.join(PRETOKENIZERS)})")
        elif kind == "moses" and not isinstance(_section(checkpoint, "data", side, defaults="side")["lang"], str):
            problems.append(f"data.{side}.lang: Moses needs the code of the language")
    return problems


def _subword_kind(checkpoint: Checkpoint, side: str) -> Any:
    options = _section(checkpoint, "data", side, defaults="side")
    return options.get("tokenizer_type", options.get("bpe_type", "sentencepiece"))


def _pretokenizer(checkpoint: Checkpoint, side: str) -> str:
    return str(
        _section(checkpoint, "data", side, defaults="side")["tokenizer_cfg"].get("pretokenizer", "none")
    ).lower()


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options describe."""
    model = {**OPTIONS, **checkpoint.options["model"]}
    encoder, decoder = _stack(checkpoint, "encoder"), _stack(checkpoint, "decoder")
    specials = _specials(checkpoint)
    source, target = (_vocabulary(checkpoint, side) for side in ("src", "trg"))
    training = {**OPTIONS, **(checkpoint.options.get("training") or {})}
    tied, tied_output = model["tied_embeddings"], model["tied_softmax"]
    return VanillaTransformerConfig(
        vocab_size=len(target),
        source_vocab_size=None if source == target else len(source),
        d_model=decoder["hidden_size"],
        encoder_layers=encoder["num_layers"],
        decoder_layers=decoder["num_layers"],
        encoder_attention_heads=encoder["num_heads"],
        decoder_attention_heads=decoder["num_heads"],
        encoder_ffn_dim=encoder["ff_size"],
        decoder_ffn_dim=decoder["ff_size"],
        dropout=encoder["dropout"],
        attention_dropout=encoder["dropout"],
        activation_dropout=encoder["dropout"],
        activation_function=ACTIVATIONS[encoder["activation"]],
        decoder_activation_function=ACTIVATIONS[decoder["activation"]],
        scale_embedding=_scaled(checkpoint, "decoder"),
        embedding_sharing=("all" if tied else "decoder") if tied_output else "none",
        encoder_norm_position=encoder.get("layer_norm", NORMS_WITHOUT_OPTION["encoder"]),
        decoder_norm_position=decoder.get("layer_norm", NORMS_WITHOUT_OPTION["decoder"]),
        encoder_final_norm=encoder.get("layer_norm") == "pre",
        decoder_final_norm=decoder.get("layer_norm") == "pre",
        layer_norm_eps=1e-6,
        encoder_residual_alpha=_alpha(checkpoint, "encoder"),
        decoder_residual_alpha=_alpha(checkpoint, "decoder"),
        attention_bias=True,
        label_smoothing=training["label_smoothing"],
        pad_token_id=specials["pad_id"],
        bos_token_id=specials["bos_id"],
        eos_token_id=specials["eos_id"],
        decoder_start_token_id=specials["bos_id"],
    )


def _vocabulary(checkpoint: Checkpoint, side: str) -> list[str]:
    """vocabulary.Vocabulary: special symbols, language tags, then the other tokens of the file."""
    specials = _specials(checkpoint)
    path = checkpoint.folder / f"{side}_vocab.txt"
    if not path.is_file():
        given = _section(checkpoint, "data", side, defaults="side").get("voc_file")
        path = _beside(checkpoint, given, f"{side}_vocab.txt: the vocabulary that the training run left")
    first = [specials[f"{name}_token"] for name in ("unk", "pad", "bos", "eos")]
    return list(dict.fromkeys([*first, *specials["lang_tags"], *read_lines(checkpoint.uses(path))]))


def _beside(checkpoint: Checkpoint, name: str | None, what: str) -> Path:
    """The file beside the checkpoint with the name in the config, whatever its folder was in training."""
    if name and (path := named(checkpoint.folder, name)).is_file():
        return checkpoint.uses(path)
    where = f" (config.yaml names {name}; copy it there)" if name else ""
    raise ConversionError(f"{checkpoint.folder} lacks {what}{where}")


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


def _backend(checkpoint: Checkpoint, side: str) -> Tokenizer:
    """tokenizers.build_tokenizer: the steps that are applied to a text, and the vocabulary's ids."""
    options = _section(checkpoint, "data", side, defaults="side")
    settings = options["tokenizer_cfg"]
    specials = _specials(checkpoint)
    tokens, unk = _vocabulary(checkpoint, side), specials["unk_token"]
    names = [specials[f"{name}_token"] for name in ("unk", "pad", "bos", "eos")] + specials["lang_tags"]
    if options["level"] == "word":
        backend = vocabularies.words(tokens, unk)
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    elif options["level"] == "char":
        backend = _characters(tokens, unk)
    elif _subword_kind(checkpoint, side) == "sentencepiece":
        model = _beside(checkpoint, settings.get("model_file"), f"the SentencePiece model of data.{side}")
        backend = vocabularies.sentencepiece(model, tokens, unk, only_listed=True)
    else:
        codes = _beside(checkpoint, settings.get("codes"), f"the subword-nmt codes of data.{side}")
        separator = settings.get("separator", "@@")
        merges = _known_merges(vocabularies.read_merges(codes), tokens, separator)
        backend = vocabularies.byte_pairs(tokens, merges, unk, names, separator)
    if options["lowercase"]:
        _put_before(backend, [normalizers.Lowercase()])
    if _pretokenizer(checkpoint, side) == "moses":  # its punctuation is made uniform by English rules
        uniform = "en" if options["normalize"] else None
        add_moses(backend, options["lang"], uniform=uniform, splits_dashes=False)
    if options["normalize"]:
        _put_before(backend, NORMALIZATION)
    return vocabularies.ends_with(backend, specials["eos_token"])


def _put_before(backend: Tokenizer, steps: list[normalizers.Normalizer]) -> None:
    backend.normalizer = normalizers.Sequence([*steps, *([backend.normalizer] if backend.normalizer else [])])


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer:
    """Tokenizer with the ids of the vocabularies; both sides end with the end token."""
    specials = _specials(checkpoint)
    source, target = (_backend(checkpoint, side) for side in ("src", "trg"))
    separate = source.to_str() != target.to_str()
    return VanillaTransformerTokenizer(
        tokenizer_object=target,
        source_tokenizer_object=source if separate else None,
        separate_vocabularies=separate,
        src_lang=_section(checkpoint, "data", "src", defaults="side")["lang"],
        tgt_lang=_section(checkpoint, "data", "trg", defaults="side")["lang"],
        split_special_tokens=True,
        **{f"{name}_token": specials[f"{name}_token"] for name in ("bos", "pad", "eos", "unk")},
    )


def _testing(checkpoint: Checkpoint) -> dict[str, Any]:
    """
    The section `testing`. The older name of beam_alpha takes precedence, as in config.parse_test_args; fewer beams
    than two are greedy search.
    """
    options = _section(checkpoint, "testing", defaults="testing")
    alpha = options.get("alpha", options["beam_alpha"])
    return {**options, "beam_alpha": alpha, "beam_size": max(options["beam_size"], 1)}


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """The section `testing` with the defaults of config.parse_test_args, and the tokens that search.py bans."""
    options, specials = _testing(checkpoint), _specials(checkpoint)
    target = _vocabulary(checkpoint, "trg")
    banned = [specials["bos_id"], *(target.index(tag) for tag in specials["lang_tags"])]
    banned += [specials["pad_id"]] if options["beam_size"] > 1 else []
    banned += [] if options["generate_unk"] else [specials["unk_id"]]
    if checkpoint.options.get("joeynmt_version") == FIRST_VERSION:
        banned = []
    beams: dict[str, Any] = {}
    if options["beam_size"] > 1:
        alpha = max(float(options["beam_alpha"]), 0.0)
        beams = {"length_penalty": alpha, "length_penalty_type": "gnmt", "early_stopping": False}
    return GenerationConfig(
        num_beams=options["beam_size"],
        **beams,
        min_new_tokens=max(options["min_output_length"], 0) or None,
        max_new_tokens=options["max_output_length"] if options["max_output_length"] > 0 else LONGEST_OUTPUT,
        suppress_tokens=banned or None,
        pad_token_id=specials["pad_id"],
        eos_token_id=specials["eos_id"],
        bos_token_id=specials["bos_id"],
        decoder_start_token_id=specials["bos_id"],
    )


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """Steps of search.py and tokenizers.py that `generate()` and the tokenizer do not perform."""
    options = _testing(checkpoint)
    notes = []
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
        if _pretokenizer(checkpoint, side) == "moses":
            notes.append(note(f"data.{side}.tokenizer_cfg.pretokenizer"))
    return notes


def _names(section: str, options: dict[str, Any]) -> list[str]:
    return [f"{section}.{name}" for name, default in options.items() if not isinstance(default, dict)]


# Options that the command may give, dots between sections.
SETTABLE = (
    *_names("model", {name: OPTIONS[name] for name in ("initializer", "tied_embeddings", "tied_softmax")}),
    *(
        name
        for stack in ("encoder", "decoder")
        for name in _names(f"model.{stack}", {**OPTIONS[stack], "layer_norm": None})
    ),
    *(f"model.{stack}.embeddings.scale" for stack in ("encoder", "decoder")),
    *(name for side in ("src", "trg") for name in _names(f"data.{side}", {**OPTIONS["side"], "tokenizer_type": None})),
    *(
        f"data.{side}.tokenizer_cfg.{name}"
        for side in ("src", "trg")
        for name in ("pretokenizer", "codes", "model_file", "separator")
    ),
    *_names("data.special_symbols", OPTIONS["special_symbols"]),
    *_names("testing", OPTIONS["testing"]),
)


def target_pieces(checkpoint: Checkpoint) -> list[str]:
    """The target vocabulary, in whose pieces the toolkit records its outputs."""
    return _vocabulary(checkpoint, "trg")


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
    target_pieces=target_pieces,
    settable=SETTABLE,
)
