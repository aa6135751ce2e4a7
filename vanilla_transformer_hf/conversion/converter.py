"""The way in, the same for every source: read, check, move the tensors, write, open again, compare, publish."""

import itertools
import json
import math
import os
import shlex
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from tqdm.auto import tqdm
from transformers import GenerationConfig

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.generation_config_vanilla_transformer import SEARCH_OPTIONS, VanillaTransformerGenerationConfig
from ..model.generation_vanilla_transformer import check_token_ids
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..publishing.model_card import write_card
from .card import card_facts, describe_file
from .formats import vocabularies
from .key_table import (
    Checkpoint,
    ConversionError,
    convert_tensors,
    empty_model,
)
from .sources import (
    annotated,
    eole,
    fairseq,
    fsmt,
    joeynmt,
    marian,
    marianmt,
    opennmt_py,
    tensor2tensor,
    torch_nn,
)


# Name on the command line -> module; it has OPTIONS, KEYS (or keys), recognises, read, unsupported, to_config,
# to_tokenizer, to_generation_config and decoding_notes, and may have a TOLERANCE of its own, and target_pieces
# (checkpoint -> the toolkit's target vocabulary) if the toolkit records its outputs as pieces, and UNSTATED (see
# `settle`).
CONVERTERS: dict[str, ModuleType] = {
    "eole": eole,
    "fairseq": fairseq,
    "marian": marian,
    "marianmt": marianmt,
    "fsmt": fsmt,
    "joeynmt": joeynmt,
    "opennmt_py": opennmt_py,
    "tensor2tensor": tensor2tensor,
    "torch_nn": torch_nn,
    "annotated": annotated,
}

# Largest absolute difference of logits, unless a source says why its own is wider.
TOLERANCE = 1e-5

# Until the folder is whole its weights have this variant's name, under which nothing opens them.
UNFINISHED = "unfinished"


@dataclass
class Conversion:
    """What a conversion did and measured. Differences are the largest absolute ones of logits in float32."""

    source: str
    checkpoint: Path
    config: VanillaTransformerConfig
    parameters: int
    reopened: float = math.nan
    reference: float | None = None
    reference_tokens: int = 0
    greedy: tuple[int, int] | None = None  # (identical sentences, all)
    notes: list[str] = field(default_factory=list)


def choose_source(source: str, path: Path) -> tuple[str, ModuleType]:
    """
    The converter of that name, or for "auto" the one that recognises the files.

    Raises:
        ConversionError: There is no such source, or not exactly one recognises the files.
    """
    if source in CONVERTERS:
        return source, CONVERTERS[source]
    if source != "auto":
        raise ConversionError(f"there is no source {source!r}; there are auto, {', '.join(CONVERTERS)}")
    found = [name for name, module in CONVERTERS.items() if module.recognises(path)]
    if len(found) != 1:
        what = f"could be from {' or '.join(found)}" if found else "is none that a source recognises by its names"
        raise ConversionError(f"{path} {what}; name the source: {', '.join(CONVERTERS)}")
    return found[0], CONVERTERS[found[0]]


def assemble(
    module: ModuleType, checkpoint: Checkpoint, config: VanillaTransformerConfig, show: bool = True
) -> VanillaTransformerForConditionalGeneration:
    """
    The model of a config with the weights of a checkpoint, which are not copied where they need no change.

    `show`: with a progress bar.

    Raises:
        ConversionError: As `convert_tensors`.
    """
    table = module.keys(config, checkpoint) if hasattr(module, "keys") else module.KEYS
    model = empty_model(config)
    converted = convert_tensors(table, checkpoint.tensors, config)
    count = len(model.state_dict().keys() - model.all_tied_weights_keys.keys())
    tensors = dict(tqdm(converted, desc="tensors", total=count, unit="", disable=not show))
    kinds = {tensor.dtype for tensor in tensors.values()}
    if len(kinds) > 1:  # the model has one type: the widest, which holds all values
        widest = max(kinds, key=lambda kind: torch.finfo(kind).bits)
        tensors = {name: tensor.to(widest) for name, tensor in tensors.items()}
    places: set[tuple[int, int]] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
        if place in places:  # one matrix in the file and two in our model, which cannot be saved as one
            tensors[name] = tensor.clone()
        places.add(place)
    model.load_state_dict(tensors, assign=True)
    return model.eval().requires_grad_(False)


