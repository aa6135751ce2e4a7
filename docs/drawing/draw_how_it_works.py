"""
Draw the pictures of docs/how_it_works.md: one sentence on its way through the trained model of this repository.

    python docs/drawing/draw_how_it_works.py docs
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.common.command_line import make_parser, run
from vanilla_transformer_hf.common.files import open_output


MODEL = Path(__file__).parents[2] / "model_cards" / "multi30k_raw_en_de"
SENTENCE = "A brown dog is running through the snow."
NEIGHBOUR = "Two men play chess."  # of the same batch
# Layers and heads that the page shows, counted from 0.
LOOK_UP, MASKED, CROSS = (3, 3), (1, 0), (2, 3)
WORD = 4  # "running"
QUERY, KEY, VALUE, DARK, PALE = "#c8641b", "#2f6db3", "#3c8a4c", "#333333", "#b9b9b9"
SHOWN = 30  # positions of the heat maps
STYLE = {"font.size": 9, "axes.edgecolor": PALE, "text.color": DARK, "axes.labelcolor": DARK}
SIGNED = {"cmap": "RdBu_r", "interpolation": "nearest", "aspect": "auto"}
WEIGHTS = {"cmap": "Blues", "interpolation": "nearest", "aspect": "auto"}


@dataclass(frozen=True)
class Journey:
    """
    What the pictures show of a sentence of S tokens and its T predicted tokens, in a model of width D.

    Attributes:
        source: The encoder's tokens (S).
        read: The decoder's tokens, the start token first (T).
        predicted: The tokens that it predicts, `</s>` last (T).
        positions: PE of the first 50 positions (50, D).
        query, key, value: Of the head `LOOK_UP` of the encoder (S, d_k), values (S, d_v).
        scores: q · k / √d_k of the decoder's head `MASKED`, before the mask (T, T).
        cross: Weights of the head `CROSS` (T, S).
        probabilities: Of each next token (T, V).
        sums: x + attention of the encoder's layer of `LOOK_UP`, before its norm (S, D).
        neighbour: The tokens of `NEIGHBOUR` and their sums.
        words: The text of each token of the vocabulary that a picture names, by id.
    """

    source: list[str]
    read: list[str]
    predicted: list[str]
    positions: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scores: torch.Tensor
    cross: torch.Tensor
    probabilities: torch.Tensor
    sums: torch.Tensor
    neighbour: tuple[list[str], torch.Tensor]
    words: dict[int, str]

    @property
    def products(self) -> torch.Tensor:
        """The query of `WORD` times each key (S)."""
        return self.key @ self.query[WORD]

    @property
    def weights(self) -> torch.Tensor:
        """Weights of the query of `WORD` (S)."""
        return (self.products / self.key.shape[1] ** 0.5).softmax(dim=0)


@torch.no_grad()
def follow() -> Journey:
    """The sentence in the model of this repository, with greedy search."""
    tokenizer = VanillaTransformerTokenizer.from_pretrained(MODEL)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(MODEL, attn_implementation="eager").eval()
    encoder, decoder = model.model.encoder, model.model.decoder
    ids = tokenizer(SENTENCE, return_tensors="pt")["input_ids"]  # (1, S)
    target = model.generate(ids, num_beams=1)  # (1, T + 1)
    outputs = model(ids, decoder_input_ids=target[:, :-1], output_attentions=True, output_hidden_states=True)
    layer, head = LOOK_UP
    attention, x = encoder.layers[layer].self_attn, outputs.encoder_hidden_states[layer]
    size = attention.q_proj.out_features // model.config.encoder_attention_heads
    parts = [
        attention.heads(linear(x), size)[0, head] for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
    ]
    layer, head = MASKED
    attention, y = decoder.layers[layer].self_attn, outputs.decoder_hidden_states[layer]
    query, key = (attention.heads(linear(y), size)[0, head] for linear in (attention.q_proj, attention.k_proj))
    sums: list[torch.Tensor] = []
    norm = encoder.layers[LOOK_UP[0]].self_attn_layer_norm
    hook = norm.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0][0]))
    neighbour = tokenizer(NEIGHBOUR, return_tensors="pt")["input_ids"]  # (1, N)
    for each in (ids, neighbour):
        encoder(each)
    hook.remove()
    pieces = [tokenizer.decode([index]) for index in target[0].tolist()]
    probabilities = outputs.logits[0].softmax(dim=-1)
    named = probabilities.topk(3).indices.flatten().tolist()
    return Journey(
        source=[tokenizer.decode([index]) for index in ids[0].tolist()],
        read=pieces[:-1],
        predicted=pieces[1:],
        positions=encoder.embed_positions(torch.zeros(1, 50, x.shape[-1]), torch.arange(50)[None])[0],
        query=parts[0],
        key=parts[1],
        value=parts[2],
        scores=query @ key.T / size**0.5,
        cross=outputs.cross_attentions[CROSS[0]][0, CROSS[1]],
        probabilities=probabilities,
        sums=sums[0],
        neighbour=([tokenizer.decode([index]) for index in neighbour[0].tolist()], sums[1]),
        words={index: tokenizer.decode([index]) for index in named},
    )


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def bare(axes: Axes) -> Axes:
    """Axes without ticks and frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def number(value: float) -> str:
    return f"{value:.1f}".replace("-", "−")


