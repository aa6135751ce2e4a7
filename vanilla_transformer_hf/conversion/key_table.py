"""A table of the keys of a checkpoint, applied in one place."""

import itertools
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch

from ..model.config.auto_classes import classes_of
from ..model.config.front_ends import reads_tokens
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from .source import FLOATS, ConversionError, Tensors


Transform = Callable[[torch.Tensor, VanillaTransformerConfig], torch.Tensor]


def unchanged(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """The tensor itself."""
    return tensor


def no_bias(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """Zeros as the bias of a linear map (out, in) or a norm without one, from its weight."""
    return tensor.new_zeros(len(tensor))


def as_vector(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """A matrix with one row as a vector."""
    return tensor.flatten()


def transposed(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """A matrix (in, out) of a toolkit that multiplies from the right."""
    return tensor.T.contiguous()


def transposed_third(number: int) -> Transform:
    """Queries (0), keys (1) or values (2) of one matrix (in, out) for all three."""
    return lambda tensor, config: tensor.chunk(3, dim=1)[number].T.contiguous()


def by_width(power: float) -> Transform:
    """A matrix or vector times a power of d: another place of √d in the embeddings, positions or logits."""
    return lambda tensor, config: tensor * config.d_model**power


def third(number: int) -> Transform:
    """Queries (0), keys (1) or values (2) of one matrix, or one vector, for all three."""
    return lambda tensor, config: tensor.chunk(3)[number]


@dataclass(frozen=True)
class Rule:
    """The target of a source tensor, and the small named function that turns one into the other."""

    target: str
    transform: Transform = unchanged


# Source name -> target name, a Rule, a list of either, or None where a tensor is dropped on purpose (with the reason
# beside it). "{}" stands for a layer index; a target takes the indices of its source in order. The first row that
# matches counts.
Row = str | Rule | Sequence[str | Rule] | None
KeyTable = Mapping[str, Row]

# Names to choose from, as in a shell: "{weight,bias}", but not "{}". A source writes them out itself: names that come
# from a file may have braces, and as many as they like.
_CHOICE = re.compile(r"\{([^{}]+)\}")


def _spelled(pattern: str, choice: Sequence[int]) -> str:
    """`layer.{fc1,fc2}.{weight}` with the choice (1, 0) is `layer.fc2.weight`; an only name is always chosen."""
    parts = _CHOICE.split(pattern)  # what stands between choices, and each choice
    for place, number in zip(range(1, len(parts), 2), choice, strict=True):
        names = parts[place].split(",")
        parts[place] = names[number if len(names) > 1 else 0]
    return "".join(parts)


def written_out(table: KeyTable) -> dict[str, list[Rule]]:
    """A table with a row for each name of its patterns. A target has its source's choices, each as long or of one."""
    rows: dict[str, list[Rule]] = {}
    for pattern, row in table.items():
        sizes = [names.count(",") + 1 for names in _CHOICE.findall(pattern)]
        for choice in itertools.product(*map(range, sizes)):
            rows[_spelled(pattern, choice)] = [
                replace(rule, target=_spelled(rule.target, choice)) for rule in _as_rules(row)
            ]
    return rows


def _as_rules(row: Row) -> list[Rule]:
    rows = [] if row is None else [row] if isinstance(row, str | Rule) else row
    return [Rule(entry) if isinstance(entry, str) else entry for entry in rows]


# Fields of a config that are sizes of tensors.
SIZES = (
    *("vocab_size", "source_vocab_size", "d_model", "encoder_d_model", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("d_k", "d_v", "encoder_attention_heads", "decoder_attention_heads"),
)
SIZES_OF_SPEECH = ("num_mel_bins", "conv_channels", "conv_kernel_size")
POSITIONS = {
    "max_position_embeddings": "position_encoding",
    "decoder_max_position_embeddings": "decoder_position_encoding",
}


def check_sizes(config: VanillaTransformerConfig, tensors: Tensors):
    """Compare the sizes in the options with the existing tensors, before a model of these sizes is built."""
    shapes = [tensors.shape(name) for name in tensors]
    longest = max((size for shape in shapes for size in shape), default=0)
    layers = config.encoder_layers + config.decoder_layers
    problems = [f"{layers:,} layers, and there are {len(shapes):,} tensors"] if layers > len(shapes) else []
    learned = [name for name, kind in POSITIONS.items() if getattr(config, kind) == "learned"]
    for name in (*SIZES, *learned, *(() if reads_tokens(config) else SIZES_OF_SPEECH)):
        value = getattr(config, name) or 0
        if value > longest + 1:  # a source may add a token of its own
            problems.append(f"{name}={value:,}, and no tensor is longer than {longest:,}")
    if problems:
        raise ConversionError("the options describe a larger model than the weights:\n  " + "\n  ".join(problems))


def model_class(config: VanillaTransformerConfig) -> Any:
    """The class of the model of a config: the one that `architectures` names, or the one with a head."""
    classes, named = [*classes_of(config).values()], (config.architectures or [""])[0]
    found = next((each for each in classes if each.endswith(f".{named}")), classes[-1])
    module, _, name = found.rpartition(".")
    return getattr(import_module(f"..model.{module}", __package__), name)


def empty_model(config: VanillaTransformerConfig) -> Any:
    """The model of a config, with names and shapes and no memory for weights."""
    with torch.device("meta"):
        return model_class(config)(config)


def convert_tensors(table: KeyTable, tensors: Tensors, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a source under the names of our empty model, one at a time; a tied matrix comes once."""
    # At the call, before a tensor is read, tensors that no row of the table names or that do not belong to the model,
    # and missing tensors, are errors, all listed. While iterating: a tensor with another shape, without a
    # floating-point type or with values that are not finite, and tensors that differ although the options tie them.
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    aliases = model.all_tied_weights_keys
    patterns = [(re.compile(re.escape(key).replace(r"\{\}", r"(\d+)")), _as_rules(row)) for key, row in table.items()]
    plan: dict[str, list[tuple[str, Rule]]] = {name: [] for name in shapes if name not in aliases}
    problems = []
    for name in tensors:
        match, rules = next(((found, row) for key, row in patterns if (found := key.fullmatch(name))), (None, []))
        if match is None:
            problems.append(f"left over: {name}")
            continue
        for rule in rules:
            place = rule.target.format(*match.groups())
            if (target := aliases.get(place, place)) in plan:
                plan[target].append((name, rule))
            else:
                problems.append(f"left over: {name} (the options leave no place for {place})")
    problems += [f"missing: {target}" for target, sources in plan.items() if not sources]
    if problems:
        raise ConversionError("the weights are not those that the options describe:\n  " + "\n  ".join(problems))

    def moved() -> Iterator[tuple[str, torch.Tensor]]:
        for target, ((first, rule), *others) in plan.items():
            tensor = rule.transform(tensors[first], model.config)
            if tensor.shape != shapes[target]:
                raise ConversionError(
                    f"{first} has the shape {tuple(tensor.shape)}, and {target} needs {tuple(shapes[target])}"
                )
            if tensor.dtype not in FLOATS:
                raise ConversionError(f"{first} holds {tensor.dtype}; {', '.join(map(str, FLOATS))} are read")
            if not all(torch.isfinite(value) for value in torch.aminmax(tensor)):  # with no copy of a large tensor
                raise ConversionError(
                    f"{first} holds values that are not finite; the file is damaged or training failed"
                )
            for name, other in others:
                if not torch.equal(tensor, other.transform(tensors[name], model.config)):
                    raise ConversionError(f"{first} and {name} differ, and the options call them one matrix")
            yield target, tensor

    return moved()


def not_expressed(options: Mapping[str, Any], expressed: Mapping[str, Sequence[Any]], where: str = "") -> list[str]:
    """A line for each option whose value is not among those that our model supports."""
    return [
        f"{where}{name}: {options[name]!r} (supported: {', '.join(map(repr, values))})"
        for name, values in expressed.items()
        if options[name] not in values
    ]


def filled(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`defaults` updated with the `given` values; None means "not given"."""
    return {**defaults, **{name: value for name, value in given.items() if value is not None}}


# Upper limit of a toolkit's integers.
LARGEST_OPTION = 2**31


def wrong_types(given: Any, defaults: Mapping[str, Any], where: str = "") -> list[str]:
    """Options of another type than their defaults, a line each, `where` before the names; None allows any type."""
    # Remove None for "not given" with `filled` first.
    if not isinstance(given, Mapping):
        return [f"{where.rstrip('.') or 'options'}: {given!r} holds no options"]
    problems = []
    for name, default in defaults.items():
        value = given.get(name, default)
        kinds = (int, float) if type(default) is float else type(default)
        if default is not None and (not isinstance(value, kinds) or (type(value) is bool) != (type(default) is bool)):
            problems.append(f"{where}{name}: {reprlib.repr(value)} (a value such as {default!r} is needed)")
        elif isinstance(value, int) and abs(value) >= LARGEST_OPTION:
            problems.append(f"{where}{name}: {reprlib.repr(value)} (a smaller number is needed)")
    return problems
