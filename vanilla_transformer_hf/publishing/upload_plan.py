"""
The plan of an upload: which files of a model's folder are published, checked without the Hub and without writing; the
Python files among them are for those who open it with `trust_remote_code=True`.

The folder is an output of training, averaging, conversion or `save_pretrained`.
"""

import ast
import io
import json
import os
import re
import sys
import warnings
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from PIL import Image, UnidentifiedImageError
from transformers.dynamic_module_utils import get_imports, get_relative_imports
from transformers.utils import CONFIG_NAME, FEATURE_EXTRACTOR_NAME, GENERATION_CONFIG_NAME, PROCESSOR_NAME

from ..common.files import check_regular_file, read_regular_file
from ..common.model_settings import check_model_settings
from ..common.opening import read_config
from ..model.saving.bundle import HEADING, join_modules, modules_in, path_of
from ..model.tokenization_vanilla_transformer import TOKENIZER_FILES
from .model_card import (
    CARD_FILE,
    CURVES_FILE,
    FACTS_FILE,
    TOKENIZER_CONFIG_FILE,
    CardFacts,
    ModelFolder,
    check_metadata,
    check_project_url,
    is_edited,
    is_repo_id,
    make_card,
    missing_facts,
)
from .private_text import find_private_text, hide_secrets, parse_json
from .weight_files import CleanedWeights, check_weights, find_weights, read_header, without_metadata


PACKAGE = Path(__file__).parents[1]
CONFIG = {"configuration_vanilla_transformer"}
ALONE = {"pipeline_vanilla_transformer", "tokenization_vanilla_transformer"}
NAME = re.compile(r"[a-z_][a-z0-9_.]*")  # of a module
# Packages that every user of transformers has, beside Python's standard library.
AVAILABLE = {"torch", "transformers", "huggingface_hub", "tokenizers", "safetensors", "numpy"}


def find_code(folder: Path, modules: set[str]) -> tuple[dict[str, bytes], list[str]]:
    """The files of code that a folder's model imports, and a sentence for each problem of importing them elsewhere."""
    # If the folder lacks one, all files are those that this package saves with a model.
    if wrong := sorted(each for each in modules if not re.fullmatch(r"[\w-]+", each)):
        return {}, [f"auto_map names {each!r}, which is not a file beside the model" for each in wrong]
    found: dict[str, Path] = {}
    absent, waiting = set[str](), sorted(modules)
    while waiting:
        path = folder / f"{waiting.pop()}.py"
        if not path.is_file():
            absent.add(path.name)
        elif path.name not in found:
            found[path.name] = path
            waiting += [module for module in get_relative_imports(path) if "." not in module]
    if absent and modules <= {"modeling_vanilla_transformer"} | ALONE | CONFIG:
        needed = modules & ALONE
        if modules & ({"modeling_vanilla_transformer"} | CONFIG):
            config: Any = read_config(folder)
            needed |= {*config.modules} if "modeling_vanilla_transformer" in modules else CONFIG
        return {name: text.encode() for name, text in join_modules(tuple(sorted(needed))).items()}, []
    problems = [f"{name} is missing, but the model imports it" for name in sorted(absent)]
    files = {name: read_regular_file(path) for name, path in found.items()}
    for name, path in found.items():
        problems += [] if is_saved_code(name, files[name]) else _check_imports(path)
    return files, problems


def is_saved_code(name: str, content: bytes) -> bool:
    """Whether a file is this package's saved code, which is public; searching it again takes seconds."""
    modules = modules_in(content.decode(errors="replace")) if HEADING.encode() in content else ()
    if not modules or any(not NAME.fullmatch(module) or not path_of(module).is_file() for module in modules):
        return False
    return join_modules(modules).get(name, "").encode() == content


