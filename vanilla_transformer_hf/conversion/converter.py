"""The conversion, the same for every source: read, check, map the tensors, write, reopen, compare, rename."""

import itertools
import json
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from tqdm.auto import tqdm

from ..common.checksums import SUMS_FILE, digest, verify_folder
from ..common.files import check_new, new_folder
from ..common.opening import open_by, open_processor
from ..model.config.front_ends import reads_tokens
from ..model.config.generation import VanillaTransformerGenerationConfig
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..model.tokenizer.failures import is_failure
from ..publishing.model_card import CardFacts, ConversionFacts, SourceFile, write_card
from .formats import vocabularies
from .key_table import check_sizes, convert_tensors, empty_model, model_class
from .source import ConversionError, Source
from .sources.annotated import Annotated
from .sources.bert import Bert
from .sources.eole import Eole
from .sources.fairseq import Fairseq
from .sources.fsmt import FSMT
from .sources.gpt2 import GPT2
from .sources.joeynmt import JoeyNMT
from .sources.marian import Marian
from .sources.marianmt import MarianMT
from .sources.opennmt_py import OpenNMTPy
from .sources.speech_to_text import SpeechToText
from .sources.tensor2tensor import Tensor2Tensor
from .sources.torch_nn import TorchNN
from .sources.whisper import Whisper
from .verification import (
    compare_with_reference,
    compare_with_toolkit,
    example_batch,
    logits_of,
    try_processor,
    try_tokenizer,
)


CONVERTERS: dict[str, type[Source]] = {
    source.name: source
    for source in (
        *(Eole, Fairseq, Marian, MarianMT, FSMT, JoeyNMT, OpenNMTPy, Tensor2Tensor, TorchNN, Annotated),
        *(Bert, GPT2, Whisper, SpeechToText),
    )
}


@dataclass
class Conversion:
    """The result of a conversion. Differences are the largest absolute ones of logits in float32."""

    source: str
    checkpoint: Path
    config: VanillaTransformerConfig
    parameters: int
    reopened: float = math.nan
    reference: float | None = None
    reference_tokens: int = 0
    notes: list[str] = field(default_factory=list)


def choose_source(source: str, path: Path) -> type[Source]:
    """The source of that name, or for "auto" the only one that recognises the files."""
    if source in CONVERTERS:
        return CONVERTERS[source]
    if source != "auto":
        raise ConversionError(f"{source!r} is not a source: expected one of auto, {', '.join(CONVERTERS)}")
    found = [converter for converter in CONVERTERS.values() if converter.recognises(path)]
    if len(found) != 1:
        names = " or ".join(converter.name for converter in found)
        what = f"could be from {names}" if found else "is not recognised by any source"
        raise ConversionError(f"{path} {what}; name the source: {', '.join(CONVERTERS)}")
    return found[0]


