"""
Draw the model with the names that its modules have in the code, or the folders of the package and their imports:

    python docs/drawing/draw_architecture.py docs/architecture.png
    python docs/drawing/draw_architecture.py docs/rooms.png --imports
"""

import argparse
import ast
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import vanilla_transformer_hf
from vanilla_transformer_hf import VanillaTransformerConfig
from vanilla_transformer_hf.common.command_line import run


COLOURS = {"embedding": "#f9d9c3", "attention": "#fbe7b2", "norm": "#f2f3c7", "ffn": "#c8e3f4", "output": "#d9e8d0"}
ENCODER, DECODER = 2.6, 7.4  # x of the middle of each stack
WIDTH, HEIGHT = 2.7, 0.52


class Drawing:
    """Boxes and arrows on one pair of axes."""

    def __init__(self, axes):
        self.axes = axes

    def box(self, x: float, y: float, title: str, name: str, kind: str):
        corner = (x - WIDTH / 2, y - HEIGHT / 2)
        style = "round,pad=0.02,rounding_size=0.08"
        self.axes.add_patch(
            FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=style, facecolor=COLOURS[kind], edgecolor="#444444")
        )
        self.axes.text(x, y + 0.1, title, ha="center", va="center", fontsize=9.5)
        self.axes.text(x, y - 0.13, name, ha="center", va="center", fontsize=7.5, family="monospace", color="#555555")

    def arrow(self, *points: tuple[float, float]):
        xs, ys = zip(*points)
        self.axes.plot(xs[:-1], ys[:-1], color="#444444", linewidth=1.1, solid_capstyle="round")
        self.axes.annotate(
            "", points[-1], points[-2], arrowprops={"arrowstyle": "-|>", "color": "#444444", "linewidth": 1.1}
        )

    def sublayer(self, x: float, y: float, side: int, title: str, name: str, norm: str, kind: str) -> float:
        """A sub-layer at height y, the residual around it on one side, and the norm above; returns the norm's y."""
        top = y + 0.85
        self.box(x, y, title, name, kind)
        self.box(x, top, "Add & LayerNorm", norm, "norm")
        self.arrow((x, y + HEIGHT / 2), (x, top - HEIGHT / 2))
        edge = x + side * (WIDTH / 2 + 0.3)
        self.arrow((x, y - 0.5), (edge, y - 0.5), (edge, top), (x + side * WIDTH / 2, top))
        return top


def draw_stack(drawing: Drawing, x: float, side: int, sublayers: list[tuple[str, str, str, str]]) -> list[float]:
    """Embeddings, positions and one layer, from bottom to top; returns the heights of the norms."""
    drawing.box(x, 1.0, "Embedding × √d_model", "embed_tokens", "embedding")
    drawing.box(x, 1.85, "+ Positions, dropout", "embed_positions", "embedding")
    drawing.arrow((x, 1.0 + HEIGHT / 2), (x, 1.85 - HEIGHT / 2))
    y, norms = 1.85, []
    for number, (title, name, norm, kind) in enumerate(sublayers):
        bottom = y + (1.4 if number == 0 else 1.2)
        drawing.arrow((x, y + HEIGHT / 2), (x, bottom - HEIGHT / 2))
        y = drawing.sublayer(x, bottom, side, title, name, norm, kind)
        norms.append(y)
    return norms


def frame(drawing: Drawing, x: float, top: float, label: str, side: int):
    corner, size = (x - WIDTH / 2 - 0.5, 2.45), (WIDTH + 1.0, top - 2.45 + 0.5)
    drawing.axes.add_patch(
        FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.2", fill=False, edgecolor="#888888")
    )
    drawing.axes.text(x + side * (WIDTH / 2 + 0.85), (2.45 + top) / 2, label, fontsize=11, ha="center", va="center")