def example_batch(config: VanillaTransformerConfig) -> dict[str, torch.Tensor]:
    """Ids drawn by chance, always the same, of two sentences, the second padded: a batch for a forward pass."""
    generator = torch.Generator().manual_seed(0)
    length = min(12, config.max_position_embeddings, config.decoder_max_position_embeddings or 12)
    source_size = config.source_vocab_size or config.vocab_size
    source = torch.randint(source_size, (2, length), generator=generator)
    target = torch.randint(config.vocab_size, (2, length), generator=generator)
    target[:, 0] = config.decoder_start_token_id or 0
    mask = torch.ones_like(source)
    mask[1, length // 2 :] = 0
    return {
        "input_ids": source,
        "attention_mask": mask,
        "decoder_input_ids": target,
        "decoder_attention_mask": mask.clone(),
    }


@torch.no_grad()
def logits_of(model: VanillaTransformerForConditionalGeneration, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits (B, T, V) of a batch, in float64 whatever the model computes in."""
    return model(**batch, use_cache=False).logits.double()


def compare_with_reference(model: VanillaTransformerForConditionalGeneration, path: Path) -> tuple[float, int]:
    """
    Largest difference between the model's logits and those of an `.npz` file, and the number of target positions.

    The file holds src_ids (B, S), src_mask, tgt_in_ids (B, T), tgt_mask and logits (B, T, V); masks are true on real
    tokens. It may lack the last of the model's pieces: those that the toolkit does not have.

    Raises:
        ConversionError: The file is damaged, lacks an array, or is of another model.
    """
    names = ("src_ids", "src_mask", "tgt_in_ids", "tgt_mask", "logits")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in names}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ConversionError(f"{path} is no reference with {', '.join(names)}: {error}") from error
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    fits = shapes["src_ids"] == shapes["src_mask"] and shapes["tgt_in_ids"] == shapes["tgt_mask"]
    if not fits or shapes["tgt_mask"] != shapes["logits"][:2] or not arrays["tgt_mask"].any():
        raise ConversionError(f"{path} holds arrays that do not fit each other: {shapes}")
    pieces = shapes["logits"][-1]
    if pieces > model.config.vocab_size:
        raise ConversionError(f"{path} has logits of {pieces} pieces, and the model has {model.config.vocab_size}")
    check_token_ids(arrays["src_ids"], model.config.source_vocab_size or model.config.vocab_size, f"{path}: src_ids")
    check_token_ids(arrays["tgt_in_ids"], model.config.vocab_size, f"{path}: tgt_in_ids")
    differences = []
    for row in range(len(arrays["src_ids"])):
        one = {name: array[row : row + 1] for name, array in arrays.items()}
        batch = {
            "input_ids": one["src_ids"].long(),
            "attention_mask": one["src_mask"].long(),
            "decoder_input_ids": one["tgt_in_ids"].long(),
            "decoder_attention_mask": one["tgt_mask"].long(),
        }
        real = one["tgt_mask"].bool()
        differences.append((logits_of(model, batch)[real][:, :pieces] - one["logits"][real]).abs().flatten())
    return torch.cat(differences).max().item(), int(arrays["tgt_mask"].sum())


def own_tokens(ids: list[int], config: Any) -> list[int]:
    """Ids of one output without the start token before and the end token and padding behind."""
    if ids and ids[0] == config.decoder_start_token_id:
        ids = ids[1:]
    return ids[: ids.index(config.eos_token_id)] if config.eos_token_id in ids else ids


def compare_greedy(
    model: VanillaTransformerForConditionalGeneration, path: Path, pieces: Sequence[str], tokenizer: Any = None
) -> tuple[int, int] | None:
    """
    How many greedy outputs of a `ref.json` beside the reference the model repeats, and how many there are; None where
    there are none. They are ids, pieces of the vocabulary `pieces`, or texts.
    """
    record = path.with_name("ref.json")
    if not record.is_file():
        return None
    outputs = json.loads(record.read_text(encoding="utf-8")).get("greedy")
    if not outputs:
        return None
    if isinstance(outputs[0], str):
        return compare_texts(model, path, outputs, tokenizer)
    place = {piece: index for index, piece in enumerate(pieces)}
    outputs = [
        output
        if isinstance(output, list)
        else output.get("ids") or [place.get(piece, -1) for piece in output["tokens"]]
        for output in outputs
    ]
    longest = max(map(len, outputs))
    with np.load(path, allow_pickle=False) as file:
        source, mask = torch.from_numpy(file["src_ids"]).long(), torch.from_numpy(file["src_mask"]).long()
    with torch.no_grad():
        ours = model.generate(source, attention_mask=mask, num_beams=1, max_new_tokens=longest)
    same = 0
    for own, other in zip(ours.tolist(), outputs, strict=True):
        own, other, cut = own_tokens(own, model.config), own_tokens(other, model.config), len(other) >= longest - 1
        # An output that was cut at the toolkit's longest length may have been ended there.
        same += own == other or (cut and own[: longest - 2] == own_tokens(other, model.config)[: longest - 2])
    return same, len(outputs)


def compare_texts(
    model: VanillaTransformerForConditionalGeneration, path: Path, outputs: Sequence[str], tokenizer: Any
) -> tuple[int, int]:
    """How many of these texts the model repeats, and how many there are."""
    longest = max(map(len, tokenizer(text_target=list(outputs))["input_ids"]))
    with np.load(path, allow_pickle=False) as file:
        source, mask = torch.from_numpy(file["src_ids"]).long(), torch.from_numpy(file["src_mask"]).long()
    with torch.no_grad():
        ids = model.generate(source, attention_mask=mask, num_beams=1, max_new_tokens=longest + 1)
    ours = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return sum(own == other for own, other in zip(ours, outputs, strict=True)), len(outputs)


def open_unfinished(folder: Path) -> VanillaTransformerForConditionalGeneration:
    """The model that was just written, from its files, in the type of its weights."""
    return VanillaTransformerForConditionalGeneration.from_pretrained(folder, variant=UNFINISHED, dtype="auto").eval()


def settle(
    module: ModuleType, found: Checkpoint, reference: Path, say: Callable[[str], None]
) -> tuple[Checkpoint, list[str]]:
    """
    The checkpoint with the options that its files do not state and the reference tells, and a note on them.

    A source lists such options as UNSTATED: their possible values, the default first, or a function of the width and
    the default that gives them. The first that reproduce the reference are taken; if none do, the defaults stay.
    """
    unstated = {name: values for name, values in getattr(module, "UNSTATED", {}).items() if name not in found.options}
    if not unstated:
        return found, []
    # Numbers of heads: one divides every width.
    numbers = {name: 1 for name, values in unstated.items() if callable(values)}
    width = module.to_config(replace(found, options={**found.options, **numbers})).d_model
    choices = [
        values(width, module.OPTIONS[name]) if callable(values) else values for name, values in unstated.items()
    ]
    for values in itertools.product(*choices):
        options = dict(zip(unstated, values))
        trial = replace(found, options={**found.options, **options})
        model = assemble(module, trial, module.to_config(trial), show=False).float()
        if compare_with_reference(model, reference)[0] <= getattr(module, "TOLERANCE", TOLERANCE):
            told = ", ".join(f"{name}={value}" for name, value in options.items())
            say(f"not in the files, but as {reference.name} has it: {told}")
            return trial, [f"{told}: not in the files; found as what gives the logits of {reference.name}"]
    return found, []


def convert(
    source: str,
    checkpoint: str | os.PathLike,
    output: str | os.PathLike,
    reference: str | os.PathLike | None = None,
    trust: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Conversion:
    """
    Convert a checkpoint of `source` ("auto": by its files) to the new folder `output`.

    `reference` is a file as `compare_with_reference` reads it. `trust` has pickles run what they ask for. `say` is
    told of each step.

    Raises:
        ConversionError: The checkpoint cannot be expressed, read safely or reproduced; nothing is left behind.
        OSError: A file cannot be read or written.
    """
    path, output = Path(checkpoint), Path(output)
    if not path.exists():
        raise ConversionError(f"{path} does not exist")
    check_new(output)
    name, module = choose_source(source, path)
    say(f"reading {path} as a checkpoint of {name}")
    found = module.read(path, trust)
    if problems := module.unsupported(found):
        raise ConversionError("the model cannot express these options:\n  " + "\n  ".join(problems))
    told: list[str] = []
    try:
        if reference is not None:
            found, told = settle(module, found, Path(reference), say)
        config = module.to_config(found)
    except StrictDataclassError as error:
        raise ConversionError(f"the options of {path} describe no model: {str(error).splitlines()[-1]}") from error
    tokenizer = vocabularies.limited(module.to_tokenizer(found, config), config)
    model = assemble(module, found, config)
    # In this class it is written without the mark of what was taken from config.json: of a file with it transformers
    # reads nothing but its own fields.
    model.generation_config = VanillaTransformerGenerationConfig.of(module.to_generation_config(found, config))
    files = [describe_file(file) for file in dict.fromkeys(found.files)]  # by now all were read
    # Paths without their folders: where they lay says nothing to a reader of the card.
    command = ["python", "scripts/convert.py", name, path.resolve().name, output.name]
    command += ["--reference", Path(reference).name] if reference else []
    command += ["--i-trust-this-file"] if trust else []
    done = Conversion(name, path, config, model.num_parameters(), notes=told + module.decoding_notes(found))
    pieces = module.target_pieces(found) if hasattr(module, "target_pieces") else ()
    del found
    with new_folder(output) as folder:
        say(f"writing {done.parameters:,} parameters")
        before = logits_of(model, batch := example_batch(config))
        model.save_pretrained(folder, variant=UNFINISHED, max_shard_size=2**62)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        model.to("meta")  # type: ignore[arg-type]  # the weights are not needed twice
        say("opening what was written")
        model = open_unfinished(folder)
        done.reopened = (logits_of(model, batch) - before).abs().max().item()
        check(done, model, reference, getattr(module, "TOLERANCE", TOLERANCE), pieces, tokenizer)
        write_card(card_facts(done, output.name, shlex.join(command), files), folder)
    return done


def check_new(output: Path):
    """
    Raises:
        ConversionError: There is something at `output` already.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConversionError(f"{output} exists already; name a new folder")


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """
    A folder beside `output` that takes its name when it is whole, and whose weights take theirs last, so that nothing
    opens what was interrupted. On an exception nothing is left.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as unfinished:
        folder = Path(unfinished, output.name)
        folder.mkdir()
        yield folder
        os.replace(folder, output)
        for weights in output.glob(f"*.{UNFINISHED}.safetensors"):
            os.replace(weights, output / weights.name.replace(f".{UNFINISHED}.", "."))


def check(
    done: Conversion,
    model: VanillaTransformerForConditionalGeneration,
    reference: str | os.PathLike | None,
    tolerance: float,
    pieces: Sequence[str] = (),
    tokenizer: Any = None,
):
    """
    Measure the reopened model against its own forward before saving, and against a reference where there is one.

    Raises:
        ConversionError: A difference is larger than `tolerance`, or a greedy output is another one.
    """
    if not done.reopened <= tolerance:
        raise ConversionError(f"the reopened model's logits differ by {done.reopened:.1e} from those before saving")
    if reference is None:
        return
    model = model.float()
    done.reference, done.reference_tokens = compare_with_reference(model, Path(reference))
    done.greedy = compare_greedy(model, Path(reference), pieces, tokenizer)
    if not done.reference <= tolerance:
        raise ConversionError(
            f"the model's logits differ by {done.reference:.1e} from those of {reference}; {tolerance:.0e} is allowed"
            + "".join(f"\n  note: {note}" for note in done.notes)
        )
    if done.greedy is not None and done.greedy[0] < done.greedy[1]:
        raise ConversionError(f"only {done.greedy[0]} of {done.greedy[1]} greedy outputs of {reference} are the same")


def settings_without_ours(model: VanillaTransformerForConditionalGeneration) -> tuple[GenerationConfig, list[str]]:
    """How a model decodes, without the options of our own search, which others ignore; and what was left out."""
    settings, notes = GenerationConfig.from_dict(model.generation_config.to_dict()), []
    for name, default in SEARCH_OPTIONS.items():
        if (value := vars(settings).pop(name, None)) not in (None, default):
            notes.append(f"{name}={value!r} is left out: another search may not have it")
    return settings, notes
