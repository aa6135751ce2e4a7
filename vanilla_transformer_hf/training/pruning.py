"""
Pruning: the least important attention heads and feed-forward units are removed, so the matrices become smaller; and
layers are removed.

Heads are ranked by their importance E_x |∂L(x)/∂ξ_h|, where ξ_h = 1 is a factor of the head's output (Michel et al.
2019, arXiv 1905.10650), units by the norm of all their weights. A pruned model is an ordinary model with fewer heads
and units in its config; `prune_folder` writes its folder.

Shapes: B sentences, T target positions, H heads, d_v width of a head's values, d_ff width of a feed-forward.
"""

import copy
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..common.files import check_new, new_folder
from ..common.opening import check_fit, is_own, open_model
from ..model.config.sharing import INNER_PROJECTIONS, layers_and_sets
from ..model.config.stacks import HEAD_FIELDS, heads_of_layers, most_heads, stack_of
from ..publishing.model_card import NOT_TRAINED, CardFacts, write_card
from .data.collators import TranslationCollator, vocabulary_sizes
from .data.corpora import CorpusFilter, tokenize_corpus
from .data.corpus import load_parallel_text
from .process import quiet_libraries


# Attention -> its stack, and its name in a layer.
ATTENTIONS = {
    "encoder": ("encoder", "self_attn"),
    "decoder": ("decoder", "self_attn"),
    "cross": ("decoder", "encoder_attn"),
}


def attentions(model: Any) -> dict[tuple[str, int], Any]:
    """The attention modules with their own weights, by ("encoder", "decoder" or "cross", layer)."""
    found = {}
    for attention, (stack, name) in ATTENTIONS.items():
        for place, layer in enumerate(getattr(model.model, stack).layers):
            module = getattr(layer, name)
            if module.shared_from is None:
                found[attention, place] = module
    return found


@contextmanager
def _gates(model: Any) -> Iterator[dict[tuple[str, int], torch.Tensor]]:
    """A context in which each head's output is multiplied by a factor of 1: the last factors (B, H), by attention."""
    factors: dict[tuple[str, int], torch.Tensor] = {}

    def gate(key: tuple[str, int], heads: int) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], Any]:
        def multiply(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            outputs = arguments[0].unflatten(-1, (heads, -1))  # (B, T, H, d_v)
            if key not in factors:  # layers that run twice, or two attentions with the same weights, have one factor
                factors[key] = outputs.new_ones(len(outputs), heads).requires_grad_()
            return ((outputs * factors[key][:, None, :, None]).flatten(-2), *arguments[1:])

        return multiply

    hooks = [
        module.out_proj.register_forward_pre_hook(gate(key, module.num_heads))
        for key, module in attentions(model).items()
    ]
    try:
        yield factors
    finally:
        for hook in hooks:
            hook.remove()


def head_importance(model: Any, batches: Iterable[dict[str, torch.Tensor]]) -> dict[tuple[str, int], torch.Tensor]:
    """E_x |∂L(x)/∂ξ_h| of each head (H), by attention; L is the negative log-likelihood of labels (B, T), in nats."""
    total: dict[tuple[str, int], torch.Tensor] = {}
    sentences, was_training = 0, model.training
    model.eval()
    try:
        for batch in batches:
            with _gates(model) as factors, torch.enable_grad():
                labels = batch["labels"]
                logits = model(
                    **{name: value for name, value in batch.items() if name != "labels"},
                    decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),
                ).logits
                loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
                keys = list(factors)
                # A sentence's factor has no effect on the losses of the others.
                derivatives = torch.autograd.grad(loss, [factors[key] for key in keys])
            for key, derivative in zip(keys, derivatives):
                total[key] = total.get(key, 0) + derivative.abs().double().sum(dim=0)
            sentences += len(labels)
    finally:
        model.train(was_training)
    return {key: value / max(1, sentences) for key, value in total.items()}