def parse_option(text: str) -> tuple[str, Any]:
    """The name and the value of "NAME=VALUE"; the value is JSON (8, true, 1e-6, null), or else text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} is not an option: expected NAME=VALUE, such as nhead=8")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def with_options(found: Source, given: Mapping[str, Any]) -> Source:
    """The checkpoint with options in place of its own; dots stand between sections ("model.encoder.num_heads")."""
    options = found.options
    for option, value in given.items():
        if option not in found.settable:
            known = f"expected one of {', '.join(found.settable)}" if found.settable else "its files hold them all"
            raise ConversionError(f"{option!r} is not an option of {found.name} that --set changes: {known}")
        options = _changed(options, option.split("."), value)
    return found.with_options(options)


def _changed(options: Any, path: list[str], value: Any) -> dict[str, Any]:
    first, *rest = path
    options = options if isinstance(options, dict) else {}
    return {**options, first: _changed(options.get(first), rest, value) if rest else value}


def ask(path: Path, guessed: Mapping[str, Any], can_be_shown: bool = True):
    """An error with a line for each option that the files lack and on which the outputs depend."""
    # `can_be_shown`: by a reference.
    if not guessed:
        return
    lines = [f"{name}: {_shown(value)} is usual" for name, value in guessed.items()]
    raise ConversionError(
        f"the files of {path} do not give these options, and the outputs depend on them:\n  "
        + "\n  ".join(lines)
        + "\ngive each as it was in training, in a YAML file beside the weights or with the command, such as "
        f"{shlex.join(set_options(guessed))}"
        + ("; or give --reference, outputs of the model that show them" if can_be_shown else "")
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def set_options(values: Mapping[str, Any]) -> list[str]:
    """The words of a command line that give these options."""
    return [word for name, value in values.items() for word in ("--set", f"{name}={_shown(value)}")]


def assemble(checkpoint: Source, config: VanillaTransformerConfig, show: bool = True) -> Any:
    """The model of a config with the weights of a checkpoint, which are copied only where they change."""
    # `show`: with a progress bar.
    check_sizes(config, checkpoint.tensors)
    model = empty_model(config)
    converted = convert_tensors(checkpoint.keys(config), checkpoint.tensors, model)
    count = len(model.state_dict().keys() - model.all_tied_weights_keys.keys())
    tensors = dict(tqdm(converted, desc="tensors", total=count, unit="", disable=not show))
    kinds = {tensor.dtype for tensor in tensors.values()}
    if len(kinds) > 1:  # the model has one type: the widest
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


def settle(found: Source, reference: Path, say: Callable[[str], None]) -> tuple[Source, list[str]]:
    """The checkpoint with the unstated options chosen by the reference, and a note about each."""
    # Of the options that the source lists as unstated, those that reproduce the reference are chosen; for the norm's
    # ε, whose values hardly differ in effect, the closest. If none reproduce it, the defaults are kept.
    unstated = dict(found.unstated())
    if not unstated:
        return found, []
    norms = unstated.pop("layer_norm_eps", None)
    close = [{"layer_norm_eps": value} for value in norms] if norms else [{}]

    def difference_with(options: Mapping[str, Any], rows: int | None) -> float:
        trial = found.with_options({**found.options, **options})
        model = assemble(trial, trial.to_config(), show=False).float()
        return compare_with_reference(model, reference, rows)[0]

    for values in itertools.product(*unstated.values()):
        best, told = math.inf, {}
        for last in close:
            options = {**dict(zip(unstated, values, strict=True)), **last}
            difference = difference_with(options, rows=1)
            if difference < best and difference <= found.tolerance:
                best, told = difference, options
        if told and difference_with(told, rows=None) <= found.tolerance:
            words = ", ".join(f"{name}={value}" for name, value in told.items())
            say(f"not in the files, but as {reference.name} has it: {words}")
            found_so = f"not in the files; found as what gives the logits of {reference.name}"
            notes = [f"{name}={value}: {found_so}" for name, value in told.items()]
            return found.with_options({**found.options, **told}), notes
    return found, []


@contextmanager
def _one_line(path: Path, name: str) -> Iterator[None]:
    """Turn an error caused by a damaged or hostile file into one that names the file."""
    # Settings may have any value anywhere, and sources do not check all types before use.
    try:
        yield
    except StrictDataclassError as error:
        raise ConversionError(
            f"the options of {path} do not describe a valid model: {str(error).splitlines()[-1]}"
        ) from error
    except (ConversionError, OSError, ImportError):
        raise
    except BaseException as error:
        kinds = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError)
        if not isinstance(error, kinds) and not is_failure(error):
            raise  # tokenizers raises an Exception itself for wrong files, or panics
        reason = (str(error).splitlines() or [""])[0][:300]
        raise ConversionError(
            f"{path} is damaged, or not a checkpoint of {name} ({type(error).__name__}: {reason})"
        ) from error


def convert(
    source: str,
    checkpoint: str | os.PathLike,
    output: str | os.PathLike,
    reference: str | os.PathLike | None = None,
    trust: bool = False,
    say: Callable[[str], None] = lambda line: None,
    options: Mapping[str, Any] | None = None,
) -> Conversion:
    """Convert a checkpoint of `source` ("auto": by its files) to the new folder `output`, or leave nothing behind."""
    # `reference` is a file as `read_reference` reads it. `trust` lets pickles run their code. `say` is called with a
    # line for each step. `options` are the toolkit's options that the files lack or have wrong, by name.
    path, output = Path(checkpoint), Path(output)
    record = None if reference is None else Path(reference)
    if not path.exists():
        raise ConversionError(f"{path} does not exist")
    check_new(output)
    folder = path if path.is_dir() else path.parent
    if (folder / SUMS_FILE).is_file() and (wrong := verify_folder(folder).wrong):
        raise ConversionError(f"{folder}: {', '.join(wrong)} do not fit {SUMS_FILE}; copy them again")
    told: list[str] = []
    compared: tuple[float, int] | None = None
    with _one_line(path, source):
        converter = choose_source(source, path)
        say(f"reading {path} as a checkpoint of {converter.name}")
        found = with_options(converter.read(path, trust), options or {})
        if problems := found.unsupported():
            raise ConversionError("the model cannot express these options:\n  " + "\n  ".join(problems))
        if record is not None and found.has_model:
            raise ConversionError(
                f"a reference is not needed: {found.name} is compared with transformers' own model; leave out "
                "--reference"
            )
        if record is not None:
            found, told = settle(found, record, say)
        config = found.to_config()
        check_sizes(config, found.tensors)
        tried = list[Any]()
        if (tokenizer := found.to_tokenizer(config)) is not None:
            vocabularies.limit(tokenizer, config)
            vocabularies.register_language_tags(tokenizer)
            tried = try_tokenizer(tokenizer)
        if (processor := found.to_processor(config)) is not None:
            tried = try_processor(processor)
        model = assemble(found, config)
        # This class writes it without `_from_model_config`, with which transformers would read only its own fields.
        if model.can_generate():
            model.generation_config = VanillaTransformerGenerationConfig.of(found.to_generation_config(config))
        if found.has_model:
            compared = compare_with_toolkit(model, found.toolkit_model(), example_batch(config))
            if not compared[0] <= found.tolerance:
                raise ConversionError(
                    f"the model's outputs differ by {compared[0]:.1e} from those of transformers' own; "
                    f"{found.tolerance:.0e} is allowed"
                )
        guessed = found.guessed()
        if record is None:
            ask(path, guessed, can_be_shown=not found.has_model)
        elif guessed:
            confirmed = f"not in the files; the default, with which the logits of {record.name} are the same"
            told += [f"{name}={_shown(value)}: {confirmed}" for name, value in guessed.items()]
        defaulted = found.defaulted().items()
        told += [f"{name}={_shown(value)}: not in the files; the default" for name, value in defaulted]
        notes = told + found.decoding_notes()
        if processor is None and not reads_tokens(config):
            notes.append("the files of a processor are missing beside the checkpoint: the model has none")
    files = [  # all files have been read by now
        SourceFile(file.name, file.stat().st_size, digest(file)) for file in dict.fromkeys(found.files)
    ]
    # Paths without their folders, which mean nothing to a reader of the card.
    command = ["vanilla-transformer", "convert", found.name, path.resolve().name, output.name]
    command += ["--reference", record.name] if record else []
    command += ["--i-trust-this-file"] if trust else []
    command += set_options(options or {})
    done = Conversion(found.name, path, model.config, model.num_parameters(), notes=notes)
    if compared is not None:
        done.reference, done.reference_tokens = compared
    with new_folder(output) as folder:
        say(f"writing {done.parameters:,} parameters")
        before = logits_of(model, batch := example_batch(model.config))
        model.save_pretrained(folder, max_shard_size=2**62)
        for part in (tokenizer, processor):
            if part is not None:
                part.save_pretrained(folder)
        model.to("meta")  # the weights are not needed twice
        say("opening what was written")
        model = open_by(model_class(model.config), folder, dtype="auto").eval()  # in the type of the weights
        done.reopened = (logits_of(model, batch) - before).abs().max().item()
        if tokenizer is not None and try_tokenizer(VanillaTransformerTokenizer.from_pretrained(folder)) != tried:
            raise ConversionError("the reopened tokenizer gives other ids than before saving")
        if processor is not None and try_processor(open_processor(folder)) != tried:
            raise ConversionError("the reopened processor gives other ids or frames than before saving")
        if not done.reopened <= found.tolerance:
            raise ConversionError(
                f"the reopened model's logits differ by {done.reopened:.1e} from those before saving"
            )
        if record is not None:
            done.reference, done.reference_tokens = compare_with_reference(model.float(), record)
            if not done.reference <= found.tolerance:
                raise ConversionError(
                    f"the model's logits differ by {done.reference:.1e} from those of {record}; "
                    f"{found.tolerance:.0e} is allowed" + "".join(f"\n  note: {note}" for note in done.notes)
                )
        measured = (done.reopened, done.reference, done.reference_tokens, None, done.notes)
        facts = ConversionFacts(done.source, shlex.join(command), files, *measured)
        write_card(CardFacts(name=output.name, conversion=facts), folder)
    return done