def _check_imports(path: Path) -> list[str]:
    """Imports of a file that users of the model may not have. An import in a `try` block may fail."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        return [f"{path.name} is not Python code ({error})"]
    nested = sorted(module for module in get_relative_imports(path) if "." in module)
    problems = [f"{path.name} imports .{module}: only files beside it travel" for module in nested]
    for library in sorted(set(get_imports(path))):
        if library == PACKAGE.name:
            problems.append(f"{path.name} imports {library} itself, which others may not have: from .name import")
        elif library not in AVAILABLE and library not in sys.stdlib_module_names:
            problems.append(f"{path.name} imports {library}, which others may not have: in a try block it may fail")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 1:
            problems.append(f"{path.name}, line {node.lineno}: imports from a folder above it")
        elif isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is None:
            # transformers looks for "from .name import" and would not bring the file along.
            names = ", ".join(alias.name for alias in node.names)
            problems.append(
                f"{path.name}, line {node.lineno}: `from . import {names}` does not bring the file along; "
                "write `from .name import`"
            )
    return problems


ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"  # of peft
PROCESSOR_CONFIGS = (PROCESSOR_NAME, FEATURE_EXTRACTOR_NAME)
CONFIGS = (CONFIG_NAME, GENERATION_CONFIG_NAME, TOKENIZER_CONFIG_FILE, ADAPTER_CONFIG_NAME, *PROCESSOR_CONFIGS)
# Of the tokenizers of transformers that a converted model of speech keeps.
VOCABULARIES = ("vocab.json", "merges.txt", "normalizer.json", "sentencepiece.bpe.model")

# Fields of the configs with local paths.
PRIVATE_FIELDS = ("_name_or_path", "name_or_path", "_commit_hash", "tokenizer_file", "source_tokenizer_file")

# Facts with the same names in a card's metadata.
METADATA = {"license", "license_name", "license_link", "datasets", "base_model", "base_model_relation"}

# Names of text files that are searched for secrets, and of all files that may be published.
TEXTS = (".json", ".md", ".py", ".txt", ".jinja", ".yaml", ".yml", ".csv", ".log", ".bpe.model")
PUBLISHED = (*TEXTS, ".model", ".safetensors", ".png")

# Reasons why a file is left out, the first match counts; published files are not tested.
LEFT_OUT = {
    "training_args.bin": "a pickle, which may contain a token and paths of this machine",
    "optimizer*": "state of the optimizer",
    "scheduler*": "state of the schedule",
    "rng_state*": "state of the random numbers",
    "moving_average.safetensors": "state of the moving average",
    "trainer_state.json": "log of the training",
    "predictions.*": "held-out text, which has a licence of its own",
    FACTS_FILE: "what the card is written from",
    "*.png": "a picture that the card does not show",
    ".*": "hidden",
    "*/": "a folder",
    "*.bin": "a pickle",
    "*.pt": "a pickle",
    "*.pth": "a pickle",
    "*.pkl": "a pickle",
    "*.py": "code that the model does not import",
    "*": "no part of the model",
}


@dataclass(frozen=True)
class PlannedFile:
    """A file that is published, either unchanged or with replaced content."""

    name: str
    source: Path | bytes | CleanedWeights

    @property
    def size(self) -> int:
        """In bytes."""
        if isinstance(self.source, Path):
            return self.source.stat().st_size
        return len(self.source) if isinstance(self.source, bytes) else self.source.size


@dataclass
class Plan:
    """A folder's published files; `left_out` has the reasons for the rest, `missing` the facts that the card lacks."""

    folder: Path
    files: list[PlannedFile]
    left_out: dict[str, str]
    card: str
    missing: list[str]

    def __str__(self) -> str:
        """Files with sizes, files left out, the card, and its missing facts."""
        width = max(len(name) for name in [*(file.name for file in self.files), *self.left_out])
        total = sum(file.size for file in self.files)
        lines = [f"{len(self.files)} files, {total:,} bytes:"]
        lines += [f"  {file.name:<{width}}  {file.size:>14,}" for file in self.files]
        lines += ["left out:"] * bool(self.left_out)
        lines += [f"  {name:<{width}}  {why}" for name, why in self.left_out.items()]
        lines += ["", self.card.rstrip(), ""]
        lines += ["missing in the card:"] * bool(self.missing)
        return "\n".join(lines + [f"  {sentence}" for sentence in self.missing])