def unit_norms(maps: Any, names: list[str]) -> torch.Tensor:
    """The Euclidean norm of all weights of each feed-forward unit (d_ff): input rows, biases and output column."""
    squares: torch.Tensor = maps.fc2.weight.detach().double().square().sum(dim=0)
    for module in (getattr(maps, name) for name in names):
        squares = squares + module.weight.detach().double().square().sum(dim=1)
        if module.bias is not None:
            squares = squares + module.bias.detach().double().square()
    return squares.sqrt()


def choose_heads(importance: dict[tuple[str, int], torch.Tensor], share: float) -> dict[tuple[str, int], list[int]]:
    """The heads to keep, by attention: of all heads of the model, this share is removed, the least important first."""
    # Importance is divided by its norm in each layer, as in the paper. The best head of each attention is kept.
    scores = {key: value / value.norm().clamp(min=torch.finfo(value.dtype).tiny) for key, value in importance.items()}
    best = {(key, int(score.argmax())) for key, score in scores.items()}
    ranked = sorted((float(score[head]), key, head) for key, score in scores.items() for head in range(len(score)))
    candidates = [(key, head) for _, key, head in ranked if (key, head) not in best]
    count = round(share * len(ranked))
    if not 0 <= share < 1 or count > len(candidates):
        raise ValueError(
            f"heads={share}: must be at least 0 and at most {len(candidates) / len(ranked):.4g}, since each of the "
            f"{len(best)} attentions keeps one of the {len(ranked)} heads"
        )
    removed = set(candidates[:count])
    return {key: [head for head in range(len(score)) if (key, head) not in removed] for key, score in scores.items()}


def choose_units(norms: torch.Tensor, share: float) -> list[int]:
    """The units of a feed-forward to keep: this share is removed, the smallest norms first."""
    count = round(share * len(norms))
    if not 0 <= share < 1 or count >= len(norms):
        raise ValueError(f"feed_forward={share}: must be at least 0 and less than 1, and leave one of {len(norms)}")
    return sorted(norms.argsort(stable=True)[count:].tolist())


@dataclass(frozen=True)
class Pruned:
    """A pruned model, and numbers of its layers, and of heads and units in the kept layers, before and after."""

    model: Any
    heads: tuple[int, int]
    units: tuple[int, int]
    parameters: tuple[int, int]
    layers: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        parts = [
            f"{before - after:,} of {before:,} {what} ({(before - after) / before:.0%})"
            for what, (before, after) in (
                ("layers", self.layers),
                ("attention heads", self.heads),
                ("feed-forward units", self.units),
            )
            if before > after
        ]
        return f"{' and '.join(parts) or 'nothing'}: {self.parameters[0]:,} parameters became {self.parameters[1]:,}"