def percent(share: float) -> str:
    """A share as it is printed: what rounds to nothing is less than one percent."""
    return f"{share:.0%}" if share >= 0.005 else "< 1%"


def draw_positions(journey: Journey) -> Figure:
    """The vectors of positions as heat maps, and how alike those of two positions are by their distance."""
    figure = new_figure(9.5, 3.7)
    *maps, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.8))
    shown, words = journey.positions[:SHOWN], journey.source
    for parity, (axes, name) in enumerate(zip(maps, ("sin(position · w)", "cos(position · w)"), strict=True)):
        image = axes.imshow(shown[:, parity::2].numpy(), vmin=-1, vmax=1, **SIGNED)
        axes.set_title(f"features {parity}, {parity + 2}, {parity + 4} …: {name}", fontsize=9)
        axes.set_xticks([0, 20, 40, 60], [2 * column + parity for column in (0, 20, 40, 60)])
        axes.set_xlabel("feature")
        axes.set_yticks([])
        axes.tick_params(length=0)
    labels = [f"{word}  {at}" for at, word in enumerate(words)]
    maps[0].set_yticks(
        [*range(len(words)), 15, 20, 25, SHOWN - 1], [*labels, "15", "20", "25", str(SHOWN - 1)], fontsize=7
    )
    figure.colorbar(image, ax=maps, pad=0.01, shrink=0.7)
    middle = len(journey.positions) // 2
    alike = journey.positions @ journey.positions[middle] / journey.positions[middle].norm() ** 2
    right.plot([at - middle for at in range(len(alike))], alike, color=KEY, marker="o", markersize=3)
    right.set(xlabel="distance of the two positions", ylim=(0.5, 1.02))
    right.set_title("cosine of two positions", fontsize=9)
    right.spines[["top", "right"]].set_visible(False)
    right.grid(alpha=0.25)
    return figure