def draw(config: VanillaTransformerConfig) -> Figure:
    """The whole model of `config`, drawn in its post-norm form."""
    figure = Figure(figsize=(10, 10.3), layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(xlim=(-0.2, 10.2), ylim=(-0.1, 10.4), aspect="equal")
    axes.axis("off")
    drawing = Drawing(axes)
    attention, feed_forward = "Multi-head attention", "Feed-forward"
    encoder = draw_stack(
        drawing,
        ENCODER,
        -1,
        [
            (attention, "self_attn", "self_attn_layer_norm", "attention"),
            (feed_forward, "fc1, fc2", "final_layer_norm", "ffn"),
        ],
    )
    decoder = draw_stack(
        drawing,
        DECODER,
        1,
        [
            ("Masked multi-head attention", "self_attn", "self_attn_layer_norm", "attention"),
            ("Attention over the memory", "encoder_attn", "encoder_attn_layer_norm", "attention"),
            (feed_forward, "fc1, fc2", "final_layer_norm", "ffn"),
        ],
    )
    frame(drawing, ENCODER, encoder[-1], f"{config.encoder_layers} ×", -1)
    frame(drawing, DECODER, decoder[-1], f"{config.decoder_layers} ×", 1)
    memory, across, keys = encoder[-1] + 0.8, (ENCODER + DECODER) / 2, decoder[1] - 0.85
    drawing.arrow(
        (ENCODER, encoder[-1] + HEIGHT / 2),
        (ENCODER, memory),
        (across, memory),
        (across, keys),
        (DECODER - WIDTH / 2, keys),
    )
    axes.text(across - 0.12, memory + 0.12, "memory (B, S, D): keys and values", fontsize=9, ha="right")
    head = decoder[-1] + 1.1
    drawing.box(DECODER, head, "Output projection, softmax", "lm_head", "output")
    drawing.arrow((DECODER, decoder[-1] + HEIGHT / 2), (DECODER, head - HEIGHT / 2))
    drawing.arrow((DECODER, head + HEIGHT / 2), (DECODER, head + 0.75))
    axes.text(DECODER, head + 0.85, "p(next token)  (B, T, V)", ha="center", fontsize=10)
    for x, text in ((ENCODER, "source ids (B, S)"), (DECODER, "target ids (B, T), shifted right")):
        axes.text(x, 0.05, text, ha="center", fontsize=10)
        drawing.arrow((x, 0.3), (x, 1.0 - HEIGHT / 2))
    axes.plot((ENCODER + WIDTH / 2, DECODER - WIDTH / 2), (1.0, 1.0), color="#c0703a", linestyle=":", linewidth=1.6)
    axes.text(across, 1.12, "shared", ha="center", fontsize=9, family="monospace", color="#c0703a")
    axes.text(across, 0.78, "one matrix, also in lm_head", ha="center", fontsize=8, color="#c0703a")
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# The folders of the package
# ---------------------------------------------------------------------------------------------------------------------


PURPOSES = {
    "commands": "vanilla-transformer …",
    "explorer": "a page of numbers",
    "export": "engines",
    "serving": "HTTP",
    "conversion": "other toolkits",
    "training": "runs, checkpoints",
    "publishing": "cards, the Hub",
    "translation": "text, scores, alignments",
    "common": "files, opening models",
    "evaluation": "BLEU, chrF",
    "recurrent": "LSTM, GRU",
    "model": "travels with saved models",
}


def read_imports(package: Path) -> dict[str, set[str]]:
    """Each folder of the package -> the other folders that its files import, read from the import statements."""
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    imports: dict[str, set[str]] = {folder: set() for folder in sorted(folders)}
    for folder in folders:
        for path in (package / folder).rglob("*.py"):
            depth = len(path.relative_to(package).parts)  # `from ..` of so many dots is the package
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.level == depth:
                    names = [node.module] if node.module else [alias.name for alias in node.names]
                    imports[folder] |= {name.split(".")[0] for name in names} & folders - {folder}
    return imports


def floor_of(folder: str, imports: dict[str, set[str]]) -> int:
    """0 for a folder that imports none; else one above the highest that it imports."""
    return 1 + max((floor_of(other, imports) for other in imports[folder]), default=-1)


def draw_imports(package: Path) -> Figure:
    """The folders in floors, with an arrow from each to those that it imports."""
    imports = read_imports(package)
    floors: dict[int, list[str]] = {}
    for folder in imports:
        floors.setdefault(floor_of(folder, imports), []).append(folder)
    side = 1.8 * max(len(folders) for folders in floors.values()) - 0.2  # half of the widest floor
    figure = Figure(figsize=(1.54 * side, 1.1 * len(floors) + 0.4), layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(xlim=(-side, side), ylim=(-0.4, 1.5 * len(floors) - 1.1), aspect="equal")
    axes.axis("off")
    drawing, places = Drawing(axes), {}
    for floor, folders in floors.items():
        for number, folder in enumerate(folders):
            # Floors are shifted in turn, so that arrows pass beside the boxes between.
            shift = 0.0 if len(folders) > 1 else (-1.2, 1.2)[floor % 2]
            places[folder] = (3.6 * (number - (len(folders) - 1) / 2) + shift, 1.5 * floor)
    for folder, others in imports.items():
        for other in others:
            (x, y), (x_other, y_other) = places[folder], places[other]
            is_far = floor_of(folder, imports) - floor_of(other, imports) > 1
            bend = (0.35 if x + x_other > 0 else -0.35) if is_far else 0.0
            axes.annotate(
                "",
                (x_other, y_other + HEIGHT / 2),
                (x, y - HEIGHT / 2),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": "#777777",
                    "linewidth": 0.9,
                    "connectionstyle": f"arc3,rad={-bend}",
                },
                zorder=0,
            )
    for folder, (x, y) in places.items():
        drawing.box(x, y, folder, PURPOSES[folder], "ffn" if folder == "model" else "norm")
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="picture to write (.png, .svg, .pdf)")
    parser.add_argument("--preset", default="base", help="named size whose numbers of layers are shown")
    parser.add_argument("--imports", action="store_true", help="draw the folders of the package instead")
    arguments = parser.parse_args()
    if arguments.imports:
        draw_imports(Path(vanilla_transformer_hf.__file__).parent).savefig(arguments.output, dpi=110)
        return
    draw(VanillaTransformerConfig.from_preset(arguments.preset)).savefig(arguments.output, dpi=110)


if __name__ == "__main__":
    run(main)