def plan_upload(
    folder: str | os.PathLike,
    name: str | None = None,
    *,
    facts: CardFacts | None = None,
    curves: bytes | None = None,
    **stated: Any,
) -> Plan:
    """Plan the upload of a folder; what can be checked without the Hub is checked, and nothing is written or sent."""
    # All problems are in one error. The card is generated from the folder's facts, unless it was edited: then only its
    # metadata is updated. Symbolic links are errors. Weights are opened and their headers reduced to tensors, pictures
    # are decoded and encoded again, and texts are searched for secrets and for absolute paths. `name` is the model's
    # in the card (by default the folder's), `facts` and `curves` (a PNG, or empty for none) take the place of those of
    # the folder, and `stated` are more facts, as fields of `CardFacts`.
    folder = Path(folder)
    stated = {each: value for each, value in stated.items() if value is not None}
    if unknown := stated.keys() - CardFacts.__annotations__.keys():
        raise TypeError(f"{', '.join(sorted(unknown))}: there are only {', '.join(CardFacts.__annotations__)}")
    problems = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix in PUBLISHED and not (path.is_dir() and not path.is_symlink()):
            try:
                check_regular_file(path)  # no link, pipe or device
            except ValueError as error:
                problems.append(str(error).rstrip("."))
    if problems:
        raise ValueError(f"{folder} cannot be published: {'; '.join(problems)}.")
    if curves is None and (folder / CURVES_FILE).is_file():
        curves = read_regular_file(folder / CURVES_FILE)
    if (folder / CONFIG_NAME).is_file():
        files = ModelFolder(folder)
        sources, problems = _model(files)
        known = facts or CardFacts.read(folder)
        if facts is None and is_edited(folder):
            card, missing = _edited_card(read_regular_file(folder / CARD_FILE).decode("utf-8"), stated)
        else:
            known = replace(known, **{**stated, "name": name or stated.get("name") or known.name})
            card, missing = make_card(known, files, bool(curves)), missing_facts(known, files.languages(known))
    elif (folder / ADAPTER_CONFIG_NAME).is_file():
        sources, card, missing = _adapter(folder, facts or CardFacts(), stated)
        problems = []
    else:
        raise FileNotFoundError(f"{folder}: no {CONFIG_NAME} there, so no model.")
    problems += check_metadata(card.data) + check_project_url(stated.get("project_url"))
    if name is not None and not is_repo_id(name):
        problems.append(f"{name!r}: must be owner/name, of letters, digits, '-', '_' and '.'")
    sources[CARD_FILE] = str(card).encode()
    pictures = {CURVES_FILE: curves} if curves else {}
    for path in folder.glob("*.png"):
        if path.name != CURVES_FILE and f"({path.name})" in card.text:
            pictures[path.name] = read_regular_file(path)
    for each, content in pictures.items():
        try:
            sources[each] = clean_picture(content, each)
        except ValueError as error:
            problems.append(str(error).rstrip("."))
    problems += _find_private_text(folder, sources)
    if problems:
        raise ValueError(hide_secrets(f"{folder} cannot be published: " + "; ".join(problems) + "."))
    planned = [PlannedFile(each, sources[each]) for each in sorted(sources)]
    shown = [f"{path.name}/" if path.is_dir() else path.name for path in sorted(folder.iterdir())]
    rest = [each for each in shown if each.removesuffix("/") not in sources]
    left_out = {each: next(why for pattern, why in LEFT_OUT.items() if fnmatch(each, pattern)) for each in rest}
    return Plan(folder, planned, left_out, str(card), missing)