def draw_look_up(journey: Journey) -> Figure:
    """One query, all keys, the softmax, all values, and their mix: a row for each token."""
    figure = new_figure(9.8, 4.5)
    axes = bare(figure.subplots())
    weights, width = journey.weights, 2.6
    columns = {"key": 1.5, "dot": 4.55, "scaled": 5.35, "bar": 5.9, "value": 7.7, "share": 10.7}
    last = len(journey.source)

    def strip(values: torch.Tensor, x: float, y: float, limit: float) -> None:
        axes.imshow(values[None].numpy(), extent=(x, x + width, y + 0.38, y - 0.38), vmin=-limit, vmax=limit, **SIGNED)
        axes.add_patch(Rectangle((x, y - 0.38), width, 0.76, fill=False, edgecolor=PALE, linewidth=0.6))

    answer = weights @ journey.value
    limits = {name: getattr(journey, name).abs().max().item() for name in ("key", "value")}
    strip(journey.query[WORD], columns["key"], -1.6, journey.query[WORD].abs().max().item())
    word = journey.source[WORD]
    axes.text(columns["key"] - 0.15, -1.6, f"query of “{word}”", ha="right", va="center", color=QUERY, weight="bold")
    titles = {"key": ("keys", KEY, width / 2), "value": ("values", VALUE, width / 2)}
    titles |= {"dot": ("q · k", DARK, 0), "scaled": ("/ √32", DARK, 0), "bar": ("softmax", DARK, 0.75)}
    titles |= {"share": ("weight · value", VALUE, width / 2)}
    for name, (title, colour, shift) in titles.items():
        axes.text(columns[name] + shift, -0.75, title, ha="center", va="center", color=colour, weight="bold")
    for at, token in enumerate(journey.source):
        share = weights[at].item()
        axes.text(columns["key"] - 0.15, at, token, ha="right", va="center")
        strip(journey.key[at], columns["key"], at, limits["key"])
        product = journey.products[at].item()
        axes.text(columns["dot"] + 0.25, at, number(product), ha="right", va="center")
        axes.text(columns["scaled"] + 0.25, at, number(product / 32**0.5), ha="right", va="center")
        axes.add_patch(Rectangle((columns["bar"], at - 0.32), 1.6 * share, 0.64, color=QUERY, linewidth=0))
        axes.text(columns["bar"] + 1.6 * share + 0.08, at, percent(share), ha="left", va="center")
        strip(journey.value[at], columns["value"], at, limits["value"])
        strip(share * journey.value[at], columns["share"], at, answer.abs().max().item())
    axes.plot([columns["share"], columns["share"] + width], [last - 0.45] * 2, color=DARK, linewidth=1)
    strip(answer, columns["share"], last + 0.1, answer.abs().max().item())
    axes.text(
        columns["share"] - 0.15, last + 0.1, f"the head's answer for “{word}”: their sum", ha="right", va="center"
    )
    axes.set(xlim=(-0.6, columns["share"] + width + 0.1), ylim=(last + 0.6, -2.2))
    axes.set_aspect("auto")
    return figure


def write_cells(axes: Axes, texts: dict[tuple[int, int], str], is_dark: Callable[[int, int], bool]) -> None:
    """Write a text into each cell (row, column) of a map, white where the cell is dark."""
    for (row, column), text in texts.items():
        colour = "white" if is_dark(row, column) else DARK
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)


def draw_norms(journey: Journey) -> Figure:
    """What layer norm and batch norm take together, of two sentences of a batch: a row each for a token."""
    figure = new_figure(9.8, 4.0)
    others, sums = journey.neighbour
    values = torch.cat((journey.sums, sums))  # (S + N, D)
    count, feature = len(values), 12
    limit = values.abs().quantile(0.98).item()
    row, column = values[WORD], values[:, feature]
    for panel, (title, box, group) in zip(
        figure.subplots(1, 2, sharey=True),
        (
            ("LayerNorm: one token, all features", (-0.5, WORD - 0.5, SHOWN, 1), row),
            ("BatchNorm: one feature, all tokens of the batch", (feature - 0.5, -0.5, 1, count), column),
        ),
        strict=True,
    ):
        panel.imshow(values[:, :SHOWN].numpy(), vmin=-limit, vmax=limit, **SIGNED)
        left, top, width, height = box
        panel.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=DARK, linewidth=2.5, zorder=3))
        panel.axhline(len(journey.source) - 0.5, color="white", linewidth=4)
        panel.set_title(title, weight="bold")
        statistics = f"μ = {group.mean():.2f}, σ = {group.std(correction=0):.2f}".replace("-", "−")
        panel.set_xlabel(f"features 0 to {SHOWN - 1} of {values.shape[1]};  {statistics} of {len(group)} numbers")
        panel.set_yticks(range(count), [*journey.source, *others], fontsize=8)
        panel.tick_params(length=0)
    return figure