def prune(model: Any, heads: dict[tuple[str, int], list[int]] | None = None, feed_forward: float = 0.0) -> Pruned:
    """A new model without some heads and units; its outputs are those of the old one with zeros in their places."""
    own = attentions(model)
    kept = {key: list(range(module.num_heads)) for key, module in own.items()} | (heads or {})
    before = sum(module.num_heads for module in own.values())
    weights = dict(model.state_dict())
    names = {id(module): name for name, module in model.named_modules()}
    for key, module in own.items():
        name = names[id(module)]
        for projection, width in dict(module.roles).items():
            rows = torch.cat([torch.arange(head * width, (head + 1) * width) for head in kept[key]])
            for kind in ("weight", "bias"):
                if (full := f"{name}.{projection}.{kind}") in weights:
                    weights[full] = weights[full][rows]
        columns = torch.cat([torch.arange(head * module.d_v, (head + 1) * module.d_v) for head in kept[key]])
        weights[f"{name}.out_proj.weight"] = weights[f"{name}.out_proj.weight"][:, columns]
    sizes, units = {}, (0, 0)
    config = model.config
    inner = INNER_PROJECTIONS[config.feed_forward_type]
    for stack in ("encoder", "decoder"):
        for maps in [one for one in getattr(model.model, stack).modules() if "fc2" in one._modules]:
            left = choose_units(unit_norms(maps, inner), feed_forward)
            for full in (f"{names[id(maps)]}.{map}.{kind}" for map in inner for kind in ("weight", "bias")):
                if full in weights:
                    weights[full] = weights[full][left]
            weights[f"{names[id(maps)]}.fc2.weight"] = weights[f"{names[id(maps)]}.fc2.weight"][:, left]
            units = units[0] + maps.fc2.in_features, units[1] + len(left)
            sizes[stack] = len(left)
    sizes.setdefault("encoder", config.encoder_ffn_dim)
    if config.feed_forward_sharing == "all":
        sizes["decoder"] = sizes["encoder"]
    fields: dict[str, Any] = {f"{stack}_ffn_dim": size for stack, size in sizes.items()}
    counts = {key: len(left) for key, left in kept.items()}
    for attention, field in HEAD_FIELDS.items():
        # With decoder_attention_sharing, cross-attention is the module of self-attention.
        found = [
            counts.get((attention, place), counts.get(("decoder", place)))
            for place in range(len(heads_of_layers(config, attention)))
        ]
        fields[field] = None if set(found) == {most_heads(config, attention)} else found
    smaller = _load(_empty(model, fields), weights, model)
    parameters = model.num_parameters(), smaller.num_parameters()
    return Pruned(smaller, (before, sum(map(len, kept.values()))), units, parameters)


def spaced(count: int, layers: int) -> list[int]:
    """`count` of the layers 0 to `layers` - 1, evenly spaced from the first to the last; one: the first."""
    return [round(place * (layers - 1) / max(1, count - 1)) for place in range(count)]


def keep_layers(model: Any, encoder: int | None = None, decoder: int | None = None) -> Any:
    """A new model with fewer layers (all if None), as in Shleifer and Rush 2020, arXiv 2010.13002, section 3.1."""
    config, left, fields = model.config, dict[str, list[int]](), dict[str, Any]()
    for stack, count in (("encoder", encoder), ("decoder", decoder)):
        layers, sets = layers_and_sets(config, stack)
        count = layers if count is None else count
        if not 1 <= count <= layers:
            raise ValueError(f"{stack}_layers={count}: must be from 1 to the model's {layers}")
        if count < layers != sets:
            raise ValueError(f"{stack}_layers={count}: {layers} layers share {sets} sets of weights; keep all layers")
        left[stack] = spaced(count, layers) if sets == layers else list(range(sets))
        fields |= {f"{stack}_layers": count, f"{stack}_layer_sets": len(left[stack])}
    for attention, name in HEAD_FIELDS.items():
        if (heads := getattr(config, name)) is not None:
            fields[name] = [heads[place] for place in left[stack_of(attention)]]
    weights = {}
    for name, tensor in model.state_dict().items():
        if found := re.fullmatch(r"model\.(encoder|decoder)\.layers\.(\d+)\.(.+)", name):
            stack, place, rest = found[1], int(found[2]), found[3]
            if place not in left[stack]:
                continue
            name = f"model.{stack}.layers.{left[stack].index(place)}.{rest}"
        weights[name] = tensor
    smaller = _empty(model, fields)
    shapes = {name: tensor.shape for name, tensor in smaller.state_dict().items()}
    if (
        other := {name for name, tensor in weights.items() if shapes.get(name) != tensor.shape}
        | shapes.keys() - weights
    ):
        raise ValueError(f"layers cannot be removed: {min(other)} belongs to all layers together; keep all layers")
    return _load(smaller, weights, model)


def _empty(model: Any, fields: dict[str, Any]) -> Any:
    """A new model with these fields of the config changed."""
    config = type(model.config).from_dict({**model.config.to_dict(), **fields})
    return type(model)._from_config(config, dtype=model.dtype)


