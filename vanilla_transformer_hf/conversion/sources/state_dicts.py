"""
Settings that a bare state dict lacks: the sources `torch_nn` and `annotated` read them from a small YAML file, and the
vocabularies from files in its folder that it names.

CHECKPOINT is the weights, the folder that holds them, or the YAML file, which is the only `.yaml` or `.yml` of its
folder. An option on which the outputs depend is an error if neither it, the command (`--set`) nor a reference has it.
Besides the options of each source the file may have

```yaml
checkpoint: model.pt               # the weights, where the folder has more than one file with weights
vocabulary: vocab.json             # {"src": [tokens], "tgt": [tokens]}; or one file for each side:
source_vocabulary: vocab.en.txt    #   a token per line, or JSON: a list of tokens, or {token: id}
target_vocabulary: vocab.de.txt
special_tokens: {unk: <unk>, pad: <pad>, bos: <bos>, eos: <eos>}
source_bos: true                   # whether a source starts with bos
source_eos: true                   # and ends with eos
max_length: 256                    # longest output
dropout: 0.1
label_smoothing: 0.0
names: {ours: theirs}              # where things stand in the state dict, in the words of the source
```
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Tokenizer, processors
from transformers import GenerationConfig

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.modeling_vanilla_transformer import POSITION_ENCODINGS
from ..formats import vocabularies
from ..formats.files import named, read_json, read_lines, read_yaml
from ..formats.safe_load import SafetensorsFiles, load_torch, plain
from ..key_table import wrong_types
from ..source import ConversionError, Source, search_settings


OPTIONS: dict[str, Any] = {
    "checkpoint": None,
    "vocabulary": None,
    "source_vocabulary": None,
    "target_vocabulary": None,
    "special_tokens": {},
    "source_bos": True,
    "source_eos": True,
    "max_length": 256,
    "dropout": 0.1,
    "label_smoothing": 0.0,
    "names": {},
}

STACKS = ("encoder", "decoder")

# The defaults of PyTorch, TensorFlow and hyunwoongko/transformer
NORM_EPSILONS = (1e-5, 1e-6, 1e-12)

WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".chkpt", ".safetensors")
SETTINGS = (".yaml", ".yml")

# Keys under which training scripts store a state dict in a larger checkpoint.
PLACES = ("model_state_dict", "state_dict", "model_state", "model")

# Spellings of a special token; the first one in the vocabulary is used. Without a vocabulary its id is its place here.
SPECIAL_TOKENS = {
    "unk": ("<unk>", "[UNK]", "<UNK>"),
    "pad": ("<pad>", "<blank>", "[PAD]", "<PAD>"),
    "bos": ("<bos>", "<s>", "<sos>", "[BOS]", "<start>"),
    "eos": ("<eos>", "</s>", "[EOS]", "<end>"),
}

# Default file names of vocabularies.
VOCABULARIES = ("vocab_words.json", "vocab.json")


def _state_dict(path: Path, trust: bool) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
    """The tensors, and the settings that a training script saved with them."""
    if path.suffix == ".safetensors":
        return SafetensorsFiles([path]), {}
    content = load_torch(path, trust)
    place = next((name for name in PLACES if isinstance(content, dict) and isinstance(content.get(name), dict)), None)
    tensors = content[place] if place else content
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in tensors.items()
    ):
        raise ConversionError(f"{path} holds no state dict: names with tensors, itself or under {', '.join(PLACES)}")
    settings = plain(content.get("settings")) if place else None
    inside = settings if isinstance(settings, dict) else {}
    # The prefix that nn.DataParallel adds to every name.
    return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}, inside


def _vocabularies(folder: Path, options: dict[str, Any]) -> tuple[dict[str, list[str]] | None, list[Path]]:
    """{"src": tokens, "tgt": tokens} and their files; None without vocabularies."""
    sides = [options.get(f"{side}_vocabulary") for side in ("source", "target")]
    if any(sides):
        files = [_file(folder, name) for name in sides]
        return {
            side: _tokens(_json_or_lines(file), file) for side, file in zip(("src", "tgt"), files, strict=True)
        }, files
    given = options.get("vocabulary")
    file = _file(folder, given) if given else next((folder / n for n in VOCABULARIES if (folder / n).is_file()), None)
    if file is None:
        return None, []
    content = _json_or_lines(file)
    both = isinstance(content, dict) and {"src", "tgt"} <= content.keys()
    return {side: _tokens(content[side] if both else content, file) for side in ("src", "tgt")}, [file]


def _file(folder: Path, name: str | None) -> Path:
    path = named(folder, name or "vocabulary")
    if name is None or not path.is_file():
        raise ConversionError(f"{path} is missing: the settings name the vocabulary {name}; copy it beside them")
    return path


def _json_or_lines(path: Path) -> Any:
    return read_json(path, object) if path.suffix == ".json" else list(read_lines(path))


def _tokens(content: Any, path: Path) -> list[str]:
    """Tokens in the order of their ids."""
    if isinstance(content, dict) and sorted(content.values()) == list(range(len(content))):
        content = sorted(content, key=content.__getitem__)
    if not isinstance(content, list) or not all(isinstance(token, str) for token in content):
        raise ConversionError(
            f"{path} is not a vocabulary: expected tokens in the order of their ids, or tokens with ids 0, 1, 2, …"
        )
    return content


def as_table(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """A table of positions as (positions, D), without its batch axis, wherever that is."""
    return tensor.reshape(-1, tensor.shape[-1])


def position_encoding(tables: list[torch.Tensor]) -> Any:
    """The kind of position encoding in stored tables: one of three kinds of sinusoids, or learned positions."""
    for kind in ("sinusoidal", "sinusoidal_halves", "sinusoidal_halves_inclusive"):
        for table in tables:
            rows = table.reshape(-1, table.shape[-1])[:512].float()
            width = rows.shape[1]
            if width % 2 or width < 4:
                return "learned"
            encoded = POSITION_ENCODINGS[kind].encode(torch.arange(len(rows)), width)
            if not torch.allclose(encoded, rows, rtol=0, atol=1e-3):
                break
        else:
            return kind
    return "learned"


def sharing(source: torch.Tensor, target: torch.Tensor, output: torch.Tensor | None) -> Any:
    """Which of the matrices are tied or equal; without an output matrix, the target's embedding is used."""
    if output is not None and not torch.equal(target, output):
        return "none"
    return "all" if torch.equal(source, target) else "decoder"


