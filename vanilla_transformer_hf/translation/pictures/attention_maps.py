"""Pictures of attention: every head of every layer for one sentence and its translation."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ...common.white_space import normalize_space
from ...model.config.attention_kinds import attends_to_pieces
from ..scoring.alignment import with_eager_attention
from ..scoring.scoring import shift_right


if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    from matplotlib.figure import Figure


# Maximum number of tokens on a side of a map, so that labels are readable.
MOST_PIECES = 60
# Inches per token, and minimum inches of a map.
PIECE, SMALLEST = 0.13, 1.1


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights, softmax(Q Kᵀ / √d_k) of section 3.2.1, of one sentence."""

    # L layers, H heads, S source tokens, T steps of the decoder. H is the largest number of heads; the maps of heads
    # that a layer of a pruned model lacks are NaN. In float32; rows sum to 1.

    source: list[str]  # tokens that the encoder reads (S)
    read: list[str]  # tokens that the decoder reads, its start token first (T)
    predicted: list[str]  # tokens that the decoder predicts, its end-of-sentence token last (T)
    encoder: torch.Tensor  # attention of source tokens to each other (L, H, S, S)
    decoder: torch.Tensor  # self-attention of the decoder's steps (L, H, T, T)
    cross: torch.Tensor  # cross-attention of the decoder's steps (L, H, T, S)


# Attention -> title, labels of its rows and of its columns.
PARTS = {
    "encoder": ("Self-attention of the encoder", "source", "source"),
    "decoder": ("Masked self-attention of the decoder", "predicted", "read"),
    "cross": ("Attention of the decoder to the source", "predicted", "source"),
}


def readable(decode: Any, ids: list[int]) -> list[str]:
    """Tokens as labels: tokens inside a word begin with "·", and "␣" is a single space."""
    texts = [decode([index]).strip() for index in ids]
    is_no_text = [decode([index], skip_special_tokens=True).strip() == "" for index in ids]
    pieces = []
    for place, text in enumerate(texts):
        before = decode(ids[:place])
        has_space = decode(ids[: place + 1])[len(before) :][:1].isspace()
        goes_on = not (place == 0 or has_space or is_no_text[place] or is_no_text[place - 1])
        pieces.append(f"·{text}" if goes_on else text or "␣")
    return pieces


@torch.no_grad()
def attention_maps(model: Any, tokenizer: Any, source: str, target: str | None = None) -> AttentionMaps:
    """The attention of a model to a sentence while it predicts `target`, or else what it generates."""
    if not (source := normalize_space(source)):
        raise ValueError("the source is empty: expected a sentence")
    batch = tokenizer([source], return_tensors="pt").to(model.device)
    target_ids, source_ids = ids_of_target(model, tokenizer, batch, target), batch["input_ids"][0].tolist()
    for side, count in (("source", len(source_ids)), ("target", len(target_ids) - 1)):
        if count > MOST_PIECES:
            raise ValueError(f"the {side} has {count} tokens; a picture shows up to {MOST_PIECES}")
    outputs = with_attention(model, batch, target_ids)
    found = (outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions)
    if not all(attends_to_pieces(model.config, part) for part in ("encoder", "cross")):
        raise ValueError(
            "this model's attention has weights of sums over the source, not of its tokens (linformer or "
            "encoder_pooling): there is no map"
        )
    if None in found:
        raise ValueError(f"a {model.config.model_type} model has no self-attention: there is no map of it")
    decode_source = getattr(tokenizer, "decode_source", tokenizer.decode)
    pieces = readable(tokenizer.decode, target_ids.tolist())
    return AttentionMaps(
        readable(decode_source, source_ids),
        pieces[:-1],
        pieces[1:],
        *(of_layers([layer[0].float().cpu() for layer in layers]) for layers in found),
    )


def ids_of_target(model: Any, tokenizer: Any, batch: dict[str, torch.Tensor], target: str | None) -> torch.Tensor:
    """The decoder's start token and the ids of a text (1 + T): of one that is given, or of the best that is found."""
    if target is None:
        found: torch.Tensor = model.generate(**batch, num_return_sequences=1)[0]
        return found
    labels = tokenizer(text_target=[normalize_space(target)], return_tensors="pt")["input_ids"].to(model.device)
    return shift_right(model, labels)[0]


def with_attention(model: Any, batch: dict[str, torch.Tensor], ids: torch.Tensor) -> Any:
    """The model's output, with its attention, while it predicts all but the first of these ids (1 + T)."""
    eager = with_eager_attention(model)
    return eager(**batch, decoder_input_ids=ids[None, :-1], output_attentions=True, use_cache=False, return_dict=True)


def of_layers(maps: list[torch.Tensor]) -> torch.Tensor:
    """The maps of layers (H, rows, columns) as (L, H, rows, columns)."""
    most = max(len(layer) for layer in maps)
    return torch.stack([F.pad(layer, (0, 0, 0, 0, 0, most - len(layer)), value=torch.nan) for layer in maps])


@contextmanager
def new_figure(layer: int | None, layers: int) -> Iterator["Figure"]:
    """A figure, drawn inside; `ValueError` where there is no such layer."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if layer is not None and not 0 <= layer < layers:
        raise ValueError(f"layer={layer}: the layers are 0 to {layers - 1}")
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def shares() -> Any:
    """The colours of weights: the square root shows small ones too."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, 0, 1)


def draw_attention(maps: AttentionMaps, part: str = "cross", layer: int | None = None) -> "Figure":
    """A row of maps for each layer, or one: the mean of its heads, then each; rows are queries, columns keys."""
    if part not in PARTS:
        raise ValueError(f"part={part!r}: one of {', '.join(PARTS)}")
    title, rows, columns = PARTS[part]
    weights: torch.Tensor = getattr(maps, part)
    layers = range(len(weights)) if layer is None else [layer]
    shown = torch.cat((weights.nanmean(dim=1, keepdim=True), weights), dim=1)  # (L, 1 + H, queries, keys)
    height, width = (max(SMALLEST, PIECE * size) for size in shown.shape[2:])
    with new_figure(layer, len(weights)) as figure:
        figure.set_size_inches(1.6 + width * shown.shape[1], 1.2 + height * len(layers))
        axes = figure.subplots(len(layers), shown.shape[1], squeeze=False)
        for row, index in enumerate(layers):
            for column, axis in enumerate(axes[row]):
                if row == 0:
                    axis.set_title("mean of heads" if column == 0 else f"head {column - 1}")
                if shown[index, column].isnan().any():  # the layer has fewer heads
                    axis.set_axis_off()
                    continue
                image = axis.imshow(shown[index, column].numpy(), norm=shares(), cmap="Blues", aspect="auto")
                axis.tick_params(length=0, labelsize=6)
                axis.tick_params(axis="x", labelrotation=90)
                labels = getattr(maps, rows) if column == 0 else []
                axis.set_yticks(range(len(labels)), labels)
                labels = getattr(maps, columns) if row == len(layers) - 1 else []
                axis.set_xticks(range(len(labels)), labels)
            axes[row, 0].set_ylabel(f"layer {index}")
        figure.suptitle(f"{title} (rows: {rows}, columns: {columns})")
        figure.colorbar(image, ax=axes, shrink=min(1.0, 2 / height), pad=0.01, label="weight")
    return figure