def clean_picture(content: bytes, name: str) -> bytes:
    """A PNG picture with the same pixels and without metadata or anything after its end."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(content), formats=["PNG"])
            picture.load()
            pixels = Image.frombytes(picture.mode, picture.size, picture.tobytes())
            if picture.mode == "P":
                pixels.putpalette(picture.getpalette("RGBA") or [], "RGBA")
    except UnidentifiedImageError as error:
        raise ValueError(f"{name} is not a PNG picture.") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{name} is not a complete PNG picture ({error}).") from error
    encoded = io.BytesIO()
    pixels.save(encoded, "PNG")
    return encoded.getvalue()


def _model(files: ModelFolder) -> tuple[dict[str, Path | bytes | CleanedWeights], list[str]]:
    """Weights, configs, tokenizer or processor, and code, and their problems."""
    folder = files.path
    check_model_settings(folder)
    sources: dict[str, Path | bytes | CleanedWeights] = {**find_weights(folder)}
    problems = check_weights(files.config, sources)
    # transformers' Trainer disables the cache during training.
    stated = files.config.auto_classes | _own(files.config.to_dict().get("auto_map") or {})
    if not all((folder / f"{module}.py").is_file() for module in _named(stated)):
        stated |= files.config.auto_classes  # the package's code is published instead
    texts = _cleaned(folder, CONFIG_NAME, auto_map=stated, use_cache=True) | _cleaned(folder, GENERATION_CONFIG_NAME)
    texts |= _tokenizer(folder)
    for name in PROCESSOR_CONFIGS:  # of a processor also vocabularies beside the tokenizer's; there is none for text
        if settings := _cleaned(folder, name):
            present = [each for each in VOCABULARIES if (folder / each).is_file()]
            texts |= settings | {each: read_regular_file(folder / each) for each in present}
    code, wrong = find_code(folder, _modules(texts))
    try:
        files.generation.validate(strict=True)
    except ValueError as error:
        wrong.append(f"{GENERATION_CONFIG_NAME} is not valid ({' '.join(str(error).split())})")
    return {**sources, **texts, **code}, problems + wrong


def _modules(texts: dict[str, bytes]) -> set[str]:
    """The modules that the configs name as code of the model and its tokenizer, or the parts of its processor."""
    modules = set()
    for name in (CONFIG_NAME, TOKENIZER_CONFIG_FILE, *PROCESSOR_CONFIGS):
        fields = json.loads(texts.get(name, b"{}"))
        parts = [part for part in fields.values() if isinstance(part, dict)] if name in PROCESSOR_CONFIGS else []
        for part in (fields, *parts):
            modules |= _named(part.get("auto_map"))
            pipelines = part.get("custom_pipelines")
            for task in pipelines.values() if isinstance(pipelines, dict) else ():
                modules |= _named(task.get("impl") if isinstance(task, dict) else None)
    return modules


def _named(reference: Any) -> set[str]:
    """The modules that an auto_map, or an entry of it, names: a class, several of a tokenizer, or none."""
    if isinstance(reference, (dict, list)):
        return set().union(*map(_named, reference.values() if isinstance(reference, dict) else reference))
    return {reference.split(".")[0]} if isinstance(reference, str) else set()


def _adapter(
    folder: Path, facts: CardFacts, stated: dict[str, Any]
) -> tuple[dict[str, Path | bytes | CleanedWeights], ModelCard, list[str]]:
    """The files of a PEFT adapter, published without its base model, their card, and its missing facts."""
    config, weights = _read_json(folder / ADAPTER_CONFIG_NAME), folder / ADAPTER_SAFE_WEIGHTS_NAME
    if not weights.is_file():
        raise FileNotFoundError(f"{folder}: no {weights.name} there; only weights in safetensors are published.")
    named = config.get("base_model_name_or_path")
    base = stated.get("base_model") or facts.base_model or named
    if not base or (base == named and Path(base).exists()):
        raise ValueError(f"{folder}: its base model is {named!r}, which is not an id on the Hub: give base_model.")
    after = {**config, "base_model_name_or_path": base}
    text = (json.dumps(after, indent=2, sort_keys=True) + "\n").encode()
    own = folder / CARD_FILE
    entered = {"base_model": base, "base_model_relation": "adapter", "license": facts.license, **stated}
    card, missing = _edited_card(
        own.read_text(encoding="utf-8") if own.is_file() else f"---\nlibrary_name: peft\n---\n\n# Adapter of {base}\n",
        {name: value for name, value in entered.items() if value is not None},
    )
    data: Any = card.data
    data.tags = [tag for tag in data.tags or [] if not tag.startswith("base_model:")] or None
    config_text = read_regular_file(folder / ADAPTER_CONFIG_NAME) if after == config else text
    sources = {ADAPTER_CONFIG_NAME: config_text, weights.name: without_metadata(weights), **_tokenizer(folder)}
    return sources, card, missing


def _tokenizer(folder: Path) -> dict[str, bytes]:
    """The files of the tokenizer, without local paths."""
    names = (TOKENIZER_CONFIG_FILE, *TOKENIZER_FILES.values())
    files = {name: read_regular_file(folder / name) for name in names if (folder / name).is_file()}
    return files | _cleaned(folder, TOKENIZER_CONFIG_FILE)


def _cleaned(folder: Path, name: str, **changes: Any) -> dict[str, bytes]:
    """The text of a config, if it exists, with changes and without private fields."""
    if not (folder / name).is_file():
        return {}
    before = _read_json(folder / name)
    after = _public(before | changes)
    if name in PROCESSOR_CONFIGS:  # of which each part has settings of its own
        after = {part: _public(value) if isinstance(value, dict) else value for part, value in after.items()}
    text = json.dumps(after, indent=2, sort_keys=True, ensure_ascii=name != TOKENIZER_CONFIG_FILE) + "\n"
    return {name: read_regular_file(folder / name) if after == before else text.encode()}


def _public(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a config without private ones."""
    after = {key: value for key, value in fields.items() if key not in PRIVATE_FIELDS}
    if "auto_map" in after:
        after["auto_map"] = _own(after["auto_map"])
    return after