class StateDict(Source):
    """A state dict with its settings."""

    known: Mapping[str, Any]  # the settings with their defaults
    by_stack: Sequence[str] = ()  # those that may be {encoder: …, decoder: …}

    @classmethod
    def read(cls, path: Path, trust: bool = False) -> Self:
        """State dict, settings and vocabularies; of settings inside the file, those that are known."""
        folder = path if path.is_dir() else path.parent
        found: list[Path] = (
            [path] if path.suffix in SETTINGS else sorted(file for file in folder.iterdir() if file.suffix in SETTINGS)
        )
        if len(found) > 1:
            raise ConversionError(
                f"{folder} holds {len(found)} YAML files; name the one with the settings as CHECKPOINT"
            )
        options = read_yaml(found[0]) if found else {}
        if problems := cls._wrong_settings(options):
            raise ConversionError(f"{found[0]}: " + "\n  ".join(["settings that cannot be used", *problems]))
        given = options.get("checkpoint")
        place = folder if path.suffix in SETTINGS else path
        beside = [file for file in (sorted(place.iterdir()) if place.is_dir() else [place]) if file.suffix in WEIGHTS]
        weights = [named(folder, given)] if given else beside
        if len(weights) != 1 or not weights[0].is_file():
            what = ", ".join(file.name for file in weights) or "no file with weights"
            raise ConversionError(
                f"{folder} should hold one state dict, and holds {what}; name it: `checkpoint: model.pt`"
            )
        tensors, inside = _state_dict(weights[0], trust)
        vocabulary, files = _vocabularies(folder, options)
        inside = {name: value for name, value in inside.items() if name in cls.known}
        return cls({**inside, **options}, tensors, vocabulary, folder, [weights[0], *found, *files])

    @classmethod
    def _wrong_settings(cls, options: dict[str, Any]) -> list[str]:
        """Settings of the wrong type, a line each."""
        files = dict.fromkeys(("checkpoint", "vocabulary", "source_vocabulary", "target_vocabulary"), "model.pt")
        given = {name: value for name, value in options.items() if value is not None}
        problems = []
        for name in [name for name in cls.by_stack if isinstance(given.get(name), dict)]:
            values, default = given.pop(name), cls.known[name]
            problems += wrong_types({**dict.fromkeys(STACKS), **values}, dict.fromkeys(STACKS, default), f"{name}.")
        problems += wrong_types(given, {**cls.known, **files})
        for name, theirs in given.get("names", {}).items() if not problems else ():
            if not isinstance(theirs, (list if name == "ignored" else str, type(None))):
                problems.append(f"names.{name}: {theirs!r} is not a name")
        return problems

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings with defaults."""
        return {**self.known, **self.options}

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """unk, pad, bos and eos -> token, from the settings or the vocabulary."""
        given, target = self.settings["special_tokens"], (self.vocabulary or {}).get("tgt", ())
        return {
            name: given.get(name) or next((token for token in spellings if token in target), spellings[0])
            for name, spellings in SPECIAL_TOKENS.items()
        }

    @cached_property
    def special_ids(self) -> dict[str, Any]:
        """The fields of a config for the special tokens."""
        ids = {name: index for index, name in enumerate(SPECIAL_TOKENS)}
        if self.vocabulary is not None:
            ids = {name: self.vocabulary["tgt"].index(token) for name, token in self.special_tokens.items()}
        return {
            "pad_token_id": ids["pad"],
            "bos_token_id": ids["bos"],
            "eos_token_id": ids["eos"],
            "decoder_start_token_id": ids["bos"],
        }

    def unsupported(self) -> list[str]:
        """A line for each setting of the wrong type or unknown, and each special token that does not fit."""
        if problems := self._wrong_settings(self.options):  # settings that the command gives, too
            return problems
        known = ", ".join(self.known)
        problems = [
            f"{name} is not a setting: expected one of {known}" for name in self.options if name not in self.known
        ]
        for name, token in self.special_tokens.items() if self.vocabulary else ():
            ids = [tokens.index(token) if token in tokens else None for tokens in self.vocabulary.values()]
            if None in ids or (name in ("pad", "eos") and ids[0] != ids[1]):
                problems.append(
                    f"special_tokens.{name}: {token} is {ids[0]} in the source's and {ids[1]} in the target's "
                    "vocabulary"
                )
        return problems

    def config_of(
        self, source: torch.Tensor, target: torch.Tensor, tables: Mapping[str, torch.Tensor], **fields: Any
    ) -> VanillaTransformerConfig:
        """The config of a model with these embeddings, tables of positions of its stacks, and other fields."""
        options, width = self.settings, target.shape[1]
        positions = position_encoding([*tables.values()]) if tables else options["positions"]
        longest = {
            f"{prefix}max_position_embeddings": tables[stack].numel() // width - options["position_offset"]
            for prefix, stack in (("", "encoder"), ("decoder_", "decoder"))
            if positions == "learned" and stack in tables
        }
        has_two = self.vocabulary is not None and self.vocabulary["src"] != self.vocabulary["tgt"]
        return VanillaTransformerConfig(
            vocab_size=len(target),
            source_vocab_size=len(source) if has_two or len(source) != len(target) else None,
            d_model=width,
            dropout=options["dropout"],
            attention_dropout=options["dropout"],
            activation_dropout=options["dropout"],
            scale_embedding=options["scale_embedding"],
            position_encoding=positions,
            position_offset=options["position_offset"],
            **longest,
            label_smoothing=options["label_smoothing"],
            **self.special_ids,
            **fields,
        )

    def to_tokenizer(self, config: VanillaTransformerConfig) -> Any:
        """Tokenizer with the ids of the vocabularies. The settings say which tokens surround a source."""
        if self.vocabulary is None:
            return None
        options, names = self.settings, self.special_tokens
        source, target = (vocabularies.words(self.vocabulary[side], names["unk"]) for side in ("src", "tgt"))
        _frame(
            source, names["bos"] if options["source_bos"] else None, names["eos"] if options["source_eos"] else None
        )
        _frame(target, None, names["eos"])
        tokens: dict[str, Any] = {f"{name}_token": token for name, token in names.items()}
        # Two pipelines, even if the vocabulary is shared.
        return vocabularies.joined(source, target, is_separate=True, **tokens)

    def to_generation_config(self, config: VanillaTransformerConfig) -> GenerationConfig:
        """Greedy search, as in the tutorials that these models come from."""
        return search_settings(config, num_beams=1, max_new_tokens=self.settings["max_length"])

    def not_given(self, names: Sequence[str], given: set[str]) -> dict[str, Any]:
        """The values of those of the settings, and of the frame of a source, that are not among `given`."""
        frame = ("source_bos", "source_eos") if self.vocabulary is not None else ()
        return {name: self.settings[name] for name in (*names, *frame) if name not in given}

    def defaulted(self) -> dict[str, Any]:
        """The common settings that no file gives, besides those of `guessed`."""
        names = ("max_length", "dropout", "label_smoothing")
        found = {name: OPTIONS[name] for name in names if name not in self.options}
        ids = {f"{name}_token_id": index for index, name in enumerate(SPECIAL_TOKENS)}
        return found | (ids if self.vocabulary is None else {})

    def decoding_notes(self) -> list[str]:
        if self.vocabulary is None:
            return ["the checkpoint has no vocabulary, so the model has no tokenizer"]
        return []


def settable(known: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """Names of the settings that may be given with the command: not the files, which are found before."""
    files = ("checkpoint", "vocabulary", "source_vocabulary", "target_vocabulary")
    tokens = [f"special_tokens.{name}" for name in SPECIAL_TOKENS]
    return (*(name for name in known if name not in files), *tokens, *(f"names.{name}" for name in names))


def _frame(backend: Tokenizer, first: str | None, last: str | None):
    frame = [token for token in (first, "$A", last) if token]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(frame),
        special_tokens=[(token, backend.token_to_id(token)) for token in (first, last) if token],
    )


def possible_heads(width: int, default: int) -> list[int]:
    """All numbers of heads that divide the width, the default first."""
    heads = [number for number in range(1, width + 1) if width % number == 0]
    return sorted(heads, key=lambda number: number != default)
