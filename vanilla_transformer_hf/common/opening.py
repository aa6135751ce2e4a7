"""Open translation models with their tokenizers from folders and the Hub; errors of incomplete or mismatched ones."""

import os
import pickle
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoProcessor,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ..model.config.front_ends import input_name_of, reads_tokens
from ..model.config.search_settings import SEARCH_OPTIONS
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.layers.base_model import SHARD_NAME
from ..model.tokenization_vanilla_transformer import TOKENIZER_FILES
from ..model.tokenizer.failures import is_failure
from ..model.tokenizer.limits import check_tokenizer_file
from ..recurrent.configuration import RecurrentSeq2SeqConfig
from .checksums import check_unchanged
from .command_line import message_of
from .hub_waits import bounded_waits, httpx
from .machine import device_type
from .model_settings import check_model_settings
from .settings import read_bounded, read_json


OwnConfig = VanillaTransformerConfig | RecurrentSeq2SeqConfig
HUB_TIMEOUT = 10  # seconds
REPO_ID = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")
# Models often have a few more rows than their tokenizer has tokens, rounded up to a multiple of this.
VOCABULARY_PADDING = 128
# The files of a folder that transformers reads when it opens a model, beside its settings.
VOCABULARY_FILES = ("tokenizer.json", "added_tokens.json", "vocab.json", "target_vocab.json")
LARGEST_VOCABULARY = 256 * 2**20  # bytes
# The most parameters that a config may describe for each byte of the weights, and a number of parameters that is
# always allowed.
COST_FACTOR, SMALLEST_COST = 4, 2**26


# Errors that the readers of a model's files raise for damaged, missing or wrong files.
DAMAGE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    AssertionError,
    EOFError,
    ImportError,
    SafetensorError,
    StrictDataclassError,
    pickle.UnpicklingError,
    struct.error,
    httpx.HTTPError,
)


# Classes whose models do not translate -> what they are, and what opens them.
OTHER_CLASSES = {
    "VanillaTransformerModel": "an encoder–decoder without its output layer: open it by AutoModel",
    "VanillaTransformerEncoderModel": "an encoder without a head: open it by AutoModel",
    "VanillaTransformerDecoderModel": "a decoder without its output layer: open it by AutoModel",
    "VanillaTransformerForMaskedLM": 'a masked language model: use `explore` or pipeline("fill-mask")',
    "VanillaTransformerForCausalLM": 'a language model: use `explore` or pipeline("text-generation")',
    "VanillaTransformerForSequenceClassification": 'a classifier: use pipeline("text-classification")',
    "VanillaTransformerForTokenClassification": 'a classifier of tokens: use pipeline("token-classification")',
}

# A model's argument for a source that is not text -> what it is, and what takes it.
OTHER_SOURCES = {
    "input_features": "recordings, not text: use `translate` with --audio, or `score`, `attention` or `explore`",
    "pixel_values": "images, not text: use `translate` with --image, or `score`, `attention` or `explore`",
}


def other_class(config: Any) -> str | None:
    """What a model of this package is, and what to open it by, if it does not translate."""
    return OTHER_CLASSES.get((config.architectures or [""])[0]) if is_own(config) else None


def is_own(config: Any) -> bool:
    """Whether a config, or the content of a config.json, has this package's model type, whatever code it runs."""
    found = config.get("model_type") if isinstance(config, dict) else getattr(config, "model_type", None)
    return found == VanillaTransformerConfig.model_type


def read_config(folder: str | os.PathLike) -> OwnConfig:
    """The config of a saved Transformer of this package, or of a recurrent model."""
    path = Path(folder, "config.json")
    found = read_json(path).get("model_type") if path.is_file() else None
    is_recurrent = found == RecurrentSeq2SeqConfig.model_type
    return (RecurrentSeq2SeqConfig if is_recurrent else VanillaTransformerConfig).from_pretrained(folder)


def open_by(kind: Any, name: str | os.PathLike | None, *, trust_remote_code: bool = False, **settings: Any) -> Any:
    """What a class opens by its `from_pretrained`: the one place that calls that of a class of transformers."""
    # Where nobody says whether the code of a folder may run, transformers asks, and reads the answer from standard
    # input, which may be a text to translate.
    return kind.from_pretrained(name, trust_remote_code=trust_remote_code, **settings)


