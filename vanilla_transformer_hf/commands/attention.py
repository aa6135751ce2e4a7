"""
Draw the attention weights of every head of every layer for one sentence and its translation:

    vanilla-transformer attention outputs/quickstart attention.png "three hundred and forty-five"
    vanilla-transformer attention outputs/en-de words.png "A dog runs." --target "Ein Hund rennt." --layer 2
    vanilla-transformer attention outputs/en-de self.svg "A dog runs." --part encoder

Each row is a layer: the mean of its heads, then each head. Darker cells have larger weights.
"""

import argparse
from pathlib import Path

from ..common.characters import text_argument
from ..common.command_line import make_parser


def parse_arguments(prog: str, argv: list[str]) -> argparse.Namespace:
    parser = make_parser(prog, __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    parser.add_argument("picture", help="picture to write (.png, .svg, .pdf)")
    parser.add_argument("source", type=text_argument, help="the sentence")
    parser.add_argument("--target", type=text_argument, help="its translation (default: the model's)")
    parser.add_argument(
        "--part",
        choices=["encoder", "decoder", "cross"],
        default="cross",
        help="cross: of the decoder to the source (default); encoder, decoder: to themselves",
    )
    parser.add_argument("--layer", type=int, metavar="N", help="draw only this layer, counted from 0")
    return parser.parse_args(argv)


def main(prog: str, argv: list[str]) -> None:
    arguments = parse_arguments(prog, argv)
    from .. import Translator
    from ..common.files import open_output
    from ..translation.scoring.attention_maps import attention_maps, draw_attention

    translator = Translator.from_pretrained(arguments.model, matmul_backend="default")
    maps = attention_maps(translator.model, translator.tokenizer, arguments.source, arguments.target)
    figure = draw_attention(maps, arguments.part, arguments.layer)
    with open_output(arguments.picture) as file:
        figure.savefig(file, format=Path(arguments.picture).suffix[1:] or "png", dpi=150)
    print(" ".join(maps.predicted))