def _load(smaller: Any, weights: dict[str, Any], model: Any) -> Any:
    """The new model with these weights, and the search and the mode of the old one."""
    smaller.load_state_dict(weights)
    smaller.generation_config = copy.deepcopy(model.generation_config)
    return smaller.train(model.training)


# Maximum number of tokens of a sentence for measuring importance; longer sentences are truncated.
LONGEST = 256


def _batches(
    model: Any, tokenizer: Any, files: tuple[str, str | None], sentences: int, batch_size: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Inputs of the model with labels: pairs taken evenly from a text; those of similar lengths share a batch."""
    source_lang, target_lang = (tokenizer.init_kwargs.get(side) for side in ("src_lang", "tgt_lang"))
    corpus: Any = load_parallel_text(*files, source_lang=source_lang, target_lang=target_lang)
    step = max(1.0, len(corpus) / sentences)
    corpus = corpus.select(np.arange(0, len(corpus), step).astype(int)[:sentences])
    data = tokenize_corpus(corpus, tokenizer, CorpusFilter(LONGEST, LONGEST, "truncate")).data
    data = data.select(np.argsort(data["length"], kind="stable"))
    sizes = vocabulary_sizes(model)
    collate = TranslationCollator(tokenizer, source_vocab_size=sizes[0], target_vocab_size=sizes[1])
    for start in range(0, len(data), batch_size):
        batch = collate([data[row] for row in range(start, min(start + batch_size, len(data)))])
        batch.pop("line", None)
        yield dict(batch)


def prune_folder(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    heads: float = 0.0,
    feed_forward: float = 0.0,
    source: str | None = None,
    target: str | None = None,
    sentences: int = 1000,
    batch_size: int = 64,
    encoder_layers: int | None = None,
    decoder_layers: int | None = None,
) -> Pruned:
    """Write the folder of a pruned model, with tokenizer and card; heads are measured on pairs of `source`."""
    for name, value in (("sentences", sentences), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    output = Path(output)
    check_new(output)
    if not (heads or feed_forward or encoder_layers is not None or decoder_layers is not None):
        raise ValueError(
            "nothing is to be removed: give heads or feed_forward, a share greater than 0, or encoder_layers or "
            "decoder_layers, the layers to keep"
        )
    if heads and source is None:
        raise ValueError(f"heads={heads}: the importance of heads is measured on sentence pairs; name their files")
    with quiet_libraries():
        model, tokenizer = open_model(folder, "cpu")
        if not is_own(model.config):
            raise ValueError(f"{folder}: its model type {model.config.model_type!r} is not a model of this package")
        check_fit(model, tokenizer)
        dtype, kept, full = model.dtype, None, model.num_parameters()
        before = model.config.encoder_layers + model.config.decoder_layers
        model = model.float()
        if encoder_layers is not None or decoder_layers is not None:
            model = keep_layers(model, encoder_layers, decoder_layers)
        if heads and source is not None:
            batches = _batches(model, tokenizer, (source, target), sentences, batch_size)
            kept = choose_heads(head_importance(model, batches), heads)
        pruned = prune(model, kept, feed_forward)
        after = model.config.encoder_layers + model.config.decoder_layers
        pruned = replace(pruned, layers=(before, after), parameters=(full, pruned.parameters[1]))
        is_folder = Path(folder).is_dir()
        facts = CardFacts.read(Path(folder)).inherited() if is_folder else CardFacts(base_model=str(folder))
        told = [*facts.compression, f"Pruned: {pruned}. {NOT_TRAINED}"]
        # Measurements of the full model do not hold for the pruned one.
        facts = replace(facts, name=output.name, scored=[], measured={}, minutes=None, co2=None, compression=told)
        with new_folder(output) as unfinished:
            pruned.model.to(dtype).save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
            write_card(facts, unfinished)
    return pruned
