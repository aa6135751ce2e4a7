"""
Draw what every head of every layer of a model attends to, for one sentence and its translation:

    python scripts/draw_attention.py outputs/quickstart attention.png "three hundred and forty-five"
    python scripts/draw_attention.py outputs/en-de words.png "A dog runs." --target "Ein Hund rennt." --layer 2
    python scripts/draw_attention.py outputs/en-de self.svg "A dog runs." --part encoder

Each row is a layer: the mean of its heads, then each head. Dark is much attention.
"""

import argparse
from pathlib import Path

from vanilla_transformer_hf.common.command_line import run


def parse_arguments() -> argparse.Namespace:
    from vanilla_transformer_hf.translation.attention_maps import PARTS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder saved by scripts/train.py, or the id of a Hub repository")
    parser.add_argument("picture", help="picture to write (.png, .svg, .pdf)")
    parser.add_argument("source", help="the sentence")
    parser.add_argument("--target", help="its translation (default: the model's)")
    parser.add_argument(
        "--part",
        choices=PARTS,
        default="cross",
        help="cross: of the decoder to the source (default); encoder, decoder: to themselves",
    )
    parser.add_argument("--layer", type=int, metavar="N", help="this layer alone, counted from 0")
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> None:
    from vanilla_transformer_hf import Translator
    from vanilla_transformer_hf.common.files import open_output
    from vanilla_transformer_hf.translation.attention_maps import attention_maps, draw_attention

    translator = Translator.from_pretrained(arguments.model, matmul_backend="default")
    maps = attention_maps(translator.model, translator.tokenizer, arguments.source, arguments.target)
    figure = draw_attention(maps, arguments.part, arguments.layer)
    with open_output(arguments.picture) as file:
        figure.savefig(file, format=Path(arguments.picture).suffix[1:] or "png", dpi=150)
    print(" ".join(maps.predicted))


if __name__ == "__main__":
    run(lambda: main(parse_arguments()))
