"""The conversion, the same for every source: read, check, map the tensors, write, reopen, compare, rename."""

import itertools
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..model.tokenizer.limits import is_failure
from ..publishing.model_card import CardFacts, ConversionFacts, SourceFile, write_card
from .formats import vocabularies
from .given_options import ask, set_options, unstated_notes, with_options
from .key_table import check_sizes, convert_tensors, empty_model, model_class
from .source import Checkpoint, ConversionError, Source
from .sources import (
    annotated,
    bert,
    eole,
    fairseq,
    fsmt,
    gpt2,
    joeynmt,
    marian,
    marianmt,
    opennmt_py,
    speech_to_text,
    tensor2tensor,
    torch_nn,
    whisper,
)
from .verification import (
    compare_greedy,
    compare_with_reference,
    compare_with_toolkit,
    example_batch,
    logits_of,
    try_processor,
    try_tokenizer,
)


# Name on the command line -> source
CONVERTERS: dict[str, Source] = {
    "eole": eole.SOURCE,
    "fairseq": fairseq.SOURCE,
    "marian": marian.SOURCE,
    "marianmt": marianmt.SOURCE,
    "fsmt": fsmt.SOURCE,
    "joeynmt": joeynmt.SOURCE,
    "opennmt_py": opennmt_py.SOURCE,
    "tensor2tensor": tensor2tensor.SOURCE,
    "torch_nn": torch_nn.SOURCE,
    "annotated": annotated.SOURCE,
    "bert": bert.SOURCE,
    "gpt2": gpt2.SOURCE,
    "whisper": whisper.SOURCE,
    "speech_to_text": speech_to_text.SOURCE,
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
    greedy: tuple[int, int] | None = None  # (identical sentences, all)
    notes: list[str] = field(default_factory=list)


def choose_source(source: str, path: Path) -> tuple[str, Source]:
    """
    The converter of that name, or for "auto" the one that recognises the files.

    Raises:
        ConversionError: The source is unknown; or, for "auto", no source or several recognise the files.
    """
    if source in CONVERTERS:
        return source, CONVERTERS[source]
    if source != "auto":
        raise ConversionError(f"{source!r} is not a source: expected one of auto, {', '.join(CONVERTERS)}")
    found = [name for name, converter in CONVERTERS.items() if converter.recognises(path)]
    if len(found) != 1:
        what = f"could be from {' or '.join(found)}" if found else "is not recognised by any source"
        raise ConversionError(f"{path} {what}; name the source: {', '.join(CONVERTERS)}")
    return found[0], CONVERTERS[found[0]]


def assemble(
    source: Source, checkpoint: Checkpoint, config: VanillaTransformerConfig, show: bool = True
) -> VanillaTransformerForConditionalGeneration:
    """
    The model of a config with the weights of a checkpoint, which are copied only where they change.

    `show`: with a progress bar.

    Raises:
        ConversionError: As `check_sizes` and `convert_tensors`.
    """
    check_sizes(config, checkpoint.tensors)
    model = empty_model(config)
    converted = convert_tensors(source.keys(config, checkpoint), checkpoint.tensors, config)
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


def settle(
    source: Source, found: Checkpoint, reference: Path, say: Callable[[str], None]
) -> tuple[Checkpoint, list[str]]:
    """
    The checkpoint with the unstated options chosen by the reference, and a note about each.

    Of the options that the source lists as unstated, those that reproduce the reference are chosen; for the norm's ε,
    whose values hardly differ in effect, the closest. If none reproduce it, the defaults are kept.
    """
    unstated = dict(source.unstated(found))
    if not unstated:
        return found, []
    norms = unstated.pop("layer_norm_eps", None)
    close = [{"layer_norm_eps": value} for value in norms] if norms else [{}]
    for values in itertools.product(*unstated.values()):
        best, told = math.inf, {}
        for last in close:
            options = {**dict(zip(unstated, values, strict=True)), **last}
            trial = replace(found, options={**found.options, **options})
            model = assemble(source, trial, source.to_config(trial), show=False).float()
            difference = compare_with_reference(model, reference, rows=1)[0]
            if difference < best and difference <= source.tolerance:
                best, told = difference, options
        if not told:
            continue
        trial = replace(found, options={**found.options, **told})
        model = assemble(source, trial, source.to_config(trial), show=False).float()
        if compare_with_reference(model, reference)[0] <= source.tolerance:
            words = ", ".join(f"{name}={value}" for name, value in told.items())
            say(f"not in the files, but as {reference.name} has it: {words}")
            found_so = f"not in the files; found as what gives the logits of {reference.name}"
            return trial, [f"{name}={value}: {found_so}" for name, value in told.items()]
    return found, []


@contextmanager
def _one_line(path: Path, name: str) -> Iterator[None]:
    """
    Turn an error caused by a damaged or hostile file into one that names the file: settings may have any value
    anywhere, and sources do not check all types before use.
    """
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
    """
    Convert a checkpoint of `source` ("auto": by its files) to the new folder `output`.

    `reference` is a file as `read_reference` reads it. `trust` lets pickles run their code. `say` is called with a
    line for each step. `options` are the toolkit's options that the files lack or have wrong, by name.

    Raises:
        ConversionError: The checkpoint cannot be expressed, read safely or reproduced, or lacks options on which its
            outputs depend; nothing is left behind.
        ValueError: There is something at `output` already, or another process is writing it.
        OSError: A file cannot be read or written.
    """
    path, output = Path(checkpoint), Path(output)
    if not path.exists():
        raise ConversionError(f"{path} does not exist")
    check_new(output)
    folder = path if path.is_dir() else path.parent
    if (folder / SUMS_FILE).is_file() and (wrong := verify_folder(folder).wrong):
        raise ConversionError(f"{folder}: {', '.join(wrong)} do not fit {SUMS_FILE}; copy them again")
    with _one_line(path, source):
        made = _make_model(source, path, None if reference is None else Path(reference), trust, say, options or {})
    files = [describe_file(file) for file in dict.fromkeys(made.files)]  # all files have been read by now
    # Paths without their folders, which mean nothing to a reader of the card.
    command = ["vanilla-transformer", "convert", made.name, path.resolve().name, output.name]
    command += ["--reference", Path(reference).name] if reference else []
    command += ["--i-trust-this-file"] if trust else []
    command += set_options(options or {})
    model, config = made.model, made.model.config
    done = Conversion(made.name, path, config, model.num_parameters(), notes=made.notes)
    if made.compared is not None:
        done.reference, done.reference_tokens = made.compared
    with new_folder(output) as folder:
        say(f"writing {done.parameters:,} parameters")
        before = logits_of(model, batch := example_batch(config))
        model.save_pretrained(folder, max_shard_size=2**62)
        for part in (made.tokenizer, made.processor):
            if part is not None:
                part.save_pretrained(folder)
        model.to("meta")  # type: ignore[arg-type]  # the weights are not needed twice
        say("opening what was written")
        model, tokenizer = open_again(folder, made.tokenizer is not None)
        done.reopened = (logits_of(model, batch) - before).abs().max().item()
        if tokenizer is not None and try_tokenizer(tokenizer) != made.tried:
            raise ConversionError("the reopened tokenizer gives other ids than before saving")
        if made.processor is not None and try_processor(open_processor(folder)) != made.tried:
            raise ConversionError("the reopened processor gives other ids or frames than before saving")
        check(done, model, reference, made.tolerance, made.pieces, tokenizer)
        write_card(card_facts(done, output.name, shlex.join(command), files), folder)
    return done


@dataclass
class _Converted:
    """
    A model of a checkpoint of the source `name` with its tokenizer or processor, before they are written.

    `tried` are the ids of example texts and the frames of an example, `compared` the largest difference from the
    toolkit's own model and the number of positions, if this package can run that model.
    """

    name: str
    model: Any
    tokenizer: VanillaTransformerTokenizer | None
    processor: Any
    tried: Any
    notes: list[str]
    pieces: Any
    tolerance: float
    files: list[Path]
    compared: tuple[float, int] | None = None


def _make_model(
    source: str,
    path: Path,
    reference: Path | None,
    trust: bool,
    say: Callable[[str], None],
    options: Mapping[str, Any],
) -> _Converted:
    """Read a checkpoint and move its tensors into a model of this package; nothing is written."""
    name, converter = choose_source(source, path)
    say(f"reading {path} as a checkpoint of {name}")
    found = with_options(name, converter, converter.read(path, trust), options)
    if problems := converter.unsupported(found):
        raise ConversionError("the model cannot express these options:\n  " + "\n  ".join(problems))
    told: list[str] = []
    if reference is not None and converter.toolkit_model is not None:
        raise ConversionError(
            f"a reference is not needed: {name} is compared with transformers' own model; leave out --reference"
        )
    if reference is not None:
        found, told = settle(converter, found, reference, say)
    config = converter.to_config(found)
    check_sizes(config, found.tensors)
    tokenizer = vocabularies.limited(converter.to_tokenizer(found, config), config)
    tokenizer = vocabularies.with_language_tags(tokenizer)
    tried = [] if tokenizer is None else try_tokenizer(tokenizer)
    if (processor := converter.to_processor(found, config)) is not None:
        tried = try_processor(processor)
    model = assemble(converter, found, config)
    # This class writes it without `_from_model_config`, with which transformers would read only its own fields.
    if model.can_generate():
        model.generation_config = VanillaTransformerGenerationConfig.of(converter.to_generation_config(found, config))
    compared = None
    if converter.toolkit_model is not None:
        compared = compare_with_toolkit(model, converter.toolkit_model(found), example_batch(config))
        if not compared[0] <= converter.tolerance:
            raise ConversionError(
                f"the model's outputs differ by {compared[0]:.1e} from those of transformers' own; "
                f"{converter.tolerance:.0e} is allowed"
            )
    guessed = converter.guessed(found)
    if reference is None:
        ask(path, guessed, can_be_shown=converter.toolkit_model is None)
    told += unstated_notes(guessed, converter.defaulted(found), reference.name if reference else None)
    notes, pieces = told + converter.decoding_notes(found), converter.target_pieces(found)
    if processor is None and not reads_tokens(config):
        notes.append("the files of a processor are missing beside the checkpoint: the model has none")
    return _Converted(
        *(name, model, tokenizer, processor, tried, notes, pieces, converter.tolerance, list(found.files), compared)
    )


def open_again(folder: Path, has_tokenizer: bool) -> tuple[VanillaTransformerForConditionalGeneration, Any]:
    """Reopen the model and the tokenizer from the written files, in the type of the weights."""
    model = open_by(model_class(VanillaTransformerConfig.from_pretrained(folder)), folder, dtype="auto").eval()
    return model, VanillaTransformerTokenizer.from_pretrained(folder) if has_tokenizer else None


def check(
    done: Conversion,
    model: VanillaTransformerForConditionalGeneration,
    reference: str | os.PathLike | None,
    tolerance: float,
    pieces: Any = (),
    tokenizer: Any = None,
):
    """
    Measure the reopened model against its own forward before saving, and against a reference where there is one.

    Raises:
        ConversionError: A difference is larger than `tolerance`, or a greedy output differs.
    """
    if not done.reopened <= tolerance:
        raise ConversionError(f"the reopened model's logits differ by {done.reopened:.1e} from those before saving")
    if reference is None:
        return
    model = model.float()
    done.reference, done.reference_tokens = compare_with_reference(model, Path(reference))
    agreement = compare_greedy(model, Path(reference), pieces, tokenizer)
    if not done.reference <= tolerance:
        raise ConversionError(
            f"the model's logits differ by {done.reference:.1e} from those of {reference}; {tolerance:.0e} is allowed"
            + "".join(f"\n  note: {note}" for note in done.notes)
        )
    if agreement is None:
        return
    done.greedy = agreement.same, agreement.all
    if agreement.cut:
        done.notes.append(
            f"{agreement.cut} of {agreement.all} greedy outputs of {Path(reference).name} were cut at the toolkit's "
            "limit; they are the beginnings of the model's"
        )
    if agreement.same < agreement.all:
        raise ConversionError(f"only {done.greedy[0]} of {done.greedy[1]} greedy outputs of {reference} are the same")


def describe_file(path: Path) -> SourceFile:
    """Name, size in bytes, and SHA-256 of a file."""
    return SourceFile(path.name, path.stat().st_size, digest(path))


def card_facts(done: Conversion, name: str, command: str, files: list[SourceFile]) -> CardFacts:
    """The facts of a conversion by `command` for the card: the origin of the weights, and the measurements."""
    facts = ConversionFacts(
        done.source, command, files, done.reopened, done.reference, done.reference_tokens, done.greedy, done.notes
    )
    return CardFacts(name=name, conversion=facts)
