"""Cross-attention over what a model hears or sees: numbers, and a picture with the weights below their source."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...evaluation.diagonality import Diagonality, diagonality
from ...model.config.attention_kinds import attends_to_pieces
from ..recognition import Recognizer, batch_of
from .attention_maps import MOST_PIECES, ids_of_target, new_figure, of_layers, readable, shares, with_attention
from .source_pictures import SourcePicture, picture_of


if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SourceAttention:
    """Cross-attention of a file's text: L layers, H heads, T steps of the decoder, S positions of the encoder."""

    picture: SourcePicture  # what the model reads of the file
    text: str
    predicted: list[str]  # tokens that the decoder predicts, its end-of-sentence token last (T)
    is_text: list[bool]  # whether a token is text, no special token (T)
    weights: torch.Tensor  # (L, H, T, S), in float32; rows sum to 1

    @property
    def diagonality(self) -> Diagonality:
        """How diagonal the mean of each layer's heads is (L), without special tokens and what is blank behind it."""
        return diagonality(self.weights.nanmean(dim=1)[:, self.is_text, : self.picture.used])


def diagonal_lines(found: Sequence[SourceAttention]) -> list[str]:
    """How diagonal attention is, in a line for each layer: the mean over files whose texts have tokens."""
    measured = [one.diagonality for one in found if any(one.is_text)]
    if not measured:
        return []
    order = torch.stack([one.order for one in measured]).nanmean(dim=0)  # a single token has none
    away = torch.stack([one.off_diagonal for one in measured]).mean(dim=0)
    return [
        f"layer {number}: order {one:.3f}, {100 * share:.1f} % of the weights off the diagonal"
        for number, (one, share) in enumerate(zip(order.tolist(), away.tolist(), strict=True))
    ]


@torch.no_grad()
def source_attention(recognizer: Recognizer, path: Any, target: str | None = None) -> SourceAttention:
    """The cross-attention to a recording or an image while `target`, or else what is generated, is predicted."""
    model, processor, name = recognizer.model, recognizer.processor, recognizer.input_name
    if not attends_to_pieces(model.config, "cross"):
        raise ValueError(
            "this model's attention has weights of sums over the source, not of its positions (linformer or "
            "encoder_pooling): there is no picture"
        )
    source = recognizer.read(path)
    batch = {key: tensor.to(model.device) for key, tensor in batch_of(name, [source], recognizer.has_padding).items()}
    ids = ids_of_target(model, processor.tokenizer, batch, target)
    if not 0 < len(ids) - 1 <= MOST_PIECES:
        raise ValueError(f"the text has {len(ids) - 1} tokens; a picture shows 1 to {MOST_PIECES}")
    outputs = with_attention(model, batch, ids)
    tokenizer, predicted = processor.tokenizer, ids[1:].tolist()
    return SourceAttention(
        picture_of(model.config, processor, source),
        tokenizer.decode(predicted, skip_special_tokens=True),
        readable(tokenizer.decode, ids.tolist())[1:],
        [index not in tokenizer.all_special_ids for index in predicted],
        of_layers([layer[0].float().cpu() for layer in outputs.cross_attentions]),
    )


def draw_source_attention(found: SourceAttention, layer: int | None = None) -> "Figure":
    """The spectrogram or image above the weights of each layer, or of one layer's heads; a row for each token."""
    draw = draw_rows if found.picture.is_row else draw_pictures
    with new_figure(layer, len(found.weights)) as figure:
        if layer is None:
            maps = {f"layer {number}": one for number, one in enumerate(found.weights.nanmean(dim=1))}
        else:
            heads = enumerate(found.weights[layer])
            maps = {f"head {number}": one for number, one in heads if not one.isnan().any()}
        draw(figure, found, maps)
        which = "mean of heads" if layer is None else f"layer {layer}"
        figure.suptitle(f"Attention of the decoder to the source, {which}: {found.text}", fontsize=8)
    return figure


def draw_rows(figure: "Figure", found: SourceAttention, maps: dict[str, torch.Tensor]) -> None:
    """The picture, and below it a map for each name, with the same columns."""
    picture, tall = found.picture, 0.15 * len(found.predicted)
    source_tall = 1.3 if picture.kind == "speech" else 0.7
    figure.set_size_inches(7.5, 0.7 + source_tall + (tall + 0.25) * len(maps))
    axes = figure.subplots(
        1 + len(maps), 1, sharex=True, height_ratios=[source_tall, *[tall] * len(maps)], squeeze=False
    )[:, 0]
    scale = picture.seconds or 1.0
    height, width = picture.values.shape[:2]
    colours = {"cmap": "gray", "vmin": 0, "vmax": 1} if picture.kind == "image" else {"cmap": "magma"}
    axes[0].imshow(picture.values.numpy(), aspect="auto", extent=(0, width * scale, height, 0), **colours)
    axes[0].set_ylabel("mel filter" if picture.kind == "speech" else "pixels")
    axes[0].set_yticks([])
    edges = torch.cat((picture.cells[:, 0], picture.cells[-1:, 2])) * scale
    for axis, (name, weights) in zip(axes[1:], maps.items(), strict=True):
        image = axis.pcolormesh(
            edges.numpy(), range(len(weights) + 1), weights.numpy(), norm=shares(), cmap="Blues", rasterized=True
        )
        axis.invert_yaxis()
        axis.set_yticks([place + 0.5 for place in range(len(weights))], found.predicted)
        axis.tick_params(length=0, labelsize=6)
        axis.set_ylabel(name)
    axes[-1].set_xlabel("column of pixels" if picture.kind == "image" else "seconds" if picture.seconds else "frame")
    figure.colorbar(image, ax=axes[1:], pad=0.01, label="weight")


def draw_pictures(figure: "Figure", found: SourceAttention, maps: dict[str, torch.Tensor]) -> None:
    """The picture for each token, brighter where it is looked at: a row of them for each name."""
    picture, columns = found.picture, len(found.predicted)
    height, width = picture.values.shape[:2]
    figure.set_size_inches(1 + 1.1 * columns, 0.6 + 1.3 * len(maps) * height / width)
    axes = figure.subplots(len(maps), columns, squeeze=False)
    for row, (name, weights) in enumerate(maps.items()):
        axes[row, 0].set_ylabel(name)
        for column, axis in enumerate(axes[row]):
            axis.imshow(lit(picture, weights[column]).numpy(), vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
            if row == 0:
                axis.set_title(found.predicted[column])


def lit(picture: SourcePicture, weights: torch.Tensor) -> torch.Tensor:
    """The pixels (H, W, 3) of an image: dark, and as they are where the weights (S) are largest."""
    values = picture.values if picture.values.dim() == 3 else picture.values[..., None].expand(-1, -1, 3)
    light = torch.zeros(values.shape[:2])
    for (left, top, right, bottom), weight in zip(picture.cells.int().tolist(), weights.tolist(), strict=True):
        light[top:bottom, left:right] = weight
    return values * (0.15 + 0.85 * (light / light.max().clamp(min=1e-9)).sqrt())[..., None]