def open_model(
    name: str | os.PathLike,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder or a Hub repository; arguments as in `Translator.from_pretrained`."""
    config = open_config(name, trust_remote_code, revision)
    if is_own(config) and (reads := OTHER_SOURCES.get(input_name_of(config))) is not None:
        raise ValueError(f"{name} reads {reads}")
    tokenizer = open_tokenizer(name, trust_remote_code, revision)
    model = open_weights(name, config=config, dtype=dtype, trust_remote_code=trust_remote_code, revision=revision)
    if (cached := in_cache(name, revision)) is not None:
        with naming("files", name):  # which are all there by now
            check_settings(cached)
            check_unchanged(cached)
    return to_device(model, device), tokenizer


def in_cache(name: str | os.PathLike, revision: str | None = None) -> Path | None:
    """The folder of a model of the Hub in its cache, if it is there."""
    config = None if Path(name).is_dir() else try_to_load_from_cache(str(name), "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def open_config(
    name: str | os.PathLike, trust_remote_code: bool = False, revision: str | None = None
) -> PreTrainedConfig:
    """The config of a saved encoder–decoder."""
    config = open_any_config(name, trust_remote_code, revision)
    if (what := other_class(config)) is not None:
        raise ValueError(f"{name} cannot translate, it is {what}")
    if not config.is_encoder_decoder:
        raise ValueError(f"{name}: model type {config.model_type!r} is not an encoder–decoder and cannot translate")
    return config


def open_any_config(
    name: str | os.PathLike, trust_remote_code: bool = False, revision: str | None = None, **fields: Any
) -> PreTrainedConfig:
    """The config of a saved model, with `fields` in place of its own."""
    if Path(name).is_file() or not (Path(name).is_dir() or REPO_ID.fullmatch(str(name))):
        raise FileNotFoundError(f"{name}: no such folder")
    with naming("config", name):
        check_settings(Path(name))
        check_unchanged(name)
        if not (constants.HF_HUB_OFFLINE or Path(name).is_dir() or in_cache(name)):
            with suppress(HfHubHTTPError):  # asked once: without a network, transformers retries for half a minute
                HfApi().model_info(str(name), timeout=HUB_TIMEOUT)
        config: PreTrainedConfig = open_by(
            AutoConfig, name, trust_remote_code=trust_remote_code, revision=revision, **fields
        )
        if (cached := in_cache(name, revision)) is not None:  # before a model is made of it
            check_model_settings(cached)
        return config


def check_settings(folder: Path):
    """Check that transformers can read a folder's settings without waiting, filling the memory or deep recursion."""
    check_model_settings(folder)
    for name in VOCABULARY_FILES:
        if (folder / name).exists():
            read_bounded(folder / name, LARGEST_VOCABULARY)


def open_tokenizer(
    name: str | os.PathLike, trust_remote_code: bool = False, revision: str | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer of a saved folder or a Hub repository; `OSError` of one line if it is missing or damaged."""
    with naming("tokenizer", name):
        check_settings(Path(name))
        for file in TOKENIZER_FILES.values():  # of other classes, too; ours checks its own again
            if (path := Path(name, file)).is_file():
                check_tokenizer_file(path)
        tokenizer: PreTrainedTokenizerBase = open_by(
            AutoTokenizer, name, trust_remote_code=trust_remote_code, revision=revision
        )
        return tokenizer


def open_processor(name: str | os.PathLike) -> Any:
    """What makes frames of recordings, or pixels of images, and texts of ids."""
    with naming("processor", name):
        check_settings(Path(name))
        return open_by(AutoProcessor, name)


def open_weights(
    name: str | os.PathLike, kind: Any = AutoModelForSeq2SeqLM, *, is_part: bool = False, **settings: Any
) -> PreTrainedModel:
    """A model with all of its weights, by the Auto class `kind`; `settings` are those of `from_pretrained`."""
    # What is part of the model in a folder, such as one stack of it, leaves the other tensors.
    with naming("weights", name):
        check_one_set(Path(name))
        check_cost(settings.get("config"), Path(name))
        # Missing tensors would be filled with random numbers and only logged; so would those of other shapes.
        model, report = open_by(kind, name, output_loading_info=True, ignore_mismatched_sizes=True, **settings)
        lacking = sorted(report["missing_keys"]) + sorted(key for key, *_ in report["mismatched_keys"])
        if lacking:
            raise ValueError(f"{len(lacking)} tensors are missing or of another shape, the first is {lacking[0]}")
        if not is_part and (unexpected := sorted(report["unexpected_keys"])):
            raise ValueError(
                f"{len(unexpected)} tensors do not belong to the model that the config describes, the first is "
                f"{unexpected[0]}"
            )
        for key, tensor in model.state_dict().items():
            if torch.is_tensor(tensor) and not is_finite(tensor):
                raise ValueError(f"{key} holds NaN or infinite values: its training failed, or the file is damaged")
    return model


def check_one_set(folder: Path) -> None:
    """Check that a folder does not hold weights both in one file and in several."""
    # Saving in several files over one with transformers leaves both: which would be opened depends on the program.
    shards = [path.name for path in folder.iterdir() if SHARD_NAME.fullmatch(path.name)] if folder.is_dir() else []
    if shards and (folder / SAFE_WEIGHTS_NAME).is_file() and (folder / SAFE_WEIGHTS_INDEX_NAME).is_file():
        raise ValueError(
            f"{folder} holds two sets of weights, {SAFE_WEIGHTS_NAME} and the {len(shards)} files of "
            f"{SAFE_WEIGHTS_INDEX_NAME}: expected one; remove the older"
        )


def check_cost(config: Any, folder: Path):
    """Check that a config's model is not far larger than its weights: transformers would allocate all of it."""
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")] if folder.is_dir() else []
    if not sizes or not is_own(config):
        return
    is_shared = config.feed_forward_sharing != "none"  # then each layer has at least its norms
    least = config.vocab_size * config.d_model + sum(
        sets * 2 * width * (1 if is_shared else ffn_dim)
        for sets, width, ffn_dim in (
            (config.encoder_layer_sets, config.encoder_d_model, config.encoder_ffn_dim),
            (config.decoder_layer_sets, config.d_model, config.decoder_ffn_dim),
        )
    )
    if least > COST_FACTOR * sum(sizes) + SMALLEST_COST:
        raise ValueError(
            f"its config describes a model of at least {least:,} parameters, and the weights have {sum(sizes):,} bytes"
        )


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinite values."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    values = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch has no amax for eight-bit floats
    smallest, largest = values.aminmax()  # one pass without a copy; NaN propagates
    return bool(torch.isfinite(smallest) and torch.isfinite(largest))


def vocabularies(tokenizer: Any) -> list[dict[str, int]]:
    """The target and the source vocabulary."""
    source = getattr(tokenizer, "source_backend_tokenizer", None)
    return [tokenizer.get_vocab(), *([] if source is None else [source.get_vocab()])]


def check_fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that model and tokenizer belong together."""
    if not model.config.is_encoder_decoder or not model.can_generate():
        raise ValueError(f"{type(model).__name__} is not an encoder–decoder that can generate text")
    if tokenizer.pad_token_id is None:
        raise ValueError(f"{type(tokenizer).__name__} has no pad token")
    # `len` counts the target vocabulary if there are two; that of MarianMT's tokenizer counts the source.
    pieces = {"source": getattr(tokenizer, "source_vocab_size", None) or len(tokenizer), "target": len(tokenizer)}
    stacks = {"source": model.get_encoder(), "target": model.get_decoder()}
    if getattr(tokenizer, "separate_vocabs", False):
        del stacks["target"]
    if not reads_tokens(model.config):
        del stacks["source"]
    for side, stack in stacks.items():
        rows = stack.get_input_embeddings().weight.shape[0]
        if not pieces[side] <= rows < pieces[side] + VOCABULARY_PADDING:
            raise ValueError(
                f"the tokenizer has {pieces[side]} {side} tokens and the model {rows} {side} embeddings: "
                "they do not belong together"
            )


def to_device(model: Any, device: str | torch.device | None) -> PreTrainedModel:
    """The model on a device; if none is given, on an accelerator if there is one."""
    if device is None:
        device = device_type(None)
    try:
        return model.to(device)
    except (AssertionError, RuntimeError) as error:  # not built into torch, not present, or a wrong name
        raise ValueError(f"device {str(device)!r} cannot be used here: {_first_line(error)}") from error


@contextmanager
def naming(part: str, name: str | os.PathLike) -> Iterator[None]:
    """Turn any error of a file reader into one line that names the part and the model that could not be opened."""
    try:
        with nullcontext() if Path(name).exists() else bounded_waits():
            yield
    except BaseException as error:
        # tokenizers raises an Exception itself for a damaged file, or panics.
        if not isinstance(error, DAMAGE) and not is_failure(error):
            raise
        where = f"{name}" if Path(name).exists() else f"{name} (no such folder, so taken as a Hub id)"
        raise OSError(f"cannot open the {part} of {where}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (message_of(error) or type(error).__name__).splitlines()[0]


def settings_without_ours(model: Any) -> tuple[GenerationConfig, list[str]]:
    """A model's generation settings without the options of this package's search, and the omitted ones."""
    settings, notes = GenerationConfig.from_dict(model.generation_config.to_dict()), []
    for name, default in SEARCH_OPTIONS.items():
        if (value := vars(settings).pop(name, None)) not in (None, default):
            notes.append(f"{name}={value!r} is left out: another engine may not support it")
    return settings, notes