def draw_mask(journey: Journey) -> Figure:
    """Scores of the decoder's self-attention, the mask, and the weights: a row for each step."""
    figure = new_figure(10.5, 4.2)
    count, scores = len(journey.read), journey.scores
    mask = torch.full((count, count), -torch.inf).triu(1)
    weights = (scores + mask).softmax(dim=-1)
    limit = scores.abs().max().item()
    cells = [(row, column) for row in range(count) for column in range(count)]
    seen = [(row, column) for row, column in cells if column <= row]
    panels = figure.subplots(1, 3)
    panels[0].imshow(scores.numpy(), vmin=-limit, vmax=limit, **SIGNED)
    panels[1].imshow(scores.numpy(), vmin=-limit, vmax=limit, **SIGNED)
    panels[2].imshow(weights.numpy(), vmin=0, vmax=1, **WEIGHTS)
    for panel, shown in ((panels[0], cells), (panels[1], seen)):
        texts = {cell: number(scores[cell].item()) for cell in shown}
        write_cells(panel, texts, lambda row, column: abs(scores[row, column].item()) > 0.65 * limit)
    shares = {cell: f"{weights[cell].item():.0%}" for cell in seen}
    write_cells(panels[2], shares, lambda row, column: weights[row, column].item() > 0.55)
    for row, column in set(cells) - set(seen):
        for panel, text in ((panels[1], "−∞"), (panels[2], "0")):
            panel.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color="#e4e4e4", linewidth=0))
            panel.text(column, row, text, ha="center", va="center", fontsize=7, color="#777777")
    for panel, title in zip(panels, ("q · k / √32", "+ mask", "softmax"), strict=True):
        panel.set_title(title)
        panel.set_xticks(range(count), journey.read, rotation=90)
        panel.set_yticks([])
        panel.tick_params(length=0)
    steps = [f"{read} → {said}" for read, said in zip(journey.read, journey.predicted, strict=True)]
    panels[0].set_yticks(range(count), steps)
    panels[0].set_ylabel("read → predicted")
    return figure


def draw_cross(journey: Journey) -> Figure:
    """Where each step of the decoder looks in the source."""
    figure = new_figure(6.4, 4.2)
    axes, weights = figure.subplots(), journey.cross
    axes.imshow(weights.numpy(), vmin=0, vmax=1, **WEIGHTS)
    shown = {
        (row, column): f"{weights[row, column].item():.0%}" for row, column in (weights >= 0.02).nonzero().tolist()
    }
    write_cells(axes, shown, lambda row, column: weights[row, column].item() > 0.55)
    axes.set_xticks(range(len(journey.source)), journey.source)
    axes.set_yticks(range(len(journey.predicted)), journey.predicted)
    axes.xaxis.tick_top()
    axes.set_ylabel("predicted")
    axes.tick_params(length=0)
    return figure


def draw_next_tokens(journey: Journey) -> Figure:
    """The three most probable tokens of each step, on the way of the sentence."""
    count = len(journey.predicted)
    figure = new_figure(11, 2.5)
    axes = bare(figure.subplots())
    for step, chances in enumerate(journey.probabilities):
        best = chances.topk(3)
        axes.text(step + 0.42, -1.0, journey.predicted[step], ha="center", va="center", weight="bold", fontsize=11)
        for row, (share, index) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            axes.add_patch(Rectangle((step, row - 0.36), 0.85, 0.72, color="#f1f1f1", linewidth=0))
            colour = QUERY if row == 0 else KEY
            axes.add_patch(Rectangle((step, row - 0.36), 0.85 * share, 0.72, color=colour, alpha=0.45, linewidth=0))
            axes.text(step + 0.03, row - 0.14, journey.words[index] or "␣", ha="left", va="center", fontsize=8)
            axes.text(step + 0.82, row + 0.18, percent(share), ha="right", va="center", fontsize=7)
        if step + 1 < count:
            axes.annotate("", (step + 1, -1.0), (step + 0.9, -1.0), arrowprops={"arrowstyle": "->", "color": PALE})
    axes.set(xlim=(-0.05, count), ylim=(2.6, -1.5))
    return figure