def _own(reference: Any) -> Any:
    """An auto_map or an entry of it without the repository of the code, because the code is included."""
    if isinstance(reference, dict):
        return {name: _own(each) for name, each in reference.items()}
    if isinstance(reference, list):
        return [_own(each) for each in reference]
    return reference.split("--")[-1] if isinstance(reference, str) else reference


def _read_json(path: Path) -> dict[str, Any]:
    value = parse_json(read_regular_file(path), str(path))
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a JSON object: expected {{...}}, got {type(value).__name__}.")
    return value


def _edited_card(text: str, stated: dict[str, Any]) -> tuple[ModelCard, list[str]]:
    """An edited card with updated metadata, and its missing facts."""
    card = ModelCard(text)
    data: Any = card.data
    for name in METADATA & stated.keys():
        setattr(data, name, stated[name])
    languages = [stated[side] for side in ("source_lang", "target_lang") if side in stated]
    data.language = languages or data.language
    data.library_name = data.library_name or "transformers"
    data.pipeline_tag = data.pipeline_tag or "translation"
    entered = CardFacts(
        license=data.license,
        corpus=stated.get("corpus"),
        datasets=data.datasets or [],
        scored=data.eval_results or [],
        base_model=data.base_model,
    )
    languages = data.language if isinstance(data.language, list) else [data.language or ""]
    return card, missing_facts(entered, languages)


def _find_private_text(folder: Path, sources: dict[str, Any]) -> list[str]:
    """Secrets and absolute paths in the texts that would be published, and in the names of tensors."""
    places = [f"{path}/" for path in (Path.home(), folder.resolve().parent, Path.cwd()) if len(path.parts) > 1]
    problems = []
    for name, source in sources.items():
        if isinstance(source, bytes) and name.endswith(TEXTS) and not is_saved_code(name, source):
            problems += find_private_text(name, source)
            # Local paths with a space, which the patterns do not find.
            if name in (*CONFIGS, CARD_FILE) and any(place.encode() in source for place in places):
                problems.append(f"{name}: contains an absolute path")
        elif name.endswith(".safetensors"):
            tensors = read_header(source.weights if isinstance(source, CleanedWeights) else source)[1]
            problems += find_private_text(f"{name}, names of tensors", "\n".join(tensors).encode())
    return sorted(set(problems), key=problems.index)
