"""
Draw the attention weights of every head of every layer for one sentence and its translation:

    vanilla-transformer attention outputs/quickstart attention.png "three hundred and forty-five"
    vanilla-transformer attention outputs/en-de words.png "A dog runs." --target "Ein Hund rennt." --layer 2
    vanilla-transformer attention outputs/en-de self.svg "A dog runs." --part encoder
    vanilla-transformer attention outputs/spoken-digits speech.png --audio one.wav
    vanilla-transformer attention outputs/digit-strips weights.png --image strip.png --layer 1

Each row is a layer: the mean of its heads, then each head. Darker cells have larger weights. A recording is drawn as
its spectrogram, an image as itself, and the weights of the decoder's steps below it; with --layer those of its heads.
Of such sources there is a line about each layer: how diagonal its attention is, the mean over all files.
"""

import argparse
from pathlib import Path

from ..common.command_line import make_parser
from ..common.white_space import text_argument


def parse_arguments(prog: str, argv: list[str]) -> argparse.Namespace:
    parser = make_parser(prog, __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    parser.add_argument("picture", help="picture to write (.png, .svg, .pdf)")
    parser.add_argument("source", nargs="?", type=text_argument, help="the sentence")
    parser.add_argument("--audio", nargs="+", metavar="FILE", help="recordings, for a model that reads speech: the "
                        "first is drawn, and all are measured")  # fmt: skip
    parser.add_argument("--image", nargs="+", metavar="FILE", help="images, in the same way")
    parser.add_argument("--target", type=text_argument, help="its translation (default: the model's)")
    parser.add_argument(
        "--part",
        choices=["encoder", "decoder", "cross"],
        default="cross",
        help="cross: of the decoder to the source (default); encoder, decoder: to themselves",
    )
    parser.add_argument("--layer", type=int, metavar="N", help="draw only this layer, counted from 0")
    arguments = parser.parse_args(argv)
    if sum(given is not None for given in (arguments.source, arguments.audio, arguments.image)) != 1:
        parser.error("expected one source: a sentence, --audio FILE or --image FILE")
    if arguments.source is None and arguments.part != "cross":
        parser.error(
            f"--part {arguments.part}: of a recording or an image only cross-attention is drawn; leave it out"
        )
    return arguments


def main(prog: str, argv: list[str]) -> None:
    arguments = parse_arguments(prog, argv)
    from ..common.files import open_output, refuse_overwriting

    refuse_overwriting(arguments.picture, arguments.audio or arguments.image or [])
    if arguments.source is not None:
        from .. import Translator
        from ..translation.pictures.attention_maps import attention_maps, draw_attention

        translator = Translator.from_pretrained(arguments.model, matmul_backend="default")
        maps = attention_maps(translator.model, translator.tokenizer, arguments.source, arguments.target)
        figure, told = draw_attention(maps, arguments.part, arguments.layer), " ".join(maps.predicted)
    else:
        from ..translation.pictures.source_attention import diagonal_lines, draw_source_attention, source_attention
        from ..translation.recognition import Recognizer

        recognizer = Recognizer(arguments.model, "input_features" if arguments.audio else "pixel_values")
        found = [source_attention(recognizer, path, arguments.target) for path in arguments.audio or arguments.image]
        figure = draw_source_attention(found[0], arguments.layer)
        told = "\n".join((found[0].text, *diagonal_lines(found)))
    with open_output(arguments.picture) as file:
        figure.savefig(file, format=Path(arguments.picture).suffix[1:] or "png", dpi=150)
    print(told)