def draw_steps(journey: Journey) -> Figure:
    """How "Hund" gets at "dog": through all states between, by attention, and with self-attention alone."""
    figure = new_figure(9.5, 3.8)
    panels = {
        "recurrent, one vector": "“dog” to “Hund”: 8 steps, one vector",
        "recurrent, with attention": "1 step, but words one after the other",
        "attention alone": "1 step between any two, all at once",
    }
    words, said, places = journey.source[:8], journey.predicted[:3], [2.9, 4.7, 6.5]
    looks = (journey.cross[2, :8] / journey.cross[2, :8].max()).tolist()
    for kind, (axes, (title, steps)) in enumerate(zip(figure.subplots(1, 3), panels.items(), strict=True)):
        bare(axes).set(xlim=(-0.7, 7.7), ylim=(-2.1, 5.3))
        axes.set_title(title, weight="bold", fontsize=10)
        axes.text(3.5, -1.9, steps, ha="center", fontsize=8)
        for at, word in enumerate(words):
            axes.text(at, -0.45, word, ha="center", va="top", fontsize=8, rotation=35)
        for place, word in zip(places, said, strict=True):
            axes.text(place, 4.65, word, ha="center", fontsize=9)
        if kind == 2:
            lattice(axes, range(8), (0, 1.4), KEY)
            lattice(axes, places, (2.8, 4.2), QUERY, is_causal=True)
        else:
            chain(axes, range(8), 0, KEY)
            chain(axes, places, 4.2, QUERY)
        if kind == 0:
            elbow(axes, (7, 0.1), (7, 2), (1.3, 2), (1.3, 4.2), (places[0], 4.2))
            axes.text(4.3, 2.15, "the whole sentence", ha="center", fontsize=8)
        for at, look in enumerate(looks if kind else []):
            line = {"color": VALUE, "linewidth": 0.5 + 3.5 * look, "alpha": 0.3 + 0.6 * look, "zorder": 0}
            axes.plot([at, places[2]], [1.4 if kind == 2 else 0, 4.2], **line)
    return figure


def dots(axes: Axes, places: Sequence[float], y: float, colour: str) -> None:
    """States of a network at a height."""
    axes.plot(places, [y] * len(places), "o", markersize=9, markeredgewidth=1.5, color="white", markeredgecolor=colour)


def elbow(axes: Axes, *points: tuple[float, float]) -> None:
    """An arrow along points."""
    axes.plot(*zip(*points[:-1], strict=True), color=DARK, linewidth=2.5, zorder=0)
    ends = {"arrowstyle": "-|>", "color": DARK, "linewidth": 2.5, "shrinkA": 0, "shrinkB": 7}
    axes.annotate("", points[-1], points[-2], arrowprops=ends)


def chain(axes: Axes, places: Sequence[float], y: float, colour: str) -> None:
    """Recurrent states: each reads the one before it."""
    for left, right in pairwise(places):
        ends = {"arrowstyle": "-|>", "color": colour, "shrinkA": 6, "shrinkB": 6}
        axes.annotate("", (right, y), (left, y), arrowprops=ends)
    dots(axes, places, y, colour)


def lattice(
    axes: Axes, places: Sequence[float], heights: tuple[float, float], colour: str, is_causal: bool = False
) -> None:
    """A layer of self-attention: each state reads all states below it, with a mask itself and those before it."""
    for to in places:
        for start in places:
            if start <= to or not is_causal:
                axes.plot([start, to], heights, color=colour, linewidth=0.6, alpha=0.5, zorder=0)
    for height in heights:
        dots(axes, places, height, colour)


# Name of a picture -> what draws it.
PICTURES: dict[str, Callable[[Journey], Figure]] = {
    "how_positions": draw_positions,
    "how_look_up": draw_look_up,
    "how_norms": draw_norms,
    "how_mask": draw_mask,
    "how_cross": draw_cross,
    "how_next_tokens": draw_next_tokens,
    "how_steps": draw_steps,
}


def main() -> None:
    parser = make_parser("draw_how_it_works.py", __doc__)
    parser.add_argument("folder", type=Path, help="folder for the pictures")
    folder = parser.parse_args().folder
    journey = follow()
    with matplotlib.rc_context(STYLE):
        for name, draw in PICTURES.items():
            with open_output(folder / f"{name}.png") as file:
                draw(journey).savefig(file, format="png", dpi=150)


if __name__ == "__main__":
    run(main, "draw_how_it_works.py")
